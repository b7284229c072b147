"""A streamed message: a block is an entry when its content_block_stop has come, and not before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from quire.errors import FormatError
from quire.providers.anthropic.blocks import FORMAT, NAMES, spoken
from quire.providers.incoming import (
    Partial,
    Tally,
    cut,
    listed,
    number_in,
    object_in,
    refused,
    sub,
    text_in,
    without_nulls,
)
from quire.providers.origin import identified, said
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import Entry, JsonObject, Reply, Usage, respond

# delta type -> (its field, the block's field it continues)
_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
    "compaction_delta": ("content", "content"),
}


class Stream:
    """Gathers events. A thinking block without its signature, or half a tool_use, is never an entry."""

    def __init__(self, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> None:
        self.provider = provider
        self.spelled = read_back(names, NAMES)
        self.tally = Tally()
        self.id, self.model, self.stop = "", model, ""
        self.open: dict[int, JsonObject] = {}
        self.pieces: dict[int, dict[str, list[str]]] = {}
        self.reported: JsonObject = {}
        self.entries: list[Entry] = []
        self.stopped = False

    def feed(self, event: Any) -> list[Entry]:
        """Take one event; the entries that it finished."""
        event = object_in(event, "a stream event")
        match event.get("type"):
            case "message_start":
                self._start(object_in(event.get("message"), "message_start's message"))
            case "content_block_start":
                self._open(event)
            case "content_block_delta":
                self._delta(number_in(event, "index"), object_in(event.get("delta"), "a delta"))
            case "content_block_stop":
                return self._close(number_in(event, "index"))
            case "message_delta":
                self._message_delta(event)
            case "message_stop":
                self.stopped = True
                return self._nothing_said()
            case "error":
                raise refused(event.get("error"))
            case "ping":
                pass
            case _:
                self.tally.unknown += 1
        return []

    def _start(self, message: JsonObject) -> None:
        self.id, self.model = text_in(message, "id"), text_in(message, "model") or self.model
        self.reported = dict(sub(message, "usage"))

    def _message_delta(self, event: JsonObject) -> None:
        self.stop = text_in(sub(event, "delta"), "stop_reason") or self.stop
        self.reported |= without_nulls(sub(event, "usage"))

    def _open(self, event: JsonObject) -> None:
        index = number_in(event, "index")
        self.open[index] = without_nulls(object_in(event.get("content_block"), "a content block"))
        self.pieces[index] = {}

    def _delta(self, index: int, delta: JsonObject) -> None:
        if index not in self.open:
            raise FormatError(
                f"a delta of block {index}, which never began", hint="stream.partial() has the rest."
            )
        kind = text_in(delta, "type")
        if kind == "citations_delta":
            self.open[index]["citations"] = [*listed(self.open[index], "citations"), delta.get("citation")]
        elif kind in _DELTAS:
            field, target = _DELTAS[kind]
            self.pieces[index].setdefault(target, []).append(self.tally.add(text_in(delta, field)))
        else:
            self.tally.unknown += 1

    def _close(self, index: int) -> list[Entry]:
        if index not in self.open:
            raise FormatError(
                f"the end of block {index}, which never began", hint="stream.partial() has the rest."
            )
        block = self._whole(index)
        if block is None:
            return []  # ended in the middle of its input: the reply's length ran out
        del self.open[index], self.pieces[index]
        return self._add([spoken(block)])

    def _whole(self, index: int) -> JsonObject | None:
        block = dict(self.open[index])
        for field, pieces in self.pieces[index].items():
            text = "".join(pieces)
            if field != "input":
                block[field] = text_in(block, field) + text
                continue
            try:
                block["input"] = json.loads(text) if text else block.get("input") or {}
            except ValueError:
                return None
        return block

    def _add(self, entries: list[Entry]) -> list[Entry]:
        added = said(identified(entries), FORMAT, self.model, self.spelled, begun=bool(self.entries))
        self.entries += added
        return added

    def _nothing_said(self) -> list[Entry]:
        return [] if self.entries or self.open else self._add([respond("")])

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def partial(self) -> Partial:
        """Everything received so far."""
        return Partial(
            entries=tuple(self.entries),
            unfinished=tuple(
                _unfinished(self.open[index], self.pieces[index]) for index in sorted(self.open)
            ),
            usage=self.usage,
            stop=self.stop,
            id=self.id,
            model=self.model,
            unknown=self.tally.unknown,
        )

    def reply(self) -> Reply:
        """The whole reply, once message_stop has come."""
        if not self.stopped:
            raise cut("message_stop")
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)


def _unfinished(block: JsonObject, pieces: dict[str, list[str]]) -> JsonObject:
    kinds = {"thinking": "think", "redacted_thinking": "think", "tool_use": "call"}
    text = "".join(pieces.get("text") or pieces.get("thinking") or pieces.get("input") or [])
    name = {"name": block["name"]} if "name" in block else {}
    return {"kind": kinds.get(str(block.get("type")), "respond"), **name, "text": text}
