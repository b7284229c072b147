"""The official SDKs take what is rendered to the byte, and what they return is read as the wire's own JSON is."""

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from operator import attrgetter
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from wire_prompts import TARGETS, growing
from wire_replies import REPLIES, fed

from quire import render
from quire.providers import parse_reply, sdk_kwargs
from quire.providers.models import resolve
from quire.values import Prompt
from toolbox import fewer

pytestmark = pytest.mark.xdist_group("sdk")


# For each wire: its SDK's client and method, the types of a message and of a tool, the messages' field, what is asked for.
KEY = {"key": "thread-1"}
TYPED: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "openai-chat": (
        "openai.OpenAI", "chat.completions.create",
        "openai.types.chat.ChatCompletionMessageParam openai.types.chat.ChatCompletionToolUnionParam",
        "messages", {**KEY, "max_tokens": 100}),
    "openai-responses": (
        "openai.OpenAI", "responses.create",
        "openai.types.responses.ResponseInputItemParam openai.types.responses.ToolParam",
        "input", {**KEY, "max_tokens": 100}),
    "anthropic": (
        "anthropic.Anthropic", "messages.create", "anthropic.types.beta.BetaMessageParam anthropic.types.ToolParam",
        "messages", {**KEY, "effort": "low"}),
}  # fmt: skip


@functools.cache
def sdk_types(wire: str) -> tuple[Any, Any, Any]:
    """What a wire's SDK takes as a message, as a tool, and as the arguments of its call."""
    client, method, types, *_ = TYPED[wire]
    pytest.importorskip(client.partition(".")[0])
    create = attrgetter(method)(resolve_name(client)(api_key="x"))
    message, tool = (TypeAdapter(resolve_name(name)) for name in types.split())
    return message, tool, inspect.signature(create)


@functools.cache
def _converse() -> Any:
    pytest.importorskip("botocore")
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    service = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    return service.operation_model("Converse").input_shape


def _walk(value: Any) -> None:
    """Pydantic checks an Iterable only when somebody iterates."""
    if isinstance(value, Mapping):
        for one in value.values():
            _walk(one)
    elif isinstance(value, list | Iterator) or type(value).__name__ == "ValidatorIterator":
        for one in value:
            _walk(one)


def _of_wire(wire: str) -> list[str]:
    return [target for target in TARGETS if resolve(target.partition(":")[0])[1] == wire]


@pytest.mark.proves(
    "openai azure anthropic deepseek xai groq mistral openrouter vllm sglang llamacpp ollama compatible", "sdk"
)
@pytest.mark.parametrize("wire", TYPED)
@given(prompts=growing())
@fewer(10)
def test_the_typed_sdks_take_their_requests(wire: str, prompts: list[Prompt]) -> None:
    *_, field, asked = TYPED[wire]
    message, tool, create = sdk_types(wire)
    for target, prompt in product(_of_wire(wire), prompts[-1:]):
        request = render(prompt, target, **asked)
        create.bind(**sdk_kwargs(request))
        _walk([message.validate_python(one) for one in request.body[field]])
        _walk([tool.validate_python(one) for one in request.body.get("tools", ())])


@pytest.mark.proves("gemini", "sdk")
@given(prompts=growing())
@fewer(12)
def test_google_genai_takes_its_requests(prompts: list[Prompt]) -> None:
    pytest.importorskip("google.genai")
    from google.genai import types

    for target, prompt in product(_of_wire("gemini"), prompts[-1:]):
        mode = {"functionCallingConfig": {"mode": "AUTO"}}
        request = render(prompt, target, max_tokens=100, effort="low", toolConfig=mode)
        kwargs = sdk_kwargs(request)
        types.GenerateContentConfig.model_validate(kwargs["config"])
        for given_content, sent in zip(request.body["contents"], kwargs["contents"], strict=True):
            content = types.Content.model_validate(sent).model_dump(mode="json", exclude_none=True, by_alias=True)
            assert _as_rest(content) == _as_rest(given_content)


