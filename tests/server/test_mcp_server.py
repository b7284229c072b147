"""What a store holds, asked for by a real MCP client: over standard input and output, and in this process."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from quire import Thread, open_store, values
from quire.errors import NotFound
from quire.records import Records
from toolbox import Later, invoke

if TYPE_CHECKING:
    from mcp import Client

MODEL = "anthropic:claude-opus-4-6"
LONG = "\n".join(f"line {n}: the kettle is blue" for n in range(900))
T = TypeVar("T")
mcp_server = Later("quire.server.mcp_server")
pytestmark = pytest.mark.xdist_group("mcp")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    with open_store(folder / "q.db") as store:
        thread = Thread(store, "kitchen")
        thread.append(values.system("Be brief."), values.user("Which colour has the kettle?"))
        thread.append(values.call("c1", "look", {}), values.result("c1", content=LONG), values.respond("Blue."))
        thread.append(values.user("Thanks; my key is sk-ant-api03-" + "a" * 40))
        Records(store).create(schema_name="note.v1", title="Kettle", context={"text": "The kettle whistles."}, now=1)
    return folder / "q.db"


def asked(target: Any, ask: "Callable[[Client], Awaitable[T]]") -> T:
    async def session() -> T:
        from mcp import Client

        async with Client(target) as client:
            return await ask(client)

    return asyncio.run(session())


def test_a_client_over_standard_input_and_output_finds_every_tool_and_uses_them(db: Path) -> None:
    command = [sys.executable, "-m", "quire", "mcp", "--db", str(db)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    from mcp import StdioServerParameters

    server = StdioServerParameters(command=command[0], args=command[1:], env=environment)

    async def use(client: "Client") -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["threads", "assemble", "recall", "show", "records", "audit"]
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
        found = (
            await client.call_tool("recall", {"query": "colour of the kettle", "thread": "kitchen"})
        ).structured_content
        hit = {"entry": str(found["hits"][0]["id"])}
        for given in (hit, {**hit, "thread": "kitchen"}):
            shown = await client.call_tool("show", given)
            assert "kettle" in shown.structured_content["text"]
        log = await client.read_resource("quire://threads/kitchen")
        assert [json.loads(line)["kind"] for line in log.contents[0].text.splitlines()][:2] == ["system", "user"]

    asked(server, use)


def test_each_tool_and_resource_says_what_the_store_says_and_no_secret(db: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    body = {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    log.write_text("".join(json.dumps({"request": body}) + "\n" for _ in range(3)))
    with open_store(db) as store:
        before = store.last_change()

        async def use(client: "Client") -> list[str]:
            told: list[str] = []
            for name, given in [
                ("threads", {}),
                ("assemble", {"thread": "kitchen", "model": MODEL}),
                ("recall", {"query": "kettle"}),
                ("show", {"entry": "4", "thread": "kitchen"}),
                ("records", {"q": "whistles"}),
                ("records", {"schema_name": "note.v1"}),
                ("audit", {"path": str(log)}),
            ]:
                answer = await client.call_tool(name, given)
                assert not answer.is_error, (name, answer.content)
                told.append(json.dumps(answer.structured_content))
            uris = ["threads", "threads/kitchen", f"threads/kitchen/requests/{MODEL}", "records/rec-1"]
            uris.append("entries/" + json.loads(told[3])["id"].removeprefix("sha256:")[:12])
            told += [(await client.read_resource(f"quire://{uri}")).contents[0].text for uri in uris]
            return told

        told = asked(mcp_server.make_server(store), use)
        assert store.last_change() == before, "nothing is written"
    assert "kitchen" in told[0]
    assert json.loads(told[1])["body"]["messages"][0]["content"][0]["text"] == "Which colour has the kettle?"
    assert json.loads(told[3])["text"] == told[-1] == LONG
    assert all("The kettle whistles." in told[place] for place in (4, 5))
    assert json.loads(told[6])["total"]["requests"] == 3
    assert not any("sk-ant-" in text for text in told)
    assert "[Anthropic key]" in told[8]


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("assemble", {"thread": "cellar", "model": MODEL}, "there is no thread 'cellar'. `threads` lists"),
        ("assemble", {"thread": "kitchen", "model": "nobody:x"}, "unknown provider 'nobody'. Known: "),
        ("show", {"entry": "ffffffffffff"}, "no entry is called 'ffffffffffff'"),
        ("show", {"entry": "99", "thread": "kitchen"}, "no entry is called '99'"),
        ("audit", {"path": "/nowhere"}, "there is no file '/nowhere'"),
        ("audit", {"path": ""}, "at least 1 character"),
        ("audit", {"path": "~nobody-here/log"}, "there is no file '~nobody-here/log'"),
        ("audit", {"path": "a\0b"}, "there is no file 'a\\x00b'"),
        ("audit", {"path": "x" * 5000}, "there is no file 'xxx"),
        ("recall", {"query": "x", "k": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_had_is_an_error_that_says_why(db: Path, name: str, given: dict[str, Any], why: str) -> None:
    with open_store(db) as store:
        answer = asked(mcp_server.make_server(store), lambda client: client.call_tool(name, given))
    assert answer.is_error
    assert why in answer.content[0].text


def test_a_record_whose_time_has_passed_is_not_there(tmp_path: Path) -> None:
    with open_store(tmp_path / "q.db") as store:
        Records(store).create(schema_name="note.v1", context={"text": "whistles"}, ttl_s=1, now=1)
        server = mcp_server.make_server(store)
        for given in ({}, {"q": "whistles"}):
            found = asked(server, lambda client, given=given: client.call_tool("records", given))
            assert found.structured_content == {"records": []}
        with pytest.raises(ExceptionGroup):
            asked(server, lambda client: client.read_resource("quire://records/rec-1"))


def test_a_file_that_is_no_log_is_not_quoted(db: Path, tmp_path: Path) -> None:
    """What a model may ask for is not what it may read."""
    (tmp_path / ".env").write_text("PASSWORD=tulips-at-noon\n")
    with open_store(db) as store:
        given = {"path": str(tmp_path / ".env")}
        answer = asked(mcp_server.make_server(store), lambda client: client.call_tool("audit", given))
    assert answer.is_error
    assert "holds no requests that can be read here. Give the path" in answer.content[0].text
    assert "tulips" not in answer.content[0].text


def test_without_redaction_secrets_are_shown_as_they_are(db: Path) -> None:
    from mcp import StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "quire", "mcp", "--no-redact", "--db", str(db)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    shown = asked(server, lambda client: client.call_tool("show", {"entry": "6", "thread": "kitchen"}))
    assert "sk-ant-" in shown.content[0].text


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no database"):
        invoke("mcp", "--db", tmp_path / "no.db")
    assert not (tmp_path / "no.db").exists()
