"""Small valid requests for the rules' tests, to be broken in one place each."""

from typing import Any

Body = dict[str, Any]

OPUS = "claude-opus-5-5"
SHORT = {"type": "ephemeral"}
LONG = {"type": "ephemeral", "ttl": "1h"}


def say(text: str = "Hello", **extra: Any) -> Body:
    return {"type": "text", "text": text, **extra}


def use(id: str = "toolu_1", name: str = "f") -> Body:
    return {"type": "tool_use", "id": id, "name": name, "input": {}}


def result(id: str = "toolu_1", content: Any = "ok", **extra: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **extra}


def user(*content: Body) -> Body:
    return {"role": "user", "content": list(content) or "Hello"}


def model(*content: Body) -> Body:
    return {"role": "assistant", "content": list(content) or "Hi"}


def late(text: str = "Be brief.", **extra: Any) -> Body:
    return {"role": "system", "content": text, **extra}


def claude(*messages: Body, **extra: Any) -> Body:
    return {"model": OPUS, "max_tokens": 100, "messages": list(messages) or [user()], **extra}


def tool(name: str = "f", **extra: Any) -> Body:
    return {"name": name, "input_schema": {"type": "object"}, **extra}


def chat(*messages: Body, **extra: Any) -> Body:
    return {"model": "gpt-6-sol", "messages": list(messages), **extra}


def asks(*ids: str, **extra: Any) -> Body:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **extra}


def answers(id: str, content: Any = "ok") -> Body:
    return {"role": "tool", "tool_call_id": id, "content": content}


def items(*given: Body, **extra: Any) -> Body:
    return {"model": "gpt-6-sol", "input": [{"role": "user", "content": "q"}, *given], **extra}


def thought(id: str = "rs_1") -> Body:
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": "x"}


def function_call(call_id: str = "call_1", **extra: Any) -> Body:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **extra}


def output(call_id: str = "call_1", value: Any = "ok") -> Body:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def spoken(**part: Any) -> Body:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", **part}]}


def contents(*given: Body, **extra: Any) -> Body:
    return {"contents": list(given), **extra}


def ask(*parts: Body) -> Body:
    return {"role": "user", "parts": list(parts) or [{"text": "q"}]}


def reply(*parts: Body) -> Body:
    return {"role": "model", "parts": list(parts) or [{"text": "a"}]}


def fc(name: str = "f", **extra: Any) -> Body:
    return {"functionCall": {"name": name, "args": {}}, **extra}


def fr(name: str = "f") -> Body:
    return {"functionResponse": {"name": name, "response": {"output": "ok"}}}


SIGNED = {"thoughtSignature": "c2lnbmVk"}


def declares(parameters: Any) -> Body:
    return {"tools": [{"functionDeclarations": [{"name": "f", "parameters": parameters}]}]}


def converse(*messages: Body, **extra: Any) -> Body:
    return {"modelId": "anthropic.claude-opus-5-5", "messages": list(messages), **extra}


def turn(role: str, *blocks: Body) -> Body:
    return {"role": role, "content": list(blocks) or [{"text": "hello"}]}


def defined(name: str = "f", **choice: Any) -> Body:
    spec = {"name": name, "inputSchema": {"json": {"type": "object"}}}
    return {"toolConfig": {"tools": [{"toolSpec": spec}], **choice}}


def tool_use(id: str = "t1") -> Body:
    return {"toolUse": {"toolUseId": id, "name": "f", "input": {}}}


def tool_result(id: str = "t1", content: Any = None, **extra: Any) -> Body:
    return {"toolResult": {"toolUseId": id, "content": [{"text": "ok"}] if content is None else content, **extra}}


# A request with something of everything that Converse takes.
CONVERSE = converse(
    turn("user", {"text": "q"}, {"image": {"format": "png", "source": {"bytes": b"x"}}}),
    turn("assistant", {"text": "a"}, tool_use()),
    turn("user", tool_result(content=[{"text": "ok"}, {"json": {"a": 1}}], status="success")),
    system=[{"text": "S"}, {"cachePoint": {"type": "default"}}],
    inferenceConfig={"maxTokens": 10, "temperature": 0.5, "stopSequences": ["x"]},
    **defined(toolChoice={"auto": {}}),
)
