"""assemble, show, diff and plan from the shell."""

import json
import math
from pathlib import Path

import pytest

from quire import Assembly, Entry, Policy, QuireError, values
from quire.errors import CallError
from quire.providers import Rendering
from toolbox import chain, encode_lines, invoke, run, talk, written

pytestmark = pytest.mark.moves_prefix(reason="small budgets, to see rebases")


def thread(turns: int = 30) -> list[Entry]:
    out = [values.system("Help.")]
    for n in range(turns):
        out += [
            values.user(f"question {n}"),
            values.call(f"c{n}", "read", {"n": n}),
            values.result(f"c{n}", None, f"result {n}\n" + "a line of the result\n" * 40),
            values.respond(f"answer {n}"),
        ]
    return out


@pytest.fixture
def file(tmp_path: Path) -> str:
    return written(tmp_path, thread())


def test_assemble_prints_one_object_per_request(file: str) -> None:
    rows = [json.loads(line) for line in run("assemble", file, "--budget", "2000", "--json").splitlines()]
    assert len(rows) == 60
    assert [(row["turn"], row["step"]) for row in rows[:4]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in rows:
        assert sum(row["tokens"].values()) == row["total_tokens"] <= 2000
        assert row["messages"][0] == {"role": "system", "content": "Help."}
        assert set(row["layers"]) == {"L1", "L2", "L3", "L4", "L5", "all"}
    assert any(row["rebase"] for row in rows)
    assert {left["entry"] for left in rows[-1]["left_out"]} <= set(range(1, 122))


def test_the_json_of_a_thread_writes_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, write = list[object](), Rendering._write
    monkeypatch.setattr(Rendering, "_write", lambda by, *given: messages.append(given[0]) or write(by, *given))
    lines = run("assemble", written(tmp_path, chain(talk(40))), "--json").splitlines()
    assert [len(lines), len(json.loads(lines[-1])["messages"])] == [40, 80]
    assert len(messages) == 79


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([values.system("Help.")], "no request: nobody has asked the model anything yet\n"),
        ([values.user("Hello")], "no request: the model has not spoken yet; `quire render` shows the request that comes next\n"),
    ],
)  # fmt: skip
def test_a_thread_without_a_request_says_what_is_missing(tmp_path: Path, entries: list[Entry], told: str) -> None:
    done = invoke("assemble", written(tmp_path, entries))
    assert (done.stdout, done.stderr) == ("", told)


def test_room_for_the_reply_is_kept_free(file: str) -> None:
    def most(*reply: str) -> int:
        made = run("assemble", file, "--budget", "2000", *reply, "--json").splitlines()
        return max(json.loads(line)["total_tokens"] for line in made)

    assert most("--reply", "1000") <= 1000 < most("--reply", "0")


def test_a_request_that_cannot_fit_is_counted_apart(tmp_path: Path) -> None:
    path = written(tmp_path, [values.user("word " * 900), values.respond("ok")])
    rows = [json.loads(line) for line in run("assemble", path, "--budget", "100", "--json").splitlines()]
    assert "the user's message" in rows[0]["error"]
    assert "messages" not in rows[0]


def test_the_view_for_people_names_layers_reuse_and_rebases(file: str) -> None:
    shown = run("assemble", file, "--budget", "2000")
    assert "rebase (" in shown
    assert "reused" in shown
    assert "left out: entries" in shown


def test_show_gives_the_original_of_a_handle(file: str) -> None:
    rows = [
        json.loads(line)
        for line in run("assemble", file, "--budget", "2000", "--handles", "0.25", "--json").splitlines()
    ]
    handles = [e for row in rows if row["rebase"] for e in row["rebase"]["edits"] if e["action"] == "handle"]
    assert handles
    entry = list(chain(thread()))[handles[0]["entry"] - 1]
    handle = entry.id.removeprefix("sha256:")[:12]
    assert handle in handles[0]["replacement"]
    assert run("show", handle, "--in", file) == entry.body["content"] + "\n"
    assert run("show", str(entry.seq), "--in", file) == entry.body["content"] + "\n"


