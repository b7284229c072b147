"""What a reader of a running cycle sees, and how one that was away gets exactly what it missed.

An event's id is the place its reader has reached: "17" is behind entry 17; "17:40" has besides seen 40
characters of the block that comes next, "17:40,5" those and 5 of the one behind it. A `sent` entry that
comes where a block should have become an entry takes back what was shown of it: the reply broke off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from quire.errors import CallError
from quire.log.store import Store
from quire.values import SPOKEN, Entry, Json, JsonObject

# The text in each provider's stream events, before it is whole: for readers, never for the log.


class BlockDelta(msgspec.Struct, frozen=True):
    """More of the block at `place` (blocks become entries in that order)."""

    place: int
    kind: str
    text: str


def pieces(wire: str, event: Json) -> list[BlockDelta]:
    """The pieces of text in one event of a stream in this wire format."""
    if not isinstance(event, dict):
        return []
    return [piece for piece in _READERS[wire](event) if isinstance(piece.text, str) and piece.text]


def _chat(event: JsonObject) -> Iterator[BlockDelta]:
    """A chat message is thinking, text and calls in this order, whatever comes first."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) and not choice.get("index") else None
    if not isinstance(delta, dict):
        return
    yield BlockDelta(0, "think", delta.get("reasoning_content") or delta.get("reasoning") or "")
    yield BlockDelta(1, "respond", delta.get("content") or delta.get("refusal") or "")
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(call.get("index"), int):
            yield BlockDelta(2 + call["index"], "call", function.get("arguments") or "")


_RESPONSES = {
    "response.output_text.delta": "respond",
    "response.refusal.delta": "respond",
    "response.reasoning_summary_text.delta": "think",
    "response.reasoning_text.delta": "think",
    "response.function_call_arguments.delta": "call",
}


def _responses(event: JsonObject) -> Iterator[BlockDelta]:
    kind = _RESPONSES.get(str(event.get("type")))
    if kind and isinstance(event.get("output_index"), int):
        yield BlockDelta(event["output_index"], kind, event.get("delta") or "")


_ANTHROPIC = {
    "text_delta": ("respond", "text"),
    "thinking_delta": ("think", "thinking"),
    "input_json_delta": ("call", "partial_json"),
}


def _anthropic(event: JsonObject) -> Iterator[BlockDelta]:
    delta = event.get("delta")
    if event.get("type") == "content_block_delta" and isinstance(delta, dict):
        kind, field = _ANTHROPIC.get(str(delta.get("type")), ("", ""))
        if kind and isinstance(event.get("index"), int):
            yield BlockDelta(event["index"], kind, delta.get(field) or "")


