"""A model's reply as `agent.response.v1`: its message and the tools it asks for; anything else is a plain message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from quire.records.paths import as_text
from quire.values import Entry, Json, JsonObject, call, respond

SCHEMA: Final = "agent.response.v1"
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
        said = [respond(self.message)] if self.message or not self.tool_requests else []
        return [*said, *(call(one.request_id, one.tool, one.input) for one in self.tool_requests)]

    def fields(self) -> JsonObject:
        """The arguments of `Records.create` that keep this reply as a record."""
        context = self.context if self.structured else {"message": self.message}
        return {"schema_name": SCHEMA, "title": self.title, "tags": list(self.tags), "context": context}


def parse_reply(text: str) -> AgentReply:
    """Read a reply: bare JSON, JSON inside a code fence, or a plain message."""
    for candidate in _candidates(text):
        breadcrumb = _breadcrumb(candidate)
        if breadcrumb is not None:
            return _structured(breadcrumb)
    return AgentReply(message=text)


def _candidates(text: str) -> Iterator[str]:
    """Where the JSON may stand: the whole reply, a fence on one line, each fenced block."""
    whole = text.strip()
    yield whole
    if whole.startswith("```") and whole.endswith("```"):
        yield whole.strip("`").removeprefix("json")
    yield from _fenced(text)


def _fenced(text: str) -> Iterator[str]:
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
        value = json.loads(text, parse_constant=_no_constant)
        # A lone surrogate can be spelled in JSON, but nothing could store or show it.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    breadcrumb = value.get("breadcrumb") if value.get("action") == "create" else None
    if not isinstance(breadcrumb, dict) or breadcrumb.get("schema_name") != SCHEMA:
        return None
    return breadcrumb if isinstance(breadcrumb.get("context"), dict) else None


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _structured(breadcrumb: JsonObject) -> AgentReply:
    context = breadcrumb["context"]
    requests, problems = _requests(context.get("tool_requests"))
    message, title, tags = context.get("message"), breadcrumb.get("title"), breadcrumb.get("tags")
    return AgentReply(
        message=as_text(message),
        tool_requests=tuple(requests),
        problems=tuple(problems),
        structured=True,
        title=title if isinstance(title, str) else "",
        tags=tuple(dict.fromkeys(tag for tag in tags if isinstance(tag, str) and tag))
        if isinstance(tags, list)
        else (),
        context=context,
    )


def _requests(value: Json) -> tuple[list[ToolRequest], list[str]]:
    """The requests that can be carried out, and why the others cannot."""
    if value is None:
        return [], []
    if not isinstance(value, list):
        return [], [f"tool_requests is a list, not {as_text(value)[:60]!r}"]
    requests, problems = [], []
    for number, one in enumerate(value, 1):
        problem = _problem(one)
        if problem:
            problems.append(f"tool request {number} {problem}: {as_text(one)[:120]}")
            continue
        given = one.get("requestId")
        request_id = given if isinstance(given, str) and given else f"request-{number}"
        requests.append(ToolRequest(one["tool"], one["input"], request_id))
    return requests, problems


def _problem(request: Json) -> str:
    if not isinstance(request, dict):
        return "is not an object"
    if not isinstance(request.get("tool"), str) or not request["tool"]:
        return "names no tool"
    return "has no input" if request.get("input") is None else ""
