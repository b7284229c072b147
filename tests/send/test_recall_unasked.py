"""What was left out comes back when it is named: beside the user's words, amid a cycle, and by the tool `recall`."""

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from send_parts import new_thread, one_turn, tool_results

from hashed_words import HashedWords
from quire import Entry, Policy, Thread, validate, values
from quire.errors import CallError
from quire.providers.prefix import lines_of
from quire.providers.rules import errors
from quire.send.runners import agent, chat
from quire.send.tools import tool
from quire.testing import MemoryStore, assert_valid, emulator
from quire.values import Call, JsonObject, Text
from toolbox import TARGETS, Runner, Store, carry_out, many_words

SMALL = Policy(budget=2400, reply=200, summary=0)
SECRET = "The harbor master is called Ottilie Brandt."
pytestmark = pytest.mark.moves_prefix(reason="a small budget rebases on the way")


def long_talk(thread: Thread, first: str, turns: int = 14) -> None:
    """A conversation whose first words have long been left out."""
    thread.append(values.user(first), values.respond("I see."))
    for n in range(turns):
        thread.append(values.user(many_words(60, f"q{n}x")), values.respond(many_words(60, f"a{n}x")))


def said(body: JsonObject) -> str:
    return json.dumps(body["messages"][-1], ensure_ascii=False)


def whole(body: JsonObject) -> str:
    return json.dumps(body, ensure_ascii=False)


def rebased(path: Path, provider: str = "anthropic", policy: Policy = SMALL, first: str = SECRET) -> Thread:
    """A thread of which the first words have left the requests."""
    thread = new_thread(path, policy=policy)
    long_talk(thread, first)
    one_turn(thread, "Go on.", ["Yes."], Runner(), provider)
    messages = thread.build(TARGETS[provider]).prompt.messages
    assert first not in [part.text for message in messages for part in message.parts]  # type: ignore[union-attr]
    return thread


@pytest.mark.parametrize("provider", ["anthropic", "openai-chat"])
def test_a_users_words_bring_back_what_fits_them_once_and_it_stays_in_its_place(provider: str, tmp_path: Path) -> None:
    thread = rebased(tmp_path / "t.db", provider)
    questions = ("Who is the harbor master?", "What is the harbor master called, again?", "Fine.")
    bodies = [one_turn(thread, asked, ["Yes."], chat(), provider)[1][0] for asked in questions]
    assert "Ottilie" in said(bodies[0])
    assert "<recall>" in said(bodies[0])
    assert "Ottilie" not in said(bodies[1])
    assert all(whole(body).count("Ottilie") == 1 for body in bodies)
    assert all(
        lines_of(after, provider).rows[: len(lines_of(one, provider).rows)] == lines_of(one, provider).rows
        for one, after in pairwise(bodies)
    )
    assert not any(errors(validate(body, provider, body["model"])) for body in bodies)


@pytest.mark.parametrize(
    ("recall", "runner", "comes"),
    [(None, chat(), True), (None, Runner(), False), (0.0, chat(), False), (0.1, Runner(), True), (0.01, chat(), False)],
    ids=["chat", "bare", "off", "policy", "no room"],
)
def test_a_policy_says_whether_and_how_much(recall: float | None, runner: Runner, comes: bool, tmp_path: Path) -> None:
    policy = Policy(budget=2400, reply=200, summary=0, recall=recall)
    thread = rebased(tmp_path / "t.db", "openai-chat", policy)
    _, (body,) = one_turn(thread, "Who is the harbor master?", ["Yes."], runner, "openai-chat")
    assert ("Ottilie" in whole(body)) is comes
    assert thread.build(TARGETS["openai-chat"]).tokens <= policy.limit
    with pytest.raises(CallError, match="recall 2 is no share"):
        Policy(recall=2)


@tool(idempotent=True)
def look_up(order: str) -> str:
    """Look an order up.

    order: its number
    """
    return "It is on its way."


def calling(tool: str, told: str, **args: str) -> Callable[[JsonObject], list[Any] | str]:
    """A model that calls a tool once where it is told of it, and then answers."""

    def model(body: JsonObject) -> list[Any] | str:
        if told not in whole(body):
            return "Yes."
        return [Call("c1", tool, args)] if not tool_results(body) else [Text("It comes.")]

    return model


