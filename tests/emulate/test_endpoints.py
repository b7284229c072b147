"""What real clients ask of a provider besides answers: keys, models, ids and limits, stored responses, WebSockets."""

import gzip
import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from calling import CHAT, CLAUDE, KEYS, RESPONSES, Answered, anthropic_client, call, gemini_client, openai_client

from quire.errors import FormatError
from quire.providers.models import exists
from quire.testing import Cut, Emulator, Refuse, emulator
from quire.values import Call, JsonObject, Text, Think

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONTENTS: JsonObject = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
CONVERSE: JsonObject = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
GEMINI = "/v1beta/models/{model}:generateContent"
NOVA = "/model/{model}/converse"
EACH = [
    ("anthropic", "/v1/messages", CLAUDE),
    ("openai", "/v1/responses", RESPONSES),
    ("openai", "/v1/chat/completions", CHAT),
    ("gemini", GEMINI.format(model="gemini-3.8-flash"), CONTENTS),
    ("bedrock", NOVA.format(model="amazon.nova-lite-v1:0"), CONVERSE),
]
NO_KEY = dict.fromkeys(KEYS, "")


@pytest.mark.parametrize(("provider", "path", "body"), EACH, ids=lambda value: str(value)[:22])
def test_only_a_strict_server_refuses_a_request_without_a_key(provider: str, path: str, body: JsonObject) -> None:
    with emulator(provider) as server:
        refused = call(server, path, body, headers=NO_KEY)
        assert refused.status == (401 if provider in ("anthropic", "openai") else 403)
        assert server.requests[0].error in refused.data.decode()
        assert call(server, path, body).status == 200
    with emulator(provider, lenient=True) as server:
        assert call(server, path, body, headers=NO_KEY).status == 200


def test_a_missing_version_is_refused_and_a_local_engine_asks_for_nothing() -> None:
    with emulator("anthropic") as server:
        answer = call(server, "/v1/messages", CLAUDE, headers={"anthropic-version": ""})
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert "anthropic-version" in answer.json["error"]["message"]
    with emulator("vllm") as server:
        assert call(server, "/v1/chat/completions", {**CHAT, "model": "mine"}, headers=NO_KEY).status == 200


# As the providers said it in recordings of theirs.
UNKNOWN = [
    ("anthropic", "/v1/messages", {**CLAUDE, "model": "claude-sonet-4-5"}, 404, "model: claude-sonet-4-5"),
    ("openai", "/v1/responses", {**RESPONSES, "model": "gpt-5.2-proo"}, 400, "The requested model 'gpt-5.2-proo' does"),
    ("openai", "/v1/chat/completions", {**CHAT, "model": "gpt-5.2-proo"}, 404, "The model `gpt-5.2-proo` does not exist"),
    ("gemini", GEMINI.format(model="gemini-3.6-flahs"), CONTENTS, 404, "models/gemini-3.6-flahs is not found"),
    ("bedrock", NOVA.format(model="us.does-not-exist-model-v1:0"), CONVERSE, 400, "model identifier is invalid"),
]  # fmt: skip


def test_a_server_leaves_the_programs_logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("uvicorn")
    monkeypatch.setattr(logger, "handlers", [])
    with emulator("anthropic"):
        assert logger.handlers == []


@pytest.mark.parametrize(("provider", "path", "body", "status", "message"), UNKNOWN, ids=lambda value: str(value)[:22])
def test_an_unknown_model_is_refused_unless_the_server_is_lenient(
    provider: str, path: str, body: JsonObject, status: int, message: str
) -> None:
    with emulator(provider) as server:
        answer = call(server, path, body)
    assert answer.status == status
    assert message in answer.data.decode()
    if provider == "openai":
        assert answer.json["error"]["code"] == "model_not_found"
    with emulator(provider, lenient=True) as server:
        assert call(server, path, body).status == 200


HOSTS = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "generativelanguage.googleapis.com": "gemini",
    "bedrock-runtime.us-east-1.amazonaws.com": "bedrock",
}
RECORDINGS = Path(__file__).parents[3] / "shared/data/recordings"


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings of the providers are not here")
@pytest.mark.parametrize("wire", ["anthropic", "openai-responses", "openai-chat", "gemini", "bedrock"])
def test_a_model_is_known_exactly_where_its_provider_knew_it(wire: str) -> None:
    with gzip.open(RECORDINGS / f"{wire}.jsonl.gz", "rt") as lines:
        recorded = [json.loads(line) for line in lines]
    for one in recorded:
        provider, said = HOSTS.get(one["host"]), json.dumps(one.get("reply", ""))
        unknown = any(words in said for words in ("not_found", "NOT_FOUND", "model identifier is invalid"))
        if provider and (one["status"] == 200 or unknown):
            assert exists(provider, one["model"]) == (one["status"] == 200), one["model"]


