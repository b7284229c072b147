"""OpenAI Responses: items that belong together (rows 23 to 25), and where state may come from (row 27)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from quire.providers.rules.check import (
    Check,
    Finding,
    Sequel,
    ServerMemory,
    TurnMessage,
    Unchecked,
    WireRules,
    advice,
    found,
)
from quire.providers.rules.claude_turns import names
from quire.providers.rules.grammar import grammar_of, misfits, obj, objects_at, shape, text
from quire.providers.rules.openai import is_openais, marks_around, marks_in
from quire.values import Json, JsonObject

_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
# The parts of messages and outputs, by who speaks.
_SPOKEN = ("output_text", "refusal")
_ASKED = ("input_text", "input_image", "input_file", "input_audio")
# Beside outputs, what a model's turn is not made of: a reasoning item is followed by something else.
_NOT_SPOKEN = ("additional_tools", "configuration_update", "compaction_trigger", "mcp_approval_response")
_NO_INPUT = "Send input items or text; messages are for Chat (-p openai-chat)."


def responses_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the items."""
    body = check.body
    if body.get("input") is None and not (_has_state(body) or body.get("prompt")):
        yield shape("$.input", "Field required", _NO_INPUT)
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
                values = ", ".join(allowed)
                problem = f"Invalid value: '{kind}'. Supported values are: {values}."
                yield shape(f"{place}.type", problem, f"Use one of {values}.")


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
        kind, id = kind_of(turn.raw), text(turn.raw.get("call_id"))
        self._elsewhere = self._elsewhere or kind in ("item_reference", "compaction")
        if kind.endswith("_call"):
            self._call_ids.add(id)
        # DeepSeek takes the calls of a turn side by side.
        if kind == "message" and self._waiting and "deepseek" in check.info.model and not self._parted:
            self._parted = True
            yield found("B2.25", turn.path, id=next(iter(self._waiting)))
        if kind == "message" and turn.role == "assistant":
            self._served |= self._waiting.keys() & self._free
        if kind in _CALLS:
            self._free |= {id} if kind == "custom_tool_call" else set()
            self._waiting.setdefault(id, deque()).append(turn.path)
            self._names[id] = text(turn.raw.get("name"))
            return
        if kind in _OUTPUTS and not id:
            # It answers the first call that waits, of its name where it says one.
            name = text(turn.raw.get("name"))
            id = next((id for id in self._waiting if not name or self._names[id] == name), "")
        if kind in _OUTPUTS and id in self._waiting:
            self._waiting[id].popleft()
            if not self._waiting[id]:
                del self._waiting[id]
        elif kind in _OUTPUTS:
            self._orphans.append((turn.path, id))

    def end(self, check: Check) -> Iterator[Finding]:
        for path, id in () if self._elsewhere or _has_state(check.body) else self._orphans:
            missing = [found("B2.25b", path, id=id or "(none given)")]
            # An output too many is not refused by everybody, nor is one that stands before its call, or names none.
            yield from missing if id and id not in self._call_ids and is_openais(check) else advice(missing)
        for id, paths in self._waiting.items():
            missing = [found("B2.25", path, id=id) for path in paths]
            lenient = id in self._served and not (check.info.features.strict and is_openais(check))
            yield from advice(missing) if lenient else missing


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
        self._ids.add(text(turn.raw.get("id")))
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
            needed = check.memory.reasoning_of.get(text(turn.raw.get("id"))) if check.memory else None
            if needed:
                self._missing.append((turn, needed))
            else:
                yield from _reason(check, turn, self._reasoned)

    def end(self, check: Check) -> Iterator[Finding]:
        for turn, needed in self._missing:
            if needed not in self._ids:
                yield found("B2.23", turn.path, id=text(turn.raw.get("id")), reasoning=needed)
        for reasoning in self._open:
            yield from _follower(check.memory, reasoning.raw, reasoning.path, None)


