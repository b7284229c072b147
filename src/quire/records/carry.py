"""A model's reply carried out: kept as a record, the tools it asks for run, and what they return kept beside it.

The tools are a runner's (`quire.send.tools.Toolbox`); a failure is a response too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from quire.records.react import Reaction, react
from quire.records.record import Record
from quire.records.reply import AgentReply, ToolRequest, parse_reply
from quire.records.store import Records
from quire.values import Entry, JsonObject, call

RESPONSE: Final = "tool.response.v1"


class Tools(Protocol):
    """Where requests are carried out."""

    async def run(self, call: Entry) -> Entry:
        """The result of a call; failures are results too."""


class Carried(msgspec.Struct, frozen=True):
    """The reply and its record, one `tool.response.v1` per request, and the contexts that became new."""

    reply: AgentReply
    record: Record
    responses: tuple[Record, ...]
    reaction: Reaction


async def carry_out(
    records: Records, text: str, tools: Tools, *, tags: Iterable[str] = (), now: int | None = None
) -> Carried:
    """Keep a reply, run its tool requests in order, and renew the contexts this concerns.

    `tags` go to every record that is made: a conversation's `session:…`, say.
    """
    reply, shared = parse_reply(text), list(tags)
    fields = reply.fields()
    said = records.create(**{**fields, "tags": [*fields["tags"], *shared]}, now=now)
    responses = []
    for request in reply.tool_requests:
        result = await tools.run(call(request.request_id, request.tool, request.input))
        # Kept one by one: what a tool has done is known even if the next one never ends.
        responses.append(records.create(RESPONSE, _context(request, result), tags=shared, now=now))
    return Carried(reply, said, tuple(responses), react(records, said, *responses, now=now))


def _context(request: ToolRequest, result: Entry) -> JsonObject:
    shown = (result.body.get("outcome"), result.body.get("content"))
    output = "\n\n".join(str(part) for part in shown if part)
    kept = {"error": output} if result.body.get("error") else {"output": output}
    return {"tool": request.tool, "requestId": request.request_id, **kept}
