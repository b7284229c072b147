"""Messages in, messages out: the engine for those who keep their history themselves.

    messages = quire.fit(messages, budget=100_000, target="anthropic:claude-opus-5-5")

Nothing is stored. What is cut depends on the messages alone, so that the results for a growing list extend each other
until the budget forces a rebase. A `Fitter` does the same for one conversation and reads only the new messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile, groupby
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from quire import providers, values
from quire.assemble import Assembly, Built, Policy
from quire.assemble.user_message import normal
from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.providers.incoming import plain
from quire.providers.models import named_target
from quire.providers.prefix import without_marks, write_value
from quire.providers.rendering import Rendering
from quire.providers.wires import FORMATS, Wire, as_body, detect, format_of, wire_of
from quire.thread_state import policy_for
from quire.tokens import Calibrations
from quire.values import (
    SPOKEN,
    Call,
    Entry,
    Json,
    JsonObject,
    LeftOut,
    Message,
    Part,
    Result,
    Text,
    canonical,
    chain,
    result_text,
)

# A list of messages, or a request's whole body.
Given = TypeVar("Given", bound="Sequence[Any] | Mapping[str, Any]")


def fit(given: Given, budget: int = 0, target: str = "", **policy: Any) -> Given:
    """The messages, or the request body, cut to the budget, in the form they came in.

    The form is recognised: OpenAI Chat or Responses, Anthropic, Gemini, Bedrock, Cohere, as JSON or as the SDKs' objects,
    and LangChain's and pydantic-ai's objects. `target` ("provider:model") says whose tokens, window and prices count;
    without a `budget` its window is the budget. A body's system prompt and tools are counted; around a framework's objects
    the body is {"messages", "system", "tools"}. Other arguments are the fields of `Policy`: `floor=0.3`.
    """
    return Fitter(budget, target, **policy).fit(given)


class Fitter:
    """Fits one growing conversation again and again: the same result as `fit`, but it reads only the new messages.

    `built` is the newest decision (empty before the first call): `built.epoch`, `built.tokens`, `built.rebase`.
    `left_out` says what was left out, and why. `marks` are the indices of the messages in the newest result behind which a
    cache mark helps: where the epoch's first result ended, where the result before ended, and the last. `form` names the
    messages' format, so that it need not be recognised.
    """

    def __init__(self, budget: int = 0, target: str = "", *, form: str = "", **policy: Any) -> None:
        self._target, self._form = named_target(target) if target else "", form
        if unknown := policy.keys() - {*Policy.__struct_fields__}:
            raise CallError(
                f"there is no {', '.join(sorted(unknown))} to choose",
                hint=f"Choices are {', '.join(Policy.__struct_fields__)}; tools and a system prompt are given in "
                'a body: {"messages": …, "system": …, "tools": …}.',
            )
        self._choices = {**policy, **({"budget": budget} if budget else {})}
        self._entries: list[Entry] = []
        # The bytes of each entry as it was read, to notice a message that the caller changed in place.
        self._read: list[bytes] = []
        self._given, self._recognised = GivenMessages(), ""
        self._assembly: Assembly | None = None
        # Writes the messages, reusing those of the newest result; None when a new conversation begins.
        self._rendering: Rendering | None = None
        # How the provider's count differs from ours; may be copied from another fitter of the same model.
        self.calibrations = Calibrations()
        self.built: Built = Assembly().request_as_sent()
        self.marks: tuple[int, ...] = ()
        # The assembly and epoch of the newest result, and how many messages the epoch's first and the newest one had.
        self._ends: tuple[Assembly | None, int, int, int] = None, 0, 0, 0

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The entries that the newest call left out, by number, and why."""
        return tuple(self.built.left_out)

    def fit(self, given: Given) -> Given:
        """The messages cut to the budget; a list that does not extend the one before starts a new conversation."""
        before, self._given = self._given, GivenMessages.of(given, self._given)
        value, new = self._given.value, self._given.behind(before)
        form = self._form or self._form_with(new)
        named = value.get("model") if isinstance(value, dict) else ""
        target = self._target or f"{_wire(form).name}:{named or ''}"
        entries = self._new_entries(new, form) if new is not None and form == self._recognised else None
        assembly = self._follow(_import_entries(form, value), target) if entries is None else self._feed(entries)
        self._recognised = form
        self.built = _request_of(assembly)
        if self.built.epoch == 1:
            out, messages = given, _message_list(given, form)  # nothing is cut: the same object
        else:
            messages = self._in_form(self.built, form, target, given)
            out = cast(Given, {**given, _field(form): messages} if isinstance(given, Mapping) else messages)
        self._mark(assembly, len(messages))
        return out

    def report(self, input_tokens: int) -> None:
        """Tell what the provider counted for the newest result; the next ones are measured by it."""
        if self._assembly is None:
            return
        self.calibrations = self.calibrations.observe(self._assembly.policy.model, self.built.tokens, input_tokens)

    def _mark(self, assembly: Assembly, count: int) -> None:
        before, epoch, fold, end = self._ends
        goes_on = before is assembly and epoch == self.built.epoch
        fold, end = (fold, end) if goes_on else (count, count)
        self.marks = tuple(sorted({place - 1 for place in (fold, end, count) if place}))
        self._ends = assembly, self.built.epoch, fold, count

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The conversation as the log would hold it."""
        return tuple(self._entries)

    def original(self, handle: str) -> str:
        """The whole text that a handle in a message stands for."""
        for entry in self._entries:
            if len(handle) >= 6 and entry.id.removeprefix("sha256:").startswith(handle):
                return result_text(entry) if entry.kind == "result" else entry.text
        raise NotFound(f"no message has the handle {handle!r}", hint="Give it as the cut message names it.")

    def _follow(self, entries: list[Entry], target: str) -> Assembly:
        """Feed the new entries; if these entries do not begin with those read before, start again with all of them."""
        count = len(self._entries)
        if self._assembly is None or [write_value(entry.body) for entry in entries[:count]] != self._read:
            policy = Policy(**self._choices) if "budget" in self._choices else None
            self._assembly = Assembly(policy_for(target, policy, **({} if policy else self._choices)))
            self._entries, self._read, self._rendering, count = [], [], None, 0
        return self._feed(entries[count:])

    def _feed(self, new: Sequence[Entry]) -> Assembly:
        assert self._assembly is not None
        self._assembly.models = msgspec.structs.replace(self._assembly.models, calibrations=self.calibrations)
        last = self._entries[-1] if self._entries else Entry("note", {})
        for entry in chain(new, last.id, last.seq):
            self._assembly.feed(entry)
            self._entries.append(entry)
        self._read += [write_value(entry.body) for entry in new]
        return self._assembly

    def _form_with(self, new: Json) -> str:
        """The form of the messages: unchanged, unless the new ones show another."""
        form = self._recognised
        if new is not None and isinstance(format_of(form), Wire) and (not new or recognise(new, form) == form):
            return form
        return recognise(self._given.value, self._target)

    def _new_entries(self, new: Json, form: str) -> list[Entry] | None:
        """The entries of the new messages; None if all messages have to be read again.

        New messages must begin with a reply: those of the user or of tools may belong to the message before them, and an
        instruction could not be told from the system prompt of the body around them.
        """
        if self._assembly is None or not isinstance(format_of(form), Wire):
            return None
        first = next(iter(_message_list(new, form)), None) if new else None
        if isinstance(first, dict) and first.get("role") in ("system", "developer"):
            return None
        entries = _import_entries(form, new) if new else []
        spoken = list(dropwhile(lambda entry: entry.kind in ("system", "tools"), entries))
        before = self._entries[-1].kind if self._entries else ""
        goes_on = spoken and spoken[0].kind in SPOKEN and before in ("user", "result")
        return spoken if goes_on or not new else None

    def _in_form(self, built: Built, form: str, target: str, given: Any) -> Sequence[Any]:
        """The remaining messages of a conversation in the form they came in: JSON or a framework's objects."""
        wire = format_of(form)
        if not isinstance(wire, Wire):
            messages = providers.export(form, _sent_entries(built, self._entries))
            objects = _objects(_message_list(given, form))
            return cast(Sequence[Any], objects.load(messages) if objects else messages)
        if self._rendering is None:
            same_wire = wire_of(target).name == wire.name
            self._rendering = providers.rendering(target if same_wire else f"{wire.name}:")
        rendered = self._rendering.request(built.prompt).body[wire.layout.field]
        # Messages that came as an SDK's objects, or with cache marks, are given back as those objects.
        messages, altered = _message_list(given, form), self._given.altered_places
        originals = {_message_key(self._given.messages[place]): messages[place] for place in altered}
        if not originals:
            return [_copy(message) for message in rendered]
        return [originals.get(_message_key(unmarked_message(message))) or _copy(message) for message in rendered]


