"""A thread as a provider's messages: imported ones as they came, all others written from their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from quire.providers.convert import project
from quire.providers.incoming import Original, Whole, regrouped
from quire.providers.models import ModelInfo, model_info
from quire.providers.provider_tools import functions_of
from quire.providers.rendering import Draft, Writer
from quire.values import Entry, Json, JsonObject


class Exported(msgspec.Struct, frozen=True):
    """A thread in one wire format; what stands before the conversation is apart."""

    system: Entry | None
    tools: tuple[Entry, ...]
    messages: list[JsonObject]

    def listed_tools(self, format: str, define: Callable[[JsonObject], JsonObject]) -> list[JsonObject]:
        """The tools in front, in this format's words; those that came in it, as they came."""
        out: list[JsonObject] = []
        for entry in self.tools:
            came = entry.wire.get("tools") if entry.wire.get("format") == format else None
            out += came if isinstance(came, list) else map(define, functions_of(entry.tools))
        return out

    def system_as(self, format: str, anew: Json) -> Json:
        """The system prompt as it came in this format, else as it is written anew."""
        wire = self.system.wire if self.system else {}
        return wire["system"] if wire.get("format") == format and "system" in wire else anew


def exported(
    entries: Iterable[Entry], writer: Writer, original: Original, info: ModelInfo, format: str = ""
) -> Exported:
    """The messages of a thread, nothing repaired: an export says what the log says."""
    format = format or writer.format
    system, tools, rest = _head(list(entries), format)
    sheet = Draft(info, writer.native)
    sheet.faithful = True
    for group in regrouped(rest, format, original):
        if isinstance(group, Whole):
            sheet.messages += group.messages
            continue
        for message in project(group):
            writer.write(sheet, message)
    return Exported(system, tools, sheet.messages)


def exported_chat(
    entries: Iterable[Entry], writer: Writer, original: Original, define: Callable[[JsonObject], JsonObject]
) -> Json:
    """A thread's messages, the system prompt as the first; with tools, the object a request holds them in."""
    out = exported(entries, writer, original, model_info(f"{writer.format}:"))
    head = [{"role": "system", "content": out.system.text}] if out.system else []
    messages = [*head, *out.messages]
    defined = out.listed_tools(writer.format, define)
    return {"tools": defined, "messages": messages} if defined else messages


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
