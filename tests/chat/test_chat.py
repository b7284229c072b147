"""`quire chat`: piped and in a real terminal, with the commands, stopping, and going on after a kill."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from quire import Entry, open_store, values
from quire.archive import load
from quire.cli.chat import OpenMarkdown, RichScreen, finished_blocks, markdown, tail
from quire.cli.chat_commands import totals
from quire.cli.output import SUMMING_UP, PlainScreen, line_of
from quire.notes.vault import Vault
from quire.providers.simulate.blocks import Shares
from quire.providers.simulate.engine_caches import StepCache
from quire.send.events import Event
from quire.testing import Cut, Refuse, emulator
from quire.values import Call, JsonObject
from toolbox import invoke, sent_body, stored

# A server that speaks the plainest of the formats, reached without any SDK.
TARGET = "vllm:some-model"

Chat = Callable[..., "tuple[str, str, list[JsonObject]]"]


@pytest.fixture
def talk(home: Path) -> Chat:
    """Run `quire chat` with lines from a pipe, at an address or against a server with these replies.

    What it printed, on standard output and standard error, and the bodies that such a server received.
    """

    def run(at: str | list[Any], lines: str, *args: str, model: str = TARGET, code: int = 0) -> Any:
        if isinstance(at, list):
            with emulator("vllm", at) as server:
                out, err, _ = run(server.url, lines, *args, model=model, code=code)
                return out, err, [one.body for one in server.requests]
        given = ["--model", model] if model else []
        done = invoke("chat", "t", *given, "--base-url", f"{at}/v1", *args, stdin=lines, code=code)
        return done.stdout, done.stderr, []

    return run


def kinds() -> list[str]:
    return [one.kind for one in stored()]


def test_each_line_of_a_pipe_is_a_turn(talk: Chat) -> None:
    out, err, bodies = talk(["Hello, **you**.", "Twice."], "Hi\n\n  And again  \n")
    assert [body["messages"][-1]["content"] for body in bodies] == ["Hi", "And again"]
    assert out == "Hello, **you**.\nTwice.\n"
    assert re.search(r"^\[t · vllm:some-model · \d+ tokens · \d+% reused · price not known\]$", err, re.M)
    assert kinds() == ["user", "sent", "respond", "sent"] * 2


def test_files_are_attached_and_tools_work_in_the_root(talk: Chat, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("def f():\n    return 42\n")
    (tmp_path / "spec.md").write_text("one\ntwo\nthree\n")
    script = [{"calls": [{"name": "read", "args": {"path": "a.py"}}]}, "It returns 42.", "Fine."]
    lines = "What does f return?\n/attach code/a.py:1-1 spec.md\nAnd this?\n"
    out, err, (first, second, third) = talk(script, lines, "--root", "code", "--attach", "spec.md")
    assert out == "It returns 42.\nFine.\n"
    assert "→ read(path='a.py')" in err
    assert "← a.py, lines 1-2 of 2" in err
    assert sorted(one["function"]["name"] for one in first["tools"]) == ["calculate", "grep", "list", "read", "recall"]
    assert first["messages"][-1]["content"].startswith(
        "<note_context>\n<title>spec</title>\n<path>spec.md</path>\n<content>\none\ntwo\nthree\n"
    )
    last = third["messages"][-1]["content"]
    assert last.startswith("Context attached:\n- spec.md\nFind them above in this conversation.\n\n")
    assert '<context_item id="code/a.py#L1-L1" type="code">\ndef f():\n</context_item>' in last
    assert second["messages"][: len(first["messages"])] == first["messages"]


def test_a_vault_answers_with_sources_and_notes_attach_by_name(talk: Chat, tmp_path: Path) -> None:
    (tmp_path / "vault" / "Tea").mkdir(parents=True)
    (tmp_path / "vault" / "Tea" / "green.md").write_text("Green tea needs 80 degrees. #tea")
    (tmp_path / "vault" / "black.md").write_text("Black tea takes boiling water. #tea")
    (tmp_path / "vault" / "bees.md").write_text("Bees dance.")
    lines = "How hot is green tea?\nSure, by [[green|that note]] and [[none]]?\n/attach #tea\n/attach Tea/\n/context\nAll?\n"
    how = ("--vault", "vault", "--save", "chats")
    out, err, bodies = talk(["80 degrees [^1].", "Yes.", "All."], lines, *how)
    asked = [body["messages"][-1]["content"] for body in bodies]
    assert "<localSearch>\nAnswer the question based only" in asked[0]
    assert out.startswith("80 degrees [^1].\n#### Sources\n\n[^1]: [[green]] (Tea/green.md)\n")
    assert "<note_context>\n<title>green</title>\n<path>Tea/green.md</path>\n" in asked[1]
    assert "[[none]] was not attached: there is no note '[[none]]'" in err
    assert re.search(r"^next turn +black.md +\d+$", out, re.M)
    assert re.search(r"^said above +Tea/green.md +\d+$", out, re.M)
    saved = load((tmp_path / "chats" / "t.md").read_text(), Vault("vault"))
    assert [one.body for one in saved.entries] == [one.body for one in stored()]
    assert saved.chat.messages[-2].context.tags == ("#tea",)
    assert saved.chat.messages[-2].context.folders == ("Tea",)
    assert all(one.at is not None for one in saved.chat.messages)


def test_commands_show_what_is_known(talk: Chat) -> None:
    lines = "/layers\n/context\n/cost\nHi\n/layers\n/cost\n/model\n/help\n/recall hi\nMore\n/quit\nnever sent\n"
    out, err, (_, second) = talk(["Hello", "Again"], lines, "--system", "Be brief.")
    recalled = second["messages"][-1]["content"]
    assert recalled.startswith("# Relevant Conversation\nUser: Hi\n")
    assert recalled.endswith("\n\n---\n\n[User query]:\n\nMore")
    assert "there is no request yet" in err
    assert "nothing is attached" in err
    assert re.search(r"^L1 +system prompt +\d+$", out, re.M)
    assert re.search(r"^ +\d+ +\d+ +\d+ +price not known +turn *$", out, re.M)
    assert "the model is vllm:some-model" in err
    assert "/undo" in out


def test_an_error_is_told_and_the_next_line_is_heard(talk: Chat) -> None:
    replies = [{"status": 400, "message": "no such model"}, "Fine."]
    lines = "/qqqq\n/attach none.txt\n/recall\n/pin\n/undo\nHi\nAgain\n"
    # Names that no file can have.
    lines += "".join(f"/attach {name}\n/export {name}\n" for name in ("~nobody-here/x", "a\0b", "x" * 5000))
    out, err, _ = talk(replies, lines, code=1)
    assert out == "Fine.\n"
    told = ["no command /qqqq\nhint: /help lists them.", "no file 'none.txt'", "/recall needs a query"]
    told += ["no answer to pin", "nothing to undo", "no such model", "no file '~nobody-here/x'", "no file 'a\\x00b'"]
    told += ["no file 'xxx", "cannot write ~nobody-here/x: No such file", "cannot write a·b", "cannot write xxx"]
    assert [line for line in told if line not in err] == []


def test_undo_takes_a_turn_back_in_a_fork_and_export_writes_a_chat_file(talk: Chat, tmp_path: Path) -> None:
    lines = "First\nSecond\n/undo\nThird\n/export out.md\n/export out.md\n"
    _, err, (*_, last) = talk(["One.", "Two.", "Three."], lines, code=1)
    assert [one["content"] for one in last["messages"]] == ["First", "One.", "Third"]
    assert "this is thread t@4, t keeps it" in err
    assert [one.text for one in stored() if one.kind == "user"] == ["First", "Second"]
    exported = load((tmp_path / "out.md").read_text()).entries
    assert [one.text for one in exported if one.kind == "user"] == ["First", "Third"]
    assert "is there already" in err


@pytest.mark.moves_prefix(reason="/compact cuts on request")
def test_pinned_files_join_every_turn_and_pinned_answers_survive_a_cut(talk: Chat, tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text("Never lie.")
    long = "A long answer about nothing. " * 40
    replies = ["The code is 4711.", long, long, "Done.", "We spoke of nothing.", "Yes."]
    _, _, asked = talk(replies, "Code?\n/pin\n/pin rules.md\nTwo\nThree\nFour\n/compact\nFive\n")
    bodies = [body["messages"] for body in asked]
    assert bodies[1][-1]["content"].startswith("<note_context>\n<title>rules</title>\n<path>rules.md</path>\n")
    assert bodies[2][-1]["content"].startswith("Context attached:\n- rules.md\n")
    assert "rebase" in kinds()
    assert len(str(bodies[5])) < len(str(bodies[3]))
    assert "The code is 4711." in str(bodies[5])


LONG = "A long answer about the harbor. " * 40


@pytest.mark.moves_prefix(reason="/compact cuts on request")
def test_compacting_has_the_model_summarise_on_the_prefix_it_has_cached(talk: Chat) -> None:
    replies = [LONG, LONG, "Done.", "We spoke of the harbor, order W1234.", "Yes."]
    _, err, asked = talk(replies, "One\nTwo\nThree\n/compact\n/cost\nFour\n")
    bodies = [body["messages"] for body in asked]
    assert bodies[3][: len(bodies[2])] == bodies[2]
    assert "summarise our conversation" in bodies[3][-1]["content"]
    (cut,) = (one.body for one in stored() if one.kind == "rebase")
    assert cut["summary"] == "We spoke of the harbor, order W1234."
    assert cut["summary"] in str(bodies[4])
    before, after = re.search(r"^([\d,]+) tokens before, ([\d,]+) after; summarised by", err, re.M).groups()  # type: ignore[union-attr]  # no match is a failure
    assert cut["freed"] == int(before.replace(",", "")) - int(after.replace(",", "")) > 0
    # Three turns and the summary, which is paid for like them.
    assert "4 requests by vllm:some-model" in err


@pytest.mark.moves_prefix(reason="/compact cuts on request")
@pytest.mark.parametrize(
    ("bad", "why"),
    [(Refuse(400, "the prompt is too long"), "summary failed: vllm"), ("", "summary was empty")],
    ids=["refused", "empty"],
)
def test_compacting_says_when_the_built_in_summary_stands_in(talk: Chat, bad: Any, why: str) -> None:
    out, err, _ = talk([LONG, LONG, "Done.", bad, "Yes."], "One, order W1234\nTwo\nThree\n/compact\nFour\n")
    assert out.endswith("Yes.\n")
    assert f"; the built-in summary stands in ({why}" in err
    (cut,) = (one.body for one in stored() if one.kind == "rebase")
    assert cut["summary"] == "User: One, order W1234"
    assert cut["meta"]["fallbacks"][0].startswith(why)


@pytest.mark.moves_prefix(reason="/compact cuts on request")
def test_compacting_without_the_model_costs_no_request(talk: Chat) -> None:
    lines = "One, order W1234\nTwo\nThree\n/compact now\n/compact built-in\n"
    _, err, bodies = talk([LONG, LONG, "Done."], lines, code=1)
    assert len(bodies) == 3
    assert "/compact takes `built-in` or nothing, not 'now'" in err
    assert re.search(r"^[\d,]+ tokens before, [\d,]+ after$", err, re.M)
    assert [one.body["summary"] for one in stored() if one.kind == "rebase"] == ["User: One, order W1234"]


def test_compacting_asks_for_nothing_where_nothing_can_go(talk: Chat) -> None:
    _, err, bodies = talk(["Short."], "/compact\nOne\n/compact\n")
    assert len(bodies) == 1
    assert err.count("there is nothing to cut yet") == 2
    assert "rebase" not in kinds()


def test_an_explicit_cache_lives_from_turn_to_turn_and_goes_with_its_model(
    talk: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepCache, "look", lambda *_: Shares())
    with emulator("gemini", ["One."] * 5) as server, emulator("vllm", ["Two."]) as other:
        lines = "Hi\n" * 5 + f"/model {TARGET} {other.url}/v1\nHi\n"
        how = ["--system", "Rules. " * 3000, "--explicit-cache", "--base-url", server.url]
        out, err, _ = talk(server.url, lines, *how, model="gemini:gemini-2.5-pro")
        calls = [one.method for one in server.requests if "/cachedContents" in one.path]
        behind = ["cachedContent" in one.body for one in server.requests if "enerateContent" in one.path]
    assert out == "One.\n" * 5 + "Two.\n"
    assert calls == ["POST", "DELETE"]
    assert behind == [False, False, True, True, True]
    assert f"the model is {TARGET}, without explicit caches" in err
    assert "tokens came from the cache" not in err


def test_a_turn_that_was_cut_off_is_resumed_at_the_start(talk: Chat) -> None:
    with open_store("quire.db") as store:
        store.append("t", [values.user("Interrupted?")])
    out, err, _ = talk(["Answered after all.", "And on."], "Next\n")
    assert out == "Answered after all.\nAnd on.\n"
    assert "going on with the turn that was interrupted" in err
    assert [one.text for one in stored() if one.kind == "user"] == ["Interrupted?", "Next"]


def test_a_reply_that_breaks_off_is_asked_for_again(talk: Chat) -> None:
    out, _, bodies = talk([Cut("It was a dark and stormy night.", 400), "Calm."], "Weather?\n")
    assert len(bodies) == 2
    assert out.endswith("Calm.\n")
    assert stored()[-2].text == "Calm."


def test_the_threads_last_model_is_used_again(talk: Chat) -> None:
    with emulator("vllm", ["One.", "Two."]) as server:
        talk(server.url, "Hi\n")
        assert talk(server.url, "Again\n", model="")[0] == "Two.\n"
    assert stored()[-1].body["model"] == "some-model"


# A real terminal


class Terminal:
    """`quire chat` in a pseudo-terminal."""

    def __init__(self, url: str, cwd: Path, *args: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "quire", "chat", "t", "--model", TARGET, "--base-url", f"{url}/v1"]
        env = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        env["XDG_STATE_HOME"] = str(cwd / "state")
        self.process = subprocess.Popen(
            [*command, *args], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env, start_new_session=True,
            preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    @property
    def settings(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._master)

    def until(self, text: str, timeout_s: float = 600.0, ended: bool = False) -> str:
        """Everything shown up to and including a text; or, where the program has `ended`, all."""
        end = time.monotonic() + timeout_s
        while text not in self.seen and not (ended and self.process.poll() is not None):
            assert time.monotonic() < end, f"{text!r} never came; there is {self.seen[-500:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:
                    break
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


def _own_terminal() -> None:
    """Ctrl-C in a terminal goes to the program that controls it."""
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminals(home: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def opening(url: str, *args: str) -> Terminal:
        opened.append(Terminal(url, home, *args))
        return opened[-1]

    yield opening
    for one in opened:
        one.close()


def test_in_a_terminal_ctrl_c_stops_the_answer_and_keeps_what_came(terminals: Callable[..., Terminal]) -> None:
    def reply(body: JsonObject) -> str:
        return "endless " * 20_000 if body["messages"][-1]["content"] == "Story" else "# Title\n\nA **bold** end."

    with emulator("vllm", reply, piece=8) as server:
        terminal = terminals(server.url)
        terminal.until("Ctrl-D leaves")
        terminal.type("Story\r")
        terminal.until("endless endless")
        terminal.type("typed ahead")
        shown = "".join(terminal.until("endless endless") for _ in range(200))
        terminal.type("\x03")
        # What is drawn stays whole: a terminal would write the keys into it.
        assert "typed ahead" not in shown + terminal.until("stopped; what came is kept")
        terminal.type("Short\r")
        shown = terminal.until("end.")
        # The line's last picture: one that was drawn while the words came may show half of a mark.
        assert "Title" in shown
        assert "**" not in shown[shown.rindex("A ") :]
        terminal.type("/layers\r")
        terminal.until("epoch 1, ")
        terminal.type("/quit\r")
        assert terminal.process.wait(600) == 0
    stopped = [one for one in stored() if one.meta.get("stopped")]
    assert [one.kind for one in stopped] == ["respond", "sent"]
    assert stopped[0].text.startswith("endless endless")
    assert len(stopped[0].text) < 160_000


def test_a_chat_that_is_told_to_end_keeps_what_came_and_leaves_the_terminal_as_it_was(
    terminals: Callable[..., Terminal],
) -> None:
    with emulator("vllm", ["endless " * 20_000], piece=8) as server:
        terminal = terminals(server.url)
        before = terminal.settings
        terminal.until("Ctrl-D leaves")
        terminal.type("Story\r")
        terminal.until("endless endless")
        assert terminal.settings != before
        terminal.process.terminate()
        terminal.until("never shown", ended=True)
        assert (terminal.process.wait(600), terminal.settings) == (143, before)
    assert "Traceback" not in terminal.seen
    assert [one.kind for one in stored() if one.meta.get("stopped")] == ["respond", "sent"]
    assert not list(Path().glob("*-turn-*"))


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_chat_that_waits_for_an_answer_to_its_question_can_be_ended(
    terminals: Callable[..., Terminal], kind: signal.Signals, code: int
) -> None:
    with open_store("quire.db") as store:
        store.append("t", [values.user("Hi"), values.call("c", "move", {})])
    with emulator("vllm") as server:
        terminal = terminals(server.url)
        terminal.until("Run it again? [y/N]")
        terminal.process.send_signal(kind)
        assert terminal.process.wait(600) == code
    assert (kinds(), list(Path().glob("*-turn-*"))) == (["user", "call"], [])


def test_a_killed_chat_goes_on_where_it_was(terminals: Callable[..., Terminal]) -> None:
    Path("f.txt").write_text("x")

    def reply(body: JsonObject) -> Any:
        if not any(one["role"] == "tool" for one in body["messages"]):
            return [Call("", "read", {"path": "f.txt"})]
        return "endless " * 20_000 if len(server.requests) == 2 else "Short after all."

    with emulator("vllm", reply, piece=8) as server:
        first = terminals(server.url, "--root", ".")
        first.until("Ctrl-D leaves")
        first.type("Read it\r")
        first.until("endless endless")
        first.process.kill()
        again = terminals(server.url, "--root", ".")
        again.until("going on with the turn that was interrupted")
        again.until("Short after all.")
        again.until("Ctrl-D leaves")
        again.until("›")
        again.type("\x04")
        assert again.process.wait(600) == 0
        second, third = server.requests[1:]
    assert second.body == third.body
    assert kinds().count("result") == 1
    with open_store("quire.db") as store:
        store.verify("t")


@given(
    st.lists(st.sampled_from(["a", "\n", "\n\n", "```\n", "~~~\n", "# h\n", "- x\n", " "]), max_size=20).map("".join)
)
def test_finished_blocks_and_the_rest_are_the_whole_and_fences_stay_together(text: str) -> None:
    done, rest = finished_blocks(text)
    assert done + rest == text
    assert finished_blocks(done + "a\n")[0] == done
    fences = [line for line in done.split("\n") if line.strip().startswith("```")]
    if "~~~" not in done:
        assert len(fences) % 2 == 0


def test_a_block_longer_than_the_screen_shows_its_end() -> None:
    assert tail("one two three", 8) == "… three"
    assert tail("short", 8) == "short"
    assert tail("```python\nfirst = 1\nlast = 2\n", 12) == "```python\nlast = 2\n"
    text = "".join(f"line {n}  \n" for n in range(100))
    shown = Console(width=40, height=20, file=io.StringIO(), force_terminal=True)
    shown.print(OpenMarkdown(text))
    drawn = shown.file.getvalue().split("\n")  # type: ignore[attr-defined]
    assert "line 99" in drawn[-2]
    assert len(drawn) == 17
    assert "line 83" not in "".join(drawn)


def test_what_a_terminal_shows_of_footnotes_and_searches() -> None:
    out = io.StringIO()
    screen = RichScreen(Console(width=60, height=20, file=out))
    screen.event(Event("1", "respond", "Hot [^1].\n\n[^1]: [[tea]]", values.respond("")))
    screen.say("#### Sources\n\n[^1]: [[tea]] (a/tea.md)")
    found = "<localSearch>\n<document>\n<id>1</id>\n<title>tea</title>\n</document>\n</localSearch>"
    screen.event(Event("2", "result", found, values.result("c", None, found)))
    said = [line.rstrip() for line in out.getvalue().split("\n")]
    assert said == ["Hot [^1].", "[^1]: [[tea]]", "Sources", "", "[^1]: [[tea]] (a/tea.md)", "← tea", ""]


def test_screens_say_that_a_reply_broke_off_and_show_the_one_that_came(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    rich = RichScreen(Console(width=60, height=20, file=out))
    for screen in (rich, PlainScreen()):
        screen.event(Event("1", "think", "Hm."))
        screen.event(Event("2", "respond", "Half an ans"))
        screen.event(Event("3", "sent", "", Entry("sent", sent_body())))
        screen.event(Event("4", "summary", ""))
        screen.event(Event("5", "respond", "Whole."))
        screen.event(Event("6", "respond", "", values.respond("Whole.")))
    shown = [line.rstrip() for line in out.getvalue().split("\n") if line.strip()]
    assert shown == ["(the reply broke off; asking again)", "Whole."]
    printed, said = capsys.readouterr()
    assert printed == "Half an ans\nWhole.\n"
    assert said.splitlines() == ["(the reply broke off; asked again)", SUMMING_UP]


def test_a_rebase_says_what_it_was_for() -> None:
    lines = {1200: "(older turns were cut: 1,200 tokens freed, budget)", -700: "(the prompt begins anew: budget)"}
    for freed, line in lines.items():
        assert line_of(Entry("rebase", {"kind": "rebase", "reason": "budget", "freed": freed, "edits": []})) == line


def test_footnotes_stay_and_other_brackets_are_left_alone() -> None:
    assert markdown("a [^1]\n[^1]: b\n[x]: y").markup == "a [^1]\n\\[^1]: b\n[x]: y"


def test_money_is_known_only_when_every_price_is() -> None:
    def sent(model: str, **meta: Any) -> Entry:
        usage = {"input_total": 1000, "cache_read": 500, "output": 10}
        return Entry("sent", sent_body(model, usage=usage, meta=meta))

    known = totals([sent("anthropic:claude-opus-5-5"), sent("anthropic:claude-opus-5-5", aside="plan")])
    assert known.usd > 0
    assert [one.purpose for one in known.requests] == ["", "plan"]
    assert totals([sent("anthropic:claude-opus-5-5"), sent("vllm:x")]).usd is None


def test_words_that_name_no_file_are_kept_in_every_turn(talk: Chat) -> None:
    _, err, bodies = talk(["Un.", "Deux."], "/pin Always answer in French.\n/pin a.md b.md\nOne\nTwo\n", code=1)
    assert ["Always answer in French." in str(body) for body in bodies] == [True, True]
    assert "“Always answer in French.” joins every turn from now on" in err
    assert "there is no file 'a.md'" in err


def test_the_window_is_shown_and_changed_in_a_chat(talk: Chat, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    lines = "/window add a.txt\n/pin a.txt\nOne\n/unpin a.txt\n/window\n/window remove ctx-1\nTwo\n/unpin\n/window x\n"
    _, err, bodies = talk(["Un.", "Deux."], lines, "--items", "markdown", code=1)
    said = [body["messages"][-1]["content"] for body in bodies]
    assert said[0].startswith("### File (from a.txt)\n```text\nA\n```\n")
    assert said[1] == "Two"
    told = ["kept ctx-1 a.txt", "unpinned ctx-1 a.txt", "removed ctx-1 a.txt", "0 of 50 items"]
    told += ["/unpin needs a name", "/window has no 'x'"]
    assert [line for line in told if line not in err] == []


def test_a_saved_chat_that_was_edited_is_read_back_as_a_fork(talk: Chat) -> None:
    Path("a.txt").write_text("Attached words.")
    with emulator("vllm", ["Red.", "Blue.", "Blue it is."]) as server:
        talk(server.url, "Which colour?\n", "--attach", "a.txt", "--save", "chats")
        saved = Path("chats/t.md")
        assert "Attached words." not in saved.read_text()
        saved.write_text(saved.read_text().replace("**ai**: Red.", "**ai**: Green."))
        _, err, _ = talk(server.url, "Sure?\n", "--save", "chats")
        said = [one["content"] for one in server.requests[1].body["messages"]]
    assert "this is thread t@1, a fork of t; the file is kept as t (edited 1).md" in err
    assert "Attached words." in said[0]
    assert said[1:] == ["Green.", "Sure?"]
    assert [one.text for one in stored() if one.kind == "respond"] == ["Red."]
    assert "**ai**: Green." in Path("chats/t@1.md").read_text()
    Path("chats/t.md").write_bytes(b"\xff no chat")
    _, err, _ = talk(["Fine."], "Well?\n", "--save", "chats")
    assert "was edited and cannot be read back: this is no chat file" in err


def test_cost_says_what_was_not_reported(talk: Chat) -> None:
    usage = {"input": 0, "cache_read": 0, "cache_write_5m": 0, "cache_write_1h": 0, "output": 0}
    with open_store("quire.db") as store:
        stopped = Entry("sent", sent_body("anthropic:claude-opus-5-5", usage=usage, meta={"stopped": True}))
        store.append("t", [values.user("Hi"), stopped, values.respond("He")])
    out, err, _ = talk([], "/cost\n")
    assert re.search(r"^- +- +- +not reported +turn", out, re.M)
    assert "$0 in all without 1 that did not report" in err
