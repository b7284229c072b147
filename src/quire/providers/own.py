"""A provider's own blocks: sent back verbatim to the model that wrote them, and to no other."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quire.providers.prefix import unmarked
from quire.providers.project import ITEM_FORMATS
from quire.providers.rules.grammar import fits, grammar_of
from quire.providers.sheet import Sheet
from quire.values import Call, Entry, JsonObject, Message, Result, Text, Think

_DATED = re.compile(r"(-v\d+(:\d+)?|[-@]20\d{6}|-20\d\d-\d\d-\d\d|[-:]latest)$")
_HOSTED = re.compile(r"^([a-z-]+\.)?(anthropic|amazon|openai|google|models)[./]")


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one model: claude-opus-5-5 and us.anthropic.claude-opus-5-5-20261001-v1:0 do."""
    return not one or not other or model_name(one) == model_name(other)


def model_name(model: str) -> str:
    """A model's name without the host in front, and without date and version of the host behind."""
    name = _HOSTED.sub("", model.lower())
    while name != (shorter := _DATED.sub("", name)):
        name = shorter
    return name


def is_from(wire: JsonObject, formats: tuple[str, ...], sheet: Sheet) -> bool:
    """Whether the entry came in one of these formats, from the model that the request goes to."""
    return wire.get("format") in formats and same_model(str(wire.get("model") or ""), sheet.info.model)


def own_block(part: Text | Think | Call | Result, format: str, sheet: Sheet) -> JsonObject | None:
    """The block as this provider and model wrote it, if there is one."""
    formats = ITEM_FORMATS if format in ITEM_FORMATS else (format,)
    block = _kept(part.wire)
    if block is None or not is_from(part.wire, formats, sheet) or _is_strange(block, format):
        return None
    # Marks of an earlier request are no part of it: each request is marked anew.
    return unmarked(block)


def _kept(wire: JsonObject) -> JsonObject | None:
    """The block an entry came as; where every message is one item, the message kept on import is the block."""
    block = wire.get("block") or (wire.get("message") if wire.get("format") in ITEM_FORMATS else None)
    return block if isinstance(block, dict) else None


def _is_strange(block: JsonObject, format: str) -> bool:
    """Whether a block is other than its provider describes it, so that it would be refused."""
    wire = ITEM_FORMATS[0] if format in ITEM_FORMATS else format
    return wire in _SHAPES and not fits(block, _SHAPES[wire], grammar_of(wire))


def strange_kinds(entries: Iterable[Entry]) -> list[str]:
    """What of imported entries is of no kind that its provider is known to take: exported, but not sent."""
    kinds = [
        kind_of(block)
        for entry in entries
        if (block := _kept(entry.wire)) and _is_strange(block, str(entry.wire.get("format")))
    ]
    return list(dict.fromkeys(kinds))


def kind_of(block: JsonObject) -> str:
    """What a block calls itself: its type, or its only field."""
    named = block.get("type") or next((name for name in block if name != "text"), "")
    return str(named or "text")


# How the grammar calls a block of a message; Chat has none.
_SHAPES = {"anthropic": "@block", "bedrock": "@content", "gemini": "@part", "openai-responses": "@item"}


def leave_out_block(part: Text, message: Message, sheet: Sheet) -> None:
    """Say why a block that is no text, such as a search of the provider's own, does not go along."""
    block = part.wire.get("block")
    if not isinstance(block, dict) or part.text.strip():
        return
    kind = kind_of(block)
    if kind not in ("text", "message"):
        origin = part.wire.get("model") or part.wire.get("format")
        reason = f"{kind} of {origin} means nothing to {sheet.info.provider}:{sheet.info.model}"
        sheet.leave_out(message, reason, part)


def leave_out_thinking(part: Think, message: Message, sheet: Sheet) -> None:
    """Say why a thought does not go along."""
    format = part.wire.get("format")
    origin = part.wire.get("model") or format
    named = bool(part.wire.get("model")) and is_from(part.wire, (str(format),), sheet)
    if sheet.stale and origin and is_from(part.wire, (str(format),), sheet):
        reason = "thinking is bound to the prefix before the rebase"
    elif named and format != sheet.info.wire:
        reason = f"thinking of {origin} is bound to the request it came from, in {format}'s form"
    elif origin:
        reason = f"thinking of {origin} means nothing to {sheet.info.provider}:{sheet.info.model}"
    else:
        reason = "thinking without a provider's signature is not sent"
    sheet.leave_out(message, reason, part)
