"""The repairs of `quire proxy --mend`, one rule each: a head that stays as it was first sent, what is new behind it.

A rule sees what the application sends and what it sent before. A change is told at the end of the conversation, and
stays at that place in every later request. Nothing is ever put between messages that were sent.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain, count, takewhile
from operator import getitem, is_
from typing import NamedTuple

import msgspec

from quire.audit.first_difference import ID, TIME, tool_name
from quire.fitting import unmarked_message
from quire.providers.cache_marks import Marker
from quire.providers.models import ModelInfo, data
from quire.providers.prefix import MARKS, Path, bare, changed_body, same_start, write_value
from quire.providers.rules import GrowingCheck
from quire.providers.wires import Wire
from quire.values import Json, JsonObject, as_object, as_objects, cached_property, value_at


class Patch(NamedTuple):
    """A text as what stands between the start and the end that it shares with another."""

    start: int
    middle: str
    end: int

    def of(self, other: str) -> str:
        return other[: self.start] + self.middle + other[len(other) - self.end :]


def patch(first: str, text: str) -> Patch:
    """A text by another that it is much like: "It is 9.", "It is 10." -> (6, "10", 1)."""
    start = same_start(first, text)
    end = same_start(first[start:][::-1], text[start:][::-1])
    return Patch(start, text[start : len(text) - end], end)


class HeadChanges(msgspec.Struct):
    """What a model was told of the head since it was first sent, up to one of the messages."""

    # The texts by where they stand; early messages by their place. As patches of what was first sent: a head is long, and a
    # conversation has many additions.
    texts: dict[Path, Patch] = {}
    # The definitions of late tools, by name.
    late_tools: dict[str, bytes] = {}
    effort: str = ""


class Addition(msgspec.Struct):
    """What was put behind a message: texts that joined it, messages of their own, and all that was told by then."""

    texts: list[str] = []
    messages: list[JsonObject] = []
    changes: HeadChanges = msgspec.field(default_factory=HeadChanges)

    def add(self, message: JsonObject) -> None:
        """One message more; of two system messages in a row Anthropic takes one."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == message.get("role") == "system":
            self.messages[-1] = {**last, **message, "content": [*last["content"], *message["content"]]}
        else:
            self.messages.append(message)


class SentMessages:
    """What a conversation's requests are marked and checked by: of each only what is new is looked at."""

    def __init__(self, info: ModelInfo) -> None:
        self.marker, self.check = Marker(info, frozen=True), GrowingCheck()
        # The newest request's messages, without marks, by their digests; the application's plain digests by identity.
        self._messages: dict[bytes, Json] = {}
        self.plain: dict[int, bytes] = {}

    def standing(self, messages: Sequence[Json]) -> tuple[list[bytes], list[Json]]:
        """The digests of the next request's messages, and these: those that were sent before are the very same objects."""
        digests = [hashlib.blake2b(write_value(message), digest_size=16).digest() for message in messages]
        self._messages = {key: self._messages.get(key, new) for key, new in zip(digests, messages, strict=True)}
        return digests, [self._messages[key] for key in digests]


class HeadState(msgspec.Struct):
    """What a conversation's next request is compared with."""

    # The newest request in the words of the application, its head as first sent.
    newest: JsonObject
    # What was put behind messages, by `BodyDraft.ends`.
    additions: dict[str, Addition] = {}
    # The names of all tools there were, in the order of their arrival.
    tools: tuple[str, ...] = ()
    # How many bytes the newest request has.
    size: int = 0


