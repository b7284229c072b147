"""OpenAI's Responses API, whose items the Agents SDK keeps: reading, and the wire itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count, takewhile
from typing import Any

from msgspec.structs import replace

from quire.errors import FormatError
from quire.providers.incoming import (
    ReplyReader,
    StreamedBlock,
    check_content,
    error_in_reply,
    from_reply,
    not_a_reply,
    number_in,
    objects,
    required_object,
    sub,
    tag_message,
    text_in,
    with_wire,
    without_nulls,
)
from quire.providers.models import model_info
from quire.providers.outgoing import exported_request
from quire.providers.prefix import (
    Layout,
    Section,
    Unit,
    UnitPart,
    parts_of,
    schema,
    tool_units,
    unmarked_in,
    with_control,
)
from quire.providers.provider_tools import offer_entry, tools_in, typed_offers
from quire.providers.rules.openai import RESPONSES_RULES, kind_of
from quire.providers.wires import Format, ModelCall, Wire
from quire.providers.wires.openai_responses.write import (
    CONTENT,
    FORMAT,
    NATIVE,
    WRITER,
    assistant_entry,
    is_named,
    is_served,
    result_entry,
)
from quire.values import SPOKEN, Entry, Json, JsonObject, Reply, as_list, note, respond, system


def import_messages(value: Any, model: str = "", format: str = FORMAT) -> list[Entry]:
    """Entries of a list of items, or of a request that holds one under `input`."""
    out: list[Entry] = []
    # What a request names by its id alone the provider holds, unless it was told to store nothing.
    stored = isinstance(value, dict) and value.get("store") is not False
    begun = isinstance(value, dict) and bool(value.get("previous_response_id") or value.get("conversation"))
    if isinstance(value, dict):
        model = model or str(value.get("model") or "")
        out += tools_in(value, model, NATIVE, format)
        if (instructions_text := value.get("instructions")) is not None:
            out.append(system(str(instructions_text), wire={"format": format, "system": instructions_text}))
        value = value.get("input")
        value = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(value, list):
        raise FormatError("no list of items", hint='Give a list, or {"input": [...]}.')
    named = any(isinstance(item, dict) and kind_of(item) == "item_reference" for item in value)
    begun = begun or (stored and named)
    after, speaking, served = "", False, carried_out(value)
    waiting: dict[str, str] = {}
    for place, item in enumerate(value):
        entry, after = _entry(item, after, f"input[{place}]", place in served)
        entry = _answering(entry, item, waiting)
        if entry.kind == "tools" and all(earlier.kind in ("system", "tools") for earlier in out):
            instructions = sum(bool(earlier.text.strip()) for earlier in out)
            entry = with_wire(entry, {"front": [instructions, place]})
        if (stored and is_named(item)) or (entry.kind == "result" and (begun or not entry.call_id)):
            entry = with_wire(entry, {"stored": True})
        if entry.wire.get("block") is item and entry.kind in SPOKEN:
            # The items of one answer are one message of the model; each is its own entry's block.
            out += from_reply([entry], format, model, begun=speaking)
            speaking = True
        else:
            # An item that is kept whole as the entry's message is not kept twice.
            wire = {key: value for key, value in entry.wire.items() if key != "block"}
            out += tag_message([replace(entry, body={**entry.body, "wire": wire})], format, item, model)
            speaking = False
    return out


def _answering(entry: Entry, item: JsonObject, waiting: dict[str, str]) -> Entry:
    """An output without an id answers the first call that waits, of its name where it says one."""
    if entry.kind == "call":
        waiting[entry.call_id] = entry.name
    if entry.kind != "result":
        return entry
    named = [id for id, name in waiting.items() if item.get("name") in (None, name)]
    if not entry.call_id and named:
        entry = replace(entry, body={**entry.body, "call_id": named[0]})
    waiting.pop(entry.call_id, None)
    return entry


def own_item(group: list[Entry], format: str) -> list[JsonObject] | None:
    """The items that entries came from; every entry has its own."""
    items = [entry.wire.get("message") or entry.wire.get("block") for entry in group]
    complete = all(entry.wire.get("format") in NATIVE.formats for entry in group) and all(items)
    return [item for item in items if item] if complete else None


def carried_out(items: list[Any], provider: str | None = None) -> set[int]:
    """The places of calls that the provider carried out itself: no output follows, but words of the same answer.

    In a reply of `provider` its own output follows. A call of free text OpenAI leaves to the caller.
    """
    hosts = provider is None or not model_info(f"{provider}:").features.strict
    kinds = [str(item.get("type") or "message") if isinstance(item, dict) else "" for item in items]
    ids = [str(item.get("call_id")) if isinstance(item, dict) else "" for item in items]
    called = {id for id, kind in zip(ids, kinds, strict=True) if kind.endswith("_call")}
    answered = {id for id, kind in zip(ids, kinds, strict=True) if kind.endswith("_output")}
    waiting, out = set[int](), set[int]()
    for place, (item, kind) in enumerate(zip(items, kinds, strict=True)):
        if kind == "custom_tool_call" and ids[place] not in answered:
            waiting |= {place} if hosts else set()
        elif (
            (provider is not None and kind in _HOSTED and ids[place] in answered)
            or (kind == "tool_search_call" and ids[place] not in answered)
            or (kind == "tool_search_output" and ids[place] not in called)
        ):
            out.add(place)
        elif kind == "message":
            out |= waiting if item.get("role") == "assistant" else set()
            waiting = set()
    return out


# Calls that a caller carries out, or the provider in a container of its own.
_HOSTED = ("custom_tool_call", "shell_call", "apply_patch_call", "computer_call", "local_shell_call")


def entries_of(items: list[JsonObject], provider: str) -> list[Entry]:
    """What a response's items say."""
    out, after, served = [], "", carried_out(items, provider)
    for place, item in enumerate(items):
        entry, after = entry_of(without_nulls(item), after, place in served)
        out.append(entry)
    return out or [respond("")]


