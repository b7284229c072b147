"""What other policies would have cost is checked against what is known of each of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Entry, Policy, call, respond, result, system, user
from quire.assemble.telling import telling
from quire.audit.what_if import POLICIES, WordPieces, recorded_thread, what_if
from quire.cli.plan import measure
from quire.thread_state import policy_for
from toolbox import assert_in_proportion, many_words

OPUS = "anthropic:claude-opus-5-5"


def agent_work(turns: int = 12, calls: int = 3, pause_s: int = 30) -> list[Entry]:
    """An agent that reads files, each named in the listing that came first, `pause_s` after the step before."""
    files = [f"src/part_{number}.py" for number in range(turns * calls)]
    out, at = [system("You read files."), user("List the files.")], 0
    out += [call("a", "list", {}), result("a", "list", "\n".join(files))]
    for number, name in enumerate(files):
        out += [user("Go on with the next ones, please.")] if number % calls == 0 else []
        read = many_words(300, f"w{number}x")
        out += [call(f"c{number}", "read", {"path": name}), result(f"c{number}", "read", read)]
    out.append(respond("Done."))
    timed = []
    for entry in out:
        at += pause_s * 1000 if entry.kind in ("user", "result") else 0
        timed.append(Entry(entry.kind, {**entry.body, "at": 1_794_000_000_000 + at}))
    return timed


CUTS = pytest.mark.moves_prefix(reason="policies are compared by their cuts")


@CUTS
def test_each_policy_keeps_and_costs_what_it_is_known_for() -> None:
    entries, policy = agent_work(), policy_for(OPUS, Policy(budget=24_000))
    found = {each.policy: each for each in what_if(entries, policy=policy)}
    assert list(found) == list(POLICIES)
    everything = found["everything"]
    never = measure("", entries, policy_for(OPUS, Policy(budget=10**12, when="full")))
    assert (everything.requests, everything.tokens) == (never["requests"], never["tokens"])
    assert everything.cost == pytest.approx(never["cost"], abs=1)
    assert (everything.kept, everything.grounding, everything.cuts) == (1.0, 1.0, ())
    assert everything.over > 0
    for name in ("Quire", "summary when full", "provider compaction"):
        assert found[name].over == 0
        assert 0 < len(found[name].cuts) < 12
        assert found[name].tokens < everything.tokens
        assert found[name].usd < found["observation masking"].usd
        assert found[name].kept < 1
    masked = found["observation masking"]
    # Each turn beyond the tenth masks one more result, and nothing behind it is read.
    assert len(masked.cuts) > 20
    assert masked.kept < 0.8
    assert found["Quire"].actions == everything.actions == 36
    assert found["Quire"].grounding > masked.grounding


def test_the_longer_life_pays_where_pauses_are_long_and_only_there() -> None:
    for pause_s, better in ((30, "everything"), (600, "everything, long life")):
        found = what_if(agent_work(pause_s=pause_s), policy=policy_for(OPUS))
        assert min(found[:2], key=lambda each: each.usd or 0).policy == better
    assert [each.policy for each in what_if(agent_work(2), policy=policy_for("deepseek:deepseek-chat"))] == [
        name for name, (_, long_life) in POLICIES.items() if not long_life
    ]


@CUTS
def test_a_summary_is_paid_for_and_holds_what_it_tells() -> None:
    entries, policy = agent_work(), policy_for(OPUS, Policy(budget=24_000))
    sends = POLICIES["summary when full"][0]
    (found,) = what_if(entries, {"x": (sends, False)}, policy=policy)
    made = list(sends(recorded_thread(entries, policy), policy))
    asides = [each for each in made if each.aside]
    assert len(asides) == len(found.cuts) > 0
    assert all(each.output > 0 for each in asides)
    assert found.tokens == sum(each.built.tokens for each in made)


@CUTS
def test_policies_are_tried_in_a_time_that_grows_with_the_conversation() -> None:
    def tried(requests: int) -> None:
        entries = [user("Go on.")]
        for n in range(requests):
            entries += [call(f"c{n}", "read", {"path": f"src/{n * 7919 % 100_003}.py"}), result(f"c{n}", "read", f"{n} lines.")]  # fmt: skip
        policies = {name: POLICIES[name] for name in ("everything", "observation masking", "summary when full")}
        what_if(entries, policies, policy=policy_for(OPUS))

    assert_in_proportion(tried, 2_400)


@given(
    st.lists(st.text(st.sampled_from('ab1_/.é$ "\n'), max_size=24), max_size=6), st.integers(0, 20), st.integers(4, 12)
)
def test_a_word_that_was_read_is_never_told_to_be_missing(texts: list[str], start: int, size: int) -> None:
    pieces = WordPieces()
    for text in texts:
        pieces.read(text)
    words = {word for text in texts for word in telling(f"{text[start : start + size]} {text}")}
    assert [word for word in words if any(word in text for text in texts) and not pieces.may_hold(word)] == []
    assert not pieces.may_hold("src/never.py")
