"""The tables of a Quire database on PostgreSQL, as numbered migrations.

Every row has an owner, its tenant. Whoever works here does so as the role `quire_tenant`, which the database itself
keeps from seeing or writing a row of any tenant but the one that the transaction names (row-level security).
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors

from quire.errors import CallError, VersionError

ROLE = "quire_tenant"
# Held while the tables are brought up to date, so that replicas that start together do so one after the other: "QUIR".
_MIGRATING = 0x51554952
# Tenants are spread over so many parts, each thread of theirs over so many parts of those.
_TENANT_PARTS, _THREAD_PARTS = 4, 4
# Vectors of these sizes are found by an index, others by comparing each.
INDEXED_DIMENSIONS = (256, 384, 512, 768, 1024, 1536)

_TABLES = """
create table quire.tenants (
    tenant text collate "C" primary key,
    -- The newest numbers of an entry, a branch, and a row of the index. Whoever appends holds this row until the
    -- commit: so changes are numbered in the order in which they can be seen.
    change bigint not null default 0,
    branch bigint not null default 0,
    derived bigint not null default 0
) with (fillfactor = 50);
create table quire.record_numbers (
    -- The newest numbers of a record and of a change to one.
    tenant text collate "C" primary key,
    record bigint not null default 0,
    change bigint not null default 0
) with (fillfactor = 50);
create table quire.branches (
    -- A stretch of entries. A fork is a branch that begins behind at_seq of its parent, so history is shared.
    tenant text collate "C" not null,
    branch bigint not null,
    parent bigint,
    at_seq bigint not null default 0,
    seq bigint not null default 0,
    tip bytea not null default '',
    primary key (tenant, branch)
) with (fillfactor = 70);
create index on quire.branches (tenant, parent) where parent is not null;
create table quire.threads (
    tenant text collate "C" not null,
    name text collate "C" not null,
    branch bigint not null,
    primary key (tenant, name),
    unique (tenant, branch)
);
create table quire.entries (
    tenant text collate "C" not null,
    branch bigint not null,
    seq bigint not null,
    n bigint not null,
    -- The digest alone; it is written `sha256:…`.
    id bytea not null,
    -- The entry's JSON in the order given; crc is over these bytes, the id over their canonical form.
    body text not null,
    crc bigint not null,
    -- Which append wrote it: a writer that lost its connection finds out by this whether it had been heard.
    token bigint not null,
    primary key (tenant, branch, seq)
) partition by hash (tenant);
create index on quire.entries (tenant, n);
create index on quire.entries (tenant, id);
create table quire.windows (
    tenant text collate "C" not null,
    branch bigint not null,
    body text not null,
    primary key (tenant, branch)
);
create table quire.state (
    tenant text collate "C" not null,
    branch bigint not null,
    key text collate "C" not null,
    value text not null,
    primary key (tenant, branch, key)
);
create table quire.checkpoints (
    tenant text collate "C" not null,
    branch bigint not null,
    sha256 text not null,
    body bytea not null,
    primary key (tenant, branch)
);
-- Packed already: to compress it again would cost more than it saves.
alter table quire.checkpoints alter body set storage external;
create table quire.turns (
    -- Who holds a thread's turn. An append inside a turn is refused unless its number still stands here.
    tenant text collate "C" not null,
    thread text collate "C" not null,
    fence bigint not null,
    holder text not null,
    primary key (tenant, thread)
);
create table quire.words (
    -- What of an entry is searched, packed; `rules` numbers the rules by which the words were found.
    tenant text collate "C" not null,
    entry bytea not null,
    n bigint not null,
    kind text not null,
    rules integer not null,
    packed bytea not null,
    primary key (tenant, entry)
) partition by hash (tenant);
create index on quire.words (tenant, n);
create table quire.vectors (
    -- A long entry has several.
    tenant text collate "C" not null,
    entry bytea not null,
    model text collate "C" not null,
    piece integer not null,
    n bigint not null,
    dimensions integer not null,
    vector public.halfvec not null,
    primary key (tenant, entry, model, piece)
) partition by hash (tenant);
create index on quire.vectors (tenant, n);
create table quire.scopes (
    -- What a search holds ready, as arrays, so that the next process need not make it from the words.
    tenant text collate "C" not null,
    scope text collate "C" not null,
    part text collate "C" not null,
    data bytea not null,
    primary key (tenant, scope, part)
);
alter table quire.scopes alter data set storage external;
create table quire.records (
    tenant text collate "C" not null,
    n bigint not null,
    schema_name text collate "C" not null,
    version bigint not null,
    -- The number of its newest change: the order of 'recent' and 'latest', whatever clocks say.
    change bigint not null,
    expires_at bigint,
    body text not null,
    sha256 text not null,
    -- What it is found by.
    text text not null,
    primary key (tenant, n)
);
create index on quire.records (tenant, schema_name, n);
create index on quire.records (tenant, schema_name, change);
create index on quire.records (tenant, change);
create index on quire.records (tenant, expires_at) where expires_at is not null;
create table quire.record_tags (
    tenant text collate "C" not null,
    tag text collate "C" not null,
    n bigint not null,
    primary key (tenant, tag, n)
);
create index on quire.record_tags (tenant, n);
create table quire.record_changes (
    tenant text collate "C" not null,
    n bigint not null,
    version bigint not null,
    body text not null,
    sha256 text not null,
    primary key (tenant, n, version)
);
create table quire.record_words (
    -- Which records hold a word, as the full-text search of the database finds words.
    tenant text collate "C" not null,
    word text collate "C" not null,
    n bigint not null,
    primary key (tenant, word, n)
);
create index on quire.record_words (tenant, n);
create table quire.record_vectors (
    tenant text collate "C" not null,
    n bigint not null,
    model text collate "C" not null,
    version bigint not null,
    vector bytea not null,
    primary key (tenant, n, model)
);
"""

# Any appends in one transaction: those whose thread ends where its writer believes (branch, seq and tip; branch 0
# for a thread that is yet to be made) and whose turn is still theirs. Works with the rights of `quire_tenant`, so one
# statement is all that goes to the server. Told of are those that were refused (`stored` false, or null where the turn
# is another's) and the threads that were made, by their place in the list; a last row tells the newest change.
# Words are not written here: whoever searches makes those that are missing.
_APPEND = """
create or replace function quire.append(whose text, appends json, entries json)
returns table (owner integer, stored boolean, branch bigint, seq bigint, tip text)
language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    counted quire.tenants;
    asked record;
    accepted bigint[];
    written bigint;
    made boolean := false;
