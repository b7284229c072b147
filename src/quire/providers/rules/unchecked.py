"""What cannot be told from one request: rows that need the replies, the headers or the model."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.providers.rules.check import Check
from quire.providers.rules.claude import beta_uses
from quire.providers.rules.gemini import contents, setting
from quire.providers.rules.responses import kind_of
from quire.providers.rules.shape import objects
from quire.providers.rules.turns import anthropic_talk, converse_talk


class Note(msgspec.Struct, frozen=True):
    """A row that was not checked, and what would be needed."""

    row: str
    why: str


def unchecked_notes(check: Check) -> Iterator[Note]:
    """The notes for one request."""
    if not check.model_named:
        yield Note("model", "no model is named: rules about single models were not checked")
    if check.info.wire in ("anthropic", "bedrock"):
        yield from _claude(check)
    if check.info.wire == "gemini":
        yield from _gemini(check)
    reasoned = any(kind_of(item) == "reasoning" for _, item in objects(check.body.get("input"), ""))
    if check.info.wire == "openai-responses" and check.seen is None and reasoned:
        yield Note("B2.23, B2.24", "which reasoning led to which item needs the reply that issued them")


def _claude(check: Check) -> Iterator[Note]:
    talk = (anthropic_talk if check.info.wire == "anthropic" else converse_talk)(check.body)
    kinds = {block.type for message in talk.messages for block in message.blocks}
    if kinds & {"thinking", "redacted_thinking"} and check.seen is None:
        yield Note("B2.10, B2.11, B2.12", "whether thinking is unmodified needs the replies that issued it")
    if "compaction" in kinds and check.seen is None:
        yield Note("B2.19", "whether the compaction block is verbatim needs the reply that issued it")
    if check.info.wire != "anthropic":
        return
    if check.betas is None and any(use.feature != "block_binding" for use in beta_uses(check.body, talk)):
        yield Note("B.beta", "whether the beta headers are sent needs the request's headers")
    if check.body.get("max_tokens") is None:
        yield Note("max_tokens", "the API requires max_tokens; it is not in this body")


def _gemini(check: Check) -> Iterator[Note]:
    if setting(check.body, "cachedContent")[1] is not None:
        yield Note("B2.33", "whether the cached content is large enough needs the cached content")
    signed = any(turn.having("thoughtSignature") for turn in contents(check.body))
    if signed and check.seen is None:
        yield Note(
            "B2.31", "whether thought signatures are the server's own needs the replies that issued them"
        )
