-- Version 1: the words and vectors of entries.
CREATE TABLE recall_entries (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    entry TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    -- The rules by which the words were found; rows of older rules are made again.
    rules INTEGER NOT NULL,
    speaker TEXT NOT NULL,
    session TEXT NOT NULL,
    call_id TEXT NOT NULL,
    at INTEGER,
    asks INTEGER NOT NULL,
    person REAL NOT NULL,
    times INTEGER NOT NULL,
    length INTEGER NOT NULL,
    words TEXT NOT NULL
);
CREATE TABLE recall_vectors (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Always 'entry', and which one.
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    -- Half-precision floats, little endian.
    vector BLOB NOT NULL,
    UNIQUE (owner, key, model)
);

-- Version 2: how many names an entry holds; the rows that were there are of older rules, so they are made again.
ALTER TABLE recall_entries ADD COLUMN names INTEGER NOT NULL DEFAULT 0;

-- Version 3: vectors of single words went; long entries have several, so the one they had is made again with the others.
DELETE FROM recall_vectors
WHERE owner != 'entry' OR key IN (SELECT entry FROM recall_entries WHERE length > 150);

-- Version 4: what a search holds ready, as arrays, so that the next process need not make it from the words.
CREATE TABLE recall_state (
    scope TEXT NOT NULL,
    part TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (scope, part)
);
