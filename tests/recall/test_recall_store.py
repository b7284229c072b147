"""Recall over a real store: what is appended can be found, what is deleted cannot, whoever did it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashed_words import HashedWords
from quire import Entry, Thread, open_store, values
from quire.errors import CallError, DamageError, NotFound
from quire.recall import Hit, Indexer, Query, Recall, query_for
from quire.recall.document import KINDS, TEXT_LIMIT, document
from quire.recall.languages import VERSION
from quire.records import Records
from toolbox import Store, note


def talk() -> list[Entry]:
    return [
        values.system("You sell hats."),
        values.user("Where is my order #W2378156?", at=1_683_554_160_000),
        values.think("The secret plan about zebras"),
        values.call("c1", "get_order", {"order_id": "#W2378156"}),
        values.result("c1", content='{"status": "delivered", "city": "Lyon"}'),
        values.respond("It was delivered in Lyon."),
        values.user("I also bought a puppy"),
        values.respond("Congratulations!"),
        values.note("Answer in French from now on"),
        values.attach({"id": "shop.md", "type": "text", "content": "Opening hours: nine to five"}),
    ]


@pytest.fixture
def recall(store: Store) -> Recall:
    """A search of the talk above, which is thread t."""
    search = Recall(store)
    store.append("t", talk())
    return search


def seqs(hits: list[Hit]) -> list[int]:
    return [hit.seq for hit in hits]


def test_entries_are_found_as_soon_as_they_are_appended(store: Store, recall: Recall) -> None:
    assert seqs(recall.search("puppy", 1, thread="t")) == [7]
    assert seqs(recall.search("opening hours", 1, thread="t")) == [10]
    store.append("t", [values.user("My puppy is called Rex")])
    assert 11 in seqs(recall.search("puppy Rex", 2, thread="t"))
    assert recall.by == "words"


def test_words_of_many_entries_wait_for_no_search_and_a_search_keeps_what_it_folded(store: Store) -> None:
    thread = Thread(store, "long")
    thread.embedder = None
    for _ in range(3):
        thread.append(*(values.user(f"number {n} of the warehouse") for n in range(400)))
    assert len(store.index.without_words(0, VERSION, 10_000)) == 400
    assert store.checkpoint("long") is None
    assert thread.recall("number 7") == []  # the next request shows them all
    assert store.index.without_words(0, VERSION, 10_000) == []
    assert store.checkpoint("long") is not None


def test_a_result_is_found_by_the_arguments_of_its_call_and_knows_its_tool(recall: Recall) -> None:
    hit = recall.search("get order id W2378156", 1, thread="t", kinds=["result"])[0]
    assert (hit.seq, hit.tool, hit.entry.kind) == (5, "get_order", "result")


def test_thinking_system_text_and_bookkeeping_are_not_searched(recall: Recall) -> None:
    assert recall.search("zebras", thread="t") == []
    assert {hit.entry.kind for hit in recall.search("sell hats order puppy French hours", 20, thread="t")} <= set(KINDS)


def test_what_recall_told_is_not_found_again_but_a_tool_of_its_name_is(store: Store, recall: Recall) -> None:
    sections = "• You: I also bought a puppy"
    asked = [values.call("r1", "recall", {"query": "puppy", "k": 3}), values.result("r1", "1 found", sections)]
    asked += [values.note(sections, meta={"recalled_ids": ["x"]}), values.call("r2", "recall", {"query": "puppy"})]
    store.append("t", asked)
    for search in (recall, Recall(store)):
        found = seqs(search.search("puppy", 20, thread="t"))
        assert found[0] == 7
        assert max(found) <= len(talk())
    other = values.call("r3", "recall", {"product": "crib"})
    store.append("t", [other, values.result("r3", None, "Cribs are called back.")])
    assert seqs(recall.search("crib", 1, thread="t")) == [16]


def test_before_exclude_and_kinds_narrow_the_search(recall: Recall) -> None:
    everything = recall.search("order delivered puppy Lyon", 20, thread="t")
    assert all(hit.seq < 6 for hit in recall.search("order delivered puppy Lyon", 20, thread="t", before=6))
    without = recall.search("order delivered puppy Lyon", 20, thread="t", exclude=[2, everything[0].id])
    assert set(seqs(without)) == set(seqs(everything)) - {2, everything[0].seq}
    assert {hit.entry.kind for hit in recall.search("order delivered", 20, thread="t", kinds=["result"])} == {"result"}
    for kinds in ("result", (kind for kind in ["result"])):
        assert seqs(recall.search("Lyon", thread="t", kinds=kinds)) == [5]


def test_a_relative_date_is_meant_from_when_it_is_asked(store: Store) -> None:
    day = 86_400_000
    store.append("d", [values.user(f"Entry {n} of the diary", at=n * day) for n in range(100, 120)])
    asked_at = Recall(store, clock=lambda: 120 * day)
    assert seqs(asked_at.search("two days ago", 1, thread="d")) == [19]
    assert seqs(asked_at.search("what did I say Yesterday?", 1, thread="d")) == [20]
    assert seqs(asked_at.search(Query("yesterday", at=111 * day), 1, thread="d")) == [11]
    with Thread(store, "d", clock=lambda: 115 * day) as thread:
        thread.embedder = None
        assert seqs(thread.recall("the day before yesterday", 1, exclude=())) == [14]


def test_neighbours_come_on_request_in_order(recall: Recall) -> None:
    hit = recall.search("puppy", 1, thread="t", neighbours=1)[0]
    assert [entry.seq for entry in hit.neighbours] == [6, 7, 8]


def test_forks_share_history_and_are_found_once(store: Store, recall: Recall) -> None:
    store.fork("t", 6, "f")
    store.append("f", [values.user("A cat came instead")])
    assert seqs(recall.search("W2378156", 1, thread="f", kinds=["user"])) == [2]
    assert recall.search("puppy", thread="f") == []
    found = recall.search("order W2378156 cat", 20)
    assert len({hit.id for hit in found}) == len(found)
    assert ("f", 7) in {(hit.thread, hit.seq) for hit in found}


def test_a_thread_made_anew_under_an_old_name_is_another_thread(store: Store, recall: Recall) -> None:
    assert recall.search("puppy", thread="t")
    store.delete("t")
    store.append("t", [values.user("A kitten")])
    assert recall.search("puppy", thread="t") == []
    assert seqs(recall.search("kitten", thread="t")) == [1]


def test_what_another_process_appends_is_found(tmp_path: Path) -> None:
    with open_store(tmp_path / "q.db") as mine, open_store(tmp_path / "q.db") as theirs:
        recall = Recall(mine)
        mine.append("t", talk())
        assert recall.search("walrus", thread="t") == []
        theirs.append("t", [values.user("A walrus!")])
        assert seqs(recall.search("walrus", 1, thread="t")) == [11]


def test_words_kept_by_older_rules_are_made_again(store: Store) -> None:
    store.append("t", talk())
    store.connection().execute("UPDATE recall_entries SET rules = 0, words = 'nonsense'")
    assert seqs(Recall(store).search("puppy", 1, thread="t")) == [7]
    assert Indexer(store).run().worded == 0  # the search has kept them
    assert Recall(store).search("nonsense", thread="t") == []


def test_a_file_from_before_names_were_counted_is_brought_up_to_date(tmp_path: Path) -> None:
    def named(store: Store) -> set[int]:
        found = Recall(store).search("Which book did I read?", thread="t")
        return {hit.seq for hit in found if hit.parts["name"]}

    with open_store(tmp_path / "q.db") as old:
        old.append("t", [values.user("I read Dune"), values.respond("I read too")])
        # Words as the first version kept them.
        old.connection().execute("ALTER TABLE recall_entries DROP COLUMN names")
        old.connection().execute("DROP TABLE recall_state")
        old.connection().execute("UPDATE recall_entries SET rules = 1, words = 'read dune'")
        old.connection().execute("UPDATE versions SET version = 1 WHERE owner = 'recall'")
    with open_store(tmp_path / "q.db") as now:
        assert Indexer(now).run().worded == 2
        assert named(now) == {1}


ENTRY = st.one_of(
    st.builds(values.user, st.sampled_from(["red hat", "blue train", "When did you see the red train?"])),
    st.builds(values.respond, st.sampled_from(["hats are red", "trains are blue", "training hatters", "yes"])),
    st.builds(lambda text: values.result("c", content=text), st.sampled_from(['{"hat": 1}', "train 7"])),
    st.builds(lambda text: values.call("c", "find", {"what": text}), st.sampled_from(["red", "train"])),
)


@settings(max_examples=40)
@given(st.lists(ENTRY, min_size=1, max_size=12), st.integers(0, 12), st.sampled_from(["red hat", "train", "blue 7"]))
def test_growing_and_loading_anew_give_the_same_answer(log: list[Entry], at: int, query: str) -> None:
    with open_store(":memory:") as store:
        grown = Recall(store, HashedWords())
        store.append("t", log[:at])
        grown.search(query, thread="t")
        Indexer(store, HashedWords()).run()
        grown.search(query, thread="t")
        store.append("t", log[at:])
        Indexer(store, HashedWords()).run()
        wanted = [(hit.seq, round(hit.score, 4)) for hit in Recall(store, HashedWords()).search(query, 20, thread="t")]
        assert [(hit.seq, round(hit.score, 4)) for hit in grown.search(query, 20, thread="t")] == wanted
        Indexer(store, HashedWords()).rebuild()
        again = Recall(store, HashedWords()).search(query, 20, thread="t")
        assert [(hit.seq, round(hit.score, 4)) for hit in again] == wanted


def test_wrong_calls_say_what_is_right(recall: Recall) -> None:
    scopes = [{"scope": scope} for scope in ("thread", "nowhere", "records")]
    for wrong in ({"k": 0}, *scopes, {"kinds": ["think"]}, {"before": 3}, {"exclude": [3]}):
        with pytest.raises(CallError) as raised:
            recall.search("hat", **wrong)  # type: ignore[arg-type]
        assert str(raised.value)
    with pytest.raises(NotFound):
        recall.search("hat", thread="nobody")
    with pytest.raises(CallError, match="not None"):
        recall.search(None)  # type: ignore[arg-type]


def test_records_are_searched_by_whoever_holds_them(store: Store) -> None:
    recall = Recall(store, records=lambda query, k: [f"{query} {at}" for at in range(k)])
    assert recall.search("hat", 2, scope="records") == ["hat 0", "hat 1"]


def test_a_thread_recalls_from_itself_all_threads_and_records(store: Store) -> None:
    thread = Thread(store, "t")
    thread.append(values.user("a red hat"), values.respond("Noted."))
    store.append("other", [values.user("a red train")])
    kept = Records(store).create("note.v1", {"text": "red paint"})
    assert [hit.entry.text for hit in thread.recall("red", k=1, exclude=())] == ["a red hat"]
    assert {hit.thread for hit in thread.recall("red", scope="threads", exclude=())} == {"t", "other"}
    found: list[Any] = thread.recall("red", scope="records")
    assert [hit.record for hit in found] == [kept]
    thread.append(values.user("another red hat"))
    assert {hit.seq for hit in thread.recall("hat", k=2, exclude=())} == {1, 3}
    for option in ({"before": 2}, {"kinds": "user"}, {"exclude": [1]}, {"neighbours": 1}):
        with pytest.raises(CallError, match="not about records"):
            thread.recall("red", scope="records", **option)


def test_the_query_of_a_conversation_is_the_last_turn_and_the_one_before() -> None:
    log = talk()
    assert query_for(log) == Query("I also bought a puppy", "Where is my order #W2378156?")
    assert query_for(log[:3]) == Query("Where is my order #W2378156?")
    assert query_for([]) == Query("")


def test_a_store_opens_where_numpy_and_the_stemmer_are_not_installed(tmp_path: Path) -> None:
    script = f"""
