"""Messages in, messages out: the engine for those who keep their history themselves.

    messages = quire.fit(messages, budget=100_000, target="anthropic:claude-opus-5-5")

Nothing is stored. What is cut follows from the messages alone, so that calls with a growing list extend each other
until the budget forces a cut. A `Fitter` does the same for one conversation and reads only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from quire import providers, values
from quire.assemble import Assembly, Built, Policy
from quire.assemble.user_message import normal
from quire.entry import canonical, chain, result_text
from quire.errors import CallError, FormatError, NotFound
from quire.providers.incoming import plain
from quire.providers.models import named_target
from quire.providers.prefix import unmarked, written
from quire.providers.wires import FORMATS, Wire, as_body, detect, format_of, wire_of
from quire.thread_state import policy_for
from quire.tokens import Calibrations
from quire.values import Call, Entry, Json, JsonObject, LeftOut, Message, Part, Result, Text

# A list of messages, or a request's whole body.
Given = TypeVar("Given", bound="Sequence[Any] | Mapping[str, Any]")


def fit(given: Given, budget: int = 0, target: str = "", **policy: Any) -> Given:
    """The messages, or the request body, inside the budget and in the form they came in.

    The form is seen from the messages: OpenAI Chat or Responses, Anthropic, Gemini, Bedrock, Cohere, as JSON or as the
    SDKs' objects, LangChain's and pydantic-ai's objects. `target` ("provider:model") says whose tokens, window and prices count; without a budget its
    window does. A body's system prompt and tools are counted; around objects it is {"messages", "system", "tools"}.
    What else there is to choose is named by `Policy`: `floor=0.3`.
    """
    return Fitter(budget, target, **policy).fit(given)


class Fitter:
    """Fits one growing conversation again and again, reading only what is new: the same as `fit`, and quicker.

    `built` tells what was decided last: `built.epoch`, `built.tokens`, `built.rebase`; `left_out` what went, and why.
    `marks` are the places in the newest result behind which a cache mark does good: where the epoch's first result
    ended, where the one before this ended, and the end. `form` names the messages' format where it is known.
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
        # As they were read: a message that the caller changes in place is another one.
        self._read: list[bytes] = []
        self._assembly: Assembly | None = None
        self._calibrations = Calibrations()
        self.built: Built | None = None
        self.marks: tuple[int, ...] = ()
        # The assembly and epoch of the newest result, and where the epoch's first and the newest result ended.
        self._ends: tuple[Assembly | None, int, int, int] = None, 0, 0, 0

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What the newest call left out: the number of the entry, and why."""
        return self.built.left_out if self.built is not None else ()

    def fit(self, given: Given) -> Given:
        """The messages inside the budget; a list that does not extend the one before begins anew."""
        value = _as_json(given)
        form = self._form or recognise(value, self._target)
        named = value.get("model") if isinstance(value, dict) else ""
        target = self._target or f"{_wire(form).name}:{named or ''}"
        assembly = self._follow(_imported(form, unmarked_body(value, form)), target)
        self.built = assembly.request()
        if self.built.epoch == 1:
            out, messages = given, _listed(given, form)  # nothing is cut: as it came, to the byte
        else:
            messages = _in_form(self.built, self._entries, form, target, given)
            out = cast(Given, {**given, _field(form): messages} if isinstance(given, Mapping) else messages)
        self._mark(assembly, len(messages))
        return out

    def report(self, input_tokens: int) -> None:
        """What the provider counted of the newest result: the next ones are measured by it."""
        if self._assembly is None or self.built is None:
            return
        asked, model = self._assembly.asked, self._assembly.policy.model
        self._calibrations = asked.calibrations.observe(model, self.built.tokens, input_tokens)
        self._assembly.asked = msgspec.structs.replace(asked, calibrations=self._calibrations)

    def _mark(self, assembly: Assembly, count: int) -> None:
        before, epoch, fold, end = self._ends
        goes_on = before is assembly and self.built is not None and epoch == self.built.epoch
        fold, end = (fold, end) if goes_on else (count, count)
        self.marks = tuple(sorted({place - 1 for place in (fold, end, count) if place}))
        self._ends = assembly, self.built.epoch if self.built is not None else 0, fold, count

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The conversation as the log would hold it."""
        return tuple(self._entries)

    def original(self, handle: str) -> str:
        """The whole text behind a handle that a cut message names."""
        for entry in self._entries:
            if len(handle) >= 6 and entry.id.removeprefix("sha256:").startswith(handle):
                return result_text(entry) if entry.kind == "result" else entry.text
        raise NotFound(f"no message has the handle {handle!r}", hint="Give it as the cut message names it.")

    def _follow(self, entries: list[Entry], target: str) -> Assembly:
        """The conversation with what is new fed to it; where it is another than before, all of it."""
        count, before = len(self._entries), self._read
        self._read = [written(entry.body) for entry in entries]
        if self._assembly is None or self._read[:count] != before:
            policy = Policy(**self._choices) if "budget" in self._choices else None
            self._assembly = Assembly(policy_for(target, policy, **({} if policy else self._choices)))
            self._assembly.asked = msgspec.structs.replace(self._assembly.asked, calibrations=self._calibrations)
            self._entries, count = [], 0
        last = self._entries[-1] if self._entries else Entry("note", {})
        for entry in chain(entries[count:], last.id, last.seq):
            self._assembly.feed(entry)
            self._entries.append(entry)
        return self._assembly


