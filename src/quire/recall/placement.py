"""Recalled entries as text for a model: in a user message, as the result of the tool `recall`, or without being asked."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Unpack

import msgspec

from quire import values
from quire.assemble import Assembly
from quire.assemble.summary import extract
from quire.assemble.telling import leaves
from quire.assemble.user_message import entry_text, references, whole_text
from quire.errors import CallError, NotFound, QuireError
from quire.formats import clean
from quire.formats.clean import Clean, ToolResult, formatted_context
from quire.log import now_ms
from quire.log.shapes import short
from quire.log.store import Store
from quire.providers.convert import holds_blocks
from quire.recall import MOST, RECALL_TOOL
from quire.recall.document import FLOOR, Query, first_words, passage, relevant
from quire.recall.languages import PREFIXES, lookups, terms
from quire.recall.meaning import Embedder, installed
from quire.recall.search import Hit, Recall, RecallOptions, SearchRecords
from quire.thread_state import ThreadState
from quire.tokens import counter
from quire.values import (
    SPOKEN,
    Call,
    Entry,
    JsonObject,
    LeftOut,
    Message,
    Prompt,
    Result,
    Text,
    Think,
    cached_property,
    result_text,
    result_words,
)

# Recalled text takes at most a share of the budget, best hits first. An entry that an earlier turn recalled, and that
# the request still shows, is named instead of repeated.

# Kinds that can be shown as a line of conversation or as a tool's result; others are found but not placed.
PLACED = ("user", "respond", "result")
# One entry takes at most this fraction of the room (a half), so that a long result does not keep out all others.
_LEAST_ENTRIES = 2
_CHARACTERS_A_TOKEN = 3
# How many of its first characters name an entry that is shown already.
_NAME = 60
_ROLE: dict[str, Literal["user", "assistant"]] = {"user": "user", "respond": "assistant"}


class Placed(msgspec.Struct, frozen=True):
    """The text to put before the query, the ids of entries that it shows or only names, and what had no room."""

    text: str
    ids: tuple[str, ...] = ()
    named_ids: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    tokens: int = 0

    @property
    def meta(self) -> JsonObject:
        """What is stored in the user entry's meta, so that the turn can be rendered again byte for byte."""
        return {"recalled": self.text, "recalled_ids": list(self.ids)} if self.text else {}


def place(
    hits: Iterable[Hit], share_tokens: int, standing: Mapping[str, str] | Collection[str] = (), query: str | Query = ""
) -> Placed:
    """The hits as text of at most `share_tokens`; of a long entry, the part that the query asks for.

    Hits whose ids are in `standing` are shown in the request already: they are named, not repeated. A mapping gives
    the text that shows each.
    """
    count = counter().count
    lines: dict[str, str] = {}
    quoted: list[Hit] = []
    named: list[Hit] = []
    left_out: list[LeftOut] = []
    text = ""
    for hit in sorted(hits, key=lambda hit: -hit.score):
        if hit.entry.kind not in PLACED:
            left_out.append(LeftOut(hit.seq, f"a {hit.entry.kind} is no line of a conversation"))
            continue
        lines[hit.id] = _line(hit, share_tokens, query)
        ours = named if _is_shown(hit, lines[hit.id], standing) else quoted
        ours.append(hit)
        wider = _text(quoted, named, lines)
        if count(wider) > share_tokens:
            left_out.append(LeftOut(hit.seq, f"no room in {share_tokens} tokens for recalled text"))
            ours.pop()
            continue
        text = wider
    ids, names = (tuple(hit.id for hit in _in_order(some)) for some in (quoted, named))
    return Placed(text, ids, names, tuple(left_out), count(text))


def in_prompt(prompt: Prompt, left_out: Iterable[LeftOut], entries: Mapping[int, Entry]) -> frozenset[int]:
    """The seqs of entries that a prompt shows whole; `entries` are compared to see which of its results were cut."""
    seqs = {seq for message in prompt.messages for seq in message.seqs}
    cut = {seq for message in prompt.messages for seq in _cut(message, entries)}
    return frozenset(seqs - cut - {row.entry for row in left_out})


def standing(entries: Iterable[Entry], visible: Collection[int]) -> dict[str, str]:
    """Entries that earlier turns recalled and the prompt still shows: by id, the text that shows each."""
    texts: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "user" and entry.seq in visible:
            for id in entry.meta.get("recalled_ids") or ():
                texts[id] = f"{texts.get(id, '')}\n{entry.meta.get('recalled') or ''}"
    return texts


