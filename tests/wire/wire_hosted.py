"""Requests of each format with a function and tools of the provider's own."""

from quire.values import JsonObject

TARGETS = {
    "anthropic": "anthropic:claude-opus-5-5",
    "openai-responses": "openai:gpt-6-sol",
    "openai-chat": "xai:grok-4",
    "gemini": "gemini:gemini-3-pro",
    "bedrock": "bedrock:amazon.nova-pro-v1:0",
}
SCHEMA: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
ASKED: JsonObject = {"role": "user", "content": "What is new?"}

# A request of each format with a function and tools of the provider's own, and what these are.
OWN: dict[str, list[JsonObject]] = {
    "anthropic": [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
    ],
    "openai-responses": [
        {"type": "web_search", "search_context_size": "low"},
        {"type": "mcp", "server_label": "a", "server_url": "https://a.test", "require_approval": "never"},
        {"type": "mcp", "server_label": "b", "server_url": "https://b.test", "require_approval": "never"},
    ],
    "openai-chat": [{"type": "live_search", "sources": [{"type": "web"}]}],
    "gemini": [{"googleSearch": {}}, {"codeExecution": {}}],
    "bedrock": [{"systemTool": {"name": "nova_grounding"}}],
}
FUNCTION: dict[str, JsonObject] = {
    "anthropic": {"name": "read", "description": "Read it", "input_schema": SCHEMA},
    "openai-responses": {
        "type": "function", "name": "read", "description": "Read it", "parameters": SCHEMA, "strict": False
    },
    "openai-chat": {
        "type": "function", "function": {"name": "read", "description": "Read it", "parameters": SCHEMA}
    },
    "gemini": {
        "name": "read",
        "description": "Read it",
        "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}},
    },
    "bedrock": {"toolSpec": {"name": "read", "description": "Read it", "inputSchema": {"json": SCHEMA}}},
}  # fmt: skip


def request_of(format: str, own: list[JsonObject] | None = None) -> JsonObject:
    """A request with a function and these tools of the provider's own."""
    own, function = OWN[format] if own is None else own, FUNCTION[format]
    match format:
        case "openai-responses":
            return {"model": "gpt-6-sol", "tools": [function, *own], "input": [{"type": "message", **ASKED}]}
        case "gemini":
            asked = {"role": "user", "parts": [{"text": "What is new?"}]}
            return {"tools": [{"functionDeclarations": [function]}, *own], "contents": [asked]}
        case "bedrock":
            asked = {"role": "user", "content": [{"text": "What is new?"}]}
            return {"toolConfig": {"tools": [function, *own]}, "messages": [asked]}
        case "openai-chat":
            return {"model": "grok-4", "tools": [function, *own], "messages": [ASKED]}
    return {"model": "claude-opus-5-5", "tools": [function, *own], "messages": [ASKED]}
