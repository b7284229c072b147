"""An entry as it can be used: what Quire reads of free fields, and cannot make sense of, is as if it were absent.

`meta` and an item's `metadata` are anybody's: they are stored and exported as they came, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.values import Entry, Json, JsonObject

Reader = Callable[[Json], Json]


def usable(entry: Entry) -> Entry:
    """The entry itself, or one of the same id and seq without what cannot be used."""
    if _FREE.keys().isdisjoint(entry.body):
        return entry
    read = {name: reader(entry.body[name]) for name, reader in _FREE.items() if name in entry.body}
    if all(entry.body[name] == value for name, value in read.items()):
        return entry
    return Entry(entry.kind, {**entry.body, **read}, entry.seq, entry.id)


def _read(fields: JsonObject, readers: dict[str, Reader]) -> JsonObject:
    """The object with these fields as they are read; those that give nothing are left out."""
    if readers.keys().isdisjoint(fields):
        return fields
    seen = {name: readers[name](value) if name in readers else value for name, value in fields.items()}
    return {name: value for name, value in seen.items() if value is not None or name not in readers}


def _words(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: Json) -> list[str] | None:
    """A list of strings; one alone is a list of one."""
    return _members(value, lambda one: isinstance(one, str))


def _seqs(value: Json) -> list[int] | None:
    return _members(value, lambda one: isinstance(one, int) and not isinstance(one, bool))


def _members(value: Json, fits: Callable[[Json], bool]) -> list[Json] | None:
    given = value if isinstance(value, list) else [value]
    return [one for one in given if fits(one)] or None


def _seq(value: Json) -> int | None:
    return next(iter(_seqs(value) or ()), None) if not isinstance(value, list) else None


def _images(value: Json) -> list[Json] | None:
    return _members(value, _is_image)


def _is_image(value: Json) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str)
    return all(isinstance(value.get(name, ""), str) for name in ("media_type", "data", "url"))


_META: dict[str, Reader] = {
    "pins": _seqs,
    "shown": _strings,
    "recalled": _words,
    "recalled_ids": _strings,
    "composer": _words,
    # What a rebase keeps of itself.
    "opening": _seq,
    "pinned": _strings,
}


def _meta(meta: JsonObject) -> JsonObject:
    return _read(meta, _META)


_SOURCE: dict[str, Reader] = {"source": _words}
_ACTIVE: dict[str, Reader] = {**_SOURCE, "images": _images}


def _item(item: JsonObject) -> JsonObject:
    metadata = item.get("metadata")
    if not metadata:
        return item
    # Only an active note's images are sent; under that name others may keep what they like.
    read = _read(metadata, _ACTIVE if metadata.get("source") == "active_note" else _SOURCE)
    return item if read == metadata else {**item, "metadata": read}


def _edit(edit: JsonObject) -> JsonObject:
    """An edit that says nothing in place of its entry drops it."""
    if edit.get("replacement") is not None:
        return edit
    kept = {key: value for key, value in edit.items() if key != "replacement"}
    return {**kept, "action": "drop"} if edit["action"] in ("cut", "handle") else kept


def _items(items: list[JsonObject]) -> list[JsonObject]:
    return [_item(item) for item in items]


def _edits(edits: list[JsonObject]) -> list[JsonObject]:
    return [_edit(edit) for edit in edits]


# The fields of a body that hold what is free.
_FREE: dict[str, Reader] = {"meta": _meta, "item": _item, "attach": _items, "edits": _edits}