# Which form a conversation is in, and how it goes back into it.

_LANGCHAIN = frozenset({"human", "ai", "HumanMessage", "AIMessage", "SystemMessage", "ToolMessage"})


def recognise(value: Json, target: str = "") -> str:
    """The format of a list of messages or of a request's body; what could be several is the target's."""
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
    """Whose way of writing messages down it is; a LangChain constructor's name stands last in `id`."""
    if "parts" in message:
        return "pydantic-ai" if "kind" in message else ""
    kind = message["id"][-1] if message.get("lc") and message.get("id") else message.get("type")
    return "langchain" if kind in _LANGCHAIN or "data" in message else ""


def _wire(form: str) -> Wire:
    """The wire format that a form is written in before it is put into its own words."""
    wire = format_of(form)
    return wire if isinstance(wire, Wire) else wire_of(wire.like or "openai-chat")


def _field(form: str) -> str:
    """Where a body of this form holds its messages."""
    return _wire(form).layout.field if isinstance(format_of(form), Wire) else "messages"


def _listed(given: Any, form: str) -> Sequence[Any]:
    messages: Sequence[Any] = given[_field(form)] if isinstance(given, Mapping) else given
    return messages


class Objects(NamedTuple):
    """How a framework writes its messages down as JSON, and reads them again."""

    dump: Callable[[list[Any]], list[JsonObject]]
    load: Callable[[list[JsonObject]], list[Any]]


def _objects(messages: Any) -> Objects | None:
    """Whose objects the messages are; None where they are JSON."""
    first = next(iter(messages), None) if isinstance(messages, Sequence) else None
    package = type(first).__module__.partition(".")[0]
    if package.startswith("langchain"):
        from langchain_core.messages import messages_from_dict, messages_to_dict

        return Objects(messages_to_dict, messages_from_dict)
    if package == "pydantic_ai":
        from pydantic_ai.messages import ModelMessagesTypeAdapter as Adapter

        return Objects(lambda objects: Adapter.dump_python(objects, mode="json"), Adapter.validate_python)
    return None


def _as_json(given: Any) -> Json:
    """Messages, or a body around them, as JSON; a framework's objects as it writes them down itself."""
    if isinstance(given, Mapping):
        objects = _objects(given.get("messages"))
        return {**given, "messages": objects.dump(list(given["messages"]))} if objects else plain(dict(given))
    if not isinstance(given, Sequence):
        raise _no_messages()
    objects, listed = _objects(given), list(given)
    return objects.dump(listed) if objects else plain(listed)


def unmarked_body(value: Json, form: str) -> Json:
    """A conversation without its cache marks: they move from request to request, and it says the same."""
    if not isinstance(format_of(form), Wire):
        return value
    if isinstance(value, list):
        return _unmarked_list(value)
    lists = {name: value[name] for name in ("system", "tools", _field(form)) if isinstance(value.get(name), list)}
    return {**value, **{name: _unmarked_list(listed) for name, listed in lists.items()}}


def _unmarked_list(values: list[Json]) -> list[Json]:
    return [_unmarked(value) for value in values if not (isinstance(value, dict) and value.keys() == {"cachePoint"})]


