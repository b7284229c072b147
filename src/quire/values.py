"""The frozen values on the arrows of the picture, and what hashes them.

log -> Entry* -> Selection -> Built -> Request -> Reply -> Entry* -> log.
Values know their own shape and their bytes; how they are stored, counted or rendered is for others.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

import msgspec

from quire.errors import CallError, FormatError

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """As in functools, without the lock that it has up to Python 3.11: a child forked meanwhile would wait for ever."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value


# JSON as it arrives from outside; parsed and checked once, at the edge.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]

# Readers that never raise: a value of the wrong type counts as absent here; the log's shapes and the rules report it.


def as_object(value: Json) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_text(value: Json) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_list(value: Json) -> Sequence[Json]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def as_objects(value: Json) -> list[JsonObject]:
    """The objects of a list; anything else is passed over."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def value_at(value: Json, *names: str) -> Json:
    """The value at a path of names, or None: {"a": {"b": 1}}, "a", "b" -> 1."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


Kind = Literal["system", "tools", "attach", "user", "think", "call", "result", "respond", "note", "rebase", "sent"]
KINDS: tuple[str, ...] = get_args(Kind)
# The kinds that the model itself writes: a request stands before each run of them.
SPOKEN: frozenset[str] = frozenset({"think", "call", "respond"})
# The kinds that instruct the model: a rebase may move a late one into the system prompt.
INSTRUCTIONS: frozenset[str] = frozenset({"system", "note"})
# The kinds that record how requests were made and sent: no request shows them.
BOOKKEEPING: frozenset[str] = frozenset({"rebase", "sent"})

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

        A provider's own tool has its whole definition under `own`; a function its further fields under `more`.

        A tool that was imported from a list in front of the messages (OpenAI Responses) has `front`, which is [number of
        instructions before that list, the list's number, the tool's place in it], and `item`, the list without its tools.
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
            item = {**origin, "message": {**as_object(message), "tools": []}}
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
    """Instructions of the operator: the first are the system prompt; later ones appear where they were given."""
    return _entry("system", {"text": text, **extra})


def tools(definitions: Iterable[JsonObject], **extra: Json) -> Entry:
    """Tools that the model may call from here on, each `{"name", "description", "parameters"}`, added by name.

    `meta={"replace": True}` makes them the whole set instead.
    """
    return _entry("tools", {"tools": list(definitions), **extra})


def attach(item: Item | JsonObject, **extra: Json) -> Entry:
    """An item for the context of the next user entry."""
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
    """What a tool returned: `outcome` in one line, `content` in full; `error` says that it failed."""
    return _entry("result", {"call_id": call_id, "outcome": outcome, "content": content, "error": error, **extra})


def respond(text: str, **extra: Json) -> Entry:
    """What the model says."""
    return _entry("respond", {"text": text, **extra})


def note(text: str, **extra: Json) -> Entry:
    """A late instruction: it appears where it was given, before the model's next reply."""
    return _entry("note", {"text": text, **extra})


# Entries as text and as bytes: what a result says, canonical JSON, and the chained ids of the log.

# The text sent as the result of a call whose result was never recorded.
INTERRUPTED = "(interrupted: no result was recorded)"


def result_text(result: Entry) -> str:
    """A result's outcome and content as one text with a blank line between; "Error" for a failure without words."""
    return result_words(result) or ("Error" if result.body.get("error") else "")


def result_words(result: Entry) -> str:
    """The same, but empty for a failure without words."""
    outcome, content = result.body.get("outcome"), result.body.get("content")
    if content is not None and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return "\n\n".join(filter(None, (outcome, content)))


def whole_characters(text: str) -> str:
    """Text that UTF-8 can hold: a surrogate pair becomes its character, a lone surrogate U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def with_leaves(value: Json, change: Callable[[Json], Json]) -> Json:
    """A copy of a value in which `change` has been applied to every leaf and every name of a field."""
    if isinstance(value, list):
        return [with_leaves(element, change) for element in value]
    if isinstance(value, dict):
        return {change(name): with_leaves(field, change) for name, field in value.items()}
    return change(value)


# Canonical JSON is for hashing only: what is stored keeps its own order.

NOT_UTF8_HINT = "Decode the bytes with errors='replace' before handing them over."
_writer = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_fast_writer = msgspec.json.Encoder(order="sorted")
_STRINGS, _PLAIN = frozenset({str}), frozenset({str, int, bool, type(None)})


def is_plain(value: Json) -> bool:
    """Whether both writers give the same bytes for a value: it holds no fraction, and only JSON's own types."""
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
        pass  # an integer of more than 64 bits, or a fault, which the other writer reports
    try:
        return _writer.encode(value).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"text holds a lone surrogate ({error.object[error.start]!r})", hint=NOT_UTF8_HINT) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}", hint="Use null, numbers, strings, lists and objects.") from error


