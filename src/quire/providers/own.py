"""A provider's own blocks: sent back verbatim to the model that wrote them, and to no other."""

from __future__ import annotations

import re

from quire.providers.project import ITEM_FORMATS
from quire.providers.sheet import Sheet
from quire.values import Call, JsonObject, Message, Result, Text, Think

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
    # Where every message is one item, the message kept on import is the block.
    block = part.wire.get("block") or (part.wire.get("message") if format in ITEM_FORMATS else None)
    return block if isinstance(block, dict) and is_from(part.wire, formats, sheet) else None


def leave_out_thinking(part: Think, message: Message, sheet: Sheet) -> None:
    """Say why a thought does not go along."""
    origin = part.wire.get("model") or part.wire.get("format")
    if sheet.stale and origin and is_from(part.wire, (str(part.wire.get("format")),), sheet):
        reason = "thinking is bound to the prefix before the rebase"
    elif origin:
        reason = f"thinking of {origin} means nothing to {sheet.info.provider}:{sheet.info.model}"
    else:
        reason = "thinking without a provider's signature is not sent"
    sheet.leave_out(message, reason, part)
