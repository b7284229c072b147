"""Bodies with what providers document and the recordings may lack: blocks, fields and tools of their own."""

from collections.abc import Iterator
from typing import Any

from exchanges import Exchange, Object, said

SCHEMA: Object = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def documented(wire: str) -> Iterator[Exchange]:
    """Each body asks, shows what the model said (if anything), and what followed."""
    field = {"gemini": "contents", "openai-responses": "input"}.get(wire, "messages")
    bodies: list[tuple[str, str, Object]] = []
    for place, (target, spoken, after, options) in enumerate(BODIES[wire]):
        talk = [said(wire, "user", "Go."), *spoken, *(after or [said(wire, "user", "And then?")])]
        body = {field: talk if spoken or after else talk[:1], **options}
        bodies.append((f"{place} {options or spoken}", target, body))
    bodies += [(f"whole {place} {body}", target, body) for place, (target, body) in enumerate(WHOLE.get(wire, ()))]
    for name, target, body in bodies:
        provider, _, model = target.partition(":")
        named = {"model": model} if wire not in ("bedrock", "gemini") else {}
        yield Exchange(name[:90], wire, provider, model, 200, {**body, **named})


CLAUDE, CALLED = "anthropic:claude-sonnet-4-5", {"type": "tool_use", "id": "toolu_1", "name": "w", "input": {}}
W: Object = {"name": "w", "description": "d", "input_schema": SCHEMA}


def _claude(*blocks: Object) -> list[Object]:
    return [{"role": "assistant", "content": list(blocks)}]


def _text(text: str = "Yes.", **more: Any) -> Object:
    return {"type": "text", "text": text, **more}


def _served(kind: str, content: Any, name: str = "", tool: str = "server_tool_use") -> list[Object]:
    use = {"type": tool, "id": "srvtoolu_1", "name": name or kind, "input": {"a": 1}}
    use |= {"server_name": "s"} if tool == "mcp_tool_use" else {}
    result = "mcp_tool_result" if tool == "mcp_tool_use" else f"{kind}_tool_result"
    return _claude(use, {"type": result, "tool_use_id": "srvtoolu_1", "content": content}, _text())


def _result(**fields: Any) -> list[Object]:
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", **fields}]}]


