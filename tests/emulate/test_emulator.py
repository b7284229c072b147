"""The strict provider over plain HTTP: rules, cache counts, signatures, diagnostics, faults, explicit caches."""

import http.client
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from calling import call, request_of

from quire.errors import CallError
from quire.providers import parse_reply, stream
from quire.providers.simulate import Simulator
from quire.providers.usage import usage
from quire.testing import Cut, Emulator, Refuse, Slow, emulator
from quire.values import Call, JsonObject, Text, Think
from toolbox import Clock

LONG = "word " * 3000
MARK = {"cache_control": {"type": "ephemeral"}}


def claude(*messages: JsonObject, **more: Any) -> JsonObject:
    system = [{"type": "text", "text": LONG, **MARK}]
    listed = list(messages) or [{"role": "user", "content": "hi"}]
    return {"model": "claude-opus-5-5", "max_tokens": 50, "system": system, "messages": listed, **more}


def responses(*items: JsonObject, **more: Any) -> JsonObject:
    head = {"role": "developer", "content": LONG}
    listed = list(items) or [{"role": "user", "content": "hi"}]
    return {"model": "gpt-5.6", "input": [head, *listed], "prompt_cache_key": "k", **more}


def chat(**more: Any) -> JsonObject:
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "hi"}]
    return {"model": "gpt-4o", "messages": messages, **more}


def contents(**more: Any) -> JsonObject:
    return {"contents": [{"role": "user", "parts": [{"text": LONG * 2}]}], **more}


def converse(**more: Any) -> JsonObject:
    system = [{"text": LONG}, {"cachePoint": {"type": "default"}}]
    return {"system": system, "messages": [{"role": "user", "content": [{"text": "hi"}]}], **more}


GEMINI = "/v1beta/models/gemini-2.5-flash:generateContent"
NOVA = "/model/anthropic.claude-opus-5-5-v1:0/converse"
# provider, path, body, the target its cache is simulated for
EACH = [
    ("anthropic", "/v1/messages", claude(), "anthropic:claude-opus-5-5"),
    ("openai", "/v1/responses", responses(), "openai-responses:gpt-5.6"),
    ("openai", "/v1/chat/completions", chat(), "openai-chat:gpt-4o"),
    ("deepseek", "/chat/completions", chat(model="deepseek-v4-flash"), "deepseek:deepseek-v4-flash"),
    ("vllm", "/v1/chat/completions", chat(model="qwen3"), "vllm:qwen3"),
    ("gemini", GEMINI, contents(), "gemini:gemini-2.5-flash"),
    ("bedrock", NOVA, converse(), "bedrock:anthropic.claude-opus-5-5-v1:0"),
]


@pytest.mark.proves("anthropic openai deepseek vllm gemini bedrock", "emulator")
@pytest.mark.parametrize(("provider", "path", "body", "target"), EACH, ids=lambda value: str(value)[:22])
def test_reported_usage_is_what_the_simulator_predicts(provider: str, path: str, body: JsonObject, target: str) -> None:
    clock = Clock()
    with emulator(provider, clock=clock) as server:
        reported = []
        for pause in (0, 60, 299, 301, 700):
            clock.wait(pause)
            answer = call(server, path, body)
            assert answer.status == 200
            reported.append(usage(provider, answer.json))
    cache = Simulator(target)
    predicted = []
    for received in server.requests:
        predicted.append(cache.step(received.at_ms, body))
        cache.answered(f"This is reply {len(predicted)} of the emulator.")
    assert [(one.input_total, one.cache_read) for one in reported] == [(one.total, one.read) for one in predicted]
    assert [one.cache_write_5m for one in reported] == [one.write_5m for one in predicted]
    assert reported[0].cache_read == 0 < reported[1].cache_read


