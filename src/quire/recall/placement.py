"""What was found, as text for a model: at the tail of a user message, as the result of the tool it asks with, or unasked."""

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

# Within a share of the budget, best first; what was recalled before and still stands above is only named.

# Kinds that have a line in the sections; others can be found but not placed.
PLACED = ("user", "respond", "result")
# There is room for at least so many entries, so that a long result does not keep out all others.
_LEAST_ENTRIES = 2
_CHARACTERS_A_TOKEN = 3
# Characters by which a line above is named.
_NAME = 60
_ROLE: dict[str, Literal["user", "assistant"]] = {"user": "user", "respond": "assistant"}


class Placed(msgspec.Struct, frozen=True):
    """The text to put before the query, the entries it shows, those it only names, and what had no room."""

    text: str
    ids: tuple[str, ...] = ()
    named_ids: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    tokens: int = 0

    @property
    def meta(self) -> JsonObject:
        """What a user entry's meta keeps of this, so that the turn can be rendered again byte for byte."""
        return {"recalled": self.text, "recalled_ids": list(self.ids)} if self.text else {}


def place(
    hits: Iterable[Hit],
    share_tokens: int,
    standing: Mapping[str, str] | Collection[str] = (),
    model: str | None = None,
    query: str | Query = "",
) -> Placed:
    """The recalled sections within `share_tokens`; long texts are cut to what the query asks for.

    Hits whose ids are `standing` above are named, not repeated; a mapping gives the text they stand in.
    """
    count = counter(model).count
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


def in_prompt(
    prompt: Prompt, left_out: Iterable[LeftOut] = (), entries: Mapping[int, Entry] | None = None
) -> frozenset[int]:
    """The seqs of entries that a prompt shows whole; `entries` tell which of its results were cut."""
    seqs = {seq for message in prompt.messages for seq in message.seqs}
    cut = {seq for message in prompt.messages for seq in _cut(message, entries or {})}
    return frozenset(seqs - cut - {row.entry for row in left_out})


def standing(entries: Iterable[Entry], visible: Collection[int]) -> dict[str, str]:
    """What earlier turns recalled and still stands in the prompt with them: ids, and the text they stand in."""
    texts: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "user" and entry.seq in visible:
            for id in entry.meta.get("recalled_ids") or ():
                texts[id] = f"{texts.get(id, '')}\n{entry.meta.get('recalled') or ''}"
    return texts


def _cut(message: Message, entries: Mapping[int, Entry]) -> Iterable[int]:
    """The results and documents of a message that stand there as handles, or end before their end."""
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
    """Whether a hit stands above as it would be shown: of a long one, another part may stand there."""
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
    """The order of the log; threads one behind the other."""
    return sorted(hits, key=lambda hit: (hit.thread, hit.seq))


def _line(hit: Hit, share_tokens: int, query: str | Query) -> str:
    """What is shown of a hit: all of it, or the part that the query asks for."""
    limit = share_tokens * _CHARACTERS_A_TOKEN // _LEAST_ENTRIES
    text = passage(_entry_words(hit.entry), limit, query.text if isinstance(query, Query) else query)
    return text or ("No output" if hit.entry.kind == "result" else "")


def _name(hit: Hit) -> str:
    """How a line above is referred to: by who said it and its first words."""
    who = hit.tool if hit.entry.kind == "result" else _ROLE[hit.entry.kind].capitalize()
    return f"{who}: {first_words(_entry_words(hit.entry), _NAME) or 'No output'}"


def _entry_words(entry: Entry) -> str:
    return result_words(entry) if entry.kind == "result" else entry.text


# The text behind a handle: what an entry says whole, given piece by piece from a line on.


class RecallAnswer(msgspec.Struct, frozen=True):
    """What the tool says, and a line about it."""

    text: str
    about: str


def original(store: Store, thread: str, handle: str, start: int, limit: int) -> RecallAnswer:
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
    return RecallAnswer(text, f"entry {entry.seq} ({entry.kind}), lines {start}-{end} of {len(lines)}")


def _lines(text: str, limit: int) -> list[str]:
    """The lines of a text; one that is longer than a whole piece counts as several, so that its end can be read."""
    lines = text.removesuffix("\n").split("\n")
    return [line[at : at + limit] for line in lines for at in range(0, max(1, len(line)), limit)]


