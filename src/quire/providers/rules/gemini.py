"""Gemini's turns: order of roles, as many responses as calls, thought signatures (rows 28 to 31)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.providers.models import data
from quire.providers.rules.check import (
    MEDIA,
    Check,
    Finding,
    Sequel,
    ServerMemory,
    TurnBlock,
    TurnMessage,
    Unchecked,
    WireRules,
    at,
    conversation,
    each,
    finding,
    fingerprint,
)
from quire.providers.rules.claude_turns import names
from quire.providers.rules.grammar import grammar_of, misfits, objects_at, shape, snake
from quire.tokens import count
from quire.values import Json, JsonObject, as_object, as_objects, as_text, value_at


def get(value: JsonObject, name: str) -> Json:
    """A field in JSON's spelling or the SDK's: functionCall, function_call."""
    return value.get(name, value.get(snake(name)))


def setting(body: JsonObject, name: str) -> tuple[str, Json]:
    """A request setting and its path: at the top (REST) or under `config` (the SDK's call)."""
    for base, holder in (("$", body), ("$.config", as_object(body.get("config")))):
        for spelling in (name, snake(name)):
            if holder.get(spelling) is not None:
                return f"{base}.{spelling}", holder[spelling]
    return f"$.{name}", None


def having(turn: TurnMessage, name: str) -> list[TurnBlock]:
    """The parts of a content that hold something: a functionCall, a thoughtSignature."""
    return [part for part in turn.blocks if get(part.raw, name) is not None]


def gemini_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the contents."""
    grammar = grammar_of("gemini")
    yield from misfits(check.body, "@body", "$", grammar)
    path, contents = setting(check.body, "contents")
    # An explicit cache may hold an instruction or tools alone.
    has_head = any(setting(check.body, name)[1] for name in ("systemInstruction", "tools"))
    absent = contents in (None, []) and not setting(check.body, "cachedContent")[1]
    if absent and not (has_head and is_creation(check.body)):
        yield shape(path, "no contents")
    # The SDK's call holds settings under `config`.
    yield from misfits(as_object(check.body.get("config")), "@settings", "$.config", grammar)


def gemini_content(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of a content, its parts, calls and responses; the SDK also takes a text, or a part alone."""
    grammar = grammar_of("gemini")
    if not isinstance(turn.value, str):
        alone = not turn.raw.keys() & {"role", "parts"}
        alone = alone and any(get(turn.raw, name) is not None for name in grammar.shapes["part"]["$data"])
        yield from misfits(turn.value, "@part" if alone else "@content", turn.path, grammar)
    if turn.role == "user":
        yield from (shape(part.path, "model turn") for part in having(turn, "functionCall"))


def declarations(body: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Every function declaration with its path."""
    path, tools = setting(body, "tools")
    for place, tool in [(path, tools)] if isinstance(tools, dict) else objects_at(tools, path):
        name = "functionDeclarations" if "functionDeclarations" in tool else "function_declarations"
        yield from objects_at(tool.get(name), f"{place}.{name}")


def order(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 28. Behind a cached content the conversation has already begun."""
    if turn.index or turn.role != "model" or setting(check.body, "cachedContent")[1] is not None:
        return
    # Words of the model in front are taken, calls are not.
    yield finding("B2.28", turn.path, sure=bool(having(turn, "functionCall")))


class Responses(Sequel):
    """Row 29: responses match the calls of the turn before; contents of one speaker in a row are one turn (a warning)."""

    # The path of the turn before; how many responses it needs (None: its calls may be in the cached content); how many came.
    _before = ""
    _due: int | None = None
    _given = 0
    # The model's newest turn: where it begins, its calls and the responses in it.
    _model_turn: tuple[str, int, int] | None = None

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if not self._before and self._model_turn is None:
            self._due = None if setting(check.body, "cachedContent")[1] is not None else 0
        responses = len(having(turn, "functionResponse"))
        if turn.role == "model":
            path, calls, inside = self._model_turn or (turn.path, 0, 0)
            self._model_turn = (path, calls + len(having(turn, "functionCall")), inside + responses)
            return
        if self._model_turn is not None:
            yield from self._wrong_count(self._model_turn[0], self._model_turn[2])
            self._before, self._due, self._model_turn = self._model_turn[0], self._model_turn[1], None
            self._given = 0
        if responses and self._given + responses < (self._due or 0):
            # The others may come in the next content.
            self._before, self._given = turn.path, self._given + responses
            return
        yield from self._wrong_count(turn.path, responses)
        self._before, self._due, self._given = turn.path, 0, 0

    def end(self, check: Check) -> Iterator[Finding]:
        if self._model_turn is None:
            yield from self._wrong_count(self._before, 0)
        else:
            path, calls, inside = self._model_turn
            yield from self._wrong_count(path, inside)
            if calls:
                yield finding("B2.29", path, calls=calls, responses=0)

    def _wrong_count(self, path: str, responses: int) -> Iterator[Finding]:
        # A model turn behind calls leaves them unanswered.
        given = self._given + responses
        if self._due is not None and (given != self._due or self._given):
            place = path if responses or not self._before else self._before
            yield finding("B2.29", place, sure=given != self._due, calls=self._due, responses=given)


class Signatures(Sequel):
    """Row 30, since the user last spoke."""

    def __init__(self) -> None:
        self._missing: list[Finding] = []

    def take(self, check: Check, turn: TurnMessage) -> Iterable[Finding]:
        if turn.role == "user" and not having(turn, "functionResponse"):
            self._missing = []
        calls = having(turn, "functionCall") if turn.role == "model" else []
        if calls and not get(calls[0].raw, "thoughtSignature"):
            name = as_text(as_object(get(calls[0].raw, "functionCall")).get("name"))
            self._missing.append(finding("B2.30", calls[0].path, name=name))
        return ()

    def end(self, check: Check) -> Iterable[Finding]:
        return self._missing if _signs(check) else ()


def _signs(check: Check) -> bool:
    return check.model_named and check.info.features.signatures


def foreign(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 31."""
    for part in having(turn, "thoughtSignature") if _signs(check) else ():
        if problem := _foreign(check.memory, part.raw):
            yield finding("B2.31", part.path, problem=problem)


def _foreign(memory: ServerMemory | None, part: JsonObject) -> str:
    signature = get(part, "thoughtSignature")
    if isinstance(signature, bytes):
        return ""
    if not isinstance(signature, str) or " " in signature or not signature.isprintable():
        return "Corrupted thought signature."
    if memory is None or signature in data("rules")["gemini"]["open_signatures"]:
        return ""
    signature = _one_alphabet(signature)
    if signature not in memory.sealed:
        return "Invalid thought signature." if memory.complete else ""
    call = get(part, "functionCall")
    moved = call is not None and memory.sealed[signature] != _call_print(call)
    return "Invalid thought signature." if moved else ""


def _one_alphabet(signature: str) -> str:
    """Base64 has two alphabets, of the API and of its SDK; the bytes are the same."""
    return signature.translate(str.maketrans("-_", "+/")).rstrip("=")


def _call_print(call: Json) -> str:
    # Ids may be left out on the way back; the name and arguments may not change.
    return fingerprint({"name": value_at(call, "name"), "args": value_at(call, "args") or {}})


def _remember_signatures(memory: ServerMemory, body: JsonObject) -> None:
    """Record the thought signatures of contents as given out with these parts."""
    for turn in conversation(body, "gemini").messages:
        for part in having(turn, "thoughtSignature"):
            signature, call = get(part.raw, "thoughtSignature"), get(part.raw, "functionCall")
            if isinstance(signature, str):
                memory.sealed.setdefault(_one_alphabet(signature), _call_print(call or {}))


# Gemini around the turns: explicit caches, schemas and function names (rows 32 to 34).


def cached_fields(check: Check) -> Iterator[Finding]:
    """Row 32: what is in the cached content is not sent again."""
    if setting(check.body, "cachedContent")[1] is None:
        return
    for name in ("systemInstruction", "tools", "toolConfig"):
        path, value = setting(check.body, name)
        if value:
            yield finding("B2.32", path, field=path.rpartition(".")[2])


def is_creation(body: JsonObject) -> bool:
    """Whether a body creates an explicit cache: it says how long it lives."""
    return any(setting(body, name)[1] is not None for name in ("ttl", "expireTime"))


def least(check: Check) -> Iterator[Finding]:
    """Row 33, for a body that creates an explicit cache; media are not counted."""
    if not is_creation(check.body) or not check.model_named:
        return
    parts = [part.raw for turn in check.conversation.messages for part in turn.blocks]
    system = setting(check.body, "systemInstruction")[1]
    parts += as_objects(value_at(system, "parts"))
    if any(get(part, name) is not None for part in parts for name in ("inlineData", "fileData")):
        return
    instructions = "\n".join([as_text(system), *(as_text(part.get("text")) for part in parts)])
    tokens = count(instructions, check.info.model).tokens
    if tokens < check.info.min_cache_tokens:
        yield finding("B2.33", setting(check.body, "contents")[0], found=tokens, least=check.info.min_cache_tokens)


def schemas(check: Check) -> Iterator[Finding]:
    """Row 34, over every function's `parameters`; parametersJsonSchema takes any JSON schema."""
    for path, declaration in declarations(check.body):
        if isinstance(declaration.get("parameters"), dict):
            yield from _schema(declaration["parameters"], f"{path}.parameters")


def _schema(schema: JsonObject, path: str) -> Iterator[Finding]:
    fields = {spelling for name in data("rules")["gemini"]["schema_fields"] for spelling in (name, snake(name))}
    waiting: list[tuple[str, Json]] = [(path, schema)]
    # A list of its own instead of recursion: schemas from outside may be nested to any depth.
    while waiting:
        place, value = waiting.pop()
        if not isinstance(value, dict):
            continue
        for name in value:
            if name not in fields:
                yield finding("B2.34", at(place, name), "field", name=name)
        if isinstance(value.get("type"), list):
            yield finding("B2.34", f"{place}.type", "types", name="type")
        waiting += _children(value, place)


def _children(schema: JsonObject, path: str) -> list[tuple[str, Json]]:
    properties = [(at(f"{path}.properties", name), item) for name, item in as_object(schema.get("properties")).items()]
    either = get(schema, "anyOf")
    options = list(objects_at(either, f"{path}.anyOf"))
    items = [(f"{path}.items", schema["items"])] if "items" in schema else []
    return [*properties, *options, *items]


def levels(check: Check) -> Iterator[Finding]:
    """Models before 3 take a budget for thinking, and no level."""
    thinking = as_object(as_object(setting(check.body, "generationConfig")[1]).get("thinkingConfig"))
    if (level := thinking.get("thinkingLevel")) and not check.info.features.thinking_level:
        path = "$.generationConfig.thinkingConfig.thinkingLevel"
        yield finding("B.effort", path, "budget", sure=check.info.known, level=level)


def function_names(check: Check) -> Iterator[Finding]:
    """Gemini's own pattern, wider than row 17's."""
    declared = ((f"{path}.name", declaration.get("name")) for path, declaration in declarations(check.body))
    return names(declared, "B.gemini-name", "gemini_name")


def _media_kind(part: JsonObject) -> str:
    """What kind of media a Gemini part is, by its type."""
    for name in ("inlineData", "fileData"):
        kind, _, _ = as_text(get(as_object(get(part, name)), "mimeType")).partition("/")
        if kind:
            return kind if kind in MEDIA else "document"
    return ""


def misplaced_media(check: Check, path: str, kind: str, block: JsonObject) -> Iterator[Finding]:
    """What a function may give besides its response: pictures and documents, and only to newer models."""
    if "functionResponse" not in path and "function_response" not in path:
        return
    if not check.info.features.result_media or kind not in ("image", "document"):
        yield finding("B.place", path, "response", model=check.info.model, kind=kind)


def _remember_issued(memory: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    for candidate in as_objects(reply.get("candidates")):
        _remember_signatures(memory, {"contents": [as_object(candidate.get("content"))]})


def _unchecked_rules(check: Check) -> Iterator[Unchecked]:
    if setting(check.body, "cachedContent")[1] is not None:
        yield Unchecked("B2.33", "whether the cached content is large enough needs the cached content")
    signed = any(having(turn, "thoughtSignature") for turn in check.conversation.messages)
    if signed and check.memory is None:
        yield Unchecked("B2.31", "whether thought signatures are the server's own needs the replies that issued them")


RULES = WireRules(
    body=gemini_body,
    message=gemini_content,
    head=each(cached_fields, schemas, function_names, levels),
    turn=each(order, foreign),
    along=(Responses, Signatures),
    end=least,
    bare_texts=True,
    media=_media_kind,
    media_place=misplaced_media,
    remember_reply=_remember_issued,
    remember_body=_remember_signatures,
    unchecked=_unchecked_rules,
)
