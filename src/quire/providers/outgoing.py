"""A thread as a provider's messages: imported ones as they came, all others written from their entries.

An export holds every message that came in its format. A request gives one back to the model it was for, while its
entries still say the same and no rule would refuse it: with fields that no entry holds, and parts in their order.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec

from quire.providers.convert import leave_out_media, normal, project
from quire.providers.incoming import Spelling, id_variants
from quire.providers.models import ModelInfo, data, model_info
from quire.providers.prefix import without_marks
from quire.providers.provider_tools import functions_of
from quire.providers.rendering import GO_ON, Draft, Writer
from quire.providers.rules.check import Check, errors, turn_at
from quire.providers.rules.claude_turns import ends_blank
from quire.providers.wires import format_of, wire_of
from quire.values import (
    Call,
    Entry,
    Json,
    JsonObject,
    Message,
    Part,
    Prompt,
    Result,
    Role,
    Text,
    Think,
    ToolSet,
    read_early,
    whole_characters,
)

# From the entries of one message and a format to the messages they came from, if they came in it.
Original: TypeAlias = Callable[[list[Entry], str], list[JsonObject] | None]


class ExportedThread(msgspec.Struct, frozen=True):
    """A thread in one wire format; what stands before the conversation is apart."""

    system: Entry | None
    tools: tuple[Entry, ...]
    messages: list[JsonObject]


def export_thread(
    entries: Iterable[Entry], writer: Writer, original: Original, info: ModelInfo, format: str = ""
) -> ExportedThread:
    """The messages of a thread, nothing repaired: an export says what the log says."""
    format = format or writer.format
    system, tools, rest = _head(list(entries), format)
    draft = Draft(info, writer.native)
    draft.faithful = True
    groups = [(group, original(group, format)) for group in _groups(rest)]
    used = {entry.call_id for group, found in groups if found for entry in group if entry.kind == "call"}
    called = {entry.call_id: entry.name for entry in rest if entry.kind == "call"}
    # Whole messages of this format as they came in; what stands between them is written anew.
    for anew, run in groupby(groups, lambda found: found[1] is None):
        if anew:
            messages = project((entry for group, _ in run for entry in group), called)
            for message in _told_apart(messages, used) if writer.native.unique_ids else messages:
                writer.write(draft, message)
        else:
            draft.messages += [message for _, messages in run for message in messages or ()]
    return ExportedThread(system, tools, draft.messages)


def _told_apart(messages: Iterable[Message], used: set[str]) -> Iterator[Message]:
    """Messages whose calls have ids of their own, as their results have then; one that stands once stays as it is."""
    waiting: dict[str, list[str]] = {}
    role = ""
    for message in messages:
        waiting = waiting if message.role in ("tool", role) else {}
        role, parts = message.role, list[Part]()
        for part in message.parts:
            if isinstance(part, Call):
                id = next(id for id in id_variants(part.call_id) if id not in used)
                used.add(id)
                waiting.setdefault(part.call_id, []).append(id)
                part = part if id == part.call_id else msgspec.structs.replace(part, call_id=id)
            elif isinstance(part, Result) and waiting.get(part.call_id):
                part = msgspec.structs.replace(part, call_id=waiting[part.call_id].pop(0))
            parts.append(part)
        yield msgspec.structs.replace(message, parts=tuple(parts))


def exported_request(
    entries: Iterable[Entry],
    *,
    writer: Writer,
    original: Original,
    system: str = "system",
    say: Callable[[str], Json] = str,
    tools: Callable[[list[JsonObject]], JsonObject] = lambda defined: {"tools": defined},
    messages: str = "messages",
    format: str = "",
) -> Json:
    """A thread's messages; with a system prompt or tools, the object a request holds them in.

    What came in this format stands as it came. The system prompt stands in the field `system`; without such a field it
    is the first message.
    """
    format = format or writer.format
    out = export_thread(entries, writer, original, model_info(f"{writer.format}:"), format)
    defined: list[JsonObject] = []
    for entry in out.tools:
        came = entry.wire.get("tools") if entry.wire.get("format") == format else None
        defined += came if isinstance(came, list) else map(writer.native.define, functions_of(entry.tools))
    head, listed = tools(defined) if defined else {}, out.messages
    if out.system and system:
        wire = out.system.wire if out.system.wire.get("format") == format else {}
        head[system] = wire.get("system", say(out.system.text))
    elif out.system:
        listed = [{"role": "system", "content": out.system.text}, *listed]
    return {**head, messages: listed} if head else listed


def _head(entries: list[Entry], format: str) -> tuple[Entry | None, tuple[Entry, ...], list[Entry]]:
    """The first system entry and the tools in front, where they are not messages of this format themselves."""
    system: Entry | None = None
    tools: tuple[Entry, ...] = ()
    for place, entry in enumerate(entries):
        if "message" in entry.wire and entry.wire.get("format") == format:
            return system, tools, entries[place:]
        if entry.kind == "system" and system is None:
            system = entry
        elif entry.kind == "tools":
            tools = (*tools, entry)
        else:
            return system, tools, entries[place:]
    return system, tools, []


def whole_message(read: Callable[[JsonObject], list[Entry]]) -> Original:
    """How to find the message that a group of entries came from: kept on the first, if none is missing."""

    def original(group: list[Entry], format: str) -> list[JsonObject] | None:
        wire = group[0].wire
        message = wire.get("message") if wire.get("format") == format else None
        return [message] if message is not None and len(read(message)) == len(group) else None

    return original


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    for entry in entries:
        if group and not entry.wire.get("more"):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


# A request: every message is written first; the imported original then takes its place where the provider takes it.


Write: TypeAlias = Callable[[Draft, Message], None]


def by_role(user: Write, assistant: Write, tool: Write, note: Write, tools: Write = Draft.add_tools_in_front) -> Write:
    """A writer of messages by the function for each role; late tools join the list in front unless told otherwise."""

    def results(draft: Draft, message: Message) -> None:
        leave_out_media(message, draft)
        tool(draft, message)

    write: dict[Role, Write] = {"user": user, "assistant": assistant, "tool": results, "note": note, "tools": tools}
    return lambda draft, message: write[message.role](draft, message)


def user_last(say: Callable[[str], JsonObject]) -> Callable[[Draft], None]:
    """How a request to Claude ends: with a turn of the user, unless the model may go on with its own last words."""

    def end(draft: Draft) -> None:
        features = draft.info.features
        goes_on = features.prefill and (features.blank_prefill or not ends_blank(draft.last))
        if not draft.messages or (draft.last.get("role") == "assistant" and not goes_on):
            draft.bridge({"role": "user", "content": [say(GO_ON)]})

    return end


def with_originals(write: Write) -> Write:
    """Wrap a writer: an imported message goes back unchanged, unknown fields included, where the provider takes it."""

    def put(draft: Draft, message: Message) -> None:
        before, omissions, last, half = len(draft.messages), len(draft.left_out), draft.last, draft.half
        tools, effort = len(draft.late_tools), draft.effort
        draft.half = None
        write(draft, message)
        if draft.faithful:
            return
        bridges = [item for item in draft.messages[before:] if item is draft.bridged]
        written = draft.messages[before + len(bridges) :]
        if half and message.role == "user" and draft.sealed < before and _says(message.parts, half[1]):
            # The results and the words were imported as one message.
            draft.messages[before - 1 :] = [half[0]]
            draft.original_end, draft.original_seq = before, max(message.seqs, default=0)
            return
        originals = _originals(draft, message)
        if originals is None or not (draft.native.anywhere or _holds(originals, written)):
            return
        is_note = message.role == "note"
        needs_turn = bool(bridges or is_note) and _needs_turn_between(draft, last, originals[0], before)
        if is_note and needs_turn:
            return
        if _follows(draft, message, before) and not needs_turn:
            bridges = []
        draft.messages[max(0, before - 1) :] = [*([last] if before else []), *bridges, *originals]
        del draft.left_out[omissions:], draft.late_tools[tools:]
        draft.effort = effort
        draft.original_end, draft.original_seq = len(draft.messages), max(message.seqs, default=0)

    return put


def _follows(draft: Draft, message: Message, before: int) -> bool:
    """Whether an imported message still follows the message it was imported behind, or still comes first."""
    if not before:
        return not draft.stale
    return draft.original_end == before and min(message.seqs, default=0) == draft.original_seq + 1


def _holds(original: Json, written: Json) -> bool:
    """Whether the imported value holds everything of the written one: {"a": 1, "b": 2}, {"a": 1} -> True."""
    if isinstance(original, dict) and isinstance(written, dict):
        return all(key in original and (key == "role" or _holds(original[key], written[key])) for key in written)
    if isinstance(original, list) and isinstance(written, list):
        # Results may have come in another order than their calls.
        return len(original) == len(written) and all(
            _holds(original[place], item) or any(_holds(other, item) for other in original)
            for place, item in enumerate(written)
        )
    return bool(original == written)


def _originals(draft: Draft, message: Message) -> list[JsonObject] | None:
    """The imported messages behind a message, if this model was sent each of them and their parts are unchanged."""
    if not any(draft.was_sent(getattr(part, "wire", {})) for part in message.parts):
        return None
    out = []
    for parts in _runs(message):
        wire = getattr(parts[0], "wire", {})
        void = draft.stale and any(isinstance(part, Think) for part in parts)
        if void or not draft.was_sent(wire) or (message.role == "note" and not draft.takes_back(wire)):
            return None
        original = as_sent(wire["message"], draft)
        imported = [part for turn in project(format_of(wire["format"]).imports([original])) for part in turn.parts]
        if not _says(parts, imported[: len(parts)]) or _is_refused(original, draft):
            return None
        if len(imported) > len(parts):
            # The imported message also holds words of the user, which come with the next message.
            draft.half = (original, imported[len(parts) :]) if message.role == "tool" else None
            return None
        out.append(original)
    return out or None


def _runs(message: Message) -> list[list[Part]]:
    """The parts of a message by the imported message that each came in, in the order they came."""
    parts = list(message.parts)
    if len(message.seqs) == len(parts):
        parts = [part for _, part in sorted(zip(message.seqs, parts, strict=True), key=lambda pair: pair[0])]
    out: list[list[Part]] = []
    for part in parts:
        if not out or "message" in getattr(part, "wire", {}):
            out.append([])
        out[-1].append(part)
    return out


def as_sent(message: JsonObject, draft: Draft) -> JsonObject:
    """An imported message without cache marks, absent fields and what its recorder noted."""
    bare = {key: value for key, value in without_marks(message).items() if not key.startswith("_")}
    bare = {key: value for key, value in bare.items() if value is not None or key == "content"}
    content = bare.get("content")
    if isinstance(content, list):
        blocks = [without_marks(block) if isinstance(block, dict) else block for block in content]
        bare["content"] = [block for block in blocks if not (isinstance(block, dict) and "cachePoint" in block)]
    elif isinstance(content, str) and content and in_parts(draft.info):
        # A mark must find a block.
        text = [{"type": "input_text" if draft.native.items else "text", "text": content}]
        bare["content"] = content if draft.native.anywhere and bare.get("role") in ("assistant", "function") else text
    return bare


def front_instructions(
    draft: Draft, prompt: Prompt, heads: list[str], text_of: Callable[[Json], str], say: Callable[[str], JsonObject]
) -> list[JsonObject]:
    """The instructions in front of the messages: as they came where they were imported, else as `say` writes them."""
    wires = prompt.front if len(prompt.front) == len(heads) else ({},) * len(heads)
    originals = [as_sent(wire["message"], draft) if draft.was_sent(wire) else {} for wire in wires]
    return [
        message if message and normal(text_of(message.get("content"))) == normal(text) else say(text)
        for text, message in zip(heads, originals, strict=True)
    ]


def _says(parts: Sequence[Part], imported: Sequence[Part]) -> bool:
    return len(parts) == len(imported) and all(map(_says_the_same, parts, imported))


def _says_the_same(part: Part, imported: Part) -> bool:
    if isinstance(part, Text | Think | Result):
        same = isinstance(imported, type(part)) and normal(part.text) == normal(imported.text)
        if not isinstance(part, Result) or not isinstance(imported, Result):
            return same
        # Where no id is said, the name of the function stands for it, or its place.
        return same and part.error == imported.error and imported.call_id in (part.call_id, part.name, "")
    if isinstance(part, Call) and isinstance(imported, Call):
        return (part.call_id, part.name, part.args) == (imported.call_id, imported.name, imported.args)
    if isinstance(part, ToolSet) and isinstance(imported, ToolSet):
        return [_definitions(tool) for tool in part.tools] == [_definitions(tool) for tool in imported.tools]
    return part == imported


def _definitions(tool: JsonObject) -> list[Json]:
    return [tool.get(name) for name in ("name", "description", "parameters")]


def _is_refused(message: JsonObject, draft: Draft) -> bool:
    """Whether the provider would refuse a message at any place of the conversation."""
    check, rules = Check({}, draft.info), wire_of(draft.info.wire).rules
    turn = turn_at(draft.info.wire, message, 1)
    return bool(errors([*rules.message(check, turn), *rules.turn(check, turn)]))


def _needs_turn_between(draft: Draft, last: JsonObject, message: JsonObject, place: int) -> bool:
    """Whether the provider refuses this message right behind the last one, or as the first, without a turn between."""
    check, rules, wire = Check({}, draft.info), wire_of(draft.info.wire).rules, draft.info.wire
    turn, sequels = turn_at(wire, message, place), [make() for make in rules.along]
    for sequel in sequels if place else ():
        list(sequel.take(check, turn_at(wire, last, place - 1)))
    wrong = [*rules.turn(check, turn), *(finding for sequel in sequels for finding in sequel.take(check, turn))]
    return bool(errors(wrong))


# A call's arguments: the string a model wrote, the value it means, and an object where one is demanded.


def parsed_arguments(text: str) -> tuple[Json, JsonObject]:
    """A call's arguments and what `wire` must keep: the string itself, unless it can be written again."""
    if not text:
        return {}, {}
    try:
        args = json.loads(whole_characters(text), parse_constant=_refuse)
        args = {} if args is None else args  # null: the call has no arguments
        written = compact(args)
        written.encode()  # an escaped lone surrogate parses, but no log can hold it
    except (ValueError, RecursionError):
        return text, {"arguments": text}
    return args, {} if written == text else {"arguments": text}


