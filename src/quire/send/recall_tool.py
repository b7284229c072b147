"""recall: what was said or returned earlier, by a search or by the handle that stands for it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from quire.log.store import Store
from quire.recall import RECALL_TOOL, Recall
from quire.recall.tool import MOST, Asking
from quire.send.tools import Output, Tool, tool

_LIMIT = 16_000


def recall_tool(store: Store, thread: str, searching: Recall | None = None, limit: int = _LIMIT) -> Tool:
    """The tool `recall` for one thread, as RECALL_TOOL defines it; it finds nothing of any other thread."""
    asking = Asking(searching or Recall(store), thread, share_tokens=limit // 4)

    def recall(
        query: str = "",
        handle: str = "",
        k: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 5,
        start: Annotated[int, msgspec.Meta(ge=1)] = 1,
    ) -> Output:
        answer = asking(query, handle, k, start)
        return Output(answer.text, answer.about)

    made = tool(
        name=RECALL_TOOL["name"],
        description=RECALL_TOOL["description"],
        idempotent=True,
        category=RECALL_TOOL["category"],
        output=RECALL_TOOL["output"],
        limit=limit * 2,
    )(recall)
    return msgspec.structs.replace(made, parameters=RECALL_TOOL["parameters"])
