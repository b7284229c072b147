"""What each Claude model accepts: prefill, system messages, tool_choice, thinking modes, headers, size.

Rows 6 to 9, 13 to 16 and 20, sampling parameters, cache marks and the betas that late changes need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from quire.providers.models import data
from quire.providers.rules.check import (
    Check,
    Conversation,
    Finding,
    Mark,
    Sequel,
    ServerMemory,
    TurnBlock,
    TurnMessage,
    Unchecked,
    WireRules,
    advice,
    conversation,
    fingerprint,
    found,
    limit,
)
from quire.providers.rules.claude_turns import (
    THINKING,
    Blanks,
    CallIds,
    Compaction,
    Pairs,
    anthropic_body,
    anthropic_message,
    blank_texts,
    called_names,
    edits,
    last_turn,
    names,
    remember,
    remember_reply,
    speakers,
    thinking,
    tool_names,
    unique,
    unsigned,
    version,
)
from quire.providers.rules.grammar import obj, objects_at, text
from quire.values import JsonObject


def prefill(check: Check) -> Iterator[Finding]:
    """Row 9: newer models do not continue a last assistant message."""
    messages = check.conversation.messages
    if not check.model_named or check.info.features.prefill or not messages:
        return
    # A compaction request may end on the assistant; this token allows one prefill.
    if check.body.get("compaction") or check.body.get("fallback_credit_token"):
        return
    kinds = [block.type for block in last_turn(messages)[1]] or ["text"]
    # Text at the end would be continued; an unfinished server tool or a compaction is resumed, a call is row 1.
    continued = kinds[-1] in ("text", "thinking", "redacted_thinking", "image", "document")
    if messages[-1].role == "assistant" and "tool_use" not in kinds and continued:
        yield found("B2.9", messages[-1].path)


class LateSystem(Sequel):
    """Row 14: where a system message may stand, and on which models."""

    def __init__(self) -> None:
        self._before: TurnMessage | None = None
        # A system message that stands well, if the model speaks next.
        self._waits = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        before, waited = self._before, self._waits
        self._before, self._waits = turn, False
        if before is not None and waited and turn.role != "assistant":
            # Where it parts nothing, the API has been seen to take it.
            yield from advice([_misplaced(before, "role 'system' must come before an assistant message or last")])
        if turn.role != "system":
            return
        if check.model_named and not check.info.features.late_system:
            problem = f"messages.{turn.index}: role 'system' is not supported on this model"
            fix = "Put its text into the next user message."
            unknown = [found("B2.14", turn.path, problem=problem, fix=fix)]
            yield from unknown if check.info.known else advice(unknown)
        elif before is None:
            yield _misplaced(turn, "role 'system' cannot be the first message")
        elif before.of("tool_use") and before.role == "assistant":
            yield _misplaced(turn, "role 'system' cannot stand between tool_use and tool_result")
        elif before.role != "user" and not _ends_in_server_result(before):
            yield from advice([_misplaced(turn, "role 'system' must follow a user message")])
        else:
            self._waits = True


def _misplaced(turn: TurnMessage, problem: str) -> Finding:
    fix = "Move it behind a user message, before the assistant's next one or to the end."
    return found("B2.14", turn.path, problem=f"messages.{turn.index}: {problem}", fix=fix)


def _ends_in_server_result(turn: TurnMessage) -> bool:
    last = turn.blocks[-1].type if turn.blocks else ""
    return turn.role == "assistant" and last.endswith("_tool_result")


def forced(check: Check, kind: object, path: str, thinking: JsonObject) -> Iterator[Finding]:
    """Row 15: newer models choose their tools themselves; so does enabled thinking."""
    refused = check.model_named and kind not in check.info.features.tool_choice
    if kind in ("any", "tool") and (refused or thinking.get("type") == "enabled"):
        yield found("B2.15", path, type=kind)


def modes(check: Check, thinking: JsonObject, path: str, max_tokens: object) -> Iterator[Finding]:
    """Row 16: which ways of thinking a model knows, and how much it may think."""
    kind, allowed = thinking.get("type"), check.info.features.thinking
    if not thinking:
        return
    if check.model_named and allowed and kind not in allowed:
        problem = f'"thinking.type.{kind}" is not supported for this model.'
        fix = f"Use {' or '.join(allowed)}"
        fix += "; output_config.effort says how much to think." if "adaptive" in allowed else "."
        missing = [found("B2.16", path, problem=problem, fix=fix)]
        # Which models take other types than these the table does not say.
        yield from missing if kind in ("enabled", "disabled", "adaptive") else advice(missing)
    elif kind == "enabled":
        yield from _budget(thinking.get("budget_tokens"), max_tokens, path)


def _budget(budget: object, max_tokens: object, path: str) -> Iterator[Finding]:
    least = limit("thinking_budget")
    if not isinstance(budget, int) or budget < least:
        problem = f"thinking.enabled.budget_tokens: Input should be greater than or equal to {least}"
        yield found("B2.16", path, problem=problem, fix=f"Set budget_tokens to {least} or more.")
    elif isinstance(max_tokens, int) and budget >= max_tokens:
        problem = "`max_tokens` must be greater than `thinking.budget_tokens`."
        yield found("B2.16", path, problem=problem, fix="Raise max_tokens or lower budget_tokens.")


def size(check: Check) -> Iterator[Finding]:
    """Row 20: the body as it goes over the wire."""
    most = limit("anthropic_bytes")
    if check.size > most:
        yield found("B2.20", "$", size=check.size, most=most)


def sampling(check: Check) -> Iterator[Finding]:
    """Sampling parameters are refused by newer models and by the newest API version."""
    refused = check.version >= data("rules")["versions"]["anthropic_no_sampling"]
    if not (refused or (check.model_named and not check.info.features.sampling)):
        return
    for name, usual in (("temperature", 1), ("top_p", 1), ("top_k", None)):
        value = check.body.get(name)
        if value is not None:
            findings = [found("B.sampling", f"$.{name}", name=name)]
            # Whether the usual value is refused too is not established.
            yield from advice(findings) if value == usual else findings


def prewarm(check: Check) -> Iterator[Finding]:
    """A3: max_tokens 0 only fills the cache and goes with nothing that shapes a reply."""
    if check.body.get("max_tokens") != 0 or isinstance(check.body.get("max_tokens"), bool):
        return
    body = check.body
    clashes = {
        "stream": body.get("stream") is True,
        "thinking": obj(body.get("thinking")).get("type") == "enabled",
        "output_config": obj(body.get("output_config")).get("format") is not None,
        "tool_choice": obj(body.get("tool_choice")).get("type") in ("any", "tool"),
    }
    for name, clash in clashes.items():
        if clash:
            yield found("A3.prewarm", f"$.{name}", with_=name)


class Beta(msgspec.Struct, frozen=True):
    """A use of a feature that needs a beta header."""

    feature: str
    path: str


def betas(check: Check, uses: Iterable[Beta]) -> Iterator[Finding]:
    """Row 13, and the other betas where the headers are known."""
    headers = data("rules")["betas"]
    for use in uses:
        beta = headers[use.feature]
        if beta in (check.betas or ()):
            continue
        if use.feature == "block_binding":
            kind = text(obj(check.body.get("thinking")).get("type"))
            yield found("B2.13", use.path, beta=beta, type=kind)
        elif check.betas is not None:
            yield found("B.beta", use.path, beta=beta)


def betas_around(body: JsonObject) -> Iterator[Beta]:
    """Uses of beta features around the messages."""
    if obj(body.get("thinking")).get("block_binding") is not None:
        yield Beta("block_binding", "$.thinking.block_binding")
    for name in ("context_management", "compaction", "thread"):
        if body.get(name):
            yield Beta(name, f"$.{name}")


def betas_in(turn: TurnMessage) -> Iterator[Beta]:
    """Uses of beta features in a message."""
    if turn.raw.get("clear_at"):
        yield Beta("clear_at", f"{turn.path}.clear_at")
    if turn.role == "system" and turn.raw.get("output_config"):
        yield Beta("output_config", f"{turn.path}.output_config")
    for block in turn.of("tool_addition", "tool_removal"):
        inline = obj(block.raw.get("tool")).get("type") == "tool_definition"
        yield Beta("inline_tools" if inline else "tool_changes", block.path)


def unverified(check: Check) -> Iterator[Unchecked]:
    """What needs the replies that issued it."""
    kinds = {block.type for message in check.conversation.messages for block in message.blocks}
    if kinds & {"thinking", "redacted_thinking"} and check.memory is None:
        yield Unchecked("B2.10, B2.11, B2.12", "whether thinking is unmodified needs the replies that issued it")
    if "compaction" in kinds and check.memory is None:
        yield Unchecked("B2.19", "whether the compaction block is verbatim needs the reply that issued it")


# Claude's cache marks: how many, in which order, on what (rows 6 to 8 and the caching guide's own rules).

TTLS = ("5m", "1h")


def marks(check: Check) -> Iterator[Finding]:
    """Rows 6 to 8, and A3 on the top-level mark."""
    heads = (mark for block in (*check.conversation.tools, *check.conversation.system) for mark in _mark(block))
    explicit = [*heads, *check.conversation.marks]
    top = check.body.get("cache_control")
    if isinstance(top, dict):
        yield from mark_fields(top, "$.cache_control")
        yield from _top_level(check, explicit, ttl_of(top))
    yield from too_many(check, explicit)
    yield from out_of_order(explicit)


def marks_of(turn: TurnMessage) -> Iterator[Mark]:
    """The marks of a message's blocks and of what stands in them."""
    return (mark for block in _all_blocks(turn.blocks) for mark in _mark(block))


