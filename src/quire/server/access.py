"""Who may ask, how often, and what nobody gets to see: API keys, rates, secrets taken out of texts.

A key is shown once, when it is made; what is stored is its SHA-256, as a record of the service's own store.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from quire.entry import sha256_hex
from quire.errors import CallError, NotFound
from quire.log.store import RecordFilter, RecordRow, Store, check_tenant
from quire.records.record import Record, decode, draft, encode, number
from quire.server import Recent
from quire.values import Entry, Json, JsonObject

KEY_PREFIX = "qk_"
_SCHEMA = "quire.key.v1"
# How long what was looked up of keys is cached: one that is revoked elsewhere works no longer than this.
KEYS_CACHED_S = 2.0


class ApiKey(msgspec.Struct, frozen=True):
    """What is known of a key: never the key itself."""

    id: str
    name: str
    tenant: str
    created_at: int | None


def insert_record(table: Any, record: Record) -> Record:
    """Keep a record of the service's own, which no search shall find."""

    def row(n: int) -> RecordRow:
        numbered = msgspec.structs.replace(record, id=f"rec-{n}")
        return RecordRow(n, 1, encode(numbered), numbered.schema_name, numbered.tags, numbered.expires_at, "")

    return decode(table.insert([row])[0])


class Keys:
    """The API keys of a service, kept in its own store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: Recent[str, tuple[float, ApiKey | None]] = Recent(1000)
        self._lock = threading.Lock()

    def add(self, name: str, tenant: str, now: int) -> str:
        """Make a key for a tenant; it can be read here and never again."""
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        record = draft(
            _SCHEMA, {"name": name, "tenant": check_tenant(tenant)}, tags=[f"sha256:{sha256_hex(key)}"], now=now
        )
        insert_record(self._store.records, record)
        return key

    def list(self) -> list[ApiKey]:
        """The keys there are, oldest first."""
        return [_key(body) for body in self._store.records.select(RecordFilter(schemas=(_SCHEMA,)))]

    def revoke(self, id: str) -> None:
        """Take a key away by its id."""
        body = self._store.records.newest(number(id))
        if body is None or decode(body).schema_name != _SCHEMA:
            raise NotFound(f"there is no key {id!r}", hint="`quire serve keys list` shows them.")
        self._store.records.remove(number(id))

    def find(self, key: str) -> ApiKey | None:
        """Whose key this is."""
        digest = sha256_hex(key)
        now = time.monotonic()
        with self._lock:
            at, api_key = self._cache.get(digest, (float("-inf"), None))
        if now - at < KEYS_CACHED_S:
            return api_key
        query = RecordFilter(schemas=(_SCHEMA,), tags=(f"sha256:{digest}",))
        body = next(self._store.records.select(query), None)
        api_key = _key(body) if body is not None else None
        with self._lock:
            self._cache[digest] = now, api_key
        return api_key

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
        self._buckets: Recent[str, tuple[float, float]] = Recent(10_000)

    def wait_s(self, caller: str) -> float:
        """Take one from a caller's bucket; how long to wait where it is empty, else 0."""
        if not self._per_s:
            return 0.0
        now, capacity = self._clock(), max(1.0, 2 * self._per_s)
        at, allowance = self._buckets.get(caller, (now, capacity))
        allowance = min(capacity, allowance + (now - at) * self._per_s)
        allowed = allowance >= 1
        self._buckets[caller] = now, allowance - allowed
        return 0.0 if allowed else (1 - allowance) / self._per_s


# Secrets: what looks like a key of a known format is replaced, on the way in and in everything shown.

