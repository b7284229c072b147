"""Records by meaning: the real model finds and compares paraphrases; vectors are made once and follow the records."""

from functools import cache
from typing import Any

import pytest

from hashed_words import HashedWords
from quire.errors import CallError, MissingPart
from quire.records import Builder, Records, keep_catalog, react
from quire.records.builder import find_repeats
from quire.records.store import Corpus, by_words, relevance
from records.chatter import CONVERSATION, NEAR, REQUEST, say
from records.test_seed import CONFIG, MESSAGE_2, TOOLS
from toolbox import Store


@cache
def model() -> Any:
    from quire.recall.meaning import minilm

    try:
        return minilm()
    except MissingPart as error:
        pytest.skip(f"the embedding model is not here: {error}")


def test_the_seed_holds_with_the_real_model_among_near_misses(store: Store) -> None:
    records = Records(store, model())
    keep_catalog(records, TOOLS)
    for question, answer in NEAR[:9]:
        say(records, "user", question)
        say(records, "assistant", answer)
    for speaker, text in CONVERSATION:
        say(records, speaker, text)
    for question, answer in NEAR[9:]:
        say(records, "user", question)
        say(records, "assistant", answer)
    records.create("context.config.v1", CONFIG)
    (output,) = react(records, say(records, "user", REQUEST)).outputs
    assert output.context["formatted_context"] + "\n\n# Current Request\n" + REQUEST == MESSAGE_2
    assert Builder(CONFIG).build(records, request=REQUEST).text == MESSAGE_2


def test_meaning_finds_what_shares_no_word(store: Store) -> None:
    records = Records(store, model())
    for text in ["The cat sleeps on the sofa", "Our invoice is overdue", "Rain is expected tomorrow"]:
        say(records, "user", text)
    assert [hit.record.id for hit in records.search("unpaid bills", nn=1)] == ["rec-2"]
    assert Records(store).search("unpaid bills") == []


def test_what_says_the_same_in_other_words_is_dropped_at_a_real_threshold() -> None:
    texts = ["How do I reset my password?", "What is the weather like?"]
    texts += ["How can I reset my password?", "How do I change my username?"]
    assert find_repeats(texts, 0.95, model().encode) == {0: 2}
    assert find_repeats(texts, 0.95, model().encode, pinned=[0]) == {2: 0}
    assert find_repeats(texts, 0.999, model().encode) == {}


def test_a_vector_is_made_once_for_each_version_and_goes_with_its_record(store: Store) -> None:
    embedder = HashedWords()
    records = Records(store, embedder)
    records.create("note.v1", {"text": "alpha"})
    records.create("note.v1", {"text": "beta"})
    records.search("alpha")
    assert sorted(embedder.asked) == ["alpha", "alpha", "beta"]
    embedder.asked.clear()
    Records(store, embedder).search("beta")
    assert embedder.asked == ["beta"]
    records.update("rec-2", 1, context={"text": "gamma"})
    embedder.asked.clear()
    assert [hit.record.id for hit in records.search("gamma", nn=1)] == ["rec-2"]
    assert embedder.asked == ["gamma", "gamma"]
    records.delete("rec-1")
    records.delete("rec-2")
    assert store.connection().execute("SELECT count(*) FROM record_vectors").fetchone() == (0,)
    assert store.connection().execute("SELECT count(*) FROM record_words").fetchone() == (0,)


def test_indexing_makes_what_is_missing_and_tells_how_far_it_is(store: Store) -> None:
    steps: list[tuple[int, int]] = []
    records = Records(store, HashedWords(), lambda done, all: steps.append((done, all)))
    for n in range(40):
        records.create("note.v1", {"text": f"text {n}"})
    assert records.index() == 40
    assert steps == [(0, 40), (32, 40), (40, 40)]
    assert records.index() == 0
    with pytest.raises(CallError, match="no embedder"):
        Records(store).index()


def test_in_a_large_store_words_choose_what_is_compared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(store)
    texts = [f"invoice number {n} for the garden" for n in range(30)] + ["the API key of the garden", "an API"]
    for text in texts:
        records.create("note.v1", {"text": text}, tags=["x"])
    records.create("note.v1", {"text": "API key"}, tags=["y"])
    few = [(hit.record.id, hit.score) for hit in records.search("garden API keys?", tag="x")]
    monkeypatch.setattr("quire.records.store.FEW", 5)
    many = records.search("garden API keys?", tag="x")
    assert [hit.record.id for hit in many[:2]] == [id for id, _ in few[:2]] == ["rec-31", "rec-32"]
    assert records.search("what is that") == []
    assert records.search('"; DROP TABLE records') == []


def test_rare_words_count_more_and_words_that_nothing_holds_count_too() -> None:
    texts = ["garden tools", "garden shed", "garden key"]
    shed = by_words("garden shed", texts)
    assert shed[1] == 1.0
    assert shed[0] == shed[2] < 0.2
    assert 0 < max(by_words("garden zebra unicorn", texts)) < 0.1
    corpus = Corpus(1000, {"garden": 900, "shed": 2})
    assert by_words("garden shed", ["garden shed", "shed"], corpus)[1] > 0.9
    # A short text may be in one of several languages.
    bicycles, keys = by_words(
        "onde está a bicicleta?", ["Sofia comprou duas bicicletas em Lisboa", "Guardei as chaves"]
    )
    assert bicycles > keys == 0


def test_where_words_fail_meaning_decides_and_else_words_lead() -> None:
    texts = ["api key", "something else"]
    assert relevance("api key", texts, [0.3, 0.9]) == pytest.approx([0.7 + 0.1, 0.3])
    assert relevance("zebra crossing", texts, [0.3, 0.6]) == [0.5, 1.0]
    assert relevance("zebra crossing", texts, [0.1, 0.2]) == [0.0, 0.0]
    assert relevance("zebra", [], []) == []