def _mark(block: TurnBlock) -> Iterator[Mark]:
    mark = block.raw.get("cache_control")
    if isinstance(mark, dict):
        yield Mark(block.path, ttl_of(mark))


def too_many(check: Check, found_marks: list[Mark]) -> Iterator[Finding]:
    """Row 6, at the first mark too many."""
    most = check.info.cache.max_breakpoints
    if 0 < most < len(found_marks):
        yield found("B2.6", found_marks[most].path, most=most, found=len(found_marks))


def out_of_order(found_marks: list[Mark]) -> Iterator[Finding]:
    """Row 7, at the first 1h mark behind a 5m one."""
    short = False
    for mark in found_marks:
        if mark.ttl == "1h" and short:
            yield found("B2.7", mark.path)
            return
        short = short or mark.ttl != "1h"


def ttl_of(mark: dict[str, object]) -> str:
    return text(mark.get("ttl")) or TTLS[0]


def _all_blocks(blocks: Iterable[TurnBlock]) -> Iterator[TurnBlock]:
    """Blocks, and before each the blocks inside it: those of a tool result may carry a mark of their own."""
    for block in blocks:
        for path, inner in objects_at(block.raw.get("content"), f"{block.path}.content"):
            yield TurnBlock(text(inner.get("type")), inner, path)
        yield block


