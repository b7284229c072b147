"""What someone with an agent of their own does first: tools in any form, results, files, and the same program twice."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import pytest

import quire
from quire import AsyncThread, Reply, Usage
from quire.errors import CallError, ProviderError
from quire.items import from_image
from quire.records import Records
from quire.send.tools import tool
from quire.testing import emulator
from toolbox import closed_later

TARGET = "openai-chat:gpt-5"
SCHEMA = {"type": "object", "properties": {"shelf": {"type": "integer"}}, "required": ["shelf"]}


def look(shelf: int) -> str:
    """Look at a shelf."""
    if shelf < 0:
        raise ValueError("there is no such shelf")
    return f"shelf {shelf}: 42"


def opened(folder: Path, **policy: Any) -> quire.Thread:
    return closed_later(quire.open(folder / "t.db", "t", quire.Policy(**policy) if policy else None))


def called(thread: quire.Thread, *calls: tuple[str, str, Any]) -> Reply:
    """A reply that calls tools, recorded."""
    thread.request(TARGET)
    reply = Reply(tuple(quire.call(*given) for given in calls), Usage(10, output=1))
    thread.record(reply)
    return reply


def calling(folder: Path, *calls: tuple[str, str, Any]) -> tuple[quire.Thread, Reply]:
    """A thread, and what its model calls to answer its one question."""
    thread = opened(folder)
    thread.user("What lies there?")
    return thread, called(thread, *calls)


FUNCTION = {"name": "look", "description": "Look at a shelf.", "parameters": SCHEMA}


@pytest.mark.parametrize(
    "given",
    [
        look,
        FUNCTION,
        {"type": "function", "function": FUNCTION},
        {"type": "function", **FUNCTION},
        {"name": "look", "description": "Look at a shelf.", "input_schema": SCHEMA},
        {"functionDeclarations": [FUNCTION]},
        {"toolSpec": {"name": "look", "description": "Look at a shelf.", "inputSchema": {"json": SCHEMA}}},
    ],
    ids=["function", "quire", "chat", "responses", "anthropic", "gemini", "bedrock"],
)
def test_a_tool_may_be_given_in_any_form_and_the_same_again_is_no_news(tmp_path: Path, given: Any) -> None:
    thread = opened(tmp_path)
    thread.tools(given)
    thread.user("What lies there?")
    body = thread.request("anthropic:claude-opus-5-5", max_tokens=100).body
    (tool,) = body["tools"]
    assert (tool["name"], tool["description"]) == ("look", "Look at a shelf.")
    assert tool["input_schema"]["properties"]["shelf"]["type"] == "integer"
    assert thread.tools(given) == []


def test_a_program_that_runs_twice_adds_no_second_system_prompt_and_no_tools_again(tmp_path: Path) -> None:
    for turn in range(1, 4):
        thread = opened(tmp_path)
        thread.append(quire.system("You know the warehouse."))
        thread.tools(look)
        for _ in range(100):  # far enough for a checkpoint, from which the next one goes on
            thread.user(f"question {turn}")
            thread.request(TARGET)
            thread.record(Reply((quire.respond("ok"),), Usage()))
        thread.close()
    kinds = [entry.kind for entry in opened(tmp_path)]
    assert (kinds.count("system"), kinds.count("tools")) == (1, 1)


def test_other_words_or_another_definition_are_new(tmp_path: Path) -> None:
    thread = opened(tmp_path)
    for text in ("one", "two", "one"):
        assert len(thread.append(quire.system(text))) == 1
    thread.tools(FUNCTION)
    assert len(thread.tools({**FUNCTION, "description": "Look again."})) == 1
    assert len(thread.append(quire.tools([FUNCTION], meta={"replace": True}))) == 1


@pytest.mark.parametrize(
    "run",
    [[look], iter([look]), {"look": look}, lambda name, args: look(**args)],
    ids=["list", "iterator", "names", "one"],
)
def test_results_run_each_call_once_and_failures_are_results(tmp_path: Path, run: Any) -> None:
    thread, reply = calling(tmp_path, ("c1", "look", {"shelf": 7}), ("c2", "look", {"shelf": -1}))
    first, second = thread.results(reply, run)
    assert first.body["content"] == "shelf 7: 42"
    assert second.body["error"] is True
    assert "there is no such shelf" in second.body["outcome"]
    assert thread.results(reply, run) == []
    thread.request(TARGET)
    spoken = Reply((quire.respond("42."),), Usage(20, output=1))
    thread.record(spoken)
    assert thread.results(spoken, run) == []


@pytest.mark.parametrize("run", [[look], lambda name, args: look(**args)], ids=["list", "one"])
def test_results_answer_a_recall_that_the_thread_offered(tmp_path: Path, run: Any) -> None:
    thread = opened(tmp_path, budget=2400, reply=200, handles=0.25, floor=0.3)
    thread.tools(look)
    for shelf in range(8):
        found = f"shelf {shelf}\n" + "\n".join(f"{shelf} {line} some words of a long result" for line in range(40))
        thread.append(quire.user("Look."), quire.call(f"c{shelf}", "look", {"shelf": shelf}))
        thread.append(quire.result(f"c{shelf}", None, found), quire.respond("Done."))
    thread.user("And now?")
    handle = str(thread.request(TARGET).body).partition("recall with handle ")[2][:12]
    reply = called(thread, ("r1", "recall", {"handle": handle}), ("r2", "recall", {"handle": "ffff"}))
    original, wrong = thread.results(reply, run)
    assert original.body["content"].startswith("shelf ")
    assert "no entry" in wrong.body["outcome"]


def test_a_tool_called_recall_of_the_users_own_is_run(tmp_path: Path) -> None:
    thread = opened(tmp_path)
    thread.tools({"name": "recall", "parameters": {"type": "object", "properties": {}}})
    thread.user("What was there?")
    (result,) = thread.results(called(thread, ("r1", "recall", {})), lambda name, args: f"{name} of mine")
    assert result.body["content"] == "recall of mine"


def test_the_calls_of_a_reply_run_in_one_event_loop(tmp_path: Path) -> None:
    loops = []

    async def look_up(shelf: int) -> str:
        """Look at a shelf."""
        loops.append(asyncio.get_running_loop())
        return f"shelf {shelf}"

    thread, reply = calling(tmp_path, ("c1", "look_up", {"shelf": 1}), ("c2", "look_up", {"shelf": 2}))
    assert [result.body["content"] for result in thread.results(reply, [look_up])] == ["shelf 1", "shelf 2"]
    assert len({*loops}) == 1


@pytest.mark.parametrize("way", ["sync", "async"])
def test_each_call_has_context_variables_of_its_own(tmp_path: Path, way: str) -> None:
    noted = ContextVar("noted", default="the caller's")

    async def look_up(shelf: int) -> str:
        """Look at a shelf."""
        before = noted.get()
        noted.set(f"shelf {shelf}")
        return before

    thread, reply = calling(tmp_path, ("c1", "look_up", {"shelf": 1}), ("c2", "look_up", {"shelf": 2}))
    given = (reply, [look_up])
    results = thread.results(*given) if way == "sync" else asyncio.run(AsyncThread(thread).results(*given))
    assert [result.body["content"] for result in results] == ["the caller's"] * 2


INTERRUPTED_PROGRAM = """
import asyncio, os, signal, sys
import quire
from quire import Reply, Usage

