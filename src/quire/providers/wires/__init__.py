"""The wire formats, one folder each; a new one is its folder, a line here and rows of data."""

from __future__ import annotations

import functools
import importlib

from quire.errors import CallError
from quire.providers.registry import resolve
from quire.providers.wire import Format, Wire
from quire.values import JsonObject

# format -> the module that holds it as `WIRE`
FORMATS: dict[str, str] = {
    "openai-chat": "quire.providers.wires.openai_chat",
    "openai-responses": "quire.providers.wires.openai_responses",
    "anthropic": "quire.providers.wires.anthropic",
    "gemini": "quire.providers.wires.gemini",
    "bedrock": "quire.providers.wires.bedrock",
    "cohere": "quire.providers.wires.cohere",
    "langchain": "quire.providers.wires.langchain",
    "openai-agents": "quire.providers.wires.openai_agents",
}


@functools.cache
def format_of(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise CallError(f"unknown format {name!r}", hint="Known: " + ", ".join(FORMATS) + ".")
    found: Format = importlib.import_module(FORMATS[name]).WIRE
    return found


def wire_of(target: str, body: JsonObject | None = None) -> Wire:
    """How a provider speaks, by its name, a format's, or "provider:model"; with a body, in which format that is."""
    wire = _wire(resolve(target.partition(":")[0])[1])
    other = wire.other(body) if body is not None else ""
    return _wire(other) if other else wire


def _wire(name: str) -> Wire:
    wire = format_of(name)
    assert isinstance(wire, Wire), name
    return wire
