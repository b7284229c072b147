-- Version 1: the log.
CREATE TABLE branches (
    -- A stretch of entries. A fork is a branch that begins behind at_seq of its parent, so history is shared.
    branch INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER REFERENCES branches (branch),
    at_seq INTEGER NOT NULL DEFAULT 0,
    -- Where the branch ends: kept by a trigger, so that a lost tail does not go unseen.
    seq INTEGER NOT NULL DEFAULT 0,
    tip TEXT NOT NULL DEFAULT ''
);
CREATE INDEX branches_by_parent ON branches (parent);
CREATE TABLE threads (
    name TEXT PRIMARY KEY,
    branch INTEGER NOT NULL UNIQUE REFERENCES branches (branch)
);
CREATE TABLE entries (
    n INTEGER PRIMARY KEY,
    branch INTEGER NOT NULL REFERENCES branches (branch),
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    -- The entry's JSON in the order given; crc is over these bytes, the id over their canonical form.
    body TEXT NOT NULL,
    crc INTEGER NOT NULL,
    UNIQUE (branch, seq)
);
CREATE INDEX entries_by_id ON entries (id);
CREATE TABLE windows (
    branch INTEGER PRIMARY KEY REFERENCES branches (branch) ON DELETE CASCADE,
    body TEXT NOT NULL
);
CREATE TABLE state (
    branch INTEGER NOT NULL REFERENCES branches (branch) ON DELETE CASCADE,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (branch, key)
) WITHOUT ROWID;
CREATE TABLE deleting (
    -- Deleting a thread declares here which entries go (seq > keep), and takes it back in the same transaction.
    branch INTEGER PRIMARY KEY,
    keep INTEGER NOT NULL
);
CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries BEGIN
    SELECT RAISE (ABORT, 'entries never change');
END;
CREATE TRIGGER entries_never_go_alone BEFORE DELETE ON entries
WHEN NOT EXISTS (SELECT 1 FROM deleting WHERE branch = OLD.branch AND OLD.seq > keep) BEGIN
    SELECT RAISE (ABORT, 'entries go only with their thread');
END;
-- INSERT OR REPLACE would remove a row without asking the trigger above, so nothing may be inserted over another.
CREATE TRIGGER entries_only_at_the_end BEFORE INSERT ON entries
WHEN NEW.seq IS NOT (SELECT seq + 1 FROM branches WHERE branch = NEW.branch)
    OR EXISTS (SELECT 1 FROM entries WHERE n = NEW.n) BEGIN
    SELECT RAISE (ABORT, 'entries are only appended');
END;
CREATE TRIGGER entries_move_the_tip AFTER INSERT ON entries BEGIN
    UPDATE branches SET seq = NEW.seq, tip = NEW.id WHERE branch = NEW.branch;
END;

-- Version 2: entries are numbered in the order they were appended, for the change feed; a number is not given twice.
CREATE TABLE numbers (
    -- The highest number of an entry that was deleted.
    last INTEGER NOT NULL
);
INSERT INTO numbers VALUES (0);
CREATE TABLE checkpoints (
    branch INTEGER PRIMARY KEY REFERENCES branches (branch) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    body BLOB NOT NULL
);