@pytest.mark.parametrize("provider", ["anthropic", "openai-chat"])
def test_a_step_that_names_what_is_no_longer_shown_brings_it_back(provider: str, tmp_path: Path) -> None:
    thread = rebased(tmp_path / "t.db", provider, first="Order W-58213 was for 40 red lanterns.")
    model = calling("look_up", "look_up", order="W-58213")
    done, (asked, answered) = one_turn(thread, "Where is my parcel?", model, agent([look_up]), provider)
    assert done.text == "It comes."
    assert "lanterns" not in whole(asked)
    assert "lanterns" in whole(answered)
    (note,) = [entry for entry in thread.store.read("t") if entry.kind == "note"]
    assert note.text == "# Relevant Conversation\nUser: Order W-58213 was for 40 red lanterns."
    assert_valid(answered, provider, answered["model"])
    # It goes again with the turn it stands in, and never becomes L1.
    long_talk(thread, "More.")
    assert "lanterns" not in whole(one_turn(thread, "Go on.", ["Yes."], Runner(), provider)[1][-1])


def test_the_name_of_an_argument_brings_nothing_back(tmp_path: Path) -> None:
    @tool(idempotent=True)
    def track(order_id: str) -> str:
        """Track an order.

        order_id: its number
        """
        return "It is on its way."

    thread = rebased(tmp_path / "t.db", first="Each label shows an order_id in print.")
    model = calling("track", "Track an order", order_id="77")
    assert one_turn(thread, "Where is my parcel?", model, agent([track]))[0].text == "It comes."
    assert [entry for entry in thread.store.read("t") if entry.kind == "note"] == []


def test_a_word_that_asks_for_nothing_brings_nothing_back(tmp_path: Path) -> None:
    thread = rebased(tmp_path / "t.db", first="We continue with page W-17 of the report.")
    for asked, count in (("Continue!", 0), ("W-17?", 1)):
        _, (body,) = one_turn(thread, asked, ["Yes."], chat())
        assert whole(body).count("of the report") == count


def test_what_the_summary_says_is_not_brought_back_beside_it(tmp_path: Path) -> None:
    thread = new_thread(tmp_path / "t.db", policy=Policy(budget=2400, reply=200))
    long_talk(thread, f"{SECRET}\n")
    for asked in ("Go on.", "Who is the harbor master?"):
        _, bodies = one_turn(thread, asked, lambda body: "Yes.", chat())
        assert whole(bodies[-1]).count(SECRET) == 1


def handled(path: Path, target: str) -> tuple[Thread, JsonObject]:
    """A thread with a handle in its request, and the request."""
    thread = new_thread(path, policy=Policy(budget=2400, reply=200, handles=0.25, floor=0.3))
    thread.append(values.tools([look_up.definition()]))
    for n in range(8):
        found = f"line {n} holds key-{n}\n" + "\n".join(f"{n} {line} some words of a long result" for line in range(40))
        thread.append(values.user(f"Look {n}"), values.call(f"c{n}", "look_up", {"order": str(n)}))
        thread.append(values.result(f"c{n}", None, found), values.respond(f"Seen {n}."))
    thread.user("Go on.")
    request = thread.request(target)
    return thread, request.body


def test_where_a_handle_stands_the_tool_is_offered_and_answered_in_one_line(tmp_path: Path) -> None:
    target = TARGETS["openai-chat"]
    thread, body = handled(tmp_path / "t.db", target)
    handle = whole(body).partition("recall with handle ")[2][:12]
    assert handle
    assert [one["function"]["name"] for one in body["tools"]] == ["look_up", "recall"]
    assert thread.build(target).tokens <= 2200
    (asked,) = thread.append(values.call("r1", "recall", {"handle": handle}))
    result = thread.answer_recall(asked)
    assert "some words of a long result" in result.body["content"]
    assert thread.store.read("t")[-1].id == result.id
    refused = [
        ({"handle": "ffff"}, "no entry"),
        ({"wat": 1}, "no 'wat'"),
        ({}, "needs a query"),
        ({"query": 3}, "needs"),
        ({"query": "hat", "k": "5"}, "k as integer, not '5'"),
    ]
    for args, problem in refused:
        (wrong,) = thread.append(values.call("r2", "recall", args))
        assert problem in thread.answer_recall(wrong).body["outcome"]
    for nothing in ({"query": "hat"}, None, values.call("r3", "recall", {"query": "hat"}), thread.entries[0]):
        with pytest.raises(CallError, match="takes a call of the log"):
            thread.answer_recall(nothing)