BLANK = {"role": "user", "content": [{"type": "text", "text": ""}]}
ORPHAN = {"role": "tool", "tool_call_id": "c", "content": "x"}
REFUSED = [
    ("anthropic", "/v1/messages", claude(BLANK), "text content blocks must be non-empty"),
    ("openai", "/v1/chat/completions", {**chat(), "messages": [ORPHAN]}, "preceeding"),
    ("openai", "/v1/responses", responses({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
     "No tool output found for function call c"),
    ("gemini", GEMINI, {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}]},
     "function response"),
    ("bedrock", NOVA, converse(messages=[{"role": "user", "content": [{"text": " "}]}]), "is blank"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "path", "body", "message"), REFUSED, ids=lambda value: str(value)[:22])
def test_a_request_that_breaks_a_rule_is_refused_in_the_provider_s_own_shape(
    provider: str, path: str, body: JsonObject, message: str
) -> None:
    with emulator(provider, replies=[]) as server:
        answer = call(server, path, body)
        assert answer.status == server.requests[0].status == 400
        assert message in (answer.json if provider == "bedrock" else answer.json["error"])["message"]
        # Nothing of a refused request was cached, and the script was not asked.
        assert server.requests[0].predicted is None
    if provider == "bedrock":
        assert answer.headers["x-amzn-errortype"] == "ValidationException"


def test_what_is_no_json_and_what_is_nowhere_is_refused_too() -> None:
    with emulator("anthropic") as server:
        broken = call(server, "/v1/messages", b"{oops")
        nowhere = call(server, "/v1/nothing", {})
        other = call(server, "/v1/chat/completions", chat())
    assert (broken.status, broken.json["error"]["type"]) == (400, "invalid_request_error")
    assert (nowhere.status, nowhere.json["error"]["type"]) == (404, "not_found_error")
    assert other.status == 404
    assert [one.status for one in server.requests] == [400, 404, 404]


def blocks(reply: Any) -> list[JsonObject]:
    return [{key: value for key, value in block.items() if value is not None} for block in reply["content"]]


TOOLS = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "ok"}]}
THOUGHT = [Think("let me see"), Text("I look."), Call("toolu_a", "f", {"x": 1})]


def going_on(server: Emulator, change: JsonObject, thought: JsonObject) -> JsonObject:
    """The second request of a turn that began with thinking, with changes of itself and of the thought."""
    body = claude(tools=TOOLS)
    answer = call(server, "/v1/messages", body)
    assert answer.status == 200
    spoken = blocks(answer.json)
    spoken[0] |= thought
    return {**body, "messages": [*body["messages"], {"role": "assistant", "content": spoken}, RESULT], **change}


BARE = {"system": [{"type": "text", "text": LONG}], "max_tokens": 7, "tool_choice": {"type": "none"}}
ANOTHER = {"system": "another"}


@pytest.mark.proves("anthropic", "thinking kept")
@pytest.mark.parametrize(
    ("change", "thought", "refusal", "how"),
    [
        ({}, {}, "", {}),
        # A cache mark that moved is no change of the prefix.
        (BARE, {}, "", {}),
        # Row 11: the system prompt changed since the thought was signed; not every account is checked for it.
        (ANOTHER, {}, "bound to a different conversation", {}),
        (ANOTHER, {}, "", {"enforce_binding": False}),
        # Rows 10 and 12.
        ({}, {"thinking": "something else"}, "cannot be modified", {}),
        ({}, {"signature": "Eqforged"}, "Invalid `signature`", {}),
    ],
)
def test_thinking_goes_back_as_it_came_and_behind_what_it_came_behind(
    change: JsonObject, thought: JsonObject, refusal: str, how: dict[str, Any]
) -> None:
    with emulator("anthropic", replies=[THOUGHT, "fine"], **how) as server:
        answer = call(server, "/v1/messages", going_on(server, change, thought))
    assert answer.status == (400 if refusal else 200)
    assert refusal in answer.json.get("error", {"message": ""})["message"]


