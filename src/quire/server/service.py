"""What all routes share: the tenants with their stores and threads, who may ask and how often, what was done already,
and what nobody gets to see.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from quire.errors import CallError, ConflictError, NotFound, QuireError
from quire.log import lock_turn, now_ms, off_loop
from quire.log.store import DEFAULT_TENANT, RecordFilter, Store, check_tenant, is_server, tenant_file
from quire.records.record import decode, draft, number
from quire.records.store import number_record
from quire.send.events import STATE as PARTIAL
from quire.send.transport import page_refusal
from quire.server import HttpRefusal, Recent, Route, RouteCall
from quire.server.follow import Follower, Readers
from quire.server.turns import Turns
from quire.telemetry import watched
from quire.thread import Thread, open_store
from quire.values import Entry, Json, JsonObject, cached_property, sha256_hex

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import StreamingResponse

    from quire.server.inspector import ThreadViews
    from quire.server.remote_store import HeldTurn
    from quire.server.watch import CacheWatcher


# The service's own records: keys, and which writes were carried out.
_OWN = "quire-service"
_ONCE = "quire.once.v1"
_REMEMBERED_S = 24 * 60 * 60
# With less than this left on its disk a service says that it is not ready.
_LEAST_FREE = 1024 * 1024
# How many of a tenant's threads stay in memory whatever their length; and up to how many entries in all, more of them.
_READY, _READY_ENTRIES = 64, 100_000
# How many OS threads one tenant's calls may hold at once: as many as asyncio would have; and half as many for others.
SHARE = min(32, (os.cpu_count() or 1) + 4)


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a service takes: bytes of one body, requests a second of one caller, readers of events at once."""

    body_bytes: int = 16 * 1024 * 1024
    per_s: float = 500.0
    readers: int = 5000
    # How long a turn that is under way may go on when the service is to end.
    grace_s: float = 10.0


class TenantStore:
    """A store into which no secret of a known format gets, and whose followers hear at once of what was written."""

    def __init__(self, store: Store, redactor: Redactor, wrote: Callable[[str], None]) -> None:
        self._store, self._redactor, self._wrote = store, redactor, wrote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append; what looks like a secret is replaced first."""
        appended = self._store.append(thread, map(self._redactor.entry, entries), expected_seq)
        self._wrote(thread)
        return appended

    def delete(self, thread: str) -> None:
        """Remove a thread; whoever follows it hears that it ended."""
        self._store.delete(thread)
        self._wrote(thread)

    def set_state(self, thread: str, key: str, value: Json) -> None:
        """Keep derived state; of a reply that is still being written, only what is whole words by now."""
        partial = key == PARTIAL and isinstance(value, dict)
        self._store.set_state(thread, key, self._redactor.unfinished(value) if partial else value)
        if partial:
            self._wrote(thread)


class Tenant:
    """One owner of threads: a store that holds nobody else's, and the threads that were used last."""

    def __init__(self, name: str, store: Store, redactor: Redactor, ending: asyncio.Event) -> None:
        self.name = name
        self.follower = Follower(store, ending)
        self.share = asyncio.Semaphore(SHARE)
        self.store = cast(Store, TenantStore(store, redactor, self.follower.wrote))
        # Turns that callers hold; see `quire.server.remote_store`.
        self.held_turns: dict[str, HeldTurn] = {}
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def views(self) -> ThreadViews:
        """Its threads as the inspector shows them."""
        from quire.server.inspector import ThreadViews

        return ThreadViews(self.store)

    def thread(self, name: str, create: bool = False) -> Thread:
        """A thread, made if `create`; one in memory is used again while its log still begins with what it has read."""
        with self._lock:
            thread = self._threads.pop(name, None)
        if thread is None or not thread.read_to or not thread.reads_its_log():
            if not create:
                self.store.info(name)
            thread = watched(Thread(self.store, name), os.environ)
            for surplus in self._surplus_threads():
                surplus.close()
        with self._lock:
            self._threads[name] = thread
        return thread

    def _surplus_threads(self) -> list[Thread]:
        """The threads to remove from memory, those used longest ago first."""
        surplus = list[Thread]()
        with self._lock:
            entries = sum(thread.read_to for thread in self._threads.values())
            while len(self._threads) > _READY and entries > _READY_ENTRIES:
                surplus.append(self._threads.popitem(last=False)[1])
                entries -= surplus[-1].read_to
        return surplus


