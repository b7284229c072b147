"""The official clients, unchanged, talk to the strict provider: whole replies, streams, tools, thinking, errors.

What Quire renders goes in, what comes back is parsed, and the next request carries it on: rules, signatures and
cache counts are the provider's.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from calling import CHAT, CLAUDE, RESPONSES, anthropic_client, bedrock_client, gemini_client, openai_client

import quire
from quire import Entry, Reply, assemble, render, values
from quire.errors import CallError
from quire.providers import marked, parse_reply, sdk_kwargs, stream
from quire.providers.simulate import Simulator
from quire.testing import Cut, Emulator, Refuse, emulator
from quire.values import Call, JsonObject, Text, Think
from toolbox import chain, closed_later

pytestmark = [pytest.mark.xdist_group("sdk"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

LONG = "Always be careful with the records. " * 400
ID = {"type": "object", "properties": {"id": {"type": "string"}}}
TOOLS = values.tools([{"name": "look_up", "description": "finds a record", "parameters": ID}])
SCRIPT: list[Any] = [
    [Think("I should look."), Text("One moment."), *(Call("", "look_up", {"id": id}) for id in "788")],
    [Think("Now I know."), "Both are there."],
    "You are welcome.",
]
Send = Callable[[Emulator, str, Any, bool], Reply]

# How each client is asked for a whole reply, and for a stream, with what more.
METHODS: dict[str, tuple[str, str, JsonObject]] = {
    "anthropic": ("messages.create", "messages.create", {"stream": True}),
    "openai-responses": ("responses.create", "responses.create", {"stream": True}),
    "openai-chat": ("chat.completions.create",) * 2 + ({"stream": True, "stream_options": {"include_usage": True}},),
    "gemini": ("models.generate_content", "models.generate_content_stream", {}),
    "bedrock": ("converse", "converse_stream", {}),
}


def events_of(wire: str, client: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    """The provider's stream as its client gives it."""
    _, method, more = METHODS[wire]
    opened = attrgetter(method)(client)(**kwargs, **more)
    with opened if hasattr(opened, "__exit__") else nullcontext(opened) as events:
        yield from events["stream"] if wire == "bedrock" else events


def whole_of(wire: str, client: Any, kwargs: dict[str, Any]) -> Any:
    return attrgetter(METHODS[wire][0])(client)(**kwargs)


# provider, target, wire format, client
CLIENTS = [
    ("anthropic", "anthropic:claude-opus-5-5", "anthropic", anthropic_client),
    ("openai", "openai:gpt-5.6", "openai-responses", openai_client),
    ("openai", "openai-chat:gpt-5.6", "openai-chat", openai_client),
    ("gemini", "gemini:gemini-3.8-flash", "gemini", gemini_client),
    ("bedrock", "bedrock:anthropic.claude-opus-5-5-v1:0", "bedrock", bedrock_client),
]


def send(wire: str, client: Any, target: str, kwargs: dict[str, Any], streamed: bool) -> Reply:
    if not streamed:
        return parse_reply(target, whole_of(wire, client, kwargs))
    reader = stream(target)
    for event in events_of(wire, client, kwargs):
        reader.feed(event)
    reply: Reply = reader.reply()
    return reply


def converse(
    provider: str, target: str, wire: str, make: Callable[[str], Any], streamed: bool
) -> tuple[list[Reply], Emulator]:
    """Two turns with a tool loop in the first, each request rendered from the log of what came back."""
    entries: list[Entry] = [values.system(LONG), TOOLS, values.user("Look up 7 and 8.")]
    replies: list[Reply] = []
    with ExitStack() as stack:
        server = stack.enter_context(emulator(provider, replies=list(SCRIPT), chunk_bytes=13 if streamed else None))
        client = stack.enter_context(closing(make(server.url)))
        for _ in range(3):
            built = list(
                assemble.requests(list(chain([*entries, values.respond("?")])), assemble.Policy(thinking=True))
            )[-1]
            request = marked(render(built.prompt, target, key="thread-1"), built.prompt)
            replies.append(send(wire, client, target, sdk_kwargs(request), streamed))
            entries += replies[-1].entries
            calls = [entry for entry in replies[-1].entries if entry.kind == "call"]
            entries += [values.result(call.call_id, None, f"record {call.args['id']}") for call in calls]
            if not calls:
                entries.append(values.user("Thank you."))
    return replies, server


