"""Requests in figures for people: what each piece says, how long it has stood, why entries are left out; what was used and paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from quire.assemble import Built, Policy, Refused
from quire.assemble.fit import enclose, layer_tokens
from quire.assemble.pending import left_out_since
from quire.assemble.rebase import SUMMARY_HEADING
from quire.log.entries import SHORTENING
from quire.log.store import Store, ThreadInfo
from quire.observe import LayerHashes
from quire.providers.models import model_info
from quire.providers.prefix import same_start
from quire.providers.usage import cost, known_cost, sent_usage
from quire.thread_state import is_request
from quire.tokens import arguments_text, compact, counter, text_tokens, tools_tokens
from quire.values import COUNTS, Call, Entry, Image, Json, JsonObject, LeftOut, Message, ToolSet, Usage, sha256_hex

# Longer texts are cut in a list, and asked for when they are opened.
PREVIEW = 2_000


class SegmentView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a request: what it says, the entries it came from, and since which request it stands in the cache."""

    layer: str
    role: str
    title: str
    tokens: int
    sha256: str
    text: str
    characters: int
    entries: tuple[int, ...] = ()
    # The request since which it has stood here, and the time of that one.
    since: int = 0
    since_at: int | None = None
    # A handle, a cut, the summary or an item of the library.
    made: str = ""
    # Whether this request is the first with it: written to the cache, or not cached at all.
    new: bool = False
    # Which of the pieces that caches compare it belongs to.
    place: int = 0


class LayerView(msgspec.Struct, frozen=True):
    id: str
    tokens: int
    sha256: str


class LeftOutView(msgspec.Struct, frozen=True):
    """Entries that a request does not show, for one reason, as ranges: [[2, 7], [9, 9]]."""

    reason: str
    entries: tuple[tuple[int, int], ...]


Standing = Literal["verbatim", "library", "summary", "handle", "nothing"]


class ShownRequest(msgspec.Struct, frozen=True):
    """A request of the pass: as it was built, and how much of it stood in the one before."""

    built: Built | Refused
    policy: Policy
    # Of the pieces that caches compare one after the other, how many there are, and are the same as before.
    pieces: int
    same: int
    cold: bool


class SharedRequests:
    """Requests written down one after the other, as a report holds them."""

    # A longer text is cut in a report; `quire show` prints it.
    LONGEST = 200_000

    def __init__(self) -> None:
        self.rows: list[JsonObject] = []
        self.texts: dict[str, str] = {}
        self.requests: list[JsonObject | None] = []
        self._row_of: dict[int, tuple[object, int]] = {}
        self._edits: dict[int, str] = {}
        self._layers: dict[str, str] = {}
        self._left_out: Sequence[LeftOut] = ()

    def add(self, request: ShownRequest) -> None:
        built = request.built
        if isinstance(built, Refused):
            self.requests.append(None)
            return
        self._edits |= edits_of(request)
        written: JsonObject = {"same": request.same, "more": self._more(built, request.same)}
        first = len(built.prompt.tools) + bool(built.prompt.system)
        if built.user is not None:
            message, size = built.prompt.messages[built.user], built.sizes[built.user]
            rows = [self._row(segment) for segment in user_segments(built, size, message)]
            written["user"] = [first + built.user, rows]
        # L4 is left out: its hash would have to be computed from the whole history for each request.
        hashes = {layer.id[:2]: layer.sha256 for layer in enclose(built, ()).layers} | {"L4": ""}
        written["layers"] = {id: sha256 for id, sha256 in hashes.items() if self._layers.get(id) != sha256}
        self._layers = hashes
        if len(built.left_out) != len(self._left_out) or left_out_since(self._left_out, built.left_out):
            written["left_out"] = left_out_by_reason((row.entry, row.reason) for row in built.left_out)
            self._left_out = built.left_out
        self.requests.append(written)

    def _more(self, built: Built, same: int) -> list[Json]:
        """The rows of the pieces that were not in the request before."""
        tools, system = len(built.prompt.tools), bool(built.prompt.system)
        out: list[Json] = []
        if same < tools + system:
            head = list(head_segments(built))
            for place in range(same, tools + system):
                out.append([self._row(segment) for at, segment in head if at == place])
        start = max(0, same - tools - system)
        for message, size in built.sized_messages(start):
            pair = self._row_of.get(id(message))
            if pair is None:
                pair = self._row_of[id(message)] = (message, self._row(message_segment(message, size, self._edits)))
            out.append(pair[1])
        return out

    def _row(self, segment: SegmentView) -> int:
        self.texts.setdefault(segment.sha256, segment.text[: self.LONGEST])
        row = msgspec.to_builtins(segment)
        del row["text"]
        self.rows.append(row)
        return len(self.rows) - 1


