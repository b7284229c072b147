"""Figures of the audit are held here: what counts once, what counts for what price, what is nobody's loss."""

import ipaddress
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conftest import shared_data
from planted import PLANTS, played
from quire.archive import sessions
from quire.audit import AuditReport, audit, audit_files, file_parts, on_cores, read_calls
from quire.errors import CallError, ConflictError, MissingPart
from test_audit import MODEL, healthy, recorded
from toolbox import invoke, run, until

LONG = {"type": "ephemeral", "ttl": "1h"}


def usage(fresh: int = 0, read: int = 0, short: int = 0, long: int = 0, output: int = 10) -> dict[str, Any]:
    """As Anthropic reports it, what was written told by its life."""
    lives = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
    counts = {"input_tokens": fresh, "cache_read_input_tokens": read, "output_tokens": output}
    return {**counts, "cache_creation_input_tokens": short + long, "cache_creation": lives}


def body(turns: int, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": [{"type": "text", "text": f"message {n}"}]} for n in range(turns)]
    return {"model": MODEL, "max_tokens": 9, "messages": messages, **more}


def report_of(folder: Path, *lines: dict[str, Any]) -> AuditReport:
    log = folder / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    return audit(read_calls(log))


def at(minute: float, request: dict[str, Any], used: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    reply = {"usage": used} if used else None
    return {"request": request, "reply": reply, "at": 1_794_000_000_000 + int(minute * 60_000), **more}


def causes(report: AuditReport) -> list[str]:
    return [found.cause for each in report.conversations for found in each.verdicts]


def test_writes_are_priced_by_the_life_they_were_written_for(tmp_path: Path) -> None:
    # A million tokens of Opus 5.5: $5 for five minutes, $8 for an hour, $0.20 read, $4 plain.
    priced = {"short": (5.0, usage(short=10**6)), "long": (8.0, usage(long=10**6)), "read": (0.2, usage(read=10**6))}
    for wanted, used in priced.values():
        report = report_of(tmp_path, at(0, body(1), {**used, "output_tokens": 0}))
        assert report.total.usd == pytest.approx(wanted)
    # What was written again for an hour although it could have been read costs 8 - 0.2 a million.
    again = [at(0, body(1), usage(long=10**6)), at(90, body(3), usage(long=10**6))]
    assert report_of(tmp_path, *again).total.lost_usd == pytest.approx(7.8)


def test_prices_are_those_of_the_time(tmp_path: Path) -> None:
    asked = {"contents": [{"role": "user", "parts": [{"text": "a"}]}], "model": "gemini-3.7-flash"}
    used = {"promptTokenCount": 1_000_000, "candidatesTokenCount": 0}
    days = ("2026-11-01T00:00:00Z", "2027-02-01T00:00:00Z")
    told = [{"provider": "gemini", "request": asked, "reply": {"usageMetadata": used}, "at": day} for day in days]
    before, since = (report_of(tmp_path, each).total.usd for each in told)
    assert 0 < before < since


@pytest.mark.parametrize(("tokens", "cause", "lost"), [(1_500, "minimum", 0), (5_000, "clock", 5_000)])
def test_a_byte_that_moved_in_a_prompt_too_short_to_be_cached_lost_nothing(
    tmp_path: Path, tokens: int, cause: str, lost: int
) -> None:
    used = {"usageMetadata": {"promptTokenCount": tokens, "cachedContentTokenCount": 0, "candidatesTokenCount": 1}}
    told = []
    for turns, day in ((1, "Monday"), (3, "Tuesday")):
        rules = {"systemInstruction": {"parts": [{"text": f"Be careful with the records. It is {day}."}]}}
        said = [{"role": ("user", "model")[n % 2], "parts": [{"text": f"message {n}"}]} for n in range(turns)]
        told.append(at(turns, {"model": "gemini-2.5-flash", "contents": said, **rules}, None, session="s"))
        told[-1]["reply"] = used
    report = report_of(tmp_path, *told)
    assert (causes(report), report.total.lost) == ([cause], lost)


def test_a_life_that_was_asked_for_and_not_received_is_said(tmp_path: Path) -> None:
    asked = body(1, system=[{"type": "text", "text": "s", "cache_control": LONG}])
    later = body(3, system=asked["system"])
    lost = report_of(tmp_path, at(0, asked, usage(short=50_000)), at(10, later, usage(short=50_100)))
    assert causes(lost) == ["ttl"]
    assert "kept for 300 s (an hour was asked for)" in lost.conversations[0].verdicts[0].note
    # What was received for an hour is not expired after ten minutes: only the head was marked.
    kept = report_of(tmp_path, at(0, asked, usage(long=50_000)), at(10, later, usage(short=50_100)))
    assert causes(kept) == ["marks-moved"]


def test_a_partial_miss_is_what_was_not_read(tmp_path: Path) -> None:
    first, then = at(0, body(1), usage(short=40_000)), at(1, body(3), usage(read=25_000, short=16_000))
    report = report_of(tmp_path, first, then)
    assert (report.total.lost, report.total.read, report.total.reuse) == (15_000, 25_000, 0.625)


def test_requests_that_were_aborted_and_sent_again_are_no_loss(tmp_path: Path) -> None:
    mark = {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]}
    asked = body(3, **mark)
    # One that brought no reply, one that was refused: neither says what it used.
    aborted = [at(1, asked, None), at(1.1, asked, usage(short=90_000), status=529)]
    lines = [at(0, body(1, **mark), usage(short=40_000)), *aborted, at(2, asked, usage(read=40_000, short=100))]
    report = report_of(tmp_path, *lines)
    assert (report.total.requests, report.total.untold, report.total.lost) == (3, 1, 0)
    # One whose stream broke off behind its beginning told what went in, and the retry is called one.
    message = {"id": "m", "model": MODEL, "role": "assistant", "content": [], "usage": usage(short=40_000)}
    start = {"type": "message_start", "message": message}
    broken = {**at(0, asked, None), "reply": None, "stream": f"data: {json.dumps(start)}\n\n"}
    report = report_of(tmp_path, broken, at(0.1, asked, usage(short=40_000)))
    assert (report.total.untold, causes(report)) == (0, ["retry"])


def counted(name: str, used: list[tuple[int, int, int]], records: bool = False) -> str:
    """A Codex rollout that tells each count twice: (input, cached, written) with totals that run on."""
    lines: list[Any] = [{"type": "session_meta", "timestamp": "2026-11-15T10:00:00Z", "payload": {"id": name}}]
    lines.append({"type": "turn_context", "payload": {"model": "gpt-5.4"}})
    total = 0
    for number, (given, cached, written) in enumerate(used):
        last = {"input_tokens": given, "cached_input_tokens": cached, "cache_write_input_tokens": written}
        last |= {"output_tokens": 5, "total_tokens": given + 5}
        total += given + 5
        stamp = f"2026-11-15T10:0{number}:00Z"
        info = {"last_token_usage": last, "total_token_usage": {"total_tokens": total}}
        told = {"type": "event_msg", "timestamp": stamp, "payload": {"type": "token_count", "info": info}}
        payload = {"response_id": f"{name} {number}", "usage": last}
        record = {"type": "token_usage_record", "timestamp": stamp, "payload": payload}
        lines += [*([record] if records else []), told, told]
    return "\n".join(map(json.dumps, lines))


@pytest.mark.parametrize("records", [False, True])
def test_codex_is_counted_by_request_and_its_archived_sessions_once(tmp_path: Path, records: bool) -> None:
    text = counted("s", [(10_000, 0, 10_000), (12_000, 10_000, 2_000), (30_000, 11_000, 19_000)], records)
    for folder in ("sessions", "archived_sessions"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rollout.jsonl").write_text(text)
    total = audit(read_calls(tmp_path)).total
    assert (total.requests, total.input, total.read, total.written) == (3, 52_000, 21_000, 31_000)
    assert total.lost == 0  # a thousand tokens less than could be read is a step of the cache
    copied = [{**json.loads(line), "ordinal": n, "timestamp": "2026-11-15T11:00:00Z"} for n, line in enumerate(text.splitlines(), 1)]  # fmt: skip
    meta = {"id": "child", "forked_from_id": "s", "forked_from_ordinal_exclusive": len(copied) + 1}
    own = [{**json.loads(line), "ordinal": len(copied) + 1} for line in counted("child", [(64_015, 0, 0)], records).splitlines()[2:]]  # fmt: skip
    child = [{"type": "session_meta", "payload": meta}, *copied, *own]
    (tmp_path / "sessions/child.jsonl").write_text("\n".join(map(json.dumps, child)))
    assert audit(read_calls(tmp_path)).total.requests == 4


def claude(id: str, minute: int, used: dict[str, Any], **more: Any) -> dict[str, Any]:
    said = {"id": id, "role": "assistant", "content": [], "model": MODEL, "usage": used}
    about = {"sessionId": "s", "uuid": f"{id}-{minute}", "timestamp": f"2026-11-15T10:{minute:02}:00Z"}
    return {"type": "assistant", **about, "message": said, **more}


def test_a_reply_in_several_lines_and_a_resumed_session_count_once(tmp_path: Path) -> None:
    lines = [
        claude("m1", 0, usage(short=40_000, output=1)),
        claude("m1", 1, usage(short=40_000, output=500)),
        claude("m2", 2, usage(read=40_000, short=500)),
        claude("h1", 2, usage(short=30_000), isSidechain=True, agentId="a"),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    resumed = [{**line, "sessionId": "t"} for line in (*lines, claude("m3", 3, usage(read=40_500)))]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, resumed)))
    report = audit(read_calls(tmp_path))
    assert (report.total.requests, report.total.written, report.total.lost) == (4, 70_500, 0)
    # The last line of a reply has all that it wrote.
    assert report.conversations[0].spent.usd == pytest.approx((40_500 * 5 + 40_000 * 0.2 + 510 * 20) / 1e6)
    assert sorted(each.kind for each in report.conversations) == ["agent", "main", "main"]


