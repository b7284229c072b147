"""What a cycle needs of a thread; `quire.engine.Thread` is one, and this package does not know it."""

from __future__ import annotations

from typing import Any, Protocol

from quire.log.store import Store
from quire.values import Entry, Reply, Request


class Log(Protocol):
    """A thread: appended to, asked for its next request."""

    @property
    def name(self) -> str: ...

    @property
    def store(self) -> Store: ...

    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably."""

    def request(self, target: str, **options: Any) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first."""

    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for a request."""
