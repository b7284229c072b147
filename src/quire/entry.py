"""What goes into the log: entries, a constructor for each kind, and the items that they carry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from quire.errors import CallError, FormatError

# JSON as it arrives from outside; parsed and checked once, at the edge.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

Kind = Literal["system", "tools", "attach", "user", "think", "call", "result", "respond", "note", "rebase", "sent"]
KINDS: tuple[str, ...] = get_args(Kind)
# The kinds that the model itself writes: a request stands before each run of them.
SPOKEN: frozenset[str] = frozenset({"think", "call", "respond"})

ItemType = Literal["code", "text", "file", "repl-history", "error", "custom"]
ITEM_TYPES: tuple[str, ...] = get_args(ItemType)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of a thread's log.

    `body` is the entry as it was given (kind, its fields, and at / meta / wire), in the order given;
    `seq` and `id` are the log's and are empty until the entry has been appended.
    """

    kind: Kind
    body: JsonObject
    seq: int = 0
    id: str = ""

    @property
    def at(self) -> int | None:
        return self.body.get("at")

    @property
    def meta(self) -> JsonObject:
        return self.body.get("meta") or {}

    @property
    def wire(self) -> JsonObject:
        return self.body.get("wire") or {}

    @property
    def text(self) -> str:
        return str(self.body.get("text", ""))

    @property
    def call_id(self) -> str:
        return str(self.body.get("call_id", ""))

    @property
    def name(self) -> str:
        return str(self.body.get("name", ""))

    @property
    def args(self) -> Json:
        return self.body.get("args")

    @property
    def tools(self) -> list[JsonObject]:
        """The tools it defines.

        A provider's own has its words under `own`; a function what else was said of it, under `more`.

        `front`: behind how many instructions, in which item and at which place of it, where a list in front held it;
        `item`: that item without its tools.
        """
        sources = [(name, self.wire[name]) for name in ("own", "more") if isinstance(self.wire.get(name), dict)]
        origin: JsonObject = {key: self.wire[key] for key in ("format", "model") if key in self.wire}
        out: list[JsonObject] = list(self.body.get("tools", ()))
        for name, by_tool in sources:
            out = [
                {**tool, name: {**origin, "definition": definition}}
                if isinstance(definition := by_tool.get(tool["name"]), dict)
                else tool
                for tool in out
            ]
        front = self.wire.get("front")
        if isinstance(front, list) and len(front) == 2 and all(isinstance(place, int) for place in front):
            message = self.wire.get("message")
            around = {**message, "tools": []} if isinstance(message, dict) else {"tools": []}
            item = {**origin, "message": around}
            out = [{**tool, "front": [*front, place], "item": item} for place, tool in enumerate(out)]
        return out

    @property
    def attached(self) -> list[JsonObject]:
        """The items this entry brings: a user's `attach` list, or the one of an attach entry."""
        if self.kind == "attach":
            return [self.body["item"]]
        return list(self.body.get("attach") or ())


# One constructor for each kind that callers write. `extra` takes `at` (ms), `meta`, `wire` and the kind's other fields.


def _entry(kind: Kind, fields: Mapping[str, Json]) -> Entry:
    return Entry(kind, {"kind": kind, **{k: v for k, v in fields.items() if v is not None}})


def system(text: str, **extra: Json) -> Entry:
    """Instructions of the operator: the first are the system prompt, later ones join where they stand."""
    return _entry("system", {"text": text, **extra})


def tools(definitions: Iterable[JsonObject], **extra: Json) -> Entry:
    """Tools that the model may call from here on: `{"name", "description", "parameters"}` each; they join by name.

    `meta={"replace": True}` makes them the whole set.
    """
    return _entry("tools", {"tools": list(definitions), **extra})


def attach(item: Item | JsonObject, **extra: Json) -> Entry:
    """An item that joins the context of the next user entry."""
    return _entry("attach", {"item": item_json(item), **extra})


def user(text: str, attach: Iterable[Item | JsonObject] = (), **extra: Json) -> Entry:
    """What the user says, with the items that belong to it; `images=[…]` are URLs or base64 data."""
    items = [item_json(item) for item in attach]
    return _entry("user", {"text": text, "attach": items or None, **extra})


def think(text: str, **extra: Json) -> Entry:
    """What the model thought before it spoke."""
    return _entry("think", {"text": text, **extra})


