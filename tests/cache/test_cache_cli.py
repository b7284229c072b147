"""`quire simulate` and `quire emulate` as a shell sees them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from cache_bodies import MINUTE, assistant, claude, text, user

from quire.errors import FormatError
from toolbox import free_port, run


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    lines = []
    messages = []
    for turn in range(3):
        messages.append(user(text(300, f"u{turn}-")))
        lines.append({"at": turn * MINUTE, "request": claude(*messages, system=[text(900, "s")])})
        messages.append(assistant(text(100, f"a{turn}-")))
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_simulate_prints_a_table_a_sum_and_a_chart(requests: Path) -> None:
    out = run("simulate", requests, "--provider", "anthropic", "--mark", "--chart")
    assert out == run("simulate", requests, "--provider", "anthropic", "--mark")
    assert " ".join(out.splitlines()[0].split()) == "# at s tokens read write long write plain USD lost by"
    assert "3 requests" in out
    assert "read from the cache, $0.0" in out
    bars = [line for line in out.splitlines() if "█" in line and "read" not in line]
    assert len(bars) == 2
    assert "█" not in run("simulate", requests, "--provider", "anthropic", "--mark", "--no-chart")


def test_simulate_prints_json_whose_parts_add_up(requests: Path) -> None:
    out = json.loads(run("simulate", requests, "-p", "anthropic", "--mark", "--json"))
    rows, total = out["requests"], out["total"]
    assert [row["cause"] for row in rows] == ["first", "", ""]
    for row in rows:
        assert row["tokens"] == row["read"] + row["write_5m"] + row["write_1h"] + row["plain"]
    for name in ("tokens", "read", "write_5m", "write_1h", "plain"):
        assert total[name] == sum(row[name] for row in rows)
    assert total["usd"] == pytest.approx(sum(row["usd"] for row in rows))
    assert rows[1]["read"] == rows[0]["tokens"]


def test_a_prompt_under_the_minimum_is_said_to_be_that_and_not_to_have_moved(tmp_path: Path) -> None:
    said = [user(text(20, "a")), assistant(text(20, "b")), user(text(20, "c"))]
    lines = [{"at": turn * MINUTE, "request": claude(*said[: 2 * turn + 1])} for turn in range(2)]
    (tmp_path / "short.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = run("simulate", tmp_path / "short.jsonl", "-p", "anthropic", "--mark", "--json")
    assert [row["cause"] for row in json.loads(out)["requests"]] == ["first", "minimum"]
    assert "minimum: no mark stands behind" in run("simulate", tmp_path / "short.jsonl", "-p", "anthropic", "--mark")


def test_without_marks_nothing_is_read_and_the_reason_is_given(requests: Path) -> None:
    out = run("simulate", requests, "-p", "anthropic")
    assert "0.0% read" in out
    assert "marker: no block carries a mark (request 2)" in out


def test_bare_requests_an_array_and_standard_input_are_read(requests: Path, tmp_path: Path) -> None:
    bodies = [json.loads(line)["request"] for line in requests.read_text().splitlines()]
    array = tmp_path / "array.json"
    array.write_text(json.dumps(bodies, indent=1))
    lines = "\n".join(json.dumps(body) for body in bodies)
    piped = json.loads(run("simulate", "-", "-p", "anthropic", "--json", stdin=lines))
    assert json.loads(run("simulate", array, "-p", "anthropic", "--json"))["total"] == piped["total"]
    assert [row["at"] for row in piped["requests"]] == [1000, 2000, 3000]
    one = tmp_path / "one.json"
    one.write_text(json.dumps(bodies[0], indent=2))
    assert "1 request," in run("simulate", one, "-p", "anthropic")


def test_a_long_list_is_drawn_in_at_most_forty_bars(tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    file.write_text((json.dumps(claude(user(text(5, "x")))) + "\n") * 100)
    out = run("simulate", file, "-p", "anthropic")
    bars = [line for line in out.splitlines() if "░" in line and "plain" not in line]
    assert len(bars) == 34
    assert "3 requests a bar" in out


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        ('{"messages": []}\n', "line 1", "no anthropic request"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n{oops\n', "line 2", "not JSON"),
        ("[1, 2]", "line 1", "no anthropic request"),
        ('{"contents": [{"parts": [{"text": "x"}]}]}', "line 1", "no anthropic request"),
        ('{"messages": [{"role": "user", "content": [{"type": []}]}]}', "line 1", "no anthropic request"),
        ('{"at": "noon", "request": {"messages": [{"role": "user", "content": "x"}]}}', "line 1", "no time"),
        ('{"at": 1e999, "request": {"messages": [{"role": "user", "content": "x"}]}}', "line 1", "no time"),
        ('{"a":' * 100_000, "line 1", "nested too deeply"),
        ("", "bad.jsonl", "holds no request"),
        ("\n\n", "bad.jsonl", "holds no request"),
        ("[]", "bad.jsonl", "holds no request"),
    ],
)
def test_what_is_no_request_is_an_error_with_its_place(tmp_path: Path, content: str, place: str, problem: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(FormatError, match=problem) as caught:
        run("simulate", file, "-p", "anthropic")
    assert place in str(caught.value)


def test_a_price_that_is_not_known_is_said(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    assert "not known" in run("simulate", file, "-p", "vllm", "-m", "some-model")


def test_emulate_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    replies = tmp_path / "replies"
    replies.write_text('Plain text.\n{"text": "From JSON."}\nIn pieces.\n{"status": 429, "retry_after_s": 1}\n')
    command = [sys.executable, "-m", "quire", "emulate", "-p", "anthropic", "--replies", str(replies)]
    port = free_port()
    command += ["--lenient", "--state", str(tmp_path / "state"), "--port", str(port), "--chunk-bytes", "5"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    url = process.stdout.readline().split()[2]
    assert url.endswith(f":{port}")
    answers = []
    for _ in range(2):
        body = json.dumps({**claude(user(text(3)))}).encode()
        request = urllib.request.Request(f"{url}/v1/messages", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            answers.append(json.load(reply)["content"][0]["text"])
    body = json.dumps({**claude(user(text(3))), "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=600) as raw:
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        sizes = re.findall(rb"(?:^|\r\n)([0-9a-f]+)\r\n", raw.makefile("rb").read().partition(b"\r\n\r\n")[2])
    assert max(int(size, 16) for size in sizes) == 5
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert answers == ["Plain text.", "From JSON."]
    assert process.returncode == 0
    assert "stopped after 3 requests" in said
    assert len((tmp_path / "state").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"txt": "x"}', "unknown field `txt`"),
        ('{"status": 429, "retry": 1}', "unknown field `retry`"),
        ('{"text": ', "not JSON"),
    ],
)
def test_a_script_that_cannot_be_played_is_an_error_with_its_place(tmp_path: Path, line: str, problem: str) -> None:
    replies = tmp_path / "replies"
    replies.write_text(f"Plain text.\n{line}\n")
    with pytest.raises(FormatError, match=problem) as caught:
        run("emulate", "-p", "anthropic", "--replies", replies)
    assert "line 2" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("provider", ["openai", "openai-chat"])
@pytest.mark.parametrize("field", ["input", "messages"])
def test_both_of_openais_formats_are_counted_under_its_name(tmp_path: Path, provider: str, field: str) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"model": "gpt-6-sol", field: [{"role": "user", "content": "Hello there"}]}))
    (row,) = json.loads(run("simulate", file, "-p", provider, "--json"))["requests"]
    assert row["tokens"] > 0


def test_a_body_without_input_is_no_request(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"model": "gpt-6-sol", "instructions": "Be brief."}))
    with pytest.raises(FormatError, match="no openai-responses request here") as error:
        run("simulate", file, "-p", "openai")
    assert "-p openai-chat" in error.value.hint
