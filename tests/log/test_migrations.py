"""Numbered migrations of the log, its index and its records; a newer file is refused."""

import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from quire import values
from quire.errors import VersionError
from quire.log.connection import MIGRATIONS, connect, migrate, statements
from quire.log.entries import encode_body
from quire.log.hashing import entry_id
from quire.log.sqlite import SqliteStore
from quire.log.verify import OWNERS

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
    body, record = encode_body(values.user("a").body), '{"id":"rec-1","schema_name":"note.v1"}'
    conn = connect(path)
    migrate(conn, path, [(owner, scripts[:1]) for owner, scripts in OWNERS])
    conn.execute("INSERT INTO branches (branch) VALUES (1)")
    conn.execute("INSERT INTO threads VALUES ('t', 1)")
    row = (entry_id("", json.loads(body)), body, zlib.crc32(body.encode()))
    conn.execute("INSERT INTO entries (branch, seq, id, body, crc) VALUES (1, 1, ?, ?, ?)", row)
    conn.execute("INSERT INTO records VALUES (1, 'note.v1', 1, 1, NULL, ?)", (record,))
    conn.execute("INSERT INTO record_changes VALUES (1, 1, 1, ?)", (record,))
    conn.close()
    with SqliteStore(path) as store:
        assert [change.n for change in store.changes()] == [1]
        assert store.verify("t").entries == 1
        assert store.records.newest(1) == record


def test_a_file_from_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    migrated(path, FIRST, SECOND)
    with pytest.raises(VersionError, match=r"written by a newer Quire \(words version 2, this one knows 1\)"):
        migrated(path, FIRST)
    conn = sqlite3.connect(path)
    conn.execute("UPDATE versions SET version = 99 WHERE owner = 'log'")
    conn.commit()
    conn.close()
    with pytest.raises(VersionError, match=rf"log version 99, this one knows {len(MIGRATIONS)}") as caught:
        SqliteStore(path)
    assert caught.value.hint == "Upgrade Quire to open this file."


def test_the_version_stands_where_sqlite_s_own_tools_look(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteStore(path).close()
    conn = sqlite3.connect(path)
    assert conn.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    conn.execute("PRAGMA user_version = 99")
    conn.close()
    with pytest.raises(VersionError, match="log version 99"):
        SqliteStore(path)


def test_a_script_is_split_into_whole_statements() -> None:
    parts = [part.strip() for part in statements(FIRST + SECOND)]
    assert [part.split()[0] for part in parts[:3]] == ["CREATE", "CREATE", "ALTER"]
    assert parts[3].endswith("END;")
    assert len(parts) == 4
