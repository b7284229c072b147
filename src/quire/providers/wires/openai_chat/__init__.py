"""OpenAI Chat Completions, and the many servers that speak it with small differences: reading, and the wire itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from quire.errors import FormatError
from quire.providers.incoming import (
    ReplyReader,
    StreamedBlock,
    listed,
    not_a_reply,
    number_in,
    object_in,
    objects,
    read_messages,
    refused,
    sub,
    text_in,
    with_wire,
    without_nulls,
)
from quire.providers.models import model_info
from quire.providers.outgoing import dialect_of, exported_request, parsed_arguments, whole_message
from quire.providers.prefix import (
    Layout,
    Section,
    Unit,
    UnitPart,
    as_block,
    as_list,
    definition,
    parts_of,
    schema,
    unmarked_in,
    with_control,
)
from quire.providers.provider_tools import tools_in
from quire.providers.rules.openai import CHAT_RULES
from quire.providers.usage import usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.openai_chat.write import CONTENT, FORMAT, NATIVE, WRITER, thought_of
from quire.values import Entry, Json, JsonObject, Reply, Usage, call, respond, result, system, think

# Where servers put what a model thought.
_THOUGHTS = ("reasoning_content", "reasoning")
# What entries hold of a message of the model; all else goes back with the message alone, and is counted there.
_SHOWN = {
    *("role", "content", "tool_calls", "function_call", "name", "refusal", "prefix", "audio"),
    *("reasoning_details", "thinking", *_THOUGHTS),
}


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = message.get("role") if isinstance(message, dict) else None
    match role:
        case "system" | "developer":
            return [system(CONTENT.text_of(message.get("content")))]
        case "user":
            return [CONTENT.entry(message.get("content"))]
        case "assistant":
            first, *rest = _assistant(message)
            besides = [name for name in message if message[name] and name not in _SHOWN and name[0] != "_"]
            return [with_wire(first, {"besides": besides}) if besides else first, *rest]
        case "tool" | "function":
            # Servers of the old function calls name no id: the function's name stands in for it.
            call_id = str(message.get("tool_call_id") or message.get("name") or "")
            failed = True if message.get("_err") is True else None
            return [result(call_id, content=CONTENT.text_of(message.get("content")), error=failed)]
    raise FormatError(
        f"{where}: unknown role {role!r}", hint="Roles are system, developer, user, assistant, tool, function."
    )


def _assistant(message: JsonObject) -> list[Entry]:
    """Thinking, text and calls in that order; a message with none of them is an empty respond."""
    out = []
    field = next((name for name in _THOUGHTS if message.get(name)), "")
    thought = message.get(field or "thinking") or thought_of(message.get("content"))
    # Thinking in its provider's own form (signatures, encrypted), which some servers want back.
    details = listed(message, "reasoning_details")
    if thought or details:
        block = {"block": {"reasoning_details": details}} if details else {}
        out.append(think(str(thought), wire=block | ({"field": field} if field else {}) or None))
    audio = sub(message, "audio")
    text = CONTENT.text_of(message.get("content")) or message.get("refusal") or audio.get("transcript")
    if text or audio or message.get("images"):
        out.append(respond(str(text or ""), wire=_besides(message)))
    out += [_call(item) for item in objects(message, "tool_calls") if _is_called(item)]
    function = sub(message, "function_call")
    if _is_called({"function": function}):
        out.append(_call({"id": function.get("name"), "function": function}))
    return out or [respond("")]


def _is_called(item: JsonObject) -> bool:
    """Whether anything is called: some servers send an entry without a name, an id or arguments."""
    called = sub(item, "function") or sub(item, "custom")
    return bool(item.get("id") or any(called.values()))


def _besides(message: JsonObject) -> JsonObject | None:
    """What comes with a text: annotations, the audio it is the transcript of, pictures."""
    fields = ("annotations", "audio", "images", "executed_tools")
    extras = {field: message[field] for field in fields if message.get(field)}
    return {"block": extras} if extras else None


def _call(item: JsonObject) -> Entry:
    call_id = str(item.get("id") or "")
    if custom := sub(item, "custom"):
        return call(call_id, str(custom.get("name") or ""), custom.get("input"), wire={"block": item})
    function = sub(item, "function")
    arguments = function.get("arguments")
    # Some recorders keep arguments parsed.
    args, wire = parsed_arguments(arguments) if isinstance(arguments, str) else (arguments or {}, {})
    if item.get("extra_content"):
        # Gemini's signatures, where it is asked in this format.
        wire = {**wire, "block": item}
    return call(call_id, str(function.get("name") or ""), args, wire=wire or None)


# A streamed chat completion: chunks in, entries out when they are whole.

# `data: [DONE]`, as an event.
DONE = {"object": "[DONE]"}


# Fields of a delta that are put together by kinds of their own; all others are kept as they come.
_GATHERED = ("role", *_THOUGHTS, "thinking", "content", "refusal", "audio", "tool_calls", "function_call")


# Where the blocks of a message stand: its thinking, its text, and from here on its calls.
_THINKING, _TEXT, _CALLS = 0, 1, 2


class ChatReader(ReplyReader):
    """Gathers chunks; nothing of a chat message is whole before its finish_reason has come."""

    format = FORMAT
    named = "a chat completion"
    ending = "its finish_reason"

    def __init__(self, provider: str, model: str, names: Iterable[str]) -> None:
        super().__init__(provider, model, names)
        # Whatever else the message holds: annotations, images, reasoning_details.
        self.others: JsonObject = {}
        self.audio: JsonObject = {}
        self.tier: JsonObject = {}

    def _read(self, reply: JsonObject) -> Reply:
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise FormatError("a chat completion without choices", hint="An error body is no reply; check the status.")
        message = choices[0].get("message")
        if not isinstance(message, dict):
            raise not_a_reply("a chat completion without a message")
        self.model = str(reply.get("model") or self.model)
        return self._whole_reply(
            reply, self._message_entries(message), choices[0].get("finish_reason"), reply.get("id")
        )

    def _message_entries(self, message: JsonObject) -> list[Entry]:
        self.spelling = dialect_of(model_info(f"{self.provider}:{self.model}")).names
        return _assistant(without_nulls(message))

    def feed(self, event: Any) -> list[Entry]:
        if event == "[DONE]" or event == DONE:
            # Some servers end without saying why.
            return self._finish("stop") if self.open_blocks or self.audio else []
        chunk = object_in(event, "a chunk")
        if chunk.get("error"):
            raise refused(chunk["error"])
        if "choices" not in chunk and "usage" not in chunk:
            self.unknown += 1
            return []
        self.id = self.id or text_in(chunk, "id")
        self.model = text_in(chunk, "model") or self.model
        if chunk.get("service_tier"):
            self.tier = {"service_tier": chunk["service_tier"]}
        self.reported |= {key: chunk[key] for key in ("usage", "x_groq", "timings") if chunk.get(key)}
        for choice in objects(chunk, "choices"):
            if choice.get("index"):
                continue  # only the first of several answers is recorded
            self._delta(sub(choice, "delta"))
            if stop := text_in(choice, "finish_reason"):
                return self._finish(stop)
        return []

    def _delta(self, delta: JsonObject) -> None:
        if isinstance(content := delta.get("content"), list):
            # Mistral streams parts: thinking and text.
            delta = {**delta, "content": CONTENT.text_of(content), "thinking": thought_of(content)}
        for place, kind, fields in (
            (_THINKING, "think", (*_THOUGHTS, "thinking")),
            (_TEXT, "respond", ("content", "refusal")),
        ):
            texts = [(field, text) for field in fields if (text := text_in(delta, field))]
            for number, (field, text) in enumerate(texts):
                # Where a server says the same under two names, the first becomes the entry and is shown.
                self._grow(place, field, text, kind if number == 0 else "")
        for field, value in delta.items():
            if field not in _GATHERED and value is not None:
                grows = isinstance(value, list)
                self.others[field] = [*listed(self.others, field), *value] if grows else value
        for field, value in (audio := sub(delta, "audio")).items():
            # Sound comes in pieces, and what is said in it beside them.
            grows = field in ("data", "transcript")
            self.audio[field] = self.audio.get(field, "") + self._receive(text_in(audio, field)) if grows else value
        for piece in objects(delta, "tool_calls"):
            self._call(piece)
        if function := sub(delta, "function_call"):
            # The old form: one call, known by its name.
            self._call({"index": 0, "id": function.get("name"), "function": function})

    def _call(self, piece: JsonObject) -> None:
        # Some servers leave the index out and send calls whole.
        count = sum(place >= _CALLS for place in self.open_blocks)
        index = number_in(piece, "index") if piece.get("index") is not None else count
        function, custom = sub(piece, "function"), sub(piece, "custom")
        called, field = (custom, "input") if custom else (function, "arguments")
        block = self._grow(_CALLS + index, field, text_in(called, field), "call")
        # Some servers say the name in each chunk.
        name = text_in(called, "name")
        block.name += "" if name == block.name else name
        # Whatever else is said of it: Gemini's signature in `extra_content`.
        apart = ("index", "id", "type", "function", "custom")
        others = {field: value for field, value in piece.items() if field not in apart and value}
        block.start |= {"id": block.start.get("id") or text_in(piece, "id"), **others}

    def _finish(self, stop: str) -> list[Entry]:
        if self.stop:
            return []
        added = self._add(self._message_entries(self._message()))
        self.stop, self.open_blocks = stop, {}
        return added

    def _message(self) -> JsonObject:
        blocks = [self.open_blocks[place] for place in sorted(self.open_blocks)]
        out: JsonObject = {
            field: block.text(field) for block in blocks if block.kind != "call" for field in block.pieces
        }
        out |= self.others | ({"audio": self.audio} if self.audio else {})
        if calls := [_called(block) for block in blocks if block.kind == "call"]:
            out["tool_calls"] = calls
        return out

    @property
    def usage(self) -> Usage:
        whole = {**self.reported, **self.tier, "choices": [{"message": self.others}]}
        return usage(self.provider, whole) if self.reported else Usage()

    def unfinished(self) -> Iterable[JsonObject]:
        transcript = "" if self.stop else self.audio.get("transcript")
        return [*super().unfinished(), *([{"kind": "respond", "text": transcript}] if transcript else [])]


def _called(block: StreamedBlock) -> JsonObject:
    """A streamed call as a whole message holds it."""
    kind, text = ("custom", "input") if "input" in block.pieces else ("function", "arguments")
    called = {"name": block.name, text: block.text(text)}
    return {"id": block.start["id"], "type": kind, kind: called, **block.start}


# Where a request keeps what is cached.


def chat_head(body: JsonObject) -> Iterator[Unit]:
    """The tools and the form of the answer, which stand in front of the messages."""
    for index, tool in enumerate(as_list(body.get("tools"))):
        yield definition(("tools", index), as_block(tool))
    if body.get("response_format"):
        yield schema(("response_format",), body["response_format"])


def _message(message: Json, index: int) -> Unit:
    role, thought, refusal = (str(message.get("role", "")), message.get("reasoning_content"), message.get("refusal"))
    parts = [UnitPart(("reasoning_content",), {"type": "thinking", "thinking": thought})] if thought else []
    parts += parts_of(message.get("content"), "content")
    # A refusal is the text of a message that has none; calls follow whatever was said.
    parts += [UnitPart(("refusal",), {"type": "text", "text": refusal})] if refusal else []
    calls = as_list(message.get("tool_calls"))
    parts += [UnitPart(("tool_calls", at), as_block(call)) for at, call in enumerate(calls)]
    parts = parts or [UnitPart(("content",), {"type": "text", "text": ""})]
    if role == "tool":
        parts = [part._replace(also={"tool_call_id": message.get("tool_call_id")}) for part in parts]
    section: Section = "system" if role in ("system", "developer") else "messages"
    compared = unmarked_in(message, "content")
    return Unit(("messages", index), section, role, message, tuple(parts), (compared,))


WIRE = Wire(
    name=FORMAT,
    imports=partial(read_messages, format=FORMAT, head=partial(tools_in, native=NATIVE), read=_entries),
    exports=partial(exported_request, writer=WRITER, original=whole_message(_entries), system=""),
    writer=WRITER,
    layout=Layout(chat_head, "messages", _message),
    reader=ChatReader,
    mark=with_control,
    thinking=lambda info: info.features.reasoning_content != "never",
    rules=CHAT_RULES,
    call=ModelCall(
        sdk="openai",
        method="chat.completions.create",
        streaming={"stream": True, "stream_options": {"include_usage": True}},
        ends_in_done=True,
        # A request with a prompt is one text, for an engine to continue.
        path=lambda request, streamed: "/completions" if "prompt" in request.body else "/chat/completions",
        version_in_url=True,
        key_prefix="Bearer ",
    ),
    # Whoever says "openai" may mean either format.
    other=lambda body: "openai-responses" if "input" in body and "messages" not in body else "",
    tools_in_words=True,
)
