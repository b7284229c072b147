"""MCP servers as tool sources: a real server process, a real round trip."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import run

from quire import values
from quire.errors import CallError, ProviderError
from quire.send.mcp import McpServer
from quire.send.tools import Toolbox
from toolbox import until

pytestmark = [
    pytest.mark.xdist_group("mcp"),
    pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed"),
]

SERVER = '''
import os, sys
from mcp.server import MCPServer
from mcp_types import *

server = MCPServer("demo")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@server.tool(name="long.text")
def long_text() -> str:
    """Say much."""
    return "\\n".join(f"line {n}" for n in range(5000))

@server.tool(structured_output=False)
def show() -> list:
    """Give one of each block."""
    resources = TextResourceContents(uri="a://b", text="all"), BlobResourceContents(uri="a://c", blob="aGk=")
    return [
        ImageContent(type="image", data="aGkh", mime_type="image/png"),
        AudioContent(type="audio", data="aGkh", mime_type="audio/a"),
        ResourceLink(type="resource_link", name="b", uri="a://b"),
        *(EmbeddedResource(type="resource", resource=each) for each in resources),
    ]

@server.tool()
def facts() -> CallToolResult:
    """Give an object alone."""
    return CallToolResult(content=[], structured_content={"a": 1})

@server.tool()
def end() -> str:
    """End the process."""
    os._exit(3)

print("talking on stderr is fine", file=sys.stderr)
server.run("stdio")
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    path: Path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    with McpServer([sys.executable, str(path)], prefix="demo_", limit=100) as running:
        yield running


@pytest.mark.filterwarnings("default")
def test_a_servers_tools_are_called_over_stdio(server: McpServer) -> None:
    box = Toolbox(*server.tools)
    assert [one.name for one in box] == ["demo_add", "demo_long_text", "demo_show", "demo_facts", "demo_end"]
    faults = [tool.fault({"a": 1, "b": b}) for b in (2, "two") for tool in [*box][:1]]
    assert faults == ["", "$.b: 'two' is not of type 'integer'"]
    add = box.definitions()[0]
    assert (add["description"], add["idempotent"]) == ("Add two numbers.", True)
    assert add["parameters"]["required"] == ["a", "b"]
    assert run(box, {"a": 40, "b": 2}, "demo_add") == {"content": "42"}
    assert run(box, {"a": "x"}, "demo_add")["error"] is True
    shown = run(box, {}, "demo_long_text")["content"]
    assert shown.split("\n")[-2:] == ["line 12", "[… 93 of 48,889 characters shown …]"]

    blocks = [
        "[image: image/png, 3 bytes]",
        "[audio: audio/a, 3 bytes]",
        "[resource: b, a://b]",
        "all",
        "[resource: a://c]",
    ]
    assert run(box, {}, "demo_show")["content"].split("\n\n") == blocks
    assert run(box, {}, "demo_facts") == {"content": '{"a":1}'}

    async def together() -> list[str]:
        calls = [values.call(str(n), "demo_add", {"a": n, "b": n}) for n in range(5)]
        return [one.body["content"] for one in await asyncio.gather(*map(box.run, calls))]

    assert asyncio.run(together()) == ["0", "2", "4", "6", "8"]
    # A server that ends in the middle of a call is a result, and so is every call after it.
    assert run(box, {}, "demo_end")["error"] is True
    assert run(box, {"a": 1, "b": 1}, "demo_add")["error"] is True


@pytest.mark.filterwarnings("default")
def test_a_banner_on_standard_output_is_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "server.py"
    path.write_text('print("Welcome!\\nVersion 1.0", flush=True)\n' + SERVER)
    with McpServer([sys.executable, str(path)]) as running:
        assert run(Toolbox(*running.tools), {"a": 40, "b": 2}, "add") == {"content": "42"}
    told = [record for record in caplog.records if record.name.startswith("mcp")]
    assert [record.getMessage() for record in told] == [
        "an MCP server writes to its standard output what is no message; it is passed over"
    ]
    assert told[0].exc_info is None


def test_a_command_that_does_not_start_says_why() -> None:
    with pytest.raises(ProviderError, match="it said: no such luck"):
        McpServer([sys.executable, "-c", "import sys; sys.exit('no such luck')"]).start()
    with pytest.raises(ProviderError, match="did not start"):
        McpServer(["./there-is-no-such-program"]).start()
    with pytest.raises(CallError, match="needs a command"):
        McpServer([]).start()


LISTING = """
import json, os, sys

def answer(**given):
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **given}), flush=True)

open(sys.argv[1], "w").write(str(os.getpid()))
for asked in filter(lambda asked: "id" in asked, map(json.loads, sys.stdin)):
    if asked["method"] == "initialize":
        named = {"protocolVersion": asked["params"]["protocolVersion"], "serverInfo": {"name": "s", "version": "1"}}
        answer(result={**named, "capabilities": {"tools": {}}})
    elif asked["method"] != "tools/list":
        answer(error={"code": -32601, "message": "no"})
    elif sys.argv[2] == "many":
        answer(result={"tools": [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(10_001)]})
"""


@pytest.mark.parametrize(
    ("lists", "why"), [("many", "more than 10,000 tools"), ("none", "no answer within 2 s"), ("stopped", "^$")]
)
def test_a_server_that_lists_no_end_of_tools_or_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: str, why: str
) -> None:
    """Also where the user gives up before it has answered."""
    monkeypatch.setattr("quire.send.mcp._START_TIMEOUT_S", 2.0 if lists == "none" else 30.0)
    (tmp_path / "server.py").write_text(LISTING)
    if lists == "stopped":
        give_up = lambda: (until(lambda: (tmp_path / "pid").exists()), os.kill(os.getpid(), signal.SIGINT))  # noqa: E731
        threading.Thread(target=give_up).start()
    with pytest.raises(KeyboardInterrupt if lists == "stopped" else ProviderError, match=why):
        McpServer([sys.executable, str(tmp_path / "server.py"), str(tmp_path / "pid"), lists]).start()
    until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists(), "its process goes on")
