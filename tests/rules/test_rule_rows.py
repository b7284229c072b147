"""Every row of the rules: a request that breaks it is caught at its place, and good ones pass, however much they use."""

import ast
from collections.abc import Iterator
from string import Formatter
from typing import Any

import pytest
from rule_bodies import CONVERSE, Body, chat, claude, items, model, say, user
from rule_cases import BY_MEMORY, CASES, DEFAULT_MODEL, Case

from conftest import source_nodes
from quire import validate
from quire.providers.models import data
from quire.providers.rules import Finding, errors


def check(case: Case, body: Body, model: str | None) -> list[Finding]:
    return validate(body, case.provider, model, headers=case.headers)


@pytest.mark.proves("anthropic openai gemini bedrock mistral deepseek vllm ollama", "rules")
@pytest.mark.parametrize("case", CASES, ids=[f"{case.provider}-{case.row}-{n}" for n, case in enumerate(CASES)])
def test_requests_that_break_a_row_are_caught_and_good_ones_pass(case: Case) -> None:
    model = case.model or (None if {"model", "modelId"} & case.bad.keys() else DEFAULT_MODEL.get(case.provider))
    findings = check(case, case.bad, model)
    assert (case.row, case.path) in [(one.row, one.path) for one in findings]
    assert all(one.message and one.fix and "{" not in one.row for one in findings)
    # The Bedrock row is about the model, not the body.
    good_model = "anthropic.claude-opus-5-5" if case.provider == "bedrock-anthropic" else model
    assert errors(check(case, case.good, good_model)) == []


def test_no_row_is_without_its_test() -> None:
    tested = {case.row for case in CASES} | set(BY_MEMORY)
    assert tested == set(data("rules")["rows"])


def findings_made() -> Iterator[tuple[str, str, set[str]]]:
    """(row, case, details) of every finding that the code makes of a row and a case it names."""
    calls = [node for nodes in source_nodes().values() for node in nodes if isinstance(node, ast.Call)]
    for call in calls:
        words = [arg.value if isinstance(arg, ast.Constant) else None for arg in call.args]
        details = {word.arg for word in call.keywords if word.arg and word.arg != "sure"}
        match getattr(call.func, "id", ""), words:
            case "finding", [str(row), _, *case]:
                yield row, next(iter(case), "") or "", details
            case "shape", [_, str(case)]:
                yield "B.shape", case, details


def test_every_finding_fills_the_texts_of_its_row_and_its_case() -> None:
    rows, made = data("rules")["rows"], list(findings_made())
    assert len(made) > 100
    for row, case, details in made:
        facts = {**rows[row], **(rows[row]["cases"][case] if case else {})}
        texts = [facts[name] for name in ("error", "fix") if case or name in facts]
        filled = {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}
        assert filled <= {"where", "n", "m"} | details, (row, case)


def test_no_case_of_a_row_is_without_its_finding() -> None:
    nodes = (node for nodes in source_nodes().values() for node in nodes)
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert [case for row in data("rules")["rows"].values() for case in row.get("cases", {}) if case not in texts] == []


def test_a_bad_request_breaks_little_else() -> None:
    """A finding too many would send people looking in the wrong place."""
    # A compaction block without its conversation, an unanswered call and a mark on nothing break two rows each.
    for case in CASES:
        rows = {one.row for one in check(case, case.bad, case.model or DEFAULT_MODEL.get(case.provider))}
        assert len(rows) <= 2, (case.row, rows)


def test_rows_one_to_forty_are_all_in_the_table() -> None:
    rows = set(data("rules")["rows"])
    assert {f"B2.{number}" for number in range(1, 41)} | {"B2.4b"} <= rows


