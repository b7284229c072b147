-- The first migration: the tables of a Quire database. Every row has an owner, its tenant.
-- The parts of the large tables and the indexes of nearness are made in postgres_connection.py.
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
