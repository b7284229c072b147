"""What Anthropic's content blocks mean: one block, one entry; one part, one block."""

from __future__ import annotations

from quire.errors import FormatError
from quire.providers.arguments import object_of
from quire.providers.enclosed import Enclosure
from quire.providers.images import COMMON, is_web
from quire.providers.own import is_from, leave_out_block, leave_out_thinking, own_block
from quire.providers.rules.shape import obj
from quire.providers.sheet import NO_OUTPUT, Sheet
from quire.providers.spelling import Spelling
from quire.values import (
    Call,
    Entry,
    Image,
    Json,
    JsonObject,
    Message,
    Result,
    Text,
    Think,
    call,
    respond,
    result,
    think,
)

FORMAT = "anthropic"
NAMES = Spelling()

# Blocks whose fields an entry can hold; with any other field the block itself is kept.
_PLAIN = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}


def spoken(block: Json) -> Entry:
    """An assistant's block as an entry; what an entry cannot hold is kept in `wire.block`."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise FormatError(
            f"a content block without a type: {str(block)[:80]}", hint="Blocks are objects with a type."
        )
    match block["type"]:
        case "text":
            return respond(str(block.get("text") or ""), wire=kept(block))
        case "thinking":
            return think(str(block.get("thinking") or ""), wire={"block": block})
        case "redacted_thinking":
            return think("", wire={"block": block})
        case "tool_use":
            name, args = str(block.get("name") or ""), block.get("input")
            return call(str(block.get("id") or ""), name, {} if args is None else args, wire=kept(block))
    return respond("", wire={"block": block})


def answered(block: JsonObject) -> Entry:
    """A tool_result block as an entry."""
    content = block.get("content")
    plain_text = isinstance(content, str) or content is None
    wire = kept(block) if plain_text else {"block": block}
    failed = True if block.get("is_error") else None
    return result(str(block.get("tool_use_id") or ""), content=text_of(content), error=failed, wire=wire)


def kept(block: JsonObject) -> JsonObject | None:
    """The wire field of a block that says more than its entry: a text's citations, a call's caller."""
    return {"block": block} if set(block) - _PLAIN[block["type"]] - {"cache_control"} else None


def text_of(content: Json) -> str:
    """The text of a list of blocks; other blocks are named in brackets, images are not text at all."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(text for block in content if (text := _block_text(block)))


def _block_text(block: Json) -> str:
    if not isinstance(block, dict):
        return str(block)
    if "text" in block:
        return str(block["text"])
    kind = _kind(block)
    title = block.get("title")
    return f"[{kind}: {title}]" if title and kind else f"[{kind}]" if kind else ""


def written(part: Text | Think | Call, message: Message, sheet: Sheet) -> JsonObject | None:
    """The block of an assistant's part, or None where there is nothing to send."""
    match part:
        case Text():
            return _text(part, message, sheet)
        case Think():
            return _thinking(part, message, sheet)
        case Call():
            return _tool_use(part, sheet)


def _text(part: Text, message: Message, sheet: Sheet) -> JsonObject | None:
    own = own_block(part, FORMAT, sheet)
    if own and (own["type"] != "text" or (own["text"] == part.text and part.text.strip())):
        return own
    leave_out_block(part, message, sheet)
    return {"type": "text", "text": part.text} if part.text.strip() else None


def _thinking(part: Think, message: Message, sheet: Sheet) -> JsonObject | None:
    block = own_block(part, FORMAT, sheet) or _from_bedrock(part, sheet)
    void = sheet.stale and sheet.info.features.thinking_bound != "no"
    if block and not void and _is_signed(block, sheet):
        return block
    leave_out_thinking(part, message, sheet)
    return None


def _is_signed(block: JsonObject, sheet: Sheet) -> bool:
    """Whether a server that signs thinking would know it as its own; a local one signs nothing."""
    if block.get("type") == "redacted_thinking":
        return bool(block.get("data"))
    return block.get("type") == "thinking" and bool(block.get("signature") or sheet.info.provider != FORMAT)


def _from_bedrock(part: Think, sheet: Sheet) -> JsonObject | None:
    """Bedrock hosts the same models and writes the same signatures in other fields.

    Where they are bound to the prefix they had there, that prefix is not the one here.
    """
    block = obj(part.wire.get("block"))
    bound = sheet.info.features.thinking_bound != "no"
    if not block or bound or not is_from(part.wire, ("bedrock",), sheet):
        return None
    content = obj(block.get("reasoningContent"))
    if text := obj(content.get("reasoningText")):
        return {"type": "thinking", "thinking": text.get("text", ""), "signature": text.get("signature", "")}
    if data := content.get("redactedContent"):
        return {"type": "redacted_thinking", "data": data}
    return None


def _tool_use(part: Call, sheet: Sheet) -> JsonObject:
    own = own_block(part, FORMAT, sheet)
    fields = {"id": part.call_id, "name": NAMES.spell(part.name), "input": object_of(part.args)}
    if own and own.get("input") == part.args:
        return {**own, **fields}
    return {"type": "tool_use", **fields}


def tool_result(part: Result, sheet: Sheet) -> JsonObject:
    """The block of a result; images in it go back as they came."""
    own = own_block(part, FORMAT, sheet)
    content: Json = part.text if part.text.strip() else NO_OUTPUT
    if own and text_of(own.get("content")) == part.text and own.get("content"):
        content = own["content"]
    out: JsonObject = {"type": "tool_result", "tool_use_id": part.call_id, "content": content}
    return {**out, "is_error": True} if part.error else out


def _kind(block: JsonObject) -> str:
    """What an entry cannot hold of a user's block."""
    kind, source = str(block.get("type") or "block"), block.get("source")
    if kind == "image" and isinstance(source, dict) and source.get("type") == "file":
        return "image file"
    return "" if kind in ("text", "image", "tool_result") else kind


ENCLOSURE = Enclosure(FORMAT, _kind, text_of, (FORMAT,))


def image(part: Image) -> JsonObject | None:
    """An image by its address or its data, if Claude can read it."""
    if is_web(part.url):
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.url or not part.data or part.media_type not in COMMON:
        return None
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}
