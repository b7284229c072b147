"""The budget's count of a prompt's parts, for when no provider has counted them: always o200k, never scaled."""

from __future__ import annotations

import json
from collections.abc import Iterable

from quire.log.hashing import canonical
from quire.tokens.counting import Counter, counter
from quire.values import Call, Image, Json, JsonObject, Message, Part, Result, Text, Think, ToolSet

# What a provider's framing of one message costs, whatever is in it.
MESSAGE_TOKENS = 4
# Providers count an image by its size and the model; this is about the middle of what they charge.
IMAGE_TOKENS = 1500


def text_tokens(text: str, with_: Counter | None = None) -> int:
    """The tokens of one message's text, its framing included (a system message, say)."""
    return MESSAGE_TOKENS + (with_ or counter()).count(text)


def message_tokens(message: Message, with_: Counter | None = None, image_tokens: int = 0) -> int:
    """A message's text, call names and arguments, and 4 for each message it becomes on the wire."""
    chosen = with_ or counter()
    # Each result of a group of parallel calls is a wire message of its own.
    results = sum(isinstance(part, Result) for part in message.parts)
    framing = MESSAGE_TOKENS * max(1, results if message.role == "tool" else 1)
    texts = [part.text for part in message.parts if isinstance(part, Text) and part.text]
    others = [part for part in message.parts if not isinstance(part, Text)]
    # Several texts of one message are one text on the wire, a blank line between them.
    words = chosen.count("\n\n".join(texts)) if texts else 0
    return framing + words + sum(part_tokens(part, chosen, image_tokens) for part in others)


def part_tokens(part: Part, with_: Counter, image_tokens: int = 0) -> int:
    """The tokens of one part, without framing."""
    match part:
        case Text(text=text) | Think(text=text) | Result(text=text):
            return with_.count(text)
        case Call(name=name):
            return with_.count(name) + with_.count(arguments_text(part))
        case ToolSet(tools=tools):
            return tools_tokens(tools, with_)
        case Image():
            return image_tokens


def arguments_text(call: Call) -> str:
    """A call's arguments as they go over the wire: the model's own string, else compact JSON."""
    return call.arguments or compact(call.args)


def compact(value: Json) -> str:
    """JSON without spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def tools_tokens(tools: Iterable[JsonObject], with_: Counter | None = None) -> int:
    """The tokens of the tools' canonical JSON; no tools cost nothing."""
    listed = list(tools)
    return (with_ or counter()).count(canonical(listed).decode()) if listed else 0
