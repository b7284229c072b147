"""Opening the records that a command works on, with the embedding model where it is installed."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from quire.cli.store import open_db
from quire.records import Records

# Fewer vectors than this are made before a bar could be read.
WORTH_SHOWING = 64
NO_MODEL = "by words alone: the embedding model is not installed (quire model install minilm)"


def now_ms() -> int:
    return int(time.time() * 1000)


words_option = click.option("--words", is_flag=True, help="Go by words alone, without the embedding model.")


class LateMiniLM:
    """The embedding model, loaded when the first text comes: most commands never need it."""

    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def encode(self, texts: Sequence[str]) -> Any:
        with _loading:  # a search and the indexer beside it may both come first
            model = _model()
        return model.encode(texts)


_loading = threading.Lock()


@cache
def _model() -> Any:
    from quire.recall.embed import minilm

    return minilm()


def embedder() -> LateMiniLM | None:
    """The embedding model, or None where a part of it is not installed."""
    parts = ("numpy", "onnxruntime", "tokenizers", "safetensors", "onnx")
    if any(importlib.util.find_spec(part) is None for part in parts):
        return None
    from quire.recall.embed import find_weights

    return LateMiniLM() if find_weights() else None


@contextmanager
def open_records(db: Path | None, create: bool = True, words: bool = False) -> Iterator[Records]:
    """The records at --db; vectors that a command has to make first are shown on stderr."""
    bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = bar.add_task("embedding records")

    def show(done: int, all: int) -> None:
        if all >= WORTH_SHOWING:
            bar.start()
            bar.update(task, completed=done, total=all)

    with open_db(db, create=create) as store:
        try:
            yield Records(store, None if words else embedder(), show)
        finally:
            bar.stop()
