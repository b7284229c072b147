"""A thread: the path of a message from the log to a request and back.

      Entry*        Selection      Built          Request       Reply         Entry*
log ────────▶ select ───────▶ fit ───────▶ render ───────▶ send ───────▶ record ───────▶ log

`Thread.request` and `Thread.record` are these steps, each handing over one frozen value.
"""

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
from quire.providers.wires import events_in, feed, parse_reply, snapshot
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


_logger = logging.getLogger("quire")
# New entries are indexed for word search in batches of this many.
WORDS_AT_ONCE = 512


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _one_at_a_time(method: _Method) -> _Method:
    """Let only one OS thread at a time run a method, so that a Thread's state always matches the log it has read."""

    @wraps(method)
    def locked(self: Thread, *args: Any, **named: Any) -> Any:
        with self.lock:
            return method(self, *args, **named)

    return cast(_Method, locked)


class Thread(Closing, Forking):
    """One conversation: append to it, ask for its next request, record what came back.

    `name` is its name in the `store`. `policy` is its budget and choices; without one, those of its newest request, else
    the model's. `summarise` writes the summary of what a rebase removes; `clock` gives Unix milliseconds. `observers` are
    told of every request and reply: by default caches are watched and the log `quire` gets a line for each; `()` is none.
    OS threads may share a Thread. `with quire.open(…) as thread:` closes the file at the end.
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
        if isinstance(store, str | Path):
            raise CallError(f"a store is not {str(store)!r}", hint="quire.open(path, name) opens a thread of a file.")
        self.store, self.name, self.policy, self.summarise, self.clock = store, name, policy, summarise, clock
        # Called when L1 or L2 changed and no entry explains it, when a reply's cache read differs from the prediction, and
        # when epochs are short.
        self.on_warning: Callable[[object], None] = lambda warning: _logger.warning("%s: %s", name, warning)
        # What recall uses beside words: the installed model of meanings, another embedder, or None.
        self.embedder: Embedder | Literal["installed"] | None = "installed"
        # Whether requests ask the provider (Anthropic) which part of the previous request it could not reuse.
        self.diagnose = False
        if observers is None:
            watches = (watch(lambda warning: self.on_warning(warning)) for watch in (CacheWatch, EpochWatch))
            observers = (*watches, RequestLog(name))
        self.observers: tuple[Observer, ...] = tuple(observers)
        self._newest_request: Request | None = None
        # The result of `_policy_and_changes`, behind the values it was computed from.
        self._policy: tuple[object, tuple[Policy, JsonObject]] = None, (Policy(), {})
        # Whether closing the thread closes the store too.
        self.owns_store = False
        self._outlive_forks()

    def _begin_anew(self) -> None:
        self._state = ThreadState(self.store, self.name)
        self._renderings: dict[str, tuple[providers.Rendering, Marker, GrowingCheck]] = {}
        self._recall: ThreadRecall | None = None
        # Entries that were appended but not yet indexed for word search.
        self._unindexed: list[Entry] = []
        self.lock = threading.RLock()
        self._window = ThreadWindow(self.store, self.name, self.clock, self.lock)

    # The path: select, fit, render; then, with the reply, record.

    @_one_at_a_time
    def request(self, target: str, *, check: bool = True, **options: Unpack[RequestOptions]) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first.

        A request that the provider would refuse raises a RuleError with the rule, the place and the repair; `check=False`
        skips this check. `RequestOptions` names `max_tokens`, `effort` and the other options; a field that only one
        provider knows goes under `extra`: `request(target, extra={"logit_bias": {…}})`.
        """
        built = fit(self._select(named_target(target)))
        if self._offer_recall(built):
            built = fit(self._select(target))
        if built.rebase is not None:
            self.append(Entry("rebase", {**built.rebase, "at": self.clock()}))
            built = fit(self._select(target))
        request = self._render(built, target, options, check)
        self._notify(request, built)
        self._state.keep_checkpoint(CHECKPOINT_EVERY_READ)
        return request

    def _select(self, target: str) -> Selection:
        """The part of the log that counts for this model's next request."""
        return self._assembly_for(target).select()

    def _offer_recall(self, built: Built) -> bool:
        """Append the tool `recall` with the first handle, since the prefix changes there anyway; whether it was appended."""
        assembly = self._state.assembly
        if assembly is None or "recall" in assembly.carried.tools:
            return False
        edits = built.rebase["edits"] if built.rebase is not None else ()
        if not assembly.has_handles and not any(edit["action"] in SHORTENING for edit in edits):
            return False
        from quire.recall import RECALL_TOOL, installed

        return installed() and bool(self.append(values.tools([RECALL_TOOL])))

    def _render(self, built: Built, target: str, options: RequestOptions, check: bool) -> Request:
        """Write, mark and check the request; messages that the previous one held are neither written nor checked again."""
        key = f"{target} {options!r}"
        if key not in self._renderings:
            rendering = providers.rendering(target, providers.options_of(options, self.name))
            growing = GrowingCheck(self._state.checked(), rendering.walk)
            self._renderings = {key: (rendering, providers.marker(target, rendering), growing)}
        rendering, marker, growing = self._renderings[key]
        position = self._state.position
        # Only times before this turn count, so that a resumed turn gets the same marks again.
        times = tuple(position.times[: position.times_before_turn])
        previous_id = position.reply_id if self.diagnose else None
        request = marker.marked(rendering.request(built.prompt), built.prompt, times=times, previous_id=previous_id)
        if check:
            require(request, growing)
            self._state.checked = growing.checked
        refused, cut = request.left_out, built.left_out
        rows = LazyRows(lambda: len(refused) + len(cut), lambda: (*refused, *map(msgspec.structs.asdict, cut)))
        return msgspec.structs.replace(request, layers=LayerHashes(built), left_out=rows, epoch=built.epoch)

    def _notify(self, request: Request, built: Built) -> None:
        since = self._state.handed_out()
        state = self._state
        expected = state.assembly.expected_tokens(built) if state.assembly is not None else 0
        sending = Sending(request, built, self.clock(), since, bool(state.position.sent_seq), expected)
        self._newest_request = request
        for observer in self.observers:
            observer.on_request(sending)

    def record(
        self,
        reply: Any,
        request: Request | None = None,
        served: Served | None = None,
        *,
        on_text: Callable[[str], object] | None = None,
    ) -> list[Entry]:
        """Append a reply (the SDK's object, or JSON) to the log, with the hashes of its request and its usage.

        A stream is read to its end; `on_text` is called with each piece of text. Of an SDK's own stream that was read
        before, in part or whole, the SDK has what came: it is recorded, without `on_text`.
        """
        if (events := events_in(reply)) is not None:
            if hasattr(events, "__aiter__"):
                raise CallError("the stream is asynchronous", hint="await AsyncThread(thread).record(…)")
            reader, was_begun, is_fed = self._reader(request), snapshot(events) is not None, False
            for event in events:
                if is_fed := not was_begun:
                    feed(reader, event, on_text)
            whole = None if is_fed else snapshot(events)
            if not is_fed and hasattr(events, "get_final_response"):
                with contextlib.suppress(RuntimeError):  # what OpenAI's SDK raises when no response was completed
                    whole = events.get_final_response()
            reply = reader.reply() if whole is None else whole
        return self._record(reply, request, served)

    def _reader(self, request: Request | None = None) -> ReplyReader:
        """A reader for the events of the reply to a request, by default the newest."""
        return providers.stream(self._sent_request(request).target, list(self._tools_offered()))

    def _sent_request(self, request: Request | None) -> Request:
        if (sent := request or self._newest_request) is None:
            raise CallError("there is no request to record a reply for", hint="Call thread.request() first.")
        return sent

    @_one_at_a_time
    def _record(self, reply: Any, request: Request | None, served: Served | None) -> list[Entry]:
        sent = self._sent_request(request)
        parsed = reply if isinstance(reply, Reply) else parse_reply(sent.target, reply, list(self._tools_offered()))
        if not self._state.position.seq:
            self._state.catch_up()
        # Some servers give every reply the same id: it is a repetition only if the request is the same too.
        same_id = parsed.id and parsed.id == self._state.position.reply_id
        if same_id and self._state.newest_request().get("request_sha256") == sent.lines.sha256:
            raise CallError(f"reply {parsed.id} is recorded already", hint="Call thread.request() for the next one.")
        appended = self.append(self.sent_entry(sent, parsed), *parsed.entries)
        diagnosis = diagnosis_of(reply.model_dump() if hasattr(reply, "model_dump") else reply)
        self.reported(sent, parsed, diagnosis, served)
        return appended

    def _tools_offered(self) -> dict[str, JsonObject]:
        return self._state.assembly.carried.tools if self._state.assembly is not None else {}

    @_one_at_a_time
    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The `sent` entry of a request: hashes of its new segments, and the usage once the reply is known."""
        segments, same = self._state.new_segments(request.lines.segments)
        body: JsonObject = {
            "kind": "sent",
            "provider": request.provider,
            "model": request.model,
            "request_sha256": request.lines.sha256,
            "segments": segments,
            "at": self.clock(),
        }
        # The window is a server's property, not the thread's choice, so it is kept apart from the policy.
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
        """Tell the observers of a reply, so that its cache read is compared with the prediction.

        `served` says what an explicit Gemini cache did for the request (`quire.send.transport.served`).
        """
        received = Received(request, reply, diagnosis, served)
        for observer in self.observers:
            observer.on_reply(received)

    # What the user and the program put into the log.

    @_one_at_a_time
    def append(self, *entries: Entry) -> list[Entry]:
        """Append entries to the log, durably.

        A system prompt or tools that are already in force are not appended again.
        """
        for entry in entries:
            if not isinstance(entry, Entry):
                raise CallError(
                    f"append() takes entries, not {short(entry)}",
                    hint='Write thread.append(quire.user("…")); `quire import` reads messages of other formats.',
                )
        seq = self._state.position.seq
        if not seq or any(entry.kind in ("system", "tools") for entry in entries):
            seq = self._state.catch_up()
        while True:
            try:
                new = [entry for entry in entries if not self._state.repeats(entry)]
                expected = self._state.position.seq
                appended = self.store.append(self.name, new, expected_seq=expected) if new or not entries else []
                break
            except ConflictError:
                # Another writer appended first: read its entries and try again behind them.
                before, seq = seq, self._state.catch_up()
                if seq == before:
                    raise
        self._state.feed(appended)
        self._state.keep_checkpoint()
        self._make_searchable(appended)
        return appended

    def _make_searchable(self, new: list[Entry]) -> None:
        """Index new entries for word search in large batches, ten times cheaper; a search indexes the last few itself."""
        self._unindexed += new if self.store.index.kept_by_writers else ()
        if len(self._unindexed) >= WORDS_AT_ONCE:
            from quire.recall.document import words_of

            batch, self._unindexed = self._unindexed, []
            with contextlib.suppress(QuireError):
                self.store.index.add(words_of(batch))

    @_one_at_a_time
    def user(
        self, text: str, attach: Iterable[Item | JsonObject | str | Path] = (), recall: int = 0, **extra: Json
    ) -> Entry:
        """Append what the user says; the window's items, those in `attach` and `recall` older entries are its context.

        `attach` takes items and paths of files; `images` takes paths of pictures, URLs and base64 data with its type.
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
        """The older entries that a user entry names in its meta: the best `k`, else as many as the policy's share allows."""
        assembly, thread_recall = self._assembly_for(self._last_target()), self._thread_recall()
        if k:
            return thread_recall.for_turn(text, k, assembly)
        return thread_recall.unasked_for_turn(text, assembly, share or 0)

    def tools(self, *tools: Callable[..., Any] | JsonObject) -> list[Entry]:
        """Tools that the model may call from here on: Python functions, or definitions in any provider's form."""
        from quire.send.tools import Tool, tool

        if wrong := [offer for offer in tools if not (callable(offer) or isinstance(offer, dict | Tool))]:
            hint = "Write thread.tools(look, find), without a list."
            raise CallError(f"a tool is a function or a definition, not {short(wrong[0])}", hint=hint)
        offers = [offer if isinstance(offer, Tool) else tool(offer) if callable(offer) else offer for offer in tools]
        defined = [offer.definition() if isinstance(offer, Tool) else offer for offer in offers]
        return self.append(*providers.tool_entries(defined))

    # What would be sent now, with nothing recorded.

    @_one_at_a_time
    def build(self, target: str) -> Built:
        """Select and fit: what would be sent now, without recording anything."""
        return fit(self._select(target))

    @_one_at_a_time
    def room(self, target: str) -> int:
        """How many tokens a request may hold: the budget minus what is reserved for the reply."""
        return self.policy_at(target).limit

    @_one_at_a_time
    def so_far(self, target: str) -> Prompt:
        """What would be sent without a rebase: the prefix that the provider has cached, and the new messages."""
        return self._assembly_for(target).ahead().epoch.prompt()

    @_one_at_a_time
    def envelope(self, target: str) -> Envelope:
        """The five layers of the request that would be sent now."""
        built = self.build(target)
        return enclose(built, chat_messages(built))

    # The policy: the one given, else the one of the newest request, inside the window that the server names.

    def policy_at(self, target: str) -> Policy:
        """The policy for "provider:model": the one given, else that of the newest request, else the model's own."""
        return self._policy_and_changes(target)[0]

    def _policy_and_changes(self, target: str) -> tuple[Policy, JsonObject]:
        """The policy for a model, and the fields in which it differs from the model's own."""
        key = target, self.policy, self.policy_changes, self.windows.get(target)
        if key != self._policy[0]:
            given = self.policy is not None
            policy = policy_for(target, self.policy) if given else changed_policy(target, self.policy_changes)
            self._policy = key, (within(target, policy, self.windows.get(target)), changes(target, policy))
        return self._policy[1]

    @cached_property
    def windows(self) -> dict[str, int]:
        """The window that a server named, in tokens, by "provider:model"."""
        sent = self._last_sent
        window = (sent.get("meta") or {}).get("window")
        return {f"{sent['provider']}:{sent['model']}": window} if isinstance(window, int) else {}

    def use_window(self, target: str, window: int) -> None:
        """Keep requests inside the `window` that a server names (0: it names none); an explicit budget wins."""
        # A window learned from a refusal is in our own tokens and therefore a little smaller: keep that one.
        learned = window * 0.7 < self.windows.get(target, 0) <= window
        if window and not learned and "budget" not in self.policy_changes:
            self.windows.pop(target, None)
            if window != policy_for(target).budget:
                self.windows[target] = window

    def learn_window(self, target: str, window: int, counted: int) -> None:
        """Keep requests inside the `window` that a server's refusal named; it counted `counted` tokens in this request."""
        # Convert to our own tokens: a server with an unknown vocabulary counts differently.
        self.windows[target] = int(window * min(1.0, self.build(target).tokens / counted))
        self.on_warning(f"{target} takes {window:,} tokens; requests keep to that from now on")

    @cached_property
    def _last_sent(self) -> JsonObject:
        """The newest `sent` entry in the log when this thread first looked for it."""
        return self._state.newest_request()

    @cached_property
    def policy_changes(self) -> JsonObject:
        """The fields in which this thread's policy differs from a model's own: those its newest request names, until set."""
        named = (self._last_sent.get("meta") or {}).get("policy")
        return named if isinstance(named, dict) else {}

    def _assembly_for(self, target: str) -> Assembly:
        return self._state.at(self.policy_at(target), self.summarise)

    def _last_target(self) -> str:
        """The model that was asked last: by this object, else according to the log."""
        last, sent = self._state.assembly, self._last_sent
        in_log = f"{sent['provider']}:{sent['model']}" if sent else "openai-chat:"
        return last.policy.model if last is not None else in_log

    # The tool loop.

    def results(self, reply: Any, run: Any) -> list[Entry]:
        """Run the calls of a recorded reply and append their results; empty if it called nothing.

        `reply` is what was recorded, or what `record` returned. `run` is a list of functions, a dictionary of them by
        name, a `Toolbox`, or one function of a call's name and arguments. An exception becomes an error result. A call
        that already has a result is not run again; one that is running elsewhere raises a ConflictError. Calls of the
        thread's own tool `recall` are answered by the thread.
        """
        refuse_loop("await AsyncThread(thread).results(…)")
        # One event loop for all calls: an asynchronous tool may keep a connection from one call to the next.
        return asyncio.run(self._results(reply, run))

    async def _results(self, reply: Any, run: Any) -> list[Entry]:
        from quire.send.tools import toolbox_of

        toolbox, appended = toolbox_of(run), list[Entry]()
        if not await off_loop(self._calls_to_run, reply):
            return appended
        async with lock_turn(self.store.turn_lock(self.name)):
            # Read again under the lock: another process may have run some of them meanwhile.
            for call in await off_loop(self._calls_to_run, reply):
                # A call that has begun may have changed something, so its result is recorded even when cancelled.
                appended += await to_the_end(self._carry_out(call, toolbox))
        return appended

    async def _carry_out(self, call: Entry, toolbox: Toolbox) -> list[Entry]:
        result = await off_loop(self._own_answer, call, toolbox) or await toolbox.run(call)
        return await off_loop(self.append, result)

    @_one_at_a_time
    def _calls_to_run(self, reply: Any) -> list[Entry]:
        """The calls of a recorded reply that have no result in the log."""
        newest = self.store.read(self.name, after=self._state.catch_up() and self._state.position.sent_seq)
        answered = {entry.call_id for entry in newest if entry.kind == "result"}
        if not isinstance(reply, list):
            target = self._newest_request.target if self._newest_request is not None else self._last_target()
            reply = (reply if isinstance(reply, Reply) else parse_reply(target, reply)).entries
        call_ids = {entry.call_id for entry in reply if entry.kind == "call"}
        calls = [entry for entry in newest if entry.kind == "call" and entry.call_id in call_ids]
        if call_ids and not calls:
            raise CallError("the reply is not in the log", hint="Call thread.record(reply) first.")
        return [call for call in calls if call.call_id not in answered]

    def _own_answer(self, call: Entry, toolbox: Toolbox) -> Entry | None:
        """The result of a call of the thread's own tool `recall`; None for any other call."""
        from quire.recall import RECALL_TOOL

        ours = call.name not in toolbox and self._tools_offered().get(call.name) == RECALL_TOOL
        return self.recall_result(call) if ours else None

    def resume(self, transport: Transport | None = None, **how: Any) -> Outcome:
        """Continue an interrupted turn from the log; `runner`, `decide` and `on_event` are those of `quire.send.cycle.run`."""
        from quire.send.cycle import resume_sync

        return resume_sync(self, transport, **how)

    # Recall.

    @_one_at_a_time
    def recall(self, query: str | Query, k: int = 5, **how: Unpack[RecallOptions]) -> list[Hit]:
        """Find older entries that the next request does not show, by words and, with an embedder, by meaning (`hit.by`).

        `exclude=()` also finds entries that it shows; `scope="threads"` searches all threads, `scope="records"` the
        store's records.
        """
        hits = self._thread_recall().search(query, k, lambda: self._assembly_for(self._last_target()), **how)
        self._state.keep_checkpoint(CHECKPOINT_EVERY_READ)
        return hits

    def answer_recall(self, call: Entry) -> Entry:
        """Append the result of the model's call of `recall`, the tool that is offered once a request holds a handle."""
        return self.append(self.recall_result(call))[0]

    @_one_at_a_time
    def recall_result(self, call: Entry) -> Entry:
        """The result of a call of `recall`, not appended."""
        return self._thread_recall().answer(call, self._assembly_for(self._last_target()))

    @_one_at_a_time
    def recall_unasked(self, target: str, share: float) -> list[Entry]:
        """Entries to append that bring back relevant left-out ones, up to a `share` of the budget; `Policy.recall` wins."""
        from quire.recall import installed

        chosen = self.policy_at(target).recall
        share = (share if installed() else 0) if chosen is None else chosen
        return self._thread_recall().unasked_entries(self._assembly_for(target), share) if share else []

    def _thread_recall(self) -> ThreadRecall:
        if self._recall is None or self._recall.given is not self.embedder:
            from quire.recall import ThreadRecall

            if self._recall is not None:
                self._recall.close()
            self._recall = ThreadRecall(self.store, self.name, self.embedder, self._searching_records, self.clock)
        return self._recall

    def _searching_records(self, embedder: Embedder | None) -> SearchRecords:
        """A search over the store's records."""
        from quire.records import Records

        records = Records(self.store, embedder)
        return lambda text, k: records.search(text, nn=k, now=self.clock())

    # The window: items that join every turn.

    @property
    def window(self) -> Window:
        """The items that join every turn; every change is saved with the thread.

        An item that leaves the window stays in the log, and in requests until the next rebase.
        """
        return self._window.window()

    @_one_at_a_time
    def keep(self, item: Item | str, *, file: str | Path | None = None, **how: Any) -> Item:
        """Put an item into the window: it joins every turn until it is evicted or removed.

        The same file, lines or symbol, kept again or changed on disk, becomes a new version of the item. `file` is the path
        it was read from, if its filename is not that path; other arguments are those of `Window.add`.
        """
        return self._window.keep(item, file, **how)

    @_one_at_a_time
    def kept_items(self) -> list[JsonObject]:
        """The window's items as a turn attaches them: files are read again, each item under its identity."""
        return self._window.items(self.on_warning)

    # The log as a sequence, and the end of the thread.

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
        """Whether the log still begins with what was read; a thread deleted and made again under the name does not."""
        return self._state.is_current()

    @property
    def read_to(self) -> int:
        """The seq up to which its log has been read."""
        return self._state.position.seq

    def close(self) -> None:
        """End background work, and close the store if `quire.open` opened it; a store that was passed in stays open."""
        if self._recall is not None:
            self._recall.close()
        if self.owns_store:
            self.store.close()


