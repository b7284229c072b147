"""One rich conversation per format: everything that a message list of that format may hold."""

from typing import Any

MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}

CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": "boss"},
    {"role": "user", "content": [
        {"type": "text", "text": "What is this?", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "high"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ], "name": "ann"},
    {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"x\" : 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "not json"}},
        {"id": "c3", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}},
    ]},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "b"}]},
    {"role": "tool", "tool_call_id": "c1", "content": ""},
    {"role": "tool", "tool_call_id": "c3", "content": "total 0"},
    {"role": "system", "content": "A note in the middle."},
    {"role": "assistant", "content": [{"type": "text", "text": "A "}, {"type": "refusal", "refusal": "no"}],
     "audio": {"id": "audio_1"}},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": None, "refusal": "I cannot."},
    {"role": "user", "content": " \n"},
    {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": "{}"}},
    {"role": "function", "name": "old", "content": "1"},
    {"role": "assistant", "reasoning_content": "Hm.", "content": "Done.", "annotations": [
        {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 4}}
    ]},
    {"role": "user", "content": "Naïve \u2028 \U0001f600"},
]  # fmt: skip

ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
         "title": "T", "citations": {"enabled": True}, **MARK},
        {"type": "image", "source": PNG},
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "search_result", "source": "https://a.example", "title": "A", "content": [{"type": "text", "text": "x"}]},
        {"type": "text", "text": "What is this?", **MARK},
    ]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "cmVk"},
        {"type": "text", "text": "I look.", "citations": [{"type": "char_location", "cited_text": "x", "document_index": 0}]},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
            {"type": "web_search_result", "title": "A", "url": "https://a.example", "encrypted_content": "ZW5j"}]},
        {"type": "thinking", "thinking": "", "signature": "c2lnMg=="},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"b": 1, "a": 2}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}, **MARK},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True, "content": "boom", **MARK},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
            {"type": "text", "text": "ok", **MARK}, {"type": "image", "source": PNG}]},
        {"type": "text", "text": "And now?"},
    ]},
    {"role": "system", "content": [{"type": "text", "text": "Late."}]},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Again\r\nplease"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "wait", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]},
]  # fmt: skip

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "What?", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AA=="},
        {"type": "input_image", "detail": "low", "file_id": "file-1"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"},
    ]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "ZW5j"},
    {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "phase": "commentary",
     "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{\"x\": 1}", "status": "completed"},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "look", "arguments": "{}"},
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c3", "name": "shell", "input": "ls"},
    {"type": "function_call_output", "call_id": "c2", "output": [
        {"type": "input_text", "text": "ok"}, {"type": "input_image", "detail": "auto", "image_url": "https://a.example/b.png"}]},
    {"type": "function_call_output", "call_id": "c1", "output": ""},
    {"type": "custom_tool_call_output", "call_id": "c3", "output": "total 0"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "final_answer", "content": [
        {"type": "output_text", "text": "Done", "annotations": [{"type": "url_citation", "url": "https://a.example",
                                                                "title": "A", "start_index": 0, "end_index": 4}]},
        {"type": "refusal", "refusal": "not that"}]},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "g", "parameters": {}, "strict": True}]},
    {"role": "system", "content": "A note in the middle."},
    {"role": "user", "content": "Again"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "ZW5j"},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": " "},
]  # fmt: skip

GEMINI: list[dict[str, Any]] = [
    {"role": "user", "parts": [
        {"text": "What?"},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://a.example/b.pdf"}},
    ]},
    {"role": "model", "parts": [
        {"text": "Hm.", "thought": True},
        {"text": "I look.", "thoughtSignature": "c2ln"},
        {"functionCall": {"id": "1", "name": "look", "args": {"b": 1, "a": 2}}, "thoughtSignature": "c2lnMg=="},
        {"functionCall": {"name": "look"}},
    ]},
    {"role": "user", "parts": [
        {"functionResponse": {"id": "1", "name": "look", "response": {"output": "ok", "more": 1}}},
        {"functionResponse": {"name": "look", "response": {"error": "boom"}}},
    ]},
    {"role": "model", "parts": [
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"text": "", "thoughtSignature": "c2lnMw=="},
    ]},
    {"parts": [{"text": "Again"}]},
    {"role": "model", "parts": [{"functionCall": {"id": "2", "name": "wait", "args": {}}, "thoughtSignature": "c2lnNA=="}]},
    {"role": "function", "parts": [{"functionResponse": {"id": "2", "name": "wait", "response": {"result": [1]}}}]},
]  # fmt: skip

