"""A provider's rules, before it applies them: `validate(body, provider, model)` gives what it would refuse.

Total: any JSON value gives findings, never an exception. What cannot be told from one request alone is said
by `unchecked`; a server that remembers what it issued passes that memory as `seen`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import TypeAlias, TypeVar

import msgspec

from quire.errors import CallError, RuleError
from quire.providers.prefix import written
from quire.providers.rules.accepts import accepted, accepted_in
from quire.providers.rules.check import (
    Check,
    Conversation,
    Finding,
    Mark,
    Sequel,
    ServerMemory,
    TurnMessage,
    Unchecked,
    at,
    conversation,
    errors,
    found,
    heads,
    make_check,
    turn_at,
    where,
)
from quire.providers.rules.grammar import obj, objects_at, shape, text
from quire.providers.wires import Wire, wire_of
from quire.values import Json, JsonObject, Request

__all__ = [
    "Finding",
    "GrowingCheck",
    "ServerMemory",
    "Unchecked",
    "detect",
    "errors",
    "issue",
    "malformed",
    "observe",
    "require",
    "unchecked",
    "validate",
]


def issue(seen: ServerMemory, body: JsonObject, provider: str, reply: Json) -> None:
    """Record what `reply` (the provider's JSON) gave out in answer to `body`."""
    wire_of(provider).rules.issued(seen, body, obj(reply))


def observe(seen: ServerMemory, body: JsonObject, provider: str) -> None:
    """Record what a request carries, as given out where it stands; for logs of requests without their replies."""
    wire_of(provider).rules.observed(seen, body)


def validate(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What a provider would refuse in a request, and what it would better not hold.

    First what stands around the messages, then message by message, then how they follow each other.
    `request` is a body, or a rendered Request, which brings its provider, model and headers along.
    """
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return [shape("$", "the request is no JSON object", "Send an object.")]
    return GrowingCheck().findings(_check(request, provider, model, seen, headers))


def require(request: Request, check: GrowingCheck | None = None) -> None:
    """Raise what a provider would refuse: the rule, the place and how to mend it.

    `check` is kept from request to request of one thread, so that only what is new is looked at.
    """
    if refused := errors((check or GrowingCheck()).of(request)):
        first = refused[0]
        raise RuleError(
            f"the request breaks rule {first.row} of {request.provider} at {first.path}: {first.message}",
            hint=first.fix,
        )


def malformed(request: Json, provider: str, model: str | None = None) -> list[Finding]:
    """What keeps a body from being a request at all: fields of the wrong type, or missing ones."""
    if not isinstance(request, dict):
        return validate(request, provider)
    return errors(GrowingCheck(shape_only=True).findings(_check(request, provider, model, None, None)))


# Settings that say nothing about messages, and may be others in every request.
_APART = frozenset({"diagnostics", "prompt_cache_options", "prompt_cache_retention"})


# Sizes of messages by their hash, behind the name of what they were checked for.
Checked: TypeAlias = tuple[str, dict[bytes, int]]


class GrowingCheck:
    """Checks one thread's requests as they grow: messages that stand as they stood are not looked at again.

    Bodies must not be changed in place: the very same message is taken to be what it was. What was found in it is
    found again. `checked` is what another found of earlier requests: `GrowingCheck.checked`, kept somewhere safe.
    """

    def __init__(self, checked: Checked = ("", {}), *, shape_only: bool = False) -> None:
        self._shape_only, self._checked_before = shape_only, checked
        # What all findings in messages rest on, and what stood around the messages.
        self._ground: object = None
        self._around: JsonObject | None = None
        self._head = Conversation()
        self._head_size, self._head_findings = 0, list[Finding]()
        # The sizes of messages with nothing wrong and no mark, by their hash: a rebase only moves most of them.
        self._clean = dict[bytes, int]()
        self._begin(())

    @property
    def checked(self) -> Checked:
        """The messages of the newest request that nothing is wrong with, and a name for what that rests on."""
        return _named(self._ground), self._clean

    def of(self, request: Request) -> list[Finding]:
        """What is wrong with the next request."""
        return self.findings(_check(request, None, None, None, None), request.lines.each)

    def findings(self, check: Check, lines: Sequence[bytes] = ()) -> list[Finding]:
        """What is wrong with a body; by their `lines` it is told which messages only have other marks than before."""
        try:
            return list(dict.fromkeys(self._findings(check, lines)))
        except RecursionError:
            self._ground = None
            return [found("B.json", "$", problem="nested too deeply")]

    def _begin(self, sequels: Iterable[Callable[[], Sequel]]) -> None:
        self._messages: Sequence[Json] = ()
        self._lines: Sequence[bytes] = ()
        self._turns: list[TurnMessage] = []
        self._sizes: list[int] = []
        self._clean_before, self._clean = self._clean, {}
        # By place, where there is any: what is wrong with a message, and its cache marks.
        self._wrong: dict[int, list[Finding]] = {}
        self._marks: dict[int, list[Mark]] = {}
        # How messages follow each other, and what is wrong with that whatever follows.
        self._sequels = [make() for make in sequels]
        self._settled: list[Finding] = []

    def _findings(self, check: Check, lines: Sequence[bytes]) -> Iterator[Finding]:
        wire = wire_of(check.info.wire)
        messages, field = wire.layout.messages(check.body), wire.layout.field
        around = {**check.body, field: []} if isinstance(check.body.get(field), list | tuple) else check.body
        steady = {name: value for name, value in around.items() if name not in _APART}
        ground = (check.info.provider, check.info.model, check.info.wire, check.betas, check.version, steady)
        changed = list(compress(range(len(self._turns)), map(is_not, self._messages, messages)))
        lines = lines[len(lines) - len(messages) :] if len(lines) >= len(messages) else ()
        if ground != self._ground or not self._stands(changed, messages, lines):
            if ground != self._ground:
                self._clean = self._checked_before[1] if self._checked_before[0] == _named(ground) else {}
            self._begin(() if self._shape_only else wire.rules.along)
            self._ground, self._around, changed = ground, None, []
        known = len(self._turns)
        self._messages, self._lines = messages, lines
        for place in (*changed, *range(known, len(messages))):
            self._look(check, wire, place)
        for turn in self._turns[known:]:
            if turn.raw or wire.rules.bare_texts:
                self._settled += (each for sequel in self._sequels for each in sequel.take(check, turn))
        check = self._whole(check, wire, around)
        yield from self._head_findings
        yield from (each for place in sorted(self._wrong) for each in self._wrong[place])
        yield from self._settled
        if not self._shape_only:
            yield from (each for sequel in self._sequels for each in sequel.end(check))
            yield from wire.rules.end(check)

    def _stands(self, changed: list[int], messages: Sequence[Json], lines: Sequence[bytes]) -> bool:
        """Whether what was looked at is what the messages begin with, marks aside."""
        if len(messages) < len(self._turns):
            return False
        return not changed or (bool(lines) and all(lines[place] == self._lines[place] for place in changed))

    def _look(self, check: Check, wire: Wire, place: int) -> None:
        """Look at one message by itself."""
        value = self._messages[place]
        turn = turn_at(check.info.wire, value, place)
        # Rules make a difference between the first place and any other, and none between these.
        name = hashlib.sha256(written(value)).digest() if place else b""
        size, wrong, marks = self._clean_before.get(name, 0), list[Finding](), list[Mark]()
        if not size:
            size, wrong = _encoded(value, turn.path)
            wrong += wire.rules.message(check, turn)
            if not self._shape_only and (turn.raw or wire.rules.bare_texts):
                wrong += wire.rules.each(check, turn)
                wrong += accepted_in(check, turn)
            marks += wire.rules.marks(turn)
        if place and not wrong and not marks:
            self._clean[name] = size
        self._turns[place : place + 1], self._sizes[place : place + 1] = [turn], [size]
        _put(self._wrong, place, wrong)
        _put(self._marks, place, marks)

    def _whole(self, check: Check, wire: Wire, around: JsonObject) -> Check:
        """The check with all that is around the messages and in them."""
        if around != self._around:
            self._head = Conversation(*heads(check.body, check.info.wire))
            self._head_size, wrong = _encoded(around, "$")
            headed = msgspec.structs.replace(check, talk=self._head)
            wrong += wire.rules.body(headed)
            if not self._shape_only:
                wrong += (*wire.rules.head(headed), *accepted(headed))
            self._around, self._head_findings = around, wrong
        marks = [mark for place in sorted(self._marks) for mark in self._marks[place]]
        talk = msgspec.structs.replace(self._head, messages=self._turns, marks=marks)
        commas = max(0, len(self._turns) - 1)
        return msgspec.structs.replace(check, talk=talk, size=self._head_size + sum(self._sizes) + commas)


def _named(ground: object) -> str:
    """A name for what findings in messages rest on: who is asked, and what stands around the messages."""
    return hashlib.sha256(repr(ground).encode(errors="backslashreplace")).hexdigest() if ground else ""


_Held = TypeVar("_Held")


def _put(places: dict[int, list[_Held]], place: int, held: list[_Held]) -> None:
    places.pop(place, None)
    if held:
        places[place] = held


def unchecked(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Unchecked]:
    """The rows that this request touches and that cannot be told from what was given, with what is missing."""
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return []
    check = _check(request, provider, model, seen, headers)
    try:
        whole = msgspec.structs.replace(check, talk=conversation(body, check.info.wire))
    except RecursionError:
        return []  # what `validate` says
    notes = list(wire_of(check.info.wire).rules.unchecked(whole))
    if check.model_named:
        return notes
    return [Unchecked("model", "no model is named: rules about single models were not checked"), *notes]


def _check(
    request: Request | Json,
    provider: str | None,
    model: str | None,
    seen: ServerMemory | None,
    headers: Mapping[str, str] | None,
) -> Check:
    """What is to be checked; who it is for is told by the caller, the Request, or the body's shape."""
    if isinstance(request, Request):
        given = request.headers if headers is None else headers
        return make_check(request.body, provider or request.provider, model or request.model, seen, given)
    whose = provider or detect(request)
    if whose is None:
        raise CallError("cannot tell whose request this is", hint="Name the provider.")
    return make_check(request, whose, model, seen, headers)


def _encoded(value: Json, path: str) -> tuple[int, list[Finding]]:
    """The size of a value as it goes over the wire, and what in it is no JSON."""
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        problem = found("B.json", path, problem=f"not JSON text: {error}")
    else:
        # What is no number is written as null.
        return len(encoded), list(_no_numbers(value, path)) if b"null" in encoded else []
    try:
        # Integers of any size are JSON, though the fast encoder takes 64 bits only.
        return len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode()), []
    except (TypeError, ValueError):
        return 0, [problem]


def _no_numbers(value: Json, path: str) -> Iterator[Finding]:
    """NaN and the infinities, which JSON does not have."""
    waiting = [(path, value)]
    while waiting:
        place, one = waiting.pop()
        if isinstance(one, dict):
            waiting += [(at(place, str(name)), inner) for name, inner in one.items()]
        elif isinstance(one, list | tuple):
            waiting += [(f"{place}[{index}]", inner) for index, inner in enumerate(one)]
        elif isinstance(one, float) and not math.isfinite(one):
            yield found("B.json", place, problem=f"{where(place)}: {one} is no number that JSON has")


# Whose request is this? By the fields that only one wire format has, then by the model's name.

# Fields, block types and block fields that only one format has.
_BODY = {
    "contents": "gemini",
    "cachedContent": "gemini",
    "systemInstruction": "gemini",
    "modelId": "bedrock",
    "inferenceConfig": "bedrock",
    "toolConfig": "bedrock",
    "input": "openai-responses",
    "instructions": "openai-responses",
    "anthropic_version": "anthropic",
    "betas": "anthropic",
    "system": "anthropic",
    "thinking": "anthropic",
    "stop_sequences": "anthropic",
}
_TYPES = {
    "tool_use": "anthropic",
    "tool_result": "anthropic",
    "thinking": "anthropic",
    "redacted_thinking": "anthropic",
    "image": "anthropic",
    "document": "anthropic",
    "image_url": "openai-chat",
    "input_audio": "openai-chat",
    "file": "openai-chat",
    "refusal": "openai-chat",
}
# Blocks that only items of the Responses API hold.
_ITEM_BLOCKS = frozenset({"input_text", "output_text", "input_image", "input_file"})
# Who speaks Chat, by how their models are called.
_MODELS = (
    ("deepseek", "deepseek"),
    ("mistral|codestral|devstral|ministral|magistral", "mistral"),
    ("grok", "xai"),
)


def detect(body: Json, otherwise: str = "openai-chat") -> str | None:
    """The provider or wire format a body is made for; None when nothing tells.

    Messages of words alone could be of several formats: they are `otherwise`.
    """
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("messages"), list) and "contents" not in body:
        return _by_messages(body, otherwise)
    return next((wire for field, wire in _BODY.items() if field in body), None)


