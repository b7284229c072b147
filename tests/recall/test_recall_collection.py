"""What a collection finds and why; its postings and its neighbours are held to slow ways of doing the same."""

from collections import Counter
from collections.abc import Collection as Collection_
from collections.abc import Sequence
from itertools import cycle, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hashed_words import HashedWords
from quire.recall import Collection, Document, Query, meaning, rank
from quire.recall.document import Found, pieces, relevant
from quire.recall.meaning import Meaning
from quire.recall.words import ALONE, REACH, Neighbours, Postings, key, posting_run

WORDS = st.lists(
    st.sampled_from(["hat", "shop", "red", "blue", "train", "Monday", "you", "I", "sky"]), min_size=1, max_size=6
)
TEXT = st.builds(" ".join, WORDS)


def told(texts: list[str], *speakers: str, session: str = "", embedder: HashedWords | None = None) -> Collection:
    """A collection of texts, which the speakers say in turns."""
    made = Collection(embedder)
    said = zip(texts, cycle(speakers or ("",)), strict=False)
    made.upsert(Document(str(at), text, speaker=who, session=session) for at, (text, who) in enumerate(said))
    return made


def ids(found: list[Found]) -> list[str]:
    return [one.id for one in found]


HATS = ["a red hat", "a blue hat", "a hat on the train", "the sky"]
LESSON = ["Nice weather", "Which instrument do you play?", "The clarinet, since childhood.", "I see", "Bye"]
KEYS = " ".join(f"the editor handles key number {at}" for at in range(400))
EDITOR = ["look at the editor", f"{KEYS} onShiftTab {KEYS}", "done with the tab", "shift it", "the key"]
BUDGET = ["Is the retry budget known?", "The parser timeout, the parser timeout is all of it.", "We had lunch."]
BUDGET += ["Nobody came.", "Our parser timeout eats up the whole retry budget on a slow morning.", "Fine.", "Good."]
BESIDE_SPANISH = [*BUDGET, "El parser no está en el retry de la semana, y el timeout es de los otros."]
BICYCLES = [
    "Inés compró un reloj en León.",
    "Inés compró dos bicicletas en León.",
    "Lucía compró dos bicicletas en León.",
]
PRICES = ["the red hat costs 5", "the blue train costs 9", "sky"]
COST = "How much does it cost?"


@pytest.mark.parametrize(
    ("made", "query", "first"),
    [
        (told(HATS), "blue hats", "1"),
        (told(HATS), "sky", "3"),
        # An answer by the words of its question.
        (told(LESSON, "Ann", "Ann", "Bob", "Ann", "Bob", session="s"), "What instrument does Bob play?", "2"),
        # A rare word in a long text wins over its short neighbours, and all that is asked over what is borrowed.
        (told(EDITOR, "user", "tool", "assistant", session="s"), "onShiftTab", "1"),
        (told(EDITOR, "user", "tool", "assistant", session="s"), "where did we see onshifttab?", "1"),
        (told(BUDGET, "user", "assistant", session="s"), "parser timeout retry budget", "4"),
        # That another entry is in Spanish takes nothing from an English one that holds all that is asked.
        (told(BESIDE_SPANISH, "user", "assistant", session="s"), "parser timeout retry budget", "4"),
        (told(BICYCLES), "¿Dónde compraba Inés la bicicleta?", "1"),
        # Two words side by side stand before the same apart.
        (told(["the group gave support", "the support group met", "a group", "support"]), "support group", "1"),
        # The turn before settles what a follow-up leaves unsaid.
        (told(PRICES), Query(COST, earlier="the blue train"), "1"),
        (told(PRICES), Query(COST, earlier="the red hat"), "0"),
    ],
)
def test_what_is_found_first(made: Collection, query: str | Query, first: str) -> None:
    found = made.search(query, 1)
    assert ids(found) == [first]
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[Found]) == found


@pytest.mark.parametrize("query", ["", "   ", "what is the", "\x00", "?!", "nowhere to be found"])
def test_a_query_without_any_known_word_finds_nothing_by_words(query: str) -> None:
    assert told(["a red hat", "a blue hat"]).search(query) == []
    made = told(["a red hat"], embedder=HashedWords())
    made.embed()
    assert made.search("") == []
    assert Collection(HashedWords()).search("hat") == []


