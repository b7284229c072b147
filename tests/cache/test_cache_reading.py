"""Bodies as blocks: what is compared and what is counted."""

import json
import sys

import pytest
from cache_bodies import simulator, words

from quire.providers.prefix import Unit
from quire.providers.simulate import Block, Simulator, blocks
from quire.providers.simulate.blocks import Reader, countable
from quire.tokens import IMAGE_TOKENS
from quire.values import JsonObject


def test_numbers_that_python_calls_equal_are_different_bytes() -> None:
    reader = Reader("anthropic")
    seen = set()
    for value in (1, 1.0, True):
        call = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": value}}
        [block] = reader.read({"messages": [{"role": "assistant", "content": [call]}]})
        seen.add(block.data)
    assert len(seen) == 3


ANY = "one two three"
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9999}}


@pytest.mark.parametrize(
    ("part", "text", "extra"),
    [
        ({"type": "text", "text": ANY}, ANY, 0),
        ({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}, 'f\n{"a":1}', 0),
        ({"type": "tool_result", "tool_use_id": "t", "content": ANY, "is_error": True}, ANY, 0),
        ({"type": "tool_result", "tool_use_id": "t", "content": [PICTURE, {"type": "text", "text": "x"}]}, "x", IMAGE_TOKENS),
        (PICTURE, "", IMAGE_TOKENS),
        ({"type": "thinking", "thinking": ANY, "signature": "s" * 500}, ANY, 0),
        ({"type": "thinking", "thinking": "", "signature": "s" * 500}, "", 100),
        ({"type": "redacted_thinking", "data": "s" * 500}, "", 100),
        ({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "s" * 500}, "", 100),
        ({"type": "document", "source": {"type": "text", "data": ANY}}, ANY, 0),
        ({"type": "document", "source": {"type": "base64", "data": "A" * 99}}, "", IMAGE_TOKENS),
        ({"type": "document", "title": "t", "source": {"type": "content", "content": [{"type": "text", "text": ANY}]}}, f"t\n{ANY}", 0),
        ({"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}, "f\n{}", 0),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, "f\n{}", 0),
        ({"functionCall": {"id": "1", "name": "f", "args": {"a": [1]}}, "thoughtSignature": "s"}, 'f\n{"a":[1]}', 0),
        ({"functionResponse": {"name": "f", "response": {"output": "ok"}}}, 'f\n{"output":"ok"}', 0),
        ({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}, "", IMAGE_TOKENS),
        ({"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}, "f\n{}", 0),
        ({"toolResult": {"toolUseId": "t", "content": [{"text": ANY}], "status": "success"}}, ANY, 0),
        ({"toolResult": {"toolUseId": "t", "content": [{"image": {"format": "png"}}]}}, "", IMAGE_TOKENS),
        ({"reasoningContent": {"reasoningText": {"text": ANY, "signature": "s" * 500}}}, ANY, 0),
        ({"reasoningContent": {"redactedContent": "s" * 500}}, "", 100),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_of_every_block_what_the_model_reads_is_counted(part: JsonObject, text: str, extra: int) -> None:
    assert countable(part) == (text, extra)


def test_bytes_of_an_image_are_compared_as_they_go_over_the_wire() -> None:
    raw = {"messages": [{"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x00\xff"}}}]}]}
    sent = {"messages": [{"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": "AP8="}}}]}]}
    assert blocks(raw, "bedrock") == blocks(sent, "bedrock")


def test_tools_and_output_schemas_stand_in_front_and_late_instructions_in_the_conversation() -> None:
    late = {"messages": [{"role": role, "content": role} for role in ("system", "user", "system")]}
    assert [block.section for block in blocks(late, "openai-chat")] == ["system", "messages", "messages"]
    tools = {"tools": [{"type": "function"}]}
    chat = {"messages": [{"role": "user", "content": "q"}], **tools, "response_format": {"type": "x"}}
    paths = [block.path for block in blocks(chat, "openai-chat")]
    assert paths == ["tools.0", "response_format", "messages.0.content.0"]
    responses = {"input": "q", "instructions": "i", **tools, "text": {"format": {"type": "x"}}}
    paths = [block.path for block in blocks(responses, "openai-responses")]
    assert paths == ["tools.0", "text.format", "instructions.0", "input.0.content.0"]


def test_a_thread_that_is_read_on_costs_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the hundredth request makes the blocks of its last two messages, and no others."""
    made: list[str] = []
    real = sys.modules["quire.providers.simulate.blocks"].blocks_of

    def watched(unit: Unit) -> tuple[Block, ...]:
        made.append(".".join(map(str, unit.path)))
        return real(unit)

    monkeypatch.setattr(sys.modules["quire.providers.simulate.blocks"], "blocks_of", watched)
    cache = simulator()
    thread: list[JsonObject] = []
    for turn in range(100):
        thread += [{"role": "user", "content": f"q{turn}"}]
        made.clear()
        cache.step(turn * 1000, {"messages": json.loads(json.dumps(thread)), "system": "s"})
        thread += [{"role": "assistant", "content": f"a{turn}"}]
    assert made == ["messages.197", "messages.198"]


def test_an_injected_tokenizer_counts_everything_and_is_exact() -> None:
    body = {"messages": [{"role": "user", "content": "one two three"}]}
    assert Simulator("anthropic:claude-opus-5-5", tokenize=words).step(0, body).exact
    assert not Simulator("anthropic:claude-opus-5-5").step(0, body).exact
    assert Simulator("openai-chat:gpt-4o").step(0, body).exact
    assert simulator().count(body) == 3 + 4


def test_geminis_sdk_call_counts_as_the_body_it_becomes() -> None:
    asked = {"role": "user", "parts": [{"text": "hello there"}]}
    told = {"parts": [{"text": "be brief"}]}
    count = Simulator("gemini:gemini-3.8-flash").count
    assert count({"contents": "hello there"}) == count({"contents": [asked]})
    assert count({"contents": ["hello there"], "config": {"system_instruction": "be brief"}}) == count(
        {"contents": [asked], "systemInstruction": told}
    )
