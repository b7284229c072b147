"""What watches a thread: it is told of every request and reply, and nothing it does can change what is sent."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Protocol

import msgspec

from quire import providers
from quire.assemble import Built
from quire.assemble.fit import enclose
from quire.providers.explain import CacheEvent, Watch
from quire.providers.gemini_cache import Served
from quire.tokens.counting import far_off
from quire.values import Entry, Envelope, JsonObject, Layer, LayerId, Reply, Request


class Sending(msgspec.Struct, frozen=True):
    """A request as its thread hands it out."""

    request: Request
    built: Built
    at_ms: int
    # The entries that the log has gained since the request before.
    since: tuple[Entry, ...] = ()
    # Whether the log holds a reply that another process was given: caches may hold more than was told here.
    resumed: bool = False
    # How many tokens the model is expected to count, by what it reported before.
    expected_tokens: int = 0


class Received(msgspec.Struct, frozen=True):
    """A reply as it came back."""

    request: Request
    reply: Reply
    # What the provider itself says of its cache.
    diagnosis: JsonObject | None = None
    # What an explicit Gemini cache did for it.
    served: Served | None = None


class Observer(Protocol):
    """Told of what a thread sends and receives: `Thread(…, observers=[…])`; `observers=()` watches nothing."""

    def on_request(self, sending: Sending) -> None:
        """A request is handed out, and will be sent unchanged."""

    def on_reply(self, received: Received) -> None:
        """Its reply has come, and stands in the log."""


# L1 and L2 from request to request: a change that no entry explains is a warning.

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
    for segment in layer.segments:
        if segment.content:
            end += len(segment.content.encode()) + 2
            if byte < end:
                return segment.id
    return layer.segments[-1].id if layer.segments else ""


class CountEvent(msgspec.Struct, frozen=True):
    """A model counted a request far otherwise than was expected; its count is what the next requests keep to."""

    target: str
    expected: int
    reported: int

    def __str__(self) -> str:
        return (
            f"{self.target} counted {self.reported:,} input tokens where {self.expected:,} were expected; "
            "the next requests keep to its count"
        )


# Requests whose replies nobody has compared yet; more than this, and the oldest are gone through.
_WAITING = 64


class CacheWatch:
    """Warns where L1 or L2 moved and no entry explains it, and where a reply read or counted other than predicted.

    Nothing is predicted before there is a reply to compare with: until then requests only wait.
    """

    def __init__(self, warn: Callable[[object], None]) -> None:
        self._warn = warn
        self._newest: Sending | None = None
        self._watches: dict[str, Watch] = {}
        self._waiting: defaultdict[str, list[Sending]] = defaultdict(list)
        # Models whose cache may hold more than was seen here.
        self._unsure: set[str] = set()

    def on_request(self, sending: Sending) -> None:
        target, before = sending.request.target, self._newest
        if target not in self._watches:
            self._watches[target] = Watch(target, frozen=True)
            self._unsure |= {target} if sending.resumed else set()
        self._waiting[target].append(sending)
        if len(self._waiting[target]) > _WAITING:
            self._predict(target)
        self._newest = sending
        if before is not None and before.request.provider == sending.request.provider:
            moved = _moved(before.built, sending.built, sending.since)
            if moved is not None:
                self._warn(moved)

    def on_reply(self, received: Received) -> None:
        sent, reported = self._newest, received.reply.usage.input_total
        if sent is not None and sent.request is received.request and far_off(sent.expected_tokens, reported):
            self._warn(CountEvent(sent.request.target, sent.expected_tokens, reported))
        event = self.compare(received)
        if event is not None and not event.foreseen:
            self._warn(event)

    def compare(self, received: Received) -> CacheEvent | None:
        """Where a reply's cache reads are not what was predicted, why; a reply that reports nothing says nothing."""
        target, reply = received.request.target, received.reply
        watching = self._watches.get(target)
        event = None
        if watching is not None and (reply.usage.input_total or received.served is not None):
            self._predict(target)
            event = watching.reported(reply.usage, received.diagnosis, received.served)
        if target in self._unsure:
            self._unsure.remove(target)
            return None
        return event

    def _predict(self, target: str) -> None:
        """Go through the requests that wait, in the order in which they were sent."""
        for sending in self._waiting.pop(target, ()):
            self._watches[target].sent(sending.at_ms, sending.request.body)


def _moved(before: Built, now: Built, since: Iterable[Entry]) -> MovedLayer | None:
    if before.prompt.l1 == now.prompt.l1 and before.blocks == now.blocks:
        return None
    return watch(enclose(before, ()), enclose(now, ()), since)


_logger = logging.getLogger("quire")


class RequestLog:
    """Tells the log `quire`, at level debug, each request's layer hashes and what its reply read from the cache."""

    def __init__(self, thread: str) -> None:
        self._thread = thread

    def on_request(self, sending: Sending) -> None:
        if not _logger.isEnabledFor(logging.DEBUG):
            return
        request, built = sending.request, sending.built
        hashes = {**request.layers, "request": request.lines.sha256}
        told = " ".join(f"{name}={sha256[:12]}" for name, sha256 in hashes.items())
        place = f"turn {built.turn} step {built.step}, epoch {built.epoch}, {built.tokens:,} tokens"
        _logger.debug("%s: %s to %s: %s", self._thread, place, request.target, told)

    def on_reply(self, received: Received) -> None:
        used = received.reply.usage
        written = used.cache_write_5m + used.cache_write_1h
        said = f"{used.cache_read:,} of {used.input_total:,} tokens cached, {written:,} written, {used.output:,} out"
        _logger.debug("%s: %s: %s", self._thread, received.request.target, said)


def chat_messages(built: Built) -> list[JsonObject]:
    """A built request's messages in OpenAI Chat form, the system message left out."""
    messages: list[JsonObject] = providers.render(built.prompt, "openai-chat:").body["messages"]
    return messages[len(built.prompt.systems) :]


class LayerHashes(Mapping[str, str]):
    """The hashes of a request's five layers, made when they are first read: whoever only sends it never makes them."""

    def __init__(self, built: Built) -> None:
        self._built = built

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {layer.id: layer.sha256 for layer in enclose(self._built, chat_messages(self._built)).layers}

    def __getitem__(self, layer: str) -> str:
        return self._hashes[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return repr(self._hashes)