@given(st.lists(TEXT, min_size=1, max_size=20), TEXT, st.booleans())
def test_scores_are_the_sum_of_their_parts_and_fall(texts: list[str], query: str, meaning: bool) -> None:
    made = told(texts, session="s", embedder=HashedWords() if meaning else None)
    made.embed()
    found = made.search(query, 10)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert one.score == pytest.approx(sum(one.parts.values()), abs=1e-5)
    assert len(set(ids(found))) == len(found)


@given(st.lists(TEXT, min_size=1, max_size=8), TEXT)
def test_equals_stand_in_the_order_they_were_added(texts: list[str], query: str) -> None:
    found = told(texts * 2).search(query, 100)
    place = {one.id: at for at, one in enumerate(found)}
    for at in range(len(texts)):
        twin = str(at + len(texts))
        if str(at) in place:
            assert place[str(at)] < place[twin]


SPEAKER = st.sampled_from(["", "user", "Ann", "Bob", "Ann Lee"])
CHANGE = st.tuples(st.sampled_from("abcdef"), st.none() | TEXT, SPEAKER, st.booleans())


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
    made = told(["red hat"] * 5)
    assert ids(made.search("hat", 10, only=["1", "3", "zzz"])) == ["1", "3"]
    assert ids(made.search("hat", 10, only=np.array([True, False, True, False, False]))) == ["0", "2"]
    assert ids(made.search("hat", 10, exclude=["0", "4", "zzz"])) == ["1", "2", "3"]


class Rephrased(HashedWords):
    """Takes a few words for others that mean the same."""

    def encode(self, texts: Sequence[str]) -> Any:
        return super().encode([text.replace("bike", "bicycle").replace("purchased", "bought") for text in texts])


NOTES = [f"note {at} of the week" for at in range(60)]


def test_what_means_the_same_stands_before_one_word_by_chance() -> None:
    made = told([*NOTES, "bicycle bought", "a cheap lamp and a chair beside it"], embedder=Rephrased())
    made.embed()
    assert ids(made.search("cheap bike purchased", 2)) == ["60", "61"]


def test_what_stands_out_by_its_meaning_is_relevant_without_a_word_of_the_question() -> None:
    made = told([*NOTES, "the bicycle was bought"], embedder=Rephrased())
    made.embed()
    assert relevant(made.search("bike purchased cheaply", 1))
    assert not relevant(made.search("weather in the north", 1))


@pytest.mark.parametrize("speakers", [("Sam", "Sam"), ("", ""), ("user", "user")])
def test_reasons_that_need_people_taking_turns_are_silent_elsewhere(speakers: tuple[str, str]) -> None:
    said = ["Do you like hats?", "I bought my red hat last week", "You are right about your hat", "The hat shop"]
    for one in told(said, *speakers, session="s").search("Which hat did the user like?", 10):
        assert one.parts["speaker"] == one.parts["speech"] == one.parts["time"] == one.parts["name"] == 0


def test_between_two_people_the_one_named_is_preferred_and_telling_to_asking() -> None:
    said = ["Did I buy a hat?", "Did you buy a hat?", "I bought a hat.", "You bought a hat."]
    parts = {one.id: one.parts for one in told(said, "Ann", "Bob", session="s").search("What hat did Ann buy?", 10)}
    assert parts["0"]["speaker"] == parts["2"]["speaker"] > parts["1"]["speaker"] == parts["3"]["speaker"] == 0
    assert parts["2"]["speech"] > parts["3"]["speech"]
    assert parts["2"]["speech"] > parts["0"]["speech"]


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


def test_the_end_of_a_long_text_is_found_by_its_meaning() -> None:
    long = "red hat shop " * 400 + "blue train on Monday"
    assert "".join(pieces(long)) == long
    made = told([long, "sky sky sky"], embedder=HashedWords())
    made.embed()
    vector = HashedWords().encode([pieces(long)[-1]])[0]
    assert made.meaning.cosines(vector, np.array([0]))[0] == pytest.approx(1, abs=1e-2)


