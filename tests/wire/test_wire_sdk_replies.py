"""Replies and events as the official SDKs' own objects read like the JSON they were made from."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from wire_replies import REPLIES

from quire.providers import parse_reply, stream
from toolbox import fewer


def _same(target: str, reply: Any, sdk_reply: Any, events: list[Any]) -> None:
    whole = parse_reply(target, reply)
    read = parse_reply(target, sdk_reply)
    assert (read.entries, read.usage, read.stop) == (whole.entries, whole.usage, whole.stop)
    reader = stream(target)
    for event in events:
        reader.feed(event)
    assert reader.reply().entries == whole.entries


@given(drawn=REPLIES["anthropic:claude-opus-5-5"])
@fewer(20)
def test_anthropic_objects(drawn: Any) -> None:
    types = pytest.importorskip("anthropic.types")
    reply, events = drawn
    event = TypeAdapter(types.RawMessageStreamEvent)
    made = [event.validate_python(one) if one["type"] != "ping" else one for one in events[1:]]
    _same("anthropic:claude-opus-5-5", reply, types.Message.model_validate(reply), [events[0], *made])


@given(drawn=REPLIES["openai-chat:gpt-6-sol"])
@fewer(20)
def test_openai_chat_objects(drawn: Any) -> None:
    types = pytest.importorskip("openai.types.chat")
    reply, events = drawn
    fields = {"created": 1}
    chunks = [
        types.ChatCompletionChunk.construct(**one, **fields, object="chat.completion.chunk") for one in events[:-1]
    ]
    _same(
        "openai-chat:gpt-6-sol",
        reply,
        types.ChatCompletion.construct(**reply, **fields, object="chat.completion"),
        chunks,
    )


@given(drawn=REPLIES["openai:gpt-6-sol"])
@fewer(20)
def test_openai_responses_objects(drawn: Any) -> None:
    types = pytest.importorskip("openai.types.responses")
    reply, events = drawn
    made = [
        {**one, "response": types.Response.construct(**one["response"])} if "response" in one else one for one in events
    ]
    _same("openai:gpt-6-sol", reply, types.Response.construct(**reply), made)


@given(drawn=REPLIES["gemini:gemini-3.8-flash"])
@fewer(20)
def test_google_objects(drawn: Any) -> None:
    types = pytest.importorskip("google.genai.types")
    reply, events = drawn
    made = [types.GenerateContentResponse.model_validate_json(_json(one)) for one in events]
    _same("gemini:gemini-3.8-flash", reply, types.GenerateContentResponse.model_validate_json(_json(reply)), made)


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


@given(value=st.binary(max_size=20))
def test_bytes_become_base64(value: bytes) -> None:
    from quire.providers.incoming import bytes_of, plain

    assert bytes_of(plain({"x": value})["x"]) == value