def test_thinking_of_another_prefix_is_dropped_where_a_request_says_so() -> None:
    beta = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
    drop = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    with emulator("anthropic", replies=[THOUGHT, "fine"]) as server:
        changed = going_on(server, {**ANOTHER, "thinking": drop}, {})
        answer = call(server, "/v1/messages", changed, headers=beta)
        kept = server.requests[1].predicted
    assert answer.status == 200
    assert answer.json["input_transformations"] == [
        {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
    ]
    # A dropped block is no part of what the model was shown.
    del changed["messages"][1]["content"][0]
    assert kept.total == Simulator("anthropic:claude-opus-5-5").count(changed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"model": "claude-sonnet-5-5"}, "model_changed"),
        ({"tools": TOOLS}, "tools_changed"),
        ({"system": "another"}, "system_changed"),
        ({"messages": [{"role": "user", "content": "changed"}]}, "messages_changed"),
        ({"tool_choice": {"type": "none"}}, "unavailable"),
    ],
)
def test_diagnostics_say_what_changed_since_the_message_before(change: JsonObject, reason: str | None) -> None:
    with emulator("anthropic") as server:
        first = call(server, "/v1/messages", claude()).json
        said = [{"role": role, "content": "hi"} for role in ("user", "assistant", "user")]
        asked = {**claude(*said), "diagnostics": {"previous_message_id": first["id"]}, **change}
        told = call(server, "/v1/messages", asked).json["diagnostics"]
        unknown = call(server, "/v1/messages", {**claude(), "diagnostics": {"previous_message_id": "msg_x"}})
    assert (told and told["cache_miss_reason"]["type"]) == reason
    assert unknown.json["diagnostics"]["cache_miss_reason"]["type"] == "previous_message_not_found"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, {"type": "cache_hit"}),
        ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "tools_changed"),
        ({"input": "something else"}, "input_changed"),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
    ],
)
def test_openai_compares_with_the_response_it_is_asked_about(change: JsonObject, told: Any) -> None:
    with emulator("openai") as server:
        first = call(server, "/v1/responses", responses()).json
        options = {"prompt_cache_options": {"comparison_response_id": first["id"]}}
        second = call(server, "/v1/responses", {**responses(), **options, **change}).json
    said = second["prompt_cache_diagnostics"]
    assert said == told if isinstance(told, dict) else (said["type"], said["reason"]) == ("cache_miss", told)


def test_a_request_for_no_tokens_warms_the_cache_and_uses_no_reply() -> None:
    with emulator("anthropic", replies=["only one"]) as server:
        warmed = call(server, "/v1/messages", claude(max_tokens=0)).json
        answered = call(server, "/v1/messages", claude()).json
    assert (warmed["content"], warmed["stop_reason"]) == ([], "max_tokens")
    assert warmed["usage"]["cache_creation_input_tokens"] == answered["usage"]["cache_read_input_tokens"] > 0


def test_faults_come_when_they_are_asked_for() -> None:
    script = [Refuse(429, retry_after_s=2), {"status": 500}, "fine"]
    with emulator("anthropic", replies=script) as server:
        server.next(Refuse(529, "busy"))
        answers = [call(server, "/v1/messages", claude()) for _ in range(5)]
    assert [one.status for one in answers] == [529, 429, 500, 200, 400]
    assert answers[0].json["error"] == {"type": "overloaded_error", "message": "busy"}
    assert answers[1].headers["retry-after"] == "2"
    assert "no reply left: 3 were given" in answers[4].json["error"]["message"]


def test_a_function_that_raises_or_gives_no_reply_is_told_to_whoever_asked() -> None:
    def replies(body: JsonObject) -> str:
        return body["questions"][0] if body["max_tokens"] == 1 else 7  # type: ignore[return-value]

    with emulator("anthropic", replies) as server:
        answers = [call(server, "/v1/messages", claude(max_tokens=most)) for most in (1, 2)]
    assert [one.status for one in answers] == [400, 400]
    told = ["KeyError: 'questions'", "CallError: a reply cannot be int"]
    assert [one.json["error"]["message"] for one in answers] == [f"the script raised {error}" for error in told]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_breaks_off_where_it_is_cut(streamed: bool) -> None:
    with emulator("anthropic", replies=[Cut("a long reply " * 20, 300)]) as server:
        with pytest.raises(http.client.IncompleteRead) as caught:
            call(server, "/v1/messages", claude(stream=streamed))
        assert len(caught.value.partial) == 300
        assert server.requests[0].status == 200