# Kind -> how it begins, in any of these ways, and how it goes on.
SECRETS: dict[str, tuple[tuple[str, ...], str]] = {
    "Quire key": (("qk_",), r"[A-Za-z0-9_-]{40,}"),
    "Anthropic key": (("sk-ant-",), r"[A-Za-z0-9_-]{20,}"),
    "OpenRouter key": (("sk-or-v1-",), r"[0-9a-f]{40,}"),
    "OpenAI key": (("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"), r"[A-Za-z0-9_-]{20,}"),
    "OpenAI key, old": (("sk-",), r"[A-Za-z0-9]{32,}"),
    "Google key": (("AIza",), r"[A-Za-z0-9_-]{35}"),
    "AWS key": (("AKIA", "ASIA"), r"[A-Z0-9]{16}"),
    "GitHub token": (("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), r"[A-Za-z0-9_]{36,}"),
    "GitLab token": (("glpat-",), r"[A-Za-z0-9_-]{20,}"),
    "Slack token": (("xoxa-", "xoxb-", "xoxp-", "xoxo-", "xoxs-", "xoxr-"), r"[A-Za-z0-9-]{20,}"),
    "Stripe key": (("sk_live_", "rk_live_"), r"[A-Za-z0-9]{20,}"),
    "Hugging Face token": (("hf_",), r"[A-Za-z0-9]{30,}"),
    "npm token": (("npm_",), r"[A-Za-z0-9]{36}"),
    "private key": (
        ("-----BEGIN ",),
        r"(?:[A-Z]+ )?PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{20,}?-----END (?:[A-Z]+ )?PRIVATE KEY-----",
    ),
}


class Redactor:
    """Replaces secrets by their kind in brackets; `patterns` are more of them, `off` leaves all as it is."""

    def __init__(self, patterns: Iterable[str] = (), off: bool = False) -> None:
        self._kinds: list[tuple[str, tuple[str, ...], re.Pattern[str]]] = []
        if off:
            return
        for kind, (beginnings, rest) in SECRETS.items():
            # A literal in front is looked for much faster than any pattern.
            secret = re.compile(f"(?:{'|'.join(map(re.escape, beginnings))})(?:{rest})(?![A-Za-z0-9])")
            self._kinds.append((kind, beginnings, secret))
        for place, pattern in enumerate(patterns, 1):
            try:
                self._kinds.append((f"secret {place}", ("",), re.compile(pattern)))
            except re.error as error:
                raise CallError(
                    f"{pattern!r} is no pattern for secrets: {error}", hint="--redact takes a regular expression."
                ) from error

    def text(self, text: str) -> str:
        """A text without secrets: "key sk-ant-…" -> "key [Anthropic key]"."""
        for kind, beginnings, pattern in self._kinds:
            if any(beginning in text for beginning in beginnings):
                text = pattern.sub(partial(_replacement, kind), text)
        return text

    def bytes(self, data: bytes) -> bytes:
        """The same for JSON, whose strings may hold them."""
        return self.text(data.decode()).encode() if self._kinds else data

    def value(self, value: Json) -> Json:
        """A JSON value without secrets in its strings; what a provider signed or encrypted stays as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key == "wire" else self.value(item) for key, item in value.items()}
        return value

    def unfinished(self, reply: JsonObject) -> JsonObject:
        """A reply that is being written, as far as its words are whole: of half a secret nobody could tell."""
        if not self._kinds:
            return reply
        blocks = [{**block, "text": self.text(_whole_words(block["text"]))} for block in reply["blocks"]]
        return {**reply, "blocks": blocks}

    def entry(self, entry: Entry) -> Entry:
        """An entry without secrets; the very same where there is none."""
        if not self._kinds:
            return entry
        body = self.value(entry.body)
        return entry if body == entry.body else Entry(entry.kind, body)


def _replacement(kind: str, match: re.Match[str]) -> str:
    """What stands for a secret; what goes on from a word before it ("task-…") is none."""
    before = match.string[match.start() - 1 : match.start()]
    return match[0] if before.isascii() and before.isalnum() else f"[{kind.partition(',')[0]}]"


def _whole_words(text: str) -> str:
    """Up to the last space: "to be or no" -> "to be or "."""
    last_word = re.search(r"\S*\Z", text)
    return text[: last_word.start()] if last_word else text
