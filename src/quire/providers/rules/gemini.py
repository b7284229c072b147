"""Gemini's turns: order of roles, as many responses as calls, thought signatures (rows 28 to 31)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from quire.providers.models import data
from quire.providers.rules.check import (
    Check,
    Finding,
    ServerMemory,
    Unchecked,
    WireRules,
    advice,
    at,
    fingerprint,
    found,
    limit,
)
from quire.providers.rules.grammar import Grammar, grammar_of, misfits, obj, objects, shape, snake, text
from quire.tokens import count
from quire.values import Json, JsonObject


class Content(msgspec.Struct, frozen=True):
    """One turn; `parts` with their paths."""

    role: str
    path: str
    parts: tuple[tuple[str, JsonObject], ...]

    def having(self, name: str) -> list[tuple[str, JsonObject]]:
        return [(path, part) for path, part in self.parts if get(part, name) is not None]


def get(value: JsonObject, name: str) -> Json:
    """A field in JSON's spelling or the SDK's: functionCall, function_call."""
    return value.get(name, value.get(snake(name)))


def setting(body: JsonObject, name: str) -> tuple[str, Json]:
    """A request setting and its path: at the top (REST) or under `config` (the SDK's call)."""
    for base, holder in (("$", body), ("$.config", obj(body.get("config")))):
        for spelling in (name, snake(name)):
            if holder.get(spelling) is not None:
                return f"{base}.{spelling}", holder[spelling]
    return f"$.{name}", None


def contents(body: JsonObject) -> list[Content]:
    """The turns of a request; the SDK also takes texts and single parts, which are the user's."""
    given = setting(body, "contents")[1]
    path = setting(body, "contents")[0]
    if isinstance(given, str | dict):
        given = [given]
    found_contents = []
    for index, one in enumerate(given if isinstance(given, list | tuple) else ()):
        place = f"{path}[{index}]"
        if isinstance(one, str):
            found_contents.append(Content("user", place, ((place, {"text": one}),)))
        elif isinstance(one, dict) and "parts" in one:
            parts = tuple(objects(one["parts"], f"{place}.parts"))
            found_contents.append(Content(text(one.get("role")) or "user", place, parts))
        elif isinstance(one, dict):
            found_contents.append(Content(text(one.get("role")) or "user", place, ((place, one),)))
    return found_contents


def gemini_shape(check: Check) -> Iterator[Finding]:
    """Types of contents, parts, calls and declarations."""
    grammar = grammar_of("gemini")
    yield from misfits(check.body, "@body", "$", grammar)
    path, given = setting(check.body, "contents")
    # An explicit cache may hold an instruction or tools alone.
    if given in (None, []) and not (setting(check.body, "cachedContent")[1] or _creates(check.body)):
        yield shape(path, "contents is not specified", "Send at least one content.")
    elif isinstance(given, list | tuple):
        for index, one in enumerate(given):
            yield from _content_shape(one, f"{path}[{index}]", grammar)
    for turn in contents(check.body):
        if turn.role == "user":
            for place, _ in turn.having("functionCall"):
                yield shape(
                    place, "functionCall parts can only be in model turns", "Move it to a model turn."
                )
    # The SDK's call holds settings under `config`.
    yield from misfits(obj(check.body.get("config")), "@settings", "$.config", grammar)


def _creates(body: JsonObject) -> bool:
    held = any(setting(body, name)[1] for name in ("systemInstruction", "tools"))
    return held and any(setting(body, name)[1] is not None for name in ("ttl", "expireTime"))


def _content_shape(one: Json, path: str, grammar: Grammar) -> Iterator[Finding]:
    """A content; the SDK also takes a text, or a part alone."""
    if isinstance(one, str):
        return
    alone = isinstance(one, dict) and not one.keys() & {"role", "parts"}
    alone = alone and any(get(one, name) is not None for name in grammar.shapes["part"]["$data"])
    yield from misfits(one, "@part" if alone else "@content", path, grammar)


def declarations(body: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Every function declaration with its path."""
    path, tools = setting(body, "tools")
    for place, tool in [(path, tools)] if isinstance(tools, dict) else objects(tools, path):
        name = "functionDeclarations" if "functionDeclarations" in tool else "function_declarations"
        yield from objects(tool.get(name), f"{place}.{name}")


def _joined(turns: list[Content]) -> list[Content]:
    """The turns as the API reads them: neighbours of the model are one."""
    out: list[Content] = []
    for turn in turns:
        if out and turn.role == out[-1].role == "model":
            out[-1] = msgspec.structs.replace(out[-1], parts=(*out[-1].parts, *turn.parts))
        else:
            out.append(turn)
    return out


def order(check: Check) -> Iterator[Finding]:
    """Row 28. Behind a cached content the conversation has already begun."""
    first = next(iter(contents(check.body)), None)
    if first is None or first.role != "model" or setting(check.body, "cachedContent")[1] is not None:
        return
    unasked = [found("B2.28", first.path, fix="Begin contents with a user turn.")]
    # Words of the model in front are taken, calls are not.
    yield from unasked if first.having("functionCall") else advice(unasked)


def responses(check: Check) -> Iterator[Finding]:
    """Row 29: calls and responses turn by turn."""
    turns = _joined(contents(check.body))
    cached = setting(check.body, "cachedContent")[1] is not None
    asked = None if cached else 0
    for index, turn in enumerate(turns):
        given = len(turn.having("functionResponse"))
        # A model turn behind calls leaves them unanswered.
        if asked is not None and given != asked:
            at = turn.path if given or not index else turns[index - 1].path
            yield found("B2.29", at, calls=asked, responses=given)
        asked = len(turn.having("functionCall")) if turn.role == "model" else 0
    if asked:
        yield found("B2.29", turns[-1].path, calls=asked, responses=0)


def signatures(check: Check) -> Iterator[Finding]:
    """Rows 30 and 31."""
    if not check.model_named or not check.info.features.signatures:
        return
    turns = contents(check.body)
    for turn in turns[_current(turns) :]:
        calls = turn.having("functionCall") if turn.role == "model" else []
        if calls and not get(calls[0][1], "thoughtSignature"):
            path, part = calls[0]
            name = text(obj(get(part, "functionCall")).get("name"))
            yield found("B2.30", path, name=name)
    for turn in turns:
        for path, part in turn.having("thoughtSignature"):
            problem = _foreign(check.seen, part)
            if problem:
                yield found("B2.31", path, problem=problem)


def _current(turns: list[Content]) -> int:
    """Where the current turn begins: the last user content that is no function response."""
    starts = [
        i for i, turn in enumerate(turns) if turn.role == "user" and not turn.having("functionResponse")
    ]
    return starts[-1] if starts else 0


def _foreign(seen: ServerMemory | None, part: JsonObject) -> str:
    signature = get(part, "thoughtSignature")
    if isinstance(signature, bytes):
        return ""
    if not isinstance(signature, str) or any(char.isspace() or not char.isprintable() for char in signature):
        return "Corrupted thought signature."
    if seen is None or signature in data("rules")["gemini"]["open_signatures"]:
        return ""
    signature = _one_alphabet(signature)
    if signature not in seen.sealed:
        return "Invalid thought signature." if seen.complete else ""
    call = get(part, "functionCall")
    moved = call is not None and seen.sealed[signature] != _call_print(call)
    return "Invalid thought signature." if moved else ""


def _one_alphabet(signature: str) -> str:
    """Base64 has two alphabets, of the API and of its SDK; the bytes are the same."""
    return signature.translate(str.maketrans("-_", "+/")).rstrip("=")


def _call_print(call: Json) -> str:
    # Ids may be left out on the way back; the name and arguments may not change.
    return fingerprint({"name": obj(call).get("name"), "args": obj(call).get("args") or {}})


def remember_parts(seen: ServerMemory, turns: list[Content]) -> None:
    """Record the thought signatures of contents as given out with these parts."""
    for turn in turns:
        for _, part in turn.having("thoughtSignature"):
            signature = get(part, "thoughtSignature")
            if isinstance(signature, str):
                seen.sealed.setdefault(_one_alphabet(signature), _call_print(get(part, "functionCall") or {}))


# Gemini around the turns: explicit caches, schemas and function names (rows 32 to 34).


def cached(check: Check) -> Iterator[Finding]:
    """Row 32: what is in the cached content is not sent again."""
    if setting(check.body, "cachedContent")[1] is None:
        return
    for name in ("systemInstruction", "tools", "toolConfig"):
        path, value = setting(check.body, name)
        if value:
            yield found("B2.32", path, field=path.rpartition(".")[2])


def is_creation(body: JsonObject) -> bool:
    """Whether a body creates an explicit cache: it says how long it lives."""
    return any(setting(body, name)[1] is not None for name in ("ttl", "expireTime"))


def least(check: Check) -> Iterator[Finding]:
    """Row 33, for a body that creates an explicit cache; media are not counted."""
    if not is_creation(check.body) or not check.model_named:
        return
    parts = [part for turn in contents(check.body) for _, part in turn.parts]
    system = setting(check.body, "systemInstruction")[1]
    parts += [part for _, part in objects(obj(system).get("parts"), "")]
    if any(get(part, name) is not None for part in parts for name in ("inlineData", "fileData")):
        return
    said = "\n".join([text(system), *(text(part.get("text")) for part in parts)])
    tokens = count(said, check.info.model).tokens
    if tokens < check.info.min_cache_tokens:
        yield found(
            "B2.33", setting(check.body, "contents")[0], found=tokens, least=check.info.min_cache_tokens
        )


def schemas(check: Check) -> Iterator[Finding]:
    """Row 34, over every function's `parameters`; parametersJsonSchema takes any JSON schema."""
    for path, declaration in declarations(check.body):
        if isinstance(declaration.get("parameters"), dict):
            yield from _schema(declaration["parameters"], f"{path}.parameters")


def _schema(schema: JsonObject, path: str) -> Iterator[Finding]:
    known = {
        spelling for name in data("rules")["gemini"]["schema_fields"] for spelling in (name, snake(name))
    }
    waiting: list[tuple[str, Json]] = [(path, schema)]
    # A list of its own instead of recursion: schemas from outside may be nested to any depth.
    while waiting:
        place, one = waiting.pop()
        if not isinstance(one, dict):
            continue
        for name in one:
            if name not in known:
                fix = f"Leave {name} out, or send the schema as parametersJsonSchema."
                yield found("B2.34", at(place, name), name=name, fix=fix)
        if isinstance(one.get("type"), list):
            fix = "Use one type, and nullable for null; or send the schema as parametersJsonSchema."
            yield found("B2.34", f"{place}.type", name="type", fix=fix)
        waiting += _children(one, place)


def _children(schema: JsonObject, path: str) -> list[tuple[str, Json]]:
    properties = [
        (at(f"{path}.properties", name), one) for name, one in obj(schema.get("properties")).items()
    ]
    either = get(schema, "anyOf")
    options = list(objects(either, f"{path}.anyOf"))
    items = [(f"{path}.items", schema["items"])] if "items" in schema else []
    return [*properties, *options, *items]


def function_names(check: Check) -> Iterator[Finding]:
    """Gemini's own pattern, wider than row 17's."""
    pattern = limit("gemini_name")
    for path, declaration in declarations(check.body):
        name = declaration.get("name")
        if isinstance(name, str) and not re.fullmatch(pattern, name):
            yield found("B.gemini-name", f"{path}.name", name=name)


def _rules(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from gemini_shape(check)
    yield from order(check)
    yield from responses(check)
    yield from signatures(check)
    yield from cached(check)
    yield from least(check)
    yield from schemas(check)
    yield from function_names(check)


def _issued(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    for _, candidate in objects(reply.get("candidates"), ""):
        remember_parts(seen, contents({"contents": [obj(candidate.get("content"))]}))


def _observed(seen: ServerMemory, body: JsonObject) -> None:
    remember_parts(seen, contents(body))


def _unchecked(check: Check) -> Iterator[Unchecked]:
    if setting(check.body, "cachedContent")[1] is not None:
        yield Unchecked("B2.33", "whether the cached content is large enough needs the cached content")
    signed = any(turn.having("thoughtSignature") for turn in contents(check.body))
    if signed and check.seen is None:
        yield Unchecked(
            "B2.31", "whether thought signatures are the server's own needs the replies that issued them"
        )


RULES = WireRules(check=_rules, shape=gemini_shape, issued=_issued, observed=_observed, unchecked=_unchecked)
