"""The inspector: one HTML page, served at `/` or written as a report that holds its data, and the routes it asks.

Nothing in the page is loaded from elsewhere, and only its own script runs: the policy names that script by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from quire import __version__
from quire.archive.stored_conversations import counted_call
from quire.assemble.user_message import original, whole_text
from quire.audit import SentCall, audit
from quire.audit.what_if import Tell, untold
from quire.errors import NotFound
from quire.log.entries import encode
from quire.log.store import Store
from quire.observe import comparing
from quire.providers.usage import sent_usage
from quire.server import Count, Recent, RouteCall, ThreadName, route
from quire.server.figures import ThreadRow, ThreadTotals, Whereabouts
from quire.server.views import Comparison, RequestBody, RequestDetail, ThreadPicture, ThreadView, WhatIf, try_policies
from quire.thread import Thread
from quire.thread_state import is_request
from quire.values import Entry, Json, JsonObject

if TYPE_CHECKING:
    from quire.recall import Hit


@cache
def _static(name: str) -> str:
    return resources.files("quire.server").joinpath("static", name).read_text("utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def security_policy(served: bool) -> str:
    """What the page may do: run its own script, show its own style; one that is served asks its service for data."""
    rules = {
        "default-src": "'none'",
        "script-src": _hash(_static("app.js")),
        "style-src": _hash(_static("app.css")),
        "img-src": "data: blob:",
        "connect-src": "'self'" if served else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def page(data: Json = None, title: str = "Quire") -> str:
    """The page; without data it asks the service that it came from."""
    # Inert: no `<` stands in it, so nothing in it can end the element.
    written = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    named = title.replace("&", "&amp;").replace("<", "&lt;")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{security_policy(data is None)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{named}</title>\n<style>{_static('app.css')}</style>\n</head>\n<body>\n"
        '<div id="app"></div>\n<noscript>The inspector needs JavaScript; nothing is loaded from elsewhere.</noscript>\n'
        f'<script type="application/json" id="data">{written}</script>\n'
        f'<script type="module">{_static("app.js")}</script>\n</body>\n</html>\n'
    )


# So many requests come with their body, those around rebases first; one that is larger than this stays out.
_BODIES, _BODY_BYTES = 12, 400_000


def report(thread: ThreadView, what_if: WhatIf | None = None, tell: Tell = untold) -> str:
    """A thread's report: one file with its picture and every request, to be sent to somebody."""
    picture = thread.picture()
    made = [column for column in picture.columns if not column.refused]
    numbers = [column.n for column in made]
    pairs = [(before.n, column.n) for before, column in pairwise(made) if column.rebase is not None]
    chosen = dict.fromkeys([*numbers[-1:], *(n for pair in reversed(pairs) for n in reversed(pair)), *numbers[:1]])
    bodies = ((n, thread.body(n)) for n in list(chosen)[:_BODIES])
    data: JsonObject = {
        "picture": picture,
        **thread.shared(),
        "bodies": {str(n): body for n, body in bodies if len(msgspec.json.encode(body)) <= _BODY_BYTES},
        "compared": dict(_compare(thread, pairs, tell)),
        "what_if": what_if,
        "made": {"version": __version__, "command": shlex.join(["quire", "report", thread.name])},
    }
    return page(data, f"{thread.name} · Quire")


def _compare(thread: ThreadView, pairs: Sequence[tuple[int, int]], tell: Tell) -> Iterator[tuple[str, Comparison]]:
    by = comparing()
    for number, (before, after) in enumerate(pairs, 1):
        yield f"{before}-{after}", thread.compare(before, after, by)
        tell("rebases", number, len(pairs))


# What the page asks for.

# How many threads stay in memory as they were last looked at.
_READY = 8


