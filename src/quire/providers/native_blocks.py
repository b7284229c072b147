"""A provider's own blocks: sent back verbatim to the model that wrote them, and to no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from quire.providers.incoming import without_nulls
from quire.providers.provider_tools import Native
from quire.providers.registry import same_model
from quire.providers.rendering import Draft
from quire.providers.rules.grammar import fits, grammar_of, obj
from quire.providers.walk import unmarked
from quire.providers.wire import Wire
from quire.providers.wires import FORMATS, format_of
from quire.values import Call, Entry, Json, JsonObject, Message, Result, Text, Think


def is_from(wire: JsonObject, formats: tuple[str, ...], sheet: Draft) -> bool:
    """Whether the entry came in one of these formats, from the model that the request goes to.

    A model may be asked by one name and answer by another; either says that it is the same.
    """
    named = [str(wire.get(field) or "") for field in ("model", "asked")]
    return wire.get("format") in formats and (
        same_model(named[0], sheet.info.model) or bool(named[1] and same_model(named[1], sheet.info.model))
    )


def begins_imported(message: Message, format: str) -> bool:
    """Whether a message of the model was imported in this format, with nothing before it."""
    wire = getattr(message.parts[0], "wire", {}) if message.parts else {}
    return wire.get("format") == format and "message" in wire


def own_block(part: Text | Think | Call | Result, sheet: Draft) -> JsonObject | None:
    """The block as this provider and model wrote it, if there is one."""
    native = sheet.native
    block = _kept(part.wire, native)
    if block is None or not is_from(part.wire, native.formats, sheet) or _is_strange(block, native):
        return None
    # Marks of an earlier request are no part of it: each request is marked anew.
    return unmarked(block)


def _kept(wire: JsonObject, native: Native) -> JsonObject | None:
    """The block an entry came as; where every message is one item, the message kept on import is the block."""
    block = wire.get("block") or (wire.get("message") if native.items else None)
    return block if isinstance(block, dict) else None


def _is_strange(block: JsonObject, native: Native) -> bool:
    """Whether a block is other than its provider describes it, so that it would be refused."""
    return bool(native.block) and not fits(block, native.block, grammar_of(native.formats[0]))


def strange_kinds(entries: Iterable[Entry]) -> list[str]:
    """What of imported entries is of no kind that its provider is known to take: exported, but not sent."""
    kinds: list[str] = []
    for entry in entries:
        native = _native(entry.wire.get("format"))
        if (block := _kept(entry.wire, native)) and _is_strange(block, native):
            kinds.append(kind_of(block))
    return list(dict.fromkeys(kinds))


def _native(name: Json) -> Native:
    """What is known of the blocks of a format, or of the one that it is like."""
    if name not in FORMATS:
        return Native()
    format = format_of(name)
    wire = format_of(format.like) if format.like else format
    return wire.writer.native if isinstance(wire, Wire) else Native()


def kind_of(block: JsonObject) -> str:
    """What a block calls itself: its type, or its only field."""
    named = block.get("type") or next((name for name in block if name != "text"), "")
    return str(named or "text")


def leave_out_block(part: Text, message: Message, sheet: Draft) -> None:
    """Say why a block that is no text, such as a search of the provider's own, does not go along."""
    block = part.wire.get("block")
    if not isinstance(block, dict) or part.text.strip():
        return
    kind = kind_of(block)
    if kind not in ("text", "message"):
        origin = part.wire.get("model") or part.wire.get("format")
        reason = f"{kind} of {origin} means nothing to {sheet.info.provider}:{sheet.info.model}"
        sheet.leave_out(message, reason, part)


def leave_out_thinking(part: Think, message: Message, sheet: Draft) -> None:
    """Say why a thought does not go along."""
    format = part.wire.get("format")
    origin = part.wire.get("model") or format
    named = bool(part.wire.get("model")) and is_from(part.wire, (str(format),), sheet)
    if sheet.stale and origin and is_from(part.wire, (str(format),), sheet):
        reason = "thinking is bound to the prefix before the rebase"
    elif named and format != sheet.info.wire:
        reason = f"thinking of {origin} is bound to the request it came from, in {format}'s form"
    elif named:
        reason = "thinking without a provider's signature is not sent"
    elif origin:
        reason = f"thinking of {origin} means nothing to {sheet.info.provider}:{sheet.info.model}"
    else:
        reason = "thinking without a provider's signature is not sent"
    sheet.leave_out(message, reason, part)