import sys
for name in ("numpy", "Stemmer", "onnxruntime"):
    sys.modules[name] = None
from quire.thread import Thread, open_store
from quire import values
with open_store({str(tmp_path / "q.db")!r}) as store:
    store.append("t", [values.user("a red hat")])
    print(len(store.read("t")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    with open_store(tmp_path / "q.db") as store:
        assert seqs(Recall(store).search("hat", thread="t")) == [1]


def test_many_python_threads_may_search_at_once(store: Store) -> None:
    store.append("t", talk())
    recall = Recall(store)
    wanted = seqs(recall.search("order puppy", thread="t"))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: seqs(recall.search("order puppy", thread="t")), range(20)))
    assert found == [wanted] * 20


def test_a_damaged_entry_is_named_when_its_words_are_made(tmp_path: Path) -> None:
    with open_store(tmp_path / "q.db") as store:
        store.append("t", talk())
        conn = store.connection()
        conn.execute("DROP TRIGGER entries_never_change")
        conn.execute("UPDATE entries SET body = replace(body, 'puppy', 'kitty') WHERE seq = 7")
        for read in (lambda: Recall(store).search("order", thread="t"), lambda: Indexer(store).run()):
            with pytest.raises(DamageError) as raised:
                read()
            assert raised.value.seq == 7


