"""Images as entries keep them: {"media_type", "data"} or {"url"}; data URLs are taken apart."""

from __future__ import annotations

from collections.abc import Callable

from quire.providers.sheet import Sheet
from quire.values import Image, Json, JsonObject, Message


def image(value: Json) -> Image:
    """An image part from what a user entry lists: an object, or a URL."""
    if isinstance(value, str):
        return from_url(value)
    if value.get("data"):
        return Image(media_type=str(value.get("media_type") or "image/png"), data=str(value["data"]))
    return from_url(str(value.get("url") or ""))


def from_url(url: str) -> Image:
    """data:image/png;base64,AAAA -> its type and data; any other URL as it is."""
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return Image(url=url)
    return Image(media_type=head[len("data:") : -len(";base64")] or "image/png", data=data)


def to_url(image: Image) -> str:
    return image.url or f"data:{image.media_type};base64,{image.data}"


# What every provider that takes images can read.
COMMON = ("image/png", "image/jpeg", "image/gif", "image/webp")


def is_web(url: str) -> bool:
    """Whether a provider could fetch it."""
    return url.startswith(("https://", "http://"))


def shown_images(
    sheet: Sheet,
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
    return {"url": image.url} if image.url else {"media_type": image.media_type, "data": image.data}
