"""Recall: older entries found by words and by meaning, and placed where they cost no cache.

Names load when used, so that a store can be opened where numpy is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quire.errors import MissingPart
from quire.recall.document import words_of

if TYPE_CHECKING:
    from quire.recall.document import Document, Found, relevant
    from quire.recall.embed import Embedder, minilm
    from quire.recall.index import Indexer
    from quire.recall.placement import Placed, place
    from quire.recall.query import Query, query_for
    from quire.recall.rank import Collection
    from quire.recall.search import Hit, Recall
    from quire.recall.tool import RECALL_TOOL, recall_tool

_WHERE = {
    "Collection": "rank",
    "Document": "document",
    "Embedder": "embed",
    "Found": "document",
    "Hit": "search",
    "Indexer": "index",
    "Placed": "placement",
    "Query": "query",
    "RECALL_TOOL": "tool",
    "Recall": "search",
    "minilm": "embed",
    "place": "placement",
    "query_for": "query",
    "recall_tool": "tool",
    "relevant": "document",
}

__all__ = [
    "RECALL_TOOL",
    "Collection",
    "Document",
    "Embedder",
    "Found",
    "Hit",
    "Indexer",
    "Placed",
    "Query",
    "Recall",
    "minilm",
    "place",
    "query_for",
    "recall_tool",
    "relevant",
    "words_of",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'quire.recall' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"quire.recall.{_WHERE[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "Stemmer"):
            raise
        raise MissingPart("recall needs PyStemmer and numpy", hint="pip install 'quire[recall]'") from error
    value = getattr(module, name)
    globals()[name] = value
    return value
