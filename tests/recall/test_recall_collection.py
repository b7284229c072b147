"""What a collection finds and why; its postings and its neighbours are held to slow ways of doing the same."""

from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hashed_words import HashedWords
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.recall import Collection, Document, Query
from quire.recall import words as postings
from quire.recall.document import Found
from quire.recall.meaning import Meaning
from quire.recall.neighbours import ALONE, REACH, Neighbours
from quire.recall.words import Postings, StemTable

WORDS = st.lists(
    st.sampled_from(["hat", "shop", "red", "blue", "train", "Monday", "you", "I", "sky"]), min_size=1, max_size=6
)
TEXT = st.builds(" ".join, WORDS)


@pytest.fixture
def embedder() -> HashedWords:
    return HashedWords()


def documents(texts: list[str], **more: str) -> list[Document]:
    return [Document(str(at), text, **more) for at, text in enumerate(texts)]


def ids(found: list[Found]) -> list[str]:
    return [one.id for one in found]


def test_rare_words_find_their_document_first() -> None:
    made = Collection()
    made.upsert(documents(["a red hat", "a blue hat", "a hat on the train", "the sky"]))
    assert ids(made.search("blue hats", 2))[0] == "1"
    assert ids(made.search("sky")) == ["3"]


def test_an_answer_is_found_by_the_words_of_its_question() -> None:
    said = ["Nice weather", "Which instrument do you play?", "The clarinet, since childhood.", "I see", "Bye"]
    made = Collection()
    speakers = ["Ann", "Ann", "Bob", "Ann", "Bob"]
    made.upsert(
        Document(str(at), text, speaker=who, session="s")
        for at, (text, who) in enumerate(zip(said, speakers, strict=True))
    )
    assert ids(made.search("What instrument does Bob play?", 1)) == ["2"]


@pytest.mark.parametrize("query", ["", "   ", "what is the", "\x00", "?!", "nowhere to be found"])
def test_a_query_without_any_known_word_finds_nothing_by_words(query: str) -> None:
    made = Collection()
    made.upsert(documents(["a red hat", "a blue hat"]))
    assert made.search(query) == []


def test_an_empty_query_finds_nothing_by_meaning_either(embedder: HashedWords) -> None:
    made = Collection(embedder)
    made.upsert(documents(["a red hat"]))
    made.embed()
    assert made.search("") == []


def test_nothing_is_found_in_nothing(embedder: HashedWords) -> None:
    assert Collection(embedder).search("hat") == []


@settings(max_examples=120)
@given(st.lists(TEXT, min_size=1, max_size=20), TEXT, st.booleans())
def test_scores_are_the_sum_of_their_parts_and_fall(texts: list[str], query: str, meaning: bool) -> None:
    made = Collection(HashedWords() if meaning else None)
    made.upsert(documents(texts, session="s"))
    made.embed()
    found = made.search(query, 10)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert one.score == pytest.approx(sum(one.parts.values()), abs=1e-5)
    assert len(set(ids(found))) == len(found)


@settings(max_examples=120)
@given(st.lists(TEXT, min_size=1, max_size=8), TEXT)
def test_equals_stand_in_the_order_they_were_added(texts: list[str], query: str) -> None:
    made = Collection()
    made.upsert(documents(texts * 2))
    found = made.search(query, 100)
    place = {one.id: at for at, one in enumerate(found)}
    for at in range(len(texts)):
        twin = str(at + len(texts))
        if str(at) in place:
            assert place[str(at)] < place[twin]


SPEAKER = st.sampled_from(["", "user", "Ann", "Bob", "Ann Lee"])
CHANGE = st.tuples(st.sampled_from("abcdef"), st.none() | TEXT, SPEAKER, st.booleans())


