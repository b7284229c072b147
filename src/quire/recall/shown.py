"""What the next request of a thread shows whole: such entries need not be found again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from quire.assemble import Assembly, Policy
from quire.errors import CallError
from quire.log.store import Store
from quire.recall.placement import in_prompt
from quire.values import Entry


def shown_ahead(assembly: Assembly) -> frozenset[int]:
    """The seqs of entries that the next request shows whole."""
    if not assembly.entries:
        return frozenset()
    ahead = assembly.ahead()
    return in_prompt(ahead.epoch.prompt(), ahead.left_out, ahead.entries)


class Shown:
    """What the next request of a thread shows whole, by its log alone, kept up with it."""

    def __init__(self, store: Store, thread: str) -> None:
        self._store, self._thread = store, thread
        self._assembly, self._seq = Assembly(), 0
        # A model may ask several times at once.
        self._lock = threading.Lock()

    def __call__(self) -> frozenset[int]:
        with self._lock:
            self._feed(self._store.read(self._thread, after=self._seq))
            return shown_ahead(self._assembly)

    def _feed(self, fresh: Sequence[Entry]) -> None:
        """Take new entries in; requests under another policy than before are followed from the start."""
        policy = next((found for entry in reversed(fresh) if (found := _policy(entry))), None)
        if policy is not None and policy != self._assembly.policy:
            self._assembly = Assembly(policy)
            fresh = self._store.read(self._thread)
        self._assembly.extend(fresh)
        self._seq = fresh[-1].seq if fresh else self._seq


def _policy(sent: Entry) -> Policy | None:
    """The policy that a request was built under, as far as its entry names it; None for other entries."""
    if sent.kind != "sent" or sent.meta.get("aside"):
        return None
    named = sent.meta.get("policy")
    usual = msgspec.to_builtins(Policy())
    known = {name: value for name, value in named.items() if name in usual} if isinstance(named, dict) else {}
    try:
        return msgspec.convert(usual | known, Policy)
    except (msgspec.ValidationError, CallError):
        return Policy()  # meta is free: what stands there need not be ours