class StringStanding:
    """Whether a string stands in a request, and as what; each message is read once, when it first stands there."""

    _ORDER: tuple[Standing, ...] = ("verbatim", "library", "handle", "summary")

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: dict[int, str] = {}
        # The messages of the newest request, how the string stands in each, and in how many it stands so.
        self._messages: Sequence[Message] = ()
        self._standings: list[Standing] = []
        self._counts = Counter[Standing]()

    def standing(self, request: ShownRequest) -> Standing:
        """How the string stands in the next request."""
        assert isinstance(request.built, Built)
        self._edits |= edits_of(request)
        before, self._messages = self._messages, request.built.prompt.messages
        same = same_start(before, self._messages)
        new = [self._read(message) for message in self._messages[same:]]
        self._counts.subtract(self._standings[same:])
        self._counts.update(new)
        self._standings[same:] = new
        kinds = {kind for kind, count in self._counts.items() if count}
        if any(self._text in block.text for block in request.built.blocks):
            kinds.add("library")
        elif self._text in request.built.prompt.l1:
            kinds.add("verbatim")
        return next((kind for kind in self._ORDER if kind in kinds), "nothing")

    def _read(self, message: Message) -> Standing:
        text = message_text(message)
        if self._text not in text:
            return "nothing"
        if _is_summary(message, text):
            return "summary"
        return "handle" if _shortening(message, self._edits) else "verbatim"


def message_text(message: Message) -> str:
    """A message for people: words, calls as `name arguments`, results."""
    out = []
    for part in message.parts:
        if isinstance(part, Call):
            out.append(f"{part.name} {arguments_text(part)}")
        elif isinstance(part, Image):
            out.append(f"[image] {part.url[:200] or part.media_type}")
        elif isinstance(part, ToolSet):
            out.append("\n".join(str(tool["name"]) for tool in part.tools))
        else:
            out.append(part.text)
    return "\n\n".join(out)


def piece_count(built: Built) -> int:
    """How many pieces caches compare one after the other: tools, the system message, messages."""
    return len(_head_pieces(built)) + len(built.prompt.messages)


def _head_pieces(built: Built) -> tuple[object, ...]:
    prompt = built.prompt
    return (*prompt.tools, prompt.system) if prompt.system else prompt.tools


def same_pieces(old: Built, new: Built) -> int:
    """How many leading pieces are the same in two requests."""
    heads = _head_pieces(old), _head_pieces(new)
    if heads[0] != heads[1]:
        return same_start(*heads)
    return len(heads[0]) + same_start(old.prompt.messages, new.prompt.messages)


def _segment(
    layer: str, role: str, title: str, tokens: int, text: str, entries: tuple[int, ...] = (), made: str = ""
) -> SegmentView:
    return SegmentView(layer, role, title, tokens, sha256_hex(text), text, len(text), entries, made=made)


_ROLES = {"tool": "result", "note": "note", "tools": "tools"}


def preview(segment: SegmentView) -> SegmentView:
    return msgspec.structs.replace(segment, text=segment.text[:PREVIEW])


def layer_views(built: Built) -> tuple[LayerView, ...]:
    sizes = layer_tokens(built)
    sizes["L1"] += sizes["tools"]
    return tuple(LayerView(id[:2], sizes[id[:2]], sha256) for id, sha256 in LayerHashes(built).items())


def head_segments(built: Built) -> Iterator[tuple[int, SegmentView]]:
    """Tools, system prompt and library; the last two are one piece to a cache."""
    prompt = built.prompt
    for place, tool in enumerate(prompt.tools):
        yield place, _segment("L1", "tools", str(tool["name"]), tools_tokens([tool]), compact(tool))
    place = len(prompt.tools)
    if prompt.l1:
        yield place, _segment("L1", "system", "system prompt", text_tokens(prompt.l1), prompt.l1)
    for block in built.blocks:
        yield place, _segment("L2", "item", block.id, counter().count(block.text), block.text, made="library")


