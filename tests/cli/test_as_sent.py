"""Each request that was sent is shown as it was, under the policy of its own `sent` entry."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from quire import Entry, Policy, Reply, Request, Thread, Usage, open_store, values
from toolbox import closed_later, note, run, sent_body, written

pytestmark = pytest.mark.moves_prefix(reason="the policy changes on the way")

TARGET = "openai-chat:foo"
NOTE = note("n.md", "NOTE", ctime=1, mtime=2)
CHANGES = {
    "promote": (Policy(budget=9000, promote="each-turn"), Policy(budget=9000)),
    "times": (Policy(budget=9000), Policy(budget=9000, times=True)),
    "limit": (Policy(budget=9000), Policy(budget=5000)),
}


def sent(db: Path, policies: tuple[Policy, Policy]) -> list[Request]:
    """Four turns about one note; the policy changes after the second."""
    thread = Thread(closed_later(open_store(db)), "t", clock=itertools.count(0, 1000).__next__)
    thread.append(values.system("SYS"))
    made = []
    for n, policy in enumerate([policies[0]] * 2 + [policies[1]] * 2):
        thread.policy = policy
        thread.append(values.user(f"q{n}", [NOTE]))
        made.append(thread.request(TARGET))
        thread.record(Reply((values.respond(f"a{n}"),), Usage(input_total=100, cache_read=50)), made[-1])
    return made


@pytest.mark.parametrize("change", CHANGES)
def test_every_command_shows_each_request_as_it_was_sent(tmp_path: Path, change: str) -> None:
    db = tmp_path / "q.db"
    made = sent(db, CHANGES[change])
    limits = "of 9,000", "(5,000 as the model counts)"
    assert [limit in run("assemble", "t", "--db", str(db)) for limit in limits] == [True, change == "limit"]
    shown = [json.loads(line) for line in run("assemble", "t", "--db", str(db), "--json").splitlines()]
    assert [row["messages"] for row in shown] == [request.body["messages"] for request in made]
    for turn, request in enumerate(made, 1):
        told = run("render", "t", "-p", "openai-chat", "-m", "foo", "--turn", str(turn), "--bytes", "--db", str(db))
        assert told.encode() == request.prefix


def test_diff_compares_the_bytes_that_were_sent(tmp_path: Path) -> None:
    db = tmp_path / "q.db"
    first, second = [request.prefix for request in sent(db, CHANGES["times"])[1:3]]
    found = json.loads(run("diff", "t", "2", "3", "--db", str(db), "--json"))
    byte = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert (found["extends"], found["byte"]) == (False, byte)


def test_what_was_paid_is_reckoned_at_each_requests_own_prices(tmp_path: Path) -> None:
    entries = [values.system("SYS")]
    for provider, model in (("anthropic", "claude-opus-5-5"), ("openai-chat", "foo")):
        entries += [values.user("q"), sent_entry(provider, model), values.respond("a")]
    prices = [json.loads(run("plan", written(tmp_path, entries), "--json"))["paid"]["cost"]]
    for n in (1, 4):
        one = written(tmp_path, [*entries[:1], *entries[n : n + 3]])
        prices.append(json.loads(run("plan", one, "--json"))["paid"]["cost"])
    assert prices[0] == pytest.approx(prices[1] + prices[2], abs=1)
    assert prices[1] != prices[2]


def test_a_provider_that_is_not_known_here_is_shown_all_the_same(tmp_path: Path) -> None:
    entries = [values.user("q"), sent_entry("nobody", "x", {"budget": 700, "reply": 0}), values.respond("a")]
    assert "of 700 tokens" in run("assemble", written(tmp_path, entries))


def sent_entry(provider: str, model: str, policy: Any = None) -> Entry:
    usage = {"input_total": 100_000, "cache_read": 40_000}
    meta = {} if policy is None else {"meta": {"policy": policy}}
    return Entry("sent", sent_body(f"{provider}:{model}", usage=usage, **meta))
