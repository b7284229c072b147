"""What Converse's content blocks mean: one block, one entry; one part, one block.

Bytes are base64 text here, as on the wire; `sdk_kwargs` turns them into bytes for boto3.
"""

from __future__ import annotations

from quire.errors import FormatError
from quire.providers.arguments import compact, object_of
from quire.providers.enclosed import Enclosure
from quire.providers.images import COMMON
from quire.providers.incoming import objects, sub
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

FORMAT = "bedrock"
NAMES = Spelling()
IDS = Spelling()


def spoken(block: Json) -> Entry:
    """An assistant's block as an entry; what an entry cannot hold is kept in `wire.block`."""
    if not isinstance(block, dict) or not block:
        raise FormatError(
            f"a content block that is {str(block)[:80]!r}", hint="Blocks are objects with one key."
        )
    if isinstance(block.get("text"), str):
        return respond(block["text"])
    if "toolUse" in block:
        use = sub(block, "toolUse")
        plain = set(use) <= {"toolUseId", "name", "input"}
        args = use.get("input")
        return call(
            str(use.get("toolUseId") or ""),
            str(use.get("name") or ""),
            {} if args is None else args,
            wire=None if plain else {"block": block},
        )
    if "reasoningContent" in block:
        text = sub(sub(block, "reasoningContent"), "reasoningText").get("text")
        return think(str(text or ""), wire={"block": block})
    if sub(block, "citationsContent"):
        return respond(cited_text(block), wire={"block": block})
    return respond("", wire={"block": block})


def cited_text(block: JsonObject) -> str:
    content = objects(sub(block, "citationsContent"), "content")
    return "".join(str(one.get("text") or "") for one in content)


def answered(block: JsonObject) -> Entry:
    """A toolResult block as an entry."""
    given = sub(block, "toolResult")
    content = objects(given, "content")
    plain = all(set(one) == {"text"} for one in content) and len(content) <= 1
    failed = True if given.get("status") == "error" else None
    wire = None if plain else {"block": block}
    return result(str(given.get("toolUseId") or ""), content=text_of(content), error=failed, wire=wire)


def text_of(content: list[JsonObject]) -> str:
    """The text of blocks: JSON as JSON, images as nothing, others named in brackets."""
    return "\n".join(text for block in content if (text := _block_text(block)))


def _block_text(block: JsonObject) -> str:
    if "text" in block:
        return str(block["text"])
    if "json" in block:
        return compact(block["json"])
    kind = _kind(block)
    return f"[{kind}]" if kind else ""


def _kind(block: JsonObject) -> str:
    """What an entry cannot hold of a user's block."""
    kind = str(next(iter(block), "block"))
    return "" if kind in ("text", "image", "cachePoint", "toolResult") else kind


ENCLOSURE = Enclosure(FORMAT, _kind, text_of, (FORMAT,))


def written(part: Text | Think | Call, message: Message, sheet: Sheet) -> JsonObject | None:
    """The block of an assistant's part, or None where there is nothing to send."""
    match part:
        case Text():
            own = own_block(part, FORMAT, sheet)
            if own and ("citationsContent" not in own or cited_text(own) == part.text):
                return own
            leave_out_block(part, message, sheet)
            return {"text": part.text} if part.text.strip() else None
        case Think():
            return _reasoning(part, message, sheet)
        case Call():
            return _tool_use(part, sheet)


def _reasoning(part: Think, message: Message, sheet: Sheet) -> JsonObject | None:
    block = own_block(part, FORMAT, sheet) or _from_anthropic(part, sheet)
    void = sheet.stale and sheet.info.features.thinking_bound != "no"
    if block and not void and _is_signed(block):
        return block
    leave_out_thinking(part, message, sheet)
    return None


def _is_signed(block: JsonObject) -> bool:
    reasoning = sub(block, "reasoningContent")
    return bool(reasoning.get("redactedContent") or sub(reasoning, "reasoningText").get("signature"))


def _from_anthropic(part: Think, sheet: Sheet) -> JsonObject | None:
    """Anthropic's own API writes the same models' signatures in other fields, bound to a prefix or not."""
    block = obj(part.wire.get("block"))
    bound = sheet.info.features.thinking_bound != "no"
    if not block or bound or not is_from(part.wire, ("anthropic",), sheet):
        return None
    if block.get("type") == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": block.get("data", "")}}
    text = {"text": block.get("thinking", ""), "signature": block.get("signature", "")}
    return {"reasoningContent": {"reasoningText": text}}


def _tool_use(part: Call, sheet: Sheet) -> JsonObject:
    own = own_block(part, FORMAT, sheet)
    fields = {"toolUseId": part.call_id, "name": NAMES.spell(part.name), "input": object_of(part.args)}
    return {"toolUse": {**(own["toolUse"] if own else {}), **fields}}


def tool_result(part: Result, sheet: Sheet) -> JsonObject:
    """The block of a result; images and JSON in it go back as they came."""
    own = own_block(part, FORMAT, sheet)
    content: list[JsonObject] = [{"text": part.text if part.text.strip() else NO_OUTPUT}]
    if own and own["toolResult"].get("content") and text_of(own["toolResult"]["content"]) == part.text:
        content = own["toolResult"]["content"]
    status = "error" if part.error else "success"
    return {"toolResult": {"toolUseId": part.call_id, "content": content, "status": status}}


def told_call(part: Call) -> JsonObject:
    """A call as text, for a request that defines no tools."""
    return {"text": f"[Called {part.name} with {compact(part.args)}]"}


def told_result(part: Result) -> JsonObject:
    """A result as text, for a request that defines no tools."""
    return {"text": f"[{'Error' if part.error else 'Result'} of {part.name}]: {part.text}"}


def image(part: Image) -> JsonObject | None:
    """An image by its data or its place in S3; Converse fetches nothing from the web."""
    kind = part.media_type.removeprefix("image/") or part.url.rpartition(".")[2].lower()
    form = {"jpg": "jpeg", "": "png"}.get(kind, kind)
    known = f"image/{form}" in COMMON
    if part.url.startswith("s3://"):
        return {"image": {"format": form if known else "png", "source": {"s3Location": {"uri": part.url}}}}
    return {"image": {"format": form, "source": {"bytes": part.data}}} if part.data and known else None
