"""The path on one screen: log → select → layer → fit → render → (send) → record → log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quire import providers, values
from quire.assemble import Assembly, Built, Policy
from quire.assemble.layers import enclose
from quire.assemble.monitor import Moved, watch
from quire.assemble.summary import Summarise, extract
from quire.errors import CallError
from quire.log.hashing import sha256_hex
from quire.log.sqlite import SqliteStore
from quire.log.store import Store
from quire.providers.models import ModelInfo, model_info
from quire.values import Entry, Envelope, Item, Json, JsonObject, Reply, Request

if TYPE_CHECKING:
    from quire.send.cycle import Outcome
    from quire.send.transport import Transport

_logger = logging.getLogger("quire")


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
        self, store: Store, name: str, policy: Policy | None = None, summarise: Summarise = extract
    ) -> None:
        self.store, self.name, self.policy, self.summarise = store, name, policy, summarise
        self._assembly: Assembly | None = None
        self._rendering: tuple[str, providers.Rendering] | None = None
        self._sent: tuple[Request, Envelope] | None = None
        self.seq = 0
        self._since: list[Entry] = []
        # Called with a warning when L1 or L2 moved and no entry explains it.
        self.on_moved: Callable[[Moved], None] = lambda moved: _logger.warning("%s: %s", name, moved)

    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably, behind everything this thread has seen."""
        kept = self.store.append(self.name, entries, expected_seq=self._catch_up())
        self._feed(kept)
        return kept

    def user(self, text: str, attach: Iterable[Item | JsonObject] = (), **extra: Json) -> Entry:
        """The user speaks; the items join this turn's context."""
        return self.append(values.user(text, attach, **extra))[0]

    def request(self, target: str, **options: Any) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first."""
        built = self.build(target)
        if built.rebase is not None:
            self.append(Entry("rebase", built.rebase))
            built = self.build(target)
        request = self._render(built, target, options)
        self._watch(request, enclose(built, chat_messages(built)))
        return request

    def build(self, target: str) -> Built:
        """Select, layer and fit: what would be sent now, without recording anything."""
        return self._assembly_for(target).request()

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
            reply
            if isinstance(reply, Reply)
            else providers.parse_reply(f"{sent.provider}:{sent.model}", reply)
        )
        return self.append(self.sent_entry(sent, parsed), *parsed.entries)

    def resume(self, transport: Transport, **how: Any) -> Outcome:
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
        }
        if reply is not None:
            body |= {"usage": msgspec.to_builtins(reply.usage), "stop": reply.stop}
        return Entry("sent", body)

    def _watch(self, request: Request, sealed: Envelope) -> None:
        """Compare L1 and L2 with the request before; whoever listens hears of an unexplained change."""
        if self._sent is not None and self._sent[0].provider == request.provider:
            moved = watch(self._sent[1], sealed, self._since)
            if moved is not None:
                self.on_moved(moved)
        self._sent, self._since = (request, sealed), []

    def _render(self, built: Built, target: str, options: dict[str, Any]) -> Request:
        return providers.render(built.prompt, target, cache=True, key=self.name, **options)

    def _assembly_for(self, target: str) -> Assembly:
        """The thread folded for this model; another model's fold is thrown away and made anew."""
        policy = policy_for(target, self.policy)
        if self._assembly is None or self._assembly.policy != policy:
            self._assembly, self.seq = Assembly(policy, self.summarise), 0
        self._catch_up()
        return self._assembly

    def _catch_up(self) -> int:
        """Take in what the log has gained since, whoever wrote it."""
        known = {one.name for one in self.store.threads()} if self.seq == 0 else {self.name}
        if self.name in known:
            self._feed(self.store.read(self.name, after=self.seq))
        return self.seq

    def _feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self._assembly is not None:
                self._assembly.feed(entry)
            self._since.append(entry)
            self.seq = entry.seq


def chat_messages(built: Built) -> list[JsonObject]:
    """A built request's messages in OpenAI Chat form, the system message left out."""
    messages: list[JsonObject] = providers.render(built.prompt, "openai-chat:").body["messages"]
    return messages[1:] if built.prompt.system else messages