def call(call_id: str, name: str, args: Json, **extra: Json) -> Entry:
    """The model calls a tool; its result names the same `call_id`."""
    return _entry("call", {"call_id": call_id, "name": name, "args": args, **extra})


def result(
    call_id: str, outcome: str | None = None, content: str | None = None, error: bool | None = None, **extra: Json
) -> Entry:
    """What a tool gave: `outcome` in a line, `content` in full; `error` says that it failed."""
    return _entry("result", {"call_id": call_id, "outcome": outcome, "content": content, "error": error, **extra})


def respond(text: str, **extra: Json) -> Entry:
    """What the model says."""
    return _entry("respond", {"text": text, **extra})


def note(text: str, **extra: Json) -> Entry:
    """An instruction that came late: it stands where it was given, in front of the model's next words."""
    return _entry("note", {"text": text, **extra})


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of context with an identity: note path, URL, path#Lstart-Lend, or ctx-N."""

    id: str
    type: ItemType = "code"
    content: str
    metadata: JsonObject | None = None
    timestamp: int = 0
    sha256: str = ""


def item_json(item: Item | JsonObject) -> JsonObject:
    """An item as the JSON object that entries carry; empty optional fields are left out."""
    if not isinstance(item, Item):
        if not isinstance(item, Mapping):
            raise CallError(
                f"an item cannot be {type(item).__name__}",
                hint="Make one: quire.items.from_file(path), from_text(text, name).",
            )
        return dict(item)
    out: JsonObject = {"id": item.id, "type": item.type, "content": item.content}
    if item.metadata is not None:
        out["metadata"] = item.metadata
    out["timestamp"] = item.timestamp
    if item.sha256:
        out["sha256"] = item.sha256
    return out


# What stands for the result of a call that was cut off.
INTERRUPTED = "(interrupted: no result was recorded)"


def result_text(result: Entry) -> str:
    """A result's outcome and content as one text, with a blank line between; a bare failure says that it is one."""
    outcome, content = result.body.get("outcome"), result.body.get("content")
    if content is not None and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if outcome and content:
        return f"{outcome}\n\n{content}"
    return outcome or content or ("Error" if result.body.get("error") else "")


def whole_characters(text: str) -> str:
    """Text that UTF-8 can hold: two halves of a character are put together, one alone becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Canonical JSON and the chained ids of entries. Hashing only: what is stored keeps its own order.

NOT_UTF8_HINT = "Decode the bytes with errors='replace' before handing them over."
_writer = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_fast_writer = msgspec.json.Encoder(order="sorted")
_STRINGS, _PLAIN = frozenset({str}), frozenset({str, int, bool, type(None)})


def is_plain(value: Json) -> bool:
    """Whether a value holds only what both writers write alike: no fraction, and no kind that JSON has not."""
    kind = type(value)
    if kind is dict:
        return _STRINGS.issuperset(map(type, value)) and _are_plain(value.values())
    return _are_plain(value) if kind is list else kind in _PLAIN


def _are_plain(values: Collection[Json]) -> bool:
    return _PLAIN.issuperset(map(type, values)) or all(is_plain(value) for value in values if type(value) not in _PLAIN)


def canonical(value: Json) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN: {"b": 1, "a": "é"} -> b'{"a":"\\xc3\\xa9","b":1}'."""
    try:
        if is_plain(value):
            return _fast_writer.encode(value)
    except (ValueError, OverflowError, RecursionError):
        pass  # an integer of more than 64 bits, or what the other one says is wrong
    try:
        return _writer.encode(value).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"text holds a lone surrogate ({error.object[error.start]!r})", hint=NOT_UTF8_HINT) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}", hint="Use null, numbers, strings, lists and objects.") from error


def sha256_hex(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def entry_id(parent: str, body: JsonObject) -> str:
    """The id of an entry behind `parent` (empty for the first); the thread's name is no part of it."""
    return "sha256:" + sha256_hex(parent.encode() + b"\n" + canonical(body))


def chain(entries: Iterable[Entry], parent: str = "", seq: int = 0) -> Iterator[Entry]:
    """Give each entry the id and seq it has directly behind the one before it."""
    for entry in entries:
        seq += 1
        parent = entry_id(parent, entry.body)
        yield msgspec.structs.replace(entry, seq=seq, id=parent)
