"""Tools in words, for chat models that take no tool definitions: told of in L1, called in the event protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quire import providers, values
from quire.errors import CallError, FormatError
from quire.formats import stream as protocol
from quire.formats.replay import Delimiter, Respond, call_json, render_event
from quire.formats.replay.render import marks
from quire.providers.facts import resolve, split_target
from quire.providers.incoming import Partial
from quire.providers.prefix import lined
from quire.send.deltas import Piece
from quire.send.speech import MESSAGES
from quire.send.thread import Log
from quire.values import Entry, Json, JsonObject, Reply, Request, Usage

GUIDELINES = """To use a tool, write one line and stop; its result will follow:
{d}call: {{"name": "tool", "args": {{}}}}
Use only the tools above, with the arguments they take. When you know the answer, write it as plain text."""
_NATIVE = ("tools", "tool_choice", "parallel_tool_calls")


def tool_text(tools: Iterable[JsonObject], delimiter: Delimiter = "$") -> str:
    """Tool descriptions and guidelines, as they stand at the end of L1; empty without tools."""
    listed = [_described(tool) for tool in tools]
    return "\n\n".join(["# Available Tools", *listed, GUIDELINES.format(d=delimiter)]) if listed else ""


def _described(tool: JsonObject) -> str:
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


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Role messages in which calls and results are text; the engine's own tool calls are not used."""

    delimiter: Delimiter = "$"

    def request(self, thread: Log, target: str, options: JsonObject) -> Request:
        """The thread's next request, its calls and results written out."""
        if resolve(split_target(target)[0])[1] != "openai-chat":
            raise CallError(
                f"{target} takes tools itself", hint="Tools in words are for OpenAI-compatible chat servers."
            )
        made = MESSAGES.request(thread, target, options)
        body = {key: value for key, value in made.body.items() if key not in _NATIVE}
        body["messages"] = told_messages(made.body["messages"], self.delimiter)
        # What only others may say ends the reply: the model would go on and invent it.
        body.setdefault("stop", [f"\n{self.delimiter}{kind}:" for kind in ("user", "result")])
        return msgspec.structs.replace(made, body=body, lines=lined(body, made.provider))

    def sent(self, thread: Log, request: Request, reply: Reply | None = None) -> Entry:
        return thread.sent_entry(request, reply)

    def reader(self, thread: Log, target: str, names: Iterable[str]) -> ToldStream:
        calls = sum(entry.kind == "call" for entry in thread.store.read(thread.name))
        return ToldStream(providers.stream(target, names), self.delimiter, calls)

    def pieces(self, target: str, event: JsonObject) -> list[Piece]:
        """Marks are not for readers, and where they begin is known only behind them: whole entries it is."""
        return []


def told_messages(messages: Sequence[JsonObject], delimiter: Delimiter = "$") -> list[JsonObject]:
    """Calls as lines of the assistant's message, the results of one group as the user's next message."""
    out: list[JsonObject] = []
    for message in messages:
        told = _told(message, delimiter)
        if out and out[-1]["role"] == told["role"] == "user" and message["role"] == "tool":
            out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n\n{told['content']}"}
        else:
            out.append(told)
    return out


def _told(message: JsonObject, delimiter: Delimiter) -> JsonObject:
    if message["role"] == "tool":
        text = marks(delimiter).guard(_text(message.get("content")))
        return {"role": "user", "content": f"{delimiter}result: {text}"}
    calls = message.get("tool_calls")
    if message["role"] != "assistant" or not calls:
        return message
    said = _text(message.get("content"))
    lines = [render_event(Respond(said), delimiter)] if said.strip() else []
    lines += [f"{delimiter}call: {_call(one['function'])}" for one in calls]
    return {"role": "assistant", "content": "\n\n".join(lines)}


def _call(function: JsonObject) -> str:
    try:
        args = json.loads(function.get("arguments") or "{}")
    except ValueError:
        args = {}
    return call_json(str(function["name"]), args)


def _text(content: Json) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


class ToldStream:
    """A provider's stream whose finished texts are read as events: calls in them become calls."""

    def __init__(self, inner: Any, delimiter: Delimiter, calls: int = 0) -> None:
        self._inner, self._delimiter, self._calls = inner, delimiter, calls
        self.entries: list[Entry] = []

    def feed(self, event: Any) -> list[Entry]:
        """Take one event; the entries that it finished."""
        made = [entry for one in self._inner.feed(event) for entry in self._read(one)]
        self.entries += made
        return made

    def partial(self) -> Partial:
        """Everything received so far."""
        found: Partial = self._inner.partial()
        return msgspec.structs.replace(found, entries=tuple(self.entries))

    def reply(self) -> Reply:
        """The whole reply, once its end has come."""
        found: Reply = self._inner.reply()
        return msgspec.structs.replace(found, entries=tuple(self.entries))

    @property
    def usage(self) -> Usage:
        usage: Usage = self._inner.usage
        return usage

    def _read(self, entry: Entry) -> list[Entry]:
        """A text without calls is left as it came; one with calls becomes what it says."""
        if entry.kind != "respond":
            return [entry]
        events = protocol.read(entry.text, self._delimiter)
        if len(events) == 1 and events[0].kind == "respond" and events[0].text == entry.text:
            return [entry]
        out: list[Entry] = []
        for event in events:
            # Results are ours to write: whatever the model made up behind a call is not kept.
            if out and out[-1].kind == "call" and event.kind != "call":
                break
            out += self._entry(event)
        return out

    def _entry(self, event: protocol.Event) -> list[Entry]:
        text = event.text.strip()
        if event.kind != "call":
            made = values.think if event.kind == "think" else values.respond
            return [made(text)] if text else []
        try:
            name, args = protocol.call_of(event)
        except FormatError:
            return [values.respond(event.raw.strip())]
        self._calls += 1
        return [values.call(f"call-{self._calls}", name, args if isinstance(args, dict) else {})]