def test_diff_names_the_byte_the_layer_and_the_cause(file: str) -> None:
    assert "extends turn 1" in run("diff", file, "1", "2", "--budget", "2000")
    assert run("diff", file, "2", "1", "--budget", "2000") == run("diff", file, "1", "2", "--budget", "2000")
    assert run("diff", file, "2", "2") == "no byte differs: both are turn 2\n"
    found = json.loads(run("diff", file, "1", "20", "--budget", "2000", "--json"))
    assert found == json.loads(run("diff", file, "20", "1", "--budget", "2000", "--json"))
    assert found["extends"] is False
    assert found["layer"] == "L4"
    assert found["cause"].startswith("rebase (")


def test_plan_compares_policies_with_the_optimum(file: str) -> None:
    made = json.loads(run("plan", file, "--budget", "2000", "--json"))
    by_name = {row["policy"]: row for row in made["policies"]}
    assert by_name["drop only"]["cost"] < by_name["never cut"]["cost"]
    assert by_name["hindsight optimum"]["cuts"]
    assert made["requests"] == 60


def test_a_log_from_elsewhere_is_counted_and_priced_as_the_model_that_is_named(file: str) -> None:
    costs = []
    for model in ((), ("-m", "anthropic:claude-opus-5-5"), ("--model", "openai:gpt-4o")):
        plan = json.loads(run("plan", file, "--budget", "4000", *model, "--json"))
        costs.append(plan["policies"][0]["cost"])
    assert len(set(costs)) == 3  # 0.1 and 1.25, 0.05 and 1.25, 0.5 and 1
    run("report", file, "-m", "anthropic:claude-opus-5-5", "--quick", "-o", f"{file}.html")
    assert '"usd":' in Path(f"{file}.html").read_text()
    for command in (["assemble", file], ["diff", file, "1", "2"], ["where", file, "a"]):
        with pytest.raises(CallError, match="'opus' does not say which provider"):
            run(*command, "--model", "opus")


def test_plan_warns_of_a_budget_that_ends_epochs_early(tmp_path: Path) -> None:
    path, said = tmp_path / "t.jsonl", [values.user("Read them all.")]
    for n in range(20):
        said += [values.call(f"c{n}", "read", {}), values.result(f"c{n}", None, f"river stone {n}\n" * 200)]
    path.write_text("".join(encode_lines([*said, values.respond("done")])))
    small, large = (run("plan", str(path), "--budget", budget) for budget in ("2400", "40000"))
    assert "warning: the newest epochs lasted" in small
    assert "--budget" in small
    assert "warning" not in large


def test_what_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(QuireError, match="no file called 'nobody', and there is no database") as caught:
        run("assemble", "nobody", "--db", str(tmp_path / "none.db"))
    assert caught.value.hint


