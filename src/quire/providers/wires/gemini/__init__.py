"""Gemini's generateContent: replies and imported contents into entries, entries back verbatim, and the wire itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from quire.errors import FormatError, ProviderError
from quire.providers.incoming import (
    LIMIT_BLOCKS,
    BlockDelta,
    ReplyReader,
    object_in,
    objects,
    optional_list,
    paragraphs,
    sub,
    tag_message,
    text_in,
    with_call_ids,
    with_wire,
)
from quire.providers.models import model_info
from quire.providers.outgoing import compact, exported_request, whole_message
from quire.providers.prefix import Layout, Unit, UnitPart, as_block, definition
from quire.providers.provider_tools import ToolOffer, function, offer_entry
from quire.providers.rules.gemini import RULES, setting
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.gemini.write import (
    CONTENT,
    FORMAT,
    NAMES,
    NATIVE,
    WRITER,
    assistant_entry,
    camel_in,
    part_in,
    result_entry,
    sdk_kwargs,
    tool_entry,
)
from quire.values import (
    Entry,
    Json,
    JsonObject,
    Reply,
    as_list,
    as_object,
    as_objects,
    as_text,
    respond,
    system,
    value_at,
)


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of contents, or of a request that holds one (with its instruction and tools)."""
    out: list[Entry] = []
    if isinstance(value, dict):
        model = model or str(value.get("model") or "").removeprefix("models/")
        out += _head_entries(value)
        value = value.get("contents")
        # Google's own client takes a text or a content alone.
        value = [{"role": "user", "parts": [{"text": value}]}] if isinstance(value, str) else value
        value = [value] if isinstance(value, dict) else value
    if not isinstance(value, list):
        raise FormatError("no list of contents", hint='Give a list, or {"contents": [...]}.')
    of_model: list[Entry] = []
    waiting: list[Entry] = []
    signs = bool(model) and model_info(f"{FORMAT}:{model}").features.signatures
    newest = max((place for place, content in enumerate(value) if signs and _asks(content)), default=0)
    for place, content in enumerate(value):
        entries = _entries(content, f"contents[{place}]", waiting, len(of_model))
        if place < newest:
            # Calls of turns that are over need no signature.
            entries = [
                with_wire(entry, {"over": True})
                if entry.kind == "call" and "thoughtSignature" not in entry.wire.get("block", {})
                else entry
                for entry in entries
            ]
        out += tag_message(entries, FORMAT, content, model)
        of_model = [*of_model, *entries] if as_object(content).get("role") == "model" else []
        answered = {entry.call_id for entry in entries if entry.kind == "result"}
        calls = [entry for entry in of_model if entry.kind == "call"]
        waiting = calls or [call for call in waiting if call.call_id not in answered]
    return out


def _asks(content: Json) -> bool:
    """Whether the user speaks in a content, and no function answers."""
    if not isinstance(content, dict) or content.get("role", "user") != "user":
        return False
    answers = {"functionResponse", "function_response"}
    return not any(part.keys() & answers for part in as_objects(content.get("parts")))


def _head_entries(request: JsonObject) -> list[Entry]:
    out = []
    tools = request.get("tools")
    if defined := objects({"tools": [tools] if isinstance(tools, dict) else tools}, "tools"):
        out.append(offer_entry(_offers(defined), format=FORMAT, tools=defined))
    prompt = request.get("systemInstruction", request.get("system_instruction"))
    if prompt is not None:
        parts = (
            [part_in(part) for part in optional_list(prompt, "parts")]
            if isinstance(prompt, dict)
            else [{"text": prompt}]
        )
        out.append(system(paragraphs(parts, CONTENT.text_of), wire={"format": FORMAT, "system": prompt}))
    return out


def _offers(defined: list[JsonObject]) -> Iterator[ToolOffer]:
    """Functions, and Gemini's own: each other field of a tool is one, {"googleSearch": {}}."""
    for tool in defined:
        for name, how in tool.items():
            if name in ("functionDeclarations", "function_declarations"):
                declared = (camel_in(item) for item in objects(tool, name))
                yield from (function(definition, NATIVE) for definition in declared)
            elif how is not None:
                yield ToolOffer(tool_entry({"name": name}), {name: how})