def _unmarked(value: Json) -> Json:
    """A message, a block or a tool without its marks; one text in a list, as marks need it, is the text alone."""
    if not isinstance(value, dict):
        return value
    bare = unmarked(value)
    content = _unmarked_list(bare["content"]) if isinstance(bare.get("content"), list) else None
    match content:
        case None:
            return bare
        case [{"type": "text" | "input_text" | "output_text", "text": str(text), **more}] if not more:
            return {**bare, "content": text if "role" in bare else content}
    return {**bare, "content": content}


def _imported(form: str, value: Json) -> list[Entry]:
    """The entries of a conversation; a framework's body says apart what it will put in front."""
    entries = providers.import_(form, value)
    if isinstance(format_of(form), Wire) or not isinstance(value, dict):
        return entries
    instructions = [values.system(str(value["system"]))] if value.get("system") else []
    return [*instructions, *providers.tool_entries(value.get("tools") or ()), *entries]


def _in_form(built: Built, entries: Sequence[Entry], form: str, target: str, given: Any) -> Sequence[Any]:
    """The messages that are left of a conversation, as they came: JSON or a framework's objects."""
    wire = format_of(form)
    if isinstance(wire, Wire):
        same_wire = wire_of(target).name == wire.name
        body = providers.rendering(target if same_wire else f"{wire.name}:").request(built.prompt).body
        return _objects_that_stand(body[wire.layout.field], _listed(given, form))
    messages = providers.export(form, _standing(built, entries))
    objects = _objects(_listed(given, form))
    return cast(Sequence[Any], objects.load(messages) if objects else messages)


def _objects_that_stand(messages: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
    """The messages, with those that came with cache marks, or as an SDK's objects, as they came."""
    came = {_message_key(bare): message for message in given if (bare := _unmarked(plain(message))) != message}
    return [came.get(_message_key(_unmarked(message)), message) for message in messages] if came else messages


def _message_key(message: Any) -> bytes:
    """A message told apart from others, whatever the order of its keys; a key that is null is one that is not there."""
    return canonical({key: value for key, value in message.items() if value is not None})


def _standing(built: Built, entries: Sequence[Entry]) -> list[Entry]:
    """What a request says, as entries: messages that stand whole are those that came, others have today's words."""
    rows = [[entry] for entry in _system_entries(built.prompt.l1, entries)]
    rows += [_row(message, entries) for message in built.prompt.messages]
    placed = [(entry, place) for place, row in enumerate(rows) for entry in row]
    groups = _message_seqs(entries)
    out: list[Entry] = []
    for seqs, run in groupby(placed, key=lambda pair: groups.get(pair[0].seq, ())):
        some = list(run)
        if tuple(entry.seq for entry, _ in some) == seqs:
            out += [entry for entry, _ in some]
            continue
        for _, row in groupby(some, key=lambda pair: pair[1]):
            out += _unformatted([entry for entry, _ in row])
    return out


def _system_entries(text: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of the system prompt, without the one that the caller puts in front itself."""
    for entry in entries:
        instruction = normal(entry.text) if entry.kind == "system" else ""
        if instruction and f"{text}\n\n".startswith(f"{instruction}\n\n"):
            text = text[len(instruction) :].removeprefix("\n\n")
            if entry.wire:
                yield entry
    if text:
        yield values.system(text)


def _message_seqs(entries: Sequence[Entry]) -> dict[int, tuple[int, ...]]:
    """The entries that came in one message, by each of them."""
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
    """The entry that a part came from; where it says something else by now, one that says that."""
    if isinstance(part, Call):
        return source
    if isinstance(part, Result):
        same = source.kind == "result" and result_text(source) == part.text
        return source if same else values.result(part.call_id, content=part.text, error=part.error or None)
    text = part.text if isinstance(part, Text) else source.text
    return source if text == source.text else values.respond(text)


def _unformatted(row: list[Entry]) -> Iterator[Entry]:
    """Entries of a message that does not stand as it came: one message still, and of no format."""
    for place, entry in enumerate(row):
        wire = {key: value for key, value in entry.wire.items() if key not in ("message", "more")}
        wire |= {"format": "", **({"more": True} if place else {})}
        yield msgspec.structs.replace(entry, body={**entry.body, "wire": wire})
