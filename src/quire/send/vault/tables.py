"""The tables of a vault's index; raise VERSION when they or what they hold change, and it is made anew."""

from __future__ import annotations

VERSION = 2

SCHEMA = f"""
CREATE TABLE notes (path TEXT PRIMARY KEY, facts BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE chunks (
  id TEXT PRIMARY KEY, path TEXT NOT NULL, line INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL,
  document BLOB NOT NULL, vector BLOB
);
CREATE INDEX chunks_of ON chunks (path);
PRAGMA user_version = {VERSION};
"""
