"""A streamed response: an item is an entry when its output_item.done has come, and not before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.providers.incoming import Partial, Tally, cut, listed, number_in, object_in, refused, sub, text_in
from quire.providers.openai_responses.items import FORMAT, NAMES
from quire.providers.openai_responses.read import entries_of, entry_of, stop_of
from quire.providers.origin import identified, said
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import Entry, JsonObject, Reply, Usage

# Events that say nothing an item's end does not say again.
_PASSED = (
    "response.queued",
    "response.content_part.",
    "response.output_text.",
    "response.refusal.",
    "response.function_call_arguments.",
    "response.custom_tool_call_input.",
    "response.reasoning_text.",
    "response.reasoning_summary_part.",
    "response.reasoning_summary_text.",
    "response.compaction.",
    "steer.",
)
_ENDS = ("response.completed", "response.incomplete")


class Stream:
    """Gathers events; a reasoning item's encrypted content is taken from its end alone."""

    def __init__(self, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> None:
        self.provider = provider
        self.spelled = read_back(names, NAMES)
        self.tally = Tally()
        self.id, self.model, self.stop = "", model, ""
        self.done = 0
        self.after = ""
        self.open: dict[int, JsonObject] = {}
        self.pieces: dict[int, list[str]] = {}
        self.reported: JsonObject = {}
        self.entries: list[Entry] = []
        # To resume a background response: GET /responses/{id}?stream=true&starting_after=N.
        self.sequence_number = -1

    def feed(self, event: Any) -> list[Entry]:
        """Take one event; the entries that it finished."""
        event = object_in(event, "a stream event")
        kind = text_in(event, "type")
        self.sequence_number = event.get("sequence_number", self.sequence_number)
        if kind == "error":
            raise refused(event.get("error") or event)
        if kind in ("response.created", "response.in_progress"):
            self._begin(object_in(event.get("response"), "a response"))
        elif kind == "response.output_item.added":
            self.open[number_in(event, "output_index")] = object_in(event.get("item"), "an item")
        elif kind == "response.output_item.done":
            return self._done(number_in(event, "output_index"), object_in(event.get("item"), "an item"))
        elif kind in _ENDS:
            return self._end(object_in(event.get("response"), "a response"))
        elif kind == "response.failed":
            raise refused(object_in(event.get("response"), "a response").get("error"))
        elif kind.endswith(".delta") and kind.startswith(_PASSED):
            piece = self.tally.add(text_in(event, "delta"))
            self.pieces.setdefault(number_in(event, "output_index"), []).append(piece)
        elif not kind.startswith(_PASSED):
            self.tally.unknown += 1
        return []

    def _begin(self, response: JsonObject) -> None:
        self.id = text_in(response, "id") or self.id
        self.model = text_in(response, "model") or self.model

    def _done(self, index: int, item: JsonObject) -> list[Entry]:
        self.open.pop(index, None)
        self.pieces.pop(index, None)
        entry, self.after = entry_of(item, self.after)
        self.done += 1
        return self._add([entry])

    def _end(self, response: JsonObject) -> list[Entry]:
        self._begin(response)
        self.stop, self.reported = stop_of(response), dict(sub(response, "usage"))
        self.open, self.pieces = {}, {}
        # What the events did not bring, the whole response does.
        late = entries_of(listed(response, "output"))[self.done :]
        return self._add(late)

    def _add(self, entries: list[Entry]) -> list[Entry]:
        added = said(identified(entries), FORMAT, self.model, self.spelled, begun=bool(self.entries))
        self.entries += added
        return added

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def partial(self) -> Partial:
        """Everything received so far."""
        return Partial(
            entries=tuple(self.entries),
            unfinished=tuple(
                _unfinished(self.open.get(index, {}), "".join(self.pieces.get(index, [])))
                for index in sorted(self.open | self.pieces)
            ),
            usage=self.usage,
            stop=self.stop,
            id=self.id,
            model=self.model,
            unknown=self.tally.unknown,
        )

    def reply(self) -> Reply:
        """The whole reply, once response.completed (or incomplete) has come."""
        if not self.stop:
            raise cut("response.completed")
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)


def _unfinished(item: JsonObject, text: str) -> JsonObject:
    kinds = {"reasoning": "think", "function_call": "call", "custom_tool_call": "call"}
    name = {"name": item["name"]} if "name" in item else {}
    return {"kind": kinds.get(str(item.get("type")), "respond"), **name, "text": text}
