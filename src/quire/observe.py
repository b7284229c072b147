"""Observers of a thread: they are told of every request and reply, and cannot change what is sent.

Below them: what made two requests differ, by byte, layer, segment and entry.
"""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Protocol

import msgspec

from quire import providers
from quire.assemble import Built, Policy
from quire.assemble.fit import enclose
from quire.assemble.user_message import ItemBlock, normal
from quire.items import identity
from quire.providers.explain import CacheEvent, Watch
from quire.providers.gemini_cache import Served
from quire.providers.prefix import same_start
from quire.providers.rendering import Rendering, tools_of
from quire.tokens.vocabularies import far_off
from quire.values import (
    INSTRUCTIONS,
    Entry,
    Envelope,
    JsonObject,
    Layer,
    LayerId,
    Message,
    Reply,
    Request,
    Text,
    cached_property,
    canonical,
    sha256_hex,
)


class Sending(msgspec.Struct, frozen=True):
    """A request, as observers get it when its thread hands it out."""

    request: Request
    built: Built
    at_ms: int
    # The entries that were appended since the request before.
    since: tuple[Entry, ...] = ()
    # Whether the log held an earlier request, perhaps of another process: caches may hold more than observers saw.
    resumed: bool = False
    # How many tokens the model is expected to count, judging by its earlier reports.
    expected_tokens: int = 0


class Received(msgspec.Struct, frozen=True):
    """A reply, as observers get it once it is in the log."""

    request: Request
    reply: Reply
    # The provider's own report on its cache.
    diagnosis: JsonObject | None = None
    # What an explicit Gemini cache did for it.
    served: Served | None = None


class Observer(Protocol):
    """Told of what a thread sends and receives: `Thread(…, observers=[…])`; `observers=()` watches nothing."""

    def on_request(self, sending: Sending) -> None:
        """A request is handed out, and will be sent unchanged."""

    def on_reply(self, received: Received) -> None:
        """The reply has come and is in the log."""


# L1 and L2 from request to request: a change that no entry explains is a warning.

# The kinds of entries that may change each layer.
EXPLAINS: dict[LayerId, frozenset[str]] = {
    "L1_SYSTEM": frozenset({"system", "tools", "rebase"}),
    "L2_PREVIOUS": frozenset({"rebase"}),
}


class MovedLayer(msgspec.Struct, frozen=True):
    """A stable layer that changed without an entry that explains it, and the first byte that differs."""

    layer: LayerId
    segment: str
    byte: int

    def __str__(self) -> str:
        return f"{self.layer} changed at byte {self.byte} (segment {self.segment}) and no entry explains it"


def watch(before: Envelope, now: Envelope, between: Iterable[Entry]) -> MovedLayer | None:
    """The first change of L1 or L2 that no entry between the two requests explains."""
    kinds = {entry.kind for entry in between}
    for id, explains in EXPLAINS.items():
        old, new = before.layer(id), now.layer(id)
        if old.sha256 != new.sha256 and kinds.isdisjoint(explains):
            byte = same_start(old.text.encode(), new.text.encode())
            return MovedLayer(id, segment_at(new, byte), byte)
    return None


def segment_at(layer: Layer, byte: int) -> str:
    """The segment that a byte of the layer's text lies in."""
    end = 0
    for segment in layer.segments:
        if segment.content:
            end += len(segment.content.encode()) + 2
            if byte < end:
                return segment.id
    return layer.segments[-1].id if layer.segments else ""


class CountEvent(msgspec.Struct, frozen=True):
    """A model's token count differed much from the expected one; the next requests are measured by its count."""

    target: str
    expected: int
    reported: int

    def __str__(self) -> str:
        return (
            f"{self.target} counted {self.reported:,} input tokens where {self.expected:,} were expected; "
            "the next requests keep to its count"
        )


# How many requests of a model may wait for their reply, or for a prediction; beyond that the oldest are forgotten.
_WAITING = 64


