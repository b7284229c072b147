from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.recall import words as postings
from quire.recall.words import Postings, StemTable

BAGS = st.lists(st.lists(st.sampled_from(["hat", "hats", "red", "shop", "42"]), max_size=6), max_size=12)


@settings(max_examples=150)
@given(st.lists(BAGS, max_size=4), st.booleans())
def test_postings_are_what_counting_gives(batches: list[list[list[str]]], merged: bool) -> None:
    made, rows = Postings(), 0
    counted: dict[str, Counter[int]] = {}
    many, least = postings._MANY, postings._MERGE_AT_LEAST
    postings._MANY, postings._MERGE_AT_LEAST = (1, 1) if merged else (many, least)
    try:
        for bags in batches:
            made.add(rows, bags)
            for bag in bags:
                for word in bag:
                    counted.setdefault(word.removesuffix("s"), Counter())[rows] += 1
                rows += 1
            made.settle(np.ones(rows, np.bool_))
    finally:
        postings._MANY, postings._MERGE_AT_LEAST = many, least
    assert set(made.vocabulary.stems) == set(counted)
    for stemmed, number in made.vocabulary.stems.items():
        assert made.holders(number) == len(counted[stemmed])
        found, counts = made.of(number)
        assert Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))) == counted[stemmed]


def test_the_usual_form_of_a_stem_is_the_one_written_most() -> None:
    made = StemTable()
    made.add([["hats", "hat", "red"], ["hats", "shop"], ["hats", "red"]])
    assert [made.written[word] for word in made.usual(2)] == ["hats", "red"]


@settings(max_examples=200)
@given(BAGS, BAGS, st.lists(st.integers(0, 11), unique=True), st.integers(1, 5))
def test_a_vocabulary_after_deaths_is_that_of_the_living(
    first: list[list[str]], second: list[list[str]], dead: list[int], limit: int
) -> None:
    made, fresh = Postings(), Postings()
    made.add(0, first)
    made.vocabulary.usual(limit)  # what it remembers must not matter
    made.add(len(first), second)
    bags = first + second
    gone = {row for row in dead if row < len(bags)}
    for row in gone:
        made.remove(row)
    living = [bag for row, bag in enumerate(bags) if row not in gone]
    fresh.add(0, living)
    assert _told(made, limit) == _told(fresh, limit)


def _told(made: Postings, limit: int) -> tuple[dict[str, int], set[str]]:
    """The holders of each stem that is found, and the usual forms."""
    words = made.vocabulary
    found = {stemmed: words.find(stemmed) for stemmed in words.stems}
    held = {stemmed: made.holders(number) for stemmed, number in found.items() if number is not None}
    return held, {words.written[word] for word in words.usual(limit)}
