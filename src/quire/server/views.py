"""What the inspector shows of a thread: its picture, one request, two side by side, where a string went.

Pure functions of the entries; the pages, `quire report` and the routes are made of the same values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from quire.assemble import Built, Policy, Refused, ask, reused_tokens, unsent
from quire.assemble.fit import layer_tokens
from quire.assemble.hindsight import optimum, trail
from quire.audit.what_if import POLICIES, PolicyOutcome, RequestSeries, Tell, untold, what_if, with_messages
from quire.errors import BudgetError, NotFound
from quire.log.entries import usable
from quire.observe import moved
from quire.providers import Rendering, http_body, render
from quire.providers.rules import Finding, validate
from quire.providers.usage import sent_usage
from quire.server.figures import (
    EntryHit,
    LayerView,
    LeftOutView,
    SegmentView,
    SharedRequests,
    ShownRequest,
    StandingRun,
    StringStanding,
    Whereabouts,
    edits_of,
    foreseen_usage,
    head_segments,
    layer_views,
    left_out_by_reason,
    message_segment,
    piece_count,
    preview,
    rewrite_usd,
    same_pieces,
    usage_columns,
    user_segments,
)
from quire.thread_state import AssemblyPerPolicy, is_request, policies
from quire.tokens import entry_texts
from quire.values import BOOKKEEPING, SPOKEN, Entry, JsonObject

# The bands of a request in the order of the wire: the current user's message stands between older and newer history.
BANDS = ("tools", "L1", "L2", "L4", "L3", "L5", "L4 now")


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


class BestCuts(msgspec.Struct, frozen=True):
    """The cheapest series of cuts in hindsight; no cost where a request fits under none."""

    cost: float | None
    cuts: tuple[int, ...]


class WhatIf(msgspec.Struct, frozen=True):
    """A thread under other policies; everything in it is simulated."""

    outcomes: tuple[PolicyOutcome, ...]
    optimum: BestCuts | None = None


class ThreadView:
    """A thread's requests in one pass; entries that come later are taken in without going back.

    `policy` is for requests that were not sent; those that were are shown as they were sent.
    """

    def __init__(self, name: str, entries: Iterable[Entry], policy: Policy | None = None) -> None:
        self.name, self.usual = name, policy or Policy()
        self.entries: list[Entry] = []
        self._reset([])
        self.extend(entries)

    def _reset(self, under: list[Policy]) -> None:
        self._policies, self._folds = under, AssemblyPerPolicy(under)
        self._fed, self._turns = 0, list[int]()
        # The requests without their messages, which a series holds for those that were built.
        self._requests: list[ShownRequest] = []
        self._series, self._places = RequestSeries(), list[int]()
        self._columns: list[RequestColumn] = []
        self._before: Built | None = None
        self._rebase: Entry | None = None
        self._next: tuple[int, ShownRequest | None] = -1, None

    def extend(self, entries: Iterable[Entry], tell: Tell = untold) -> ThreadView:
        """Take in new entries; where they change the policy of earlier requests, all are computed again."""
        self.entries += map(usable, entries)
        under = policies(self.entries, self.usual)
        if under[: len(self._policies)] != self._policies or not self._folds.knows(under[len(self._policies) :]):
            self._reset(under)
        self._policies = under
        for entry, policy in zip(self.entries[self._fed :], under[self._fed :], strict=True):
            tell("entries", len(self._turns), len(under))
            self._feed(entry, policy)
        self._fed = len(self.entries)
        return self

    def _feed(self, entry: Entry, policy: Policy) -> None:
        assembly = self._folds.under(policy)
        if assembly.asks(entry):
            self._add(ask(assembly, entry), policy, assembly.cold, entry.at)
        self._folds.feed(entry)
        self._rebase = entry if entry.kind == "rebase" else self._rebase
        self._turns.append(self._folds.under(policy).turn)
        if is_request(entry) and self._columns and entry.body.get("usage"):
            self._report(entry)

    def _add(self, built: Built | Refused, policy: Policy, cold: bool, at: int | None) -> None:
        request = self._shown_request(built, policy, cold)
        self._columns.append(self._column(request, len(self._columns) + 1, at))
        self._places.append(len(self._series))
        if isinstance(built, Built):
            self._before = built
            self._series.add(built)
            request = msgspec.structs.replace(request, built=with_messages(built, (), ()))
        self._requests.append(request)

    def _column(self, request: ShownRequest, n: int, at: int | None) -> RequestColumn:
        built, policy = request.built, request.policy
        new_turn = not self._columns or self._columns[-1].turn != built.turn
        if isinstance(built, Refused):
            return RequestColumn(n, built.turn, built.step, at=at, model=policy.model, refused=built.error)
        reused = 0 if request.cold else reused_tokens(self._before, built)
        used = foreseen_usage(built.tokens, reused, policy)
        note = _note(built.rebase, self._rebase) if built.rebase is not None else None
        sizes = layer_tokens(built)
        older = sum(built.sizes[: built.user]) if built.user is not None else sizes["L4"]
        return RequestColumn(
            n=n,
            turn=built.turn,
            step=built.step,
            epoch=built.epoch,
            at=at,
            model=policy.model,
            bands=(sizes["tools"], sizes["L1"], sizes["L2"], older, sizes["L3"], sizes["L5"], sizes["L4"] - older),
            tokens=built.tokens,
            limit=built.limit,
            cold=request.cold and n > 1,
            left_out=len(built.left_out),
            rebase=note,
            asked=built.query[:200] if new_turn else "",
            **usage_columns(used, policy, at),
        )

    def _report(self, sent: Entry) -> None:
        column, policy = self._columns[-1], self._requests[-1].policy
        if column.reported or column.refused:
            return
        used = sent_usage(sent)
        if used.input_total:
            paid = usage_columns(used, policy, sent.at)
            self._columns[-1] = msgspec.structs.replace(column, reported=True, **paid)

    # What is shown of it

    def picture(self) -> ThreadPicture:
        """A column for each request, and for the one that would be made now."""
        ahead, columns = self._ahead(), tuple(self._columns)
        if ahead is not None:
            columns += (msgspec.structs.replace(self._column(ahead, len(columns) + 1, None), ahead=True),)
        return ThreadPicture(self.name, len(self.entries), columns, policy=_policy_settings(self.policy))

    @property
    def policy(self) -> Policy:
        return self._policies[-1] if self._policies else self.usual

    def _ahead(self) -> ShownRequest | None:
        """The request that would be made now, where the model has not answered yet."""
        if self._next[0] != self._fed:
            self._next = self._fed, self._build_next()
        return self._next[1]

    def _build_next(self) -> ShownRequest | None:
        last_kind = next((entry.kind for entry in reversed(self.entries) if entry.kind not in BOOKKEEPING), "")
        if not last_kind or last_kind in SPOKEN:
            return None
        assembly = self._folds.under(self.policy)
        if not assembly.turn or assembly.round.streaming:
            return None
        try:
            built: Built | Refused = assembly.request()
        except BudgetError as error:
            built = Refused(assembly.turn, assembly.step + 1, str(error), error.hint)
        return self._shown_request(built, self.policy, assembly.cold)

    def _shown_request(self, built: Built | Refused, policy: Policy, cold: bool) -> ShownRequest:
        same = same_pieces(self._before, built) if self._before is not None and isinstance(built, Built) else 0
        return ShownRequest(built, policy, piece_count(built) if isinstance(built, Built) else 0, same, cold)

    def _whole_requests(self, start: int = 0) -> Iterator[ShownRequest]:
        """The requests from a place on, with their messages."""
        for request, place in zip(self._requests[start:], self._places[start:], strict=True):
            whole = self._series[place] if isinstance(request.built, Built) else request.built
            yield msgspec.structs.replace(request, built=whole)

    def _request_at(self, n: int) -> tuple[ShownRequest, RequestColumn]:
        """The request of a number, from 1 on."""
        columns = self.picture().columns
        if not 1 <= n <= len(columns):
            raise NotFound(
                f"thread {self.name} has no request {n}",
                hint=f"It has requests 1 to {len(columns)}." if columns else "Nobody has asked the model yet.",
            )
        request = next(self._whole_requests(n - 1), None) or self._ahead()
        assert request is not None
        return request, columns[n - 1]

    def built(self, n: int) -> tuple[Built, Policy]:
        request, _ = self._request_at(n)
        if isinstance(request.built, Refused):
            raise NotFound(f"request {n} was not made: {request.built.error}", hint=request.built.hint)
        return request.built, request.policy

    def request(self, n: int) -> RequestDetail:
        """One request: layers, segments, what was left out."""
        request, column = self._request_at(n)
        built, last = request.built, len(self._requests) + (self._ahead() is not None)
        if isinstance(built, Refused):
            return RequestDetail(column, last, _policy_settings(request.policy), (), (), ())
        since = self._since(n, request.pieces)
        times = {row.n: row.at for row in self._columns}
        segments = [
            msgspec.structs.replace(
                segment, place=place, since=since[place], since_at=times.get(since[place]), new=since[place] == n
            )
            for place, segment in self._segments(n)
        ]
        summary = built.rebase.get("summary") or "" if built.rebase is not None else ""
        return RequestDetail(
            column,
            last,
            _policy_settings(request.policy),
            layer_views(built),
            tuple(map(preview, segments)),
            left_out_by_reason((row.entry, row.reason) for row in built.left_out),
            summary,
        )

    def segment_text(self, n: int, place: int) -> str:
        """The whole text of a request's segment, by its place in the list."""
        segments = self._segments(n)
        if not 0 <= place < len(segments):
            raise NotFound(f"request {n} has no segment {place}", hint=f"It has {len(segments)}.")
        return segments[place][1].text

    def _since(self, n: int, count: int) -> list[int]:
        """For each piece of a request, the request since which the cache has had it."""
        out = [0] * count
        open_end = count
        for place in range(n, 0, -1):
            request = self._request_at(n)[0] if place == n else self._requests[place - 1]
            if isinstance(request.built, Refused):
                continue
            same = 0 if request.cold else min(request.same, open_end)
            out[same:open_end] = [place] * (open_end - same)
            open_end = same
            if not open_end:
                break
        return out

    def _segments(self, n: int) -> list[tuple[int, SegmentView]]:
        """The segments in the order of the wire, each with its place among the pieces that caches compare."""
        built, _ = self.built(n)
        # What rebases up to this request have made of entries, by seq.
        edits = {seq: action for request in self._requests[:n] for seq, action in edits_of(request).items()}
        first = len(built.prompt.tools) + bool(built.prompt.system)
        out = list(head_segments(built))
        for index, (message, size) in enumerate(built.sized_messages(), first):
            if index - first == built.user:
                out += [(index, segment) for segment in user_segments(built, size, message)]
            else:
                out.append((index, message_segment(message, size, edits)))
        return out

    def body(self, n: int, target: str = "") -> RequestBody:
        """The exact body of a request for "provider:model", with marks and what its rules say."""
        built, policy = self.built(n)
        request = render(built.prompt, target or policy.model or "openai-chat:", cache=True, key=self.name)
        rows = [(int(row["entry"]), str(row["reason"])) for row in request.left_out]
        return RequestBody(
            request.target, http_body(request), request.headers, tuple(validate(request)), left_out_by_reason(rows)
        )

    def compare(self, first: int, second: int, by: Rendering | None = None) -> Comparison:
        """Where two requests part, why, and what was paid again on the way; `by`: what rendered others of them."""
        first, second = sorted((first, second))
        (earlier, _), (later, policy) = self.built(first), self.built(second)
        difference = moved(self._turning_points(first, second), self.entries, by)
        again = self._tokens_paid_again(first, second)
        figures = {
            "same": same_pieces(earlier, later),
            "again": again,
            "usd": rewrite_usd(again, policy, self._request_at(second)[1].at),
            "units": (policy.prices[1] - policy.prices[0]) * again,
        }
        moved_by = {**difference, "cause": difference.get("cause") or ""}
        return msgspec.convert({"first": first, "second": second, **moved_by, **figures}, Comparison)

    def _turning_points(self, first: int, second: int) -> list[tuple[Built, str]]:
        """Two requests and those between them that do not extend the one before, with that one; each with its model."""
        numbers = {first, second}
        for n in range(first + 1, second):
            request, before = self._requests[n - 1], self._requests[n - 2]
            if request.same < before.pieces or request.policy.model != before.policy.model:
                numbers |= {n - 1, n}
        row = [self._request_at(n)[0] for n in sorted(numbers)]
        return [(request.built, request.policy.model) for request in row if isinstance(request.built, Built)]

    def _tokens_paid_again(self, first: int, second: int) -> int:
        """Tokens that stood in the cache before a request and were not read by it, from one request to the other."""
        lost, before = 0, self._columns[first - 1]
        for column in self.picture().columns[first:second]:
            if not column.refused:
                # Tokens as the provider counts them, in ours.
                scale = column.tokens / max(1, column.read + column.written + column.fresh)
                read = round(column.read * scale)
                if column.cold or column.rebase is not None or read < 0.5 * column.tokens:
                    lost += max(0, min(before.tokens, column.tokens) - read)
                before = column
        return lost

    def where(self, text: str, recalled: Callable[[str], Sequence[int]] | None = None) -> Whereabouts:
        """When a string entered, in which requests it stood and as what, and whether recall finds it."""
        hits = [n for n, entry in enumerate(self.entries) if entry.kind not in BOOKKEEPING and any(text in part for part in entry_texts(entry))]  # fmt: skip
        entered = [self._hit(n, text) for n in hits[:50]] if text else []
        holds = StringStanding(text)
        recalled_seqs = tuple(recalled(text)) if recalled is not None and text else None
        runs: list[StandingRun] = []
        for request, column in zip(self._whole_requests(), self._columns, strict=True):
            if isinstance(request.built, Refused) or not text:
                continue
            standing = holds.standing(request)
            if runs and runs[-1].standing == standing:
                runs[-1] = msgspec.structs.replace(runs[-1], last=column.n)
            elif runs or standing != "nothing":
                by = f"rebase ({column.rebase.reason})" if column.rebase and runs else ""
                runs.append(StandingRun(standing, column.n, column.n, by))
        return Whereabouts(text, tuple(entered), len(hits), tuple(runs), recalled_seqs)

    def _hit(self, place: int, text: str) -> EntryHit:
        entry = self.entries[place]
        whole = "\n".join(entry_texts(entry))
        at = whole.index(text)
        around = whole[max(0, at - 60) : at + len(text) + 60]
        return EntryHit(entry.seq, entry.kind, self._turns[place], entry.at, around)

    def shared(self) -> JsonObject:
        """All requests at once: every text once, every request as what it adds to the one before it."""
        out = SharedRequests()
        now = self._ahead()
        for request in chain(self._whole_requests(), [now] if now is not None else ()):
            out.add(request)
        return {"rows": out.rows, "texts": out.texts, "requests": out.requests}


