"""MCP servers as a source of tools, over the official SDK; each session runs in its own OS thread.

with McpServer(["python", "server.py"]) as server:
    toolbox = Toolbox(*server.tools)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import re
import tempfile
import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from quire.errors import CallError, ProviderError, needs_extra
from quire.items.sources import at_lines
from quire.send.tools import Output, Tool
from quire.values import Entry, Json, JsonObject

if TYPE_CHECKING:
    import mcp


class _OneLine(logging.Filter):
    """Replaces the SDK's tracebacks about stray output of a server by one warning, once."""

    def __init__(self) -> None:
        super().__init__()
        self.reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info is None:
            return True
        before, self.reported = self.reported, True
        record.msg = "an MCP server writes to its standard output what is no message; it is passed over"
        record.args, record.exc_info = (), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return not before


_ONE_LINE = _OneLine()
_START_TIMEOUT_S = 30.0
_MAX_PAGES, _MAX_TOOLS = 100, 10_000


class McpServer:
    """A running MCP server: a command to start, a URL to connect to, or an `MCPServer` object of this process.

    `prefix` is put before every tool's name. A command's environment is `env` and the usual basics (PATH, HOME, …).
    """

    def __init__(
        self,
        server: Sequence[str] | str | Any,
        *,
        prefix: str = "",
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 60.0,
        limit: int = 24_000,
    ) -> None:
        self._server, self._env, self._cwd = server, env, cwd
        self._prefix, self._timeout_s, self._limit = prefix, timeout_s, limit
        self._log: IO[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: mcp.Client | None = None
        self._session_task: asyncio.Task[Any] | None = None
        self.tools: tuple[Tool, ...] = ()

    def __enter__(self) -> McpServer:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        """Connect and ask for the tools."""
        ready: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        target = self._target()
        self._thread = threading.Thread(target=self._live, args=(target, ready), daemon=True)
        self._thread.start()
        try:
            listed = ready.result(_START_TIMEOUT_S)
        except BaseException as error:  # also an interrupt: the server would go on running
            output = self._last_output()
            self.stop()
            if not isinstance(error, Exception):
                raise
            # A foreign program can cause any exception; the error has one line of it.
            raise ProviderError(
                f"the MCP server {self._name()} did not start: {_reason(error)}{output}",
                hint="Run its command by hand to see what it says.",
            ) from error
        self.tools = tuple(self._tool(tool) for tool in listed)

    def stop(self) -> None:
        """End the session and the server; safe to call twice."""
        loop, task, thread = self._loop, self._session_task, self._thread
        if loop is not None and task is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop ended in between
                loop.call_soon_threadsafe(task.cancel)
        if thread is not None:
            thread.join(10)
        self._loop = self._session_task = self._thread = self._client = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _target(self) -> Any:
        with needs_extra("MCP is not installed", "mcp"):
            import mcp
        if isinstance(self._server, str) or not isinstance(self._server, Sequence):
            return self._server
        if not self._server:
            raise CallError("an MCP server needs a command", hint='As ["python", "server.py"].')
        command, *args = self._server
        parameters = mcp.StdioServerParameters(command=command, args=args, env=self._env, cwd=self._cwd)
        logging.getLogger("mcp.client.stdio").addFilter(_ONE_LINE)
        _ONE_LINE.reported = False
        # Takes the server's log, which would otherwise be printed on the terminal.
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - lives as long as the server
        return mcp.stdio_client(parameters, self._log)

    def _live(self, target: Any, ready: concurrent.futures.Future[list[Any]]) -> None:
        """The session's OS thread: stays connected until `stop`."""
        try:
            asyncio.run(self._session(target, ready))
        except BaseException as error:  # whatever it is, `start` raises it
            if not ready.done():
                ready.set_exception(error)

    async def _session(self, target: Any, ready: concurrent.futures.Future[list[Any]]) -> None:
        import mcp

        self._loop, self._session_task = asyncio.get_running_loop(), asyncio.current_task()
        async with mcp.Client(target, read_timeout_seconds=self._timeout_s) as client:
            self._client = client
            ready.set_result(await _all_tools(client))
            await asyncio.Event().wait()

    def _tool(self, remote: Any) -> Tool:
        """A tool of the server as a `Tool`; it may run again only if the server says that it changes nothing."""
        name = _name(self._prefix + remote.name)
        hints = remote.annotations
        harmless = bool(hints and (hints.read_only_hint or hints.idempotent_hint))

        async def invoke(args: JsonObject, call: Entry) -> Output:
            result = await self._ask(remote.name, args)
            return Output(_content(result), error=bool(result.is_error))

        return Tool(
            name=name,
            description=remote.description or remote.title or remote.name,
            parameters=remote.input_schema or {"type": "object", "properties": {}},
            invoke=invoke,
            idempotent=harmless,
            timeout_s=self._timeout_s,
            limit=self._limit,
            cut=at_lines,
            category="mcp",
            fault=partial(_fault, remote.input_schema or {}),
        )

    async def _ask(self, name: str, args: JsonObject) -> Any:
        """Make a call in the session's OS thread; cancelling it here cancels it there."""
        if self._client is None or self._loop is None or self._loop.is_closed():
            raise CallError(f"the MCP server {self._name()} has ended", hint="Start it again.")
        call: Coroutine[Any, Any, Any] = self._client.call_tool(name, args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def _name(self) -> str:
        if isinstance(self._server, str):
            return self._server
        return " ".join(self._server) if isinstance(self._server, Sequence) else type(self._server).__name__

    def _last_output(self) -> str:
        """The end of the server's standard error."""
        if self._log is None:
            return ""
        self._log.seek(0)
        text = " ".join(self._log.read().split())[-300:]
        return f"; it said: {text}" if text else ""


async def _all_tools(client: mcp.Client) -> list[Any]:
    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if len(tools) > _MAX_TOOLS:
            raise ProviderError(f"it lists more than {_MAX_TOOLS:,} tools", hint="No model takes as many.")
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _name(text: str) -> str:
    """A name that every provider accepts: other characters become _."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:64]
    return name if re.match(r"[A-Za-z_]", name) else f"_{name}"[:64]


def _fault(schema: JsonObject, args: Json) -> str:
    """The first error in arguments by the server's schema, else ""."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # comes with the SDK

    # A foreign schema may be invalid in any way; then the check is left to its server.
    with contextlib.suppress(Exception):
        return next(
            (f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(args)), ""
        )
    return ""


def _content(result: Any) -> str:
    """A result as text: its text blocks, the names of other blocks, or else the structured content."""
    parts = [_block(block) for block in result.content]
    if not any(parts) and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
    return "\n\n".join(part for part in parts if part)


def _block(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]"
        case "resource_link":
            return f"[resource: {block.name}, {block.uri}]"
        case "resource":
            return str(getattr(block.resource, "text", "") or f"[resource: {block.resource.uri}]")
    return f"[{block.type}]"


def _reason(error: BaseException) -> str:
    """The innermost cause of a failed start, without the task groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, concurrent.futures.TimeoutError):
        return f"no answer within {_START_TIMEOUT_S:g} s"
    return " ".join(str(error).split()) or type(error).__name__