def _request_of(assembly: Assembly) -> Built:
    """What would be sent now; messages without one of the user are left as they are, if they fit."""
    try:
        return assembly.request()
    except BudgetError:
        built = assembly.request_as_sent()
        if assembly.turn or built.tokens > built.limit:
            raise
        return built


# Which form a conversation is in, and how entries are put back into it.

_LANGCHAIN = frozenset({"human", "ai", "HumanMessage", "AIMessage", "SystemMessage", "ToolMessage"})


def recognise(value: Json, target: str = "") -> str:
    """The format of a list of messages or of a request's body; if several are possible, the target's."""
    usual = wire_of(target).name if target else "openai-chat"
    messages = value.get("messages") if isinstance(value, dict) else value
    listed = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    if listed and (framework := next(filter(None, map(_framework, messages or ())), "")):
        return framework
    provider = detect(as_body(value) if listed and isinstance(value, list) else value, usual)
    if provider is None:
        raise _no_messages()
    form = wire_of(provider).name
    return usual if wire_of(usual).looks_like == form else form


def _no_messages() -> FormatError:
    names = ", ".join(FORMATS)
    return FormatError("no list of messages", hint=f"Give a list of messages, or a request's body: {names}.")


def _framework(message: JsonObject) -> str:
    """The framework whose JSON form a message has, or ""; LangChain writes the name of the class last in `id`."""
    if "parts" in message:
        return "pydantic-ai" if "kind" in message else ""
    kind = message["id"][-1] if message.get("lc") and message.get("id") else message.get("type")
    return "langchain" if kind in _LANGCHAIN or "data" in message else ""


