"""The SQLite store: what it promises of appending, reading, forking, deleting and finding."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from entry_strategies import bodies
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire import values
from quire.errors import CallError, ConflictError, DamageError, FormatError, NotFound
from quire.log.entries import check
from quire.log.hashing import chain
from quire.log.sqlite import SqliteStore
from quire.log.store import Store, ThreadInfo
from quire.values import Entry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "q.db") as opened:
        yield opened


def users(*texts: str) -> list[Entry]:
    return [values.user(text) for text in texts]


def texts(store: SqliteStore, thread: str) -> list[str]:
    return [entry.text for entry in store.read(thread)]


def test_the_sqlite_store_is_a_store(store: SqliteStore) -> None:
    as_protocol: Store = store  # held by the type checker; here: every method is there
    names = [name for name in vars(Store) if not name.startswith("_")]
    assert {"append", "read", "threads", "fork", "delete", "verify", "find"} <= set(names)
    assert all(callable(getattr(as_protocol, name)) for name in names)


@given(st.lists(st.lists(bodies, max_size=3), max_size=3))
@settings(max_examples=100)
def test_whatever_is_appended_is_read_back_with_its_chain(batches: list[list[dict[str, Any]]]) -> None:
    with SqliteStore(":memory:") as store:
        store.create("t")
        appended = [entry for batch in batches for entry in store.append("t", [check(body) for body in batch])]
        assert store.read("t") == appended == list(chain(check(body) for batch in batches for body in batch))
        assert [list(entry.body) for entry in store.read("t")] == [list(b) for batch in batches for b in batch]
        assert store.verify().entries == len(appended)


def test_append_makes_a_thread_and_returns_entries_with_ids(store: SqliteStore) -> None:
    first = store.append("t", users("a", "b"))
    second = store.append("t", users("c"), expected_seq=2)
    assert [entry.seq for entry in first + second] == [1, 2, 3]
    assert first + second == list(chain(users("a", "b", "c")))
    assert store.info("t") == ThreadInfo("t", 3, second[-1].id)


def test_reading_takes_pages(store: SqliteStore) -> None:
    store.append("t", users(*"abcdefg"))
    fork = store.fork("t", 4)
    store.append(fork, users("x", "y"))
    seqs = [
        [entry.seq for entry in store.read(fork, after=after, limit=limit)]
        for after, limit in [(0, None), (2, 3), (3, 1), (4, 9), (6, None), (99, None), (0, 0)]
    ]
    assert seqs == [[1, 2, 3, 4, 5, 6], [3, 4, 5], [4], [5, 6], [], [], []]
    assert texts(store, fork) == ["a", "b", "c", "d", "x", "y"]
    with pytest.raises(CallError):
        store.read("t", after=-1)


def test_a_batch_with_one_bad_entry_leaves_nothing(store: SqliteStore) -> None:
    store.append("t", users("a"))
    with pytest.raises(FormatError):
        store.append("t", [*users("b"), values.user("c", colour="red")])
    with pytest.raises(FormatError, match="lone surrogate"):
        store.append("t", users("b", "\ud800"))
    with pytest.raises(CallError, match="its body says 'note'"):
        store.append("t", [Entry("user", {"kind": "note", "text": "x"})])
    assert texts(store, "t") == ["a"]


def test_a_failing_hook_takes_the_batch_back(tmp_path: Path) -> None:
    class Broken:
        name = "broken"
        migrations = ("CREATE TABLE broken_seen (thread TEXT)",)

        def appended(self, conn: sqlite3.Connection, thread: str, entries: Any) -> None:
            conn.execute("INSERT INTO broken_seen VALUES (?)", (thread,))
            raise RuntimeError("no")

        def deleted(self, conn: sqlite3.Connection, thread: str) -> None:
            raise RuntimeError("no")

    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", users("a"))
    with SqliteStore(tmp_path / "q.db", hooks=[Broken()]) as store:
        with pytest.raises(RuntimeError):
            store.append("t", users("b"))
        with pytest.raises(RuntimeError):
            store.delete("t")
        assert texts(store, "t") == ["a"]
        assert store.connection().execute("SELECT count(*) FROM broken_seen").fetchone() == (0,)
        assert not store.connection().in_transaction


def test_a_conflict_says_what_is_there_now(store: SqliteStore) -> None:
    last = store.append("t", users("a", "b", "c"))[-1]
    with pytest.raises(ConflictError) as caught:
        store.append("t", users("d"), expected_seq=2)
    assert str(caught.value) == f"thread 't' is at seq 3 ({last.id}), not at seq 2"
    assert caught.value.retryable
    with pytest.raises(ConflictError, match="is empty"):
        store.append("new", users("d"), expected_seq=1)
    assert [info.name for info in store.threads()] == ["t"]
    assert [entry.seq for entry in store.append("t", users("d"), expected_seq=3)] == [4]


def test_forks_share_ids_and_copy_nothing(store: SqliteStore) -> None:
    store.append("t", users(*"abcde"))
    assert store.fork("t", 3) == "t@3"
    assert store.fork("t", 3) == "t@3.2"
    assert store.fork("t@3", 2, "deep") == "deep"
    store.append("deep", users("x"))
    assert texts(store, "deep") == ["a", "b", "x"]
    assert [e.id for e in store.read("deep")][:2] == [e.id for e in store.read("t")][:2]
    assert store.connection().execute("SELECT count(*) FROM entries").fetchone() == (6,)
    for at in (-1, 6):
        with pytest.raises(CallError, match="it ends at 5"):
            store.fork("t", at)
    with pytest.raises(CallError, match="exists already"):
        store.fork("t", 1, "deep")
    assert store.fork("t", 0, "empty") == "empty"
    assert store.read("empty") == []


def test_deleting_keeps_what_a_fork_still_uses(store: SqliteStore) -> None:
    store.append("t", users(*"abcde"))
    store.fork("t", 2, "two")
    store.fork("t", 4, "four")
    store.fork("four", 4, "again")
    store.append("four", users("x"))
    store.delete("t")
    assert texts(store, "two") == ["a", "b"]
    assert texts(store, "four") == ["a", "b", "c", "d", "x"]
    assert stored(store) == ["a", "b", "c", "d", "x"]
    assert store.verify().threads == 3
    store.delete("four")
    assert stored(store) == ["a", "b", "c", "d"]
    store.delete("again")
    assert stored(store) == ["a", "b"]
    with pytest.raises(NotFound):
        store.read("t")
    store.delete("two")
    assert stored(store) == []
    assert store.connection().execute("SELECT count(*) FROM branches").fetchone() == (0,)
    store.append("t", users("new life"))
    assert texts(store, "t") == ["new life"]


def stored(store: SqliteStore) -> list[str]:
    rows = store.connection().execute("SELECT json_extract(body, '$.text') FROM entries ORDER BY branch, seq")
    return [text for (text,) in rows]


def test_what_was_deleted_is_not_left_in_the_files(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", users("the secret word is xyzzy", "y" * 20_000 + "xyzzy"))
        store.append("other", users("stays"))
        store.delete("t")
        assert b"xyzzy" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert texts(store, "other") == ["stays"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = '{}' WHERE seq = 2",
        "UPDATE entries SET seq = 9 WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 3",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries (branch, seq, id, body, crc) SELECT branch, seq, id, '{}', crc FROM entries",
        "REPLACE INTO entries (n, branch, seq, id, body, crc) SELECT 1, branch, 4, id, '{}', crc FROM entries LIMIT 1",
        "INSERT INTO entries (branch, seq, id, body, crc) SELECT branch, 5, id, body, crc FROM entries LIMIT 1",
        "INSERT INTO entries (branch, seq, id, body, crc) VALUES (77, 1, 'x', '{}', 0)",
        "UPDATE OR REPLACE entries SET seq = 1 WHERE seq = 3",
    ],
)
def test_single_entries_can_be_neither_changed_nor_deleted(tmp_path: Path, statement: str) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", users("a", "b", "c"))
    stranger = sqlite3.connect(tmp_path / "q.db")
    with pytest.raises(sqlite3.IntegrityError, match=r"entries (never change|go only|are only appended)"):
        stranger.execute(statement)
    stranger.close()
    with SqliteStore(tmp_path / "q.db") as store:
        assert texts(store, "t") == ["a", "b", "c"]


def test_an_entry_is_found_by_its_id_or_a_unique_beginning(store: SqliteStore) -> None:
    entries = store.append("t", users(*map(str, range(40))))
    store.fork("t", 3, "fork")
    own = store.append("fork", users("own"))[0]
    for entry in entries:
        assert store.find(entry.id) == ("t", entry)
        assert store.find(entry.id[7:27]) == ("t", entry)
    assert store.find(own.id[:20]) == ("fork", own)
    assert store.find("sha256:" + "0" * 64) is None
    assert store.find("no id") is None
    assert store.find("") is None
    with pytest.raises(CallError, match="begins several ids"):
        store.find(next(c for c in "0123456789abcdef" if sum(e.id[7] == c for e in entries) > 1))
    store.delete("t")
    assert store.find(entries[1].id) == ("fork", entries[1])
    assert store.find(entries[5].id) is None


@pytest.mark.parametrize("name", ["", " x", "x ", "a\nb", "a\x00b", "\x1b[31m", "x" * 201, "\ud800"])
def test_names_that_cannot_be_typed_again_are_refused(store: SqliteStore, name: str) -> None:
    with pytest.raises(CallError, match="cannot be a thread's name"):
        store.create(name)
    with pytest.raises(CallError, match="cannot be a thread's name"):
        store.append(name, users("a"))
    assert store.threads() == []


def test_threads_that_do_not_exist_are_not_found(store: SqliteStore) -> None:
    for call in (store.read, store.info, store.delete, store.verify, store.window):
        with pytest.raises(NotFound, match="there is no thread 'nope'"):
            call("nope")
    with pytest.raises(NotFound):
        store.fork("nope", 0)
    store.create("t")
    with pytest.raises(CallError, match="exists already"):
        store.create("t")


def test_a_window_and_derived_state_are_kept_with_their_thread(tmp_path: Path) -> None:
    window = {"max_items": 3, "items": [{"id": "ctx-1", "content": "é\u2028"}]}
    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", users("a"))
        assert store.window("t") is None
        assert store.get_state("t", "layers") is None
        store.save_window("t", window)
        store.set_state("t", "layers", [1, 2])
        store.set_state("t", "layers", [3])
    with SqliteStore(tmp_path / "q.db") as store:
        assert store.window("t") == window
        assert store.get_state("t", "layers") == [3]
        store.fork("t", 1, "fork")
        assert store.window("fork") == window
        assert store.get_state("fork", "layers") is None
        store.delete("t")
        assert store.window("fork") == window
        store.append("t", users("b"))
        assert store.window("t") is None


def test_what_is_not_json_cannot_be_saved_and_a_damaged_window_is_named(store: SqliteStore) -> None:
    store.create("t")
    for value in (float("nan"), "\ud800", object()):
        with pytest.raises(FormatError):
            store.save_window("t", value)
        with pytest.raises(FormatError):
            store.set_state("t", "k", value)
    store.save_window("t", {"items": []})
    store.connection().execute("UPDATE windows SET body = '{'")
    with pytest.raises(DamageError, match="the window saved with thread 't' is damaged"):
        store.window("t")


def steps(store: SqliteStore, work: Callable[[], object]) -> int:
    """How many steps SQLite takes for some work: its cost, without a clock."""
    taken = [0]

    def count() -> int:
        taken[0] += 1
        return 0

    store.connection().set_progress_handler(count, 10)
    work()
    store.connection().set_progress_handler(None, 10)
    return taken[0]


def test_the_cost_of_appending_and_of_a_page_does_not_grow_with_the_thread(store: SqliteStore) -> None:
    costs = []
    for _ in range(2):
        store.append("t", users("x") * 1000)
        fork = store.fork("t", store.info("t").seq)
        for work in (
            lambda: store.append("t", users("y")),
            lambda: store.append(fork, users("y")),  # noqa: B023  # called in this round
            lambda: store.read("t", after=500, limit=3),
            lambda: store.read("t", after=store.info("t").seq - 1),
            lambda: store.info("t"),
        ):
            costs.append(steps(store, work))
    assert all(late <= early + 3 for early, late in zip(costs[:5], costs[5:], strict=True)), costs
    assert max(costs) < 100


class Forest(RuleBasedStateMachine):
    """Random appends, forks and deletions against lists of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteStore(":memory:")
        self.model: dict[str, list[str]] = {}
        self.made = 0

    @rule(data=st.data(), size=st.integers(0, 3))
    def append(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from([*self.model, f"t{self.made}"]))
        self.made += 1
        new = [f"{self.made}-{part}" for part in range(size)]
        old = self.model.setdefault(name, [])
        appended = self.store.append(name, users(*new), expected_seq=len(old))
        assert [entry.seq for entry in appended] == list(range(len(old) + 1, len(old) + size + 1))
        old += new

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model)))
        at_seq = data.draw(st.integers(0, len(self.model[name])))
        self.model[self.store.fork(name, at_seq)] = self.model[name][:at_seq]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model)))
        self.store.delete(name)
        del self.model[name]

    @invariant()
    def threads_read_as_modelled_and_nothing_else_is_stored(self) -> None:
        assert {info.name: info.seq for info in self.store.threads()} == {n: len(t) for n, t in self.model.items()}
        for name, wanted in self.model.items():
            assert texts(self.store, name) == wanted
        self.store.verify()
        assert set(stored(self.store)) == {text for kept in self.model.values() for text in kept}

    def teardown(self) -> None:
        self.store.close()


Forest.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestForest = Forest.TestCase


def test_a_reader_who_has_everything_asks_once(store: SqliteStore) -> None:
    kept = store.append("t", users("a", "b"))
    asked: list[str] = []
    store.connection().set_trace_callback(asked.append)
    assert store.read("t", after=2) == []
    assert len(asked) == 1
    assert store.read("t", after=1) == kept[1:]
    assert len(asked) > 2