def _cut(message: Message, entries: Mapping[int, Entry]) -> Iterable[int]:
    """The seqs of a message's results and documents that are shown as handles or shortened."""
    if message.role == "user":
        seqs = [seq for seq in message.seqs if (entry := entries.get(seq)) is not None and "encloses" in entry.wire]
        yield from () if any(map(holds_blocks, message.parts)) else seqs
        return
    for part, seq in zip(message.parts, message.seqs, strict=False):
        entry = entries.get(seq)
        if isinstance(part, Text) and part.text and entry is not None and not entry.text.strip():
            yield seq
        whole = result_text(entry) if entry is not None and entry.kind == "result" else None
        if isinstance(part, Result) and whole is not None and part.text != whole:
            yield seq


def _is_shown(hit: Hit, line: str, standing: Mapping[str, str] | Collection[str]) -> bool:
    """Whether the request already shows this line of a hit; of a long entry it may show another part."""
    if hit.id not in standing or not isinstance(standing, Mapping):
        return hit.id in standing
    indent = "    " if hit.entry.kind == "result" else "  "
    return line.replace("\n", f"\n{indent}") in standing[hit.id]


def _text(quoted: Sequence[Hit], named: Sequence[Hit], lines: Mapping[str, str]) -> str:
    spoken = [hit for hit in _in_order(quoted) if hit.entry.kind != "result"]
    results = [hit for hit in _in_order(quoted) if hit.entry.kind == "result"]
    value = Clean(
        conversation=tuple(clean.CleanMessage(_ROLE[hit.entry.kind], lines[hit.id]) for hit in spoken if lines[hit.id]),
        tool_results=tuple(ToolResult(hit.tool, lines[hit.id]) for hit in results),
    )
    again = references([_name(hit) for hit in _in_order(named)], "at-rebase")
    return "\n\n".join(part for part in (formatted_context(value), again) if part)


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    """Hits in the order of the log, grouped by thread."""
    return sorted(hits, key=lambda hit: (hit.thread, hit.seq))


def _line(hit: Hit, share_tokens: int, query: str | Query) -> str:
    """The text of a hit: all of it, or the part that the query asks for."""
    limit = share_tokens * _CHARACTERS_A_TOKEN // _LEAST_ENTRIES
    text = passage(_entry_words(hit.entry), limit, query.text if isinstance(query, Query) else query)
    return text or ("No output" if hit.entry.kind == "result" else "")


def _name(hit: Hit) -> str:
    """How an entry that is shown already is named: who said it, and its first words."""
    who = hit.tool if hit.entry.kind == "result" else _ROLE[hit.entry.kind].capitalize()
    return f"{who}: {first_words(_entry_words(hit.entry), _NAME) or 'No output'}"


def _entry_words(entry: Entry) -> str:
    return result_words(entry) if entry.kind == "result" else entry.text


# The text behind a handle: the whole text of an entry, returned in pieces that begin at a given line.


class RecallAnswer(msgspec.Struct, frozen=True):
    """The tool's answer, and one line that describes it."""

    text: str
    about: str


def original(store: Store, thread: str, handle: str, start: int, limit: int) -> RecallAnswer:
    """The text behind a handle from line `start` on, at most `limit` characters; a last line says where to continue."""
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
    return RecallAnswer(text, f"entry {entry.seq} ({entry.kind}), lines {start}-{end} of {len(lines)}")


def _lines(text: str, limit: int) -> list[str]:
    """The lines of a text; a line longer than `limit` is split into several, so that its end can be asked for."""
    lines = text.removesuffix("\n").split("\n")
    return [line[at : at + limit] for line in lines for at in range(0, max(1, len(line)), limit)]


def find_handle(store: Store, thread: str, handle: str) -> Entry:
    """The entry that a handle names, which must be an entry of this thread."""
    located = store.find(handle)
    if located is not None:
        entry = located[1]
        # A fork shares entries with its parent, at the same seqs.
        entries = store.read(thread, after=entry.seq - 1, limit=1)
        if entries and entries[0].id == entry.id:
            return entry
    raise NotFound(f"no entry of this conversation has the handle {handle!r}", hint="Handles are hexadecimal digits.")


# What the next request shows whole need not be recalled.


def shown_ahead(assembly: Assembly) -> frozenset[int]:
    """The seqs of entries that the next request shows whole."""
    ahead = assembly.ahead()
    return in_prompt(ahead.epoch.prompt(), ahead.left_out, ahead.entries)


