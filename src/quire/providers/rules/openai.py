"""OpenAI Chat and everything that speaks it: tool messages, and each server's own order of roles.

Rows 21, 22, 37 to 40; cache marks are in `breakpoints`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from quire.providers.models import data
from quire.providers.rules.check import Check, Finding, ServerMemory, Unchecked, WireRules, advice, found
from quire.providers.rules.claude_turns import names
from quire.providers.rules.grammar import grammar_of, misfits, obj, objects, shape, text
from quire.values import Json, JsonObject

_STRICT = frozenset({"openai", "azure"})


def chat_shape(check: Check) -> Iterator[Finding]:
    """Types of messages, parts, calls and tools; compatible servers may know more kinds of parts."""
    open_grammar = list(misfits(check.body, "@body", "$", grammar_of("openai-chat", closed=False)))
    yield from open_grammar
    for path, message in objects(check.body.get("messages"), "$.messages"):
        yield from _message_shape(message, path)
    if check.info.provider in _STRICT:
        strictly = _openai_shape(check, set(open_grammar))
        yield from strictly if _is_openais(check) else advice(strictly)


# How OpenAI's own models are called; "openai-chat" is also what any other server's format is called.
_OPENAIS = re.compile(r"^(ft:)?(gpt-|chatgpt|o\d|codex|computer-use)")


def _is_openais(check: Check) -> bool:
    """Whether OpenAI itself will read the request; an Azure deployment may have any name."""
    named = check.model_named and not check.info.known and not _OPENAIS.match(check.info.model)
    return check.info.provider != "openai" or not named


def _openai_shape(check: Check, known: set[Finding]) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: kinds it does not know, empty lists, images from tools."""
    strict = misfits(check.body, "@body", "$", grammar_of("openai-chat"))
    yield from (one for one in strict if one not in known)
    for path, tool in objects(check.body.get("tools"), "$.tools"):
        if tool.get("type") is None:
            yield shape(f"{path}.type", "Field required", "Say which type it is.")
    for path, message in objects(check.body.get("messages"), "$.messages"):
        yield from _strictly(message, path)
        yield from _filled(message, ("content", "tool_calls"), path)
    yield from _filled(check.body, ("tools",), "$")


def _message_shape(message: JsonObject, path: str) -> Iterator[Finding]:
    if message.get("content") is None and not _may_be_silent(message):
        yield shape(f"{path}.content", "Field required", "Give the message content.")
    if message.get("role") == "tool" and message.get("tool_call_id") is None:
        yield shape(f"{path}.tool_call_id", "Field required", "Say which call it answers.")


def _strictly(message: JsonObject, path: str) -> Iterator[Finding]:
    """What OpenAI itself refuses and others take: images from tools, arguments as objects."""
    if message.get("role") == "tool":
        yield from _text_only(message.get("content"), f"{path}.content")
    for place, call in objects(message.get("tool_calls"), f"{path}.tool_calls"):
        if isinstance(obj(call.get("function")).get("arguments"), dict):
            arguments = f"{place}.function.arguments"
            yield shape(arguments, "Input should be a string", "Encode the arguments as JSON text.")


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


def _text_only(content: Json, path: str) -> Iterator[Finding]:
    for place, part in objects(content, path):
        if part.get("type") not in ("text", None):
            yield shape(place, "tool messages hold text only", "Send the image in a user message behind it.")


def chat_pairs(check: Check) -> Iterator[Finding]:
    """Rows 21 and 22: tool messages directly behind the assistant message they answer."""
    open_ids: dict[str, bool] = {}
    asked = ""
    for path, message in objects(check.body.get("messages"), "$.messages"):
        if message.get("role") == "tool":
            id = text(message.get("tool_call_id"))
            if id not in open_ids:
                yield found("B2.22", path)
            else:
                open_ids[id] = True
            continue
        yield from _unanswered(open_ids, asked)
        open_ids, asked = dict.fromkeys(call_ids(message), False), path
    yield from _unanswered(open_ids, asked)


def _unanswered(open_ids: dict[str, bool], path: str) -> Iterator[Finding]:
    missing = [id for id, answered in open_ids.items() if not answered]
    if missing:
        yield found("B2.21", path, ids=", ".join(missing))


def call_ids(message: JsonObject) -> list[str]:
    """The ids of an assistant message's calls."""
    if message.get("role") != "assistant":
        return []
    return [text(call.get("id")) for _, call in objects(message.get("tool_calls"), "")]


