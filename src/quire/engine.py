"""The path on one screen: log → select → layer → fit → render → (send) → record → log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quire import providers, values
from quire.assemble import Assembly, Built, Policy
from quire.assemble.layers import enclose
from quire.assemble.monitor import watch
from quire.assemble.summary import Summarise, extract
from quire.errors import CallError
from quire.items import Window
from quire.log.hashing import sha256_hex
from quire.log.sqlite import SqliteStore
from quire.log.store import Store
from quire.providers.explain import Event, Watch, diagnosis_of
from quire.providers.models import ModelInfo, model_info
from quire.values import Entry, Envelope, Item, Json, JsonObject, Prompt, Reply, Request

if TYPE_CHECKING:
    from quire.recall import Embedder, Hit, Query
    from quire.send.cycle import Outcome
    from quire.send.transport import Transport

_logger = logging.getLogger("quire")
# Of the budget, what recalled text may take in one turn.
RECALL_SHARE = 0.1


def wall_ms() -> int:
    """The time that live entries are stamped with; it orders nothing."""
    return time.time_ns() // 1_000_000


def open_store(path: str | Path) -> SqliteStore:
    """A store whose entries are searchable by words as soon as they are appended."""
    from quire.recall import words_hook
    from quire.records import records_hook

    return SqliteStore(path, hooks=(words_hook(), records_hook()))


def policy_for(target: str, policy: Policy | None = None, **changes: Any) -> Policy:
    """A policy with the model's own window, prices and cache life; what is given wins."""
    info = model_info(target)
    given = policy or Policy(
        budget=info.window or Policy().budget, reply=min(info.max_output, info.window // 8)
    )
    return msgspec.structs.replace(given, **{**_of_model(target, info), **changes})


def _of_model(target: str, info: ModelInfo) -> dict[str, Any]:
    return {
        "model": target,
        "read": info.r,
        "write": info.w,
        "ttl_s": info.ttl_s[0] if info.ttl_s else None,
        "late_tools": bool(info.features.late_tools),
        "thinking": info.wire != "openai-chat" or info.features.reasoning_content != "never",
    }


class Thread:
    """One conversation: append to it, ask for its next request, record what came back."""

    def __init__(
        self,
        store: Store,
        name: str,
        policy: Policy | None = None,
        summarise: Summarise = extract,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self.store, self.name, self.policy, self.summarise, self.clock = store, name, policy, summarise, clock
        self.seq = 0
        # Heard when L1 or L2 moved and no entry explains it, and when a reply read other than predicted.
        self.on_warning: Callable[[object], None] = lambda what: _logger.warning("%s: %s", name, what)
        self.embedder: Embedder | None = None
        # Ask the provider what it could not reuse of the request before, naming that one's reply.
        self.diagnose = False
        self._assembly: Assembly | None = None
        self._renderings: dict[str, providers.Rendering] = {}
        self._watches: dict[str, Watch] = {}
        self._sent: tuple[Request, Envelope] | None = None
        self._since: list[Entry] = []
        self._times: list[int] = []
        self._turn_times: tuple[int, ...] = ()
        self._reply_id: str | None = None

    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably, behind everything this thread has seen."""
        kept = self.store.append(self.name, entries, expected_seq=self._catch_up())
        self._feed(kept)
        return kept

    def user(
        self, text: str, attach: Iterable[Item | JsonObject] = (), recall: int = 0, **extra: Json
    ) -> Entry:
        """The user speaks; the window's items, these, and `recall` older entries join this turn's context."""
        items = [*self.window.get(), *attach]
        if recall:
            extra["meta"] = {**self._recalled(text, recall), **(extra.get("meta") or {})}
        return self.append(values.user(text, items, **{"at": self.clock(), **extra}))[0]

    def recall(self, query: str | Query, k: int = 5, **how: Any) -> list[Hit]:
        """Older entries of this thread, by words and, once `self.embedder` is set, by meaning."""
        from quire.recall import Recall

        with Recall(self.store, self.embedder) as found:  # type: ignore[arg-type]  # its tables live in SQLite
            return found.search(query, k, thread=self.name, **how)

    def _recalled(self, text: str, k: int) -> JsonObject:
        """What a turn's message says of older entries: only what the prompt does not hold already."""
        from quire.recall import Query, place
        from quire.recall.placement import in_prompt, standing

        assembly = self._assembly_for(self._assembly.policy.model if self._assembly else "openai-chat:")
        ahead = assembly.ahead()
        shown = in_prompt(ahead.epoch.prompt(), ahead.left_out)
        before = next((e.text for e in reversed(assembly.entries.values()) if e.kind == "user"), "")
        hits = self.recall(Query(text, before), k, exclude=shown) if assembly.entries else []
        share = int(assembly.policy.limit * RECALL_SHARE)
        return place(hits, share, standing(assembly.entries.values(), shown)).meta

    @cached_property
    def window(self) -> Window:
        """The items at hand, saved with the thread by `keep`; what it evicts stays in the log."""
        saved = self.store.window(self.name) if self._exists() else None
        return Window.from_json(saved) if saved else Window(clock=self.clock)

    def keep(self, item: Item | str, **how: Any) -> Item:
        """Put an item into the window: it joins every turn until it is evicted or removed."""
        added = self.window.add(item, **how)
        if not self._exists():
            self.store.create(self.name)
        self.store.save_window(self.name, self.window.to_json())
        return added

    def request(self, target: str, **options: Any) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first."""
        built = self.build(target)
        if built.rebase is not None:
            self.append(Entry("rebase", {**built.rebase, "at": self.clock()}))
            built = self.build(target)
        request = self._render(built, target, options)
        self._watch(request, enclose(built, ()))
        return request

    def build(self, target: str) -> Built:
        """Select, layer and fit: what would be sent now, without recording anything."""
        return self._assembly_for(target).request()

    def so_far(self, target: str) -> Prompt:
        """What would be sent if no rebase were made: the prefix that the provider has cached, and what is new."""
        return self._assembly_for(target).ahead().epoch.prompt()

    def envelope(self, target: str) -> Envelope:
        """The five layers of what would be sent now."""
        built = self.build(target)
        return enclose(built, chat_messages(built))

    def record(self, reply: Any, request: Request | None = None) -> list[Entry]:
        """A reply, as the SDK gave it or as JSON, into the log with what was sent for it and what it used."""
        sent = request or (self._sent[0] if self._sent else None)
        if sent is None:
            raise CallError("there is no request to record a reply for", hint="Call thread.request() first.")
        parsed = (
            reply if isinstance(reply, Reply) else providers.parse_reply(_target(sent), reply, self._names())
        )
        kept = self.append(self.sent_entry(sent, parsed), *parsed.entries)
        self.reported(sent, parsed, _diagnosis(reply))
        return kept

    def _names(self) -> list[str]:
        """The tools' own names, by which a provider's spelling of them is read back."""
        return list(self._assembly.carried.tools) if self._assembly is not None else []

    def reported(self, request: Request, reply: Reply, diagnosis: JsonObject | None = None) -> Event | None:
        """What a reply read from the cache, compared with what was predicted; a difference is a warning."""
        watch = self._watches.get(_target(request))
        event = watch.reported(reply.usage, diagnosis) if watch is not None else None
        if event is not None and not event.foreseen:
            self.on_warning(event)
        return event

    def resume(self, transport: Transport | None = None, **how: Any) -> Outcome:
        """Continue an interrupted turn from the log; `runner`, `decide` and `on_event` are as in quire.send."""
        from quire.send.resume import resume_sync

        return resume_sync(self, transport, **how)

    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for a request: hashes of what was sent, and usage once it is known."""
        parts = providers.prefix_parts(request.body, request.provider)
        body: JsonObject = {
            "kind": "sent",
            "provider": request.provider,
            "model": request.model,
            "request_sha256": sha256_hex(request.prefix),
            "segments": [sha256_hex(part) for part in parts],
            "at": self.clock(),
        }
        if reply is not None:
            body |= {"usage": msgspec.to_builtins(reply.usage), "stop": reply.stop}
            if reply.id:
                body["wire"] = {"id": reply.id}
        return Entry("sent", body)

    def _watch(self, request: Request, sealed: Envelope) -> None:
        """Predict what the request will read, and compare its L1 and L2 with the request before."""
        self._watches.setdefault(_target(request), Watch(_target(request))).sent(self.clock(), request.body)
        if self._sent is not None and self._sent[0].provider == request.provider:
            moved = watch(self._sent[1], sealed, self._since)
            if moved is not None:
                self.on_warning(moved)
        self._sent, self._since = (request, sealed), []

    def _render(self, built: Built, target: str, options: dict[str, Any]) -> Request:
        """Render from where the last request left it: what stands already is not written again."""
        key = f"{target} {options!r}"
        if key not in self._renderings:
            self._renderings = {key: providers.rendering(target, providers.ask(key=self.name, **options))}
        request = self._renderings[key].request(built.prompt)
        before = self._reply_id if self.diagnose else None
        return providers.marked(request, built.prompt, times=self._turn_times, previous_id=before)

    def _assembly_for(self, target: str) -> Assembly:
        """The thread folded for this model; another model's fold is thrown away and made anew."""
        policy = policy_for(target, self.policy)
        if self._assembly is None or self._assembly.policy != policy:
            self._assembly, self.seq = Assembly(policy, self.summarise), 0
            self._times = []
        self._catch_up()
        return self._assembly

    def _catch_up(self) -> int:
        """Take in what the log has gained since, whoever wrote it."""
        if self.seq or self._exists():
            self._feed(self.store.read(self.name, after=self.seq))
        return self.seq

    def _exists(self) -> bool:
        return any(one.name == self.name for one in self.store.threads())

    def _feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self._assembly is not None:
                self._assembly.feed(entry)
            self._since.append(entry)
            if entry.kind == "user":
                # Within a turn the log decides, not the clock: a resumed turn keeps the marks it began with.
                self._turn_times = tuple(self._times)
            elif entry.kind == "sent":
                self._note_sent(entry)
            self.seq = entry.seq

    def _note_sent(self, entry: Entry) -> None:
        """When requests were sent, which tells how long caches must live, and what the newest reply is called."""
        if entry.at is not None and not entry.meta.get("aside"):
            self._times.append(entry.at)
        self._reply_id = entry.wire.get("id") or self._reply_id


def _diagnosis(reply: Any) -> JsonObject:
    """What the provider itself says of its cache, in JSON or in the SDK's object."""
    return diagnosis_of(reply.model_dump() if hasattr(reply, "model_dump") else reply)


def _target(request: Request) -> str:
    return f"{request.provider}:{request.model}"


def chat_messages(built: Built) -> list[JsonObject]:
    """A built request's messages in OpenAI Chat form, the system message left out."""
    messages: list[JsonObject] = providers.render(built.prompt, "openai-chat:").body["messages"]
    return messages[1:] if built.prompt.system else messages
