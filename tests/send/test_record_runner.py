"""The agent loop over records: context, reply, tools, records, and again, from Python and from the shell."""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from send_parts import asks, one_turn

from hashed_words import HashedWords
from quire import Entry, Policy, Thread, open_store, respond, user, values
from quire.errors import BudgetError
from quire.records import Records
from quire.records.record import Record
from quire.send import runners
from quire.send.record_runner import SYSTEM, keep_records, record_tools
from quire.send.tools import Tool, Toolbox
from quire.send.turn import Limits
from quire.testing import emulator
from quire.values import JsonObject
from records.chatter import CONVERSATION, GOLDEN, REQUEST
from toolbox import TARGETS, Clock, Runner, carry_out, closed_later, invoke, said_in, sent_body

TARGET = TARGETS["openai-chat"]
NOTE = {"action": "create", "schema_name": "note.v1", "title": "Plan", "context": {"text": "Ship on Friday"}}


def opened(path: Path, **how: Any) -> tuple[Thread, Records]:
    store = closed_later(open_store(path))
    return Thread(store, "t", **how), Records(store)


def runner(kept: Records, tools: Sequence[Tool] | None = None, **how: Any) -> Runner:
    return runners.records(kept, tools, clock=Clock(), **how)


def of(kept: Records, *schemas: str) -> list[JsonObject]:
    return [one.context for one in kept.list() if one.schema_name in (schemas or (one.schema_name,))]


async def nothing(args: JsonObject, call: Entry) -> str:
    return "nothing"


def test_the_model_receives_the_two_messages_of_the_seed(tmp_path: Path) -> None:
    listed = json.loads((GOLDEN / "tools.json").read_text())
    named = [{**one, "name": one["name"], "output": tuple(one.get("output") or ())} for one in listed]
    tools = [Tool(**{"parameters": {}, "invoke": nothing, **one}) for one in named]
    thread, kept = opened(tmp_path / "q.db")
    with emulator("openai-chat", [text for who, text in CONVERSATION if who == "assistant"] + ["sk-or-v1-"]) as server:
        for _, asked in [*CONVERSATION[::2], ("user", REQUEST)]:
            thread.user(asked)
            carry_out(thread, TARGET, server.url, runner(kept, tools))
        last = said_in(server.requests[-1].body)
    assert last == [("system", (GOLDEN / "message1.txt").read_text()), ("user", (GOLDEN / "message2.txt").read_text())]
    assert (GOLDEN / "message1.txt").read_text() == SYSTEM


def test_tools_run_until_none_are_asked_for_and_everything_is_a_record(tmp_path: Path) -> None:
    thread, kept = opened(tmp_path / "q.db")
    script = [
        asks("I note it.", {"tool": "change_record", "input": NOTE}, {"tool": "nonsense", "input": {}}, {"tool": "timer"}),
        asks("", {"tool": "find_records", "input": {"query": "when do we ship", "schema_name": "note.v1"}}),
        asks("It is noted."),
    ]  # fmt: skip
    outcome, asked = one_turn(thread, "We ship on Friday", script, runner(kept), "openai-chat")
    bodies = [said_in(body) for body in asked]
    assert (outcome.text, outcome.steps) == ("It is noted.", 3)
    for before, after in itertools.pairwise(bodies):
        assert after[: len(before)] == before
    assert bodies[1][2:] == [
        ("assistant", script[0]),
        ("user", '# Recent Tool Results\n• change_record: {"done":"rec-3 is created","record":{"id":"rec-3","version":1,'
         '"schema_name":"note.v1","title":"Plan","tags":[],"context":{"text":"Ship on Friday"}}}\n'
         "• nonsense: Error: there is no tool 'nonsense'; there is change_record, find_records\n"
         '• tool_requests: Error: tool request 3 has no input: {"requestId":"r3","tool":"timer"}'),
    ]  # fmt: skip
    assert '"count":1,"records":[{"id":"rec-3"' in bodies[2][-1][1]
    assert of(kept, "user.message.v1") == [{"content": "We ship on Friday"}]
    assert [one["message"] for one in of(kept, "agent.response.v1")] == ["I note it.", "", "It is noted."]
    assert sorted((one["tool"], one["requestId"]) for one in of(kept, "tool.response.v1")) == [
        ("change_record", "r1"), ("find_records", "r1"), ("nonsense", "r2"), ("tool_requests", "malformed"),
    ]  # fmt: skip
    calls = [entry.call_id for entry in thread.store.read("t") if entry.kind == "call"]
    assert len(set(calls)) == len(calls), "ids that a model uses again are made different"


