"""Records (breadcrumbs): stored documents, how a model sees them, and the context built from them.

This module carries out an agent's reply: it stores the reply as a record, runs the tools that the reply asks for
(`quire.send.tools.Toolbox`), stores each result, and rebuilds the contexts that depend on these records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from quire.errors import CallError, NotFound, QuireError
from quire.formats import clean
from quire.records.builder import Builder, BuiltContext
from quire.records.hints import apply_hints
from quire.records.paths import HintLimits, as_text
from quire.records.record import (
    SCHEMA,
    Config,
    Formatting,
    Match,
    OutputRecord,
    Record,
    RecordSource,
    Selector,
    View,
    config,
    draft,
    of_record,
    view,
)
from quire.records.store import RecordHit, Records
from quire.values import Entry, Json, JsonObject, call, respond, result_words

__all__ = [
    "AgentReply", "Builder", "BuiltContext", "CarriedOut", "Config", "Formatting", "HintLimits", "Match",
    "OutputRecord", "Reaction", "Record", "RecordHit", "RecordSource", "Records", "Selector", "ToolRequest",
    "View", "apply_hints", "carry_out", "catalog", "config", "configured", "draft", "keep_catalog",
    "parse_reply", "react", "registered", "view",
]  # fmt: skip


# When records change, the contexts that they trigger are rebuilt; these may trigger others, for a bounded number of
# rounds. A consumer's own context never triggers it.


class Reaction(msgspec.Struct, frozen=True):
    """The contexts that changed, and the problems of configurations that failed."""

    outputs: tuple[Record, ...] = ()
    problems: tuple[str, ...] = ()


def configured(records: Records, consumer_id: str, *, now: int | None = None) -> Config:
    """The stored configuration of a consumer."""
    configs = [config for config in _configs(records, now) if config.context.get("consumer_id") == consumer_id]
    if not configs:
        raise NotFound(
            f"no {SCHEMA} record has the consumer_id {consumer_id!r}", hint="Create one, or pass --config FILE."
        )
    return of_record(configs[-1])


def react(records: Records, *changed: Record, now: int | None = None) -> Reaction:
    """Update the context of every consumer that a changed record triggers, then of those that these contexts trigger.

    Where several records trigger a consumer, the last one counts.
    """
    outputs: list[Record] = []
    problems: list[str] = []
    rounds = 0
    while changed:
        rounds += 1
        contexts: list[Record] = []
        for record in _configs(records, now):
            try:
                config = of_record(record)
                if rounds <= config.max_generation:
                    contexts += _renew(records, Builder(config), changed, now)
            except QuireError as error:
                problems.append(f"{record.id}: {error}")
        outputs += contexts
        changed = tuple(contexts)
    return Reaction(tuple(outputs), tuple(dict.fromkeys(problems)))


def _renew(records: Records, builder: Builder, changed: Sequence[Record], now: int | None) -> list[Record]:
    """The consumer's context, if one of the changed records triggers it and it is different now; else nothing."""
    trigger = next((record for record in reversed(changed) if builder.triggered_by(record)), None)
    if trigger is None:
        return []
    before = builder.output(records, now=now)
    context = builder.update(records, trigger, now=now)
    return [context] if context != before else []


def _configs(records: Records, now: int | None) -> list[Record]:
    """The newest configuration of each consumer."""
    configs = records.select(Selector(schemas=(SCHEMA,)), now=now)
    return list({config.context.get("consumer_id", config.id): config for config in configs}.values())


# Parsing a model's reply: an `agent.response.v1` object with a message and tool requests, else a plain message.

RESPONSE_SCHEMA: Final = "agent.response.v1"
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")


class ToolRequest(msgspec.Struct, frozen=True):
    tool: str
    input: Json
    request_id: str


