"""What only a store on a server has: tenants kept apart by the database, fenced turns, replicas that start together."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hashed_words import HashedWords
from quire import Entry, Policy, Thread, open_store, values
from quire.cli.output import place_name
from quire.errors import CallError, ConflictError, NotFound, QuireError, VersionError
from quire.log import postgres_connection
from quire.log.postgres import PostgresStore
from quire.log.postgres_connection import Database, TenantSession
from quire.log.postgres_tables import nearest_query
from quire.recall import Indexer, Recall, search
from quire.records import Records
from quire.testing import postgres_server
from toolbox import Store, free_port, new_tenant, run, texts, until, users

# The whole length is run at night: what is measured does not grow with it.
ENTRIES = 50_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 10_000
TABLES = """select c.relname from pg_class c join pg_namespace s on s.oid = c.relnamespace
where s.nspname = 'quire' and c.relkind in ('r', 'p') and c.relname <> 'versions' order by 1"""

# A thread whose parent was deleted, and one that is empty.
FIRST_VERSION_ROWS = (
    "insert into quire.tenants values ('acme', 0, 3)",
    "insert into quire.branches values ('acme', 1, null, 0), ('acme', 2, 1, 0), ('acme', 3, null, 0)",
    "insert into quire.threads values ('acme', 'fork', 2), ('acme', 't', 3)",
    # A way to append that there was then.
    "create function quire.append(whose text, appends json) returns bigint language sql as 'select 1'",
)


@pytest.fixture
def store(pg_url: str):
    with open_store(pg_url, new_tenant()) as opened:
        yield opened


def filled(url: str, tenant: str) -> Store:
    """A store with something in every table."""

    store = open_store(url, tenant)
    store.append("t", users("My dog is called Rex", "I like tea"))
    store.fork("t", 1, "fork")
    store.save_window("t", {"items": []})
    store.set_state("t", "k", 1)
    store.save_checkpoint("t", b"x")
    Indexer(store, HashedWords()).run()
    store.index.save_state("t", {"about": b"x"})
    Records(store, HashedWords()).create("note.v1", {"text": "a walrus"}, tags=["zoo"])
    Records(store, HashedWords()).index()
    return store


def test_no_row_of_another_tenant_can_be_seen_changed_or_made_whatever_is_asked(pg_url: str) -> None:
    ours, theirs = new_tenant(), new_tenant()
    with (
        filled(pg_url, theirs) as other,
        other.turn_lock("t"),
        open_store(pg_url, ours) as store,
        closing(TenantSession(pg_url, ours)) as session,  # a store's way to the database, past all that it would ask
    ):
        entry = other.read("t")[0]
        tables = [name for (name,) in session.rows(TABLES)]
        assert {"entries", "turns", "record_vectors", "scopes", "vectors"} <= set(tables)
        with psycopg.connect(pg_url) as root:
            owned = {
                table: root.execute(f"select count(*) from quire.{table} where tenant = %s", (theirs,)).fetchone()
                for table in tables
            }
        full = [table for table, row in owned.items() if row and row[0]]
        assert {name.split("_")[0] for name in full} >= {"entries", "words", "vectors", "record", "records", "turns"}
        for table in tables:
            assert session.rows(f"select 1 from quire.{table} where tenant = %s", (theirs,)) == []
            verbs = ["delete from quire.{} where tenant = %s returning 1"]
            if not table.startswith("entries"):
                verbs.append("update quire.{} set tenant = tenant where tenant = %s returning 1")
            for verb in verbs:
                assert session.rows(verb.format(table), (theirs,)) == []
        with pytest.raises(CallError, match="row-level security"):
            session.rows("insert into quire.threads values (%s, 'x', 1)", (theirs,))
        with pytest.raises(CallError, match="row-level security"):
            session.rows("insert into quire.tenants (tenant) values (%s)", (f"{theirs}x",))
        with pytest.raises(CallError, match="permission denied"):
            session.rows("update quire.entries set body = '{}'")
        assert (store.threads(), store.changes(), store.find(entry.id), store.last_change()) == ([], [], None, 0)
        assert Records(store).list() == Records(store).search("walrus") == []
        assert Recall(store).search("dog") == []
        with pytest.raises(NotFound):
            store.read("t")
        assert other.read("t")[0] == entry
        assert other.verify().entries == 2


def test_a_connection_that_names_no_tenant_sees_nothing(pg_url: str) -> None:
    with filled(pg_url, new_tenant()), psycopg.connect(pg_url) as conn:
        conn.execute("set local role quire_tenant")
        assert conn.execute("select count(*) from quire.entries").fetchone() == (0,)


def test_a_small_tenant_finds_by_meaning_among_a_large_one(pg_url: str) -> None:
    numpy = pytest.importorskip("numpy")
    dice = numpy.random.default_rng(0)

    def fill(store: Store, count: int) -> list[bytes]:
        made = dice.standard_normal((count, 256)).astype("<f2")
        entries = store.append("t", users(*(f"entry {n}" for n in range(count))))
        packed = [row.tobytes() for row in made]
        store.index.add_vectors("m", 256, dict(zip([entry.id for entry in entries], packed, strict=True)))
        return packed

    # So few would be compared one by one; the index shall be used, and both tenants lie in one part of the table.
    url = f"{pg_url}&options=-c%20enable_sort%3Doff"
    first, same = new_tenant(), "satisfies_hash_partition('quire.vectors'::regclass, 4, %s, %s::text)"
    with open_store(url, first) as large, psycopg.connect(pg_url) as root:

        def part(tenant: str) -> int:
            return next(n for n in range(4) if root.execute(f"select {same}", (n, tenant)).fetchone() == (True,))

        second = next(tenant for tenant in iter(new_tenant, "") if part(tenant) == part(first))
        with open_store(url, second) as small, closing(TenantSession(url, second)) as session:
            fill(large, 500)
            own = fill(small, 5)
            for at, vector in enumerate(own):
                found = small.index.nearest("m", 256, vector, 3)
                assert len(found) == 3
                assert found[0] == small.read("t", at, 1)[0].id
                assert set(found) <= {entry.id for entry in small.read("t")}
            assert [data for _, data in small.index.vectors("m")] == own
            far = f"[1{',0' * 255}]"
            plan = str(session.rows("explain " + nearest_query(256), (far, "m", far, 3)))
            assert "Order By" in plan, plan
            # What the database does unless told otherwise, and why it is.
            assert len(session.rows(nearest_query(256), (far, "m", far, 3))) < 3


def test_among_many_entries_the_store_is_asked_for_the_nearest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:

    store.append("a", users("My dog is called Rex", "I like green tea", "It rains"))
    store.append("b", users("The train leaves at nine", "Dogs do growl", "Zebras"))
    Indexer(store, HashedWords()).run()

    def found() -> list[tuple[str, float, str]]:
        return [(hit.id, hit.score, hit.by) for hit in Recall(store, HashedWords()).search("dog called", 6)]

    held = found()
    asked, nearest = [], store.index.nearest
    monkeypatch.setattr(store.index, "nearest", lambda *what: asked.append(what) or nearest(*what))
    assert (found(), asked) == (held, [])
    monkeypatch.setattr(search, "_MANY", 1)
    assert found() == held
    assert asked
    assert Recall(store, HashedWords()).without_meaning() == 0


def test_a_turn_that_was_taken_over_writes_nothing_more(pg_url: str) -> None:
    tenant = new_tenant()
    with PostgresStore(pg_url, tenant=tenant) as first, first.turn_lock("t"):
        first.append("t", users("mine"))
        # The server loses the connection that holds the lock; the process goes on without noticing.
        with psycopg.connect(pg_url, autocommit=True) as root:
            root.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'quire turns'"
            )
        first.append("t", users("still mine: nobody took it"))
        holder = taker(pg_url, tenant)
        with pytest.raises(ConflictError, match="was taken over"):
            first.append("t", users("too late"))
        holder.communicate("\n", timeout=600)
        with pytest.raises(ConflictError, match="was taken over"):
            first.append("t", users("still", "too late"))
        assert texts(first, "t") == ["mine", "still mine: nobody took it", "theirs"]


def append_together(store: PostgresStore, url: str, *appends: tuple[str, list[Entry]]) -> None:
    """Append in an OS thread each while the tenant's row is held: all but one have to wait, and then share a commit."""
    with psycopg.connect(url) as root, ThreadPoolExecutor(len(appends)) as pool:
        root.execute("select 1 from quire.tenants where tenant = %s for update", (store.tenant,))
        asked = [pool.submit(store.append, *each) for each in appends]
        until(lambda: store._commits._waiting.qsize() >= len(appends) - 2)  # besides the first, and the next to be sent
        root.rollback()
        for each in asked:
            each.result(600)