def test_a_model_that_is_not_in_the_table_but_exists_is_answered() -> None:
    with emulator("anthropic") as server:
        for name in ("claude-3-opus-latest", "claude-sonnet-4-0", "claude-3-7-sonnet-20250219"):
            assert call(server, "/v1/messages", {**CLAUDE, "model": name}).status == 200
    with emulator("gemini") as server:
        for name in ("gemini-2.0-flash", "gemini-1.5-flash", "gemini-2.5-flash-image"):
            assert call(server, GEMINI.format(model=name), CONTENTS).status == 200


def test_each_answer_has_an_id_of_its_own_and_says_what_is_left_of_the_limits() -> None:
    with emulator("anthropic", replies=["one", Refuse(529)]) as server:
        first, second = call(server, "/v1/messages", CLAUDE), call(server, "/v1/messages", CLAUDE)
    assert first.headers["request-id"] != second.headers["request-id"] == second.json["request_id"]
    for name in ("requests", "tokens"):
        left = int(first.headers[f"anthropic-ratelimit-{name}-remaining"])
        assert 0 < left < int(first.headers[f"anthropic-ratelimit-{name}-limit"])
    with emulator("openai", replies=["one", Refuse(429)]) as server:
        first, second = call(server, "/v1/responses", RESPONSES), call(server, "/v1/responses", RESPONSES)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < int(first.headers["x-ratelimit-limit-tokens"])
    assert second.json["error"]["code"] == "rate_limit_exceeded"


def test_openai_names_the_parameter_that_is_wrong() -> None:
    with emulator("openai") as server:
        wrong = call(server, "/v1/responses", {**RESPONSES, "input": [{"role": "nobody", "content": "x"}]})
    assert wrong.status == 400
    assert wrong.json["error"]["param"].startswith("input[0]")


# The official clients.


@pytest.fixture
def server() -> Iterator[Emulator]:
    with emulator("openai") as opened:
        yield opened


@pytest.fixture
def client(server: Emulator) -> Iterator[Any]:
    with closing(openai_client(server.url)) as opened:
        yield opened


def test_models_are_listed_and_shown_one_by_one(client: Any) -> None:
    listed = [one.id for one in client.models.list()]
    assert "gpt-5.6" in listed
    assert client.models.retrieve("gpt-5.6").owned_by == "openai"
    with pytest.raises(Exception, match="does not exist") as caught:
        client.models.retrieve("gpt-0")
    assert getattr(caught.value, "status_code", 0) == 404
    with emulator("anthropic") as server, closing(anthropic_client(server.url)) as claude:
        assert "claude-opus-5-5" in [one.id for one in claude.models.list()]
        assert claude.models.retrieve("claude-opus-5-5").max_input_tokens == 1_000_000
    with emulator("gemini") as server, closing(gemini_client(server.url)) as gemini:
        assert "models/gemini-3.8-flash" in [one.name for one in gemini.models.list()]
        assert gemini.models.get(model="gemini-3.8-flash").output_token_limit > 0


def test_a_response_is_carried_on_read_and_deleted_by_its_id(server: Emulator, client: Any) -> None:
    server.next([Think("hm"), Call("", "look", {"id": 7})])
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    first = client.responses.create(model="gpt-5.6", input="Look up 7.", tools=[tool])
    result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "seven"}
    server.next("It is seven.")
    second = client.responses.create(model="gpt-5.6", input=[result], tools=[tool], previous_response_id=first.id)
    assert second.output_text == "It is seven."
    assert second.previous_response_id == first.id
    # The server counts what it remembers, too.
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == "It is seven."
    client.responses.delete(second.id)
    for missing in (second.id, "resp_nothing"):
        with pytest.raises(Exception, match="not found") as caught:
            client.responses.retrieve(missing)
        assert getattr(caught.value, "status_code", 0) == 404
        with pytest.raises(Exception, match="not found") as caught:
            client.responses.create(model="gpt-5.6", input="go on", previous_response_id=missing)
        assert getattr(caught.value, "code", "") == "previous_response_not_found"


def test_what_is_not_stored_cannot_be_carried_on_over_http() -> None:
    with emulator("openai") as server:
        first = call(server, "/v1/responses", {**RESPONSES, "store": False}).json
        again = call(server, "/v1/responses", {**RESPONSES, "previous_response_id": first["id"]})
        assert (again.status, again.json["error"]["param"]) == (400, "previous_response_id")
        assert call(server, f"/v1/responses/{first['id']}", method="GET").status == 404
        assert call(server, "/v1/responses/compact", {**RESPONSES, "previous_response_id": "resp_x"}).status == 400
    with emulator("openai", lenient=True) as server:
        assert call(server, "/v1/responses", {**RESPONSES, "previous_response_id": "resp_x"}).status == 200