async def order(name, args):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        await asyncio.sleep(0)
    return "ordered"

with quire.open(sys.argv[1], "t") as thread:
    thread.user("Order.")
    thread.request("openai-chat:gpt-5")
    reply = Reply((quire.call("c1", "order", {}), quire.call("c2", "order", {})), Usage())
    thread.record(reply)
    try:
        thread.results(reply, order)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_call_that_has_begun_has_its_result_though_the_user_interrupts(tmp_path: Path) -> None:
    program = [sys.executable, "-c", INTERRUPTED_PROGRAM, str(tmp_path / "agent.db")]
    assert subprocess.run(program, check=True, capture_output=True, text=True).stdout == "interrupted\n"
    results = [entry.body for entry in quire.open(tmp_path / "agent.db", "t") if entry.kind == "result"]
    assert [(result["call_id"], result["content"]) for result in results] == [("c1", "ordered")]


@pytest.mark.parametrize(
    ("opening", "hint"),
    [
        (lambda: quire.open("http://127.0.0.1:8765", "t"), "quire.connect"),
        (lambda: quire.connect("threads.db", "t"), "http://"),
        (lambda: quire.connect("http://[::1", "t"), "http://"),
        (lambda: quire.connect("http://127.0.0.1:8765\n", "t"), "http://"),
        (lambda: quire.Thread("threads.db", "t"), "quire.open"),  # type: ignore[arg-type]
    ],
)
def test_what_opens_no_thread_says_what_does(opening: Callable[[], Any], hint: str) -> None:
    with pytest.raises(CallError) as raised:
        opening()
    assert hint in raised.value.hint


def test_a_failure_names_the_tool_that_was_called(tmp_path: Path) -> None:
    thread, reply = calling(tmp_path, ("c1", "look", [7]), ("c2", "no name!", [7]))
    first, second = thread.results(reply, lambda name, args: "never")
    assert first.body["outcome"] == "the arguments of look must be an object, not [7]"
    assert second.body["error"] is True


