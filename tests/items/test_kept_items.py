"""What a thread keeps in its window: named by its source, read again when it changes, saved at every change."""

import json
from pathlib import Path

import pytest

import quire
from quire import Item, Policy, QuireError, Thread
from quire.formats import markdown
from quire.items import from_error, from_file, from_region, from_symbol, from_url
from toolbox import invoke, note, run

TARGET = "openai-chat:gpt-5"
CODE = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"


@pytest.fixture
def thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Thread:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUIRE_DB", str(tmp_path / "t.db"))
    Path("a.py").write_text(CODE + "".join(f"x{n} = {n}\n" for n in range(60)))
    return quire.open("t.db", "t")


def turn(thread: Thread, text: str = "Q") -> str:
    """What the model is told in the next turn."""
    thread.user(text)
    said: str = thread.request(TARGET).body["messages"][-1]["content"]
    thread.append(quire.respond("ok"))
    return said


def edit(old: str, new: str) -> None:
    Path("a.py").write_text(Path("a.py").read_text().replace(old, new))


@pytest.mark.parametrize(
    ("kept", "head"),
    [
        (lambda: from_file("a.py"), 'id="a.py" type="file"'),
        (lambda: from_region("a.py", 5, 6), 'id="a.py#L5-L6" type="code"'),
        (lambda: from_symbol("a.py", "g"), 'id="a.py::g" type="code"'),
        (lambda: from_error("E"), 'id="ctx-1" type="error"'),
    ],
)
def test_what_the_model_receives_names_its_source(thread: Thread, kept: object, head: str) -> None:
    thread.keep(kept())  # type: ignore[operator]  # read in the test's folder
    assert turn(thread).startswith(f"<context_item {head}>\n")


def test_a_piece_without_lines_names_its_file_and_stays_apart_from_others(thread: Thread) -> None:
    for text in ("(a)", "(b)"):
        thread.keep(text, metadata={"filename": "demo.lisp"})
    said = turn(thread)
    assert '<context_item id="demo.lisp#ctx-1" type="code">\n(a)\n' in said
    assert '<context_item id="demo.lisp#ctx-2" type="code">\n(b)\n' in said


def test_an_edited_file_is_a_new_version_of_the_same_item(thread: Thread) -> None:
    for kept in (from_file("a.py"), from_symbol("a.py", "g"), from_url("https://x", "old")):
        thread.keep(kept)
    turn(thread)
    edit("return 2", "return 3")
    again = [
        thread.keep(kept).id for kept in (from_file("a.py"), from_symbol("a.py", "g"), from_url("https://x", "new"))
    ]
    assert again == ["ctx-1", "ctx-2", "ctx-3"]
    assert len(thread.window) == 3
    said = turn(thread)
    assert said.count("<note_context_update replaces=") == 3
    assert "```diff\n--- a.py\n+++ a.py\n" in said
    assert turn(thread).startswith("Context attached:\n- a.py\n- a.py::g\n- https://x\n")


