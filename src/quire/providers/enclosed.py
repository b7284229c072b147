"""What a user's message holds besides text and images: documents, audio, files.

An entry names them in its text; in their provider's own form they go back to the wire format they came in.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quire.providers.prefix import unmarked
from quire.providers.rules.grammar import fits, grammar_of
from quire.providers.rules.shape import obj
from quire.providers.sheet import Sheet
from quire.values import JsonObject, Message, Text


class Enclosure(msgspec.Struct, frozen=True):
    """How one wire format encloses things in a user's message."""

    wire: str
    # What a block encloses, in a word; "" where an entry holds all of it: text, images, results.
    kind: Callable[[JsonObject], str]
    text_of: Callable[[list[JsonObject]], str]
    formats: tuple[str, ...]

    def origin(self, content: list[JsonObject], *, first: bool) -> JsonObject | None:
        """The `wire` of an imported user entry: what it encloses, and the blocks unless its message has them."""
        kinds = [kind for block in content if (kind := self.kind(block))]
        if not kinds:
            return None
        named = {"encloses": list(dict.fromkeys(kinds))}
        return named if first else {**named, "content": content}

    def shown(self, sheet: Sheet, message: Message, blocks: list[JsonObject]) -> list[JsonObject]:
        """A user's blocks: as they came while the message says the same, else with what it encloses behind."""
        part = _enclosing(message)
        if part is None:
            return blocks
        if part.wire.get("format") not in self.formats:
            self.left_out(sheet, message)
            return blocks
        came = _content(part.wire)
        grammar = grammar_of(self.wire)
        fitting = [_bare(block) for block in came if fits(block, "@asked", grammar)]
        if len(fitting) == len(came) and self.text_of(came) == part.text:
            return fitting
        return [*blocks, *(block for block in fitting if self.kind(block))]

    def left_out(self, sheet: Sheet, message: Message) -> None:
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


def _is_void(block: JsonObject) -> bool:
    text = block.get("text")
    blank = isinstance(text, str) and not text.strip()
    return blank or block.get("type") == "tool_result" or bool(block.keys() & _OTHERS)


_OTHERS = {"toolResult", "cachePoint", "functionResponse"}


def _bare(block: JsonObject) -> JsonObject:
    bare = unmarked(block)
    # Citations are the model's to give.
    return {key: bare[key] for key in bare if key != "citations" or bare.get("type") != "text"}