@pytest.mark.proves("anthropic openai gemini bedrock", "sdk")
@pytest.mark.proves("anthropic openai gemini bedrock", "streaming")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("provider", "target", "wire", "make"), CLIENTS)
def test_a_thread_goes_through_the_official_client_and_comes_back(
    provider: str, target: str, wire: str, make: Callable[[str], Any], streamed: bool
) -> None:
    replies, server = converse(provider, target, wire, make, streamed)
    assert [received.error for received in server.requests] == ["", "", ""]
    kinds = [[entry.kind for entry in reply.entries if entry.kind != "think"] for reply in replies]
    assert kinds == [["respond", "call", "call", "call"], ["respond"], ["respond"]]
    assert replies[1].entries[-1].text == "Both are there."
    calls = [entry for entry in replies[0].entries if entry.kind == "call"]
    assert [call.args for call in calls] == [{"id": "7"}, {"id": "8"}, {"id": "8"}]
    # Two calls of the same thing are two calls.
    assert len({call.call_id for call in calls}) == 3
    # What a simulator of one's own predicts of the requests that came.
    cache = Simulator(target)
    predicted = [cache.step(received.at_ms, received.body) for received in server.requests]
    for reply, one in zip(replies, predicted, strict=True):
        assert (reply.usage.input_total, reply.usage.cache_read) == (one.total, one.read)
        assert reply.usage.cache_write_5m == one.write_5m
    # Every request extends the one before, so the cache is read from the second on.
    reads = [reply.usage.cache_read for reply in replies]
    if provider != "gemini":
        assert 0 == reads[0] < reads[1] < reads[2]


def look_up(id: str) -> str:
    """finds a record"""
    return f"record {id}"


def opened(folder: Path) -> quire.Thread:
    thread = closed_later(quire.open(folder / "t.db", "t"))
    thread.append(values.system(LONG), TOOLS)
    thread.user("Look up 7 and 8.")
    return thread


@pytest.mark.parametrize(("provider", "target", "wire", "make"), CLIENTS)
def test_a_stream_is_recorded_while_it_is_shown(
    provider: str, target: str, wire: str, make: Callable[[str], Any], tmp_path: Path
) -> None:
    thread, shown = opened(tmp_path), list[str]()
    with emulator(provider, replies=list(SCRIPT), chunk_bytes=13) as server, closing(make(server.url)) as client:
        for _ in range(2):
            kept = thread.record(
                events_of(wire, client, thread.request(target, max_tokens=5000).kwargs), on_text=shown.append
            )
            thread.results(kept, [look_up])
    assert [received.error for received in server.requests] == ["", ""]
    assert "".join(shown) == "One moment.Both are there."
    assert len(shown) > 2
    results = [entry.body["content"] for entry in thread if entry.kind == "result"]
    assert results == ["record 7", "record 8", "record 8"]
    assert all(entry.body["usage"]["input_total"] for entry in thread if entry.kind == "sent")
    assert thread.entries[-1].text == "Both are there."


async def test_an_asynchronous_stream_is_recorded_while_it_is_shown(tmp_path: Path) -> None:
    anthropic = pytest.importorskip("anthropic")
    thread, shown = quire.AsyncThread(opened(tmp_path)), list[str]()
    with emulator("anthropic", replies=list(SCRIPT), chunk_bytes=13) as server:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="key") as client:
            for _ in range(2):
                request = await thread.request("anthropic:claude-opus-5-5", max_tokens=5000)
                events = await client.messages.create(**request.kwargs, stream=True)
                await thread.results(await thread.record(events, on_text=shown.append), [look_up])
            with pytest.raises(CallError, match="asynchronous"):
                thread.thread.record(events)
    assert "".join(shown) == "One moment.Both are there."


