"""The query of a conversation: what the user said last, and at less weight what they said before."""

from __future__ import annotations

from collections.abc import Iterable

from quire.recall.question import Query
from quire.values import Entry


def query_for(entries: Iterable[Entry]) -> Query:
    """The last user turn, with the one before it for what it leaves unsaid."""
    said = [entry.text for entry in entries if entry.kind == "user" and entry.text.strip()]
    return Query(said[-1] if said else "", said[-2] if len(said) > 1 else "")
