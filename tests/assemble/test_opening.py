"""The thread's opening: kept verbatim and cached in front of what a rebase takes away."""

from itertools import pairwise
from pathlib import Path

import pytest

import quire
from quire import Policy, providers, values
from quire.assemble import reused_tokens
from quire.assemble.rebase import SUMMARY_HEADING
from quire.errors import CallError
from quire.providers.cache_marks import mark
from quire.providers.simulate import simulate
from toolbox import Built, built, chain, model_info, sha256_hex, talk

pytestmark = pytest.mark.moves_prefix(reason="every test here makes rebases")
WORDS = "word " * 40


def opening_policy(**changed: object) -> Policy:
    return Policy(**{"budget": 4_000, "ttl_s": None, "handles": 0.0, "opening": 0.25, **changed})  # type: ignore[arg-type]


def test_the_first_turns_stand_through_every_rebase() -> None:
    made = built(talk(120), opening_policy())
    rebased = [one for one in made if one.rebase]
    assert len(rebased) > 3
    first = made[0].prompt.messages[0]
    for one in rebased:
        sizes = one.sizes[: one.prompt.opening]
        assert one.prompt.messages[0] == first
        assert 0.2 * 4_000 < sum(sizes) <= 0.25 * 4_000
        summary = one.prompt.messages[one.prompt.opening].parts[0].text  # type: ignore[union-attr]
        assert summary.startswith(SUMMARY_HEADING)


def test_a_rebase_moves_nothing_in_the_opening() -> None:
    made = built(talk(120), opening_policy())
    for before, now in pairwise(made):
        if now.rebase:
            standing = now.head_tokens + sum(now.sizes[: now.prompt.opening])
            assert reused_tokens(before, now) >= standing > 900


def test_what_a_marked_cache_stored_of_the_opening_is_read_after_a_rebase() -> None:
    target = "anthropic:claude-sonnet-4-5"
    made = built(talk(160), opening_policy(budget=8_000))
    info = model_info(target)
    bodies = [
        (n * 1_000, mark(quire.render(one.prompt, target, max_tokens=100).body, one.prompt, info))
        for n, one in enumerate(made)
    ]
    seen = simulate(bodies, target)
    for one, paid in list(zip(made, seen, strict=True))[1:]:
        if one.rebase:
            assert paid.read > 1_500


def test_the_opening_gets_shorter_before_the_floor_does_and_for_good() -> None:
    big = [values.call("c", "read", {}), values.result("c", None, WORDS * 66), values.respond("ok")]
    made = built(list(chain([*talk(20), *big, *talk(40)[1:]])), opening_policy(budget=3_000))
    at = next(n for n, one in enumerate(made) if WORDS * 66 in str(one.prompt.messages[-1].parts))
    before = max(one.prompt.opening for one in made[:at])
    assert 0 < made[at].prompt.opening < before
    assert made[at].tokens <= 3_000
    assert "question 0 " in str(made[at].prompt.messages[0])
    assert made[at].rebase["meta"]["opening"] == made[at].prompt.opening + 1
    assert all(later.prompt.opening <= one.prompt.opening for one, later in pairwise(made[at:]))


def test_one_long_turn_keeps_its_request_and_its_first_calls() -> None:
    steps = [
        one
        for n in range(80)
        for one in (values.call(f"c{n}", "read", {"n": n}), values.result(f"c{n}", None, f"{n} {WORDS}"))
    ]
    entries = list(chain([values.user("do it all"), *steps, values.respond("done")]))
    for one in built(entries, opening_policy(summary=0.0)):
        assert one.tokens <= 4_000
        assert "do it all" in str(one.prompt.messages[0].parts)
        assert sum("do it all" in str(message.parts) for message in one.prompt.messages) == 1
        assert not providers.rules.validate(quire.render(one.prompt, "openai-chat:gpt-5").body, "openai-chat")


def test_the_log_alone_gives_back_the_requests(tmp_path: Path) -> None:
    policy = Policy(budget=1_500, opening=0.25, handles=0.0)
    thread = quire.open(tmp_path / "t.db", "t", policy)
    for n in range(25):
        thread.user(f"question {n} " + "word " * 60)
        thread.request("openai-chat:gpt-5")
        thread.append(quire.respond("answer " * 40))
    thread.user("the last one")
    mine = thread.request("openai-chat:gpt-5")
    again = quire.open(tmp_path / "t.db", "t", policy).request("openai-chat:gpt-5")
    assert sha256_hex(mine.prefix) == sha256_hex(again.prefix)
    assert any(entry.meta.get("opening") for entry in thread.store.read("t") if entry.kind == "rebase")


def test_as_much_as_a_sliding_window_keeps_costs_far_less() -> None:
    entries = talk(400)

    window = Policy(budget=8_000, ttl_s=None, handles=0.0, summary=0.0, when="full", floor=0.96)
    opening = Policy(budget=8_000, ttl_s=None, handles=0.0, summary=0.0, when="full", floor=0.5, opening=0.46)

    kept, cost = zip(*(_measured(built(entries, policy)) for policy in (window, opening)), strict=True)
    assert kept[1] > 0.98 * kept[0]
    assert cost[1] < 0.8 * cost[0]


def _measured(made: list[Built]) -> tuple[float, float]:
    """Tokens sent, and their cost at a tenth for what is read and 1.25 for what is written."""
    sent = sum(one.tokens for one in made)
    read = sum(reused_tokens(old, new) for old, new in zip([None, *made], made, strict=False))
    return sent, 0.1 * read + 1.25 * (sent - read)


def test_shares_beyond_the_budget_are_refused() -> None:
    with pytest.raises(CallError, match=r"opening 0\.4 add up to more than the budget"):
        Policy(floor=0.5, handles=0.2, opening=0.4)
