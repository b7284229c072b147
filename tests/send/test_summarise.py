"""The model's own summary is asked for on the prefix that it has cached."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from send_parts import new_thread

from quire import Entry, Policy, Thread, values
from quire.assemble.summary import extract
from quire.cli.output import line_of
from quire.send.events import Event
from quire.send.runners import CHAT, ByModel
from quire.send.turn import Runner
from quire.testing import Refuse, emulator
from quire.tokens import text_tokens
from quire.values import Call, Text
from toolbox import TARGETS, Clock, Outcome, carry_out

TARGET = TARGETS["openai-chat"]
# Cuts every few turns; handles and rent stay out of the way.
POLICY = Policy(budget=900, floor=0.4, when="full", summary=0.2)


def talk(
    thread: Thread, url: str, turns: int, runner: Runner = CHAT, target: str = TARGET, words: int = 8, **how: Any
) -> list[Outcome]:
    out = []
    for turn in range(turns):
        thread.user(f"Question {turn}: " + "what about the harbor and the old lighthouse? " * words)
        out.append(carry_out(thread, target, url, runner, **how))
    return out


def rebases_of(thread: Thread) -> list[Entry]:
    return [entry for entry in thread.store.read("t") if entry.kind == "rebase"]


def reply(body: dict[str, Any]) -> str:
    last = str(body["messages"][-1]["content"])
    return "We spoke of the harbor, order W1234." if "summarise our conversation" in last else "It stands. " * 12


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_summary_is_asked_for_with_the_same_request_and_one_instruction(tmp_path: Path) -> None:
    summarise = ByModel()
    # A budget in which the question has room behind the answer each time.
    policy = msgspec.structs.replace(POLICY, budget=800)
    with emulator("openai-chat", reply) as server:
        thread = new_thread(tmp_path / "t.db", policy=policy, summarise=summarise)
        outcomes = talk(thread, server.url, 8)
        bodies = [received.body for received in server.requests]
    asides = [n for n, body in enumerate(bodies) if "summarise" in str(body["messages"][-1]["content"])]
    assert asides
    for n in asides:
        before, asked = bodies[n - 1], bodies[n]
        # Everything that was sent before, the answer to it, and the instruction: nothing else, nothing moved.
        assert asked["messages"][: len(before["messages"])] == before["messages"]
        assert [message["role"] for message in asked["messages"][len(before["messages"]) :]] == ["assistant", "user"]
    rebases = [entry.body for entry in rebases_of(thread)]
    assert [body["summary"] for body in rebases] == ["We spoke of the harbor, order W1234."] * len(asides)
    assert "We spoke of the harbor" in str(bodies[-1]["messages"])
    assert len(summarise.usages) == len(asides)
    # It is paid for, and no turn mistakes it for an answer.
    assert all(outcome.steps == 1 and outcome.text.startswith("It stands.") for outcome in outcomes)


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
@pytest.mark.parametrize("words", range(3, 9))
def test_the_question_for_a_summary_is_within_the_budget_as_any_request_is(words: int, tmp_path: Path) -> None:
    with emulator("openai-chat", lambda body: reply(body) * (words % 3 + 1)) as server:
        thread = new_thread(tmp_path / "t.db", policy=POLICY)
        assert {outcome.stop for outcome in talk(thread, server.url, 16, words=words)} == {"answered"}
        bodies = [received.body["messages"] for received in server.requests]
    sizes = [sum(text_tokens(message["content"]) for message in messages) for messages in bodies]
    assert [size for size in sizes if size > POLICY.budget] == []
    rebases = rebases_of(thread)
    assert rebases
    assert all("harbor, order W1234" in entry.body["summary"] for entry in rebases)


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
@pytest.mark.parametrize("provider", TARGETS)
def test_every_provider_sums_up(provider: str, tmp_path: Path) -> None:
    def said(body: dict[str, Any]) -> str:
        newest = (body.get("messages") or body.get("input") or body["contents"])[-1]
        return reply({"messages": [{"content": newest}]})

    with emulator(provider, said) as server:
        thread = new_thread(tmp_path / "t.db", policy=POLICY)
        via = "sdk" if provider == "bedrock" else "http"
        outcomes = talk(thread, server.url, 8, target=TARGETS[provider], via=via)
    assert {outcome.text for outcome in outcomes} == {"It stands. " * 12}
    rebases = rebases_of(thread)
    assert {entry.body["summary"] for entry in rebases} == {"We spoke of the harbor, order W1234."}
    assert not any(entry.meta.get("fallbacks") for entry in rebases)


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Refuse(400, "too long"), "summary failed: openai-chat answered 400: too long"),
        ("", "summary was empty"),
        ([Text("Let me look first."), Call("c", "recall", {})], "summary failed: the model called recall instead"),
    ],
    ids=["refused", "empty", "a call"],
)
def test_a_summary_that_fails_falls_back_to_the_built_in_one_and_says_why(bad: Any, why: str, tmp_path: Path) -> None:
    rebases, events = [], list[Event]()
    with emulator("openai-chat", lambda body: bad if "We" in reply(body) else reply(body)) as server:
        for summary in ("model", "built-in"):
            runner = msgspec.structs.replace(CHAT, summary=summary)
            thread = new_thread(tmp_path / f"{summary}.db", policy=POLICY)
            assert all(o.stop == "answered" for o in talk(thread, server.url, 8, runner, on_event=events.append))
            rebases.append(rebases_of(thread))
    by_model, built_in = ([(entry.body.get("summary"), len(entry.body["edits"])) for entry in some] for some in rebases)
    assert by_model == built_in != []
    assert [entry.meta.get("fallbacks") for entry in rebases[0]] == [[why]] * len(by_model)
    # Whoever watches is told, once for each, that the model is asked, and then why it does not stand there.
    assert [event.kind for event in events].count("summary") == len(by_model)
    assert all(f"the built-in summary stands in ({why})" in line_of(entry) for entry in rebases[0])
    assert not any("stands in" in line_of(entry) for entry in rebases[1])


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_summary_that_is_too_long_is_cut_at_a_sentence(tmp_path: Path) -> None:
    with emulator("openai-chat", lambda b: "A short one. " * 500 if "We" in reply(b) else reply(b)) as server:
        thread = new_thread(tmp_path / "t.db", policy=POLICY, summarise=ByModel())
        talk(thread, server.url, 8)
    kept = [entry.body["summary"] for entry in rebases_of(thread)]
    assert kept
    assert all(text.endswith("A short one. ...") and len(text) < 1500 for text in kept)


def test_a_thread_from_elsewhere_is_not_summarised_for_cuts_of_the_past(tmp_path: Path) -> None:
    said = [(values.user(f"{n}. " + "The harbor? " * 30), values.respond("It stands. " * 12)) for n in range(5)]
    with emulator("anthropic", reply) as server:
        thread = new_thread(tmp_path / "t.db", policy=POLICY, summarise=ByModel())
        thread.append(*(entry for pair in said for entry in pair), values.user("And now? " * 40))
        assert Thread(thread.store, "t", POLICY).build(TARGETS["anthropic"]).epoch > 1
        carry_out(thread, TARGETS["anthropic"], server.url)
        assert [entry.kind for entry in thread.store.read("t")[11:]] == ["sent", "respond", "sent"]
        assert len(server.requests) == 1


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
@pytest.mark.parametrize("summary", ["model", "built-in"])
def test_the_chat_runner_has_the_model_sum_up_unless_told_otherwise(summary: Any, tmp_path: Path) -> None:
    chosen = {} if summary == "model" else {"summary": summary}
    runner = msgspec.structs.replace(CHAT, options={"max_tokens": 5_000}, **chosen)
    with emulator("openai-chat", reply) as server:
        thread = new_thread(tmp_path / "t.db", policy=POLICY)
        talk(thread, server.url, 8, runner)
        asked = [received for received in server.requests if "summarise our" in str(received.body["messages"][-1])]
    # No fewer than the runner leaves a reply: a model that thinks needs them.
    assert {received.body["max_completion_tokens"] for received in asked} <= {5_000}
    assert thread.summarise is extract  # the thread's own stays
    rebases = [entry.body["summary"] for entry in rebases_of(thread)]
    assert rebases
    assert len(asked) == (len(rebases) if summary == "model" else 0)
    assert [text.startswith("We spoke of the harbor") for text in rebases] == [summary == "model"] * len(rebases)
    # What another process reads of the log makes the same request.
    assert Thread(thread.store, "t", POLICY).build(TARGET).prompt == thread.build(TARGET).prompt


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_the_model_sums_up_with_the_runners_own_options_and_no_limit_of_another(tmp_path: Path) -> None:
    options = {"extra": {"logit_bias": {"1": 1}}, "response_format": {"type": "json_object"}}
    with emulator("openai-chat", reply) as server:
        thread = new_thread(tmp_path / "t.db", policy=POLICY)
        talk(thread, server.url, 8, msgspec.structs.replace(CHAT, options=options))
        asked = [received.body for received in server.requests if "summarise our" in str(received.body["messages"][-1])]
    assert asked
    # Of so few tokens as a summary has, a model that thinks would have none left to say it.
    assert all(body.keys() - {"messages"} <= {"model", "logit_bias", "prompt_cache_key"} for body in asked)


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_cut_that_is_made_because_nothing_is_cached_has_nobody_read_it_all(tmp_path: Path) -> None:
    clock = Clock()
    with emulator("openai-chat", reply) as server:
        thread = new_thread(tmp_path / "t.db", policy=Policy(budget=4_000, floor=0.1), clock=clock)
        talk(thread, server.url, 12)
        clock.wait(1e6)
        talk(thread, server.url, 1)
        asked = [received for received in server.requests if "summarise our" in str(received.body["messages"][-1])]
    rebases = [entry.body for entry in rebases_of(thread)]
    assert [body["reason"] for body in rebases] == ["cold"]
    assert not asked
