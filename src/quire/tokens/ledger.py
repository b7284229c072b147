"""A thread's running count: what was counted once is never counted again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.errors import CallError
from quire.tokens.budget import MESSAGE_TOKENS, compact, tools_tokens
from quire.tokens.counting import Counter, counter
from quire.values import SPOKEN, Entry

# Entries that say something about the thread, not to the model.
SILENT = frozenset({"sent", "rebase"})


class Ledger:
    """Tokens of an append-only list of entries, as sums up to each entry; growing it costs the new text only."""

    def __init__(self, with_: Counter | None = None) -> None:
        self._with = with_ or counter()
        self._sums = [0]
        self._last: Entry | None = None

    def __len__(self) -> int:
        return len(self._sums) - 1

    @property
    def total(self) -> int:
        return self._sums[-1]

    def extend(self, entries: Iterable[Entry]) -> int:
        """Count entries behind those already here; returns what they add."""
        before = self.total
        for entry in entries:
            self._sums.append(self.total + entry_tokens(entry, self._with, self._last))
            self._last = entry
        return self.total - before

    def follow(self, thread: Sequence[Entry]) -> int:
        """The total of a whole thread of which the part already here is not looked at again."""
        if len(thread) < len(self):
            raise CallError(
                f"{len(self)} entries were counted but the thread has {len(thread)}",
                hint="A thread only grows; start a new ledger for a fork.",
            )
        self.extend(thread[len(self) :])
        return self.total

    def between(self, start: int, stop: int) -> int:
        """Tokens of entries start..stop-1, counted from 0."""
        return self._sums[stop] - self._sums[start]


def entry_tokens(entry: Entry, with_: Counter | None = None, before: Entry | None = None) -> int:
    """An entry's tokens, and its message's framing where it begins one (a model's entries in a row are one)."""
    if entry.kind in SILENT:
        return 0
    chosen = with_ or counter()
    if entry.kind == "tools":
        return tools_tokens(entry.tools, chosen)
    joins = entry.kind in SPOKEN and before is not None and before.kind in SPOKEN
    return sum(map(chosen.count, entry_texts(entry))) + (0 if joins else MESSAGE_TOKENS)


def entry_texts(entry: Entry) -> list[str]:
    """Every text of an entry that a model would read."""
    body = entry.body
    texts = [str(body[key]) for key in ("text", "name", "outcome", "content") if body.get(key)]
    if entry.kind == "call":
        texts.append(compact(entry.args))
    return texts + [str(item.get("content", "")) for item in entry.attached]