class Service:
    """A running service on the database at `place`; it holds no state that is not there or derived from it."""

    def __init__(
        self,
        place: str | Path,
        *,
        needs_keys: bool = False,
        limits: ServiceLimits | None = None,
        redactor: Redactor | None = None,
        model: str = "",
        base_url: str = "",
    ) -> None:
        self.place, self.limits = place, limits or ServiceLimits()
        self.redactor = redactor or Redactor()
        self._tenants: dict[str, Tenant] = {}
        self._lock = threading.Lock()
        self.needs_keys = needs_keys or self._has_keys()
        self._looked_for_keys = time.monotonic()
        self._notes = 0
        self._rates = Rates(self.limits.per_s)
        # No new turn begins when the service is to end; once the turns have ended, readers are told to come back.
        self.draining = False
        self.ending = asyncio.Event()
        self.clock = now_ms
        # What watches each tenant's proxy on the same port, where there is one.
        self.watchers: dict[str, CacheWatcher] = {}
        self.passes_on = False
        self.readers = Readers(self.limits.readers)
        self.turns = Turns(self, model, base_url)

    @cached_property
    def _service_store(self) -> Store:
        """The service's own records, made when there is something to keep."""
        return open_own(self.place)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self._service_store)

    def _has_keys(self) -> bool:
        has_records = is_server(self.place) or tenant_file(Path(self.place), _OWN).exists()
        return has_records and self.keys.any()

    async def _demands_key(self) -> bool:
        """Whether a key is needed: from the first one on, wherever it was made."""
        if not self.needs_keys and time.monotonic() - self._looked_for_keys > KEYS_CACHED_S:
            self._looked_for_keys = time.monotonic()
            self.needs_keys = await off_loop(self._has_keys)
        return self.needs_keys

    def known_tenant(self, name: str) -> Tenant | None:
        """A tenant that was asked for before: nothing has to be opened for it."""
        return self._tenants.get(name)

    def tenant(self, name: str = DEFAULT_TENANT) -> Tenant:
        """A tenant with its store, opened when it is first asked for."""
        with self._lock:
            if name not in self._tenants:
                store = open_store(self.place, name)
                self._tenants[name] = Tenant(name, store, self.redactor, self.ending)
            return self._tenants[name]

    def check(self) -> None:
        """An error unless the database can be read, and written as far as can be told without writing."""
        self.tenant().store.last_change()
        if is_server(self.place):
            self._service_store.records.purge(now_ms())  # an error where it only reads
            return
        folder = os.path.dirname(os.path.abspath(self.place))
        if not os.access(self.place, os.W_OK) or not os.access(folder, os.W_OK):
            raise QuireError(f"{self.place} is read-only", hint="Give it a place that can be written.")
        if shutil.disk_usage(folder).free < _LEAST_FREE:
            raise QuireError(f"the disk of {self.place} is full", hint="Make room; reading still works.")

    async def drain(self) -> None:
        """End: turns that are under way are finished, or stopped and recorded; then readers are sent away."""
        self.draining = True
        await self.turns.drain(self.limits.grace_s)
        self.ending.set()
        for tenant in list(self._tenants.values()):
            await tenant.follower.end()

    def close(self) -> None:
        with self._lock:
            for tenant in self._tenants.values():
                tenant.store.close()
            if "_service_store" in self.__dict__:
                self._service_store.close()

    # Who is let in

    async def admit(self, request: HTTPConnection, own_header: bool = False) -> str:
        """The name of the tenant that asks; a refusal for whoever has no key, asks too often, or is a page of another site.

        With `own_header` the key comes in x-quire-key alone: Authorization is the provider's.
        """
        key = request_key(request.headers, own_header)
        caller = request.client.host if request.client else ""
        name = DEFAULT_TENANT
        if await self._demands_key():
            api_key = await off_loop(self.keys.find, key) if key else None
            if api_key is None:
                header = "x-quire-key: qk_…" if own_header else "Authorization: Bearer qk_…"
                raise HttpRefusal(
                    401,
                    "a key is needed" if not key else "the key is not known, or was revoked",
                    hint=f"Send it as `{header}`; `quire serve keys add` makes one.",
                    headers={"www-authenticate": "Bearer"},
                )
            name, caller = api_key.tenant, api_key.id
        elif why := page_refusal(request.headers):
            raise HttpRefusal(403, why, hint="Use http://127.0.0.1 and the inspector on this port, or add a key.")
        if wait_s := self._rates.wait_s(caller):
            raise HttpRefusal(
                429,
                f"more than {self.limits.per_s:g} requests a second",
                hint="Wait as long as Retry-After says; `quire serve --rate` sets the limit.",
                headers={"retry-after": str(int(wait_s) + 1)},
            )
        return name

    def stream(self, call: RouteCall, pieces: AsyncGenerator[bytes, None]) -> StreamingResponse:
        """The pieces as a stream, which ends when the reader's key is revoked."""
        return self.readers.response(pieces, partial(self.admits_still, call.headers, call.tenant.name))

    async def admits_still(self, headers: Mapping[str, str], tenant: str, own_header: bool = False) -> bool:
        """Whether an open connection would still be admitted: keys are revoked, and the first key closes the service."""
        if not await self._demands_key():
            return True
        api_key = await off_loop(self.keys.find, request_key(headers, own_header))
        return api_key is not None and api_key.tenant == tenant

    # What was done already

    async def once(self, route: Route, call: RouteCall, answer: Callable[[Route, RouteCall], Awaitable[Any]]) -> Any:
        """Answer a call; a write with an Idempotency-Key that was carried out before is not carried out again."""
        key = call.headers.get("idempotency-key")
        if key is None or not route.writes:
            return await answer(route, call)
        if not 0 < len(key) <= 200 or not key.isascii() or not key.isprintable() or " " in key:
            raise HttpRefusal(422, "the Idempotency-Key is not 1 to 200 visible ASCII characters")
        mark = sha256_hex(f"{call.tenant.name}\n{key}")
        async with lock_turn(_key_in_use(self._service_store, mark)):
            return await self._once(route, call, answer, mark)

    async def _once(
        self, route: Route, call: RouteCall, answer: Callable[[Route, RouteCall], Awaitable[Any]], mark: str
    ) -> Any:
        digest = sha256_hex(msgspec.json.encode([route.method, route.path, call.path, call.arguments.get("body")]))
        before = await off_loop(self._read_note, mark)
        if before and before["asked"] != digest:
            raise HttpRefusal(
                409,
                "the Idempotency-Key was used for another request",
                hint="Make a new key for each request; use the same only to try one again.",
            )
        if before and "answer" in before:
            return before["answer"]
        call.began = before.get("began")
        call.remember = lambda how: self._write_note(mark, {"asked": digest, "began": how})
        value = await answer(route, call)
        if call.began is None:
            # A handler that called `begin` sees from its note whether it was carried out; of others the answer is stored.
            await off_loop(self._write_note, mark, {"asked": digest, "answer": msgspec.to_builtins(value)})
        return value

    def _read_note(self, mark: str) -> JsonObject:
        bodies = list(self._service_store.records.select(RecordFilter((_ONCE,), (mark,), now_ms())))
        return decode(bodies[-1]).context if bodies else {}

    def _write_note(self, mark: str, note: JsonObject) -> None:
        self._notes += 1
        if self._notes % 1000 == 1:
            self._service_store.records.purge(now_ms())
        record = draft(_ONCE, note, tags=[mark], ttl_s=_REMEMBERED_S, now=now_ms())
        self._service_store.records.insert([number_record(record)])