def sha256_hex(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def entry_id(parent: str, body: JsonObject) -> str:
    """The id of an entry behind the one with id `parent` (empty for the first); independent of the thread's name."""
    return "sha256:" + sha256_hex(parent.encode() + b"\n" + canonical(body))


def chain(entries: Iterable[Entry], parent: str = "", seq: int = 0) -> Iterator[Entry]:
    """Give each entry the id and seq it has directly behind the one before it."""
    for entry in entries:
        seq += 1
        parent = entry_id(parent, entry.body)
        yield Entry(entry.kind, entry.body, seq, parent)


# Items.


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


# What a request is made of.

LayerId = Literal["L1_SYSTEM", "L2_PREVIOUS", "L3_TURN", "L4_STRIP", "L5_USER"]
LAYERS: tuple[LayerId, ...] = get_args(LayerId)


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


# gc=False: JSON trees hold no reference cycles, so the garbage collector need not visit the messages of a long thread.
class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    text: str
    wire: JsonObject = {}


class Image(msgspec.Struct, frozen=True, gc=False, tag="image"):
    """An image by base64 data or by URL."""

    media_type: str = ""
    data: str = ""
    url: str = ""


class Think(msgspec.Struct, frozen=True, gc=False, tag="think"):
    text: str
    wire: JsonObject = {}


class Call(msgspec.Struct, frozen=True, gc=False, tag="call"):
    call_id: str
    name: str
    args: Json
    wire: JsonObject = {}
    # The argument string as the model wrote it; empty where only the parsed value is known.
    arguments: str = ""


class Result(msgspec.Struct, frozen=True, gc=False, tag="result"):
    call_id: str
    name: str
    text: str
    error: bool = False
    wire: JsonObject = {}


class ToolSet(msgspec.Struct, frozen=True, gc=False, tag="tools"):
    """Tools that joined after the epoch began."""

    tools: tuple[JsonObject, ...]
    wire: JsonObject = {}


Part: TypeAlias = Text | Image | Think | Call | Result | ToolSet
# tool: the results of one group of parallel calls. note: a late instruction. tools: late tools.
Role = Literal["user", "assistant", "tool", "note", "tools"]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message in no provider's format, and the entries (by seq) it was made from."""

    role: Role
    parts: tuple[Part, ...]
    seqs: tuple[int, ...] = ()


class Prompt(msgspec.Struct, frozen=True):
    """Everything one request says, fitted to the budget and in no provider's format.

    messages[:fold] began the epoch; messages[:stable] were in the request before; messages[:opening] will stay at the next
    rebase. `ends`: the number of messages of each earlier request of the epoch, whose bytes may not change.
    """

    l1: str
    l2: str
    tools: tuple[JsonObject, ...]
    messages: tuple[Message, ...]
    epoch: int = 1
    fold: int = 0
    stable: int = 0
    opening: int = 0
    ends: tuple[int, ...] = ()
    # The texts that L1 is made of, if it came as several.
    heads: tuple[str, ...] = ()
    # Where each of `heads` was imported from; empty if none was.
    front: tuple[JsonObject, ...] = ()

    @property
    def systems(self) -> list[str]:
        """The system prompt as the separate messages it came as, for providers that take several."""
        if len(self.heads) < 2 or "\n\n".join(self.heads) != self.l1:
            return [self.system] if self.system else []
        *first, last = self.heads
        return [*first, msgspec.structs.replace(self, l1=last, heads=()).system]

    @property
    def system(self) -> str:
        """The system message's text: L1, then the context library under its heading."""
        if not self.l2:
            return self.l1
        library = f"{LIBRARY_HEADING}\n\n{LIBRARY_INTRO}\n\n{self.l2}"
        return f"{self.l1}\n\n{library}" if self.l1 else library


LIBRARY_HEADING = "## Context Library"
LIBRARY_INTRO = "The following notes are available for reference:"


class Lines(msgspec.Struct, frozen=True):
    """What a cache compares of a request: a line for each tool, system block and message, and their hashes."""

    rows: tuple[bytes, ...] = ()
    segments: tuple[str, ...] = ()
    sha256: str = ""


_Row = TypeVar("_Row")


class LazyRows(Sequence[_Row]):
    """A sequence computed when it is first read: a long thread leaves out most entries, and few callers ask why."""

    def __init__(self, count: Callable[[], int], make: Callable[[], Iterable[_Row]]) -> None:
        self._count, self._make = count, make

    @cached_property
    def _rows(self) -> tuple[_Row, ...]:
        return tuple(self._make())

    def __len__(self) -> int:
        return self._count()

    def __getitem__(self, at: Any) -> Any:
        return self._rows[at]

    def __iter__(self) -> Iterator[_Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sequence) and self._rows == tuple(other))

    __hash__ = None  # type: ignore[assignment]  # compared by its rows, as a list is

    def __repr__(self) -> str:
        return repr(list(self))