FILLER = "lorem ipsum dolor sit amet "


def best(store: Store, query: str, thread: str = "t") -> Entry:
    return Recall(store).search(query, 1, thread=thread)[0].entry


def tools(store: Store, thread: str | None = "t") -> dict[str, str]:
    """What each result says, and the tool that recall says it came from."""
    hits = Recall(store).search("payload", 200, thread=thread, kinds=["result"])
    return {hit.entry.body["content"]: hit.tool for hit in hits}


def test_the_end_of_a_long_entry_is_found(store: Store) -> None:
    store.append("t", [values.user("hello"), values.user(FILLER * 30_000 + "xylophonist"), values.respond("ok")])
    assert best(store, "xylophonist").seq == 2


def test_the_end_of_an_item_is_found_whether_it_came_with_the_user_or_before(store: Store) -> None:
    item = note("n.md", FILLER * 1_000 + "the bumblebee protocol is 42")
    store.append("with", [values.user("hi"), values.user("see this", [item]), values.user("unrelated")])
    store.append("before", [values.user("hi"), values.attach(item), values.user("see this")])
    assert best(store, "bumblebee protocol", "with").kind == "user"
    assert best(store, "bumblebee protocol", "before").kind == "attach"


def test_what_is_searched_of_an_entry_is_bounded() -> None:
    huge = document(values.user("a" * (TEXT_LIMIT - 10), [note("n.md", "b" * TEXT_LIMIT)]))
    assert len(huge.text) + len(huge.extra) == TEXT_LIMIT
    assert len(huge.meaning) <= 20_000


