"""Claude's calls and results: every tool_use answered in the next message, results first (rows 1 to 3).

And whose they are: a call is the assistant's, its result the user's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.grammar import shape
from quire.providers.rules.shape import obj, text
from quire.providers.rules.turns import Block, Message, Talk, turns


def pairs(check: Check, talk: Talk) -> Iterator[Finding]:
    """Rows 1 to 3 over the joined turns."""
    joined = turns(talk.messages)
    for index, turn in enumerate(joined):
        if turn.role == "assistant":
            yield from _unanswered(check, turn, joined[index + 1 : index + 2])
        else:
            # A continued thread's first message answers calls that the server holds.
            if index or obj(check.body.get("thread")).get("type") != "continue":
                yield from _orphans(turn, joined[index - 1 : index] if index else [])
            yield from _late_results(turn)


# Whose messages a block may stand in.
_SPEAKERS = {
    "tool_use": "assistant",
    "tool_result": "user",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}


def speakers(talk: Talk) -> Iterator[Finding]:
    """Blocks in a message of the wrong role."""
    for message in talk.messages:
        for block in message.blocks:
            speaker = _SPEAKERS.get(block.type, message.role)
            if message.role in ("user", "assistant", "system") and message.role != speaker:
                problem = f"`{block.type}` blocks can only be in {speaker} messages"
                yield shape(block.path, problem, f"Move it to the {speaker}'s message.")


def _unanswered(check: Check, turn: Message, after: Sequence[Message]) -> Iterator[Finding]:
    if not after and check.body.get("compaction"):
        return  # a compaction request that stops here breaks row 19
    answered = {text(block.raw.get("tool_use_id")) for block in _of(after, "tool_result")}
    for use in _of([turn], "tool_use"):
        if text(use.raw.get("id")) not in answered:
            yield found("B2.1", use.path, id=text(use.raw.get("id")) or "(no id)")


def _orphans(turn: Message, before: Sequence[Message]) -> Iterator[Finding]:
    waiting = Counter(text(block.raw.get("id")) for block in _of(before, "tool_use"))
    for result in _of([turn], "tool_result"):
        id = text(result.raw.get("tool_use_id"))
        if waiting[id] < 1:
            yield found("B2.2", result.path, id=id or "(no id)")
        waiting[id] -= 1


def _late_results(turn: Message) -> Iterator[Finding]:
    """Results that stand behind something else in their message."""
    others = False
    for block in turn.blocks:
        if block.type == "tool_result" and others:
            yield found("B2.3", block.path)
        others = others or block.type not in ("tool_result", "cache_point")


def _of(messages: Sequence[Message], kind: str) -> list[Block]:
    return [block for message in messages for block in message.blocks if block.type == kind]