def chat_names(check: Check) -> Iterator[tuple[str, Json]]:
    """Every tool name with its path, of definitions and of calls."""
    for path, tool in objects(check.body.get("tools"), "$.tools"):
        yield f"{path}.function.name", obj(tool.get("function")).get("name")
    for path, message in objects(check.body.get("messages"), "$.messages"):
        for place, call in objects(message.get("tool_calls"), f"{path}.tool_calls"):
            yield f"{place}.function.name", obj(call.get("function")).get("name")


def mistral(check: Check) -> Iterator[Finding]:
    """Rows 37 and 38: Mistral's order of roles."""
    messages = list(objects(check.body.get("messages"), "$.messages"))
    for (_, before), (path, message) in pairwise(messages):
        if before.get("role") == "tool" and message.get("role") not in ("assistant", "tool"):
            yield found("B2.37", path, role=text(message.get("role")))
    if messages:
        path, last = messages[-1]
        role = text(last.get("role"))
        if role not in ("user", "tool") and not (role == "assistant" and last.get("prefix") is True):
            yield found("B2.38", path, role=role)


def deepseek(check: Check) -> Iterator[Finding]:
    """Row 39: in thinking mode an assistant message with calls comes back with its reasoning_content."""
    asked = check.info.provider == "deepseek" and check.info.features.reasoning_content == "required"
    if not asked or not check.model_named or not _is_thinking(check.body):
        return
    for path, message in objects(check.body.get("messages"), "$.messages"):
        if call_ids(message) and message.get("reasoning_content") is None:
            yield found("B2.39", path)


def _is_thinking(body: JsonObject) -> bool:
    """Thinking is on unless it is turned off; the OpenAI SDK passes the switch in extra_body."""
    asked = {**obj(body.get("extra_body")), **body}
    return obj(asked.get("thinking")).get("type") != "disabled" and asked.get("reasoning_effort") != "none"


def alternation(check: Check) -> Iterator[Finding]:
    """Row 40: templates that count user and assistant messages, with calls and results left out."""
    if not check.info.features.alternation:
        return
    expected = "user"
    for index, (path, message) in enumerate(objects(check.body.get("messages"), "$.messages")):
        role = message.get("role")
        if role == "tool" or call_ids(message) or (index == 0 and role in ("system", "developer")):
            continue
        if role != expected:
            yield found("B2.40", path)
            return
        expected = "assistant" if role == "user" else "user"


# OpenAI Responses: items that belong together (rows 23 to 25), and where state may come from (row 27).

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
    asked = {text(item.get("call_id")) for _, item in items if kind_of(item).endswith("_call")}
    # DeepSeek takes the calls of a turn side by side.
    side_by_side = "deepseek" in check.info.model
    for path, item in items:
        id = text(item.get("call_id"))
        if side_by_side and kind_of(item) == "message" and any(waiting.values()):
            open_id = next(one for one, paths in waiting.items() if paths)
            yield found("B2.25", path, id=open_id)
            side_by_side = False
        if kind_of(item) in _CALLS:
            waiting.setdefault(id, deque()).append(path)
        elif kind_of(item) in _OUTPUTS:
            if waiting.get(id):
                waiting[id].popleft()
            elif not elsewhere:
                missing = [found("B2.25b", path, id=id)]
                # An output too many is not refused by everybody, nor is one that stands before its call.
                yield from missing if id not in asked and _is_openais(check) else advice(missing)
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
        # Not every call of such a model follows from reasoning.
        yield from advice([found("B2.23", path, id=id, reasoning="rs_...")])


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


def _follower(
    seen: ServerMemory | None, item: JsonObject, path: str, behind: JsonObject | None
) -> Iterator[Finding]:
    """Row 24: what follows must be the model's own, and the item that was issued."""
    id = text(item.get("id"))
    issued = seen.follower_of.get(id, "") if seen else ""
    spoken = behind is not None and _is_spoken(behind)
    moved = bool(behind and issued and text(behind.get("id")) and behind["id"] != issued)
    if not spoken or moved:
        yield found("B2.24", path, id=id or "rs_...")
    elif seen is None and id and behind is not None and kind_of(behind) == "message" and not behind.get("id"):
        # OpenAI knows what followed by its id; without one it may not be that.
        yield from advice([found("B2.24", path, id=id)])


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


def remember_items(seen: ServerMemory, output: Json) -> None:
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


# OpenAI's cache marks and options: on which blocks, models and with which values (row 26 and A4).

_MARK = "prompt_cache_breakpoint"
_OWNERS = frozenset({"openai", "azure"})