def _wire(form: str) -> Wire:
    """The wire format of a form; for a framework's form the one that it resembles."""
    wire = format_of(form)
    return wire if isinstance(wire, Wire) else wire_of(wire.like or "openai-chat")


def _field(form: str) -> str:
    """The field of a body that holds the messages."""
    return _wire(form).layout.field if isinstance(format_of(form), Wire) else "messages"


def _message_list(given: Any, form: str) -> Sequence[Any]:
    messages: Sequence[Any] = given[_field(form)] if isinstance(given, Mapping) else given
    return messages


class Objects(NamedTuple):
    """How a framework turns its message objects into JSON, and back."""

    dump: Callable[[list[Any]], list[JsonObject]]
    load: Callable[[list[JsonObject]], list[Any]]


def _objects(messages: Any) -> Objects | None:
    """The framework whose objects the messages are; None for JSON."""
    first = next(iter(messages), None) if isinstance(messages, Sequence) else None
    package = type(first).__module__.partition(".")[0]
    if package.startswith("langchain"):
        from langchain_core.messages import messages_from_dict, messages_to_dict

        return Objects(messages_to_dict, messages_from_dict)
    if package == "pydantic_ai":
        from pydantic_ai.messages import ModelMessagesTypeAdapter as Adapter

        return Objects(lambda objects: Adapter.dump_python(objects, mode="json"), Adapter.validate_python)
    return None


