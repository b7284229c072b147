"""A streamed chat completion: chunks in, entries out when they are whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.providers.incoming import Partial, Tally, cut, number_in, object_in, objects, refused, sub, text_in
from quire.providers.openai_chat.parts import FORMAT, text_of, thought_of
from quire.providers.openai_chat.read import entries_of_reply
from quire.providers.usage import usage
from quire.values import Entry, JsonObject, Reply, Usage

_THOUGHTS = ("reasoning_content", "reasoning")


class _Call:
    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []
        self.custom = False

    def json(self) -> JsonObject:
        if self.custom:
            custom = {"name": self.name, "input": "".join(self.arguments)}
            return {"id": self.id, "type": "custom", "custom": custom}
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class Stream:
    """Gathers chunks; nothing of a chat message is whole before its finish_reason has come."""

    def __init__(self, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> None:
        self.provider = provider
        self.names = tuple(names)
        self.tally = Tally()
        self.id, self.model, self.stop = "", model, ""
        self.text: dict[str, list[str]] = {}
        self.details: list[JsonObject] = []
        self.annotations: list[JsonObject] = []
        self.audio: JsonObject = {}
        self.calls: dict[int, _Call] = {}
        self.reported: JsonObject = {}
        self.entries: list[Entry] = []

    def feed(self, event: Any) -> list[Entry]:
        """Take one chunk; the entries that it finished."""
        if isinstance(event, str) and event.strip() == "[DONE]":
            return []
        chunk = object_in(event, "a chunk")
        if chunk.get("error"):
            raise refused(chunk["error"])
        if "choices" not in chunk and "usage" not in chunk:
            self.tally.unknown += 1
            return []
        self.id = self.id or text_in(chunk, "id")
        self.model = text_in(chunk, "model") or self.model
        self._usage(chunk)
        return self._choices(objects(chunk, "choices"))

    def _usage(self, chunk: JsonObject) -> None:
        if chunk.get("usage") or chunk.get("x_groq") or chunk.get("timings"):
            self.reported |= {key: chunk[key] for key in ("usage", "x_groq", "timings") if chunk.get(key)}

    def _choices(self, choices: list[JsonObject]) -> list[Entry]:
        for choice in choices:
            if choice.get("index"):
                continue  # only the first of several answers is recorded
            self._delta(sub(choice, "delta"))
            if stop := text_in(choice, "finish_reason"):
                return self._finish(stop)
        return []

    def _delta(self, delta: JsonObject) -> None:
        if isinstance(content := delta.get("content"), list):
            # Mistral streams parts: thinking and text.
            delta = {**delta, "content": text_of(content), "reasoning_content": thought_of(content)}
        for field in ("content", "refusal", *_THOUGHTS):
            if text := text_in(delta, field):
                self.text.setdefault(field, []).append(self.tally.add(text))
        self.details += objects(delta, "reasoning_details")
        self.annotations += objects(delta, "annotations")
        self._audio(sub(delta, "audio"))
        for piece in objects(delta, "tool_calls"):
            self._call(piece)
        if function := sub(delta, "function_call"):
            # The old form: one call, known by its name.
            self._call({"index": 0, "id": function.get("name"), "function": function})

    def _audio(self, piece: JsonObject) -> None:
        """Sound comes in pieces, and what is said in it beside them."""
        for field, value in piece.items():
            grows = field in ("data", "transcript")
            self.audio[field] = (
                self.audio.get(field, "") + self.tally.add(text_in(piece, field)) if grows else value
            )

    def _call(self, piece: JsonObject) -> None:
        # Some servers leave the index out and send calls whole.
        index = number_in(piece, "index") if piece.get("index") is not None else len(self.calls)
        call = self.calls.setdefault(index, _Call())
        function, custom = sub(piece, "function"), sub(piece, "custom")
        call.custom = call.custom or bool(custom)
        call.id = call.id or text_in(piece, "id")
        call.name += text_in(function, "name") or text_in(custom, "name")
        call.arguments.append(self.tally.add(text_in(function, "arguments") or text_in(custom, "input")))

    def _finish(self, stop: str) -> list[Entry]:
        if self.stop:
            return []
        self.entries = entries_of_reply(self._message(), self.provider, self.model, self.names)
        self.stop = stop
        return self.entries

    def _message(self) -> JsonObject:
        out: JsonObject = {field: "".join(pieces) for field, pieces in self.text.items()}
        gathered = {
            "reasoning_details": self.details,
            "annotations": self.annotations,
            "audio": self.audio,
        }
        out |= {field: value for field, value in gathered.items() if value}
        if self.calls:
            out["tool_calls"] = [self.calls[index].json() for index in sorted(self.calls)]
        return out

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def partial(self) -> Partial:
        """Everything received so far."""
        unfinished: list[JsonObject] = []
        if not self.stop:
            kinds = {"content": "respond", "refusal": "respond"}
            unfinished = [
                {"kind": kinds.get(field, "think"), "text": "".join(pieces)}
                for field, pieces in self.text.items()
            ]
            if spoken := self.audio.get("transcript"):
                unfinished.append({"kind": "respond", "text": spoken})
            unfinished += [
                {"kind": "call", "name": call.name, "text": "".join(call.arguments)}
                for call in self.calls.values()
            ]
        return Partial(
            tuple(self.entries),
            tuple(unfinished),
            self.usage,
            self.stop,
            self.id,
            self.model,
            self.tally.unknown,
        )

    def reply(self) -> Reply:
        """The whole reply, once its finish_reason has come."""
        if not self.stop:
            raise cut("its finish_reason")
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)
