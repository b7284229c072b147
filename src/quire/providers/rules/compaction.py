"""Claude's context management: order of edits, and the compaction block first, alone, verbatim (rows 18, 19)."""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.seen import Seen, fingerprint
from quire.providers.rules.shape import obj, objects, text
from quire.providers.rules.turns import Block, Message, Talk, turns
from quire.values import JsonObject

_THRESHOLD = "compact_20260112"


def edits(check: Check) -> Iterator[Finding]:
    """Row 18."""
    management = check.body.get("context_management")
    listed = list(objects(obj(management).get("edits"), "$.context_management.edits"))
    for index, (path, edit) in enumerate(listed):
        if text(edit.get("type")).startswith("clear_thinking") and index:
            problem = "context_management.edits: clear_thinking must be the first edit"
            yield found("B2.18", path, problem=problem, fix="Move clear_thinking to the front of edits.")
    if check.body.get("compaction") and management:
        problem = "compaction cannot be combined with context_management"
        yield found("B2.18", "$.compaction", problem=problem, fix="Leave one of the two out.")


def compaction(check: Check, talk: Talk) -> Iterator[Finding]:
    """Row 19. A threshold compaction's blocks stand behind what they summarise and are left alone."""
    if check.body.get("compaction"):
        yield from _request(talk)
    if _by_threshold(check.body):
        return
    held = [block for message in talk.messages for block in message.blocks if _holds(block)]
    first = next((block for message in talk.messages[:1] for block in message.blocks[:1]), None)
    for block in held[1:]:
        yield _row19(
            block.path, "ambiguous", "more than one compaction block with content", "Send only the last one."
        )
    if held and (held[0] is not first or talk.messages[0].role == "system"):
        problem = "the compaction block is not the first block of the conversation"
        yield _row19(held[0].path, "misplaced", problem, "Put it first and leave out what it summarises.")
    for block in held:
        yield from _verbatim(check.seen, block)


def _by_threshold(body: JsonObject) -> bool:
    listed = objects(obj(body.get("context_management")).get("edits"), "")
    return any(edit.get("type") == _THRESHOLD for _, edit in listed)


def _holds(block: Block) -> bool:
    # A block with null content is a compaction that failed; the server passes over it.
    return block.type == "compaction" and block.raw.get("content") is not None


def _verbatim(seen: Seen | None, block: Block) -> Iterator[Finding]:
    signature = text(block.raw.get("signature"))
    if block.raw.get("content") == "":
        fix = "Send the block as it came."
        yield _row19(block.path, "content_mismatch", "empty content is not allowed", fix, code="compaction")
    elif seen is not None and signature in seen.sealed:
        if seen.sealed[signature] != fingerprint(block.raw):
            problem = "the block's content differs from the text its signature recorded"
            yield _row19(block.path, "content_mismatch", problem, "Send it as it came.", code="compaction")
    elif seen is not None and seen.complete:
        problem = "the block's signature does not verify"
        yield _row19(block.path, "signature_invalid", problem, "Send it as it came.", code="compaction")


def _request(talk: Talk) -> Iterator[Finding]:
    joined = turns(talk.messages)
    if not any(turn.blocks for turn in joined):
        problem, fix = "no user or assistant content to summarise", "Send the conversation."
        yield _row19("$.messages", "nothing_to_summarize", problem, fix, code="compaction")
    elif joined[-1].role == "assistant" and _unfinished(joined[-1]):
        problem = "the request ends on an assistant turn that is not finished"
        fix = "Add the tool results first."
        yield _row19(talk.messages[-1].path, "incomplete_turn", problem, fix, code="compaction")


def _unfinished(turn: Message) -> bool:
    kinds = [block.type for block in turn.blocks]
    return "tool_use" in kinds or (bool(kinds) and kinds[-1] == "server_tool_use")


def _row19(path: str, what: str, problem: str, fix: str, *, code: str = "compaction_block") -> Finding:
    return found("B2.19", path, code=f"{code}_{what}", problem=problem, fix=fix)


def remember_compaction(seen: Seen, blocks: list[JsonObject]) -> None:
    """Record the compaction blocks of a reply."""
    for block in blocks:
        if block.get("type") == "compaction" and text(block.get("signature")):
            seen.sealed.setdefault(block["signature"], fingerprint(block))
