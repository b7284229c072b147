"""What the parts of a Chat message's content mean: text, images, and what is enclosed."""

from __future__ import annotations

from quire.providers.enclosed import Enclosure
from quire.values import Json, JsonObject

FORMAT = "openai-chat"


def text_of(content: Json) -> str:
    """The text of a message's content; parts that are no text and no image are named in brackets."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(text for part in content if (text := _part_text(part)))


def thought_of(content: Json) -> str:
    """Thinking that stands among the parts of the content, as Mistral writes it."""
    parts = [part for part in (content if isinstance(content, list) else ()) if isinstance(part, dict)]
    return "\n".join(text_of(part.get("thinking")) for part in parts if part.get("type") == "thinking")


def _part_text(part: Json) -> str:
    if not isinstance(part, dict):
        return str(part)
    if "text" in part:
        return str(part["text"])
    if part.get("type") == "refusal":
        return str(part.get("refusal") or "")
    kind = _kind(part)
    return f"[{kind}]" if kind else ""


def _kind(part: JsonObject) -> str:
    """What an entry cannot hold of a user's part."""
    kind = str(part.get("type") or "part")
    return "" if "text" in part or kind in ("image_url", "thinking", "refusal") else kind


ENCLOSURE = Enclosure(FORMAT, _kind, text_of, (FORMAT,))
