"""A request while it is written: the messages so far, what was left out, what the body needs besides.

A wire format is a `Writer`: how one message is written and how the body is put together. `Rendering` keeps
a thread's draft between requests, so that the next one costs only what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain
from typing import NamedTuple

import msgspec

from quire.providers.incoming import Spelling
from quire.providers.models import ModelInfo, same_model
from quire.providers.prefix import PrefixLines, Walk, write_value
from quire.providers.provider_tools import Native, found_functions, functions_of, is_offered, own_definition, with_more
from quire.providers.wires import Wire
from quire.values import INTERRUPTED, Call, JsonObject, Message, Part, Prompt, Request, Result, Text, ToolSet

# What makes any list of messages legal to send: one id per call, one result per call, none left over.
#
# The engine's prompts are whole already; other callers' may not be. Reused ids get a new name. Each decision looks only
# at earlier messages, so a longer prompt gives a list that extends the shorter one's.


class CallPairer:
    """Takes messages one by one; what it gives back can be sent."""

    def __init__(self, ids: Spelling, draft: Draft) -> None:
        # Ids that the model of the request issued itself are sent back unchanged.
        self.ids, self.draft = ids, draft
        self.used: set[str] = set()
        self.open: list[tuple[Call, str]] = []
        # (seqs, reason) of what could not stay.
        self.dropped: list[tuple[tuple[int, ...], str]] = []

    def take(self, message: Message) -> list[Message]:
        """The message with unique ids, behind whatever had to be closed before it."""
        if message.role == "tool":
            answered = self._with_results(message)
            return [answered] if answered.parts else []
        closing, self.open = self.closing(), []
        return [*closing, self._name_calls(message) if message.role == "assistant" else message]

    def closing(self) -> list[Message]:
        """The results that are missing if nothing more comes."""
        return [Message("tool", self._interrupted_results())] if self.open else []

    def _name_calls(self, message: Message) -> Message:
        parts: list[Part] = []
        # An imported conversation may use an id twice, where the provider does not refuse that.
        first = getattr(next(iter(message.parts), None), "wire", {})
        native = self.draft.native
        again = not native.unique_ids and (native.items or "message" in first)
        for part in message.parts:
            if isinstance(part, Call):
                spellings = self.ids.candidates(part.call_id or "call")
                issued = [part.call_id] if part.call_id and self.draft.knows(part.wire) else []
                free = (spelling for spelling in chain(issued, spellings) if spelling not in self.used)
                wire_id = issued[0] if issued and again else next(free)
                self.used.add(wire_id)
                self.open.append((part, wire_id))
                if part.call_id != wire_id:
                    part = msgspec.structs.replace(part, call_id=wire_id)
            parts.append(part)
        return _with_parts(message, parts)

    def _with_results(self, message: Message) -> Message:
        """The results of one group in their own order, then the missing ones."""
        parts: list[Part] = []
        for part in message.parts:
            place = self._call_place(part) if isinstance(part, Result) else None
            # The provider itself may hold the call that a result answers.
            if not isinstance(part, Result) or (
                place is None and part.wire.get("stored") and self.draft.knows(part.wire)
            ):
                parts.append(part)
            elif place is None:
                self.dropped.append((message.seqs, f"result of {part.call_id!r} has no call before it"))
            else:
                call, wire_id = self.open.pop(place)
                if (part.call_id, part.name) != (wire_id, call.name):
                    part = msgspec.structs.replace(part, call_id=wire_id, name=call.name)
                parts.append(part)
        parts += self._interrupted_results()
        self.open = []
        return _with_parts(message, parts)

    def _call_place(self, result: Result) -> int | None:
        """Which open call a result answers: same id, and among those the same name first."""
        same = [place for place, (call, _) in enumerate(self.open) if call.call_id == result.call_id]
        named = [place for place in same if self.open[place][0].name == result.name]
        return next(iter(named or same), None)

    def _interrupted_results(self) -> tuple[Result, ...]:
        return tuple(Result(wire_id, call.name, INTERRUPTED, error=True) for call, wire_id in self.open)


def _with_parts(message: Message, parts: list[Part]) -> Message:
    """A message with these parts; itself where it has them already."""
    return message if message.parts == tuple(parts) else msgspec.structs.replace(message, parts=tuple(parts))


# What stands for a turn of the user that was never taken, where a provider insists on one.
GO_ON = "(continue)"
NO_OUTPUT = "(no output)"
NO_TEXT = "(empty message)"


class Options(msgspec.Struct, frozen=True):
    """What the caller wants of the reply, in no provider's words; `extra` goes into the body as it is.

    Where the body has an object of the same name, that holds both.
    """

    max_tokens: int | None = None
    effort: str = ""
    # Names the thread, for providers that route requests with one key to one cache.
    key: str = ""
    extra: JsonObject = {}


NOTHING_ASKED = Options()


class Draft:
    """One request being written."""

    def __init__(self, info: ModelInfo, native: Native, ask: Options = NOTHING_ASKED) -> None:
        self.info = info
        self.native = native
        self.ask = ask
        self.messages: list[JsonObject] = []
        self.left_out: list[JsonObject] = []
        self.late_tools: list[JsonObject] = []
        self.effort = ""
        self.betas: list[str] = []
        # The prompt defines tools; a provider may take calls only then.
        self.has_tools = True
        # Where each tool was first called although none is defined.
        self.called: dict[str, Message] = {}
        # True for an export, which holds exactly what the log holds; a request may need turns put in that nobody took.
        self.faithful = False
        # The message being written is from before the last rebase: signatures bound to the old prefix are void.
        self.stale = False
        # How many of the messages an earlier request held: they may not change.
        self.sealed = 0
        # The turn that was put in last. Where the newest unchanged imported message ends: how many messages there were, and
        # the seq of its last entry.
        self.bridged: JsonObject = {}
        self.original_end = self.original_seq = 0
        # An imported message of results and the user's words, once the results are written: it, and its other parts.
        self.half: tuple[JsonObject, list[Part]] | None = None

    def copy(self) -> Draft:
        other = copy(self)
        other.messages, other.left_out = list(self.messages), list(self.left_out)
        other.late_tools, other.betas = list(self.late_tools), list(self.betas)
        return other

    def ground(self) -> tuple[object, ...]:
        """What of a draft decides how a message of the user's, the model's or a tool's is written."""
        behind_original = self.original_seq if self.original_end == len(self.messages) else None
        takes_calls = self.has_tools or bool(self.late_tools)
        return self.last, bool(self.unsent), self.stale, behind_original, self.half, takes_calls

    @property
    def last(self) -> JsonObject:
        return self.messages[-1] if self.messages else {}

    @property
    def unsent(self) -> JsonObject:
        """The last message while no request has shown it, so that more may join it."""
        return self.last if len(self.messages) > self.sealed else {}

    def is_from(self, wire: JsonObject, *formats: str) -> bool:
        """Whether an entry came in one of these formats (this one's, unless told), from the model that is asked.

        A model may be asked by one name and answer by another; either says that it is the same.
        """
        named = [str(wire.get(field) or "") for field in ("model", "asked")]
        return wire.get("format") in (formats or self.native.formats) and (
            same_model(named[0], self.info.model) or bool(named[1] and same_model(named[1], self.info.model))
        )

    def knows(self, wire: JsonObject) -> bool:
        """Whether an entry came from a conversation with this very model."""
        return bool(wire.get("model") and self.info.model) and self.is_from(wire)

    def was_sent(self, wire: JsonObject) -> bool:
        """Whether an entry begins an imported message that this very model was sent, or wrote."""
        return "message" in wire and self.knows(wire)

    def takes_back(self, wire: JsonObject) -> bool:
        """Whether an entry was imported as a message to this very model, which takes it back between any two others."""
        # A self-hosted server may have changed its chat template since; elsewhere the model needs a role for late messages.
        features = self.info.features
        anywhere = not features.template if self.native.anywhere else features.late_system
        return "message" in wire and anywhere and self.is_from(wire)

    def bridge(self, message: JsonObject) -> None:
        """Insert a turn that nobody took, because the provider demands that roles alternate."""
        if not self.faithful:
            self.bridged = message
            self.messages.append(message)

    def say_as_user(self, block: JsonObject, field: str = "content") -> None:
        """A text of the user's: behind the last message while no request has shown it, else a message of its own."""
        if self.unsent.get("role") != "user":
            self.messages.append({"role": "user", field: []})
        before = self.last[field]
        before = [{**block, "text": before}] if isinstance(before, str) else before
        self.messages[-1] = {**self.last, field: [*before, block]}

    def leave_out(self, message: Message, reason: str, part: Part | None = None) -> None:
        """Note why entries are not in the request: those of a message, or the one of a `part` of it."""
        seqs = message.seqs
        if part is not None and len(seqs) == len(message.parts):
            seqs = tuple(seq for seq, other in zip(seqs, message.parts, strict=True) if other is part)
        self.left_out += [{"entry": seq, "reason": reason} for seq in dict.fromkeys(seqs)]

    def set_effort(self, message: Message, cost: str = "may move the prefix") -> None:
        """Set the effort that a note asks for where only the whole request has one."""
        if effort := wanted_effort(message):
            self.effort = effort
            self.leave_out(message, f"effort is set for the whole request, which {cost}")

    def need_beta(self, *names: str) -> None:
        self.betas += [name for name in names if name not in self.betas]

    def add_tools_in_front(self, message: Message) -> None:
        """Late tools where the provider has no place behind the messages for them."""
        self.late_tools += self.offered_tools(tools_of(message), message)
        self.leave_out(message, "late tools join the list in front, which moves the prefix")

    def tools(self, prompt: Prompt) -> list[JsonObject]:
        """All tools in front, each name once; the later definition stands at the place of the earlier."""
        front = self.offered_tools(prompt.tools)
        return list({tool["name"]: tool for tool in (*front, *self.late_tools)}.values())

    def offered_tools(self, tools: Iterable[JsonObject], message: Message | None = None) -> list[JsonObject]:
        """The tools that this model can be told of; another provider's own are left out, with the reason."""
        listed, out = list(tools), list[JsonObject]()
        for tool in listed:
            if self.own(tool) is not None:
                out.append(tool)
                continue
            if functions := functions_of([tool], [other["name"] for other in (*listed, *out)]):
                out += functions
                continue
            reason = f"{tool['name']} is a tool of {tool['own'].get('format')}'s own, which nobody here could answer"
            if message is not None:
                self.leave_out(message, reason)
            else:
                self.left_out.append({"entry": 0, "tool": tool["name"], "reason": reason})
        return out

    def own(self, tool: JsonObject) -> JsonObject | None:
        """A tool in the words of the provider that it came from, if the request goes there again."""
        return own_definition(tool, self.info, self.native, self.ask.extra)

    def define_tools(
        self, tools: Iterable[JsonObject], define: Callable[[JsonObject], JsonObject] | None = None
    ) -> list[JsonObject]:
        """Tools in this format's words; the provider's own as they came."""
        define = define or self.native.define
        return [self.own(tool) or with_more(define(tool), tool, self.native) for tool in tools]


