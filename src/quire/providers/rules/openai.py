"""OpenAI Chat and everything that speaks it: tool messages, each server's own order of roles, and cache marks.

Rows 21, 22, 26, 37 to 40 and A4; marks and names are the same in the Responses format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from quire.providers.models import data
from quire.providers.rules.check import Check, Finding, Sequel, TurnMessage, WireRules, advice, found
from quire.providers.rules.claude_turns import names
from quire.providers.rules.grammar import grammar_of, misfits, obj, objects_at, shape, text
from quire.values import Json, JsonObject


def chat_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the messages."""
    yield from _misfits(check, check.body, "@body", "$")
    if check.info.features.strict:
        yield from _as_openai(check, _strict_body(check.body))


def chat_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of a message, its parts and calls."""
    yield from _misfits(check, turn.value, "@message", turn.path)
    if not isinstance(turn.value, dict):
        return
    yield from _message_shape(turn.raw, turn.path)
    if check.info.features.strict:
        yield from _as_openai(check, _strict_message(turn.raw, turn.path))


def _misfits(check: Check, value: Json, description: str, path: str) -> Iterator[Finding]:
    """What is not as OpenAI describes it; compatible servers may know more kinds of parts."""
    strictly = list(misfits(value, description, path, grammar_of("openai-chat")))
    if not strictly:
        return
    everybody = list(misfits(value, description, path, grammar_of("openai-chat", closed=False)))
    yield from everybody
    if check.info.features.strict:
        yield from _as_openai(check, (finding for finding in strictly if finding not in everybody))


def _as_openai(check: Check, strictly: Iterable[Finding]) -> Iterable[Finding]:
    return strictly if is_openais(check) else advice(strictly)


def is_openais(check: Check) -> bool:
    """Whether OpenAI itself will read the request; an Azure deployment may have any name."""
    # "openai-chat" is also what any other server's format is called.
    name_pattern, info = check.info.features.own_names, check.info
    return not (name_pattern and check.model_named and not info.known and not re.match(name_pattern, info.model))


def _strict_body(body: JsonObject) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: tools without a type, empty lists."""
    for path, tool in objects_at(body.get("tools"), "$.tools"):
        if tool.get("type") is None:
            yield shape(f"{path}.type", "Field required", "Say which type it is.")
    yield from _filled(body, ("tools",), "$")


def _message_shape(message: JsonObject, path: str) -> Iterator[Finding]:
    if message.get("content") is None and not _may_be_silent(message):
        yield shape(f"{path}.content", "Field required", "Give the message content.")
    if message.get("role") == "tool" and message.get("tool_call_id") is None:
        yield shape(f"{path}.tool_call_id", "Field required", "Say which call it answers.")


def _strict_message(message: JsonObject, path: str) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: images from tools, arguments as objects, empty lists."""
    for place, part in objects_at(message.get("content"), f"{path}.content") if message.get("role") == "tool" else ():
        if part.get("type") not in ("text", None):
            yield shape(place, "tool messages hold text only", "Send the image in a user message behind it.")
    for place, call in objects_at(message.get("tool_calls"), f"{path}.tool_calls"):
        if isinstance(obj(call.get("function")).get("arguments"), dict):
            arguments = f"{place}.function.arguments"
            yield shape(arguments, "Input should be a string", "Encode the arguments as JSON text.")
    yield from _filled(message, ("content", "tool_calls"), path)


def _filled(holder: JsonObject, names: tuple[str, ...], path: str) -> Iterator[Finding]:
    """OpenAI takes no list without anything in it."""
    for name in names:
        if holder.get(name) == []:
            problem = "empty array. Expected an array with minimum length 1, but got an empty array instead."
            yield shape(f"{path}.{name}", problem, f"Leave {name} out, or fill it.")


def _may_be_silent(message: JsonObject) -> bool:
    spoken = ("tool_calls", "function_call", "audio", "refusal", "reasoning_content")
    return message.get("role") == "function" or (
        message.get("role") == "assistant" and any(message.get(name) is not None for name in spoken)
    )


class ToolMessages(Sequel):
    """Rows 21 and 22: tool messages directly behind the assistant message they answer."""

    def __init__(self) -> None:
        # The calls of the newest message that is no tool's, and whether each is answered.
        self._calls: dict[str, bool] = {}
        self._path = ""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role != "tool":
            yield from self.end(check)
            self._calls, self._path = dict.fromkeys(call_ids(turn.raw), False), turn.path
        elif (id := text(turn.raw.get("tool_call_id"))) in self._calls:
            self._calls[id] = True
        else:
            yield found("B2.22", turn.path)

    def end(self, check: Check) -> Iterator[Finding]:
        missing = [id for id, answered in self._calls.items() if not answered]
        if missing:
            yield found("B2.21", self._path, ids=", ".join(missing))


def call_ids(message: JsonObject) -> list[str]:
    """The ids of an assistant message's calls."""
    if message.get("role") != "assistant":
        return []
    return [text(call.get("id")) for _, call in objects_at(message.get("tool_calls"), "")]