def test_a_client_that_leaves_amid_a_stream_is_no_warning_for_each_piece(caplog: pytest.LogCaptureFixture) -> None:
    with emulator("anthropic", replies=["a long reply " * 40_000, "Yes."]) as server:
        reply = urllib.request.urlopen(request_of(server, "/v1/messages", claude(stream=True)), timeout=60)
        reply.read(200)
        reply.close()
        assert call(server, "/v1/messages", claude()).status == 200
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_what_a_slow_reply_stores_can_be_read_once_it_has_begun() -> None:
    clock = Clock()
    with emulator("anthropic", replies=[Slow("slow", 0.02), "a", "b"], clock=clock) as server:
        usages = []
        for wait_ms in (0, 10, 10):
            clock.now_ms += wait_ms
            usages.append(call(server, "/v1/messages", claude()).json["usage"]["cache_read_input_tokens"] > 0)
    assert usages == [False, False, True]


@pytest.mark.parametrize("chunk", [1, 7, None])
@pytest.mark.parametrize(
    ("target", "path", "body"),
    [("anthropic:claude-opus-5-5", "/v1/messages", claude(tools=TOOLS)), ("openai:gpt-5.6", "/v1/responses", responses()),
     ("openai-chat:gpt-4o", "/v1/chat/completions", chat(stream_options={"include_usage": True}))],
    ids=["anthropic", "responses", "chat"],
)  # fmt: skip
def test_a_stream_says_what_the_whole_reply_says(target: str, path: str, body: JsonObject, chunk: int | None) -> None:
    script = [Think("hm, höchst 中"), Text("I say it in pieces."), Call("c1", "f", {"a": [1, "é"]})]
    with emulator(target.partition(":")[0], replies=[script, script], chunk_bytes=chunk, piece=3) as server:
        whole = parse_reply(target, call(server, path, body).json)
        events = list(call(server, path, {**body, "stream": True}).events())
    reader = stream(target)
    for event in events:
        reader.feed(event)
    streamed = reader.reply()
    said, again = ([(one.kind, one.text, one.body.get("args")) for one in reply.entries] for reply in (whole, streamed))
    assert said == again
    assert said[-2:] == [("respond", "I say it in pieces.", None), ("call", "", {"a": [1, "é"]})]
    assert streamed.usage.output == whole.usage.output
    if path == "/v1/messages":
        assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    elif path == "/v1/responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.proves("gemini", "emulator")
def test_explicit_caches_are_made_used_prolonged_and_end() -> None:
    clock = Clock()
    ask = {"contents": [{"role": "user", "parts": [{"text": "q"}]}]}
    with emulator("gemini", clock=clock) as server:
        made = call(server, "/v1beta/cachedContents", {"model": "models/gemini-2.5-flash", **contents(), "ttl": "60s"})
        name = made.json["name"]
        used = call(server, GEMINI, {**ask, "cachedContent": name}).json["usageMetadata"]
        clock.wait(50)
        call(server, f"/v1beta/{name}", {"ttl": "60s"}, "PATCH")
        clock.wait(50)
        still = call(server, GEMINI, {**ask, "cachedContent": name})
        clock.wait(50)
        gone = call(server, GEMINI, {**ask, "cachedContent": name})
        small = call(server, "/v1beta/cachedContents", {"model": "models/gemini-2.5-flash", **ask, "ttl": "60s"})
        both = call(server, GEMINI, {**ask, "cachedContent": name, "systemInstruction": {"parts": [{"text": "s"}]}})
    tokens = made.json["usageMetadata"]["totalTokenCount"]
    assert used["cachedContentTokenCount"] == tokens == used["promptTokenCount"] - 5
    assert (still.status, gone.status) == (200, 403)
    assert small.status == 400
    assert "too small" in small.json["error"]["message"]
    assert both.status in (400, 403)


