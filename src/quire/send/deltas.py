"""The text in each provider's stream events, before it is whole: for readers, never for the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from quire.values import Json, JsonObject


class Piece(msgspec.Struct, frozen=True):
    """More of the block at `place` (blocks become entries in that order)."""

    place: int
    kind: str
    text: str


def pieces(wire: str, event: Json) -> list[Piece]:
    """The pieces of text in one event of a stream in this wire format."""
    if not isinstance(event, dict):
        return []
    return [piece for piece in _READERS[wire](event) if isinstance(piece.text, str) and piece.text]


def _chat(event: JsonObject) -> Iterator[Piece]:
    """A chat message is thinking, text and calls in this order, whatever comes first."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) and not choice.get("index") else None
    if not isinstance(delta, dict):
        return
    yield Piece(0, "think", delta.get("reasoning_content") or delta.get("reasoning") or "")
    yield Piece(1, "respond", delta.get("content") or delta.get("refusal") or "")
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(call.get("index"), int):
            yield Piece(2 + call["index"], "call", function.get("arguments") or "")


_RESPONSES = {
    "response.output_text.delta": "respond",
    "response.refusal.delta": "respond",
    "response.reasoning_summary_text.delta": "think",
    "response.reasoning_text.delta": "think",
    "response.function_call_arguments.delta": "call",
}


def _responses(event: JsonObject) -> Iterator[Piece]:
    kind = _RESPONSES.get(str(event.get("type")))
    if kind and isinstance(event.get("output_index"), int):
        yield Piece(event["output_index"], kind, event.get("delta") or "")


_ANTHROPIC = {
    "text_delta": ("respond", "text"),
    "thinking_delta": ("think", "thinking"),
    "input_json_delta": ("call", "partial_json"),
}


def _anthropic(event: JsonObject) -> Iterator[Piece]:
    delta = event.get("delta")
    if event.get("type") == "content_block_delta" and isinstance(delta, dict):
        kind, field = _ANTHROPIC.get(str(delta.get("type")), ("", ""))
        if kind and isinstance(event.get("index"), int):
            yield Piece(event["index"], kind, delta.get(field) or "")


def _gemini(event: JsonObject) -> Iterator[Piece]:
    """Only bare text grows; a part that carries anything else comes whole."""
    candidates = event.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else {}
    content = first.get("content") if isinstance(first, dict) else None
    parts = content.get("parts") if isinstance(content, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and set(part) <= {"text", "thought"} and "text" in part:
            # Thinking comes before the answer; what has ended leaves its place to the next.
            yield Piece(
                0 if part.get("thought") else 1, "think" if part.get("thought") else "respond", part["text"]
            )


def _bedrock(event: JsonObject) -> Iterator[Piece]:
    given = event.get("contentBlockDelta")
    if not isinstance(given, dict) or not isinstance(given.get("contentBlockIndex"), int):
        return
    place, delta = given["contentBlockIndex"], given.get("delta")
    if not isinstance(delta, dict):
        return
    yield Piece(place, "respond", delta.get("text") or "")
    thought, call = delta.get("reasoningContent"), delta.get("toolUse")
    yield Piece(place, "think", thought.get("text") or "" if isinstance(thought, dict) else "")
    yield Piece(place, "call", call.get("input") or "" if isinstance(call, dict) else "")


_READERS: dict[str, Callable[[JsonObject], Iterator[Piece]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}
