"""Recall: finds older entries by words and by meaning, and places them behind what the provider has cached.

Public names are imported on first use, so that this package can be imported where numpy is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

from quire.errors import needs_extra
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.recall.document import Document, Found, Query, query_for, relevant
    from quire.recall.meaning import Embedder, Indexer, minilm
    from quire.recall.placement import Placed, ThreadRecall, place, recall_tool
    from quire.recall.rank import Collection
    from quire.recall.search import Hit, Recall

_HOMES = {
    "document": ("Document", "Found", "Query", "query_for", "relevant"),
    "meaning": ("Embedder", "Indexer", "minilm"),
    "placement": ("Placed", "ThreadRecall", "place", "recall_tool"),
    "rank": ("Collection",),
    "search": ("Hit", "Recall"),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "RECALL_TOOL", "Collection", "Document", "Embedder", "Found", "Hit", "Indexer", "Placed", "Query",
    "Recall", "ThreadRecall", "minilm", "place", "query_for", "recall_tool", "relevant",
]  # fmt: skip


# The highest `k` that a call of the tool may ask for.
MOST = 20
RECALL_TOOL: Final[JsonObject] = {
    "name": "recall",
    "description": (
        "Find what was said or returned earlier in this conversation and is no longer shown, "
        "or the whole text behind a handle."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"description": "What to look for, in plain words.", "type": "string", "default": ""},
            "handle": {
                "description": (
                    "A handle, as 3f9a0c12bd45, that stands for a text that was cut; gives the whole text."
                ),
                "type": "string",
                "default": "",
            },
            "k": {
                "description": "How many entries to find.",
                "type": "integer",
                "minimum": 1,
                "maximum": MOST,
                "default": 5,
            },
            "start": {
                "description": "With a handle, the line to begin at.",
                "type": "integer",
                "minimum": 1,
                "default": 1,
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    "category": "memory",
    "output": ["text"],
    "idempotent": True,
}


def installed() -> bool:
    """Whether the packages for searching by words are installed; without them a call of the tool cannot be answered."""
    return all(importlib.util.find_spec(part) is not None for part in ("numpy", "Stemmer"))


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'quire.recall' has no attribute {name!r}")
        with needs_extra("recall needs PyStemmer and numpy", "recall"):
            module = importlib.import_module(f"quire.recall.{_WHERE[name]}")
        value = getattr(module, name)
        globals()[name] = value
        return value
