"""Claude's turns: calls and results, speakers, names, texts, thinking and compactions, in Anthropic's requests and in Bedrock's.

Blocks keep the path they have in the request; their content is in Anthropic's words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from quire.providers.models import data
from quire.providers.rules.check import (
    Check,
    Conversation,
    Finding,
    IssuedBlock,
    Sequel,
    ServerMemory,
    TurnBlock,
    TurnMessage,
    chain,
    conversation,
    finding,
    fingerprint,
    limit,
    where,
)
from quire.providers.rules.grammar import grammar_of, misfits, objects_at, shape
from quire.values import Json, JsonObject, as_list, as_object, as_objects, as_text, value_at


def last_turn(messages: Sequence[TurnMessage]) -> tuple[str, list[TurnBlock]]:
    """Who spoke last and what they said: neighbours of one role are one turn, system messages are left out."""
    role, spoken = "", list[TurnMessage]()
    for message in reversed(messages):
        if message.role not in ("user", "assistant"):
            continue
        if role not in ("", message.role):
            break
        role = message.role
        spoken.append(message)
    return role, [block for message in reversed(spoken) for block in message.blocks]


def pieces(conversation: Conversation) -> Iterator[tuple[str, Json]]:
    """Everything a thinking block is bound to, in order, each with its role."""
    yield from (("tools", block.raw) for block in conversation.tools if block.type != "cache_point")
    yield from (("system", block.raw) for block in conversation.system if block.type != "cache_point")
    for message in conversation.messages:
        yield from ((message.role, block.raw) for block in message.blocks if block.type != "cache_point")


# Claude's calls and results: every tool_use answered in the next message, results first (rows 1 to 3).
#
# And whose they are: a call is the assistant's, its result the user's.


class Pairs(Sequel):
    """Rows 1 to 3; neighbours of one role are joined as the API joins them, system messages left out."""

    # The row, and the case of it, of a call without a result and of a result without a call.
    unanswered, unasked = ("B2.1", ""), ("B2.2", "")

    def __init__(self) -> None:
        self._role = ""
        # The calls of the newest assistant turn, those that are answered, and the ids that results may name.
        self._calls: list[TurnBlock] = []
        self._answered_ids: set[str] = set()
        self._waiting: Counter[str] = Counter()
        # Whether what the server holds is answered, and whether something else stands before a result.
        self._elsewhere = self._others = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role == "assistant":
            if self._role != "assistant":
                yield from self._unanswered_calls()
                self._calls, self._answered_ids = [], set()
            self._calls += turn.of("tool_use")
        elif turn.role == "user":
            if self._role != "user":
                # A continued thread's first message answers calls that the server holds.
                continued = value_at(check.body, "thread", "type") == "continue"
                self._elsewhere, self._others = continued and not self._role, False
                self._waiting = Counter(as_text(call.raw.get("id")) for call in self._calls)
            for block in turn.blocks:
                yield from self._result(block)
        self._role = turn.role if turn.role in ("user", "assistant") else self._role

    def end(self, check: Check) -> Iterator[Finding]:
        # A compaction request that stops behind a call breaks row 19.
        if self._role != "assistant" or not check.body.get("compaction"):
            yield from self._unanswered_calls()

    def _result(self, block: TurnBlock) -> Iterator[Finding]:
        if block.type == "tool_result":
            id = as_text(block.raw.get("tool_use_id"))
            if self._waiting[id] < 1 and not self._elsewhere:
                row, case = self.unasked
                yield finding(row, block.path, case, id=id or "(no id)")
            if self._others:
                yield finding("B2.3", block.path)
            self._waiting[id] -= 1
            self._answered_ids.add(id)
        self._others = self._others or block.type not in ("tool_result", "cache_point")

    def _unanswered_calls(self) -> Iterator[Finding]:
        row, case = self.unanswered
        for call in self._calls:
            if as_text(call.raw.get("id")) not in self._answered_ids:
                yield finding(row, call.path, case, id=as_text(call.raw.get("id")) or "(no id)")


class CallIds(Sequel):
    """Row 1b: ids of calls, each once, in letters that the API takes."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        for use in turn.of("tool_use"):
            id = as_text(use.raw.get("id"))
            if id and not re.fullmatch(limit("tool_id"), id):
                yield finding("B2.1b", f"{use.path}.id", "letters", pattern=limit("tool_id"))
            elif id in self._ids:
                yield finding("B2.1b", f"{use.path}.id", "twice", block=where(use.path), id=id)
            self._ids.add(id)