def _named_here(tool: tuple[str, JsonObject]) -> bool:
    """Whether the caller chose a tool's name: a server's own have any ($web_search)."""
    return tool[1].get("type", "function") in ("function", "custom")


def called_names(turn: TurnMessage) -> Iterator[tuple[str, Json]]:
    """The names of the tools that a message calls."""
    for path, call in filter(_named_here, objects_at(turn.raw.get("tool_calls"), f"{turn.path}.tool_calls")):
        yield f"{path}.function.name", obj(call.get("function")).get("name")


class MistralOrder(Sequel):
    """Rows 37 and 38: Mistral's order of roles."""

    def __init__(self) -> None:
        self._last: TurnMessage | None = None

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        before, self._last = self._last, turn
        behind_tool = before is not None and before.role == "tool"
        if not check.info.features.user_after_tool and behind_tool and turn.role not in ("assistant", "tool"):
            yield found("B2.37", turn.path, role=turn.role)

    def end(self, check: Check) -> Iterator[Finding]:
        last = self._last
        if check.info.features.user_after_tool or last is None or last.role in ("user", "tool"):
            return
        if last.role != "assistant" or last.raw.get("prefix") is not True:
            yield found("B2.38", last.path, role=last.role)


def deepseek(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 39: in thinking mode an assistant message with calls comes back with its reasoning_content."""
    if check.info.features.reasoning_content != "required" or not check.model_named:
        return
    # Thinking is on unless it is turned off; the OpenAI SDK passes the switch in extra_body.
    settings = {**obj(check.body.get("extra_body")), **check.body}
    thinks = obj(settings.get("thinking")).get("type") != "disabled" and settings.get("reasoning_effort") != "none"
    if thinks and call_ids(turn.raw) and turn.raw.get("reasoning_content") is None:
        yield found("B2.39", turn.path)


class Alternation(Sequel):
    """Row 40: templates that count user and assistant messages, with calls and results left out."""

    def __init__(self) -> None:
        self._expected = "user"

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        is_instruction = turn.index == 0 and turn.role in ("system", "developer")
        if not check.info.features.alternation or not self._expected or is_instruction:
            return
        if turn.role == "tool" or call_ids(turn.raw):
            return
        if turn.role != self._expected:
            yield found("B2.40", turn.path)
            # Only the first one is told.
            self._expected = ""
            return
        self._expected = "assistant" if turn.role == "user" else "user"


# OpenAI's cache marks and options: on which blocks, models and with which values (row 26 and A4).

_MARK = "prompt_cache_breakpoint"


def marks_around(check: Check) -> Iterator[Finding]:
    """Row 26 and A4 around the messages: the body, tools, instructions, and the options."""
    yield from _breakpoint(check, "$", check.body, [])
    for name in ("tools", "instructions"):
        for path, block in objects_at(check.body.get(name), f"$.{name}"):
            yield from _breakpoint(check, path, block, [])
    if check.info.features.strict:
        yield from _options(check)
        yield from _thinkers(check)
        yield from _as_openai(check, _strict_schemas(check.body))


def _strict_schemas(body: JsonObject) -> Iterator[Finding]:
    """Schemas that are to be kept to the letter: of functions, and of the reply."""
    for path, tool in objects_at(body.get("tools"), "$.tools"):
        inner = "function" in tool
        function = obj(tool.get("function")) if inner else tool
        if function.get("strict") is True:
            at = f"{path}.function.parameters" if inner else f"{path}.parameters"
            yield from _closed(function.get("parameters"), at, f"function '{function.get('name')}'")
    formats = {
        "$.response_format.json_schema": obj(obj(body.get("response_format")).get("json_schema")),
        "$.text.format": obj(obj(body.get("text")).get("format")),
    }
    for path, format in formats.items():
        if format.get("strict") is True:
            yield from _closed(format.get("schema"), f"{path}.schema", f"response_format '{format.get('name')}'")


def _closed(schema: Json, path: str, owner: str) -> Iterator[Finding]:
    """Every object names all its properties as required, and allows no other."""
    if isinstance(schema, list):
        for place, inner in enumerate(schema):
            yield from _closed(inner, f"{path}[{place}]", owner)
    if not isinstance(schema, dict):
        return
    properties = obj(schema.get("properties"))
    if properties or schema.get("type") == "object":
        listed = schema.get("required")
        absent = [name for name in properties if not isinstance(listed, list) or name not in listed]
        if schema.get("additionalProperties") is not False:
            problem = "'additionalProperties' is required to be supplied and to be false."
            yield found("B.strict", path, owner=owner, problem=problem, fix='Say "additionalProperties": false.')
        elif absent:
            problem = (
                "'required' is required to be supplied and to be an array including every key in properties. "
                f"Missing '{absent[0]}'."
            )
            fix = "List every property; one that may be absent takes null as well."
            yield found("B.strict", path, owner=owner, problem=problem, fix=fix)
    for name in ("properties", "$defs", "definitions"):
        for key, inner in obj(schema.get(name)).items():
            yield from _closed(inner, f"{path}.{name}.{key}", owner)
    for name in ("items", "anyOf"):
        yield from _closed(schema.get(name), f"{path}.{name}", owner)


# What a model that thinks before it answers takes at its default alone.
_DRAWN = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "stop": None}


def _thinkers(check: Check) -> Iterator[Finding]:
    """What models that always think do not take, and what those do not that never think."""
    features, body = check.info.features, check.body
    if not check.info.known:
        return
    refused = [name for name in ("reasoning", "reasoning_effort") if body.get(name)]
    fix = "Leave it out."
    if features.reasoning:
        always = bool(features.effort) and "none" not in features.effort
        refused = [name for name, usual in _DRAWN.items() if always and body.get(name) not in (None, usual)]
    for name in refused:
        yield found("B.reasoning", f"$.{name}", name=name, fix=fix)
    if features.reasoning and body.get("max_tokens") is not None:
        yield found("B.reasoning", "$.max_tokens", name="max_tokens", fix="Use max_completion_tokens.")


def marks_in(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 26 and A4 in a message or an item: on it, its calls and its parts."""
    yield from _breakpoint(check, turn.path, turn.raw, [])
    for path, call in objects_at(turn.raw.get("tool_calls"), f"{turn.path}.tool_calls"):
        yield from _breakpoint(check, path, call, [])
    for name in ("content", "output"):
        for path, part in objects_at(turn.raw.get(name), f"{turn.path}.{name}"):
            yield from _breakpoint(check, path, part, _markable(check, turn))


def _breakpoint(check: Check, path: str, block: JsonObject, allowed: list[str]) -> Iterator[Finding]:
    if block.get(_MARK) is None:
        return
    if block.get("type") not in allowed:
        kind = block.get("type") or block.get("role")
        kind_text = f"'{kind}'" if isinstance(kind, str) else "this object"
        yield found("B2.26", path, what=kind_text, allowed=", ".join(allowed) or "an input block")
    else:
        yield from _mark_values(block[_MARK], f"{path}.{_MARK}")
    if check.info.features.strict and _takes_none(check):
        yield found("A4.model", f"{path}.{_MARK}", name=_MARK)


def _takes_none(check: Check) -> bool:
    """A deployment may have any name: only of a listed model is it known that it takes no marks."""
    return check.info.known and check.info.engine != "openai-breakpoints"


def _markable(check: Check, turn: TurnMessage) -> list[str]:
    """The types of parts that can be marked in a message or an item."""
    facts, wire = data("rules")["openai"], check.info.wire
    spoken = facts["assistant_blocks"].get(wire) if turn.role == "assistant" else None
    return list(facts["blocks"][wire] if spoken is None else spoken)


def _mark_values(mark: Json, path: str) -> Iterator[Finding]:
    values = obj(mark)
    if values.get("mode") != "explicit":
        yield _value(f"{path}.mode", values.get("mode"), ["explicit"])
    ttls = data("rules")["openai"]["mark_ttl"]
    if values.get("ttl") is not None and values["ttl"] not in ttls:
        yield _value(f"{path}.ttl", values["ttl"], ttls)


def _options(check: Check) -> Iterator[Finding]:
    options = check.body.get("prompt_cache_options")
    if options is not None and _takes_none(check):
        yield found("A4.model", "$.prompt_cache_options", name="prompt_cache_options")
    facts, chosen = data("rules")["openai"], obj(options)
    for name, values in (("mode", facts["modes"]), ("ttl", facts["ttl"].get(check.info.wire, facts["mark_ttl"]))):
        if chosen.get(name) is not None and chosen[name] not in values:
            yield _value(f"$.prompt_cache_options.{name}", chosen[name], values)
    retention, retentions = check.body.get("prompt_cache_retention"), check.info.features.retention
    if retention is not None and retentions and retention not in retentions:
        yield found("A4.retention", "$.prompt_cache_retention", value=retention, values=", ".join(retentions))


def _value(path: str, value: Json, values: list[str]) -> Finding:
    return found("A4.options", path, value=value, values=", ".join(values))


# A Chat request, rule by rule.


def _head(check: Check) -> Iterator[Finding]:
    # A local server's template takes any name.
    if not check.info.features.template:
        tools = filter(_named_here, objects_at(check.body.get("tools"), "$.tools"))
        yield from names((f"{path}.function.name", obj(tool.get("function")).get("name")) for path, tool in tools)
    yield from marks_around(check)


def _turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    if not check.info.features.template:
        yield from names(called_names(turn))
    yield from marks_in(check, turn)
    yield from deepseek(check, turn)


# Chat signs nothing.
CHAT_RULES = WireRules(
    body=chat_body, message=chat_message, head=_head, turn=_turn, along=(ToolMessages, MistralOrder, Alternation)
)