def test_a_pinned_file_that_changed_is_told_as_it_is_now(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    thread.window.pin(thread.keep(from_file("a.py")).id)
    turn(thread)
    thread.store.fork("t", thread.store.info("t").seq, "fork")
    edit("return 2", "return 3")
    here, elsewhere = Path.cwd(), Path("elsewhere")
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("t", "fork"):
        again = quire.open(here / "t.db", name)
        assert "+    return 3" in turn(again)
        assert again.window.pinned == ["ctx-1"]
        assert turn(again).startswith("Context attached:\n- a.py\n")


def test_a_kept_file_that_cannot_be_read_is_left_out_and_said(thread: Thread) -> None:
    heard: list[object] = []
    thread.on_warning = heard.append
    thread.keep(from_file("a.py"))
    turn(thread)
    Path("a.py").unlink()
    assert turn(thread, "Well?") == "Well?"
    assert len(heard) == 1
    assert str(heard[0]).startswith("a.py is left out of this turn: no file ")


def test_a_kept_file_that_is_as_it_was_stays_as_it_was_kept(thread: Thread, caplog: pytest.LogCaptureFixture) -> None:
    Path("long.txt").write_text("a line\n" * 9_000)
    kept = thread.keep(from_file("long.txt", truncate=True))
    thread.window.max_item_tokens = 50
    caplog.clear()
    assert thread.user("Q").attached[0]["content"] == kept.content
    assert caplog.messages == []
    Path("long.txt").write_text("another line\n" * 9_000)
    assert thread.user("Q").attached[0]["content"].startswith("another line\n")


def test_only_a_file_that_holds_the_kept_words_is_read_again(thread: Thread) -> None:
    Path("secret.txt").write_text("S")
    thread.keep(Item(id="", type="file", content="guess", metadata={"filename": "secret.txt"}))
    assert "guess" in turn(thread)
    Path("secret.txt").write_text("S2")
    assert "S2" not in turn(thread)


def test_every_change_of_the_window_is_saved_with_the_thread(thread: Thread) -> None:
    def saved() -> tuple[list[str], list[str], int, int | None]:
        found = quire.open("t.db", "t").window
        return [one.id for one in found], found.pinned, found.max_items, found.max_tokens

    window = thread.window
    for text in ("a", "b", "c"):
        window.add(text)
    window.pin("ctx-1")
    assert saved() == (["ctx-1", "ctx-2", "ctx-3"], ["ctx-1"], 50, None)
    window.remove("ctx-2")
    window.unpin("ctx-1")
    window.max_items, window.max_tokens = 7, 99
    assert saved() == (["ctx-1", "ctx-3"], [], 7, 99)
    window.max_item_tokens = 5
    assert quire.open("t.db", "t").window.max_item_tokens == 5
    window.clear()
    assert saved() == ([], [], 7, 99)
    assert window.add("d").id == "ctx-4"


def test_what_another_process_changes_is_seen(thread: Thread) -> None:
    thread.keep("a")
    other = quire.open("t.db", "t")
    other.keep("b")
    thread.window.pin("ctx-2")
    assert [one.content for one in other.window.get()] == ["a", "b"]
    assert other.window.pinned == ["ctx-2"]
    # A window that is at hand is saved as it stands, also when another was saved meanwhile.
    window = thread.window
    other.window.unpin("ctx-2")
    window.add("c")
    assert [one.content for one in other.window.get()] == ["a", "b", "c"]


def test_items_are_told_in_tags_or_under_headings(thread: Thread) -> None:
    thread.policy = Policy(items="markdown")
    for kept in (from_region("a.py", 1, 2), from_symbol("a.py", "g")):
        thread.keep(kept)
    for kept in (from_error("Bad ```fence```"), from_url("https://x", "P")):
        thread.keep(kept)
    told = turn(thread)
    assert told == (
        "### Code (from a.py:1-2)\n```python\ndef f():\n    return 1\n```\n\n"
        "### Code (from a.py::g)\n```python\ndef g():\n    return 2\n```\n\n"
        "### Error (from ctx-3)\n````text\nBad ```fence```\n````\n\n"
        "### Url (from https://x)\n```text\nP\n```\n\n---\n\n[User query]:\n\nQ"
    )
    value = markdown.parse(markdown.HEADING + told.partition("### Url")[0])
    assert [one.content for one in value.items] == [one.content for one in thread.window][:3]
    edit("return 1", "return 4")
    assert "### Update of a.py#L1-L2 (replaces " in turn(thread)
    with pytest.raises(QuireError, match="a policy's items cannot be 'md'"):
        Policy(items="md")  # type: ignore[arg-type]
    in_tags, fenced = (
        json.loads(run("assemble", "t", "--turn", 1, "--items", form, "--json")) for form in ("xml", "markdown")
    )
    assert in_tags["tokens"]["L3"] > fenced["tokens"]["L3"]


def test_segments_of_new_items_say_what_they_are(thread: Thread) -> None:
    kept = thread.keep(from_symbol("a.py", "g"))
    thread.user("Q", [note("Plan.md", "Go.", mtime="now")])
    code, plan = thread.envelope(TARGET).layer("L3_TURN").segments
    lines = {"filename": "a.py", "start_line": 5, "end_line": 6, "symbol": "g"}
    assert (code.id, code.metadata) == ("a.py::g", {"type": "code", "sha256": kept.sha256, **lines})
    assert (plan.id, plan.metadata["type"], plan.metadata["path"]) == ("Plan.md", "text", "Plan.md")
    assert "mtime" not in plan.metadata


@pytest.mark.moves_prefix(reason="the window's items move into the library at a rebase")
def test_what_leaves_the_window_stays_in_what_was_sent(thread: Thread) -> None:
    thread.keep(from_file("a.py"))
    turn(thread)
    before = thread.request(TARGET).prefix
    thread.window.clear()
    assert turn(thread, "And?") == "And?"
    assert thread.request(TARGET).prefix.startswith(before)


def test_the_window_from_the_shell(thread: Thread) -> None:
    def ids() -> list[str]:
        return [one["id"] for one in json.loads(run("window", "demo", "--json"))["items"]]

    out = run("window", "demo", "add", "a.py", "a.py:5-6", "a.py::g")
    assert "kept ctx-2 a.py#L5-L6" in out
    run("window", "demo", "add", "--error", "-", "--pinned", stdin="Traceback\nZeroDivisionError\n")
    Path("repl.txt").write_text("> (+ 1 2)\n3\n")
    run("window", "demo", "add", "--repl", "repl.txt", "--language", "lisp")
    shown = json.loads(run("window", "demo", "--json"))
    added = [(one["type"], one["content"]) for one in shown["items"][3:]]
    assert added == [("error", "Traceback\nZeroDivisionError"), ("repl-history", "> (+ 1 2)\n3")]
    assert shown["items"][4]["metadata"] == {"language": "lisp"}
    assert shown["pinned"] == ["ctx-4"]
    assert "a.py::g" in run("window", "demo", "show", "--type", "code", "--limit", 1)
    run("window", "demo", "pin", "a.py", "ctx-2")
    run("window", "demo", "unpin", "a.py", "ctx-4")
    run("window", "demo", "remove", "a.py::g")
    assert ids() == ["ctx-1", "ctx-2", "ctx-4", "ctx-5"]
    out = run("window", "demo", "--max-items", 2, "--max-tokens", 90, "--max-item-tokens", 80)
    assert out.endswith("tokens, 80 an item\n")
    assert ids() == ["ctx-2", "ctx-5"]
    assert run("window", "demo", "--max-tokens", 0).endswith("tokens, 80 an item\n")
    assert turn(quire.open("t.db", "demo")).startswith('<context_item id="a.py#L5-L6" type="code">\ndef g():')
    run("window", "demo", "clear")
    assert ids() == []


@pytest.mark.parametrize("name", ["~nobody-here/a.py", "~nobody-here/a.py:5-6", "~nobody-here/a.py::g"])
def test_a_home_that_nobody_has_holds_no_file(home: Path, name: str) -> None:
    with pytest.raises(QuireError, match="~nobody-here/a"):
        run("window", "demo", "add", name)


def test_a_note_of_a_vault_is_kept_and_read_again(thread: Thread) -> None:
    Path("vault").mkdir()
    Path("vault/Plan.md").write_text("Old plan.")
    run("window", "demo", "add", "[[Plan]]", "--vault", "vault")
    demo = quire.open("t.db", "demo")
    assert turn(demo).startswith("<note_context>\n<title>Plan</title>\n<path>Plan.md</path>")
    Path("vault/Plan.md").write_text("New plan.")
    assert turn(demo).startswith("<note_context_update ")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("add", "no thread is named"),
        ("demo add", "there is nothing to add"),
        ("demo show --pinned", "--pinned belongs to `add`, not to `show`"),
        ("demo add a.py --limit 0", "--limit belongs to `show`, not to `add`"),
        ("demo clear a.py", "clear takes no name, not 'a.py'"),
        ("t remove b.py", "the window holds no 'b.py'"),
        ("t --max-items 0", "max_items must be an integer from 1 to 1000, not 0"),
    ],
)
def test_what_an_action_does_not_take_is_an_error(thread: Thread, words: str, error: str) -> None:
    thread.keep(from_file("a.py"))
    with pytest.raises(QuireError, match=error.replace("[", r"\[")):
        invoke("window", *words.split())