# Whose messages a block may stand in.
_SPEAKERS = {"tool_use": "assistant", "tool_result": "user", "thinking": "assistant", "redacted_thinking": "assistant"}


def speakers(turn: TurnMessage) -> Iterator[Finding]:
    """Blocks in a message of the wrong role."""
    for block in turn.blocks:
        speaker = _SPEAKERS.get(block.type, turn.role)
        if turn.role in ("user", "assistant", "system") and turn.role != speaker:
            yield shape(block.path, "speaker", type=block.type, speaker=speaker)


# Tool names, in definitions and in calls (row 17), and Anthropic's demand that they differ.


def names(names_at: Iterable[tuple[str, Json]], row: str = "B2.17", allowed: str = "tool_name") -> Iterator[Finding]:
    """Row 17 over (path, name); what is no string has the wrong shape and is not looked at here."""
    pattern = limit(allowed)
    for path, name in names_at:
        if isinstance(name, str) and not re.fullmatch(pattern, name):
            yield finding(row, path, name=name, pattern=pattern, most=limit("tool_name_length"))


def unique(names_at: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """The second tool of one name."""
    names_before: set[str] = set()
    for path, name in names_at:
        if isinstance(name, str) and name in names_before:
            yield finding("B.tool-unique", path, name=name)
        if isinstance(name, str):
            names_before.add(name)


# Types of an Anthropic request and of its messages, and where its tool names are.


def anthropic_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the messages, and that there is one."""
    if check.body.get("messages") == [] and not check.body.get("system"):
        yield shape("$.messages", "no message")
    yield from misfits(check.body, "@body", "$", grammar_of("anthropic"))


def anthropic_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of a message; content may be absent where a system message sets the effort alone."""
    configures = turn.role == "system" and bool(turn.raw.get("output_config"))
    message = {"content": "", **turn.raw} if configures else turn.value
    yield from misfits(message, "@message", turn.path, grammar_of("anthropic"))


def tool_names(blocks: Iterable[TurnBlock]) -> Iterator[tuple[str, Json]]:
    """The names of the tools that these blocks define, or call."""
    yield from ((f"{block.path}.name", block.raw.get("name")) for block in blocks)


def version(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """What the newest API version no longer takes: documents from the assistant, citations on the user's text."""
    if check.version < data("rules")["versions"]["anthropic_no_sampling"]:
        return
    for block in turn.blocks:
        if block.type == "document" and turn.role == "assistant":
            yield finding("B.version", block.path, "document")
        if block.type == "text" and turn.role == "user" and block.raw.get("citations"):
            yield finding("B.version", f"{block.path}.citations", "citations")


# Claude's texts: not empty, through Bedrock not blank, no cache mark on nothing (rows 4, 4b, 5).


class Blanks(Sequel):
    """Rows 4, 4b and 5 in messages and tool results; which of them it is follows from marks, and these move."""

    def __init__(self) -> None:
        self._blank = list[int]()

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        self._blank += [turn.index] if any(_blank(check, turn)) else []
        yield from ()

    def end(self, check: Check) -> Iterator[Finding]:
        # The last assistant message may be empty where it is a prefill.
        turns, prefill = check.conversation.messages, check.info.features.prefill
        for turn in (turns[place] for place in self._blank):
            if not (prefill and turn is turns[-1] and turn.role == "assistant"):
                yield from _blank(check, turn)


def _blank(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    if turn.raw.get("content") == [] and not turn.raw.get("output_config"):
        yield finding("B2.4", turn.path)
    if turn.raw.get("content") == "":
        yield finding("B2.4", f"{turn.path}.content")
    yield from blank_texts(check, turn.blocks)


def blank_texts(check: Check, blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """Texts that say nothing, among these blocks and in tool results among them."""
    for block in blocks:
        inner = objects_at(block.raw.get("content"), f"{block.path}.content")
        texts = inner if block.type == "tool_result" else [(block.path, block.raw)]
        for path, raw in texts:
            words = raw.get("text") if raw.get("type") == "text" else None
            if words == "":
                yield finding("B2.5" if raw.get("cache_control") else "B2.4", path)
            elif isinstance(words, str) and not words.strip() and check.via_bedrock:
                yield finding("B2.4b", path)


# Claude's thinking blocks go back unmodified, behind the prefix they are bound to (rows 10 to 12).
#
# Without a server's memory (`seen`) only a missing signature can be told.

THINKING = frozenset({"thinking", "redacted_thinking"})


class SignedThinking(msgspec.Struct, frozen=True):
    """A thinking block of a request: its signature, what stands before it and what it holds."""

    key: str
    block: TurnBlock
    message: int
    prefix: str
    content: str


def unsigned_thinking(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 12: thinking without a signature."""
    # Local engines speak Anthropic's format but sign nothing.
    if check.info.features.signed_thinking:
        missing = (block for block in turn.of("thinking") if not as_text(block.raw.get("signature")))
        yield from (finding("B2.12", block.path) for block in missing)


def thinking(check: Check) -> Iterator[Finding]:
    """Rows 10, 11 and 12, and 12b: the calls that the request answers stand behind their thinking, if enabled."""
    if not check.info.features.signed_thinking:
        return
    extra = as_object(check.body.get("additionalModelRequestFields"))
    if as_object(check.body.get("thinking", extra.get("thinking"))).get("type") == "enabled":
        yield from _in_front(check.conversation)
    if check.memory is not None:
        yield from _against(check, check.memory, check.conversation)


def _in_front(conversation: Conversation) -> Iterator[Finding]:
    newest_first = (message for message in reversed(conversation.messages) if message.role != "system")
    last, before = next(newest_first, None), next(newest_first, None)
    if last is None or before is None or last.role != "user" or not last.of("tool_result"):
        return
    blocks = [block for block in before.blocks if block.type != "cache_point"]
    called = next((block for block in blocks if block.type == "tool_use"), None)
    if called is not None and blocks[0].type not in THINKING:
        yield finding("B2.12b", called.path)


def _against(check: Check, memory: ServerMemory, conversation: Conversation) -> Iterator[Finding]:
    latest = next((turn.index for turn in reversed(conversation.messages) if turn.role == "assistant"), None)
    sent = list(signed_thinking(conversation))
    modified = False
    for thought in sent:
        issued = memory.signed.get(thought.key)
        if issued is None:
            if memory.complete:
                yield finding("B2.12", thought.block.path)
        elif issued.content != thought.content:
            modified = modified or thought.message == latest
            yield finding("B2.10" if thought.message == latest else "B2.12", thought.block.path)
        elif issued.prefix != thought.prefix and _is_bound(check, memory):
            yield finding("B2.11", thought.block.path)
    if not modified and latest is not None:
        keys = [thought.key for thought in sent if thought.message == latest]
        yield from _incomplete(memory, conversation.messages[latest], keys)


def _incomplete(memory: ServerMemory, message: TurnMessage, keys: list[str]) -> Iterator[Finding]:
    """Row 10 for blocks of the latest message that were taken out or moved; all or none must be there."""
    replies = dict.fromkeys(memory.signed[key].reply for key in keys if key in memory.signed)
    expected = [key for reply in replies for key in reply]
    if expected and all(key in memory.signed for key in keys) and keys != expected:
        yield finding("B2.10", message.path)


def _is_bound(check: Check, memory: ServerMemory) -> bool:
    """Whether a changed prefix is an error: by model, by account, and unless the request says drop_block."""
    binding = as_object(value_at(check.body, "thinking", "block_binding"))
    behavior = binding.get("prefix_mismatch_behavior")
    if behavior == "drop_block":
        return False
    bound = check.info.features.thinking_bound
    return bound == "always" or (bound == "by-account" and (memory.enforce or behavior is not None))


def signed_thinking(conversation: Conversation) -> Iterator[SignedThinking]:
    """Every signed thinking block of a conversation, with the hash of what stands before its turn."""
    heads = sum(block.type != "cache_point" for block in (*conversation.tools, *conversation.system))
    hashes = iter(list(chain(pieces(conversation)))[heads:])
    role = before = ""
    for message in conversation.messages:
        for block in message.blocks:
            if block.type == "cache_point":
                continue
            prefix, content = next(hashes)
            # Neighbours of one role are one turn, and what stands inside it is no part of its prefix.
            if message.role != role:
                role, before = message.role, prefix
            signature, hidden = as_text(block.raw.get("signature")), as_text(block.raw.get("data"))
            if block.type == "redacted_thinking" and hidden:
                yield SignedThinking(f"redacted:{hidden}", block, message.index, before, content)
            elif block.type == "thinking" and signature:
                yield SignedThinking(signature, block, message.index, before, content)


def remember(memory: ServerMemory, conversation: Conversation, *, since: int = 0) -> None:
    """Record the thinking blocks of a conversation's messages from `since` on as given out there."""
    thoughts = (block for block in signed_thinking(conversation) if block.message >= since)
    for _, run in groupby(thoughts, key=lambda block: block.message):
        blocks = list(run)
        reply = tuple(block.key for block in blocks)
        for thought in blocks:
            # The first block to carry a signature stays.
            memory.signed.setdefault(thought.key, IssuedBlock(thought.prefix, thought.content, reply))


def remember_reply(memory: ServerMemory, body: JsonObject, content: Json, wire: str) -> None:
    """Record the thinking blocks of a reply to a body."""
    messages = as_objects(body.get("messages"))
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": content}]}
    remember(memory, conversation(whole, wire), since=len(messages))


# Claude's context management: order of edits, and the compaction block first, alone, verbatim (rows 18, 19).

_THRESHOLD = "compact_20260112"


def edits(check: Check) -> Iterator[Finding]:
    """Row 18."""
    management = check.body.get("context_management")
    listed = list(objects_at(value_at(management, "edits"), "$.context_management.edits"))
    for index, (path, edit) in enumerate(listed):
        if as_text(edit.get("type")).startswith("clear_thinking") and index:
            yield finding("B2.18", path, "order")
    if check.body.get("compaction") and management:
        yield finding("B2.18", "$.compaction", "both")


class Compaction(Sequel):
    """Row 19. A threshold compaction's blocks stand behind what they summarise and are left alone."""

    _compacted = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        # A block with null content is a compaction that failed; the server passes over it.
        compactions = [block for block in turn.of("compaction") if block.raw.get("content") is not None]
        edits = as_objects(value_at(check.body, "context_management", "edits"))
        if not compactions or any(edit.get("type") == _THRESHOLD for edit in edits):
            return
        for block in compactions:
            if self._compacted:
                yield finding("B2.19", block.path, "ambiguous")
            elif turn.index or turn.role == "system" or block is not turn.blocks[0]:
                yield finding("B2.19", block.path, "misplaced")
            self._compacted = True
            yield from _verbatim(check.memory, block)

    def end(self, check: Check) -> Iterator[Finding]:
        if check.body.get("compaction"):
            yield from _request(check)


def _verbatim(memory: ServerMemory | None, block: TurnBlock) -> Iterator[Finding]:
    signature = as_text(block.raw.get("signature"))
    if block.raw.get("content") == "":
        yield finding("B2.19", block.path, "empty")
    elif memory is not None and signature in memory.sealed:
        if memory.sealed[signature] != fingerprint(block.raw):
            yield finding("B2.19", block.path, "changed")
    elif memory is not None and memory.complete:
        yield finding("B2.19", block.path, "unsigned")


def _request(check: Check) -> Iterator[Finding]:
    role, blocks = last_turn(check.conversation.messages)
    kinds = [block.type for block in blocks]
    if not any(turn.blocks for turn in check.conversation.messages if turn.role in ("user", "assistant")):
        yield finding("B2.19", "$.messages", "nothing")
    elif role == "assistant" and ("tool_use" in kinds or kinds[-1:] == ["server_tool_use"]):
        yield finding("B2.19", check.conversation.messages[-1].path, "unfinished")


# What each model takes of turns: a prefill, late instructions, a forced tool, ways of thinking (rows 9, 14, 15, 16).


def prefill(check: Check) -> Iterator[Finding]:
    """Row 9: newer models do not continue a last assistant message, older ones none that ends in white space."""
    messages = check.conversation.messages
    if not check.model_named or not messages or messages[-1].role != "assistant":
        return
    if check.info.features.prefill:
        if not check.info.features.blank_prefill and ends_blank(messages[-1].raw):
            yield finding("B2.9", messages[-1].path, "space")
        return
    # A compaction request may end on the assistant; this token allows one prefill.
    if check.body.get("compaction") or check.body.get("fallback_credit_token"):
        return
    kinds = [block.type for block in last_turn(messages)[1]] or ["text"]
    # Text at the end would be continued; an unfinished server tool or a compaction is resumed, a call is row 1.
    if "tool_use" not in kinds and kinds[-1] in ("text", "thinking", "redacted_thinking", "image", "document"):
        yield finding("B2.9", messages[-1].path)


def ends_blank(message: JsonObject) -> bool:
    """Whether white space ends a message."""
    content = message.get("content")
    text = content if isinstance(content, str) else value_at(next(iter(as_list(content)[-1:]), None), "text")
    return as_text(text)[-1:].isspace()


class LateSystem(Sequel):
    """Row 14: where a system message may stand, and on which models."""

    _before: TurnMessage | None = None
    # A system message that stands well, if the model speaks next.
    _waits = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        before, waited = self._before, self._waits
        self._before, self._waits = turn, False
        if before is not None and waited and turn.role != "assistant":
            # Where it parts nothing, the API has been seen to take it.
            yield finding("B2.14", before.path, "before", sure=False)
        if turn.role != "system":
            return
        if check.model_named and not check.info.features.late_system:
            yield finding("B2.14", turn.path, "model", sure=check.info.known)
        elif before is None:
            yield finding("B2.14", turn.path, "first")
        elif before.of("tool_use") and before.role == "assistant":
            yield finding("B2.14", turn.path, "between")
        elif before.role != "user" and not _ends_in_server_result(before):
            yield finding("B2.14", turn.path, "after", sure=False)
        else:
            self._waits = True


def _ends_in_server_result(turn: TurnMessage) -> bool:
    last = turn.blocks[-1].type if turn.blocks else ""
    return turn.role == "assistant" and last.endswith("_tool_result")


def forced_tools(check: Check, kind: object, path: str, thinking: JsonObject) -> Iterator[Finding]:
    """Row 15: newer models choose their tools themselves; so does enabled thinking."""
    refused = check.model_named and kind not in check.info.features.tool_choice
    if kind in ("any", "tool") and (refused or thinking.get("type") == "enabled"):
        yield finding("B2.15", path, type=kind)


def modes(check: Check, thinking: JsonObject, path: str, max_tokens: object) -> Iterator[Finding]:
    """Row 16: which ways of thinking a model knows, and how much it may think."""
    kind, allowed = thinking.get("type"), check.info.features.thinking
    if not thinking:
        return
    if check.model_named and allowed and kind not in allowed:
        case = "adaptive" if "adaptive" in allowed else "type"
        # Which models take other types than these the table does not say.
        sure = kind in ("enabled", "disabled", "adaptive")
        yield finding("B2.16", path, case, sure=sure, kind=kind, allowed=" or ".join(allowed))
    elif kind == "enabled":
        yield from _budget(thinking.get("budget_tokens"), max_tokens, path)


def _budget(budget: object, max_tokens: object, path: str) -> Iterator[Finding]:
    least = limit("thinking_budget")
    if not isinstance(budget, int) or budget < least:
        yield finding("B2.16", path, "least", least=least)
    elif isinstance(max_tokens, int) and budget >= max_tokens:
        yield finding("B2.16", path, "most")
