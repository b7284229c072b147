"""Numbered migrations of the log and of hooks; a newer file is refused."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire import values
from quire.errors import VersionError
from quire.log.connection import MIGRATIONS, statements
from quire.log.sqlite import SqliteStore
from quire.values import Entry

FIRST = "CREATE TABLE words_seen (id TEXT, thread TEXT); CREATE INDEX words_by_id ON words_seen (id);"
SECOND = """
ALTER TABLE words_seen ADD COLUMN size INTEGER NOT NULL DEFAULT 0; -- a second idea
CREATE TRIGGER words_stay BEFORE UPDATE ON words_seen BEGIN SELECT RAISE (ABORT, 'no;'); END;
"""


class Words:
    """A hook as recall and records write them."""

    name = "words"

    def __init__(self, *migrations: str) -> None:
        self.migrations = migrations

    def appended(self, conn: sqlite3.Connection, thread: str, entries: Sequence[Entry]) -> None:
        conn.executemany("INSERT INTO words_seen (id, thread) VALUES (?, ?)", [(e.id, thread) for e in entries])

    def deleted(self, conn: sqlite3.Connection, thread: str) -> None:
        conn.execute("DELETE FROM words_seen WHERE id NOT IN (SELECT id FROM entries)")


def versions(path: Path) -> dict[str, int]:
    conn = sqlite3.connect(path)
    found = dict(conn.execute("SELECT owner, version FROM versions").fetchall())
    conn.close()
    return found


def test_each_owner_is_migrated_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteStore(path).close()
    assert versions(path) == {"log": len(MIGRATIONS)}
    SqliteStore(path, hooks=[Words(FIRST)]).close()
    SqliteStore(path, hooks=[Words(FIRST)]).close()
    assert versions(path) == {"log": len(MIGRATIONS), "words": 1}
    with SqliteStore(path, hooks=[Words(FIRST, SECOND)]) as store:
        columns = store.connection().execute("SELECT name FROM pragma_table_info('words_seen')").fetchall()
        assert columns == [("id",), ("thread",), ("size",)]
        assert store.verify().threads == 0
    assert versions(path) == {"log": len(MIGRATIONS), "words": 2}


def test_hooks_are_kept_in_step_and_hear_what_remains_after_a_deletion(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db", hooks=[Words(FIRST)]) as store:
        kept = store.append("t", [values.user("a"), values.user("b")])[0]
        store.fork("t", 1, "fork")
        own = store.append("fork", [values.user("c")])[0]
        store.delete("t")
        rows = store.connection().execute("SELECT id, thread FROM words_seen").fetchall()
        assert rows == [(kept.id, "t"), (own.id, "fork")]


def test_a_failed_migration_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteStore(path, hooks=[Words(FIRST)]).close()
    with pytest.raises(Exception, match="no such table: nowhere"):
        SqliteStore(path, hooks=[Words(FIRST, SECOND + "INSERT INTO nowhere VALUES (1);")])
    assert versions(path)["words"] == 1
    SqliteStore(path, hooks=[Words(FIRST, SECOND)]).close()


def test_a_file_from_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteStore(path, hooks=[Words(FIRST, SECOND)]).close()
    with pytest.raises(VersionError, match=r"written by a newer Quire \(words version 2, this one knows 1\)"):
        SqliteStore(path, hooks=[Words(FIRST)])
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