class GivenMessages(NamedTuple):
    """What a caller passed, as JSON without cache marks, which move from request to request without meaning anything."""

    # The list of messages, or the body around it, and the messages in it.
    value: Json = None
    field: str = ""
    messages: Sequence[Json] = ()
    # The bytes of each message, and of the body around them; empty if a value is not JSON.
    lines: Sequence[bytes] = ()
    around: bytes = b""
    # The indices of messages that came as an SDK's objects or with cache marks.
    altered_places: Sequence[int] = ()

    @classmethod
    def of(cls, given: Any, before: GivenMessages) -> GivenMessages:
        """The JSON of messages or of a body; messages that are unchanged since the call before are reused."""
        body = {**given} if isinstance(given, Mapping) else {}
        field = next(
            (name for name in ("messages", "contents", "input") if isinstance(body.get(name), list | tuple)), ""
        )
        listed = body.pop(field) if field else given
        if body and not field:
            return cls(plain(body))
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise _no_messages()
        objects = _objects(listed)
        messages, lines, altered = (objects.dump(list(listed)), [], []) if objects else _as_json(listed, before)
        around = plain({**body, **{name: _unmarked_list(body[name]) for name in body if isinstance(body[name], list)}})
        value = {**around, field: messages} if field else messages
        return cls(value, field, messages, lines, _bytes_of(around)[0], altered)

    def behind(self, before: GivenMessages) -> Json:
        """The messages that are new since the call before, in the form of `value`; None if this does not extend that."""
        count = len(before.lines)
        same = count and self.around == before.around and self.lines[:count] == before.lines
        if not same or b"" in self.lines:
            return None
        new = list(self.messages[count:])
        return {**self.value, self.field: new} if new and self.field else new


def _as_json(listed: Sequence[Any], before: GivenMessages) -> tuple[list[Json], list[bytes], list[int]]:
    """Messages as JSON without marks, the bytes of each, and the indices of those that came as objects or with marks."""
    messages, lines, altered = list[Json](), list[bytes](), list[int]()
    for place, message in enumerate(listed):
        line, is_json = _bytes_of(message)
        content = message.get("content") if isinstance(message, dict) else None
        bare: Json = message
        if not is_json or not line or _may_be_marked(line) or (isinstance(content, list) and len(content) == 1):
            bare = unmarked_message(plain(message))
            line, given_line = _bytes_of(bare)[0], line
            if not is_json or line != given_line:
                altered.append(place)
        is_unchanged = line and place < len(before.lines) and before.lines[place] == line
        messages.append(before.messages[place] if is_unchanged else plain(bare))
        lines.append(line)
    return messages, lines, altered


def _may_be_marked(line: bytes) -> bool:
    return b'"cache_control"' in line or b'"cachePoint"' in line or b'"prompt_cache_breakpoint"' in line


def _bytes_of(value: Any) -> tuple[bytes, bool]:
    """The JSON bytes of a value (empty if it has none), and whether it held no SDK objects."""
    objects = list[Any]()

    def as_json(value: Any) -> Json:
        if not hasattr(value, "model_dump"):
            raise TypeError
        objects.append(value)
        return plain(value)

    try:
        return msgspec.json.encode(value, enc_hook=as_json), not objects
    except (TypeError, ValueError, RecursionError):
        return b"", not objects


def unmarked_body(body: JsonObject, field: str) -> JsonObject:
    """A request's body without its cache marks."""
    lists = {name: body[name] for name in ("system", "tools", field) if isinstance(body.get(name), list)}
    return {**body, **{name: _unmarked_list(listed) for name, listed in lists.items()}}


def _unmarked_list(values: Sequence[Json]) -> list[Json]:
    return [
        unmarked_message(value) for value in values if not (isinstance(value, dict) and value.keys() == {"cachePoint"})
    ]


def unmarked_message(value: Json) -> Json:
    """A message, a block or a tool without its marks; a list of one text, the form that a mark needs, becomes the text."""
    if not isinstance(value, dict):
        return value
    bare = without_marks(value)
    content = _unmarked_list(bare["content"]) if isinstance(bare.get("content"), list) else None
    match content:
        case None:
            return bare
        case [{"type": "text" | "input_text" | "output_text", "text": str(text), **more}] if not more:
            return {**bare, "content": text if "role" in bare else content}
    return {**bare, "content": content}