def test_appends_that_share_a_commit_are_numbered_without_a_gap(pg_url: str) -> None:
    with PostgresStore(pg_url, new_tenant()) as store:
        store.append("p", users("p1"))
        store.append("q", users("q1"))
        # Threads that begin alike, one that is there with several entries, and one that two append to.
        two = [("q", users("q2")), ("q", users("q2"))]
        append_together(store, pg_url, *[(name, users("Hello")) for name in "abc"], ("p", users("p2", "p3")), *two)
        assert len({store.read(name)[0].id for name in "abc"}) == 1
        assert [entry.text for entry in store.read("p")] == ["p1", "p2", "p3"]
        assert [entry.text for entry in store.read("q")] == ["q1", "q2", "q2"]
        assert [change.n for change in store.changes()] == list(range(1, 10))
        assert (store.verify().entries, store.last_change()) == (9, 9)
        with closing(TenantSession(pg_url, store.tenant)) as session:
            assert session.rows("select count(distinct xmin::text) from quire.entries")[0][0] < 9
        assert [hit.thread for hit in Recall(store).search("hello", thread="b")] == ["b"]


class Interrupted(Exception):
    """What a signal raises in the main OS thread."""


def interrupt(*_: object) -> None:
    raise Interrupted


def test_a_signal_while_news_are_announced_leaves_no_lock_held(pg_url: str) -> None:
    database, dice, freed = Database.shared(pg_url), random.Random(1), threading.Event()
    database.news.announce("t", 0)  # starts its OS thread, of which an interrupt would leave half
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(3000):
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.00002, 0.0003), 1)
                for n in count():
                    database.news.announce(f"t{n % 3}", n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    threading.Thread(target=lambda: (database.news.tell("t", 1), freed.set()), daemon=True).start()
    assert freed.wait(10)
    database.close()


# An interrupt that comes while Python closes a generator of psycopg's is told there and goes no further.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_in_an_append_leaves_nobody_else_waiting(pg_url: str) -> None:
    dice, ended, kept = random.Random(3), threading.Event(), list[str]()
    with PostgresStore(pg_url, new_tenant()) as store:
        store.append("main", [])

        def write(writer: int) -> int:
            for n in count():
                if ended.is_set():
                    return n
                store.append(f"t{writer}", users(f"{writer} {n}"))
            raise AssertionError

        before = signal.signal(signal.SIGALRM, interrupt)
        with ThreadPoolExecutor(6) as pool:
            try:
                running = [pool.submit(write, writer) for writer in range(6)]
                for n in range(300):
                    try:
                        # Again and again: one that comes in a finalizer is not told.
                        signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0001, 0.003), 1)
                        while True:
                            store.append("main", users(f"{n} {len(kept)}"))
                            kept.append(f"{n} {len(kept)}")
                    except Interrupted:
                        signal.setitimer(signal.ITIMER_REAL, 0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                ended.set()
            assert all(each.result(30) > 0 for each in running)
        store.append("main", users("end"))  # behind whatever was under way
        # Whoever is interrupted does not know whether it was stored; what was acknowledged is there, in order.
        stored = [entry.text for entry in store.read("main")]
        assert [text for text in stored if text in set(kept)] == kept
        assert len(set(stored)) == len(stored)
        assert store.verify("main").entries == len(stored)


TAKE = """
import sys
from quire import values
from quire.log.postgres import PostgresStore
with PostgresStore(sys.argv[1], tenant=sys.argv[2]) as store, store.turn_lock("t"):
    store.append("t", [values.user("theirs")])
    print("taken", flush=True)
    sys.stdin.readline()
"""


def taker(url: str, tenant: str) -> subprocess.Popen[str]:
    """A process that has taken the turn, until it is sent a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen([sys.executable, "-c", TAKE, url, tenant], text=True, **pipes)
    assert holder.stdout.readline() == "taken\n"
    return holder


FORK_AMID_OPENING = """
import contextlib, os, signal, socket, sys, threading
from quire import open_store
silent = socket.create_server(("127.0.0.1", 0))
def reach():
    with contextlib.suppress(Exception): open_store(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none")
threading.Thread(target=reach, daemon=True).start()
reached = silent.accept()
child = os.fork()
if not child:
    signal.alarm(60)
    open_store(sys.argv[1]).close()
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""


def test_a_child_opens_a_store_although_an_os_thread_of_its_parent_was_opening_one(pg_url: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_AMID_OPENING, pg_url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("0\n", "")


def test_a_turn_is_let_go_of_by_a_process_that_is_killed(pg_url: str) -> None:
    tenant = new_tenant()
    holder = taker(pg_url, tenant)
    with PostgresStore(pg_url, tenant=tenant) as store:
        with pytest.raises(ConflictError, match=f"by process {holder.pid} on "), store.turn_lock("t"):
            pass
        holder.kill()
        holder.communicate()

        def free() -> bool:
            with suppress(ConflictError), store.turn_lock("t"):
                return True
            return False

        until(free)


@pytest.fixture
def empty(pg_url: str) -> Iterator[str]:
    """The address of a database of its own, without a table."""
    name = new_tenant().replace("-", "_")
    with psycopg.connect(pg_url, autocommit=True) as root:
        root.execute(f"create database {name}")
        yield pg_url.replace("/postgres?", f"/{name}?")
        root.execute(f"drop database {name} with (force)")


def test_replicas_that_start_together_make_the_tables_once_and_no_old_one_opens_a_newer_database(empty: str) -> None:
    def start(_: int) -> list[str]:
        with psycopg.connect(empty, autocommit=True) as conn:
            postgres_connection.migrate(conn, "db")
        with PostgresStore(empty) as store:
            store.append("t", users("a"))
            return texts(store, "t")

    with ThreadPoolExecutor(6) as pool:
        assert sorted(map(len, pool.map(start, range(6))))[-1] == 6
    with psycopg.connect(empty, autocommit=True) as conn:
        known = postgres_connection.MIGRATIONS
        assert conn.execute("select count(*) from quire.versions").fetchone() == (len(known),)
        for _ in range(2):
            postgres_connection.migrate(conn, "db", (*known, "create table quire.later (n integer)"))
        assert conn.execute("select count(*) from quire.versions").fetchone() == (len(known) + 1,)
        with pytest.raises(VersionError, match="newer Quire"):
            postgres_connection.migrate(conn, "db")


def test_replicas_that_waited_while_another_made_the_tables_find_them(pg_url: str, empty: str) -> None:
    waiting = "select count(*) = 2 from pg_locks where locktype = 'advisory' and objid = %s and not granted"

    def start(_: int) -> None:
        with psycopg.connect(empty, autocommit=True) as conn:
            # So little is made that the server does not press the others to forget what they found before.
            postgres_connection.migrate(conn, "db", ("create table quire.once (n integer)",))

    root = psycopg.connect(pg_url, autocommit=True)
    with root, psycopg.connect(empty) as first, ThreadPoolExecutor(2) as pool:
        first.execute("create extension vector with schema public")
        first.commit()
        first.execute("select pg_advisory_xact_lock(%s)", (postgres_connection.MIGRATING,))
        started = [pool.submit(start, n) for n in range(2)]
        until(lambda: root.execute(waiting, (postgres_connection.MIGRATING,)).fetchone() == (True,))
        first.rollback()
        for each in started:
            each.result(600)


def test_what_knew_a_deleted_thread_makes_it_anew_and_writes_nothing_into_what_its_fork_keeps(pg_url: str) -> None:
    tenant = new_tenant()
    with open_store(pg_url, tenant) as other:
        for entries in (["c"], ["c", "d"], []):
            # One that never heard of what others do: it believes that its threads end where it left them.
            with open_store(pg_url, tenant) as store:
                store.append("t", users("a", "b"))
                other.fork("t", 2, "fork")
                other.delete("t")
                assert [entry.seq for entry in store.append("t", users(*entries))] == list(range(1, len(entries) + 1))
                assert (texts(other, "t"), texts(other, "fork")) == (entries, ["a", "b"])
                other.verify()
                for name in ("t", "fork"):
                    other.delete(name)


@pytest.mark.parametrize("later", [0, 2], ids=["as it was", "with two more that changed functions alone"])
def test_a_database_of_the_first_version_is_brought_up_to_date(empty: str, later: int) -> None:
    with psycopg.connect(empty, autocommit=True) as conn:
        postgres_connection.migrate(conn, "db", (postgres_connection.MIGRATIONS[0], *["select 1"] * later))
        for statement in FIRST_VERSION_ROWS:
            conn.execute(statement)
    with PostgresStore(empty, "acme") as store, psycopg.connect(empty, autocommit=True) as conn:
        assert [entry.seq for entry in store.append("t", users("one more"))] == [1]
        assert store.info("fork").parent == ""
        rows = conn.execute("select branch, nameless from quire.branches where tenant = 'acme' order by branch")
        assert rows.fetchall() == [(1, True), (2, False), (3, False)]
        forced = "select bool_and(relforcerowsecurity) from pg_class where relname in ('branches', 'threads')"
        assert conn.execute(forced).fetchone() == (True,)


def test_appends_from_everywhere_at_once_are_all_there_once_in_one_order(pg_url: str) -> None:
    tenant, per = new_tenant(), 30
    with PostgresStore(pg_url, tenant) as store:
        seen: list[int] = []

        def follow() -> None:
            while len(seen) < 8 * per and store.wait_for_change(seen[-1] if seen else 0, 600):
                seen.extend(change.n for change in store.changes(seen[-1] if seen else 0))

        def write(writer: int) -> None:
            with PostgresStore(pg_url, tenant) if writer % 2 else nullcontext(store) as own:
                for n in range(per):
                    own.append(f"t{writer % 3}", users(f"{writer} {n}"))

        with ThreadPoolExecutor(9) as pool:
            running = [pool.submit(follow), *(pool.submit(write, writer) for writer in range(8))]
        for each in running:
            each.result()
        assert seen == list(range(1, 8 * per + 1))
        told = [change.entry.text for change in store.changes()]
        assert len(set(told)) == len(told) == 8 * per
        for writer in range(8):
            assert [text for text in told if text.startswith(f"{writer} ")] == [f"{writer} {n}" for n in range(per)]
        assert store.verify().entries == 8 * per


def test_a_restart_of_the_server_loses_nothing_and_doubles_nothing() -> None:
    with postgres_server() as server, PostgresStore(server.url) as store:
        ended = threading.Event()
        written: list[list[str]] = [[], []]

        def write(writer: int) -> None:
            while not ended.is_set():
                text = f"{writer} {len(written[writer])}"
                store.append("t", users(text))
                written[writer].append(text)

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(write, writer) for writer in (0, 1)]
            for restarts in (1, 2):
                until(lambda: min(map(len, written)) >= 6 * restarts or any(each.done() for each in running))  # noqa: B023
                server.stop()
                server.start()
            ended.set()
            for each in running:
                each.result(600)
        kept = texts(store, "t")
        for writer in (0, 1):
            assert [text for text in kept if text.startswith(f"{writer} ")] == written[writer]
        assert len(kept) == sum(map(len, written)) > 20
        assert store.verify().entries == len(kept)


def test_connections_that_end_while_many_append_lose_nothing_and_double_nothing(pg_url: str) -> None:
    tenant, per = new_tenant(), 40
    with PostgresStore(pg_url, tenant) as store, psycopg.connect(pg_url, autocommit=True) as root:
        done = [0] * 6

        def write(writer: int) -> None:
            for n in range(per):
                store.append(f"t{writer}", users(f"{writer} {n}"))
                done[writer] += 1

        end = "select pg_terminate_backend(pid) from pg_stat_activity where query like 'select quire.append%'"
        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(write, writer) for writer in range(6)]
            for part in (1, 2, 3):
                until(lambda: sum(done) >= part * 50 or any(each.done() for each in running))  # noqa: B023
                root.execute(end)
            for each in running:
                each.result(600)
        for writer in range(6):
            assert texts(store, f"t{writer}") == [f"{writer} {n}" for n in range(per)]
        assert [change.n for change in store.changes()] == list(range(1, 6 * per + 1))


class Counted(PostgresStore):
    """A store that counts the entries it was asked for."""

    entries_read = 0

    def read(self, *where: Any, **how: Any) -> list[Entry]:
        found = super().read(*where, **how)
        self.entries_read += len(found)
        return found


def test_a_long_thread_is_served_from_its_checkpoint_and_the_little_behind_it(pg_url: str) -> None:
    tenant, target = new_tenant(), "anthropic:claude-opus-5-5"
    policy = Policy(budget=16_000, summary=0, handles=0)
    with PostgresStore(pg_url, tenant=tenant) as store:
        thread = Thread(store, "long", policy, observers=())
        for at in range(0, ENTRIES, 10_000):
            asked = [(f"q {n} {'word ' * 30}", f"a {n} {'word ' * 30}") for n in range(at, at + 10_000, 2)]
            thread.append(*(each for q, a in asked for each in (values.user(q), values.respond(a))))
        thread.request(target)
        thread.append(values.user("and now?"))
    with Counted(pg_url, tenant=tenant) as replica:
        request = Thread(replica, "long", policy, observers=()).request(target)
        assert request.body["messages"][-1]["content"][-1]["text"].endswith("and now?")
        assert 0 < replica.entries_read < 500


def test_an_address_that_leads_nowhere_is_an_error_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="cannot open postgresql://me@/nowhere/quire") as caught:
        open_store("postgresql://me:secret-word@/quire?host=/nowhere")
    assert "secret-word" not in f"{caught.value}{caught.value.hint}"
    with pytest.raises(CallError, match=r"127\.0\.0\.1.*: Connection refused$"):
        open_store("postgresql://me@127.0.0.1:1/quire")
    for address in (
        "postgresql://me:secret word@host/q",
        "postgresql://host/q?password=secret%wo",
        "postgresql://me:secret/@host/q",
    ):
        with pytest.raises(CallError, match="cannot be read") as caught:
            open_store(address)
        assert "secret" not in f"{caught.value}{caught.value.hint}"
    assert "secret" not in place_name("postgresql://host/quire?sslmode=require&password=secret")
    with pytest.raises(CallError, match="cannot be a tenant's name"):
        open_store(tmp_path / "q.db", "../up")


