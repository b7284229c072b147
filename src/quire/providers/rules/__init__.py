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
from typing import TypeAlias

import msgspec

from quire.errors import CallError, RuleError, nearest
from quire.providers.models import data, provider_facts
from quire.providers.prefix import Walk
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
    finding,
    heads,
    make_check,
    turn_at,
    where,
)
from quire.providers.rules.grammar import grammar_of, shape, snake
from quire.providers.wires import Wire, detect, wire_of
from quire.values import Json, JsonObject, Request, as_object, as_text, value_at

__all__ = [
    "Finding", "GrowingCheck", "ServerMemory", "Unchecked", "errors", "issue", "malformed", "observe",
    "require", "unchecked", "validate",
]  # fmt: skip


def issue(seen: ServerMemory, body: JsonObject, provider: str, reply: Json) -> None:
    """Record what `reply` (the provider's JSON) gave out in answer to `body`."""
    wire_of(provider).rules.remember_reply(seen, body, as_object(reply))


def observe(seen: ServerMemory, body: JsonObject, provider: str) -> None:
    """Record what a request carries, as given out where it stands; for logs of requests without their replies."""
    wire_of(provider).rules.remember_body(seen, body)


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
        return [shape("$", "no object")]
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
    return errors(GrowingCheck(shape_only=True).findings(_check(request, provider, model)))


# Settings that change from request to request without changing what is wrong with a message.
_APART = frozenset({"diagnostics", "prompt_cache_options", "prompt_cache_retention"})


# What was checked for, as one name; and by their hash the sizes of the messages that passed.
Checked: TypeAlias = tuple[str, dict[bytes, int]]


class GrowingCheck:
    """Checks one thread's requests as they grow: unchanged messages are not looked at again.

    Bodies must not be changed in place: a message that is the same object is taken to be unchanged, and its findings are
    repeated. `checked` is what an earlier process passed: its `GrowingCheck.checked()`, stored somewhere safe.
    `walk` is that of the rendering that writes the requests.
    """

    def __init__(self, checked: Checked = ("", {}), walk: Walk | None = None, *, shape_only: bool = False) -> None:
        self._shape_only, self._checked_before, self._walk = shape_only, checked, walk
        # What findings in messages depend on (model, tools, settings), and the body without its messages.
        self._ground: object = None
        self._around: JsonObject | None = None
        self._head = Conversation()
        self._head_size, self._head_findings = 0, list[Finding]()
        # The sizes of messages with nothing wrong and no mark, by their hash: a rebase only moves most of them.
        self._clean = dict[bytes, int]()
        self._begin(())

    def checked(self) -> Checked:
        """The messages of the newest request that passed, behind a name for what they were checked for."""
        return _ground_hash(self._ground), self._clean

    def of(self, request: Request) -> list[Finding]:
        """What is wrong with the next request."""
        return self.findings(_check(request), request.lines.rows)

    def findings(self, check: Check, lines: Sequence[bytes] = ()) -> list[Finding]:
        """What is wrong with a body; `lines` show which messages differ from before in their cache marks alone."""
        try:
            return list(dict.fromkeys(self._findings(check, lines)))
        except RecursionError:
            self._ground = None
            return [finding("B.json", "$", problem="nested too deeply")]

    def _begin(self, sequels: Iterable[Callable[[], Sequel]]) -> None:
        self._messages: Sequence[Json] = ()
        self._lines: Sequence[bytes] = ()
        self._turns, self._sizes = list[TurnMessage](), list[int]()
        self._clean_before, self._clean = self._clean, {}
        # By place, where there is any: what is wrong with a message, and its cache marks.
        self._wrong: dict[int, list[Finding]] = {}
        self._marks: dict[int, list[Mark]] = {}
        # The rules about the order of messages, and what they found that no later message can mend.
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
                self._clean = self._checked_before[1] if self._checked_before[0] == _ground_hash(ground) else {}
            self._begin(() if self._shape_only else wire.rules.along)
            self._ground, self._around, changed = ground, None, []
        count_before = len(self._turns)
        self._messages, self._lines = messages, lines
        for place in (*changed, *range(count_before, len(messages))):
            self._look(check, wire, place)
        for turn in self._turns[count_before:]:
            if turn.raw or wire.rules.bare_texts:
                self._settled += (problem for sequel in self._sequels for problem in sequel.take(check, turn))
        check = self._whole(check, wire, around)
        yield from self._head_findings
        yield from (problem for place in sorted(self._wrong) for problem in self._wrong[place])
        yield from self._settled
        if not self._shape_only:
            yield from (problem for sequel in self._sequels for problem in sequel.end(check))
            yield from wire.rules.end(check)

    def _stands(self, changed: list[int], messages: Sequence[Json], lines: Sequence[bytes]) -> bool:
        """Whether the messages begin with those that were checked before, marks aside."""
        if len(messages) < len(self._turns):
            return False
        return not changed or (bool(lines and self._lines) and all(lines[at] == self._lines[at] for at in changed))

    def _look(self, check: Check, wire: Wire, place: int) -> None:
        value = self._messages[place]
        turn = turn_at(check.info.wire, value, place, self._walk)
        # A finding may depend on whether a message is the first, and on no other place.
        name = turn.unit.digest if place and turn.unit is not None else b""
        wrong, marks = list[Finding](), list[Mark]()
        size = self._clean_before.get(name, 0)
        if not size:
            size, wrong = _measure(value, turn.path)
            wrong += wire.rules.message(check, turn)
            if not self._shape_only and (turn.raw or wire.rules.bare_texts):
                wrong += wire.rules.turn(check, turn)
                wrong += _check_message(check, turn)
            marks += wire.rules.marks(turn)
        if place and not wrong and not marks:
            self._clean[name] = size
        self._turns[place : place + 1], self._sizes[place : place + 1] = [turn], [size]
        self._wrong.pop(place, None)
        self._marks.pop(place, None)
        if wrong:
            self._wrong[place] = wrong
        if marks:
            self._marks[place] = marks

    def _whole(self, check: Check, wire: Wire, around: JsonObject) -> Check:
        """The check with all that is around the messages and in them."""
        if around != self._around:
            self._head = Conversation(*heads(check.body, check.info.wire))
            self._head_size, wrong = _measure(around, "$")
            headed = msgspec.structs.replace(check, conversation=self._head)
            wrong += wire.rules.body(headed)
            if not self._shape_only:
                wrong += (*wire.rules.head(headed), *_check_fields(headed))
            self._around, self._head_findings = around, wrong
        marks = [mark for place in sorted(self._marks) for mark in self._marks[place]]
        conversation = msgspec.structs.replace(self._head, messages=self._turns, marks=marks)
        commas = max(0, len(self._turns) - 1)
        return msgspec.structs.replace(
            check, conversation=conversation, size=self._head_size + sum(self._sizes) + commas
        )