def _is_summary(message: Message, text: str) -> bool:
    return not message.seqs and SUMMARY_HEADING in text


def _shortening(message: Message, edits: dict[int, str]) -> str:
    """handle or cut, where a shorter text stands for a message's result."""
    return next((edits[seq] for seq in message.seqs if edits.get(seq) in SHORTENING), "")


def message_segment(message: Message, size: int, edits: dict[int, str]) -> SegmentView:
    text = message_text(message)
    made = "summary" if _is_summary(message, text) else _shortening(message, edits)
    role = _ROLES.get(message.role, message.role)
    names = [part.name for part in message.parts if isinstance(part, Call)]
    names += [part.name for part in message.parts if message.role == "tool" and hasattr(part, "name")]
    title = ", ".join(dict.fromkeys(filter(None, names)))
    return _segment("L4", role, title, size, text, message.seqs, made)


def user_segments(built: Built, size: int, message: Message) -> Iterator[SegmentView]:
    """The current user's message: this turn's context, then the user's words."""
    sealed = enclose(built, ())
    context = [segment for segment in sealed.layer("L3_TURN").segments if segment.content]
    sizes = layer_tokens(built)
    for segment in context:
        yield _segment("L3", "context", segment.id, counter().count(segment.content), segment.content, message.seqs)
    tokens = sizes["L5"] if context else size
    yield _segment("L5", "user", "query", tokens, built.query or message_text(message), message.seqs)


def edits_of(request: ShownRequest) -> dict[int, str]:
    record = request.built.rebase if isinstance(request.built, Built) else None
    return {edit["entry"]: edit["action"] for edit in (record or {}).get("edits", ())}


def left_out_by_reason(rows: Iterable[tuple[int, str]]) -> tuple[LeftOutView, ...]:
    """Entries by the reason for which they are left out."""
    by_reason: dict[str, list[int]] = {}
    for seq, reason in sorted(rows):
        by_reason.setdefault(reason, []).append(seq)
    return tuple(LeftOutView(reason, tuple(runs(seqs))) for reason, seqs in by_reason.items())


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """[1, 2, 3, 7] -> [(1, 3), (7, 7)]."""
    out: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if out and number <= out[-1][1] + 1:
            out[-1] = out[-1][0], number
        else:
            out.append((number, number))
    return out


class StandingRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests in which a string stood in the same way; `by`: what made it so."""

    standing: Standing
    first: int
    last: int
    by: str = ""


class EntryHit(msgspec.Struct, frozen=True):
    """An entry that holds the string."""

    seq: int
    kind: str
    turn: int
    at: int | None
    around: str


class Whereabouts(msgspec.Struct, frozen=True):
    """Where a string went: when it entered, in which requests it stood and how, and whether recall brings it back."""

    text: str
    entered: tuple[EntryHit, ...]
    count: int
    stretches: tuple[StandingRun, ...]
    # The entries that recall finds for it, and of these the ones that hold it; None where nobody looked.
    recalled: tuple[int, ...] | None = None


# What requests used and what they cost: of one request, of a thread at a glance, of a whole store.


class ThreadRow(msgspec.Struct, omit_defaults=True):
    """A thread at a glance, by what its log says was sent."""

    name: str
    entries: int
    parent: str = ""
    model: str = ""
    turns: int = 0
    requests: int = 0
    tokens: int = 0
    read: int = 0
    usd: float | None = None
    at: int | None = None
    # The share that each of the newest requests read from the cache.
    spark: tuple[float, ...] = ()


class ThreadTotals:
    """What a thread has used so far, entry by entry."""

    def __init__(self) -> None:
        self.seq, self.id = 0, ""
        self._row = ThreadRow("", 0)

    def extend(self, entries: Iterable[Entry]) -> None:
        row = self._row
        for entry in entries:
            self.seq, self.id = entry.seq, entry.id
            row.at = entry.at or row.at
            row.turns += entry.kind == "user"
            if is_request(entry):
                row.model = f"{entry.body.get('provider')}:{entry.body.get('model')}"
                if isinstance(entry.body.get("usage"), dict):
                    self._add_usage(sent_usage(entry), entry.at)

    def _add_usage(self, used: Usage, at: int | None) -> None:
        row, paid = self._row, known_cost(used, self._row.model, at)
        row.requests, row.tokens, row.read = row.requests + 1, row.tokens + used.input_total, row.read + used.cache_read
        row.usd = row.usd if paid is None else (row.usd or 0.0) + paid
        if used.input_total:
            row.spark = (*row.spark[-39:], round(min(1.0, used.cache_read / used.input_total), 3))

    def row(self, info: ThreadInfo) -> ThreadRow:
        return msgspec.structs.replace(self._row, name=info.name, entries=info.seq, parent=info.parent)


def foreseen_usage(tokens: int, reused: int, policy: Policy) -> Usage:
    """What a request would read and write by its prefix alone."""
    least = model_info(policy.model).min_cache_tokens if policy.model else 0
    if tokens < least:
        return Usage(tokens)
    return Usage(tokens, cache_read=reused, cache_write_5m=tokens - reused)


def usage_columns(used: Usage, policy: Policy, at: int | None) -> JsonObject:
    """What a request read from the cache, wrote to it and sent fresh, and what that cost, as fields of a column."""
    written = used.cache_write_5m + used.cache_write_1h
    fresh = max(0, used.input_total - used.cache_read - written)
    money = _input_usd(used, policy, at)
    read, write = policy.prices
    units = read * used.cache_read + write * written + fresh
    return {
        "read": used.cache_read,
        "written": written,
        "fresh": fresh,
        "output": used.output,
        "usd": money,
        "units": round(units, 2),
    }


def _input_usd(used: Usage, policy: Policy, at: int | None) -> float | None:
    """What a request's input cost, its output not counted."""
    if not policy.model:
        return None
    input_only = msgspec.structs.replace(used, output=0, reasoning=0, besides=(), charged=None)
    return cost(input_only, policy.model, at).amount_usd