def _tool_list(defined: list[JsonObject]) -> JsonObject:
    """Tools as they came, and one that declares all functions which came in no tool."""
    functions, tools = ([tool for tool in defined if ("name" in tool) is alone] for alone in (True, False))
    return {"tools": [*tools, *([{"functionDeclarations": functions}] if functions else [])]}


# Some of Google's clients ask for words as numbers: the first reasons to end by theirs.
_ENDS = {1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION", 5: "OTHER"}


def candidate_in(reply: JsonObject) -> JsonObject:
    """The first candidate; a prompt that was blocked has none."""
    candidates = reply.get("candidates")
    if isinstance(candidates, list) and candidates:
        candidate = camel_in(object_in(candidates[0], "a candidate"))
        stop = candidate.get("finishReason")
        return {**candidate, "finishReason": _ENDS.get(stop, str(stop))} if isinstance(stop, int) else candidate
    if blocked := camel_in(sub(reply, "promptFeedback")).get("blockReason"):
        raise ProviderError(f"the prompt was blocked: {blocked}", hint="Change the prompt or the safety settings.")
    raise FormatError("a response without candidates", hint="An error body is no reply; check the status.")


def parts_in(candidate: JsonObject) -> list[JsonObject]:
    return [part_in(part) for part in optional_list(sub(candidate, "content"), "parts")]


def _entries(content: Json, where: str = "content", waiting: Iterable[Entry] = (), before: int = 0) -> list[Entry]:
    """The entries of a content; `before`: how many the model's turn has already, `waiting`: calls without a result."""
    role = value_at(content, "role")
    if not isinstance(content, dict) or role not in (None, "user", "model", "function"):
        raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user and model.")
    if not isinstance(content.get("parts"), list):
        raise FormatError(f"{where}: no list of parts", hint='A content is {"role": ..., "parts": [...]}.')
    parts = parts_in({"content": content})
    if role == "model":
        return list(with_call_ids(map(assistant_entry, parts), before)) or [respond("")]
    results = _results(parts, list(waiting))
    return CONTENT.entries(results, [part for part in parts if "functionResponse" not in part])


def _results(parts: list[JsonObject], waiting: list[Entry]) -> list[Entry]:
    """Function responses; those without an id answer the first open call of their name."""
    responses = [part for part in parts if "functionResponse" in part]
    named = {str(part["functionResponse"].get("id")) for part in responses}
    unnamed = [call for call in waiting if call.call_id not in named]
    out = []
    for part in responses:
        call_id, name = part["functionResponse"].get("id"), part["functionResponse"].get("name")
        match = next((call for call in unnamed if call.name == name and not call_id), None)
        if match:
            unnamed.remove(match)
        out.append(result_entry(part, str(call_id or (match.call_id if match else name or ""))))
    return out


# A streamed generateContent response: text grows until something else comes, calls come whole.


class GeminiReader(ReplyReader):
    """Gathers chunks. A part with a signature is never joined with another: the signature is of that part."""

    format = FORMAT
    ending = "its finishReason"
    spelling = NAMES

    def __init__(self, provider: str, model: str, names: Iterable[str]) -> None:
        super().__init__(provider, model, names)
        # How many parts are entries; the one behind them grows.
        self.parts = 0
        # A call whose arguments come in pieces, and the paths of those that go on.
        self.call: JsonObject = {}
        self.paths: set[str] = set()

    def _read(self, reply: JsonObject) -> Reply:
        answer = camel_in(reply)
        candidate = candidate_in(answer)
        self._answered_by(answer)
        entries = map(assistant_entry, parts_in(candidate))
        return self._whole_reply(reply, entries, candidate.get("finishReason"), answer.get("responseId"))

    def _answered_by(self, answer: JsonObject) -> None:
        self.model = str(answer.get("modelVersion") or "").removeprefix("models/") or self.model

    def _take(self, event: JsonObject) -> list[Entry]:
        chunk = camel_in(event)
        self.id = text_in(chunk, "responseId") or self.id
        self._answered_by(chunk)
        self.reported |= {"usageMetadata": used} if (used := sub(chunk, "usageMetadata")) else {}
        if not chunk.get("candidates") and not chunk.get("promptFeedback"):
            self.unknown += not self.reported
            return []
        candidate = candidate_in(chunk)
        if "groundingMetadata" in candidate:
            self.reported["candidates"] = [candidate]
        finished = [entry for part in parts_in(candidate) for entry in self._part(part)]
        if stop := text_in(candidate, "finishReason"):
            self.stop = stop
            # A call that the reply's length cut is none.
            finished += [*(self._end_call() if stop == "STOP" else ()), *self._end_text(), *self._end()]
        return finished

    def _part(self, part: JsonObject) -> list[Entry]:
        piece = camel_in(sub(part, "functionCall"))
        if "functionCall" in part and (self.call or piece.keys() & {"partialArgs", "willContinue"}):
            return self._call_piece(part, piece)
        kind = "think" if part.get("thought") else "respond"
        plain = part.keys() == ({"text", "thought"} if kind == "think" else {"text"})
        # An empty text ends no call.
        entries = [*(self._end_call() if part.get("text") != "" else ()), *self._end_text(unless=kind if plain else "")]
        if plain and not self.call:
            self._grow(self.parts, "text", text_in(part, "text"), kind)
        if plain:
            return entries
        # Text may follow in the same chunk: whoever watches is told that this one comes before it.
        self._live.append(BlockDelta(self.parts, "respond", ""))
        return [*entries, *self._whole(part)]

    def _call_piece(self, part: JsonObject, piece: JsonObject) -> list[Entry]:
        """More of a call: {"name": "f", "willContinue": true}, {"partialArgs": [{"jsonPath": "$.a", …}]}, {}."""
        entries = self._end_call() if self.call and piece.get("name") else self._end_text()
        call = sub(self.call, "functionCall")
        args = {**sub(call, "args"), **sub(piece, "args")}
        named = {field: piece[field] for field in ("id", "name") if piece.get(field)}
        self.call = {**self.call, **part, "functionCall": {**call, **named, "args": args}}
        for argument in objects(piece, "partialArgs"):
            self._argument(args, camel_in(argument))
        return entries if piece.get("willContinue") else [*entries, *self._end_call()]

    def _argument(self, args: JsonObject, piece: JsonObject) -> None:
        path = text_in(piece, "jsonPath")
        value = next((piece[field] for field in _VALUES if field in piece), None)
        if isinstance(value, str):
            self._show(self.parts, "call", value)
        _put_at(args, path, value, goes_on=path in self.paths)
        (self.paths.add if piece.get("willContinue") else self.paths.discard)(path)

    def _end_call(self) -> list[Entry]:
        """The call so far, now that it is whole."""
        part, self.call, self.paths = self.call, {}, set()
        return self._whole(part) if part else []

    def _end_text(self, unless: str = "") -> list[Entry]:
        """The text so far, now that something else follows it; text of the kind `unless` goes on."""
        block = self.open_blocks.get(self.parts)
        if block is None or block.kind == unless:
            return []
        del self.open_blocks[self.parts]
        return self._whole({"text": block.text("text"), **({"thought": True} if block.kind == "think" else {})})

    def _whole(self, part: JsonObject) -> list[Entry]:
        self.parts += 1
        return self._add([assistant_entry(part)])

    def unfinished(self) -> Iterator[JsonObject]:
        yield from super().unfinished()
        if call := sub(self.call, "functionCall"):
            yield {"kind": "call", "name": call.get("name", ""), "text": compact(call["args"])}


# Arguments that come in pieces, each with a JSON path (RFC 9535) to where it belongs.

_VALUES = ("stringValue", "numberValue", "boolValue")
_STEP = re.compile(r"""\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<quoted>(?:\\.|.)*?)(?P=quote)\]""")


def _put_at(args: JsonObject, path: str, value: Json, goes_on: bool) -> None:
    """Put a value where its path says; a text that goes on joins what came of it: $.a[0].b."""
    holder: Any = args
    steps = [_step(match) for match in _STEP.finditer(path)]
    for step, after in pairwise(steps):
        holder = _place(holder, step, [] if isinstance(after, int) else {})
    for last in steps[-1:]:
        before = _place(holder, last, None)
        joins = goes_on and isinstance(before, str) and isinstance(value, str)
        holder[last] = before + value if joins else value


def _step(match: re.Match[str]) -> str | int:
    if match["index"]:
        return min(int(match["index"]), LIMIT_BLOCKS)
    return match["name"] or re.sub(r"\\(.)", r"\1", match["quoted"] or "")


def _place(holder: Any, step: str | int, empty: Json) -> Any:
    """What stands at a step of a path, made where there is nothing yet."""
    if isinstance(holder, list) and isinstance(step, int):
        holder += [None] * (step + 1 - len(holder))
        if holder[step] is None:
            holder[step] = empty
    elif isinstance(holder, dict) and isinstance(step, str):
        holder.setdefault(step, empty)
    else:
        raise FormatError(f"an argument at {step!r} of {type(holder).__name__}", hint="The path names no place.")
    return holder[step]


# Where a request keeps what is cached: the REST body, or the SDK's call with settings under `config`.


def _head(body: JsonObject) -> Iterator[Unit]:
    if cached := setting(body, "cachedContent")[1]:
        yield Unit(("cachedContent",), "tools", "tool", cached, (), ({"cachedContent": cached},))
    for index, tool in enumerate(as_list(setting(body, "tools")[1])):
        functions, rest = as_list(as_block(tool).get("functionDeclarations")), dict(as_block(tool))
        rest.pop("functionDeclarations", None)
        # Each function by itself, and what else a tool holds.
        compared = (*functions, *([rest] if rest else []))
        yield replace(definition(("tools", index), as_block(tool)), compared_lines=compared)
    prompt = setting(body, "systemInstruction")[1]
    instruction = prompt.get("parts") if isinstance(prompt, dict) else prompt
    listed = enumerate([{"text": instruction}] if isinstance(instruction, str) else as_list(instruction))
    parts = tuple(UnitPart(("systemInstruction", "parts", at), as_block(part)) for at, part in listed)
    yield Unit((), "system", "system", prompt, parts, tuple(part.value for part in parts))


def _contents(body: JsonObject) -> Sequence[Json]:
    contents = setting(body, "contents")[1]
    return [contents] if isinstance(contents, str | dict) else as_list(contents)


def _content(content: Json, index: int) -> Unit:
    """A content; the SDK also takes a text, or a part alone, which are the user's."""
    if isinstance(content, dict) and "parts" in content:
        numbered = enumerate(as_list(content["parts"]))
        parts = tuple(UnitPart(("parts", at), part) for at, part in numbered if isinstance(part, dict))
    else:
        parts = (UnitPart((), content if isinstance(content, dict) else {"text": str(content)}),)
    role = content.get("role") if isinstance(content, dict) else ""
    return Unit(("contents", index), "messages", as_text(role) or "user", content, parts, (content,))


_METHODS = ("generateContent", "streamGenerateContent?alt=sse")

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=partial(
        exported_request,
        writer=WRITER,
        original=whole_message(_entries),
        system="systemInstruction",
        say=lambda text: {"parts": [{"text": text}]},
        tools=_tool_list,
        messages="contents",
    ),
    writer=WRITER,
    layout=Layout(_head, "contents", _content, _contents),
    reader=GeminiReader,
    reports_no_cache=False,
    # Google has an endpoint that speaks Chat.
    other=lambda body: "openai-chat" if "messages" in body and "contents" not in body else "",
    rules=RULES,
    call=ModelCall(
        sdk="google.genai",
        method="aio.models.generate_content",
        stream_method="aio.models.generate_content_stream",
        sdk_kwargs=sdk_kwargs,
        path=lambda request, streamed: f"/models/{request.model.removeprefix('models/')}:{_METHODS[streamed]}",
        version="v1beta",
        key_header="x-goog-api-key",
        makes_caches=True,
    ),
)
