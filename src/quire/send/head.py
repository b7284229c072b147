"""Which system prompts and tools a thread has been given; read on from where the last look ended."""

from __future__ import annotations

import msgspec

from quire.log.store import Store
from quire.values import Entry, JsonObject

# Where the last look is kept, so that a long thread is not read again for every turn.
STATE = "head"
# How much may be read again before it is worth writing down.
_FAR = 200


class Head(msgspec.Struct):
    """Up to entry `seq`: every system prompt, and the tools by name."""

    seq: int = 0
    systems: list[str] = []
    tools: dict[str, JsonObject] = {}

    def take(self, entry: Entry) -> None:
        """One more entry of the log."""
        self.seq = entry.seq
        if entry.kind == "system":
            self.systems = [*self.systems, entry.text]
        elif entry.kind == "tools":
            before = {} if entry.meta.get("replace") else self.tools
            self.tools = {**before, **{str(tool["name"]): tool for tool in entry.tools}}


def read_head(store: Store, thread: str) -> Head:
    """What a thread has been given so far."""
    kept = store.get_state(thread, STATE)
    head = msgspec.convert(kept, Head) if kept else Head()
    start = head.seq
    for entry in store.read(thread, after=start):
        head.take(entry)
    if head.seq - start >= _FAR:
        store.set_state(thread, STATE, msgspec.to_builtins(head))
    return head
