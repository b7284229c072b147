"""A provider's rules, before it applies them: `validate(body, provider, model)` gives what it would refuse.

Total: any JSON value gives findings, never an exception. What cannot be told from one request alone is said
by `unchecked`; a server that remembers what it issued passes that memory as `seen`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from quire.errors import CallError
from quire.providers.registry import resolve
from quire.providers.rules import bedrock, claude, claude_blocks, claude_turns, gemini, openai
from quire.providers.rules.check import Check, Finding, ServerMemory, errors, found, make_check
from quire.providers.rules.claude import remember_compaction
from quire.providers.rules.claude_turns import anthropic_talk, converse_talk
from quire.providers.rules.detect import Unchecked, detect, unchecked_notes
from quire.providers.rules.gemini import contents, remember_parts
from quire.providers.rules.grammar import obj, objects, shape
from quire.providers.rules.openai import remember_items
from quire.values import Json, JsonObject, Request

__all__ = [
    "Finding",
    "ServerMemory",
    "Unchecked",
    "detect",
    "errors",
    "issue",
    "malformed",
    "observe",
    "unchecked",
    "validate",
]

# Filling a server's memory: what a reply issued, or what a request shows to have been issued.


def issue(seen: ServerMemory, body: JsonObject, provider: str, reply: Json) -> None:
    """Record what `reply` (the provider's JSON) gave out in answer to `body`."""
    _ISSUE[resolve(provider)[1]](seen, body, obj(reply))


def observe(seen: ServerMemory, body: JsonObject, provider: str) -> None:
    """Record what a request carries, as given out where it stands; for logs of requests without their replies."""
    wire = resolve(provider)[1]
    if wire == "anthropic":
        claude_blocks.remember(seen, anthropic_talk(body))
    elif wire == "bedrock":
        claude_blocks.remember(seen, converse_talk(body))
    elif wire == "gemini":
        remember_parts(seen, contents(body))


def _remember_anthropic(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    content = [block for _, block in objects(reply.get("content"), "")]
    messages = [one for _, one in objects(body.get("messages"), "")]
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": content}]}
    claude_blocks.remember(seen, anthropic_talk(whole), since=len(messages))
    remember_compaction(seen, content)


def _remember_bedrock(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    message = obj(obj(reply.get("output")).get("message"))
    messages = [one for _, one in objects(body.get("messages"), "")]
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": message.get("content")}]}
    claude_blocks.remember(seen, converse_talk(whole), since=len(messages))


def _remember_gemini(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    for _, candidate in objects(reply.get("candidates"), ""):
        remember_parts(seen, contents({"contents": [obj(candidate.get("content"))]}))


def _remember_responses(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    remember_items(seen, reply.get("output"))


def _nothing(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    """Chat signs nothing."""


_ISSUE: dict[str, Callable[[ServerMemory, JsonObject, JsonObject], None]] = {
    "anthropic": _remember_anthropic,
    "bedrock": _remember_bedrock,
    "gemini": _remember_gemini,
    "openai-responses": _remember_responses,
    "openai-chat": _nothing,
}


def validate(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What a provider would refuse in a request, and what it would better not hold, in the order of the rules.

    `request` is a body, or a rendered Request, which brings its provider, model and headers along.
    """
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return [shape("$", "the request is no JSON object", "Send an object.")]
    check = _check(request, provider, model, seen, headers)
    encoded, unfit = _encode(body)
    if encoded is None:
        return unfit
    return list(dict.fromkeys([*unfit, *_RULES[check.info.wire](check, encoded)]))


def malformed(request: Json, provider: str, model: str | None = None) -> list[Finding]:
    """What keeps a body from being a request at all: fields of the wrong type, or missing ones."""
    if not isinstance(request, dict):
        return validate(request, provider)
    check = _check(request, provider, model, None, None)
    encoded, unfit = _encode(request)
    return [*unfit, *(() if encoded is None else errors(_SHAPES[check.info.wire](check)))]


def unchecked(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Unchecked]:
    """The rows that this request touches and that cannot be told from what was given, with what is missing."""
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return []
    return list(unchecked_notes(_check(request, provider, model, seen, headers)))


def _check(
    request: Request | Json,
    provider: str | None,
    model: str | None,
    seen: ServerMemory | None,
    headers: Mapping[str, str] | None,
) -> Check:
    """What is to be checked; who it is for is told by the caller, the Request, or the body's shape."""
    if isinstance(request, Request):
        given = request.headers if headers is None else headers
        return make_check(request.body, provider or request.provider, model or request.model, seen, given)
    whose = provider or detect(request)
    if whose is None:
        raise CallError("cannot tell whose request this is", hint="Name the provider.")
    return make_check(request, whose, model, seen, headers)


def _encode(body: Json) -> tuple[bytes | None, list[Finding]]:
    """The body as it goes over the wire; None when it cannot be walked at all."""
    try:
        return msgspec.json.encode(body), []
    except RecursionError:
        return None, [found("B.json", "$", problem="nested too deeply")]
    except (TypeError, ValueError, OverflowError) as error:
        problem = found("B.json", "$", problem=f"not JSON text: {error}")
    try:
        # Integers of any size are JSON, though the fast encoder takes 64 bits only.
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode(), []
    except (TypeError, ValueError):
        return b"", [problem]


def _anthropic(check: Check, encoded: bytes) -> Iterator[Finding]:
    talk = anthropic_talk(check.body)
    yield from claude_turns.anthropic_shape(check)
    yield from claude_turns.speakers(talk)
    yield from claude_turns.pairs(check, talk)
    yield from claude_turns.blank(check, talk)
    yield from claude_blocks.marks(check, talk)
    yield from claude.prefill(check, talk)
    yield from claude_blocks.thinking(check, talk)
    yield from claude.betas(check, talk)
    yield from claude.late_system(check, talk)
    yield from claude.tool_choice(check)
    yield from claude.thinking_mode(check)
    yield from claude_turns.names(claude_turns.anthropic_names(talk))
    yield from claude_turns.unique(claude_turns.tool_names(talk))
    yield from claude.edits(check)
    yield from claude.compaction(check, talk)
    yield from claude.size(check, encoded)
    yield from claude.sampling(check)
    yield from claude.prewarm(check)
    yield from claude_turns.version(check, talk)


def _bedrock(check: Check, encoded: bytes) -> Iterator[Finding]:
    talk = converse_talk(check.body)
    yield from bedrock.bedrock_shape(check)
    yield from claude_turns.speakers(talk)
    yield from bedrock.blank_blocks(talk)
    yield from bedrock.empty_errors(talk)
    yield from bedrock.converse_order(check, talk)
    yield from bedrock.tools_defined(check, talk)
    yield from bedrock.cache_points(check, talk)
    yield from claude_turns.names(bedrock.converse_names(talk))
    if "claude" in check.info.model:
        yield from claude.prefill(check, talk)
        yield from claude_blocks.thinking(check, talk)
        yield from claude.late_system(check, talk)
        yield from bedrock.converse_model(check)


def _chat(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from openai.chat_shape(check)
    yield from openai.chat_pairs(check)
    # A local server's template takes any name.
    if not check.info.features.template:
        yield from claude_turns.names(openai.chat_names(check))
    yield from openai.breakpoints(check)
    if check.info.provider == "mistral":
        yield from openai.mistral(check)
    yield from openai.deepseek(check)
    yield from openai.alternation(check)


def _responses(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from openai.responses_shape(check)
    yield from openai.reasoning(check)
    yield from openai.responses_pairs(check)
    yield from openai.breakpoints(check)
    yield from openai.state(check)
    yield from claude_turns.names(openai.responses_names(check))


def _gemini(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from gemini.gemini_shape(check)
    yield from gemini.order(check)
    yield from gemini.responses(check)
    yield from gemini.signatures(check)
    yield from gemini.cached(check)
    yield from gemini.least(check)
    yield from gemini.schemas(check)
    yield from gemini.function_names(check)


_Rules: TypeAlias = Callable[[Check, bytes], Iterator[Finding]]
_SHAPES: dict[str, Callable[[Check], Iterator[Finding]]] = {
    "anthropic": claude_turns.anthropic_shape,
    "bedrock": bedrock.bedrock_shape,
    "openai-chat": openai.chat_shape,
    "openai-responses": openai.responses_shape,
    "gemini": gemini.gemini_shape,
}
_RULES: dict[str, _Rules] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
