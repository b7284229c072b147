"""What a model takes, by the model table: its name, media, effort levels, roles; and fields that nobody knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from quire.errors import nearest
from quire.providers.models import data, provider_facts
from quire.providers.rules.check import Check, Finding, TurnMessage, advice, at, found
from quire.providers.rules.grammar import grammar_of, obj, snake, text
from quire.providers.wires import wire_of
from quire.values import Json, JsonObject


def accepted(check: Check) -> Iterator[Finding]:
    """What the model table and the list of fields tell of a request, its messages aside."""
    yield from _fields(check)
    if check.model_named:
        yield from advice(_name(check))
        yield from _by_family(check, _effort(check, _levels(check.body)))


def accepted_in(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """What the model table tells of a message."""
    if not check.model_named:
        return
    level = obj(turn.raw.get("output_config")).get("effort")
    yield from _by_family(check, _effort(check, [(f"{turn.path}.output_config.effort", level)]))
    yield from _by_family(check, _media(check, turn))
    if not check.info.features.system_role and turn.raw.get("role") in ("system", "developer"):
        place = turn.path.removeprefix("$.")
        yield found("B.role", f"{turn.path}.role", place=place, role=turn.raw["role"])


def _by_family(check: Check, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Of a model that is not listed only its family is known."""
    return findings if check.info.known else advice(findings)


def _name(check: Check) -> Iterator[Finding]:
    info = check.info
    # Elsewhere a model may have any name.
    if info.known or not provider_facts(info.provider).get("listed"):
        return
    rows = data("models")["models"].get(info.provider, {})
    near = nearest(info.model, rows)
    fix = f"Did you mean {near}?" if near else "Check its name; what is said of it here is its family's."
    yield found("B.model", "$.model", name=info.model, provider=info.provider, fix=fix)


def _effort(check: Check, given: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    levels = check.info.features.effort
    for path, level in given:
        if levels and isinstance(level, str) and level not in levels:
            yield found("B.effort", path, level=level, levels=", ".join(levels))


def _levels(body: JsonObject) -> Iterator[tuple[str, Json]]:
    for holder in ("output_config", "outputConfig", "reasoning"):
        yield f"$.{holder}.effort", obj(body.get(holder)).get("effort")
    yield "$.reasoning_effort", body.get("reasoning_effort")


# How each wire format says what it encloses.
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
# What a tool was asked and what a model wrote is no media, whatever it looks like.
_OPAQUE = frozenset({"input", "args", "arguments", "json", "input_schema", "parameters"})


def _media(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    takes, info = check.info.features.media, check.info
    if takes is None:
        return
    for path, place, block in _enclosed(check, turn):
        kind = _held(block) or place
        if kind not in takes:
            yield found(
                "B.media",
                path,
                kind=kind,
                model=f"{info.provider}:{info.model}",
                takes=", ".join(takes) or "text",
            )
        else:
            yield from wire_of(info.wire).rules.placed(check, path, kind, block)


# A video that is sent as a file is a video all the same.
_HELD = re.compile(r"(?:data:)?(audio|video)/[\w.+-]+(?:;.*)?", re.S)


def _held(block: JsonObject) -> str:
    """Audio or video, where a block says that it holds it in place of what its type says."""
    inner = [block, *(value for value in block.values() if isinstance(value, dict))]
    told = [text(value)[:80] for part in inner for value in part.values() if isinstance(value, str)]
    return next((match[1] for each in told if (match := _HELD.fullmatch(each))), "")


def _enclosed(check: Check, turn: TurnMessage) -> Iterator[tuple[str, str, JsonObject]]:
    """Everything in a message that is no text: its path, its kind, and the block itself."""
    rules = wire_of(check.info.wire).rules
    waiting: list[tuple[str, Json]] = [(turn.path, turn.value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += [
                (f"{path}[{index}]", each)
                for index, each in enumerate(value)
                if isinstance(each, dict | list)
            ]
        if not isinstance(value, dict):
            continue
        if kind := _BY_TYPE.get(text(value.get("type"))):
            yield path, kind, value
            continue
        if held := rules.media(value):
            yield path, held, value
            continue
        for name, inner in value.items():
            if name in rules.media_fields and isinstance(inner, dict):
                yield at(path, name), name, inner
            elif isinstance(inner, dict | list) and name not in _OPAQUE:
                waiting.append((at(path, str(name)), inner))


def _fields(check: Check) -> Iterator[Finding]:
    """Fields of the body that its format does not have: a slip of the pen is refused, a new field may be one."""
    wire = check.info.wire
    known = {
        *data("shapes")[wire]["body"],
        *data("rules")["fields"].get(wire, ()),
        *data("rules")["fields"]["sdk"],
    }
    known |= {snake(name) for name in known} if grammar_of(wire).snake else set()
    for name in check.body:
        # A body that may hold nothing else was refused already.
        if name in known or check.body[name] is None or "$closed" in data("shapes")[wire]["body"]:
            continue
        near = nearest(str(name), known)
        unknown = [
            found(
                "B.field",
                at("$", str(name)),
                name=name,
                fix=f"Did you mean {near}?" if near else "Leave it out.",
            )
        ]
        slip = (near and _is_slip(str(name), near)) or _is_slip_of_any(str(name))
        if check.info.provider == wire.removesuffix("-chat").removesuffix("-responses"):
            yield from unknown if slip else advice(unknown)
        elif slip:
            yield from advice(unknown)


def _is_slip_of_any(name: str) -> bool:
    """Whether a field that no format has is nearly one of another's: max_token for OpenAI's Responses."""
    shapes = [shape for shape in data("shapes").values() if isinstance(shape, dict)]
    every = {field for shape in shapes for field in shape.get("body", ())}
    near = nearest(name, every) if name not in every else ""
    return bool(near) and _is_slip(name, str(near))


def _is_slip(name: str, meant: str) -> bool:
    """Whether one letter or two make the difference: max_token, max_tokens."""
    return abs(len(name) - len(meant)) <= 2 and sum(a != b for a, b in zip(name, meant, strict=False)) <= 2
