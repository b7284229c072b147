"""The queries that SQLite and PostgreSQL share: threads and their branches, and the rows of records.

In a query `?` stands for a value. `quire.log.sqlite` and `quire.log.postgres` run the queries and add what differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

from quire.errors import ConflictError, DamageError
from quire.log.entries import bad_entry
from quire.log.store import (
    ClosingStore,
    Index,
    RecordFilter,
    Stretch,
    ThreadInfo,
    ambiguous,
    check_fork,
    check_name,
    free_name,
    id_range,
    name_taken,
    no_thread,
    read_saved,
    saved_digest,
    saved_text,
)
from quire.values import Entry, Json, sha256_hex


class Tables(ABC):
    """Some tables of a database, and how to run queries on them."""

    # The prefix of table names, and the columns in front of the others in each row (PostgreSQL: schema and tenant).
    tables: ClassVar = ""
    owner: ClassVar = ""

    @abstractmethod
    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """The rows of a query."""

    @abstractmethod
    def _write(self, query: str, values: Sequence[object] = (), durable: bool = True) -> list[Any]:
        """Run a statement that writes, in the open transaction or its own; a crash may lose it unless `durable`."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A transaction: all statements inside, or none."""


# Where a thread's entries are: its own branch, then the part of each ancestor branch that it shares.
PIECES = """
WITH RECURSIVE piece (branch, low, high, parent) AS (
    SELECT b.branch, b.at_seq, b.seq, b.parent
    FROM {tables}threads t JOIN {tables}branches b USING ({owner}branch) WHERE t.name = ?
    UNION ALL
    SELECT b.branch, b.at_seq, piece.low, b.parent FROM piece JOIN {tables}branches b ON b.branch = piece.parent
)
"""
# The oldest thread that holds entry `seq` of a branch: the branch's own, or a fork taken at or behind that entry.
HOLDERS = """
WITH RECURSIVE holder (branch) AS (
    SELECT {branch}
    UNION
    SELECT b.branch FROM holder JOIN {tables}branches b ON b.parent = holder.branch AND b.at_seq >= {seq}
)
SELECT t.name FROM holder JOIN {tables}threads t USING (branch) ORDER BY t.branch LIMIT 1
"""


class BranchIndex(Tables):
    """The part of an `Index` that says where entries are."""

    def stretches(self, thread: str | None) -> list[Stretch]:
        if thread is None:
            rows = self._rows(f"SELECT branch, at_seq, seq FROM {self.tables}branches ORDER BY branch")
            return [Stretch(*row) for row in rows]
        pieces = PIECES.format(tables=self.tables, owner=self.owner)
        rows = self._rows(f"{pieces} SELECT branch, low, high FROM piece ORDER BY low, high", (thread,))
        if not rows:
            raise no_thread(thread)
        return [Stretch(*row) for row in rows]

    def holder(self, branch: int, seq: int) -> str:
        query = HOLDERS.format(tables=self.tables, branch="CAST (? AS bigint)", seq="?")
        rows = self._rows(query, (branch, seq))
        return str(rows[0][0]) if rows else ""

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        named = f"SELECT name FROM {self.tables}threads t WHERE t.branch = e.branch"
        query = f"SELECT e.n, coalesce(({named}), '') FROM {self.tables}entries e WHERE e.n > ? ORDER BY e.n LIMIT ?"
        return self._rows(query, (after, limit))


class Tip(NamedTuple):
    """Where a thread ends; branch 0 if there is none of its name."""

    branch: int = 0
    seq: int = 0
    id: str = ""


