"""quire lint and quire models, as they are typed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rule_bodies import claude, model, say, user

from quire.cli.lint import lint
from quire.cli.models import models
from quire.errors import CallError, FormatError, NotFound


def run(*args: str, stdin: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(lint, list(args), input=stdin, catch_exceptions=False)
    return result.exit_code, result.output


def write(path: Path, *requests: Any) -> str:
    path.write_text("\n".join(json.dumps(one) for one in requests))
    return str(path)


def test_a_clean_request_exits_with_0(tmp_path: Path) -> None:
    code, text = run(write(tmp_path / "r.json", claude()))
    assert (code, text) == (0, "1 request (anthropic claude-opus-5-5): no findings\n")


def test_findings_show_row_place_and_fix_and_exit_with_1(tmp_path: Path) -> None:
    code, text = run(write(tmp_path / "r.json", claude(user(), model())))
    assert code == 1
    assert "B2.9 $.messages[1]" in text
    assert "fix: End with a user message" in text


def test_warnings_alone_are_shown_and_exit_with_0(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "id": "fc_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    body = {"model": "gpt-5.5", "input": [{"role": "user", "content": "q"}, call, output]}
    code, text = run(write(tmp_path / "r.json", body))
    assert (code, "B2.23 $.input[1] (warning)" in text) == (0, True)
    assert text.endswith("no findings, 1 warning\n")
    [report] = json.loads(run(str(tmp_path / "r.json"), "--json")[1])
    assert [one["severity"] for one in report["findings"]] == ["warning"]


def test_the_real_command_exits_with_1(tmp_path: Path) -> None:
    file = write(tmp_path / "r.json", claude(user(), model()))
    done = subprocess.run(
        [sys.executable, "-m", "quire.cli.main", "lint", file], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "B2.9" in done.stdout) == (1, True)


def test_a_list_and_lines_of_requests_are_read(tmp_path: Path) -> None:
    requests = [claude(), {"model": "gpt-6-sol", "input": "q"}, {"contents": "q"}]
    lines = write(tmp_path / "r.jsonl", *requests)
    listed = write(tmp_path / "r.json", requests)
    for file in (lines, listed):
        code, text = run(file, "--json")
        assert code == 0
        assert [one["provider"] for one in json.loads(text)] == ["anthropic", "openai-responses", "gemini"]


def test_a_log_of_one_conversation_shows_changed_thinking(tmp_path: Path) -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    first = claude(user(say("one")), model(thinking, say()), user())
    second = claude(user(say("two")), model(thinking, say()), user())
    code, text = run(write(tmp_path / "r.jsonl", first, second), "--json")
    assert code == 1
    assert [[one["row"] for one in report["findings"]] for report in json.loads(text)] == [[], ["B2.11"]]


def test_a_recorded_request_brings_its_headers() -> None:
    body = claude(context_management={"edits": []})
    wrapped = json.dumps({"body": {**body, "context_management": {"edits": [{"type": "x"}]}}, "headers": {}})
    assert run("-", stdin=wrapped)[0] == 1


def test_the_provider_and_model_can_be_given() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    assert run("-", "-p", "mistral", "-m", "mistral-large-latest", stdin=body)[0] == 1
    assert run("-", "-p", "anthropic", "-m", "claude-opus-4-5", stdin=body)[0] == 0


def test_what_cannot_be_told_is_an_error_with_the_next_step() -> None:
    with pytest.raises(CallError, match="whose request"):
        run("-", stdin="{}")
    with pytest.raises(FormatError, match="line 1"):
        run("-", stdin="{nonsense")
    with pytest.raises(FormatError, match="line 2"):
        run("-", stdin='{"contents": "q"}\n{nonsense')


def test_a_file_without_a_request_is_an_error_not_a_pass() -> None:
    with pytest.raises(FormatError, match="holds no request"):
        run("-", stdin="[]")


def test_models_are_listed_with_their_date() -> None:
    result = CliRunner().invoke(models, ["anthropic"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "claude-opus-5-5" in result.output
    assert "as of 2026-11-15" in result.output


def test_models_as_json_hold_every_fact() -> None:
    result = CliRunner().invoke(models, ["--json", "openai:gpt-6-sol"], catch_exceptions=False)
    (facts,) = json.loads(result.output)
    assert (facts["provider"], facts["known"], facts["engine"], facts["read_ratio"]) == (
        "openai",
        True,
        "openai-breakpoints",
        0.1,
    )
    assert facts["prices"]["tiers"][1]["above"] == 272_000


def test_a_part_of_a_name_finds_models_and_nothing_is_an_error() -> None:
    assert "gpt-oss-20b" in CliRunner().invoke(models, ["gpt-oss"], catch_exceptions=False).output
    with pytest.raises(NotFound):
        CliRunner().invoke(models, ["nothing-like-this"], catch_exceptions=False)


def test_a_file_for_simulate_is_read_too(tmp_path: Path) -> None:
    lines = [{"at": 1000, "request": claude()}, {"at": 2000, "request": claude(user(), model())}]
    code, text = run(write(tmp_path / "r.jsonl", *lines), "--json")
    assert code == 1
    assert [[one["row"] for one in report["findings"]] for report in json.loads(text)] == [[], ["B2.9"]]