TOOL = {"name": "f", "input_schema": {"type": "object"}}
SERVER = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    {"type": "mcp_toolset", "mcp_server_name": "x"},
]
ADDED = {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}]}
MCP = [
    {"type": "mcp_tool_use", "id": "a", "name": "b", "server_name": "c", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "a", "content": []},
]
DOCUMENTS = [
    {"type": "document", "source": {"type": "content", "content": [say("x")]}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
    {"type": "container_upload", "file_id": "f"},
]
HOSTED = [
    {"type": "web_search"},
    {"type": "mcp", "server_label": "a", "server_url": "b"},
    {"type": "file_search", "vector_store_ids": []},
    {"type": "namespace", "name": "x", "tools": []},
]
PARTS = [
    {"type": "text", "text": "x"},
    {"type": "image_url", "image_url": {"url": "https://a.example", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "x", "format": "mp3"}},
    {"type": "file", "file": {"file_data": "x", "filename": "y"}},
]
ASK = {"role": "user", "content": "x"}
BACK = {"name": "f", "response": {"x": 1}, "parts": [{"inlineData": {"mimeType": "a/b", "data": "x"}}]}

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("anthropic", claude(user(), ADDED, tools=[{**TOOL, "defer_loading": True}])),
    ("anthropic", claude(thinking={"type": "adaptive", "display": "summarized"}, tools=SERVER)),
    ("anthropic", claude(output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}})),
    ("anthropic", claude(user(*DOCUMENTS, say("q")), model(*MCP, say("a")), user())),
    ("anthropic", claude(system="S", metadata={"user_id": "u"}, stop_sequences=["a"], container="c", speed="fast")),
    ("openai", items({"type": "image_generation_call", "id": "ig_1", "result": "x", "status": "completed"}, tools=HOSTED)),
    ("openai", items({"role": "user", "content": [{"type": "input_file", "file_url": "https://a.example"}]},
                     reasoning={"effort": "none", "summary": "auto"}, text={"verbosity": "low"}, truncation="auto",
                     tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []}, max_output_tokens=16)),
    ("openai", items({"type": "message", "role": "assistant", "content": "a", "phase": "final_answer"},
                     {"type": "item_reference", "id": "x"}, store=True)),
    ("openai", {"model": "gpt-6-sol", "prompt": {"id": "p"}}),
    ("openai-chat", chat({"role": "developer", "content": "x"}, {"role": "user", "content": PARTS},
                         {"role": "assistant", "content": None, "audio": {"id": "a"}}, ASK, modalities=["text"], n=2, stop="x",
                         response_format={"type": "json_object"}, tools=[{"type": "custom", "custom": {"name": "x"}}])),
    ("gemini", {"contents": "hi"}),
    ("gemini", {"contents": [{"text": "hi"}, {"inline_data": {"mime_type": "a/b", "data": b"x"}}]}),
    ("gemini", {"contents": ["a"], "config": {"system_instruction": "S", "tools": [{"google_search": {}}], "temperature": 1,
                                              "max_output_tokens": 5, "thinking_config": {"thinking_level": "LOW"}}}),
    ("gemini", {"contents": [{"role": "user", "parts": [{"text": "x", "videoMetadata": {}}]}],
                "tools": [{"googleSearch": {}}, {"codeExecution": {}}, {"urlContext": {}}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
                "generationConfig": {"responseMimeType": "application/json", "thinkingConfig": {"thinkingLevel": "HIGH"}},
                "safetySettings": [{"category": "x", "threshold": "y"}],
                "systemInstruction": {"role": "system", "parts": [{"text": "S"}]}}),
    ("gemini", {"contents": [{"role": "user", "parts": [{"functionResponse": BACK}]}], "cachedContent": "cachedContents/a"}),
    ("bedrock", CONVERSE),
    ("bedrock", {"modelId": "amazon.nova-lite-v1:0", "messages": [{"role": "user", "content": [{"text": "q"}]}],
                 "additionalModelRequestFields": {"inferenceConfig": {"topK": 2}}, "requestMetadata": {"a": "b"},
                 "performanceConfig": {"latency": "standard"}, "serviceTier": {"type": "flex"}}),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "body"), GOOD, ids=[f"{name}-{place}" for place, (name, _) in enumerate(GOOD)])
def test_a_good_request_is_left_alone(provider: str, body: dict[str, Any]) -> None:
    assert validate(body, provider, "gemini-3.8-flash" if provider == "gemini" else None) == []