def test_the_script_sees_the_whole_conversation_of_a_response_that_is_carried_on() -> None:
    seen: list[JsonObject] = []

    def reply(body: JsonObject) -> str:
        seen.append(body)
        return f"reply {len(seen)}"

    with emulator("openai", replies=reply) as server:
        first = call(server, "/v1/responses", RESPONSES).json
        call(server, "/v1/responses", {**RESPONSES, "input": "more", "previous_response_id": first["id"]})
        assert server.requests[1].body["input"] == "more"
    assert [item.get("role") for item in seen[1]["input"]] == ["user", "assistant", "user"]


CUSTOM: JsonObject = {"type": "custom", "name": "exec", "description": "runs code"}
SPACE: JsonObject = {"type": "namespace", "name": "functions", "description": "all", "tools": [CUSTOM]}
LATE: JsonObject = {"type": "additional_tools", "role": "developer", "tools": [SPACE]}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("body", "namespace"),
    [({"tools": [CUSTOM], "input": "go"}, None), ({"input": [LATE, {"role": "user", "content": "go"}]}, "functions")],
)
def test_a_tool_that_takes_free_text_is_called_by_a_custom_call(
    server: Emulator, client: Any, body: JsonObject, namespace: str | None, streamed: bool
) -> None:
    server.next([Call("", "exec", "print(1)\n" * 5)])
    if streamed:
        with client.responses.create(model="gpt-5.6", stream=True, **body) as events:
            listed = list(events)
        kinds = [event.type for event in listed]
        said = "".join(event.delta for event in listed if event.type.endswith("custom_tool_call_input.delta"))
        assert kinds.count("response.custom_tool_call_input.done") == 1
        assert said == "print(1)\n" * 5
        response = listed[-1].response
    else:
        response = client.responses.create(model="gpt-5.6", **body)
    [item] = response.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "exec", "print(1)\n" * 5)
    assert item.namespace == namespace
    output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": [{"type": "input_text", "text": "1"}]}  # fmt: skip
    second = client.responses.create(model="gpt-5.6", input=[output], previous_response_id=response.id)
    assert second.output_text


def test_a_conversation_is_compacted_to_one_item(client: Any) -> None:
    spoken = (("user", "one"), ("assistant", "two"), ("user", "three"))
    talk = [{"role": role, "content": text} for role, text in spoken]
    compacted = client.responses.compact(model="gpt-5.6", input=talk)
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    trigger = {"type": "compaction_trigger"}
    [item] = client.responses.create(model="gpt-5.6", input=[*talk, trigger]).output
    assert item.type == "compaction"
    assert item.encrypted_content != compacted.output[-1].encrypted_content
    going_on = [item.to_dict(), {"role": "user", "content": "four"}]
    # Neither of the two took a reply from the script.
    assert client.responses.create(model="gpt-5.6", input=going_on).output_text.startswith("This is reply 1 ")


# WebSocket: the official client's own connection.


def created(connection: Any, **body: Any) -> list[Any]:
    """The events of one response."""
    connection.send({"type": "response.create", "model": "gpt-5.6", **body})
    events = []
    for event in connection:
        events.append(event)
        if event.type in ("response.completed", "error"):
            return events
    raise AssertionError("the connection ended")


def test_responses_come_over_a_websocket_and_the_connection_remembers_them(server: Emulator, client: Any) -> None:
    pytest.importorskip("websockets")
    user = {"type": "message", "role": "user", "content": "hi"}
    with client.responses.connect() as connection:
        warmed = created(connection, input=[user], store=False, generate=False)
        assert warmed[-1].response.output == []
        first = created(connection, input=[], store=False, previous_response_id=warmed[-1].response.id)
        assert first[0].type == "response.created"
        said = "".join(event.delta for event in first if event.type == "response.output_text.delta")
        assert said == first[-1].response.output_text == "This is reply 1 of the emulator."
        second = created(connection, input=[user], store=False, previous_response_id=first[-1].response.id)
        assert second[-1].response.usage.input_tokens > first[-1].response.usage.input_tokens
        assert created(connection, input=[user], previous_response_id="resp_nothing")[-1].type == "error"
        # One refusal does not end the connection.
        assert created(connection, input=[user])[-1].type == "response.completed"
    with client.responses.connect() as connection:
        assert created(connection, input=[user], previous_response_id=first[-1].response.id)[-1].type == "error"
    assert [one.status for one in server.requests] == [200, 200, 200, 400, 200, 400]
    assert server.requests[3].error == "Previous response with id 'resp_nothing' not found."


