"""OpenAI Responses: items that belong together (rows 23 to 25), and where state may come from (row 27)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.grammar import grammar_of, misfits, shape
from quire.providers.rules.seen import Seen
from quire.providers.rules.shape import obj, objects, text
from quire.values import Json, JsonObject

_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
# The parts of messages and outputs, by who speaks.
_SPOKEN = ("output_text", "refusal")
_ASKED = ("input_text", "input_image", "input_file", "input_audio")
# What a model's turn is made of; a reasoning item is followed by one of these.
_NOT_SPOKEN = _OUTPUTS | {
    "additional_tools",
    "configuration_update",
    "compaction_trigger",
    "apply_patch_call_output",
    "computer_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "mcp_approval_response",
    "tool_search_output",
    "program_output",
}
_NO_INPUT = "Send input items or text; messages are for Chat (-p openai-chat)."


def responses_shape(check: Check) -> Iterator[Finding]:
    """Types of items, parts and tools."""
    body = check.body
    if body.get("input") is None and not (_has_state(body) or body.get("prompt")):
        yield shape("$.input", "Field required", _NO_INPUT)
    yield from misfits(body, "@body", "$", grammar_of("openai-responses"))
    for path, item in objects(body.get("input"), "$.input"):
        if kind_of(item) == "message" or kind_of(item) in _OUTPUTS:
            yield from _parts(item, path)


def _parts(item: JsonObject, path: str) -> Iterator[Finding]:
    """The model's words are output parts, all else is input parts."""
    allowed = _SPOKEN if item.get("role") == "assistant" else _ASKED
    for name in ("content", "output"):
        for place, part in objects(item.get(name), f"{path}.{name}"):
            kind = part.get("type")
            if kind in _SPOKEN + _ASKED and kind not in allowed:
                values = ", ".join(allowed)
                problem = f"Invalid value: '{kind}'. Supported values are: {values}."
                yield shape(f"{place}.type", problem, f"Use one of {values}.")


def kind_of(item: JsonObject) -> str:
    """An item's type; a message may leave it out."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else ("message" if "role" in item else "")


def responses_pairs(check: Check) -> Iterator[Finding]:
    """Row 25: every call has its output behind it, and every output its call."""
    waiting: dict[str, deque[str]] = {}
    items = list(objects(check.body.get("input"), "$.input"))
    elsewhere = _has_state(check.body) or any(
        kind_of(item) in ("item_reference", "compaction") for _, item in items
    )
    for path, item in items:
        id = text(item.get("call_id"))
        if kind_of(item) in _CALLS:
            waiting.setdefault(id, deque()).append(path)
        elif kind_of(item) in _OUTPUTS:
            if waiting.get(id):
                waiting[id].popleft()
            elif not elsewhere:
                yield found("B2.25b", path, id=id)
    for id, paths in waiting.items():
        yield from (found("B2.25", path, id=id) for path in paths)


def reasoning(check: Check) -> Iterator[Finding]:
    """Rows 23 and 24: reasoning and what it led to go back together."""
    # A local engine holds nothing that could be missing.
    if check.info.features.template:
        return
    items = list(objects(check.body.get("input"), "$.input"))
    known = {text(item.get("id")) for _, item in items}
    behind = followers([item for _, item in items])
    reasoned = False
    for (path, item), follower in zip(items, behind, strict=True):
        kind = kind_of(item)
        if kind == "message" and item.get("role") == "user":
            reasoned = False
        elif kind == "reasoning":
            reasoned = True
            yield from _follower(check.seen, item, path, follower)
        elif kind == "function_call":
            yield from _reason(check, item, path, known, reasoned)


def _reason(check: Check, item: JsonObject, path: str, known: set[str], reasoned: bool) -> Iterator[Finding]:
    """Row 23. The server knows the pair; without it, a call with an id and no reasoning in its turn tells."""
    id = text(item.get("id"))
    needed = check.seen.reasoning_of.get(id) if check.seen else None
    if needed:
        if needed not in known:
            yield found("B2.23", path, id=id, reasoning=needed)
        return
    if check.seen and check.seen.complete:
        return
    if id.startswith("fc_") and not reasoned and _reasons(check):
        yield found("B2.23", path, id=id, reasoning="rs_...")


def _reasons(check: Check) -> bool:
    """Whether this model's calls come from reasoning that this request would have to hold."""
    effort = obj(check.body.get("reasoning")).get("effort")
    thinks = (
        check.model_named and check.info.features.reasoning and check.info.provider in ("openai", "azure")
    )
    return thinks and effort != "none" and not _has_state(check.body)


def followers(items: list[JsonObject]) -> list[JsonObject | None]:
    """For each item the next one behind it that is no reasoning."""
    found_items: list[JsonObject | None] = []
    behind: JsonObject | None = None
    for item in reversed(items):
        found_items.append(behind)
        behind = behind if kind_of(item) == "reasoning" else item
    return found_items[::-1]


def _follower(seen: Seen | None, item: JsonObject, path: str, behind: JsonObject | None) -> Iterator[Finding]:
    """Row 24: what follows must be the model's own, and the item that was issued."""
    id = text(item.get("id"))
    issued = seen.follower_of.get(id, "") if seen else ""
    spoken = behind is not None and _is_spoken(behind)
    moved = bool(behind and issued and text(behind.get("id")) and behind["id"] != issued)
    if not spoken or moved:
        yield found("B2.24", path, id=id or "rs_...")


def _is_spoken(item: JsonObject) -> bool:
    kind = kind_of(item)
    return item.get("role") == "assistant" if kind == "message" else kind not in _NOT_SPOKEN


def state(check: Check) -> Iterator[Finding]:
    """Row 27."""
    if check.body.get("previous_response_id") and check.body.get("conversation"):
        problem = "Cannot specify both 'previous_response_id' and 'conversation'."
        yield found("B2.27", "$.conversation", problem=problem, fix="Leave one of the two out.")
    items = list(objects(check.body.get("input"), "$.input"))
    for path, item in items[:-1]:
        if kind_of(item) == "compaction_trigger":
            problem = "compaction_trigger must be the final input item."
            yield found("B2.27", path, problem=problem, fix="Move it to the end of input.")


def responses_names(check: Check) -> Iterator[tuple[str, Json]]:
    """Every tool name with its path, of definitions, late tools and calls."""
    for path, tool in objects(check.body.get("tools"), "$.tools"):
        if tool.get("type") in ("function", "custom"):
            yield f"{path}.name", tool.get("name")
    for path, item in objects(check.body.get("input"), "$.input"):
        if kind_of(item) in _CALLS:
            yield f"{path}.name", item.get("name")
        for place, tool in objects(item.get("tools"), f"{path}.tools"):
            if kind_of(item) == "additional_tools" and tool.get("type") in ("function", "custom"):
                yield f"{place}.name", tool.get("name")


def _has_state(body: JsonObject) -> bool:
    """Whether the server holds what came before."""
    return bool(body.get("previous_response_id") or body.get("conversation"))


def remember_items(seen: Seen, output: Json) -> None:
    """Record which reasoning each item of a reply belongs to, and what follows it."""
    items = [item for _, item in objects(output, "")]
    last = ""
    for item, behind in zip(items, followers(items), strict=True):
        id = text(item.get("id"))
        if kind_of(item) == "reasoning":
            last = id
            seen.follower_of.setdefault(id, text((behind or {}).get("id")))
        elif kind_of(item) == "function_call" and id and last:
            seen.reasoning_of.setdefault(id, last)