@pytest.mark.parametrize("run", [look, None, "look", 5])
def test_what_cannot_run_calls_is_refused_before_anything_runs(tmp_path: Path, run: Any) -> None:
    thread, reply = calling(tmp_path, ("c1", "look", {"shelf": 7}))
    with pytest.raises(CallError) as raised:
        thread.results(reply, run)
    assert "[look, find]" in raised.value.hint
    (result,) = thread.results(reply, tool(look))
    assert result.body["content"] == "shelf 7: 42"


def test_a_reply_that_was_not_recorded_is_an_error(tmp_path: Path) -> None:
    thread = opened(tmp_path)
    thread.user("What lies there?")
    thread.request(TARGET)
    with pytest.raises(CallError, match="not in the log") as raised:
        thread.results(Reply((quire.call("c1", "look", {}),), Usage()), [look])
    assert "thread.record(reply)" in raised.value.hint


@pytest.mark.parametrize(
    "how", [{"k": "3"}, {"before": "3"}, {"neighbours": -1}, {"neighbours": "x"}, {"exclude": "ab"}]
)
def test_a_recall_that_cannot_be_meant_is_an_error(tmp_path: Path, how: Any) -> None:
    thread = opened(tmp_path)
    thread.append(quire.user("Where is the key?"))
    with pytest.raises(CallError, match=f"{next(iter(how))} is"):
        thread.recall("the key", **how)


def test_what_recall_finds_tells_what_it_was_found_by(tmp_path: Path) -> None:
    thread = opened(tmp_path)
    thread.embedder = None
    thread.append(quire.user("Where is the key?"))
    Records(thread.store).create("note.v1", {"content": "The key is under the mat."})
    assert [hit.by for hit in thread.recall("the key", scope="records")] == ["words"]


@pytest.mark.parametrize(
    "kind",
    [
        "chat",
        "chat begun",
        "chat read",
        "message begun",
        "message read",
        "message awaited",
        "message begun awaited",
        "response",
    ],
)
def test_the_streams_that_sdks_put_together_themselves_are_recorded(tmp_path: Path, kind: str) -> None:
    import anthropic
    import openai

    provider = "anthropic" if "message" in kind else "openai"
    calls, target = {
        "m": ("messages", "anthropic:claude-opus-5-5"),
        "c": ("chat.completions", TARGET),
        "r": ("responses", "openai:gpt-6-sol"),
    }[kind[0]]
    thread, heard = opened(tmp_path), list[str]()
    thread.user("Who is there?")
    request = thread.request(target, max_tokens=100)

    async def awaited(url: str) -> None:
        client = anthropic.AsyncAnthropic(base_url=url, api_key="any")
        async with client, client.messages.stream(**request.kwargs) as stream:
            async for _ in stream.text_stream:
                if "begun" in kind:
                    break
            await AsyncThread(thread).record(stream)

    with emulator(provider, lambda *_: "A spoon and a fork.") as server, ExitStack() as stack:
        if "awaited" in kind:
            asyncio.run(awaited(server.url))
        else:
            make = anthropic.Anthropic if provider == "anthropic" else openai.OpenAI
            at = server.url + "/v1" * (provider == "openai")
            client = stack.enter_context(make(base_url=at, api_key="any"))
            stream = stack.enter_context(attrgetter(calls)(client).stream(**request.kwargs))
            before = list(islice(stream, 3 if "begun" in kind else None if "read" in kind else 0))
            thread.record(stream, on_text=heard.append)
            assert "".join(heard) == ("" if before else "A spoon and a fork.")
    assert [entry.text for entry in thread if entry.kind == "respond"] == ["A spoon and a fork."]


def test_a_stream_that_held_nothing_is_no_reply(tmp_path: Path) -> None:
    class Nothing:
        def __iter__(self) -> Iterator[object]:
            return iter(())

        def get_final_response(self) -> object:
            raise RuntimeError("Didn't receive a `response.completed` event.")  # as OpenAI's SDK says it

    thread = opened(tmp_path)
    thread.user("Who is there?")
    thread.request(TARGET)
    with pytest.raises(ProviderError, match="the stream ended before"):
        thread.record(Nothing())

    class NothingLater:
        async def __aiter__(self) -> AsyncIterator[object]:
            for event in ():
                yield event

        async def get_final_response(self) -> object:
            return Nothing().get_final_response()

    with pytest.raises(ProviderError, match="the stream ended before"):
        asyncio.run(AsyncThread(thread).record(NothingLater()))


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_that_was_read_is_recorded_however_it_ended(tmp_path: Path, reason: str, is_async: bool) -> None:
    import openai

    choices: list[dict[str, Any]] = [{"delta": {"content": "A sp"}}, {"delta": {}, "finish_reason": reason}]
    chunks = [{"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]} for choice in choices]
    body = "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"])
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, headers={"content-type": "text/event-stream"}, text=body)
    )
    thread = opened(tmp_path)
    thread.user("What lies there?")
    request = thread.request(TARGET, max_tokens=2)

    async def awaited() -> None:
        http = httpx.AsyncClient(transport=transport)
        async with (
            openai.AsyncOpenAI(api_key="any", http_client=http) as client,
            client.chat.completions.stream(**request.kwargs) as stream,
        ):
            assert [event async for event in stream]
            await AsyncThread(thread).record(stream)

    if is_async:
        asyncio.run(awaited())
    else:
        http = httpx.Client(transport=transport)
        with (
            openai.OpenAI(api_key="any", http_client=http) as client,
            client.chat.completions.stream(**request.kwargs) as stream,
        ):
            assert list(stream)
            thread.record(stream)
    assert [entry.body.get("stop") or entry.text for entry in thread][-2:] == [reason, "A sp"]


