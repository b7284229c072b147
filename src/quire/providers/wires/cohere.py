"""Cohere's Chat API v2: replies and imported messages into entries, entries back verbatim, and the wire itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quire import values
from quire.errors import CallError, FormatError
from quire.providers.convert import UserContent, leave_out, own_block
from quire.providers.incoming import (
    ReplyReader,
    error_in_reply,
    not_a_reply,
    number_in,
    objects,
    optional_list,
    read_messages,
    sub,
    text_in,
    without_nulls,
)
from quire.providers.outgoing import by_role, compact, exported_request, whole_message
from quire.providers.prefix import Layout
from quire.providers.provider_tools import Native, tools_in
from quire.providers.rendering import GO_ON, NO_OUTPUT, Draft, Writer, note_text, text_block, texts, wanted_effort
from quire.providers.rules.check import Check, Finding, Sequel, TurnMessage, WireRules
from quire.providers.rules.grammar import grammar_of, misfits, objects_at, shape
from quire.providers.wires import ModelCall, Wire, openai_chat
from quire.values import Call, Entry, Json, JsonObject, Message, Prompt, Reply, Result, Text, Think

FORMAT = "cohere"


def _document(part: JsonObject) -> str | None:
    if part.get("type") != "document" or not isinstance(part.get("document"), dict):
        return None
    data = part["document"].get("data")
    return data if isinstance(data, str) else compact(data)


def _kind(part: JsonObject) -> str:
    kind = str(part.get("type") or "part")
    return "" if kind in ("text", "image_url", "thinking") else kind


CONTENT = UserContent(
    kind=_kind, image=openai_chat.image_in, show=openai_chat.show_image, say=text_block, other_text=_document
)

# A message's own messages by its role; a late instruction is text of the user's.


def _write_user(draft: Draft, message: Message) -> None:
    draft.messages.append({"role": "user", "content": CONTENT.blocks(draft, message)})


def _write_assistant(draft: Draft, message: Message) -> None:
    content: list[JsonObject] = []
    plan: JsonObject = {}
    citations: JsonObject = {}
    for part in message.parts:
        match part:
            case Text():
                leave_out(part, message, draft)
                text = own_block(part, draft) or {}
                citations = citations or ({"citations": text["citations"]} if text.get("text") == part.text else {})
                content += [text_block(part.text)] if part.text.strip() else []
            case Think():
                block = own_block(part, draft)
                if block is None:
                    leave_out(part, message, draft)
                elif "tool_plan" in block:
                    plan = block
                else:
                    content.append(block)
    calls = [openai_chat.written_call(draft, part) for part in message.parts if isinstance(part, Call)]
    if not calls and not any(part["type"] == "text" for part in content):
        draft.leave_out(message, "empty message")
        return
    out: JsonObject = {"role": "assistant", **({"content": content} if content else {}), **citations}
    draft.messages.append({**out, **plan, "tool_calls": calls} if calls else out)


def _write_results(draft: Draft, message: Message) -> None:
    for part in message.parts:
        if isinstance(part, Result):
            text = part.text if part.text.strip() else NO_OUTPUT
            draft.messages.append({"role": "tool", "tool_call_id": part.call_id, "content": [text_block(text)]})


def _note(draft: Draft, message: Message) -> None:
    if wanted_effort(message):
        draft.leave_out(message, "reasoning effort has no words here")
    if texts(message):
        draft.say_as_user(text_block(note_text(message)))


def _end(draft: Draft) -> None:
    if draft.last.get("role") not in ("user", "tool"):
        draft.bridge({"role": "user", "content": [text_block(GO_ON)]})


def _request(draft: Draft, prompt: Prompt) -> JsonObject:
    if draft.ask.effort:
        hint = 'Write thinking={"type": "enabled"} or {"type": "disabled"}.'
        raise CallError(f"Cohere takes no effort, here {draft.ask.effort!r}", hint=hint)
    head = [{"role": "system", "content": prompt.system}] if prompt.system.strip() else []
    body: JsonObject = {"model": draft.info.model, "messages": [*head, *draft.messages]}
    if tools := draft.tools(prompt):
        body["tools"] = draft.define_tools(tools)
    if draft.ask.max_tokens is not None:
        body["max_tokens"] = draft.ask.max_tokens
    return body


_write = by_role(_write_user, _write_assistant, _write_results, _note)
WRITER = Writer(
    FORMAT,
    _write,
    _request,
    Native((FORMAT,), read=openai_chat.tool_entry, define=openai_chat.tool_definition),
    end=_end,
)


# Reading: replies and imported messages into entries, and entries back as they came.


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = values.value_at(message, "role")
    match role:
        case "system":
            return [values.system(CONTENT.text_of(message.get("content")))]
        case "user":
            return [CONTENT.entry(message.get("content"))]
        case "assistant":
            return _assistant(message)
        case "tool":
            return [
                values.result(str(message.get("tool_call_id") or ""), content=CONTENT.text_of(message.get("content")))
            ]
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are system, user, assistant and tool.")


def _assistant(message: JsonObject) -> list[Entry]:
    """Thinking, text, the plan for the calls and the calls; a message with none of them is an empty respond."""
    out: list[Entry] = []
    content, citations = message.get("content"), optional_list(message, "citations")
    for part in objects(message, "content") if isinstance(content, list) else [text_block(content or "")]:
        if part.get("type") == "thinking":
            out.append(values.think(str(part.get("thinking") or ""), wire={"block": part}))
        elif text := CONTENT.text_of([part]):
            # Citations are of the message; here they stand with its first text.
            block = {**text_block(text), "citations": citations}
            out.append(values.respond(text, wire={"block": block} if citations else None))
            citations = []
    if plan := text_in(message, "tool_plan"):
        out.append(values.think(plan, wire={"block": {"tool_plan": plan}}))
    return [*out, *map(openai_chat.call_entry, objects(message, "tool_calls"))] or [values.respond("")]


# Where the blocks of a message stand: its content first, then the plan for its calls, and these.
_PLAN, _CALLS = 1000, 1001


class CohereReader(ReplyReader):
    """Gathers events; the message is whole when `message-end` has come."""

    format = FORMAT
    ending = "its message-end"
    citations: tuple[JsonObject, ...] = ()

    def _read(self, reply: JsonObject) -> Reply:
        message = reply.get("message")
        if isinstance(message, str):
            raise error_in_reply(reply)
        if not isinstance(message, dict):
            raise not_a_reply("a response without a message")
        return self._whole_reply(reply, _assistant(without_nulls(message)), reply.get("finish_reason"), reply.get("id"))

    def _take(self, event: JsonObject) -> list[Entry]:
        delta = sub(event, "delta")
        message = sub(delta, "message")
        match event.get("type"):
            case "message-start":
                self.id = text_in(event, "id")
            case "content-start" | "content-delta":
                piece = sub(message, "content")
                field, kind = ("thinking", "think") if "thinking" in piece else ("text", "respond")
                self._grow(number_in(event, "index"), field, text_in(piece, field), kind)
            case "tool-plan-delta":
                self._grow(_PLAN, "tool_plan", text_in(message, "tool_plan"), "think")
            case "tool-call-start" | "tool-call-delta":
                self._call(number_in(event, "index"), sub(message, "tool_calls"))
            case "message-end":
                return self._finish(delta)
            case "citation-start":
                self.citations = (*self.citations, sub(message, "citations"))
            case "content-end" | "tool-call-end" | "citation-end":
                pass
            case _:
                self.unknown += 1
        return []

    def _call(self, index: int, piece: JsonObject) -> None:
        function = sub(piece, "function")
        block = self._grow(_CALLS + index, "arguments", text_in(function, "arguments"), "call")
        block.start["id"] = block.start.get("id") or text_in(piece, "id")
        block.name += text_in(function, "name")

    def _finish(self, delta: JsonObject) -> list[Entry]:
        if text_in(delta, "error"):
            raise error_in_reply({"message": delta["error"]})
        self.reported = sub(delta, "usage")
        self.stop = text_in(delta, "finish_reason") or "COMPLETE"
        blocks = [self.open_blocks[place] for place in sorted(self.open_blocks)]
        self.open_blocks = {}
        message: JsonObject = {"content": [], "tool_calls": [], "citations": [*self.citations]}
        for block in blocks:
            text = block.text(block.shown_field)
            if block.kind == "call":
                message["tool_calls"].append({**block.start, "function": {"name": block.name, "arguments": text}})
            elif block.shown_field == "tool_plan":
                message["tool_plan"] = text
            else:
                message["content"].append({"type": block.shown_field, block.shown_field: text})
        return self._add(_assistant(message))


class _Answers(Sequel):
    """Calls are answered by the tool messages right behind them, and by nothing else."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role == "tool":
            if self._waiting.pop(values.as_text(turn.raw.get("tool_call_id")), None) is None:
                yield shape(turn.path, "unasked")
            return
        yield from self.end(check)
        calls = objects_at(turn.raw.get("tool_calls"), f"{turn.path}.tool_calls")
        self._waiting = {values.as_text(call.get("id")): place for place, call in calls}

    def end(self, check: Check) -> Iterator[Finding]:
        for id, path in self._waiting.items():
            yield shape(path, "unanswered", id=id)


WIRE = Wire(
    name=FORMAT,
    imports=partial(read_messages, format=FORMAT, head=partial(tools_in, native=WRITER.native), read=_entries),
    exports=partial(exported_request, writer=WRITER, original=whole_message(_entries), system=""),
    writer=WRITER,
    layout=Layout(openai_chat.chat_head, "messages", openai_chat.chat_message),
    reader=CohereReader,
    rules=WireRules(
        body=lambda check: misfits(check.body, "@body", "$", grammar_of(FORMAT)),
        message=lambda check, turn: misfits(turn.value, "@message", turn.path, grammar_of(FORMAT)),
        along=(_Answers,),
    ),
    call=ModelCall(
        sdk="cohere",
        method="chat",
        stream_method="chat_stream",
        streaming={"stream": True},
        path=lambda request, streamed: "/chat",
        version="v2",
        version_in_url=True,
        key_prefix="Bearer ",
    ),
    looks_like="openai-chat",
)
