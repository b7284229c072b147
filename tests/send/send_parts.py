"""What the tests of sending share: threads, tools, and a scripted model that calls ten times."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire import Entry, Policy, Thread, open_store, result
from quire.testing import emulator
from quire.values import Call, JsonObject, Text
from toolbox import CHAT, TARGETS, Outcome, Runner, carry_out, closed_later

# Bedrock's requests are signed by boto3, so there is no plain way for them.
WAYS = [(name, via) for name in TARGETS for via in ("sdk", "http") if (name, via) != ("bedrock", "http")]
CALLS = 10


def new_thread(path: Path, name: str = "t", policy: Policy | None = None, **how: Any) -> Thread:
    return Thread(closed_later(open_store(path)), name, policy, **how)


def tool(name: str, **extra: Any) -> JsonObject:
    properties = {"line": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["line"]}
    return {"name": name, "description": f"The tool {name}.", "parameters": schema, **extra}


class Noted:
    """Tools that only note which calls they were given."""

    def __init__(self, *definitions: JsonObject) -> None:
        self._definitions = definitions or (tool("append"),)
        self.calls: list[Entry] = []

    def definitions(self) -> Sequence[JsonObject]:
        return self._definitions

    async def run(self, call: Entry) -> Entry:
        self.calls.append(call)
        return answered(call)


def answered(call: Entry) -> Entry:
    return result(call.call_id, f"line {call.args['line']} is written")


def tool_results(body: JsonObject) -> int:
    """How many results of calls a request of any format holds."""

    def count(value: Any) -> int:
        if isinstance(value, dict):
            own = value.get("role") == "tool" or value.get("type") in ("tool_result", "function_call_output")
            own = own or "functionResponse" in value or "toolResult" in value
            return own + sum(map(count, value.values()))
        return sum(map(count, value)) if isinstance(value, list) else 0

    return sum(count(body.get(field) or []) for field in ("messages", "input", "contents"))


def asks(message: str, *requests: JsonObject) -> str:
    """A reply as `agent.response.v1`; requests are numbered from 1 in each, as models do."""
    listed = [{"requestId": f"r{n}", **one} for n, one in enumerate(requests, 1)]
    context = {"message": message, "tool_requests": listed}
    about = {"schema_name": "agent.response.v1", "title": "Chat Response", "tags": ["agent:response"]}
    return json.dumps({"action": "create", "breadcrumb": {**about, "context": context}})


def ten_requests(body: JsonObject) -> str:
    """The same ten calls, asked for as `agent.response.v1`."""
    done = sum(message["role"] == "assistant" for message in body["messages"])
    request = {"tool": "append", "input": {"line": done + 1}}
    return (
        asks(f"Line {done + 1} of {CALLS} comes next.", request) if done < CALLS else asks("All ten lines are written.")
    )


def ten_calls(body: JsonObject) -> list[Any]:
    """The reply of a model that calls ten times, one at a time, and then answers; a function of the request."""
    done = tool_results(body)
    if done < CALLS:
        line = {"line": done + 1}
        return [Text(f"Line {done + 1} of {CALLS} comes next."), Call(f"call_{done + 1}", "append", line)]
    return [Text("All ten lines are written.")]


def one_turn(
    thread: Thread, said: str, replies: Any, runner: Runner = CHAT, provider: str = "anthropic", **how: Any
) -> tuple[Outcome, list[JsonObject]]:
    """A turn against a stand-in with these replies: how it ended, and what was asked. Without words, the newest one."""
    with emulator(provider, replies) as server:
        if said:
            thread.user(said)
        outcome = carry_out(thread, TARGETS[provider], server.url, runner, **how)
        return outcome, [received.body for received in server.requests]


class Stopping:
    """A transport whose stream is cancelled by the reader once so many events have come."""

    def __init__(self, inner: Any, events: int) -> None:
        self.inner, self.events = inner, events

    async def stream(self, request: Any) -> Any:
        count = 0
        async for event in self.inner.stream(request):
            count += 1
            yield event
            if count == self.events:
                task = asyncio.current_task()
                task.cancel()
                await asyncio.sleep(0)  # where a cancellation arrives

    async def send(self, request: Any) -> Any:
        return await self.inner.send(request)