class BodyDraft:
    """One request while rules mend it: they put its head back as first sent, and tell behind the newest message what it says."""

    def __init__(
        self,
        given: JsonObject,
        wire: Wire,
        sent: SentMessages,
        before: HeadState | None = None,
        rules: Sequence[str] = (),
    ) -> None:
        self.given = self.body = given
        self.wire, self.sent, self.rules, self.info = wire, sent, rules, sent.marker.info
        self.state = copy.copy(before or HeadState(given))
        # What the model knows by the newest message, and what it is told there: the same may have been sent before.
        standing = [*map(self.state.additions.get, self.ends)] if self.state.additions else [None]
        known = next((addition.changes for addition in reversed(standing) if addition is not None), HeadChanges())
        addition = standing[-1] or Addition()
        self.changes, self.addition = copy.copy(known), Addition([*addition.texts], [*addition.messages])
        # Texts of the head that are again as first sent; the headers it needs; the digests of messages that were marked.
        self.restored, self.betas, self.lines = set[Path](), list[str](), list[bytes]()

    @property
    def messages(self) -> list[Json]:
        return list(self.body[self.wire.layout.field])

    @cached_property
    def ends(self) -> list[str]:
        """For each message a hash of all up to it, with what was put behind earlier ones.

        Of the first two, which may be another context each time, it says only their kind.
        """
        running, ends = hashlib.sha256(), list[str]()
        for at, message in enumerate(self.given[self.wire.layout.field]):
            running.update(self.digest(message) if at > 1 else bytes([self._can_join(message)]))
            ends.append(running.hexdigest())
            if addition := self.state.additions.get(ends[-1]):
                running.update(write_value([addition.texts, addition.messages]))
        return ends

    @cached_property
    def texts(self) -> tuple[dict[Path, str], dict[Path, str]]:
        """The texts of the head, as first sent and as the application says them now."""
        return dict(head_texts(self.state.newest, self.wire)), dict(head_texts(self.given, self.wire))

    def _can_join(self, message: Json) -> bool:
        return isinstance(message, dict) and tail_text(message, "", self.wire.name, self.info) is not None

    @property
    def takes_text(self) -> bool:
        """Whether something can be told behind the newest message."""
        return self._can_join(self.messages[-1])

    @property
    def waits(self) -> bool:
        """Whether a text that cannot be told now is told behind a later message."""
        return self.wire.name == "gemini" and not self.takes_text

    def digest(self, message: Json) -> bytes:
        """What a message is known by, whatever its marks and the order of its keys."""
        return self.sent.plain.get(id(message)) or plain_digest(message)

    def tell(self, tag: str, text: str) -> None:
        self.addition.texts.append(f"<{tag}>\n{text}\n</{tag}>")

    def known_text(self, path: Path, first: str) -> str:
        """What the model knows to stand at a place by now: what it was told last, else what was first sent."""
        change = self.changes.texts.get(path)
        return first if change is None else change.of(first)

    def note_text(self, path: Path, first: str, now: str) -> None:
        """Note that the model was told what stands at a place now."""
        self.changes.texts = {**self.changes.texts, path: patch(first, now)}

    def means_the_same(self) -> bool:
        """Whether the head as first sent, and what can be told of it since, come to what the application says now."""
        first, now = self.texts
        sent, before = (
            [write_value(bare(tool)) for tool in as_objects(body.get("tools"))]
            for body in (self.body, self.state.newest)
        )
        offered = {**_definitions(self.body), **self.changes.late_tools} if self.changes.late_tools else {}
        fronts = {path: _joined_texts(_value(self.given, path)) for path in self.changes.texts if path not in first}
        return (
            (self.takes_text or not (self.addition.texts or self.addition.messages))
            and first.keys() == now.keys()
            and all(text == first[path] or path in self.restored for path, text in now.items())
            and (self.waits or all(self.known_text(path, first[path]) == text for path, text in now.items()))
            and all(self.known_text(path, "") == text for path, text in fronts.items())
            and sent == before
            and (not offered or offered == _definitions(self.given))
            and (self.changes.effort or _effort(self.body, self.wire)) == _effort(self.given, self.wire)
        )

    def put_additions(self) -> bool:
        """Put earlier additions behind the messages that they followed, and the new one behind the last."""
        if self.addition.texts or self.addition.messages:
            self.addition.changes = self.changes
            self.state.additions = {**self.state.additions, self.ends[-1]: self.addition}
        if self.state.additions.keys().isdisjoint(self.ends if self.state.additions else ()):
            return False
        out = list[Json]()
        for message, end in zip(self.messages, self.ends, strict=True):
            addition, following = self.state.additions.get(end, Addition()), list[JsonObject]()
            for text in addition.texts:
                message, more = tail_text(message, text, self.wire.name, self.info) or (message, [])
                following += more
            out += [message, *following, *addition.messages]
        self.body = {**self.body, self.wire.layout.field: out}
        return True


# Where a text can join: the end of the user's message, or a message of its own behind it.