def misplaced(blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """A3: marks on what cannot be marked, and a mark's own fields."""
    for block in _all_blocks(blocks):
        mark = block.raw.get("cache_control")
        if mark is not None and block.type in THINKING:
            yield found("A3.markable", block.path)
        elif isinstance(mark, dict):
            yield from mark_fields(mark, f"{block.path}.cache_control")
        for path, citation in objects_at(block.raw.get("citations"), f"{block.path}.citations"):
            if citation.get("cache_control") is not None:
                yield found("A3.markable", path)


def misplaced_in(turn: TurnMessage) -> Iterator[Finding]:
    """A3 in a message; one that passes cannot be marked at all."""
    yield from misplaced(turn.blocks)
    if _is_passing(turn):
        marked = (block for block in turn.blocks if block.raw.get("cache_control") is not None)
        yield from (found("A3.markable", block.path) for block in marked)


def _is_passing(message: TurnMessage) -> bool:
    """A system message that is shown for one turn only."""
    return message.role == "system" and message.raw.get("clear_at") == "next_user_message"


def mark_fields(mark: JsonObject, path: str, kind: str = "ephemeral") -> Iterator[Finding]:
    """A mark's own fields: its type and its life."""
    problems = []
    if mark.get("type") != kind:
        problems.append(f"type should be '{kind}', not {mark.get('type')!r}")
    if mark.get("ttl") is not None and mark["ttl"] not in TTLS:
        problems.append(f"ttl should be '5m' or '1h', not {mark['ttl']!r}")
    yield from (found("A3.mark", path, problem=problem, type=kind, ttls=" or ".join(TTLS)) for problem in problems)


def _top_level(check: Check, explicit: list[Mark], ttl: str) -> Iterator[Finding]:
    """Row 8 and A3: the mark goes to the last block that can carry one."""
    if check.via_bedrock and check.info.features.legacy_bedrock:
        problem = "cache_control: Extra inputs are not permitted"
        yield found("A3.top-level", "$.cache_control", problem=problem, fix="Mark the last block instead.")
        return
    target = _target(check.conversation)
    mark = obj(target.raw.get("cache_control")) if target else {}
    if mark and ttl_of(mark) != ttl:
        yield found("B2.8", "$.cache_control", top=ttl, block=ttl_of(mark))
    elif not mark and len(explicit) >= check.info.cache.max_breakpoints > 0:
        problem = f"A maximum of {len(explicit)} blocks with cache_control may be provided. Found {len(explicit) + 1}."
        fix = "Take one explicit mark off: the top-level one needs a place."
        yield found("A3.top-level", "$.cache_control", problem=problem, fix=fix)
    elif not mark and target:
        # Only a finding of its own: marks among themselves are looked at by `out_of_order`.
        findings = out_of_order([*explicit, Mark("$.cache_control", ttl)])
        yield from (finding for finding in findings if finding.path == "$.cache_control")


def _target(conversation: Conversation) -> TurnBlock | None:
    """The last block that can be marked: not thinking, not empty, not of a passing system message."""
    for message in reversed(conversation.messages):
        for block in reversed(message.blocks):
            empty = block.type == "text" and not block.raw.get("text")
            if block.type not in THINKING and not empty and not _is_passing(message):
                return block
    heads = [*conversation.tools, *conversation.system]
    return heads[-1] if heads else None


# A request in Anthropic's format, rule by rule.


def _head(check: Check) -> Iterator[Finding]:
    yield from blank_texts(check, check.conversation.system)
    yield from misplaced((*check.conversation.tools, *check.conversation.system))
    yield from betas(check, betas_around(check.body))
    mode, choice = obj(check.body.get("thinking")), obj(check.body.get("tool_choice"))
    yield from forced(check, choice.get("type"), "$.tool_choice", mode)
    yield from modes(check, mode, "$.thinking", check.body.get("max_tokens"))
    yield from names(tool_names(check.conversation))
    yield from unique(tool_names(check.conversation))
    yield from edits(check)
    yield from sampling(check)
    yield from prewarm(check)


def _turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from speakers(turn)
    yield from misplaced_in(turn)
    yield from unsigned(check, turn)
    yield from betas(check, betas_in(turn))
    yield from names(called_names(turn))
    yield from version(check, turn)


def _end(check: Check) -> Iterator[Finding]:
    yield from marks(check)
    yield from prefill(check)
    yield from thinking(check)
    yield from size(check)


def _issued(memory: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    content = [block for _, block in objects_at(reply.get("content"), "")]
    remember_reply(memory, body, content, "anthropic")
    for block in content:
        if block.get("type") == "compaction" and text(block.get("signature")):
            memory.sealed.setdefault(block["signature"], fingerprint(block))


def _unchecked(check: Check) -> Iterator[Unchecked]:
    yield from unverified(check)
    uses = (use for turn in check.conversation.messages for use in betas_in(turn))
    around = (use for use in betas_around(check.body) if use.feature != "block_binding")
    if check.betas is None and any(chain(around, uses)):
        yield Unchecked("B.beta", "whether the beta headers are sent needs the request's headers")
    if check.body.get("max_tokens") is None:
        yield Unchecked("max_tokens", "the API requires max_tokens; it is not in this body")


RULES = WireRules(
    body=anthropic_body,
    message=anthropic_message,
    head=_head,
    turn=_turn,
    along=(Pairs, CallIds, Blanks, LateSystem, Compaction),
    end=_end,
    marks=marks_of,
    issued=_issued,
    observed=lambda memory, body: remember(memory, conversation(body, "anthropic")),
    unchecked=_unchecked,
)
