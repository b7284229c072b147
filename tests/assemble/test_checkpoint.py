"""A thread opened again from its checkpoint is the thread folded from its first entry, whatever came and comes."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thread_strategies import any_thread, items, logs, policies

from quire import Assembly, Entry, Policy, Reply, Thread, Usage, open_store, providers, render, thread_state, values
from quire import thread as threads
from quire.assemble import checkpoint
from quire.assemble.checkpoint import Checkpoint
from quire.assemble.summary import Leaving, extract
from quire.errors import BudgetError
from quire.log.entries import usable
from quire.observe import Sending
from quire.testing import MemoryStore
from quire.thread_state import EarlierFolds, SentTurns, requests_under
from toolbox import Built, Refused, Store, chain, fewer, many_words, note

pytestmark = pytest.mark.moves_prefix(reason="small budgets, and several folds of one thread", everywhere=True)
TARGET = "openai-chat:gpt-5"


def reopened(assembly: Assembly, log: list[Entry]) -> Assembly:
    """The fold written down and read again; older entries come from the log."""
    seq, id = (log[-1].seq, log[-1].id) if log else (0, "")
    now = Checkpoint(seq, id, policy=assembly.policy, unrecorded=assembly.unrecorded)
    data = checkpoint.encode(now, assembly)
    assert data is not None
    found = checkpoint.decode(data)
    assert (found.seq, found.entry_id, found.policy) == (seq, id, assembly.policy)
    return found.assembly(assembly.summarise, lambda after, limit: log[after : after + limit])


def asked(assembly: Assembly) -> object:
    """Everything that the next request is, its rebase and what it leaves out included, or why there is none."""
    try:
        built = assembly.request()
    except BudgetError as error:
        return str(error)
    return (
        msgspec.json.encode(built, enc_hook=list),
        render(built.prompt, "openai-chat:").prefix,
        assembly.request_as_sent(),
    )


def recorded(entries: list[Entry], policy: Policy) -> Iterator[Entry]:
    """The log of a live thread: rebases and requests stand in it, a stream's beginning in front of its words."""
    live, log = Assembly(policy), list[Entry]()

    def record(new: Entry) -> Entry:
        parent, seq = (log[-1].id, log[-1].seq) if log else ("", 0)
        log.extend(chain([new], parent, seq))
        live.feed(log[-1])
        return log[-1]

    for entry in entries:
        if live.asks(chain([entry], "", len(log)).__next__()):
            try:
                rebase = live.request().rebase
            except BudgetError:
                rebase = None
            if rebase is not None:
                yield record(Entry("rebase", rebase))
            sent = {"kind": "sent", "provider": "p", "model": "m", "request_sha256": "", "segments": []}
            yield record(Entry("sent", sent))
        yield record(Entry(entry.kind, entry.body))


def holds_from_any_cut(log: list[Entry], policy: Policy, cuts: set[int]) -> None:
    """Folded from the start, and folded with a stop at every cut: the same at the cut, at each request, and at the end."""
    whole, stopped = Assembly(policy), Assembly(policy)
    for place, entry in enumerate(log):
        if place in cuts:
            stopped = reopened(stopped, log[:place])
        asks = whole.asks(entry)
        assert stopped.asks(entry) == asks
        if place in cuts or (asks and place > min(cuts, default=place)):
            assert asked(stopped) == asked(whole)
        for assembly in (whole, stopped):
            assembly.feed(entry)
    assert asked(stopped) == asked(whole)
    assert (stopped.left_out, stopped.pins, stopped.models) == (whole.left_out, whole.pins, whole.models)


places = st.sets(st.integers(0, 60), min_size=1, max_size=4)


@given(logs, policies(), places)
@fewer(8)
def test_a_fold_goes_on_from_any_cut_as_if_it_had_not_stopped(
    entries: list[Entry], policy: Policy, cuts: set[int]
) -> None:
    holds_from_any_cut(list(chain(entries)), policy, cuts)