def test_plan_says_so_where_no_cuts_would_have_fitted_every_request(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    talk = [values.user("word " * 30), values.respond("ok"), values.user("b"), values.respond("ok")]
    path.write_text("".join(encode_lines(talk)))
    told = json.loads(run("plan", str(path), "--budget", "10", "--json"))
    assert told["policies"][-1]["cost"] is None
    assert {row["policy"]: row.get("refused") for row in told["policies"]}["drop only"] >= 1
    assert "none" in run("plan", str(path), "--budget", "10")


def test_plan_leaves_out_policies_that_do_not_go_with_the_shares_given(file: str) -> None:
    shares = ("--opening", "0.4", "--floor", "0.4", "--handles", "0", "--summary", "0")
    made = json.loads(run("plan", file, "--budget", "2000", *shares, "--json"))
    names = [row["policy"] for row in made["policies"]]
    assert "as given" in names
    assert "two tiers" not in names


@pytest.mark.parametrize("share", ["opening", "handles", "summary", "floor"])
def test_shares_are_finite_numbers(file: str, share: str) -> None:
    assert "'nan' is no number" in invoke("assemble", file, f"--{share}", "nan", code=2).output
    with pytest.raises(CallError, match="are not shares"):
        Policy(**{share: math.nan})


@pytest.mark.parametrize("count", ["reply", "ttl_s", "unused_turns", "image_tokens"])
def test_a_policy_counts_no_less_than_nothing(count: str) -> None:
    """Of a reply less than nothing the budget would grow."""
    with pytest.raises(CallError, match=f"{count} -5"):
        Policy(budget=1000, **{count: -5})


POLICY = (
    "--reply 900 --promote each-turn --items markdown --floor 0.6 --handles 0.3 --summary 0 --opening 0.3 --ttl 0 "
    "--read 0.9 --write 5 --model anthropic:claude-opus-5-5"
)


@pytest.mark.parametrize(
    ("command", "unmoved"),
    [
        ("plan FILE --json", ""),
        ("report FILE --quick -o -", ""),
        ("assemble FILE --json", "--write"),
        ("where FILE n2 --json", "--items --floor --handles --ttl --write"),
        ("diff FILE 1 20 --json", "--items --floor --handles --opening --ttl --write"),
    ],
)
def test_every_command_that_assembles_obeys_each_option_of_the_policy(
    tmp_path: Path, command: str, unmoved: str
) -> None:
    """What does not show in a command's answer may leave it as it is; nothing else may."""
    log, at = [values.system("Help.")], 0
    for n in range(1, 25):
        at += 4_000_000 if n % 8 == 0 else 30_000
        item = {"id": f"n{n}.md", "type": "text", "content": f"note {n} " * 30}
        log += [values.user(f"question n{n}", [item] if n % 3 == 0 else [], at=at), values.call(f"c{n}", "read", {})]
        log += [values.result(f"c{n}", None, "a line of the result\n" * 60, at=at), values.respond("answer", at=at)]
    words = [*command.replace("FILE", written(tmp_path, log)).split(), "--budget", "2500"]
    plain, given = run(*words), POLICY.split()
    options = dict(zip(given[::2], given[1::2], strict=True))
    moved = {option for option, value in options.items() if run(*words, option, value) != plain}
    assert options.keys() - moved <= set(unmoved.split())


def test_prices_are_finite_numbers(file: str) -> None:
    assert "'nan' is no number" in invoke("plan", file, "--write", "nan", code=2).output
    with pytest.raises(CallError, match="are not prices"):
        run("plan", file, "--write", "inf")
    with pytest.raises(CallError, match="are not prices"):
        Policy(write=math.nan)


def test_diff_names_the_rebase_that_moved_the_byte_and_no_earlier_one(file: str) -> None:
    options = ("--budget", "2000", "--handles", "0.4")
    made = [json.loads(line) for line in run("assemble", file, *options, "--json").splitlines()]
    first_rebase = next(row for row in made if row["rebase"])
    causes = []
    for turn in range(2, 31):
        found = json.loads(run("diff", file, "1", str(turn), *options, "--json"))
        if found["extends"]:
            continue
        place = int(found["segment"].removeprefix("message "))
        now = next(n for n, row in enumerate(made) if (row["turn"], row["step"]) == (found["turn"], found["step"]))
        there = [row["messages"][place : place + 1] for row in (made[0], made[now - 1], made[now])]
        assert there[0] == there[1] != there[2]
        assert found["cause"] == f"rebase ({made[now]['rebase']['reason']}) at turn {found['turn']}.{found['step']}"
        causes.append(now)
    assert causes
    assert min(causes) > made.index(first_rebase)


def test_diff_names_a_rebase_of_the_log_by_its_entry(tmp_path: Path) -> None:
    assembly, logged = Assembly(Policy(budget=2000, handles=0.0)), list[Entry]()
    for entry in chain(thread(12)):
        if not assembly.rebases and assembly.asks(entry) and (record := assembly.request().rebase):
            logged.append(Entry("rebase", record))
        logged.append(Entry(entry.kind, entry.body))
        assembly.feed(entry)
    path = tmp_path / "logged.jsonl"
    path.write_text("".join(encode_lines(list(chain(logged)))))
    found = json.loads(run("diff", str(path), "1", "12", "--budget", "2000", "--handles", "0", "--json"))
    assert logged[found["entry"] - 1].kind == "rebase"
    assert found["cause"].endswith(f"turn {found['turn']}.{found['step']}, entry {found['entry']}")
