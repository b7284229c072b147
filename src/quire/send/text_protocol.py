"""Engines that continue a text: the log as HISTORY and CURRENT, the reply in the same event protocol; and tools as text."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from quire import providers
from quire.assemble.user_message import block
from quire.errors import BudgetError, CallError, FormatError
from quire.formats import clean, replay
from quire.formats import protocol_stream as protocol
from quire.formats.replay import Delimiter, Respond, call_json, marks, render_event
from quire.items.sources import at_lines
from quire.providers.incoming import BlockDelta, Partial, ReplyReader, error_in_reply, recordable
from quire.providers.models import split_target
from quire.providers.prefix import hash_lines, lines_of
from quire.providers.provider_tools import functions_of
from quire.providers.wires import wire_of
from quire.send.turn import Messages, TurnThread, without_cut
from quire.tokens import counter
from quire.values import Entry, JsonObject, Reply, Request, call, respond, think, user

GUIDANCE = """You answer in events, each beginning a line with its mark.
{d}think: what you consider, if anything
{d}call: {{"name": "tool", "args": {{}}}} to use a tool; then stop, and its result will follow
{d}respond: what the user reads"""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A completion endpoint that continues a text; the last `window` events are shown as HISTORY."""

    window: int | None = 15
    delimiter: Delimiter = "$"

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The whole text that the engine is to continue."""
        provider, model = split_target(target)
        prompt = self._fitting(thread.store.read(thread.name), thread.room(target), counter(model).count)
        body = {"model": model, "prompt": prompt, "stop": _stops(self.delimiter), **options}
        return Request(provider, model, body, hash_lines([prompt.encode()]))

    def _prompt(self, entries: Sequence[Entry], window: int | None) -> str:
        sections = prompt_sections(entries, window, self.delimiter)
        # Without tools the next event can only be an answer, so its mark is given.
        begun = "" if any(entry.kind == "tools" for entry in entries) else f"{self.delimiter}respond:"
        return "".join(f"{section}\n\n" for section in sections) + begun

    def _fitting(self, entries: Sequence[Entry], room: int, tokens: Callable[[str], int]) -> str:
        """The text within the budget: HISTORY is shortened first, then the longest results of this turn."""
        prompt = self._prompt(entries, self.window)
        if tokens(prompt) <= room:
            return prompt
        most = len(entries) if self.window is None else min(self.window, len(entries))
        # The largest window that fits; bisection works because more events never make a shorter text.
        fitting = bisect_left(range(most), True, key=lambda place: tokens(self._prompt(entries, place + 1)) > room)
        prompt = self._prompt(entries, fitting)
        while (over := tokens(prompt) - room) > 0:
            entries = with_shorter_result(entries, over, room)
            prompt = self._prompt(entries, 0)
        return prompt

    def sent_entry(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry:
        """The `sent` entry: the text is its only segment."""
        body: JsonObject = {"kind": "sent", "provider": request.provider, "model": request.model}
        body |= {"request_sha256": request.lines.sha256, "segments": list(request.lines.segments)}
        body["meta"] = {"layout": "text"}
        if reply is not None:
            body |= {"usage": reply.usage.as_json(), "stop": reply.stop}
        return Entry("sent", body)

    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> CompletionStream:
        calls = sum(entry.kind == "call" for entry in thread.store.read(thread.name))
        return CompletionStream(split_target(target)[0], self.delimiter, calls)


def with_shorter_result(entries: Sequence[Entry], over: int, room: int) -> list[Entry]:
    """The entries with the newest turn's longest result cut by about `over` tokens; an error where none can be cut."""
    begin = max(place for place, entry in enumerate(entries) if entry.kind == "user")
    sizes = {place: len(entries[place].body.get("content") or "") for place in range(begin, len(entries))}
    longest = max(sizes, key=lambda place: sizes[place] if entries[place].kind == "result" else 0)
    size = sizes[longest] if entries[longest].kind == "result" else 0
    if size <= _SHORTEST:
        raise BudgetError(f"the text needs {room + over:,} tokens but the budget leaves {room:,}")
    content = at_lines(entries[longest].body["content"], max(_SHORTEST // 2, size - 5 * over))
    shorter = Entry("result", {**entries[longest].body, "content": content})
    return [*entries[:longest], shorter, *entries[longest + 1 :]]


# A result is not cut below this many characters: a few words are of no use.
_SHORTEST = 400


def prompt_sections(entries: Sequence[Entry], window: int | None, delimiter: Delimiter) -> list[str]:
    """The sections of the next prompt: system prompt, tools, protocol, HISTORY and CURRENT, without empty ones."""
    recent = [_with_context(entry) for entry in without_cut(entries, asking=True)]
    system = [entry.text for entry in recent if entry.kind == "system"]
    offered = [tool for entry in recent if entry.kind == "tools" for tool in entry.tools]
    tools = functions_of(offered)
    catalog = clean.render(clean.project(tools=tools)) if tools else ""
    projected = replay.project(recent, window, delimiter)
    sections = [*system, catalog, GUIDANCE.format(d=delimiter), replay.render(projected)]
    if not projected.current:
        # Before the model has spoken, CURRENT holds the user's message alone.
        newest = [entry for entry in recent if entry.kind == "user"][-1]
        sections.append(replay.render_event(replay.User(newest.text), delimiter))
    return [section for section in sections if section]


def _with_context(entry: Entry) -> Entry:
    """A user entry with its attached items before the text, as there is no other place for them."""
    blocks = [block(item).text for item in entry.attached] if entry.kind == "user" else []
    if not blocks:
        return entry
    return user("\n\n".join([*blocks, "---", "[User query]:", entry.text]))


class CompletionStream(ReplyReader):
    """Collects a completion's chunks; an event of the protocol becomes an entry when the next event begins.

    Nothing is shown before that, because a mark of the protocol is recognised only once it is complete.
    """

    ending = "finish_reason"

    def __init__(self, provider: str, delimiter: Delimiter, calls: int = 0) -> None:
        super().__init__(provider, "", ())
        self.protocol = protocol.ProtocolStream(delimiter)
        self.open: list[protocol.ProtocolDelta] = []
        self._entries_of = EventReader(calls)

    def feed(self, event: Any) -> list[Entry]:
        if event.get("error"):
            raise error_in_reply(event["error"])
        self.id, self.model = self.id or str(event.get("id") or ""), str(event.get("model") or self.model)
        if event.get("usage") or event.get("timings"):
            self.reported |= {key: event[key] for key in ("usage", "timings") if event.get(key)}
        choice = (event.get("choices") or [{}])[0]
        self.open += self.protocol.feed(str(choice.get("text") or ""))
        if choice.get("finish_reason") and not self.stop:
            self.stop = str(choice["finish_reason"])
            self.open += self.protocol.finish()
            return self._finish(self.open)
        last = self.open[-1].index if self.open else 0
        return self._finish([piece for piece in self.open if piece.index < last])

    def _finish(self, deltas: list[protocol.ProtocolDelta]) -> list[Entry]:
        self.open = self.open[len(deltas) :]
        entries = [entry for event in protocol.merge(deltas) for entry in self._entries_of(event)]
        self.entries += entries
        return entries

    def unfinished(self) -> Iterable[JsonObject]:
        return ({"kind": delta.kind, "text": delta.text} for delta in protocol.merge(self.open))


class EventReader:
    """Reads events of the protocol as entries; calls are numbered after the thread's earlier ones.

    Events of other speakers (`user`, `result`) are left out, or with `hears_all` taken for answers.
    """

    def __init__(self, calls: int, hears_all: bool = False) -> None:
        self._calls, self._others = calls, respond if hears_all else None

    def __call__(self, event: protocol.ProtocolEvent) -> list[Entry]:
        """The entries of an event; an invalid call keeps the model's text, and the error becomes its result."""
        if event.kind != "call":
            make, text = {"think": think, "respond": respond}.get(event.kind, self._others), event.text.strip()
            return [make(text)] if make and text else []
        self._calls += 1
        id = f"call-{self._calls}"
        try:
            return [recordable(call(id, *protocol.call_of(event)))]
        except FormatError as error:
            named = _NAMED.search(event.text)
            meta = {"malformed": f"{error} ({error.hint})", "idempotent": True}
            return [recordable(call(id, named[1] if named else "call", event.text.strip(), meta=meta))]


_NAMED = re.compile(r'"name"\s*:\s*"([A-Za-z_][A-Za-z0-9_-]{0,63})"')


# Tools as text, for chat models that take no tool definitions: described in L1, called in the event protocol.

GUIDELINES = """To use a tool, write one line and stop; its result will follow:
$call: {"name": "tool", "args": {}}
Use only the tools above, with the arguments they take. When you know the answer, write it as plain text."""
_NATIVE = ("tools", "tool_choice", "parallel_tool_calls")


def tool_text(tools: Iterable[JsonObject]) -> str:
    """Tool descriptions and guidelines for the end of L1; "" without tools."""
    listed = [_describe(tool) for tool in tools]
    return "\n\n".join(["# Available Tools", *listed, GUIDELINES]) if listed else ""


def _describe(tool: JsonObject) -> str:
    schema = tool.get("parameters") or {}
    required = set(schema.get("required") or ())
    lines = [f"• {tool['name']}: {' '.join(str(tool.get('description', '')).split())}"]
    for name, about in (schema.get("properties") or {}).items():
        kind = about.get("type") or "any"
        kinds = "/".join(kind) if isinstance(kind, list) else kind
        need = "" if name in required else ", optional"
        text = " ".join(str(about.get("description", "")).split())
        lines.append(f"  - {name} ({kinds}{need}){': ' + text if text else ''}")
    return "\n".join(lines)


class TextTools(Messages, frozen=True, kw_only=True):
    """Role messages in which calls and results are text, instead of the engine's own tool calls."""

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The thread's next request, with calls and results as text."""
        if not wire_of(target).tools_in_words:
            raise CallError(
                f"{target} takes tools itself", hint="Tools in words are for OpenAI-compatible chat servers."
            )
        request = super().request(thread, target, options)
        body = {key: value for key, value in request.body.items() if key not in _NATIVE}
        body["messages"] = messages_in_words(request.body["messages"])
        body.setdefault("stop", _stops("$"))
        return msgspec.structs.replace(request, body=body, lines=lines_of(body, request.provider))

    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> RereadStream:
        calls = sum(entry.kind == "call" for entry in thread.store.read(thread.name))
        read = partial(_read_calls, read=EventReader(calls, hears_all=True))
        return RereadStream(providers.stream(target, names), read)


def _stops(delimiter: Delimiter) -> list[str]:
    """Marks of other speakers, which end the reply: the model would go on and invent their words."""
    return [f"\n{delimiter}{kind}:" for kind in ("user", "result")]


def messages_in_words(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Messages with calls as lines of the assistant's text, and a group's results as the user's next message."""
    out: list[JsonObject] = []
    for message in messages:
        in_words = _message_in_words(message)
        if out and out[-1]["role"] == in_words["role"] == "user" and message["role"] == "tool":
            out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n\n{in_words['content']}"}
        else:
            out.append(in_words)
    return out


def _message_in_words(message: JsonObject) -> JsonObject:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    text = content if isinstance(content, str) else ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"$result: {marks('$').guard(text)}"}
    calls = message.get("tool_calls")
    if message["role"] != "assistant" or not calls:
        return message
    lines = [render_event(Respond(text))] if text.strip() else []
    lines += [f"$call: {_call(call['function'])}" for call in calls]
    return {"role": "assistant", "content": "\n\n".join(lines)}


def _call(function: JsonObject) -> str:
    try:
        args = json.loads(function.get("arguments") or "{}")
    except ValueError:
        args = {}
    return call_json(str(function["name"]), args)


class RereadStream:
    """A provider's stream whose finished text entries are parsed again, since they may contain calls."""

    def __init__(self, inner: Any, read: Callable[[Entry], list[Entry]]) -> None:
        self._inner, self._read = inner, read
        self.entries: list[Entry] = []

    def feed(self, event: Any) -> list[Entry]:
        entries = [entry for inner in self._inner.feed(event) for entry in self._read(inner)]
        self.entries += entries
        return entries

    def live(self) -> list[BlockDelta]:
        """Nothing, because only a complete text shows whether it is a call."""
        return []

    def partial(self) -> Partial:
        partial: Partial = self._inner.partial()
        return msgspec.structs.replace(partial, entries=tuple(self.entries))

    def reply(self) -> Reply:
        reply: Reply = self._inner.reply()
        return msgspec.structs.replace(reply, entries=tuple(self.entries))


def _read_calls(entry: Entry, read: EventReader) -> list[Entry]:
    """A text entry; where it contains calls, its text and call entries."""
    if entry.kind != "respond":
        return [entry]
    events = protocol.read(entry.text)
    if len(events) == 1 and events[0].kind == "respond" and events[0].text == entry.text:
        return [entry]
    out: list[Entry] = []
    for event in events:
        # Whatever the model wrote after a call is an invented result.
        if out and out[-1].kind == "call" and event.kind != "call":
            break
        out += read(event)
    return out