def tail_text(last: JsonObject, text: str, wire: str, info: ModelInfo) -> tuple[JsonObject, list[JsonObject]] | None:
    """The last message with a text behind it, and messages that follow it; None where it can take none."""
    match wire:
        case "openai-responses":
            piece = {"type": "input_text", "text": text}
            return last, [{"type": "message", "role": "developer", "content": [piece]}]
        case "anthropic" if last.get("role") == "user":
            return {**last, "content": _joined_blocks(as_blocks(last.get("content")), text)}, []
        case "openai-chat" if last.get("role") == "user":
            content = last.get("content")
            if isinstance(content, str):
                return {**last, "content": f"{content}\n\n{text}"}, []
            return {**last, "content": _joined_blocks(list(content or ()), text)}, []
        case "openai-chat" if last.get("role") == "tool" and not info.features.template:
            return last, [{"role": "system", "content": text}]
        case "gemini" if last.get("role") == "user" and all("text" in part for part in last.get("parts") or ()):
            return {**last, "parts": [*last["parts"], {"text": text}]}, []
    return None


def as_blocks(content: Json) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _joined_blocks(blocks: list[Json], text: str) -> list[Json]:
    """Blocks with a text behind them; a mark on the last block moves to the text, or it would be paid for twice."""
    last, mark = blocks[-1] if blocks else None, {}
    if isinstance(last, dict):
        blocks[-1], mark = bare(last), {name: last[name] for name in MARKS if name in last}
    return [*blocks, {"type": "text", "text": text, **mark}]


# JSON keys in the order first sent.


def key_order(draft: BodyDraft) -> bool:
    before, now = draft.state.newest, draft.body
    fields = [name for name in ("tools", *_SYSTEM_FIELDS, draft.wire.layout.field) if name in before and name in now]
    better = {name: ordered_like(now[name], before[name]) for name in fields}
    if all(better[name] is now[name] or write_value(better[name]) == write_value(now[name]) for name in fields):
        return False
    draft.body = {**now, **better}
    return True


_SYSTEM_FIELDS = ("system", "instructions", "systemInstruction", "system_instruction")


def ordered_like(now: Json, like: Json) -> Json:
    """The same value, its keys in another's order: {"b": 1, "a": 2}, {"a": 0, "b": 0} -> {"a": 2, "b": 1}."""
    if isinstance(now, dict) and isinstance(like, dict):
        names = [*(name for name in like if name in now), *(name for name in now if name not in like)]
        return {name: ordered_like(now[name], like.get(name)) for name in names}
    if isinstance(now, list) and isinstance(like, list):
        pairs = zip(now, like, strict=False)
        front = [new if write_value(new) == write_value(old) else ordered_like(new, old) for new, old in pairs]
        return now if all(map(is_, front, now)) else [*front, *now[len(like) :]]
    return now


# Tools in the order first sent; new ones by an appended item where the provider has one.


def tool_order(draft: BodyDraft) -> bool:
    tools = draft.body.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return False
    rows = (as_objects(draft.state.newest.get("tools")), tools)
    names = (tool_name(tool) for row in rows for tool in offered_tools(row))
    draft.state.tools = tuple(dict.fromkeys((*draft.state.tools, *names)))
    ranks = {name: rank for rank, name in enumerate(draft.state.tools)}
    better = [
        {**tool, field: sorted(tool[field], key=lambda inner: ranks[tool_name(inner)])}
        if (field := _inner_field(tool))
        else tool
        for tool in tools
    ]
    better.sort(key=lambda tool: min((ranks[tool_name(inner)] for inner in offered_tools([tool])), default=0))
    if list(map(write_value, better)) == list(map(write_value, tools)):
        return False
    draft.body = {**draft.body, "tools": better}
    return True


def _inner_field(tool: JsonObject) -> str:
    return next((name for name in ("functionDeclarations", "function_declarations") if tool.get(name)), "")


