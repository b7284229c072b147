"""What a cycle needs of a thread; `quire.engine.Thread` is one, and this package does not know it."""

from __future__ import annotations

from typing import Any, Protocol

from quire.assemble import Built
from quire.assemble.summary import Summarise
from quire.log.store import Store
from quire.providers.explicit import Served
from quire.values import Entry, Prompt, Reply, Request


class Log(Protocol):
    """A thread: appended to, asked for its next request."""

    @property
    def name(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def summarise(self) -> Summarise: ...

    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably."""

    def request(self, target: str, **options: Any) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first."""

    def build(self, target: str) -> Built:
        """What would be sent now, without recording anything."""

    def so_far(self, target: str) -> Prompt:
        """The same as if no rebase were due."""

    def reported(self, request: Request, reply: Reply, *, served: Served | None = None) -> object:
        """A reply came: what it read from the cache is compared with what was predicted, or with an explicit cache."""

    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for a request."""