class ThreadViews:
    """The threads of one tenant as they were last looked at; each is kept up with its log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._views: Recent[str, ThreadView] = Recent(_READY)
        self._totals: dict[str, ThreadTotals] = {}
        self._lock = threading.Lock()

    def view(self, name: str) -> ThreadView:
        with self._lock:
            view = self._views.pop(name, None)
            if view is None or not self._stands(name, view.entries):
                view = ThreadView(name, self._store.read(name))
            else:
                view.extend(self._store.read(name, after=len(view.entries)))
            self._views[name] = view
            return view

    def _stands(self, name: str, entries: list[Entry]) -> bool:
        """Whether the thread still begins with these entries: it may have been deleted and begun again under its name."""
        last = self._store.read(name, after=len(entries) - 1, limit=1) if entries else []
        return bool(last) and last[0].id == entries[-1].id

    def rows(self) -> list[ThreadRow]:
        with self._lock:
            out = []
            for info in self._store.threads():
                totals = self._totals.get(info.name)
                if totals is None or info.seq < totals.seq or (info.seq == totals.seq and info.id != totals.id):
                    totals = self._totals[info.name] = ThreadTotals()
                if info.seq > totals.seq:
                    totals.extend(self._store.read(info.name, after=totals.seq))
                out.append(totals.row(info))
            return out


def _thread_view(call: RouteCall) -> ThreadView:
    return call.tenant.views.view(call.name)


Number = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Words = Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)]
# A model; empty: the thread's own.
TargetName = Annotated[str, msgspec.Meta(max_length=200)]


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Price = Annotated[float, msgspec.Meta(ge=0, le=1000)]


class ThreadRows(msgspec.Struct):
    threads: list[ThreadRow]


class FullText(msgspec.Struct):
    text: str


class FoundEntry(msgspec.Struct):
    """An entry that a search found, and why: the words it shares with the question, and the parts of its score."""

    thread: str
    seq: int
    kind: str
    score: float
    by: str
    parts: dict[str, float]
    words: list[str]
    text: str


class FoundEntries(msgspec.Struct):
    """What was found; where nothing is relevant, what is nearest."""

    by: str
    relevant: bool
    # Entries that have no vector yet: words alone find them.
    unread: int
    hits: list[FoundEntry]


def inspect_threads(call: RouteCall) -> ThreadRows:
    """All threads with what they used: model, turns, tokens, money, reuse."""
    return ThreadRows(call.tenant.views.rows())


def inspect_thread(call: RouteCall) -> ThreadPicture:
    """A thread as one picture: a column for each request."""
    return _thread_view(call).picture()


def inspect_request(call: RouteCall, n: Number) -> RequestDetail:
    """One request: layers, segments, what was left out and why."""
    return _thread_view(call).request(n)


def inspect_text(call: RouteCall, n: Number, place: Count) -> FullText:
    """The whole text of one segment of a request."""
    return FullText(_thread_view(call).segment_text(n, place))


def inspect_body(call: RouteCall, n: Number, target: TargetName = "") -> RequestBody:
    """The exact body of a request for any provider, with its marks, and what the provider's rules say of it."""
    return _thread_view(call).body(n, target)


def inspect_compare(call: RouteCall, first: Number, second: Number) -> Comparison:
    """Where two requests part, why, and what that cost."""
    return _thread_view(call).compare(first, second)


def inspect_where(call: RouteCall, text: Words) -> Whereabouts:
    """When a string entered, in which requests it stood and as what, and whether recall brings it back."""
    thread = Thread(call.store, call.name, observers=())

    def recalled(text: str) -> list[int]:
        return [hit.seq for hit in thread.recall(text, 10, exclude=()) if text in whole_text(hit.entry)]

    try:
        return _thread_view(call).where(text, recalled)
    finally:
        thread.close()


def inspect_what_if(
    call: RouteCall,
    budget: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None,
    floor: Share | None = None,
    handles: Share | None = None,
    summary: Share | None = None,
    opening: Share | None = None,
    read: Price | None = None,
    write: Price | None = None,
    ttl_s: Annotated[int, msgspec.Meta(ge=0, le=10**7)] | None = None,
    promote: Literal["at-rebase", "each-turn"] | None = None,
    only: Annotated[str, msgspec.Meta(max_length=100)] = "",
) -> WhatIf:
    """The recorded thread under other policies, each run over the whole of it."""
    changes = {name: value for name, value in call.arguments.items() if name != "only" and value is not None}
    return try_policies(_thread_view(call), only, **changes)


