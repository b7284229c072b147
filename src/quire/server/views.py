"""What the inspector shows of a thread: its picture, one request, two side by side, where a string went.

Pure functions of the entries; the pages, `quire report` and the routes are made of the same values.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from quire.assemble import Built, Policy, Refused, ask, reused_tokens, unsent
from quire.assemble.fit import enclose, layer_tokens
from quire.assemble.hindsight import optimum, trail
from quire.assemble.rebase import SUMMARY_HEADING
from quire.audit.what_if import POLICIES, PolicyOutcome, what_if
from quire.entry import sha256_hex
from quire.errors import BudgetError, CallError, NotFound
from quire.log.entries import usable
from quire.log.store import Store, ThreadInfo
from quire.observe import LayerHashes, moved
from quire.providers import http_body, render
from quire.providers.models import model_info
from quire.providers.rules import Finding, validate
from quire.providers.usage import cost
from quire.thread_state import AssemblyPerPolicy, is_request, policies
from quire.tokens import counter, text_tokens, tools_tokens
from quire.tokens.counting import arguments_text, compact, entry_texts
from quire.values import COUNTS, SPOKEN, Call, Entry, Image, Json, JsonObject, Message, ToolSet, Usage

# The bands of a request in the order of the wire: the current user's message stands between older and newer history.
BANDS = ("tools", "L1", "L2", "L4", "L3", "L5", "L4 now")
# Longer texts are cut in a list, and asked for when they are opened.
PREVIEW = 2_000


class RebaseNote(msgspec.Struct, frozen=True):
    """Why a new epoch began here, and what it did."""

    reason: str
    freed: int
    actions: dict[str, int]
    # Its entry in the log; 0 where it was only reckoned now.
    entry: int = 0
    summary: str = ""


class RequestColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of a thread: what it held, what of it was cached, what it cost.

    read, written and fresh are what the provider reported, else what is foreseen (`reported` says which).
    """

    n: int
    turn: int
    step: int
    epoch: int = 0
    at: int | None = None
    model: str = ""
    # Tokens by band, in the order of BANDS.
    bands: tuple[int, ...] = ()
    tokens: int = 0
    # What it might hold, in the same tokens: where the model counts more, this is less than the policy's.
    limit: int = 0
    read: int = 0
    written: int = 0
    fresh: int = 0
    output: int = 0
    reported: bool = False
    # The cache had expired or was another model's.
    cold: bool = False
    usd: float | None = None
    # In plain input tokens.
    units: float = 0.0
    left_out: int = 0
    rebase: RebaseNote | None = None
    refused: str = ""
    # Made now, from what stands in the log: nothing of it was sent yet.
    ahead: bool = False
    # What the user asked in this turn, where it begins here.
    asked: str = ""


class ThreadPicture(msgspec.Struct, frozen=True):
    """A thread as one picture: a column for each request, and what they come to."""

    thread: str
    entries: int
    columns: tuple[RequestColumn, ...]
    bands: tuple[str, ...] = BANDS
    policy: JsonObject = {}


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


class RequestDetail(msgspec.Struct, frozen=True):
    """A request in all its parts, in the order of the wire; `last` is the number of the thread's newest."""

    column: RequestColumn
    last: int
    policy: JsonObject
    layers: tuple[LayerView, ...]
    segments: tuple[SegmentView, ...]
    left_out: tuple[LeftOutView, ...]
    summary: str = ""


class RequestBody(msgspec.Struct, frozen=True):
    """The body for one provider, with its cache marks, what the provider's rules say of it, and what it cannot carry."""

    target: str
    body: JsonObject
    headers: dict[str, str]
    findings: tuple[Finding, ...]
    left_out: tuple[LeftOutView, ...]


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """Two requests: how many segments they share, the first moved byte, why it moved and what that cost."""

    first: int
    second: int
    same: int
    extends: bool
    byte: int | None = None
    added: int = 0
    layer: str = ""
    segment: str = ""
    entries: tuple[int, ...] = ()
    cause: str = ""
    # Tokens that had been cached and were paid for again between the two, and what that cost.
    again: int = 0
    usd: float | None = None
    units: float = 0.0