def find_handle(store: Store, thread: str, handle: str) -> Entry:
    """The entry that a handle names, if it is one of this thread's own."""
    located = store.find(handle)
    if located is not None:
        entry = located[1]
        # A fork shares its entries with the thread it was made of, at the same places.
        entries = store.read(thread, after=entry.seq - 1, limit=1)
        if entries and entries[0].id == entry.id:
            return entry
    raise NotFound(f"no entry of this conversation has the handle {handle!r}", hint="Handles are hexadecimal digits.")


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
        self._state = ThreadState(store, thread)
        # A model may ask several times at once.
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
    """What was found that is not `shown` already, as the sections a recalled turn shows; or the text behind a handle."""
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
    """The function behind RECALL_TOOL for one thread, giving text; unless `shown` says what is, the log itself does."""
    shown = shown or VisibleEntries(recall.store, thread)

    def run(query: str = "", k: int = 5, handle: str = "", start: int = 1) -> str:
        """What was found, or the text behind a handle; a sentence where there is nothing."""
        answer = look_up(recall, thread, shown, share_tokens, query, handle, k, start)
        return answer.text or f"{answer.about.capitalize()}."

    return run


# What a thread finds again of what it no longer shows, and what of it joins a turn, asked for or not.

# Of the budget, what recalled text may take in one turn.
_SHARE = 0.1
# So many entries at most are recalled unasked, and none into less room than this.
MOST_UNASKED = 5
_LEAST_TOKENS = 60
# A call that nobody made names so many characters of what it went by.
_NAMED_CHARS = 200
# A word that names one thing: four letters and more, with a digit, _, /, @ or a dot inside.
_TELLING = re.compile(r"[\w@/.:#-]{4,}")
_NAMES_ONE = re.compile(r"[\d_/@]|\w\.\w")