class VisibleEntries:
    """The seqs that a thread's next request shows whole, computed from its log and kept up to date."""

    def __init__(self, store: Store, thread: str) -> None:
        self._state = ThreadState(store, thread)
        # A model may make several calls at once.
        self._lock = threading.Lock()

    def __call__(self) -> frozenset[int]:
        with self._lock:
            return shown_ahead(self._state.at(self._state.newest_policy(), extract))


_CHARACTERS_A_TOKEN_SHOWN = 4
_NOTHING = "nothing was found that is not shown already"


def look_up(
    recall: Recall,
    thread: str,
    shown: Callable[[], Collection[int | str]],
    share_tokens: int = 2000,
    /,
    query: str = "",
    handle: str = "",
    k: int = 5,
    start: int = 1,
) -> RecallAnswer:
    """Answer a call of `recall`: entries that are found and not `shown` yet, or the text behind a handle."""
    if not isinstance(query, str) or not isinstance(handle, str) or not (query + handle).strip():
        raise CallError("recall needs a query or a handle", hint="Say what to look for.")
    if handle.strip():
        return original(recall.store, thread, handle.strip(), start, share_tokens * _CHARACTERS_A_TOKEN_SHOWN)
    hits = recall.search(query, max(1, min(k, MOST)), thread=thread, kinds=PLACED, exclude=shown())
    text = place(hits, share_tokens, query=query).text if relevant(hits) else ""
    return RecallAnswer(text, f"{len(hits)} found" if text else _NOTHING)


def recall_tool(
    recall: Recall, thread: str, shown: Callable[[], Collection[int | str]] | None = None, share_tokens: int = 2000
) -> Callable[..., str]:
    """The function behind RECALL_TOOL for one thread; without `shown`, what the next request shows is computed from the log."""
    shown = shown or VisibleEntries(recall.store, thread)

    def run(query: str = "", k: int = 5, handle: str = "", start: int = 1) -> str:
        """The entries found or the text behind a handle; if there is nothing, a sentence that says so."""
        answer = look_up(recall, thread, shown, share_tokens, query, handle, k, start)
        return answer.text or f"{answer.about.capitalize()}."

    return run


# A thread's own recall: what it searches, and what joins a turn, asked for or unasked.

# The share of the budget that recalled text may take in one turn.
_SHARE = 0.1
# Unasked, at most this many entries are recalled, and none where there is less room than this.
MOST_UNASKED = 5
_LEAST_TOKENS = 60
# How many characters of the user's words the call shows that stands for an unasked recall.
_NAMED_CHARS = 200
# A word that names one thing: at least four characters, with a digit, _, /, @ or an inner dot.
_TELLING = re.compile(r"[\w@/.:#-]{4,}")
_NAMES_ONE = re.compile(r"[\d_/@]|\w\.\w")


