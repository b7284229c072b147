"""`quire diff` names what stands where two requests part: the item, the tool or the words, and their entry."""

import json
from pathlib import Path
from typing import Any

import pytest

from quire import Assembly, Entry, Policy, QuireError, Reply, Thread, Usage, open_store, values
from toolbox import chain, closed_later, invoke, note, run, written

pytestmark = pytest.mark.moves_prefix(reason="what moves the prefix is to be named")


def tool(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "description": description, "parameters": {"type": "object"}}


THREAD = [
    values.system("SYS"),
    values.user("q1", [note("a.md", "A")]),
    values.respond("r1"),
    values.attach(note("b.md", "B")),
    values.user("q2", [note("a.md", "A")]),
    values.respond("r2"),
    values.user("q3", [note("a.md", "A2 changed")]),
    values.respond("r3"),
    values.user("q4"),
    values.respond("r4"),
]
EACH = ("--promote", "each-turn")


@pytest.fixture
def file(tmp_path: Path) -> str:
    return written(tmp_path, THREAD)


def differs(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("diff", *words, "--json"))
    return found


@pytest.mark.parametrize(
    ("turns", "item", "entry", "became"),
    [(("1", "2"), "a.md", 2, "joined"), (("2", "3"), "b.md", 4, "joined"), (("3", "4"), "a.md", 7, "changed in")],
)
def test_a_promotion_names_the_item_and_the_entry_that_attached_it(
    file: str, turns: tuple[str, str], item: str, entry: int, became: str
) -> None:
    found = differs(file, *turns, *EACH)
    assert (found["layer"], found["segment"], found["entries"]) == ("L2", item, [entry])
    assert found["entry"] == entry
    assert found["cause"] == (f"rebase (promotion) at turn {turns[1]}.1: {item} (entry {entry}) {became} the library")
    assert f"in L2 ({item}); cause: rebase" in run("diff", file, *turns, *EACH)


def test_an_item_that_left_the_library_is_named(tmp_path: Path) -> None:
    long = "word " * 120
    talk = [values.system("SYS"), values.user("q", [note("a.md", "A " * 40)]), values.respond(long)]
    for n in range(30):
        talk += [values.user(f"q{n}"), values.respond(long)]
    options = ("--budget", "700", "--summary", "0", "--handles", "0")
    file = written(tmp_path, talk)
    rows = [json.loads(line) for line in run("assemble", file, *options, "--json").splitlines()]
    cuts = [row for row in rows if row["rebase"]]
    first = next(row["turn"] for row in cuts if row["rebase"]["library"])
    gone = next(row for row in cuts if row["turn"] > first and not row["rebase"]["library"])
    found = differs(file, str(first), str(gone["turn"]), *options)
    assert (found["layer"], found["segment"], found["entries"]) == ("L2", "a.md", [2])
    assert found["cause"].endswith("a.md (entry 2) left the library")


def test_a_rebase_of_the_log_stays_the_entry_that_caused_it(tmp_path: Path) -> None:
    assembly, logged = Assembly(Policy(promote="each-turn")), list[Entry]()
    for entry in chain(THREAD):
        if assembly.asks(entry) and (record := assembly.request().rebase):
            logged.append(Entry("rebase", record))
            assembly.feed(Entry("rebase", record))
        logged.append(Entry(entry.kind, entry.body))
        assembly.feed(entry)
    found = differs(written(tmp_path, logged), "1", "2", *EACH)
    assert logged[found["entry"] - 1].kind == "rebase"
    assert (found["segment"], found["entries"]) == ("a.md", [2])


def test_a_tool_names_its_entry(tmp_path: Path) -> None:
    talk = [values.system("SYS"), values.tools([tool("b", "")]), values.user("q1"), values.respond("r1")]
    renamed = [*talk, values.tools([tool("a", "new")]), values.user("q2"), values.respond("r2")]
    found = differs(written(tmp_path, renamed), "1", "2")
    assert (found["layer"], found["segment"], found["entries"]) == ("L1", "tools", [5])


def test_a_folded_instruction_names_its_entry(tmp_path: Path) -> None:
    talk = [values.system("SYS"), values.user("q1"), values.respond("r1"), values.system("Be brief.")]
    talk += [values.user("q2", [note("a.md", "A")]), values.respond("r2"), values.user("q3")]
    found = differs(written(tmp_path, [*talk, values.respond("r3")]), "1", "3", *EACH)
    assert (found["layer"], found["segment"], found["entries"]) == ("L1", "system", [4])


def test_an_identity_with_control_characters_stays_on_one_line(tmp_path: Path) -> None:
    talk = [values.user("q1", [note("a\n\x1b[31m.md", "A")]), values.respond("r"), values.user("q2")]
    shown = run("diff", written(tmp_path, [*talk, values.respond("r2")]), "1", "2", *EACH)
    assert shown.count("\n") == 1
    assert shown[:-1].isprintable()


def test_requests_within_a_turn_are_named_by_their_step(tmp_path: Path) -> None:
    talk = [values.user("q"), values.call("c", "f", {}), values.result("c", None, "x"), values.respond("r")]
    file = written(tmp_path, talk)
    assert run("diff", file, "1.2", "1.1").startswith("no byte differs: turn 1.2 extends turn 1.1 by ")
    for name, told in (("1.3", "turn 1.3 has no request"), ("0", "'0' is no turn"), ("1.", "'1.' is no turn")):
        with pytest.raises(QuireError, match=told):
            invoke("diff", file, name, "1")


def test_after_a_change_of_model_that_is_the_cause(tmp_path: Path) -> None:
    with Thread(closed_later(open_store(tmp_path / "t.db")), "t") as thread:
        thread.append(values.system("SYS"), values.tools([tool("read", "Read")]))
        for n, target in enumerate(["anthropic:claude-opus-5-5"] * 3 + ["openai-chat:gpt-5"] * 2):
            if n == 2:
                thread.append(values.tools([tool("write", "Write")]))
            thread.user(f"q{n}")
            thread.record(Reply((values.respond("r"),), Usage()), thread.request(target))
    assert "no byte differs" in run("diff", "t", 2, 3, "--db", tmp_path / "t.db"), "late tools stand behind"
    found = differs("t", "3", "4", "--db", str(tmp_path / "t.db"))
    assert found["cause"] == "change of model, anthropic:claude-opus-5-5 to openai-chat:gpt-5 at turn 4.1"
    assert differs("t", "4", "5", "--db", str(tmp_path / "t.db"))["cause"] is None