def test_samples_of_real_stores_read_together_are_all_counted_and_a_copy_once(tmp_path: Path) -> None:
    """Files of one name in two folders are two sessions; a reply that is stored again elsewhere is one."""
    root = shared_data("sessions")
    together = audit(read_calls(root)).total
    assert together.requests == sum(1 for _ in read_calls(root)) > 100
    for store in ("langchain", "pydantic-ai", "mini-swe-agent", "strands"):
        shutil.copytree(root / store, tmp_path / store)
    copies = [bool(call.body) for call in read_calls(tmp_path)]
    twice = run("audit", root, tmp_path)
    # A request itself has no id, and may be sent again.
    assert f"{together.requests + sum(copies):,} requests in" in twice
    assert f"counted once: {copies.count(False)} replies that stood in several files" in twice


@pytest.mark.parametrize(
    ("gap", "used", "more", "cause", "confidence"),
    [
        (2, usage(short=41_000), {}, "unknown", "unknown"),
        (20, usage(short=41_000), {}, "ttl", "likely"),
        (2, usage(short=12_000), {}, "compaction", "likely"),
        (2, usage(short=12_000), {"isCompactSummary": True}, "compaction", "certain"),
    ],
)
def test_usage_alone_tells_what_it_can(
    tmp_path: Path, gap: int, used: dict[str, Any], more: dict[str, Any], cause: str, confidence: str
) -> None:
    lines = [claude("m1", 0, usage(short=40_000)), claude("m2", gap, used, **more)]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (found,) = audit(read_calls(tmp_path / "s.jsonl")).conversations[0].verdicts
    assert (found.cause, found.confidence) == (cause, confidence)
    assert "Where only usage was stored" in run("audit", tmp_path / "s.jsonl")