def _copy(value: Json) -> Json:
    """A copy that the caller may change."""
    if isinstance(value, dict):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _import_entries(form: str, value: Json) -> list[Entry]:
    """The entries of a conversation; a framework's body holds the system prompt and the tools beside the messages."""
    entries = providers.import_(form, value)
    if isinstance(format_of(form), Wire) or not isinstance(value, dict):
        return entries
    instructions = [values.system(str(value["system"]))] if value.get("system") else []
    return [*instructions, *providers.tool_entries(value.get("tools") or ()), *entries]


def _message_key(message: Any) -> bytes:
    """What identifies a message, whatever the order of its keys; a key with null counts as absent."""
    return canonical({key: value for key, value in message.items() if value is not None})


def _sent_entries(built: Built, entries: Sequence[Entry]) -> list[Entry]:
    """A request as entries: the caller's own for unchanged messages, entries with the present text for the others."""
    rows = [[entry] for entry in _system_entries(built.prompt.l1, entries)]
    rows += [_row(message, entries) for message in built.prompt.messages]
    placed = [(entry, place) for place, row in enumerate(rows) for entry in row]
    groups = _message_seqs(entries)
    out: list[Entry] = []
    for seqs, run in groupby(placed, key=lambda pair: groups.get(pair[0].seq, ())):
        together = list(run)
        if tuple(entry.seq for entry, _ in together) == seqs:
            out += [entry for entry, _ in together]
            continue
        for _, row in groupby(together, key=lambda pair: pair[1]):
            out += _without_format([entry for entry, _ in row])
    return out


def _system_entries(text: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of the system prompt, without the text that the caller passes beside the messages."""
    for entry in entries:
        instruction = normal(entry.text) if entry.kind == "system" else ""
        if instruction and f"{text}\n\n".startswith(f"{instruction}\n\n"):
            text = text[len(instruction) :].removeprefix("\n\n")
            if entry.wire:
                yield entry
    if text:
        yield values.system(text)


def _message_seqs(entries: Sequence[Entry]) -> dict[int, tuple[int, ...]]:
    """For each entry the seqs of all entries that came in the same message."""
    out: dict[int, tuple[int, ...]] = {}
    for entry in entries:
        before = out.get(entry.seq - 1, ()) if entry.wire.get("more") else ()
        out |= dict.fromkeys((*before, entry.seq), (*before, entry.seq))
    return out


def _row(message: Message, entries: Sequence[Entry]) -> list[Entry]:
    """The entries of one message."""
    if message.role in ("assistant", "tool"):
        pairs = zip(message.parts, message.seqs, strict=True)
        return [_entry(part, entries[seq - 1]) for part, seq in pairs]
    text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
    source = next((entries[seq - 1] for seq in message.seqs if entries[seq - 1].kind != "attach"), None)
    if source is not None and source.text == text:
        return [source]
    return [values.system(text) if message.role == "note" else values.user(text)] if text else []


def _entry(part: Part, source: Entry) -> Entry:
    """The entry that a part came from, with the part's present text if that has changed."""
    if isinstance(part, Call):
        return source
    if isinstance(part, Result):
        same = source.kind == "result" and result_text(source) == part.text
        return source if same else values.result(part.call_id, content=part.text, error=part.error or None)
    text = part.text if isinstance(part, Text) else source.text
    return source if text == source.text else values.respond(text)


def _without_format(row: list[Entry]) -> Iterator[Entry]:
    """The entries of a changed message: still one message, but without the original JSON it was imported from."""
    for place, entry in enumerate(row):
        wire = {key: value for key, value in entry.wire.items() if key not in ("message", "more")}
        wire |= {"format": "", **({"more": True} if place else {})}
        yield msgspec.structs.replace(entry, body={**entry.body, "wire": wire})
