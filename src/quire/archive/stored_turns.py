"""Turns that a store keeps in blocks of its own, as messages of the wire format that its model speaks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import msgspec

from quire import providers
from quire.archive.stored_conversations import ClientSummary, StoredConversation, decode_json
from quire.providers.wires import wire_of
from quire.values import Json, JsonObject, system, tools


class StoredBlock(msgspec.Struct, frozen=True):
    """A block: text, thinking, a call, a result or an image, as its fields tell."""

    text: str = ""
    thinking: bool = False
    call_id: str = ""
    name: str = ""
    args: Json = None
    is_result: bool = False
    error: bool = False
    # What the provider signed thinking or a call with; a Responses item has its id too.
    signature: str = ""
    id: str = ""
    # Thinking that the provider hides: its signature is all there is.
    redacted: bool = False
    # The media type and the base64 of an image, or its address alone; a result may hold several.
    image: tuple[str, str] = ("", "")
    images: tuple[tuple[str, str], ...] = ()
    # What the block is, where nothing of it can be taken along.
    left_out: str = ""

    @property
    def arguments(self) -> str:
        """The arguments of a call as OpenAI writes them."""
        return self.args if isinstance(self.args, str) else json.dumps(self.args, ensure_ascii=False)


def media_block(media_type: str, data: str) -> StoredBlock:
    """A block of base64, or of an address that tells its media type: an image, or what is left out."""
    if not media_type.startswith("image/") or not data:
        return StoredBlock(left_out=f"{media_type or 'media'}")
    return StoredBlock(image=("", data) if re.match("https?:", data) else (media_type, data))


def with_media(block: StoredBlock, media: Sequence[StoredBlock]) -> list[StoredBlock]:
    """A block and what was attached to it: the images of a result are part of it."""
    if not block.is_result:
        return [block, *media]
    images = tuple(medium.image for medium in media if medium.image[1])
    return [msgspec.structs.replace(block, images=images), *(medium for medium in media if medium.left_out)]


def _url(image: tuple[str, str]) -> str:
    return f"data:{image[0]};base64,{image[1]}" if image[0] else image[1]


class StoredTurn(msgspec.Struct, frozen=True):
    """Who said what, and when; of an answer, who was asked for it, where another may have been asked before."""

    role: str
    blocks: tuple[StoredBlock, ...]
    at: int | None = None
    provider: str = ""


def turns_in_format(
    name: str,
    provider: str,
    turns: Sequence[StoredTurn],
    model: str = "",
    head: JsonObject | None = None,
    compactions: Sequence[ClientSummary] = (),
) -> StoredConversation:
    """Turns in the format of the provider that answered them; with a system prompt where there is one.

    `compactions` count turns.
    """
    format = _speaks(provider)
    if format == "openai-responses" and not any(block.signature for turn in turns for block in turn.blocks):
        format = "openai-chat"
    turns = [msgspec.structs.replace(turn, blocks=tuple(_own_blocks(turn, format))) for turn in turns]
    write, field = _WRITERS[format], wire_of(format).layout.field
    # A system prompt and tools ({name, description, parameters}), as far as a store has them.
    fields = head or {}
    entries = [make(fields[name]) for name, make in (("system", system), ("tools", tools)) if fields.get(name)]
    request = providers.export(format, entries)
    around = request if isinstance(request, dict) else {field: request}
    messages: list[tuple[int | None, JsonObject]] = [(None, message) for message in around[field]]
    starts = [len(messages)]
    for turn in turns:
        messages += [(turn.at, message) for message in write(turn)]
        starts.append(len(messages))
    value = {**around, field: [message for _, message in messages]}
    left_out = tuple(block.left_out for turn in turns for block in turn.blocks if block.left_out)
    counted = [
        ClientSummary(starts[summary.behind], frozenset(n for kept in summary.kept for n in range(*starts[kept : kept + 2])), summary.summary)
        for summary in compactions
    ]  # fmt: skip
    times = tuple(at for at, _ in messages)
    return StoredConversation(name, format, value, model, times=times, left_out=left_out, compactions=tuple(counted))


def _speaks(provider: str) -> str:
    return next((wire for word, wire in _SPEAKS.items() if word in provider), "openai-chat")


def _own_blocks(turn: StoredTurn, format: str) -> Iterator[StoredBlock]:
    """The blocks as a format takes them: without the signatures of others, the thoughts of one item in one block."""
    is_own = not turn.provider or _speaks(turn.provider) in (format, "openai-chat")
    before: StoredBlock | None = None
    for block in (*turn.blocks, None):
        if block is not None and not is_own:
            block = msgspec.structs.replace(block, signature="", id="", redacted=False)
        if before and block and block.thinking and before.thinking and block.id and block.id == before.id:
            text = "\n\n".join(filter(None, (before.text, block.text)))
            before = msgspec.structs.replace(before, text=text, signature=before.signature or block.signature)
            continue
        if before and format == "openai-responses" and before.thinking and not (before.signature or before.id):
            before = StoredBlock(left_out="thinking without a signature")
        if before:
            yield before
        before = block


_SPEAKS = {"completions": "openai-chat", "anthropic": "anthropic", "claude": "anthropic", "google": "gemini", "gemini": "gemini", "vertex": "gemini", "openai": "openai-responses", "gpt": "openai-responses"}  # fmt: skip


def _anthropic(turn: StoredTurn) -> Iterator[JsonObject]:
    blocks: list[JsonObject] = []
    for block in turn.blocks:
        if block.is_result:
            failed = {"is_error": True} if block.error else {}
            words = [{"type": "text", "text": block.text}] if block.text.strip() else []
            content = [*words, *map(anthropic_image, block.images)] if block.images else block.text
            blocks.append({"type": "tool_result", "tool_use_id": block.call_id, "content": content, **failed})
        elif block.call_id:
            blocks.append({"type": "tool_use", "id": block.call_id, "name": block.name, "input": block.args or {}})
        elif block.redacted:
            blocks.append({"type": "redacted_thinking", "data": block.signature})
        elif block.thinking:
            blocks.append({"type": "thinking", "thinking": block.text, "signature": block.signature})
        elif block.image[1]:
            blocks.append(anthropic_image(block.image))
        elif block.text.strip():
            blocks.append({"type": "text", "text": block.text})
    if blocks:
        yield {"role": "assistant" if turn.role == "assistant" else "user", "content": blocks}


def anthropic_image(image: tuple[str, str]) -> JsonObject:
    kind, data = image
    source = {"type": "base64", "media_type": kind, "data": data} if kind else {"type": "url", "url": data}
    return {"type": "image", "source": source}


def _gemini(turn: StoredTurn) -> Iterator[JsonObject]:
    parts: list[JsonObject] = []
    for block in turn.blocks:
        signed = {"thoughtSignature": block.signature} if block.signature else {}
        named = {"id": block.call_id, "name": block.name}
        if block.is_result:
            reply = {"error" if block.error else "output": block.text}
            pictures = {"parts": [*map(_gemini_image, block.images)]} if block.images else {}
            parts.append({"functionResponse": {**named, "response": reply, **pictures}})
        elif block.call_id:
            parts.append({"functionCall": {**named, "args": block.args or {}}, **signed})
        elif block.image[1]:
            parts.append(_gemini_image(block.image))
        elif block.text or block.signature:
            parts.append({"text": block.text, **({"thought": True} if block.thinking else {}), **signed})
    if parts:
        yield {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _gemini_image(image: tuple[str, str]) -> JsonObject:
    kind, data = image
    return {"inlineData": {"mimeType": kind, "data": data}} if kind else {"fileData": {"fileUri": data}}


def _responses(turn: StoredTurn) -> Iterator[JsonObject]:
    kind = "output_text" if turn.role == "assistant" else "input_text"
    for block in turn.blocks:
        item_id = {"id": block.id} if block.id else {}
        if block.is_result:
            pictures = [{"type": "input_image", "image_url": _url(image)} for image in block.images]
            output = [{"type": "input_text", "text": block.text}, *pictures] if pictures else block.text
            yield {"type": "function_call_output", "call_id": block.call_id, "output": output}
        elif block.call_id:
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.arguments}
            yield {"type": "function_call", **call, **item_id}
        elif block.thinking and block.signature.startswith("{"):
            yield decode_json(block.signature)
        elif block.thinking:
            summary = [{"type": "summary_text", "text": block.text}] if block.text else []
            sealed = {"encrypted_content": block.signature} if block.signature else {}
            yield {"type": "reasoning", "summary": summary, **sealed, **item_id}
        elif block.image[1]:
            yield {"role": "user", "content": [{"type": "input_image", "image_url": _url(block.image)}]}
        elif not block.left_out:
            yield {"type": "message", "role": turn.role, "content": [{"type": kind, "text": block.text}], **item_id}


def _chat(turn: StoredTurn) -> Iterator[JsonObject]:
    text, thought = "", ""
    calls: list[JsonObject] = []
    images: list[JsonObject] = []
    for block in turn.blocks:
        if block.is_result:
            failed = {"_err": True} if block.error else {}
            pictures = [{"type": "image_url", "image_url": {"url": _url(image)}} for image in block.images]
            answer = [{"type": "text", "text": block.text}, *pictures] if pictures else block.text
            yield {"role": "tool", "tool_call_id": block.call_id, "content": answer, **failed}
        elif block.call_id:
            called = {"name": block.name, "arguments": block.arguments}
            calls.append({"id": block.call_id, "type": "function", "function": called})
        elif block.thinking:
            thought += block.text
        elif block.image[1]:
            images.append({"type": "image_url", "image_url": {"url": _url(block.image)}})
        else:
            text += block.text
    if text or calls or images or thought:
        content: Json = [{"type": "text", "text": text}, *images] if images else text
        besides = {"reasoning_content": thought, "tool_calls": calls}
        yield {"role": turn.role, "content": content, **{name: field for name, field in besides.items() if field}}


_WRITERS = {"anthropic": _anthropic, "gemini": _gemini, "openai-responses": _responses, "openai-chat": _chat}
