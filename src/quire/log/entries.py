"""Entries as JSON Lines and as rows of a database: lossless, strict, every fault with its line and column.

Also here: how an entry's free fields are read (`usable`), and how an imported conversation joins a thread (`joining`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from quire.errors import CallError, DamageError, FormatError
from quire.log.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNTED,
    ENTRY_ID,
    INTEGER,
    NATURAL,
    NULL,
    OBJECT,
    SHA256,
    STRING,
    Contradiction,
    Fault,
    Fields,
    ListShape,
    Path,
    Positions,
    Scalar,
    Shape,
    check_json,
    either,
    finite,
    fit,
    hint_for,
    json_schema,
    not_json,
    one_of,
    path_name,
    short,
)
from quire.values import (
    COUNTS,
    ITEM_TYPES,
    KINDS,
    SPOKEN,
    Entry,
    Json,
    JsonObject,
    canonical,
    entry_id,
    is_plain,
    sha256_hex,
)

# The kinds of entries and the fields each one has: the interchange format, as one table.

NUMBER = Scalar("a number", {"type": "number"}, lambda v: isinstance(v, int | float) and not isinstance(v, bool))


def _content_has_its_sha256(item: JsonObject, path: Path) -> None:
    if "sha256" in item and item["sha256"] != (real := sha256_hex(item["content"])):
        raise Contradiction(
            (*path, "sha256"),
            f"does not match the content, whose sha256 is {real}",
            hint="Leave sha256 out, or correct it.",
        )


# An item in an entry may have any identity: a note's path, a URL, path#Lstart-Lend, ctx-N.
ITEM = Fields(
    required={"content": STRING},
    optional={
        "id": STRING,
        "type": one_of(ITEM_TYPES),
        "metadata": either(OBJECT, NULL),
        "timestamp": INTEGER,
        "sha256": SHA256,
    },
    also=_content_has_its_sha256,
)

TOOL = Fields(
    required={"name": STRING, "description": STRING, "parameters": OBJECT},
    optional={"category": STRING, "output": ListShape(STRING), "example": STRING, "idempotent": BOOLEAN},
)

# An edit names its entry by seq; a replacement of null, like none, says that nothing replaces the entry.
EDIT = Fields(
    required={"entry": INTEGER, "action": STRING}, optional={"replacement": either(STRING, NULL), "freed": INTEGER}
)
# The actions that put a shorter text in an entry's place; without such a text the entry is dropped.
SHORTENING = ("handle", "cut")


class FreeObject(msgspec.Struct, frozen=True):
    """An object that may hold anything, except that the fields with these names have this shape."""

    names: tuple[str, ...]
    shape: Scalar

    @property
    def as_shape(self) -> Scalar:
        schema = {"type": "object", "properties": dict.fromkeys(self.names, self.shape.schema)}
        return msgspec.structs.replace(OBJECT, schema=schema)

    def fit(self, value: JsonObject, path: Path) -> None:
        for name in self.names:
            if name in value:
                fit(self.shape, value[name], (*path, name))


IMAGE = FreeObject(("media_type", "data", "url"), STRING)
# Larger counts do not occur, and no price could be computed from them.
_COUNT = Scalar(
    "a number below 2**63, or null",
    {"type": ["number", "null"], "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63},
    lambda v: v is None or (NUMBER.fits(v) and abs(v) < 2**63),
)
USAGE = FreeObject(COUNTS, _COUNT)


def _images_are_readable(user: JsonObject, path: Path) -> None:
    for index, image in enumerate(user.get("images", ())):
        if isinstance(image, dict):
            IMAGE.fit(image, (*path, "images", index))


_TEXT: dict[str, Shape] = {"text": STRING}

# A hash of something that is not in the log (a request, a segment), so it cannot be checked.
_HASH = STRING

# kind -> its required fields and its optional ones.
KIND_FIELDS: dict[str, tuple[dict[str, Shape], dict[str, Shape]]] = {
    "system": (_TEXT, {}),
    "tools": ({"tools": ListShape(TOOL)}, {}),
    "attach": ({"item": ITEM}, {}),
    "user": (_TEXT, {"attach": ListShape(ITEM), "images": ListShape(either(IMAGE.as_shape, STRING))}),
    "think": (_TEXT, {}),
    "call": ({"call_id": STRING, "name": STRING, "args": ANYTHING}, {}),
    "result": ({"call_id": STRING}, {"outcome": STRING, "content": STRING, "error": BOOLEAN}),
    "respond": (_TEXT, {}),
    "note": (_TEXT, {}),
    "rebase": (
        {
            "reason": STRING,
            "before_seq": NATURAL,
            "library": ListShape(Fields(required={"id": STRING, "sha256": _HASH})),
            "edits": ListShape(EDIT),
            "freed": INTEGER,
        },
        {"summary": STRING},
    ),
    "sent": (
        {"provider": STRING, "model": STRING, "request_sha256": _HASH, "segments": ListShape(_HASH)},
        {"usage": USAGE.as_shape, "cost": either(NUMBER, STRING, OBJECT, NULL), "stop": either(STRING, NULL)},
    ),
}

# Further fields of every kind; id and seq are given by the log.
ON_ALL: dict[str, Shape] = {"at": INTEGER, "meta": OBJECT, "wire": OBJECT, "id": ENTRY_ID, "seq": COUNTED}

# Checks of an entry as a whole.
_ALSO: dict[str, Callable[[JsonObject, Path], None]] = {
    "user": _images_are_readable,
    "sent": lambda sent, path: USAGE.fit(sent.get("usage", {}), (*path, "usage")),
}

SHAPES: dict[str, Fields] = {
    kind: Fields(required={"kind": one_of((kind,)), **required}, optional={**optional, **ON_ALL}, also=_ALSO.get(kind))
    for kind, (required, optional) in KIND_FIELDS.items()
}
assert tuple(SHAPES) == KINDS


# The JSON schema of one entry, kind by kind.
SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Entry",
    "description": "One line of a thread's log. id and seq are given by the log and checked when present.",
    "oneOf": [{"title": kind, **json_schema(shape)} for kind, shape in SHAPES.items()],
}
_HINT = "`quire schema entry` prints what each kind may hold."


def check(body: Json, line: int = 0, text: str = "") -> Entry:
    """An entry from its JSON; with `line` and `text` (the line it was read from) an error points at the place."""
    try:
        kind = _kind(body)
        if not _is_surely_right(kind, body):
            check_json(body)
            fit(SHAPES[kind], body)
    except Fault as fault:
        raise _locate(fault, body, line, text) from fault
    fields: JsonObject = dict(body)
    seq, id = fields.pop("seq", 0), fields.pop("id", "")
    return Entry(kind, fields, seq, id)  # type: ignore[arg-type]  # kind is one of KINDS


# The fields of each kind that take any string or any integer, and which of the two.
_ANY_VALUE: dict[str, dict[str, type]] = {
    kind: {"kind": str}
    | {name: str if member is STRING else int for name, member in fields.items() if member in (STRING, INTEGER)}
    for kind, fields in ((kind, {**shape.required, **shape.optional}) for kind, shape in SHAPES.items())
}


def _is_surely_right(kind: str, body: JsonObject) -> bool:
    """A quick check for most bodies: only integers and ASCII strings, in fields that take any, and no field missing."""
    types = _ANY_VALUE[kind]
    for name, value in body.items():
        value_type = type(value)
        if types.get(name) is not value_type or (value_type is str and not value.isascii()):
            return False
    return SHAPES[kind].required.keys() <= body.keys()


def check_entry(entry: Entry) -> Entry:
    """The entry, with its body checked and of the same kind."""
    checked = check(entry.body)
    if checked.kind != entry.kind:
        raise CallError(
            f"the entry is a {entry.kind!r}, but its body says {checked.kind!r}",
            hint="Make entries with quire.values, or with quire.log.entries.check.",
        )
    return checked


def _kind(body: Json) -> str:
    if not isinstance(body, dict):
        raise Fault((), f"must be a JSON object, not {short(body)}")
    if "kind" not in body:
        hint = f"Known kinds: {', '.join(KINDS)}. `quire import` reads what other programs wrote."
        raise Fault((), "field 'kind' is missing", hint=hint)
    kind = body["kind"]
    if not isinstance(kind, str) or kind not in SHAPES:
        raise Fault(("kind",), f"unknown kind {short(kind)}", hint=f"Known kinds: {', '.join(KINDS)}.")
    return kind


def _locate(fault: Fault, body: Json, line: int, text: str) -> FormatError:
    """The fault as an error with the path in the entry and, if the text is given, line and column."""
    kind = body.get("kind") if isinstance(body, dict) else None
    is_known = isinstance(kind, str) and kind in SHAPES
    owner, name = kind if is_known else "entry", path_name(fault.path)
    message = f"{owner} field {name}: {fault.problem}" if name else f"{owner}: {fault.problem}"
    column = Positions(text, line).column(fault.path, key=fault.key) if text else 0
    hint = hint_for(fault, SHAPES[str(kind)]) if is_known else fault.hint
    return FormatError(message, line=line, column=column, hint=hint or _HINT)


def _pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise Fault((), "a key stands twice in one object")
    return out


_reader = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=not_json, parse_float=finite)


def _parse(text: str, line: int) -> Json:
    try:
        return _reader.decode(text)
    except (Fault, ValueError, RecursionError) as error:
        Positions(text, line)  # raises an error with the place
        raise FormatError(f"not JSON: {error}", line=line, column=1, hint=_HINT) from error


def decode_lines(source: str | Iterable[str], parent: str = "", seq: int = 0) -> Iterator[Entry]:
    """The entries of JSON Lines; `id` and `seq`, where present, must continue the chain behind `parent`, `seq`.

    Lines of white space and a leading byte order mark are skipped. An entry has `id` and `seq` only if its line had them:
    what is read is what was written.
    """
    lines = source.split("\n") if isinstance(source, str) else source
    for number, text in enumerate(lines, 1):
        text = text.removesuffix("\n")
        if number == 1:
            text = text.removeprefix("\ufeff")
        if not text.strip(" \t\r"):
            continue
        entry = check(_parse(text, number), number, text)
        seq, parent = seq + 1, entry_id(parent, entry.body)
        _check_chain(entry, seq, parent, number, text)
        yield entry


def _check_chain(entry: Entry, seq: int, id: str, line: int, text: str) -> None:
    if entry.seq and entry.seq != seq:
        raise FormatError(
            f"seq is {entry.seq}, but the entry stands at {seq}",
            line=line,
            column=Positions(text, line).column(("seq",)),
            hint="Import the entries in order and complete, or remove id and seq (quire log export --no-ids).",
        )
    if entry.id and entry.id != id:
        raise FormatError(
            f"id is {entry.id}, but the entry's content and the entries before it give {id}",
            line=line,
            column=Positions(text, line).column(("id",)),
            hint="The line or one before it was changed; remove id and seq to import it as new.",
        )


_writer = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

# Characters at which other programs' readers break lines, as JSON escapes.
_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(entry: Entry, ids: bool = True) -> str:
    """One line of JSON without a newline, keys in the order given; `id` and `seq` come first if the entry has them."""
    body = entry.body
    if ids and entry.id:
        body = {"id": entry.id, "seq": entry.seq, **body}
    text = encode_body(body)
    return text if text.isascii() else text.translate(_BREAKS)


def encode_lines(entries: Iterable[Entry], ids: bool = True) -> str:
    """JSON Lines, each ended by a newline."""
    return "".join(encode(entry, ids) + "\n" for entry in entries)


def encode_body(body: Json) -> str:
    """Compact JSON with keys in the order given and without ASCII escapes, as entries are stored."""
    try:
        if is_plain(body):
            return msgspec.json.encode(body).decode()
    except (ValueError, OverflowError, RecursionError):
        pass  # an integer of more than 64 bits; or a fault, which the other encoder reports
    return _writer.encode(body)


# An imported entry holds its original message beside its own text: a database row stores the texts they share once.

# Shorter texts are stored twice, since a reference would save nothing.
_WORTH_NAMING = 64


def encode_row(body: JsonObject) -> str:
    """A body as a database row stores it."""
    return encode_body(row_of(body))


def row_of(body: JsonObject) -> Json:
    """A body without repeated texts: [body, [path, field], …], where the text at `path` is that of `field`."""
    if "wire" not in body:
        return body
    wire, places = body["wire"] or {}, list[Json]()
    names = {text: name for name in ("text", "content") if isinstance(text := body.get(name), str)}
    names = {text: name for text, name in names.items() if len(text) >= _WORTH_NAMING}
    if not names or "message" not in wire:
        return body
    message = _named_texts(wire["message"], names, [], places)
    return [{**body, "wire": {**wire, "message": message}}, *places] if places else body


def _named_texts(value: Json, names: dict[str, str], path: list[Json], places: list[Json]) -> Json:
    """A value in which texts that other fields hold are empty; their places are appended to `places`."""
    if isinstance(value, str) and value in names:
        places.append([path, names[value]])
        return ""
    if isinstance(value, dict):
        return {key: _named_texts(inner, names, [*path, key], places) for key, inner in value.items()}
    if isinstance(value, list):
        return [_named_texts(inner, names, [*path, at], places) for at, inner in enumerate(value)]
    return value


def split_row(row: Json) -> tuple[Json, list[Json]]:
    """A row's body, and the places where texts have to be put back."""
    return (row[0], row[1:]) if isinstance(row, list) and row else (row, [])


