"""What the rules look at: one request, the model it is for, and what is known of its sender."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, ParamSpec

import msgspec

from quire.errors import FormatError
from quire.providers.models import ModelInfo, data, model_info
from quire.providers.wires import wire_of
from quire.values import Json, JsonObject, as_object, as_text, cached_property, canonical

if TYPE_CHECKING:
    from quire.providers.prefix import Path, Unit, Walk

# What a server has given out: signatures with the prefix they are bound to, and items that belong together.
#
# A strict server keeps one of these (`complete=True`): what it does not know is forged. A linter builds one from
# a list of requests (`complete=False`): it can tell that something changed, not that something is foreign.


class IssuedBlock(msgspec.Struct, frozen=True):
    """One signed block: the prefix before it, its own content, and the signatures of its whole reply."""

    prefix: str
    content: str
    reply: tuple[str, ...] = ()


class ServerMemory:
    """A server's memory of what it issued; `enforce` is false for accounts that may change the prefix."""

    def __init__(self, *, complete: bool = True, enforce: bool = True) -> None:
        self.complete = complete
        self.enforce = enforce
        self.signed: dict[str, IssuedBlock] = {}
        # Compaction blocks: signature -> content. Gemini's parts: signature -> content.
        self.sealed: dict[str, str] = {}
        # OpenAI's items: function_call id -> its reasoning's id; reasoning id -> its follower's id.
        self.reasoning_of: dict[str, str] = {}
        self.follower_of: dict[str, str] = {}


def chain(pieces: Iterable[tuple[str, Json]]) -> Iterator[tuple[str, str]]:
    """The running hash before each piece, and the piece's own: (role, block), ... -> (prefix, content), ..."""
    running = hashlib.sha256()
    for role, piece in pieces:
        content = fingerprint(piece)
        yield running.hexdigest(), content
        running.update(f"{role}\n{content}\n".encode())


def fingerprint(piece: Json) -> str:
    """A hash of a block without its cache marks and nulls, which are no part of what a signature binds."""
    bare = _bare(piece)
    try:
        return hashlib.sha256(canonical(bare)).hexdigest()
    except FormatError:
        # Not JSON: another rule reports that; here any stable hash will do.
        return hashlib.sha256(repr(bare).encode(errors="backslashreplace")).hexdigest()


def _bare(piece: Json) -> Json:
    if not isinstance(piece, dict):
        return piece
    bare: JsonObject = {k: v for k, v in piece.items() if k != "cache_control" and v is not None}
    if isinstance(bare.get("content"), list):
        bare["content"] = [_bare(inner) for inner in bare["content"]]
    return bare


# A conversation as the rules read it, from the wire format's own walk through the body.


class TurnBlock(msgspec.Struct, frozen=True):
    """A block of a message, with its JSON path; `raw` is in Anthropic's words where Claude's rules read it."""

    type: str
    raw: JsonObject
    path: str


class TurnMessage(msgspec.Struct, frozen=True, dict=True):
    """One message."""

    index: int
    role: str
    # As it stands in the body.
    value: Json
    # The message as a unit (None where it is no message), and the function that reads its blocks.
    unit: Unit | None
    read: Callable[[JsonObject, str], TurnBlock]
    # The field of the messages.
    field: str

    @cached_property
    def path(self) -> str:
        return f"$.{self.field}[{self.index}]"

    @cached_property
    def blocks(self) -> tuple[TurnBlock, ...]:
        return tuple(_blocks(self.unit.at(self.index), self.read)) if self.unit is not None else ()

    @property
    def raw(self) -> JsonObject:
        """The message, if it is an object."""
        return self.value if isinstance(self.value, dict) else {}

    def of(self, *kinds: str) -> list[TurnBlock]:
        """The blocks of some types."""
        return [block for block in self.blocks if block.type in kinds]


class Mark(msgspec.Struct, frozen=True):
    """A cache mark in hashing order; `path` is the marked block's."""

    path: str
    ttl: str


class Conversation(msgspec.Struct, frozen=True):
    """A conversation in the order it is hashed: tools, system, messages; and the marks in the messages."""

    tools: tuple[TurnBlock, ...] = ()
    system: tuple[TurnBlock, ...] = ()
    messages: Sequence[TurnMessage] = ()
    marks: Sequence[Mark] = ()


def conversation(body: JsonObject, wire: str) -> Conversation:
    """The whole conversation of a body."""
    walked = wire_of(wire).layout.messages(body)
    turns = [turn_at(wire, message, index) for index, message in enumerate(walked)]
    return Conversation(*heads(body, wire), turns)


