"""A streamed Converse reply: a block is an entry when its contentBlockStop has come, and not before."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from quire.errors import FormatError
from quire.providers.bedrock.blocks import FORMAT, NAMES, spoken
from quire.providers.incoming import (
    Partial,
    Tally,
    bytes_of,
    cut,
    number_in,
    object_in,
    refused,
    sub,
    text_in,
)
from quire.providers.origin import identified, said
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import Entry, JsonObject, Reply, Usage, respond


class _Block:
    """The pieces of one block: text, a call's input, or reasoning with its signature."""

    def __init__(self) -> None:
        self.start: JsonObject = {}
        self.text: list[str] = []
        self.input: list[str] = []
        self.thought: list[str] = []
        self.signature: list[str] = []
        self.redacted: list[str] = []
        self.citations: list[JsonObject] = []

    def json(self) -> JsonObject | None:
        """The whole block, or None where its input is cut."""
        if sub(self.start, "toolUse"):
            try:
                given = json.loads("".join(self.input) or "{}")
            except ValueError:
                return None
            return {"toolUse": {**sub(self.start, "toolUse"), "input": given}}
        if self.redacted:
            redacted = b"".join(bytes_of(piece) for piece in self.redacted)
            return {"reasoningContent": {"redactedContent": base64.b64encode(redacted).decode()}}
        if self.thought or self.signature:
            signature = {"signature": "".join(self.signature)} if self.signature else {}
            return {"reasoningContent": {"reasoningText": {"text": "".join(self.thought), **signature}}}
        text = "".join(self.text)
        if self.citations:
            return {"citationsContent": {"content": [{"text": text}], "citations": self.citations}}
        return {"text": text} if not self.start else self.start

    def unfinished(self) -> JsonObject:
        if use := sub(self.start, "toolUse"):
            return {"kind": "call", "name": use.get("name", ""), "text": "".join(self.input)}
        if self.thought:
            return {"kind": "think", "text": "".join(self.thought)}
        return {"kind": "respond", "text": "".join(self.text)}


class Stream:
    """Gathers events; the usage comes last, and not at all when the stream is cut."""

    def __init__(self, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> None:
        self.provider = provider
        self.spelled = read_back(names, NAMES)
        self.tally = Tally()
        self.id, self.model, self.stop = "", model, ""
        self.open: dict[int, _Block] = {}
        self.reported: JsonObject = {}
        self.entries: list[Entry] = []

    def feed(self, event: Any) -> list[Entry]:
        """Take one event; the entries that it finished."""
        event = object_in(event, "a stream event")
        kind = next(iter(event), "")
        given = sub(event, kind)
        match kind:
            case "messageStart":
                pass
            case "contentBlockStart":
                block = self.open.setdefault(number_in(given, "contentBlockIndex"), _Block())
                block.start = (
                    {"toolUse": use} if (use := sub(sub(given, "start"), "toolUse")) else sub(given, "start")
                )
            case "contentBlockDelta":
                block = self.open.setdefault(number_in(given, "contentBlockIndex"), _Block())
                self._delta(block, sub(given, "delta"))
            case "contentBlockStop":
                return self._close(number_in(given, "contentBlockIndex"))
            case "messageStop":
                self.stop = text_in(given, "stopReason")
                return [] if self.entries or self.open else self._add(respond(""))
            case "metadata":
                self.reported = dict(sub(given, "usage"))
            case _ if kind.endswith("Exception"):
                raise refused({"type": kind, "message": given.get("message")})
            case _:
                self.tally.unknown += 1
        return []

    def _delta(self, block: _Block, delta: JsonObject) -> None:
        thought = sub(delta, "reasoningContent")
        call = sub(delta, "toolUse")
        for pieces, holder, field in (
            (block.text, delta, "text"),
            (block.input, call, "input"),
            (block.thought, thought, "text"),
            (block.signature, thought, "signature"),
            (block.redacted, thought, "redactedContent"),
        ):
            if field in holder:
                pieces.append(self.tally.add(text_in(holder, field)))
        if "citation" in delta:
            block.citations.append(delta["citation"])
        if not {"text", "toolUse", "reasoningContent", "citation"} & set(delta):
            self.tally.unknown += 1

    def _close(self, index: int) -> list[Entry]:
        if index not in self.open:
            raise FormatError(
                f"the end of block {index}, which never began", hint="stream.partial() has the rest."
            )
        block = self.open[index].json()
        if block is None:
            return []  # ended in the middle of its input: the reply's length ran out
        del self.open[index]
        return self._add(spoken(block))

    def _add(self, entry: Entry) -> list[Entry]:
        added = said(identified([entry]), FORMAT, self.model, self.spelled, begun=bool(self.entries))
        self.entries += added
        return added

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def partial(self) -> Partial:
        """Everything received so far."""
        unfinished = tuple(self.open[index].unfinished() for index in sorted(self.open))
        return Partial(
            tuple(self.entries), unfinished, self.usage, self.stop, self.id, self.model, self.tally.unknown
        )

    def reply(self) -> Reply:
        """The whole reply, once messageStop has come."""
        if not self.stop:
            raise cut("messageStop")
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)