def test_a_reply_that_was_meant_to_ask_for_tools_and_is_broken_is_told_so(tmp_path: Path) -> None:
    thread, kept = opened(tmp_path / "q.db")
    broken = asks("I note it.", {"tool": "change_record", "input": NOTE})[:-2]
    done, (_, again) = one_turn(thread, "Note it", [broken, "Sorry."], runner(kept), "openai-chat")
    assert done.text == "Sorry."
    assert "the reply is no valid JSON of agent.response.v1; nothing was run" in again["messages"][-1]["content"]
    assert of(kept, "note.v1") == []


def test_a_consumer_is_built_by_its_own_configuration_and_its_prompt_can_be_another(tmp_path: Path) -> None:
    thread, kept = opened(tmp_path / "q.db")
    sources = [{"schema_name": "note.v1", "method": "all"}]
    kept.create("context.config.v1", {"consumer_id": "planner", "sources": sources})
    kept.create("note.v1", {"text": "Ship on Friday"}, title="Plan")
    for question in ("When?", "Sure?"):
        how = runner(kept, [], consumer="planner", system="Be brief.")
        _, (body,) = one_turn(thread, question, ["On Friday."], how, "openai-chat")
    told = "# Recent Tool Results\n• Plan: Ship on Friday\n\n# Current Request\nSure?"
    assert said_in(body) == [("system", "Be brief."), ("user", told)]
    assert kept.list(schema_name="agent.context.v1")[0].context["request"] == "Sure?"


def test_limits_end_a_turn_and_the_budget_holds_whatever_tools_return(tmp_path: Path) -> None:
    def long(words: int) -> str:
        """Many words."""
        return "\n".join(f"word {n}" for n in range(words))

    thread, kept = opened(tmp_path / "q.db", policy=Policy(budget=1500, reply=100))
    with emulator("openai-chat", lambda body: asks("More.", {"tool": "long", "input": {"words": 1500}})) as server:
        thread.user("Go on")
        outcome = carry_out(thread, TARGET, server.url, runner(kept, [*Toolbox(long)], limits=Limits(steps=3)))
        assert (outcome.stop, outcome.steps) == ("steps", 3)
        assert all(thread.build(TARGET) and len(json.dumps(one.body)) < 1400 * 6 for one in server.requests)
        thread.user("word " * 3000)
        with pytest.raises(BudgetError):
            carry_out(thread, TARGET, server.url, runner(kept, []))


def test_turns_over_records_teach_a_thread_no_wrong_count(tmp_path: Path) -> None:
    thread, kept = opened(tmp_path / "q.db", policy=Policy(budget=4000, reply=100))
    with emulator("openai-chat", lambda body: "Yes.") as server:
        for n in range(12):
            thread.user(f"Question {n}. " + "word " * 400)
            carry_out(thread, TARGET, server.url, runner(kept, []) if n % 2 else Runner())
        own = [one.body for one in server.requests][::2]
    assert max(len(json.dumps(body)) for body in own) < 3900 * 6


def snapshots(path: Path, thread: Thread, target: str, url: str, how: Runner) -> list[Path]:
    """The file as it was behind each entry of a turn: what a kill there would leave."""
    made: list[Path] = []

    def copy(event: Any) -> None:
        if event.entry is not None:
            made.append(path.with_name(f"cut-{event.entry.seq}.db"))
            with sqlite3.connect(path) as source, sqlite3.connect(made[-1]) as copied:
                source.backup(copied)
            source.close(), copied.close()

    carry_out(thread, target, url, how, on_event=copy)
    return made


def essence(kept: Records) -> list[Any]:
    return sorted(json.dumps([one.schema_name, one.title, one.context]) for one in kept.list() if one.schema_name != "agent.context.v1")  # fmt: skip


def test_a_turn_cut_behind_any_entry_goes_on_and_keeps_nothing_twice(tmp_path: Path) -> None:
    def model(body: JsonObject) -> str:
        step = sum(message["role"] == "assistant" for message in body["messages"])
        update = {"action": "update", "id": "rec-3", "version": step, "context": {"text": f"Step {step}"}}
        requests = [{"tool": "change_record", "input": NOTE if step == 0 else update}, {"tool": "find_records", "input": {}}]  # fmt: skip
        return asks(f"Step {step}", *requests) if step < 3 else asks("Done.")

    with emulator("openai-chat", model, piece=40) as server:
        thread, kept = opened(tmp_path / "q.db")
        thread.user("Make a plan")
        cuts = snapshots(tmp_path / "q.db", thread, TARGET, server.url, runner(kept))
        bodies, whole = [one.body for one in server.requests], essence(kept)
        assert len(cuts) > 20
        for cut in cuts:
            before = len(server.requests)
            again, there = opened(cut)
            assert carry_out(again, TARGET, server.url, runner(there)).text == "Done."
            sent = [one.body for one in server.requests[before:]]
            assert sent == bodies[len(bodies) - len(sent) :], cut.name
            assert essence(there) == whole, cut.name
            assert [one.version for one in there.history("rec-3")] == [1, 2, 3]