Standing = Literal["verbatim", "library", "summary", "handle", "nothing"]


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


class ThreadRow(msgspec.Struct, frozen=True, omit_defaults=True):
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


class BestCuts(msgspec.Struct, frozen=True):
    """The cheapest series of cuts in hindsight; no cost where a request fits under none."""

    cost: float | None
    cuts: tuple[int, ...]


class WhatIf(msgspec.Struct, frozen=True):
    """A thread under other policies; everything in it is simulated."""

    outcomes: tuple[PolicyOutcome, ...]
    optimum: BestCuts | None = None


class ThreadTotals:
    """What a thread has used so far, entry by entry."""

    def __init__(self) -> None:
        self.seq, self.id = 0, ""
        self._model, self._turns, self._requests = "", 0, 0
        self._tokens, self._read = 0, 0
        self._usd: float | None = None
        self._at: int | None = None
        self._spark: deque[float] = deque(maxlen=40)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.seq, self.id = entry.seq, entry.id
            self._at = entry.at or self._at
            self._turns += entry.kind == "user"
            if is_request(entry):
                self._model = f"{entry.body.get('provider')}:{entry.body.get('model')}"
                if isinstance(entry.body.get("usage"), dict):
                    self._used(usage_of(entry), entry.at)

    def _used(self, used: Usage, at: int | None) -> None:
        self._requests += 1
        self._tokens += used.input_total
        self._read += used.cache_read
        with contextlib.suppress(CallError):  # a provider that is not known here has no price
            paid = cost(used, self._model, at).amount_usd
            self._usd = self._usd if paid is None else (self._usd or 0.0) + paid
        if used.input_total:
            self._spark.append(round(min(1.0, used.cache_read / used.input_total), 3))

    def row(self, info: ThreadInfo) -> ThreadRow:
        return ThreadRow(
            info.name,
            info.seq,
            info.parent,
            self._model,
            self._turns,
            self._requests,
            self._tokens,
            self._read,
            self._usd,
            self._at,
            tuple(self._spark),
        )


def usage_of(sent: Entry) -> Usage:
    """What a `sent` entry says was used; a log from elsewhere may hold anything."""
    given = sent.body["usage"]
    counts: dict[str, Any] = {
        name: round(value) for name in COUNTS if isinstance(value := given.get(name), int | float)
    }
    charged = given.get("charged")
    return Usage(**counts, charged=charged if isinstance(charged, int | float) else None)


class _Made(msgspec.Struct, frozen=True):
    """A request of the pass: as it was built, and how much of it stood in the one before."""

    built: Built | Refused
    policy: Policy
    # What caches compare one after the other, and how many of them stand as they stood.
    pieces: tuple[object, ...]
    same: int
    cold: bool