def breakpoints(check: Check) -> Iterator[Finding]:
    """Row 26 and A4."""
    marked = [(path, block) for path, block in _blocks(check) if block.get(_MARK) is not None]
    for path, block in marked:
        allowed = _allowed(check, path)
        if block.get("type") not in allowed:
            what = _what(block)
            yield found("B2.26", path, what=what, allowed=", ".join(allowed) or "an input block")
        else:
            yield from _mark_values(block[_MARK], f"{path}.{_MARK}")
    if check.info.provider in _OWNERS:
        yield from _options(check, marked)


def _blocks(check: Check) -> Iterator[tuple[str, JsonObject]]:
    """Everything that could carry a mark: the body, tools, messages or items, and their parts."""
    yield "$", check.body
    yield from objects(check.body.get("tools"), "$.tools")
    yield from objects(check.body.get("instructions"), "$.instructions")
    name = "input" if check.info.wire == "openai-responses" else "messages"
    for path, message in objects(check.body.get(name), f"$.{name}"):
        yield path, message
        for inner in ("content", "output"):
            yield from objects(message.get(inner), f"{path}.{inner}")
        yield from objects(message.get("tool_calls"), f"{path}.tool_calls")


def _allowed(check: Check, path: str) -> list[str]:
    """The block types that can be marked at this place."""
    facts = data("rules")["openai"]
    if ".content[" not in path and ".output[" not in path:
        return []
    if check.info.wire == "openai-responses":
        return list(facts["responses_blocks"])
    return list(facts["chat_assistant_blocks" if _is_assistant(check, path) else "chat_blocks"])


def _is_assistant(check: Check, path: str) -> bool:
    index = int(path.removeprefix("$.messages[").partition("]")[0])
    return obj(check.body["messages"][index]).get("role") == "assistant"


def _what(block: JsonObject) -> str:
    kind = block.get("type") or block.get("role")
    return f"'{kind}'" if isinstance(kind, str) else "this object"


def _mark_values(mark: Json, path: str) -> Iterator[Finding]:
    values = obj(mark)
    if values.get("mode") != "explicit":
        yield _value(f"{path}.mode", values.get("mode"), ["explicit"])
    ttls = data("rules")["openai"]["mark_ttl"]
    if values.get("ttl") is not None and values["ttl"] not in ttls:
        yield _value(f"{path}.ttl", values["ttl"], ttls)


def _options(check: Check, marked: list[tuple[str, JsonObject]]) -> Iterator[Finding]:
    options = check.body.get("prompt_cache_options")
    # A deployment may have any name: only of a listed model is it known that it takes no marks.
    if check.info.known and check.info.engine != "openai-breakpoints":
        yield from (found("A4.model", f"{path}.{_MARK}", name=_MARK) for path, _ in marked)
        if options is not None:
            yield found("A4.model", "$.prompt_cache_options", name="prompt_cache_options")
    facts, chosen = data("rules")["openai"], obj(options)
    for name, values in (
        ("mode", facts["modes"]),
        ("ttl", facts["ttl"].get(check.info.wire, facts["mark_ttl"])),
    ):
        if chosen.get(name) is not None and chosen[name] not in values:
            yield _value(f"$.prompt_cache_options.{name}", chosen[name], values)
    retention, kept = check.body.get("prompt_cache_retention"), check.info.features.retention
    if retention is not None and kept and retention not in kept:
        yield found("A4.retention", "$.prompt_cache_retention", value=retention, values=", ".join(kept))


def _value(path: str, value: Json, values: list[str]) -> Finding:
    return found("A4.options", path, value=value, values=", ".join(values))


# A request in each of OpenAI's formats, rule by rule.


def _chat_rules(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from chat_shape(check)
    yield from chat_pairs(check)
    # A local server's template takes any name.
    if not check.info.features.template:
        yield from names(chat_names(check))
    yield from breakpoints(check)
    if check.info.provider == "mistral":
        yield from mistral(check)
    yield from deepseek(check)
    yield from alternation(check)


def _responses_rules(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from responses_shape(check)
    yield from reasoning(check)
    yield from responses_pairs(check)
    yield from breakpoints(check)
    yield from state(check)
    yield from names(responses_names(check))


def _issued(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    remember_items(seen, reply.get("output"))


def _unchecked(check: Check) -> Iterator[Unchecked]:
    reasoned = any(kind_of(item) == "reasoning" for _, item in objects(check.body.get("input"), ""))
    if check.seen is None and reasoned:
        yield Unchecked("B2.23, B2.24", "which reasoning led to which item needs the reply that issued them")


# Chat signs nothing.
CHAT_RULES = WireRules(check=_chat_rules, shape=chat_shape)
RESPONSES_RULES = WireRules(
    check=_responses_rules, shape=responses_shape, issued=_issued, unchecked=_unchecked
)