begin
    owner := 0;
    -- The row is held from here on; what is refused below gives its numbers back before anybody sees them.
    update quire.tenants t set change = change + json_array_length(entries) returning * into counted;
    counted.change := counted.change - json_array_length(entries);
    for asked in select * from json_to_recordset(appends) as given (
        thread text, branch bigint, seq bigint, tip text, "end" bigint, end_tip text, fence bigint)
    loop
        owner := owner + 1;
        branch := asked.branch;
        stored := null;
        if asked.fence = 0 or exists (
            select from quire.turns t where t.thread = asked.thread and t.fence = asked.fence
        ) then
            update quire.branches b set seq = asked."end", tip = decode(asked.end_tip, 'hex')
            where b.branch = asked.branch and b.seq = asked.seq and b.tip = decode(asked.tip, 'hex')
                and not b.nameless;
            stored := found;
            if asked.branch = 0 and not exists (select from quire.threads t where t.name = asked.thread) then
                stored := true;
                made := true;
                counted.branch := counted.branch + 1;
                branch := counted.branch;
                insert into quire.branches
                values (me, counted.branch, null, 0, asked."end", decode(asked.end_tip, 'hex'));
                insert into quire.threads values (me, asked.thread, counted.branch);
            end if;
        end if;
        accepted := accepted || case when stored then branch end;
        if stored is not true or asked.branch = 0 then
            branch := 0;
            seq := 0;
            tip := '';
            select b.branch, b.seq, encode(b.tip, 'hex') into branch, seq, tip
            from quire.threads t join quire.branches b using (tenant, branch) where t.name = asked.thread;
            return next;
        end if;
    end loop;
    insert into quire.entries
    select me, accepted[e.owner], e.seq, counted.change + row_number() over (order by e.owner, e.seq),
        decode(e.id, 'hex'), e.body, e.crc, e.token
    from json_to_recordset(entries) as e (
        owner integer, seq bigint, id text, body text, crc bigint, token bigint)
    where accepted[e.owner] is not null;
    get diagnostics written = row_count;
    if written <> json_array_length(entries) or made then
        update quire.tenants t set change = counted.change + written, branch = counted.branch;
    end if;
    owner := 0;
    seq := counted.change + written;
    return next;