class CacheWatch:
    """Warns if L1 or L2 changed and no entry explains it, or a reply's cache read or token count was not as predicted.

    Predictions are made when a reply reports its usage, from the requests that had a reply: others may have failed.
    Other threads and processes may have stored the same beginning, so more than predicted is no warning.
    """

    def __init__(self, warn: Callable[[object], None]) -> None:
        self._warn = warn
        self._newest: Sending | None = None
        self._watches: dict[str, Watch] = {}
        # By model: requests without a reply; those with one that are not yet predicted; when the newest predicted one was sent.
        self._waiting: defaultdict[str, deque[Sending]] = defaultdict(lambda: deque(maxlen=_WAITING))
        self._answered: defaultdict[str, deque[tuple[int, JsonObject]]] = defaultdict(lambda: deque(maxlen=_WAITING))
        self._newest_ms: defaultdict[str, int] = defaultdict(int)

    def on_request(self, sending: Sending) -> None:
        target, before = sending.request.target, self._newest
        self._waiting[target].append(sending)
        self._newest = sending
        if before is None or before.request.provider != sending.request.provider:
            return
        old, new = before.built, sending.built
        if old.prompt.l1 != new.prompt.l1 or old.blocks != new.blocks:
            moved = watch(enclose(old, ()), enclose(new, ()), sending.since)
            if moved is not None:
                self._warn(moved)

    def on_reply(self, received: Received) -> None:
        sent, reported = self._newest, received.reply.usage.input_total
        if sent is not None and sent.request is received.request and far_off(sent.expected_tokens, reported):
            self._warn(CountEvent(sent.request.target, sent.expected_tokens, reported))
        event = self.compare(received)
        if event is not None and not event.foreseen and event.reported < event.predicted:
            self._warn(event)

    def compare(self, received: Received) -> CacheEvent | None:
        """Why a reply's cache read differs from the prediction; None if it does not, or the reply reports no usage."""
        request, reply, target = received.request, received.reply, received.request.target
        waiting, answered = self._waiting[target], self._answered[target]
        # A runner that tells calls in words sends another request than it was handed: the newest, in its own words.
        place = next((at for at, sending in enumerate(waiting) if sending.request is request), len(waiting) - 1)
        if place < 0:
            return None
        at_ms = waiting[place].at_ms
        del waiting[place]
        answered.append((at_ms, request.body))
        if not (reply.usage.input_total or received.served is not None):
            return None
        if target not in self._watches:
            self._watches[target] = Watch(target, frozen=True)
        while answered:
            self._watches[target].sent(*answered.popleft())
        if at_ms < self._newest_ms[target]:
            return None  # when it was sent, less was stored than is by now
        self._newest_ms[target] = at_ms
        return self._watches[target].reported(reply.usage, received.diagnosis, received.served)


# An epoch of fewer than SHORT_EPOCH requests is short. After SHORT_EPOCHS of them in a row a warning suggests a budget at
# which an epoch lasts GOOD_EPOCH requests.
SHORT_EPOCH, SHORT_EPOCHS, GOOD_EPOCH = 4, 3, 8


class ShortEpochs(msgspec.Struct, frozen=True):
    """The budget ended several epochs in a row before the cache was used much: each request adds too many tokens."""

    # How many requests each of the newest epochs had.
    lengths: tuple[int, ...]
    # How many tokens a request adds, and how many stand in front of the messages, as the model counts.
    growth: int
    head: int

    @property
    def budget(self) -> int:
        """The budget that would help: beside the head and what a rebase keeps, GOOD_EPOCH requests fit."""
        needed = self.head + GOOD_EPOCH * self.growth / (1 - Policy().floor)
        return math.ceil(needed / 1000) * 1000

    def __str__(self) -> str:
        lasted = ", ".join(map(str, self.lengths))
        return (
            f"the newest epochs lasted {lasted} requests: each brings about {self.growth:,} tokens, so that most of "
            f"the cache is written anew; budget={self.budget:,} (--budget) or shorter tool results would help"
        )


