"""A thread: the path of a message from the log to a request and back, and how a thread is opened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast

import msgspec

from quire import providers, values
from quire.assemble import Assembly, Built, Policy, Selection
from quire.assemble.fit import enclose
from quire.assemble.state import fit
from quire.assemble.summary import Summarise, extract
from quire.errors import CallError, ConflictError, MissingPart, QuireError
from quire.items import ThreadWindow, Window, from_file, from_image
from quire.log import lock_turn, now_ms, off_loop, refuse_loop, to_the_end
from quire.log.entries import SHORTENING
from quire.log.shapes import short
from quire.log.sqlite import SqliteStore
from quire.log.store import DEFAULT_TENANT, Closing, Forking, Store, check_tenant, has_thread, is_server, tenant_file
from quire.observe import CacheWatch, EpochWatch, LayerHashes, Observer, Received, RequestLog, Sending, chat_messages
from quire.providers.explain import diagnosis_of
from quire.providers.gemini_cache import Served
from quire.providers.incoming import ReplyReader
from quire.providers.models import named_target
from quire.providers.rules import GrowingCheck, require
from quire.providers.wires import events_in, feed, parse_reply, put_together
from quire.thread_state import CHECKPOINT_EVERY_READ, ThreadState, changed_policy, changes, policy_for, within
from quire.values import (
    Entry,
    Envelope,
    Item,
    Json,
    JsonObject,
    LazyRows,
    Prompt,
    Reply,
    Request,
    RequestOptions,
    cached_property,
)

if TYPE_CHECKING:
    from quire.providers.cache_marks import Marker
    from quire.recall import Embedder, Hit, Query, ThreadRecall
    from quire.recall.search import RecallOptions, SearchRecords
    from quire.send.cycle import Outcome
    from quire.send.tools import Toolbox
    from quire.send.transport import Transport


# The path on one screen: `Thread.request` and `Thread.record` are its steps, each handing over one frozen value.
#
#       Entry*        Selection      Built          Request       Reply         Entry*
# log ────────▶ select ───────▶ fit ───────▶ render ───────▶ send ───────▶ record ───────▶ log

_logger = logging.getLogger("quire")
# How many entries go without words before they are made searchable together.
WORDS_AT_ONCE = 512


def open_store(place: str | Path, tenant: str = DEFAULT_TENANT) -> Store:
    """A tenant's store, in a file or at a postgresql:// address.

    A file holds one tenant: another's lies beside it, `quire.db` and `quire.acme.db`.
    """
    check_tenant(tenant)
    if str(place).startswith(("http://", "https://")):
        raise CallError(f"{str(place)!r} is no file", hint="quire.connect(url, thread) opens a thread of a service.")
    if is_server(place):
        try:
            from quire.log.postgres import PostgresStore
        except ImportError as error:
            raise MissingPart(f"PostgreSQL needs psycopg ({error})", hint="pip install 'quire[postgres]'") from error
        return PostgresStore(str(place), tenant)
    return SqliteStore(Path(place) if str(place) == ":memory:" else tenant_file(Path(place), tenant))


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _one_at_a_time(method: _Method) -> _Method:
    """A method that only one OS thread runs at a time, so that a Thread's state always matches the log it has read."""

    @wraps(method)
    def locked(self: Thread, *args: Any, **named: Any) -> Any:
        with self.lock:
            return method(self, *args, **named)

    return cast(_Method, locked)