end
$$;
"""

# What most appends are, in fewer steps: one entry behind the end of a thread that is there. Answers with the newest change;
# with 0 where the thread ends elsewhere, with -1 where the turn is another's.
_APPEND_ONE = """
create or replace function quire.append_one(
    whose text, thread text, branch bigint, seq bigint, tip bytea, fence bigint, token bigint, id bytea, body text,
    crc bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    newest bigint;
begin
    -- The row is held from here on; what is refused below gives its number back before anybody sees it.
    update quire.tenants t set change = t.change + 1 returning t.change into newest;
    if fence <> 0 then
        if not exists (select from quire.turns t where t.thread = append_one.thread and t.fence = append_one.fence) then
            update quire.tenants t set change = t.change - 1;
            return -1;
        end if;
    end if;
    update quire.branches b set seq = b.seq + 1, tip = append_one.id
    where b.branch = append_one.branch and b.seq = append_one.seq and b.tip = append_one.tip and not b.nameless;
    if not found then
        update quire.tenants t set change = t.change - 1;
        return 0;
    end if;
    insert into quire.entries values (me, append_one.branch, append_one.seq + 1, newest, append_one.id, append_one.body,
        append_one.crc, append_one.token);
    return newest;
end
$$;
"""

# Several appends to threads that are there, by columns: a list has a place for each append, or one for each entry.
# Answers with the newest change and the places of those that were refused, below 0 where the turn is another's.
_APPEND_SEVERAL = """
create or replace function quire.append_several(
    whose text, threads text[], branches bigint[], seqs bigint[], tips bytea[], fences bigint[], tokens bigint[],
    ends bigint[], end_tips bytea[], owners bigint[], places bigint[], ids bytea[], bodies text[], crcs bigint[])
returns bigint[] language plpgsql security definer set search_path = pg_catalog
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    me text := set_config('quire.tenant', whose, true);
    asked bigint := cardinality(ids);
    newest bigint;
    accepted bigint[];
    lost bigint[];
    written bigint;
begin
    update quire.tenants t set change = change + asked returning change into newest;
    lost := array(
        select owner from unnest(threads, fences) with ordinality as given (thread, fence, owner)
        where fence <> 0 and not exists (
            select from quire.turns t where t.thread = given.thread and t.fence = given.fence));
    with moved as (
        update quire.branches b set seq = given."end", tip = given.end_tip
        from unnest(threads, branches, seqs, tips, ends, end_tips) with ordinality
            as given (thread, branch, seq, tip, "end", end_tip, owner), quire.threads t
        where t.name = given.thread and t.branch = given.branch and given.owner <> all (lost)
            and b.branch = given.branch and b.seq = given.seq and b.tip = given.tip
        returning given.owner
    )
    select array_agg(owner) into accepted from moved;
    insert into quire.entries
    select me, branches[e.owner], e.seq, newest - asked + row_number() over (order by e.place), e.id, e.body, e.crc,
        tokens[e.owner]
    from unnest(owners, places, ids, bodies, crcs) with ordinality as e (owner, seq, id, body, crc, place)
    where e.owner = any (accepted);
    get diagnostics written = row_count;
    if written <> asked then
        newest := newest - asked + written;
        update quire.tenants t set change = newest;
    end if;
    return newest || array(
        select case when owner = any (lost) then -owner else owner end
        from generate_series(1, cardinality(threads)) as owner where owner = any (accepted) is not true);
end
$$;
"""


def _parts() -> str:
    """The parts of the large tables: by tenant, and of the entries also by thread."""
    statements = []
    for table in ("entries", "words", "vectors"):
        for tenant in range(_TENANT_PARTS):
            part = f"quire.{table}_{tenant}"
            by = " partition by hash (branch)" if table == "entries" else ""
            with_ = f"with (modulus {_TENANT_PARTS}, remainder {tenant})"
            statements.append(f"create table {part} partition of quire.{table} for values {with_}{by};")
            for thread in range(_THREAD_PARTS if by else 0):
                with_ = f"with (modulus {_THREAD_PARTS}, remainder {thread})"
                statements.append(f"create table {part}_{thread} partition of {part} for values {with_};")
    return "\n".join(statements)


def _near() -> str:
    """An index of nearness for each usual size of a vector."""
    return "\n".join(
        f"create index on quire.vectors using hnsw ((vector::public.halfvec({size})) public.halfvec_cosine_ops) "
        f"where dimensions = {size};"
        for size in INDEXED_DIMENSIONS
    )


# What entries are is settled when they are written: nobody may change one. A transaction that names no tenant (it may find
# the empty text that is left of an earlier one's) sees nothing and writes nothing.
_OWNED = """
do $$
declare
    found text;
    own text := 'tenant = nullif(current_setting(''quire.tenant'', true), '''')';
begin
    for found in select c.relname from pg_class c join pg_namespace s on s.oid = c.relnamespace
        where s.nspname = 'quire' and c.relkind in ('r', 'p') and c.relname <> 'versions'
    loop
        execute format('alter table quire.%I enable row level security', found);
        execute format('alter table quire.%I force row level security', found);
        execute format('create policy own on quire.%I using (%s) with check (%s)', found, own, own);
        execute format('grant select, insert, update, delete on quire.%I to quire_tenant', found);
        if found like 'entries%' then
            execute format('revoke update on quire.%I from quire_tenant', found);
        end if;
    end loop;
    grant usage on schema quire to quire_tenant;
end
$$;
grant select on quire.versions to quire_tenant;
"""

# A branch that lost its name and is kept for its forks says so itself: an append need not look for the thread.
_NAMELESS = """
alter table quire.branches add column nameless boolean not null default false;
alter table quire.branches no force row level security;
alter table quire.threads no force row level security;
update quire.branches b set nameless = true
where not exists (select from quire.threads t where t.tenant = b.tenant and t.branch = b.branch);
alter table quire.branches force row level security;
alter table quire.threads force row level security;
"""

# A released migration never changes; the next one is appended.
MIGRATIONS: tuple[str, ...] = (f"{_TABLES}{_parts()}{_near()}{_OWNED}", _NAMELESS)

# Functions hold nothing: they are made anew behind each migration.
_FUNCTIONS = f"""
{_APPEND}{_APPEND_ONE}{_APPEND_SEVERAL}
do $$
declare
    found text;
begin
    grant create on schema quire to quire_tenant;
    for found in select proname from pg_proc where pronamespace = 'quire'::regnamespace loop
        execute format('alter function quire.%I owner to quire_tenant', found);
        execute format('revoke execute on function quire.%I from public', found);
    end loop;
    revoke create on schema quire from quire_tenant;
end
$$;
"""

# Roles belong to the whole server: another database of it may have made this one, now or long ago.
_MAKE_ROLE = f"""
do $$ begin
    create role {ROLE} nologin nosuperuser nobypassrls;
exception when duplicate_object or unique_violation then null;
end $$
"""


def migrate(conn: psycopg.Connection[Any], name: str, scripts: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring a database up to date, in one transaction; replicas that come meanwhile wait. Refuses a newer one."""
    if _version(conn, name, scripts) == len(scripts):
        return
    try:
        with conn.transaction():
            conn.execute("select pg_advisory_xact_lock(%s)", (_MIGRATING,))
            version = _version(conn, name, scripts)
            if version == len(scripts):
                return
            _prepare(conn, name)
            for number, script in enumerate(scripts[version:], version + 1):
                conn.execute(script)
                conn.execute("insert into quire.versions (version) values (%s)", (number,))
            conn.execute(_FUNCTIONS)
    except errors.InsufficientPrivilege as error:
        raise CallError(
            f"{name}: the tables cannot be made or brought up to date: {error.diag.message_primary}",
            hint="Open it once with a login that may create roles and extensions, or have one made: docs/postgres.md.",
        ) from error


def _version(conn: psycopg.Connection[Any], name: str, scripts: tuple[str, ...]) -> int:
    table = conn.execute("select to_regclass('quire.versions') is not null").fetchone()
    if not table or not table[0]:
        return 0
    row = conn.execute("select coalesce(max(version), 0) from quire.versions").fetchone()
    version = int(row[0]) if row else 0
    if version > len(scripts):
        raise VersionError(f"{name} was written by a newer Quire (version {version}, this one knows {len(scripts)})")
    return version


def _prepare(conn: psycopg.Connection[Any], name: str) -> None:
    """What tables need around them: text that is UTF-8, vectors, a role, a place."""
    encoding = conn.execute("show server_encoding").fetchone()
    if encoding and encoding[0] != "UTF8":
        raise CallError(f"{name} keeps text as {encoding[0]}", hint="Make a database with encoding UTF8.")
    try:
        with conn.transaction():
            conn.execute("create extension if not exists vector with schema public")
    except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
        raise CallError(
            f"{name} has no pgvector: {error.diag.message_primary}",
            hint="Install the extension `vector` (pgvector 0.8 or newer) on the server.",
        ) from error
    conn.execute(_MAKE_ROLE)
    member = conn.execute("select pg_has_role(current_user, %s, 'set')", (ROLE,)).fetchone()
    if not member or not member[0]:
        conn.execute(f"grant {ROLE} to current_user")
    conn.execute("create schema if not exists quire")
    conn.execute(
        "create table if not exists quire.versions (version integer primary key, at timestamptz not null default now())"
    )
