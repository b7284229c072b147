"""OpenAI's two formats: Chat, with everything that speaks it, and Responses; names and cache marks are the same in both.

Rows 21, 22, 26, 37 to 40 and A4: tool messages, each server's own order of roles, marks. Rows 23 to 25 and 27: items that
belong together, and where state may come from.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from quire.providers.models import data
from quire.providers.rules.check import (
    Check,
    Finding,
    Sequel,
    ServerMemory,
    TurnMessage,
    Unchecked,
    WireRules,
    advice,
    each,
    finding,
)
from quire.providers.rules.claude_turns import names
from quire.providers.rules.grammar import closed, grammar_of, misfits, objects_at, shape
from quire.values import Json, JsonObject, as_object, as_objects, as_text, value_at

# With this, llama.cpp and similar servers allow a reply of any length.
NO_LIMIT = -1


def chat_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the messages."""
    yield from _misfits(check, check.body, "@body", "$")
    # llama.cpp and Ollama take a limit of 0.
    least = int(check.info.engine != "slot")
    yield from _limits(check.body, lambda most: most < least and most != NO_LIMIT)
    if check.info.features.strict:
        yield from _as_openai(check, _strict_body(check.body))


def chat_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of a message, its parts and calls."""
    yield from _misfits(check, turn.value, "@message", turn.path)
    if not isinstance(turn.value, dict):
        return
    if turn.raw.get("content") is None and not _may_be_silent(turn.raw):
        yield shape(f"{turn.path}.content", "no content")
    if turn.role == "tool" and turn.raw.get("tool_call_id") is None:
        yield shape(f"{turn.path}.tool_call_id", "no call id")
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
        yield from _as_openai(check, (problem for problem in strictly if problem not in everybody))


def _as_openai(check: Check, strictly: Iterable[Finding]) -> Iterable[Finding]:
    return strictly if is_openais(check) else advice(strictly)


def is_openais(check: Check) -> bool:
    """Whether OpenAI itself will read the request; an Azure deployment may have any name."""
    # "openai-chat" is also what any other server's format is called.
    name_pattern, info = check.info.features.own_names, check.info
    return not (name_pattern and check.model_named and not info.known and not re.match(name_pattern, info.model))


def _limits(body: JsonObject, is_refused: Callable[[int], bool]) -> Iterator[Finding]:
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(most := body.get(name), int) and is_refused(most):
            yield shape(f"$.{name}", "least", subject="Input", least=1)


def _strict_body(body: JsonObject) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: tools without a type, empty lists, no limit written as -1."""
    yield from _limits(body, lambda most: most == NO_LIMIT)
    for path, tool in objects_at(body.get("tools"), "$.tools"):
        if tool.get("type") is None:
            yield shape(f"{path}.type", "type")
    yield from _check_filled(body, ("tools",), "$")


def _strict_message(message: JsonObject, path: str) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: images from tools, arguments as objects, empty lists."""
    for place, part in objects_at(message.get("content"), f"{path}.content") if message.get("role") == "tool" else ():
        if part.get("type") not in ("text", None):
            yield shape(place, "text only")
    for place, call in objects_at(message.get("tool_calls"), f"{path}.tool_calls"):
        if isinstance(value_at(call, "function", "arguments"), dict):
            yield shape(f"{place}.function.arguments", "arguments")
    yield from _check_filled(message, ("content", "tool_calls"), path)


def _check_filled(holder: JsonObject, names: tuple[str, ...], path: str) -> Iterator[Finding]:
    """OpenAI takes no list without anything in it."""
    for name in names:
        if holder.get(name) == []:
            yield shape(f"{path}.{name}", "empty list", name=name)


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
        elif (id := as_text(turn.raw.get("tool_call_id"))) in self._calls:
            self._calls[id] = True
        else:
            yield finding("B2.22", turn.path)

    def end(self, check: Check) -> Iterator[Finding]:
        missing = [id for id, answered in self._calls.items() if not answered]
        if missing:
            yield finding("B2.21", self._path, ids=", ".join(missing))


def call_ids(message: JsonObject) -> list[str]:
    """The ids of an assistant message's calls."""
    if message.get("role") != "assistant":
        return []
    return [as_text(call.get("id")) for call in as_objects(message.get("tool_calls"))]


