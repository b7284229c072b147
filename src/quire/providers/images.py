"""Images as entries keep them: {"media_type", "data"} or {"url"}; data URLs are taken apart."""

from __future__ import annotations

from quire.values import Image, Json, JsonObject


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


def image_json(image: Image) -> JsonObject:
    """The object a user entry keeps."""
    return {"url": image.url} if image.url else {"media_type": image.media_type, "data": image.data}
