"""The hindsight optimum: a bound for the policy that it belongs to, and a series of cuts that can really be made."""

import math
from itertools import chain, combinations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from thread_strategies import agent_threads, threads

from quire import Assembly, Entry, Policy, requests, values
from quire.assemble import DROP_ONLY, When, hindsight, reused_tokens
from quire.assemble.hindsight import number_entries, optimum, trail
from quire.assemble.messages import History
from quire.assemble.rebase_decision import Rent
from quire.cli.plan import measure
from quire.errors import BudgetError
from toolbox import fewer

pytestmark = pytest.mark.moves_prefix(reason="policies are compared by the cuts they make")

# Each case runs whole threads several times.
HOUR = 3_600_000
CHOSEN = [Policy(), DROP_ONLY, Policy(opening=0.2), Policy(handles=0.0, summary=0.0, opening=0.25)]
policies = st.builds(
    lambda policy, budget, ttl_s: msgspec.structs.replace(policy, budget=budget, ttl_s=ttl_s),
    st.sampled_from([*CHOSEN, Policy(promote="each-turn"), Policy(thinking=True)]),
    st.sampled_from([80, 200, 400, 600, 1200]),
    st.sampled_from([None, 300, 1]),
)
DROPS = msgspec.structs.replace(DROP_ONLY, ttl_s=None)


def best(entries: list[Entry], policy: Policy) -> float:
    return optimum(trail(entries, policy), policy).cost


def paid(entries: list[Entry], policy: Policy, when: When = "rent") -> float | None:
    """What a policy costs on a thread, if it refuses nothing."""
    row = measure("", entries, msgspec.structs.replace(policy, when=when))
    return row["cost"] if row and not row["refused"] else None


def turns(count: int, words: int, pause: int = 0) -> list[Entry]:
    """A thread whose user comes back after a pause each time."""
    pairs = [
        (values.user(f"{n} asks " * words, at=n * pause), values.respond("so " * words, at=n * pause))
        for n in range(count)
    ]
    return [values.system("Help."), *chain.from_iterable(pairs)]


@fewer(16)
@given(st.one_of(agent_threads, threads), policies)
def test_no_policy_costs_less_than_the_optimum_of_its_own_cuts(entries: list[Entry], policy: Policy) -> None:
    costs = [cost for when in ("rent", "full") if (cost := paid(entries, policy, when)) is not None]
    assume(costs)
    # The costs of policies are rounded.
    assert best(entries, policy) <= min(costs) + 0.5


def test_a_pause_is_charged_to_policies_and_optimum_alike() -> None:
    entries, policy = turns(6, 100, pause=HOUR), Policy(ttl_s=300)
    assert paid(entries, policy) == pytest.approx(best(entries, policy), abs=0.5)
    assert measure("", entries, policy)["reuse"] == 0
    assert best(entries, msgspec.structs.replace(policy, ttl_s=None)) < best(entries, policy) / 2


def test_summaries_count_with_their_real_size() -> None:
    entries, policy = turns(12, 40), Policy(budget=700, ttl_s=None, floor=0.3, summary=0.4)
    brief, wordy = (
        optimum(trail(entries, policy, summarise), policy)
        for summarise in (lambda gone: "brief", lambda gone: "word " * gone.limit)
    )
    assert brief.cost < wordy.cost
    # An extract of talk in which nothing is settled takes less than it may.
    usual = msgspec.structs.replace(policy, floor=0.5, summary=0.0625)
    assert best(entries, usual) <= (paid(entries, usual, "full") or 0) + 0.5


def cost_with_cuts_at(entries: list[Entry], policy: Policy, cuts: tuple[int, ...]) -> float:
    """What the thread costs when exactly these requests cut, by its real requests."""
    cost, before, place = 0.0, None, 0
    assembly = Assembly(policy)
    for entry in number_entries(entries):
        if assembly.asks(entry):
            due = place in cuts
            assembly.policy = msgspec.structs.replace(policy, when="rent" if due else "full")
            assembly.rent = Rent(cost=-math.inf) if due else Rent()
            try:
                built = assembly.request()
            except BudgetError:
                return math.inf
            if (built.rebase is not None) != due:
                return math.inf  # nothing to cut here, or no way around it
            reused = reused_tokens(before, built)
            cost += policy.prices[0] * reused + policy.prices[1] * (built.tokens - reused)
            before, place = built, place + 1
        assembly.feed(entry)
    return cost


@fewer(8)
@given(
    agent_threads,
    st.sampled_from([DROPS, Policy(ttl_s=None), Policy(ttl_s=None, opening=0.25)]),
    st.sampled_from([400, 600, 1200]),
)
def test_the_optimum_is_what_its_cuts_really_cost(entries: list[Entry], policy: Policy, budget: int) -> None:
    policy = msgspec.structs.replace(policy, budget=budget)
    found = optimum(trail(entries, policy), policy)
    assume(math.isfinite(found.cost))
    assert found.cost == pytest.approx(cost_with_cuts_at(entries, policy, found.cuts))


@pytest.mark.parametrize("opening", [0.0, 0.25])
@pytest.mark.parametrize("budget", [300, 420, 560])
def test_no_other_moments_cost_less(opening: float, budget: int) -> None:
    entries = turns(4, 12) + turns(5, 20)[1:]
    policy = msgspec.structs.replace(DROPS, budget=budget, opening=opening)
    every = chain.from_iterable(combinations(range(9), count) for count in range(10))
    least = min(cost_with_cuts_at(entries, policy, cuts) for cuts in every)
    found = optimum(trail(entries, policy), policy)
    assert found.cuts
    assert found.cost == pytest.approx(least)


def test_a_cut_works_on_what_earlier_cuts_have_left() -> None:
    said = [(5, 200), (200, 200), (50, 50), (50, 5)]
    lines = "line of output\n" * 3
    entries = [values.system("S")]
    for n, (asked, answered) in enumerate(said):
        called = [values.call(f"c{n}", "f", {"a": n}), values.result(f"c{n}", None, lines)] if n % 2 else []
        entries += [values.user(f"q{n} " + "w " * asked), *called, values.respond("a " * answered)]
    policy = msgspec.structs.replace(DROPS, budget=600)
    assert best(entries, policy) == pytest.approx(paid(entries, policy), abs=0.5)


def test_the_last_rung_cuts_a_single_result_that_is_too_large() -> None:
    huge = "\n".join(f"line {n} of a huge result" for n in range(300))
    entries = [values.user("go"), values.call("c", "read", {}), values.result("c", None, huge), values.respond("ok")]
    policy = msgspec.structs.replace(DROPS, budget=600)
    assert best(entries, policy) == pytest.approx(paid(entries, policy), abs=0.5)


def test_in_a_long_thread_few_moments_are_tried_and_the_cheapest_of_them_costs_hardly_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries, policy, tried = turns(1_100, 12), msgspec.structs.replace(DROPS, budget=8_000), list[object]()
    cut = hindsight._cut
    monkeypatch.setattr(hindsight, "_cut", lambda *given: tried.append(given) or cut(*given))
    few = best(entries, policy)
    assert len(tried) < 500
    monkeypatch.setattr(hindsight, "_LONG", 10_000)
    assert few == pytest.approx(best(entries, policy), rel=0.02)


def test_the_requests_of_a_finished_thread_are_made_without_copying_what_stood_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied, copy = list[object](), History.copy
    monkeypatch.setattr(History, "copy", lambda history: copied.extend(history.leaves) or copy(history))
    entries = turns(100, 4)
    assert len(list(requests(entries, Policy()))) == len(trail(entries, Policy()).steps) == 100
    assert not copied
