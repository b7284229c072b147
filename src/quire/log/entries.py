"""Entries as JSON Lines, in and out: lossless, strict, and every fault with its line and column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from quire.errors import CallError, FormatError
from quire.log.hashing import entry_id
from quire.log.inputs import hint_for, path_name
from quire.log.kinds import SHAPES, entry_schema
from quire.log.places import Places
from quire.log.shapes import Fault, check_json, fit, short
from quire.values import KINDS, Entry, Json, JsonObject

__all__ = ["SCHEMA", "check", "check_entry", "decode_line", "decode_lines", "encode", "encode_lines"]

SCHEMA: JsonObject = entry_schema()
_HINT = "`quire schema entry` prints what each kind may hold."


def check(body: Json, line: int = 0, text: str = "") -> Entry:
    """An entry from its JSON; `line` and `text` (the line it was read from) let an error point at the place."""
    try:
        kind = _kind(body)
        check_json(body)
        fit(SHAPES[kind], body)
    except Fault as fault:
        raise _located(fault, body, line, text) from fault
    own = {key: value for key, value in body.items() if key not in ("id", "seq")}
    return Entry(kind, own, body.get("seq", 0), body.get("id", ""))  # type: ignore[arg-type]  # kind is one of KINDS


def check_entry(entry: Entry) -> Entry:
    """An entry whose body was checked, and is of the kind that the entry says."""
    made = check(entry.body)
    if made.kind != entry.kind:
        raise CallError(
            f"the entry is a {entry.kind!r}, but its body says {made.kind!r}",
            hint="Make entries with quire.values, or with quire.log.entries.check.",
        )
    return made


def _kind(body: Json) -> str:
    if not isinstance(body, dict):
        raise Fault((), f"must be a JSON object, not {short(body)}")
    if "kind" not in body:
        raise Fault((), "field 'kind' is missing", hint=f"Known kinds: {', '.join(KINDS)}.")
    kind = body["kind"]
    if not isinstance(kind, str) or kind not in SHAPES:
        raise Fault(("kind",), f"unknown kind {short(kind)}", hint=f"Known kinds: {', '.join(KINDS)}.")
    return kind


def _located(fault: Fault, body: Json, line: int, text: str) -> FormatError:
    """The fault as an error that says where: the path in the entry and, with the text, line and column."""
    kind = body.get("kind") if isinstance(body, dict) else None
    known = isinstance(kind, str) and kind in SHAPES
    owner, name = kind if known else "entry", path_name(fault.path)
    message = f"{owner} field {name}: {fault.problem}" if name else f"{owner}: {fault.problem}"
    column = Places(text, line).column(fault.path, key=fault.key) if text else 0
    hint = hint_for(fault, SHAPES[str(kind)]) if known else fault.hint
    return FormatError(message, line=line, column=column, hint=hint or _HINT)


class _Refused(ValueError):
    """The quick reader met something that only the strict one can place."""


def _pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise _Refused
    return out


def _refuse(_constant: str) -> Json:
    raise _Refused


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise _Refused
    return value


_reader = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_refuse, parse_float=_finite)


def _parse(text: str, line: int) -> Json:
    try:
        return _reader.decode(text)
    except (ValueError, RecursionError) as error:
        Places(text, line)  # raises, with the place
        raise FormatError(f"not JSON: {error}", line=line, column=1, hint=_HINT) from error


def decode_line(text: str, line: int = 1) -> Entry:
    """The entry of one line of JSON."""
    return check(_parse(text, line), line, text)


def decode_lines(source: str | Iterable[str], parent: str = "", seq: int = 0) -> Iterator[Entry]:
    """The entries of JSON Lines; `id` and `seq`, where present, must continue the chain behind `parent`, `seq`.

    White-space-only lines are skipped, and so is a byte order mark in front of them. Entries come with the id and seq that they have in that chain
    only where the line had them: what is read is what was written.
    """
    lines = source.split("\n") if isinstance(source, str) else source
    for number, text in enumerate(lines, 1):
        text = text.removesuffix("\n")
        if number == 1:
            text = text.removeprefix("\ufeff")
        if not text.strip(" \t\r"):
            continue
        entry = decode_line(text, number)
        seq, parent = seq + 1, entry_id(parent, entry.body)
        _check_chain(entry, seq, parent, number, text)
        yield entry


def _check_chain(entry: Entry, seq: int, id: str, line: int, text: str) -> None:
    if entry.seq and entry.seq != seq:
        raise FormatError(
            f"seq is {entry.seq}, but the entry stands at {seq}",
            line=line,
            column=Places(text, line).column(("seq",)),
            hint="Import the entries in order and complete, or remove id and seq (quire log export --no-ids).",
        )
    if entry.id and entry.id != id:
        raise FormatError(
            f"id is {entry.id}, but the entry's content and the entries before it give {id}",
            line=line,
            column=Places(text, line).column(("id",)),
            hint="The line or one before it was changed; remove id and seq to import it as new.",
        )


_writer = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

# Other line readers than ours break lines at these; JSON may write them as escapes.
_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(entry: Entry, ids: bool = True) -> str:
    """One line of JSON without its line end, key order as given; `id` and `seq` first where the entry has them."""
    body = entry.body
    if ids and entry.id:
        body = {"id": entry.id, "seq": entry.seq, **body}
    text = encode_body(body)
    return text if text.isascii() else text.translate(_BREAKS)


def encode_lines(entries: Iterable[Entry], ids: bool = True) -> str:
    """JSON Lines, each ended by a newline."""
    return "".join(encode(entry, ids) + "\n" for entry in entries)


def encode_body(body: JsonObject) -> str:
    """A body as it is stored: compact, key order kept, no ASCII escapes."""
    return _writer.encode(body)
