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
from quire.providers.rules import (
    anthropic,
    bedrock,
    blank,
    breakpoints,
    chat,
    claude,
    compaction,
    gemini,
    gemini_setup,
    marks,
    names,
    pairs,
    responses,
    thinking,
)
from quire.providers.rules.check import Check, make_check
from quire.providers.rules.detect import detect
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.grammar import shape
from quire.providers.rules.memory import issue, observe
from quire.providers.rules.seen import Seen
from quire.providers.rules.turns import anthropic_talk, converse_talk
from quire.providers.rules.unchecked import Note, unchecked_notes
from quire.values import Json, Request

__all__ = ["Finding", "Note", "Seen", "detect", "issue", "malformed", "observe", "unchecked", "validate"]


def validate(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: Seen | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Everything a provider would refuse in a request, in the order of the rules; empty when it is fine.

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
    return [*unfit, *(() if encoded is None else _SHAPES[check.info.wire](check))]


def unchecked(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: Seen | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Note]:
    """The rows that this request touches and that cannot be told from what was given, with what is missing."""
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return []
    return list(unchecked_notes(_check(request, provider, model, seen, headers)))


def _check(
    request: Request | Json,
    provider: str | None,
    model: str | None,
    seen: Seen | None,
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
    yield from anthropic.anthropic_shape(check)
    yield from pairs.speakers(talk)
    yield from pairs.pairs(check, talk)
    yield from blank.blank(check, talk)
    yield from marks.marks(check, talk)
    yield from claude.prefill(check, talk)
    yield from thinking.thinking(check, talk)
    yield from claude.betas(check, talk)
    yield from claude.late_system(check, talk)
    yield from claude.tool_choice(check)
    yield from claude.thinking_mode(check)
    yield from names.names(anthropic.anthropic_names(talk))
    yield from names.unique(anthropic.tool_names(talk))
    yield from compaction.edits(check)
    yield from compaction.compaction(check, talk)
    yield from claude.size(check, encoded)
    yield from claude.sampling(check)
    yield from claude.prewarm(check)
    yield from anthropic.version(check, talk)


def _bedrock(check: Check, encoded: bytes) -> Iterator[Finding]:
    talk = converse_talk(check.body)
    yield from bedrock.bedrock_shape(check)
    yield from pairs.speakers(talk)
    yield from bedrock.blank_blocks(talk)
    yield from bedrock.empty_errors(talk)
    yield from bedrock.converse_order(check, talk)
    yield from bedrock.tools_defined(check, talk)
    yield from bedrock.cache_points(check, talk)
    yield from names.names(bedrock.converse_names(talk))
    if "claude" in check.info.model:
        yield from claude.prefill(check, talk)
        yield from thinking.thinking(check, talk)
        yield from claude.late_system(check, talk)
        yield from bedrock.converse_model(check)


def _chat(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from chat.chat_shape(check)
    yield from chat.chat_pairs(check)
    # A local server's template takes any name.
    if not check.info.features.template:
        yield from names.names(chat.chat_names(check))
    yield from breakpoints.breakpoints(check)
    if check.info.provider == "mistral":
        yield from chat.mistral(check)
    yield from chat.deepseek(check)
    yield from chat.alternation(check)


def _responses(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from responses.responses_shape(check)
    yield from responses.reasoning(check)
    yield from responses.responses_pairs(check)
    yield from breakpoints.breakpoints(check)
    yield from responses.state(check)
    yield from names.names(responses.responses_names(check))


def _gemini(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from gemini.gemini_shape(check)
    yield from gemini.order(check)
    yield from gemini.responses(check)
    yield from gemini.signatures(check)
    yield from gemini_setup.cached(check)
    yield from gemini_setup.least(check)
    yield from gemini_setup.schemas(check)
    yield from gemini_setup.function_names(check)


_Rules: TypeAlias = Callable[[Check, bytes], Iterator[Finding]]
_SHAPES: dict[str, Callable[[Check], Iterator[Finding]]] = {
    "anthropic": anthropic.anthropic_shape,
    "bedrock": bedrock.bedrock_shape,
    "openai-chat": chat.chat_shape,
    "openai-responses": responses.responses_shape,
    "gemini": gemini.gemini_shape,
}
_RULES: dict[str, _Rules] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