class SeenThread:
    """A thread's requests in one pass; entries that come later are taken in without going back.

    `policy` is for requests that were not sent; those that were are shown as they were sent.
    """

    def __init__(self, name: str, entries: Iterable[Entry], policy: Policy | None = None) -> None:
        self.name, self.usual = name, policy or Policy()
        self.entries: list[Entry] = []
        self._begin([])
        self.extend(entries)

    def _begin(self, under: list[Policy]) -> None:
        self._under, self._folds = under, AssemblyPerPolicy(under)
        self._fed, self._turns = 0, list[int]()
        self._made: list[_Made] = []
        self._columns: list[RequestColumn] = []
        self._before: _Made | None = None
        self._next: tuple[int, _Made | None] = -1, None

    def extend(self, entries: Iterable[Entry]) -> SeenThread:
        """Take in what has come; where it changes the policy of what stands, all is seen again."""
        self.entries += map(usable, entries)
        under = policies(self.entries, self.usual)
        if under[: len(self._under)] != self._under or not self._folds.knows(under[len(self._under) :]):
            self._begin(under)
        self._under = under
        for entry, policy in zip(self.entries[self._fed :], under[self._fed :], strict=True):
            self._take(entry, policy)
        self._fed = len(self.entries)
        return self

    def _take(self, entry: Entry, policy: Policy) -> None:
        assembly = self._folds.under(policy)
        if assembly.asks(entry):
            self._add(ask(assembly, entry), policy, assembly.cold, entry.at)
        self._folds.feed(entry)
        self._turns.append(self._folds.under(policy).turn)
        if is_request(entry) and self._columns and entry.body.get("usage"):
            self._report(entry)

    def _add(self, built: Built | Refused, policy: Policy, cold: bool, at: int | None) -> None:
        made = self._seen(built, policy, cold)
        self._columns.append(self._column(made, len(self._columns) + 1, at))
        self._made.append(made)
        if isinstance(built, Built):
            self._before = made

    def _column(self, made: _Made, n: int, at: int | None) -> RequestColumn:
        built, policy = made.built, made.policy
        new_turn = not self._columns or self._columns[-1].turn != built.turn
        if isinstance(built, Refused):
            return RequestColumn(n, built.turn, built.step, at=at, model=policy.model, refused=built.error)
        before = self._before.built if self._before is not None else None
        reused = reused_tokens(before, built) if isinstance(before, Built) and not made.cold else 0
        used = _foreseen(built.tokens, reused, policy)
        note = _note(built.rebase, self.entries) if built.rebase is not None else None
        return RequestColumn(
            n=n,
            turn=built.turn,
            step=built.step,
            epoch=built.epoch,
            at=at,
            model=policy.model,
            bands=_bands(built),
            tokens=built.tokens,
            limit=built.limit,
            cold=made.cold and n > 1,
            left_out=len(built.left_out),
            rebase=note,
            asked=built.query[:200] if new_turn else "",
            **_spent(used, policy, at),
        )

    def _report(self, sent: Entry) -> None:
        """What the provider reported of the newest request."""
        column, policy = self._columns[-1], self._made[-1].policy
        if column.reported or column.refused:
            return
        used = usage_of(sent)
        if used.input_total:
            spent = _spent(used, policy, sent.at)
            self._columns[-1] = msgspec.structs.replace(column, reported=True, **spent)

    # What is shown of it

    def picture(self) -> ThreadPicture:
        """A column for each request, and for the one that would be made now."""
        ahead = self._ahead()
        columns = (
            (*self._columns, self._column(ahead, len(self._columns) + 1, None)) if ahead else self._columns
        )
        if ahead:
            columns = (*columns[:-1], msgspec.structs.replace(columns[-1], ahead=True, reported=False))
        return ThreadPicture(self.name, len(self.entries), tuple(columns), policy=_told(self.policy))

    @property
    def policy(self) -> Policy:
        """The policy of the newest request."""
        return self._under[-1] if self._under else self.usual

    def _ahead(self) -> _Made | None:
        """The request that would be made now, where the model has not answered yet."""
        if self._next[0] != self._fed:
            self._next = self._fed, self._made_now()
        return self._next[1]

    def _made_now(self) -> _Made | None:
        said = next((each.kind for each in reversed(self.entries) if each.kind not in ("sent", "rebase")), "")
        if not said or said in SPOKEN:
            return None
        assembly = self._folds.under(self.policy)
        if not assembly.turn or assembly.round.streaming:
            return None
        try:
            built: Built | Refused = assembly.request()
        except BudgetError as error:
            built = Refused(assembly.turn, assembly.step + 1, str(error), error.hint)
        return self._seen(built, self.policy, assembly.cold)

    def _seen(self, built: Built | Refused, policy: Policy, cold: bool) -> _Made:
        pieces = _pieces(built) if isinstance(built, Built) else ()
        same = _same(self._before.pieces, pieces) if self._before is not None else 0
        return _Made(built, policy, pieces, same, cold)

    def _at(self, n: int) -> tuple[_Made, RequestColumn]:
        """The request of a number, from 1 on."""
        columns = self.picture().columns
        if not 1 <= n <= len(columns):
            raise NotFound(
                f"{self.name} has no request {n}",
                hint=f"It has requests 1 to {len(columns)}."
                if columns
                else "Nobody has asked the model yet.",
            )
        made = self._made[n - 1] if n <= len(self._made) else self._ahead()
        assert made is not None
        return made, columns[n - 1]

    def built(self, n: int) -> tuple[Built, Policy]:
        made, _ = self._at(n)
        if isinstance(made.built, Refused):
            raise NotFound(f"request {n} was not made: {made.built.error}", hint=made.built.hint)
        return made.built, made.policy

    def request(self, n: int) -> RequestDetail:
        """One request: layers, segments, what was left out."""
        made, column = self._at(n)
        built, last = made.built, len(self._made) + (self._ahead() is not None)
        if isinstance(built, Refused):
            return RequestDetail(column, last, _told(made.policy), (), (), ())
        since = self._since(n, len(made.pieces))
        shown = [self._dated(each, place, since[place], n) for place, each in self._segments(n)]
        summary = built.rebase.get("summary") or "" if built.rebase is not None else ""
        return RequestDetail(
            column,
            last,
            _told(made.policy),
            _layers(built),
            tuple(map(_short, shown)),
            _grouped((each.entry, each.reason) for each in built.left_out),
            summary,
        )

    def segment_text(self, n: int, place: int) -> str:
        """The whole text of a request's segment, by its place in the list."""
        segments = self._segments(n)
        if not 0 <= place < len(segments):
            raise NotFound(f"request {n} has no segment {place}", hint=f"It has {len(segments)}.")
        return segments[place][1].text

    def _dated(self, shown: SegmentView, place: int, since: int, n: int) -> SegmentView:
        at = self._columns[since - 1].at if since <= len(self._columns) else None
        return msgspec.structs.replace(shown, place=place, since=since, since_at=at, new=since == n)

    def _since(self, n: int, count: int) -> list[int]:
        """For each piece of a request, the request since which the cache has had it."""
        out = [0] * count
        open_end = count
        for place in range(n, 0, -1):
            made = self._at(place)[0]
            if isinstance(made.built, Refused):
                continue
            same = 0 if made.cold else min(made.same, open_end)
            out[same:open_end] = [place] * (open_end - same)
            open_end = same
            if not open_end:
                break
        return out

    def _segments(self, n: int) -> list[tuple[int, SegmentView]]:
        """The segments in the order of the wire, each with its place among the pieces that caches compare."""
        built, _ = self.built(n)
        edits = self._edits(n)
        first = len(built.prompt.tools) + bool(built.prompt.system)
        out = list(_head_segments(built))
        for index, (message, size) in enumerate(zip(built.prompt.messages, built.sizes, strict=True), first):
            if index - first == built.user:
                out += [(index, each) for each in _of_user(built, size, message)]
            else:
                out.append((index, _of_message(message, size, edits)))
        return out

    def _edits(self, n: int) -> dict[int, str]:
        """What rebases up to a request have made of entries, by seq."""
        out: dict[int, str] = {}
        for made in self._made[:n]:
            out |= _edited(made)
        return out

    def body(self, n: int, target: str = "") -> RequestBody:
        """The exact body of a request for "provider:model", with marks and what its rules say."""
        built, policy = self.built(n)
        request = render(built.prompt, target or policy.model or "openai-chat:", cache=True, key=self.name)
        rows = [(int(row["entry"]), str(row["reason"])) for row in request.left_out]
        return RequestBody(
            request.target, http_body(request), request.headers, tuple(validate(request)), _grouped(rows)
        )

    def compare(self, first: int, second: int) -> Comparison:
        """Where two requests part, why, and what was paid again on the way."""
        first, second = sorted((first, second))
        (one, _), (other, policy) = self.built(first), self.built(second)
        found = moved(self._turning_points(first, second), self.entries)
        again = self._again(first, second)
        return Comparison(
            first=first,
            second=second,
            same=_same(_pieces(one), _pieces(other)),
            extends=found["extends"],
            byte=found["byte"],
            added=found.get("added", 0),
            layer=found.get("layer", ""),
            segment=found.get("segment", ""),
            entries=tuple(found.get("entries", ())),
            cause=found.get("cause") or "",
            again=again,
            usd=_again_usd(again, policy, self._at(second)[1].at),
            units=(policy.prices[1] - policy.prices[0]) * again,
        )

    def _turning_points(self, first: int, second: int) -> list[tuple[Built, str]]:
        """Two requests and those between them that do not extend the one before, with that one; each with its model."""
        wanted = {first, second}
        for n in range(first + 1, second):
            made, before = self._made[n - 1], self._made[n - 2]
            if made.same < len(before.pieces) or made.policy.model != before.policy.model:
                wanted |= {n - 1, n}
        row = [self._at(n)[0] for n in sorted(wanted)]
        return [(each.built, each.policy.model) for each in row if isinstance(each.built, Built)]

    def _again(self, first: int, second: int) -> int:
        """Tokens that stood in the cache before a request and were not read by it, from one request to the other."""
        lost, before = 0, self._columns[first - 1]
        for column in self.picture().columns[first:second]:
            if not column.refused:
                lost += (
                    max(0, min(before.tokens, column.tokens) - _scaled(column.read, column))
                    if _broke(column)
                    else 0
                )
                before = column
        return lost

    def where(self, text: str, recalled: Callable[[str], Sequence[int]] | None = None) -> Whereabouts:
        """When a string entered, in which requests it stood and as what, and whether recall finds it."""
        hits = [n for n, entry in enumerate(self.entries) if entry.kind not in ("sent", "rebase") and any(text in each for each in entry_texts(entry))]  # fmt: skip
        entered = [self._hit(n, text) for n in hits[:50]] if text else []
        holds = _Holding(text)
        found = tuple(recalled(text)) if recalled is not None and text else None
        runs: list[StandingRun] = []
        for made, column in zip(self._made, self._columns, strict=True):
            if isinstance(made.built, Refused) or not text:
                continue
            standing = holds.standing(made)
            if runs and runs[-1].standing == standing:
                runs[-1] = msgspec.structs.replace(runs[-1], last=column.n)
            elif runs or standing != "nothing":
                by = f"rebase ({column.rebase.reason})" if column.rebase and runs else ""
                runs.append(StandingRun(standing, column.n, column.n, by))
        return Whereabouts(text, tuple(entered), len(hits), tuple(runs), found)

    def _hit(self, place: int, text: str) -> EntryHit:
        entry = self.entries[place]
        said = "\n".join(entry_texts(entry))
        at = said.index(text)
        around = said[max(0, at - 60) : at + len(text) + 60]
        return EntryHit(entry.seq, entry.kind, self._turns[place], entry.at, around)

    def shared(self) -> JsonObject:
        """All requests at once: every text once, every request as what it adds to the one before it."""
        out = _Sharing()
        now = self._ahead()
        for made in (*self._made, *([now] if now is not None else ())):
            out.add(made)
        return {"rows": out.rows, "texts": out.texts, "requests": out.requests}


