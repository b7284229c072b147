"""What requests used and what they cost: of one request, of a thread at a glance, of a whole store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from quire.assemble import Policy
from quire.log.store import Store, ThreadInfo
from quire.providers.models import model_info
from quire.providers.usage import cost, known_cost
from quire.thread_state import is_request
from quire.values import COUNTS, Entry, JsonObject, Usage


class ThreadRow(msgspec.Struct, omit_defaults=True):
    """A thread at a glance, by what its log says was sent."""

    name: str
    entries: int
    parent: str = ""
    model: str = ""
    turns: int = 0
    requests: int = 0
    tokens: int = 0
    read: int = 0
    usd: float | None = None
    at: int | None = None
    # The share that each of the newest requests read from the cache.
    spark: tuple[float, ...] = ()


class ThreadTotals:
    """What a thread has used so far, entry by entry."""

    def __init__(self) -> None:
        self.seq, self.id = 0, ""
        self._row = ThreadRow("", 0)

    def extend(self, entries: Iterable[Entry]) -> None:
        row = self._row
        for entry in entries:
            self.seq, self.id = entry.seq, entry.id
            row.at = entry.at or row.at
            row.turns += entry.kind == "user"
            if is_request(entry):
                row.model = f"{entry.body.get('provider')}:{entry.body.get('model')}"
                if isinstance(entry.body.get("usage"), dict):
                    self._add_usage(usage_of(entry), entry.at)

    def _add_usage(self, used: Usage, at: int | None) -> None:
        row, paid = self._row, known_cost(used, self._row.model, at)
        row.requests, row.tokens, row.read = row.requests + 1, row.tokens + used.input_total, row.read + used.cache_read
        row.usd = row.usd if paid is None else (row.usd or 0.0) + paid
        if used.input_total:
            row.spark = (*row.spark[-39:], round(min(1.0, used.cache_read / used.input_total), 3))

    def row(self, info: ThreadInfo) -> ThreadRow:
        return msgspec.structs.replace(self._row, name=info.name, entries=info.seq, parent=info.parent)


def usage_of(sent: Entry) -> Usage:
    """What a `sent` entry says was used; a log from elsewhere may hold anything."""
    reported = sent.body["usage"]
    counts: dict[str, Any] = {
        name: round(value) for name in COUNTS if isinstance(value := reported.get(name), int | float)
    }
    charged = reported.get("charged")
    return Usage(**counts, charged=charged if isinstance(charged, int | float) else None)


def foreseen_usage(tokens: int, reused: int, policy: Policy) -> Usage:
    """What a request would read and write by its prefix alone."""
    least = model_info(policy.model).min_cache_tokens if policy.model else 0
    if tokens < least:
        return Usage(tokens)
    return Usage(tokens, cache_read=reused, cache_write_5m=tokens - reused)


def usage_columns(used: Usage, policy: Policy, at: int | None) -> JsonObject:
    """What a request read from the cache, wrote to it and sent fresh, and what that cost, as fields of a column."""
    written = used.cache_write_5m + used.cache_write_1h
    fresh = max(0, used.input_total - used.cache_read - written)
    money = _input_usd(used, policy, at)
    read, write = policy.prices
    units = read * used.cache_read + write * written + fresh
    return {
        "read": used.cache_read,
        "written": written,
        "fresh": fresh,
        "output": used.output,
        "usd": money,
        "units": round(units, 2),
    }


def _input_usd(used: Usage, policy: Policy, at: int | None) -> float | None:
    """What a request's input cost, its output not counted."""
    if not policy.model:
        return None
    input_only = msgspec.structs.replace(used, output=0, reasoning=0, besides=(), charged=None)
    return cost(input_only, policy.model, at).amount_usd


def rewrite_usd(tokens: int, policy: Policy, at: int | None) -> float | None:
    """What it costs more to write tokens to the cache again than to read them from it."""
    used = (Usage(tokens, cache_write_5m=tokens), Usage(tokens, cache_read=tokens))
    paid, less = (_input_usd(usage, policy, at) for usage in used)
    return paid - less if paid is not None and less is not None else None


class SentRow(msgspec.Struct):
    """A request that was sent: its entry, what it used and what that cost; `usd` null where a price is not known."""

    seq: int
    model: str
    sha256: str
    at: int | None
    usage: JsonObject | None
    usd: float | None
    stop: str | None


class Spending(msgspec.Struct):
    """What requests used, by model and in all; `usd` counts what has a known price, `unpriced` requests have none."""

    requests: int
    usage: JsonObject
    usd: float
    unpriced: int
    models: dict[str, JsonObject]


def sent_row(entry: Entry) -> SentRow:
    """A `sent` entry that says what its request used, with what that cost."""
    target = f"{entry.body['provider']}:{entry.body['model']}"
    try:
        used = msgspec.convert(entry.body["usage"], Usage, strict=False)
    except msgspec.ValidationError:
        used = usage_of(entry)
    sha256, stop, usd = entry.body["request_sha256"], entry.body.get("stop"), known_cost(used, target, entry.at)
    return SentRow(entry.seq, target, sha256, entry.at, used.as_json(), usd, stop)


def spending(entries: Iterable[Entry]) -> Spending:
    """What the requests among these entries used and cost."""
    total, models, usd, unpriced = dict.fromkeys(COUNTS, 0), dict[str, JsonObject](), 0.0, 0
    for entry in entries:
        if entry.kind != "sent" or not isinstance(entry.body.get("usage"), dict):
            continue
        sent = sent_row(entry)
        row = models.setdefault(sent.model, {**dict.fromkeys(COUNTS, 0), "requests": 0, "usd": 0.0})
        for name in COUNTS:
            used = int((sent.usage or {}).get(name) or 0)
            total[name] += used
            row[name] += used
        row["requests"] += 1
        row["usd"] += sent.usd or 0.0
        usd, unpriced = usd + (sent.usd or 0.0), unpriced + (sent.usd is None)
    return Spending(sum(row["requests"] for row in models.values()), dict(total), usd, unpriced, models)


def kept_entries(store: Store) -> Iterator[Entry]:
    """Every entry of a store once, however many forks share it."""
    after = 0
    while changes := store.changes(after, 1000):
        yield from (change.entry for change in changes)
        after = changes[-1].n
