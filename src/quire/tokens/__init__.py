"""Token counts: a counter per vocabulary, calibration, and the count of prompts that budgets use.

That count estimates what no provider has counted yet: always with o200k, never scaled.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable

import msgspec

from quire import values
from quire.tokens.vocabularies import (
    Calibration,
    Calibrations,
    Counter,
    VocabularyCounter,
    count,
    counter,
    uncalibrated,
)
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Part, Result, Text, Think, ToolSet, canonical

__all__ = [
    "Calibration", "Calibrations", "Counter", "VocabularyCounter", "count", "counter", "message_tokens",
    "text_tokens", "tools_tokens", "uncalibrated",
]  # fmt: skip

# The tokens that a provider adds to each message.
MESSAGE_TOKENS = 4
# Providers count an image by its size and the model; this is about the mean.
IMAGE_TOKENS = 1500


def text_tokens(text: str) -> int:
    """The tokens of a message that is one text, such as a system message."""
    return MESSAGE_TOKENS + counter().count(text)


def message_tokens(message: Message, image_tokens: int = 0) -> int:
    """The tokens of a message: its texts, calls and results, and 4 for each message that it becomes on the wire."""
    # Each result of a group of parallel calls is a wire message of its own.
    results = sum(isinstance(part, Result) for part in message.parts)
    framing = MESSAGE_TOKENS * max(1, results if message.role == "tool" else 1)
    texts = [part.text for part in message.parts if isinstance(part, Text) and part.text]
    others = [part for part in message.parts if not isinstance(part, Text)]
    # Several texts of one message are joined on the wire, with blank lines between them.
    words = counter().count("\n\n".join(texts)) if texts else 0
    return framing + words + sum(part_tokens(part, image_tokens) for part in others)


def part_tokens(part: Part, image_tokens: int = 0) -> int:
    """The tokens of one part of a message."""
    count = counter().count
    match part:
        case Text(text=text) | Think(text=text) | Result(text=text):
            return count(text)
        case Call(name=name):
            return count(name) + count(arguments_text(part))
        case ToolSet(tools=tools):
            return tools_tokens(tools)
        case Image():
            return image_tokens


def arguments_text(call: Call) -> str:
    """A call's arguments as they are sent: the model's own string, else compact JSON."""
    return call.arguments or compact(call.args)


def compact(value: Json) -> str:
    """JSON without spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def tools_tokens(tools: Iterable[JsonObject]) -> int:
    """The tokens of the tools' canonical JSON; 0 without tools."""
    listed = list(tools)
    return counter().count(canonical(listed).decode()) if listed else 0


# The tokens of native blocks, as estimated until their provider has counted them: texts, media, and encrypted content.

# Encrypted reasoning is base64: four characters hold three bytes, about four of which made a token.
OPAQUE_CHARACTERS_PER_TOKEN = 5
# Encrypted search results; by Claude's reports, a character of them is 0.32 to 0.48 tokens.
_FOUND_TOKENS_PER_CHARACTER = 0.35

# Kinds of blocks that name their kind by a key (Bedrock, Gemini).
_KEYED = {
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "reasoningContent": "thinking",
    "functionCall": "tool_use",
    "functionResponse": "tool_result",
    "image": "image",
    "document": "document",
    "video": "video",
    "audio": "audio",
    "inlineData": "image",
    "fileData": "image",
    "cachePoint": "cachePoint",
    "toolSpec": "tool",
}


def kind_of(part: JsonObject) -> str:
    """The kind of a block: its `type`, or by its key."""
    if isinstance(part.get("type"), str):
        return str(part["type"])
    return next((kind for key, kind in _KEYED.items() if key in part), "text")


def countable(part: JsonObject) -> tuple[str, int]:
    """The text of a block, and the tokens of what is not text."""
    pieces: list[str | int] = [_opaque(part)]
    _look(part, pieces)
    texts = [piece for piece in pieces if piece and isinstance(piece, str)]
    return "\n".join(texts), sum(piece for piece in pieces if isinstance(piece, int))