@given(any_thread, policies(), st.booleans())
@fewer(8)
def test_turns_of_long_ago_are_shown_from_a_fold_on_the_way_as_from_the_start(
    entries: list[Entry], policy: Policy, live: bool
) -> None:
    store = MemoryStore()
    store.append("t", [*recorded(entries, policy)] if live else entries)
    log = list(map(usable, store.read("t")))
    whole = list(requests_under(log, thread_state.policies(log, policy)))

    def before(made: list[tuple[Built | Refused, Policy]], turn: int) -> object:
        return [each for each in made if each[0].turn < turn and isinstance(each[0], Built)][-1:]

    def holds(turn: int) -> None:
        found = list(SentTurns(store, "t", policy).requests(turn, turn))
        assert [each for each in found if each[0].turn == turn] == [each for each in whole if each[0].turn == turn]
        assert before(found, turn) == before(whole, turn)

    turns = sorted({each[0].turn for each in whole}, reverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_state, "FOLD_EVERY", 3)
        for turn in (*turns[:1], *turns):
            holds(turn)
        for point in EarlierFolds(store, "t").points():
            store.set_state("t", f"fold at {point.seq} {point.policy}", "damaged")
        for turn in turns[:1]:
            holds(turn)


@given(any_thread, policies(), places)
@fewer(8)
def test_so_does_one_whose_rebases_and_streams_are_in_the_log(
    entries: list[Entry], policy: Policy, cuts: set[int]
) -> None:
    holds_from_any_cut(list(recorded(entries, policy)), policy, cuts)


@given(any_thread, policies(), policies(), places)
@fewer(8)
def test_and_one_whose_rebases_were_made_under_another_policy(
    entries: list[Entry], theirs: Policy, ours: Policy, cuts: set[int]
) -> None:
    holds_from_any_cut(list(recorded(entries, theirs)), ours, cuts)


def test_a_result_that_comes_behind_the_cut_finds_the_call_that_was_shown_without_it() -> None:
    told = [values.user("go"), values.call("c", "read", {}), values.user("well?"), values.respond("It runs.")]
    log = list(chain([*told, values.result("c", "late"), values.user("and?")]))
    for cut in range(len(log)):
        holds_from_any_cut(log, Policy(), {cut})
    assert "arrived late" in str(reopened(Assembly().extend(log), log).request().prompt)


def test_an_imported_answers_text_stands_once_in_a_checkpoint_and_comes_back_whole() -> None:
    answer = f"Answer {'y' * 3_000}"
    messages = [("user", "Well?"), ("assistant", answer), ("user", "And then?")]
    body = {"messages": [{"role": role, "content": text} for role, text in messages]}
    log = list(chain(providers.import_("anthropic", body, "claude-opus-5-5")))
    live = Assembly().extend(log)
    data = checkpoint.encode(Checkpoint(log[-1].seq, log[-1].id, policy=live.policy, unrecorded=False), live)
    assert (data or b"").count(answer.encode()) == 1
    assert asked(reopened(live, log)) == asked(live)


def test_a_rebase_of_the_log_may_name_an_item_of_long_ago() -> None:
    """Only where it was attached is written down: its content is read from the entry that brought it."""
    old, newer = note("a.md", "the old content"), note("a.md", "newer")
    policy = Policy(budget=2_000)
    log = list(chain([values.attach(old), values.user("one"), values.respond("1"), values.user("two", [newer])]))
    block = Assembly(policy).extend(log).epoch.item_library.has["a.md"]
    log = list(
        chain([*log, *(e for n in range(40) for e in (values.user(many_words(90, f"{n}x")), values.respond("ok")))])
    )
    kept = reopened(Assembly(policy).extend(log), log)
    assert (block.id, block.sha256) not in kept.carried.versions
    body = {
        "kind": "rebase", "reason": "budget", "before_seq": 0, "edits": [], "freed": 0,
        "library": [{"id": block.id, "sha256": block.sha256}],
    }  # fmt: skip
    entry = next(chain([Entry("rebase", body)], log[-1].id, log[-1].seq))
    kept.feed(entry)
    assert kept.epoch.l2 == Assembly(policy).extend([*log, entry]).epoch.l2 == (block,)


# In a store


@pytest.fixture(params=["memory", "sqlite"])
def places_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the same store again and again."""
    if request.param == "memory":
        memory = MemoryStore()
        yield lambda: memory
        return
    opened = list[Store]()

    def again() -> Store:
        opened.append(open_store(tmp_path / "t.db"))
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint at every entry."""
    monkeypatch.setattr(threads.ThreadState.keep_checkpoint, "__defaults__", (1,))


