"""Which runner carries a turn out, from options; kept with the user's entry, so that resuming finds it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from quire.cli.reach import Reached
from quire.engine import Thread
from quire.errors import CallError
from quire.log.sqlite import SqliteStore
from quire.send import runners
from quire.send.builtin import builtin
from quire.send.runner import Runner
from quire.values import Entry, JsonObject


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A runner by name, and what it needs."""

    runner: str = "chat"
    system: str = ""
    root: str = ""
    vault: str = ""
    files: tuple[str, ...] = ()

    def meta(self) -> JsonObject:
        """As the user's entry keeps it."""
        return {"runner": {"runner": self.runner, **msgspec.to_builtins(self)}}


def remembered(entry: Entry | None) -> Choice:
    """The choice that a user's entry was made with."""
    kept = entry.meta.get("runner") if entry is not None else None
    return msgspec.convert(kept, Choice, strict=False) if isinstance(kept, dict) else Choice()


def runner_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a runner."""
    for option in reversed(
        [
            click.option("--runner", type=click.Choice(runners.NAMES), default=None, help="How the turn is carried out."),
            click.option("--system", default=None, help="System prompt (project: the project's prompt)."),
            click.option("--root", type=click.Path(exists=True, file_okay=False), help="agent, planned: the folder its file tools may read."),
            click.option("--vault", type=click.Path(exists=True, file_okay=False), help="qa: the folder of notes."),
            click.option("--file", "files", multiple=True, type=click.Path(exists=True, dir_okay=False), help="project: a file that belongs to it."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def chosen(given: dict[str, Any], before: Choice | None = None) -> Choice:
    """The options that were given, over those of the turn before."""
    kept = {name: value for name, value in given.items() if value}
    return msgspec.structs.replace(before or Choice(), **kept)


def check(choice: Choice) -> Choice:
    """The choice itself, if it has what its runner needs."""
    if choice.runner == "qa" and not choice.vault:
        raise CallError("the qa runner needs notes to search", hint="Give --vault FOLDER.")
    return choice


def make_runner(choice: Choice, thread: Thread, reached: Reached) -> Runner:
    """The runner itself."""
    made = _made(choice, thread, reached)
    return msgspec.structs.replace(made, options={**reached.options, **made.options})


def _made(choice: Choice, thread: Thread, reached: Reached) -> Runner:
    match choice.runner:
        case "chat":
            return runners.chat(choice.system)
        case "qa":
            return runners.qa(_index(choice), system=choice.system)
        case "planned":
            return runners.planned(_tools(choice, thread), system=choice.system)
        case "agent":
            # The local model's template takes tools, but it was not trained to call them.
            return runners.agent(_tools(choice, thread), system=choice.system, native=not reached.is_local)
        case "project":
            return runners.project(prompt=choice.system, files=choice.files)
    raise CallError(f"there is no runner {choice.runner!r}", hint="Known: " + ", ".join(runners.NAMES) + ".")


def _tools(choice: Choice, thread: Thread) -> Sequence[Any]:
    store = thread.store if isinstance(thread.store, SqliteStore) else None
    return builtin(choice.root or None, store, thread.name)


def _index(choice: Choice) -> Any:
    check(choice)
    from rich.console import Console
    from rich.progress import Progress

    from quire.send.vault import NoteIndex, Vault

    index = NoteIndex(Vault(Path(choice.vault)))
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading notes", total=None)
        index.update(lambda done, total: bar.update(task, completed=done, total=total))
    return index