def entry_of(item: JsonObject, after: str, served: bool = False) -> tuple[Entry, str]:
    """What one item of the model says, and the id of the reasoning that the next one belongs to."""
    if item.get("type") == "function_call_output":
        return result_entry(item), ""  # a server that is an agent of its own has carried out its call
    if item.get("type") == "reasoning":
        return assistant_entry(item), str(item.get("id") or "")
    return assistant_entry(item, after, served), after


def stop_of(reply: JsonObject) -> str:
    """Why a response ended: completed, or the reason it is incomplete."""
    details = sub(reply, "incomplete_details")
    return str(details.get("reason") or reply.get("status") or "")


def _entry(item: Json, after: str, where: str, served: bool) -> tuple[Entry, str]:
    """The entry of one item; behind a user's or a tool's item nothing belongs to earlier reasoning any more."""
    if not isinstance(item, dict):
        raise FormatError(f"{where} is {type(item).__name__}, not an item", hint="Items are objects with a type.")
    kind, role = kind_of(item) or item.get("type") or "message", item.get("role")
    if not isinstance(kind, str):
        raise FormatError(f"{where}: a type that is {kind!r}", hint="Items are objects with a type.")
    if kind == "message":
        check_content(item, where)
    if kind == "message" and role in ("system", "developer"):
        return system(CONTENT.text_of(item.get("content"))), ""
    if kind == "message" and role == "user":
        return CONTENT.entry(item.get("content")), ""
    if kind == "message" and role != "assistant":
        raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant, system, developer.")
    named = item.get("call_id") or kind == "local_shell_call_output"
    # An output of the provider's own tools may go without a call's id.
    if kind == "custom_tool_call_output" or (kind.endswith("_output") and named and not (served or is_served(item))):
        return result_entry(item), ""
    if kind == "additional_tools":
        return offer_entry(typed_offers(objects(item, "tools"), NATIVE)), ""
    if kind == "configuration_update":
        return note("", wire={"effort": sub(item, "reasoning").get("effort")}), ""
    return entry_of(item, after, served)


# A streamed response: an item is an entry when its output_item.done has come, and not before.

# Events that say nothing an item's end does not say again.
_PASSED = (
    "response.queued",
    "response.content_part.",
    "response.output_text.",
    "response.refusal.",
    "response.function_call_arguments.",
    "response.custom_tool_call_input.",
    "response.reasoning_",
    "response.compaction.",
    "steer.",
)
_ENDS = ("response.completed", "response.incomplete")
# What an item and a delta are for whoever watches; all other items are answers.
_KINDS = {"reasoning": "think", "function_call": "call", "custom_tool_call": "call"}
_SHOWN = {
    "response.output_text.delta": "respond",
    "response.refusal.delta": "respond",
    "response.reasoning_summary_text.delta": "think",
    "response.reasoning_text.delta": "think",
    "response.function_call_arguments.delta": "call",
    "response.custom_tool_call_input.delta": "call",
}


