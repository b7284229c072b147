"""Tools of a provider's own (searches, code execution, computers): sent back to where they came from, and nowhere else.

A function can be offered by any provider, since the caller answers it. These are known to one provider, by a
definition in its own words; an imported `tools` entry keeps them in `wire.own`, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from quire.providers.incoming import Spelling, objects
from quire.providers.models import ModelInfo
from quire.providers.prefix import without_marks
from quire.providers.rules.grammar import fits, grammar_of
from quire.values import Entry, Json, JsonObject, as_object, as_objects, tools, value_at

# Tools that the provider takes only together with another field of the request.
_BOUND = {"mcp_toolset": "mcp_servers"}


class Native(msgspec.Struct, frozen=True):
    """What a wire format says of blocks and tools that are the provider's own."""

    # The formats that hold them: its own, and others with the same blocks under another name.
    formats: tuple[str, ...] = ()
    # How the grammar calls a block of a message, and a tool; "" where it describes none.
    block: str = ""
    tool: str = "@tool"
    function: str = "@tool"
    # Whose tools they are; a format that many servers speak has tools of none.
    owners: tuple[str, ...] = ()
    # Every message is one block.
    items: bool = False
    # Late instructions may stand between any two messages, not only in front of the model's.
    anywhere: bool = False
    # Where the images of results stand for every model that sees: in them, or in a user's message behind them.
    result_images: Literal["", "inside", "behind"] = ""
    # No two calls of a conversation may have one id.
    unique_ids: bool = False
    # A function's definition as entries define a tool, and back.
    read: Callable[[JsonObject], JsonObject] = lambda definition: definition
    define: Callable[[JsonObject], JsonObject] = lambda tool: tool


def tool_json(name: Json, description: Json, parameters: JsonObject) -> JsonObject:
    """A tool as entries define it."""
    return {
        "name": str(name or ""),
        "description": str(description or ""),
        "parameters": parameters or {"type": "object", "properties": {}},
    }


def offer_entry(defined: Iterable[ToolOffer], model: str = "", **wire: object) -> Entry:
    """A `tools` entry of tools and, beside those of a provider's own, their definitions in its words."""
    offers = list(defined)
    names = {offer.tool["name"] for offer in offers if offer.own is None}
    listed: list[JsonObject] = []
    definitions: JsonObject = {}
    more: JsonObject = {}
    for offer in offers:
        tool = offer.tool
        if offer.own is not None:
            tool = {**tool, "name": _free(tool["name"], names | definitions.keys())}
            definitions[tool["name"]] = offer.own
        elif offer.more:
            more[tool["name"]] = offer.more
        listed.append(tool)
    if definitions:
        wire |= {"own": definitions, "model": model} if model else {"own": definitions}
    if more:
        wire |= {"more": more}
    return tools(listed, wire=wire or None)


class ToolOffer(msgspec.Struct, frozen=True):
    """A tool as entries define it, and the rest of its definition in its provider's own form."""

    tool: JsonObject
    # The whole definition of a tool of the provider's own.
    own: JsonObject | None = None
    # Fields that a function's definition has besides; None where it lacks one that would be written.
    more: JsonObject = {}


def function(definition: JsonObject, native: Native) -> ToolOffer:
    """A function, and the fields of its definition that Quire would not write by itself: strict, defer_loading."""
    tool = native.read(definition)
    return ToolOffer(tool, more=_besides(definition, native.define(tool)))


# Fields of a definition that are compared field by field themselves.
_INNER = ("function", "toolSpec", "inputSchema")


def _besides(definition: JsonObject, anew: JsonObject) -> JsonObject:
    """Where a definition differs from the one that would be written: {"strict": True}, {"strict": None} for absent."""
    definition = {key: value for key, value in without_marks(definition).items() if value is not None}
    out: JsonObject = {}
    for key, value in definition.items():
        if key in _INNER and isinstance(value, dict) and isinstance(anew.get(key), dict):
            if inner := _besides(value, anew[key]):
                out[key] = inner
        elif anew.get(key) != value and not (key == "name" or value == "custom"):
            out[key] = value
    absent = [key for key in anew if key not in definition and key != "type"]
    return {**out, **dict.fromkeys(absent)}


def with_more(definition: JsonObject, tool: JsonObject, native: Native) -> JsonObject:
    """A function's definition with the further fields it was imported with, for the format it came in."""
    more = tool.get("more") or {}
    if more.get("format") not in native.formats:
        return definition
    whole = _merge_definition(definition, more["definition"])
    return whole if fits(whole, native.function, grammar_of(native.formats[0])) else definition


