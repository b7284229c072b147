"""OpenAI Chat Completions, and the many servers that speak it with small differences: entries into messages and a
request around them, replies and imported messages back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from quire import values
from quire.errors import FormatError
from quire.providers.convert import BEHIND, UserContent, from_url, images_behind, is_web, leave_out, own_block, to_url
from quire.providers.incoming import (
    ReplyReader,
    Spelling,
    StreamedBlock,
    not_a_reply,
    number_in,
    objects,
    optional_list,
    read_messages,
    sub,
    text_in,
    with_wire,
    without_nulls,
)
from quire.providers.models import model_info
from quire.providers.outgoing import (
    alternates,
    by_role,
    compact,
    dialect_of,
    exported_request,
    front_instructions,
    in_parts,
    object_text,
    parsed_arguments,
    whole_message,
    with_originals,
)
from quire.providers.prefix import (
    NO_REPLY,
    Layout,
    Section,
    Unit,
    UnitPart,
    as_block,
    definition,
    parts_of,
    schema,
    unmarked_in,
    with_control,
    without_marks,
)
from quire.providers.provider_tools import Native, tool_json, tools_in
from quire.providers.rendering import GO_ON, Draft, Writer, note_text, text_block, texts, user_text
from quire.providers.rules.openai import CHAT_RULES
from quire.providers.usage import usage
from quire.providers.wires import ModelCall, Wire
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Part, Prompt, Reply, Result, Text, Think, Usage

# What the parts of a Chat message's content mean: text, images, and what is enclosed.

FORMAT = "openai-chat"


def thought_of(content: Json) -> str:
    """Thinking that stands among the parts of the content, as Mistral writes it."""
    thoughts = [part.get("thinking") for part in values.as_objects(content) if part.get("type") == "thinking"]
    return "\n".join(map(CONTENT.text_of, thoughts))


def _kind(part: JsonObject) -> str:
    kind = str(part.get("type") or "part")
    return "" if part.get("text") is not None or kind in ("text", "image_url", "thinking", "refusal") else kind


def image_in(part: JsonObject) -> Image | None:
    """The image of a part, by its address or its data."""
    address = part.get("image_url")
    url = address.get("url") if isinstance(address, dict) else address
    return from_url(str(url or "")) if part.get("type") == "image_url" else None


def show_image(image: Image) -> JsonObject | None:
    if not (image.data or is_web(image.url)):
        return None
    return {"type": "image_url", "image_url": {"url": to_url(image)}}


CONTENT = UserContent(kind=_kind, image=image_in, show=show_image, say=text_block, texts=("text", "refusal"))

_NAMES = Spelling()
# Who takes audio and files in a message.
_TAKES_FILES = frozenset({"openai", "azure"})

# A message's own Chat messages by its role; a note that is text joins the message before it.


def _user(draft: Draft, message: Message) -> None:
    _take_turns(draft, "user", message)
    named = _also(_imported_message(draft, message.parts))
    draft.messages.append({"role": "user", **named, "content": _user_content(draft, message)})


def _results(draft: Draft, message: Message) -> None:
    results = [part for part in message.parts if isinstance(part, Result)]
    draft.messages += [_tool_message(draft, part) for part in results]
    if not draft.faithful and (images := [image for part in results for image in images_behind(part, draft)]):
        # Behind all of them: between the results of parallel calls nobody may speak.
        draft.messages.append({"role": "user", "content": [BEHIND, *images]})


def _take_turns(draft: Draft, role: str, message: Message | None = None) -> None:
    """Insert a turn between two messages of one role, where a chat template refuses that."""
    before = draft.last.get("role")
    if not alternates(draft.info) or (before == role and message is not None and _was_taken(draft, message)):
        return
    if role == "user" and before in ("user", "tool"):
        draft.bridge({"role": "assistant", "content": NO_REPLY})
    elif role == "assistant" and before in (None, "assistant"):
        draft.bridge({"role": "user", "content": _content(draft, GO_ON)})


def _was_taken(draft: Draft, message: Message) -> bool:
    """Whether the provider was sent this message in this place."""
    first = next(iter(message.parts), None)
    return isinstance(first, Text) and draft.takes_back(first.wire)


def _content(draft: Draft, text: str) -> str | list[JsonObject]:
    return [text_block(text)] if text and in_parts(draft.info) else text


def _user_content(draft: Draft, message: Message) -> str | list[JsonObject]:
    if (blocks := CONTENT.as_it_came(draft, message)) is not None and _takes(draft, message):
        return blocks
    text = user_text(message)
    images = [part for part in message.parts if isinstance(part, Image)]
    if images and not draft.info.features.images:
        draft.leave_out(message, f"{draft.info.provider}:{draft.info.model} takes no images")
        text, images = "\n\n".join([*texts(message), *["[image]"] * len(images)]), []
    parts = [text_block(text)] if text else []
    parts += CONTENT.images(draft, message) if images else []
    if draft.info.provider not in _TAKES_FILES:
        CONTENT.left_out(draft, message)
    elif (content := CONTENT.user_blocks(draft, message, parts)) is not parts:
        return content
    return parts if images else _content(draft, text)


def _takes(draft: Draft, message: Message) -> bool:
    """Whether a message's own parts may go along: to the model that was sent them, or text and images alone."""
    wire = next((part.wire for part in message.parts if isinstance(part, Text)), {})
    if (wire.get("model") and draft.is_from(wire)) or draft.info.provider in _TAKES_FILES:
        return True
    images = any(isinstance(part, Image) for part in message.parts)
    return not wire.get("encloses") and (draft.info.features.images or not images)


