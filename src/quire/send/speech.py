"""How a cycle talks to an engine: in role messages, or (quire.send.text) in one text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from quire import providers
from quire.errors import RuleError
from quire.providers.facts import resolve, split_target
from quire.providers.rules import validate
from quire.send.deltas import Piece, pieces
from quire.send.thread import Log
from quire.values import Entry, JsonObject, Reply, Request


class Speech(Protocol):
    """Requests out of a log, and a reader for what comes back."""

    def request(self, thread: Log, target: str, options: JsonObject) -> Request:
        """The next request."""

    def sent(self, thread: Log, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for it."""

    def reader(self, thread: Log, target: str, names: Iterable[str]) -> Any:
        """Something to feed the stream's events to: feed(event) -> entries, partial(), reply()."""

    def pieces(self, target: str, event: JsonObject) -> list[Piece]:
        """The text in one event, for whoever watches."""


class Messages(msgspec.Struct, frozen=True):
    """Role messages in the provider's own format, checked against its rules before they are sent."""

    def request(self, thread: Log, target: str, options: JsonObject) -> Request:
        """The thread's next request; one that the provider would refuse is an error here."""
        request = thread.request(target, **options)
        if found := validate(request.body, request.provider, request.model, headers=request.headers):
            raise RuleError(
                f"the request breaks a rule of {request.provider}: {found[0].message} (at {found[0].path})",
                hint=found[0].fix,
            )
        return request

    def sent(self, thread: Log, request: Request, reply: Reply | None = None) -> Entry:
        return thread.sent_entry(request, reply)

    def reader(self, thread: Log, target: str, names: Iterable[str]) -> Any:
        return providers.stream(target, names)

    def pieces(self, target: str, event: JsonObject) -> list[Piece]:
        return pieces(resolve(split_target(target)[0])[1], event)


MESSAGES = Messages()