def test_nothing_to_do_is_an_answer(tmp_path: Path) -> None:
    log = recorded(tmp_path / "log.jsonl", played("anthropic", healthy(1)))
    assert "Nothing to do: no request lost" in run("audit", log)
    page = tmp_path / "a.html"
    run("audit", log, "--html", page)
    assert '"causes":[]' in page.read_text()
    with pytest.raises(CallError, match="is there already, and is no page"):
        run("audit", log, "--html", log)


# Much of it: parts of files, on several cores.


@pytest.mark.parametrize(
    ("kind", "at"),
    [(signal.SIGKILL, "work"), (signal.SIGINT, "work"), (signal.SIGTERM, "work"), (signal.SIGINT, "loading")],
)
def test_what_reads_on_other_cores_ends_with_who_asked_for_it(tmp_path: Path, kind: signal.Signals, at: str) -> None:
    work = f"""
import os, signal, time
from quire.audit import on_cores

def sleep(folder):
    open(f"{{folder}}/{{os.getpid()}}", "w").close()
    time.sleep(600)

if __name__ == "__mp_main__" and {at == "loading"}:
    sleep("at-work")

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: exit(1))
    list(on_cores(2)(sleep, ["at-work"] * 2))
"""
    (tmp_path / "work.py").write_text(work)
    (tmp_path / "at-work").mkdir()
    words = [sys.executable, tmp_path / "work.py"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    until(lambda: len(os.listdir(tmp_path / "at-work")) == 2)
    workers = os.listdir(tmp_path / "at-work")
    os.killpg(process.pid, kind) if kind == signal.SIGINT else process.send_signal(kind)  # as a terminal does
    told = process.communicate(timeout=600)[1]
    assert [name for name in (b"SpawnProcess", b"spawn_main") if name in told] == []
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "they go on")