@settings(max_examples=120)
@given(
    st.lists(CHANGE, max_size=25), TEXT, st.sampled_from(["", "Ann", "Bob"]), st.sampled_from(["", "s"]), st.booleans()
)
@example([("a", "blue", "", False), ("b", "Monday", "", False), ("a", "shop", "", False)], "shop blue", "", "", True)
def test_changing_documents_is_the_same_as_beginning_with_the_last(
    changes: list[tuple[str, str | None, str, bool]], query: str, name: str, session: str, meaning: bool
) -> None:
    embedder = HashedWords() if meaning else None
    changed = Collection(embedder)
    kept: dict[str, Document] = {}
    for id, text, speaker, embeds in changes:
        kept.pop(id, None)
        if text is None:
            changed.delete([id])
        else:
            kept[id] = Document(id, text, speaker=speaker, session=session)
            changed.upsert([kept[id]])
        if embeds:
            changed.embed()
            changed.search(query)
    fresh = Collection(embedder)
    fresh.upsert(kept.values())
    assert len(changed) == len(fresh) == len(kept)
    for made in (changed, fresh):
        made.embed()
    asked = f"{query} {name}"
    assert _rounded(changed.search(asked, 10)) == _rounded(fresh.search(asked, 10))


def _rounded(found: list[Found]) -> list[tuple[str, float]]:
    return [(one.id, round(one.score, 3)) for one in found]


def test_only_and_exclude_choose_among_documents() -> None:
    made = Collection()
    made.upsert(documents(["red hat"] * 5))
    assert ids(made.search("hat", 10, only=["1", "3", "zzz"])) == ["1", "3"]
    assert ids(made.search("hat", 10, only=np.array([True, False, True, False, False]))) == ["0", "2"]
    assert ids(made.search("hat", 10, exclude=["0", "4", "zzz"])) == ["1", "2", "3"]


@pytest.mark.parametrize("speakers", [("user", "assistant"), ("Sam", "Sam"), ("", ""), ("", "note")])
def test_reasons_that_need_two_named_people_are_silent_elsewhere(speakers: tuple[str, str]) -> None:
    said = ["Do you like hats?", "I bought my red hat last week", "You are right about your hat", "The hat shop"]
    made = Collection()
    made.upsert(Document(str(at), text, speaker=speakers[at % 2], session="s") for at, text in enumerate(said))
    for one in made.search("Which hat did the user like?", 10):
        assert one.parts["speaker"] == one.parts["manner"] == one.parts["time"] == one.parts["name"] == 0


def test_between_two_people_the_one_named_is_preferred_and_telling_to_asking() -> None:
    said = ["Did I buy a hat?", "Did you buy a hat?", "I bought a hat.", "You bought a hat."]
    made = Collection()
    made.upsert(Document(str(at), text, speaker=("Ann", "Bob")[at % 2], session="s") for at, text in enumerate(said))
    parts = {one.id: one.parts for one in made.search("What hat did Ann buy?", 10)}
    assert parts["0"]["speaker"] == parts["2"]["speaker"] > parts["1"]["speaker"] == parts["3"]["speaker"] == 0
    assert parts["2"]["manner"] > parts["3"]["manner"]
    assert parts["2"]["manner"] > parts["0"]["manner"]


@pytest.mark.parametrize("speakers", [("Ann", "Bob"), ("user", "assistant"), ("Sam", "Sam"), ("", "")])
def test_asked_for_something_with_a_name_turns_that_name_one_are_preferred(speakers: tuple[str, str]) -> None:
    said = ["I read a good book", "I read Dune, a book", "I often read a book"]
    made = Collection()
    made.upsert(Document(str(at), text, speaker=speakers[at % 2], session=str(at)) for at, text in enumerate(said))
    assert ids(made.search("What book was read?", 1)) == ["1"]
    named = {one.id: one.parts["name"] for one in made.search("What book was read?", 3)}
    assert named["1"] > 0 == named["0"] == named["2"]
    assert all(one.parts["name"] == 0 for one in made.search("Who read a book?", 3))


def test_of_equals_what_a_tool_returned_stands_before_the_talk_about_it() -> None:
    made = Collection()
    speakers = ("user", "assistant", "tool")
    made.upsert(Document(who, "the order of a hat", speaker=who, session=who) for who in speakers)
    assert ids(made.search("hat order", 3)) == ["tool", "user", "assistant"]


