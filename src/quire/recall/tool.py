"""The tool by which a model asks for older entries itself: one definition, whoever runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import msgspec

from quire.assemble import Assembly, Policy, checkpoint
from quire.assemble.summary import extract
from quire.assemble.user_message import whole_text
from quire.errors import CallError, NotFound
from quire.log.store import Store
from quire.recall import MOST
from quire.recall.document import relevant
from quire.recall.placement import PLACED, in_prompt, place
from quire.recall.search import Recall
from quire.values import Entry

# The text behind a handle: what an entry says whole, given piece by piece from a line on.


class LineRange(msgspec.Struct, frozen=True):
    """A part of an entry's text: lines start to end of `count`, counted from 1."""

    text: str
    entry: Entry
    start: int
    end: int
    count: int


def original(store: Store, thread: str, handle: str, start: int, limit: int) -> LineRange:
    """As much of the text behind a handle as `limit` characters hold, from a line on; says where to go on."""
    entry = find_handle(store, thread, handle)
    lines = _lines(whole_text(entry), limit)
    if not 1 <= start <= len(lines):
        raise CallError(f"the text behind {handle} has {len(lines)} lines, not {start}")
    end, used = start - 1, -1
    while end < len(lines) and used + len(lines[end]) + 1 <= limit:
        used, end = used + len(lines[end]) + 1, end + 1
    text = "\n".join(lines[start - 1 : end])
    if end < len(lines):
        text += f"\n[… {len(lines) - end} more lines; recall again with start={end + 1} …]"
    return LineRange(text, entry, start, end, len(lines))


def _lines(text: str, limit: int) -> list[str]:
    """The lines of a text; one that is longer than a whole piece counts as several, so that its end can be read."""
    lines = text.removesuffix("\n").split("\n")
    return [line[at : at + limit] for line in lines for at in range(0, max(1, len(line)), limit)]


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


# What the next request of a thread shows whole: such entries need not be found again.


def shown_ahead(assembly: Assembly) -> frozenset[int]:
    """The seqs of entries that the next request shows whole."""
    if not assembly.entries:
        return frozenset()
    ahead = assembly.ahead()
    return in_prompt(ahead.epoch.prompt(), ahead.left_out, ahead.entries)


class VisibleEntries:
    """What the next request of a thread shows whole, by its log alone, kept up with it."""

    def __init__(self, store: Store, thread: str) -> None:
        self._store, self._thread = store, thread
        self._assembly, self._seq = Assembly(), 0
        # What the newest request said of the policy it was built under.
        self._policy = self._assembly.policy
        # A model may ask several times at once.
        self._lock = threading.Lock()

    def __call__(self) -> frozenset[int]:
        with self._lock:
            if self._seq == 0:
                self._go_on_from_checkpoint()
            self._feed(self._store.read(self._thread, after=self._seq))
            return shown_ahead(self._assembly)

    def _go_on_from_checkpoint(self) -> None:
        """Begin with the fold that the store keeps of this very log, where it keeps one."""
        data = self._store.checkpoint(self._thread)
        found = checkpoint.decode(data) if data is not None else None
        if found is None or found.unrecorded:
            return
        ends, sent = (
            self._store.read(self._thread, seq - 1, 1) if seq else [] for seq in (found.seq, found.sent_seq)
        )
        if [entry.id for entry in ends] != [found.entry_id]:
            return
        # Bytes of another shape leave it to the log.
        with suppress(ValueError, RecursionError):
            self._assembly = found.assembly(
                extract, lambda after, limit: self._store.read(self._thread, after, limit)
            )
            self._seq = found.seq
            self._policy = next((policy for entry in sent if (policy := _policy(entry))), self._policy)

    def _feed(self, fresh: Sequence[Entry]) -> None:
        """Take new entries in; requests under another policy than before are followed from the start."""
        policy = next((found for entry in reversed(fresh) if (found := _policy(entry))), None)
        if policy is not None and policy != self._policy:
            self._assembly, self._policy = Assembly(policy), policy
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


_CHARACTERS_A_TOKEN = 4
_NOTHING = "nothing was found that is not shown already"


class RecallAnswer(msgspec.Struct, frozen=True):
    """What the tool says, and a line about it."""

    text: str
    about: str


class Asking:
    """Answers for one thread: what the next request does not show, and the originals behind its handles.

    `shown` says which entries the prompt has already; unless it is given, the log itself tells.
    """

    def __init__(
        self,
        recall: Recall,
        thread: str,
        shown: Callable[[], Collection[int | str]] | None = None,
        share_tokens: int = 2000,
    ) -> None:
        self._recall, self._thread, self._share = recall, thread, share_tokens
        self._shown = shown or VisibleEntries(recall.store, thread)

    def __call__(self, query: str = "", handle: str = "", k: int = 5, start: int = 1) -> RecallAnswer:
        """What was found, as the sections a recalled turn shows; or the text behind a handle."""
        if not isinstance(query, str) or not isinstance(handle, str) or not (query + handle).strip():
            raise CallError("recall needs a query or a handle", hint="Say what to look for.")
        return self._original(handle.strip(), start) if handle.strip() else self._found(query, k)

    def _original(self, handle: str, start: int) -> RecallAnswer:
        limit = self._share * _CHARACTERS_A_TOKEN
        found = original(self._recall.store, self._thread, handle, start, limit)
        where = f"lines {found.start}-{found.end} of {found.count}"
        return RecallAnswer(found.text, f"entry {found.entry.seq} ({found.entry.kind}), {where}")

    def _found(self, query: str, k: int) -> RecallAnswer:
        hits = self._recall.search(
            query, max(1, min(k, MOST)), thread=self._thread, kinds=PLACED, exclude=self._shown()
        )
        text = place(hits, self._share, query=query).text if relevant(hits) else ""
        return RecallAnswer(text, f"{len(hits)} found" if text else _NOTHING)


def recall_tool(
    recall: Recall,
    thread: str,
    shown: Callable[[], Collection[int | str]] | None = None,
    share_tokens: int = 2000,
) -> Callable[..., str]:
    """The function behind RECALL_TOOL for one thread, giving text."""
    asking = Asking(recall, thread, shown, share_tokens)

    def run(query: str = "", k: int = 5, handle: str = "", start: int = 1) -> str:
        """What was found, or the text behind a handle; a sentence where there is nothing."""
        answer = asking(query, handle, k, start)
        return answer.text or f"{answer.about.capitalize()}."

    return run
