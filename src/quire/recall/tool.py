"""The tool by which a model asks for older entries itself: one definition, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from quire.errors import CallError
from quire.recall.originals import original
from quire.recall.placement import PLACED, place
from quire.recall.search import Recall
from quire.recall.shown import Shown
from quire.values import JsonObject

MOST = 20
_CHARACTERS_A_TOKEN = 4
_NOTHING = "nothing was found that is not shown already"

RECALL_TOOL: Final[JsonObject] = {
    "name": "recall",
    "description": (
        "Find what was said or returned earlier in this conversation and is no longer shown, "
        "or the whole text behind a handle."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "query": {
                "description": "What to look for, in plain words.",
                "type": "string",
                "default": "",
            },
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


class Answer(msgspec.Struct, frozen=True):
    """What the tool says, and a line about it."""

    text: str
    about: str


class Asking:
    """Answers for one thread: what the next request does not show, and the originals behind its handles.

    `shown` says which entries the prompt has already; unless it is given, the log itself tells.
    """

    def __init__(
        self,
        recall: Recall,
        thread: str,
        shown: Callable[[], Collection[int | str]] | None = None,
        share_tokens: int = 2000,
    ) -> None:
        self._recall, self._thread, self._share = recall, thread, share_tokens
        self._shown = shown or Shown(recall.store, thread)

    def __call__(self, query: str = "", handle: str = "", k: int = 5, start: int = 1) -> Answer:
        """What was found, as the sections a recalled turn shows; or the text behind a handle."""
        if not isinstance(query, str) or not isinstance(handle, str) or not (query + handle).strip():
            raise CallError("recall needs a query or a handle", hint="Say what to look for.")
        return self._original(handle.strip(), start) if handle.strip() else self._found(query, k)

    def _original(self, handle: str, start: int) -> Answer:
        limit = self._share * _CHARACTERS_A_TOKEN
        found = original(self._recall.store, self._thread, handle, start, limit)
        where = f"lines {found.start}-{found.end} of {found.count}"
        return Answer(found.text, f"entry {found.entry.seq} ({found.entry.kind}), {where}")

    def _found(self, query: str, k: int) -> Answer:
        hits = self._recall.search(
            query, max(1, min(k, MOST)), thread=self._thread, kinds=PLACED, exclude=self._shown()
        )
        text = place(hits, self._share, query=query).text
        return Answer(text, f"{len(hits)} found" if text else _NOTHING)


def recall_tool(
    recall: Recall,
    thread: str,
    shown: Callable[[], Collection[int | str]] | None = None,
    share_tokens: int = 2000,
) -> Callable[..., str]:
    """The function behind RECALL_TOOL for one thread, giving text."""
    asking = Asking(recall, thread, shown, share_tokens)

    def run(query: str = "", k: int = 5, handle: str = "", start: int = 1) -> str:
        """What was found, or the text behind a handle; a sentence where there is nothing."""
        answer = asking(query, handle, k, start)
        return answer.text or f"{answer.about.capitalize()}."

    return run