def test_a_reply_is_recorded_once(tmp_path: Path) -> None:
    thread = opened(tmp_path)
    thread.user("What lies there?")
    request = thread.request(TARGET)
    thread.record(Reply((quire.respond("A spoon."),), Usage(), id="r1"))
    for again in (thread, opened(tmp_path)):
        with pytest.raises(CallError, match="r1 is recorded already"):
            again.record(Reply((quire.respond("A spoon."),), Usage(), id="r1"), request)
    thread.user("And here?")
    thread.request(TARGET)
    thread.record(Reply((quire.respond("A fork."),), Usage(), id="r1"))  # of a server that names all alike
    assert [entry.text for entry in thread if entry.kind == "respond"] == ["A spoon.", "A fork."]


def test_paths_are_files_and_pictures(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("How to begin.")
    (tmp_path / "dot.png").write_bytes(b"\x89PNG fake")
    thread = opened(tmp_path)
    asked = thread.user("?", attach=[str(tmp_path / "readme.md")], images=[tmp_path / "dot.png", "https://a.b/c.png"])
    assert asked.attached[0]["content"] == "How to begin."
    assert asked.body["images"] == [from_image(tmp_path / "dot.png"), "https://a.b/c.png"]
    assert base64.b64decode(asked.body["images"][0]["data"]) == b"\x89PNG fake"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda thread: thread.append({"role": "user", "content": "hi"}), "quire.user"),
        (lambda thread: thread.user("?", attach="readme.md"), "attach=['readme.md']"),
        (lambda thread: thread.user("?", attach=["nothere.md"]), "Check the path"),
        (lambda thread: thread.user("?", images=["nothere.png"]), "Check the path"),
        (lambda thread: thread.user("?", images="dot.png"), "images=['dot.png']"),
        (lambda thread: thread.user("?", images=["paper.pdf"]), "Images end in .png"),
        (lambda thread: thread.user("?", images=["iVBORw0KGgo" * 99]), '"data": "…"'),
        (lambda thread: thread.user("?", images=[b"GIF89a"]), '"data": base64.b64encode(image).decode()'),
        (lambda thread: thread.tools([look]), "thread.tools(look, find)"),
        (lambda thread: thread.tools({}), '"name": …'),
        (lambda thread: thread.tools({"description": "Looks.", "parameters": {}}), '"name": …'),
        (lambda thread: thread.request(None), "provider:model"),
        (lambda thread: quire.Thread(thread.store, "t", {"budget": 9}), "quire.Policy(budget="),
    ],
)
def test_what_looks_right_and_is_not_says_what_to_write(tmp_path: Path, wrong: Any, hint: str) -> None:
    thread = opened(tmp_path)
    with pytest.raises(CallError) as raised:
        wrong(thread)
    assert hint in raised.value.hint
    assert len(str(raised.value)) < 100
    assert len(thread) == 0


def test_a_thread_that_was_closed_says_so(tmp_path: Path) -> None:
    with quire.open(tmp_path / "q.db", "t") as thread:
        thread.user("hi")
    for use in (lambda: thread.user("again"), lambda: thread.request(TARGET)):
        with pytest.raises(CallError, match="was closed here before") as raised:
            use()
        assert "quire.open" in raised.value.hint


@pytest.mark.moves_prefix(reason="a small budget, to leave something out")
def test_a_request_tells_its_epoch_and_what_it_leaves_out_and_a_thread_what_it_holds(tmp_path: Path) -> None:
    thread = opened(tmp_path, budget=600)
    assert (bool(thread), len(thread), list(thread), repr(thread)) == (True, 0, [], "<Thread 't': 0 entries>")
    for n in range(12):
        thread.user(f"question {n} " + "word " * 40)
        request = thread.request(TARGET)
        thread.record(Reply((quire.respond("answer " * 20),), Usage()))
    assert request.epoch > 1
    assert request.left_out[0]["entry"] == 1
    assert request.left_out[0]["reason"]
    assert len(request.left_out[1:3]) == 2
    assert len(thread) == len(thread.entries) == thread.entries[-1].seq
    assert str(len(thread)) in repr(thread)
