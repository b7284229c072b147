"""Records (breadcrumbs): stored documents, how a model sees them, and the context built from them.

Here, what an agent does with them: its reply is kept as a record, the tools it asks for are run, what they return is
kept beside it, and the contexts that this concerns are built anew. The tools are a runner's
(`quire.send.tools.Toolbox`); a failure is a response too.
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


# When records change, the contexts of the consumers they concern are rebuilt, a bounded number of times.
#
# A consumer's own context never triggers it, and each context built from another counts one generation more:
# the rounds made here count, whatever the records themselves say.


class Reaction(msgspec.Struct, frozen=True):
    """The contexts that are new, and the configurations that could not be carried out."""

    outputs: tuple[Record, ...] = ()
    problems: tuple[str, ...] = ()


def configured(records: Records, consumer_id: str, *, now: int | None = None) -> Config:
    """The configuration that a consumer has among the records."""
    configs = [config for config in _configs(records, now) if config.context.get("consumer_id") == consumer_id]
    if not configs:
        raise NotFound(
            f"no {SCHEMA} record has the consumer_id {consumer_id!r}", hint="Create one, or pass --config FILE."
        )
    return of_record(configs[-1])


def react(records: Records, *changed: Record, now: int | None = None) -> Reaction:
    """Update the context of every consumer that a record triggers, and of those that these contexts trigger.

    Of several records at once, the last one that triggers a consumer counts.
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
    """The consumer's context, where one of the records makes it new."""
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


# A model's reply as `agent.response.v1`: its message and the tools it asks for; anything else is a plain message.

RESPONSE_SCHEMA: Final = "agent.response.v1"
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")


class ToolRequest(msgspec.Struct, frozen=True):
    tool: str
    input: Json
    request_id: str


class AgentReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply says and asks for; `problems` tells what was skipped and why."""

    message: str
    tool_requests: tuple[ToolRequest, ...] = ()
    problems: tuple[str, ...] = ()
    structured: bool = False
    title: str = ""
    tags: tuple[str, ...] = ()
    context: JsonObject = {}

    def entries(self) -> list[Entry]:
        """The reply as entries for a log: what it says, then its calls."""
        answer = [respond(self.message)] if self.message or not self.tool_requests else []
        return [*answer, *(call(request.request_id, request.tool, request.input) for request in self.tool_requests)]

    def fields(self) -> JsonObject:
        """The arguments of `Records.create` that keep this reply as a record."""
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
    """Where the JSON may stand: the whole reply, a fence on one line, each fenced block."""
    whole = text.strip()
    yield whole
    if whole.startswith("```") and whole.endswith("```"):
        yield whole.strip("`").removeprefix("json")
    yield from _fences(text)


def _fences(text: str) -> Iterator[str]:
    """The insides of the code fences, in order; one that is never closed runs to the end."""
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
    """The breadcrumb that a text asks to create, if it is one of ours."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        # Which also refuses what could not be stored or shown: NaN, and lone surrogates.
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
    """The requests that can be carried out, and why the others cannot."""
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
    """Carries out the tool requests of an agent."""

    async def run(self, call: Entry) -> Entry:
        """The result of a call; failures are results too."""


class CarriedOut(msgspec.Struct, frozen=True):
    """The reply and its record, one `tool.response.v1` per request, and the contexts that became new."""

    reply: AgentReply
    record: Record
    responses: tuple[Record, ...]
    reaction: Reaction


async def carry_out(
    records: Records, text: str, tools: RecordTools, *, tags: Iterable[str] = (), now: int | None = None
) -> CarriedOut:
    """Keep a reply, run its tool requests in order, and renew the contexts this concerns.

    `tags` go to every record that is made: a conversation's `session:…`, say.
    """
    reply, shared = parse_reply(text), list(tags)
    fields = reply.fields()
    message = records.create(**{**fields, "tags": [*fields["tags"], *shared]}, now=now)
    responses = []
    for request in reply.tool_requests:
        result = await tools.run(call(request.request_id, request.tool, request.input))
        # Kept one by one: what a tool has done is known even if the next one never ends.
        context = response_context(request.tool, request.request_id, result)
        responses.append(records.create(RESPONSE, context, tags=shared, now=now))
    return CarriedOut(reply, message, tuple(responses), react(records, message, *responses, now=now))


def response_context(tool: str, request_id: str, result: Entry) -> JsonObject:
    """What a `tool.response.v1` record holds of a call's result."""
    kind = "error" if result.body.get("error") else "output"
    return {"tool": tool, "requestId": request_id, kind: result_words(result)}


# `tool.catalog.v1`: the registered tools in one record, with their text and names by its hints.

CATALOG_SCHEMA: Final = "tool.catalog.v1"
TOOL_SCHEMA: Final = "tool.v1"


def catalog(
    tools: Iterable[JsonObject], *, title: str = "Tool catalog", tags: Iterable[str] = ("tool:catalog",)
) -> Record:
    """The catalog of some tools, in the order given; keep it with `keep_catalog`."""
    return draft(CATALOG_SCHEMA, {"tools": [_check_tool(tool) for tool in tools]}, title=title, tags=tags)


def registered(records: Records, *, now: int | None = None) -> list[JsonObject]:
    """The tools that stand as `tool.v1` records, oldest first; a name registered again keeps its first place."""
    tools = records.select(Selector(schemas=(TOOL_SCHEMA,)), now=now)
    return list({record.context.get("name"): record.context for record in tools}.values())


def keep_catalog(records: Records, tools: Iterable[JsonObject] | None = None, *, now: int | None = None) -> Record:
    """Create or bring up to date the store's catalog, from `tools` or from the registered ones."""
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
