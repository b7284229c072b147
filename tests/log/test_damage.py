"""Damage is named and never repaired, a newer file is refused, and fields that cannot be used are left aside."""

import json
import random
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_strategies import bodies, json_values
from quire import Entry, QuireError, attach, call, user, values
from quire.errors import CallError, DamageError, NotFound, VersionError
from quire.log.connection import MIGRATIONS, OWNERS, connect, migrate
from quire.log.entries import encode_body, usable
from quire.log.sqlite import SqliteStore
from quire.log.store import Verification
from quire.log.verify import salvage
from quire.values import entry_id
from toolbox import check, fewer

TRIGGERS = ("entries_never_change", "entries_never_go_alone", "entries_only_at_the_end")


def tamper(conn: sqlite3.Connection, statement: str, *values: Any) -> None:
    """Change the file behind the triggers' back, and put them in place again."""
    kept = [conn.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchone()[0] for name in TRIGGERS]
    for name in TRIGGERS:
        conn.execute(f"DROP TRIGGER {name}")
    conn.execute("PRAGMA foreign_keys = OFF")
    conn.execute(statement, values)
    for sql in kept:
        conn.execute(sql)


@fewer(2)
@given(st.lists(bodies, min_size=1, max_size=3), st.data(), st.booleans())
def test_any_changed_byte_of_a_stored_body_is_found(
    given_bodies: list[dict[str, Any]], data: st.DataObject, with_checksum: bool
) -> None:
    with SqliteStore(":memory:") as store:
        store.append("t", [check(body) for body in given_bodies])
        seq = data.draw(st.integers(1, len(given_bodies)))
        conn = store.connection()
        body = bytearray(conn.execute("SELECT CAST (body AS BLOB) FROM entries WHERE seq = ?", (seq,)).fetchone()[0])
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
        crc = zlib.crc32(body) if with_checksum else 0
        change = "UPDATE entries SET body = CAST (? AS TEXT), crc = iif(?, ?, crc) WHERE seq = ?"
        tamper(conn, change, bytes(body), with_checksum, crc, seq)
        for thread in (None, "t"):
            with pytest.raises(DamageError) as caught:
                store.verify(thread)
            assert (caught.value.thread, caught.value.seq) == ("t", seq)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two threads and a fork: t has 6 entries, other 3, fork shares 4 of t and has 2 of its own."""
    file = tmp_path / "q.db"
    with SqliteStore(file) as store:
        store.append("t", [values.user(f"entry number {number}") for number in range(1, 7)])
        store.append("other", [values.user(f"other number {number}") for number in range(1, 4)])
        store.fork("t", 4, "fork")
        store.append("fork", [values.user("five"), values.user("six")])
    return file


def damaged(path: Path, thread: str | None = None) -> DamageError:
    with pytest.raises(DamageError) as caught, SqliteStore(path) as store:
        store.verify(thread)
    return caught.value


@pytest.mark.parametrize(
    ("statement", "thread", "seq", "problem"),
    [
        ("UPDATE entries SET body = replace(body, 'number 3', 'number 9') WHERE branch = 1", "t", 3, "have changed"),
        ("UPDATE entries SET id = 'sha256:00' WHERE branch = 1 AND seq = 2", "t", 2, "its id is sha256:00"),
        ("UPDATE entries SET id = x'ff' WHERE branch = 2 AND seq = 1", "other", 1, "its id is \\xff"),
        ("UPDATE entries SET crc = 1 WHERE branch = 3 AND seq = 5", "fork", 5, "checksum"),
        ("DELETE FROM entries WHERE branch = 1 AND seq = 4", "t", 4, "missing"),
        ("DELETE FROM entries WHERE branch = 1 AND seq = 6", "t", 6, "missing"),
        ("DELETE FROM entries WHERE branch = 3", "fork", 5, "missing"),
        ("UPDATE entries SET branch = 2, seq = 4 WHERE branch = 1 AND seq = 6", "t", 6, "missing"),
        ("UPDATE branches SET seq = 2 WHERE branch = 2", "other", 2, "noted to end with"),
        ("UPDATE branches SET tip = 'x' WHERE branch = 3", "fork", 6, "noted to end with x"),
        ("UPDATE branches SET at_seq = 3 WHERE branch = 3", "fork", 4, "missing"),
        ("DELETE FROM branches WHERE branch = 1", "fork", 4, "missing"),
    ],
)
def test_the_first_bad_entry_is_named(path: Path, statement: str, thread: str, seq: int, problem: str) -> None:
    conn = sqlite3.connect(path, isolation_level=None)
    tamper(conn, statement)
    conn.close()
    for error in (damaged(path), damaged(path, thread)):
        assert error.thread == thread
        assert error.seq == seq or "branches WHERE" in statement
        assert problem in str(error)
    with SqliteStore(path) as store:
        for sound in {"t", "other"} - {thread} - ({"t"} if thread == "fork" else set()):
            store.verify(sound)


@pytest.mark.parametrize("thread", ["t", "fork"])
def test_reading_a_damaged_entry_is_an_error_that_names_it(path: Path, thread: str) -> None:
    data = path.read_bytes()
    assert data.count(b"entry number 3") == 1
    path.write_bytes(data.replace(b"entry number 3", b"entry nunber 3"))
    with SqliteStore(path) as store:
        assert [entry.seq for entry in store.read(thread, limit=2)] == [1, 2]
        with pytest.raises(DamageError, match=rf"entry 3 of thread '{thread}' is damaged"):
            store.read(thread)
        assert len(store.read("other")) == 3
    assert damaged(path).seq == 3


@pytest.mark.parametrize("statement", [f"DROP TRIGGER {name}" for name in TRIGGERS])
def test_a_missing_guard_is_noticed(path: Path, statement: str) -> None:
    conn = sqlite3.connect(path)
    conn.execute(statement)
    conn.close()
    assert "changed or removed from the file's schema" in str(damaged(path))


def long_file(tmp_path: Path) -> Path:
    """Large enough that entries fill many pages."""
    file = tmp_path / "long.db"
    with SqliteStore(file) as store:
        for thread in ("a", "b"):
            for number in range(40):
                store.append(thread, [values.user(f"{thread} {number} " + "text " * 600)])
    return file


def open_and_verify(path: Path) -> str:
    with SqliteStore(path) as store:
        store.verify()
        return content(store)


def content(store: SqliteStore) -> str:
    return "".join(f"{info.name}{[(e.seq, e.id, e.body) for e in store.read(info.name)]}" for info in store.threads())


def test_a_truncated_file_names_the_first_entry_that_is_gone(tmp_path: Path) -> None:
    whole = long_file(tmp_path).read_bytes()
    path = tmp_path / "cut.db"
    named = set()
    for share in range(1, 100, 3):
        path.write_bytes(cut := whole[: len(whole) * share // 100])
        error = damaged(path)
        assert error.seq >= 1, error
        assert path.read_bytes() == cut, "the damaged file was changed"
        assert set(tmp_path.glob("cut.db-*")) == set()
        named.add((error.thread, error.seq))
    assert len(named) > 10
    assert {thread for thread, _ in named} >= {"a", "b"}


def salvaged(path: Path, thread: str) -> tuple[list[Entry], DamageError]:
    out = []
    try:
        for entry in salvage(path, thread):
            out.append(entry)  # what came before the error counts
    except DamageError as error:
        return out, error
    raise AssertionError("no damage was found")


def test_what_stands_before_the_damage_can_be_salvaged(tmp_path: Path) -> None:
    path = long_file(tmp_path)
    with SqliteStore(path) as store:
        wanted = store.read("a")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    first_bad = damaged(path)
    saved, error = salvaged(path, "a")
    assert 0 < len(saved) < len(wanted)
    assert saved == wanted[: len(saved)]
    assert (first_bad.thread, first_bad.seq) == ("a", len(saved) + 1) == (error.thread, error.seq)
    with pytest.raises(NotFound):
        list(salvage(path, "nope"))
    with pytest.raises(NotFound):
        list(salvage(tmp_path / "nothing.db", "a"))


@pytest.mark.parametrize(("size", "times"), [(1, 150), (60, 60)], ids=["a bit", "sixty bytes"])
def test_what_was_changed_anywhere_is_found_or_changes_nothing(tmp_path: Path, size: int, times: int) -> None:
    """Whatever verify() accepts reads exactly as before; damage is told on one printable line."""
    original = long_file(tmp_path)
    whole, rng = original.read_bytes(), random.Random(5)
    path = tmp_path / "changed.db"
    with SqliteStore(original) as store:
        wanted = content(store)
    errors = []
    for _ in range(times):
        data, at = bytearray(whole), rng.randrange(len(whole))
        data[at : at + size] = [data[at] ^ 1 << rng.randrange(8)] if size == 1 else rng.randbytes(size)
        path.write_bytes(data[: len(whole)])
        try:
            assert open_and_verify(path) == wanted
        except QuireError as error:
            errors.append(error)
        for left in tmp_path.glob("changed.db-*"):
            left.unlink()
    assert len(errors) > times / 2
    assert sum(isinstance(error, DamageError) and error.seq > 0 for error in errors) > len(errors) * 0.9
    assert all(str(error).isprintable() for error in errors)


@pytest.mark.parametrize("size", [1, 2, 50, 99, 100, 511])
def test_a_stump_is_damage_and_never_begun_anew(path: Path, size: int) -> None:
    path.write_bytes(stump := path.read_bytes()[:size])
    assert damaged(path).seq == 1
    assert path.read_bytes() == stump


@pytest.mark.parametrize(("byte", "problem"), [(47, "unsupported file format"), (70, "its header calls it")])
def test_a_damaged_header_is_damage_and_says_that_every_entry_holds(path: Path, byte: int, problem: str) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x10
    path.write_bytes(data)
    assert problem in str(damaged(path))


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE theirs (x)")
    conn.close()
    with pytest.raises(CallError, match="another program's database"):
        SqliteStore(path)
    tables = sqlite3.connect(path)
    assert tables.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    tables.close()
    path.write_bytes(b"not a database at all, but a text of some length\n" * 100)
    with pytest.raises(DamageError, match="file is not a database") as refused:
        SqliteStore(path)
    assert "if this was one, restore it" in refused.value.hint
    with pytest.raises(CallError, match=f"there is no folder {tmp_path / 'none'}"):
        SqliteStore(tmp_path / "none" / "t.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CallError, match="unable to open"):
        SqliteStore(tmp_path / "folder")


FIRST = "CREATE TABLE words_seen (id TEXT, thread TEXT); CREATE INDEX words_by_id ON words_seen (id);"
SECOND = """
ALTER TABLE words_seen ADD COLUMN size INTEGER NOT NULL DEFAULT 0; -- a second idea
CREATE TRIGGER words_stay BEFORE UPDATE ON words_seen BEGIN SELECT RAISE (ABORT, 'no;'); END;
"""


def migrated(path: Path, *scripts: str) -> None:
    """Bring a file up to date for one more owner of tables."""
    conn = connect(path)
    try:
        migrate(conn, path, [*OWNERS, ("words", scripts)])
    finally:
        conn.close()


NOW = {owner: len(scripts) for owner, scripts in OWNERS}


def versions(path: Path) -> dict[str, int]:
    conn = sqlite3.connect(path)
    found = dict(conn.execute("SELECT owner, version FROM versions").fetchall())
    conn.close()
    return found


def test_each_owner_is_migrated_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteStore(path).close()
    assert versions(path) == NOW
    migrated(path, FIRST)
    migrated(path, FIRST)
    assert versions(path) == {**NOW, "words": 1}
    migrated(path, FIRST, SECOND)
    with SqliteStore(path) as store:
        columns = store.connection().execute("SELECT name FROM pragma_table_info('words_seen')").fetchall()
        assert columns == [("id",), ("thread",), ("size",)]
        assert store.verify().threads == 0
    assert versions(path) == {**NOW, "words": 2}


def test_a_failed_migration_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    migrated(path, FIRST)
    with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
        migrated(path, FIRST, SECOND + "INSERT INTO nowhere VALUES (1);")
    assert versions(path)["words"] == 1
    migrated(path, FIRST, SECOND)


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    body = encode_body(values.user("a").body)
    record = '{"id":"rec-1","version":1,"schema_name":"note.v1","expires_at":null,"tags":[]}'
    conn = connect(path)
    # SQLite keeps the comments of a table, and what they said is no damage.
    first = [(owner, (scripts[0].replace("-- Always 'entry',", "-- 'entry' or 'word',"),)) for owner, scripts in OWNERS]
    migrate(conn, path, first)
    conn.execute("INSERT INTO branches (branch) VALUES (1)")
    conn.execute("INSERT INTO threads VALUES ('t', 1)")
    row = (entry_id("", json.loads(body)), body, zlib.crc32(body.encode()))
    conn.execute("INSERT INTO entries (branch, seq, id, body, crc) VALUES (1, 1, ?, ?, ?)", row)
    conn.execute("INSERT INTO records VALUES (1, 'note.v1', 1, 1, NULL, ?)", (record,))
    conn.execute("INSERT INTO record_changes VALUES (1, 1, 1, ?)", (record,))
    conn.close()
    with SqliteStore(path) as store:
        assert [change.n for change in store.changes()] == [1]
        assert store.verify() == Verification(threads=1, entries=1, records=1)
        assert store.records.newest(1) == record


@pytest.mark.parametrize("change", ["UPDATE versions SET version = 99 WHERE owner = 'log'", "PRAGMA user_version = 99"])
def test_a_file_from_a_newer_version_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "q.db"
    migrated(path, FIRST, SECOND)
    with pytest.raises(VersionError, match=r"written by a newer Quire \(words version 2, this one knows 1\)"):
        migrated(path, FIRST)
    conn = sqlite3.connect(path)
    # Where SQLite's own tools look, too.
    assert conn.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    conn.execute(change)
    conn.commit()
    conn.close()
    with pytest.raises(VersionError, match=rf"log version 99, this one knows {len(MIGRATIONS)}") as caught:
        SqliteStore(path)
    assert caught.value.hint == "Upgrade Quire to open this file."


@given(bodies)
def test_entries_that_can_be_used_are_the_same(body: dict[str, Any]) -> None:
    entry = check(body)
    seen = usable(entry)
    assert (seen.kind, seen.seq, seen.id) == (entry.kind, entry.seq, entry.id)
    assert usable(seen) is seen


META = ["pins", "shown", "recalled", "recalled_ids", "composer", "opening", "pinned"]


@given(st.dictionaries(st.sampled_from([*META, "own"]), json_values))
def test_nobodys_own_fields_are_touched(meta: dict[str, Any]) -> None:
    seen = usable(user("q", meta=meta)).meta
    assert seen.keys() <= meta.keys()
    assert [seen.get("own"), "own" in seen] == [meta.get("own"), "own" in meta]
    assert all(isinstance(seq, int) for seq in seen.get("pins", ()))
    assert all(isinstance(name, str) for name in seen.get("shown", ()))


@pytest.mark.parametrize(
    ("meta", "seen"),
    [
        ({"pins": [1, 2]}, {"pins": [1, 2]}),
        ({"pins": 5}, {"pins": [5]}),
        ({"pins": [5, [1], "x", True]}, {"pins": [5]}),
        ({"pins": {"a": 1}, "b": 1}, {"b": 1}),
        ({"shown": "timeRange"}, {"shown": ["timeRange"]}),
        ({"shown": 5}, {}),
        ({"opening": "x", "pinned": ["words", 5]}, {"pinned": ["words"]}),
        ({"recalled": {"a": 1}, "composer": [1]}, {}),
    ],
)
def test_one_alone_is_a_list_of_one_and_the_rest_is_absent(meta: dict[str, Any], seen: dict[str, Any]) -> None:
    assert usable(call("c", "n", {}, meta=meta)).meta == seen


def test_images_are_read_of_an_active_note_alone() -> None:
    image = {"media_type": "image/png", "data": "AAAA"}
    active = {"source": "active_note", "path": "p", "images": [5, image, {"url": 5}, "https://x/y.png"]}
    seen = usable(attach({"content": "c", "metadata": active})).body["item"]
    assert seen["metadata"]["images"] == [image, "https://x/y.png"]
    counted = user("q", [{"content": "c", "metadata": {"source": "url", "images": 3}}])
    assert usable(counted) is counted
    assert usable(user("q", [{"content": "c", "metadata": {"source": ["x"]}}])).attached == [
        {"content": "c", "metadata": {}}
    ]


def test_an_edit_that_puts_nothing_in_place_of_its_entry_drops_it() -> None:
    edits = [{"entry": n, "action": action, "replacement": None} for n, action in enumerate(("cut", "handle", "fold"))]
    kept = {"entry": 4, "action": "cut", "replacement": ""}
    body = {"kind": "rebase", "reason": "r", "before_seq": 0, "library": [], "edits": [*edits, kept], "freed": 0}
    wanted = [{"entry": n, "action": action} for n, action in enumerate(("drop", "drop", "fold"))]
    assert usable(Entry("rebase", body)).body["edits"] == [*wanted, kept]
