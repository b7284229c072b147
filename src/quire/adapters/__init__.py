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
    """ "provider:model" by a framework's names; who is not known here is taken to count as OpenAI does.

    Empty where the model has no name: a `Fitter` without a target counts as OpenAI does, too.
    """
    named = _PROVIDERS.get(provider, provider)
    try:
        resolve(named)
    except CallError:
        named = "openai-chat"
    return f"{named}:{model}" if model else ""


def takes_marks(target: str) -> bool:
    """Whether the provider stores only what a request marks."""
    return bool(target) and resolve(target.partition(":")[0])[1] in _MARKED


class FittedMessages(NamedTuple):
    """Fitted messages, or the body around them, and the places behind which a cache mark does good."""

    body: Any
    marks: tuple[int, ...]


class Fitters:
    """A `Fitter` for each conversation that is going on; of many, those that were used last.

    What is fitted follows from the messages alone: a conversation whose fitter was dropped is only read once more.
    """

    def __init__(self, budget: int, target: str, form: str, policy: dict[str, Any]) -> None:
        self.target, self._arguments = target, (budget, target, form, policy)
        self._by_conversation: Recent[tuple[str, str], Fitter] = Recent(64)
        self._lock = threading.Lock()
        # The fitter of the newest request: its epoch, its tokens, what it left out.
        self.newest = self._fitter(target)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is pickled, is what was chosen: it reads its conversations once more."""
        return Fitters, self._arguments

    def _fitter(self, target: str) -> Fitter:
        budget, _, form, policy = self._arguments
        return Fitter(budget, target, form=form, **policy)

    def fit(self, body: Any, conversation: str, model: str) -> FittedMessages:
        """The messages, or a body, fitted; `conversation` tells one from another, `model` is "provider:model"."""
        key = conversation, model
        with self._lock:
            fitter = self._by_conversation.pop(key, None)
            fitter = fitter or self._fitter(self.target or model)
            fitted = FittedMessages(fitter.fit(body), fitter.marks)
            self._by_conversation[key] = self.newest = fitter
        return fitted


class HasFitter:
    """What fits a framework's messages."""

    _fitters: Fitters

    @property
    def fitter(self) -> Fitter:
        """The fitter of the newest request: `fitter.built.epoch`, `fitter.left_out`, `fitter.original(handle)`."""
        return self._fitters.newest


def record(thread: Thread, target: str, body: JsonObject, reply: Any) -> None:
    """Put a request in the form of OpenAI Chat and its reply into a log: what is new of it, and what it used."""
    provider, _, model = target.partition(":")
    read = providers.parse_reply(f"openai-chat:{model}", reply)
    sent = providers.import_("openai-chat", body)
    entries = [entry for entry in thread.entries if entry.kind not in BOOKKEEPING]
    joined = joining(entries, [*sent, *read.entries])
    if joined.known <= len(sent):  # otherwise a later call was recorded first, whose messages hold this reply
        thread.append(*joined.lacking[: len(sent) - joined.known])
        thread.record(read, Request(provider, model, body, lines_of(body, "openai-chat")))


class ThreadMessages:
    """A thread as the messages of one format: what is added goes into the log, and nothing leaves it.

    What is taken back is left behind by a fork: `chat` goes on as `chat~2`, and opening `chat` opens the newest.
    """

    def __init__(self, thread: Thread, form: str) -> None:
        self._form, self._base, self._forks = form, thread, 1
        self.thread = thread
        names = {info.name for info in thread.store.threads()}
        while f"{thread.name}~{self._forks + 1}" in names:
            self._open_next_fork()

    def read(self) -> list[JsonObject]:
        """The messages, oldest first; those that came in this format as they came."""
        return self._messages(self.thread.entries)

    def add(self, messages: Sequence[JsonObject]) -> None:
        """Put messages into the log."""
        if messages:
            self.thread.append(*providers.import_(self._form, list(messages)))

    def pop(self) -> JsonObject | None:
        """Take the newest message back."""
        entries, before = self.thread.entries, self.read()
        end = len(entries)
        while end and len(self._messages(entries[:end])) == len(before):
            end -= 1
        if before:
            self._fork(end)
        return before[-1] if before else None

    def clear(self) -> None:
        """Begin anew."""
        if len(self.thread):
            self._fork(0)

    def _messages(self, entries: Sequence[Entry]) -> list[JsonObject]:
        out = providers.export(self._form, entries)
        # With instructions or tools in the log, the messages are a field of the object that they come in.
        return out if isinstance(out, list) else next(out[name] for name in _FIELDS if name in out)

    def _fork(self, at_seq: int) -> None:
        self.thread.store.fork(self.thread.name, at_seq, f"{self._base.name}~{self._forks + 1}")
        self._open_next_fork()

    def _open_next_fork(self) -> None:
        self._forks += 1
        of, name = self._base, f"{self._base.name}~{self._forks}"
        self.thread = Thread(of.store, name, of.policy, of.summarise, of.clock, of.observers)