class WrittenMessage(NamedTuple):
    """A message, which it keeps alive so that its identity names it, what it was written as, and what was left out."""

    message: Message
    # What this depended on besides; None where the draft was changed otherwise, or where more was looked at.
    ground: tuple[object, ...] | None
    wire_messages: list[JsonObject]
    left_out: list[JsonObject]
    # Whether the imported message stands in its place.
    original: bool


class Writer(msgspec.Struct, frozen=True):
    """How a wire format writes messages, and puts the request around them."""

    format: str
    write: Callable[[Draft, Message], None]
    body: Callable[[Draft, Prompt], JsonObject]
    native: Native = Native()
    # What the end of the messages may need (a provider that takes no last assistant message).
    end: Callable[[Draft], None] = lambda draft: None
    headers: Callable[[Draft], dict[str, str]] = lambda draft: {}
    # Which ids of calls the provider takes.
    ids: Callable[[ModelInfo], Spelling] = lambda info: Spelling()
    # Where in the body the provider has what callers ask of every provider by the same name.
    place: Callable[[JsonObject], JsonObject] = lambda extra: extra


class Rendering:
    """Renders one thread's prompts for one model; of each it writes only what the prompt before did not hold."""

    def __init__(self, wire: Wire, info: ModelInfo, ask: Options = NOTHING_ASKED, provider: str = "") -> None:
        self.wire, self.writer = wire, wire.writer
        # As the caller names it: "openai-chat" says more than "openai".
        self.provider = provider or info.provider
        self.info = info
        self.ask = ask
        self.walk, self.lining = Walk(wire.layout, frozen=True), PrefixLines()
        # The messages of the newest request that stand in front of those written: the system prompt.
        self._front: list[JsonObject] = []
        self._start((1, 0, False))

    def request(self, prompt: Prompt) -> Request:
        """The request for a prompt; the same bytes as a new `Rendering` would write."""
        self._catch_up(prompt)
        draft = self.draft.copy()
        for message in self.pairer.closing():
            self.writer.write(draft, message)
        self.writer.end(draft)
        for seqs, reason in self.pairer.dropped:
            draft.leave_out(Message("tool", (), seqs), reason)
        body = join_objects(self.writer.body(draft, prompt), self.writer.place(self.ask.extra))
        self._keep_front(body[self.wire.layout.field], len(draft.messages))
        return Request(
            provider=self.provider,
            model=self.info.model,
            body=body,
            lines=self.lining.of(self.walk.units(body)),
            headers=self.writer.headers(draft),
            left_out=tuple(draft.left_out),
            sdk=self.wire.call.sdk_kwargs,
            stable=self._stable(prompt, len(draft.messages), len(body[self.wire.layout.field])),
        )

    def _keep_front(self, messages: list[JsonObject], written: int) -> None:
        """Use the earlier objects for messages in front that have not changed, so that nobody looks at them twice."""
        front = len(messages) - written
        if front > 0 and messages[:front] == self._front:
            messages[:front] = self._front
        self._front = messages[: max(0, front)]

    def _stable(self, prompt: Prompt, written: int, total: int) -> int:
        """How many of the messages shown were in the request before; some may stand in front of those written."""
        if not prompt.stable or prompt.ends[-1:] != (prompt.stable,):
            return 0
        # With no new message the same request is made once more: all of it was in the request before.
        sent = written if prompt.stable >= len(prompt.messages) else self.written_counts.get(prompt.stable, 0)
        return sent and sent + total - written

    def _start(self, ground: tuple[int, int, bool]) -> None:
        # What every written message depends on: the epoch, its fold, whether tools are offered.
        self.ground = ground
        self.prompt_messages: tuple[Message, ...] = ()
        # By the number of prompt messages at each request's end: how many wire messages were written for it.
        self.written_counts: dict[int, int] = {}
        # By the identity of each message, as it was given to the writer.
        self.written: dict[int, WrittenMessage] = {}
        self.draft = Draft(self.info, self.writer.native, self.ask)
        self.draft.has_tools = ground[2]
        self.pairer = CallPairer(self.writer.ids(self.info), self.draft)

    def _catch_up(self, prompt: Prompt) -> None:
        count = len(self.prompt_messages)
        offered = any(is_offered(tool, self.info, self.writer.native) for tool in prompt.tools)
        ground = (prompt.epoch, prompt.fold, offered)
        ends = frozenset(prompt.ends)
        same = prompt.messages[:count] == self.prompt_messages
        same = same and self.written_counts.keys() == {end for end in ends if end < count}
        before: dict[int, WrittenMessage] = {}
        if ground != self.ground or not same:
            before, count = self.written, 0
            self._start(ground)
        self.ground = (0, 0, False)  # no prompt's, until all is written: whoever was interrupted begins anew
        for place in range(count, len(prompt.messages)):
            message = prompt.messages[place]
            if place in ends:  # an earlier request of the epoch held the messages up to here and no more
                self._seal(place)
            self.draft.stale = prompt.epoch > 1 and place < prompt.fold
            for paired in self.pairer.take(message):
                self._write(paired, before.get(id(paired)))
        self.prompt_messages, self.ground = prompt.messages, ground

    def _write(self, message: Message, known: WrittenMessage | None) -> None:
        """Write a message; what a rebase did not change stays the same objects, so that nobody looks at it twice."""
        draft, ground = self.draft, self.draft.ground()
        start, omitted, ends = len(draft.messages), len(draft.left_out), max(message.seqs, default=0)
        if known is not None and known.ground == ground:
            draft.messages += known.wire_messages
            draft.left_out += known.left_out
            if known.original:
                draft.original_end, draft.original_seq = len(draft.messages), ends
            self.written[id(message)] = known
            return
        self.writer.write(draft, message)
        self._offer_found(message)
        written = draft.messages[start:]
        if known is not None and [*map(write_value, written)] == [*map(write_value, known.wire_messages)]:
            written = draft.messages[start:] = known.wire_messages
        appended = not start or draft.messages[start - 1 : start] == [ground[0]]
        beside = draft.half or draft.called or draft.late_tools or draft.native.items
        by_itself = appended and not beside and message.role in ("user", "assistant", "tool")
        original = (draft.original_end, draft.original_seq) == (len(draft.messages), ends)
        known = WrittenMessage(message, ground if by_itself else None, written, draft.left_out[omitted:], original)
        self.written[id(message)] = known

    def _offer_found(self, message: Message) -> None:
        """Offer the functions that another provider's tool search found, since this model does not know them yet."""
        for part in message.parts:
            if isinstance(part, Text | Result) and part.wire:
                functions = found_functions(part.wire.get("block") or part.wire.get("message"))
                if functions and not self.draft.knows(part.wire):
                    self.draft.late_tools += self.draft.offered_tools(functions)

    def _seal(self, place: int) -> None:
        """Freeze what is written so far: a request ended here, so these bytes may not change."""
        ended = self.draft.copy()
        self.writer.end(ended)
        if len(ended.messages) > len(self.draft.messages):
            self.draft.messages = ended.messages
        self.draft.sealed = self.written_counts[place] = len(self.draft.messages)