def decode_row(row: Json) -> JsonObject:
    """The body that a row holds; a ValueError if it holds none."""
    body, places = split_row(row)
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")
    try:
        for path, name in places:
            holder, steps = body["wire"], ["message", *path]
            for step in steps[:-1]:
                holder = holder[step]
            holder[steps[-1]] = body[name]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"a text of its message is named wrongly ({error})") from error
    return body


# An entry from a store's row; one that was changed on the disk is an error that names it.

# (seq, id, body, crc); id and body as bytes, since damaged text could not be read otherwise.
Row: TypeAlias = tuple[int, bytes, bytes, int]


def bad_entry(thread: str, seq: int, problem: str) -> DamageError:
    """The error for a damaged or missing entry."""
    where = f"entry {seq} of thread {thread!r}" if thread else f"entry {seq} of a thread that cannot be named"
    return DamageError(f"{where} is damaged: {problem}", thread=thread, seq=seq)


def body_of(body: bytes, crc: int) -> JsonObject:
    """A stored body as JSON; a ValueError says how it differs from what was written."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc:
        raise ValueError("its stored bytes have changed (checksum)")
    try:
        return decode_row(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return decode_row(json.loads(body))  # json accepts more: what other versions of Quire may have written


def entries_of(thread: str, rows: Sequence[Row], after: int, count: int) -> list[Entry]:
    """Entries from their rows; one that is missing or changed is an error that names it."""
    out = []
    for seq, row in enumerate(rows, after + 1):
        if row[0] != seq:
            raise bad_entry(thread, seq, "it is missing")
        out.append(entry_of(thread, row))
    if len(out) != count:
        raise bad_entry(thread, after + len(out) + 1, "it is missing")
    return out


def entry_of(thread: str, row: Row) -> Entry:
    """An entry from its row; one that was changed is an error that names it."""
    seq, id, body, crc = row
    try:
        value = body_of(body, crc)
        return Entry(value["kind"], value, seq, id.decode())
    except (ValueError, KeyError, AttributeError) as error:
        raise bad_entry(thread, seq, str(error)) from error


# An entry as Quire uses it. Callers may store anything in `meta` and in an item's `metadata`, and it is exported unchanged;
# but a value that Quire itself cannot read there counts as absent.

Reader = Callable[[Json], Json]


def usable(entry: Entry) -> Entry:
    """The entry itself, or a copy with the same id and seq without values that Quire cannot read."""
    if _FREE.keys().isdisjoint(entry.body):
        return entry
    read = {name: reader(entry.body[name]) for name, reader in _FREE.items() if name in entry.body}
    if all(entry.body[name] == value for name, value in read.items()):
        return entry
    return Entry(entry.kind, {**entry.body, **read}, entry.seq, entry.id)


def _read(fields: JsonObject, readers: dict[str, Reader]) -> JsonObject:
    """The object with these fields passed through their readers; a field whose reader gives None is left out."""
    if readers.keys().isdisjoint(fields):
        return fields
    values = {name: readers[name](value) if name in readers else value for name, value in fields.items()}
    return {name: value for name, value in values.items() if value is not None or name not in readers}


def _only(fits: Callable[[Json], bool]) -> Reader:
    """A reader that gives the value if it fits, else None."""
    return lambda value: value if fits(value) else None


def _members(fits: Callable[[Json], bool]) -> Reader:
    """A reader that gives the members of a list that fit, None if none does; a single value counts as a list of one."""
    return lambda value: [member for member in (value if isinstance(value, list) else [value]) if fits(member)] or None


def _is_image(value: Json) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str)
    return all(isinstance(value.get(name, ""), str) for name in ("media_type", "data", "url"))


_META: dict[str, Reader] = {
    "pins": _members(INTEGER.fits),
    "shown": _members(STRING.fits),
    "recalled": _only(STRING.fits),
    "recalled_ids": _members(STRING.fits),
    "composer": _only(STRING.fits),
    # Fields of a rebase.
    "opening": _only(INTEGER.fits),
    "pinned": _members(STRING.fits),
}
_SOURCE: dict[str, Reader] = {"source": _only(STRING.fits)}
_ACTIVE: dict[str, Reader] = {**_SOURCE, "images": _members(_is_image)}


def _item(item: JsonObject) -> JsonObject:
    metadata = item.get("metadata")
    if not metadata:
        return item
    # Only an active note's images are sent; other items may hold anything in `images`.
    read = _read(metadata, _ACTIVE if metadata.get("source") == "active_note" else _SOURCE)
    return item if read == metadata else {**item, "metadata": read}


def _edit(edit: JsonObject) -> JsonObject:
    """A shortening edit without a shorter text becomes a drop."""
    if edit.get("replacement") is not None:
        return edit
    rest = {key: value for key, value in edit.items() if key != "replacement"}
    return {**rest, "action": "drop"} if edit["action"] in SHORTENING else rest


# The fields of a body that hold, or contain, free-form values, and their readers.
_FREE: dict[str, Reader] = {
    "meta": lambda meta: _read(meta, _META),
    "item": _item,
    "attach": lambda items: [_item(item) for item in items],
    "edits": lambda edits: [_edit(edit) for edit in edits],
}


class Joining(NamedTuple):
    """How a conversation joins a thread that may hold part of it.

    `known`: how many of its entries the thread holds. `lacking`: the entries to append. `parts_behind`: the seq behind
    which the two differ, 0 if they do not. `passed_over`: how many of the known entries differ in content or order; the
    thread's versions stay.
    """

    known: int
    lacking: list[Entry]
    parts_behind: int = 0
    passed_over: int = 0


def joining(before: Sequence[Entry], entries: Sequence[Entry]) -> Joining:
    """How a conversation joins a thread that holds none of it, its beginning at the thread's end, or all of it.

    The two count as parted only if they share words of the model before they differ: many conversations begin with the same
    system prompt or greeting. Rebases are renumbered to the thread's seqs; missing ones are appended too.
    """
    places, own = ([n for n, entry in enumerate(log) if entry.kind != "rebase"] for log in (before, entries))
    held, spoken = [before[n] for n in places], [entries[n] for n in own]
    found = _alignment(held, spoken)
    if not found.fits and any(spoken[n].kind in SPOKEN for n in found.same):
        return Joining(0, [], places[max(found.same.values())] + 1)
    same, behind = (found.same, found.behind) if found.fits else ({}, dict(enumerate(spoken)))
    known = len(spoken) - len(behind)
    passed_over = known - sum(_content(spoken[n]) == _content(held[place]) for n, place in same.items())
    if known and found.end < len(held):
        return Joining(known, [], passed_over=passed_over)
    first = min((places[place] for place in same.values()), default=len(before))
    rebases = [_content(entry) for entry in before[first:] if entry.kind == "rebase"]
    seqs = {own[n] + 1: places[place] + 1 for n, place in same.items()}
    lacking, new = list[Entry](), {own[n]: entry for n, entry in behind.items()}
    for n, entry in enumerate(entries):
        if n in new:
            seqs[n + 1] = len(before) + len(lacking) + 1
            lacking.append(new[n])
        elif entry.kind == "rebase" and _content(entry) in rebases:
            rebases.remove(_content(entry))
        elif entry.kind == "rebase":
            lacking.append(_with_seqs(entry, seqs))
    return Joining(known, lacking, passed_over=passed_over)


def _with_seqs(rebase: Entry, seqs: dict[int, int]) -> Entry:
    """A rebase whose edits name the entries by their new seqs."""
    edits = [{**edit, "entry": seqs[edit["entry"]]} for edit in rebase.body["edits"] if edit["entry"] in seqs]
    behind = max((edit["entry"] for edit in edits), default=0) + 1
    body = {**rebase.body, "before_seq": seqs.get(rebase.body["before_seq"], behind), "edits": edits}
    return msgspec.structs.replace(rebase, body=body)


class Alignment(NamedTuple):
    """Which entries of a conversation and a thread are the same, by index.

    `same`: index in the conversation -> index in the thread. `behind`: the conversation's entries that come after the
    thread's end. `end`: how far in the thread the two agree. `fits`: whether one of the two agrees to its end.
    """

    same: dict[int, int]
    behind: dict[int, Entry]
    end: int
    fits: bool


# Kinds that may stand in another order in two versions of a session: calls and results, and what is said to the model.
_CALLS_AND_RESULTS = ("call", "result")
_INPUTS = ("system", "tools", "attach", "user", "note")


def _alignment(held: Sequence[Entry], spoken: Sequence[Entry]) -> Alignment:
    """The alignment, at whichever place in the thread, in which most entries of the conversation agree."""
    old, new = ([_mark(entry) for entry in log] for log in (held, spoken))
    starts = [place for place, content in enumerate(old) if new and content == new[0]]
    best = Alignment({}, {}, 0, fits=False)
    for start in dict.fromkeys([0, *starts]):
        found = _aligned_from(start, held, spoken, old, new)
        if found.fits and len(found.same) >= len(best.same):
            return found
        best = max(best, found, key=lambda alignment: len(alignment.same))
    return best


def _aligned_from(
    start: int, held: Sequence[Entry], spoken: Sequence[Entry], old: list[bytes], new: list[bytes]
) -> Alignment:
    """Align with the thread from one place on; entries between the model's words may stand in another order.

    A session that was imported while tools were running continues with calls in front of results that are held already;
    an attachment may be written after its prompt; and a newer version of Quire may read more of what the model was told.
    """
    same: dict[int, int] = {}
    behind: dict[int, Entry] = {}
    place, at = start, 0
    while place < len(held) and at < len(spoken):
        if old[place] == new[at]:
            same[at] = place
            place, at = place + 1, at + 1
            continue
        are_calls = {held[place].kind, spoken[at].kind} <= {*_CALLS_AND_RESULTS}
        kinds = _CALLS_AND_RESULTS if are_calls else _INPUTS
        end, new_end = (_end_of(kinds, log, first) for log, first in ((held, place), (spoken, at)))
        waiting: dict[bytes, list[int]] = {}
        for n in range(at, new_end):
            waiting.setdefault(new[n], []).append(n)
        taken = {found.pop(0): n for n in range(place, end) if (found := waiting.get(old[n]))}
        rest, lacks = [n for found in waiting.values() for n in found], end - place - len(taken)
        is_last, goes_on = end == len(held), new_end < len(spoken)
        is_held = bool(taken) and not lacks and (is_last or not rest)
        is_read_anew = kinds is _INPUTS and bool(rest) != bool(lacks) and not (lacks and is_last and goes_on)
        if not (same or taken) or not (is_held or is_read_anew):
            return Alignment(same, {}, place, fits=False)
        behind = {n: _alone(spoken, n) for n in sorted(rest)} if is_last else {}
        same |= taken
        place, at = end, new_end
    behind |= {n: spoken[n] for n in range(at, len(spoken))} if place == len(held) else {}
    return Alignment(same, behind, place, fits=bool(same))


def _end_of(kinds: tuple[str, ...], entries: Sequence[Entry], start: int) -> int:
    """The index behind the run of entries of these kinds that begins at `start`."""
    return next((n for n in range(start, len(entries)) if entries[n].kind not in kinds), len(entries))


def _mark(entry: Entry) -> bytes:
    """What identifies an entry: a result its call, since some clients shorten results later."""
    call_id = entry.body.get("call_id") if entry.kind == "result" else None
    return canonical({"kind": "result", "call_id": call_id} if call_id else _content(entry))


def _alone(entries: Sequence[Entry], place: int) -> Entry:
    """An entry without the original message that it shares with others, which may not be appended with it."""
    entry, behind = entries[place], entries[place + 1 : place + 2]
    is_whole = "message" in entry.wire and not any(other.wire.get("more") for other in behind)
    if is_whole or not entry.wire.keys() & {"message", "more"}:
        return entry
    wire = {key: value for key, value in entry.wire.items() if key not in ("message", "more")}
    return msgspec.structs.replace(entry, body={**entry.body, "wire": wire})


def _content(entry: Entry) -> JsonObject:
    """An entry without `wire`, `at`, `meta` and a rebase's seqs, which may differ between two versions of a session."""
    besides = ("wire", "at", "meta", "before_seq", "edits")
    fields = {key: value for key, value in entry.body.items() if key not in besides}
    return {"kind": entry.kind, **fields}
