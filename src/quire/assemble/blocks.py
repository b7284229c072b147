"""An item as the text a model reads: its identity, its block, and how an update to it is written."""

from __future__ import annotations

import difflib
import re
from typing import Any

import msgspec

from quire.items import identity
from quire.log.hashing import sha256_hex
from quire.tokens import counter
from quire.values import JsonObject

# Unicode White_Space and U+FEFF; str.strip() takes a slightly different set.
_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACE += "\u2028\u2029\u202f\u205f\u3000\ufeff"
_TAGS = {
    "note": ("note_context", ("title", "path")),
    "active_note": ("active_note", ("title", "path")),
    "url": ("url_content", ("url",)),
    "selection": ("selected_text", ("title", "path", "start_line", "end_line")),
    "dataview": ("dataview", ("path", "query")),
}
_UPDATE = "note_context_update"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Block(msgspec.Struct, frozen=True):
    """One attached item, ready to be shown or referred to."""

    id: str
    sha256: str
    text: str
    tag: str
    content: str
    promotable: bool
    images: tuple[JsonObject, ...] = ()


def normal(text: str) -> str:
    """Line ends as \\n and no white space around, as in L1 to L3."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip(_SPACE)


def shown(id: str) -> str:
    """An identity on one line: control characters as \\xNN."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", id)


def block(item: JsonObject, times: bool = False) -> Block:
    """The block of an item; which wrapper it gets is said by metadata.source."""
    meta = item.get("metadata") or {}
    source, id, content = meta.get("source"), identity(item), item["content"]
    tag = _TAGS[source][0] if source in _TAGS else "context_item"
    images = tuple(meta.get("images") or ()) if source == "active_note" else ()
    return Block(
        id=id,
        sha256=item.get("sha256") or sha256_hex(content),
        text=normal(_wrapped(item, meta, times)),
        tag=tag,
        content=content,
        promotable=source != "selection" and not meta.get("images"),
        images=images,
    )


def _wrapped(item: JsonObject, meta: JsonObject, times: bool) -> str:
    source = meta.get("source")
    if source not in _TAGS:
        head = (
            f'<context_item id="{_attribute(identity(item))}" type="{_attribute(item.get("type", "code"))}">'
        )
        return f"{head}\n{escaped(item['content'], 'context_item')}\n</context_item>"
    tag, names = _TAGS[source]
    fields = _fields(item, meta)
    if times:
        names = tuple(
            out for name in names for out in ((name, "ctime", "mtime") if name == "path" else (name,))
        )
    lines = [f"<{name}>{_field(fields[name])}</{name}>" for name in names if name in fields]
    body = escaped(item["content"], tag, "content")
    return "\n".join([f"<{tag}>", *lines, f"<content>\n{body}\n</content>", f"</{tag}>"])


def _fields(item: JsonObject, meta: JsonObject) -> JsonObject:
    """The wrapper's fields, with a title from the path where none was given."""
    fields = {key: value for key, value in meta.items() if value is not None}
    path = fields.get("path") or fields.get("filename") or identity(item)
    fields["path"] = path
    fields.setdefault("title", str(path).rsplit("/", 1)[-1].removesuffix(".md"))
    fields.setdefault("url", identity(item))
    return fields


def _field(value: Any) -> str:  # Any: a metadata value of the caller's
    text = _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", str(value))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(value: Any) -> str:  # Any: an id or type of the caller's
    return _field(value).replace('"', "&quot;")


def escaped(content: str, *tags: str) -> str:
    """Content that cannot close its wrapper: </tag> -> <\\/tag>, <\\/tag> -> <\\\\/tag>."""
    return re.sub(rf"<(\\*)/({'|'.join(map(re.escape, tags))})>", r"<\1\\/\2>", content)


def update(new: Block, old: Block) -> str:
    """Changed content under a known identity: the new block or a diff, whichever is fewer tokens."""
    count = counter().count
    whole, diff = _inside_update(new.text), _fenced_diff(old, new)
    inner = diff if count(diff) < count(whole) else whole
    return f'<{_UPDATE} replaces="{old.sha256[:12]}">\n{inner}\n</{_UPDATE}>'


def _fenced_diff(old: Block, new: Block) -> str:
    """A unified diff by \\n lines, named by the identity, in a fence that it cannot close."""
    name = shown(new.id)
    lines = difflib.unified_diff(
        old.content.split("\n"), new.content.split("\n"), name, name, n=2, lineterm=""
    )
    diff = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", diff)), default=0))
    return f"{fence}diff\n{_inside_update(diff)}\n{fence}"


def _inside_update(text: str) -> str:
    return escaped(text, _UPDATE)
