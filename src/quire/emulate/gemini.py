"""Gemini's generateContent: replies, server-sent chunks, errors; and its explicit caches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from quire.emulate.script import (
    EmulatedExchange,
    EmulatedPath,
    EmulatedReply,
    EmulatedRequest,
    Refuse,
    ReplyForm,
    pieces,
)
from quire.providers.incoming import iso_ms
from quire.providers.models import ModelInfo
from quire.providers.rules import errors, validate
from quire.providers.simulate.engine_caches import GeminiCache, seconds
from quire.values import Call, JsonObject, Text, Think, as_object, value_at

if TYPE_CHECKING:
    from quire.emulate import EmulatedProvider

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def reply(exchange: EmulatedExchange) -> JsonObject:
    """A whole reply."""
    return _answer(exchange, list(_parts(exchange)), "STOP")


def _answer(exchange: EmulatedExchange, parts: list[JsonObject], finish: str | None) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(exchange),
        "modelVersion": exchange.model,
        "responseId": f"gemini-{exchange.number:06d}",
    }


def _parts(exchange: EmulatedExchange) -> Iterator[JsonObject]:
    """The first call carries the signature of the thinking; the thoughts themselves come only where they are asked for."""
    config = as_object(exchange.body.get("generationConfig") or exchange.body.get("generation_config"))
    thinking = as_object(config.get("thinkingConfig") or config.get("thinking_config"))
    signed, shows_thoughts = False, thinking.get("includeThoughts") or thinking.get("include_thoughts")
    for index, part in enumerate(exchange.parts):
        match part:
            case Think(text=text):
                if shows_thoughts:
                    yield {"text": text, "thought": True}
            case Text(text=text):
                yield {"text": text}
            case Call():
                call = {"id": part.call_id, "name": part.name, "args": part.args}
                signature = {"thoughtSignature": exchange.signature(part.name, index)}
                yield {"functionCall": call} | ({} if signed else signature)
                signed = True


def _usage(exchange: EmulatedExchange) -> JsonObject:
    predicted = exchange.predicted
    thoughts, output = exchange.reasoning_tokens, exchange.output_tokens
    used: JsonObject = {
        "promptTokenCount": predicted.total,
        "candidatesTokenCount": output - thoughts,
        "totalTokenCount": predicted.total + output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": predicted.total}],
    }
    if thoughts:
        used["thoughtsTokenCount"] = thoughts
    if predicted.read:
        used["cachedContentTokenCount"] = predicted.read
        used["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": predicted.read}]
    return used


def stream(exchange: EmulatedExchange, whole: JsonObject, size: int) -> Iterator[bytes]:
    """The reply in chunks: texts in pieces, any other part whole; the last chunk has a finish reason."""
    chunks = [chunk for part in whole["candidates"][0]["content"]["parts"] for chunk in _split(part, size)]
    for number, chunk in enumerate(chunks or [{"text": ""}]):
        finish = "STOP" if number >= len(chunks) - 1 else None
        yield b"data: " + msgspec.json.encode(_answer(exchange, [chunk], finish)) + b"\r\n\r\n"


def _split(part: JsonObject, size: int) -> Iterator[JsonObject]:
    if "text" not in part or part.get("thought"):
        yield part
        return
    for piece in pieces(part["text"], size):
        yield {**part, "text": piece}


def error(refused: Refuse, request_id: str) -> JsonObject:
    status = _STATUS.get(refused.status, "UNKNOWN")
    return {"error": {"code": refused.status, "message": refused.message, "status": status}}


def lacks(received: EmulatedRequest) -> Refuse | None:
    sent = received.headers
    if sent.get("x-goog-api-key") or sent.get("authorization") or "key=" in received.path.partition("?")[2]:
        return None
    message = "Method doesn't allow unregistered callers (callers without established identity). "
    message += "Please use API Key or other form of API consumer identity to call this API."
    return Refuse(403, message)


def unknown_model(name: str) -> Refuse:
    message = f"models/{name} is not found for API version v1beta, or is not supported for generateContent. "
    message += "Call ModelService.ListModels to see the list of available models and their supported methods."
    return Refuse(404, message)


def model(info: ModelInfo) -> JsonObject:
    return {
        "name": f"models/{info.model}",
        "version": "001",
        "displayName": info.model,
        "inputTokenLimit": info.window,
        "outputTokenLimit": info.max_output,
        "supportedGenerationMethods": ["generateContent", "countTokens", "createCachedContent"],
        "thinking": info.features.reasoning,
    }


_MODEL = "/{version}/models/{model:path}"

VOICE = ReplyForm(
    endpoints=(
        EmulatedPath(f"{_MODEL}:generateContent", streamed=False),
        EmulatedPath(f"{_MODEL}:streamGenerateContent", streamed=True),
        EmulatedPath(
            f"{_MODEL}:countTokens", count="totalTokens", inner=lambda body: body.get("generateContentRequest") or body
        ),
    ),
    call_prefix="fc-",
    models="/{version}/models",
    reply=reply,
    stream=stream,
    error=error,
    headers=lambda received: {"server-timing": "gfet4t7; dur=1"},
    lacks=lacks,
    unknown_model=unknown_model,
    model_list=lambda models: {"models": models},
    model=model,
)


# Gemini's `cachedContents`: made, read, listed, prolonged, deleted.

_DEFAULT_TTL_S = 3600.0


class EmulatedCaches:
    """The explicit caches of one emulated provider."""

    def __init__(self, emulated: EmulatedProvider) -> None:
        self._emulated = emulated
        self._stored: dict[str, JsonObject] = {}
        self._count = 0

    def create(self, received: EmulatedRequest) -> EmulatedReply:
        body: JsonObject = received.body
        model = str(body.get("model") or "").removeprefix("models/")
        findings = errors(validate(body, "gemini", model, headers=received.headers))
        if findings:
            return self._emulated.refuse(received, Refuse(findings[0].status, findings[0].message))
        self._count += 1
        name = f"cachedContents/emulated{self._count:04d}"
        ttl_s = seconds(body.get("ttl"), _DEFAULT_TTL_S)
        content = {**body, "name": name, "ttl": f"{ttl_s:g}s"}
        received.predicted = self._emulated.simulator("gemini", model).step(received.at_ms, content)
        self._stored[name] = {
            "name": name,
            "model": f"models/{model}",
            "displayName": str(body.get("displayName", "")),
            "createTime": _time(received.at_ms),
            **_life(received.at_ms, ttl_s),
            "usageMetadata": {"totalTokenCount": received.predicted.total},
        }
        return EmulatedReply(200, self._stored[name])

    def list(self, received: EmulatedRequest) -> EmulatedReply:
        alive = [stored for name in self._stored if (stored := self._alive(received, name))]
        return EmulatedReply(200, {"cachedContents": alive})

    def act(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        """Answer with a cache (GET), extend its life (PATCH; nothing else can be changed) or delete it (DELETE)."""
        name = f"cachedContents/{name}"
        stored = self._alive(received, name)
        if stored is None:
            return self._missing(received, name)
        engine = self._emulated.simulator("gemini", stored["model"].removeprefix("models/")).engine
        assert isinstance(engine, GeminiCache)
        if received.method == "PATCH":
            ttl_s = seconds(received.body.get("ttl"), _DEFAULT_TTL_S)
            stored |= _life(received.at_ms, ttl_s)
            engine.extend(name, received.at_ms, ttl_s)
        elif received.method == "DELETE":
            engine.extend(name, received.at_ms, 0)
            self._stored.pop(name)
            stored = {}
        return EmulatedReply(200, stored)

    def refuses(self, received: EmulatedRequest) -> EmulatedReply | None:
        """The refusal of a request that names a cache which does not exist or has expired; None for any other."""
        name = value_at(received.body, "cachedContent")
        if not name or self._alive(received, str(name)):
            return None
        return self._missing(received, str(name))

    def _alive(self, received: EmulatedRequest, name: str) -> JsonObject | None:
        stored = self._stored.get(name)
        return stored if stored and received.at_ms < (iso_ms(stored["expireTime"]) or 0) else None

    def _missing(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        message = "CachedContent not found (or permission denied)"
        return self._emulated.refuse(received, Refuse(403, f"{message}: {name}"))


def _life(at_ms: int, ttl_s: float) -> JsonObject:
    return {"updateTime": _time(at_ms), "expireTime": _time(at_ms + int(ttl_s * 1000))}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