def _reason(check: Check, turn: TurnMessage, reasoned: bool) -> Iterator[Finding]:
    """Row 23 where no server tells: a call with an id and no reasoning in its turn."""
    id = text(turn.raw.get("id"))
    if check.memory and check.memory.complete:
        return
    if id.startswith("fc_") and not reasoned and _reasons(check):
        # Not every call of such a model follows from reasoning.
        yield from advice([found("B2.23", turn.path, id=id, reasoning="rs_...")])


def _reasons(check: Check) -> bool:
    """Whether this model's calls come from reasoning that this request would have to hold."""
    effort = obj(check.body.get("reasoning")).get("effort")
    thinks = check.model_named and check.info.features.reasoning and check.info.features.strict
    return thinks and effort != "none" and not _has_state(check.body)


def followers(items: list[JsonObject]) -> list[JsonObject | None]:
    """For each item the next one behind it that is no reasoning."""
    found_items: list[JsonObject | None] = []
    behind: JsonObject | None = None
    for item in reversed(items):
        found_items.append(behind)
        behind = behind if kind_of(item) == "reasoning" else item
    return found_items[::-1]


def _follower(memory: ServerMemory | None, item: JsonObject, path: str, behind: JsonObject | None) -> Iterator[Finding]:
    """Row 24: what follows must be the model's own, and the item that was issued."""
    id = text(item.get("id"))
    issued = memory.follower_of.get(id, "") if memory else ""
    spoken = behind is not None and _is_spoken(behind)
    moved = bool(behind and issued and text(behind.get("id")) and behind["id"] != issued)
    if not spoken or moved:
        yield found("B2.24", path, id=id or "rs_...")
    elif memory is None and id and behind is not None and kind_of(behind) == "message" and not behind.get("id"):
        # OpenAI knows what followed by its id; without one it may not be that.
        yield from advice([found("B2.24", path, id=id)])


def _is_spoken(item: JsonObject) -> bool:
    kind = kind_of(item)
    # Tools with an id are those that the model's own search added.
    added = kind == "additional_tools" and bool(item.get("id"))
    if kind == "message":
        return item.get("role") == "assistant"
    return added or not (kind in _NOT_SPOKEN or kind.endswith("_output"))


class Trigger(Sequel):
    """Row 27: a compaction trigger comes last."""

    def __init__(self) -> None:
        self._newest = ""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if self._newest:
            problem = "compaction_trigger must be the final input item."
            yield found("B2.27", self._newest, problem=problem, fix="Move it to the end of input.")
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
    items = [item for _, item in objects_at(output, "")]
    last = ""
    for item, behind in zip(items, followers(items), strict=True):
        id = text(item.get("id"))
        if kind_of(item) == "reasoning":
            last = id
            memory.follower_of.setdefault(id, text((behind or {}).get("id")))
        elif kind_of(item) == "function_call" and id and last:
            memory.reasoning_of.setdefault(id, last)


def _head(check: Check) -> Iterator[Finding]:
    yield from marks_around(check)
    if check.body.get("previous_response_id") and check.body.get("conversation"):
        problem = "Cannot specify both 'previous_response_id' and 'conversation'."
        yield found("B2.27", "$.conversation", problem=problem, fix="Leave one of the two out.")
    yield from names(_tool_names(check.body, "$"))


def _turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from marks_in(check, turn)
    if kind_of(turn.raw) in _CALLS:
        yield from names([(f"{turn.path}.name", turn.raw.get("name"))])
    if kind_of(turn.raw) == "additional_tools":
        yield from names(_tool_names(turn.raw, turn.path))


def _unchecked(check: Check) -> Iterator[Unchecked]:
    reasoned = any(kind_of(turn.raw) == "reasoning" for turn in check.conversation.messages)
    if check.memory is None and reasoned:
        yield Unchecked("B2.23, B2.24", "which reasoning led to which item needs the reply that issued them")


RESPONSES_RULES = WireRules(
    body=responses_body,
    message=responses_item,
    head=_head,
    turn=_turn,
    along=(Reasoning, CallsAndOutputs, Trigger),
    issued=lambda memory, body, reply: remember_items(memory, reply.get("output")),
    unchecked=_unchecked,
)
