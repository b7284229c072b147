"""What a prompt shows whole: such entries need not be found again; of a result that was cut, the rest is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.assemble import Assembly
from quire.assemble.turn import result_text
from quire.values import Entry, LeftOut, Message, Prompt, Result


def in_prompt(
    prompt: Prompt, left_out: Iterable[LeftOut] = (), entries: Mapping[int, Entry] | None = None
) -> frozenset[int]:
    """The seqs of entries that a prompt shows whole; `entries` tell which of its results were cut."""
    shown = {seq for message in prompt.messages for seq in message.seqs}
    cut = {seq for message in prompt.messages for seq in _cut(message, entries or {})}
    return frozenset(shown - cut - {one.entry for one in left_out})


def shown_ahead(assembly: Assembly) -> frozenset[int]:
    """The seqs of entries that the next request shows whole."""
    if not assembly.entries:
        return frozenset()
    ahead = assembly.ahead()
    return in_prompt(ahead.epoch.prompt(), ahead.left_out, ahead.entries)


def _cut(message: Message, entries: Mapping[int, Entry]) -> Iterable[int]:
    """The results of a message that stand there as handles, or end before their end."""
    if message.role != "tool":
        return
    for part, seq in zip(message.parts, message.seqs, strict=True):
        entry = entries.get(seq)
        whole = result_text(entry) if entry is not None and entry.kind == "result" else None
        if isinstance(part, Result) and whole is not None and part.text != whole:
            yield seq