def body_and_headers(request: Request) -> JsonObject:
    """A request as most SDKs take it: the body's fields as keyword arguments, headers as `extra_headers`."""
    return {**request.body, "extra_headers": request.headers} if request.headers else request.body


class Request(msgspec.Struct, frozen=True):
    """A provider's request: `kwargs` go into the official SDK's call, `lines` are what caching sees."""

    provider: str
    model: str
    body: JsonObject
    lines: Lines = Lines()
    # sha256 of each layer of its envelope; a thread's requests compute them when they are read.
    layers: Mapping[str, str] = {}
    # HTTP headers the body needs (Anthropic betas, x-grok-conv-id); empty for most.
    headers: dict[str, str] = {}
    # Entries that it does not show, and why: {"entry", "reason"}, for a tool in front of the messages also "tool". They
    # were cut from the history, or this provider does not accept them.
    left_out: Sequence[JsonObject] = ()
    # How many of the body's messages the request before held; 0 if there was none or it is not known.
    stable: int = 0
    # Its epoch: 1 until the first rebase; 0 for a request of no thread.
    epoch: int = 0
    # Gives the keyword arguments for the provider's SDK.
    sdk: Callable[[Request], JsonObject] = body_and_headers

    @property
    def kwargs(self) -> JsonObject:
        """The keyword arguments of the official SDK's call: `client.messages.create(**request.kwargs)`."""
        return self.sdk(self)

    @property
    def prefix(self) -> bytes:
        """All lines joined: a request extends another if its prefix begins with the other's."""
        return b"".join(self.lines.rows)

    @property
    def target(self) -> str:
        """ "provider:model", as it was asked for."""
        return f"{self.provider}:{self.model}"


class RequestOptions(TypedDict, total=False):
    """Options of a request; all but the first two go into the body unchanged (Gemini's into `generationConfig`)."""

    # Translated for each provider: the length of the reply, and how hard to think ("low", "medium", "high").
    max_tokens: int
    effort: str
    temperature: float
    top_p: float
    top_k: int
    stop: str | list[str]
    seed: int
    tool_choice: Json
    parallel_tool_calls: bool
    response_format: JsonObject
    thinking: JsonObject
    # Any other field of the body.
    extra: JsonObject


_Kind = TypeVar("_Kind", bound=type)


def read_early(kind: _Kind) -> _Kind:
    """A class decorator that makes msgspec inspect the type now, while its module is loaded by one OS thread.

    Otherwise msgspec does it at the first conversion, and two OS threads that do so at the same moment crash the process.
    """
    msgspec.json.Decoder(kind)
    return kind


@read_early
class Usage(msgspec.Struct, frozen=True):
    """What a reply used, in one form for every provider; input_total includes what was cached."""

    input_total: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    # What was charged in addition to these tokens: searches, audio, another model's share.
    besides: tuple[str, ...] = ()
    # What the provider says it charged in total, in USD.
    charged: float | None = None

    def as_json(self) -> JsonObject:
        """As the log keeps it: every count, and the other fields unless they are empty."""
        more = {"besides": list(self.besides), "charged": self.charged}
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {name: value for name, value in more.items() if value not in (None, [])}


# The fields of Usage that count tokens.
COUNTS = ("input_total", "cache_read", "cache_write_5m", "cache_write_1h", "output", "reasoning")


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