@contextmanager
def _key_in_use(store: Store, mark: str) -> Iterator[None]:
    """Hold a key while its request is carried out, anywhere; whoever comes meanwhile is told to try again."""
    with ExitStack() as held:
        try:
            held.enter_context(store.turn_lock(f"once {mark}"))
        except ConflictError as error:
            raise HttpRefusal(
                409,
                "a request with this Idempotency-Key is under way",
                hint="Try again in a moment: the answer will be the same.",
                headers={"retry-after": "1"},
            ) from error
        yield


def request_key(headers: Mapping[str, str], own_header: bool = False) -> str:
    quire_key = headers.get("x-quire-key")
    if quire_key or own_header:
        return quire_key or ""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def open_own(place: str | Path) -> Store:
    """The store of the service's own records."""
    return open_store(place, _OWN)


# Keys: one is shown once, when it is made; what is stored is its SHA-256, as a record of the service's own store.

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


class Keys:
    """The API keys of a service, kept in its own store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: Recent[str, tuple[float, ApiKey | None]] = Recent(1000)
        self._lock = threading.Lock()

    def add(self, name: str, tenant: str, now: int) -> str:
        """Make a key for a tenant; it can be read here and never again."""
        if not name.strip() or not name.isprintable():
            raise CallError(f"{name!r} cannot be a key's name", hint="Say in one line what will use it: laptop.")
        if tenant == _OWN:
            raise CallError(f"{tenant!r} is the service's own", hint="Its keys are kept there: choose another name.")
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        record = draft(
            _SCHEMA, {"name": name, "tenant": check_tenant(tenant)}, tags=[f"sha256:{sha256_hex(key)}"], now=now
        )
        self._store.records.insert([number_record(record)])
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
    "xAI key": (("xai-",), r"[A-Za-z0-9]{40,}"),
    "Groq key": (("gsk_",), r"[A-Za-z0-9]{40,}"),
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
                if re.search(pattern, ""):
                    raise re.error("it matches where nothing stands")
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
            shown: JsonObject = {}
            for key, item in value.items():
                name = self.text(key)
                while name != key and (name in value or name in shown):
                    name += f" {len(shown) + 1}"  # two secrets of a kind are two fields
                shown[name] = item if key == "wire" else self.value(item)
            return shown
        return value

    def unfinished(self, reply: JsonObject) -> JsonObject:
        """A reply that is being written, as far as its words are whole: of half a secret nobody could tell."""
        if not self._kinds:
            return reply
        whole_words = (re.sub(r"\S+\Z", "", block["text"]) for block in reply["blocks"])
        blocks = [{**block, "text": self.text(text)} for block, text in zip(reply["blocks"], whole_words, strict=True)]
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
