"""What every store promises, whatever it is made of: the same tests for each of them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from entry_strategies import bodies
from hashed_words import HashedWords
from quire import AsyncThread, Entry, Reply, Thread, Usage, open_store, values
from quire.errors import CallError, ConflictError, FormatError, NotFound
from quire.log import in_turn, own_fence
from quire.log.postgres import PostgresStore
from quire.log.sqlite import SqliteStore
from quire.log.store import ThreadInfo, saved_digest
from quire.recall import Indexer, Recall, search
from quire.records import Records, Selector, draft
from quire.records import store as record_store
from quire.send.builtin import recall_tool
from quire.send.cycle import look, resume, run
from quire.send.tools import Toolbox, tool
from quire.server.app import Running
from quire.server.remote_store import HttpStore
from quire.server.service import Service, ServiceLimits
from quire.testing import MemoryStore, emulator
from quire.values import Call, JsonObject, Text
from toolbox import Outcome, Runner, Store, chain, check, close, new_tenant, texts, transport_for, users

TARGET = "anthropic:claude-opus-5-5"


@pytest.fixture(params=["memory", "sqlite in a file", "postgres", "a service"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "a service":
        with Running(Service(tmp_path / "q.db")) as running, HttpStore(running.url) as remote:
            yield remote
        return
    made: dict[str, Callable[[], Store]] = {
        "postgres": lambda: open_store(request.getfixturevalue("pg_url"), tenant=new_tenant()),
        "memory": MemoryStore,
        "sqlite in a file": lambda: SqliteStore(tmp_path / "q.db"),
    }
    with made[request.param]() as opened:
        yield opened


def stored(store: Store) -> list[str]:
    """The texts of all entries that are kept anywhere."""
    return [change.entry.text for change in store.changes()]


def test_every_part_of_the_protocol_is_there(store: Store) -> None:
    names = [name for name in vars(Store) if not name.startswith("_")]
    assert {"append", "changes", "turn_lock", "checkpoint", "index", "records"} <= set(names)
    assert all(hasattr(store, name) for name in names)


@given(batches=st.lists(st.lists(bodies, max_size=3), max_size=3))
def test_whatever_is_appended_is_read_back_with_its_chain(batches: list[list[dict[str, Any]]]) -> None:
    with MemoryStore() as store:
        store.create("t")
        appended = [entry for batch in batches for entry in store.append("t", [check(body) for body in batch])]
        assert store.read("t") == appended == list(chain(check(body) for batch in batches for body in batch))
        assert [list(entry.body) for entry in store.read("t")] == [list(b) for batch in batches for b in batch]
        assert store.verify().entries == len(appended)


def test_append_makes_a_thread_and_returns_entries_with_ids(store: Store) -> None:
    first = store.append("t", users("a", "b"))
    second = store.append("t", users("c"), expected_seq=2)
    assert [entry.seq for entry in first + second] == [1, 2, 3]
    assert first + second == list(chain(users("a", "b", "c")))
    assert store.info("t") == ThreadInfo("t", 3, second[-1].id)


def test_reading_takes_pages(store: Store) -> None:
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


def test_a_batch_with_one_bad_entry_leaves_nothing(store: Store) -> None:
    store.append("t", users("a"))
    with pytest.raises(FormatError):
        store.append("t", [*users("b"), values.user("c", colour="red")])
    with pytest.raises(FormatError, match="lone surrogate"):
        store.append("t", users("b", "\ud800"))
    with pytest.raises(CallError, match="its body says 'note'"):
        store.append("t", [Entry("user", {"kind": "note", "text": "x"})])
    assert texts(store, "t") == ["a"]


def test_a_conflict_says_what_is_there_now(store: Store) -> None:
    last = store.append("t", users("a", "b", "c"))[-1]
    with pytest.raises(ConflictError) as caught:
        store.append("t", users("d"), expected_seq=2)
    assert str(caught.value) == f"thread 't' is at seq 3 ({last.id}), not at seq 2"
    assert caught.value.retryable
    with pytest.raises(ConflictError, match="is empty"):
        store.append("new", users("d"), expected_seq=1)
    assert [info.name for info in store.threads()] == ["t"]
    assert [entry.seq for entry in store.append("t", users("d"), expected_seq=3)] == [4]


def test_forks_share_ids_and_copy_nothing(store: Store) -> None:
    store.append("t", users(*"abcde"))
    assert store.fork("t", 3) == "t@3"
    assert store.fork("t", 3) == "t@3.2"
    assert store.fork("t@3", 2, "deep") == "deep"
    store.append("deep", users("x"))
    assert texts(store, "deep") == ["a", "b", "x"]
    assert [e.id for e in store.read("deep")][:2] == [e.id for e in store.read("t")][:2]
    assert len(store.changes()) == 6
    for at in (-1, 6):
        with pytest.raises(CallError, match="it ends at 5"):
            store.fork("t", at)
    with pytest.raises(CallError, match="exists already"):
        store.fork("t", 1, "deep")
    assert store.fork("t", 0, "empty") == "empty"
    assert store.read("empty") == []


def test_deleting_keeps_what_a_fork_still_uses(store: Store) -> None:
    store.append("t", users(*"abcde"))
    store.fork("t", 2, "two")
    store.fork("t", 4, "four")
    store.fork("four", 4, "again")
    store.append("four", users("x"))
    store.delete("t")
    assert texts(store, "two") == ["a", "b"]
    assert texts(store, "four") == ["a", "b", "c", "d", "x"]
    assert sorted(stored(store)) == ["a", "b", "c", "d", "x"]
    assert store.verify().threads == 3
    store.delete("four")
    assert sorted(stored(store)) == ["a", "b", "c", "d"]
    store.delete("again")
    assert sorted(stored(store)) == ["a", "b"]
    with pytest.raises(NotFound):
        store.read("t")
    store.delete("two")
    assert sorted(stored(store)) == []
    assert store.index.stretches(None) == []
    store.append("t", users("new life"))
    assert texts(store, "t") == ["new life"]


def test_an_entry_is_found_by_its_id_or_a_unique_beginning(store: Store) -> None:
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


def test_names_that_cannot_be_typed_again_are_refused(store: Store) -> None:
    for name in ("", " x", "x ", "a\nb", "a\x00b", "\x1b[31m", "x" * 201, "\ud800", ".", ".."):
        with pytest.raises(CallError, match="cannot be a thread's name"):
            store.create(name)
        with pytest.raises(CallError, match="cannot be a thread's name"):
            store.append(name, users("a"))
    assert store.threads() == []


def test_threads_that_do_not_exist_are_not_found(store: Store) -> None:
    for call in (store.read, store.info, store.delete, store.verify, store.window):
        with pytest.raises(NotFound, match="there is no thread 'nope'"):
            call("nope")
    with pytest.raises(NotFound):
        store.fork("nope", 0)
    store.create("t")
    with pytest.raises(CallError, match="exists already"):
        store.create("t")


class Forest(RuleBasedStateMachine):
    """Random appends, forks and deletions, in every store, against lists of texts."""

    more: ClassVar[list[Callable[[], Store]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.stores: list[Store] = [MemoryStore(), *(made() for made in self.more)]
        self.model: dict[str, list[str]] = {}
        self.made = 0

    @rule(data=st.data(), size=st.integers(0, 3))
    def append(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from([*self.model, f"t{self.made}"]))
        self.made += 1
        new = [f"{self.made}-{part}" for part in range(size)]
        old = self.model.setdefault(name, [])
        appended, *others = [store.append(name, users(*new), expected_seq=len(old)) for store in self.stores]
        assert all(other == appended for other in others)
        assert [entry.seq for entry in appended] == list(range(len(old) + 1, len(old) + size + 1))
        old += new

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model)))
        at_seq = data.draw(st.integers(0, len(self.model[name])))
        (made,) = {store.fork(name, at_seq) for store in self.stores}
        self.model[made] = self.model[name][:at_seq]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model)))
        for store in self.stores:
            store.delete(name)
        del self.model[name]

    @invariant()
    def threads_read_as_modelled_and_nothing_else_is_stored(self) -> None:
        first = self.stores[0]
        for store in self.stores:
            assert {info.name: info.seq for info in store.threads()} == {n: len(t) for n, t in self.model.items()}
            for name, wanted in self.model.items():
                assert texts(store, name) == wanted
            assert set(stored(store)) == {text for kept in self.model.values() for text in kept}
            assert (store.threads(), store.changes()) == (first.threads(), first.changes())
            assert store.verify() == first.verify()
            assert store.index.stretches(None) == first.index.stretches(None)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()


Forest.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestForest = Forest.TestCase


class ServedStore(HttpStore):
    """A service in this process, and its client, which ends with it."""

    def __init__(self, place: Path) -> None:
        self.running = Running(Service(place, limits=ServiceLimits(per_s=0))).__enter__()
        super().__init__(self.running.url)

    def close(self) -> None:
        super().close()
        self.running.__exit__()


def test_a_forest_on_postgres_grows_as_it_does_in_a_file(pg_url: str) -> None:
    class PostgresForest(Forest):
        more: ClassVar = [lambda: PostgresStore(pg_url, tenant=new_tenant())]

    run_state_machine_as_test(PostgresForest, settings=settings(max_examples=10, stateful_step_count=20))


def test_a_forest_behind_a_service_grows_as_it_does_in_memory(tmp_path: Path) -> None:
    class ServedForest(Forest):
        more: ClassVar = [lambda: ServedStore(tmp_path / f"{new_tenant()}.db")]

    run_state_machine_as_test(ServedForest, settings=settings(max_examples=4, stateful_step_count=12))


def test_what_was_read_is_a_copy(store: Store) -> None:
    entry = values.user("a", meta={"tags": ["x"]})
    kept = store.append("t", [entry])[0]
    entry.body["text"] = kept.body["text"] = "changed"
    store.read("t")[0].body["meta"]["tags"].append("y")
    assert store.read("t")[0].body == values.user("a", meta={"tags": ["x"]}).body
    store.verify()


def test_the_change_feed_tells_every_append_once_and_in_order(store: Store) -> None:
    assert (store.changes(), store.last_change()) == ([], 0)
    store.append("a", users("1", "2"))
    store.append("b", users("3"))
    store.fork("a", 1, "f")
    store.append("f", users("4"))
    told = [(one.n, one.thread, one.entry.text) for one in store.changes()]
    assert told == [(1, "a", "1"), (2, "a", "2"), (3, "b", "3"), (4, "f", "4")]
    assert [one.n for one in store.changes(after=1, limit=2)] == [2, 3]
    # What goes leaves its number unused, and a fork is named as the holder of what it still uses.
    store.delete("f")
    store.append("b", users("5"))
    assert [(one.n, one.entry.text) for one in store.changes(after=3)] == [(5, "5")]
    assert store.last_change() == 5
    assert store.index.changed(1, 2) == [(2, "a"), (3, "b")]
    assert store.index.changed(3, 9) == [(5, "b")]
    with pytest.raises(CallError):
        store.changes(after=-1)


def test_whoever_waits_for_a_change_is_woken_by_it(store: Store) -> None:
    store.append("t", users("a"))
    assert store.wait_for_change(0, 0)
    assert not store.wait_for_change(1, 0.01)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait_for_change, 1, 600)
        store.append("other", users("b"))
        assert waiting.result(600)


def test_a_window_state_and_a_checkpoint_are_kept_with_their_thread(store: Store) -> None:
    window = {"max_items": 3, "items": [{"id": "ctx-1", "content": "é\u2028"}]}
    store.append("t", users("a"))
    assert (store.window("t"), store.get_state("t", "layers"), store.checkpoint("t")) == (None, None, None)
    store.save_window("t", window)
    store.set_state("t", "layers", [1, 2])
    store.set_state("t", "layers", [3])
    store.save_checkpoint("t", b"\x00\xff")
    store.save_checkpoint("t", b"\xff\x00")
    assert (store.window("t"), store.get_state("t", "layers"), store.checkpoint("t")) == (window, [3], b"\xff\x00")
    store.fork("t", 1, "fork")
    assert (store.window("fork"), store.get_state("fork", "layers"), store.checkpoint("fork")) == (window, None, None)
    store.delete("t")
    assert store.window("fork") == window
    store.append("t", users("b"))
    assert (store.window("t"), store.get_state("t", "layers"), store.checkpoint("t")) == (None, None, None)
    store.save_window("made", window)
    assert store.info("made").seq == 0
    for value in (float("nan"), "\ud800", object()):
        with pytest.raises(FormatError):
            store.save_window("t", value)
        with pytest.raises(FormatError):
            store.set_state("t", "k", value)


def test_a_window_takes_the_place_of_the_one_expected_and_of_no_other(store: Store) -> None:
    store.save_window("t", {"items": [1]}, saved_digest(None))
    store.save_window("t", {"items": [2]}, saved_digest({"items": [1]}))
    for other in (None, {"items": [1]}):
        with pytest.raises(ConflictError, match="changed by another"):
            store.save_window("t", {"items": [3]}, saved_digest(other))
    assert store.window("t") == {"items": [2]}


def test_no_item_is_lost_that_is_kept_while_others_are(store: Store) -> None:
    notes = [f"Note {number}." for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda note: Thread(store, "t").keep(note), notes))
    assert sorted(item.content for item in Thread(store, "t").window) == sorted(notes)
    assert len({item.id for item in kept}) == len(notes)


async def test_a_turn_is_held_once(store: Store) -> None:
    async def second() -> None:
        with store.turn_lock("t"):
            pass

    other = asyncio.create_task(second())  # made before the lock is held, so it does not inherit it
    refused = pytest.raises(ConflictError, match="is being carried out by process")
    with store.turn_lock("t"), store.turn_lock("t"), store.turn_lock("another"), refused:
        await other
    with store.turn_lock("t"):
        store.append("t", users("mine"))
        fence = own_fence(store.place, "t")
    for lost in (fence, fence + 1):
        with in_turn(store.place, "t", lost), pytest.raises(ConflictError, match="was taken over"):
            store.append("t", users("too late"))
    assert texts(store, "t") == ["mine"]


def test_whoever_looks_if_a_turn_is_held_is_in_nobodys_way(store: Store) -> None:
    store.append("t", users("a"))
    going = True

    def look() -> list[bool]:
        found = []
        while going:
            found.append(store.turn_held("unheld"))
            store.turn_held("t")
        return found

    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        try:
            for _ in range(50):
                with store.turn_lock("t"):
                    assert store.turn_held("t")
        finally:
            going = False
        assert not any(any(look.result()) for look in looking)
    assert not store.turn_held("t")


@pytest.mark.parametrize("ways", [("sync", "sync"), ("async", "async"), ("sync", "async")])
async def test_the_calls_of_a_reply_run_once_whoever_asks_for_their_results(
    store: Store, ways: tuple[str, str]
) -> None:
    begun, go_on, ran = threading.Event(), threading.Event(), []

    def order(name: str, args: JsonObject) -> str:
        ran.append(name)
        begun.set()
        assert go_on.wait(30)
        return "ordered"

    async def results(way: str) -> list[Entry]:
        thread = Thread(store, "t")
        if way == "async":
            return await AsyncThread(thread).results(reply, order)
        return await asyncio.to_thread(thread.results, reply, order)

    thread, reply = Thread(store, "t"), Reply((values.call("c1", "order", {}),), Usage())
    thread.user("Order one.")
    thread.request(TARGET)
    thread.record(reply)
    first = asyncio.create_task(results(ways[0]))
    await asyncio.to_thread(begun.wait, 30)
    with pytest.raises(ConflictError, match="is being carried out by process") as refused:
        await results(ways[1])
    go_on.set()
    assert ([result.body["content"] for result in await first], ran) == (["ordered"], ["order"])
    assert refused.value.hint == "Wait until it has ended; what it stores is kept."
    assert await results(ways[1]) == []


def test_before_close_whoever_works_is_stopped(store: Store) -> None:
    ended: list[int] = []
    store.before_close(lambda: ended.append(store.last_change()))
    store.append("t", users("a"))
    store.close()
    assert ended == [1]
    for use in (lambda: store.info("t"), lambda: store.append("t", users("b"))):
        with pytest.raises(CallError, match="was closed here before"):
            use()


def test_recall_finds_by_words_and_by_meaning_and_forgets_what_is_deleted(store: Store) -> None:
    store.append("t", [*users("My dog is called Rex"), values.respond("A fine name"), *users("I like green tea")])
    store.fork("t", 2, "f")
    store.append("f", users("The train leaves at nine"))
    recall = Recall(store, HashedWords())
    assert [hit.seq for hit in recall.search("dog", 1, thread="t")] == [1]
    assert [(hit.thread, hit.seq) for hit in recall.search("train", 1)] == [("f", 3)]
    assert recall.search("train", thread="t") == []
    assert recall.without_meaning("t") == 3
    assert Indexer(store, HashedWords()).run().embedded == 4
    assert recall.without_meaning("t") == 0
    assert recall.search("green dogs", 1, thread="t")[0].parts["meaning"] > 0
    assert [hit.seq for hit in recall.search("dog name", 5, thread="f", before=2)] == [1]
    best = [(hit.id, hit.score) for hit in recall.search("dog tea train", 9)]
    Indexer(store, HashedWords()).rebuild()
    assert [(hit.id, hit.score) for hit in Recall(store, HashedWords()).search("dog tea train", 9)] == best
    store.delete("t")
    assert recall.search("green tea", 5, thread="f", kinds="user")[0].entry.text != "I like green tea"
    rows = [row for piece in store.index.stretches(None) for _, _, row in store.index.words(piece) if row is not None]
    assert "tea" not in " ".join(row.words for row in rows)
    assert {key for key, _ in store.index.vectors("hashed-words")} <= {entry.id for entry in store.read("f")}
    with pytest.raises(NotFound):
        recall.search("dog", thread="t")


def test_words_that_an_append_did_not_keep_are_kept_by_the_first_search(tmp_path: Path, pg_url: str) -> None:
    for plain in (MemoryStore(), SqliteStore(tmp_path / "q.db"), PostgresStore(pg_url, new_tenant())):
        with plain as opened:
            opened.append("t", [*users("a walrus"), values.system("not searched")])
            [piece] = opened.index.stretches("t")
            assert [row for _, _, row in opened.index.words(piece)] == [None, None]
            assert [hit.seq for hit in Recall(opened).search("walrus", thread="t")] == [1]
            assert [row.words for _, _, row in opened.index.words(piece) if row is not None] == ["walrus"]
            assert Indexer(opened).run().worded == 0
            opened.append("t", users("a seal"))
            assert Indexer(opened).run().worded == 1
            assert Recall(opened).search("seal", thread="t")[0].seq == 3


def test_records_are_kept_by_version_found_and_verified(store: Store) -> None:
    records = Records(store, HashedWords())
    tea = records.create("note.v1", {"text": "green tea at five"}, tags=["work", "session:1"], ttl_s=1, now=1000)
    dog = records.create("note.v1", {"text": "the dog is called Rex"}, tags=["home"], now=1000)
    new = records.update(dog.id, 1, title="Rex", now=1001)
    with pytest.raises(ConflictError):
        records.update(dog.id, 1, title="late")
    with pytest.raises(CallError):
        records.create_all([draft("", {})])
    assert [one.version for one in records.history(dog.id)] == [1, 2]
    assert records.read_full(dog.id, version=1).title == ""
    assert [one.id for one in records.list(tag="work")] == [tea.id]
    assert [hit.record.id for hit in records.search("dog", nn=1)] == [dog.id]
    assert [one.id for one in records.select(Selector(), newest=1)] == [dog.id]
    assert records.beside(tea, 1, Selector()) == new
    assert records.beside(dog, -1, Selector(), "session:1") == tea
    assert records.index() == 0
    assert records.index(rebuild=True) == 2
    assert store.verify().records == 2
    assert records.purge(5000) == 1
    records.delete(dog.id, 2)
    for gone in (tea, dog):
        with pytest.raises(NotFound):
            records.read(gone.id)
    assert records.create("note.v1", {}).id == "rec-3"
    assert store.verify().records == 1


def test_of_many_records_those_that_share_a_word_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "FEW", 5)
    records = Records(store)
    for number in range(20):
        records.create("note.v1", {"text": f"a note about subject {number} and {'walruses' if number == 7 else 'tea'}"})
    assert [hit.record.id for hit in records.search("walruses")] == ["rec-8"]


def calls_then_answers(body: JsonObject) -> list[Any]:
    """A model that adds, asks what was said, and answers."""
    done = sum(block.get("type") == "tool_result" for one in body["messages"] for block in one["content"])
    if done == 0:
        return [Text("I add."), Call("c1", "add", {"a": 2, "b": 3})]
    if done == 1:
        return [Call("c2", "recall", {"query": "dog"})]
    return [Text("It is 5.")]


def test_a_whole_agent_cycle_runs_and_is_resumed(store: Store) -> None:
    @tool
    def add(a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)

    async def carried(work: Callable[..., Any], **how: Any) -> Outcome:
        transport = transport_for(TARGET, server.url, "key", via="http")
        try:
            outcome: Outcome = await work(thread, transport=transport, runner=runner, **how)
        finally:
            await close(transport)
        return outcome

    with emulator("anthropic", calls_then_answers) as server:
        thread = Thread(store, "t")
        runner = Runner(tools=Toolbox(add, recall_tool(store, "t")))
        thread.user("My dog is called Rex.")
        outcome = asyncio.run(carried(run, target=TARGET))
        assert (outcome.stop, outcome.text) == ("answered", "It is 5.")
        added, found = [entry.body for entry in store.read("t") if entry.kind == "result"]
        assert "5" in added.values()
        assert "shown already" in found["outcome"]
        thread.user("Again?")
        assert look(store, "t").next == "ask"
        assert asyncio.run(carried(resume)).stop == "answered"
    assert look(store, "t").next == "done"
    assert store.verify().entries == store.info("t").seq
    assert Thread(store, "t", clock=thread.clock).build(TARGET) == thread.build(TARGET)


def test_what_a_search_holds_ready_is_kept_and_gone_with_what_it_tells_of(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(search, "_WORTH_KEEPING", 3)
    looked = values.call("c", "look", {"at": "tea"})
    store.append("t", [*users("My dog is called Rex"), values.respond("A fine name"), looked])
    store.fork("t", 2, "f")
    Indexer(store, HashedWords()).run()

    def hits(made: Recall) -> list[tuple[str, float]]:
        asked = [made.search("dog tea train", 9, thread=thread) for thread in (None, "t", "f")]
        return [(hit.id, hit.score) for some in asked for hit in some]

    assert hits(Recall(store, HashedWords())) == hits(Recall(store, HashedWords()))
    store.append("t", [values.result("c", "green tea"), *users("The train leaves at nine")])
    store.append("f", users("Another train"))
    with monkeypatch.context() as without:
        without.setattr(search.Scope, "restore", lambda *_: None)
        without.setattr(search.Scope, "keep", lambda *_: None)
        fresh = hits(Recall(store, HashedWords())), hits(Recall(store))
    assert (sorted(hits(Recall(store, HashedWords()))), sorted(hits(Recall(store)))) == tuple(map(sorted, fresh))
    assert store.index.state("t", ["about"])
    assert b"dog" not in b"".join(store.index.state("t", ["ids", "keys", "session_names"]).values())
    store.delete("t")
    assert store.index.state("t", ["about"]) == store.index.state("", ["about"]) == {}