def _function_names(check: Check, listed: Json, path: str) -> Iterator[Finding]:
    """The names of tools, or of calls; a local server's template takes any, and its own have any ($web_search)."""
    tools = () if check.info.features.template else objects_at(listed, path)
    chosen = [(place, tool) for place, tool in tools if tool.get("type", "function") in ("function", "custom")]
    return names((f"{place}.function.name", value_at(tool, "function", "name")) for place, tool in chosen)


class MistralOrder(Sequel):
    """Rows 37 and 38: Mistral's order of roles."""

    _last: TurnMessage | None = None

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        before, self._last = self._last, turn
        behind_tool = before is not None and before.role == "tool"
        if not check.info.features.user_after_tool and behind_tool and turn.role not in ("assistant", "tool"):
            yield finding("B2.37", turn.path, role=turn.role)

    def end(self, check: Check) -> Iterator[Finding]:
        last = self._last
        if check.info.features.user_after_tool or last is None or last.role in ("user", "tool"):
            return
        if last.role != "assistant" or last.raw.get("prefix") is not True:
            yield finding("B2.38", last.path, role=last.role)


def deepseek(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 39: in thinking mode an assistant message with calls comes back with its reasoning_content."""
    if check.info.features.reasoning_content != "required" or not check.model_named:
        return
    # Thinking is on unless it is turned off; the OpenAI SDK passes the switch in extra_body.
    settings = {**as_object(check.body.get("extra_body")), **check.body}
    thinks = value_at(settings, "thinking", "type") != "disabled" and settings.get("reasoning_effort") != "none"
    if thinks and call_ids(turn.raw) and turn.raw.get("reasoning_content") is None:
        yield finding("B2.39", turn.path)


class Alternation(Sequel):
    """Row 40: templates that count user and assistant messages, with calls and results left out."""

    _expected = "user"

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        is_instruction = turn.index == 0 and turn.role in ("system", "developer")
        if not check.info.features.alternation or not self._expected or is_instruction:
            return
        if turn.role == "tool" or call_ids(turn.raw):
            return
        if turn.role != self._expected:
            yield finding("B2.40", turn.path)
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
        function = as_object(tool.get("function")) if inner else tool
        if function.get("strict") is True:
            at = f"{path}.function.parameters" if inner else f"{path}.parameters"
            yield from closed(function.get("parameters"), at, f"function '{function.get('name')}'")
    formats = {
        "$.response_format.json_schema": as_object(value_at(body, "response_format", "json_schema")),
        "$.text.format": as_object(value_at(body, "text", "format")),
    }
    for path, format in formats.items():
        if format.get("strict") is True:
            yield from closed(format.get("schema"), f"{path}.schema", f"response_format '{format.get('name')}'")


# What a model that thinks before it answers takes at its default alone.
_DRAWN = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "stop": None}


def _thinkers(check: Check) -> Iterator[Finding]:
    """What models that always think do not take, and what those do not that never think."""
    features, body = check.info.features, check.body
    if not check.info.known:
        return
    refused = [name for name in ("reasoning", "reasoning_effort") if body.get(name)]
    if features.reasoning:
        always = bool(features.effort) and "none" not in features.effort
        refused = [name for name, usual in _DRAWN.items() if always and body.get(name) not in (None, usual)]
    for name in refused:
        yield finding("B.reasoning", f"$.{name}", name=name)
    if features.reasoning and body.get("max_tokens") is not None:
        yield finding("B.reasoning", "$.max_tokens", "max_tokens", name="max_tokens")


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
        yield finding("B2.26", path, what=kind_text, allowed=", ".join(allowed) or "an input block")
    else:
        allowed_values = {"mode": ["explicit"], "ttl": data("rules")["openai"]["mark_ttl"]}
        yield from _wrong_values(as_object(block[_MARK]), f"{path}.{_MARK}", allowed_values, required="mode")
    if check.info.features.strict and _takes_none(check):
        yield finding("A4.model", f"{path}.{_MARK}", name=_MARK)


def _takes_none(check: Check) -> bool:
    """A deployment may have any name: only of a listed model is it known that it takes no marks."""
    return check.info.known and check.info.engine != "openai-breakpoints"


def _markable(check: Check, turn: TurnMessage) -> list[str]:
    """The types of parts that can be marked in a message or an item."""
    facts, wire = data("rules")["openai"], check.info.wire
    spoken = facts["assistant_blocks"].get(wire) if turn.role == "assistant" else None
    return list(facts["blocks"][wire] if spoken is None else spoken)


def _wrong_values(
    chosen: JsonObject, path: str, allowed: dict[str, list[str]], required: str = ""
) -> Iterator[Finding]:
    for name, values in allowed.items():
        value = chosen.get(name)
        if value not in values and (value is not None or name == required):
            yield finding("A4.options", f"{path}.{name}", value=value, values=", ".join(values))


def _options(check: Check) -> Iterator[Finding]:
    options = check.body.get("prompt_cache_options")
    if options is not None and _takes_none(check):
        yield finding("A4.model", "$.prompt_cache_options", name="prompt_cache_options")
    facts = data("rules")["openai"]
    allowed = {"mode": facts["modes"], "ttl": facts["ttl"].get(check.info.wire, facts["mark_ttl"])}
    yield from _wrong_values(as_object(options), "$.prompt_cache_options", allowed)
    retention, retentions = check.body.get("prompt_cache_retention"), check.info.features.retention
    if retention is not None and retentions and retention not in retentions:
        yield finding("A4.retention", "$.prompt_cache_retention", value=retention, values=", ".join(retentions))


# A Chat request, rule by rule. Chat signs nothing.

CHAT_RULES = WireRules(
    body=chat_body,
    message=chat_message,
    head=each(lambda check: _function_names(check, check.body.get("tools"), "$.tools"), marks_around),
    turn=each(
        lambda check, turn: _function_names(check, turn.raw.get("tool_calls"), f"{turn.path}.tool_calls"),
        marks_in,
        deepseek,
    ),
    along=(ToolMessages, MistralOrder, Alternation),
)


# OpenAI Responses: items that belong together (rows 23 to 25), and where state may come from (row 27).

_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
# The parts of messages and outputs, by who speaks.
_SPOKEN = ("output_text", "refusal")
_ASKED = ("input_text", "input_image", "input_file", "input_audio")
# Beside outputs, what a model's turn is not made of: a reasoning item is followed by something else.
_NOT_SPOKEN = ("additional_tools", "configuration_update", "compaction_trigger", "mcp_approval_response")


def responses_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the items."""
    body = check.body
    if body.get("input") is None and not (_has_state(body) or body.get("prompt")):
        yield shape("$.input", "no input")
    yield from misfits(body, "@body", "$", grammar_of("openai-responses"))


def responses_item(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of an item and its parts."""
    yield from misfits(turn.value, "@item", turn.path, grammar_of("openai-responses"))
    if kind_of(turn.raw) == "message" or kind_of(turn.raw) in _OUTPUTS:
        yield from _parts(turn.raw, turn.path)


def _parts(item: JsonObject, path: str) -> Iterator[Finding]:
    """The model's words are output parts, all else is input parts."""
    allowed = _SPOKEN if item.get("role") == "assistant" else _ASKED
    for name in ("content", "output"):
        for place, part in objects_at(item.get(name), f"{path}.{name}"):
            kind = part.get("type")
            if kind in _SPOKEN + _ASKED and kind not in allowed:
                yield shape(f"{place}.type", "part", kind=kind, values=", ".join(allowed))


def kind_of(item: JsonObject) -> str:
    """An item's type; a message may leave it out, as may one that only names another by its id."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else "item_reference" if item.keys() - {"type"} == {"id"} else ""


class CallsAndOutputs(Sequel):
    """Row 25: every call has its output behind it, and every output its call."""

    def __init__(self) -> None:
        # The paths of the calls that wait for their outputs, by id; all ids that were called; outputs without a call.
        self._waiting: dict[str, deque[str]] = {}
        self._call_ids: set[str] = set()
        self._names: dict[str, str] = {}
        self._orphans: list[tuple[str, str]] = []
        # Calls of free text that the model's words follow: elsewhere than at OpenAI the server may have carried them out.
        self._free, self._served = set[str](), set[str]()
        # Whether the server may hold calls, and whether a message between calls was reported already.
        self._elsewhere = self._parted = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        kind, id = kind_of(turn.raw), as_text(turn.raw.get("call_id"))
        self._elsewhere = self._elsewhere or kind in ("item_reference", "compaction")
        if kind.endswith("_call"):
            self._call_ids.add(id)
        # DeepSeek takes the calls of a turn side by side.
        if kind == "message" and self._waiting and "deepseek" in check.info.model and not self._parted:
            self._parted = True
            yield finding("B2.25", turn.path, id=next(iter(self._waiting)))
        if kind == "message" and turn.role == "assistant":
            self._served |= self._waiting.keys() & self._free
        if kind in _CALLS:
            self._free |= {id} if kind == "custom_tool_call" else set()
            self._waiting.setdefault(id, deque()).append(turn.path)
            self._names[id] = as_text(turn.raw.get("name"))
            return
        if kind in _OUTPUTS and not id:
            # It answers the first call that waits, of its name where it says one.
            name = as_text(turn.raw.get("name"))
            id = next((id for id in self._waiting if not name or self._names[id] == name), "")
        if kind in _OUTPUTS and id in self._waiting:
            self._waiting[id].popleft()
            if not self._waiting[id]:
                del self._waiting[id]
        elif kind in _OUTPUTS:
            self._orphans.append((turn.path, id))

    def end(self, check: Check) -> Iterator[Finding]:
        for path, id in () if self._elsewhere or _has_state(check.body) else self._orphans:
            # An output too many is not refused by everybody, nor is one that stands before its call, or names none.
            sure = bool(id) and id not in self._call_ids and is_openais(check)
            yield finding("B2.25b", path, sure=sure, id=id or "(none given)")
        for id, paths in self._waiting.items():
            sure = id not in self._served or (check.info.features.strict and is_openais(check))
            yield from (finding("B2.25", path, sure=sure, id=id) for path in paths)


class Reasoning(Sequel):
    """Rows 23 and 24: reasoning and what it led to go back together."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        # Reasoning that nothing follows yet, and calls whose reasoning has not come.
        self._open: list[TurnMessage] = []
        self._missing: list[tuple[TurnMessage, str]] = []
        self._reasoned = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        # A local engine holds nothing that could be missing.
        if check.info.features.template:
            return
        kind = kind_of(turn.raw)
        self._ids.add(as_text(turn.raw.get("id")))
        if kind == "reasoning":
            self._reasoned = True
            self._open.append(turn)
            return
        for reasoning in self._open:
            yield from _follower(check.memory, reasoning.raw, reasoning.path, turn.raw)
        self._open = []
        if kind == "message" and turn.raw.get("role") == "user":
            self._reasoned = False
        elif kind == "function_call":
            needed = check.memory.reasoning_of.get(as_text(turn.raw.get("id"))) if check.memory else None
            if needed:
                self._missing.append((turn, needed))
            else:
                yield from _reason(check, turn, self._reasoned)

    def end(self, check: Check) -> Iterator[Finding]:
        for turn, needed in self._missing:
            if needed not in self._ids:
                yield finding("B2.23", turn.path, id=as_text(turn.raw.get("id")), reasoning=needed)
        for reasoning in self._open:
            yield from _follower(check.memory, reasoning.raw, reasoning.path, None)


def _reason(check: Check, turn: TurnMessage, reasoned: bool) -> Iterator[Finding]:
    """Row 23 where no server tells: a call with an id and no reasoning in its turn."""
    id = as_text(turn.raw.get("id"))
    if check.memory and check.memory.complete:
        return
    if id.startswith("fc_") and not reasoned and _reasons(check):
        # Not every call of such a model follows from reasoning.
        yield finding("B2.23", turn.path, sure=False, id=id, reasoning="rs_...")


def _reasons(check: Check) -> bool:
    """Whether this model's calls come from reasoning that this request would have to hold."""
    effort = value_at(check.body, "reasoning", "effort")
    thinks = check.model_named and check.info.features.reasoning and check.info.features.strict
    return thinks and effort != "none" and not _has_state(check.body)


def _follower(memory: ServerMemory | None, item: JsonObject, path: str, behind: JsonObject | None) -> Iterator[Finding]:
    """Row 24: what follows must be the model's own, and the item that was issued."""
    id = as_text(item.get("id"))
    issued = memory.follower_of.get(id, "") if memory else ""
    spoken = behind is not None and _is_spoken(behind)
    moved = bool(behind and issued and as_text(behind.get("id")) and behind["id"] != issued)
    if not spoken or moved:
        yield finding("B2.24", path, id=id or "rs_...")
    elif memory is None and id and behind is not None and kind_of(behind) == "message" and not behind.get("id"):
        # OpenAI knows what followed by its id; without one it may not be that.
        yield finding("B2.24", path, sure=False, id=id)


def _is_spoken(item: JsonObject) -> bool:
    kind = kind_of(item)
    # Tools with an id are those that the model's own search added.
    added = kind == "additional_tools" and bool(item.get("id"))
    if kind == "message":
        return item.get("role") == "assistant"
    return added or not (kind in _NOT_SPOKEN or kind.endswith("_output"))


class Trigger(Sequel):
    """Row 27: a compaction trigger comes last."""

    _newest = ""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if self._newest:
            yield finding("B2.27", self._newest, "last")
        self._newest = turn.path if kind_of(turn.raw) == "compaction_trigger" else ""


def _tool_names(holder: JsonObject, path: str) -> Iterator[tuple[str, Json]]:
    """The names of the tools that the body or an item defines."""
    for place, tool in objects_at(holder.get("tools"), f"{path}.tools"):
        if tool.get("type") in ("function", "custom"):
            yield f"{place}.name", tool.get("name")


def _has_state(body: JsonObject) -> bool:
    """Whether the server holds what came before."""
    return bool(body.get("previous_response_id") or body.get("conversation"))


def remember_items(memory: ServerMemory, output: Json) -> None:
    """Record which reasoning each item of a reply belongs to, and what follows it."""
    last, waiting = "", list[str]()
    for item in as_objects(output):
        id = as_text(item.get("id"))
        if kind_of(item) == "reasoning":
            last = id
            waiting.append(id)
            continue
        for reasoning in waiting:
            memory.follower_of.setdefault(reasoning, id)
        waiting = []
        if kind_of(item) == "function_call" and id and last:
            memory.reasoning_of.setdefault(id, last)


def _responses_head(check: Check) -> Iterator[Finding]:
    yield from marks_around(check)
    if check.body.get("previous_response_id") and check.body.get("conversation"):
        yield finding("B2.27", "$.conversation", "both")
    yield from names(_tool_names(check.body, "$"))


def _responses_turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from marks_in(check, turn)
    if kind_of(turn.raw) in _CALLS:
        yield from names([(f"{turn.path}.name", turn.raw.get("name"))])
    if kind_of(turn.raw) == "additional_tools":
        yield from names(_tool_names(turn.raw, turn.path))


def _unchecked_rules(check: Check) -> Iterator[Unchecked]:
    reasoned = any(kind_of(turn.raw) == "reasoning" for turn in check.conversation.messages)
    if check.memory is None and reasoned:
        yield Unchecked("B2.23, B2.24", "which reasoning led to which item needs the reply that issued them")


RESPONSES_RULES = WireRules(
    body=responses_body,
    message=responses_item,
    head=_responses_head,
    turn=_responses_turn,
    along=(Reasoning, CallsAndOutputs, Trigger),
    remember_reply=lambda memory, body, reply: remember_items(memory, reply.get("output")),
    unchecked=_unchecked_rules,
)
