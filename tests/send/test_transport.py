"""Transports: retries on a fixed schedule, the provider's own word on waiting, timeouts, errors that help."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import HTTPServer
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from send_parts import WAYS

from quire import Request, providers
from quire.errors import CallError, ProviderError
from quire.providers import models
from quire.send.connect import Retry, RetryingTransport
from quire.send.transport import SseReader, Transport, endpoint_for, events, message_of, refusal, retry_after
from quire.testing import Cut, Refuse, Slow, emulator
from quire.values import JsonObject, Message, Prompt, Text
from toolbox import TARGETS, QuietHandler, close, free_port, in_background, transport_for


def request_for(target: str) -> Request:
    return providers.render(Prompt("", "", (), (Message("user", (Text("Hello"),)),)), target, max_tokens=50)


@asynccontextmanager
async def opened(target: str, url: str = "", **how: Any) -> AsyncIterator[Transport]:
    """A transport that is not tried again unless it is told to, closed at the end."""
    transport = transport_for(target, url, "key", **{"via": "http", "retry": Retry(attempts=1), **how})
    try:
        yield transport
    finally:
        await close(transport)


async def collected(transport: Transport, target: str, take: Callable[[JsonObject], Any] = bool) -> list[JsonObject]:
    """Every event of a stream; each is also handed over as it comes."""
    return [event async for event in transport.stream(request_for(target)) if take(event) or True]


class Naps:
    """Sleeps that take no time, written down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


CHAT = "openai-chat:gpt-5"


@pytest.mark.parametrize(("provider", "via"), WAYS)
async def test_a_request_is_tried_again_as_the_provider_asks_and_only_so_often(provider: str, via: Any) -> None:
    naps, target = Naps(), TARGETS[provider]
    refusals = [Refuse(529 if provider == "anthropic" else 503), Refuse(429, retry_after_s=7), Refuse(500)]
    with emulator(provider, [*refusals, "Hello.", *refusals, Refuse(500), "Hello."]) as server:
        async with opened(target, server.url, via=via) as transport:
            again = RetryingTransport(transport.inner, Retry(attempts=4), sleep=naps)
            assert "Hello" in str(await collected(again, target))
            assert naps.seconds == [0.5, 7.0, 2.0]
            with pytest.raises(ProviderError) as failed:
                await collected(again, target)
        assert (failed.value.status, failed.value.retryable) == (500, True)
        assert len(server.requests) == 8


@pytest.mark.parametrize(("provider", "via"), WAYS)
async def test_nothing_is_tried_again_once_a_reply_has_begun(provider: str, via: Any) -> None:
    naps, target, events = Naps(), TARGETS[provider], list[JsonObject]()
    with emulator(provider, [Cut("A rather long answer. " * 30, 2500), "Hello."]) as server:
        async with opened(target, server.url, via=via) as transport:
            with pytest.raises(ProviderError) as broken:
                await collected(RetryingTransport(transport.inner, sleep=naps), target, events.append)
        assert broken.value.retryable
        assert events
        assert (naps.seconds, len(server.requests)) == ([], 1)


@pytest.mark.parametrize("provider", TARGETS)
async def test_the_whole_reply_can_be_had_at_once(provider: str) -> None:
    target = TARGETS[provider]
    with emulator(provider, ["Hello, whole."]) as server:
        async with opened(target, server.url, via="sdk" if provider == "bedrock" else "http") as transport:
            reply = providers.parse_reply(target, await transport.send(request_for(target)))
    assert [entry.text for entry in reply.entries] == ["Hello, whole."]
    assert reply.usage.output > 0


@pytest.mark.parametrize("provider", TARGETS)
async def test_an_option_that_is_not_the_providers_is_an_error_of_quire(provider: str) -> None:
    strange = request_for(TARGETS[provider])
    strange.body["thinkingg"] = {"type": "enabled"}
    with emulator(provider, ["Hello."]) as server:
        async with opened(TARGETS[provider], server.url, via="sdk") as transport:
            with pytest.raises(ProviderError, match="thinkingg"):
                await transport.send(strange)


async def test_a_server_that_says_nothing_is_left_after_the_timeout() -> None:
    with emulator("openai-chat", [Slow("Late.", 30)]) as server:
        async with opened(CHAT, server.url, timeout_s=0.2) as transport:
            with pytest.raises(ProviderError, match=r"sent nothing for 0\.2 s") as failed:
                await collected(transport, CHAT)
    assert failed.value.retryable


class Broken(QuietHandler):
    """A server that begins a streamed reply and then says that it cannot go on."""

    events: list[str]

    def do_POST(self) -> None:
        self.received()
        self.answer("".join(f"{event}\n\n" for event in self.events).encode(), "text/event-stream")


CHUNK = 'data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}'


@pytest.mark.parametrize("via", ["sdk", "http"])
@pytest.mark.parametrize(
    ("target", "events", "retryable"),
    [
        ("anthropic:claude-opus-5-5", ['event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'], True),
        ("anthropic:claude-opus-5-5", ['event: error\ndata: {"type": "error", "error": {"type": "invalid_request_error", "message": "No"}}'], False),
        ("openai-chat:gpt-5.6", [CHUNK, 'data: {"error": {"code": 503, "message": "Busy"}}'], True),
        ("openai-chat:gpt-5.6", [CHUNK, 'data: {"error": {"code": 429, "message": "Slower"}}'], True),
        ("openai-chat:gpt-5.6", [CHUNK, 'data: {"error": {"code": 400, "message": "No"}}'], False),
        ("gemini:gemini-3.8-flash", ['data: {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Busy"}}'], True),
    ],
)  # fmt: skip
async def test_an_error_in_the_middle_of_a_stream_says_whether_to_try_again(
    monkeypatch: pytest.MonkeyPatch, via: Any, target: str, events: list[str], retryable: bool
) -> None:
    monkeypatch.setattr(Broken, "events", events, raising=False)
    reader = providers.stream(target)
    with in_background(HTTPServer(("127.0.0.1", 0), Broken)) as url:
        async with opened(target, url, via=via) as transport:
            with pytest.raises(ProviderError) as broken:
                await collected(transport, target, reader.feed)
    assert broken.value.retryable is retryable, str(broken.value)


