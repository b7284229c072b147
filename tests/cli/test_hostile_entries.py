"""Any JSON in any field of an entry: it is refused with a place, or every command can use it; never a traceback."""

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from every_field import ODD, PLACES, THREAD, changed
from hypothesis import given
from hypothesis import strategies as st

from entry_strategies import json_values
from quire import Entry, Policy, QuireError, providers
from quire.assemble import unsent
from quire.cli.chat_commands import totals
from quire.cli.output import line_of
from quire.cli.plan import measure
from quire.formats import replay
from quire.log.entries import usable
from quire.observe import chat_messages, compare
from quire.providers.usage import sent_usage
from quire.send.turn import TurnState, usage_of, usd_of
from quire.server.figures import spending
from quire.thread_state import policies, requests_under
from quire.values import Usage
from toolbox import Built, Place, chain, check, fewer, run, sent_body

pytestmark = pytest.mark.moves_prefix(reason="hostile entries move what they like")

TARGETS = ("openai-chat:x", "openai:gpt-6-sol", "anthropic:claude-opus-5-5", "gemini:gemini-3-pro", "bedrock:x")
BUDGETS = (Policy(budget=400), Policy(budget=120, promote="each-turn"))


def read(bodies: list[dict[str, Any]]) -> list[Entry]:
    return list(chain([check(body) for body in bodies]))


def used(bodies: list[dict[str, Any]]) -> None:
    """Everything that is made of entries, by the functions of the commands."""
    logged = read(bodies)
    answered(replay.project, logged)
    for format in providers.FORMATS:
        answered(providers.export, format, logged)
    entries = [usable(entry) for entry in logged]
    for policy in BUDGETS:
        answered(measure, "x", unsent(entries), policy)
    answered(shown, entries)


def shown(entries: list[Entry]) -> None:
    made = [one for one, _ in requests_under(entries, policies(entries, Policy())) if isinstance(one, Built)]
    for one in made:
        chat_messages(one)
        for target in TARGETS:
            answered(rendered, one, target)
    for one, other in pairwise(made):
        compare(one, other, entries)


def told(bodies: list[dict[str, Any]]) -> None:
    """What is said of turns and of what was used."""
    turn, logged = TurnState(), read(bodies)
    for entry in logged:
        turn.take(entry)
        line_of(entry)
    usage_of(turn)
    usd_of(turn)
    totals(logged)
    spending(logged)


def rendered(built: Built, target: str) -> None:
    providers.marked(providers.render(built.prompt, target), built.prompt)


def answered(work: Callable[..., object], *given: object) -> None:
    """An error of ours is an answer too; any other is the test's failure."""
    with suppress(QuireError):
        work(*given)


def test_the_thread_as_it_is_makes_its_requests_for_everybody() -> None:
    entries = [usable(entry) for entry in read(THREAD)]
    made = [one for one, _ in requests_under(entries, policies(entries, Policy()))]
    assert [(one.turn, one.step) for one in made] == [(1, 1), (1, 2), (2, 1)]
    for one in made:
        assert isinstance(one, Built)
        for target in TARGETS:
            rendered(one, target)
    for format in providers.FORMATS:
        providers.export(format, read(THREAD))


@given(st.sampled_from(PLACES), st.sampled_from(ODD) | json_values)
@fewer(2)
def test_any_json_in_any_field_is_refused_or_used(path: Place, value: Any) -> None:
    answered(used, changed(path, value))


def place(*path: str | int) -> Place:
    assert path in PLACES
    return path


FREE = [
    (place(13, "reason"), "[/bold]"),
    (place(13, "edits", 0, "action"), "[/x]"),
    (place(13, "edits", 0, "replacement"), None),
    (place(13, "meta", "opening"), "x"),
    (place(13, "meta", "pinned"), [5]),
    (place(3, "meta", "pins"), 5),
    (place(3, "meta", "pins"), [[1]]),
    (place(3, "meta", "context"), 5),
    (place(4, "meta", "shown"), 5),
    (place(4, "meta", "shown"), [[1]]),
    (place(2, "item", "metadata", "images"), 5),
    (place(2, "item", "metadata", "images"), [5]),
    (place(2, "item", "metadata", "source"), ["x"]),
    (place(9, "provider"), "nobody"),
    (place(9, "usage", "input_total"), None),
    (place(9, "usage", "input_total"), 2.6),
    (place(1, "wire", "tools"), 5),
    (place(10, "wire", "format"), []),
]


@pytest.mark.parametrize(("path", "value"), FREE, ids=[f"{p[-1]}={v!r}" for p, v in FREE])
def test_every_command_takes_what_the_interchange_format_allows(tmp_path: Path, path: Place, value: Any) -> None:
    file, db = str(tmp_path / "t.jsonl"), str(tmp_path / "q.db")
    Path(file).write_text("".join(json.dumps(body) + "\n" for body in changed(path, value)))
    run(*("log", "import", "t", file), "--db", db)
    for source in ((file,), ("t", "--db", db)):
        for command in (["assemble"], ["plan"], ["render", "-p", "anthropic", "-m", "claude-opus-5-5"]):
            run(*command, *source)
            run(*command, *source, "--json")
        run("diff", source[0], "1", "2", *source[1:])
        for format in (*providers.FORMATS, "markdown"):
            run("export", *source, "--to", format)
    exported = run("log", "export", "t", "--no-ids", "--db", db)
    assert [json.loads(line) for line in exported.splitlines()] == changed(path, value)
    for command in ("log show t", "log verify t", "recall found --thread t", "usage t", "resume t --list"):
        run(*command.split(), "--db", db)


@pytest.mark.parametrize("value", [*ODD, 2.6], ids=str)
def test_what_was_used_and_cut_is_told_whatever_its_entries_hold(value: Any) -> None:
    for path in PLACES:
        if THREAD[int(path[0])]["kind"] in ("sent", "rebase"):
            answered(told, changed(path, value))


def test_what_is_no_count_of_tokens_is_read_as_far_as_it_goes() -> None:
    said = {"input_total": 2.6, "output": None, "charged": "a lot", "besides": 3}
    assert sent_usage(Entry("sent", sent_body(usage=said))) == Usage(3)