def try_policies(thread: SeenThread, only: str = "", **changes: Any) -> WhatIf:
    """The thread under other policies, all with the thread's own settings but for `changes`.

    `only`: one of them by its name, or "optimum" for the cheapest cuts in hindsight alone.
    """
    given = msgspec.to_builtins(thread.policy) | changes
    if given["ttl_s"] == 0:
        given["ttl_s"] = None
    policy = msgspec.convert(given, Policy)
    if only == "optimum":
        best = optimum(trail(unsent(thread.entries), policy), policy)
        return WhatIf((), BestCuts(best.cost if math.isfinite(best.cost) else None, best.cuts))
    if only and only not in POLICIES:
        raise NotFound(f"there is no policy {only!r}", hint=f"There are {', '.join(POLICIES)}.")
    chosen = {only: POLICIES[only]} if only else None
    return WhatIf(tuple(what_if(thread.entries, chosen, policy=policy)))


class _Sharing:
    """Requests written down one after the other, as a report holds them."""

    # A longer text is cut in a report; `quire show` prints it.
    LONGEST = 200_000

    def __init__(self) -> None:
        self.rows: list[JsonObject] = []
        self.texts: dict[str, str] = {}
        self.requests: list[JsonObject | None] = []
        self._known: dict[int, tuple[object, int]] = {}
        self._edits: dict[int, str] = {}
        self._layers: dict[str, str] = {}
        self._left_out: object = ()

    def add(self, made: _Made) -> None:
        built = made.built
        if isinstance(built, Refused):
            self.requests.append(None)
            return
        self._edits |= _edited(made)
        written: JsonObject = {"same": made.same, "more": self._more(built, made.same)}
        first = len(built.prompt.tools) + bool(built.prompt.system)
        if built.user is not None:
            message, size = built.prompt.messages[built.user], built.sizes[built.user]
            rows = [self._row(each) for each in _of_user(built, size, message)]
            written["user"] = [first + built.user, rows]
        # The history's hash would have to be made of all of it for each request: `quire assemble --json` has it.
        hashes = {each.id[:2]: each.sha256 for each in enclose(built, ()).layers} | {"L4": ""}
        written["layers"] = {id: sha256 for id, sha256 in hashes.items() if self._layers.get(id) != sha256}
        self._layers = hashes
        if built.left_out != self._left_out:
            written["left_out"] = _grouped((each.entry, each.reason) for each in built.left_out)
            self._left_out = built.left_out
        self.requests.append(written)

    def _more(self, built: Built, same: int) -> list[Json]:
        """The rows of the pieces that were not in the request before."""
        tools, system = len(built.prompt.tools), bool(built.prompt.system)
        out: list[Json] = []
        if same < tools + system:
            head = list(_head_segments(built))
            for place in range(same, tools + system):
                out.append([self._row(each) for at, each in head if at == place])
        messages = list(zip(built.prompt.messages, built.sizes, strict=True))
        for message, size in messages[max(0, same - tools - system) :]:
            found = self._known.get(id(message))
            if found is None:
                found = self._known[id(message)] = message, self._row(_of_message(message, size, self._edits))
            out.append(found[1])
        return out

    def _row(self, segment: SegmentView) -> int:
        self.texts.setdefault(segment.sha256, segment.text[: self.LONGEST])
        row = msgspec.to_builtins(segment)
        del row["text"]
        self.rows.append(row)
        return len(self.rows) - 1