def called(kept: Records, name: str, **args: Any) -> JsonObject:
    call = Entry("call", values.call("c1", name, args).body, id=f"sha256:{hash(json.dumps(args)):x}")
    return asyncio.run(Toolbox(*record_tools(kept, clock=Clock())).run(call)).body


def test_the_record_tools_say_what_is_wrong_and_run_twice_without_harm(tmp_path: Path) -> None:
    _, kept = opened(tmp_path / "q.db")
    first, again = (called(kept, "change_record", **NOTE) for _ in range(2))
    assert first == again
    assert len(kept.list()) == 1
    update = {"action": "update", "id": "rec-1", "version": 1, "title": "New plan"}
    assert called(kept, "change_record", **update) == called(kept, "change_record", **update)
    wrong = [
        ({"action": "create"}, "a new record needs a schema_name"),
        ({"action": "update", "id": "rec-1"}, "name its id and version"),
        ({**update, "title": "Other"}, "rec-1 is at version 2"),
        ({"action": "burn"}, "the arguments do not fit change_record"),
    ]
    for args, problem in wrong:
        failed = called(kept, "change_record", **args)
        assert failed["error"]
        assert problem in failed["outcome"]
    assert '"title":"New plan"' in called(kept, "find_records", id="rec-1")["content"]
    assert '"count":0' in called(kept, "find_records", tag="no")["content"]
    assert "there is no record 'rec-9'" in called(kept, "find_records", id="rec-9")["outcome"]
    delete = {"action": "delete", "id": "rec-1", "version": 2}
    assert [json.loads(called(kept, "change_record", **delete)["content"])["done"] for _ in range(2)] == [
        "rec-1 is deleted", "there is no record rec-1 any more",
    ]  # fmt: skip


@pytest.mark.usefixtures("home")
def test_the_shell_runs_chats_and_resumes_with_records() -> None:
    config = {"consumer_id": "desk", "sources": [{"schema_name": "note.v1", "method": "all"}]}
    invoke("record", "create", "--schema", "context.config.v1", "--context", json.dumps(config))
    replies = [asks("Noted.", {"tool": "change_record", "input": NOTE}), "Done.", "On Friday.", "Yes."]
    with emulator("vllm", replies) as server:
        where = ["--model", "vllm:m", "--base-url", f"{server.url}/v1"]
        said = invoke("run", "t", "We ship on Friday", "--runner", "records", *where)
        assert said.stdout == "Noted.\nDone.\n"
        invoke("run", "u", "When do we ship?", "--consumer", "desk", "--system", "Be brief.", *where)
        assert said_in(server.requests[-1].body)[0] == ("system", "Be brief.")
        assert "• Plan: Ship on Friday" in said_in(server.requests[-1].body)[1][1]
        invoke("chat", "t", "--runner", "records", *where, stdin="Sure?\n")
        assert "User: We ship on Friday\nAssistant: Noted.\nAssistant: Done." in said_in(server.requests[-1].body)[1][1]
    found = json.loads(invoke("record", "search", "when do we ship", "--nn", "9", "--json").stdout)
    order = [one["relevance"] for one in found]
    assert order == sorted(order, reverse=True)
    assert order[0] == 1.0


def test_the_first_embedding_of_many_records_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr("quire.cli.record.embedder", HashedWords)
    with open_store(home / "quire.db") as store:
        drafts = [Record(schema_name="note.v1", context={"text": f"Note {n} of the garden"}) for n in range(100)]
        Records(store).create_all(drafts)
    first, second = (invoke("record", "search", "the garden").stderr for _ in range(2))
    assert (first, second) == ("embedding 100 records, once\n", "")


def test_a_reply_that_was_cut_off_twice_makes_one_record(tmp_path: Path) -> None:
    thread, kept = opened(tmp_path / "q.db")
    opening = Entry("sent", sent_body("openai-chat:m"))
    thread.append(user("q"), opening, respond("a"), opening)  # killed behind the answer, and once more in front of it
    assert [one.schema_name for one in keep_records(kept, thread.store, "t")] == ["user.message.v1"]
    thread.append(respond("a"), Entry("sent", {**opening.body, "usage": {}}))
    assert [one.schema_name for one in keep_records(kept, thread.store, "t")] == ["agent.response.v1"]