def test_a_call_is_found_itself_until_its_result_is_there(store: Store) -> None:
    recall = Recall(store)
    call = values.call("c", "book_table", {"place": "Zum Walross"})
    store.append("t", [values.user("go"), call, values.user("never mind")])
    (hit,) = recall.search("Walross", 1, thread="t")
    assert (hit.seq, hit.entry.kind, hit.tool) == (2, "call", "book_table")
    assert recall.search("Walross", 5, thread="t", kinds=["result"]) == []
    assert Recall(store, HashedWords()).without_meaning("t") == 2  # a call waits for no vector
    store.append("t", [values.result("c", content="booked")])
    for searching in (recall, Recall(store)):
        found = searching.search("Walross", 5, thread="t")
        assert found[0].seq == 4
        assert 2 not in {hit.seq for hit in found}


def test_a_result_belongs_to_the_nearest_earlier_call_that_waits(store: Store) -> None:
    calls = [values.call("1", "alpha", {}), values.call("1", "beta", {})]
    results = [values.result("1", content="payload of beta"), values.result("1", content="payload of alpha")]
    store.append("t", [values.user("go"), *calls, *results])
    again = [values.call("1", "gamma", {"city": "Bern"}), values.result("1", content="payload of gamma")]
    store.append("t", again)
    assert tools(store) == {f"payload of {name}": name for name in ("beta", "alpha", "gamma")}
    assert best(store, "Bern").seq == 7


def test_every_result_of_a_large_group_knows_its_tool(store: Store) -> None:
    calls = [values.call(f"p{n}", f"fetch{n}", {}) for n in range(100)]
    results = [values.result(f"p{n}", content=f"payload {n}") for n in range(100)]
    store.append("t", [values.user("go"), *calls, *results])
    assert tools(store) == {f"payload {n}": f"fetch{n}" for n in range(100)}


def test_a_result_in_a_fork_knows_the_call_in_front_of_it(store: Store) -> None:
    store.append("t", [values.user("go"), values.call("1", "old", {}), values.result("1", content="payload 1")])
    store.append("t", [values.call("1", "fetch", {})])
    fork = store.fork("t", 4)
    store.append(fork, [values.result("1", content="payload 2")])
    for thread in (fork, None):
        assert tools(store, thread) == {"payload 1": "old", "payload 2": "fetch"}