class _Holding:
    """Whether a string stands in a request, and as what; each message is read once, when it first stands there."""

    _ORDER: tuple[Standing, ...] = ("verbatim", "library", "handle", "summary")

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: dict[int, str] = {}
        self._known: dict[int, tuple[object, Standing]] = {}

    def standing(self, made: _Made) -> Standing:
        """How the string stands in the next request."""
        assert isinstance(made.built, Built)
        self._edits |= _edited(made)
        kinds = {self._of(each) for each in made.pieces}
        if any(self._text in block.text for block in made.built.blocks):
            kinds.add("library")
        elif self._text in made.built.prompt.l1:
            kinds.add("verbatim")
        return next((kind for kind in self._ORDER if kind in kinds), "nothing")

    def _of(self, piece: object) -> Standing:
        found = self._known.get(id(piece))
        if found is None:
            found = self._known[id(piece)] = (piece, self._look(piece))
        return found[1]

    def _look(self, piece: object) -> Standing:
        text = message_text(piece) if isinstance(piece, Message) else ""
        if not isinstance(piece, Message) or self._text not in text:
            return "nothing"
        if _is_summary(piece, text):
            return "summary"
        return "handle" if _shortened(piece, self._edits) else "verbatim"


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


def _pieces(built: Built) -> tuple[object, ...]:
    """What caches compare one after the other: tools, the system message, messages."""
    prompt = built.prompt
    system = ((prompt.system,),) if prompt.system else ()
    return (*prompt.tools, *system, *prompt.messages)


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> int:
    """How many leading pieces stand as they stood."""
    most = min(len(old), len(new))
    differs = (n for n in range(most) if old[n] is not new[n] and old[n] != new[n])
    return next(differs, most)