def test_a_cycle_answers_a_recall_that_its_runner_does_not_know(tmp_path: Path) -> None:
    target = TARGETS["anthropic"]
    thread, body = handled(tmp_path / "t.db", target)
    handle = whole(body).partition("recall with handle ")[2][:12]

    def model(body: JsonObject) -> list[Any]:
        seen = "lines 1-" in whole(body)
        return [Text("I have it.")] if seen else [Call("r1", "recall", {"handle": handle})]

    done, (*_, last) = one_turn(thread, "", model, agent([look_up]))
    assert done.text == "I have it."
    tools = [entry for entry in thread.store.read("t") if entry.kind == "tools"]
    assert len(tools) == 2, "what the thread offers is not told again by the runner"
    assert_valid(last, "anthropic", last["model"])


def test_a_cycle_that_recalls_may_be_cut_behind_any_entry(tmp_path: Path) -> None:
    target = TARGETS["openai-chat"]
    thread = rebased(tmp_path / "t.db", "openai-chat", first="Order W-58213 was for 40 red lanterns.")
    with emulator("openai-chat", calling("look_up", "look_up", order="W-58213")) as server:
        begin = thread.user("Which lanterns were ordered, and where are they?").seq
        carry_out(thread, target, server.url, agent([look_up]))
        entries, bodies = thread.store.read("t"), [one.body for one in server.requests]
        # What is recalled beside the user's words is one transaction: call and result.
        for kept in [at for at in range(begin, len(entries)) if not entries[at - 1].meta.get("placement")]:
            before = len(server.requests)
            with MemoryStore() as store:
                store.append("t", [Entry(entry.kind, entry.body) for entry in entries[:kept]])
                assert carry_out(Thread(store, "t", SMALL), target, server.url, agent([look_up])).text == "It comes."
            sent = [one.body for one in server.requests[before:]]
            assert sent == bodies[len(bodies) - len(sent) :], f"cut behind entry {kept} ({entries[kept - 1].kind})"


def test_a_bare_threads_user_gets_what_is_surely_relevant_and_each_thing_once() -> None:
    policy = Policy(budget=2400, reply=200, summary=0, recall=0.1, ttl_s=None)
    thread = Thread(MemoryStore(), "t", policy)
    for _ in range(2):
        thread.append(values.user(SECRET), values.respond("Thanks for the harbor news."))
    long_talk(thread, "louder")
    thread.user("Go on.")
    thread.request("openai-chat:gpt-5")
    for words in ("thanks", "louder", "harbor?"):
        thread.append(values.respond("Yes."))
        assert "recalled" not in thread.user(words).meta
    thread.append(values.respond("Yes."))
    assert thread.user("Who is the harbor master now?").meta["recalled"].count(SECRET) == 1


def test_what_differs_in_its_name_alone_is_not_brought_back() -> None:
    thread = Thread(MemoryStore(), "t", Policy(budget=2400, reply=200, summary=0, recall=0.1, ttl_s=None))
    for n in range(11, 15):
        thread.append(values.user(f"Module src/parser/m_{n}.rs holds the grammar of step {n}."), values.respond("Yes."))
    long_talk(thread, "louder")
    thread.user("Go on.")
    thread.request("openai-chat:gpt-5")
    thread.append(values.respond("Yes."))
    recalled = thread.user("Now src/parser/m_11.rs").meta["recalled"]
    assert [n for n in range(11, 15) if f"m_{n}.rs" in recalled] == [11]


def test_no_vector_is_made_where_nothing_is_searched(store: Store) -> None:
    thread, before = Thread(store, "t"), threading.active_count()
    thread.embedder = words = HashedWords()
    for question in ("Which colour has the kettle?", "And which colour has the pan?"):
        one_turn(thread, question, ["It is blue."], chat())
    assert words.asked == []
    assert threading.active_count() == before
    assert thread.recall("kettle", exclude=())
    assert words.asked != []
    thread.close()


def test_a_search_of_a_closed_thread_starts_no_indexer(store: Store) -> None:
    thread, before = Thread(store, "t"), threading.active_count()
    thread.embedder = HashedWords()
    thread.user("Which colour has the kettle?")
    thread.recall_unasked(TARGETS["anthropic"], 0.1)
    thread.close()
    assert thread.recall("kettle", exclude=())
    assert threading.active_count() == before