class Thread(Closing, Forking):
    """One conversation: append to it, ask for its next request, record what came back.

    `name` is the thread's in the `store`, `policy` its budget and choices (without one, as it was last sent, else the
    model's). `summarise` tells what a rebase takes away, `clock` the time in Unix milliseconds.
    OS threads may share one. `with quire.open(…) as thread:` closes the file at the end. `observers` are told of what
    is sent and what comes back; without any given, caches are watched and the log `quire` is told. `observers=()`: nobody, and no layer is hashed.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        policy: Policy | None = None,
        summarise: Summarise = extract,
        clock: Callable[[], int] = now_ms,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        if not isinstance(policy, Policy | None):
            raise CallError(f"a policy is not {short(policy)}", hint="Write quire.Policy(budget=50_000).")
        given: object = store
        if isinstance(given, str | Path):
            raise CallError(f"a store is not {str(given)!r}", hint="quire.open(path, name) opens a thread of a file.")
        self.store, self.name, self.policy, self.summarise, self.clock = store, name, policy, summarise, clock
        # Called when L1 or L2 moved and no entry explains it, when a reply read other than predicted, when epochs are short.
        self.on_warning: Callable[[object], None] = lambda warning: _logger.warning("%s: %s", name, warning)
        # Recall goes by meaning too where the model is installed; an embedder of one's own, or None for words alone.
        self.embedder: Embedder | Literal["installed"] | None = "installed"
        # Ask the provider what it could not reuse of the request before, naming that one's reply.
        self.diagnose = False
        watches = (watch(lambda warning: self.on_warning(warning)) for watch in (CacheWatch, EpochWatch))
        usual = (*watches, RequestLog(name))
        self.observers: tuple[Observer, ...] = usual if observers is None else tuple(observers)
        self._newest: Request | None = None
        # The newest policy and changes, with what they were computed from.
        self._policy: tuple[object, tuple[Policy, JsonObject]] = None, (Policy(), {})
        # Whether closing the thread closes the store too.
        self.owns_store = False
        self._outlive_forks()

    def _begin_anew(self) -> None:
        self._fold = ThreadState(self.store, self.name)
        self._renderings: dict[str, tuple[providers.Rendering, Marker, GrowingCheck]] = {}
        self._recollection: ThreadRecall | None = None
        # What was appended since words were made last.
        self._without_words: list[Entry] = []
        self.lock = threading.RLock()
        self._kept = ThreadWindow(self.store, self.name, self.clock, self.lock)

    def close(self) -> None:
        """End background work, and close the store that `quire.open` opened; one that was given stays open."""
        if self._recollection is not None:
            self._recollection.close()
        if self.owns_store:
            self.store.close()

    @property
    def entries(self) -> list[Entry]:
        """The log, oldest entry first."""
        return self.store.read(self.name) if has_thread(self.store, self.name) else []

    def __len__(self) -> int:
        return self.store.info(self.name).seq if has_thread(self.store, self.name) else 0

    def __bool__(self) -> bool:
        return True  # an empty thread is one, too

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"<Thread {self.name!r}: {len(self):,} entries>"

    def reads_its_log(self) -> bool:
        """Whether the log still begins with what was read: another thread may have been made under the name."""
        return self._fold.is_current()

    @property
    def read_to(self) -> int:
        """How far its log has been read."""
        return self._fold.position.seq

    # Into the log

    @_one_at_a_time
    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably, behind everything this thread has seen.

        A system prompt, or tools, that are in force already are not appended again.
        """
        for entry in entries:
            if not isinstance(entry, Entry):
                raise CallError(
                    f"append() takes entries, not {short(entry)}",
                    hint='Write thread.append(quire.user("…")); `quire import` reads messages of other formats.',
                )
        seq = self._fold.position.seq
        if not seq or any(entry.kind in ("system", "tools") for entry in entries):
            seq = self._fold.catch_up()
        while True:
            try:
                # Directly behind what was read of the log; nothing where they only repeat what is in force.
                new = [entry for entry in entries if not self._fold.repeats(entry)]
                behind = self._fold.position.seq
                appended = self.store.append(self.name, new, expected_seq=behind) if new or not entries else []
                break
            except ConflictError:
                # Others wrote meanwhile: behind that, as often as they do.
                before, seq = seq, self._fold.catch_up()
                if seq == before:
                    raise
        self._fold.feed(appended)
        self._fold.keep_checkpoint()
        self._make_searchable(appended)
        return appended

    def _make_searchable(self, new: list[Entry]) -> None:
        """Index the words of new entries once there are many, ten times cheaper; a search indexes the last few."""
        self._without_words += new if self.store.index.kept_by_writers else ()
        if len(self._without_words) >= WORDS_AT_ONCE:
            from quire.recall.document import words_of

            some, self._without_words = self._without_words, []
            with contextlib.suppress(QuireError):
                self.store.index.add(words_of(some))

    @_one_at_a_time
    def user(
        self, text: str, attach: Iterable[Item | JsonObject | str | Path] = (), recall: int = 0, **extra: Json
    ) -> Entry:
        """The user speaks; the window's items, these, and `recall` older entries join this turn's context.

        `attach` takes items and paths of files, `images` paths of pictures, URLs and base64 data with its type.
        """
        for name, given in (("attach", attach), ("images", images := extra.get("images"))):
            if isinstance(given, str | Path):
                raise CallError(f"{name} is a list, not {short(given)}", hint=f"Write {name}=[{str(given)!r}].")
        items = [*self.kept_items(), *(from_file(part) if isinstance(part, str | Path) else part for part in attach)]
        if images:
            extra["images"] = [_as_image(image) for image in images]
        share = self.policy_at(self._last_target()).recall
        if recall or share:
            recalled = self._recall_meta(text, recall, share)
            extra["meta"] = {**recalled, **(extra.get("meta") or {})}
        return self.append(values.user(text, items, **{"at": self.clock(), **extra}))[0]

    def _recall_meta(self, text: str, k: int, share: float | None) -> JsonObject:
        """What a user entry's meta keeps of older entries: `k` of them, or what the policy brings back unasked."""
        assembly, remembers = self._assembly_for(self._last_target()), self._remembers()
        if k:
            return remembers.for_turn(text, k, assembly)
        return remembers.unasked_for_turn(text, assembly, share or 0)

    def tools(self, *tools: Callable[..., Any] | JsonObject) -> list[Entry]:
        """Tools that the model may call from here on: Python functions, or definitions in any provider's form."""
        from quire.send.tools import Tool, tool

        if wrong := [offer for offer in tools if not (callable(offer) or isinstance(offer, dict | Tool))]:
            hint = "Write thread.tools(look, find), without a list."
            raise CallError(f"a tool is a function or a definition, not {short(wrong[0])}", hint=hint)
        offers = [offer if isinstance(offer, Tool) else tool(offer) if callable(offer) else offer for offer in tools]
        defined = [offer.definition() if isinstance(offer, Tool) else offer for offer in offers]
        return self.append(*providers.tool_entries(defined))

    # Out of it: select, fit, render

    @_one_at_a_time
    def request(self, target: str, *, check: bool = True, **options: Unpack[RequestOptions]) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first.

        Where the provider would refuse it, a RuleError names the rule, the place and the repair; `check=False` leaves
        that to the provider. What was looked at for an earlier request is not looked at again.

        `max_tokens`, `effort` and the other options are named in `RequestOptions`; what only one provider knows goes
        under `extra`: `request(target, extra={"logit_bias": {…}})`.
        """
        built = fit(self._select(named_target(target)))
        if self._offer_recall(built):
            built = fit(self._select(target))
        if built.rebase is not None:
            self.append(Entry("rebase", {**built.rebase, "at": self.clock()}))
            built = fit(self._select(target))
        request = self._render(built, target, options, check)
        self._tell(request, built)
        self._fold.keep_checkpoint(CHECKPOINT_EVERY_READ)
        return request

    def _offer_recall(self, built: Built) -> bool:
        """Offer the tool `recall` with the first handle, where the prefix breaks anyway; whether it was appended."""
        assembly = self._fold.assembly
        if assembly is None or "recall" in assembly.carried.tools:
            return False
        edits = built.rebase["edits"] if built.rebase is not None else ()
        if not assembly.has_handles and not any(edit["action"] in SHORTENING for edit in edits):
            return False
        from quire.recall import RECALL_TOOL, installed

        return installed() and bool(self.append(values.tools([RECALL_TOOL])))

    @_one_at_a_time
    def build(self, target: str) -> Built:
        """Select and fit: what would be sent now, without recording anything."""
        return fit(self._select(target))

    @_one_at_a_time
    def room(self, target: str) -> int:
        """How many tokens a request may take: the budget without what the reply is left."""
        return self.policy_at(target).limit

    @_one_at_a_time
    def so_far(self, target: str) -> Prompt:
        """What would be sent if no rebase were made: the prefix that the provider has cached, and what is new."""
        return self._assembly_for(target).ahead().epoch.prompt()

    @_one_at_a_time
    def envelope(self, target: str) -> Envelope:
        """The five layers of what would be sent now."""
        built = self.build(target)
        return enclose(built, chat_messages(built))

    def _select(self, target: str) -> Selection:
        """What of the log counts for this model's next request."""
        return self._assembly_for(target).select()

    def policy_at(self, target: str) -> Policy:
        """The policy given, else the one that the thread was last sent under; what neither says is the model's."""
        return self._policy_and_changes(target)[0]

    def _policy_and_changes(self, target: str) -> tuple[Policy, JsonObject]:
        """The policy for a model, and what of it is the thread's own choice."""
        key = target, self.policy, self.policy_changes, self.windows.get(target)
        if key != self._policy[0]:
            given = self.policy is not None
            policy = policy_for(target, self.policy) if given else changed_policy(target, self.policy_changes)
            self._policy = key, (within(target, policy, self.windows.get(target)), changes(target, policy))
        return self._policy[1]

    @cached_property
    def windows(self) -> dict[str, int]:
        """What servers said of their windows, by "provider:model"."""
        sent = self._last_sent
        window = (sent.get("meta") or {}).get("window")
        return {f"{sent['provider']}:{sent['model']}": window} if isinstance(window, int) else {}

    def use_window(self, target: str, window: int) -> None:
        """A server says that it takes `window` tokens (0: it does not say); a budget of one's own wins."""
        # A window that was learned from a refusal is in our own tokens, and a little smaller: it is kept.
        taught = window * 0.7 < self.windows.get(target, 0) <= window
        if window and not taught and "budget" not in self.policy_changes:
            self.windows.pop(target, None)
            if window != policy_for(target).budget:
                self.windows[target] = window

    def learn_window(self, target: str, window: int, counted: int) -> None:
        """A server takes `window` tokens, and counted so many in the request at hand: requests keep to that."""
        # In our own tokens: a server with an unknown vocabulary counts differently.
        self.windows[target] = int(window * min(1.0, self.build(target).tokens / counted))
        self.on_warning(f"{target} takes {window:,} tokens; requests keep to that from now on")

    @cached_property
    def _last_sent(self) -> JsonObject:
        return self._fold.newest_request()

    @cached_property
    def policy_changes(self) -> JsonObject:
        """What this thread's own policy changes of a model's: what its newest request names, until it is set."""
        named = (self._last_sent.get("meta") or {}).get("policy")
        return named if isinstance(named, dict) else {}

    def _assembly_for(self, target: str) -> Assembly:
        return self._fold.at(self.policy_at(target), self.summarise)

    def _last_target(self) -> str:
        """The model that was last asked: here, else by the log."""
        last, sent = self._fold.assembly, self._last_sent
        in_log = f"{sent['provider']}:{sent['model']}" if sent else "openai-chat:"
        return last.policy.model if last is not None else in_log

    def _render(self, built: Built, target: str, options: RequestOptions, check: bool) -> Request:
        """Render and check; what the last request held is neither written nor checked again."""
        key = f"{target} {options!r}"
        if key not in self._renderings:
            rendering = providers.rendering(target, providers.options_of(options, self.name))
            self._renderings = {
                key: (
                    rendering,
                    providers.marker(target, rendering),
                    GrowingCheck(self._fold.checked(), rendering.walk),
                )
            }
        rendering, marker, growing = self._renderings[key]
        position = self._fold.position
        # Within a turn the log decides, not the clock: a resumed turn keeps the marks it began with.
        times = tuple(position.times[: position.times_before_turn])
        previous_id = position.reply_id if self.diagnose else None
        request = marker.marked(rendering.request(built.prompt), built.prompt, times=times, previous_id=previous_id)
        if check:
            require(request, growing)
            self._fold.checked = growing.checked
        not_carried, cut = request.left_out, built.left_out
        rows = LazyRows(lambda: len(not_carried) + len(cut), lambda: (*not_carried, *map(msgspec.structs.asdict, cut)))
        return msgspec.structs.replace(request, layers=LayerHashes(built), left_out=rows, epoch=built.epoch)

    def _tell(self, request: Request, built: Built) -> None:
        since = self._fold.handed_out()
        fold = self._fold
        expected = fold.assembly.expected_tokens(built) if fold.assembly is not None else 0
        sending = Sending(request, built, self.clock(), since, bool(fold.position.sent_seq), expected)
        self._newest = request
        for observer in self.observers:
            observer.on_request(sending)

    # Back into it: record

    def record(
        self,
        reply: Any,
        request: Request | None = None,
        served: Served | None = None,
        *,
        on_text: Callable[[str], object] | None = None,
    ) -> list[Entry]:
        """A reply, as the SDK gave it or as JSON, into the log with what was sent for it and what it used.

        A stream is read to its end, and `on_text` called with what it says as it comes.
        """
        if (events := events_in(reply)) is not None:
            if hasattr(events, "__aiter__"):
                raise CallError("the stream is asynchronous", hint="await AsyncThread(thread).record(…)")
            reader, is_read = self._reader(request), True
            for event in events:
                feed(reader, event, on_text)
                is_read = False
            whole = None
            with contextlib.suppress(AssertionError, RuntimeError):  # the SDK's way to say that nothing came
                whole = put_together(events) if is_read else None
            reply = reader.reply() if whole is None else whole
        return self._record(reply, request, served)

    def _reader(self, request: Request | None = None) -> ReplyReader:
        """A reader for the events of the reply to a request, the newest one where none is given."""
        return providers.stream(self._sent_request(request).target, list(self._tools_offered()))

    def _sent_request(self, request: Request | None) -> Request:
        if (sent := request or self._newest) is None:
            raise CallError("there is no request to record a reply for", hint="Call thread.request() first.")
        return sent

    def _tools_offered(self) -> dict[str, JsonObject]:
        return self._fold.assembly.carried.tools if self._fold.assembly is not None else {}

    @_one_at_a_time
    def _record(self, reply: Any, request: Request | None, served: Served | None) -> list[Entry]:
        sent = self._sent_request(request)
        parsed = reply if isinstance(reply, Reply) else parse_reply(sent.target, reply, list(self._tools_offered()))
        if not self._fold.position.seq:
            self._fold.catch_up()
        # A server may call all its replies alike: it is the same one if the request is.
        again = parsed.id and parsed.id == self._fold.position.reply_id
        if again and self._fold.newest_request().get("request_sha256") == sent.lines.sha256:
            raise CallError(f"reply {parsed.id} is recorded already", hint="Call thread.request() for the next one.")
        appended = self.append(self.sent_entry(sent, parsed), *parsed.entries)
        # What the provider itself says of its cache, in JSON or in the SDK's object.
        diagnosis = diagnosis_of(reply.model_dump() if hasattr(reply, "model_dump") else reply)
        self.reported(sent, parsed, diagnosis, served)
        return appended

    def results(self, reply: Any, run: Any) -> list[Entry]:
        """Carry out the calls of a recorded reply, and record their results; empty where it called nothing.

        `reply` is what was recorded, or what `record` returned of it. `run` are functions, in a list or by the names
        that the model calls, a `Toolbox`, or one function of a call's name and arguments. Whatever a function raises is
        a result, too. A call that has its result is not run again, and one that is running is a ConflictError; a
        `recall` that the thread offered, it answers.
        """
        refuse_loop("await AsyncThread(thread).results(…)")
        # In one event loop: an asynchronous tool may keep a connection from one call to the next.
        return asyncio.run(self._results(reply, run))

    async def _results(self, reply: Any, run: Any) -> list[Entry]:
        from quire.send.tools import toolbox_of

        toolbox, appended = toolbox_of(run), list[Entry]()
        if not await off_loop(self._calls_to_run, reply):
            return appended
        # Read again where nobody else runs them.
        async with lock_turn(self.store.turn_lock(self.name)):
            for call in await off_loop(self._calls_to_run, reply):
                # A call that has begun may have changed something: whoever cancels meanwhile, its result is recorded.
                appended += await to_the_end(self._carry_out(call, toolbox))
        return appended

    async def _carry_out(self, call: Entry, toolbox: Toolbox) -> list[Entry]:
        result = await off_loop(self._own_answer, call, toolbox) or await toolbox.run(call)
        return await off_loop(self.append, result)

    @_one_at_a_time
    def _calls_to_run(self, reply: Any) -> list[Entry]:
        """The calls of a recorded reply that have no result yet."""
        newest = self.store.read(self.name, after=self._fold.catch_up() and self._fold.position.sent_seq)
        answered = {entry.call_id for entry in newest if entry.kind == "result"}
        if not isinstance(reply, list):
            target = self._newest.target if self._newest is not None else self._last_target()
            reply = (reply if isinstance(reply, Reply) else parse_reply(target, reply)).entries
        call_ids = {entry.call_id for entry in reply if entry.kind == "call"}
        calls = [entry for entry in newest if entry.kind == "call" and entry.call_id in call_ids]
        if call_ids and not calls:
            raise CallError("the reply is not in the log", hint="Call thread.record(reply) first.")
        return [call for call in calls if call.call_id not in answered]

    def _own_answer(self, call: Entry, toolbox: Toolbox) -> Entry | None:
        """The result of a `recall` that the thread offered, where nobody else runs it."""
        from quire.recall import RECALL_TOOL

        ours = call.name not in toolbox and self._tools_offered().get(call.name) == RECALL_TOOL
        return self.recall_result(call) if ours else None

    @_one_at_a_time
    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for a request: hashes of what is new in it, and usage once it is known."""
        segments, same = self._fold.new_segments(request.lines.segments)
        body: JsonObject = {
            "kind": "sent",
            "provider": request.provider,
            "model": request.model,
            "request_sha256": request.lines.sha256,
            "segments": segments,
            "at": self.clock(),
        }
        # The window of one server is not the thread's choice: it is named apart, and another model has its own.
        _, changed = self._policy_and_changes(request.target)
        named = {"policy": changed, "window": self.windows.get(request.target), "same_segments": same}
        if meta := {key: value for key, value in named.items() if value}:
            body["meta"] = meta
        if reply is not None:
            body |= {"usage": reply.usage.as_json(), "stop": reply.stop}
            if reply.id:
                body["wire"] = {"id": reply.id}
        return Entry("sent", body)

    @_one_at_a_time
    def reported(
        self, request: Request, reply: Reply, diagnosis: JsonObject | None = None, served: Served | None = None
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

    # What else a thread offers: recall and the window

    @_one_at_a_time
    def recall(self, query: str | Query, k: int = 5, **how: Unpack[RecallOptions]) -> list[Hit]:
        """Older entries that the next request does not show, by words and, with an embedder, by meaning; `hit.by` says which.

        `exclude=()` searches what it shows too; `scope="threads"` all threads, `scope="records"` the file's records.
        """
        hits = self._remembers().search(query, k, lambda: self._assembly_for(self._last_target()), **how)
        self._fold.keep_checkpoint(CHECKPOINT_EVERY_READ)
        return hits

    def answer_recall(self, call: Entry) -> Entry:
        """Answer a model's call of `recall`, which a request offers where a handle stands in it; the result is recorded."""
        return self.append(self.recall_result(call))[0]

    @_one_at_a_time
    def recall_result(self, call: Entry) -> Entry:
        """The result of a call of `recall`, without recording it."""
        return self._remembers().answer(call, self._assembly_for(self._last_target()))

    @_one_at_a_time
    def recall_unasked(self, target: str, share: float) -> list[Entry]:
        """What the next request should bring back of what was left out, as entries to append; `Policy.recall` wins."""
        from quire.recall import installed

        chosen = self.policy_at(target).recall
        share = (share if installed() else 0) if chosen is None else chosen
        return self._remembers().unasked_entries(self._assembly_for(target), share) if share else []

    def _remembers(self) -> ThreadRecall:
        if self._recollection is None or self._recollection.given is not self.embedder:
            from quire.recall import ThreadRecall

            if self._recollection is not None:
                self._recollection.close()
            self._recollection = ThreadRecall(self.store, self.name, self.embedder, self._searching_records, self.clock)
        return self._recollection

    def _searching_records(self, embedder: Embedder | None) -> SearchRecords:
        """How the store's records are searched."""
        from quire.records import Records

        records = Records(self.store, embedder)
        return lambda text, k: records.search(text, nn=k, now=self.clock())

    @property
    def window(self) -> Window:
        """The items at hand: every change is saved with the thread, and seen whoever made it.

        What leaves it stays in the log, and in front of the model until the next rebase.
        """
        return self._kept.window()

    @_one_at_a_time
    def keep(self, item: Item | str, *, file: str | Path | None = None, **how: Any) -> Item:
        """Put an item into the window: it joins every turn until it is evicted or removed.

        A file, its lines or a symbol, kept again or changed on disk, is a new version of the same item. `file` says
        where it was read, where its filename does not; other arguments are those of `Window.add`.
        """
        return self._kept.keep(item, file, **how)

    @_one_at_a_time
    def kept_items(self) -> list[JsonObject]:
        """The window's items as a turn attaches them: files as they are now, each under what it is known by."""
        return self._kept.items(self.on_warning)


# `https:`, `data:`, `gs:`; not the letter of a drive.
_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:")


def _as_image(image: Json) -> Json:
    """An image as entries hold it; what is no URL is the path of a picture."""
    if isinstance(image, str) and not _SCHEME.match(image):
        image = Path(image)
    return from_image(image) if isinstance(image, Path) else image
