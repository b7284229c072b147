"""The built-in summary: every request and decision first, then what was named, within its limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import values
from quire.assemble import Built, Policy, requests
from quire.assemble.cuts import first_words
from quire.assemble.earlier import Line, earlier, written
from quire.assemble.summary import Gone, extract
from quire.log.hashing import chain
from quire.tokens import counter
from quire.values import Entry

flat = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1)
phrases = st.lists(flat, min_size=1, max_size=30).map(" ".join)


def summary(entries: list[Entry], limit: int, before: str = "") -> str:
    return extract(Gone(tuple(chain(entries)), before, limit))


def turns(first: int, last: int) -> list[Entry]:
    out: list[Entry] = []
    for n in range(first, last):
        out += [
            values.user(f"request {n}: please look into everything that concerns it, " + "word " * 40),
            values.respond(f"I looked. We decided {n} times over to go on as it was, " + "word " * 40),
        ]
    return out


def test_every_request_and_every_decision_is_told_if_only_by_its_first_words() -> None:
    text = summary(turns(0, 12), 260)
    assert counter().count(text) <= 260
    assert all(f"request {n}: please" in text for n in range(12))
    assert all(f"We decided {n} times" in text for n in range(12))


def test_where_not_even_first_words_fit_the_oldest_go_and_are_counted() -> None:
    text = summary(turns(0, 60), 220)
    told = earlier(text)
    asked = [int(one.text.split()[1].strip(":")) for one in told.lines if one.who == "User"]
    assert asked == list(range(60 - len(asked), 60)), "the newest stay"
    assert told.requests == 60 - len(asked) > 0
    assert told.decisions == 60, "decisions give way to requests"
    again = earlier(summary(turns(60, 70), 220, text))
    assert again.requests + sum(one.who == "User" for one in again.lines) == 70, (
        "none is forgotten in the count"
    )


def test_requests_and_decisions_are_carried_on_over_many_rebases() -> None:
    text = ""
    for n in range(0, 40, 2):
        text = summary(turns(n, n + 2), 900, text)
        assert counter().count(text) <= 900
    assert all(f"request {n}:" in text for n in range(40))
    assert all(f"We decided {n} " in text for n in range(40))


@pytest.mark.moves_prefix(reason="many rebases are made")
def test_a_long_thread_still_tells_every_request_that_has_gone() -> None:
    entries = [one for n in range(60) for one in (*turns(n, n + 1), values.respond("word " * 200))]
    made = [one for one in requests(entries, Policy(budget=8_000)) if isinstance(one, Built)]
    assert sum(one.rebase is not None for one in made) >= 3
    text = str(made[-1].prompt.messages)
    assert [n for n in range(59) if f"request {n}:" not in text] == []


def test_what_was_named_before_and_is_named_again_is_told() -> None:
    decided = [f"Assistant: We decided to keep choice {n}." for n in range(10)]
    before = "\n".join(["User: look at src/alpha.py", *decided, "Named: ORDER_77812 src/alpha.py"])
    entries = [values.call("c", "cancel", {"order": "ORDER_77812"})]
    entries += [values.result("c", None, "ORDER_77812 is cancelled; ORDER_99999 is open")]
    text = summary(entries, 150, before)
    assert "ORDER_77812" in text
    assert "ORDER_99999" in text
    assert "src/alpha.py" in text


def test_a_question_settles_nothing() -> None:
    text = summary([values.respond("Should I cancel it? I will use the blue one instead.")], 100)
    assert text == "Assistant: I will use the blue one instead."


def test_a_models_own_words_are_kept_in_front() -> None:
    text = summary(turns(0, 2), 200, "They spoke of paint. " * 60)
    assert text.startswith("They spoke of paint.")
    assert "request 1:" in text
    assert counter().count(text) <= 200


@given(st.lists(st.builds(Line, st.sampled_from(["User", "Assistant"]), phrases)))
def test_lines_are_read_back_as_they_were_written(lines: list[Line]) -> None:
    assert list(earlier("\n".join(written(lines))).lines) == lines


@pytest.mark.parametrize("words", ["Named: x_1", "Assistant: yes", "Not listed: 1 requests, 2 decisions"])
def test_no_words_can_be_taken_for_another_line(words: str) -> None:
    lines = [Line("User", "first"), Line("User", words)]
    again = earlier("\n".join(written(lines)))
    assert again.lines == tuple(lines)
    assert not again.named
    assert not again.requests


@given(st.lists(phrases, max_size=20), st.integers(30, 400), phrases)
def test_a_summary_stays_within_its_limit(said: list[str], limit: int, before: str) -> None:
    entries = [values.user(text) if n % 2 else values.respond(text) for n, text in enumerate(said)]
    assert counter().count(summary(entries, limit, before)) <= limit * 1.1


@given(phrases, st.integers(1, 60))
def test_first_words_are_the_texts_own_and_end_with_a_word(text: str, length: int) -> None:
    cut = first_words(text, length)
    if cut != text:
        head = cut.removesuffix(" ...")
        assert text.startswith(head)
        assert length <= len(head) <= length + 16
        assert text[len(head)] == " " or len(head) == length


def test_names_parted_by_commas_are_read_too() -> None:
    assert earlier("Named: ORDER_77812, src/alpha.py").named == ("ORDER_77812", "src/alpha.py")
