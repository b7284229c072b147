"""Finding what a thread no longer shows: recall over its store, and what of it joins a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.assemble import Assembly
from quire.log.store import Store
from quire.recall import Embedder, Hit, Query, Recall, place
from quire.recall.placement import PLACED, standing
from quire.recall.tool import shown_ahead
from quire.records import Records
from quire.values import JsonObject

# Of the budget, what recalled text may take in one turn.
SHARE = 0.1


class ThreadRecall:
    """Search over a thread's store, records included; by meaning where there is an embedder."""

    def __init__(
        self, store: Store, thread: str, embedder: Embedder | None, clock: Callable[[], int]
    ) -> None:
        records = Records(store, embedder)
        self.embedder, self._thread = embedder, thread
        self._recall = Recall(
            store,
            embedder,
            # Vectors of new entries are made beside the conversation.
            background=embedder is not None,
            records=lambda text, k: records.search(text, nn=k, now=clock()),
        )

    def search(self, query: str | Query, k: int, ahead: Callable[[], Assembly], **how: Any) -> list[Hit]:
        """Entries that the next request does not show, unless `exclude` says otherwise; or records."""
        if how.get("scope") != "records" and "exclude" not in how:
            how["exclude"] = shown_ahead(ahead())
        return self._recall.search(query, k, thread=self._thread, **how)

    def close(self) -> None:
        """End the making of vectors; searching goes on."""
        self._recall.close()

    def for_turn(self, text: str, k: int, assembly: Assembly) -> JsonObject:
        """What a turn's message says of older entries: only what the prompt does not hold already."""
        if not assembly.entries:
            return place([], 0).meta
        shown = shown_ahead(assembly)
        entries = assembly.entries
        newest_first = (entries[seq] for seq in sorted(entries, reverse=True))
        before = next((entry.text for entry in newest_first if entry.kind == "user"), "")
        query = Query(text, before)
        hits = self.search(query, k, lambda: assembly, kinds=PLACED, exclude=shown)
        share = int(assembly.policy.limit * SHARE)
        return place(hits, share, standing((entries[seq] for seq in sorted(shown)), shown), query=query).meta