async def test_a_server_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with opened("llamacpp:m", url) as transport:
        with pytest.raises(ProviderError, match="connection to llamacpp failed") as failed:
            await collected(transport, "llamacpp:m")
    assert url in failed.value.hint


async def test_waiting_longer_than_allowed_is_an_error_at_once() -> None:
    naps = Naps()
    with emulator("openai-chat", [Refuse(429, "slow down", retry_after_s=3600)]) as server:
        async with opened(CHAT, server.url) as transport:
            with pytest.raises(ProviderError, match="429: slow down") as failed:
                await collected(RetryingTransport(transport.inner, sleep=naps), CHAT)
    assert (naps.seconds, failed.value.retry_after_s) == ([], 3600.0)


async def test_a_cancelled_stream_ends_its_connection() -> None:
    """The transport is inside a stream that stands still; cancelling comes through at once."""
    with emulator("openai-chat", [Slow("Late.", 30), "Soon."]) as server:
        async with opened(CHAT, server.url) as transport:
            task = asyncio.create_task(collected(transport, CHAT))
            while not server.requests:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert "Soon" in str(await collected(transport, CHAT))


async def test_a_missing_region_names_the_variable_that_boto3_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(ProviderError, match="region") as raised:
        async with opened(TARGETS["bedrock"], "http://127.0.0.1:1", via="sdk") as transport:
            await collected(transport, TARGETS["bedrock"])
    assert "AWS_DEFAULT_REGION" in raised.value.hint


def test_a_missing_key_names_the_variable_to_set() -> None:
    for provider in models.providers():
        endpoint = endpoint_for(provider)
        if endpoint.needs_key:
            with pytest.raises(ProviderError, match="no API key") as missing:
                transport_for(f"{provider}:m")
            assert endpoint.keys[0] in missing.value.hint
        elif endpoint.base_url:
            assert transport_for(f"{provider}:m")
    for nowhere in ("azure:m", "compatible:m"):
        with pytest.raises(CallError, match="no fixed address"):
            transport_for(nowhere, api_key="key")


@pytest.mark.parametrize(
    ("status", "said", "retryable"),
    [
        (429, {"error": {"message": "Rate limit reached"}}, True),
        (429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, False),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, True),
        (400, [{"error": {"message": "bad"}}], False),
        (404, "no such model", False),
    ],
)
def test_refusals_say_whether_to_try_again(status: int, said: Any, retryable: bool) -> None:
    error = refusal("openai", status, said)
    assert (error.status, error.retryable) == (status, retryable)
    assert message_of(said) in str(error)
    assert error.hint


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "soon"}, None),
    ],
)
def test_a_provider_may_ask_to_wait_in_several_ways(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_the_schedule_of_waits_is_fixed() -> None:
    waits = [Retry(first_s=0.5, most_s=8).wait_s(attempt, None) for attempt in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


@given(
    data=st.lists(st.binary(min_size=1).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=5),
    ending=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    front=st.sampled_from([b": hi", b"", b"\xef\xbb\xbf"]),
)
def test_events_come_out_whole_however_the_bytes_are_cut(
    data: list[bytes], ending: bytes, cuts: list[int], front: bytes
) -> None:
    """A mark of the byte order may stand in front."""
    front += ending if front.startswith(b":") else b""
    body = front + b"".join(b"data: " + one + ending + b"event: x" + ending * 2 for one in data)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    reader = SseReader()
    out = [one for a, b in pairwise(places) for one in reader.feed(body[a:b])]
    assert out + reader.finish() == data


async def read(*chunks: bytes) -> list[JsonObject]:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in events(body(), "openai")]


async def test_an_event_nested_beyond_reading_is_an_error_with_a_hint() -> None:
    with pytest.raises(ProviderError, match="nested too deeply") as caught:
        await read(b'data: {"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n")
    assert caught.value.hint
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>", "a web page (Sign in)"),
        (b"upstream is starting up\ntry later", "upstream is starting up try later"),
        (b'{"error": "not here"}', '{"error": "not here"}'),
    ],
)
async def test_what_came_instead_of_a_stream_is_shown(body: bytes, said: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await read(body[:7], body[7:])
    assert str(caught.value) == f"openai sent no stream but {said}"
    assert caught.value.hint


def test_a_last_event_without_its_blank_line_is_not_lost() -> None:
    reader = SseReader()
    assert reader.feed(b'data: {"a"') == []
    assert reader.feed(b": 1}") == []
    assert reader.finish() == [b'data: {"a": 1}'[6:]]


def test_a_web_page_or_a_long_message_is_one_short_line_with_a_hint() -> None:
    page = "<!DOCTYPE HTML>\n<html>\n<head>\n<title>Error &amp; more</title>\n</head><body>\nno POST\n</body></html>"
    error = refusal("openai-chat", 501, page)
    assert str(error) == "openai-chat answered 501: a web page (Error & more)"
    assert "base URL" in error.hint
    assert message_of("<html><body>down</body></html>") == "a web page"
    assert message_of({"error": {"message": "one\n  two\n"}}) == "one two"
    assert message_of({"message": "x" * 1000}) == "x" * 300 + "…"
    assert refusal("deepseek", 402, "Insufficient Balance").hint == "Check the account at the provider."