def test_tenants_of_a_file_have_a_file_each(tmp_path: Path) -> None:
    for tenant in ("default", "acme"):
        with open_store(tmp_path / "q.db", tenant) as store:
            assert store.threads() == []
            store.append(tenant, users("a"))
    assert {file.name for file in tmp_path.glob("*.db")} == {"q.db", "q.acme.db"}


def test_the_shell_works_on_a_server(pg_url: str, home: Path) -> None:
    thread = new_tenant()
    run("log", "new", thread, "--db", pg_url)
    run("log", "append", thread, "--user", "What is a quire?", "--db", pg_url)
    assert "What is a quire?" in run("log", "show", thread, QUIRE_DB=pg_url)
    assert "quire" in run("recall", "quire", "--thread", thread, "--words", "--db", pg_url)
    assert '"messages"' in run("render", thread, "-p", "anthropic", "-m", "claude-opus-5-5", "--json", "--db", pg_url)
    run("log", "delete", thread, "--yes", "--db", pg_url)


def test_what_waits_for_the_tenants_row_is_told_so(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = new_tenant()
    with (
        PostgresStore(pg_url, tenant=tenant) as store,
        closing(TenantSession(pg_url, tenant)) as session,
        psycopg.connect(pg_url) as root,
    ):
        root.execute("select * from quire.tenants where tenant = %s for update", (tenant,))
        asked = "select set_config('lock_timeout', '50', true), (select change from quire.tenants for update)"
        with pytest.raises(ConflictError, match="in the way"):
            session.rows(asked)
        root.rollback()
        store.append("t", users("a"))


def test_a_turn_that_could_not_be_taken_or_given_back_properly_is_free_for_others(pg_url: str) -> None:
    tenant, hurried = new_tenant(), f"{pg_url}&options=-c%20statement_timeout%3D100"
    with open_store(hurried, tenant) as store, open_store(pg_url, tenant) as other, psycopg.connect(pg_url) as root:
        store.append("t", users("a"))
        hold = "select * from quire.tenants where tenant = %s for update"
        root.execute(hold, (tenant,))
        with pytest.raises(QuireError, match="statement timeout") as caught, store.turn_lock("t"):
            pass
        assert "`statement_timeout`" in caught.value.hint
        root.rollback()
        with other.turn_lock("t"):
            pass
        with store.turn_lock("t"):
            root.execute("select * from quire.turns where tenant = %s for update", (tenant,))
        root.rollback()
        with other.turn_lock("t"):
            pass


@pytest.mark.parametrize("others", [0, 1])
def test_a_store_that_was_closed_does_nothing_more_and_keeps_no_turn(pg_url: str, others: int) -> None:
    tenant, counted = new_tenant(), "select count(*) from pg_stat_activity where application_name = 'quire turns'"
    with psycopg.connect(pg_url, autocommit=True) as root, ExitStack() as stack:
        before = root.execute(counted).fetchone()
        besides = [stack.enter_context(open_store(pg_url, tenant)) for _ in range(others)]
        store = open_store(pg_url, tenant)
        store.append("t", users("a"))
        with store.turn_lock("t"):
            store.close()
        assert not any(other.turn_held("t") for other in besides)
        for use in (
            lambda: store.read("t"),
            lambda: store.append("t", users("b")),
            lambda: store.wait_for_change(0, 0.01),
            lambda: store.turn_lock("t").__enter__(),
        ):
            with pytest.raises(CallError, match="was closed here before"):
                use()
        stack.close()
        until(lambda: root.execute(counted).fetchone() == before)


@pytest.mark.skipif(not shutil.which("pgbouncer"), reason="pgbouncer is not installed")
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_serves_in_session_mode_alone(pg_url: str, tmp_path: Path, mode: str) -> None:
    folder, port, config = pg_url.partition("host=")[2], free_port(), tmp_path / "pgbouncer.ini"
    settings = (
        f"listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=any\nuser=nobody\npool_mode={mode}"
    )
    config.write_text(f"[databases]\n*=host={folder} user=postgres\n[pgbouncer]\n{settings}\n")
    process = subprocess.Popen(["pgbouncer", "-q", config])
    try:
        with socket.socket() as probe:
            until(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
        refused = pytest.raises(CallError, match="pooler in transaction mode")
        with nullcontext() if mode == "session" else refused:
            address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            with open_store(address, new_tenant()) as store, store.turn_lock("t"):
                store.append("t", users("a"))
    finally:
        process.kill()
        process.wait()