def heads(body: JsonObject, wire: str) -> tuple[tuple[TurnBlock, ...], tuple[TurnBlock, ...]]:
    """The tools and the blocks of the system prompt in front of the messages."""
    tools: list[TurnBlock] = []
    system: list[TurnBlock] = []
    format = wire_of(wire)
    for unit in format.layout.head(body):
        if unit.section == "system":
            system += _blocks(unit, format.rules.block)
        elif not unit.kind:
            tools += _blocks(unit, format.rules.block)
        elif unit.kind != "schema":
            tools.append(format.rules.block(unit.value, json_path(unit.path)))
    return tuple(tools), tuple(system)


def turn_at(wire: str, message: Json, index: int, walk: Walk | None = None) -> TurnMessage:
    """A message; one that cannot be any says nothing. `walk` may have made its unit already."""
    format = wire_of(wire)
    unit = None
    if isinstance(message, dict) or (isinstance(message, str) and format.rules.bare_texts):
        unit = (walk or format.layout).message(message, index)
    role = unit.role if unit is not None else ""
    return TurnMessage(index, role, message, unit, format.rules.block, format.layout.field)


def _blocks(unit: Unit, read: Callable[[JsonObject, str], TurnBlock]) -> Iterator[TurnBlock]:
    for part in unit.parts:
        holder = unit.value.get(part.path[0]) if part.path and isinstance(unit.value, dict) else unit.value
        # A text in place of a list is one block, which has no place of its own.
        inner = part.path[:1] if isinstance(holder, str) else part.path
        yield read(part.value, json_path((*unit.path, *inner)))


def json_path(path: Path) -> str:
    """("messages", 3, "content") -> $.messages[3].content"""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


class Check(msgspec.Struct, frozen=True):
    """A request to be checked. `betas` is None where the HTTP headers are not known."""

    body: JsonObject
    info: ModelInfo
    conversation: Conversation = Conversation()
    # The bytes of the body as it goes over the wire.
    size: int = 0
    betas: frozenset[str] | None = None
    version: str = ""
    memory: ServerMemory | None = None
    # Anthropic's own format, sent through Bedrock.
    via_bedrock: bool = False

    @property
    def model_named(self) -> bool:
        """Whether a model is named at all; rules about one model need that."""
        return bool(self.info.model)


def make_check(
    body: JsonObject, provider: str, model: str | None, memory: ServerMemory | None, headers: Mapping[str, str] | None
) -> Check:
    """Put together what `validate` was given; the model may also be named in the body."""
    name = model or as_text(body.get("model")) or as_text(body.get("modelId"))
    info = model_info(f"{provider}:{name}")
    sent = _headers(body, headers)
    return Check(
        body=body,
        info=msgspec.structs.replace(info, wire=wire_of(provider, body).name),
        betas=_betas(body, sent),
        version=(sent or {}).get("anthropic-version", ""),
        memory=memory,
        via_bedrock=info.features.on_bedrock or bool(_BEDROCK_ID.match(name)),
    )


_BEDROCK_ID = re.compile(r"^([a-z-]+\.)?anthropic\.")