class ThreadRecall:
    """Searches a thread's store and `records`, by meaning too where there is an embedder."""

    def __init__(
        self,
        store: Store,
        thread: str,
        given: Embedder | Literal["installed"] | None,
        records: Callable[[Embedder | None], SearchRecords],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        embedder = installed() if given == "installed" else given
        self.given, self.embedder, self._thread = given, embedder, thread
        self._store, self._records, self._clock, self._closed = store, records, clock, False

    @cached_property
    def _recall(self) -> Recall:
        """Created by the first search; from then on vectors of new entries are made in the background."""
        records = self._records(self.embedder)
        return Recall(self._store, self.embedder, background=not self._closed, records=records, clock=self._clock)

    def search(
        self, query: str | Query, k: int, ahead: Callable[[], Assembly], **how: Unpack[RecallOptions]
    ) -> list[Hit]:
        """Find entries that the next request does not show (unless `exclude` is given), or records."""
        if how.get("scope") != "records" and "exclude" not in how:
            how["exclude"] = shown_ahead(ahead())
        return self._recall.search(query, k, thread=self._thread, **how)

    def close(self) -> None:
        """Stop making vectors in the background; searching still works."""
        self._closed = True
        if "_recall" in self.__dict__:
            self._recall.close()

    def for_turn(self, text: str, k: int, assembly: Assembly) -> JsonObject:
        """Older entries for a user's message, as meta of its entry; only what the prompt does not show already."""
        if not assembly.entries:
            return {}
        in_request, entries = shown_ahead(assembly), assembly.entries
        query = Query(text, _text_before(assembly))
        hits = self.search(query, k, lambda: assembly, kinds=PLACED, exclude=in_request)
        if not relevant(hits):
            return {}
        room = int(assembly.policy.limit * _SHARE)
        return place(hits, room, standing((entries[seq] for seq in sorted(in_request)), in_request), query=query).meta

    def answer(self, call: Entry, assembly: Assembly) -> Entry:
        """The result of a call of the tool `recall`; an invalid call gets a result that says what is wrong."""
        if not isinstance(call, Entry) or call.kind != "call" or not call.seq:
            hint = "Hand over what thread.record(reply) gave back; thread.results(reply, tools) answers this one, too."
            raise CallError(f"answer_recall() takes a call of the log, not {short(call)}", hint=hint)
        args = call.args if isinstance(call.args, dict) else {}
        try:
            _check_arguments(args)
            answer = look_up(self._recall, self._thread, lambda: shown_ahead(assembly), **args)
        except QuireError as error:
            return values.result(call.call_id, str(error), error=True)
        return values.result(call.call_id, answer.about, answer.text or None)

    def unasked_entries(self, assembly: Assembly, share: float) -> list[Entry]:
        """Entries that bring back what the next request should show of what was left out; often none.

        For the user's message: a call and its result with what is relevant to it. Later in the turn: a note with
        what the model's newest words and calls name and the request does not show.
        """
        if not assembly.rebases:
            return []
        turn = _newest_turn(assembly.entries)
        if not turn or any("recalled_ids" in entry.meta for entry in turn[_newest_request(turn) :]):
            return []
        context = _context(assembly, share)
        if context.room < _LEAST_TOKENS:
            return []
        spoken = any(entry.kind in SPOKEN and entry.meta.get("placement") != "context" for entry in turn)
        return self._for_step(turn, context) if spoken else self._beside(turn[0], assembly, context)

    def unasked_for_turn(self, text: str, assembly: Assembly, share: float) -> JsonObject:
        """What was left out and is surely relevant to the user's words, as meta of their entry."""
        if not assembly.rebases or (context := _context(assembly, share)).room < _LEAST_TOKENS:
            return {}
        return self._for_words(Query(text, _text_before(assembly)), context).meta

    def _beside(self, user: Entry, assembly: Assembly, context: _Context) -> list[Entry]:
        """A call and its result that give context to a user entry which is in the log already."""
        placed = self._for_words(Query(user.text, _text_before(assembly, user.seq), user.at), context)
        if not placed.text:
            return []
        beside: JsonObject = {"placement": "context", "idempotent": True}
        call = values.call(f"recall-{user.seq}", "recall", {"query": user.text[:_NAMED_CHARS]}, meta=beside)
        meta = {"recalled_ids": list(placed.ids)}
        return [call, values.result(call.call_id, None, placed.text, meta=meta)]

    def _for_words(self, query: Query, context: _Context) -> Placed:
        text = query.text
        query_words = set(terms(text, is_query=True))
        # A single word ("continue", "thanks") is no question, unless it names one thing.
        if sum(word[0] not in PREFIXES for word in query_words) < 2 and not _NAMES_ONE.search(text):
            return Placed("")
        hits = self._recall.search(query, MOST_UNASKED, thread=self._thread, kinds=PLACED, exclude=context.exclude)
        # Nobody asked for this, so a hit must be surely relevant and share a word with the question. Names must match as
        # a whole: m_12.rs does not match m_11.rs, although their parts m and rs do.
        names = _names(text.lower())
        beside_names = lookups(_TELLING.sub(lambda word: "" if _names(word[0]) else word[0], text), is_query=True)
        near = [(hit, entry_text(hit.entry)) for hit in hits if hit.relevance >= FLOOR]
        hits = [
            hit for hit, words in near if any(name in words.lower() for name in names) or beside_names & lookups(words)
        ]
        # Text that the prompt shows already, e.g. in a summary, is not repeated; nor are hits with equal text.
        known = "\n".join([text, *_texts(context.prompt, set())]) if hits else ""
        by_text = {entry_text(hit.entry).strip(): hit for hit in reversed(hits)}
        hits = [hit for words, hit in reversed(by_text.items()) if words not in known]
        # Half of the room is left for later steps of the turn.
        return place(hits, max(context.room // 2, _LEAST_TOKENS), query=query)

    def _for_step(self, turn: Sequence[Entry], context: _Context) -> list[Entry]:
        newest = [entry for entry in turn[_newest_request(turn) :] if entry.kind in SPOKEN]
        newest_seqs = {entry.seq for entry in turn if entry.seq >= newest[0].seq} if newest else set()
        prompt_text = "\n".join(_texts(context.prompt, newest_seqs))
        named = [word for word in _telling(newest) if word not in prompt_text]
        if not named:
            return []
        hits = self._recall.search(
            " ".join(named), 2 * MOST_UNASKED, thread=self._thread, kinds=PLACED, exclude=context.exclude
        )
        # A name must match exactly; a similar one is not brought back.
        naming = [hit for hit in hits if any(word in entry_text(hit.entry) for word in named)][:MOST_UNASKED]
        placed = place(naming, context.room, query=" ".join(named))
        meta = {"recalled_ids": list(placed.ids)}
        return [values.note(placed.text, meta=meta)] if placed.text else []


def _check_arguments(args: JsonObject) -> None:
    kinds = {name: field["type"] for name, field in RECALL_TOOL["parameters"]["properties"].items()}
    for name, value in args.items():
        if name not in kinds:
            raise CallError(f"recall takes no {name!r}")
        if type(value) is not {"string": str, "integer": int}[kinds[name]]:
            raise CallError(f"recall needs {name} as {kinds[name]}, not {short(value)}")


class _Context(NamedTuple):
    """The next prompt, how many tokens of recalled text it may get, and the entries that must not be recalled."""

    prompt: Prompt
    room: int
    exclude: set[int | str]


def _context(assembly: Assembly, share: float) -> _Context:
    ahead = assembly.ahead()
    prompt = ahead.epoch.prompt()
    in_request = in_prompt(prompt, ahead.left_out, ahead.entries)
    recalled = [entry for seq in sorted(in_request) if "recalled_ids" in (entry := ahead.entries[seq]).meta]
    # Recalled text stands in a user entry's meta, and in the text of a result or a note.
    texts = [str(e.meta.get("recalled") or "") if e.kind == "user" else entry_text(e) for e in recalled]
    room = int(assembly.policy.limit * share) - sum(map(counter().count, texts))
    # What was recalled and is still shown is never repeated.
    return _Context(prompt, room, {*in_request, *(id for entry in recalled for id in entry.meta["recalled_ids"])})


def _newest_turn(entries: Mapping[int, Entry]) -> list[Entry]:
    """The entries from the newest user entry on."""
    turn: list[Entry] = []
    for seq in sorted(entries, reverse=True):
        turn.append(entries[seq])
        if entries[seq].kind == "user":
            return turn[::-1]
    return []


def _newest_request(turn: Sequence[Entry]) -> int:
    """The index in the turn at which the newest request was sent; 0 if none was."""
    sent_at = [at for at, entry in enumerate(turn) if entry.kind == "sent" and not entry.meta.get("aside")]
    # A streamed reply lies between two `sent` entries; the request was sent at the first one.
    opening = [at for at in sent_at if "usage" not in turn[at].body]
    return (opening or sent_at or [0])[-1]


def _text_before(assembly: Assembly, before: int | None = None) -> str:
    """The newest user text, or the newest one before an entry."""
    entries = assembly.entries
    earlier = (entries[seq] for seq in sorted(entries, reverse=True) if before is None or seq < before)
    return next((entry.text for entry in earlier if entry.kind == "user"), "")


def _texts(prompt: Prompt, excluded: set[int]) -> Iterator[str]:
    """All texts of a prompt, without the messages of `excluded` entries."""
    yield prompt.system
    for message in prompt.messages:
        if excluded.isdisjoint(message.seqs):
            for part in message.parts:
                if isinstance(part, Text | Think | Result):
                    yield part.text
                elif isinstance(part, Call):
                    yield json.dumps(part.args, ensure_ascii=False)


def _telling(entries: Sequence[Entry]) -> list[str]:
    """The words in these entries that name one thing: an id, a path, a date, an address."""
    spoken = (entry for entry in entries if entry.kind != "think")
    text = "\n".join(
        part for entry in spoken for part in (leaves(entry.args) if entry.kind == "call" else [entry.text])
    )
    return _names(text)


def _names(text: str) -> list[str]:
    words = (word.strip(".:/-#") for word in _TELLING.findall(text))
    return list(dict.fromkeys(word for word in words if len(word) >= 4 and _NAMES_ONE.search(word)))