# What a user's message holds besides text and images: documents, audio, files.
#
# An entry names them in its text; in their provider's own form they go back to the wire format they came in.


class Enclosure(msgspec.Struct, frozen=True):
    """How one wire format encloses things in a user's message."""

    # What a block encloses, in a word; "" where an entry holds all of it: text, images, results.
    kind: Callable[[JsonObject], str]
    text_of: Callable[[list[JsonObject]], str]

    def origin(self, content: list[JsonObject], *, first: bool) -> JsonObject | None:
        """The `wire` of an imported user entry: what it encloses, and the blocks unless its message has them."""
        kinds = [kind for block in content if (kind := self.kind(block))]
        named = {"encloses": list(dict.fromkeys(kinds))} if kinds else {}
        kept = {"content": content} if not first and (kinds or len(content) > 1) else {}
        return {**named, **kept} or None

    def shown(self, sheet: Draft, message: Message, blocks: list[JsonObject]) -> list[JsonObject]:
        """A user's blocks: as they came while the message says the same, else with what it encloses behind."""
        if (came := self.as_it_came(sheet, message)) is not None:
            return came
        part = _enclosing(message)
        if part is None:
            return blocks
        if part.wire.get("format") not in sheet.native.formats:
            self.left_out(sheet, message)
            return blocks
        grammar = grammar_of(sheet.native.formats[0])
        fitting = [_bare(block) for block in _content(part.wire) if fits(block, "@asked", grammar)]
        return [*blocks, *(block for block in fitting if self.kind(block))]

    def as_it_came(self, sheet: Draft, message: Message) -> list[JsonObject] | None:
        """The blocks of an imported message that still says what it said; None where one text says it all.

        What the same model was sent before it takes again; to another one goes what its format describes.
        """
        part = next((one for one in message.parts if isinstance(one, Text)), None)
        if part is None or part.wire.get("format") not in sheet.native.formats:
            return None
        came = _content(part.wire)
        if len(came) < 2 and not any(map(self.kind, came)):
            return None
        if normal(self.text_of(came)) != normal(part.text):
            return None
        grammar = grammar_of(sheet.native.formats[0])
        same = bool(part.wire.get("model")) and is_from(part.wire, sheet.native.formats, sheet)
        taken = same or all(fits(block, "@asked", grammar) for block in came)
        return [_bare(block) for block in came] if taken else None

    def left_out(self, sheet: Draft, message: Message) -> None:
        """Say that what a message encloses does not go along."""
        if part := _enclosing(message):
            kinds = ", ".join(map(str, part.wire["encloses"]))
            reason = f"{kinds} from {part.wire.get('format')} cannot go along; the text names what is missing"
            sheet.leave_out(message, reason)


def _enclosing(message: Message) -> Text | None:
    texts = (part for part in message.parts if isinstance(part, Text))
    return next((part for part in texts if isinstance(part.wire.get("encloses"), list)), None)


def _content(wire: JsonObject) -> list[JsonObject]:
    """The blocks that the user's words came with, without results, cache points and blank texts."""
    message = obj(wire.get("message"))
    content = wire.get("content") or message.get("content") or message.get("parts")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return [block for block in blocks if not _is_void(block)]


def normal(text: str) -> str:
    """Text without what importing and assembling may change of it: line ends, and white space around it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _is_void(block: JsonObject) -> bool:
    text = block.get("text")
    blank = isinstance(text, str) and not text.strip() and block.keys() <= {"type", "text", "cache_control"}
    return blank or block.get("type") == "tool_result" or bool(block.keys() & _OTHERS)


_OTHERS = {"toolResult", "cachePoint", "functionResponse"}


def _bare(block: JsonObject) -> JsonObject:
    bare = without_nulls(unmarked(block))
    # Citations are the model's to give.
    return {key: bare[key] for key in bare if key != "citations" or bare.get("type") != "text"}
