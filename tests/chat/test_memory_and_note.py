"""What is known of the user stands in L1 and is told anew where it changed; the note being looked at brings its images once."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import QuireError, Thread, open_store
from quire.cli.run import RUNNERS
from quire.notes import NoteIndex
from quire.notes.vault import Vault
from quire.records import Records
from quire.send import runners
from quire.send.turn import memory_change
from quire.testing import emulator
from quire.values import JsonObject
from toolbox import PNG, Runner, Store, assert_in_proportion, carry_out, closed_later, invoke, said_in

TARGET = "openai-chat:gpt-5"


def make(name: str, folder: Path, store: Store, **how: Any) -> Runner:
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "tea.md").write_text("Green tea needs 80 degrees.")
    base = runners.chat("Base.", **how)
    made: dict[str, Callable[[], Runner]] = {
        "chat": lambda: base,
        "qa": lambda: runners.qa(NoteIndex(Vault(folder / "notes")), system="Base.", **how),
        "planned": lambda: runners.planned([], system="Base.", **how),
        "agent": lambda: runners.agent([], system="Base.", **how),
        "words": lambda: runners.agent([], system="Base.", native=False, **how),
        "records": lambda: runners.records(Records(store), [], system="Base.", **how),
        "project": lambda: runners.project(base, prompt="Plan."),
    }
    return made[name]()


@pytest.mark.parametrize("name", [*RUNNERS, "words"])
def test_every_runner_puts_the_memory_in_front_and_tells_what_changed_of_it(name: str, tmp_path: Path) -> None:
    thread = Thread(closed_later(open_store(tmp_path / "t.db")), "t")
    memories = ["Likes tea.\nLives in Graz.", "Likes tea.\nLives in Graz.\n", "Likes tea.\nLives in Linz.", None, ""]
    with emulator("openai-chat", lambda body: "[]" if "response_format" in body else "Yes.") as server:
        for memory in memories:
            thread.user("Hello?")
            carry_out(thread, TARGET, server.url, make(name, tmp_path, thread.store, memory=memory))  # type: ignore[arg-type]
        bodies = [said_in(one.body) for one in server.requests]
    assert {str(body[0][1]).split("\n\n")[0] for body in bodies} == {"Likes tea.\nLives in Graz.\nBase."}
    if name != "records":
        assert all(after[: len(before)] == before for before, after in itertools.pairwise(bodies))
    told = [entry.text for entry in thread.store.read("t") if entry.kind == "note"]
    assert told == [
        "What is known of the user has changed.\nNo longer:\nLives in Graz.\nNew:\nLives in Linz.",
        "Forget what you were told of the user.",
    ]
    assert [sum(note in json.dumps(body) for body in bodies) for note in ("Lives in Linz", "Forget what")] == [3, 1]


def test_a_long_memory_that_changed_wholly_is_told_in_a_time_that_grows_with_it() -> None:
    def told(lines: int) -> None:
        old, new = ([f"{word} {n} of {n * 7919 % 1000} likes tea" for n in range(lines)] for word in ("guest", "host"))
        said = memory_change("\n".join(old), "\n".join(new)).split("\n")
        assert said == ["What is known of the user has changed.", "No longer:", *old, "New:", *new]

    assert_in_proportion(told, 240)


def test_a_memory_that_comes_later_is_a_note_and_stays_through_rebases(tmp_path: Path) -> None:
    from quire import Policy

    thread = Thread(closed_later(open_store(tmp_path / "t.db")), "t", Policy(budget=1200, reply=100))
    with emulator("openai-chat", lambda body: "Yes. " * 60) as server:
        for n in range(8):
            thread.user("word " * 100)
            carry_out(thread, TARGET, server.url, runners.chat("Base.", memory="Likes tea." if n > 1 else None))
        asked = [one.body for one in server.requests if "summarise our" not in str(one.body["messages"][-1])]
    assert "rebase" in [entry.kind for entry in thread.store.read("t")]
    assert ["Likes tea." in json.dumps(body) for body in asked] == [False] * 2 + [True] * 6


@pytest.fixture
def vault(home: Path) -> Path:
    folder = home / "notes"
    folder.mkdir()
    (folder / "pot.png").write_bytes(PNG)
    (folder / "tea.md").write_text("Green tea.\n\n![[pot.png]]\n")
    (folder / "cup.md").write_text("A cup.\n")
    (home / "memory.md").write_text("Likes tea.\n")
    return folder


def parts(body: JsonObject) -> list[str]:
    """A word for each text, and `image` for each image, of what the user says in a request."""
    found = []
    for role, content in said_in(body):
        if role == "user":
            listed = content if isinstance(content, list) else [{"type": "text", "text": content}]
            found += ["image" if one["type"] == "image_url" else one["text"] for one in listed]
    return found


def test_the_images_of_the_note_that_is_looked_at_go_once(vault: Path) -> None:
    lines = ["One?", "Two?", "/note", "/note cup", "Three?", "/note none", "Four?"]
    with emulator("openai-chat", lambda body: "Yes.") as server:
        how = ["--runner", "chat", "--vault", "notes", "--model", TARGET, "--base-url", server.url]
        said = invoke("chat", "t", "--note", "tea", *how, stdin="\n".join(lines), OPENAI_API_KEY="k")
        bodies = [parts(one.body) for one in server.requests]
        (vault / "tea.md").write_text("Black tea.\n\n![[pot.png]]\n")
        invoke("run", "t", "Five?", "--note", "tea", *how, OPENAI_API_KEY="k")
        bodies.append(parts(server.requests[-1].body))
        invoke("run", "u", "Six?", "--note", "tea", "--runner", "records", *how[2:], OPENAI_API_KEY="k")
        bodies.append(parts(server.requests[-1].body))
    assert [body.count("image") for body in bodies] == [1, 1, 1, 1, 1, 1]
    assert "<active_note>\n<title>tea</title>\n<path>tea.md</path>" in bodies[0][0]
    above = "Context attached:\n- tea.md\nFind them above in this conversation."
    assert bodies[1][-1] == f"{above}\n\n---\n\n[User query]:\n\nTwo?"
    assert "<path>cup.md</path>" in bodies[2][-1]
    assert bodies[3][-1] == "Four?"
    assert "Black tea." in bodies[4][-1]
    assert "tea is beside every question" in said.stderr
    assert "no note is looked at" in said.stderr
    with pytest.raises(QuireError, match="is a note of no vault"):
        invoke("run", "t", "Hi", "--note", "tea")


def test_a_memory_file_is_read_every_turn(vault: Path) -> None:
    file = vault.parent / "memory.md"

    def answer(body: JsonObject) -> str:
        file.write_text("Likes coffee.\n")
        return "Yes."

    with emulator("openai-chat", answer) as server:
        how = ["--memory", "memory.md", "--model", TARGET, "--base-url", server.url]
        invoke("chat", "t", *how, stdin="One?\nTwo?\n", OPENAI_API_KEY="k")
        first, second = (said_in(one.body) for one in server.requests)
    assert first == [("system", "Likes tea."), ("user", "One?")]
    assert second[-1][1].endswith("No longer:\nLikes tea.\nNew:\nLikes coffee.")