def test_frames_that_are_wrong_and_connections_without_a_key_are_refused() -> None:
    sync = pytest.importorskip("websockets.sync.client")
    exceptions = pytest.importorskip("websockets.exceptions")
    with emulator("openai", replies=[Cut("a long answer " * 30, 400)]) as server:
        url = server.url.replace("http", "ws") + "/v1/responses"
        with pytest.raises(exceptions.InvalidStatus) as caught:
            sync.connect(url)
        assert caught.value.response.status_code == 401
        with sync.connect(url, additional_headers={"authorization": "Bearer key"}) as connection:
            for frame in ("{oops", "[]", '{"type": "response.cancel"}'):
                connection.send(frame)
                told = json.loads(connection.recv())
                assert (told["type"], told["status"]) == ("error", 400)
            connection.send(json.dumps({"type": "response.create", "model": "gpt-5.6", "input": "hi"}))
            with pytest.raises(exceptions.ConnectionClosed):
                [connection.recv(timeout=600) for _ in range(100)]


# Thinking, sealed contents and thoughts come when they are asked for.

THOUGHT = [Think("Let me see what there is to be seen."), Text("Here.")]


def kinds(answer: Answered) -> list[str]:
    reply = answer.json
    return [part["type"] for part in reply.get("content", reply.get("output", ()))]


def test_claude_thinks_when_it_is_asked_to_or_always() -> None:
    old = {**CLAUDE, "model": "claude-sonnet-4-5", "max_tokens": 2000}
    asked = {**old, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with emulator("anthropic", replies=[THOUGHT] * 3) as server:
        answers = [call(server, "/v1/messages", body) for body in (old, asked, CLAUDE)]
    assert [kinds(answer) for answer in answers] == [["text"], ["thinking", "text"], ["thinking", "text"]]


def test_openai_shows_reasoning_as_far_as_it_is_asked_for() -> None:
    bodies = [
        {**RESPONSES, "model": "gpt-4o"},
        {**RESPONSES, "reasoning": {"effort": "none"}},
        RESPONSES,
        {**RESPONSES, "include": ["reasoning.encrypted_content"]},
        {**RESPONSES, "reasoning": {"summary": "auto"}},
    ]
    with emulator("openai", replies=[THOUGHT] * 5) as server:
        replies = [call(server, "/v1/responses", body).json["output"] for body in bodies]
    assert [len(output) for output in replies] == [1, 1, 2, 2, 2]
    shown = [(bool(item[0]["summary"]), "encrypted_content" in item[0]) for item in replies[2:]]
    assert shown == [(False, False), (False, True), (True, False)]


def test_gemini_shows_thoughts_when_asked_and_each_in_one_piece() -> None:
    path = GEMINI.format(model="gemini-3.8-flash").replace("generate", "streamGenerate") + "?alt=sse"
    asked = {**CONTENTS, "generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
    with emulator("gemini", replies=[THOUGHT, THOUGHT]) as server:
        without, with_thoughts = (list(call(server, path, body).events()) for body in (CONTENTS, asked))
    thoughts = [
        [part["text"] for event in events for part in event["candidates"][0]["content"]["parts"] if part.get("thought")]
        for events in (without, with_thoughts)
    ]  # fmt: skip
    assert thoughts == [[], ["Let me see what there is to be seen."]]
    assert without[-1]["usageMetadata"]["thoughtsTokenCount"] > 0


# A server that is started again.


def test_a_restarted_server_accepts_what_it_signed_before(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    with emulator("anthropic", replies=[THOUGHT], state=state) as server:
        reply = call(server, "/v1/messages", CLAUDE).json
    said = [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "more"}]
    going_on = {**CLAUDE, "messages": [*CLAUDE["messages"], *said]}
    with emulator("anthropic") as server:
        assert call(server, "/v1/messages", going_on).status == 400
    # As a killed server leaves it: the last line is not finished.
    state.write_bytes(state.read_bytes() + b'{"number": 2, "wi')
    with emulator("anthropic", state=state) as server:
        answer = call(server, "/v1/messages", going_on)
        assert answer.status == 200
        assert answer.json["id"] != reply["id"]
    with emulator("anthropic", state=state) as server:
        assert call(server, "/v1/messages", going_on).status == 200
    forged = {**going_on, "system": "another"}
    with emulator("anthropic", state=state) as server:
        assert call(server, "/v1/messages", forged).status == 400


def test_a_restarted_server_has_its_responses_and_a_foreign_file_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    with emulator("openai", state=state) as server:
        first = call(server, "/v1/responses", RESPONSES).json
    with emulator("openai", state=state) as server:
        assert call(server, f"/v1/responses/{first['id']}", method="GET").json == first
        assert call(server, "/v1/responses", {**RESPONSES, "previous_response_id": first["id"]}).status == 200
    state.write_text("hello\n")
    with pytest.raises(FormatError, match="no state of an emulator"):
        Emulator("openai", state=state)