def _as_rest(value: Any) -> Any:
    """One alphabet for base64: the SDK writes the other one."""
    if isinstance(value, dict):
        return {
            key: str(one).translate(str.maketrans("-_", "+/")) if key in ("data", "thoughtSignature") else _as_rest(one)
            for key, one in value.items()
            if key != "thoughtSignature" or ("skip" not in str(one) and "c2tpcF" not in str(one))
        }
    return [_as_rest(one) for one in value] if isinstance(value, list) else value


@pytest.mark.proves("bedrock", "sdk")
@given(prompts=growing())
@fewer(12)
def test_botocore_takes_converse_requests(prompts: list[Prompt]) -> None:
    shape = _converse()
    from botocore.validate import ParamValidator

    for target, prompt in product(_of_wire("bedrock"), prompts[-1:]):
        report = ParamValidator().validate(sdk_kwargs(render(prompt, target, max_tokens=100, effort="low")), shape)
        assert not report.has_errors(), report.generate_report()


def test_the_types_refuse_what_is_wrong() -> None:
    message, _, create = sdk_types("openai-chat")
    with pytest.raises(ValidationError):
        _walk(message.validate_python({"role": "user", "content": [{"type": "text", "text": 3}]}))
    with pytest.raises(TypeError):
        create.bind(model="m", messages=[], cache_salt="x")
    block, _, _ = sdk_types("anthropic")
    with pytest.raises(ValidationError):
        _walk(block.validate_python({"role": "user", "content": [{"type": "tool_result"}]}))


CHUNK, CHAT = ({"created": 1, "object": kind} for kind in ("chat.completion.chunk", "chat.completion"))
# For each wire: its SDK's types, and how these make objects of a reply and of an event.
OBJECTS: dict[str, tuple[str, Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "anthropic:claude-opus-5-5": (
        "anthropic.types",
        lambda types, reply: types.Message.model_validate(reply),
        lambda types, event: (
            event
            if event["type"] in ("message_start", "ping")
            else TypeAdapter(types.RawMessageStreamEvent).validate_python(event)
        ),
    ),
    "openai-chat:gpt-6-sol": (
        "openai.types.chat",
        lambda types, reply: types.ChatCompletion.construct(**reply, **CHAT),
        lambda types, event: event if event == "[DONE]" else types.ChatCompletionChunk.construct(**event, **CHUNK),
    ),
    "openai:gpt-6-sol": (
        "openai.types.responses",
        lambda types, reply: types.Response.construct(**reply),
        lambda types, event: (
            event | ({"response": types.Response.construct(**event["response"])} if "response" in event else {})
        ),
    ),
    "gemini:gemini-3.8-flash": (
        "google.genai.types",
        lambda types, reply: types.GenerateContentResponse.model_validate_json(json.dumps(reply)),
        lambda types, event: types.GenerateContentResponse.model_validate_json(json.dumps(event)),
    ),
}


@pytest.mark.parametrize("target", OBJECTS)
@given(data=st.data())
@fewer(20)
def test_what_an_sdk_returns_is_read_as_the_wires_own_json_is(target: str, data: st.DataObject) -> None:
    name, make_reply, make_event = OBJECTS[target]
    types = pytest.importorskip(name)
    reply, events = data.draw(REPLIES[target])
    whole, read = parse_reply(target, reply), parse_reply(target, make_reply(types, reply))
    assert (read.entries, read.usage, read.stop) == (whole.entries, whole.usage, whole.stop)
    assert fed(target, (make_event(types, event) for event in events)).reply().entries == whole.entries


@given(value=st.binary(max_size=20))
def test_bytes_become_base64(value: bytes) -> None:
    from quire.providers.incoming import bytes_of, plain

    assert bytes_of(plain({"x": value})["x"]) == value