def as_body(messages: list[JsonObject]) -> JsonObject:
    """A list of messages, or of items, as the body of a request that holds them."""
    blocks = [block for message in messages for _, block in objects_at(message.get("content"), "")]
    items = any("type" in message for message in messages) or any(
        text(block.get("type")) in _ITEM_BLOCKS for block in blocks
    )
    parts = any("parts" in message for message in messages)
    return {"contents" if parts else "input" if items else "messages": messages}


def _by_messages(body: JsonObject, otherwise: str) -> str:
    """Chat, Anthropic and Converse all say `messages`; their blocks, fields and models differ."""
    messages = [message for _, message in objects_at(body["messages"], "")]
    if messages and messages[0].get("role") == "system":
        return _chat(body)  # the others say it beside the messages
    if any(message.get("role") in ("tool", "developer") or "tool_calls" in message for message in messages):
        return _chat(body)
    blocks = [block for message in messages for _, block in objects_at(message.get("content"), "")]
    if any(isinstance(block.get("thinking"), list) for block in blocks):
        return _chat(body)  # Mistral's thinking is a list of texts
    by_type = next((_TYPES[kind] for block in blocks if (kind := text(block.get("type"))) in _TYPES), None)
    if by_type is not None:
        return _chat(body) if by_type == "openai-chat" else by_type
    if any("type" not in block for block in blocks):
        return "bedrock"
    if any("function" in tool for _, tool in objects_at(body.get("tools"), "")):
        return _chat(body)
    fields = _BODY if _chat(body) == "openai-chat" else {"system": "anthropic"}
    named = text(body.get("model"))
    # Others than Claude have a `thinking` switch too.
    shared = {"thinking"} if named and "claude" not in named else set()
    by_field = next((wire for field, wire in fields.items() if field in body.keys() - shared), None)
    if by_field or _is_claudes(body, blocks):
        return by_field or "anthropic"
    return chat if (chat := _chat(body)) != "openai-chat" else otherwise


def _is_claudes(body: JsonObject, blocks: list[JsonObject]) -> bool:
    """Marked blocks, tools with an input_schema, or a Claude that no router's prefix names."""
    schemas = any("input_schema" in tool for _, tool in objects_at(body.get("tools"), ""))
    model = text(body.get("model"))
    named = "claude" in model and "/" not in model
    return schemas or named or ("/" not in model and any("cache_control" in block for block in blocks))


def _chat(body: JsonObject) -> str:
    """Chat is spoken by many; the model's name may tell which one."""
    model = text(body.get("model"))
    if "/" in model:
        return "openrouter"
    return next((provider for pattern, provider in _MODELS if re.search(pattern, model)), "openai-chat")
