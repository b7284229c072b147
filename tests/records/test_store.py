"""Records in SQLite: versions, time, tags, and that a kill or a second writer cannot break them."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import QuireError, user
from quire.errors import CallError, ConflictError, DamageError, DataError, FormatError, NotFound
from quire.log.sqlite import SqliteStore
from quire.records import Match, Record, Records, Selector, catalog, keep_catalog, registered, view
from toolbox import SCALARS, WHOLE_TEXTS, json_of


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with SqliteStore(tmp_path / "q.db") as store:
        yield Records(store)


def test_a_record_is_created_read_changed_and_deleted(records: Records) -> None:
    made = records.create(
        "note.v1", {"text": "a", "secret": 1}, title="T", tags=["x", "y", "x"], llm_hints={"exclude": ["secret"]},
        owner="me", now=1000,
    )  # fmt: skip
    assert made == Record(
        id="rec-1", schema_name="note.v1", title="T", tags=("x", "y"), context={"text": "a", "secret": 1},
        llm_hints={"exclude": ["secret"]}, version=1, owner="me", created_at=1000, updated_at=1000,
    )  # fmt: skip
    assert records.read_full("rec-1") == made
    assert records.read("rec-1").context == {"text": "a"}
    changed = records.update("rec-1", 1, context={"text": "b"}, now=2000)
    assert (changed.version, changed.title, changed.created_at, changed.updated_at) == (2, "T", 1000, 2000)
    assert records.read("rec-1").context == {"text": "b"}
    records.delete("rec-1")
    with pytest.raises(NotFound, match="there is no record 'rec-1'"):
        records.read("rec-1")
    assert records.create("note.v1", {}).id == "rec-2"


def test_an_update_names_the_version_it_saw(records: Records) -> None:
    records.create("note.v1", {"n": 1}, title="Plan")
    records.update("rec-1", 1, context={"n": 2})
    with pytest.raises(ConflictError, match=r"rec-1 is at version 2 \(Plan\), not 1") as error:
        records.update("rec-1", 1, context={"n": 3})
    assert error.value.retryable
    with pytest.raises(ConflictError):
        records.delete("rec-1", version=1)
    assert records.read_full("rec-1").context == {"n": 2}
    assert repr(records.update("rec-1", 2.0, title="New plan").version) == "3"  # type: ignore[arg-type]  # as JavaScript writes it
    records.delete("rec-1", version=3)


def test_every_version_stays_readable(records: Records) -> None:
    records.create("note.v1", {"n": 1}, llm_hints={"include": ["n"]}, tags=["a"])
    records.update("rec-1", 1, context={"n": 2}, tags=["b"])
    records.update("rec-1", 2, llm_hints={})
    history = records.history("rec-1")
    told = [(one.version, one.context, one.tags) for one in history]
    assert told == [(1, {"n": 1}, ("a",)), (2, {"n": 2}, ("b",)), (3, {"n": 2}, ("b",))]
    assert history[2].llm_hints is None
    assert [records.read_full("rec-1", version=n) for n in (1, 2, 3)] == history
    with pytest.raises(NotFound, match="rec-1 has versions 1 to 3, not 4"):
        records.read_full("rec-1", version=4)


def test_a_record_expires_by_the_time_it_is_asked_at(records: Records) -> None:
    records.create("note.v1", {}, ttl_s=10, now=1_000)
    records.create("note.v1", {})
    assert records.read_full("rec-1").expires_at == 11_000
    assert records.read("rec-1", now=10_999).id == "rec-1"
    assert [one.id for one in records.list(now=10_999)] == ["rec-1", "rec-2"]
    assert [one.id for one in records.list(now=11_000)] == ["rec-2"]
    for call in (records.read, records.history):
        with pytest.raises(NotFound, match="record 'rec-1' has expired"):
            call("rec-1", now=11_000)
    with pytest.raises(NotFound, match="has expired"):
        records.update("rec-1", 1, title="late", now=11_000)
    assert records.read("rec-1").id == "rec-1"
    assert records.purge(now=11_000) == 1
    assert [one.id for one in records.list()] == ["rec-2"]
    assert records.purge(now=11_000) == 0
    # An update begins the time anew where it names one.
    records.create("note.v1", {}, ttl_s=10, now=0)
    assert records.update("rec-3", 1, title="t", now=5_000).expires_at == 10_000
    assert records.update("rec-3", 2, ttl_s=60, now=5_000).expires_at == 65_000


def test_lists_go_by_tag_schema_and_owner_in_order_of_creation(records: Records) -> None:
    for n in range(6):
        tags = [f"t{n % 2}", *(["third"] if n % 3 == 0 else [])]
        records.create(f"s{n % 3}", {"n": n}, tags=tags, owner="a" if n < 3 else "b")

    def ids(**wanted: object) -> list[str]:
        return [one.id for one in records.list(**wanted)]  # type: ignore[arg-type]

    assert ids() == [f"rec-{n}" for n in range(1, 7)]
    assert ids(schema_name="s0") == ["rec-1", "rec-4"]
    assert ids(tag="t1") == ["rec-2", "rec-4", "rec-6"]
    assert ids(tag=["t1", "third"]) == ["rec-4"]
    assert ids(tag="t0", schema_name="s2", owner="a") == ["rec-3"]
    assert ids(limit=2) == ["rec-5", "rec-6"]
    assert ids(limit=0) == []
    assert ids(tag="none") == []


def test_newest_goes_by_the_last_change_not_by_creation(records: Records) -> None:
    for n in range(4):
        records.create("s", {"n": n})
    records.update("rec-1", 1, title="changed")
    assert [one.id for one in records.select(Selector(schemas=("s",)), newest=2)] == ["rec-1", "rec-4"]


@pytest.mark.parametrize(
    ("match", "holds"),
    [
        (Match("a.b", "eq", 1), True),
        (Match("$.a.b", "eq", 1), True),
        (Match("a.b", "eq", True), False),
        (Match("a.b", "ne", 2), True),
        (Match("nope", "ne", 2), True),
        (Match("a.b", "gt", 0), True),
        (Match("a.b", "gt", "0"), False),
        (Match("a.b", "gte", 1), True),
        (Match("a.b", "lt", 1), False),
        (Match("a.b", "lte", 1), True),
        (Match("l", "contains", "x"), True),
        (Match("l", "contains", "z"), False),
        (Match("s", "contains", "ell"), True),
        (Match("l", "contains_any", ["z", "y"]), True),
        (Match("s", "in", ["hello", "bye"]), True),
        (Match("nope", "exists", True), False),
        (Match("nope", "exists", False), True),
        (Match("$.l[*]", "eq", "y"), True),
    ],
)
def test_a_context_matches(match: Match, holds: bool) -> None:
    context = {"a": {"b": 1}, "l": ["x", "y"], "s": "hello"}
    assert match.holds(context) is holds
    with pytest.raises(CallError, match="no operator 'like'"):
        Match("a", "like", 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"schema_name": ""}, CallError, "needs a schema_name"),
        ({"context": [1]}, CallError, "context is an object"),
        ({"context": {"a": float("nan")}}, FormatError, "not JSON"),
        ({"context": {"a": "\ud800"}}, FormatError, "lone surrogate"),
        ({"context": {"a": "x" * 5_000_000}}, CallError, "at most 4,194,304"),
        ({"tags": "abc"}, CallError, "tags is a list"),
        ({"tags": ["a", ""]}, CallError, "a tag is a non-empty string"),
        ({"tags": ["\ud800"]}, FormatError, "lone surrogate"),
        ({"title": 5}, CallError, "title is a string"),
        ({"ttl_s": 5}, CallError, "needs the time"),
        ({"ttl_s": -5, "now": 1}, CallError, "positive number of seconds"),
        ({"llm_hints": {"exlude": []}}, DataError, "llm_hints has no 'exlude'"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    records: Records, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    given = {"schema_name": "s", "context": {}, **arguments}
    with pytest.raises(error, match=message):
        records.create(**given)  # type: ignore[arg-type]
    assert records.list() == []


@pytest.mark.parametrize("id", ["", "rec", "rec-", "rec-x", "1", "rec-1;", "REC-1", "rec-²"])
def test_what_is_no_id_is_refused(records: Records, id: str) -> None:
    with pytest.raises(CallError, match="is not the id of a record"):
        records.read(id)


def test_records_and_threads_share_a_file_and_records_open_any_store(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", [user("hello")])
        Records(store).create("note.v1", {"a": 1})
    with SqliteStore(tmp_path / "q.db") as store:
        assert [entry.text for entry in store.read("t")] == ["hello"]
        store.delete("t")
        assert Records(store).read("rec-1").context == {"a": 1}


finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = json_of(SCALARS | finite | WHOLE_TEXTS, WHOLE_TEXTS)


@given(st.dictionaries(WHOLE_TEXTS, json_values), st.randoms())
def test_any_context_comes_back_as_it_was_order_included(context: dict[str, object], rng: random.Random) -> None:
    with SqliteStore(":memory:") as store:
        records = Records(store)
        made = records.create("s", context)
        found = records.read_full(made.id)
    assert found == made
    assert list(found.context) == list(context)
    assert view(found).context == context


def test_of_many_writers_each_version_has_one_winner(store: SqliteStore) -> None:
    records = Records(store)
    records.create("counter.v1", {"n": 0})

    def count(times: int) -> None:
        done = 0
        while done < times:
            seen = records.read_full("rec-1")
            try:
                records.update("rec-1", seen.version, context={"n": seen.context["n"] + 1})
                done += 1
            except ConflictError:
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, [15] * 4))
    last = records.read_full("rec-1")
    assert (last.context, last.version) == ({"n": 60}, 61)
    assert [one.context["n"] for one in records.history("rec-1")] == list(range(61))


def test_what_is_deleted_is_not_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with SqliteStore(path) as store:
        records = Records(store)
        for n in range(30):
            records.create("note.v1", {"text": f"quokka{n} stays"})
        made = records.create("note.v1", {"text": "wombatsecret"}, title="numbatsecret", tags=["bilbysecret"])
        records.update(made.id, 1, context={"text": "nothing"})
        assert b"wombatsecret" in path.read_bytes() + Path(f"{path}-wal").read_bytes()
        records.delete(made.id)
    words = (b"quokka7", b"wombatsecret", b"numbatsecret", b"bilbysecret")
    assert [word in path.read_bytes() for word in words] == [True, False, False, False]


WRITER = """
import sys
from quire.log.sqlite import SqliteStore
from quire.records import Records
records = Records(SqliteStore(sys.argv[1]))
while True:
    found = records.list()
    if len(found) < 3:
        records.create("s", {"n": 0}, tags=["v1"])
        continue
    one = found[-1]
    if one.version >= 5:
        records.delete(one.id)
        continue
    made = records.update(one.id, one.version, context={"n": one.version}, tags=[f"v{one.version + 1}"])
    print(made.id, made.version, flush=True)