def try_policies(thread: ThreadView, only: str = "", tell: Tell = untold, **changes: Any) -> WhatIf:
    """The thread under other policies, all with the thread's own settings but for `changes`.

    `only`: one of them by its name, or "optimum" for the cheapest cuts in hindsight alone. `tell`: told how many are done.
    """
    settings = msgspec.to_builtins(thread.policy) | changes
    if settings["ttl_s"] == 0:
        settings["ttl_s"] = None
    policy = msgspec.convert(settings, Policy)
    if only == "optimum":
        best = optimum(trail(unsent(thread.entries), policy), policy)
        return WhatIf((), BestCuts(best.cost if math.isfinite(best.cost) else None, best.cuts))
    if only and only not in POLICIES:
        raise NotFound(f"there is no policy {only!r}", hint=f"There are {', '.join(POLICIES)}.")
    chosen = {only: POLICIES[only]} if only else None
    return WhatIf(tuple(what_if(thread.entries, chosen, policy=policy, tell=tell)))


def _note(record: JsonObject, newest: Entry | None) -> RebaseNote:
    seq = newest.seq if newest is not None and newest.body is record else 0
    return RebaseNote(
        record["reason"],
        record["freed"],
        dict(Counter(edit["action"] for edit in record["edits"])),
        seq,
        record.get("summary") or "",
    )


def _policy_settings(policy: Policy) -> JsonObject:
    """The settings of a policy that people choose, with the prices that hold for it."""
    fields: JsonObject = msgspec.to_builtins(policy)
    names = ("budget", "reply", "promote", "floor", "handles", "summary", "opening", "read", "write", "ttl_s", "model")
    read, write = policy.prices
    return {name: fields[name] for name in names} | {"read": read, "write": write}
