"""`quire run`, `quire chat` and `quire resume` make the same runner of the same options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire import Policy, Thread, open_store
from quire.cli.main import quire
from quire.errors import CallError
from quire.send.runners import PLANNER
from quire.testing import Refuse, emulator
from quire.values import JsonObject
from toolbox import stored

pytestmark = pytest.mark.xdist_group("sdk")
TARGET = "vllm:some-model"
Command = Callable[..., Result]


@pytest.fixture
def command(home: Path) -> Command:
    (home / "notes").mkdir()
    (home / "notes" / "tea.md").write_text("Green tea needs water of 80 degrees. #tea")
    (home / "facts.txt").write_text("Ship in May.\n")
    (home / "prompt.md").write_text("You plan.\n")
    (home / "elsewhere").mkdir()
    return lambda *words, **how: CliRunner().invoke(quire, list(words), **how)


def asked(body: JsonObject) -> JsonObject:
    return {name: body.get(name) for name in ("messages", "tools")}


def answer(body: JsonObject) -> Any:
    """A model that plans nothing and answers everything."""
    return "[]" if "response_format" in body else "Fine."


# Options, and what only a request that they make holds.
WORKING = [
    (["--system", "Be brief."], "Be brief."),
    (["--vault", "notes"], "<localSearch>"),
    (["--runner", "chat", "--vault", "notes", "--attach", "[[tea]]"], "<note_context>"),
    (["--runner", "agent", "--vault", "notes"], "'name': 'localSearch'"),
    (["--runner", "planned", "--vault", "notes", "--root", "notes"], PLANNER[:40]),
    (["--runner", "project", "--vault", "notes", "--system", "You plan."], "<project_system_prompt>"),
    (["--runner", "project", "--file", "facts.txt"], "<project_context>"),
    (["--project", "prompt.md", "--file", "facts.txt"], "<project_context>"),
    (["--root", "notes", "--project", "prompt.md"], "'name': 'read'"),
    (["--root", "notes", "--text-tools"], "$call:"),
    (["--attach", "facts.txt:1-1"], '<context_item id="facts.txt#L1-L1"'),
    (["--memory", "facts.txt", "--runner", "chat", "--vault", "notes", "--note", "tea"], "<active_note>"),
    (["--runner", "records", "--root", "notes", "--attach", "facts.txt"], "agent.response.v1"),
]
OPTIONS = [" ".join(options) for options, _ in WORKING]


@pytest.mark.parametrize(("options", "holds"), WORKING, ids=OPTIONS)
def test_run_chat_and_resume_ask_the_same(command: Command, options: list[str], holds: str) -> None:
    where = ["--model", TARGET]
    with emulator("vllm", answer) as server:
        address = ["--base-url", f"{server.url}/v1"]
        assert command("run", "a", "How hot?", *options, *where, *address).exit_code == 0
        by_run = [asked(one.body) for one in server.requests]
        assert command("chat", "b", *options, *where, *address, input="How hot?\n").exit_code == 0
        by_chat = [asked(one.body) for one in server.requests][len(by_run) :]
    assert by_run == by_chat
    assert holds in str(by_run)
    meta = [next(one for one in stored(name) if one.kind == "user").meta for name in "ab"]
    assert meta[0] == meta[1]


@pytest.mark.parametrize("options", [options for options, _ in WORKING], ids=OPTIONS)
@pytest.mark.parametrize("begin", ["run", "chat"])
def test_a_turn_is_resumed_as_it_was_begun_from_any_folder(
    command: Command, monkeypatch: pytest.MonkeyPatch, begin: str, options: list[str]
) -> None:
    where = ["--model", TARGET]
    with emulator("vllm", lambda body: answer(body) if "response_format" in body else Refuse(400, "no")) as no:
        words = ["run", "t", "How hot?"] if begin == "run" else ["chat", "t"]
        command(*words, *options, *where, "--base-url", f"{no.url}/v1", input="How hot?\n")
        refused = asked(no.requests[-1].body)
    monkeypatch.chdir("elsewhere")
    with emulator("vllm", ["Fine."]) as server:
        result = command("resume", "t", "--base-url", f"{server.url}/v1")
        assert result.exit_code == 0, result.exception
        assert [asked(one.body) for one in server.requests] == [refused]
    assert result.stdout.startswith("Fine.\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--runner", "chat", "--root", "."], "--root does not go with the chat runner"),
        (["--runner", "qa", "--vault", "notes", "--root", "."], "--root does not go with the qa runner"),
        (["--runner", "planned", "--text-tools"], "--text-tools does not go with the planned runner"),
        (["--runner", "chat", "--mcp", "server"], "--mcp does not go with the chat runner"),
        (["--runner", "agent", "--consumer", "desk"], "--consumer does not go with the agent runner"),
        (["--runner", "qa"], "the qa runner needs notes to search"),
        (["--runner", "project"], "the project runner needs a project"),
    ],
)
@pytest.mark.parametrize("words", [["run", "t", "Hi"], ["chat", "t"], ["resume", "t"]])
def test_what_does_not_apply_is_an_error(
    command: Command, tmp_path: Path, words: list[str], options: list[str], problem: str
) -> None:
    if words[0] == "resume":
        with open_store(tmp_path / "quire.db") as store:
            Thread(store, "t").user("Hi")
    failed = command(*words, *options, "--model", TARGET, "--base-url", "http://127.0.0.1:9").exception
    assert isinstance(failed, CallError)
    assert str(failed) == problem
    assert failed.hint


def test_another_runner_leaves_behind_what_it_has_no_use_for(command: Command) -> None:
    with emulator("vllm", [Refuse(400, "no"), "Fine."]) as server:
        where = ["--base-url", f"{server.url}/v1"]
        command("run", "t", "Hi", "--root", "notes", "--model", TARGET, *where)
        assert command("resume", "t", "--runner", "chat", *where).stdout == "Fine.\n"


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_thread_goes_on_under_the_policy_that_it_was_sent_under(command: Command, tmp_path: Path) -> None:
    long = "What about the harbor and the old lighthouse? " * 60
    with emulator("vllm", lambda body: "It stands. " * 40) as server:
        where = ["--model", TARGET, "--base-url", f"{server.url}/v1"]
        with open_store(tmp_path / "quire.db") as store:
            thread = Thread(store, "t", Policy(budget=3000))
            thread.user("Hi")
            thread.record({"choices": [{"message": {"content": "Yes?"}, "finish_reason": "stop"}]}, thread.request(TARGET))  # fmt: skip
        for _ in range(6):
            assert command("run", "t", long, *where).exit_code == 0
        sent = [one.meta["policy"] for one in stored() if one.kind == "sent"]
        assert {one["budget"] for one in sent} == {3000}
        assert "rebase" in [one.kind for one in stored()]
        assert command("run", "t", "And?", "--floor", "0.4", "--promote", "each-turn", *where).exit_code == 0
        assert command("chat", "t", "--budget", "2000", *where, input="And?\n").exit_code == 0
        last = stored()[-1].meta["policy"]
        assert (last["budget"], last["floor"], last["promote"]) == (2000, 0.4, "each-turn")
        assert command("run", "t", "Now?", "--items", "markdown", "--model", TARGET, "--base-url", "http://127.0.0.1:9").exception  # fmt: skip
        chosen = ["--budget", "2500", "--floor", "0.3", "--promote", "at-rebase", "--items", "xml"]
        assert command("resume", "t", *chosen, "--summary", "built-in", "--db", "quire.db", *where).exit_code == 0
        asked, answered = (one.meta["policy"] for one in stored()[-4::3])
    assert asked["items"] == "markdown"
    assert (answered["budget"], answered["floor"]) == (2500, 0.3)
    assert not {"promote", "items"} & answered.keys(), "the defaults again"


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
@pytest.mark.parametrize("options", [(), ("--summary", "built-in")], ids=["model", "built-in"])
def test_the_model_sums_up_what_a_rebase_takes_away_unless_told_otherwise(
    command: Command, options: tuple[str, ...]
) -> None:
    long = "What about the harbor and the old lighthouse? " * 60

    def reply(body: JsonObject) -> str:
        return "We spoke of the harbor." if "summarise our" in str(body["messages"][-1]) else "It stands. " * 40

    with emulator("vllm", reply) as server:
        where = ["--model", TARGET, "--base-url", f"{server.url}/v1", "--budget", "3000", *options]
        for turn in range(6):
            words = ["run", "t", long] if turn % 2 else ["chat", "t"]
            assert command(*words, *where, input=f"{long}\n").exit_code == 0
    summaries = [one.body["summary"] for one in stored() if one.kind == "rebase"]
    assert [text.startswith("We spoke of the harbor.") for text in summaries] == [not options] * len(summaries) != []


@pytest.mark.moves_prefix(reason="a small window rebases on the way")
def test_a_window_that_a_refusal_names_is_learned_once_and_the_turn_goes_on(command: Command) -> None:
    def small(body: JsonObject) -> Any:
        size = len(str(body["messages"])) // 4
        return Refuse(400, f"maximum context length is 4096 tokens, you asked for {size}") if size > 4096 else "Yes."

    long = "What about the harbor and the old lighthouse? " * 80
    with emulator("vllm", small) as server:
        where = ["--model", TARGET, "--base-url", f"{server.url}/v1"]
        done = [command("run", "t", f"{turn}: {long}", *where) for turn in range(12)]
        refused = sum("summarise our" not in str(one.body["messages"][-1]) for one in server.requests) - 12
    assert [one.exit_code for one in done] == [0] * 12, [one.exception for one in done]
    assert refused == 1
    assert sum("takes 4,096 tokens" in one.stderr for one in done) == 1
    last = stored()[-1].meta
    assert 2000 < last["window"] <= 4096
    assert "policy" not in last


@pytest.mark.parametrize(
    ("target", "variable", "path"),
    [
        ("anthropic:claude-opus-5-5", "ANTHROPIC_BASE_URL", ""),
        ("openai:gpt-6-sol", "OPENAI_BASE_URL", "/v1"),
        ("gemini:gemini-3-flash", "GOOGLE_GEMINI_BASE_URL", ""),
    ],
)
def test_the_address_that_the_sdk_would_take_is_taken(
    command: Command, monkeypatch: pytest.MonkeyPatch, target: str, variable: str, path: str
) -> None:
    with emulator(target.partition(":")[0], ["Here."], lenient=True) as server:
        monkeypatch.setenv(variable, server.url + path)
        assert command("run", "t", "Hi", "-m", target).output.startswith("Here.\n")