def _bands(built: Built) -> tuple[int, ...]:
    sizes = layer_tokens(built)
    older = sum(built.sizes[: built.user]) if built.user is not None else sizes["L4"]
    return (sizes["tools"], sizes["L1"], sizes["L2"], older, sizes["L3"], sizes["L5"], sizes["L4"] - older)


def _foreseen(tokens: int, reused: int, policy: Policy) -> Usage:
    """What a request would read and write by its prefix alone."""
    least = model_info(policy.model).min_cache_tokens if policy.model else 0
    if tokens < least:
        return Usage(tokens)
    return Usage(tokens, cache_read=reused, cache_write_5m=tokens - reused)


def _spent(used: Usage, policy: Policy, at: int | None) -> JsonObject:
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
    """What a request's input cost, whatever was answered."""
    if not policy.model:
        return None
    taken = msgspec.structs.replace(used, output=0, reasoning=0, besides=(), charged=None)
    return cost(taken, policy.model, at).amount_usd


def _again_usd(tokens: int, policy: Policy, at: int | None) -> float | None:
    used = (Usage(tokens, cache_write_5m=tokens), Usage(tokens, cache_read=tokens))
    paid, less = (_input_usd(each, policy, at) for each in used)
    return paid - less if paid is not None and less is not None else None


