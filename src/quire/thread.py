"""A thread: the path of a message from the log to a request and back, and how a thread is opened."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import cached_property, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import msgspec

from quire import providers, values
from quire.assemble import Assembly, Built, Policy, Selection, checkpoint, fit
from quire.assemble.checkpoint import Checkpoint
from quire.assemble.fit import enclose
from quire.assemble.summary import Summarise, extract
from quire.errors import CallError, NotFound, QuireError
from quire.items import Window
from quire.log.sqlite import SqliteStore
from quire.log.store import Store
from quire.observe import CacheWatch, LayerHashes, Observer, Received, Sending
from quire.providers.explain import diagnosis_of
from quire.providers.gemini_cache import Served
from quire.providers.models import ModelInfo, model_info
from quire.providers.wires import wire_of
from quire.tokens import IMAGE_TOKENS
from quire.values import Entry, Envelope, Item, Json, JsonObject, Prompt, Reply, Request, RequestOptions

if TYPE_CHECKING:
    from quire.providers.cache_marks import Marker
    from quire.recall import Embedder, Hit, Query
    from quire.send.cycle import Outcome
    from quire.send.transport import Transport
    from quire.thread_recall import ThreadRecall


# A thread's entries folded for one model at a time, kept up with the log whoever writes it.


# A checkpoint is written when so many entries are new to it; a reader, who would wait for writers, waits for more.
CHECKPOINT_EVERY = 128
CHECKPOINT_EVERY_READ = 1024


class ThreadState:
    """Everything here is derived from the log; thrown away, it is made again by reading.

    What the store keeps of it, its checkpoint, spares reading again what stands before that.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self.seq = 0
        self._entry_id = ""
        self.assembly: Assembly | None = None
        # What came since the newest request: the entries that explain why its prefix moved.
        self._since: list[Entry] = []
        self._seen = 0
        # The newest `sent` entry; until a request is handed out here, it is the newest request.
        self._sent_seq, self._handed_out = 0, False
        self.reply_id: str | None = None
        # When requests were sent before this turn, which tells how long caches must live.
        self.turn_times: tuple[int, ...] = ()
        self._times: list[int] = []
        # The checkpoint that was read and has not been used yet, and the entry that the newest one ends at.
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_seq = 0

    def at(self, policy: Policy, summarise: Summarise) -> Assembly:
        """The thread folded under this policy; another model's fold is thrown away and made anew."""
        if self.assembly is None or self.assembly.policy != policy:
            self.assembly = self._from_checkpoint(policy, summarise) or self._from_start(policy, summarise)
        self.catch_up()
        return self.assembly

    def _from_start(self, policy: Policy, summarise: Summarise) -> Assembly:
        self.seq, self._times = 0, []
        return Assembly(policy, summarise)

    def _from_checkpoint(self, policy: Policy, summarise: Summarise) -> Assembly | None:
        """The fold that the store keeps, if it is of this policy and what it summarised would be told the same."""
        found, self._checkpoint = self._checkpoint or self._read_checkpoint(), None
        if found is None or found.policy != policy or (found.unrecorded and summarise is not extract):
            return None
        try:
            assembly = found.assembly(
                summarise, lambda after, limit: self._store.read(self._name, after, limit)
            )
        except (ValueError, RecursionError):
            return None  # its bytes are whole, but of another shape
        self._go_on_from(found)
        return assembly

    def _read_checkpoint(self) -> Checkpoint | None:
        """What the store keeps, if it names an entry of this very log."""
        data = self._store.checkpoint(self._name) if self.exists() else None
        found = checkpoint.decode(data) if data is not None else None
        named = self._store.read(self._name, found.seq - 1, 1) if found is not None and found.seq > 0 else []
        return found if found is not None and [one.id for one in named] == [found.entry_id] else None

    def _go_on_from(self, found: Checkpoint) -> None:
        """Stand where the checkpoint stands, what explains the next request included."""
        unseen = self._seen or (found.sent_seq - 1 if found.sent_seq else found.seq)
        if unseen < found.seq:
            self._since += self._store.read(self._name, unseen, found.seq - unseen)
        self._seen = max(self._seen, found.seq)
        self.seq, self._entry_id, self.reply_id = found.seq, found.entry_id, found.reply_id
        self._sent_seq, self._checkpoint_seq = found.sent_seq, found.seq
        self._times, self.turn_times = found.times[:], tuple(found.times[: found.times_before_turn])

    def keep_checkpoint(self, every: int = CHECKPOINT_EVERY) -> None:
        """Have the store keep the fold, once enough is new; a store that cannot leaves it to the log."""
        if self.assembly is None or self.seq - self._checkpoint_seq < every:
            return
        self._checkpoint_seq = self.seq
        now = Checkpoint(
            seq=self.seq,
            entry_id=self._entry_id,
            policy=self.assembly.policy,
            times=self._times,
            times_before_turn=len(self.turn_times),
            reply_id=self.reply_id,
            sent_seq=self._sent_seq,
            unrecorded=self.assembly.unrecorded,
        )
        theirs = self.assembly.unrecorded and self.assembly.summarise is not extract
        data = None if theirs else checkpoint.encode(now, self.assembly)
        if data is not None:
            with contextlib.suppress(QuireError):
                self._store.save_checkpoint(self._name, data)

    def catch_up(self) -> int:
        """Take in what the log has gained; the seq it ends at."""
        if not self.seq and self.assembly is None:
            self._checkpoint = self._read_checkpoint()
            if self._checkpoint is not None:
                self._go_on_from(self._checkpoint)
        if self.seq or self.exists():
            self.feed(self._store.read(self._name, after=self.seq))
        return self.seq

    def handed_out(self) -> tuple[Entry, ...]:
        """A request is handed out: the entries that came since the one before."""
        since, self._since, self._handed_out = tuple(self._since), [], True
        return since

    def exists(self) -> bool:
        try:
            self._store.info(self._name)
        except NotFound:
            return False
        return True

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self.assembly is not None:
                self.assembly.feed(entry)
            if entry.seq > self._seen:
                # Read again for another policy, an old entry explains nothing new.
                if _is_request(entry) and not self._handed_out:
                    self._since = []
                self._since.append(entry)
                self._seen = entry.seq
            if entry.kind == "user":
                # Within a turn the log decides, not the clock: a resumed turn keeps the marks it began with.
                self.turn_times = tuple(self._times)
            elif entry.kind == "sent":
                self._note_sent(entry)
            self.seq, self._entry_id = entry.seq, entry.id

    def _note_sent(self, entry: Entry) -> None:
        if _is_request(entry):
            self._sent_seq = entry.seq
            if entry.at is not None:
                self._times.append(entry.at)
        self.reply_id = entry.wire.get("id") or self.reply_id