def _headers(body: JsonObject, headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Header names in lower case; the SDKs also take them inside the call, as `extra_headers`."""
    extra = body.get("extra_headers")
    if headers is None and not isinstance(extra, dict):
        return None
    both = {**(headers or {}), **as_object(extra)}
    return {str(name).lower(): str(value) for name, value in both.items()}


def _betas(body: JsonObject, headers: dict[str, str] | None) -> frozenset[str] | None:
    inside = body.get("betas", body.get("anthropic_beta"))
    if headers is None and not isinstance(inside, list):
        return None
    named = (headers or {}).get("anthropic-beta", "").split(",")
    listed = inside if isinstance(inside, list) else []
    return frozenset(str(beta).strip() for beta in [*named, *listed])


class Unchecked(msgspec.Struct, frozen=True):
    """A row that was not checked, and what would be needed."""

    row: str
    why: str


class Sequel:
    """Rules about the order of messages: takes them one by one and remembers what the next ones are checked against.

    It ignores cache marks, which come and go between requests.
    """

    def take(self, check: Check, turn: TurnMessage) -> Iterable[Finding]:
        """Take one more message; gives the faults that no later message can mend."""
        return ()

    def end(self, check: Check) -> Iterable[Finding]:
        """The faults of a request that ends here; changes nothing, so that a longer request can go on."""
        return ()


# Kinds of content that are not text.
MEDIA = ("image", "document", "video", "audio")


class WireRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider would refuse, and what its server remembers of what it gave out.

    Rules are separate fields by what they look at, so that in a growing conversation only new messages are checked.
    """

    # Types alone, of what stands around the messages and of each message: what keeps a body from being a request.
    body: Callable[[Check], Iterable[Finding]]
    message: Callable[[Check, TurnMessage], Iterable[Finding]]
    # What else is wrong around the messages, in each of them, along them, and where they end.
    head: Callable[[Check], Iterable[Finding]] = lambda check: ()
    turn: Callable[[Check, TurnMessage], Iterable[Finding]] = lambda check, turn: ()
    along: tuple[Callable[[], Sequel], ...] = ()
    end: Callable[[Check], Iterable[Finding]] = lambda check: ()
    # How a block is read, and the cache marks of a message.
    block: Callable[[JsonObject, str], TurnBlock] = lambda value, path: TurnBlock(str(value.get("type")), value, path)
    marks: Callable[[TurnMessage], Iterable[Mark]] = lambda turn: ()
    # What kind of media a block is, where its type does not say so; fields that hold media; where media may not stand.
    media: Callable[[JsonObject], str] = lambda block: ""
    media_fields: tuple[str, ...] = ()
    media_place: Callable[[Check, str, str, JsonObject], Iterable[Finding]] = lambda check, path, kind, block: ()
    # A message may be a text alone.
    bare_texts: bool = False
    # What a reply gave out in answer to a body; what a body shows to have been given out.
    remember_reply: Callable[[ServerMemory, JsonObject, JsonObject], None] = lambda memory, body, reply: None
    remember_body: Callable[[ServerMemory, JsonObject], None] = lambda memory, body: None
    # What cannot be told from one request.
    unchecked: Callable[[Check], Iterable[Unchecked]] = lambda check: ()


_Seen = ParamSpec("_Seen")


def each(*rules: Callable[_Seen, Iterable[Finding]]) -> Callable[_Seen, Iterator[Finding]]:
    """Several rules as one."""

    def findings(*seen: _Seen.args, **more: _Seen.kwargs) -> Iterator[Finding]:
        for rule in rules:
            yield from rule(*seen, **more)

    return findings


# A finding: which row of a provider's rules a request breaks, where, and how to mend it.
#
# The rows' texts are data (data/rules.json); a rule names its row and what it saw.


class Finding(msgspec.Struct, frozen=True):
    """`path` is a JSON path ($.messages[3].content[0]); `message` is what the provider would answer."""

    row: str
    path: str
    message: str
    fix: str
    status: int = 400
    # An error would be refused; a warning is good advice to a provider that takes it as it is, or may.
    severity: Literal["error", "warning"] = "error"


def advice(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The same findings as warnings."""
    return (msgspec.structs.replace(problem, severity="warning") for problem in findings)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """What would be refused."""
    return [problem for problem in findings if problem.severity == "error"]


def finding(row: str, path: str, case: str = "", *, sure: bool = True, **details: Json) -> Finding:
    """A finding of a row of the table, or of one of its cases; `details` fill in its texts.

    {where} is the place as providers write it. What is not `sure` to be refused is advice.
    """
    facts = data("rules")["rows"][row]
    facts = {**facts, **facts["cases"][case]} if case else facts
    # {n} is the message, {m} the block: the first two indexes of the path.
    n, m, *_ = [*re.findall(r"\[(\d+)\]", path), "0", "0"]
    values = {"where": where(path), "n": n, "m": m, **details}
    error, fix = (facts[name].format_map(values) for name in ("error", "fix"))
    return Finding(row, path, error, fix, facts["status"], facts.get("severity", "error") if sure else "warning")


def limit(name: str) -> Json:
    """A number or pattern that the rules compare with."""
    return data("rules")["limits"][name]


def at(path: str, name: str) -> str:
    """The path of a member: $.a.b, or $.a['$ref'] where the name is no word."""
    if re.fullmatch(r"[A-Za-z_]\w*", name):
        return f"{path}.{name}"
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"{path}['{quoted}']"


def where(path: str) -> str:
    """A path as the providers' errors write it: $.messages[3].content[0] -> messages.3.content.0."""
    return path.removeprefix("$").removeprefix(".").replace("[", ".").replace("]", "").replace("'", "") or "body"