def _gemini(event: JsonObject) -> Iterator[BlockDelta]:
    """Only bare text grows; a part that carries anything else comes whole."""
    candidates = event.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else {}
    content = first.get("content") if isinstance(first, dict) else None
    parts = content.get("parts") if isinstance(content, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and set(part) <= {"text", "thought"} and "text" in part:
            # Thinking comes before the answer; what has ended leaves its place to the next.
            yield BlockDelta(
                0 if part.get("thought") else 1, "think" if part.get("thought") else "respond", part["text"]
            )


def _bedrock(event: JsonObject) -> Iterator[BlockDelta]:
    given = event.get("contentBlockDelta")
    if not isinstance(given, dict) or not isinstance(given.get("contentBlockIndex"), int):
        return
    place, delta = given["contentBlockIndex"], given.get("delta")
    if not isinstance(delta, dict):
        return
    yield BlockDelta(place, "respond", delta.get("text") or "")
    thought, call = delta.get("reasoningContent"), delta.get("toolUse")
    yield BlockDelta(place, "think", thought.get("text") or "" if isinstance(thought, dict) else "")
    yield BlockDelta(place, "call", call.get("input") or "" if isinstance(call, dict) else "")


_READERS: dict[str, Callable[[JsonObject], Iterator[BlockDelta]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}


# Where the text of unfinished blocks is kept for readers in other processes.
STATE = "partial"


class Event(msgspec.Struct, frozen=True):
    """Something new: an entry of the log, or more of a block that will be one.

    `text` is what a reader has not been shown yet, so that printing every `text` prints the whole. `part`
    says which of the unfinished blocks a piece belongs to, counted from the end of the log.
    """

    id: str
    kind: str
    text: str = ""
    entry: Entry | None = None
    part: int = 0


OnEvent: TypeAlias = Callable[[Event], None]


class OpenBlock(msgspec.Struct):
    """A block that is still being written."""

    kind: str
    place: int
    pieces: list[str]
    shown: int = 0


class Growing:
    """The blocks behind the log's end while a reply streams in, in the order they will be entries."""

    def __init__(self) -> None:
        self.blocks: list[OpenBlock] = []

    def add(self, pieces: Iterable[BlockDelta], tip: int) -> list[Event]:
        """More text of the blocks behind entry `tip`."""
        return [self._add(piece, tip) for piece in pieces if piece.text]

    def _add(self, piece: BlockDelta, tip: int) -> Event:
        part = self._find(piece)
        self.blocks[part].pieces.append(piece.text)
        self.blocks[part].shown += len(piece.text)
        return Event(event_id(tip, self._shown()), piece.kind, piece.text, part=part)

    def _find(self, piece: BlockDelta) -> int:
        at = [(block.place, block.kind) for block in self.blocks]
        if (piece.place, piece.kind) not in at:
            at = sorted([*at, (piece.place, piece.kind)], key=lambda one: one[0])
            self.blocks.insert(at.index((piece.place, piece.kind)), OpenBlock(piece.kind, piece.place, []))
        return at.index((piece.place, piece.kind))

    def finish(self, entries: Sequence[Entry]) -> list[Event]:
        """These entries are in the log now: as many blocks are done."""
        out = []
        for entry in entries:
            done, self.blocks = self.blocks[:1], self.blocks[1:]
            out.append(entry_event(entry, done[0].shown if done else 0, self._shown()))
        return out

    def _shown(self) -> list[int]:
        return [block.shown for block in self.blocks]

    def texts(self) -> list[dict[str, str]]:
        return [{"kind": block.kind, "text": "".join(block.pieces)} for block in self.blocks]


def event_id(seq: int, shown: Sequence[int] = ()) -> str:
    """A place: 17 and [40, 5] -> "17:40,5"."""
    return f"{seq}:{','.join(map(str, shown))}" if shown else str(seq)


def entry_event(entry: Entry, shown: int = 0, others: Sequence[int] = ()) -> Event:
    """An entry, of whose text the first `shown` characters are known to the reader."""
    text = entry.text[shown:] if entry.kind != "call" else ""
    return Event(event_id(entry.seq, others), entry.kind, text, entry)


class Journal:
    """Keeps the unfinished text where other processes can read it, a few times a second."""

    def __init__(self, store: Store, thread: str, every_s: float = 0.1) -> None:
        self._store, self._thread, self._every_s = store, thread, every_s
        self._kept_at = float("-inf")

    def keep(self, growing: Growing, tip: Entry) -> None:
        """Note what has come behind entry `tip`, unless that was just done."""
        now = time.monotonic()
        if now - self._kept_at >= self._every_s:
            self._kept_at = now
            self._store.set_state(self._thread, STATE, {"after": tip.id, "blocks": growing.texts()})


def missed(store: Store, thread: str, last: str = "0") -> list[Event]:
    """Everything behind the event with the id `last`: entries, then what is being written now."""
    seq, shown = read_id(last)
    entries = store.read(thread, after=seq)
    events = []
    for entry in entries:
        if entry.kind not in SPOKEN:
            shown = []
        events.append(entry_event(entry, shown[0] if shown else 0, shown[1:]))
        shown = shown[1:]
    tip = entries[-1] if entries else next(iter(store.read(thread, after=seq - 1)), None) if seq else None
    return events + (_unfinished(store, thread, tip, shown) if tip is not None else [])


def read_id(id: str) -> tuple[int, list[int]]:
    """An event's place: "17" -> (17, []), "17:40,5" -> (17, [40, 5])."""
    seq, colon, rest = id.partition(":")
    shown = rest.split(",") if colon else []
    if not all(number.isdecimal() for number in [seq, *shown]):
        raise CallError(f"{id!r} is no event's id", hint="Ids look like 17 or 17:40; 0 is the beginning.")
    return int(seq), [int(number) for number in shown]


def _unfinished(store: Store, thread: str, tip: Entry, shown: list[int]) -> list[Event]:
    """What has been noted of the blocks behind `tip`, as far as the reader does not know it."""
    kept = store.get_state(thread, STATE)
    if not kept or kept["after"] != tip.id:
        return []
    places = [*shown, *[0] * (len(kept["blocks"]) - len(shown))]
    out = []
    for part, block in enumerate(kept["blocks"]):
        rest = block["text"][places[part] :]
        places[part] += len(rest)
        if rest:
            out.append(Event(event_id(tip.seq, _seen(places)), block["kind"], rest, part=part))
    return out


def _seen(places: list[int]) -> list[int]:
    """Without the blocks at the end of which nothing was shown."""
    while places and not places[-1]:
        places = places[:-1]
    return places
