"""Filling a server's memory: what a reply issued, or what a request shows to have been issued."""

from __future__ import annotations

from collections.abc import Callable

from quire.providers.facts import resolve
from quire.providers.rules import thinking
from quire.providers.rules.compaction import remember_compaction
from quire.providers.rules.gemini import contents, remember_parts
from quire.providers.rules.responses import remember_items
from quire.providers.rules.seen import Seen
from quire.providers.rules.shape import obj, objects
from quire.providers.rules.turns import anthropic_talk, converse_talk
from quire.values import Json, JsonObject


def issue(seen: Seen, body: JsonObject, provider: str, reply: Json) -> None:
    """Record what `reply` (the provider's JSON) gave out in answer to `body`."""
    _ISSUE[resolve(provider)[1]](seen, body, obj(reply))


def observe(seen: Seen, body: JsonObject, provider: str) -> None:
    """Record what a request carries, as given out where it stands; for logs of requests without their replies."""
    wire = resolve(provider)[1]
    if wire == "anthropic":
        thinking.remember(seen, anthropic_talk(body))
    elif wire == "bedrock":
        thinking.remember(seen, converse_talk(body))
    elif wire == "gemini":
        remember_parts(seen, contents(body))


def _anthropic(seen: Seen, body: JsonObject, reply: JsonObject) -> None:
    content = [block for _, block in objects(reply.get("content"), "")]
    messages = [one for _, one in objects(body.get("messages"), "")]
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": content}]}
    thinking.remember(seen, anthropic_talk(whole), since=len(messages))
    remember_compaction(seen, content)


def _bedrock(seen: Seen, body: JsonObject, reply: JsonObject) -> None:
    message = obj(obj(reply.get("output")).get("message"))
    messages = [one for _, one in objects(body.get("messages"), "")]
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": message.get("content")}]}
    thinking.remember(seen, converse_talk(whole), since=len(messages))


def _gemini(seen: Seen, body: JsonObject, reply: JsonObject) -> None:
    for _, candidate in objects(reply.get("candidates"), ""):
        remember_parts(seen, contents({"contents": [obj(candidate.get("content"))]}))


def _responses(seen: Seen, body: JsonObject, reply: JsonObject) -> None:
    remember_items(seen, reply.get("output"))


def _nothing(seen: Seen, body: JsonObject, reply: JsonObject) -> None:
    """Chat signs nothing."""


_ISSUE: dict[str, Callable[[Seen, JsonObject, JsonObject], None]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "gemini": _gemini,
    "openai-responses": _responses,
    "openai-chat": _nothing,
}