class EpochWatch:
    """Warns once if the budget ends several epochs in a row after a few requests each."""

    def __init__(self, warn: Callable[[object], None]) -> None:
        self._warn = warn
        self._lengths: list[int] = []
        self._epoch, self._requests, self._tokens = 0, 0, 0
        # How many tokens the model counts for one of ours.
        self._scale = 1.0
        # How many tokens each request added to the one before it in its epoch.
        self._growth: list[int] = []

    def on_request(self, sending: Sending) -> None:
        reasons = (entry.body["reason"] for entry in sending.since if entry.kind == "rebase")
        self._scale = (sending.expected_tokens or sending.built.tokens) / max(1, sending.built.tokens)
        self.passed(sending.built, "+".join(reasons))

    def passed(self, built: Built, reasons: str) -> None:
        """Count a request; `reasons` are those of the rebases directly before it."""
        if built.epoch == self._epoch:
            self._requests += 1
            self._growth.append(built.tokens - self._tokens)
        else:
            grown = any(reason in reasons for reason in ("budget", "rent", "brim"))
            self._lengths = [*self._lengths, self._requests] if grown and self._requests else []
            self._epoch, self._requests = built.epoch, 1
            self._warn_if_short(built)
        self._tokens = built.tokens

    def on_reply(self, received: Received) -> None:
        """Nothing: usage does not tell how long epochs last."""

    def _warn_if_short(self, built: Built) -> None:
        newest = tuple(self._lengths[-SHORT_EPOCHS:])
        if len(newest) < SHORT_EPOCHS or max(newest) >= SHORT_EPOCH or not self._growth:
            return
        growth = sum(self._growth[-GOOD_EPOCH:]) // len(self._growth[-GOOD_EPOCH:])
        short = ShortEpochs(newest, round(growth * self._scale), round(built.head_tokens * self._scale))
        # Epochs that end because of prices would not last longer with a larger budget.
        if short.budget > built.limit * self._scale:
            self._warn(short)
            self._lengths = []
            self._warn = lambda event: None


_logger = logging.getLogger("quire")


class RequestLog:
    """Writes to the log `quire`, at level debug, each request's layer hashes and its reply's cache read."""

    def __init__(self, thread: str) -> None:
        self._thread = thread

    def on_request(self, sending: Sending) -> None:
        if not _logger.isEnabledFor(logging.DEBUG):
            return
        request, built = sending.request, sending.built
        hashes = {**request.layers, "request": request.lines.sha256}
        line = " ".join(f"{name}={sha256[:12]}" for name, sha256 in hashes.items())
        place = f"turn {built.turn} step {built.step}, epoch {built.epoch}, {built.tokens:,} tokens"
        _logger.debug("%s: %s to %s: %s", self._thread, place, request.target, line)

    def on_reply(self, received: Received) -> None:
        used = received.reply.usage
        written = used.cache_write_5m + used.cache_write_1h
        summary = f"{used.cache_read:,} of {used.input_total:,} tokens cached, {written:,} written, {used.output:,} out"
        _logger.debug("%s: %s: %s", self._thread, received.request.target, summary)


def chat_messages(built: Built, by: Rendering | None = None) -> list[JsonObject]:
    """A built request's messages in OpenAI Chat form, without the system messages; `by`: what wrote those before it."""
    messages: list[JsonObject] = (by or comparing()).request(built.prompt).body["messages"]
    return messages[len(built.prompt.systems) :]


