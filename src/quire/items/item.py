"""Making an item: its content checked and hashed once, here; and the identity under which a model knows it."""

from __future__ import annotations

from typing import cast

from quire.errors import CallError, FormatError
from quire.log.hashing import sha256_hex
from quire.log.shapes import NOT_UTF8_HINT, Fault, check_json, short
from quire.values import ITEM_TYPES, Item, ItemType, Json, JsonObject


def item(
    content: str,
    type: str = "code",
    metadata: JsonObject | None = None,
    *,
    id: str = "",
    timestamp: int = 0,
) -> Item:
    """An item with its hash; the id stays empty until a window gives it one."""
    if not isinstance(content, str):
        raise CallError(f"content must be a string, not {short(content)}", hint="Decode bytes first.")
    if type not in ITEM_TYPES:
        raise CallError(f"unknown item type {short(type)}", hint=f"Use one of {', '.join(ITEM_TYPES)}.")
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise CallError(f"timestamp must be an integer, not {short(timestamp)}", hint="Unix milliseconds.")
    return Item(
        id=id,
        type=cast(ItemType, type),
        content=content,
        metadata=_checked(metadata),
        timestamp=timestamp,
        sha256=content_sha256(content),
    )


def remade(given: Item) -> Item:
    """A given item, checked like a new one; a sha256 that is not its content's is an error."""
    made = item(given.content, given.type, given.metadata, id=given.id, timestamp=given.timestamp)
    if given.sha256 and given.sha256 != made.sha256:
        raise CallError(
            f"sha256 {short(given.sha256)} does not match the content, whose sha256 is {made.sha256}",
            hint="Leave sha256 out, or correct it.",
        )
    return made


def content_sha256(content: str) -> str:
    """The sha256 of the raw content; text that UTF-8 cannot hold is an error."""
    try:
        return sha256_hex(content)
    except UnicodeEncodeError as error:
        raise FormatError(
            f"content holds a lone surrogate ({content[error.start]!r} at character {error.start})",
            hint=NOT_UTF8_HINT,
        ) from error


def identity(item: JsonObject) -> str:
    """The name under which an item is known: its path, URL, path#Lstart-Lend, path#dataview-hash, or ctx-N."""
    meta = item.get("metadata") or {}
    source, path = meta.get("source"), meta.get("path") or meta.get("filename")
    if source in ("note", "active_note") and path:
        return str(path)
    if source == "url" and meta.get("url"):
        return str(meta["url"])
    if source == "selection" and path:
        return f"{path}#L{meta.get('start_line')}-L{meta.get('end_line')}"
    if source == "dataview" and path:
        return f"{path}#dataview-{sha256_hex(str(meta.get('query', '')))[:12]}"
    return str(item.get("id") or _place(meta) or f"ctx-{sha256_hex(item['content'])[:12]}")


def _place(meta: JsonObject) -> str:
    """The file and lines of an item that came without an id, so that a changed file is known again."""
    path, start, end = meta.get("filename"), meta.get("start_line"), meta.get("end_line")
    if not path:
        return ""
    return str(path) if start is None or end is None else f"{path}#L{start}-L{end}"


def _checked(metadata: Json) -> JsonObject | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise CallError(f"metadata must be an object or None, not {short(metadata)}", hint="Pass a dict.")
    try:
        check_json(metadata, ("metadata",))
    except Fault as fault:
        raise CallError(f"{'.'.join(map(str, fault.path))}: {fault.problem}", hint=fault.hint) from fault
    return dict(metadata)