@pytest.mark.parametrize(("usual", "code"), [("SIG_DFL", -signal.SIGINT), ("SIG_IGN", 0), ("default_int_handler", 1)])
def test_ctrl_c_while_a_process_starts_is_what_it_is_elsewhere(usual: str, code: int) -> None:
    work = f"""
import os, signal
from quire.audit import _defer_ctrl_c

signal.signal(signal.SIGINT, signal.{usual})
try:
    with _defer_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    exit(1)
"""
    assert subprocess.run([sys.executable, "-c", work]).returncode == code


ENDINGS = """
import os, sys
from quire.audit import on_cores
from quire.errors import QuireError

def answer(number):
    return bytes(20_000_000) if number < 6 else os._exit(7)

if __name__ == "__main__":
    answers = on_cores(2)(answer, range(int(sys.argv[1])))
    next(answers)
    try:
        answers.close() if sys.argv[1] == "6" else list(answers)
    except QuireError as error:
        print(error)
"""


@pytest.mark.parametrize(("many", "told"), [("6", b""), ("7", b"a process that reads was stopped\n")])
def test_processes_that_are_stopped_within_an_answer_are_waited_for_by_nobody(
    tmp_path: Path, many: str, told: bytes
) -> None:
    (tmp_path / "work.py").write_text(ENDINGS)
    words = [sys.executable, tmp_path / "work.py", many]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60).stdout == told


def test_an_error_on_another_core_says_where_it_happened() -> None:
    with pytest.raises(ValueError, match="does not appear") as caught:
        list(on_cores(1)(ipaddress.ip_address, ["x"]))
    assert "ipaddress.py" in getattr(caught.value, "__notes__", [""])[0]


def test_parts_of_a_log_on_two_cores_are_the_log_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for seed in range(6):
        requests = healthy(seed)
        if seed % 2:
            requests = PLANTS["clock"](requests, 3, random.Random(seed), "anthropic")
        calls += played("anthropic", requests, f"s{seed}")
    log = recorded(tmp_path / "log.jsonl", sorted(calls, key=lambda call: call.at_ms or 0))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line, call in zip(lines, sorted(calls, key=lambda call: call.at_ms or 0), strict=True):
        line["session_id"] = call.session
    log.write_text("\n".join(map(json.dumps, lines)))
    whole = audit(read_calls(log)).as_json()
    monkeypatch.setattr(sessions, "PART_BYTES", 60_000)
    parts = list(file_parts(log))
    assert len(parts) > 10
    one, two = (audit_files(parts, run_).as_json() for run_ in (map, on_cores(2)))
    assert one == two == whole
    shown = [run("audit", log, "--json", "--jobs", jobs) for jobs in (1, 2)]
    assert shown[0] == shown[1]
    assert json.loads(shown[0]) == whole


def test_ray_is_asked_for_by_its_extra_or_runs(tmp_path: Path) -> None:
    """Where Ray is installed a cluster of this machine gives the same report."""
    log = recorded(tmp_path / "log.jsonl", played("anthropic", healthy(1)))
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(MissingPart, match="Ray is not installed"):
            run("audit", log, "--ray", "local")
    else:
        assert run("audit", log, "--json", "--ray", "local") == run("audit", log, "--json")


