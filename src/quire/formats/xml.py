"""`xml`: a window as elements, for models that read tags well; nothing of it is lost."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from quire.errors import FormatError
from quire.formats import well_formed
from quire.formats.json_ import Context, project, read, to_json
from quire.items import MAX_ITEMS
from quire.values import Item, JsonObject

__all__ = ["Context", "parse", "project", "read", "render", "to_json"]

# A window as XML. An item's text is its content to the character; what XML cannot hold makes it base64.
#
# Hashes are not written: they follow from the content.

# Metadata that has an attribute of its own; everything else stands in `metadata`, as JSON.
OWN: dict[str, type] = {"filename": str, "start_line": int, "end_line": int, "language": str}
LIMITS = ("max_items", "max_tokens", "max_item_tokens", "next_id")

_FOREIGN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2
_TEXT = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord("\r"): "&#13;"}
_ATTRIBUTE = {**_TEXT, ord('"'): "&quot;", ord("\n"): "&#10;", ord("\t"): "&#9;"}


def render(value: Context) -> str:
    """One element a line, in the window's order, the request last; what is as by default is left out."""
    limits = [(name, getattr(value, name)) for name in LIMITS]
    attributes = [(name, str(limit)) for name, limit in limits if limit is not None]
    head = "<context" + _attributes(pair for pair in attributes if pair != ("max_items", str(MAX_ITEMS))) + ">"
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
    for name, kind in OWN.items():
        value = rest.get(name)
        if type(value) is kind and (abs(value) < 2**63 if isinstance(value, int) else not _FOREIGN.search(str(value))):
            yield name, well_formed(str(rest.pop(name)))
    if rest or not metadata:
        text = well_formed(json.dumps(rest, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
        yield "metadata", _FOREIGN.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


# XML back to a window: well-formedness is expat's, every element and attribute must be known.

_ITEM = {"id", "type", "timestamp", "pinned", "metadata", "encoding", *OWN}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,999})")


def parse(text: str) -> Context:
    """The value of a rendered text, or of the same elements in another layout."""
    root = _root(well_formed(text))
    _check_element(root, "context", set(LIMITS))
    _no_loose_text(root.text)
    window: JsonObject = {name: _int(name, root.attrib[name]) for name in LIMITS if name in root.attrib}
    window["items"], window["pinned"] = [], []
    for element in root:
        _no_loose_text(element.tail)
        if "request" in window:
            raise FormatError(f"<{element.tag}> stands behind <request>", hint="The request is last.")
        if element.tag == "request":
            _check_element(element, "request", {"encoding"})
            window["request"] = _content(element)
        else:
            _add(window, element)
    return read(window)


def _root(text: str) -> Element:
    if "<!" in text:
        raise FormatError("document types, comments and CDATA are not read", hint="Write < as &lt; in content.")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        hint = "parse reads what `quire format xml` writes."
        raise FormatError(f"not XML: {error}", line=line, column=column + 1, hint=hint) from error


def _check_element(element: Element, name: str, attributes: set[str]) -> None:
    """Refuse an element or attribute that would be lost."""
    if element.tag != name:
        raise FormatError(f"unexpected <{element.tag}>", hint=f"<{name}> belongs here.")
    if name != "context" and len(element):
        raise FormatError(f"<{name}> holds <{element[0].tag}>", hint="Write < as &lt; in content.")
    if unknown := element.attrib.keys() - attributes:
        listed = ", ".join(sorted(attributes))
        raise FormatError(f"<{name}> has unknown attribute {min(unknown)!r}", hint=f"Known here: {listed}.")


def _no_loose_text(text: str | None) -> None:
    if text and text.strip():
        raise FormatError(f"text between elements: {text.strip()[:40]!r}", hint="Text stands inside <item>.")


def _add(window: JsonObject, element: Element) -> None:
    _check_element(element, "item", _ITEM)
    raw = element.attrib
    item: JsonObject = {name: raw[name] for name in ("id", "type") if name in raw}
    item["content"] = _content(element)
    if "timestamp" in raw:
        item["timestamp"] = _int("timestamp", raw["timestamp"])
    metadata = {name: raw[name] if OWN[name] is str else _int(name, raw[name]) for name in OWN if name in raw}
    if metadata or "metadata" in raw:
        item["metadata"] = metadata | _object(raw.get("metadata", "{}"))
    if "pinned" in raw:
        if raw["pinned"] != "true" or "id" not in raw:
            raise FormatError('a pinned item has an id and pinned="true"', hint="Leave pinned out otherwise.")
        window["pinned"].append(raw["id"])
    window["items"].append(item)


def _object(text: str) -> JsonObject:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"metadata is not JSON: {error}", hint="It is one JSON object.") from error
    if not isinstance(value, dict):
        raise FormatError(f"metadata is {text[:40]!r}", hint="It is one JSON object.")
    return value


def _content(element: Element) -> str:
    text, encoding = element.text or "", element.get("encoding")
    if encoding is None:
        return text
    if encoding != "base64":
        raise FormatError(f"unknown encoding {encoding!r}", hint="Known here: base64.")
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise FormatError(f"<{element.tag}> is not base64 of UTF-8: {error}", hint="Check the text.") from error


def _int(name: str, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise FormatError(f"{name} is {text[:40]!r}", hint="It is an integer.")
    return int(text)
