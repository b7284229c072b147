"""What users hold their own requests with: single assertions, and everything that a test sends."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from quire import Thread
from quire.request_recording import quire_requests  # noqa: F401 - a fixture
from quire.testing import RecordedRequests, assert_extends, assert_valid, emulator, record_requests
from toolbox import Later, run

# All that load the SDKs, which takes seconds, run in one process.
requests = Later("requests")
pytestmark = pytest.mark.xdist_group("sdk")
SYSTEM = "You are a patient teacher. " + "Answer in short words. " * 400
MODEL = "claude-opus-5-5"


def body(turns: int, head: str = "") -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": f"message {n}"} for n in range(2 * turns - 1)]
    system = [{"type": "text", "text": head + SYSTEM, "cache_control": {"type": "ephemeral"}}]
    return {"model": MODEL, "max_tokens": 99, "system": system, "messages": messages}


def test_a_request_extends_the_one_before_or_the_place_is_named() -> None:
    assert_extends(body(1), body(2))
    assert_extends(body(1), {**body(2), "system": SYSTEM})  # marks and their blocks are no part of what is compared
    with pytest.raises(AssertionError, match=r"system, 0 characters in: 'You are a patient t.* became 'Now. You"):
        assert_extends(body(1), body(2, "Now. "))
    with pytest.raises(AssertionError, match=r"messages\.1, 0 characters in: 'message 1' is gone"):
        assert_extends(body(2), body(1), "anthropic")


def test_a_valid_request_passes_and_another_says_what_would_be_refused() -> None:
    assert_valid(body(1))
    orphan = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "4"}]}
    with pytest.raises(
        AssertionError, match=r"anthropic would refuse the request:\n  .*found in `tool_result` blocks: t1"
    ):
        assert_valid({**body(1), "messages": [orphan]}, "anthropic", MODEL)


def test_a_rendered_request_is_held_to_the_rules_of_its_model(thread: Thread) -> None:
    thread.user("Hi")
    request = thread.request("bedrock:anthropic.claude-opus-5-5")
    assert_valid(request)
    request.body["messages"].append({"role": "assistant", "content": [{"text": "I"}]})
    with pytest.raises(AssertionError, match=r"bedrock would refuse the request:\n  .*does not support .* prefill"):
        assert_valid(request)


def by_library(library: Any, url: str, turns: int) -> None:
    library.post(f"{url}/v1/messages", json=body(turns), headers={"x-api-key": "k", "anthropic-version": "2023-06-01"})


def by_sdk(url: str, turns: int) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="k") as client:
        client.messages.create(**body(turns))


def by_stream(url: str, turns: int) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="k") as client, client.messages.stream(**body(turns)) as stream:
        stream.until_done()


def by_async(url: str, turns: int) -> None:
    async def main() -> None:
        import anthropic

        client = anthropic.AsyncAnthropic(base_url=url, api_key="k")
        async with client, client.messages.stream(**body(turns)) as stream:
            await stream.until_done()

    asyncio.run(main())


@pytest.mark.parametrize(
    "send", [*(partial(by_library, library) for library in (httpx, httpx2, requests)), by_sdk, by_stream, by_async]
)
def test_what_a_test_sends_is_recorded_with_what_it_used(
    send: Callable[[str, int], None],
    quire_requests: RecordedRequests,  # noqa: F811
) -> None:
    with emulator("anthropic", lambda *_: "Yes.") as server:
        for turns in (1, 2, 3):
            send(server.url, turns)
        httpx.get(f"{server.url}/v1/models")
    assert [{**each, "stream": None} for each in quire_requests.bodies] == [
        {**body(turns), "stream": None} for turns in (1, 2, 3)
    ]
    assert [call.usage is not None for call in quire_requests.calls] == [True] * 3
    assert quire_requests.audit().total.read > 2_000
    quire_requests.assert_reuse(90)


def test_other_sdks_are_recorded_too() -> None:
    with emulator("openai", lambda *_: "Yes.") as server, record_requests() as recorded:
        import openai

        asking = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k")
        asking.responses.create(model="gpt-5.4", input="Hello")
        asking.close()
    assert [(call.provider, call.model, bool(call.usage)) for call in recorded.calls] == [
        ("openai-responses", "gpt-5.4", True)
    ]
    with emulator("bedrock", lambda *_: "Yes.") as server, record_requests() as recorded:
        import boto3

        client = boto3.client("bedrock-runtime", endpoint_url=server.url, region_name="us-east-1")
        client.converse(
            modelId="anthropic.claude-opus-4-6-v1", messages=[{"role": "user", "content": [{"text": "Hello"}]}]
        )
        client.close()
    assert [(call.provider, call.model, bool(call.usage)) for call in recorded.calls] == [
        ("bedrock", "anthropic.claude-opus-4-6-v1", True)
    ]


def test_a_clock_in_the_head_fails_the_test_with_its_cause(tmp_path: Path) -> None:
    with emulator("anthropic", lambda *_: "Yes.") as server, record_requests() as recorded:
        for minute in range(3):
            sent = body(minute + 1, f"It is 10:0{minute}. ")
            headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
            httpx.post(f"{server.url}/v1/messages", json=sent, headers=headers)
    with pytest.raises(AssertionError, match=r"0 % of what could be read was, not 90 %:\n  request 2: clock, system"):
        recorded.assert_reuse(90)
    recorded.save(tmp_path / "r.jsonl")
    assert "secret" not in (tmp_path / "r.jsonl").read_text()
    assert json.loads(run("audit", tmp_path / "r.jsonl", "--json"))["causes"][0]["cause"] == "clock"
    assert httpx.Client.send.__module__.startswith("httpx")  # nothing stays patched