def _assistant(draft: Draft, message: Message) -> None:
    text = "\n\n".join(texts(message))
    original = _imported_message(draft, message.parts)
    for part in message.parts:
        if isinstance(part, Text) and "audio" not in original:
            leave_out(part, message, draft)
    calls = [written_call(draft, part) for part in message.parts if isinstance(part, Call)]
    if not (text or calls or "audio" in original):
        draft.leave_out(message, "empty message")
        return
    _take_turns(draft, "assistant", message)
    out: JsonObject = {"role": "assistant", "content": text or None}
    out |= _besides(original, text)
    if not thought_of(out["content"]):
        out |= _thinking(draft, message)
    if calls:
        out["tool_calls"] = calls
    draft.messages.append(out)


def _imported_message(draft: Draft, parts: Iterable[Part]) -> JsonObject:
    """The message that imported parts came as, if it goes back to the very model it was sent to."""
    wire = next((part.wire for part in parts if isinstance(part, Text | Think | Call | Result)), {})
    named = wire.get("model") and draft.info.model
    return without_marks(values.as_object(wire["message"])) if named and draft.takes_back(wire) else {}


# What else a message of the model may say, by the documentation of one server or another.
_ALSO = ("name", "refusal", "prefix")


def _also(original: JsonObject) -> JsonObject:
    return {field: original[field] for field in _ALSO if original.get(field)}


def _besides(original: JsonObject, text: str) -> JsonObject:
    """The fields of an imported message beside its text, and the text in its original parts."""
    out = _also(original)
    if audio := values.value_at(original, "audio", "id"):
        # Audio of the model's own is sent back by its id.
        out |= {"audio": {"id": audio}, "content": None}
    elif isinstance(parts := original.get("content"), list) and CONTENT.text_of(parts) == text:
        out["content"] = parts
    elif "refusal" in out:
        out["content"] = text.removesuffix(values.as_text(out["refusal"])).removesuffix("\n\n") or None
    return out


def _thinking(draft: Draft, message: Message) -> JsonObject:
    """Earlier thinking in the field that takes it back; to servers that demand it, an empty one too."""
    field: str = dialect_of(draft.info).thinking
    demand = draft.info.features.reasoning_content
    parts = [part for part in message.parts if isinstance(part, Think)]
    thoughts = []
    details: list[JsonObject] = []
    for part in parts:
        owed = is_own_thought(part, draft)
        if owed and demand != "required":
            # The server's own: in the field that it came in.
            field = str(part.wire.get("field") or "")
        if (field or owed) and (demand == "required" or draft.is_from(part.wire)):
            thoughts.append(part.text)
            details += (own_block(part, draft) or {}).get("reasoning_details") or []
        else:
            leave_out(part, message, draft)
    out: JsonObject = {"reasoning_details": details} if details else {}
    if field and (thoughts or (demand == "required" and not _was_taken(draft, message))):
        out[field] = "\n\n".join(thoughts)
    return out


def is_own_thought(part: Think, draft: Draft) -> bool:
    """Whether a thought came from the very model that is asked, in a field (or details) that takes it back.

    Of servers with a name it is known whether they take any; "openai-chat" is also what all others speak.
    """
    wire = part.wire
    if _imported_message(draft, [part]):
        return True
    if not dialect_of(draft.info).thinking and (draft.info.provider != "openai" or draft.info.known):
        return False
    returnable = "field" in wire or "reasoning_details" in values.as_object(wire.get("block"))
    return returnable and draft.knows(wire)