def rewrite_usd(tokens: int, policy: Policy, at: int | None) -> float | None:
    """What it costs more to write tokens to the cache again than to read them from it."""
    used = (Usage(tokens, cache_write_5m=tokens), Usage(tokens, cache_read=tokens))
    paid, less = (_input_usd(usage, policy, at) for usage in used)
    return paid - less if paid is not None and less is not None else None


class SentRow(msgspec.Struct):
    """A request that was sent: its entry, what it used and what that cost; `usd` null where a price is not known."""

    seq: int
    model: str
    sha256: str
    at: int | None
    usage: JsonObject | None
    usd: float | None
    stop: str | None


class Spending(msgspec.Struct):
    """What requests used, by model and in all; `usd` counts what has a known price, `unpriced` requests have none."""

    requests: int
    usage: JsonObject
    usd: float
    unpriced: int
    models: dict[str, JsonObject]


def sent_rows(entries: Iterable[Entry]) -> Iterator[SentRow]:
    """The `sent` entries that say what their request used, with what that cost."""
    for entry in entries:
        if entry.kind == "sent" and isinstance(entry.body.get("usage"), dict):
            target = f"{entry.body['provider']}:{entry.body['model']}"
            used = sent_usage(entry)
            sha256, stop, usd = entry.body["request_sha256"], entry.body.get("stop"), known_cost(used, target, entry.at)
            yield SentRow(entry.seq, target, sha256, entry.at, used.as_json(), usd, stop)


def spending(entries: Iterable[Entry]) -> Spending:
    """What the requests among these entries used and cost."""
    nothing = {**dict.fromkeys(COUNTS, 0), "requests": 0, "usd": 0.0, "unpriced": 0}
    models, total = dict[str, JsonObject](), dict(nothing)
    for sent in sent_rows(entries):
        for row in (models.setdefault(sent.model, dict(nothing)), total):
            for name in COUNTS:
                row[name] += int((sent.usage or {}).get(name) or 0)
            row["requests"] += 1
            row["usd"] += sent.usd or 0.0
            row["unpriced"] += sent.usd is None
    usage = {name: int(total[name]) for name in COUNTS}
    return Spending(int(total["requests"]), usage, total["usd"], int(total["unpriced"]), models)


def kept_entries(store: Store) -> Iterator[Entry]:
    """Every entry of a store once, however many forks share it."""
    after = 0
    while changes := store.changes(after, 1000):
        yield from (change.entry for change in changes)
        after = changes[-1].n
