"""OpenAI Chat and everything that speaks it: tool messages, and each server's own order of roles.

Rows 21, 22, 37 to 40; cache marks are in `breakpoints`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.grammar import grammar_of, misfits, shape
from quire.providers.rules.shape import obj, objects, text
from quire.values import Json, JsonObject

_STRICT = frozenset({"openai", "azure"})


def chat_shape(check: Check) -> Iterator[Finding]:
    """Types of messages, parts, calls and tools; compatible servers may know more kinds of parts."""
    strict = check.info.provider in _STRICT
    yield from misfits(check.body, "@body", "$", grammar_of("openai-chat", closed=strict))
    for path, message in objects(check.body.get("messages"), "$.messages"):
        yield from _message_shape(message, path)
        if strict:
            yield from _strictly(message, path)
            yield from _filled(message, ("content", "tool_calls"), path)
    if strict:
        yield from _filled(check.body, ("tools",), "$")


def _message_shape(message: JsonObject, path: str) -> Iterator[Finding]:
    if message.get("content") is None and not _may_be_silent(message):
        yield shape(f"{path}.content", "Field required", "Give the message content.")
    if message.get("role") == "tool" and message.get("tool_call_id") is None:
        yield shape(f"{path}.tool_call_id", "Field required", "Say which call it answers.")


def _strictly(message: JsonObject, path: str) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: images from tools, arguments as objects."""
    if message.get("role") == "tool":
        yield from _text_only(message.get("content"), f"{path}.content")
    for place, call in objects(message.get("tool_calls"), f"{path}.tool_calls"):
        if isinstance(obj(call.get("function")).get("arguments"), dict):
            arguments = f"{place}.function.arguments"
            yield shape(arguments, "Input should be a string", "Encode the arguments as JSON text.")


def _filled(holder: JsonObject, names: tuple[str, ...], path: str) -> Iterator[Finding]:
    """OpenAI takes no list without anything in it."""
    for name in names:
        if holder.get(name) == []:
            problem = "empty array. Expected an array with minimum length 1, but got an empty array instead."
            yield shape(f"{path}.{name}", problem, f"Leave {name} out, or fill it.")


def _may_be_silent(message: JsonObject) -> bool:
    spoken = ("tool_calls", "function_call", "audio", "refusal", "reasoning_content")
    return message.get("role") == "function" or (
        message.get("role") == "assistant" and any(message.get(name) is not None for name in spoken)
    )


def _text_only(content: Json, path: str) -> Iterator[Finding]:
    for place, part in objects(content, path):
        if part.get("type") not in ("text", None):
            yield shape(place, "tool messages hold text only", "Send the image in a user message behind it.")


def chat_pairs(check: Check) -> Iterator[Finding]:
    """Rows 21 and 22: tool messages directly behind the assistant message they answer."""
    open_ids: dict[str, bool] = {}
    asked = ""
    for path, message in objects(check.body.get("messages"), "$.messages"):
        if message.get("role") == "tool":
            id = text(message.get("tool_call_id"))
            if id not in open_ids:
                yield found("B2.22", path)
            else:
                open_ids[id] = True
            continue
        yield from _unanswered(open_ids, asked)
        open_ids, asked = dict.fromkeys(call_ids(message), False), path
    yield from _unanswered(open_ids, asked)


def _unanswered(open_ids: dict[str, bool], path: str) -> Iterator[Finding]:
    missing = [id for id, answered in open_ids.items() if not answered]
    if missing:
        yield found("B2.21", path, ids=", ".join(missing))


def call_ids(message: JsonObject) -> list[str]:
    """The ids of an assistant message's calls."""
    if message.get("role") != "assistant":
        return []
    return [text(call.get("id")) for _, call in objects(message.get("tool_calls"), "")]


def chat_names(check: Check) -> Iterator[tuple[str, Json]]:
    """Every tool name with its path, of definitions and of calls."""
    for path, tool in objects(check.body.get("tools"), "$.tools"):
        yield f"{path}.function.name", obj(tool.get("function")).get("name")
    for path, message in objects(check.body.get("messages"), "$.messages"):
        for place, call in objects(message.get("tool_calls"), f"{path}.tool_calls"):
            yield f"{place}.function.name", obj(call.get("function")).get("name")


def mistral(check: Check) -> Iterator[Finding]:
    """Rows 37 and 38: Mistral's order of roles."""
    messages = list(objects(check.body.get("messages"), "$.messages"))
    for (_, before), (path, message) in pairwise(messages):
        if before.get("role") == "tool" and message.get("role") not in ("assistant", "tool"):
            yield found("B2.37", path, role=text(message.get("role")))
    if messages:
        path, last = messages[-1]
        role = text(last.get("role"))
        if role not in ("user", "tool") and not (role == "assistant" and last.get("prefix") is True):
            yield found("B2.38", path, role=role)


def deepseek(check: Check) -> Iterator[Finding]:
    """Row 39: in thinking mode an assistant message with calls comes back with its reasoning_content."""
    asked = check.info.provider == "deepseek" and check.info.features.reasoning_content == "required"
    if not asked or not check.model_named or not _is_thinking(check.body):
        return
    for path, message in objects(check.body.get("messages"), "$.messages"):
        if call_ids(message) and message.get("reasoning_content") is None:
            yield found("B2.39", path)


def _is_thinking(body: JsonObject) -> bool:
    """Thinking is on unless it is turned off; the OpenAI SDK passes the switch in extra_body."""
    asked = {**obj(body.get("extra_body")), **body}
    return obj(asked.get("thinking")).get("type") != "disabled" and asked.get("reasoning_effort") != "none"


def alternation(check: Check) -> Iterator[Finding]:
    """Row 40: templates that count user and assistant messages, with calls and results left out."""
    if not check.info.features.alternation:
        return
    expected = "user"
    for index, (path, message) in enumerate(objects(check.body.get("messages"), "$.messages")):
        role = message.get("role")
        if role == "tool" or call_ids(message) or (index == 0 and role in ("system", "developer")):
            continue
        if role != expected:
            yield found("B2.40", path)
            return
        expected = "assistant" if role == "user" else "user"