class BranchStore(ClosingStore, Tables):
    """The part of a `Store` that all databases share: threads are made, forked, found, deleted; data is saved with them.

    A thread is a name for a branch; a branch holds entries behind some entry of its parent branch.
    """

    # SQL for a saved text as bytes, since damaged text could not be read otherwise; for the id of a branch's last entry;
    # and to insert a branch with its parent, at_seq, seq and tip.
    raw_text: ClassVar = "CAST ({} AS BLOB)"
    tip_id: ClassVar = "b.tip"
    branch_query: ClassVar[str]
    # What else to set on a branch that lost its name but is kept because forks share its beginning.
    nameless: ClassVar = ""
    index: Index

    @abstractmethod
    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]: ...

    @abstractmethod
    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]: ...

    def _changing(self) -> AbstractContextManager[Any]:
        """A transaction during which no other one appends, forks or deletes."""
        return self._transaction()

    @staticmethod
    def _kept_id(id: str) -> str | bytes:
        """An entry's id as the database stores it."""
        return id

    @staticmethod
    def _written_id(data: Any) -> str:
        """An entry's id as users see it, from the stored one."""
        return str(data)

    def create(self, thread: str) -> None:
        with self._changing():
            self._name(thread, self._new_branch())

    def info(self, thread: str) -> ThreadInfo:
        return ThreadInfo(*self._row(thread, f"{self._infos} WHERE t.name = ?"))

    def threads(self) -> list[ThreadInfo]:
        return [ThreadInfo(*row) for row in self._rows(f"{self._infos} ORDER BY t.branch")]

    @property
    def _infos(self) -> str:
        parents = f"LEFT JOIN {self.tables}threads p ON p.branch = b.parent"
        return f"SELECT t.name, b.seq, {self.tip_id}, coalesce(p.name, ''), b.at_seq FROM {self._ends} {parents}"

    @property
    def _ends(self) -> str:
        return f"{self.tables}threads t JOIN {self.tables}branches b USING ({self.owner}branch)"

    def fork(self, thread: str, at_seq: int, name: str | None = None) -> str:
        with self._changing():
            branch, seq, _ = self._tip(thread)
            check_fork(thread, at_seq, seq)
            if name is None:
                name = free_name(f"{thread}@{at_seq}", self._has)
            child = self._new_branch(*self._source(thread, at_seq))
            windows = f"{self.tables}windows"
            query = f"INSERT INTO {windows} SELECT {self.owner}?, body FROM {windows} WHERE branch = ?"
            self._write(query, (child, branch))
            self._name(name, child)
        return name

    def find(self, entry_id: str) -> tuple[str, Entry] | None:
        bounds, entries = id_range(entry_id), f"{self.tables}entries"
        if bounds is None:
            return None
        with self.index.snapshot():
            among = f"SELECT DISTINCT id FROM {entries} WHERE id >= ? AND id <= ? ORDER BY id LIMIT 2"
            ids = self._rows(among, [*map(self._kept_id, bounds)])
            if not ids:
                return None
            written = [self._written_id(id) for (id,) in ids]
            if len(ids) > 1:
                raise ambiguous(entry_id, *written)
            places = self._rows(f"SELECT branch, seq FROM {entries} WHERE id = ? ORDER BY branch", ids[0])
            holders = ((self.index.holder(branch, seq), seq) for branch, seq in places)
            thread, seq = next((place for place in holders if place[0]), ("", 0))
        if not thread:
            raise DamageError(f"entry {written[0]} belongs to no thread")
        return thread, self.read(thread, after=seq - 1, limit=1)[0]

    def window(self, thread: str) -> Json:
        return self._saved_json(thread, "windows", "body", "the window")

    def save_window(self, thread: str, window: Json, expected: str | None = None) -> None:
        row = {"body": saved_text(window)}
        with self._changing():
            if not self._has(thread):
                self._name(thread, self._new_branch())
            if expected not in (None, saved_digest(self.window(thread))):
                hint = "Read `thread.window` again, and repeat the change."
                raise ConflictError(f"the window of thread {thread!r} was changed by another", hint=hint)
            self._keep(thread, "windows", row)

    def get_state(self, thread: str, key: str) -> Json:
        return self._saved_json(thread, "state", "value", f"the state {key!r}", key)

    def _saved_json(self, thread: str, table: str, column: str, label: str, *key: str) -> Json:
        """JSON that was saved with a thread; a DamageError says what cannot be read."""
        of_key = " AND key = ?" if key else ""
        saved = f"SELECT {self.raw_text.format(column)} FROM {self.tables}{table} s WHERE s.branch = t.branch{of_key}"
        (stored,) = self._row(thread, f"SELECT ({saved}) FROM {self.tables}threads t WHERE t.name = ?", *key)
        return read_saved(stored, label, thread)

    def set_state(self, thread: str, key: str, value: Json) -> None:
        # Derived, as the checkpoint is: if a crash loses it, it is made again.
        if not self._keep(thread, "state", {"key": key, "value": saved_text(value)}, durable=False):
            raise no_thread(thread)

    def checkpoint(self, thread: str) -> bytes | None:
        tables = f"{self.tables}threads t LEFT JOIN {self.tables}checkpoints USING ({self.owner}branch)"
        sha256, body = self._row(thread, f"SELECT sha256, body FROM {tables} WHERE t.name = ?")
        return body if isinstance(body, bytes) and sha256_hex(body) == sha256 else None

    def save_checkpoint(self, thread: str, state: bytes) -> None:
        if not self._keep(thread, "checkpoints", {"sha256": sha256_hex(state), "body": state}, durable=False):
            raise no_thread(thread)

    def _keep(self, thread: str, table: str, row: Mapping[str, object], durable: bool = True) -> bool:
        """Save a row with a thread, replacing the one with the same `key`; whether there is such a thread."""
        check_name(thread)
        unique = f"{self.owner}branch{', key' if 'key' in row else ''}"
        replaced = ", ".join(f"{name} = excluded.{name}" for name in row if name != "key")
        query = f"""
            INSERT INTO {self.tables}{table} SELECT {self.owner}branch{", ?" * len(row)} FROM {self.tables}threads
            WHERE name = ? ON CONFLICT ({unique}) DO UPDATE SET {replaced} RETURNING 1
        """
        return bool(self._write(query, (*row.values(), thread), durable))

    def _row(self, thread: str, query: str, *values: object) -> Any:
        """The row of a query whose last value is the thread's name; a NotFound if there is none."""
        check_name(thread)
        rows = self._rows(query, (*values, thread))
        if not rows:
            raise no_thread(thread)
        return rows[0]

    def _tip(self, thread: str) -> Tip:
        """Where a thread ends; a NotFound if there is no such thread."""
        tip = self._find_tip(thread)
        if not tip.branch:
            raise no_thread(thread)
        return tip

    def _find_tip(self, thread: str) -> Tip:
        """Where a thread ends; branch 0 if there is no such thread."""
        check_name(thread)
        rows = self._rows(f"SELECT b.branch, b.seq, {self.tip_id} FROM {self._ends} WHERE t.name = ?", (thread,))
        return Tip(*rows[0]) if rows else Tip()

    def _source(self, thread: str, at_seq: int) -> tuple[int | None, int, str | bytes]:
        """The branch that itself holds entry at_seq of a thread, at_seq, and that entry's stored id."""
        places: list[tuple[int, int, str | bytes]] = self._rows(self._place, (thread, at_seq))
        if at_seq and not places:
            raise bad_entry(thread, at_seq, "it is missing")
        return places[0] if places else (None, 0, "")

    @property
    def _place(self) -> str:
        """A query for where an entry of a thread is; its values are the thread's name and the seq."""
        pieces = PIECES.format(tables=self.tables, owner=self.owner)
        entries = f"piece p JOIN {self.tables}entries e ON e.branch = p.branch AND e.seq = ?"
        return f"{pieces} SELECT e.branch, e.seq, e.id FROM {entries} WHERE p.low < e.seq AND e.seq <= p.high"

    def _has(self, thread: str) -> bool:
        return bool(self._find_tip(thread).branch)

    def _new_branch(self, parent: int | None = None, at_seq: int = 0, tip: str | bytes = "") -> int:
        """Insert a branch that begins behind entry at_seq of its parent, whose id is `tip`."""
        return int(self._write(self.branch_query, (parent, at_seq, at_seq, tip))[0][0])

    def _name(self, thread: str, branch: int) -> None:
        if self._has(thread):
            raise name_taken(thread)
        named = f"SELECT {self.owner}?, branch FROM {self.tables}branches WHERE branch = ?"
        self._write(f"INSERT INTO {self.tables}threads {named}", (thread, branch))

    def delete(self, thread: str) -> None:
        with self._changing():
            branch = self._tip(thread).branch
            self._write(f"DELETE FROM {self.tables}threads WHERE name = ?", (thread,))
            for table in ("windows", "state", "checkpoints"):
                self._write(f"DELETE FROM {self.tables}{table} WHERE branch = ?", (branch,))
            self._forget(self._prune(branch))

    def _prune(self, branch: int | None) -> list[Any]:
        """Delete what no thread reaches any more, from a branch that lost its name upwards; the ids of deleted entries."""
        ids, threads, branches = list[Any](), f"{self.tables}threads", f"{self.tables}branches"
        forked = f"(SELECT max(f.at_seq) FROM {branches} f WHERE f.parent = b.branch)"
        about = f"SELECT b.parent, b.at_seq, {forked} FROM {branches} b WHERE b.branch = ?"
        tip = f"coalesce((SELECT id FROM {self.tables}entries e WHERE e.branch = b.branch AND e.seq = ?), b.tip)"
        while branch is not None and not self._rows(f"SELECT 1 FROM {threads} WHERE branch = ?", (branch,)):
            ((parent, begin, used),) = self._rows(about, (branch,))
            ids += self._cut(branch, begin if used is None else used)
            if used is not None:
                query = f"UPDATE {branches} AS b SET seq = ?, tip = {tip}{self.nameless} WHERE branch = ?"
                self._write(query, (used, used, branch))
                break
            self._write(f"DELETE FROM {branches} WHERE branch = ?", (branch,))
            branch = parent
        return ids

    def _cut(self, branch: int, keep: int) -> list[Any]:
        """Delete the entries of a branch behind seq `keep`; their stored ids, which may be damaged."""
        query = f"DELETE FROM {self.tables}entries WHERE branch = ? AND seq > ? RETURNING {self.raw_text.format('id')}"
        return [id for (id,) in self._write(query, (branch, keep))]

    @abstractmethod
    def _forget(self, ids: list[Any]) -> None:
        """Delete the words and vectors of those of these entries that no thread holds any more."""