def _is_request(entry: Entry) -> bool:
    """Whether an entry tells that a request of the conversation itself was sent."""
    return entry.kind == "sent" and not entry.meta.get("aside")


# Where a thread begins: the store with its indexes, and the policy that fits a model.

# `[image]`, where a model takes none.
NO_IMAGE_TOKENS = 8


def open_store(path: str | Path) -> SqliteStore:
    """A store whose entries are searchable by words as soon as they are appended."""
    from quire.recall import words_of

    return SqliteStore(path, words_of)


def policy_for(target: str, policy: Policy | None = None, **changes: Any) -> Policy:
    """A policy with the model's own window, prices and cache life; what is given wins."""
    info = model_info(target)
    given = policy or Policy(
        budget=info.window or Policy().budget, reply=min(info.max_output, info.window // 8)
    )
    return msgspec.structs.replace(given, **{**_of_model(target, info), **changes})


def changes(target: str, policy: Policy) -> JsonObject:
    """What a policy of one's own decides other than the model's would, as the log keeps it with each request."""
    usual, own = (msgspec.to_builtins(each) for each in (policy_for(target), policy_for(target, policy)))
    return {name: value for name, value in own.items() if value != usual[name]}


def policy_of(sent: JsonObject) -> Policy:
    """The policy that a `sent` entry was built under; its model's own where it names none."""
    meta = sent.get("meta") or {}
    target = f"{sent.get('provider')}:{sent.get('model')}"
    return within(target, changed_policy(target, meta.get("policy")), meta.get("window"))


def within(target: str, policy: Policy, window: Json) -> Policy:
    """A policy that keeps to the window a server named, and uses all of it where the budget is the model's own.

    Some of the window is left for what we count otherwise.
    """
    budget = int(window * 0.9) if isinstance(window, int) and not isinstance(window, bool) else 0
    if budget < 8:
        return policy
    usual, reply = policy_for(target), policy.reply
    if budget >= policy.budget:
        if policy.budget != usual.budget:
            return policy
        if reply == usual.reply:
            reply = model_info(target).max_output
    return msgspec.structs.replace(policy, budget=budget, reply=min(reply, budget // 8))


def changed_policy(target: str, named: Json) -> Policy:
    """The model's own policy with the changes that a `sent` entry names."""
    usual = policy_for(target)
    if not (isinstance(named, dict) and named):
        return usual
    known = {name: value for name, value in named.items() if name in usual.__struct_fields__}
    try:
        return msgspec.convert({**msgspec.to_builtins(usual), **known}, Policy)
    except (msgspec.ValidationError, CallError):
        return usual  # meta is free: what stands there need not be ours


def kept_request(store: Store, name: str) -> JsonObject:
    """A thread's newest `sent` entry, which names its policy; only the end of the log is read."""
    end, page = store.info(name).seq, 64
    while end:
        for entry in reversed(store.read(name, after=max(0, end - page), limit=min(end, page))):
            if entry.kind == "sent" and not entry.meta.get("aside"):
                return entry.body
        end, page = max(0, end - page), page * 4
    return {}


def _of_model(target: str, info: ModelInfo) -> dict[str, Any]:
    return {
        "model": target,
        "read": info.r,
        "write": info.w,
        "ttl_s": info.ttl_s[0] if info.ttl_s else None,
        "image_tokens": IMAGE_TOKENS if info.features.images else NO_IMAGE_TOKENS,
        "late_tools": bool(info.features.late_tools),
        "thinking": wire_of(info.wire).thinking(info),
    }


# The path on one screen: `Thread.request` and `Thread.record` are its steps, each handing over one frozen value.
#
#       Entry*        Selection      Built          Request       Reply         Entry*
# log ────────▶ select ───────▶ fit ───────▶ render ───────▶ send ───────▶ record ───────▶ log

_logger = logging.getLogger("quire")


def wall_ms() -> int:
    """The time that live entries are stamped with; it orders nothing."""
    return time.time_ns() // 1_000_000


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _one_at_a_time(method: _Method) -> _Method:
    """A method that only one OS thread runs at a time: what a Thread has folded belongs to the log it has read."""

    @wraps(method)
    def locked(self: Thread, *args: Any, **named: Any) -> Any:
        with self.lock:
            return method(self, *args, **named)

    return cast(_Method, locked)


class Thread:
    """One conversation: append to it, ask for its next request, record what came back.

    OS threads may share one. `with quire.open(…) as thread:` closes the file at the end. `observers` are told of what
    is sent and what comes back; without any given, caches are watched. `observers=()`: nobody, and no layer is hashed.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        policy: Policy | None = None,
        summarise: Summarise = extract,
        clock: Callable[[], int] = wall_ms,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        self.store, self.name, self.policy, self.summarise, self.clock = store, name, policy, summarise, clock
        # Called when L1 or L2 moved and no entry explains it, and when a reply read other than predicted.
        self.on_warning: Callable[[object], None] = lambda what: _logger.warning("%s: %s", name, what)
        self.embedder: Embedder | None = None
        # Ask the provider what it could not reuse of the request before, naming that one's reply.
        self.diagnose = False
        watch = CacheWatch(lambda what: self.on_warning(what))
        self.observers: tuple[Observer, ...] = (watch,) if observers is None else tuple(observers)
        self._fold, self._hashes = ThreadState(store, name), LayerHashes()
        self._newest: Request | None = None
        self._renderings: dict[str, tuple[providers.Rendering, Marker]] = {}
        self._recollection: ThreadRecall | None = None
        self.lock = threading.RLock()
        # Whether the store is this thread's own, to be closed with it.
        self.owns_store = False

    def close(self) -> None:
        """End background work, and close the store that `quire.open` opened; one that was given stays open."""
        if self._recollection is not None:
            self._recollection.close()
        if self.owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Into the log

    @_one_at_a_time
    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably, behind everything this thread has seen."""
        kept = self.store.append(self.name, entries, expected_seq=self._fold.catch_up())
        self._fold.feed(kept)
        self._fold.keep_checkpoint()
        return kept

    @_one_at_a_time
    def user(
        self, text: str, attach: Iterable[Item | JsonObject] = (), recall: int = 0, **extra: Json
    ) -> Entry:
        """The user speaks; the window's items, these, and `recall` older entries join this turn's context."""
        items = [*self.window.get(), *attach]
        if recall:
            found = self._remembers().for_turn(text, recall, self._selected(self._last_target()))
            extra["meta"] = {**found, **(extra.get("meta") or {})}
        return self.append(values.user(text, items, **{"at": self.clock(), **extra}))[0]

    # Out of it: select, fit, render

    @_one_at_a_time
    def request(self, target: str, *, check: bool = False, **options: Unpack[RequestOptions]) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first.

        `check=True` raises a RuleError with the rule, the place and the repair where the provider would refuse it, as
        the built-in transports do before they send; it looks at the whole request, so it costs what that is long.

        `max_tokens`, `effort` and the other options are named in `RequestOptions`; what only one provider knows goes
        under `extra`: `request(target, extra={"logit_bias": {…}})`.
        """
        built = fit(self._select(target))
        if built.rebase is not None:
            self.append(Entry("rebase", {**built.rebase, "at": self.clock()}))
            built = fit(self._select(target))
        request = self._render(built, target, options)
        if check:
            from quire.providers.rules import require

            require(request)
        self._tell(request, built)
        self._fold.keep_checkpoint(CHECKPOINT_EVERY_READ)
        return request

    @_one_at_a_time
    def build(self, target: str) -> Built:
        """Select and fit: what would be sent now, without recording anything."""
        return fit(self._select(target))

    @_one_at_a_time
    def room(self, target: str) -> int:
        """How many tokens a request may take: the budget without what the reply is left."""
        return policy_for(target, self.policy).limit

    @_one_at_a_time
    def so_far(self, target: str) -> Prompt:
        """What would be sent if no rebase were made: the prefix that the provider has cached, and what is new."""
        return self._selected(target).ahead().epoch.prompt()

    @_one_at_a_time
    def envelope(self, target: str) -> Envelope:
        """The five layers of what would be sent now."""
        built = self.build(target)
        return enclose(built, chat_messages(built))

    def _select(self, target: str) -> Selection:
        """What of the log counts for this model's next request."""
        return self._selected(target).select()

    def policy_at(self, target: str) -> Policy:
        """The policy given, else the one that the thread was last sent under; what neither says is the model's."""
        own = policy_for(target, self.policy) if self.policy is not None else None
        return within(target, own or changed_policy(target, self.policy_changes), self.windows.get(target))

    @cached_property
    def windows(self) -> dict[str, int]:
        """What servers said of their windows, by "provider:model"."""
        sent = self._kept
        window = (sent.get("meta") or {}).get("window")
        return {f"{sent['provider']}:{sent['model']}": window} if isinstance(window, int) else {}

    def told_window(self, target: str, window: int) -> None:
        """A server says that it takes `window` tokens (0: it does not say); a budget of one's own wins."""
        # What a refusal taught is counted as we count, and so a little smaller: it stays.
        taught = window * 0.7 < self.windows.get(target, 0) <= window
        if window and not taught and "budget" not in self.policy_changes:
            self.windows.pop(target, None)
            if window != policy_for(target).budget:
                self.windows[target] = window

    def learn_window(self, target: str, window: int, counted: int) -> None:
        """A server takes `window` tokens, and counted so many in the request at hand: requests keep to that."""
        # Counted as we count: a server whose vocabulary is not known here counts otherwise.
        self.windows[target] = int(window * min(1.0, self.build(target).tokens / counted))
        self.on_warning(f"{target} takes {window:,} tokens; requests keep to that from now on")

    @cached_property
    def _kept(self) -> JsonObject:
        return kept_request(self.store, self.name) if self._fold.exists() else {}

    @cached_property
    def policy_changes(self) -> JsonObject:
        """What this thread's own policy changes of a model's: what its newest request names, until it is set."""
        named = (self._kept.get("meta") or {}).get("policy")
        return named if isinstance(named, dict) else {}

    def _selected(self, target: str) -> Assembly:
        return self._fold.at(self.policy_at(target), self.summarise)

    def _last_target(self) -> str:
        last = self._fold.assembly
        return last.policy.model if last is not None else "openai-chat:"

    def _render(self, built: Built, target: str, options: RequestOptions) -> Request:
        """Render from where the last request left it: what stands already is not written again."""
        key = f"{target} {options!r}"
        if key not in self._renderings:
            rendering = providers.rendering(target, providers.wanted(options, self.name))
            self._renderings = {key: (rendering, providers.marker(target))}
        rendering, marker = self._renderings[key]
        before = self._fold.reply_id if self.diagnose else None
        how = {"times": self._fold.turn_times, "previous_id": before}
        request = providers.marked(rendering.request(built.prompt), built.prompt, marker, **how)
        layers = self._hashes.of(built) if self.observers else {}
        return msgspec.structs.replace(request, layers=layers)

    def _tell(self, request: Request, built: Built) -> None:
        """The observers hear of a request that is handed out."""
        since = self._fold.handed_out()
        sending = Sending(request, built, self.clock(), since, resumed=bool(self._fold.reply_id))
        self._newest = request
        for observer in self.observers:
            observer.on_request(sending)

    # Back into it: record

    @_one_at_a_time
    def record(self, reply: Any, request: Request | None = None, served: Served | None = None) -> list[Entry]:
        """A reply, as the SDK gave it or as JSON, into the log with what was sent for it and what it used."""
        sent = request or self._newest
        if sent is None:
            raise CallError("there is no request to record a reply for", hint="Call thread.request() first.")
        names = list(self._fold.assembly.carried.tools) if self._fold.assembly is not None else []
        parsed = reply if isinstance(reply, Reply) else providers.parse_reply(sent.target, reply, names)
        kept = self.append(self.sent_entry(sent, parsed), *parsed.entries)
        self.reported(sent, parsed, _diagnosis(reply), served)
        return kept

    @_one_at_a_time
    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for a request: hashes of what was sent, and usage once it is known."""
        body: JsonObject = {
            "kind": "sent",
            "provider": request.provider,
            "model": request.model,
            "request_sha256": request.lines.sha256,
            "segments": list(request.lines.segments),
            "at": self.clock(),
        }
        # The window of one server is not the thread's choice: it is named apart, and another model has its own.
        window = self.windows.pop(request.target, 0)
        own = changes(request.target, self.policy_at(request.target))
        if window:
            self.windows[request.target] = window
        named = {"layers": dict(request.layers), "policy": own, "window": window}
        if meta := {key: value for key, value in named.items() if value}:
            body["meta"] = meta
        if reply is not None:
            body |= {"usage": reply.usage.as_json(), "stop": reply.stop}
            if reply.id:
                body["wire"] = {"id": reply.id}
        return Entry("sent", body)

    @_one_at_a_time
    def reported(
        self,
        request: Request,
        reply: Reply,
        diagnosis: JsonObject | None = None,
        served: Served | None = None,
    ) -> None:
        """The observers hear of a reply: what it read from the cache is compared with what was predicted.

        `served` is what an explicit Gemini cache did for it (`quire.send.transport.served`).
        """
        received = Received(request, reply, diagnosis, served)
        for observer in self.observers:
            observer.on_reply(received)

    def resume(self, transport: Transport | None = None, **how: Any) -> Outcome:
        """Continue an interrupted turn from the log; `runner`, `decide` and `on_event` are as in quire.send."""
        from quire.send.cycle import resume_sync

        return resume_sync(self, transport, **how)

    # Beside it: what the thread holds ready

    @_one_at_a_time
    def recall(self, query: str | Query, k: int = 5, **how: Any) -> list[Hit]:
        """Older entries that the next request does not show, by words and, once `self.embedder` is set, by meaning.

        `exclude=()` searches what it shows too; `scope="threads"` all threads, `scope="records"` the file's records.
        """
        return self._remembers().search(query, k, lambda: self._selected(self._last_target()), **how)

    def _remembers(self) -> ThreadRecall:
        if self._recollection is None or self._recollection.embedder is not self.embedder:
            from quire.thread_recall import ThreadRecall

            if self._recollection is not None:
                self._recollection.close()
            self._recollection = ThreadRecall(self.store, self.name, self.embedder, self.clock)
        return self._recollection

    @cached_property
    def window(self) -> Window:
        """The items at hand, saved with the thread by `keep`; what it evicts stays in the log."""
        saved = self.store.window(self.name) if self._fold.exists() else None
        return Window.from_json(saved) if saved else Window(clock=self.clock)

    @_one_at_a_time
    def keep(self, item: Item | str, **how: Any) -> Item:
        """Put an item into the window: it joins every turn until it is evicted or removed."""
        added = self.window.add(item, **how)
        if not self._fold.exists():
            self.store.create(self.name)
        self.store.save_window(self.name, self.window.to_json())
        return added


def _diagnosis(reply: Any) -> JsonObject:
    """What the provider itself says of its cache, in JSON or in the SDK's object."""
    return diagnosis_of(reply.model_dump() if hasattr(reply, "model_dump") else reply)


def chat_messages(built: Built) -> list[JsonObject]:
    """A built request's messages in OpenAI Chat form, the system message left out."""
    messages: list[JsonObject] = providers.render(built.prompt, "openai-chat:").body["messages"]
    return messages[len(built.prompt.systems) :]
