"""Watches what is sent: each request against the one before it, each reply against what was predicted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from quire import providers
from quire.assemble import Built
from quire.assemble.layers import current_place, enclose
from quire.providers.explain import CacheEvent, Watch
from quire.providers.gemini_cache import Served
from quire.providers.growing import leading
from quire.values import Entry, Envelope, JsonObject, Layer, LayerId, Reply, Request

# Watches L1 and L2 from request to request: a change that no entry explains is a warning.

# The kinds of entry that may change what stands in front of the history; the library moves at rebases alone.
EXPLAINS: dict[LayerId, frozenset[str]] = {
    "L1_SYSTEM": frozenset({"system", "tools", "rebase"}),
    "L2_PREVIOUS": frozenset({"rebase"}),
}


class MovedLayer(msgspec.Struct, frozen=True):
    """A stable layer that changed without an entry to explain it, down to the byte."""

    layer: LayerId
    segment: str
    byte: int

    def __str__(self) -> str:
        return f"{self.layer} changed at byte {self.byte} (segment {self.segment}) and no entry explains it"


def watch(
    before: Envelope, now: Envelope, between: Iterable[Entry], rebased: bool = False
) -> MovedLayer | None:
    """The first unexplained change of L1 or L2; entries between the two requests, or a rebase, explain one."""
    kinds = {entry.kind for entry in between} | ({"rebase"} if rebased else set())
    for id, explains in EXPLAINS.items():
        old, new = before.layer(id), now.layer(id)
        if old.sha256 != new.sha256 and kinds.isdisjoint(explains):
            byte = first_difference(old.text.encode(), new.text.encode())
            return MovedLayer(id, segment_at(new, byte), byte)
    return None


def first_difference(old: bytes, new: bytes) -> int:
    """The first place where two byte strings differ; the shorter one's length where it begins the other."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[:middle] == new[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def segment_at(layer: Layer, byte: int) -> str:
    """The segment that a byte of the layer's text lies in."""
    end = 0
    for one in layer.segments:
        if one.content:
            end += len(one.content.encode()) + 2
            if byte < end:
                return one.id
    return layer.segments[-1].id if layer.segments else ""


class CacheWatch:
    """Knows the newest request and, per model, what the cache should hold."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self._sealed: Envelope | None = None
        self._watches: dict[str, Watch] = {}
        # Models whose cache may hold more than was seen here: an earlier process had sent to them.
        self._unsure: set[str] = set()

    def sends(
        self, at: int, request: Request, sealed: Envelope, since: Sequence[Entry], earlier: bool = False
    ) -> MovedLayer | None:
        """A request goes out: L1 or L2 that moved although no entry since the last one explains it.

        `earlier`: requests of this thread were sent before that nobody told of here.
        """
        if request.target not in self._watches:
            self._watches[request.target] = Watch(request.target)
            self._unsure |= {request.target} if earlier else set()
        self._watches[request.target].sent(at, request.body)
        same = self.request is not None and self.request.provider == request.provider
        moved = watch(self._sealed, sealed, since) if same and self._sealed is not None else None
        self.request, self._sealed = request, sealed
        return moved

    def hears(
        self,
        request: Request,
        reply: Reply,
        diagnosis: JsonObject | None = None,
        served: Served | None = None,
    ) -> CacheEvent | None:
        """A reply came back: where its cache reads are not what was predicted, why.

        `served`: what an explicit cache did for it; then that one is what is compared with.
        """
        watching = self._watches.get(request.target)
        event = watching.reported(reply.usage, diagnosis, served) if watching is not None else None
        if request.target in self._unsure:
            self._unsure.remove(request.target)
            return None
        return event


# The layers of a thread's requests, hashed one request after the other: what stands is not hashed again.


class LayerHashes:
    """Knows the history of the newest request, and how far its hash goes."""

    def __init__(self) -> None:
        self._rendering = providers.rendering("openai-chat:")
        self._history: tuple[bytes, ...] = ()
        # The hash up to the current user's message, and beyond it: the next turn puts that message in between.
        self._front, self._running = Hash(), Hash()

    def seal(self, built: Built) -> tuple[Envelope, dict[str, str]]:
        """The envelope without its history, and the hashes of all five layers."""
        request, system = self._rendering.request(built.prompt), bool(built.prompt.system)
        lines = request.lines.each[len(request.body.get("tools") or ()) + system :]
        place = current_place(built, request.body["messages"][system:])
        sealed = enclose(built, ())
        hashes: dict[str, str] = {one.id: one.sha256 for one in sealed.layers}
        return sealed, {**hashes, "L4_STRIP": self._strip(lines, place)}

    def _strip(self, lines: tuple[bytes, ...], place: int) -> str:
        """The hash of every message but the current user's."""
        front = max(place, 0)
        history = lines[:front] + lines[place + 1 :]
        # Lines that are kept are the very same objects.
        same = leading(self._history, history)
        if self._front.count > same:
            self._front = Hash()
        self._front.extend(history[self._front.count : front])
        if not self._front.count <= self._running.count <= same:
            self._running = self._front.copy()
        self._running.extend(history[self._running.count : same])
        whole = self._running.copy()
        whole.extend(history[whole.count :])
        self._history = history
        return whole.hexdigest()


class Hash:
    """A running hash of segments, a blank line between them."""

    def __init__(self) -> None:
        self.count, self._hash = 0, hashlib.sha256()

    def copy(self) -> Hash:
        twin = Hash()
        twin.count, twin._hash = self.count, self._hash.copy()
        return twin

    def extend(self, lines: Iterable[bytes]) -> None:
        """Take segments in, each given as a line."""
        for line in lines:
            self._hash.update((b"\n\n" if self.count else b"") + line[:-1])
            self.count += 1

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