def inspect_entry(call: RouteCall, seq: Number) -> FullText:
    """The original of an entry."""
    entries = call.store.read(call.name, seq - 1, 1)
    if not entries:
        raise NotFound(f"{call.name} has no entry {seq}", hint="Entries count from 1.")
    return FullText(original(entries[0]) or encode(entries[0], ids=False))


def inspect_search(call: RouteCall, text: Words, thread: ThreadName | None = None) -> FoundEntries:
    """Entries of all threads, or of one, by words and by meaning, with the reasons for each."""
    from quire.recall import Recall, relevant
    from quire.recall.meaning import installed

    searching = Recall(call.store, installed())
    hits = searching.search(text, 20, thread=thread)
    # A score above zero is better than usual among what was looked through.
    best = [hit for hit in hits if hit.score > 0] if relevant(hits) else hits[:5]
    unread = searching.without_meaning(thread)
    return FoundEntries(searching.by, relevant(hits), unread, [_found_entry(hit, text) for hit in best])


# Of a text that was found, so much is shown, beginning shortly before the first of the words.
_SHOWN_CHARS, _BEFORE = 320, 60


def _found_entry(hit: Hit, question: str) -> FoundEntry:
    from quire.recall.document import document
    from quire.recall.languages import terms

    text = document(hit.entry).text
    text_terms = set(terms(text))
    words = [word for word in dict.fromkeys(question.split()) if text_terms & set(terms(word, is_query=True))]
    # The ending may be another one: "orders" is found in "ordered".
    places = (text.lower().find(word.lower()[: max(4, len(word) - 3)]) for word in words)
    start = max(0, min((at for at in places if at >= 0), default=0) - _BEFORE)
    part = ("… " if start else "") + text[start : start + _SHOWN_CHARS]
    return FoundEntry(hit.thread, hit.seq, hit.entry.kind, hit.score, hit.by, hit.parts, words, part)


def inspect_audit(call: RouteCall) -> JsonObject:
    """What the requests of all threads could have read from the provider's cache and did not, and why."""
    return audit(sent_calls(call.store)).as_json()


def sent_calls(store: Store) -> Iterator[SentCall]:
    """Every request that the threads of a store say was sent, with what it used."""
    for info in store.threads():
        rebased = False
        for entry in store.read(info.name, after=info.forked_at):
            rebased |= entry.kind == "rebase"
            if is_request(entry) and isinstance(entry.body.get("usage"), dict):
                provider, model = str(entry.body.get("provider")), str(entry.body.get("model"))
                source, used = f"{info.name}, entry {entry.seq}", sent_usage(entry)
                yield counted_call(source, provider, model, used, entry.at, info.name, compacted=rebased)
                rebased = False


def proxy_conversations(call: RouteCall) -> JsonObject:
    """What passes the proxy on this port: every conversation with its newest requests, and each loss with its cause."""
    from quire.server.watch import CacheWatcher

    if not call.service.passes_on:
        raise NotFound("no proxy runs on this port", hint="Start with `quire serve --to URL`.")
    return (call.service.watchers.get(call.tenant.name) or CacheWatcher()).as_json()


_THREAD = "/api/inspect/threads/{name}"
ROUTES = (
    route("GET", "/api/inspect/threads", inspect_threads),
    route("GET", "/api/inspect/search", inspect_search, errors=(404,)),
    route("GET", "/api/inspect/audit", inspect_audit),
    route("GET", "/api/proxy/conversations", proxy_conversations, errors=(404,)),
    route("GET", _THREAD, inspect_thread),
    route("GET", f"{_THREAD}/request", inspect_request),
    route("GET", f"{_THREAD}/text", inspect_text),
    route("GET", f"{_THREAD}/body", inspect_body),
    route("GET", f"{_THREAD}/compare", inspect_compare),
    route("GET", f"{_THREAD}/where", inspect_where),
    route("GET", f"{_THREAD}/what-if", inspect_what_if),
    route("GET", f"{_THREAD}/entry", inspect_entry),
)
