"""The tool by which a model asks for older entries itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from quire.errors import CallError
from quire.recall.placement import place
from quire.recall.search import Recall
from quire.values import JsonObject

_MOST = 20

RECALL_TOOL: Final[JsonObject] = {
    "name": "recall",
    "description": (
        "Search the earlier part of this conversation, by meaning and by words. Use it when something was said "
        "or returned before that is no longer in front of you."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in plain words."},
            "k": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MOST,
                "description": "How many entries, 5 if not given.",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    "category": "memory",
    "idempotent": True,
}


def recall_tool(
    recall: Recall,
    thread: str,
    shown: Callable[[], Collection[int | str]] = tuple,
    share_tokens: int = 2000,
) -> Callable[..., str]:
    """The function behind RECALL_TOOL for one thread; `shown` says which entries the prompt has already."""

    def run(query: str, k: int = 5) -> str:
        """What was found, as the sections a recalled turn shows."""
        if not isinstance(query, str) or not query.strip():
            raise CallError("recall needs a query", hint="Say what to look for.")
        wanted: Any = max(1, min(int(k), _MOST))
        hits = recall.search(query, wanted, thread=thread, exclude=shown())
        return place(hits, share_tokens).text or "Nothing was found."

    return run