def written_call(draft: Draft, part: Call) -> JsonObject:
    """A call as a message holds it."""
    block = own_block(part, draft)
    if block and block.get("type") == "custom":
        return {**block, "id": part.call_id}
    dialect = dialect_of(draft.info)
    arguments = part.arguments or str(part.wire.get("arguments") or "") or compact(part.args)
    if dialect.json_arguments:
        arguments = object_text(part.args, arguments)
    function = {"name": dialect.names.spell(part.name), "arguments": arguments}
    also = {"extra_content": block["extra_content"]} if block and "extra_content" in block else {}
    return {"id": part.call_id, "type": "function", "function": function, **also}


def _tool_message(draft: Draft, part: Result) -> JsonObject:
    original = _imported_message(draft, [part])
    same = isinstance(original.get("content"), list) and CONTENT.text_of(original["content"]) == part.text
    content = original["content"] if same else _content(draft, part.text)
    caller = next((message for message in reversed(draft.messages) if message.get("role") == "assistant"), {})
    if caller.get("function_call"):
        # The old form, whose call went back as it came.
        return {"role": "function", "name": part.name, "content": part.text}
    return {"role": "tool", "tool_call_id": part.call_id, **_also(original), "content": content}


def _note(draft: Draft, message: Message) -> None:
    draft.set_effort(message)
    role = dialect_of(draft.info).note
    behind_tool = draft.last.get("role") == "tool" and not draft.info.features.user_after_tool
    role = "system" if role == "text" and _was_taken(draft, message) and not behind_tool else role
    if not texts(message):
        return
    if role != "text":
        draft.messages.append({"role": role, "content": _content(draft, "\n\n".join(texts(message)))})
    elif draft.unsent.get("role") in ("user", "tool"):
        draft.messages[-1] = _with_text(draft.last, note_text(message))
    else:
        _take_turns(draft, "user")
        draft.messages.append({"role": "user", "content": _content(draft, note_text(message))})


def _with_text(message: JsonObject, text: str) -> JsonObject:
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content, text_block(text)]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}


def _end(draft: Draft) -> None:
    """Templates answer a user or a tool; a last assistant message is continued only where that is known."""
    features = draft.info.features
    # Mistral does so only where that message says so.
    continued = (features.prefill and features.user_after_tool) or draft.last.get("prefix")
    if draft.last.get("role") == "assistant" and not continued:
        _take_turns(draft, "assistant")
    elif draft.last.get("role") == "system" and alternates(draft.info):
        draft.bridge({"role": "user", "content": _content(draft, GO_ON)})


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    ask = draft.ask
    dialect = dialect_of(draft.info)
    messages = draft.messages
    heads = [prompt.system] if prompt.system and draft.info.features.template else prompt.systems
    instructions = front_instructions(
        draft, prompt, heads, CONTENT.text_of, lambda text: {"role": "system", "content": _content(draft, text)}
    )
    messages = [*instructions, *messages]
    if not draft.messages and (not prompt.front or alternates(draft.info)):
        messages.append({"role": "user", "content": _content(draft, GO_ON)})
    body: JsonObject = {"model": draft.info.model, "messages": messages}
    if tools := draft.tools(prompt):
        body["tools"] = draft.define_tools(tools, lambda tool: tool_definition(tool, dialect.names))
    if ask.max_tokens is not None:
        body[dialect.max_tokens] = ask.max_tokens
    if effort := draft.effort or ask.effort:
        body["reasoning_effort"] = effort
    return {**body, **_key(draft)}


def _key(draft: Draft) -> JsonObject:
    field, key, place = draft.info.cache.key, draft.ask.key, dialect_of(draft.info).key_in
    if not (key and field) or place == "header":
        return {}
    if field == "id_slot":
        # llama.cpp numbers its slots; a name says nothing to it.
        return {"extra_body": {field: int(key)}} if key.isdecimal() else {}
    return {field: key} if place == "body" else {"extra_body": {field: key}}


def _headers(draft: Draft) -> dict[str, str]:
    field, key = draft.info.cache.key, draft.ask.key
    return {field: key} if key and field and dialect_of(draft.info).key_in == "header" else {}


def tool_entry(tool: JsonObject) -> JsonObject:
    """{"type": "function", "function": {…}} -> the tool as entries define it."""
    function = sub(tool, "function") or sub(tool, "custom") or tool
    name = function.get("name") or function.get("type")
    return tool_json(name, function.get("description"), sub(function, "parameters"))