def turn(thread: Thread, n: int) -> values.Request:
    if n % 5 == 2:
        thread.append(values.attach(note("a.md", f"content {n // 2}")))
    if n % 7 == 3:
        thread.append(values.note(f"From now on {n}.", meta={"pin": True}))
    thread.append(values.user(f"question {n} {many_words(30, f'q{n}x')}", at=n * 400_000, meta={"pin": n == 1}))
    request = thread.request(TARGET)
    called = (values.call("c", "read", {"path": f"{n}"}),)
    thread.record(Reply(called, Usage(), id=f"r{n}"), request)
    thread.append(values.result("c", None, many_words(120, f"r{n}x")))
    request = thread.request(TARGET)
    thread.record(Reply((values.respond(f"answer {n}"),), Usage(), id=f"s{n}"), request)
    return request


POLICY = Policy(budget=1_500)


def opened(store: Store, **how: object) -> Thread:
    return Thread(store, "t", POLICY, clock=lambda: 0, **how)  # type: ignore[arg-type]


@pytest.mark.usefixtures("often")
def test_a_thread_opened_for_each_turn_sends_what_one_that_stays_open_sends(places_of: Callable[[], Store]) -> None:
    staying = Thread(MemoryStore(), "t", POLICY, clock=lambda: 0)
    for n in range(30):
        here, there = turn(opened(places_of()), n), turn(staying, n)
        assert (here.body, here.lines, dict(here.layers)) == (there.body, there.lines, dict(there.layers))
    log = places_of().read("t")
    assert [one.id for one in log] == [one.id for one in staying.store.read("t")]
    assert sum(one.kind == "rebase" for one in log) > 3
    assert places_of().checkpoint("t") is not None
    built = [opened(store).build(TARGET) for store in (places_of(), staying.store)]
    assert built[0] == built[1]
    assert built[0].left_out


