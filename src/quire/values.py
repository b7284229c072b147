"""The frozen values on the arrows of the picture, and nothing else.

log -> Entry* -> Selection -> Envelope (layers) -> Prompt -> Request -> Reply -> Entry* -> log.
Values know their own shape; how they are stored, counted or rendered is for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

# JSON as it arrives from outside; parsed and checked once, at the edge.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

Kind = Literal[
    "system", "tools", "attach", "user", "think", "call", "result", "respond", "note", "rebase", "sent"
]
KINDS: tuple[str, ...] = get_args(Kind)
# The kinds that the model itself writes: a request stands before each run of them.
SPOKEN: frozenset[str] = frozenset({"think", "call", "respond"})

LayerId = Literal["L1_SYSTEM", "L2_PREVIOUS", "L3_TURN", "L4_STRIP", "L5_USER"]
LAYERS: tuple[LayerId, ...] = get_args(LayerId)

ItemType = Literal["code", "text", "file", "repl-history", "error", "custom"]
ITEM_TYPES: tuple[str, ...] = get_args(ItemType)


class Entry(msgspec.Struct, frozen=True):
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
        """The tools it defines; one that a provider brought in its own words has these under `own`."""
        own = self.wire.get("own")
        if not isinstance(own, dict):
            return list(self.body.get("tools", ()))
        origin = {key: self.wire[key] for key in ("format", "model") if key in self.wire}
        return [
            {**tool, "own": {**origin, "definition": definition}}
            if isinstance(definition := own.get(tool["name"]), dict)
            else tool
            for tool in self.body.get("tools", ())
        ]

    @property
    def attached(self) -> list[JsonObject]:
        """The items this entry brings: a user's `attach` list, or the one of an attach entry."""
        if self.kind == "attach":
            return [self.body["item"]]
        return list(self.body.get("attach") or ())


def _entry(kind: Kind, fields: Mapping[str, Json]) -> Entry:
    return Entry(kind, {"kind": kind, **{k: v for k, v in fields.items() if v is not None}})


def system(text: str, **extra: Json) -> Entry:
    return _entry("system", {"text": text, **extra})


def tools(definitions: Iterable[JsonObject], **extra: Json) -> Entry:
    return _entry("tools", {"tools": list(definitions), **extra})


def attach(item: Item | JsonObject, **extra: Json) -> Entry:
    return _entry("attach", {"item": item_json(item), **extra})


def user(text: str, attach: Iterable[Item | JsonObject] = (), **extra: Json) -> Entry:
    items = [item_json(one) for one in attach]
    return _entry("user", {"text": text, "attach": items or None, **extra})


def think(text: str, **extra: Json) -> Entry:
    return _entry("think", {"text": text, **extra})


def call(call_id: str, name: str, args: Json, **extra: Json) -> Entry:
    return _entry("call", {"call_id": call_id, "name": name, "args": args, **extra})


def result(
    call_id: str,
    outcome: str | None = None,
    content: str | None = None,
    error: bool | None = None,
    **extra: Json,
) -> Entry:
    return _entry(
        "result", {"call_id": call_id, "outcome": outcome, "content": content, "error": error, **extra}
    )


def respond(text: str, **extra: Json) -> Entry:
    return _entry("respond", {"text": text, **extra})


def note(text: str, **extra: Json) -> Entry:
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
        return dict(item)
    out: JsonObject = {"id": item.id, "type": item.type, "content": item.content}
    if item.metadata is not None:
        out["metadata"] = item.metadata
    out["timestamp"] = item.timestamp
    if item.sha256:
        out["sha256"] = item.sha256
    return out


class Count(msgspec.Struct, frozen=True):
    """A number of tokens, and whether it is exact for the model or a stated estimate."""

    tokens: int
    exact: bool = True
    vocabulary: str = "o200k_base"


class Segment(msgspec.Struct, frozen=True):
    """One piece of a layer: an item's block, a message, the system prompt."""

    id: str
    content: str
    sha256: str
    stable: bool = True
    metadata: JsonObject = {}