def compact(value: Json) -> str:
    """JSON as models write arguments: no spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def object_text(args: Json, text: str) -> str:
    """Arguments as the text of a JSON object, for servers that parse them."""
    if not isinstance(args, dict):
        return compact(object_of(args))
    return text or compact(args)


def object_of(args: Json) -> JsonObject:
    """Arguments as an object: what the model wrote instead of one stands under `arguments`."""
    return args if isinstance(args, dict) else {"arguments": args}


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


# What differs between the servers that speak OpenAI's formats: a row of data each, plus the model's features.


@read_early
class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of data/dialects.json, where the fields are explained."""

    note: Literal["developer", "system", "text"] = "system"
    thinking: Literal["", "reasoning_content", "reasoning"] = ""
    max_tokens: str = "max_tokens"
    ids: Spelling = Spelling()
    names: Spelling = Spelling()
    json_arguments: bool = True
    encrypted: bool = False
    key_in: Literal["body", "extra", "header"] = "extra"


@functools.cache
def _rows() -> dict[str, Dialect]:
    return msgspec.convert(data("dialects")["dialects"], dict[str, Dialect])


def dialect_of(info: ModelInfo) -> Dialect:
    """How the provider of this model speaks Chat Completions."""
    row = _rows().get(info.provider, Dialect())
    if info.features.template and _MISTRALS.search(info.model.lower()):
        # The template that comes with the model refuses other ids, whoever serves it.
        return msgspec.structs.replace(row, ids=_rows()["mistral"].ids)
    return row


_MISTRALS = re.compile("mistral|mixtral|ministral|codestral|devstral|magistral|pixtral")


def in_parts(info: ModelInfo) -> bool:
    """Whether content is a list of parts even for text alone, so that a cache mark moves no byte."""
    return info.cache.max_breakpoints > 0


def alternates(info: ModelInfo) -> bool:
    """Whether a chat template may insist on user and assistant taking turns."""
    return info.features.template or not info.features.user_after_tool