ANTHROPIC: list[tuple[str, list[Object], list[Object], Object]] = [
    (CLAUDE, _served("ask", [_text()], tool="mcp_tool_use"), [], {
        "mcp_servers": [{"type": "url", "url": "https://a.test", "name": "s"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}]}),
    (CLAUDE, _served("code_execution", {"type": "code_execution_result", "stdout": "4", "stderr": "",
                                        "return_code": 0, "content": []}), [],
     {"tools": [{"type": "code_execution_20250522", "name": "code_execution"}], "container": "container_1"}),
    (CLAUDE, _served("text_editor_code_execution", {"type": "text_editor_code_execution_create_result"}), [], {}),
    (CLAUDE, _served("web_fetch", {"type": "web_fetch_tool_result_error", "error_code": "unavailable"}), [], {
        "tools": [{"type": "web_fetch_20250910", "name": "web_fetch", "citations": {"enabled": True}}]}),
    (CLAUDE, _served("tool_search", {"type": "tool_search_tool_result_error", "error_code": "invalid_pattern"},
                     "tool_search_tool_regex"), [],
     {"tools": [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}, W]}),
    (CLAUDE, _claude(_text(citations=[{"type": "page_location", "cited_text": "c", "document_index": 0}])), [], {}),
    (CLAUDE, _claude({"type": "redacted_thinking", "data": "EmwK"}, _text()), [],
     {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    (CLAUDE, _claude({**CALLED, "caller": {"type": "direct"}}), _result(content=[
        {"type": "search_result", "source": "s", "title": "t", "content": [_text()]}]), {"tools": [W]}),
    *[(CLAUDE, _claude(CALLED), _result(**given), {"tools": [W]})
      for given in ({}, {"content": []}, {"content": ""}, {"content": [_text()], "is_error": True})],
    (CLAUDE, [], [], {"system": [_text("One.\n"), _text("Two."), _text("Three.", cache_control={"type": "ephemeral"})]}),
    (CLAUDE, [], [], {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
    (CLAUDE, [], [], {"tools": [{**W, "input_examples": [{"city": "x"}], "eager_input_streaming": True}],
                      "output_format": {"type": "json_schema", "schema": SCHEMA}, "service_tier": "standard_only"}),
]  # fmt: skip


def _chat(**message: Any) -> list[Object]:
    return [{"role": "assistant", "content": "Yes.", **message}]


CALL: Object = {"id": "abc123def", "type": "function", "function": {"name": "w", "arguments": "{}"}}
DETAILS = [{"type": "reasoning.text", "text": "t", "signature": "s", "format": "anthropic-claude-v1", "index": 0}]
CHAT: list[tuple[str, list[Object], list[Object], Object]] = [
    ("openai-chat:gpt-4o-audio-preview", _chat(content=None, audio={"id": "audio_1"}), [], {"modalities": ["text"]}),
    ("openai-chat:gpt-4o", _chat(content=None, refusal="No."), [], {"logprobs": True, "prediction": {"content": "x"}}),
    ("openai-chat:gpt-4o", _chat(content=[_text(), _text("No.")], name="amy"),
     [{"role": "user", "content": "Why?", "name": "bob"}], {}),
    ("openai-chat:gpt-4o", _chat(tool_calls=[CALL]),
     [{"role": "tool", "tool_call_id": "abc123def", "content": [_text("a"), _text("b")]}], {}),
    ("openai-chat:gemini-3-flash", _chat(tool_calls=[{**CALL, "extra_content": {"google": {"thought_signature": "s"}}}]),
     [{"role": "tool", "tool_call_id": "abc123def", "content": "x"}], {}),
    ("openrouter:anthropic/claude-sonnet-4.5", _chat(reasoning="t", reasoning_details=DETAILS, tool_calls=[CALL]),
     [{"role": "tool", "tool_call_id": "abc123def", "content": "x"}], {"plugins": [{"id": "web"}]}),
    ("groq:openai/gpt-oss-120b", _chat(reasoning="t"), [], {}),
    ("deepseek:deepseek-chat", [], [said("openai-chat", "assistant", "So") | {"prefix": True}], {}),
    ("mistral:magistral-medium-latest",
     _chat(content=[{"type": "thinking", "thinking": [_text("t")], "closed": True}, _text()]), [], {}),
    ("mistral:mistral-large-latest", _chat(content=[_text(), {"type": "reference", "reference_ids": [1]}, _text()]),
     [{"role": "user", "content": [{"type": "input_audio", "input_audio": "UklGRg=="}, _text("Hear.")]}], {}),
    ("mistral:mistral-large-latest", _chat(content="", tool_calls=[CALL]),
     [{"role": "tool", "tool_call_id": "abc123def", "name": "w", "content": "x"}], {}),
]  # fmt: skip


def _items(*items: Object) -> list[Object]:
    told = [{"type": "output_text", "text": "Yes.", "annotations": []}]
    return [*items, {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": told}]


def _client(kind: str, call: Object, output: Object) -> list[Object]:
    return [{"type": f"{kind}_call", "id": "i_1", "call_id": "call_1", "status": "completed", **call},
            {"type": f"{kind}_call_output", "call_id": "call_1", **output}]  # fmt: skip


GPT = "openai:gpt-5"
RESPONSES: list[tuple[str, list[Object], list[Object], Object]] = [
    (GPT, _client("computer", {"actions": [{"type": "screenshot"}], "pending_safety_checks": []},
                  {"output": {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"}}), [], {}),
    (GPT, _client("shell", {"action": {"commands": ["ls"]}},
                  {"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}), [], {}),
    (GPT, _client("apply_patch", {"operation": {"type": "delete_file", "path": "a"}}, {"output": "ok"}), [], {}),
    (GPT, [{"type": "mcp_approval_request", "id": "mcpr_1", "name": "q", "server_label": "x", "arguments": "{}"}],
     [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}], {}),
    (GPT, _items({"type": "web_search_call", "id": "ws_1", "status": "completed",
                  "action": {"type": "find_in_page", "url": "u", "pattern": "p"}}), [], {}),
    (GPT, _items({"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "x",
                  "container_id": "c", "outputs": [{"type": "image", "url": f"data:image/png;base64,{PNG}"}]}), [], {}),
    ("openai:o3", _items({"type": "reasoning", "id": "rs_1", "summary": []}), [], {}),
    ("openai:gpt-5.6", _items(
        {"type": "program", "id": "prog_1", "call_id": "call_p", "code": "x", "status": "completed"},
        {"type": "program_output", "id": "po_1", "call_id": "call_p", "result": "r", "status": "completed"}), [], {}),
]  # fmt: skip


def _model(*parts: Object) -> list[Object]:
    return [{"role": "model", "parts": list(parts)}]


FLASH = "gemini:gemini-2.5-flash"
GEMINI: list[tuple[str, list[Object], list[Object], Object]] = [
    (FLASH, [], [], {"systemInstruction": {"role": "user", "parts": [{"text": "One."}, {"text": "Two."}]}}),
    (FLASH, [], [], {"tools": [{"googleMaps": {"enableWidget": True}}, {"computerUse": {"environment": "X"}}]}),
    (FLASH, _model({"text": "t", "thought": True}), [], {}),
    (FLASH, _model({"text": "Yes."}),
     [{"role": "user", "parts": [{"file_data": {"file_uri": "gs://a", "mime_type": "application/pdf"}}, {"text": "x"}]}],
     {"tools": [{"function_declarations": [{"name": "w", "description": "d", "parameters_json_schema": SCHEMA}]}]}),
    (FLASH, _model({"text": "Yes."}), [{"role": "user", "parts": [{"text": ""}]}], {}),
    (FLASH, _model({"inlineData": {"mimeType": "image/png", "data": PNG}, "thoughtSignature": "c2ln"}), [], {}),
    (FLASH, _model({"functionCall": {"name": "w", "args": {}, "id": "1"}}),
     [{"role": "user", "parts": [{"functionResponse": {"name": "w", "id": "1", "response": {"url": "u"}, "parts": [
         {"inlineData": {"mimeType": "image/png", "data": PNG}}]}}]}], {}),
    ("gemini:gemini-3-flash-preview", [*_model({"functionCall": {"name": "w", "args": {}}}),
                                       {"role": "user", "parts": [{"functionResponse": {"name": "w", "response": {"a": 1}}}]},
                                       *_model({"text": "Yes."})], [], {}),
    ("gemini:gemini-3-flash-preview", _model(
        {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {}, "id": "x"}, "thoughtSignature": "c2ln"},
        {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {}, "id": "x"}}, {"text": "Yes."}), [], {}),
]  # fmt: skip


def _bedrock(*blocks: Object) -> list[Object]:
    return [{"role": "assistant", "content": list(blocks)}]


HAIKU = "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0"
USE: Object = {"toolUse": {"toolUseId": "t1", "name": "w", "input": {}, "type": "tool_use"}}
SPEC: Object = {"toolConfig": {"tools": [{"toolSpec": {"name": "w", "inputSchema": {"json": SCHEMA}, "strict": True}}]}}
BEDROCK: list[tuple[str, list[Object], list[Object], Object]] = [
    (HAIKU, [], [], {"system": [{"text": "One."}, {"text": "Two."}, {"cachePoint": {"type": "default"}}],
                     "guardrailConfig": {"guardrailIdentifier": "g", "streamProcessingMode": "async"}}),
    (HAIKU, _bedrock({"reasoningContent": {"redactedContent": "YWJj"}}, {"text": "Yes."}), [], {}),
    ("bedrock:us.deepseek.r1-v1:0",
     _bedrock({"reasoningContent": {"reasoningText": {"text": "t"}}}, {"text": "Yes."}), [], {}),
    (HAIKU, _bedrock({"citationsContent": {"content": [{"text": "Yes."}], "citations": [
        {"title": "t", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}]}}), [], {}),
    *[(HAIKU, _bedrock(USE), [{"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": content}}]}],
       SPEC) for content in ([], [{"json": {"a": 1}}, {"text": "b"}, {"image": {"format": "png", "source": {"bytes": PNG}}}])],
    (HAIKU, _bedrock(USE), [{"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "b"}]}}]},
                            {"role": "user", "content": [{"text": "Look at it."}]}], SPEC),
]  # fmt: skip
BODIES = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
    "gemini": GEMINI,
    "bedrock": BEDROCK,
}


# Whole bodies: what begins or ends otherwise, says things twice, or is held by the provider.


def _turn(wire: str, *texts: str) -> list[Object]:
    """Words of the user and of the model in turns, the model's first where a text begins with '<'."""
    roles = ["assistant" if text[0] == "<" else "user" for text in texts]
    return [said(wire, role, text) for role, text in zip(roles, texts, strict=True)]


def _parts(role: str, *parts: Object) -> Object:
    return {"role": role, "parts": list(parts)}


C, G, R, A, B = "openai-chat", "gemini", "openai-responses", "anthropic", "bedrock"
OLD = [{"role": "assistant", "content": None, "function_call": {"name": "w", "arguments": "{}"}},
       {"role": "function", "name": "w", "content": "1"}]  # fmt: skip
TWICE = [{"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "abc123def", "content": "1"}]  # fmt: skip
BOTH = [{**CALL, "id": f"abc123de{n}"} for n in "12"]
GO = _parts("user", {"text": "Go."})
IMAGE = {"type": "image_url", "image_url": {"url": "https://a.test/b.png", "detail": "low"}}
ASKED = _parts("model", {"functionCall": {"name": "a.b:c-d", "id": "1"}}, {"functionCall": {"name": "w", "id": "2"}})
GAVE = [
    {"functionResponse": {"name": name, "id": id, "response": {"a": 1}}} for name, id in (("w", "2"), ("a.b:c-d", "1"))
]
TWO = [{"functionCall": {"name": "w", "args": {"a": n}}} for n in (1, 2)]
ONES = [{"functionResponse": {"name": "w", "response": {"a": n}}} for n in (1, 2)]
GIVEN = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
SEARCH: Object = {"type": "builtin_function", "function": {"name": "$web_search"}}
SEARCHED = {"id": "c", "type": "builtin_function", "function": {"name": "$web_search", "arguments": "{}"}}
SERVED = {"type": "custom_tool_call", "call_id": "xs_1", "id": "ctc_1", "name": "x_search", "input": "{}"}
SERVED["status"] = "completed"
WHOLE: dict[str, list[tuple[str, Object]]] = {
    C: [
        *[("openai-chat:gpt-4o", {"messages": talk}) for talk in (
            _turn(C, "<Hi."),
            [said(C, "system", "Be brief.")],
            [{"role": "developer", "name": "b", "content": [_text("a"), _text("b")]}, *_turn(C, "Go.")],
            [said(C, "user", "Go."), said(C, "assistant", ""), said(C, "user", "Go on.")],
            [{"role": "user", "content": [IMAGE]}],
            [*_turn(C, "Go."), *OLD, *OLD], [*_turn(C, "Go."), *TWICE, *TWICE],
            [*_turn(C, "Go."), {"role": "assistant", "content": None, "tool_calls": BOTH},
             *({"role": "tool", "tool_call_id": f"abc123de{n}", "content": n} for n in "21")],
        )],
        ("openrouter:google/gemini-2.5-flash-image", {"messages": [
            *_turn(C, "Go."), {"role": "assistant", "content": "x", "images": [IMAGE], "annotations": [{"type": "a"}]},
            *_turn(C, "Go.")]}),
        ("groq:compound-beta", {"messages": [
            *_turn(C, "Go."), {"role": "assistant", "content": "x", "executed_tools": [{"index": 0}]}, *_turn(C, "Go.")]}),
        ("openai-chat:litellm/claude", {"messages": [*_turn(C, "Go."), {
            "role": "assistant", "content": "x", "reasoning_content": "a",
            "thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": "s"}]}, *_turn(C, "Go.")]}),
        ("openai-chat:kimi-k2", {"tools": [SEARCH], "messages": [
            *_turn(C, "Go."), {"role": "assistant", "content": "", "tool_calls": [SEARCHED]},
            {"role": "tool", "tool_call_id": "c", "name": "$web_search", "content": "{}"}]}),
    ],
    R: [
        *[(GPT, {"input": talk}) for talk in (
            _turn(R, "<Hi."), [said(R, "developer", "Be brief.")],
            [{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.test/b.png", "detail": "low"}]}],
            [*_turn(R, "Go."), *([{"type": "function_call", "call_id": "call_1", "name": "w", "arguments": "{}"}, GIVEN] * 2)],
            [*_turn(R, "Go."), {"type": "local_shell_call", "id": "l", "call_id": "call_1", "status": "completed",
                                "action": {"type": "exec", "command": ["ls"], "env": {}}},
             {"type": "local_shell_call_output", "id": "call_1", "output": "x"}],
        )],
        (GPT, {"store": True, "input": [*_turn(R, "Go."), {"type": "item_reference", "id": "fc_1"}, GIVEN]}),
        (GPT, {"input": [*_turn(R, "Go."), {"id": "msg_1"}, *_turn(R, "And?")]}),
        (GPT, {"input": [*_turn(R, "Go."), {"type": "function_call", "call_id": "call_1", "name": "w", "arguments": "{}"},
                         {"type": "function_call_output", "name": "w", "output": "x"},
                         {"type": "function_call_output", "name": "v", "output": "y"}, *_turn(R, "And?")]}),
        (GPT, {"previous_response_id": "resp_1", "input": [GIVEN]}),
        (GPT, {"conversation": "conv_1", "input": [GIVEN, *_turn(R, "Go.")]}),
        ("openai:gpt-5.6", {"input": [*_turn(R, "Go."), {"type": "configuration_update", "text": {"verbosity": "low"}},
                                      *_turn(R, "Go.")]}),
        ("xai-responses:grok-4", {"input": [*_turn(R, "Go."), SERVED, *_items(), *_turn(R, "Go.")]}),
    ],
    G: [
        *[(FLASH, {"contents": talk}) for talk in (
            _turn(G, "<Hi."), _turn(G, "Go.", "<Hi."), _turn(G, "<Hi.", "Go."), _turn(G, "Go.", "<Hi.", "<Ho.", "Go."),
            [GO, _parts("model", {"text": ""}), GO], [GO, ASKED, _parts("function", *GAVE)],
            [GO, ASKED, _parts("user", {"text": "So:"}, *GAVE)],
            [_parts("user", {"text": "Go.", "partMetadata": {"a": 1}}), _parts("model", {"text": "x", "partMetadata": {"b": 1}}), GO],
            [_parts("user", {"inlineData": {"mimeType": "image/png", "data": PNG, "displayName": "d"}})],
            # A stream kept piece by piece: what the model says in a row is one turn.
            *[[GO, _parts("model", TWO[0]), _parts("model", piece), _parts("user", *given)]
              for piece, given in (({"text": ""}, ONES[:1]), ({"text": "So."}, ONES[:1]), (TWO[1], ONES))],
            [GO, _parts("model", *TWO), *(_parts("user", one) for one in ONES)],
        )],
        (FLASH, {"tools": [{"functionDeclarations": [{"name": "a.b:c-d"}]}], "contents": [GO]}),
    ],
    A: [
        (CLAUDE, {"max_tokens": 9, "messages": [{"role": "assistant", "content": "Hi."}, *_turn(A, "Go.")]}),
        (CLAUDE, {"max_tokens": 9, "tools": [{"name": "w", "type": "custom", "input_schema": {"type": "object"}}],
                  "messages": [*_turn(A, "Go."), *_claude(CALLED), *_result(is_error=True)]}),
        *[(CLAUDE, {"max_tokens": 9, "tools": [W], "messages": [*_turn(A, "Go."), *_claude(CALLED), behind, *_result()]})
          for behind in (said(A, "assistant", "So."), _claude(_text("So."))[0])],
        ("anthropic:claude-opus-5-5", {"max_tokens": 9, "messages": [
            *_turn(A, "Go."), {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}, *_turn(A, "<Hi.", "Go.")]}),
    ],
    B: [
        (HAIKU, {**SPEC, "messages": [*_turn(B, "Go."), *_bedrock(USE), {"role": "user", "content": [
            {"toolResult": {"toolUseId": "t1", "content": [{"text": "r"}]}}, {"text": "So?"}]}]}),
        (HAIKU, {"messages": [{"role": "user", "content": [
            {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k", "bucketOwner": "x"}}}}]}]}),
    ],
}  # fmt: skip
