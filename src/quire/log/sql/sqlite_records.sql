-- Version 1: records.
CREATE TABLE records (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    schema_name TEXT NOT NULL,
    version INTEGER NOT NULL,
    -- The number of its newest change: the order of 'recent' and 'latest', whatever clocks say.
    change INTEGER NOT NULL,
    expires_at INTEGER,
    body TEXT NOT NULL
);
CREATE INDEX records_by_schema ON records (schema_name, n);
CREATE INDEX records_by_schema_change ON records (schema_name, change);
CREATE INDEX records_by_change ON records (change);
CREATE INDEX records_by_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE record_tags (
    tag TEXT NOT NULL,
    n INTEGER NOT NULL REFERENCES records (n) ON DELETE CASCADE,
    PRIMARY KEY (tag, n)
) WITHOUT ROWID;
CREATE INDEX record_tags_by_record ON record_tags (n);
CREATE TABLE record_changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT,
    n INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (n, version)
);
-- What each record is found by; both are derived, and written with the record or from it.
CREATE VIRTUAL TABLE record_words USING fts5 (text, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE record_vectors (
    n INTEGER NOT NULL REFERENCES records (n) ON DELETE CASCADE,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (n, model)
) WITHOUT ROWID;

-- Version 2: the hash of each body, so that one that was changed does not read as true.
ALTER TABLE records ADD COLUMN sha256 TEXT NOT NULL DEFAULT '';
ALTER TABLE record_changes ADD COLUMN sha256 TEXT NOT NULL DEFAULT '';
UPDATE records SET sha256 = quire_sha256(body);
UPDATE record_changes SET sha256 = quire_sha256(body);
