"""Quire inside agent frameworks, a module each: `from quire.adapters.langchain import QuireMiddleware`.

Each turns a framework's messages into fitted ones, or keeps them in a thread. What they share is here; nothing here
knows a framework.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from quire import providers
from quire.errors import CallError
from quire.fitting import Fitter
from quire.log.entries import joining
from quire.providers.models import resolve
from quire.providers.prefix import lines_of
from quire.server import Recent
from quire.thread import Thread
from quire.values import BOOKKEEPING, Entry, JsonObject, Request

# What frameworks call providers, where Quire has another name.
_PROVIDERS = dict.fromkeys(("google", "google-gla", "google_genai", "google_vertexai", "vertex_ai"), "gemini")
_PROVIDERS |= dict.fromkeys(("amazon_bedrock", "bedrock_converse"), "bedrock")
_FIELDS = ("input", "messages", "contents")
# Wires whose requests say themselves where the provider shall store.
_MARKED = ("anthropic", "bedrock")


def target_of(provider: str, model: str) -> str:
    """ "provider:model" from a framework's names; a provider that Quire does not know counts as OpenAI.

    Empty where the model has no name: a `Fitter` without a target counts tokens as OpenAI does, too.
    """
    named = _PROVIDERS.get(provider, provider)
    try:
        resolve(named)
    except CallError:
        named = "openai-chat"
    return f"{named}:{model}" if model else ""


def takes_marks(target: str) -> bool:
    """Whether the provider caches only what a request marks."""
    return bool(target) and resolve(target.partition(":")[0])[1] in _MARKED


def marked_content(content: Any, is_marked: bool) -> Any:
    """A message's content with a cache mark on its last block, where `is_marked`; empty content as it is.

    Always a list of blocks, so that a message is written the same once its mark has moved on.
    """
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    if not content or not isinstance(blocks[-1], dict):
        return content
    return [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}] if is_marked else blocks


class FittedMessages(NamedTuple):
    """Fitted messages (or a body that holds them), and the indices of the messages that should carry a cache mark."""

    body: Any
    marks: tuple[int, ...]


class Fitters:
    """A `Fitter` for each of the 64 conversations that were fitted last.

    A fitter is derived from the messages alone: where it was dropped, the conversation is read again.
    """

    def __init__(self, budget: int, target: str, form: str, policy: dict[str, Any]) -> None:
        self.target, self._arguments = target, (budget, target, form, policy)
        self._by_conversation: Recent[tuple[str, str], Fitter] = Recent(64)
        self._lock = threading.Lock()
        # The fitter of the newest request.
        self.newest = self._fitter(target)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the arguments only: they read their conversations again."""
        return Fitters, self._arguments

    def _fitter(self, target: str) -> Fitter:
        budget, _, form, policy = self._arguments
        return Fitter(budget, target, form=form, **policy)

    def fit(self, body: Any, conversation: str, model: str) -> FittedMessages:
        """Fit messages or a body; `conversation` identifies the conversation, `model` is "provider:model"."""
        key = conversation, model
        with self._lock:
            fitter = self._by_conversation.pop(key, None) or self._fitter(self.target or model)
            fitted = FittedMessages(fitter.fit(body), fitter.marks)
            self._by_conversation[key] = self.newest = fitter
        return fitted


class HasFitter:
    """A base of the adapters that fit messages: gives access to the newest fitter."""

    _fitters: Fitters

    @property
    def fitter(self) -> Fitter:
        """The fitter of the newest request: `fitter.built.epoch`, `fitter.left_out`, `fitter.original(handle)`."""
        return self._fitters.newest


def record(thread: Thread, target: str, body: JsonObject, reply: Any) -> None:
    """Append a request and its reply, both in the form of OpenAI Chat, to a thread: the new messages and the usage."""
    provider, _, model = target.partition(":")
    read = providers.parse_reply(f"openai-chat:{model}", reply)
    sent = providers.import_("openai-chat", body)
    entries = [entry for entry in thread.entries if entry.kind not in BOOKKEEPING]
    joined = joining(entries, [*sent, *read.entries])
    if joined.known <= len(sent):  # otherwise a later call, whose messages hold this reply, was recorded first
        thread.append(*joined.lacking[: len(sent) - joined.known])
        thread.record(read, Request(provider, model, body, lines_of(body, "openai-chat")))


class ThreadMessages:
    """A thread as the messages of one format.

    The log only grows: to remove messages, the thread `chat` continues in a fork `chat~2`; opening `chat` opens the
    newest fork.
    """

    def __init__(self, thread: Thread, form: str) -> None:
        self._form, self._base, self._forks = form, thread, 1
        self.thread = thread
        names = {info.name for info in thread.store.threads()}
        while f"{thread.name}~{self._forks + 1}" in names:
            self._open_next_fork()

    def read(self) -> list[JsonObject]:
        """The messages, oldest first; those that were added in this format are unchanged."""
        return self._messages(self.thread.entries)

    def add(self, messages: Sequence[JsonObject]) -> None:
        """Append messages."""
        if messages:
            self.thread.append(*providers.import_(self._form, list(messages)))

    def pop(self) -> JsonObject | None:
        """Remove the newest message and return it."""
        entries, before = self.thread.entries, self.read()
        end = len(entries)
        while end and len(self._messages(entries[:end])) == len(before):
            end -= 1
        if before:
            self._fork(end)
        return before[-1] if before else None

    def clear(self) -> None:
        """Remove all messages."""
        if len(self.thread):
            self._fork(0)

    def _messages(self, entries: Sequence[Entry]) -> list[JsonObject]:
        out = providers.export(self._form, entries)
        # Where the log has instructions or tools, the export is an object with the messages in one of its fields.
        return out if isinstance(out, list) else next(out[name] for name in _FIELDS if name in out)

    def _fork(self, at_seq: int) -> None:
        self.thread.store.fork(self.thread.name, at_seq, f"{self._base.name}~{self._forks + 1}")
        self._open_next_fork()

    def _open_next_fork(self) -> None:
        self._forks += 1
        of, name = self._base, f"{self._base.name}~{self._forks}"
        self.thread = Thread(of.store, name, of.policy, of.summarise, of.clock, of.observers)