BEDROCK: list[dict[str, Any]] = [
    {"role": "user", "content": [
        {"document": {"format": "pdf", "name": "T", "source": {"bytes": "JVBERg=="}}},
        {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
        {"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/a.jpg"}}}},
        {"text": "What?"},
        {"cachePoint": {"type": "default", "ttl": "1h"}},
    ]},
    {"role": "assistant", "content": [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "cmVk"}},
        {"citationsContent": {"content": [{"text": "I look."}], "citations": [{"title": "T"}]}},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "look", "input": {"b": 1, "a": 2}}},
        {"toolUse": {"toolUseId": "tooluse_2", "name": "look", "input": {}}},
    ]},
    {"role": "user", "content": [
        {"toolResult": {"toolUseId": "tooluse_2", "status": "error", "content": [{"text": "boom"}]}},
        {"toolResult": {"toolUseId": "tooluse_1", "content": [
            {"json": {"a": [1]}}, {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}]}},
        {"cachePoint": {"type": "default"}},
        {"text": "And now?"},
    ]},
    {"role": "system", "content": [{"text": "Late."}]},
    {"role": "assistant", "content": [{"text": "Done."}]},
    {"role": "user", "content": [{"guardContent": {"text": {"text": "Again"}}}]},
]  # fmt: skip

LANGCHAIN: list[dict[str, Any]] = [
    {"type": "system", "data": {"content": "Be brief.", "type": "system", "additional_kwargs": {}, "name": None, "id": None}},
    {"type": "human", "data": {"type": "human", "content": [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "file", "base64": "JVBERg==", "mime_type": "application/pdf"},
    ], "example": False}},
    {"type": "ai", "data": {"type": "ai", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": 1}},
    ], "tool_calls": [{"name": "look", "args": {"x": 1}, "id": "c1", "type": "tool_call"}],
        "invalid_tool_calls": [{"name": "look", "args": "not json", "id": "c2", "error": "bad", "type": "invalid_tool_call"}],
        "usage_metadata": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        "response_metadata": {"model_name": "m"}}},
    {"type": "tool", "data": {"type": "tool", "content": "ok", "tool_call_id": "c1", "status": "success", "artifact": {"a": 1}}},
    {"type": "tool", "data": {"type": "tool", "content": [{"type": "text", "text": "boom"}], "tool_call_id": "c2", "status": "error"}},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"],
     "kwargs": {"content": "Done.", "tool_calls": [], "additional_kwargs": {"reasoning_content": "So."}}},
    {"type": "chat", "data": {"type": "chat", "role": "user", "content": "Again"}},
    {"role": "assistant", "content": "Fine."},
    {"type": "function", "data": {"type": "function", "name": "old", "content": "1"}},
    {"type": "human", "content": ""},
]  # fmt: skip

COHERE: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://x.org/a.png", "detail": "low"}},
    ]},
    {"role": "assistant", "tool_plan": "I will look.",
     "content": [{"type": "thinking", "thinking": "A picture."}, {"type": "text", "text": "Let me see."}],
     "tool_calls": [{"id": "look_1", "type": "function", "function": {"name": "look", "arguments": '{ "at": 1 }'}}]},
    {"role": "tool", "tool_call_id": "look_1",
     "content": [{"type": "document", "document": {"id": "d", "data": {"seen": "a cat"}}}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A cat."}],
     "citations": [{"start": 2, "end": 5, "text": "cat", "sources": [{"type": "tool", "id": "d"}]}]},
]  # fmt: skip

PYDANTIC_AI: list[dict[str, Any]] = [
    {"kind": "request", "instructions": "Be brief.", "parts": [
        {"part_kind": "system-prompt", "content": "You look.", "timestamp": "2026-01-01T00:00:00Z"},
        {"part_kind": "user-prompt", "content": [
            "What is this?",
            {"kind": "image-url", "url": "https://x.org/a.png"},
            {"kind": "binary", "media_type": "image/png", "data": "iVBORw0KGgo="},
            {"kind": "document-url", "url": "https://x.org/a.pdf"},
            {"kind": "cache-point", "ttl": "5m"},
        ]},
    ]},
    {"kind": "response", "model_name": "m", "usage": {"input_tokens": 3}, "parts": [
        {"part_kind": "thinking", "content": "Hm.", "signature": "c2ln", "provider_name": "anthropic"},
        {"part_kind": "text", "content": "I look."},
        {"part_kind": "tool-call", "tool_name": "look", "args": '{ "x": 1 }', "tool_call_id": "c1"},
        {"part_kind": "tool-call", "tool_name": "look", "args": {"x": 2}, "tool_call_id": "c2"},
        {"part_kind": "builtin-tool-call", "tool_name": "web_search", "args": {"query": "q"}, "tool_call_id": "s1"},
    ]},
    {"kind": "request", "parts": [
        {"part_kind": "tool-return", "tool_name": "look", "content": {"seen": ["a", 1]}, "tool_call_id": "c1"},
        {"part_kind": "tool-return", "tool_name": "look", "content": "no", "tool_call_id": "c2", "outcome": "retried"},
        {"part_kind": "tool-availability-delta", "added": []},
        {"part_kind": "user-prompt", "content": "And now?"},
    ]},
    {"kind": "response", "parts": []},
]  # fmt: skip

RICH: dict[str, list[dict[str, Any]]] = {
    "cohere": COHERE,
    "openai-chat": CHAT,
    "anthropic": ANTHROPIC,
    "openai-responses": ITEMS,
    "openai-agents": ITEMS,
    "gemini": GEMINI,
    "bedrock": BEDROCK,
    "langchain": LANGCHAIN,
    "pydantic-ai": PYDANTIC_AI,
}
