"""quire lint and quire models, as they are typed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rule_bodies import claude, model, say, user

from quire.errors import CallError, FormatError, NotFound
from toolbox import run


def write(path: Path, *requests: Any) -> str:
    path.write_text("\n".join(json.dumps(one) for one in requests))
    return str(path)


def test_a_clean_request_exits_with_0(tmp_path: Path) -> None:
    text = run("lint", write(tmp_path / "r.json", claude()))
    assert text == "1 request (anthropic claude-opus-5-5): no findings\n"


def test_findings_show_row_place_and_fix_and_exit_with_1(tmp_path: Path) -> None:
    text = run("lint", write(tmp_path / "r.json", claude(user(), model())), code=1)
    assert "B2.9 $.messages[1]" in text
    assert "fix: End with a user message" in text


def test_warnings_alone_are_shown_and_exit_with_0(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "id": "fc_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    body = {"model": "gpt-5.5", "input": [{"role": "user", "content": "q"}, call, output]}
    text = run("lint", write(tmp_path / "r.json", body))
    assert "B2.23 $.input[1] (warning)" in text
    assert text.endswith("no findings, 1 warning\n")
    [report] = json.loads(run("lint", tmp_path / "r.json", "--json"))
    assert [one["severity"] for one in report["findings"]] == ["warning"]


def test_the_real_command_exits_with_1(tmp_path: Path) -> None:
    file = write(tmp_path / "r.json", claude(user(), model()))
    done = subprocess.run([sys.executable, "-m", "quire", "lint", file], capture_output=True, text=True, check=False)
    assert (done.returncode, "B2.9" in done.stdout) == (1, True)


def test_a_list_and_lines_of_requests_are_read(tmp_path: Path) -> None:
    requests = [claude(), {"model": "gpt-6-sol", "input": "q"}, {"contents": "q"}]
    for file in (write(tmp_path / "r.jsonl", *requests), write(tmp_path / "r.json", requests)):
        found = json.loads(run("lint", file, "--json"))
        assert [one["provider"] for one in found] == ["anthropic", "openai-responses", "gemini"]


@pytest.mark.parametrize(
    "target", ["vllm:qwen", "mistral:mistral-large-latest", "llamacpp-anthropic:x", "gemini:gemini-2.5-pro"]
)
def test_a_line_that_names_its_provider_is_checked_by_its_rules(tmp_path: Path, target: str) -> None:
    entries = write(tmp_path / "e.jsonl", {"kind": "user", "text": "q"}, {"kind": "respond", "text": "a"})
    rendered = run("render", entries, "--model", target, "--all")
    [report] = json.loads(run("lint", "-", "--json", stdin=rendered))
    assert (f"{report['provider']}:{report['model']}", report["findings"]) == (target, [])
    named = json.dumps({**json.loads(rendered), "provider": "nobody", "model": 5})
    assert json.loads(run("lint", "-", "--json", stdin=named))[0]["provider"] != "nobody"


def test_a_log_of_one_conversation_shows_changed_thinking(tmp_path: Path) -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    first = claude(user(say("one")), model(thinking, say()), user())
    second = claude(user(say("two")), model(thinking, say()), user())
    found = json.loads(run("lint", write(tmp_path / "r.jsonl", first, second), "--json", code=1))
    assert [[one["row"] for one in report["findings"]] for report in found] == [[], ["B2.11"]]


def test_a_recorded_request_brings_its_headers() -> None:
    body = claude(context_management={"edits": []})
    wrapped = json.dumps({"body": {**body, "context_management": {"edits": [{"type": "x"}]}}, "headers": {}})
    run("lint", "-", stdin=wrapped, code=1)


def test_the_provider_and_model_can_be_given() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    run("lint", "-", "-p", "mistral", "-m", "mistral-large-latest", stdin=body, code=1)
    run("lint", "-", "-p", "anthropic", "-m", "claude-opus-4-5", stdin=body)


@pytest.mark.parametrize(
    ("text", "error", "problem"),
    [
        ("{}", CallError, "whose request"),
        ("{nonsense", FormatError, "line 1"),
        ('{"contents": "q"}\n{nonsense', FormatError, "line 2"),
        ("[]", FormatError, "holds no request"),
    ],
)
def test_what_cannot_be_told_is_an_error_and_not_a_pass(text: str, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        run("lint", "-", stdin=text)


def test_models_are_listed_with_their_date_and_found_by_a_part_of_their_name() -> None:
    listed = run("models", "anthropic")
    assert "claude-opus-5-5" in listed
    assert "as of 2026-11-15" in listed
    assert "gpt-oss-20b" in run("models", "gpt-oss")
    with pytest.raises(NotFound):
        run("models", "nothing-like-this")


def test_models_as_json_hold_every_fact() -> None:
    (facts,) = json.loads(run("models", "--json", "openai:gpt-6-sol"))
    told = (facts["provider"], facts["known"], facts["engine"], facts["read_ratio"])
    assert told == ("openai", True, "openai-breakpoints", 0.1)
    assert facts["prices"]["tiers"][1]["above"] == 272_000


def test_a_file_for_simulate_is_read_too(tmp_path: Path) -> None:
    lines = [{"at": 1000, "request": claude()}, {"at": 2000, "request": claude(user(), model())}]
    found = json.loads(run("lint", write(tmp_path / "r.jsonl", *lines), "--json", code=1))
    assert [[one["row"] for one in report["findings"]] for report in found] == [[], ["B2.9"]]
