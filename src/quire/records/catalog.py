"""`tool.catalog.v1`: the registered tools in one record, with their text and names by its hints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quire.errors import CallError
from quire.formats import clean
from quire.records.record import CATALOG_HINTS, Record, checked, tag_list
from quire.records.selector import Selector
from quire.records.store import Records
from quire.values import Json, JsonObject

SCHEMA: Final = "tool.catalog.v1"
TOOL_SCHEMA: Final = "tool.v1"


def catalog(
    tools: Iterable[JsonObject], *, title: str = "Tool catalog", tags: Iterable[str] = ("tool:catalog",)
) -> Record:
    """The catalog of some tools, in the order given; keep it with `keep_catalog`."""
    listed = [_checked(tool) for tool in tools]
    return checked(
        Record(
            schema_name=SCHEMA,
            title=title,
            tags=tag_list(tags),
            context={"tools": listed},
            llm_hints=CATALOG_HINTS,
        )
    )


def registered(records: Records, *, now: int | None = None) -> list[JsonObject]:
    """The tools that stand as `tool.v1` records, oldest first; a name registered again keeps its first place."""
    found = records.select(Selector(schemas=(TOOL_SCHEMA,)), now=now)
    return list({record.context.get("name"): record.context for record in found}.values())


def keep_catalog(
    records: Records, tools: Iterable[JsonObject] | None = None, *, now: int | None = None
) -> Record:
    """Create or bring up to date the store's catalog, from `tools` or from the registered ones."""
    made = catalog(registered(records, now=now) if tools is None else tools)
    there = records.select(Selector(schemas=(SCHEMA,), all_tags=made.tags), newest=1, now=now)
    if not there:
        return records.create(
            SCHEMA, made.context, title=made.title, tags=made.tags, llm_hints=made.llm_hints, now=now
        )
    if there[0].context == made.context:
        return there[0]
    return records.update(there[0].id, there[0].version, context=made.context, now=now)


def _checked(tool: Json) -> JsonObject:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        raise CallError(f"a tool is an object with a name, not {str(tool)[:60]!r}")
    try:
        clean.render(clean.project(tools=[tool]))
    except (TypeError, AttributeError) as error:
        raise CallError(f"the tool {tool['name']!r} cannot be shown: {error}") from error
    return tool