class ResponseReader(ReplyReader):
    """Gathers events; a reasoning item's encrypted content is taken from its end alone."""

    format = FORMAT
    ending = "response.completed"

    def __init__(self, provider: str, model: str, names: Iterable[str]) -> None:
        super().__init__(provider, model, names)
        # Finished items by their place in the output, and how many of them are entries.
        self.items: dict[int, JsonObject] = {}
        self.entry_count = 0
        self.after = ""
        # To resume a background response: GET /responses/{id}?stream=true&starting_after=N.
        self.sequence_number = -1

    def _read(self, reply: JsonObject) -> Reply:
        if not isinstance(reply.get("output"), list):
            raise not_a_reply("a response without output")
        self.model = str(reply.get("model") or self.model)
        return self._whole_reply(
            reply, entries_of(objects(reply, "output"), self.provider), stop_of(reply), reply.get("id")
        )

    def _take(self, event: JsonObject) -> list[Entry]:
        kind = text_in(event, "type")
        self.sequence_number = event.get("sequence_number", self.sequence_number)
        if kind == "error":
            raise error_in_reply(event)
        if kind in ("response.created", "response.in_progress"):
            self._answered_by(required_object(event, "response"))
        elif kind == "response.output_item.added":
            item = required_object(event, "item")
            kind = _KINDS.get(str(item.get("type")), "respond")
            self.open_blocks[number_in(event, "output_index")] = StreamedBlock(kind, item, item.get("name"))
        elif kind == "response.output_item.done":
            self.items[number_in(event, "output_index")] = required_object(event, "item")
            return self._in_order()
        elif kind in _ENDS:
            return self._complete(required_object(event, "response"))
        elif kind == "response.failed":
            raise error_in_reply(sub(event, "response").get("error"))
        elif kind.endswith(".delta") and kind.startswith(_PASSED):
            self._grow(number_in(event, "output_index"), "delta", text_in(event, "delta"), _SHOWN.get(kind, ""))
        elif not kind.startswith(_PASSED):
            self.unknown += 1
        return []

    def _answered_by(self, response: JsonObject) -> None:
        self.id = text_in(response, "id") or self.id
        self.model = text_in(response, "model") or self.model

    def _in_order(self) -> list[Entry]:
        """The finished items whose turn has come: they stand as `output_index` says, however they arrive."""
        ready: list[Entry] = []
        while self.entry_count in self.items:
            behind = [self.items[place] for place in takewhile(self.items.__contains__, count(self.entry_count))]
            served = 0 in carried_out(behind, self.provider)
            if behind[0].get("type") in _HOSTED and not served and not self.stop:
                break  # what follows tells whether the provider carried it out itself
            entry, self.after = entry_of(without_nulls(behind[0]), self.after, served)
            ready.append(entry)
            self.open_blocks.pop(self.entry_count, None)
            self.entry_count += 1
        return self._add(ready) if ready else []

    def _complete(self, response: JsonObject) -> list[Entry]:
        self._answered_by(response)
        self.stop, self.reported = stop_of(response), response
        # What the events did not bring, the whole response does; what neither ends, ends here.
        listed = dict(enumerate(objects(response, "output")))
        done_ids = {str(item.get("id")) for item in self.items.values()}
        self.items = {at: item for at, item in listed.items() if str(item.get("id")) not in done_ids} | self.items
        ended = {*self.items, *(str(item.get("id")) for item in self.items.values())}
        unended = {at: block for at, block in self.open_blocks.items() if not {at, str(block.start.get("id"))} & ended}
        unshown = [self.items[index] for index in sorted(self.items) if index >= self.entry_count]
        self.items = {self.entry_count + place: item for place, item in enumerate(unshown)}
        added, self.open_blocks = self._in_order(), unended
        return [*added, *self._end()]


# Where a request keeps what is cached.


def _head(body: JsonObject) -> Iterator[Unit]:
    yield from tool_units(body)
    if isinstance(body.get("text"), dict) and body["text"].get("format"):
        yield schema(("text", "format"), body["text"]["format"])
    if instructions := body.get("instructions"):
        parts = tuple(part._replace(markable=False) for part in parts_of(instructions, "instructions"))
        yield Unit((), "system", "system", instructions, parts, ({"instructions": instructions},))


def _items(body: JsonObject) -> Sequence[Json]:
    items = body.get("input")
    return [{"role": "user", "content": items}] if isinstance(items, str) and items else as_list(items)


def _item(item: Json, index: int) -> Unit:
    kind = str(item.get("type", "message"))
    # Which side speaks in an item that has no role.
    role = str(item.get("role") or ("tool" if kind.endswith("_output") else "" if kind == "message" else "assistant"))
    section: Section = "messages"
    if kind == "message":
        parts = parts_of(item.get("content"), "content")
        section = "system" if role in ("system", "developer") else "messages"
    elif isinstance(item.get("output"), list):
        also = {"call_id": item.get("call_id")}
        parts = [part._replace(also=also) for part in parts_of(item["output"], "output")]
    else:
        parts = [UnitPart((), item)]
    compared = unmarked_in(unmarked_in(item, "content"), "output")
    return Unit(("input", index), section, role, item, tuple(parts), (compared,))


def _with_diagnosis(body: JsonObject, previous_id: str | None) -> JsonObject:
    if not previous_id:
        return body
    options = {**(body.get("prompt_cache_options") or {}), "comparison_response_id": previous_id}
    return {**body, "prompt_cache_options": options}


_export = partial(exported_request, writer=WRITER, original=own_item, system="instructions", messages="input")

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=_export,
    writer=WRITER,
    layout=Layout(_head, "input", _item, _items),
    reader=ResponseReader,
    mark=with_control,
    diagnosed=_with_diagnosis,
    late_tools=True,
    rules=RESPONSES_RULES,
    call=ModelCall(
        sdk="openai",
        method="responses.create",
        streaming={"stream": True},
        path=lambda request, streamed: "/responses",
        version_in_url=True,
        key_prefix="Bearer ",
    ),
    # Whoever says "openai" may mean either format.
    other=lambda body: "openai-chat" if "messages" in body and "input" not in body else "",
)


# OpenAI Agents SDK: a run's items (`result.to_input_list()`, a session's items) are the Responses API's items.

AGENTS = Format(
    name="openai-agents",
    imports=partial(import_messages, format="openai-agents"),
    exports=partial(_export, format="openai-agents"),
    like=FORMAT,
)
