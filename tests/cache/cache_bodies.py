"""Requests for cache tests: every word is a token, so sizes can be read off the text."""

from typing import Any

from quire.providers.simulate import Predicted, Simulator
from quire.values import JsonObject
from toolbox import many_words

OPUS = "anthropic:claude-opus-5-5"
MINUTE = 60_000


def words(text: str) -> list[int]:
    """A tokenizer of one token a word; the same word has the same id."""
    return [sum(word.encode()) for word in text.split()]


def text(count: int, name: str = "w", ttl: str | None = None) -> JsonObject:
    """A text block of `count` words that no other name has."""
    block: JsonObject = {"type": "text", "text": many_words(count, name)}
    return marked(block, ttl) if ttl else block


def marked(block: JsonObject, ttl: str = "5m") -> JsonObject:
    return {**block, "cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl != "5m" else {})}


def user(*blocks: JsonObject) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: JsonObject) -> JsonObject:
    return {"role": "assistant", "content": list(blocks)}


def claude(*messages: JsonObject, system: list[JsonObject] | None = None, **more: Any) -> JsonObject:
    body: JsonObject = {"model": "claude-opus-5-5", "max_tokens": 10, "messages": list(messages), **more}
    return {**body, "system": system} if system else body


def simulator(target: str = OPUS, **options: Any) -> Simulator:
    return Simulator(target, tokenize=words, **options)


def split(predicted: Predicted) -> tuple[int, int, int, int]:
    return predicted.read, predicted.write_5m, predicted.write_1h, predicted.plain