def _scaled(tokens: int, column: RequestColumn) -> int:
    """Tokens as the provider counts them, in ours."""
    return round(tokens * column.tokens / max(1, column.read + column.written + column.fresh))


def _broke(column: RequestColumn) -> bool:
    return column.cold or column.rebase is not None or _scaled(column.read, column) < 0.5 * column.tokens


def _note(record: JsonObject, entries: Sequence[Entry]) -> RebaseNote:
    seq = next(
        (entry.seq for entry in reversed(entries) if entry.kind == "rebase" and entry.body is record), 0
    )
    return RebaseNote(
        record["reason"],
        record["freed"],
        dict(Counter(edit["action"] for edit in record["edits"])),
        seq,
        record.get("summary") or "",
    )


def _segment(
    layer: str, role: str, title: str, tokens: int, text: str, entries: tuple[int, ...] = (), made: str = ""
) -> SegmentView:
    return SegmentView(
        layer=layer,
        role=role,
        title=title,
        tokens=tokens,
        sha256=sha256_hex(text),
        text=text,
        characters=len(text),
        entries=entries,
        made=made,
    )


_ROLES = {"tool": "result", "note": "note", "tools": "tools"}


def _short(segment: SegmentView) -> SegmentView:
    return msgspec.structs.replace(segment, text=segment.text[:PREVIEW])


def _layers(built: Built) -> tuple[LayerView, ...]:
    sizes = layer_tokens(built)
    sizes["L1"] += sizes["tools"]
    return tuple(LayerView(id[:2], sizes[id[:2]], sha256) for id, sha256 in LayerHashes(built).items())


def _head_segments(built: Built) -> Iterator[tuple[int, SegmentView]]:
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


def _shortened(message: Message, edits: dict[int, str]) -> str:
    """handle or cut, where a shorter text stands for a message's result."""
    return next((edits[seq] for seq in message.seqs if edits.get(seq) in ("handle", "cut")), "")


