"""A streamed generateContent response: text grows until something else comes, calls come whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.providers.gemini.parts import FORMAT, spoken
from quire.providers.gemini.read import candidate_in, model_of, parts_in
from quire.providers.gemini.schema import NAMES
from quire.providers.incoming import Partial, Tally, cut, object_in, refused, sub, text_in
from quire.providers.origin import said
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import Entry, JsonObject, Reply, Usage, respond


class Stream:
    """Gathers chunks. A part with a signature is never joined with another: the signature is of that part."""

    def __init__(self, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> None:
        self.provider = provider
        self.spelled = read_back(names, NAMES)
        self.tally = Tally()
        self.id, self.model, self.stop = "", model, ""
        self.growing: JsonObject = {}
        self.pieces: list[str] = []
        self.parts = 0
        self.reported: JsonObject = {}
        self.entries: list[Entry] = []

    def feed(self, event: Any) -> list[Entry]:
        """Take one chunk; the entries that it finished."""
        chunk = object_in(event, "a chunk")
        if chunk.get("error"):
            raise refused(chunk["error"])
        self.id = text_in(chunk, "responseId") or text_in(chunk, "response_id") or self.id
        self.model = model_of(chunk) or self.model
        self.reported = sub(chunk, "usageMetadata") or sub(chunk, "usage_metadata") or self.reported
        if not chunk.get("candidates") and not (chunk.get("promptFeedback") or chunk.get("prompt_feedback")):
            self.tally.unknown += not self.reported
            return []
        candidate = candidate_in(chunk)
        finished = [entry for part in parts_in(candidate) for entry in self._part(part)]
        if stop := text_in(candidate, "finishReason") or text_in(candidate, "finish_reason"):
            self.stop = stop
            finished += self._grown() or ([] if self.entries else self._add(respond("")))
        return finished

    def _part(self, part: JsonObject) -> list[Entry]:
        shape = {"text": "", **({"thought": True} if part.get("thought") else {})}
        if set(part) == set(shape):
            done = self._grown() if self.growing and self.growing != shape else []
            self.growing = shape
            self.pieces.append(self.tally.add(text_in(part, "text")))
            return done
        return [*self._grown(), *self._whole(part)]

    def _grown(self) -> list[Entry]:
        """The text so far, now that something else follows it."""
        if not self.growing:
            return []
        part, self.growing = {**self.growing, "text": "".join(self.pieces)}, {}
        self.pieces = []
        return self._whole(part)

    def _whole(self, part: JsonObject) -> list[Entry]:
        self.parts += 1
        return self._add(spoken(part, self.parts - 1))

    def _add(self, entry: Entry) -> list[Entry]:
        added = said([entry], FORMAT, self.model, self.spelled, begun=bool(self.entries))
        self.entries += added
        return added

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def partial(self) -> Partial:
        """Everything received so far."""
        kind = "think" if self.growing.get("thought") else "respond"
        unfinished = ({"kind": kind, "text": "".join(self.pieces)},) if self.growing else ()
        return Partial(
            tuple(self.entries), unfinished, self.usage, self.stop, self.id, self.model, self.tally.unknown
        )

    def reply(self) -> Reply:
        """The whole reply, once its finishReason has come."""
        if not self.stop:
            raise cut("its finishReason")
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)
