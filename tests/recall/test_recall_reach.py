"""Nothing of an entry is out of reach: its end, its items, calls without results, and the tool a result came from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import values
from quire.log.sqlite import SqliteStore
from quire.recall import Recall
from quire.recall.document import TEXT_LIMIT, document
from quire.thread import open_store
from quire.values import Entry, JsonObject

FILLER = "lorem ipsum dolor sit amet "


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path / "quire.db") as made:
        yield made


def best(store: SqliteStore, query: str, thread: str = "t") -> Entry:
    return Recall(store).search(query, 1, thread=thread)[0].entry


def tools(store: SqliteStore, thread: str | None = "t") -> dict[str, str]:
    """What each result says, and the tool that recall says it came from."""
    hits = Recall(store).search("payload", 200, thread=thread, kinds=["result"])
    return {hit.entry.body["content"]: hit.tool for hit in hits}


def note(text: str) -> JsonObject:
    return {"id": "n.md", "type": "text", "content": text, "metadata": {"source": "note", "path": "n.md"}}


def test_the_end_of_a_long_entry_is_found(store: SqliteStore) -> None:
    store.append("t", [values.user("hello"), values.user(FILLER * 30_000 + "xylophonist"), values.respond("ok")])
    assert best(store, "xylophonist").seq == 2


def test_the_end_of_an_item_is_found_whether_it_came_with_the_user_or_before(store: SqliteStore) -> None:
    item = note(FILLER * 1_000 + "the bumblebee protocol is 42")
    store.append("with", [values.user("hi"), values.user("see this", [item]), values.user("unrelated")])
    store.append("before", [values.user("hi"), values.attach(item), values.user("see this")])
    assert best(store, "bumblebee protocol", "with").kind == "user"
    assert best(store, "bumblebee protocol", "before").kind == "attach"


def test_what_is_searched_of_an_entry_is_bounded() -> None:
    huge = document(values.user("a" * (TEXT_LIMIT - 10), [note("b" * TEXT_LIMIT)]))
    assert len(huge.text) + len(huge.extra) == TEXT_LIMIT
    assert len(huge.meaning) <= 20_000


def test_a_call_is_found_itself_until_its_result_is_there(store: SqliteStore) -> None:
    recall = Recall(store)
    call = values.call("c", "book_table", {"place": "Zum Walross"})
    store.append("t", [values.user("go"), call, values.user("never mind")])
    (hit,) = recall.search("Walross", 1, thread="t")
    assert (hit.seq, hit.entry.kind, hit.tool) == (2, "call", "book_table")
    assert recall.search("Walross", 5, thread="t", kinds=["result"]) == []
    store.append("t", [values.result("c", content="booked")])
    for searching in (recall, Recall(store)):
        found = searching.search("Walross", 5, thread="t")
        assert found[0].seq == 4
        assert 2 not in {hit.seq for hit in found}


def test_calls_are_not_counted_among_what_waits_for_a_vector(store: SqliteStore) -> None:
    from hashed_words import HashedWords

    store.append("t", [values.user("go"), values.call("c", "f", {})])
    recall = Recall(store, HashedWords())
    assert recall.without_meaning("t") == 1
    assert recall.without_meaning() == 1


def test_a_result_belongs_to_the_nearest_earlier_call_that_waits(store: SqliteStore) -> None:
    calls = [values.call("1", "alpha", {}), values.call("1", "beta", {})]
    results = [values.result("1", content="payload of beta"), values.result("1", content="payload of alpha")]
    store.append("t", [values.user("go"), *calls, *results])
    assert tools(store) == {"payload of beta": "beta", "payload of alpha": "alpha"}


def test_every_result_of_a_large_group_knows_its_tool(store: SqliteStore) -> None:
    calls = [values.call(f"p{n}", f"fetch{n}", {}) for n in range(100)]
    results = [values.result(f"p{n}", content=f"payload {n}") for n in range(100)]
    store.append("t", [values.user("go"), *calls, *results])
    assert tools(store) == {f"payload {n}": f"fetch{n}" for n in range(100)}


def test_a_result_in_a_fork_knows_the_call_in_front_of_it(store: SqliteStore) -> None:
    store.append("t", [values.user("go"), values.call("1", "old", {}), values.result("1", content="payload 1")])
    store.append("t", [values.call("1", "fetch", {})])
    fork = store.fork("t", 4)
    store.append(fork, [values.result("1", content="payload 2")])
    for thread in (fork, None):
        assert tools(store, thread) == {"payload 1": "old", "payload 2": "fetch"}
