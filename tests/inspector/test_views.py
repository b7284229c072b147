"""The values that the inspector shows: they say what `quire assemble` and `quire diff` say, however a thread came."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import MODEL, recorded, session

from conftest import ROOT
from quire import Entry, Policy, open_store
from quire.audit import audit
from quire.errors import CallError
from quire.log.store import ThreadInfo
from quire.server.figures import ThreadTotals, spending
from quire.server.inspector import page, security_policy, sent_calls
from quire.server.views import ThreadView, try_policies
from toolbox import QUIRE, Store, chain, encode_lines, fewer, invoke, no_web_server, run, talk, until

pytestmark = pytest.mark.moves_prefix(reason="threads are cut on purpose")
STATIC = ROOT / "src/quire/server/static"


@pytest.fixture
def sent(store: Store) -> ThreadView:
    """A recorded thread with rebases and what the provider reported."""
    recorded(store)
    return ThreadView("release notes", store.read("release notes"))


def test_an_audit_of_threads_says_what_the_page_says(tmp_path: Path) -> None:
    with open_store(tmp_path / "q.db") as store:
        recorded(store)
        shown = audit(sent_calls(store)).as_json()
    assert json.loads(run("audit", "--threads", "--db", tmp_path / "q.db", "--json")) == shown
    assert [each["cause"] for each in shown["causes"]] == ["compaction"]
    with pytest.raises(CallError, match="no PATH"):
        run("audit", "--threads", "log.jsonl")


def test_the_picture_says_what_assemble_says(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    entries = session(60)
    file.write_text("".join(encode_lines(entries)))
    rows = [json.loads(line) for line in run("assemble", file, "--budget", 1500, "--json").splitlines()]
    seen = ThreadView("long", entries, Policy(budget=1500))
    columns = seen.picture().columns
    assert [each.tokens for each in columns] == [row["total_tokens"] for row in rows]
    assert [each.epoch for each in columns] == [row["epoch"] for row in rows]
    told = [(row["reused_tokens"], each) for row, each in zip(rows, columns, strict=True)]
    assert [each.read for each in columns if not each.cold] == [tokens for tokens, each in told if not each.cold]
    assert {each.n for each in columns if each.rebase} == {n for n, row in enumerate(rows, 1) if row["rebase"]}
    for column, row in zip(columns, rows, strict=True):
        tools, l1, l2, older, l3, l5, newer = column.bands
        assert row["tokens"] == {"L1": l1, "L2": l2, "L3": l3, "L4": older + newer, "L5": l5, "tools": tools}
    for n in (1, 25, len(rows)):
        detail = seen.request(n)
        layers = {name: sha256 for name, sha256 in rows[n - 1]["layers"].items() if name != "all"}
        assert {each.id: each.sha256 for each in detail.layers} == layers
        left = [seq for group in detail.left_out for first, last in group.entries for seq in range(first, last + 1)]
        assert sorted(left) == sorted({each["entry"] for each in rows[n - 1]["left_out"]})


def test_what_was_reported_is_shown_as_reported(sent: ThreadView) -> None:
    columns = sent.picture().columns
    assert all(each.reported and each.model == MODEL and each.usd for each in columns)
    (cold,) = [each for each in columns if each.cold]
    assert (cold.read, cold.turn) == (0, 10)
    totals = ThreadTotals()
    totals.extend(sent.entries)
    assert sum(each.read for each in columns) == totals.row(ThreadInfo("t", 0, "")).read


@given(cut=st.integers(1, 80), turns=st.integers(3, 14))
@fewer(20)
def test_a_thread_that_grows_is_seen_as_if_it_had_been_read_at_once(cut: int, turns: int) -> None:
    entries = list(chain(talk(turns, 30)))
    policy = Policy(budget=400)
    grown = ThreadView("t", entries[:cut], policy).extend(entries[cut:])
    assert grown.picture() == ThreadView("t", entries, policy).picture()


def test_a_thread_with_charges_of_no_known_price_has_none_in_the_list_either(tmp_path: Path) -> None:
    used = {"input_total": 1_000, "output": 10, "besides": ["web_search"]}
    sent = {"kind": "sent", "provider": "anthropic", "model": "claude-opus-5-5", "request_sha256": "", "segments": []}
    entries = list(chain([Entry("sent", {**sent, "usage": used})]))
    totals = ThreadTotals()
    totals.extend(entries)
    row, all_in_all = totals.row(ThreadInfo("t", 1, "")), spending(entries)
    assert (row.requests, row.tokens, row.usd) == (1, 1_000, None)
    assert (all_in_all.requests, all_in_all.unpriced, all_in_all.usd) == (1, 1, 0.0)
    with open_store(tmp_path / "q.db") as store:
        store.create("t")
        assert invoke("usage", "--db", f"{tmp_path}/q.db").output.split()[-1] == "$0.0000"
        store.append("t", entries)
    shown = invoke("usage", "--db", f"{tmp_path}/q.db").output
    assert shown.split()[-7:] == ["unknown", "1", "request", "without", "a", "known", "price"]


def test_segments_tell_since_when_they_are_cached(sent: ThreadView) -> None:
    columns = sent.picture().columns
    cut = next(each.n for each in columns if each.rebase)
    before, at, after = sent.request(cut - 1), sent.request(cut), sent.request(cut + 1)
    assert {each.since for each in at.segments} == {cut}, "a rebase writes everything anew"
    assert [each.since for each in before.segments] == sorted(each.since for each in before.segments)
    assert {each.since for each in after.segments} == {cut, cut + 1}
    assert {each.made for each in at.segments} >= {"summary", "handle"}
    assert sum(each.tokens for each in after.segments) == pytest.approx(after.column.tokens, abs=40)
    place = next(n for n, each in enumerate(at.segments) if each.made == "summary")
    assert sent.segment_text(cut, place).startswith("# Summary")


def test_two_requests_are_told_apart_with_cause_and_money(sent: ThreadView) -> None:
    cut = next(each.n for each in sent.picture().columns if each.rebase)
    moved = sent.compare(cut, cut - 1)
    assert (moved.extends, moved.first, moved.second) == (False, cut - 1, cut)
    assert moved.cause.startswith("rebase (budget)")
    assert moved.again > 0
    assert moved.usd is not None
    same = sent.compare(1, 2)
    assert (same.extends, same.again, same.cause) == (True, 0, "")
    assert sent.compare(1, len(sent.picture().columns)).cause.startswith("rebase")


def test_a_string_is_followed_from_entry_to_summary(sent: ThreadView) -> None:
    found = sent.where("src/m1.py", lambda text: [7])
    assert found.entered[0].kind == "user"
    assert found.stretches[0].standing == "verbatim"
    assert found.stretches[-1].standing in ("summary", "nothing")
    assert "rebase" in found.stretches[1].by
    assert found.recalled == (7,)
    assert sent.where("never said").stretches == ()
    gone = sent.where("commit 1abcdef")
    assert gone.stretches[0].standing == "verbatim"
    assert gone.stretches[-1].standing == "nothing"


def test_other_policies_are_run_over_the_whole_thread(sent: ThreadView) -> None:
    outcomes = {each.policy: each for each in try_policies(sent, budget=3_000).outcomes}
    assert outcomes["everything"].kept == 1.0
    assert len(outcomes["Quire"].cuts) >= 1
    small, large = (try_policies(sent, "Quire", budget=budget).outcomes[0] for budget in (2_500, 100_000))
    assert len(small.cuts) > len(large.cuts) == 0
    assert try_policies(ThreadView("t", session(20), Policy(budget=900)), "optimum").optimum.cost


def test_a_body_stands_with_its_marks_and_findings(sent: ThreadView) -> None:
    body = sent.body(5, MODEL)
    assert "cache_control" in msgspec.json.encode(body.body).decode()
    assert body.findings == ()
    assert sent.body(5, "gemini:gemini-3-pro").body["contents"]


# The page and the report.


def test_the_page_runs_its_own_script_alone_and_its_data_are_inert() -> None:
    made = page({"text": "</script><script>alert(1)</script>"}, "<b>&")
    assert "alert(1)</script>" not in made
    assert "<title>&lt;b>&amp;</title>" in made
    (script,) = re.findall(r'<script type="module">(.*?)</script>', made, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in security_policy(served=False)
    assert not re.findall(r"(?:src|href)=\"?https?:", made.replace(script, ""))
    assert "connect-src 'none'" in made
    assert "connect-src 'self'" in page()


def test_report_where_and_open_from_the_shell(home: Path) -> None:
    file = home / "five.jsonl"
    file.write_text("".join(encode_lines(session(24))))
    told = run("report", file, "--output", home / "a.html", "--budget", 900)
    assert told.startswith(f"{home / 'a.html'}: 24 requests")
    assert run("report", file, "--quick", "-o", home / "b.html")
    assert run("report", file, "--quick", "-o", home / "b.html"), "over an earlier page"
    assert run("report", file, "--quick", "-o", "-").startswith("<!doctype html>")
    assert not Path("-").exists()
    with pytest.raises(CallError, match="is there already, and is no page"):
        run("report", file, "--quick", "-o", file)
    whole, quick = ((home / name).read_text() for name in ("a.html", "b.html"))
    assert '"what_if":null' in quick
    assert '"optimum":{"cost"' in whole
    told = run("where", file, "Task 1:", "--budget", 900)
    assert "entry 2 (user, turn 1)" in told
    assert "verbatim" in told
    assert json.loads(run("where", file, "nowhere", "--json"))["count"] == 0
    assert "it never stood" in run("where", file, "nowhere")
    assert "\n24        verbatim" in run("where", file, "src/module_23.py")
    run("log", "new", "demo")
    run("log", "append", "demo", "--user", "Hello")
    assert run("where", "demo", "Hello") == "entry 1 (user, turn 1): Hello\nit has stood in no request yet\n"
    words = ["open", "demo", "--port", "0", "--no-browser"]
    with subprocess.Popen([*QUIRE, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as opened:
        try:
            address = opened.stdout.readline().strip()
            port = address.split(":")[2].split("/")[0]
            assert address.endswith("/#/thread/demo")
            again = run("open", "demo", "--port", port, "--no-browser", "--db", os.environ["QUIRE_DB"], QUIRE_DB="x.db")
            assert again.strip() == address, "what runs already is used"
            run("serve", "keys", "add", "laptop")
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/api/threads").status_code == 401)
            assert run("open", "demo", "--port", port, "--no-browser").strip() == address, "the page asks for the key"
        finally:
            opened.kill()
    from quire.errors import NotFound

    with pytest.raises(NotFound):
        invoke("open", "nope", "--no-browser")
    with no_web_server() as address, pytest.raises(CallError, match="cannot be used"):
        invoke("open", "demo", "--no-browser", "--port", address.rpartition(":")[2])


# The bundle.


def test_the_bundle_is_what_its_sources_build(tmp_path: Path) -> None:
    """Whoever installs Quire needs no Node; here it shows that what ships was built from what is kept."""
    folder = ROOT / "inspector"
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    if not (folder / "node_modules/esbuild").exists():
        done = subprocess.run([npm, "ci", "--silent"], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the inspector's parts cannot be installed: {done.stderr[-300:]}")
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=folder, check=True, capture_output=True)
    for file in sorted(tmp_path.iterdir()):
        assert (STATIC / file.name).read_bytes() == file.read_bytes(), f"{file.name}: run `npm run build` in inspector/"
    subprocess.run(["node", "node_modules/typescript/bin/tsc", "-p", "."], cwd=folder, check=True)


def test_the_bundle_is_small_and_names_no_registry() -> None:
    import gzip

    whole = b"".join(file.read_bytes() for file in sorted(STATIC.iterdir()))
    assert len(gzip.compress(whole)) < 150_000
    assert "resolved" not in (ROOT / "inspector/package-lock.json").read_text()