def test_what_has_no_vector_yet_is_found_by_words() -> None:
    made = told(["red hat", "blue train"], embedder=HashedWords())
    assert set(made.pending()) == {"0", "1"}
    found = made.search("hat")
    assert ids(found) == ["0"]
    assert found[0].parts["meaning"] == 0
    made.embed()
    assert made.pending() == {}
    assert ids(made.search("hat")) == ["0", "1"]


def test_neighbours_of_a_document_stand_in_order() -> None:
    made = told(["a", "b", "c", "d"], session="s")
    assert made.around("1", 1) == ["0", "1", "2"]
    assert made.around("3", 2) == ["1", "2", "3"]


def test_few_vectors_are_all_compared_and_signs_lead_to_nearly_all_that_many_would_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((40, 128)).astype(np.float32)
    vectors = centres[rng.integers(0, 40, 3000)] + 0.4 * rng.standard_normal((3000, 128)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made, everyone = Meaning(128), np.ones(3000, np.bool_)
    made.grow(3000)
    made.put(np.arange(3000), vectors)
    assert made.near(vectors[0], everyone)[0].tolist() == list(range(3000))
    made.put(np.array([5, 5]), vectors[7:9])
    made.forget(9)
    monkeypatch.setattr(meaning, "_FEW", 1000)
    monkeypatch.setattr(meaning, "_MOST_COMPARED", 300)
    shares = []
    for query in vectors[::300]:
        every = made.cosines(query, np.arange(3000))
        rows, cosines = made.near(query, everyone)
        shares.append(np.isin(np.argsort(-every)[:50], rows).mean())
        # Of several vectors of a row, only those that were compared count.
        assert (cosines <= every[rows] + 1e-6).all()
    assert np.mean(shares) > 0.95
    assert 5 in made.near(vectors[7], everyone)[0]
    assert 5 in made.near(vectors[8], everyone)[0]
    assert 9 not in made.near(vectors[9], everyone)[0]
    few = np.zeros(3000, np.bool_)
    few[[3, 77, 150]] = True
    assert made.near(vectors[0], few)[0].tolist() == [3, 77, 150]


def test_of_many_documents_only_the_best_by_words_and_by_meaning_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = told([f"the {color} hat number {n}" for n in range(20) for color in ("red", "blue")], embedder=HashedWords())
    made.embed()
    asked = [f"{color} {n}" for n in range(20) for color in ("red", "blue")]
    best = [made.search(query, 1)[0].id for query in asked]
    monkeypatch.setattr(rank, "_FEW", 10)
    monkeypatch.setattr(rank, "POOL", 5)
    assert [made.search(query, 1)[0].id for query in asked] == best
    assert len(made.search("hat", 40)) == 40
    assert len({hit.id for hit in made.search("red 7", 2)}) == 2


BAGS = st.lists(st.lists(st.sampled_from(["hat", "red", "shop", "=42"]), max_size=6), max_size=12)


@given(st.lists(BAGS, max_size=6))
def test_postings_are_what_counting_gives(batches: list[list[list[str]]]) -> None:
    made, rows = Postings(), 0
    counted: dict[str, Counter[int]] = {}
    for bags in batches:
        made.add(posting_run(rows, [" ".join(bag) for bag in bags]))
        for bag in bags:
            plain = [word for word in bag if word != "=42"]
            for term in [*bag, *(f"{one} {other}" for one, other in pairwise(plain))]:
                counted.setdefault(term, Counter())[rows] += 1
            rows += 1
    for term in ("hat", "red", "shop", "=42", "hat red", "red hat", "42", "red =42"):
        found, counts = made.of(key(term))
        assert Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))) == counted.get(term, Counter())
        assert found.tolist() == sorted(found.tolist())


ROW = st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2), st.booleans())
ROWS = st.lists(ROW, min_size=1, max_size=25)


def built(rows: list[tuple[str, int, bool]], gone: Collection_[int] = (), length: int = 1) -> Neighbours:
    sessions, speakers, asks = (np.array(column) for column in zip(*rows, strict=True))
    inside = np.array([at not in gone for at in range(len(rows))])
    numbers = np.searchsorted(np.array(["", "a", "b"]), sessions)
    return Neighbours(numbers, speakers, asks, np.full(len(rows), length, np.float32), inside)