class AgentReply(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed reply; `problems` lists the tool requests that were skipped, and why."""

    message: str
    tool_requests: tuple[ToolRequest, ...] = ()
    problems: tuple[str, ...] = ()
    structured: bool = False
    title: str = ""
    tags: tuple[str, ...] = ()
    context: JsonObject = {}

    def entries(self) -> list[Entry]:
        """The reply as log entries: its message, then its calls."""
        answer = [respond(self.message)] if self.message or not self.tool_requests else []
        return [*answer, *(call(request.request_id, request.tool, request.input) for request in self.tool_requests)]

    def fields(self) -> JsonObject:
        """The arguments of `Records.create` that store this reply."""
        context = self.context if self.structured else {"message": self.message}
        return {"schema_name": RESPONSE_SCHEMA, "title": self.title, "tags": list(self.tags), "context": context}


def parse_reply(text: str) -> AgentReply:
    """Read a reply: bare JSON, JSON inside a code fence, or a plain message."""
    for candidate in _candidates(text):
        breadcrumb = _breadcrumb(candidate)
        if breadcrumb is not None:
            return _structure(breadcrumb)
    return AgentReply(message=text)


def _candidates(text: str) -> Iterator[str]:
    """The parts of a reply that may be the JSON: all of it, a fence on a single line, each fenced block."""
    whole = text.strip()
    yield whole
    if whole.startswith("```") and whole.endswith("```"):
        yield whole.strip("`").removeprefix("json")
    yield from _fences(text)


def _fences(text: str) -> Iterator[str]:
    """The content of each code fence; one that is never closed runs to the end."""
    block: list[str] | None = None
    mark = ""
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if block is None:
            if fence:
                block, mark = [], fence[1]
        elif fence and fence[1].startswith(mark) and not line[fence.end() :].strip():
            yield "\n".join(block)
            block = None
        else:
            block.append(line)
    if block:
        yield "\n".join(block)


def _breadcrumb(text: str) -> JsonObject | None:
    """The `agent.response.v1` record that a text asks to create, if it does."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        # This decoder also refuses NaN and lone surrogates, which could not be stored or shown.
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    breadcrumb = value.get("breadcrumb") if value.get("action") == "create" else None
    if not isinstance(breadcrumb, dict) or breadcrumb.get("schema_name") != RESPONSE_SCHEMA:
        return None
    return breadcrumb if isinstance(breadcrumb.get("context"), dict) else None


def _structure(breadcrumb: JsonObject) -> AgentReply:
    context = breadcrumb["context"]
    requests, problems = _requests(context.get("tool_requests"))
    title, tags = breadcrumb.get("title"), breadcrumb.get("tags")
    named = [tag for tag in tags if isinstance(tag, str) and tag] if isinstance(tags, list) else []
    return AgentReply(
        message=as_text(context.get("message")),
        tool_requests=tuple(requests),
        problems=tuple(problems),
        structured=True,
        title=title if isinstance(title, str) else "",
        tags=tuple(dict.fromkeys(named)),
        context=context,
    )


def _requests(value: Json) -> tuple[list[ToolRequest], list[str]]:
    """The valid tool requests, and the problems of the others."""
    if value is None:
        return [], []
    if not isinstance(value, list):
        return [], [f"tool_requests is a list, not {as_text(value)[:60]!r}"]
    requests, problems = [], []
    for number, request in enumerate(value, 1):
        problem = _problem(request)
        if problem:
            problems.append(f"tool request {number} {problem}: {as_text(request)[:120]}")
            continue
        named = request.get("requestId")
        request_id = named if isinstance(named, str) and named else f"request-{number}"
        requests.append(ToolRequest(request["tool"], request["input"], request_id))
    return requests, problems


def _problem(request: Json) -> str:
    if not isinstance(request, dict):
        return "is not an object"
    if not isinstance(request.get("tool"), str) or not request["tool"]:
        return "names no tool"
    return "has no input" if request.get("input") is None else ""


RESPONSE: Final = "tool.response.v1"


class RecordTools(Protocol):
    """Runs the tools that an agent asks for."""

    async def run(self, call: Entry) -> Entry:
        """Return the result of a call; a failure is a result too."""


class CarriedOut(msgspec.Struct, frozen=True):
    """The reply and its record, one `tool.response.v1` record per request, and the contexts that changed."""

    reply: AgentReply
    record: Record
    responses: tuple[Record, ...]
    reaction: Reaction


async def carry_out(
    records: Records, text: str, tools: RecordTools, *, tags: Iterable[str] = (), now: int | None = None
) -> CarriedOut:
    """Store a reply, run its tool requests in order, and rebuild the contexts that depend on them.

    Every new record gets the `tags`, such as a conversation's `session:…`.
    """
    reply, shared = parse_reply(text), list(tags)
    fields = reply.fields()
    message = records.create(**{**fields, "tags": [*fields["tags"], *shared]}, now=now)
    responses = []
    for request in reply.tool_requests:
        result = await tools.run(call(request.request_id, request.tool, request.input))
        # Stored one by one, so that a result is not lost where the next tool never ends.
        context = response_context(request.tool, request.request_id, result)
        responses.append(records.create(RESPONSE, context, tags=shared, now=now))
    return CarriedOut(reply, message, tuple(responses), react(records, message, *responses, now=now))


def response_context(tool: str, request_id: str, result: Entry) -> JsonObject:
    """The context of the `tool.response.v1` record for a call's result."""
    kind = "error" if result.body.get("error") else "output"
    return {"tool": tool, "requestId": request_id, kind: result_words(result)}


# `tool.catalog.v1`: the registered tools in one record, whose hints show their text and names.

CATALOG_SCHEMA: Final = "tool.catalog.v1"
TOOL_SCHEMA: Final = "tool.v1"


def catalog(
    tools: Iterable[JsonObject], *, title: str = "Tool catalog", tags: Iterable[str] = ("tool:catalog",)
) -> Record:
    """An unsaved catalog of tools, in the order given; `keep_catalog` stores one."""
    return draft(CATALOG_SCHEMA, {"tools": [_check_tool(tool) for tool in tools]}, title=title, tags=tags)


def registered(records: Records, *, now: int | None = None) -> list[JsonObject]:
    """The tools of the `tool.v1` records, oldest first; a tool that is registered again keeps its place."""
    tools = records.select(Selector(schemas=(TOOL_SCHEMA,)), now=now)
    return list({record.context.get("name"): record.context for record in tools}.values())


def keep_catalog(records: Records, tools: Iterable[JsonObject] | None = None, *, now: int | None = None) -> Record:
    """Create or update the store's catalog, from `tools` or else from the registered ones."""
    draft = catalog(registered(records, now=now) if tools is None else tools)
    existing = records.select(Selector(schemas=(CATALOG_SCHEMA,), all_tags=draft.tags), newest=1, now=now)
    if not existing:
        return records.create(
            CATALOG_SCHEMA, draft.context, title=draft.title, tags=draft.tags, llm_hints=draft.llm_hints, now=now
        )
    if existing[0].context == draft.context:
        return existing[0]
    return records.update(existing[0].id, existing[0].version, context=draft.context, now=now)


def _check_tool(tool: Json) -> JsonObject:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        hint = 'Write [{"name": "…", "description": "…"}, …].'
        raise CallError(f"a tool is an object with a name, not {str(tool)[:60]!r}", hint=hint)
    try:
        clean.render(clean.project(tools=[tool]))
    except (TypeError, AttributeError) as error:
        raise CallError(f"the tool {tool['name']!r} cannot be shown: {error}") from error
    return tool
