"""The embedding model for benchmarks, with every vector it ever made kept by content."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from quire.recall.meaning import MiniLM, find_weights, minilm
from quire.values import sha256_hex


def embedder(wanted: bool = True) -> Remembered | None:
    """The model where it is wanted and installed; without it a bench goes by words and says so."""
    if wanted and find_weights() is None:
        print("no embedding model is installed: by words alone", file=sys.stderr)
    return Remembered() if wanted and find_weights() is not None else None


class Remembered:
    """all-MiniLM-L6-v2 that looks a text up before it computes; the vectors are the same."""

    name = MiniLM.name
    dimensions = MiniLM.dimensions

    def __init__(self, file: Path | None = None) -> None:
        place = file or Path(platformdirs.user_cache_dir("quire")) / "bench" / "vectors.db"
        place.parent.mkdir(parents=True, exist_ok=True)
        self._conn = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        self._conn.execute("PRAGMA synchronous = OFF")
        self._conn.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB)")
        self._model: MiniLM | None = None

    def encode(self, texts: Sequence[str]) -> Any:
        keys = [sha256_hex(text) for text in texts]
        found = {key: self._look_up(key) for key in keys}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if found[key] is None}
        if missing:
            self._model = self._model or minilm()
            for key, vector in zip(missing, self._model.encode(list(missing.values())), strict=True):
                found[key] = vector
                self._conn.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (key, vector.tobytes()))
        return np.array([found[key] for key in keys], np.float32).reshape(-1, self.dimensions)

    def fresh(self, text: str) -> Any:
        """A vector computed now, for timing."""
        self._model = self._model or minilm()
        return self._model.encode([text])

    def _look_up(self, key: str) -> Any:
        row = self._conn.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return np.frombuffer(row[0], np.float32) if row else None