def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seqs behind which the store's entries are read from now on."""
    found, read = list[int](), store.read

    def noted(thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        found.append(after)
        return read(thread, after, limit)

    monkeypatch.setattr(store, "read", noted)
    return found


@pytest.mark.usefixtures("often")
def test_what_stands_before_the_checkpoint_is_not_read_and_the_request_explains_itself_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    for n in range(20):
        turn(opened(store), n)
    heard = list[Sending]()

    class Hears:
        def on_request(self, sending: Sending) -> None:
            heard.append(sending)

        def on_reply(self, received: object) -> None: ...

    after = reads(store, monkeypatch)
    end = store.info("t").seq
    request = opened(store, observers=[Hears()]).request(TARGET)
    # The end is read besides, for the policy of the newest request.
    assert min(after) >= end - 64 > 0
    store.save_checkpoint("t", b"")
    bare = opened(store, observers=[Hears()]).request(TARGET)
    assert min(after) == 0
    assert (request.body, request.lines) == (bare.body, bare.lines)
    assert heard[0].since == heard[1].since
    assert heard[0].resumed
    assert [one.kind for one in heard[0].since] == ["sent", "respond"]


@pytest.mark.usefixtures("often")
def test_a_thread_that_is_read_under_two_policies_in_turn_is_rebuilt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CHECKPOINT_EVERY_READ", 1)
    monkeypatch.setattr("quire.thread_state.FOLD_EVERY", 8)
    store = MemoryStore()
    for n in range(20):
        turn(opened(store), n)
    other = msgspec.structs.replace(POLICY, budget=POLICY.budget + 100)
    expected = [Thread(store, "t", policy, clock=lambda: 0).request(TARGET) for policy in (POLICY, other)]
    after = reads(store, monkeypatch)
    # The store has one newest checkpoint: programs that take turns go on from earlier ones of their own.
    for policy, request in zip((POLICY, other) * 2, expected * 2, strict=True):
        again = Thread(store, "t", policy, clock=lambda: 0).request(TARGET)
        assert (again.body, again.lines) == (request.body, request.lines)
    assert min(after) > 0


def damaged(data: bytes) -> Iterator[bytes]:
    yield b""
    yield data[:-1]
    yield data + b"\0"
    yield from (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), len(data) // 40))


def rewritten(data: bytes, **changes: object) -> bytes:
    """The same checkpoint with other fields in front, whole."""
    fields = msgspec.msgpack.decode(data[32:], type=Checkpoint)
    body = msgspec.msgpack.encode(msgspec.structs.replace(fields, **changes))
    return hashlib.sha256(body).digest() + body


@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_is_damaged_old_or_of_another_thread_is_ignored() -> None:
    store = MemoryStore()
    for n in range(12):
        turn(opened(store), n)
    data = store.checkpoint("t")
    assert data is not None
    store.fork("t", store.info("t").seq - 3, "fork")
    assert store.checkpoint("fork") is None
    Thread(store, "fork", POLICY, clock=lambda: 0).append(values.respond("otherwise"), *[values.user("?")] * 2)
    foreign = MemoryStore()
    for n in range(12):
        turn(opened(foreign), n + 1)
    others = [
        rewritten(data, format=checkpoint.FORMAT + 1),
        rewritten(data, quire="0.0.0"),
        rewritten(data, entry_id="sha256:" + "0" * 64),
        rewritten(data, seq=10_000),
        rewritten(data, seq=0),
        rewritten(data, fold=msgspec.Raw(msgspec.msgpack.encode([1, 2]))),
        rewritten(data, policy=msgspec.structs.replace(POLICY, budget=900)),
        foreign.checkpoint("t") or b"",
    ]
    for name in ("t", "fork"):
        bare = Thread(store, name, POLICY, clock=lambda: 0)
        store.save_checkpoint(name, b"")
        expected = bare.request(TARGET)
        for wrong in [*damaged(data), *others, *([data] if name == "fork" else [])]:
            store.save_checkpoint(name, wrong)
            request = Thread(store, name, POLICY, clock=lambda: 0).request(TARGET)
            assert (request.body, request.lines) == (expected.body, expected.lines)


@pytest.mark.usefixtures("often")
def test_a_thread_that_goes_back_to_a_model_goes_on_from_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    store, policy = MemoryStore(), Policy(budget=3_000, model="anthropic:claude-opus-5-5")
    thread = Thread(store, "t", policy)
    thread.append(*(e for n in range(100) for e in (values.user(many_words(20, f"{n}x")), values.respond("ok"))))
    thread.user("first")
    thread.request("anthropic:claude-opus-5-5")
    thread.append(values.respond("ok"))
    thread.user("second")
    thread.request("openai:gpt-5")
    read: list[int] = []
    whole = store.read
    monkeypatch.setattr(
        store, "read", lambda name, after=0, limit=None: read.append(after) or whole(name, after, limit)
    )
    again = thread.request("anthropic:claude-opus-5-5")
    assert min(read) > 200
    assert again == Thread(store, "t", policy).request("anthropic:claude-opus-5-5")


@pytest.mark.usefixtures("often")
def test_a_summary_that_no_log_holds_is_not_taken_for_another_summarisers() -> None:
    """An imported log has no rebases: those of a fold depend on who sums up."""

    def short(gone: Leaving) -> str:
        return f"{len(gone.entries)} entries went."

    store = MemoryStore()
    with_pages = [e for n in range(30) for e in (values.user(many_words(60, f"{n}x")), values.respond("ok"))]
    store.append("t", with_pages)
    bare = {one: Thread(store, "t", POLICY, one).build(TARGET) for one in (extract, short)}
    assert bare[extract] != bare[short]
    for first, second in ((extract, short), (short, extract)):
        store.save_checkpoint("t", b"")
        one = Thread(store, "t", POLICY, first)
        assert one.build(TARGET) == bare[first]
        one._state.keep_checkpoint(1)
        assert bool(store.checkpoint("t")) == (first is extract)
        assert Thread(store, "t", POLICY, second).build(TARGET) == bare[second]
        assert Thread(store, "t", POLICY, first).build(TARGET) == bare[first]


@given(st.lists(items(), max_size=3))
@fewer(10)
def test_a_store_that_cannot_keep_it_does_without(attached: list[dict[str, object]]) -> None:
    """What cannot be written down (a number beyond 64 bits) leaves the thread to its log."""
    store, roomy = MemoryStore(), Policy(budget=20_000)  # three images of a note are more than the others' budget
    thread = Thread(store, "t", roomy, clock=lambda: 0)
    thread.append(values.user("hello", attached), values.call("c", "add", {"n": 1 << 70}), values.result("c", "ok"))
    thread.request("openai-chat:gpt-5")
    thread._state.keep_checkpoint(1)
    assert store.checkpoint("t") is None
    assert Thread(store, "t", roomy, clock=lambda: 0).request(TARGET).body == thread.request(TARGET).body
