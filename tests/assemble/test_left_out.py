"""Nothing that is left out goes unexplained: one reason for each entry, and none for what is shown."""

from itertools import pairwise

import pytest

from quire import Entry, Policy, values
from quire.assemble.pending import left_out_since
from quire.values import LeftOut
from toolbox import built, note

pytestmark = pytest.mark.moves_prefix(reason="what is left out leaves at a rebase")


def test_a_call_that_a_rebase_takes_away_takes_its_result_along_and_both_are_explained() -> None:
    record = {"kind": "rebase", "reason": "by hand", "before_seq": 0, "library": [], "freed": 0}
    record["edits"] = [{"entry": 2, "action": "drop"}]
    entries = [values.user("q"), values.call("c", "n", {}), values.result("c", None, "zz"), values.respond("a")]
    made = built([*entries, Entry("rebase", record), values.user("q2"), values.respond("b")], Policy())
    assert [m.seqs for m in made[-1].prompt.messages] == [(1,), (4,), (6,)]
    assert {left.entry: left.reason for left in made[-1].left_out} == dict.fromkeys(
        (2, 3), "rebase into epoch 2 (by hand)"
    )


@pytest.mark.parametrize("waiting", range(2, 12))
def test_an_attachment_that_waits_has_that_reason_alone(waiting: int) -> None:
    """Also where an earlier entry's item of the same content leaves the library meanwhile."""
    entries = [values.attach(note("a.md", "alpha"))]
    for n in range(12):
        entries += [values.user(f"question {n} " + "word " * 40)]
        entries += [values.attach(note("a.md", "alpha"))] if n == waiting else []
        entries += [values.respond(f"answer {n} " + "word " * 40)]
    for one in built(entries, Policy(budget=600, promote="each-turn", unused_turns=2)):
        assert len({left.entry for left in one.left_out}) == len(one.left_out)


def test_requests_of_one_thread_share_the_rows_of_what_they_leave_out() -> None:
    entries = [values.user("q " + "word " * 40)]
    for n in range(40):
        entries += [values.think("hm"), values.respond(f"answer {n} " + "word " * 20), values.user(f"question {n}")]
    made = built(entries, Policy(budget=600))
    assert len(made[-1].left_out) > 80
    assert len({id(one.left_out.shared()) for one in made}) == 1
    for before, one in pairwise(made):
        new = [row for row in one.left_out if row not in before.left_out]
        assert (
            left_out_since(before.left_out, one.left_out) == left_out_since(list(before.left_out), one.left_out) == new
        )


def test_a_context_tool_that_gave_nothing_is_left_out_and_not_shown() -> None:
    beside = {"meta": {"placement": "context"}}
    entries = [values.user("q"), values.call("c", "n", {}, **beside), values.result("c", None, "")]
    (one,) = built([*entries, values.respond("a")], Policy())
    assert [m.seqs for m in one.prompt.messages] == [(1,)]
    assert [left.entry for left in one.left_out] == [2, 3]


def test_what_the_model_said_before_a_request_was_sent_is_no_part_of_the_answer_to_it() -> None:
    sent = {"kind": "sent", "provider": "p", "model": "m", "request_sha256": "", "segments": []}
    entries = [values.user("q"), values.respond("said before"), Entry("sent", sent), values.respond("more")]
    made = built([*entries, values.user("q2"), values.respond("x")], Policy())
    assert all("said before" in str(one.prompt) for one in made[1:])


@pytest.mark.parametrize("how", ["field", "entry"])
def test_a_note_shown_again_with_its_images_stays_in_the_library(how: str) -> None:
    again = note("a.md", "IMPORTANT FACT", source="active_note", images=["https://example.org/i.png"])
    entries = [values.system("S")]
    for n, item in enumerate([note("a.md", "IMPORTANT FACT"), again, None]):
        attached = [] if item is None else [item]
        apart = [*map(values.attach, attached), values.user(f"q{n}")]
        entries += [values.user(f"q{n}", attached)] if how == "field" else apart
        entries += [values.respond("a")]
    for one in built(entries, Policy(promote="each-turn")):
        assert "IMPORTANT FACT" in str(one.prompt)
        assert not one.left_out


def test_words_before_the_first_user_are_no_part_of_an_answer_that_was_cut_off() -> None:
    sent = {"kind": "sent", "provider": "p", "model": "m", "request_sha256": "", "segments": []}
    entries = [values.call("c", "n", {}), values.result("c", None, "zz"), Entry("sent", sent)]
    (one,) = built([*entries, Entry("sent", sent), values.user("q"), values.respond("a")], Policy())
    assert one.left_out == ()
    assert [message.seqs for message in one.prompt.messages] == [(1,), (2,), (5,)]


@pytest.mark.parametrize(
    "before", [[], [values.call("c", "n", {}), values.result("c", None, "first")]], ids=["no call", "answered"]
)
def test_a_result_that_no_call_waits_for_is_left_out(before: list[Entry]) -> None:
    thread = [values.user("q"), *before, values.result("c", None, "again"), values.respond("a"), values.user("r")]
    *_, last = built([*thread, values.respond("b")], Policy())
    assert last.left_out == (LeftOut(len(before) + 2, "no call waits for this result"),)