def _merge_definition(definition: JsonObject, more: JsonObject) -> JsonObject:
    out = dict(definition)
    for key, value in more.items():
        if value is None:
            out.pop(key, None)
        elif key in _INNER and isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = _merge_definition(out[key], value)
        else:
            out[key] = value
    return out


def typed_offers(defined: Iterable[JsonObject], native: Native) -> list[ToolOffer]:
    """Tools of a list in which those of the provider's own have a type that is not 'function'.

    Without a type, or where a schema stands beside it, a tool is a function.
    """

    def is_own(tool: JsonObject) -> bool:
        kind = tool.get("type")
        return isinstance(kind, str) and kind not in ("", "function") and "input_schema" not in tool

    return [ToolOffer(native.read(tool), tool) if is_own(tool) else function(tool, native) for tool in defined]


def tools_in(request: JsonObject, model: str, native: Native, format: str = "") -> list[Entry]:
    """The `tools` entry of a request that lists tools by their types, if it does."""
    defined, format = objects(request, "tools"), format or native.formats[0]
    return [offer_entry(typed_offers(defined, native), model, format=format, tools=defined)] if defined else []


def _free(name: str, names: set[str]) -> str:
    """A name that no tool of the list has: mcp, mcp-2, mcp-3."""
    count, candidate = 1, name
    while candidate in names:
        count += 1
        candidate = f"{name}-{count}"
    return candidate


def own_definition(
    tool: JsonObject, info: ModelInfo, native: Native, around: JsonObject | None = None
) -> JsonObject | None:
    """A tool in the words of the provider that it came from, if the request goes there again.

    `around`: what else the caller puts into the request.
    """
    origin = tool.get("own")
    if origin is None or origin.get("format") not in native.formats:
        return None
    if info.provider not in native.owners and origin.get("model") != info.model:
        return None
    definition = without_marks(origin["definition"])
    return definition if _is_taken(definition, native, around or {}) else None


def _is_taken(definition: JsonObject, native: Native, around: JsonObject) -> bool:
    """Whether a definition is as its provider describes it, so that it would not be refused."""
    name = str(definition.get("name", "named"))
    needed = _BOUND.get(str(definition.get("type")))
    if (needed and not around.get(needed)) or Spelling().spell(name) != name:
        return False
    return fits(definition, native.tool, grammar_of(native.formats[0]))


def is_offered(tool: JsonObject, info: ModelInfo, native: Native) -> bool:
    """Whether a tool may be offered to a model: a tool of that provider's own, or one that the caller runs."""
    return own_definition(tool, info, native) is not None or bool(functions_of([tool]))


# What a tool that takes any text is elsewhere: its text is the one argument.
_ANY_TEXT: JsonObject = {
    "type": "object",
    "properties": {"arguments": {"type": "string", "description": "The whole input, as plain text."}},
    "required": ["arguments"],
}


def functions_of(tools: Iterable[JsonObject], others: Iterable[str] = ()) -> list[JsonObject]:
    """The tools that the caller runs, as functions that any model takes; `others` are names that are in use.

    A custom tool is one that takes any text; a namespace is its members, by their own names where those are free.
    """
    listed = list(tools)
    names = {*others, *(tool["name"] for tool in listed)}
    out: list[JsonObject] = []
    for tool in listed:
        definition = (tool.get("own") or {}).get("definition") or {}
        if "own" not in tool:
            out.append(tool)
        elif definition.get("type") == "custom":
            out.append(_any_text(tool))
        elif definition.get("type") == "namespace":
            for member in _members(definition.get("tools")):
                name = member["name"]
                name = f"{tool['name']}__{name}" if name in names else name
                names.add(name)
                out.append({**member, "name": name})
    return out


def found_functions(block: Json) -> list[JsonObject]:
    """The functions that a search for tools brought, for models that do not know the search."""
    return _members(value_at(block, "tools")) if value_at(block, "type") == "tool_search_output" else []


def _members(tools: Json) -> list[JsonObject]:
    """The functions of a list, and of the namespaces in it."""
    out: list[JsonObject] = []
    for tool in as_objects(tools):
        match tool:
            case {"type": "custom", "name": str()}:
                out.append(_any_text(tool))
            case {"type": "function", "name": str(name)}:
                out.append(tool_json(name, tool.get("description"), as_object(tool.get("parameters"))))
            case _:
                out += _members(tool.get("tools"))
    return out


def _any_text(tool: JsonObject) -> JsonObject:
    return tool_json(tool["name"], tool.get("description"), _ANY_TEXT)