def _of_message(message: Message, size: int, edits: dict[int, str]) -> SegmentView:
    text = message_text(message)
    made = "summary" if _is_summary(message, text) else _shortened(message, edits)
    role = _ROLES.get(message.role, message.role)
    return _segment("L4", role, _title(message), size, text, message.seqs, made)


def _title(message: Message) -> str:
    names = [part.name for part in message.parts if isinstance(part, Call)]
    names += [part.name for part in message.parts if message.role == "tool" and hasattr(part, "name")]
    return ", ".join(dict.fromkeys(filter(None, names)))


def _of_user(built: Built, size: int, message: Message) -> Iterator[SegmentView]:
    """The current user's message: this turn's context, then the user's words."""
    sealed = enclose(built, ())
    context = [each for each in sealed.layer("L3_TURN").segments if each.content]
    sizes = layer_tokens(built)
    for each in context:
        yield _segment("L3", "context", each.id, counter().count(each.content), each.content, message.seqs)
    tokens = sizes["L5"] if context else size
    yield _segment("L5", "user", "query", tokens, built.query or message_text(message), message.seqs)


def _edited(made: _Made) -> dict[int, str]:
    record = made.built.rebase if isinstance(made.built, Built) else None
    return {edit["entry"]: edit["action"] for edit in (record or {}).get("edits", ())}


def _grouped(rows: Iterable[tuple[int, str]]) -> tuple[LeftOutView, ...]:
    """Entries by the reason for which they are left out."""
    by_reason: dict[str, list[list[int]]] = {}
    for seq, reason in sorted(rows):
        runs = by_reason.setdefault(reason, [])
        if runs and seq <= runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return tuple(
        LeftOutView(reason, tuple((first, last) for first, last in runs))
        for reason, runs in by_reason.items()
    )


def _told(policy: Policy) -> JsonObject:
    """The policy as people set it, without what is as always."""
    fields: JsonObject = msgspec.to_builtins(policy)
    names = (
        "budget",
        "reply",
        "promote",
        "floor",
        "handles",
        "summary",
        "opening",
        "read",
        "write",
        "ttl_s",
        "model",
    )
    read, write = policy.prices
    return {name: fields[name] for name in names} | {"read": read, "write": write}


# What was used and what it cost.


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


def sent_row(entry: Entry) -> SentRow:
    """A `sent` entry that says what its request used, with what that cost."""
    target = f"{entry.body['provider']}:{entry.body['model']}"
    try:
        used = msgspec.convert(entry.body["usage"], Usage, strict=False)
    except msgspec.ValidationError:
        used = usage_of(entry)
    try:
        usd = cost(used, target, entry.at).amount_usd
    except CallError:  # a provider that is not known here, in a log from elsewhere
        usd = None
    sha256, stop = entry.body["request_sha256"], entry.body.get("stop")
    return SentRow(entry.seq, target, sha256, entry.at, used.as_json(), usd, stop)


def spending(entries: Iterable[Entry]) -> Spending:
    """What the requests among these entries used and cost."""
    total, models, usd, unpriced = dict.fromkeys(COUNTS, 0), dict[str, JsonObject](), 0.0, 0
    for entry in entries:
        if entry.kind != "sent" or not isinstance(entry.body.get("usage"), dict):
            continue
        made = sent_row(entry)
        row = models.setdefault(made.model, {**dict.fromkeys(COUNTS, 0), "requests": 0, "usd": 0.0})
        for name in COUNTS:
            used = int((made.usage or {}).get(name) or 0)
            total[name] += used
            row[name] += used
        row["requests"] += 1
        row["usd"] += made.usd or 0.0
        usd, unpriced = usd + (made.usd or 0.0), unpriced + (made.usd is None)
    return Spending(sum(row["requests"] for row in models.values()), dict(total), usd, unpriced, models)


def kept_entries(store: Store) -> Iterator[Entry]:
    """Every entry of a store once, however many forks share it."""
    after = 0
    while changes := store.changes(after, 1000):
        yield from (change.entry for change in changes)
        after = changes[-1].n