def join_objects(body: JsonObject, more: JsonObject) -> JsonObject:
    """One object of two: where both hold an object, what either says; elsewhere what `more` says."""
    out = {**body, **more}
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(body.get(name), dict):
            out[name] = join_objects(body[name], value)
    return out


def tools_of(message: Message) -> list[JsonObject]:
    """The tools that a message brings."""
    return [tool for part in message.parts if isinstance(part, ToolSet) for tool in part.tools]


def text_block(text: str) -> JsonObject:
    """A block of text as Anthropic, Chat Completions and Cohere write it."""
    return {"type": "text", "text": text}


def texts(message: Message) -> list[str]:
    """The texts of a message that say something."""
    return [part.text for part in message.parts if isinstance(part, Text) and part.text.strip()]


def user_text(message: Message) -> str:
    """What the user said, for servers that take any text: white space alone goes out as it is."""
    pieces = [part.text for part in message.parts if isinstance(part, Text)]
    return "\n\n".join(texts(message)) or "".join(pieces)


def note_text(message: Message) -> str:
    """A late instruction as text among others, where the provider has no role for it."""
    return "\n\n".join(f"[Note]: {text}" for text in texts(message))


def wanted_effort(message: Message) -> str:
    """The reasoning effort that a note sets from here on: note("", wire={"effort": "low"})."""
    efforts = [part.wire.get("effort") for part in message.parts if isinstance(part, Text)]
    named = [effort for effort in efforts if isinstance(effort, str)]
    return named[-1] if named else ""
