"""A window as the formats `xml` and `json` show it: every field of every item, its capacity, the request.

The window's own rules (ids, timestamps, eviction) are applied by `quire.items`; a missing timestamp is 0.
"""

from __future__ import annotations

import msgspec

from quire.items.shape import ITEM, MAX_ITEMS, WINDOW
from quire.items.window import Window
from quire.log.inputs import checked
from quire.log.shapes import NULL, STRING, Fields, either
from quire.values import Item, Json, JsonObject, item_json

INPUT = Fields(WINDOW.required, {**WINDOW.optional, "request": either(STRING, NULL)})
__all__ = ["INPUT", "ITEM", "MAX_ITEMS", "Context", "project", "read", "to_json"]


class Context(msgspec.Struct, frozen=True):
    """What a window holds, and the request that goes with it (None: none)."""

    items: tuple[Item, ...] = ()
    max_items: int = MAX_ITEMS
    max_tokens: int | None = None
    max_item_tokens: int | None = None
    pinned: tuple[str, ...] = ()
    # None where it follows from the items: one more than the highest number.
    next_id: int | None = None
    request: str | None = None


def project(window: Window, request: str | None = None) -> Context:
    """All of a window; nothing is left out."""
    fields = window.to_json()
    return Context(
        tuple(window),
        window.max_items,
        window.max_tokens,
        window.max_item_tokens,
        tuple(window.pinned),
        fields.get("next_id"),
        request,
    )


def read(data: Json) -> Context:
    """The value of the JSON object that `quire format` takes; absent ids are ctx-1, ctx-2, …"""
    fields = dict(checked(INPUT, data))
    request = fields.pop("request", None)
    return project(Window.from_json(fields), request)


def to_json(value: Context) -> JsonObject:
    """A value as the JSON object that `read` takes back; what is as by default is left out, except max_items."""
    out: JsonObject = {"items": [item_json(item) for item in value.items], "max_items": value.max_items}
    for name in ("max_tokens", "max_item_tokens", "next_id", "request"):
        if (given := getattr(value, name)) is not None:
            out[name] = given
    if value.pinned:
        out["pinned"] = list(value.pinned)
    return out