def test_what_tools_return_is_not_preferred_for_its_capitals() -> None:
    made = Collection()
    made.upsert([Document("0", "the book is Dune", speaker="tool"), Document("1", "that book is Dune")])
    named = {one.id: one.parts["name"] for one in made.search("Which book?", 2)}
    assert named["1"] > 0 == named["0"]


def test_asked_for_a_list_the_one_it_is_about_counts_more() -> None:
    made = Collection()
    made.upsert(Document(str(at), "I have hats", speaker=("Ann", "Bob")[at % 2], session="s") for at in range(4))

    def speaker(query: str) -> dict[str, float]:
        return {one.id: one.parts["speaker"] for one in made.search(query, 4)}

    several, one = speaker("What hats does Ann have?"), speaker("What hat does Ann have?")
    assert several["0"] == several["2"] > one["0"] == one["2"] > 0
    assert several["1"] == several["3"] == one["1"] == one["3"] == 0
    assert set(speaker("What hats are there?").values()) == {0}


def test_the_turn_before_settles_what_a_follow_up_leaves_unsaid() -> None:
    made = Collection()
    made.upsert(documents(["the red hat costs 5", "the blue train costs 9", "sky"]))
    assert ids(made.search(Query("How much does it cost?", earlier="the blue train"), 1)) == ["1"]
    assert ids(made.search(Query("How much does it cost?", earlier="the red hat"), 1)) == ["0"]


def test_words_are_found_through_their_kin() -> None:
    class Pets(HashedWords):
        def encode(self, texts: list[str]) -> object:  # type: ignore[override]
            return super().encode([text.replace("puppy", "dog").replace("pet", "dog") for text in texts])

    made = Collection(Pets())
    made.upsert(documents(["a puppy came home", "the train left", "red sky"]))
    made.embed()
    found = made.search("pet", 1)[0]
    assert found.id == "0"
    assert found.parts["words"] > 0


def test_what_has_no_vector_yet_is_found_by_words(embedder: HashedWords) -> None:
    made = Collection(embedder)
    made.upsert(documents(["red hat", "blue train"]))
    assert set(made.pending()) == {"0", "1"}
    found = made.search("hat")
    assert ids(found) == ["0"]
    assert found[0].parts["meaning"] == 0
    made.embed()
    assert made.pending() == {}
    assert ids(made.search("hat")) == ["0", "1"]


def test_neighbours_of_a_document_stand_in_order() -> None:
    made = Collection()
    made.upsert(documents(["a", "b", "c", "d"], session="s"))
    assert made.around("1", 1) == ["0", "1", "2"]
    assert made.around("3", 2) == ["1", "2", "3"]


def test_the_graph_leads_to_nearly_all_that_every_vector_would_give() -> None:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((40, 16)).astype(np.float32)
    vectors = centres[rng.integers(0, 40, 3000)] + 0.4 * rng.standard_normal((3000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    exact, graph = Meaning(16), Meaning(16, approximate_above=1000)
    everyone = np.ones(3000, np.bool_)
    for made in (exact, graph):
        made.grow(3000)
        made.put(np.arange(2900), vectors[:2900])
        made.near(vectors[0], everyone, 50)
        made.put(np.arange(2900, 3000), vectors[2900:])
        made.put(np.array([5]), vectors[7:8])
        made.forget(9)
    shares = []
    for query in vectors[::300]:
        all_rows, all_cosines = exact.near(query, everyone, 50)
        best = all_rows[np.argsort(-all_cosines)[:50]]
        rows, cosines = graph.near(query, everyone, 50)
        shares.append(np.isin(best, rows).mean())
        np.testing.assert_allclose(cosines, graph.cosines(query, rows))
    assert np.mean(shares) > 0.95
    assert 2950 in graph.near(vectors[2950], everyone, 50)[0]
    assert 5 in graph.near(vectors[7], everyone, 50)[0]
    assert 9 not in graph.near(vectors[9], everyone, 50)[0]


def test_a_narrow_choice_is_searched_whole() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((200, 8)).astype(np.float32)
    made = Meaning(8, approximate_above=50)
    made.grow(200)
    made.put(np.arange(200), vectors)
    few = np.zeros(200, np.bool_)
    few[[3, 77, 150]] = True
    assert made.near(vectors[0], few, 5)[0].tolist() == [3, 77, 150]


def test_found_documents_travel_as_json() -> None:
    made = Collection()
    made.upsert(documents(["red hat"]))
    found = made.search("hat")
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[Found]) == found


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


ROW = st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2), st.booleans())
ROWS = st.lists(ROW, min_size=1, max_size=25)


