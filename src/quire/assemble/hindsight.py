"""What a finished thread would have cost at best: the cheapest moments for the policy's own kind of cut.

A dynamic program over the requests of a thread. Which cut a rebase makes is fixed by the policy (its
floor and tiers); only when to make it is free, so the result bounds every rule with the same edits.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.assemble.assembly import Assembly
from quire.assemble.plan import NO_CUT, RUNGS, Plan, plan
from quire.assemble.policy import Policy
from quire.assemble.rebase import front_text
from quire.assemble.strip import Strip
from quire.assemble.summary import Gone, Summarise
from quire.assemble.walk import numbered
from quire.tokens import message_tokens
from quire.values import Entry, Message, Text


class Step(msgspec.Struct, frozen=True):
    """One request of the thread if nothing were ever cut, and the rebase that could be made here."""

    seq: int
    head: int
    # Message tokens of the whole thread at this request.
    size: int
    cut: Plan
    # Tokens of the turn's request that stays when the cut goes into a turn.
    request: int
    cold: bool


class Best(msgspec.Struct, frozen=True):
    """The cheapest series of cuts: its cost in plain input tokens, and the requests (by index) that cut."""

    cost: float
    cuts: tuple[int, ...]


class Trail(msgspec.Struct, frozen=True):
    """A thread's requests, and the strip they would have if nothing were ever cut."""

    steps: list[Step]
    strip: Strip


def trail(entries: Iterable[Entry], policy: Policy, summarise: Summarise | None = None) -> Trail:
    """The thread's requests with their sizes under a policy.

    Without `summarise` every summary is taken to fill its allowance; with it, each is made and counted.
    """
    endless = msgspec.structs.replace(policy, budget=10**12, reply=0, when="full", promote="at-rebase")
    assembly = Assembly(endless)
    out: list[Step] = []
    sizes: dict[tuple[int, int], int] = {}
    for entry in numbered(entries):
        if assembly.asks(entry):
            step = _step(assembly, entry, policy)
            out.append(_summed_up(step, assembly, summarise, sizes) if summarise else step)
        assembly.feed(entry)
    return Trail(out, assembly.ahead().epoch.strip)


def _step(assembly: Assembly, entry: Entry, policy: Policy) -> Step:
    epoch = assembly.ahead().epoch
    head, strip = epoch.head_tokens(), epoch.strip
    for rung in RUNGS:
        cut = plan(epoch, policy, rung)
        if head + cut.kept <= policy.limit:
            break
    request = strip.leaves[cut.request].tokens if cut.request is not None else 0
    return Step(entry.seq, head, strip.total, cut, request, assembly.cold)


def _summed_up(
    step: Step, assembly: Assembly, summarise: Summarise, sizes: dict[tuple[int, int], int]
) -> Step:
    """The step with its summary's real size in place of the allowance; a cut's size is found out once."""
    cut = step.cut
    if not cut.summary_limit:
        return step
    key = (cut.drop, cut.summary_limit)
    if key not in sizes:
        leaves = assembly.ahead().epoch.strip.leaves
        gone = sorted(
            {s for at in range(cut.opening, cut.drop) if at != cut.request for s in leaves[at].message.seqs}
        )
        text = summarise(Gone(tuple(assembly.entries[seq] for seq in gone), "", cut.summary_limit))
        front = front_text({"summary": text})
        sizes[key] = message_tokens(Message("user", (Text(front),))) if front else 0
    spared = cut.summary_limit - sizes[key]
    return msgspec.structs.replace(
        step,
        cut=msgspec.structs.replace(
            cut, summary_limit=sizes[key], kept=cut.kept - spared, removed=cut.removed + spared
        ),
    )


def optimum(thread: Trail, policy: Policy) -> Best:
    """The cheapest cuts for which every request fits; infinite where one cannot."""
    steps = thread.steps
    # begin[s]: the least cost of all requests before s when a rebase is made at s, what it can reuse taken off.
    begin = [float("inf")] * len(steps) + [float("inf")]
    came = [0] * (len(steps) + 1)
    begin[0] = 0.0
    for start in range(len(steps)):
        for end, cost in _epoch_costs(steps, start, policy):
            spared = _spared(thread, start, end, policy) if end < len(steps) else 0.0
            if begin[start] + cost - spared < begin[end]:
                begin[end], came[end] = begin[start] + cost - spared, start
    cuts: list[int] = []
    at = came[-1]
    while at > 0:
        cuts.append(at)
        at = came[at]
    return Best(begin[-1], tuple(reversed(cuts)))


def _epoch_costs(steps: list[Step], start: int, policy: Policy) -> Iterable[tuple[int, float]]:
    """(end, cost) of an epoch that begins at request `start` and serves every request before `end`."""
    first = steps[start]
    whole = start == 0 and first.head + first.size <= policy.limit
    size = first.size if whole else first.cut.kept
    cold = first.cold or start == 0
    cost = (policy.write if cold else policy.read) * first.head + policy.write * size
    for index in range(start, len(steps)):
        step = steps[index]
        if index > start:
            new = step.size - steps[index - 1].size
            cached = step.head + size
            size += new
            cost += (policy.write if step.cold else policy.read) * cached + policy.write * new
        if step.head + size > policy.limit:
            return
        yield index + 1, cost


def _spared(thread: Trail, before: int, start: int, policy: Policy) -> float:
    """What a rebase at `start` need not write again, because the epoch from `before` left it unchanged."""
    if thread.steps[start].cold:
        return 0.0
    old, new = thread.steps[before].cut if before else NO_CUT, thread.steps[start].cut
    stands = new.drop and (not old.drop or old.opening == new.opening)
    same = thread.strip.sums[new.opening] if stands else 0
    if old.drop == new.drop:
        handled = thread.strip.handled
        same += handled[thread.strip.first_long(old.handle, new.handle)] - handled[new.drop]
        same += old.summary_limit
    if (
        new.request is not None
        and not new.summary_limit
        and new.request in (old.request, 0 if not old.drop else None)
    ):
        same += thread.steps[start].request
    return (policy.write - policy.read) * same