class ThreadRecall:
    """Search over a thread's store, by meaning where there is an embedder, and over `records`."""

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
        """Made by the first search, from which on vectors of new entries are made beside the conversation."""
        records = self._records(self.embedder)
        return Recall(self._store, self.embedder, background=not self._closed, records=records, clock=self._clock)

    def search(
        self, query: str | Query, k: int, ahead: Callable[[], Assembly], **how: Unpack[RecallOptions]
    ) -> list[Hit]:
        """Entries that the next request does not show, unless `exclude` says otherwise; or records."""
        if how.get("scope") != "records" and "exclude" not in how:
            how["exclude"] = shown_ahead(ahead())
        return self._recall.search(query, k, thread=self._thread, **how)

    def close(self) -> None:
        """End the making of vectors; searching goes on."""
        self._closed = True
        if "_recall" in self.__dict__:
            self._recall.close()

    def for_turn(self, text: str, k: int, assembly: Assembly) -> JsonObject:
        """What a turn's message says of older entries: only what the prompt does not hold already."""
        if not assembly.entries:
            return {}
        in_request = shown_ahead(assembly)
        entries = assembly.entries
        query = Query(text, _text_before(assembly))
        hits = self.search(query, k, lambda: assembly, kinds=PLACED, exclude=in_request)
        if not relevant(hits):
            return {}
        room = int(assembly.policy.limit * _SHARE)
        return place(hits, room, standing((entries[seq] for seq in sorted(in_request)), in_request), query=query).meta

    def answer(self, call: Entry, assembly: Assembly) -> Entry:
        """The result of a call of the tool `recall`; what is wrong with a call is a result too."""
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
        """What the next request should bring back of what was left out: nothing, or the entries that tell it.

        For a user's words it is what fits them, as a call and its result beside them; later in the turn it is what the
        model's newest words and calls name and the request does not hold, as a note.
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
        """What a turn's message says of what was left out, where it is surely relevant to the user's words."""
        if not assembly.rebases or (context := _context(assembly, share)).room < _LEAST_TOKENS:
            return {}
        return self._for_words(Query(text, _text_before(assembly)), context).meta

    def _beside(self, user: Entry, assembly: Assembly, context: _Context) -> list[Entry]:
        """A call and its result beside the words of a user that are in the log already."""
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
        # One word ("continue", "thanks") asks for nothing, unless it names one thing.
        if sum(word[0] not in PREFIXES for word in query_words) < 2 and not _NAMES_ONE.search(text):
            return Placed("")
        hits = self._recall.search(query, MOST_UNASKED, thread=self._thread, kinds=PLACED, exclude=context.exclude)
        # Nobody asked for it: only hits that are surely relevant and share a word with the question are brought back.
        # A name is shared whole: m_12.rs is none of m_11.rs's, though both have an m and end in rs.
        names = _names(text.lower())
        beside_names = lookups(_TELLING.sub(lambda word: "" if _names(word[0]) else word[0], text), is_query=True)
        near = [(hit, entry_text(hit.entry)) for hit in hits if hit.relevance >= FLOOR]
        hits = [
            hit for hit, words in near if any(name in words.lower() for name in names) or beside_names & lookups(words)
        ]
        # A summary tells short messages whole, and the same words once more tell nothing.
        known = "\n".join([text, *_texts(context.prompt, set())]) if hits else ""
        by_text = {entry_text(hit.entry).strip(): hit for hit in reversed(hits)}
        hits = [hit for words, hit in reversed(by_text.items()) if words not in known]
        # Half of the share is left for what later steps of the turn will name.
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
        # A name must match exactly: a hit that merely resembles it is not brought back.
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
    """What the next request would show, how many tokens may join it, and what must not be told again."""

    prompt: Prompt
    room: int
    exclude: set[int | str]


def _context(assembly: Assembly, share: float) -> _Context:
    ahead = assembly.ahead()
    prompt = ahead.epoch.prompt()
    in_request = in_prompt(prompt, ahead.left_out, ahead.entries)
    recalled = [entry for seq in sorted(in_request) if "recalled_ids" in (entry := ahead.entries[seq]).meta]
    # What they tell of others: a user's entry in its meta, a result and a note by their words.
    texts = [str(e.meta.get("recalled") or "") if e.kind == "user" else entry_text(e) for e in recalled]
    room = int(assembly.policy.limit * share) - sum(map(counter().count, texts))
    # What was recalled and still stands is never repeated.
    return _Context(prompt, room, {*in_request, *(id for entry in recalled for id in entry.meta["recalled_ids"])})


def _newest_turn(entries: Mapping[int, Entry]) -> list[Entry]:
    """The entries from the user's newest words on."""
    turn: list[Entry] = []
    for seq in sorted(entries, reverse=True):
        turn.append(entries[seq])
        if entries[seq].kind == "user":
            return turn[::-1]
    return []


def _newest_request(turn: Sequence[Entry]) -> int:
    """Where in a turn the newest request was sent; its beginning where none was."""
    sent_at = [at for at, entry in enumerate(turn) if entry.kind == "sent" and not entry.meta.get("aside")]
    # A streamed reply stands between two `sent` entries: the request was sent at the first.
    opening = [at for at in sent_at if "usage" not in turn[at].body]
    return (opening or sent_at or [0])[-1]


def _text_before(assembly: Assembly, before: int | None = None) -> str:
    """What the user said last (before an entry)."""
    entries = assembly.entries
    earlier = (entries[seq] for seq in sorted(entries, reverse=True) if before is None or seq < before)
    return next((entry.text for entry in earlier if entry.kind == "user"), "")


def _texts(prompt: Prompt, excluded: set[int]) -> Iterator[str]:
    """Everything that a prompt says, without the messages of some entries."""
    yield prompt.system
    for message in prompt.messages:
        if excluded.isdisjoint(message.seqs):
            for part in message.parts:
                if isinstance(part, Text | Think | Result):
                    yield part.text
                elif isinstance(part, Call):
                    yield json.dumps(part.args, ensure_ascii=False)


def _telling(entries: Sequence[Entry]) -> list[str]:
    """The words of the model's newest message that name one thing: an id, a path, a date, an address."""
    spoken = (entry for entry in entries if entry.kind != "think")
    text = "\n".join(
        part for entry in spoken for part in (leaves(entry.args) if entry.kind == "call" else [entry.text])
    )
    return _names(text)


def _names(text: str) -> list[str]:
    words = (word.strip(".:/-#") for word in _TELLING.findall(text))
    return list(dict.fromkeys(word for word in words if len(word) >= 4 and _NAMES_ONE.search(word)))
