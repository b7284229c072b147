"""Who may ask, how often, and what nobody gets to see: API keys, rates, secrets taken out of texts.

A key is shown once, when it is made; what is stored is its SHA-256, as a record of the service's own store.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quire.errors import CallError, NotFound
from quire.log.hashing import sha256_hex
from quire.log.store import RecordFilter, RecordRow, Store, check_tenant
from quire.records.record import Record, decode, draft, encode, number
from quire.values import Entry, Json, JsonObject

KEY_PREFIX = "qk_"
_SCHEMA = "quire.key.v1"
# How long a key that was looked up is believed: one that is revoked elsewhere works no longer than this.
_BELIEVED_S = 2.0


class ApiKey(msgspec.Struct, frozen=True):
    """What is known of a key: never the key itself."""

    id: str
    name: str
    tenant: str
    created_at: int | None


def insert_record(table: Any, record: Record) -> Record:
    """Keep a record of the service's own, which no search shall find."""

    def row(n: int) -> RecordRow:
        made = msgspec.structs.replace(record, id=f"rec-{n}")
        return RecordRow(n, 1, encode(made), made.schema_name, made.tags, made.expires_at, "")

    return decode(table.insert([row])[0])


class Keys:
    """The API keys of a service, kept in its own store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._believed: OrderedDict[str, tuple[float, ApiKey | None]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, tenant: str, now: int) -> str:
        """Make a key for a tenant; it can be read here and never again."""
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        record = draft(
            _SCHEMA,
            {"name": name, "tenant": check_tenant(tenant)},
            tags=[f"sha256:{sha256_hex(key)}"],
            now=now,
        )
        insert_record(self._store.records, record)
        return key

    def list(self) -> list[ApiKey]:
        """The keys there are, oldest first."""
        return [_key(body) for body in self._store.records.select(RecordFilter(schemas=(_SCHEMA,)))]

    def revoke(self, id: str) -> None:
        """Take a key away by its id."""
        found = self._store.records.newest(number(id))
        if found is None or decode(found).schema_name != _SCHEMA:
            raise NotFound(f"there is no key {id!r}", hint="`quire serve keys list` shows them.")
        self._store.records.remove(number(id))

    def find(self, key: str) -> ApiKey | None:
        """Whose key this is."""
        digest = sha256_hex(key)
        now = time.monotonic()
        with self._lock:
            at, known = self._believed.get(digest, (float("-inf"), None))
        if now - at < _BELIEVED_S:
            return known
        wanted = RecordFilter(schemas=(_SCHEMA,), tags=(f"sha256:{digest}",))
        found = next(self._store.records.select(wanted), None)
        known = _key(found) if found is not None else None
        with self._lock:
            self._believed[digest] = now, known
            while len(self._believed) > 1000:
                self._believed.popitem(last=False)
        return known

    def any(self) -> bool:
        """Whether there is any key."""
        return bool(self._store.records.count(RecordFilter(schemas=(_SCHEMA,))))


def _key(body: str) -> ApiKey:
    record = decode(body)
    return ApiKey(record.id, str(record.context["name"]), str(record.context["tenant"]), record.created_at)


# Rates: each caller has a bucket that fills by `per_s` and holds two seconds' worth.


class Rates:
    """How often each caller may ask; `per_s` 0: as often as they like."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._clock = per_s, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Take one from a caller's bucket; how long to wait where it is empty, else 0."""
        if not self._per_s:
            return 0.0
        now, most = self._clock(), max(1.0, 2 * self._per_s)
        at, left = self._left.pop(caller, (now, most))
        left = min(most, left + (now - at) * self._per_s)
        taken = left >= 1
        self._left[caller] = now, left - taken
        while len(self._left) > 10_000:
            self._left.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._per_s


# Secrets: what looks like a key of a known format is replaced, on the way in and in everything shown.

SECRETS: dict[str, str] = {
    "Quire key": r"qk_[A-Za-z0-9_-]{40,}",
    "Anthropic key": r"sk-ant-[A-Za-z0-9_-]{20,}",
    "OpenAI key": r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}|sk-[A-Za-z0-9]{32,}",
    "OpenRouter key": r"sk-or-v1-[0-9a-f]{40,}",
    "Google key": r"AIza[A-Za-z0-9_-]{35}",
    "AWS key": r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    "GitHub token": r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})",
    "GitLab token": r"glpat-[A-Za-z0-9_-]{20,}",
    "Slack token": r"xox[abposr]-[A-Za-z0-9-]{20,}",
    "Stripe key": r"(?:sk|rk)_live_[A-Za-z0-9]{20,}",
    "Hugging Face token": r"hf_[A-Za-z0-9]{30,}",
    "npm token": r"npm_[A-Za-z0-9]{36}",
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{20,}?-----END (?:[A-Z]+ )?PRIVATE KEY-----",
}


class Redactor:
    """Replaces secrets by their kind in brackets; `patterns` are more of them, `off` leaves all as it is."""

    def __init__(self, patterns: Iterable[str] = (), off: bool = False) -> None:
        own = {f"secret {number}": pattern for number, pattern in enumerate(patterns, 1)}
        self._kinds = [] if off else list({**SECRETS, **own})
        try:
            parts = [
                f"(?<![A-Za-z0-9])({pattern})(?![A-Za-z0-9])"
                for pattern in ([] if off else [*SECRETS.values(), *own.values()])
            ]
            self._found = re.compile("|".join(parts)) if parts else None
        except re.error as error:
            raise CallError(
                f"a pattern for secrets is wrong: {error}",
                hint="--redact takes one regular expression without groups.",
            ) from error
        if self._found is not None and self._found.groups != len(self._kinds):
            raise CallError("a pattern for secrets has groups", hint="Write (?:…) instead of (…).")

    def text(self, text: str) -> str:
        """A text without secrets: "key sk-ant-…" -> "key [Anthropic key]"."""
        return self._found.sub(self._kind, text) if self._found is not None else text

    def bytes(self, data: bytes) -> bytes:
        """The same for JSON, whose strings may hold them."""
        return self.text(data.decode()).encode() if self._found is not None else data

    def _kind(self, match: re.Match[str]) -> str:
        return f"[{self._kinds[(match.lastindex or 1) - 1]}]"

    def value(self, value: Json) -> Json:
        """A JSON value without secrets in its strings; what a provider signed or encrypted stays as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(each) for each in value]
        if isinstance(value, dict):
            return {key: each if key == "wire" else self.value(each) for key, each in value.items()}
        return value

    def unfinished(self, partial: JsonObject) -> JsonObject:
        """A reply that is being written, as far as its words are whole: of half a secret nobody could tell."""
        if self._found is None:
            return partial
        blocks = [{**block, "text": self.text(_whole_words(block["text"]))} for block in partial["blocks"]]
        return {**partial, "blocks": blocks}

    def entry(self, entry: Entry) -> Entry:
        """An entry without secrets; the very same where there is none."""
        if self._found is None:
            return entry
        body = self.value(entry.body)
        return entry if body == entry.body else Entry(entry.kind, body)


def _whole_words(text: str) -> str:
    """Up to the last space: "to be or no" -> "to be or "."""
    found = re.search(r"\S*\Z", text)
    return text[: found.start()] if found else text
