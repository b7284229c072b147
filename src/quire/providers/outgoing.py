"""A thread as a provider's messages: imported ones as they came, all others written from their entries."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.providers.models import ModelInfo
from quire.providers.origin import Read, regrouped
from quire.providers.project import project
from quire.providers.sheet import Sheet, Writer
from quire.values import Entry, JsonObject


class Exported(msgspec.Struct, frozen=True):
    """A thread in one wire format; what stands before the conversation is apart."""

    system: Entry | None
    tools: tuple[JsonObject, ...]
    messages: list[JsonObject]


def exported(entries: Iterable[Entry], writer: Writer, read: Read, info: ModelInfo) -> Exported:
    """The messages of a thread, nothing repaired: an export says what the log says."""
    listed = list(entries)
    system, tools, rest = _head(listed, writer.format)
    sheet = Sheet(info)
    for group in regrouped(rest, writer.format, read):
        if isinstance(group, dict):
            sheet.messages.append(group)
            continue
        for message in project(group):
            writer.write(sheet, message)
    return Exported(system, tools, sheet.messages)


def _head(entries: list[Entry], format: str) -> tuple[Entry | None, tuple[JsonObject, ...], list[Entry]]:
    """The first system entry and the tools in front, where they are not messages of this format themselves."""
    system: Entry | None = None
    tools: tuple[JsonObject, ...] = ()
    for place, entry in enumerate(entries):
        if "message" in entry.wire and entry.wire.get("format") == format:
            return system, tools, entries[place:]
        if entry.kind == "system" and system is None:
            system = entry
        elif entry.kind == "tools":
            tools = (*tools, *entry.tools)
        else:
            return system, tools, entries[place:]
    return system, tools, []