def open_store(place: str | Path, tenant: str = DEFAULT_TENANT) -> Store:
    """A tenant's store, in a file or at a postgresql:// address.

    Each tenant has its own file: `quire.db`, and beside it `quire.acme.db` for the tenant acme.
    """
    check_tenant(tenant)
    if str(place).startswith(("http://", "https://")):
        raise CallError(f"{str(place)!r} is not a file", hint="quire.connect(url, thread) opens a thread of a service.")
    if is_server(place):
        try:
            from quire.log.postgres import PostgresStore
        except ImportError as error:
            raise MissingPart(f"PostgreSQL needs psycopg ({error})", hint="pip install 'quire[postgres]'") from error
        return PostgresStore(str(place), tenant)
    return SqliteStore(Path(place) if str(place) == ":memory:" else tenant_file(Path(place), tenant))


# `https:`, `data:`, `gs:`; but not the letter of a Windows drive.
_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:")


def _as_image(image: Json) -> Json:
    """An image as entries hold it; a string that is not a URL is the path of a picture."""
    if isinstance(image, bytes):
        hint = 'Write {"media_type": "image/png", "data": base64.b64encode(image).decode()}.'
        raise CallError("an image of bytes does not say of which type it is", hint=hint)
    if isinstance(image, str) and not _SCHEME.match(image):
        image = Path(image)
    return from_image(image) if isinstance(image, Path) else image