class Layer(msgspec.Struct, frozen=True):
    id: LayerId
    segments: tuple[Segment, ...]
    text: str
    sha256: str


class Envelope(msgspec.Struct, frozen=True):
    """The five layers of one turn, most stable first, with their hashes."""

    layers: tuple[Layer, ...]
    sha256: str

    def layer(self, id: LayerId) -> Layer:
        return self.layers[LAYERS.index(id)]


# What a message is made of, before any provider's format. `wire` holds the provider's own data of
# the entry it came from ({"format", "model"?, "message"?, "more"?, "block"?}), to go back verbatim.


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str
    wire: JsonObject = {}


class Image(msgspec.Struct, frozen=True, tag="image"):
    """An image by base64 data or by URL."""

    media_type: str = ""
    data: str = ""
    url: str = ""


class Think(msgspec.Struct, frozen=True, tag="think"):
    text: str
    wire: JsonObject = {}


class Call(msgspec.Struct, frozen=True, tag="call"):
    call_id: str
    name: str
    args: Json
    wire: JsonObject = {}
    # The argument string as the model wrote it; empty where only the parsed value is known.
    arguments: str = ""


class Result(msgspec.Struct, frozen=True, tag="result"):
    call_id: str
    name: str
    text: str
    error: bool = False
    wire: JsonObject = {}


class ToolSet(msgspec.Struct, frozen=True, tag="tools"):
    """Tools that joined after the epoch began."""

    tools: tuple[JsonObject, ...]


Part: TypeAlias = Text | Image | Think | Call | Result | ToolSet
# tool: the results of one group of parallel calls. note: a late instruction. tools: late tools.
Role = Literal["user", "assistant", "tool", "note", "tools"]


class Message(msgspec.Struct, frozen=True):
    """One message in no provider's format, and the entries (by seq) it was made from."""

    role: Role
    parts: tuple[Part, ...]
    seqs: tuple[int, ...] = ()


class Prompt(msgspec.Struct, frozen=True):
    """Everything one request says, fitted to the budget; a provider renders it.

    messages[:fold] stand since the epoch began; messages[:stable] were in the request before this one;
    messages[:opening] will stand through the next rebase.
    """

    l1: str
    l2: str
    tools: tuple[JsonObject, ...]
    messages: tuple[Message, ...]
    epoch: int = 1
    fold: int = 0
    stable: int = 0
    opening: int = 0

    @property
    def system(self) -> str:
        """The system message's text: L1, then the context library under its heading."""
        if not self.l2:
            return self.l1
        library = f"{LIBRARY_HEADING}\n\n{LIBRARY_INTRO}\n\n{self.l2}"
        return f"{self.l1}\n\n{library}" if self.l1 else library


LIBRARY_HEADING = "## Context Library"
LIBRARY_INTRO = "The following notes are available for reference:"


class Request(msgspec.Struct, frozen=True):
    """A provider's request: `body` goes into the official SDK's call, `prefix` is what caching sees."""

    provider: str
    model: str
    body: JsonObject
    prefix: bytes
    # HTTP headers the body needs (Anthropic betas, x-grok-conv-id); empty for most.
    headers: dict[str, str] = {}
    # What could not be carried over to this provider, and why: {"entry", "reason"}; for a tool in front also "tool".
    left_out: tuple[JsonObject, ...] = ()

    @property
    def target(self) -> str:
        """ "provider:model", as it was asked for."""
        return f"{self.provider}:{self.model}"


class Usage(msgspec.Struct, frozen=True):
    """What a reply used, in one form for every provider; input_total includes what was cached."""

    input_total: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0


class Reply(msgspec.Struct, frozen=True):
    """A model's reply as entries, ready for the log."""

    entries: tuple[Entry, ...]
    usage: Usage
    stop: str = ""
    id: str = ""
    model: str = ""


class LeftOut(msgspec.Struct, frozen=True):
    """An entry that a request does not show, and why."""

    entry: int
    reason: str