"""


def test_a_kill_at_any_moment_leaves_whole_records(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = tmp_path / "q.db"
    for _ in range(12):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        acknowledged = [child.stdout.readline().split() for _ in range(rng.randint(1, 15))][-1]
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        with SqliteStore(path) as store:
            check_whole(Records(store), acknowledged[0], int(acknowledged[1]))


def check_whole(records: Records, id: str, version: int) -> None:
    """The acknowledged version is there (unless deleted since), and every record agrees with its versions and tags."""
    found = {one.id: one for one in records.list()}
    if id in found:
        assert found[id].version >= version
    for one in found.values():
        history = records.history(one.id)
        assert [each.version for each in history] == list(range(1, one.version + 1))
        assert history[-1] == one
        assert one.tags == (f"v{one.version}",)
        assert one.id in [each.id for each in records.list(tag=one.tags)]


TOOLS = [
    {"name": "b", "description": "Second (really)", "category": "x", "output": ["o"], "parameters": {"type": "object"}},
    {"name": "a", "description": "First", "example": "e\nf"},
]
TEXT = (
    "You have access to 2 tools:\n\n• b (x): Second (really)\n  Output: o\n\n• a (general): First\n  Example: e\n    f"
)


def test_a_catalog_has_its_tools_and_by_its_hints_their_text_and_names() -> None:
    made = catalog(TOOLS)
    assert made.context == {"tools": TOOLS}
    assert view(made).context == {"tools": TOOLS, "tool_list": TEXT, "available_tools": ["b", "a"]}
    one = view(catalog(TOOLS[1:])).context
    assert one["available_tools"] == ["a"]
    assert one["tool_list"].startswith("You have access to 1 tool:\n\n• a (general)")
    assert view(catalog([])).context["available_tools"] == []


def test_the_catalog_follows_the_registered_tools(records: Records) -> None:
    for tool in TOOLS:
        records.create("tool.v1", tool)
    assert registered(records) == TOOLS
    made = keep_catalog(records)
    assert records.read(made.id).context["available_tools"] == ["b", "a"]
    assert keep_catalog(records) == made
    records.create("tool.v1", {"name": "b", "description": "new"})
    changed = keep_catalog(records)
    assert (changed.id, changed.version) == (made.id, 2)
    shown = records.read(made.id).context
    assert shown["available_tools"] == ["b", "a"]
    assert "• b (general): new" in shown["tool_list"]


def test_a_catalog_kept_without_hints_gets_them(records: Records) -> None:
    records.create("tool.catalog.v1", {"tools": TOOLS})
    assert records.read("rec-1").context["tool_list"] == TEXT
    records.create("tool.catalog.v1", {"tools": TOOLS}, llm_hints={})
    assert records.read("rec-2").context == {"tools": TOOLS}


@pytest.mark.parametrize("tool", [{}, {"name": ""}, "x", {"name": "a", "output": 5}])
def test_what_is_no_tool_is_refused(tool: object) -> None:
    with pytest.raises(CallError):
        catalog([tool])  # type: ignore[list-item]


CHANGES = [
    "UPDATE records SET body = replace(body, 'tea', 'gin')",
    "UPDATE records SET body = '{', sha256 = ''",
    "UPDATE records SET body = x'ff00ff'",
    "UPDATE record_changes SET body = replace(body, 'tea', 'gin') WHERE version = 1",
    "UPDATE records SET schema_name = 'other.v1'",
    "UPDATE records SET expires_at = 1",
    "UPDATE records SET version = 7",
    "DELETE FROM record_changes WHERE version = 1",
    "DELETE FROM record_changes WHERE version = 2",
    "DELETE FROM records",
    "DELETE FROM record_tags",
    "UPDATE record_tags SET tag = 'home'",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_that_was_changed_is_damage_and_never_a_traceback(change: str, store: SqliteStore) -> None:
    records = Records(store)
    made = records.create("note.v1", {"text": "tea"}, tags=["work"])
    records.update(made.id, 1, context={"text": "tea at five"})
    assert store.verify().records == 1
    store.connection().execute("PRAGMA foreign_keys = OFF")
    store.connection().execute(change)
    with pytest.raises(DamageError, match="rec-1 is damaged") as caught:
        store.verify()
    assert caught.value.hint
    asked = [(records.read, "rec-1"), (records.history, "rec-1"), (records.list,), (records.search, "tea")]
    for read, *named in (*asked, (partial(records.update, title="x"), "rec-1", 2)):
        with contextlib.suppress(QuireError):
            assert "gin" not in str(read(*named))


def test_a_changed_record_does_not_read_as_true(store: SqliteStore) -> None:
    records = Records(store)
    records.create("note.v1", {"text": "tea"})
    store.connection().execute(CHANGES[0])
    for read in (lambda: records.read("rec-1"), lambda: records.list(), lambda: records.search("gin")):
        with pytest.raises(DamageError, match=r"record rec-1 is damaged: .*checksum") as caught:
            read()
        assert caught.value.hint