def offered_tools(tools: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """The tools that a request lists; Gemini's stand together in one."""
    for tool in tools:
        field = _inner_field(tool)
        yield from tool[field] if field else (tool,)


def late_tools(draft: BodyDraft) -> bool:
    first, now = (as_objects(body.get("tools")) for body in (draft.state.newest, draft.body))
    if not (first and draft.info.features.late_tools and draft.wire.late_tools):
        return False
    before, offered = _definitions(draft.state.newest), _definitions(draft.body)
    new = [tool for tool in now if tool_name(tool) not in before]
    untold = [tool for tool in new if tool_name(tool) not in draft.changes.late_tools]
    if not new or not before.items() <= offered.items():
        return False
    if untold and draft.wire.name == "anthropic":
        inline = [{"type": "tool_definition", "definition": bare(tool)} for tool in untold]
        content = [{"type": "tool_addition", "tool": definition} for definition in inline]
        draft.addition.add({"role": "system", "content": content})
    elif untold:
        draft.addition.add({"type": "additional_tools", "role": "developer", "tools": untold})
    draft.changes.late_tools = {**draft.changes.late_tools, **{name: offered[name] for name in map(tool_name, untold)}}
    draft.body = {**draft.body, "tools": first}
    return True


def _definitions(body: JsonObject) -> dict[str, bytes]:
    """The tools that a request lists, by name, whatever their marks and the order of their keys."""
    return {tool_name(tool): write_value(bare(tool), "sorted") for tool in as_objects(body.get("tools"))}


# How hard to think: the request's own setting stays, a change is an appended item.


_EFFORTS = {"openai-responses": "reasoning", "anthropic": "output_config"}


def _effort(body: JsonObject, wire: Wire) -> str:
    return str(value_at(body, _EFFORTS.get(wire.name, ""), "effort") or "")


def late_effort(draft: BodyDraft) -> bool:
    first, now = (_effort(body, draft.wire) for body in (draft.state.newest, draft.body))
    current = draft.changes.effort or first
    if not (first and now and draft.info.features.late_effort) or now == current == first:
        return False
    holder = _EFFORTS[draft.wire.name]
    if now != current and holder == "reasoning":
        draft.addition.add({"type": "configuration_update", "reasoning": {"effort": now}})
    elif now != current:
        draft.addition.add({"role": "system", "content": [], "output_config": {"effort": now}})
    draft.changes.effort = now
    draft.body = {**draft.body, holder: {**draft.body[holder], "effort": first}}
    return True


def needed_betas(messages: Sequence[Json]) -> list[str]:
    """The headers that Anthropic asks for, by what stands in the messages."""
    betas, named = data("rules")["betas"], list[str]()
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "system":
            kinds = [block.get("type") for block in as_objects(message.get("content"))]
            named += [betas["tool_changes"], betas["inline_tools"]] if "tool_addition" in kinds else []
            named += [betas["output_config"]] if "output_config" in message else []
    return list(dict.fromkeys(named))


# What changes in the head: clocks, folders, the state of a repository; what was retrieved.


def head_texts(body: JsonObject, wire: Wire) -> Iterator[tuple[Path, str]]:
    """The texts of the system prompt, with where they stand."""
    leading = map(wire.layout.message, wire.layout.messages(body), count())
    for unit in chain(wire.layout.head(body), takewhile(lambda unit: unit.section == "system", leading)):
        if unit.section == "system":
            path = unit.path or tuple(name for name in _SYSTEM_FIELDS if name in body)[:1]
            yield from _texts_below(_value(body, path) if path else None, path)


def _value(body: JsonObject, path: Path) -> Json:
    return reduce(getitem, path, body)  # type: ignore[arg-type]


def _texts_below(value: Json, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    inner = value if isinstance(value, list) else ()
    for at, item in enumerate(inner):
        yield from _texts_below(item, (*path, at))
    for name in ("text", "content", "parts") if isinstance(value, dict) else ():
        if name in value:
            yield from _texts_below(value[name], (*path, name))


_STATE = re.compile(
    r"\b(cwd|pwd|working dir\w*|current (date|time|directory|branch|file|folder)|today|branch|git|commit|uptime"
    r"|(session|request|trace) id|timestamp|open files?|recent files?|environment|env|workspace state)\b|^.?[MADRCU?]{1,2} \S",
    re.I,
)
_RETRIEVED = re.compile(
    r"\b(context|documents?|retrieved|search.results?|knowledge|memor(y|ies)|snippets?|references|sources|passages)\b",
    re.I,
)
_MOST_LINES = 4_000


def retrieved(draft: BodyDraft) -> bool:
    fired = _changed_head(draft, "retrieved")
    return _changed_front(draft) or fired


_TAGS = {"volatile": "current-state", "retrieved": "context"}


def _changed_head(draft: BodyDraft, kind: str) -> bool:
    """Send the head as it was first sent, and tell behind the conversation what has changed in it.

    A text in which another rule's changes stand too is sent so where that rule is on.
    """
    first, now = draft.texts
    # What the model knows by now: what is again as it was first has to be told, too.
    known = {path: draft.known_text(path, first.get(path, "")) for path in now}
    changed = [path for path in now if path not in draft.restored and not first.get(path) == now[path] == known[path]]
    if first.keys() != now.keys() or not changed:
        return False
    # Against what stands in the head, and against what was told of it last.
    olds = {path: {first[path], known[path]} - {now[path]} for path in changed}
    kinds = {path: {name for old in olds[path] for name, _ in changed_sections(old, now[path])} for path in changed}
    fits = [path for path in changed if {kind} <= kinds[path] <= {kind, *draft.rules}]
    untold = [path for path in fits if known[path] != now[path]]
    if not fits:
        return False
    for path in fits:
        if path in untold and not draft.waits:
            sections = changed_sections(known[path], now[path])
            for name in dict.fromkeys(name for name, _ in sections):
                draft.tell(_TAGS[name], "\n".join(dict.fromkeys(text for about, text in sections if about == name)))
            draft.note_text(path, first[path], now[path])
        draft.body = changed_body(draft.body, path, lambda _, path=path: first[path])  # type: ignore[misc]
    draft.restored.update(fits)
    return True


# A head is looked at by each rule, against what it was first and against what was told of it last.
@lru_cache(maxsize=8)
def changed_sections(old: str, new: str) -> Sequence[tuple[str, str]]:
    """What each change is about (volatile, retrieved, or "" for anything else), and what its section says now.

    Lines that are gone come last, or what is told below them would be taken for gone, too.
    """
    before, after = old.split("\n"), new.split("\n")
    start = same_start(before, after)
    end = same_start(before[start:][::-1], after[start:][::-1])
    parts = before[start : len(before) - end], after[start : len(after) - end]
    if max(map(len, parts)) > _MOST_LINES:
        return [("", "")]
    changed, removed = list[tuple[str, str]](), list[tuple[str, str]]()
    for kind, *places in difflib.SequenceMatcher(None, *parts).get_opcodes():
        if kind == "equal":
            continue
        a, b, c, d = (start + place for place in places)
        old_lines, new_lines = before[a:b], after[c:d]
        header, section = _section(after, c, d) if new_lines else _section(before, a, b)
        count, now_count = (len([*filter(str.strip, lines)]) for lines in (old_lines, new_lines))
        if kind == "replace" and [*map(_skeleton, old_lines)] == [*map(_skeleton, new_lines)]:
            changed.append(("volatile", "\n".join(map(_changed_part, old_lines, new_lines))))
            continue
        about = ""
        if _RETRIEVED.search(header):
            about = "retrieved"
        elif (
            _STATE.search(header)
            or all(map(_STATE.search, filter(str.strip, (*old_lines, *new_lines))))
            or _are_state(old_lines, new_lines)
        ):
            about = "volatile"
        if now_count or not count:
            changed.append((about, section))
        # Of pages that came instead of others that is plain; of a state that says less it is not.
        if now_count < count and (about == "volatile" or not now_count):
            removed.append((about, "\n".join(("No longer so:", *old_lines))))
    return [*changed, *removed]


def _are_state(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether each of some lines speaks of a state, or is the same but for times and ids."""
    return len(old) == len(new) and all(
        _skeleton(was) == _skeleton(now) or (_STATE.search(was) and _STATE.search(now))
        for was, now in zip(old, new, strict=True)
    )


def _changed_part(old: str, new: str) -> str:
    """A line that changed; of a long one only the sentences that did, or all of it would be told each time."""
    if len(new) <= 200:
        return new
    before = {*_SENTENCE.split(old)}
    return " ".join(sentence for sentence in _SENTENCE.split(new) if sentence not in before)


_SENTENCE = re.compile(r"(?<=[.!?;])\s+")


@lru_cache(maxsize=64)
def _skeleton(line: str) -> str:
    """A line without its times and ids: two that differ in these alone are the same."""
    return ID.sub("#", TIME.sub("#", line))


_OPENS = re.compile(r"^\s*<(\w[\w-]*)[^>]*>\s*$|^#+ |:\s*$")


def _section(lines: Sequence[str], start: int, end: int) -> tuple[str, str]:
    """The heading, or opening tag, above some lines, and all that stands under it."""
    top = next((at for at in range(start - 1, max(-1, start - 60), -1) if _OPENS.search(lines[at])), None)
    if top is None or any(line.strip().startswith("</") for line in lines[top + 1 : start]):
        return "", "\n".join(lines[start:end])
    while end < len(lines) and lines[end].strip() and not lines[end].strip().startswith(("</", "#")):
        end += 1
    return lines[top].replace("_", " "), "\n".join(lines[top + 1 : end])


def _changed_front(draft: BodyDraft) -> bool:
    """A message in front of the history that is another each time: the first one stays, the newest is told behind."""
    field = draft.wire.layout.field
    before, now = draft.state.newest[field], draft.messages
    pairs = enumerate(zip(before, now, strict=False))
    moved = [at for at, (was, is_now) in pairs if was != is_now and draft.digest(was) != draft.digest(is_now)]
    # One that is again as it was first, where the model was told of another since.
    told_of = [at for at in (0, 1) if (field, at) in draft.changes.texts]
    moved = moved or [at for at in told_of if draft.known_text((field, at), "") != _joined_texts(now[at])]
    if len(moved) != 1 or moved[0] > 1 or moved[0] >= len(before) - 1:
        return False
    if len(now) <= len(before) and moved != told_of:
        return False
    at = moved[0]
    path: Path = (field, at)
    was, text = (_joined_texts(message) for message in (before[at], now[at]))
    if not all(map(_is_user_text, (before[at], now[at]))) or min(len(was), len(text)) <= 200:
        return False
    if draft.known_text(path, was) != text:
        if not draft.takes_text:
            return False
        draft.tell("context", text)
        draft.note_text(path, "", text)
    now[at] = before[at]
    draft.body = {**draft.body, field: now}
    return True


def _is_user_text(message: Json) -> bool:
    """Whether a message is the user's and holds texts alone: a picture could not be told anew."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return False
    return all("text" in as_object(block) for block in as_blocks(message.get("content") or message.get("parts")))


def _joined_texts(message: Json) -> str:
    return "\n".join(text for _, text in _texts_below(message, ()))


def plain_digest(message: Json) -> bytes:
    """The hash of a message without its marks and the order of its keys; one block of text is the same as the text alone."""
    return hashlib.sha256(write_value(unmarked_message(message), "sorted")).digest()


# Cache marks, where the application sets none.


def marks(draft: BodyDraft) -> bool:
    body = draft.body
    if draft.info.engine not in ("anthropic", "openai-breakpoints") or has_marks(body):
        return False
    ready, field = _in_blocks(body) if draft.wire.name == "anthropic" else body, draft.wire.layout.field
    lines, messages = draft.sent.standing(ready[field])
    marked = draft.sent.marker.mark({**ready, field: messages}, None)
    # Without options of its own, so that OpenAI goes on to store at messages that can carry no mark.
    marked = {name: value for name, value in marked.items() if name in body}
    if not has_marks(marked):
        return False
    draft.body, draft.lines = marked, lines
    return True


def has_marks(body: JsonObject) -> bool:
    """Whether somebody marked a body already, or chose how it is cached."""
    raw = write_value({name: value for name, value in body.items() if name != "metadata"})
    return any(f'"{name}":{{'.encode() in raw for name in (*MARKS, "cachePoint", "prompt_cache_options"))


def _in_blocks(body: JsonObject) -> JsonObject:
    """Texts as the blocks that they stand for: only a block can carry a mark."""
    messages = [
        {**message, "content": as_blocks(message["content"])}
        if isinstance(message, dict) and isinstance(message.get("content"), str) and message["content"]
        else message
        for message in body.get("messages") or ()
    ]
    system = {"system": as_blocks(body["system"])} if isinstance(body.get("system"), str) and body["system"] else {}
    return {**body, **system, "messages": messages}


# In the order they are tried; marks come last, on what the others made.
Rule = Callable[[BodyDraft], bool]
RULES: dict[str, Rule] = {
    # Keys are compared place by place, so the tools have to stand in theirs first.
    "tool-order": tool_order,
    "key-order": key_order,
    "volatile": lambda draft: _changed_head(draft, "volatile"),
    "retrieved": retrieved,
    "late-tools": late_tools,
    "late-effort": late_effort,
    "marks": marks,
}
