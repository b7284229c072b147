"""A thread that was sent under a policy of its own is shown under that one, by every command."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from send_parts import new_thread

from quire import Entry, Policy
from quire.testing import emulator
from quire.thread_state import policy_for, policy_of
from toolbox import TARGETS, carry_out, run

TARGET = TARGETS["openai-chat"]
OWN = Policy(budget=900, reply=50, floor=0.4, when="full", summary=0.15)
WRITTEN = {"budget": 900, "reply": 50, "when": "full", "floor": 0.4, "summary": 0.15}


def talked(home: Path, policy: Policy | None, turns: int = 8) -> list[Entry]:
    with emulator("openai-chat", lambda body: "It stands. " * 12) as server:
        thread = new_thread(home / "quire.db", policy=policy)
        for turn in range(turns):
            thread.user(f"Question {turn}: " + "what about the harbor and the old lighthouse? " * 8)
            carry_out(thread, TARGET, server.url)
    return thread.store.read("t")


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_each_request_keeps_the_policy_it_was_built_under(home: Path) -> None:
    sent = [entry.body for entry in talked(home, OWN) if entry.kind == "sent"]
    assert {json.dumps(body["meta"]["policy"]) for body in sent} == {json.dumps(WRITTEN)}
    assert {body["meta"].get("aside") for body in sent} == {None, "summary"}, (
        "of a question beside the conversation, too"
    )
    assert policy_of(sent[-1]) == policy_for(TARGET, OWN)


def test_the_models_own_policy_is_not_written_down(home: Path) -> None:
    sent = [entry.body for entry in talked(home, None, 1) if entry.kind == "sent"]
    assert all("policy" not in body.get("meta", {}) for body in sent)
    assert policy_of(sent[-1]) == policy_for(TARGET)


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_the_commands_show_the_limit_of_then(home: Path) -> None:
    talked(home, OWN)
    assert set(re.findall(r"of ([\d,]+) tokens", run("assemble", "t"))) == {"850"}
    assert set(re.findall(r"of ([\d,]+) tokens", run("assemble", "t", "--budget", "2000"))) == {"2,000"}
    own = planned("plan", "t", "--json")["as given"]
    assert own["cuts"]
    # No option says when to cut; but each policy is also shown as if it waited until it is full.
    assert own == planned("plan", "t", "--json", *as_options(OWN))["only when full"]
    assert "differs" in run("diff", "t", "1", "8")


def planned(*words: str) -> dict[str, Any]:
    return {row.pop("policy"): row for row in json.loads(run(*words))["policies"]}


def as_options(policy: Policy) -> list[str]:
    priced = policy_for(TARGET, policy)
    named = {"--budget": priced.limit, "--floor": priced.floor, "--summary": priced.summary}
    named |= {"--read": priced.read, "--write": priced.write, "--ttl": priced.ttl_s or 0}
    return [word for name, value in named.items() for word in (name, str(value))]


@pytest.mark.parametrize("named", [7, "x", {"budget": "lots"}, {"budget": 3, "reply": 9}, {"floor": 2.0}, {"later": 1}])
def test_what_is_no_policy_of_ours_is_passed_over(named: Any) -> None:
    provider, _, model = TARGET.partition(":")
    sent = {"kind": "sent", "provider": provider, "model": model, "meta": {"policy": named}}
    assert policy_of(sent) == policy_for(TARGET)


@pytest.mark.parametrize(
    "own", [{"read": 0.5}, {"write": 2.0}, {"ttl_s": 3600}, {"ttl_s": None}, {"read": 0.0, "write": 1.0}]
)
def test_prices_and_a_cache_life_of_ones_own_win_over_the_models(own: dict[str, Any]) -> None:
    priced = policy_for("anthropic:claude-opus-5-5", Policy(**own))
    assert {name: getattr(priced, name) for name in own} == own
    usual, other = policy_for("anthropic:claude-opus-5-5"), policy_for("openai-chat:gpt-5")
    assert policy_for("openai-chat:gpt-5", usual).write == other.write, "another model's are not one's own"