class LayerHashes(Mapping[str, str]):
    """The hashes of a request's five layers, computed when they are first read; most requests are only sent."""

    def __init__(self, built: Built) -> None:
        self.built = built

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {layer.id: layer.sha256 for layer in enclose(self.built, chat_messages(self.built)).layers}

    def __getitem__(self, layer: str) -> str:
        return self._hashes[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return repr(self._hashes)


# Where two requests of a thread first differ, by byte, and which entry, rebase or change of model caused it.


class Culprit(msgspec.Struct, frozen=True):
    """A segment's id, the entries it was made from, and what happened to it ("left the library"), if known."""

    segment: str
    entries: tuple[int, ...] = ()
    became: str = ""


def in_system(old: str, new: str, entries: Sequence[Entry]) -> Culprit:
    """The entry whose text stands where two L1 first differ: the system prompt, or an instruction moved into it."""
    same = len(new.encode()[: same_start(old.encode(), new.encode())].decode(errors="ignore"))
    texts = [(entry.seq, normal(entry.text)) for entry in entries if entry.kind in INSTRUCTIONS]
    # L1 is these texts with a blank line between: step through them until one ends behind the difference.
    start = 0
    while matches := [text for text in texts if text[1] and new.startswith(text[1], start)]:
        seq, text = max(matches, key=lambda match: len(match[1]))
        if start + len(text) > same:
            return Culprit("system", (seq,))
        start += len(text) + 2
    return Culprit("system")


def in_library(old: Sequence[ItemBlock], new: Sequence[ItemBlock], entries: Sequence[Entry]) -> Culprit:
    """The first item that joined, left or changed in L2, and the entry that attached it."""
    pairs = zip_longest(old, new)
    was, now = next((pair for pair in pairs if _version(pair[0]) != _version(pair[1])), (None, None))
    if was is not None and now is not None and was.id == now.id:
        return _item(now, "changed in the library", entries)
    if was is not None and was.id not in {block.id for block in new}:
        return _item(was, "left the library", entries)
    return _item(now, "joined the library", entries) if now is not None else Culprit("library")


def _item(block: ItemBlock, became: str, entries: Sequence[Entry]) -> Culprit:
    """An item and the first entry that attached this very version of it."""
    attached = (
        entry.seq
        for entry in entries
        for item in entry.attached
        if (identity(item), item.get("sha256") or sha256_hex(item["content"])) == (block.id, block.sha256)
    )
    return Culprit(block.id, tuple(islice(attached, 1)), became)


def _version(block: ItemBlock | None) -> tuple[str, str] | None:
    return None if block is None else (block.id, block.text)


def in_messages(built: Built, index: int) -> Culprit:
    """The message at this index on the wire, where each result of a group of calls is a message of its own."""
    wire = 0
    for message in built.prompt.messages:
        wire += max(1, len(message.parts)) if message.role == "tool" else 1
        if index < wire:
            return Culprit(f"message {index + 1}", message.seqs)
    return Culprit(f"message {index + 1}")


def _lines(built: Built, by: Rendering) -> tuple[bytes, ...]:
    """The request's lines in one provider's form, with late tools at the place where they joined, not in front."""
    messages = [
        Message("note", (Text(canonical(tools_of(message)).decode()),), message.seqs)
        if message.role == "tools"
        else message
        for message in built.prompt.messages
    ]
    prompt = msgspec.structs.replace(built.prompt, messages=tuple(messages))
    return by.request(prompt).lines.rows


def comparing() -> Rendering:
    """What writes requests for a comparison; keep it to compare many requests of one thread."""
    return providers.rendering("openai-chat:")


def moved(requests: Sequence[tuple[Built, str]], entries: Sequence[Entry], by: Rendering | None = None) -> JsonObject:
    """Where the last of these requests first differs from the first, and why; each comes with its model."""
    by = by or comparing()
    difference = compare(requests[0][0], requests[-1][0], entries, by)
    if not difference["extends"]:
        return difference | _cause(requests, difference, entries, by)
    changed = requests[0][1] != requests[-1][1]
    return difference | ({"cause": _switch(requests[0][1], requests[-1][1])} if changed else {})


def compare(old: Built, new: Built, entries: Sequence[Entry], by: Rendering | None = None) -> JsonObject:
    """Where two requests' prefix bytes first differ: byte, layer, segment, and the entries found there."""
    by = by or comparing()
    lines = [_lines(built, by) for built in (old, new)]
    joined = [b"".join(parts) for parts in lines]
    byte = same_start(*joined)
    if byte == len(joined[0]):
        return {"byte": None, "added": len(joined[1]) - byte, "extends": True, "cause": None}
    layer, place = _place(old, new, *_line_at(lines[1], byte), entries)
    return {"byte": byte, "extends": False, "layer": layer, "segment": place.segment, "entries": list(place.entries)}


def _line_at(lines: Sequence[bytes], byte: int) -> tuple[int, int]:
    """The number of the line that holds a byte, and the byte's offset in it."""
    index, start = 0, 0
    while index < len(lines) - 1 and start + len(lines[index]) <= byte:
        start += len(lines[index])
        index += 1
    return index, byte - start


def _place(old: Built, new: Built, index: int, offset: int, entries: Sequence[Entry]) -> tuple[str, Culprit]:
    """The layer and the segment at an offset of a line of the later request."""
    prompt = new.prompt
    if index < len(prompt.tools):
        tool = prompt.tools[index]
        defined = (entry.seq for entry in entries if entry.kind == "tools" and tool in entry.tools)
        return "L1", Culprit("tools", tuple(islice(defined, 1)))
    index -= len(prompt.tools)
    if prompt.system:
        if index == 0:
            written = json.dumps(prompt.l1, ensure_ascii=False).encode()
            if offset < len('{"content":') + len(written) - 1:
                return "L1", in_system(old.prompt.l1, prompt.l1, entries)
            return "L2", in_library(old.blocks, new.blocks, entries)
        index -= 1
    return ("L5" if index == new.user else "L4"), in_messages(new, index)


def _cause(
    requests: Sequence[tuple[Built, str]], difference: JsonObject, entries: Sequence[Entry], by: Rendering
) -> JsonObject:
    """What changed a byte: the first request in which it differs, and there its model, its rebase or the entry found."""
    before, last = requests[0][0], len(requests) - 1
    # Only requests that do not extend the one before can have changed it; if none did, the last one did.
    between = [n for n in range(1, last) if not _extends(requests[n - 1][0], requests[n][0])]
    old = b"".join(_lines(before, by)) if between else b""
    changed = (n for n in between if same_start(old, b"".join(_lines(requests[n][0], by))) <= difference["byte"])
    place = next(changed, last)
    at = requests[place][0]
    where: JsonObject = {"turn": at.turn, "step": at.step}
    if requests[place - 1][1] != requests[place][1]:
        switch = _switch(requests[place - 1][1], requests[place][1])
        return {"cause": f"{switch} at turn {at.turn}.{at.step}", "entry": None, **where}
    difference = difference if place == last else compare(before, at, entries, by)
    found = next(iter(difference["entries"]), None)
    if at.rebase is None:
        return {"cause": f"entry {found}" if found else None, "entry": found, **where}
    # A rebase that was computed just now has no entry yet.
    logged = (entry for entry in reversed(entries) if entry.kind == "rebase" and entry.body is at.rebase)
    seq = next((entry.seq for entry in logged), None)
    named = f", entry {seq}" if seq else ""
    item = ""
    if difference["layer"] == "L2":
        # "a.md (entry 2) joined the library"
        culprit = in_library(before.blocks, at.blocks, entries)
        entry = f" (entry {culprit.entries[0]})" if culprit.entries else ""
        item = f": {culprit.segment}{entry} {culprit.became}"
    return {
        "cause": f"rebase ({at.rebase['reason']}) at turn {at.turn}.{at.step}{named}{item}",
        "entry": seq or (found if item else None),
        **where,
    }


def _extends(old: Built, new: Built) -> bool:
    """Whether a request repeats another and adds only messages at the end."""
    was, now = (msgspec.structs.replace(built.prompt, stable=0, opening=0, ends=()) for built in (old, new))
    return now.messages[: len(was.messages)] == was.messages and was == msgspec.structs.replace(
        now, messages=was.messages
    )


def _switch(before: str, after: str) -> str:
    return f"change of model, {before or 'none named'} to {after or 'none named'}"
