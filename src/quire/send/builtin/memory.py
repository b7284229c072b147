"""recall: what was said or returned earlier, by a search or by the handle that stands for it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from quire.assemble.turn import result_text
from quire.errors import CallError, NotFound
from quire.log.sqlite import SqliteStore
from quire.log.store import Store
from quire.recall import Recall, place
from quire.send.builtin.pieces import piece
from quire.send.tools.tool import Output, Tool, tool
from quire.values import Entry, Json

_LIMIT = 16_000


def recall_tool(
    store: SqliteStore, thread: str, searching: Recall | None = None, limit: int = _LIMIT
) -> Tool:
    """The tool `recall` for one thread; it finds nothing of any other."""
    search = searching or Recall(store)

    @tool(name="recall", idempotent=True, category="memory", output=("text",), limit=limit * 2)
    def recall(
        query: str = "",
        handle: str = "",
        k: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5,
        start: Annotated[int, msgspec.Meta(ge=1)] = 1,
    ) -> Output:
        """Find what was said or returned earlier in this conversation and is no longer shown, or the whole text behind a handle.

        Args:
            query: What to look for, in plain words.
            handle: A handle, as 3f9a0c12bd45, that stands for a text that was cut; gives the whole text.
            k: How many entries to find.
            start: With a handle, the line to begin at.
        """
        if handle.strip():
            return _original(store, thread, handle.strip(), start, limit)
        if not query.strip():
            raise CallError("recall needs a query or a handle", hint="Say what to look for.")
        hits = search.search(query, k, thread=thread)
        return Output(place(hits, limit // 4).text, f"{len(hits)} found" if hits else "nothing was found")

    return recall


def _original(store: Store, thread: str, handle: str, start: int, limit: int) -> Output:
    """The text behind a handle, from a line on, as much of it as fits."""
    entry = find_handle(store, thread, handle)
    text = entry_text(entry)
    count = text.removesuffix("\n").count("\n") + 1
    if start > count:
        raise CallError(f"the text behind {handle} has {count} lines, not {start}")
    found = piece(text, "", start, count, limit)
    more = f"\n[… {count - found.end} more lines; recall again with start={found.end + 1} …]"
    shown = found.text + (more if found.end < count else "")
    return Output(shown, f"entry {entry.seq} ({entry.kind}), lines {found.start}-{found.end} of {count}")


def find_handle(store: Store, thread: str, handle: str) -> Entry:
    """The entry that a handle names, if it is one of this thread's own."""
    found = store.find(handle)
    if found is not None:
        entry = found[1]
        # A fork shares its entries with the thread it was made of, at the same places.
        own = store.read(thread, after=entry.seq - 1, limit=1)
        if own and own[0].id == entry.id:
            return entry
    raise NotFound(
        f"no entry of this conversation has the handle {handle!r}", hint="Handles are hexadecimal digits."
    )


def entry_text(entry: Entry) -> str:
    """What an entry says, whole."""
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        return f"{entry.name} {_json(entry.args)}"
    if entry.kind == "attach":
        return str(entry.body["item"]["content"])
    return entry.text


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
