"""What passed through the proxy, read beside it: usage, conversation, what the cache lost, whose doing that was.

All of it happens in a thread of its own, behind the application's back: whatever goes wrong here is said and fails nothing.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import mmap
import queue
import re
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from quire import providers
from quire.archive.stored_conversations import url_model
from quire.audit import Grouping, SentCall, Verdict, WatchedConversation, call_of, is_body
from quire.audit.causes import NOTHING_CHANGED, Side, agrees
from quire.errors import FormatError, QuireError, needs_extra
from quire.log import OWNER_ALONE
from quire.providers.explain import diagnosis_of
from quire.providers.incoming import bytes_of
from quire.providers.models import format_name
from quire.providers.prefix import write_value
from quire.providers.usage import known_cost
from quire.providers.wires import speaker, wire_of
from quire.send.transport import SseReader, decode_event
from quire.server import Recent
from quire.server.mend import FittedRequest, Mended, Savings
from quire.values import Json, JsonObject

_logger = logging.getLogger("quire")
# Headers that name a session; all others, keys among them, are dropped.
_KEPT_HEADERS = ("session_id", "session-id", "x-session-id", "x-claude-code-session-id", "conversation_id")
# How many bytes of requests and replies may wait to be read; beyond that requests pass unwatched, with a warning.
_MOST_WAITING = 256 * 1024 * 1024
# How many bytes the newest requests of all conversations may have before the oldest of these are forgotten.
_MOST_FOLLOWED = 256 * 1024 * 1024
# How many conversations are shown.
_MOST_SHOWN = 200


# The longest reply that is read.
_MOST_BYTES = 32 * 1024 * 1024


class WatchedExchange:
    """One request to a model and its reply, as bytes: what the application gave, what went on, what has come back."""

    def __init__(self, path: str, headers: dict[str, str], given: bytes, host: str = "", provider: str = "") -> None:
        self.at_ms = int(time.time() * 1000)
        self.path, self.headers, self.host = path, headers, host
        # Who answers, where that is known; else host, path and body tell.
        self.provider = provider
        self.given = self.sent = given
        # JSON that was parsed already, each with the bytes it was parsed from.
        self.bodies: list[tuple[bytes, Json]] = []
        self.status, self.reply_headers, self.reply = 0, dict[str, str](), bytearray()
        # Whether the reply came to its own end; else the application went away, or the provider did.
        self.whole = False
        # What was made of what the application gave.
        self.mended = Mended()
        # The request as it was fitted into a budget.
        self.fitted: FittedRequest | None = None

    def piece(self, piece: bytes) -> None:
        if len(self.reply) < _MOST_BYTES:
            self.reply += piece

    def event(self, frame: str) -> None:
        """One event of a reply that comes over a WebSocket."""
        self.status, self.reply_headers = 200, {"content-type": "text/event-stream"}
        self.piece(b"data: " + frame.encode() + b"\n\n")

    def as_answered(self) -> WatchedExchange:
        """What went by until now, as it stands; this one is about to be sent on once more."""
        before = copy.copy(self)
        self.at_ms, self.status, self.reply, self.whole = int(time.time() * 1000), 0, bytearray(), False
        return before

    def about(self, body: JsonObject) -> JsonObject:
        """What is known of a request beside its body, as `call_of` takes it."""
        about: JsonObject = {"at": self.at_ms, "host": self.host, "path": self.path, "headers": self.headers}
        if self.provider and is_body(body):
            spoken = wire_of(call_of("", about, body, None).provider, body).name
            about["provider"] = format_name(self.provider, spoken)
        return about

    @property
    def plain_reply(self) -> bytes:
        """The reply as it was before it was compressed; of one that was cut off, as much as came."""
        return plain(bytes(self.reply), self.reply_headers.get("content-encoding", ""), cut=not self.whole)

    @property
    def is_stream(self) -> bool:
        media = self.reply_headers.get("content-type", "")
        return "event-stream" in media or "eventstream" in media or self.path.endswith(":streamGenerateContent")


class Watched(msgspec.Struct, frozen=True):
    """A request that passed: its call, the conversation it belongs to, what it lost, who lost it, what it cost."""

    call: SentCall
    conversation: WatchedConversation
    loss: Verdict | None
    usd: float | None
    retry: bool = False
    whole: bool = True
    mended: Mended = Mended()
    # The provider's own account of what it could not reuse, where it was asked.
    diagnosis: JsonObject = {}

    @property
    def side(self) -> Side | None:
        """Whose doing the loss is."""
        return self.loss.side if self.loss is not None else None

    def line(self) -> str:
        """The request in one line, for people who watch; a loss in two more."""
        used = self.call.usage
        kind = "" if self.conversation.kind == "main" else f" ({self.conversation.kind})"
        # Both come from the application, and may hold line breaks.
        who = " ".join(f"{self.conversation.name[-24:]}{kind} · {self.call.target}".split())
        marks = "".join(
            [
                " · tried again" if self.retry else "",
                "" if self.whole else " · cut off",
                f" · mended: {', '.join(self.mended.rules)}" if self.mended.rules else "",
                f" · not mended, it would be refused: {', '.join(self.mended.refused)}" if self.mended.refused else "",
                f" · not mended: {self.mended.only_watched}" if self.mended.only_watched else "",
                " · held out" if self.mended.held_out else "",
                *(f"\n  would be: {change}" for change in self.mended.difference),
            ]
        )
        if used is None:
            return f"{who} · no usage was reported{marks}"
        share = 100 * used.cache_read / max(1, used.input_total)
        reuse = f"{share:.0f}% reused" if self.call.tells_cache else "reuse not told"
        money = " · price not known" if self.usd is None else f" · ${self.usd:.4f}" if self.usd else " · $0"
        head = f"{who} · {used.input_total:,} tokens · {reuse}{money}{marks}"
        return head if self.loss is None else "\n  ".join([head, *self._loss_lines(self.loss)])

    def _loss_lines(self, lost: Verdict) -> Iterator[str]:
        place = f" at {lost.path}, {lost.offset:,} characters in" if lost.path else ""
        price = "" if lost.usd is None else f" (${lost.usd:.4f})"
        note = f": {lost.note}" if lost.note else ""
        sure = "" if lost.confidence == "certain" else f" [{lost.confidence}]"
        side = "provider (suspected)" if lost.side == "provider" else lost.side
        amount = f"lost {lost.lost:,} tokens{price}" if lost.lost else "nothing could be read"
        yield f"{amount}: {lost.what}{place}{note}{sure} · {side}"
        yield lost.fix
        if self.diagnosis:
            yield f"the provider says {self.diagnosis.get('reason') or self.diagnosis.get('type')}"

    def as_json(self) -> JsonObject:
        """The request as the inspector shows it; bodies are in the log."""
        lost = None
        if self.loss is not None:
            lost = {**msgspec.to_builtins(self.loss), "what": self.loss.what, "fix": self.loss.fix}
        return {
            "at": self.call.at_ms,
            "source": self.call.source,
            "model": self.call.target,
            "usage": self.call.usage.as_json() if self.call.usage is not None else None,
            "tells_cache": self.call.tells_cache,
            "usd": self.usd,
            "lost": lost,
            "side": self.side,
            "retry": self.retry,
            "whole": self.whole,
            "mended": list(self.mended.rules),
            "refused": list(self.mended.refused),
            "only_watched": self.mended.only_watched,
            "held_out": self.mended.held_out,
            "difference": list(self.mended.difference),
            "diagnosis": self.diagnosis,
        }


class _FollowedConversation(msgspec.Struct):
    """A conversation that may go on: its newest requests, and the last one as the application sent it, by its hash."""

    conversation: WatchedConversation
    rows: deque[JsonObject]
    retries: int = 0
    last: bytes = b""
    last_whole: bool = True
    size: int = 0


class CacheWatcher:
    """Takes in what passed, tells `tell` of each request, and keeps it in `log`, a file that `quire audit` reads.

    `redact` takes secrets out of what is kept. Of more than `most` conversations those are forgotten that went on longest ago; what they came to is not.
    """

    def __init__(
        self,
        tell: Callable[[Watched], None] = lambda watched: None,
        log: Path | None = None,
        most: int = 5_000,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.grouping = Grouping()
        # Ids of replies by conversation, for whoever asks the provider to compare; what went wrong, newest last.
        self.reply_ids: Recent[str, str] = Recent(most)
        # How many tokens the provider counted of a request, without what was recalled, by the digest of what was given.
        self.input_totals: Recent[bytes, int] = Recent(most)
        self.failures: deque[str] = deque(maxlen=100)
        # How often the provider was asked what it could not reuse, and said the same as the moved byte.
        self.compared, self.agreed = 0, 0
        self.savings = Savings()
        self._tell, self._log, self._redact = tell, log, redact
        self._count = 0
        # What OpenAI's servers hold of conversations, so that a request which names it alone is read whole.
        self._items: Recent[str, Sequence[JsonObject]] = Recent(1_000)
        self._followed: Recent[int, _FollowedConversation] = Recent(
            most,
            _MOST_FOLLOWED,
            lambda followed: followed.size,
            lambda oldest: self.grouping.forget(oldest.conversation),
        )
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[WatchedExchange | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()  # one proxy may end while another's request goes by

    def passed(self, exchange: WatchedExchange) -> None:
        """A request and its reply went by; they are read in the background, in the order they ended."""
        if exchange.status != 200 or not exchange.sent:
            return
        size = len(exchange.given) + len(exchange.reply)
        if self._waiting_bytes + size > _MOST_WAITING:
            self.fail("watching has fallen behind: a request is not counted")
            return
        self._waiting_bytes += size
        try:
            with self._beginning:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, daemon=True, name="quire-watch")
                    self._thread.start()
                self._waiting.put(exchange)
        except RuntimeError as error:  # no thread can be started; watching must never fail what is watched
            self.fail(f"a request could not be watched: {error}")

    def close(self) -> None:
        """Read what is still waiting."""
        with self._beginning:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._waiting.put(None)
        if thread is not None:
            thread.join(30)

    def fail(self, message: str) -> None:
        """Say what went wrong beside a request that passed all the same."""
        self.failures.append(message)
        _logger.warning(message)

    def as_json(self) -> JsonObject:
        """What all came to, and the newest conversations with their newest requests: what the inspector shows."""
        with self._lock:
            total = {**self.grouping.total.as_json(), "conversations": self.grouping.count}
            rows = [
                {
                    "name": followed.conversation.name,
                    "session": followed.conversation.session,
                    "kind": followed.conversation.kind,
                    **followed.conversation.spent.as_json(),
                    "retries": followed.retries,
                    "requests_seen": list(followed.rows),
                }
                for followed in list(self._followed.values())[: -_MOST_SHOWN - 1 : -1]
            ]
        agreement = {"asked": self.compared, "agreed": self.agreed}
        return {
            "total": total,
            "conversations": rows,
            "failures": list(self.failures),
            "savings": self.savings.as_json(),
            "provider_agreement": agreement,
        }

    def _work(self) -> None:
        while (exchange := self._waiting.get()) is not None:
            try:
                self._read(exchange)
            except Exception as error:  # watching must never fail what is watched
                self.fail(f"a request could not be watched: {type(error).__name__}: {error}")
            finally:
                self._waiting_bytes -= len(exchange.given) + len(exchange.reply)

    def _read(self, exchange: WatchedExchange) -> None:
        reading = read_exchange(exchange)
        if reading is None:
            return
        with self._lock:
            self._count += 1
            call = self._rebuilt(reading)
            if reading.original.get("generate") is False:
                return  # warms the connection; the model is not asked
            original = reading.original if exchange.mended.rules else {}
            call = msgspec.structs.replace(call, source=f"request {self._count}", given=original)
            try:
                self._write(call, exchange, reading)
            except OSError as error:
                self.fail(f"{self._log} could not be written: {error.strerror}; nothing of this request is kept")
            watched = self._judge(call, reading, exchange)
            self._followed[id(watched.conversation)].rows.append(watched.as_json())
        self._tell(watched)

    def _rebuilt(self, reading: Reading) -> SentCall:
        """The call with the items that it goes on with; without a body, where nobody here saw them."""
        call = reading.call
        if "input" not in call.body and "previous_response_id" not in call.body:
            return call
        named = call.body.get("conversation")
        conversation = str(named.get("id") if isinstance(named, dict) else named or "")
        before = str(call.body.get("previous_response_id") or "") or conversation
        given_input = call.body.get("input") or []
        items = [{"role": "user", "content": given_input}] if isinstance(given_input, str) else list(given_input)
        earlier = self._items.get(before) if before else ()
        if earlier is None and not (conversation and before == conversation):
            return msgspec.structs.replace(call, body={})
        whole = [*(earlier or ()), *items]
        for key in filter(None, (reading.id, conversation)):
            self._items[key] = [*whole, *reading.items]
        if not before:
            return call
        bare = {name: value for name, value in call.body.items() if name != "previous_response_id"}
        return msgspec.structs.replace(call, body={**bare, "input": whole}, session=call.session or conversation)

    def _write(self, call: SentCall, exchange: WatchedExchange, reading: Reading) -> None:
        if self._log is None:
            return
        about: JsonObject = {
            "at": exchange.at_ms,
            "host": exchange.host,
            "path": exchange.path,
            "status": exchange.status,
            "headers": {name: exchange.headers[name] for name in _KEPT_HEADERS if name in exchange.headers},
            "request": call.body or reading.call.body,
            "usage": call.usage.as_json() if call.usage is not None else None,
            "id": reading.id,
        }
        if exchange.provider:
            about["provider"] = call.provider
        if exchange.mended.rules:
            about |= {"given": call.given, "mended": list(exchange.mended.rules)}
        if exchange.mended.held_out:
            about["held_out"] = True
        if not reading.whole:
            about["whole"] = False
        line = self._redact(json.dumps(about, ensure_ascii=False)) + "\n"
        self._log.touch(OWNER_ALONE)
        with self._log.open("ab+") as file:
            _drop_half_line(file)
            file.write(line.encode())

    def _judge(self, call: SentCall, reading: Reading, exchange: WatchedExchange) -> Watched:
        """Which conversation it belongs to, what it lost, and whose doing that is."""
        conversation, lost = self.grouping.add(call)
        if conversation.name == call.source:
            conversation.name = f"conversation {self.grouping.count}"
        # The size is that of what is kept: it may have come compressed, or as the end of what the provider holds.
        before = self._followed.get(id(conversation)) or _FollowedConversation(conversation, deque(maxlen=200))
        followed = msgspec.structs.replace(before, size=len(write_value(call.body)))
        self._followed[id(conversation)] = followed
        digest = hashlib.sha256(exchange.given).digest()
        retry = _is_retry(followed, digest, exchange, reading.whole)
        if retry:
            conversation.spent.requests -= 1
            followed.retries += 1
        if reading.id and exchange.mended.conversation:
            self.reply_ids[exchange.mended.conversation] = reading.id
        if call.usage is not None and "recalled" not in exchange.mended.rules:
            self.input_totals[digest] = call.usage.input_total
        self.savings.add(call, reading.original, exchange.mended, exchange.at_ms)
        if reading.diagnosis:
            self._compare(reading.diagnosis, lost)
        usd = known_cost(call.usage, call.target, call.at_ms) if call.usage is not None else None
        return Watched(call, conversation, lost, usd, retry, reading.whole, exchange.mended, reading.diagnosis)

    def _compare(self, diagnosis: JsonObject, lost: Verdict | None) -> None:
        reason = str(diagnosis.get("reason") or diagnosis.get("type") or "")
        if reason in ("unavailable", "previous_message_not_found", "comparison_response_not_found"):
            return
        if lost is not None and lost.cause == "marks-absent" and reason != NOTHING_CHANGED["type"]:
            return  # with no mark set no byte is named, so there is nothing to compare
        self.compared += 1
        self.agreed += agrees(reason, diagnosis, lost)


def _drop_half_line(file: IO[bytes]) -> None:
    """Drop a last line of ours that is half written (by who was killed, or for want of space): the next would join it."""
    end = file.tell()
    file.seek(max(0, end - 1))
    if not end or file.read(1) == b"\n":
        return
    with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as data:
        start = data.rfind(b"\n") + 1
        is_ours = data[start : start + 7] == b'{"at": '
    if is_ours:
        file.truncate(start)


def _is_retry(followed: _FollowedConversation, digest: bytes, exchange: WatchedExchange, whole: bool) -> bool:
    """Whether the newest request of a conversation is sent again because its reply never came whole."""
    counted = exchange.headers.get("x-stainless-retry-count", "0")
    again = followed.last == digest and (not followed.last_whole or counted not in ("", "0"))
    followed.last, followed.last_whole = digest, whole
    return again


def _no_difference(sent: JsonObject) -> JsonObject:
    """The diagnosis of a reply without one: a provider that was asked for it and is silent says that nothing differs."""
    diagnostics = sent.get("diagnostics")
    return NOTHING_CHANGED if isinstance(diagnostics, dict) and diagnostics.get("previous_message_id") else {}


# Reading one exchange.


class Reading(msgspec.Struct, frozen=True):
    """What an exchange says: the call as it went on, the application's own body, the reply's id and its items."""

    call: SentCall
    original: JsonObject
    id: str = ""
    items: tuple[JsonObject, ...] = ()
    diagnosis: JsonObject = {}
    # Whether the reply came to its end; clients hang up at its last word.
    whole: bool = True


def read_exchange(exchange: WatchedExchange) -> Reading | None:
    """The call in an exchange; None where it asks no model for anything."""
    sent = _body(exchange.sent, exchange)
    if sent is None:
        return None
    original = sent if exchange.given is exchange.sent else _body(exchange.given, exchange) or sent
    about = exchange.about(sent)
    call = call_of("", about, sent, None)
    data = exchange.plain_reply
    ended = exchange.whole or _LAST_WORD.search(data) is not None
    reported = not wire_of(call.provider).reports_no_cache or _FIGURES.search(data) is not None
    if not exchange.is_stream:
        whole = _json_or_none(data)
        reply: JsonObject = whole if isinstance(whole, dict) else {}
        call = msgspec.structs.replace(call_of("", about, sent, reply), tells_cache=reported)
        items = tuple(item for item in reply.get("output") or () if isinstance(item, dict))
        ended = exchange.whole or bool(reply)
        account = diagnosis_of(reply) or _no_difference(sent)
        return Reading(call, original, str(reply.get("id") or ""), items, account, ended)
    speaks = speaker(call.provider, sent)
    stream = providers.stream(f"{speaks}:{call.model}")
    id, items_by_place, diagnosis = "", dict[int, JsonObject](), _no_difference(sent)
    for event in events_in(data, speaks):
        with contextlib.suppress(QuireError):
            stream.feed(event)
        holder = next((event[key] for key in ("message", "response") if isinstance(event.get(key), dict)), event)
        id = id or str(holder.get("id") or "")
        diagnosis = diagnosis_of(holder) or diagnosis
        if event.get("type") == "response.output_item.done" and isinstance(event.get("item"), dict):
            items_by_place[int(event.get("output_index") or 0)] = event["item"]
    used = stream.partial().usage
    call = msgspec.structs.replace(call, usage=used if used.input_total else None, tells_cache=reported)
    items = tuple(items_by_place[place] for place in sorted(items_by_place))
    return Reading(call, original, id, items, diagnosis, ended)


# The last word of a stream, in any format.
_LAST_WORD = re.compile(
    rb'"type"\s*:\s*"(message_stop|response\.(completed|failed|incomplete)|error)"|data:\s*\[DONE\]|"finishReason"\s*:\s*["1-9]'
)
# Figures of the cache, as any provider names them; one that is null was not told.
_FIGURES = re.compile(
    rb'"(cached_tokens|cache_read_input_tokens|cachedContentTokenCount|prompt_cache_hit_tokens|cache_n'
    rb'|cacheReadInputTokens|cached_prompt_text_tokens|num_cached_tokens)"\s*:\s*\d'
)


def _body(raw: bytes, exchange: WatchedExchange) -> JsonObject | None:
    body = next((body for data, body in exchange.bodies if data is raw), None)
    if body is None:
        body = _json_or_none(plain(raw, exchange.headers.get("content-encoding", "") if raw is exchange.given else ""))
    if not isinstance(body, dict) or not is_body(body):
        return None
    if body.get("type") == "response.create":
        body = {name: value for name, value in body.items() if name != "type"}
    # Gemini and Bedrock name the model in the path.
    named = "" if "model" in body else url_model(exchange.path)
    return {**body, "model": named} if named else body


def _json_or_none(data: bytes) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def events_in(data: bytes, speaks: str) -> Iterator[JsonObject]:
    """The events of a reply's bytes; what is none is passed over."""
    if data.lstrip()[:1] == b"[":
        # Gemini's, where its client did not ask for server-sent ones.
        yield from (event for event in _json_or_none(data) or () if isinstance(event, dict))
        return
    if data[:1] == b"\0":  # the length of a first frame
        yield from _amazon_events(data)
        return
    sse = SseReader()
    for frame in (*sse.feed(data), *sse.finish()):
        with contextlib.suppress(QuireError):
            event = decode_event(frame, speaks)
            if isinstance(event, dict):
                yield event