def built(rows: list[tuple[str, int, bool]]) -> Neighbours:
    made = Neighbours()
    # In two steps, as a log grows.
    for some, first in ((rows[: len(rows) // 2], 0), (rows[len(rows) // 2 :], len(rows) // 2)):
        sessions, speakers, asks = ([row[at] for row in some] for at in range(3))
        made.add(first, sessions, speakers, asks)
        if some:
            made.settle(made.around(np.arange(first, first + len(some)), REACH))
    return made


def spread(made: Neighbours, own: Any) -> Any:
    out = own.copy()
    made.spread(out, np.flatnonzero(own), np.empty(len(own) + 1, np.float32))
    return out


def matrix(rows: list[tuple[str, int, bool]], gone: set[int]) -> Any:
    """weights[i, j]: what row i takes over from row j."""
    size = len(rows)
    out = np.zeros((size, size))
    for session in {"a", "b"}:
        line = [at for at in range(size) if rows[at][0] == session and at not in gone]
        pairs = [rows[one][1] != rows[two][1] for one, two in pairwise(line)]
        for place, i in enumerate(line):
            near = pairs[max(0, place - 2) : place + 2]
            share = sum(near) / len(near) if near else 0.0
            for other, j in enumerate(line):
                out[i, j] = _weight(place - other, rows[j][2]) * (ALONE + (1 - ALONE) * share)
    for at in range(size):
        out[at, at] = at not in gone
    return out


def _weight(distance: int, asks: bool) -> float:
    """From `distance` places before (negative: behind)."""
    if distance == 1:
        return 1.0 if asks else 0.3
    if 1 < distance <= REACH:
        return 0.6**distance
    return 0.3 * 0.6 ** (-distance - 1) if -REACH <= distance < 0 else 0.0


@settings(max_examples=200)
@given(ROWS, st.data())
def test_values_spread_as_the_matrix_says(rows: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    made = built(rows)
    gone = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=3))
    for row in sorted(gone):
        changed = made.remove(row)
        if len(changed):
            made.settle(changed)
    own = np.array([0 if at in gone else at % 3 for at in range(len(rows))], np.float32)
    wanted = matrix(rows, gone) @ own
    np.testing.assert_allclose(spread(made, own), wanted, atol=1e-5)
    alive = np.array([at for at in range(len(rows)) if at not in gone], np.int64)
    np.testing.assert_allclose(made.gathered(alive, own), wanted[alive], atol=1e-5)


@settings(max_examples=200)
@given(ROWS)
def test_smoothing_keeps_a_constant_and_stays_within_bounds(rows: list[tuple[str, int, bool]]) -> None:
    made, everyone = built(rows), np.arange(len(rows))
    same = np.full(len(rows), 0.5, np.float32)
    np.testing.assert_allclose(made.smoothed(everyone, same), same, rtol=1e-6)
    values = np.arange(len(rows), dtype=np.float32)
    smooth = made.smoothed(everyone, values)
    assert smooth.min() >= -1e-5
    assert smooth.max() <= len(rows) - 1 + 1e-5


def test_where_one_speaker_speaks_alone_little_is_taken_over() -> None:
    alone = built([("a", 0, False)] * 3)
    taking_turns = built([("a", at % 2, False) for at in range(3)])
    own = np.array([0, 1, 0], np.float32)
    little, much = (spread(made, own)[0] for made in (alone, taking_turns))
    assert 0 < little < much
    assert alone.dialogue(np.array([1]))[0] == 0
    assert taking_turns.dialogue(np.array([1]))[0] == 1