ANSWER: JsonObject = {"function_response": {"name": "f", "response": {"output": "x"}}}
# Requests that each client sends and its provider refuses.
BROKEN: dict[str, JsonObject] = {
    "anthropic": {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": ""}]},
    "openai-responses": {
        "model": "gpt-5.6",
        "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
    },
    "openai-chat": {"model": "gpt-5.6", "messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]},
    "gemini": {"model": "gemini-3.8-flash", "contents": [{"role": "user", "parts": [ANSWER]}]},
    "bedrock": {
        "modelId": "anthropic.claude-opus-5-5-v1:0",
        "messages": [{"role": "user", "content": [{"text": "  "}]}],
    },
}


def status_of(error: Exception) -> int:
    """The HTTP status in any client's exception."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response["ResponseMetadata"]["HTTPStatusCode"])
    return int(getattr(error, "status_code", 0) or getattr(error, "code", 0))


@pytest.mark.parametrize(("provider", "target", "wire", "make"), CLIENTS)
def test_a_broken_rule_is_the_client_s_own_bad_request_error(
    provider: str, target: str, wire: str, make: Callable[[str], Any]
) -> None:
    with (
        emulator(provider, replies=[]) as server,
        closing(make(server.url)) as client,
        pytest.raises(Exception) as caught,  # noqa: PT011 - each client has its own class, compared below
    ):
        whole_of(wire, client, BROKEN[wire])
    assert status_of(caught.value) == 400
    assert type(caught.value).__name__ in ("BadRequestError", "ClientError", "ValidationException")
    assert server.requests[0].error
    assert server.requests[0].error[:40] in str(caught.value)


SIMPLE = {"anthropic": CLAUDE, "openai-responses": RESPONSES, "openai-chat": CHAT}


@pytest.mark.parametrize("wire", SIMPLE)
def test_a_client_waits_as_long_as_it_is_told_and_tries_again(wire: str) -> None:
    provider, make = ("anthropic", anthropic_client) if wire == "anthropic" else ("openai", openai_client)
    script = [Refuse(429, retry_after_s=0.01), "fine"]
    with emulator(provider, replies=script) as server, closing(make(server.url)) as client:
        assert "fine" in str(whole_of(wire, client, SIMPLE[wire]))
        assert [received.status for received in server.requests] == [429, 200]


@pytest.mark.parametrize("wire", SIMPLE)
def test_a_stream_that_breaks_off_keeps_what_had_come(wire: str) -> None:
    provider, make = ("anthropic", anthropic_client) if wire == "anthropic" else ("openai", openai_client)
    names = {"anthropic": "anthropic:claude-opus-5-5", "openai-responses": "openai:gpt-5.6"}
    reader = stream(names.get(wire, "openai-chat:gpt-5.6"))
    script = [Text("The first block."), Text("The second one is never finished. " * 90)]
    with emulator(provider, replies=[Cut(script, 9000)]) as server, closing(make(server.url)) as client:
        broken = _feed(reader, events_of(wire, client, SIMPLE[wire]))
    assert broken
    partial = reader.partial()
    said = [entry.text for entry in partial.entries] + [str(one["text"]) for one in partial.unfinished]
    assert "".join(said).startswith("The first block.The second one is")
    # Chat has no blocks, so nothing of it is finished; the others keep their first one as an entry.
    assert len(partial.entries) == (0 if wire == "openai-chat" else 1)


def _feed(reader: Any, events: Iterator[Any]) -> bool:
    """Read until the connection breaks; whether it did."""
    try:
        for event in events:
            reader.feed(event)
    except Exception as error:
        return "connection" in str(error).lower()
    return False