def block_tokens(block: JsonObject) -> int:
    """The tokens of a native block."""
    text, beside = countable(block)
    return counter().count(text) + beside


def is_text(block: JsonObject) -> bool:
    """Whether a block is plain text, which its entry's text holds too."""
    return any(isinstance(block.get(field), str) for field in ("text", "refusal")) or "json" in block


def is_image(block: JsonObject) -> bool:
    """Whether a block is an image."""
    media = media_in(block)
    return media is not None and media.type.startswith("image/")


# Fields that are not counted: kinds, ids, signatures and the like.
_SILENT = frozenset(
    {"type", "id", "tool_use_id", "toolUseId", "tool_call_id", "call_id", "signature", "thoughtSignature", "data",
     "encrypted_content", "encrypted_index", "redactedContent", "status", "role", "index", "phase", "annotations",
     "is_error", "strict"}
)  # fmt: skip
# Fields with JSON of a model or a tool, counted as compact JSON.
_JSON = frozenset({"input", "args", "response", "json", "toolSpec", "definition", "tools"})


def _look(value: Json, out: list[str | int]) -> None:
    """Collect the texts of a value (names, arguments, contents), and token numbers for what is not text."""
    if isinstance(value, str):
        data = _DATA_URL.match(value)
        out.append(Media(data[1], value[data.end() :]).tokens() if data else value)
    elif isinstance(value, list):
        for item in value:
            _look(item, out)
    elif isinstance(value, dict) and (media := media_in(value)) is not None:
        out += (media.text, media.tokens())
        _look([value.get("title"), value.get("context"), *media.blocks], out)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key == "encrypted_content" and value.get("type") == "web_search_result" and isinstance(inner, str):
                out.append(int(len(inner) * _FOUND_TOKENS_PER_CHARACTER))
            elif key == "result" and value.get("type") == "image_generation_call":
                out.append(IMAGE_TOKENS)
            elif key in _JSON and not isinstance(inner, str):
                out.append(compact(inner))
            elif key not in _SILENT:
                _look(inner, out)


def _opaque(part: JsonObject) -> int:
    """The tokens of reasoning that is present only in encrypted form."""
    inner = values.as_object(part.get("reasoningContent") or part)
    thinking = values.as_object(inner.get("reasoningText") or inner)
    if thinking.get("thinking") or (thinking.get("text") and "reasoningContent" in part):
        return 0
    hidden = part.get("encrypted_content") or inner.get("redactedContent")
    if part.get("type") in ("thinking", "redacted_thinking"):
        hidden = part.get("signature") or part.get("data")
    return len(hidden) // OPAQUE_CHARACTERS_PER_TOKEN if isinstance(hidden, str | bytes) else 0


# Media: the tokens of a page, a second or an image, as documented by the providers.

_DATA_URL = re.compile(r"data:([\w.+/-]*);base64,")
_TEXT_TYPES = re.compile(r"text/|(application/)?(.*\+)?(json|xml|csv|md|markdown|html|txt|plain|yaml)$")
# A page is read as text and as an image; Gemini counts 258 for it, OpenAI its words and a small image.
_PAGE = {"anthropic": 3000, "bedrock": 3000, "openai": 1000, "gemini": 258}
# A second of sound, and of video.
_SOUND = {"openai": 10}
_SOUND_TOKENS, _VIDEO_TOKENS = 32, 300
# The bytes of a second or a page, where the file does not tell.
_SOUND_BYTES, _VIDEO_BYTES, _PAGE_BYTES = 16_000, 250_000, 50_000