@pytest.mark.parametrize(
    ("provider", "path", "body", "field"),
    [
        ("anthropic", "/v1/messages/count_tokens", claude(), "input_tokens"),
        ("openai", "/v1/responses/input_tokens", responses(), "input_tokens"),
        ("gemini", GEMINI.replace("generateContent", "countTokens"), contents(), "totalTokens"),
        ("bedrock", NOVA.replace("converse", "count-tokens"), {"input": {"converse": converse()}}, "inputTokens"),
    ],
)
def test_counting_endpoints_count_without_caching(provider: str, path: str, body: JsonObject, field: str) -> None:
    with emulator(provider) as server:
        first, second = (call(server, path, body).json[field] for _ in range(2))
        assert first == second > 2000
        assert all(received.predicted is None for received in server.requests)


def test_a_provider_named_by_one_of_its_formats_counts_in_that_format() -> None:
    with emulator("openai-chat") as server:
        tokens = call(server, "/v1/chat/completions", chat()).json["usage"]["prompt_tokens"]
        other = call(server, "/v1/responses", responses()).json["usage"]["input_tokens"]
    assert tokens == Simulator("openai-chat:gpt-4o").count(chat())
    assert other == Simulator("openai:gpt-5.6").count(responses())
    with emulator("llamacpp") as server:
        assert call(server, "/v1/messages", claude()).status == 200
        assert call(server, "/v1/chat/completions", chat()).status == 200
    with emulator("deepseek") as server:
        assert call(server, "/v1/responses", responses()).status == 404


def test_everything_received_is_kept_for_the_test_to_look_at() -> None:
    with emulator("anthropic", replies=lambda body: f"you said {body['messages'][-1]['content']}") as server:
        call(server, "/v1/messages?beta=true", claude(), headers={"X-Mine": "yes"})
    [received] = server.requests
    assert (received.method, received.path, received.headers["x-mine"]) == ("POST", "/v1/messages?beta=true", "yes")
    assert received.body == claude()
    assert received.reply["content"][0]["text"] == "you said hi"


def test_stopping_twice_and_a_port_that_is_taken() -> None:
    with Emulator("anthropic") as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(CallError, match=f"port {port}"):
            Emulator("anthropic", port=port).start()
    server.stop()


def test_an_unknown_provider_and_a_strange_reply_are_errors_of_the_caller() -> None:
    with pytest.raises(CallError, match="unknown provider"):
        Emulator("nobody")
    with pytest.raises(CallError, match="there is no stand-in for cohere"):
        emulator("cohere")
    strange: list[Any] = [[1], 3, {"txt": "x"}, {"text": 3}, {"calls": [{"nam": "f"}]}, {"status": 429, "after": 1}]
    for reply in strange:
        with pytest.raises(CallError) as caught:
            Emulator("anthropic", replies=[reply])
        assert caught.value.hint


ODD: list[Any] = [[], 3, None, "x", {"messages": 3}, {"input": {"converse": 3}}, {"contents": [3]}, {"ttl": {}}]
PATHS = {
    "anthropic": ["/v1/messages", "/v1/messages/count_tokens"],
    "openai": ["/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions"],
    "gemini": [GEMINI, GEMINI.replace("generateContent", "countTokens"), "/v1beta/cachedContents"],
    "bedrock": [NOVA, NOVA.replace("converse", "count-tokens")],
}


@pytest.mark.parametrize("provider", PATHS)
def test_whatever_is_sent_is_refused_and_never_breaks_the_server(provider: str) -> None:
    with emulator(provider) as server:
        answers = [call(server, path, body).status for path in PATHS[provider] for body in ODD]
    assert set(answers) == {400}


def test_requests_that_come_at_once_are_all_answered_and_none_shares_a_moment() -> None:
    with emulator("anthropic") as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: call(server, "/v1/messages", claude()), range(24)))
    assert {one.status for one in answers} == {200}
    assert len({one.json["id"] for one in answers}) == len({one.at_ms for one in server.requests}) == 24


def test_a_name_is_never_given_twice() -> None:
    body = {"model": "models/gemini-2.5-pro", "contents": [{"role": "user", "parts": [{"text": "rule " * 5000}]}]}
    with Emulator("gemini") as server:
        names = []
        for _ in range(3):
            names.append(call(server, "/v1beta/cachedContents", body).json["name"])
            call(server, f"/v1beta/{names[0]}", method="DELETE")
    assert len(set(names)) == 3