# The page, and what other policies would have cost.


def test_the_page_stands_by_itself_and_escapes_what_it_shows(tmp_path: Path) -> None:
    calls = played("anthropic", PLANTS["clock"](healthy(3), 2, random.Random(3), "anthropic"))
    named = {"session_id": "<script>alert(1)</script>"}
    lines = [at(n, call.body, usage(short=9_000), **named) for n, call in enumerate(calls)]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    found = json.loads(run("audit", log, "--json", "--what-if", "--budget", 20_000, "--html", tmp_path / "a.html"))
    page = (tmp_path / "a.html").read_text()
    assert "\\u003cscript>alert(1)" in page
    assert page.count("<script") == 2, "its data, which are inert, and its own script"
    assert "default-src 'none'; script-src 'sha256-" in page
    assert {"policy", "usd", "kept", "grounding", "simulated"} <= found["what_if"][0].keys()
    assert "The same conversations under other policies (simulated)" in run("audit", log, "--what-if")


# Settings of clients.


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


@pytest.fixture
def settings(own_home: Path) -> Path:
    """The settings of a user's own, in a home with a Claude Code session whose cache expired."""
    store = own_home / ".claude" / "projects" / "p"
    store.mkdir(parents=True)
    lines = [claude("m1", 0, usage(short=40_000)), claude("m2", 20, usage(short=41_000))]
    (store / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = own_home / ".claude" / "settings.json"
    settings.write_text('{"model": "opus",\n   "env": {}}')
    return settings


def test_a_setting_is_applied_verified_and_put_back_to_the_byte(settings: Path) -> None:
    before = settings.read_bytes()
    for step in ("--verify", "--revert"):
        with pytest.raises(CallError, match="no setting was applied"):
            run("audit", step)
    shown = run("audit", "--apply")
    assert '+  "promptCacheTtl": "1h"' in shown
    assert json.loads(settings.read_text()) == {"model": "opus", "env": {}, "promptCacheTtl": "1h"}
    assert "has promptCacheTtl already" in run("audit", "--apply")
    assert "no request since" in run("audit", "--verify")
    store = next(settings.parent.glob("projects/p/*.jsonl"))
    later = [claude("m3", 0, usage(long=42_000)), claude("m4", 0, usage(read=42_000, long=100))]
    fresh = [{**line, "timestamp": f"2099-01-01T10:{20 * n:02}:00Z", "uuid": f"n{n}"} for n, line in enumerate(later)]
    store.write_text(store.read_text() + "\n" + "\n".join(map(json.dumps, fresh)))
    assert "2 requests before, 0.00% in 2 requests since: it helps" in run("audit", "--verify")
    assert "put back" in run("audit", "--revert")
    assert settings.read_bytes() == before
    assert [each.name for each in settings.parent.iterdir() if each.is_file()] == ["settings.json"]


def test_a_file_that_was_changed_since_is_left_alone(settings: Path) -> None:
    run("audit", "--apply")
    settings.write_text('{"model": "mine"}')
    with pytest.raises(ConflictError, match="was changed since"):
        run("audit", "--revert")
    assert settings.read_text() == '{"model": "mine"}'


def test_codex_settings_stand_in_front_of_the_tables(own_home: Path) -> None:
    folder = own_home / ".codex" / "sessions"
    folder.mkdir(parents=True)
    (folder / "rollout.jsonl").write_text(counted("s", [(90_000, 0, 90_000), (20_000, 0, 20_000)]))
    config = own_home / ".codex" / "config.toml"
    config.write_text('model = "gpt-5.4"\n\n[tools]\nweb = true\n')
    before = config.read_text()
    run("audit", "--apply")
    applied = {"model_auto_compact_token_limit": 230_000, "model": "gpt-5.4", "tools": {"web": True}}
    assert tomllib.loads(config.read_text()) == applied
    run("audit", "--revert")
    assert config.read_text() == before


def test_settings_of_gemini_cli_and_opencode_are_applied_and_put_back(own_home: Path) -> None:
    """Both summed a long history up: the newest request is small, and reads nothing."""
    sizes = (40_000, 41_000, 9_000)
    chats, database = own_home / ".gemini/tmp/p/chats", own_home / ".local/share/opencode/opencode.db"
    chats.mkdir(parents=True)
    database.parent.mkdir(parents=True)
    lines: list[Any] = [{"sessionId": "g", "projectHash": "p", "startTime": "2026-11-15T10:00:00Z", "kind": "main"}]
    with sqlite3.connect(database) as db:
        db.executescript("""CREATE TABLE session (id, time_created); INSERT INTO session VALUES ('s', 1);
            CREATE TABLE message (id, session_id, time_created, data); CREATE TABLE part (id, message_id, session_id, data)""")
        for n, size in enumerate(sizes):
            read, stamp = 40_000 if n == 1 else 0, f"2026-11-15T10:0{n}:00Z"
            told = {"input": size, "cached": read, "output": 5, "thoughts": 0, "tool": 0, "total": size + 5}
            lines.append({"id": f"u{n}", "timestamp": stamp, "type": "user", "content": f"q{n}"})
            one = {"id": f"m{n}", "timestamp": stamp, "type": "gemini", "content": "a", "tokens": told}
            lines.append({**one, "model": "gemini-3.1-pro-preview"})
            held = {"role": "assistant", "providerID": "anthropic", "modelID": MODEL, "time": {"created": n}}
            tokens = {"input": 10, "output": 5, "reasoning": 0, "cache": {"read": read, "write": size - read}}
            db.execute("INSERT INTO message VALUES (?, 's', ?, ?)", (f"m{n}", n, json.dumps(held)))
            done = json.dumps({"type": "step-finish", "tokens": tokens})
            db.execute("INSERT INTO part VALUES (?, ?, 's', ?)", (f"p{n}", f"m{n}", done))
    db.close()
    (chats / "session-1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = own_home / ".config/opencode/opencode.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"compaction": {"auto": true}}')
    shown = run("audit", "--apply")
    assert '+    "compressionThreshold": 0.7' in shown
    assert json.loads(config.read_text()) == {"compaction": {"auto": True, "prune": False}}
    assert run("audit", "--verify").count("no request since") == 2
    assert run("audit", "--revert").count("put back") == 2
    assert config.read_text() == '{"compaction": {"auto": true}}'
    assert not (own_home / ".gemini/settings.json").exists()


# The lock.


def test_prefixes_are_locked_and_moves_need_a_reason(home: Path) -> None:
    def write(*bodies: dict[str, Any]) -> None:
        Path("r.jsonl").write_text("\n".join(json.dumps({"request": each}) for each in bodies))

    tool = {"name": "read", "input_schema": {"type": "object"}}
    first, second = body(1, tools=[tool]), body(3, tools=[tool])
    write(first, second)
    with pytest.raises(CallError, match=r"there is no 'quire\.lock'"):
        run("check", "r.jsonl")
    assert run("lock", "r.jsonl") == "quire.lock: the prefixes of 2 requests\n"
    # Marks may move, and requests may follow.
    write(first, body(3, tools=[{**tool, "cache_control": {"type": "ephemeral"}}]), body(5))
    assert run("check", "r.jsonl") == "the prefixes are as they were locked\n"
    for moved, place, what in (
        (body(1, tools=[{**tool, "description": "new"}]), "tools.0", "changed"),
        (body(1, tools=[tool], system="now"), "system", "changed"),
        (body(1, model="claude-sonnet-4-5", tools=[tool]), "", "goes to"),
    ):
        write(moved, second)
        told = invoke("check", "r.jsonl", code=1).stderr
        assert [word for word in (place, what) if word not in told] == []
    (found,) = json.loads(invoke("check", "r.jsonl", "--json", "--lock", "quire.lock", code=1).stdout)
    assert found["request"] == 1
    with pytest.raises(CallError, match="the prefixes of 1 request moved"):
        run("lock", "r.jsonl")
    run("lock", "r.jsonl", "--reason", "another model", "--lock", "quire.lock")
    assert json.loads(Path("quire.lock").read_text())["reasons"] == ["another model"]
    run("check", "r.jsonl")
