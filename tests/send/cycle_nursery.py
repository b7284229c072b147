"""Forks clients that carry a cycle out until they are killed; everything is imported and warm before the first.

Reads `DATABASE LINES URL TARGET HOW` lines (HOW: by-key, cautious or records); answers `pid N`, then `ack SEQ` for every entry that the client
was told is stored, `done` when the cycle ended, and `dead STATUS`.
"""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from send_parts import answered, new_thread, tool

from quire import Entry, Request, Thread
from quire.log.sqlite import SqliteStore
from quire.records import Records
from quire.send import runners
from quire.send.connect import Retry, transport_for
from quire.send.cycle import run_sync
from quire.send.events import Event
from quire.send.tools import Tool
from quire.send.tools import tool as make_tool
from quire.send.turn import Limits, Runner
from quire.values import JsonObject
from toolbox import TARGETS, carry_out

SHORT = {"max_tokens": 40}


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one write, so that lines of two processes cannot mix


class Appending:
    """A tool with side effects: appends a line to a file, with the call's id as its key."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def definitions(self) -> Sequence[JsonObject]:
        return [tool("append")]

    async def run(self, call: Entry) -> Entry:
        with self.file.open("a") as lines:
            lines.write(f"{call.id} {call.args['line']}\n")
        return answered(call)

    def by_key(self) -> Tool:
        """The same for any runner: it looks whether a call has run before it runs."""

        @make_tool(idempotent=True)
        def append(line: int, call: Entry) -> str:
            """Append a line."""
            found = self.decide(call)
            return str((asyncio.run(self.run(call)) if found == "run" else answered(call)).body["outcome"])

        return append

    def decide(self, call: Entry) -> Entry | str:
        """Whether a call in doubt has run is written in the file."""
        ran = self.file.exists() and call.id in self.file.read_text()
        return answered(call) if ran else "run"


def client(database: str, lines: str, url: str, target: str, how: str) -> None:
    """Begin the cycle, or go on with it."""
    tools, thread = Appending(Path(lines)), new_thread(Path(database))
    if not thread.store.threads():
        say(f"ack {thread.user('Write ten lines, please.').seq}")
    decide = {} if how == "cautious" else {"decide": tools.decide}
    runner = Runner(tools=tools, limits=Limits(steps=40))
    if how == "records":
        runner = runners.records(Records(thread.store), [tools.by_key()])
    carry_out(thread, target, url, runner, on_event=acknowledge, retry=Retry(attempts=1), **decide)  # type: ignore[arg-type]
    say("done 0")


def acknowledge(event: Event) -> None:
    if event.entry is not None:
        say(f"ack {event.entry.seq}")


class Canned:
    """A transport that answers at once, so that everything a turn needs is loaded."""

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        yield {"choices": [{"index": 0, "delta": {"content": "Warm."}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    async def send(self, request: Request) -> JsonObject:
        raise NotImplementedError


def warm_up() -> None:
    """Load what a first turn loads; a fork shares it."""
    thread = Thread(SqliteStore(":memory:"), "warm")
    thread.user("Hello")
    thread.request(TARGETS["anthropic"])
    assert run_sync(thread, TARGETS["openai-chat"], Canned(), Runner(tools=Appending(Path("none")))).text == "Warm."
    thread.user("Again")
    run_sync(thread, TARGETS["openai-chat"], Canned(), runners.records(Records(thread.store)))
    thread.store.close()
    client = transport_for("llamacpp:warm", "http://127.0.0.1:9").inner._connected()  # type: ignore[attr-defined]
    asyncio.run(client.aclose())


def main() -> None:
    warm_up()
    gc.freeze()  # else each fork looks for garbage in all that is loaded, and gets a copy of it
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            client(*line.split())
            os._exit(0)
        say(f"pid {pid}")
        say(f"dead {os.waitpid(pid, 0)[1]}")


if __name__ == "__main__":
    main()