def _ground_hash(ground: object) -> str:
    """A hash of what findings in messages depend on: the model, and the body without its messages."""
    return hashlib.sha256(repr(ground).encode(errors="backslashreplace")).hexdigest() if ground else ""


def unchecked(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Unchecked]:
    """The rules that this request touches and that could not be checked, with what would be needed."""
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return []
    check = _check(request, provider, model, seen, headers)
    try:
        whole = msgspec.structs.replace(check, conversation=conversation(body, check.info.wire))
    except RecursionError:
        return []  # what `validate` says
    notes = list(wire_of(check.info.wire).rules.unchecked(whole))
    if check.model_named:
        return notes
    return [Unchecked("model", "no model is named: rules about single models were not checked"), *notes]


def _check(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    memory: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> Check:
    """What is to be checked; who it is for is told by the caller, the Request, or the body's shape."""
    if isinstance(request, Request):
        sent_headers = request.headers if headers is None else headers
        return make_check(request.body, provider or request.provider, model or request.model, memory, sent_headers)
    provider_name = provider or detect(request)
    if provider_name is None:
        raise CallError("cannot tell whose request this is", hint="Name the provider.")
    return make_check(request, provider_name, model, memory, headers)


def _measure(value: Json, path: str) -> tuple[int, list[Finding]]:
    """The size of a value as it goes over the wire, and what in it is no JSON."""
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        problem = finding("B.json", path, problem=f"not JSON text: {error}")
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
        place, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(at(place, str(name)), inner) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            yield finding("B.json", place, problem=f"{where(place)}: {value} is no number that JSON has")


# What a model takes, by the model table: its name, media, effort levels, roles; and fields that nobody knows.


def _check_fields(check: Check) -> Iterator[Finding]:
    """What the model table and the list of fields tell of a request, its messages aside."""
    yield from _fields(check)
    if check.model_named:
        yield from _name(check)
        holders = ("output_config", "outputConfig", "reasoning")
        levels = [(f"$.{holder}.effort", as_object(check.body.get(holder)).get("effort")) for holder in holders]
        yield from _effort(check, [*levels, ("$.reasoning_effort", check.body.get("reasoning_effort"))])


def _check_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """What the model table tells of a message."""
    if not check.model_named:
        return
    level = value_at(turn.raw, "output_config", "effort")
    yield from _effort(check, [(f"{turn.path}.output_config.effort", level)])
    yield from _media(check, turn)
    if not check.info.features.system_role and turn.raw.get("role") in ("system", "developer"):
        place = turn.path.removeprefix("$.")
        yield finding("B.role", f"{turn.path}.role", place=place, role=turn.raw["role"])


def _name(check: Check) -> Iterator[Finding]:
    info = check.info
    # Elsewhere a model may have any name.
    if info.known or not provider_facts(info.provider).get("listed"):
        return
    rows = data("models")["models"].get(info.provider, {})
    near = nearest(info.model, rows)
    yield finding("B.model", "$.model", near and "near", sure=False, name=info.model, provider=info.provider, near=near)


def _effort(check: Check, levels_at: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    levels = check.info.features.effort
    for path, level in levels_at:
        if levels and isinstance(level, str) and level not in levels:
            # Of a model that is not listed only its family is known.
            yield finding("B.effort", path, sure=check.info.known, level=level, levels=", ".join(levels))


# The kind of media that a block holds, by its type.
_BY_TYPE = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "document": "document",
    "file": "document",
    "input_file": "document",
    "document_url": "document",
    "input_audio": "audio",
    "video_url": "video",
}
# Fields that hold arguments or a schema: nothing in them is media, whatever it looks like.
_OPAQUE = frozenset({"input", "args", "arguments", "json", "input_schema", "parameters"})


def _media(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    takes, info = check.info.features.media, check.info
    for path, place, block in _enclosed_blocks(check, turn):
        kind = _audio_or_video(block) or place
        if any(not _BASE64.fullmatch(text) for text in _base64_texts(block)):
            yield finding("B.base64", path)
        if takes is None:
            continue
        if kind not in takes:
            yield finding(
                "B.media", path, kind=kind, model=f"{info.provider}:{info.model}", takes=", ".join(takes) or "text"
            )
        else:
            yield from wire_of(info.wire).rules.media_place(check, path, kind, block)


# In either alphabet, in lines or not.
_BASE64 = re.compile(r"[\w+/\s-]*+[=\s]*+", re.A)
# Beside their type, data are no URL.
_TYPED = {"media_type", "mimeType", "mime_type"}


def _base64_texts(block: JsonObject) -> Iterator[str]:
    """The texts of a block that are base64: the data of its source, and what stands in a data URL."""
    for name, value in block.items():
        if isinstance(value, dict):
            yield from _base64_texts(value)
        elif isinstance(value, str) and value.startswith("data:") and not _TYPED & block.keys():
            yield from value.split(";base64,")[1:]
        elif isinstance(value, str) and name in ("data", "bytes") and block.get("type") != "text":
            yield value


# A video that is sent as a file is a video all the same.
_AUDIO_OR_VIDEO = re.compile(r"(?:data:)?(audio|video)/[\w.+-]+(?:;.*)?", re.S)


def _audio_or_video(block: JsonObject) -> str:
    """Audio or video, where a block says that it holds it in place of what its type says."""
    inner = [block, *(value for value in block.values() if isinstance(value, dict))]
    texts = [as_text(value)[:80] for part in inner for value in part.values() if isinstance(value, str)]
    return next((match[1] for words in texts if (match := _AUDIO_OR_VIDEO.fullmatch(words))), "")


def _enclosed_blocks(check: Check, turn: TurnMessage) -> Iterator[tuple[str, str, JsonObject]]:
    """Everything in a message that is no text: its path, its kind, and the block itself."""
    rules = wire_of(check.info.wire).rules
    waiting: list[tuple[str, Json]] = [(turn.path, turn.value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += [(f"{path}[{index}]", item) for index, item in enumerate(value) if isinstance(item, dict | list)]
        if not isinstance(value, dict):
            continue
        if kind := _BY_TYPE.get(as_text(value.get("type"))):
            yield path, kind, value
            continue
        if media := rules.media(value):
            yield path, media, value
            continue
        for name, inner in value.items():
            if name in rules.media_fields and isinstance(inner, dict):
                yield at(path, name), name, inner
            elif isinstance(inner, dict | list) and name not in _OPAQUE:
                waiting.append((at(path, str(name)), inner))


def _fields(check: Check) -> Iterator[Finding]:
    """Fields of the body that its format does not have: a slip of the pen is refused, a new field may be one."""
    wire = check.info.wire
    names = {*data("shapes")[wire]["body"], *data("rules")["fields"].get(wire, ()), *data("rules")["fields"]["sdk"]}
    names |= {snake(name) for name in names} if grammar_of(wire).snake else set()
    for name in check.body:
        # A format with closed bodies has refused unknown fields already.
        if name in names or check.body[name] is None or "$closed" in data("shapes")[wire]["body"]:
            continue
        near = nearest(str(name), names)
        slip = bool(near and _is_slip(str(name), near)) or _is_slip_of_any(str(name))
        by_maker = check.info.provider == wire.removesuffix("-chat").removesuffix("-responses")
        if slip or by_maker:
            path = at("$", str(name))
            yield finding("B.field", path, near and "near", sure=slip and by_maker, name=name, near=near)


def _is_slip_of_any(name: str) -> bool:
    """Whether a field that no format has is nearly one of another's: max_token for OpenAI's Responses."""
    shapes = [shape for shape in data("shapes").values() if isinstance(shape, dict)]
    every = {field for shape in shapes for field in shape.get("body", ())}
    near = nearest(name, every) if name not in every else ""
    return bool(near) and _is_slip(name, str(near))


def _is_slip(name: str, right: str) -> bool:
    """Whether one letter or two make the difference: max_token, max_tokens."""
    return abs(len(name) - len(right)) <= 2 and sum(a != b for a, b in zip(name, right, strict=False)) <= 2