class Media(msgspec.Struct, frozen=True):
    """A file in a block: its media type, its base64 data or its text, and the provider whose form the block has."""

    type: str
    data: str = ""
    form: str = "openai"
    words: str = ""
    # The blocks of a document that consists of blocks.
    blocks: tuple[JsonObject, ...] = ()

    @property
    def text(self) -> str:
        """The text of a text file; "" for others."""
        if self.words or not self.data or not _TEXT_TYPES.match(self.type):
            return self.words
        return _decode(self.data).decode(errors="replace")

    def tokens(self) -> int:
        """The tokens of its data; 0 where it has text, which is counted as such."""
        if self.blocks or self.text:
            return 0
        if self.type.startswith("image/") or not self.data:
            return IMAGE_TOKENS
        data = _decode(self.data)
        if self.type.startswith("audio/"):
            # The header of a WAV file tells the bytes per second.
            rate = int.from_bytes(data[28:32], "little") if data.startswith(b"RIFF") else 0
            return int(_SOUND.get(self.form, _SOUND_TOKENS) * (len(data) / (rate or _SOUND_BYTES))) + 1
        if self.type.startswith("video/"):
            return _VIDEO_TOKENS * (1 + len(data) // _VIDEO_BYTES)
        if data.startswith(b"%PDF"):
            return _PAGE[self.form] * _pages(data)
        return max(IMAGE_TOKENS, len(data) // 4)


def media_in(block: JsonObject) -> Media | None:
    """The file in a block, or None."""
    kind = block.get("type")
    if kind in ("image", "document") and "source" in block:
        return _of_source(values.as_object(block["source"]), f"{kind}/" if kind == "image" else "", "anthropic")
    if kind in ("input_file", "file"):
        file = values.as_object(block.get("file")) or block
        url = str(file.get("file_data") or file.get("data") or "")
        data_url = _DATA_URL.match(url)
        return Media(data_url[1], url[data_url.end() :]) if data_url else Media("", url)
    if kind == "input_audio":
        audio = block.get("input_audio")
        sound = {"data": audio} if isinstance(audio, str) else values.as_object(audio)
        return Media(f"audio/{sound.get('format') or ''}", str(sound.get("data") or ""))
    if isinstance(kind, str):
        return Media("image/") if kind in ("input_image", "image_url", "image_file", "computer_screenshot") else None
    for key in ("inlineData", "inline_data", "fileData", "file_data"):
        if isinstance(blob := block.get(key), dict):
            type = str(blob.get("mimeType") or blob.get("mime_type") or "")
            return Media(type, str(blob.get("data") or ""), "gemini")
    for key in ("image", "document", "video", "audio"):
        if isinstance(source := block.get(key), dict):
            return _of_source(
                {**values.as_object(source.get("source")), "format": source.get("format")}, f"{key}/", "bedrock"
            )
    return None


def _of_source(source: JsonObject, prefix: str, form: str) -> Media:
    """The file of a source in Anthropic's or Bedrock's form: base64, text, or blocks."""
    type = str(source.get("media_type") or prefix.replace("document/", "") + str(source.get("format") or ""))
    content, text = source.get("content"), source.get("text")
    if isinstance(content, list):
        return Media(type, form=form, blocks=tuple(values.as_objects(content)))
    if source.get("type") in ("text", "content") or isinstance(text, str):
        return Media("text/plain", form=form, words=str(source.get("data") or text or content or ""))
    return Media(type, str(source.get("data") or source.get("bytes") or ""), form)


def _decode(data: str) -> bytes:
    try:
        return base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_" if "-" in data or "_" in data else None)
    except ValueError:
        return b""


_PAGE_MARK = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PACKED = re.compile(rb"/ObjStm\b.*?stream\r?\n", re.DOTALL)


def _pages(pdf: bytes) -> int:
    """The number of pages of a PDF: counted in its plain or compressed objects, else estimated from its size."""
    count = len(_PAGE_MARK.findall(pdf))
    for packed in () if count else _PACKED.finditer(pdf):
        try:
            count += len(_PAGE_MARK.findall(zlib.decompressobj().decompress(pdf[packed.end() :], 1 << 22)))
        except zlib.error:
            continue
    return count or 1 + len(pdf) // _PAGE_BYTES


def entry_texts(entry: Entry) -> list[str]:
    """All texts of an entry that a model reads."""
    body = entry.body
    texts = [str(body[key]) for key in ("text", "name", "outcome", "content") if body.get(key)]
    if entry.kind == "call":
        texts.append(compact(entry.args))
    return texts + [str(item.get("content", "")) for item in entry.attached]