def tool_definition(tool: JsonObject, names: Spelling = _NAMES) -> JsonObject:
    """A tool as Chat Completions defines one."""
    function = {
        "name": names.spell(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


NATIVE = Native((FORMAT,), anywhere=True, result_images="behind", read=tool_entry, define=tool_definition)
_write = with_originals(by_role(_user, _assistant, _results, _note))
WRITER = Writer(FORMAT, _write, _body, NATIVE, end=_end, headers=_headers, ids=lambda info: dialect_of(info).ids)


# Reading: replies and imported messages into entries.

# Where servers put what a model thought.
_THOUGHTS = ("reasoning_content", "reasoning")
# Fields of a delta that are put together by kinds of their own; all others are kept as they come.
_GATHERED = ("role", *_THOUGHTS, "thinking", "content", "refusal", "audio", "tool_calls", "function_call")
# What entries hold of a message of the model; all else goes back with the message alone, and is counted there.
_SHOWN = {*_GATHERED, "name", "prefix", "reasoning_details"}


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = values.value_at(message, "role")
    match role:
        case "system" | "developer":
            return [values.system(CONTENT.text_of(message.get("content")))]
        case "user":
            return [CONTENT.entry(message.get("content"))]
        case "assistant":
            first, *rest = _assistant_entries(message)
            besides = [name for name in message if message[name] and name not in _SHOWN and name[0] != "_"]
            return [with_wire(first, {"besides": besides}) if besides else first, *rest]
        case "tool" | "function":
            # Servers of the old function calls name no id: the function's name stands in for it.
            call_id = str(message.get("tool_call_id") or message.get("name") or "")
            failed = True if message.get("_err") is True else None
            return [values.result(call_id, content=CONTENT.text_of(message.get("content")), error=failed)]
    raise FormatError(
        f"{where}: unknown role {role!r}", hint="Roles are system, developer, user, assistant, tool, function."
    )


def _assistant_entries(message: JsonObject) -> list[Entry]:
    """Thinking, text and calls in that order; a message with none of them is an empty respond."""
    out = []
    field = next((name for name in _THOUGHTS if message.get(name)), "")
    thought = message.get(field or "thinking") or thought_of(message.get("content"))
    # Thinking in its provider's own form (signatures, encrypted), which some servers want back.
    details = optional_list(message, "reasoning_details")
    if thought or details:
        block = {"block": {"reasoning_details": details}} if details else {}
        out.append(values.think(str(thought), wire=block | ({"field": field} if field else {}) or None))
    audio = sub(message, "audio")
    # What comes with a text: annotations, the audio it is the transcript of, pictures.
    extras = {name: message[name] for name in ("annotations", "audio", "images", "executed_tools") if message.get(name)}
    text, refusal = CONTENT.text_of(message.get("content")), message.get("refusal")
    if text or audio or message.get("images"):
        out.append(
            values.respond(text or str(audio.get("transcript") or ""), wire={"block": extras} if extras else None)
        )
    if refusal and refusal != text:
        out.append(values.respond(str(refusal)))
    out += [call_entry(item) for item in objects(message, "tool_calls") if _is_called(item)]
    function = sub(message, "function_call")
    if _is_called({"function": function}):
        out.append(call_entry({"id": function.get("name"), "function": function}))
    return out or [values.respond("")]


def _is_called(item: JsonObject) -> bool:
    """Whether anything is called: some servers send an entry without a name, an id or arguments."""
    called = sub(item, "function") or sub(item, "custom")
    return bool(item.get("id") or any(called.values()))


def call_entry(item: JsonObject) -> Entry:
    """What a message calls."""
    call_id = str(item.get("id") or "")
    if custom := sub(item, "custom"):
        return values.call(call_id, str(custom.get("name") or ""), custom.get("input"), wire={"block": item})
    function = sub(item, "function")
    arguments = function.get("arguments")
    # Some recorders keep arguments parsed.
    args, wire = parsed_arguments(arguments) if isinstance(arguments, str) else (arguments or {}, {})
    if item.get("extra_content"):
        # Gemini's signatures, where it is asked in this format.
        wire = {**wire, "block": item}
    return values.call(call_id, str(function.get("name") or ""), args, wire=wire or None)


# A streamed chat completion: chunks in, entries out when they are whole.

# `data: [DONE]`, as an event.
DONE = {"object": "[DONE]"}


# Where the blocks of a message stand: its thinking, its text, its refusal, and from here on its calls.
_THINKING, _TEXT, _REFUSAL, _CALLS = range(4)


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

    def _read(self, reply: JsonObject) -> Reply:
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise FormatError("a chat completion without choices", hint="An error body is no reply; check the status.")
        # A filter may hold back the whole message.
        message = choices[0].get("message", {} if choices[0].get("finish_reason") == "content_filter" else None)
        if not isinstance(message, dict):
            raise not_a_reply("a chat completion without a message")
        self.model = str(reply.get("model") or self.model)
        return self._whole_reply(
            reply, self._message_entries(message), choices[0].get("finish_reason"), reply.get("id")
        )

    def _message_entries(self, message: JsonObject) -> list[Entry]:
        self.spelling = dialect_of(model_info(f"{self.provider}:{self.model}")).names
        return _assistant_entries(without_nulls(message))

    def feed(self, event: Any) -> list[Entry]:
        if event == "[DONE]" or event == DONE:
            # Some servers end without saying why.
            return self._finish("stop") if self.open_blocks or self.audio else []
        return super().feed(event)

    def _take(self, chunk: JsonObject) -> list[Entry]:
        if "choices" not in chunk and "usage" not in chunk:
            self.unknown += 1
            return []
        self.id = self.id or text_in(chunk, "id")
        self.model = text_in(chunk, "model") or self.model
        self.reported |= {key: chunk[key] for key in ("usage", "x_groq", "timings", "service_tier") if chunk.get(key)}
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
            (_TEXT, "respond", ("content",)),
            (_REFUSAL, "respond", ("refusal",)),
        ):
            texts = [(field, text) for field in fields if (text := text_in(delta, field))]
            for number, (field, text) in enumerate(texts):
                # Where a server says the same under two names, the first becomes the entry and is shown.
                self._grow(place, field, text, kind if number == 0 else "")
        for field, value in delta.items():
            if field not in _GATHERED and value is not None:
                grows = isinstance(value, list)
                self.others[field] = [*optional_list(self.others, field), *value] if grows else value
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
        if calls := [_whole_call(block) for block in blocks if block.kind == "call"]:
            out["tool_calls"] = calls
        return out

    @property
    def usage(self) -> Usage:
        whole = {**self.reported, "choices": [{"message": self.others}]}
        return usage(self.provider, whole) if self.reported.keys() - {"service_tier"} else Usage()

    def unfinished(self) -> Iterable[JsonObject]:
        transcript = "" if self.stop else self.audio.get("transcript")
        return [*super().unfinished(), *([{"kind": "respond", "text": transcript}] if transcript else [])]


def _whole_call(block: StreamedBlock) -> JsonObject:
    """A streamed call as a whole message holds it."""
    kind, text = ("custom", "input") if "input" in block.pieces else ("function", "arguments")
    called = {"name": block.name, text: block.text(text)}
    return {"id": block.start["id"], "type": kind, kind: called, **block.start}


# Where a request keeps what is cached.


def chat_head(body: JsonObject) -> Iterator[Unit]:
    """The tools and the form of the answer, which stand in front of the messages."""
    for index, tool in enumerate(values.as_list(body.get("tools"))):
        yield definition(("tools", index), as_block(tool))
    if body.get("response_format"):
        yield schema(("response_format",), body["response_format"])


def chat_message(message: Json, index: int) -> Unit:
    """A message: what was thought, said and called."""
    role, thought, refusal = (str(message.get("role", "")), message.get("reasoning_content"), message.get("refusal"))
    parts = [UnitPart(("reasoning_content",), {"type": "thinking", "thinking": thought})] if thought else []
    parts += parts_of(message.get("content"), "content")
    # A refusal is the text of a message that has none; calls follow whatever was said, and Cohere's plan for them.
    parts += [UnitPart(("refusal",), {"type": "text", "text": refusal})] if refusal else []
    if plan := message.get("tool_plan"):
        parts.append(UnitPart(("tool_plan",), {"type": "thinking", "thinking": plan}))
    calls = values.as_list(message.get("tool_calls"))
    parts += [UnitPart(("tool_calls", at), as_block(call)) for at, call in enumerate(calls)]
    parts = parts or [UnitPart(("content",), {"type": "text", "text": ""})]
    if role == "tool":
        parts = [part._replace(also={"tool_call_id": message.get("tool_call_id")}) for part in parts]
    section: Section = "system" if role in ("system", "developer") else "messages"
    return Unit(("messages", index), section, role, message, tuple(parts), (unmarked_in(message, "content"),))


WIRE = Wire(
    name=FORMAT,
    imports=partial(read_messages, format=FORMAT, head=partial(tools_in, native=NATIVE), read=_entries),
    exports=partial(exported_request, writer=WRITER, original=whole_message(_entries), system=""),
    writer=WRITER,
    layout=Layout(chat_head, "messages", chat_message),
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