def spread(made: Neighbours, own: Any) -> Any:
    wide = np.zeros(len(own) + 1, np.float32)
    rows = np.flatnonzero(own)
    touched = made.spread(rows, own[rows], wide)
    assert set(np.flatnonzero(wide)) <= set(touched.tolist())
    assert wide[-1] == 0
    return wide[:-1]


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


@given(ROWS, st.data())
def test_values_spread_as_the_matrix_says(rows: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=3))
    own = np.array([0 if at in gone else at % 3 for at in range(len(rows))], np.float32)
    np.testing.assert_allclose(spread(built(rows, gone), own), matrix(rows, gone) @ own, atol=1e-5)


def test_a_long_text_lends_in_proportion_less() -> None:
    own = np.array([1, 0], np.float32)
    short, long = (spread(built([("a", 0, False), ("a", 1, False)], length=length), own) for length in (20, 2000))
    assert long.tolist() == pytest.approx([1, short[1] / 100])


@given(ROWS)
def test_smoothing_keeps_a_constant_and_stays_within_bounds(rows: list[tuple[str, int, bool]]) -> None:
    made, everyone = built(rows), np.arange(len(rows))
    same = np.full(len(rows), 0.5, np.float32)
    np.testing.assert_allclose(made.smooth(everyone, same), same, rtol=1e-6)
    values = np.arange(len(rows), dtype=np.float32)
    smooth = made.smooth(everyone, values)
    assert smooth.min() >= -1e-5
    assert smooth.max() <= len(rows) - 1 + 1e-5


def test_where_one_speaker_speaks_alone_little_is_taken_over() -> None:
    alone = built([("a", 0, False)] * 3)
    taking_turns = built([("a", at % 2, False) for at in range(3)])
    own = np.array([0, 1, 0], np.float32)
    little, much = (spread(made, own)[0] for made in (alone, taking_turns))
    assert 0 < little < much
    assert alone.dialogue[1] == 0
    assert taking_turns.dialogue[1] == 1


@pytest.mark.parametrize(
    ("said", "asked", "elsewhere"),
    [
        (["自転車は駅前の店で直した", "雨が降りました"], "自転車を直してくれたのは誰？", "兄はどの楽器を弾きますか？"),
        (["張偉在杭州買了一盒茶葉", "今天下雨"], "張偉的茶葉是在哪裡買的?", "圖書館幾點開門?"),
        (["여동생은 4월에 리스본으로 이사했어요", "오늘은 비가 와요"], "여동생이 지금 어디에 살아요?", "도서관은 몇 시에 문을 여나요?"),
        (["عندي حساسية من الفول السوداني", "الطقس جميل"], "ما هي الحساسية التي عندي أنا؟", "متى تفتح المكتبة؟"),
        (["मेरी बहन अप्रैल में लिस्बन चली गई", "बारिश तेज़"], "मेरी बहन अब कहाँ रहती है?", "चावल कैसे पकाते हैं?"),
        (["Η Μαρία αγόρασε ένα ποδήλατο", "Βρέχει"], "Ποιο ποδήλατο είναι αυτό που έχει;", "Πώς μαγειρεύω ρύζι;"),
        (["หมอสั่งยาลดความดันให้ผม", "วันนี้ฝนตก"], "ใครสั่งยาให้เมื่อไหร่ครับ", "บราซิลมีประชากรเท่าไร"),
    ],
    ids=["Japanese", "Chinese", "Korean", "Arabic", "Hindi", "Greek", "Thai"],
)  # fmt: skip
def test_what_asks_or_bends_a_word_need_not_stand_in_an_answer(said: list[str], asked: str, elsewhere: str) -> None:
    some = told(said)
    found = some.search(asked)
    assert ids(found[:1]) == ["0"]
    assert relevant(found)
    assert not relevant(some.search(elsewhere))


def test_fewer_than_one_is_nothing() -> None:
    assert [len(told(HATS).search("hat", k)) for k in (-2, -1, 0, 1)] == [0, 0, 0, 1]