def _amazon_events(data: bytes) -> Iterator[JsonObject]:
    """The events of Amazon's binary frames: two lengths, their checksum, headers, a payload, a checksum of it all."""
    start = 0
    while len(data) >= start + 16:
        size, head = struct.unpack_from(">II", data, start)
        if not head + 16 <= size <= len(data) - start:  # it was cut off
            return
        payload = _json_or_none(data[start + 12 + head : start + size - 4])
        # A header is its name, 7 for a string, two bytes of length, its value.
        name = re.search(rb":event-type\x07\0(.)(\w+)", data[start + 12 : start + 12 + head], re.DOTALL)
        start += size
        if name is None or not isinstance(payload, dict):
            continue
        kind = name[2][: name[1][0]].decode()
        # Models with an API of their own have their events packed.
        event = _json_or_none(bytes_of(payload.get("bytes"))) if kind == "chunk" else {kind: payload}
        if isinstance(event, dict):
            yield event


def plain(data: bytes, coding: str, cut: bool = False) -> bytes:
    """Bytes as they were before they were compressed; of those that were cut off, as many as came."""
    for codec in reversed([name.strip().lower() for name in coding.split(",") if name.strip()]):
        if codec == "identity":
            continue
        if codec not in _DECODERS:
            raise FormatError(f"bodies compressed by {codec!r} are not read")
        try:
            data = _DECODERS[codec](data)
        except Exception:  # each decoder has errors of its own
            if not cut:
                raise
            return b""
        if len(data) > _MOST_PLAIN:
            raise FormatError(f"a body that unpacks to more than {_MOST_PLAIN:,} bytes is not read")
    return data


def _brotli(data: bytes) -> bytes:
    with needs_extra("brotli is not installed", "proxy"):
        import brotli
    unpacked: bytes = brotli.Decompressor().process(data, output_buffer_limit=_MOST_PLAIN + 1)
    return unpacked


def _zstd(data: bytes) -> bytes:
    with needs_extra("zstandard is not installed", "proxy"):
        import zstandard
    return zstandard.ZstdDecompressor().stream_reader(data).read(_MOST_PLAIN + 1)


def _inflate(data: bytes) -> bytes:
    return zlib.decompressobj(32 + zlib.MAX_WBITS).decompress(data, _MOST_PLAIN + 1)  # of either kind


# A small body may unpack to any size.
_MOST_PLAIN = 256 * 1024 * 1024
_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    **dict.fromkeys(("gzip", "x-gzip", "deflate"), _inflate),
    "br": _brotli,
    "zstd": _zstd,
}
