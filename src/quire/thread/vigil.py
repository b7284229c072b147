"""Watches what is sent: each request against the one before it, each reply against what was predicted."""

from __future__ import annotations

from collections.abc import Sequence

from quire.assemble.monitor import Moved, watch
from quire.providers.explain import Event, Watch
from quire.providers.explicit import Served
from quire.values import Entry, Envelope, JsonObject, Reply, Request


class Vigil:
    """Knows the newest request and, per model, what the cache should hold."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self._sealed: Envelope | None = None
        self._watches: dict[str, Watch] = {}
        # Models whose cache may hold more than was seen here: an earlier process had sent to them.
        self._unsure: set[str] = set()

    def sends(
        self, at: int, request: Request, sealed: Envelope, since: Sequence[Entry], earlier: bool = False
    ) -> Moved | None:
        """A request goes out: L1 or L2 that moved although no entry since the last one explains it.

        `earlier`: requests of this thread were sent before that nobody told of here.
        """
        if request.target not in self._watches:
            self._watches[request.target] = Watch(request.target)
            self._unsure |= {request.target} if earlier else set()
        self._watches[request.target].sent(at, request.body)
        same = self.request is not None and self.request.provider == request.provider
        moved = watch(self._sealed, sealed, since) if same and self._sealed is not None else None
        self.request, self._sealed = request, sealed
        return moved

    def hears(
        self,
        request: Request,
        reply: Reply,
        diagnosis: JsonObject | None = None,
        served: Served | None = None,
    ) -> Event | None:
        """A reply came back: where its cache reads are not what was predicted, why.

        `served`: what an explicit cache did for it; then that one is what is compared with.
        """
        watching = self._watches.get(request.target)
        event = watching.reported(reply.usage, diagnosis, served) if watching is not None else None
        if request.target in self._unsure:
            self._unsure.remove(request.target)
            return None
        return event