# Records; every version is kept until the record is deleted.

# A record's number, its body as bytes (damaged text could not be read otherwise), and the body's hash.
BODY = "n, CAST (body AS BLOB), sha256"
_HINT = "Restore the file from a copy; `quire log verify` names the first record that does not hold."


def damage_error(n: int, problem: str) -> DamageError:
    return DamageError(f"record rec-{n} is damaged: {problem}", hint=_HINT)


def sound_body(row: Sequence[Any]) -> str:
    """A stored body; a DamageError if it is not what was written."""
    n, body, sha256 = row
    if not isinstance(body, bytes) or sha256_hex(body) != sha256:
        raise damage_error(n, "its stored bytes have changed (checksum)")
    return body.decode()


class RecordQueries(Tables):
    """The part of a `RecordTable` that all databases share."""

    # The columns that `sound_body` reads, and the SQL that locks selected rows.
    body: ClassVar = BODY
    lock: ClassVar = ""

    @abstractmethod
    def _remove(self, numbers: Sequence[int]) -> None:
        """Delete records with all that was derived from them."""

    def _wipe(self) -> None:
        """Remove what is left of deleted records in the file."""

    def _version(self, n: int) -> int | None:
        """A record's version, locked until this transaction ends."""
        rows = self._rows(f"SELECT version FROM {self.tables}records WHERE n = ?{self.lock}", (n,))
        return int(rows[0][0]) if rows else None

    def remove(self, n: int, seen: int | None = None) -> bool:
        with self._transaction():
            version = self._version(n)
            if version is None or seen not in (None, version):
                return False
            self._remove([n])
        self._wipe()
        return True

    def purge(self, now: int) -> int:
        with self._transaction():
            # `+n` keeps SQLite from scanning all records in the order of n instead of using the index on expires_at.
            query = f"SELECT n FROM {self.tables}records WHERE expires_at <= ? ORDER BY +n{self.lock}"
            past = [n for (n,) in self._rows(query, (now,))]
            self._remove(past)
        self._wipe()
        return len(past)

    def clear_vectors(self) -> None:
        self._write(f"DELETE FROM {self.tables}record_vectors")

    def newest(self, n: int) -> str | None:
        return next(
            map(sound_body, self._rows(f"SELECT {self.body} FROM {self.tables}records WHERE n = ?", (n,))), None
        )

    def versions(self, n: int) -> list[str]:
        query = f"SELECT {self.body} FROM {self.tables}record_changes WHERE n = ? ORDER BY version"
        return [sound_body(row) for row in self._rows(query, (n,))]

    def beside(self, n: int, step: int, wanted: RecordFilter) -> str | None:
        where, values = self._where(wanted)
        side = "n > ? ORDER BY n" if step > 0 else "n < ? ORDER BY n DESC"
        query = f"SELECT {self.body} FROM {self.tables}records WHERE {where} AND {side} LIMIT 1"
        return next(map(sound_body, self._rows(query, [*values, n])), None)

    def count(self, wanted: RecordFilter) -> int:
        where, values = self._where(wanted)
        return int(self._rows(f"SELECT count(*) FROM {self.tables}records WHERE {where}", values)[0][0])

    def vectors(self, model: str, low: int, high: int) -> list[tuple[int, int, bytes]]:
        query = f"SELECT n, version, vector FROM {self.tables}record_vectors WHERE model = ? AND n BETWEEN ? AND ?"
        return self._rows(query, (model, low, high))

    def _where(self, criteria: RecordFilter) -> tuple[str, list[object]]:
        parts, values, tagged = ["true"], list[object](), f"(SELECT n FROM {self.tables}record_tags WHERE tag"
        if criteria.schemas:
            parts.append(f"schema_name IN ({', '.join('?' * len(criteria.schemas))})")
            values += criteria.schemas
        for tag in criteria.tags:
            parts.append(f"n IN {tagged} = ?)")
            values.append(tag)
        if criteria.no_tag:
            parts.append(f"n NOT IN {tagged} >= ? AND tag < ?)")
            values += [criteria.no_tag, criteria.no_tag[:-1] + chr(ord(criteria.no_tag[-1]) + 1)]
        if criteria.now is not None:
            parts.append("(expires_at IS NULL OR expires_at > ?)")
            values.append(criteria.now)
        return " AND ".join(parts), values
