from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.recall import postings
from quire.recall.postings import Postings

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
    assert set(made.stems) == set(counted)
    for stemmed, number in made.stems.items():
        found, counts = made.of(number)
        assert Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))) == counted[stemmed]


def test_the_usual_form_of_a_stem_is_the_one_written_most() -> None:
    made = Postings()
    made.add(0, [["hats", "hat", "red"], ["hats", "shop"], ["hats", "red"]])
    assert made.usual(2) == [(made.stems["hat"], "hats"), (made.stems["red"], "red")]
