"""Entries as messages, one after the other, with nothing folded or fitted: for exporting a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.entry import result_text
from quire.providers.rendering import Draft
from quire.values import (
    SPOKEN,
    Call,
    Entry,
    Image,
    Json,
    JsonObject,
    Message,
    Part,
    Result,
    Role,
    Text,
    Think,
    ToolSet,
)

# Images as entries keep them: {"media_type", "data"} or {"url"}; data URLs are taken apart.


def image(value: Json) -> Image:
    """An image part from what a user entry lists: an object, or a URL."""
    if isinstance(value, str):
        return from_url(value)
    if value.get("data"):
        return Image(media_type=str(value.get("media_type") or "image/png"), data=str(value["data"]))
    return from_url(str(value.get("url") or ""), str(value.get("media_type") or ""))


def from_url(url: str, media_type: str = "") -> Image:
    """data:image/png;base64,AAAA -> its type and data; any other URL as it is."""
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return Image(url=url, media_type=media_type)
    return Image(media_type=head[len("data:") : -len(";base64")] or "image/png", data=data)


def to_url(image: Image) -> str:
    return image.url or f"data:{image.media_type};base64,{image.data}"


# What every provider that takes images can read.
COMMON = ("image/png", "image/jpeg", "image/gif", "image/webp")


def is_web(url: str) -> bool:
    """Whether a provider could fetch it."""
    return url.startswith(("https://", "http://"))


def shown_images(
    sheet: Draft,
    message: Message,
    show: Callable[[Image], JsonObject | None],
    say: Callable[[str], JsonObject],
) -> list[JsonObject]:
    """The images of a message as `show` writes them; one that it cannot write is named in the text."""
    out = []
    for part in message.parts:
        if not isinstance(part, Image):
            continue
        written = show(part)
        if written is None:
            what = part.url or part.media_type or "without data"
            sheet.leave_out(message, f"image {what[:80]} cannot be taken by {sheet.info.provider}")
            written = say(f"[image: {part.url}]" if part.url else "[image]")
        out.append(written)
    return out


def image_json(image: Image) -> JsonObject:
    """The object a user entry keeps."""
    if image.url:
        return {"url": image.url, **({"media_type": image.media_type} if image.media_type else {})}
    return {"media_type": image.media_type, "data": image.data}


_ROLES: dict[str, Role] = {
    "user": "user",
    "think": "assistant",
    "respond": "assistant",
    "call": "assistant",
    "result": "tool",
    "system": "note",
    "note": "note",
    "tools": "tools",
}


def project(entries: Iterable[Entry]) -> list[Message]:
    """Each entry's part, gathered into messages where one message of the model began and ended."""
    out: list[Message] = []
    names: dict[str, str] = {}
    for entry in entries:
        if entry.kind not in _ROLES:
            continue
        if entry.kind == "call":
            names[entry.call_id] = entry.name
        parts = parts_of(entry, names)
        if out and _continues(entry, out[-1]):
            out[-1] = Message(out[-1].role, (*out[-1].parts, *parts), (*out[-1].seqs, entry.seq))
        else:
            out.append(Message(_ROLES[entry.kind], parts, (entry.seq,)))
    return out


def _continues(entry: Entry, last: Message) -> bool:
    """Whether an entry is part of the message before it: spoken in one go, or a result of the same group."""
    if entry.kind in SPOKEN and _begins(entry.wire):
        return False
    return _ROLES[entry.kind] == last.role and last.role in ("assistant", "tool")


def _begins(wire: JsonObject) -> bool:
    """Whether a message of the model began here, as far as its wire format shows."""
    return "format" in wire and not wire.get("more")


def parts_of(entry: Entry, names: dict[str, str]) -> tuple[Part, ...]:
    """What an entry says; `names` tells which tool a result is from."""
    match entry.kind:
        case "user":
            texts = [str(item.get("content", "")) for item in entry.attached] + [entry.text]
            images = [image(one) for one in entry.body.get("images") or ()]
            return (Text("\n\n".join(text for text in texts if text), entry.wire), *images)
        case "think":
            return (Think(entry.text, entry.wire),)
        case "call":
            raw = str(entry.wire.get("arguments", ""))
            return (Call(entry.call_id, entry.name, entry.args, entry.wire, raw),)
        case "result":
            failed = bool(entry.body.get("error"))
            return (
                Result(entry.call_id, names.get(entry.call_id, ""), result_text(entry), failed, entry.wire),
            )
        case "tools":
            return (ToolSet(tuple(entry.tools)),)
    return (Text(entry.text, entry.wire),)
