"""Random prompts: whole steps of a conversation, hostile texts, reused ids, blocks of every origin."""

from hypothesis import strategies as st

from quire.values import Call, Image, Message, Part, Prompt, Result, Text, Think, ToolSet
from toolbox import SCALARS, json_of

TARGETS = (
    "anthropic:claude-opus-5-5 anthropic:claude-sonnet-4-5 openai:gpt-6-sol openai:gpt-4o "
    "openai-chat:gpt-6-sol openai-chat:gpt-4.1-mini gemini:gemini-3.8-flash gemini:gemini-2.5-pro "
    "bedrock:us.anthropic.claude-opus-5-5-v1:0 bedrock:amazon.nova-lite-v1:0 "
    "cohere:command-a-reasoning-08-2025 deepseek:deepseek-v4-flash xai:grok-4.20 groq:openai/gpt-oss-120b "
    "mistral:mistral-large-latest openrouter:anthropic/claude-opus-5.5 vllm:Qwen/Qwen3.5-35B-A3B "
    "sglang:some-model llamacpp:smollm2 ollama:gemma3 compatible:kimi azure:gpt-6-sol llamacpp-anthropic:smollm2 "
    "xai-responses:grok-4.20"
).split()

texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", " ", "\n\n", "hello", "cache_control", "{", "é\u2028x", "\x00", "a" * 200]),
)
call_ids = st.one_of(
    st.sampled_from(["call_1", "call_1-2", "toolu_01", "", "a b/c", "x" * 80, "9abcDEF12"]),
    st.text(min_size=1, max_size=12),
)
names = st.sampled_from(["read", "get.weather", "9lives", "a" * 90, "ünïcode tool", "x-y_z"])
json_values = json_of(SCALARS | st.text(max_size=8), most=6)
arguments = st.one_of(
    st.dictionaries(st.sampled_from(["path", "cache_control", "x"]), json_values, max_size=3),
    st.just("not { json"),
    json_values,
)


def _blocks(text: str) -> list[dict[str, object]]:
    """Thinking as each provider writes it."""
    signed = {"type": "thinking", "thinking": text, "signature": "c2ln"}
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
    converse = {"reasoningContent": {"reasoningText": {"text": text, "signature": "c2ln"}}}
    written = [
        ("anthropic", "claude-opus-5-5", signed),
        ("anthropic", "claude-opus-5-5", {"type": "redacted_thinking", "data": "cmVk"}),
        ("anthropic", "claude-sonnet-5", signed),
        ("openai-responses", "gpt-6-sol", sealed),
        ("gemini", "gemini-3.8-flash", {"text": text, "thought": True}),
        ("bedrock", "us.anthropic.claude-opus-5-5-v1:0", converse),
    ]
    blocks = [{"format": format, "model": model, "block": block} for format, model, block in written]
    return [{}, *blocks, {"format": "openai-chat", "model": "deepseek-v4-flash"}]


@st.composite
def thoughts(draw: st.DrawFn) -> Think:
    text = draw(texts)
    return Think(text, draw(st.sampled_from(_blocks(text))))


images = st.sampled_from([
    Image(media_type="image/png", data="iVBORw0KGgo="), Image(url="https://example.org/a.jpg"), Image(url="s3://bucket/a.png")
])  # fmt: skip
plain_calls = st.builds(lambda i, n, a: Call(i, n, a, {}, a if isinstance(a, str) else ""), call_ids, names, arguments)


@st.composite
def steps(draw: st.DrawFn) -> list[Message]:
    """What happens between two requests: somebody speaks, or the model calls and is answered."""
    kind = draw(st.sampled_from(["user", "answer", "calls", "calls", "note", "tools", "stray"]))
    if kind == "user":
        parts: list[Part] = [Text(draw(texts)), *draw(st.lists(images, max_size=1))]
        return [Message("user", tuple(parts))]
    if kind == "answer":
        said: list[Part] = [*draw(st.lists(thoughts(), max_size=1)), Text(draw(texts))]
        return [Message("assistant", tuple(said))]
    if kind == "calls":
        calls = draw(st.lists(plain_calls, min_size=1, max_size=3))
        before: list[Part] = [*draw(st.lists(thoughts(), max_size=1)), Text(draw(texts))]
        results = [Result(call.call_id, call.name, draw(texts), draw(st.booleans())) for call in calls]
        if draw(st.integers(0, 9)) == 0:
            results = results[:-1]
        answered = [Message("tool", tuple(results))] if results else []
        return [Message("assistant", (*before, *calls)), *answered]
    if kind == "note":
        wire = draw(st.sampled_from([{}, {}, {"effort": "low"}]))
        return [Message("user", (Text("go"),)), Message("note", (Text(draw(texts), wire),))]
    if kind == "tools":
        late = {"name": draw(names), "description": "late", "parameters": {"type": "object", "properties": {}}}
        return [Message("user", (Text("more tools"),)), Message("tools", (ToolSet((late,)),))]
    return [Message("tool", (Result(draw(call_ids), "read", "orphan"),))]


schemas = st.sampled_from(
    [
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "additionalProperties": False},
    ]
)
tool = st.builds(lambda name, schema: {"name": name, "description": "does it", "parameters": schema}, names, schemas)
tools = st.lists(tool, max_size=3, unique_by=lambda tool: tool["name"])


@st.composite
def growing(draw: st.DrawFn) -> list[Prompt]:
    """Prompts of one epoch, each with more messages than the one before; a request stands where a user or tool spoke."""
    l1, l2, given_tools = draw(texts), draw(texts), tuple(draw(tools))
    epoch = draw(st.integers(1, 2))
    messages: list[Message] = []
    out: list[Prompt] = []
    for step in draw(st.lists(steps(), min_size=1, max_size=8)):
        messages += step
        seq = 0
        numbered = []
        for message in messages:
            numbered.append(Message(message.role, message.parts, tuple(range(seq + 1, seq + 1 + len(message.parts)))))
            seq += len(message.parts)
        # After an answer, or a result that nothing asked for, there is no request to make.
        if messages[-1].role != "assistant" and step[0].role != "tool":
            fold = min(2, len(messages)) if epoch > 1 else 0
            out.append(Prompt(l1, l2, given_tools, tuple(numbered), epoch=epoch, fold=fold))
    return out
