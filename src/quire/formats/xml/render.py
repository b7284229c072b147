"""A window as XML. An item's text is its content to the character; what XML cannot hold makes it base64.

Hashes are not written: they follow from the content.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator

from quire.formats.context import MAX_ITEMS, Context
from quire.formats.text import well_formed
from quire.values import Item, Json, JsonObject

# Metadata that has an attribute of its own; everything else stands in `metadata`, as JSON.
OWN: dict[str, type] = {"filename": str, "start_line": int, "end_line": int, "language": str}
LIMITS = ("max_items", "max_tokens", "max_item_tokens", "next_id")

_FOREIGN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2
_TEXT = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord("\r"): "&#13;"}
_ATTRIBUTE = {**_TEXT, ord('"'): "&quot;", ord("\n"): "&#10;", ord("\t"): "&#9;"}


def render(value: Context) -> str:
    """One element a line, in the window's order, the request last; what is as by default is left out."""
    limits = [(name, getattr(value, name)) for name in LIMITS]
    shown = [(name, str(limit)) for name, limit in limits if limit is not None]
    head = "<context" + _attributes(pair for pair in shown if pair != ("max_items", str(MAX_ITEMS))) + ">"
    lines = [head, *(_item(item, item.id in value.pinned) for item in value.items)]
    if value.request is not None:
        lines.append(_element("request", [], value.request))
    return "\n".join([*lines, "</context>\n"])


def _item(item: Item, pinned: bool) -> str:
    attributes = [("id", item.id), ("type", item.type), *_metadata(item.metadata)]
    if item.timestamp:
        attributes.append(("timestamp", str(item.timestamp)))
    if pinned:
        attributes.append(("pinned", "true"))
    return _element("item", attributes, item.content)


def _element(name: str, attributes: list[tuple[str, str]], text: str) -> str:
    if _FOREIGN.search(well_formed(text)):
        attributes = [*attributes, ("encoding", "base64")]
        text = base64.b64encode(text.encode()).decode()
    return f"<{name}{_attributes(attributes)}>{text.translate(_TEXT)}</{name}>"


def _attributes(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f' {name}="{value.translate(_ATTRIBUTE)}"' for name, value in pairs)


def _metadata(metadata: JsonObject | None) -> Iterator[tuple[str, str]]:
    """Attributes for metadata; an empty object is still an object."""
    if metadata is None:
        return
    rest = dict(metadata)
    for name in OWN:
        if _fits_attribute(name, rest.get(name)):
            yield name, well_formed(str(rest.pop(name)))
    if rest or not metadata:
        yield "metadata", _json(rest)


def _fits_attribute(name: str, value: Json) -> bool:
    if type(value) is not OWN[name]:
        return False
    return abs(value) < 2**63 if isinstance(value, int) else not _FOREIGN.search(str(value))


def _json(value: Json) -> str:
    text = well_formed(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    return _FOREIGN.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
