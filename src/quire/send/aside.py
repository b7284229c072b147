"""Questions beside the conversation: a plan, a summary. What they used is recorded, their answers are not said."""

from __future__ import annotations

from quire import providers
from quire.send.runner import Turn
from quire.values import Entry, Reply, Request


async def ask_aside(turn: Turn, request: Request, purpose: str) -> Reply:
    """Send a request of one's own; the log's line for it is marked, so that no turn counts it as an answer."""
    reply = providers.parse_reply(turn.target, await turn.transport.send(request))
    sent = turn.thread.sent_entry(request, reply)
    turn.thread.append(Entry("sent", {**sent.body, "meta": {**sent.meta, "aside": purpose}}))
    return reply
