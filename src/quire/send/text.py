"""Engines that take text: the log as HISTORY and CURRENT, the reply in the same event protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quire.assemble.blocks import block
from quire.errors import FormatError, ProviderError
from quire.formats import clean, replay
from quire.formats import stream as protocol
from quire.formats.replay import Delimiter
from quire.providers.facts import split_target
from quire.providers.hosted import answered_by_caller
from quire.providers.incoming import Partial, refused
from quire.providers.prefix import hashed
from quire.providers.usage import usage
from quire.send.deltas import Piece
from quire.send.standing import without_cut
from quire.send.thread import Log
from quire.values import Entry, JsonObject, Reply, Request, Usage, call, respond, think, user

GUIDANCE = """You answer in events, each beginning a line with its mark.
{d}think: what you consider, if anything
{d}call: {{"name": "tool", "args": {{}}}} to use a tool; then stop, and its result will follow
{d}respond: what the user reads"""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A completion endpoint that continues a text; the last `window` events are shown as HISTORY."""

    window: int | None = 15
    delimiter: Delimiter = "$"

    def request(self, thread: Log, target: str, options: JsonObject) -> Request:
        """The whole text that the engine is to continue."""
        provider, model = split_target(target)
        entries = thread.store.read(thread.name)
        sections = prompt_sections(entries, self.window, self.delimiter)
        # Without tools there is but one thing to say; text before the first mark is an answer.
        begun = "" if any(entry.kind == "tools" for entry in entries) else f"{self.delimiter}respond:"
        prompt = "".join(f"{section}\n\n" for section in sections) + begun
        # What only others may say ends the reply: the engine would go on and invent it.
        stop = [f"\n{self.delimiter}{kind}:" for kind in ("user", "result")]
        body = {"model": model, "prompt": prompt, "stop": stop, **options}
        return Request(provider, model, body, hashed([prompt.encode()]))

    def sent(self, thread: Log, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line: one segment, the text."""
        body: JsonObject = {"kind": "sent", "provider": request.provider, "model": request.model}
        body |= {"request_sha256": request.lines.sha256, "segments": list(request.lines.segments)}
        if reply is not None:
            body |= {"usage": msgspec.to_builtins(reply.usage), "stop": reply.stop}
        return Entry("sent", body)

    def reader(self, thread: Log, target: str, names: Iterable[str]) -> TextStream:
        calls = sum(entry.kind == "call" for entry in thread.store.read(thread.name))
        return TextStream(split_target(target)[0], self.delimiter, calls)

    def pieces(self, target: str, event: JsonObject) -> list[Piece]:
        """Marks are not for readers, and where they begin is known only behind them: whole entries it is."""
        return []


def prompt_sections(entries: Sequence[Entry], window: int | None, delimiter: Delimiter) -> list[str]:
    """System prompt, tools, protocol, HISTORY and CURRENT as they are asked for now; empty ones are absent."""
    kept = [_with_context(entry) for entry in without_cut(entries, asking=True)]
    system = [entry.text for entry in kept if entry.kind == "system"]
    known = [tool for entry in kept if entry.kind == "tools" for tool in entry.tools]
    tools = [tool for tool in known if answered_by_caller(tool)]
    catalog = clean.render(clean.project(tools=tools)) if tools else ""
    shown = replay.project(kept, window, delimiter)
    sections = [*system, catalog, GUIDANCE.format(d=delimiter), replay.render(shown)]
    if not shown.current:
        # A cycle that has not begun is no CURRENT: the user's message alone is continued.
        newest = [entry for entry in kept if entry.kind == "user"][-1]
        sections.append(replay.render_event(replay.User(newest.text), delimiter))
    return [section for section in sections if section]


def _with_context(entry: Entry) -> Entry:
    """A user's words behind the items that came with them; a text has no other place for these."""
    blocks = [block(item).text for item in entry.attached] if entry.kind == "user" else []
    if not blocks:
        return entry
    return user("\n\n".join([*blocks, "---", "[User query]:", entry.text]))


class TextStream:
    """Gathers a completion's chunks; an event of the protocol is an entry when the next one begins."""

    def __init__(self, provider: str, delimiter: Delimiter, calls: int = 0) -> None:
        self.provider = provider
        self.protocol = protocol.Stream(delimiter)
        self.open: list[protocol.Piece] = []
        self.entries: list[Entry] = []
        self.reported: JsonObject = {}
        self.id = self.model = self.stop = ""
        self._calls = calls

    def feed(self, event: Any) -> list[Entry]:
        """Take one chunk; the entries that it finished."""
        if event.get("error"):
            raise refused(event["error"])
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

    def _finish(self, done: list[protocol.Piece]) -> list[Entry]:
        self.open = self.open[len(done) :]
        made = [entry for event in protocol.merge(done) if (entry := self._entry(event)) is not None]
        self.entries += made
        return made

    def _entry(self, event: protocol.Event) -> Entry | None:
        text = event.text.strip()
        if event.kind == "call":
            return self._call(event)
        made = {"think": think, "respond": respond}.get(event.kind)
        return made(text) if made and text else None

    def _call(self, event: protocol.Event) -> Entry:
        self._calls += 1
        try:
            name, args = protocol.call_of(event)
        except FormatError:
            # Not a call that anyone can run: the model's own words, for it to see and mend.
            return respond(event.raw.strip())
        return call(f"call-{self._calls}", name, args)

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def partial(self) -> Partial:
        """Everything received so far."""
        unfinished = tuple({"kind": one.kind, "text": one.text} for one in protocol.merge(self.open))
        return Partial(tuple(self.entries), unfinished, self.usage, self.stop, self.id, self.model)

    def reply(self) -> Reply:
        """The whole reply, once its end has come."""
        if not self.stop:
            raise ProviderError("the stream ended before finish_reason", retryable=True)
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)
