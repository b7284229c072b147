"""A plugin of `llm`: `llm quire record` keeps its conversations in threads, `llm quire show` shows them.

`llm` finds it once Quire is installed beside it. It offers plugins no hook on prompts, so its own log is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.errors import QuireError, needs_extra

with needs_extra("llm is not installed", "llm"):
    import click
    import llm

# The thread of a conversation is named by this prefix and llm's id.
PREFIX = "llm/"


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Add `llm quire`."""
    cli.add_command(commands)


@click.group("quire")
@click.option("--db", type=click.Path(path_type=Path), help="The store (default: $QUIRE_DB, else that of `quire`).")
@click.pass_context
def commands(context: click.Context, db: Path | None) -> None:
    """Conversations in Quire's log: searched, forked, audited, sent on within a budget."""
    context.obj = db


@commands.command("record")
@click.pass_obj
def record_command(db: Path | None) -> None:
    """Record what is new in llm's own log, a thread a conversation."""
    folder: Path = llm.user_dir()  # type: ignore[no-untyped-call]
    for name, new, old in _with_llm_errors(record, folder / "logs.db", db):
        click.echo(f"{name}: {new} new entries, {old} held already")


@commands.command("show")
@click.argument("thread", default="")
@click.pass_obj
def show_command(db: Path | None, thread: str) -> None:
    """Show the threads, or what was said in one (an id, or its beginning)."""
    for line in _with_llm_errors(show, thread, db):
        click.echo(line)


def record(log: Path, db: Path | None = None) -> list[tuple[str, int, int]]:
    """Record what is new: (thread, new entries, entries it had already) of each conversation."""
    from quire.archive.sessions import conversations, recognised, source_file
    from quire.cli.output import append_new, open_db

    file = source_file(log)
    stored = [(f"{PREFIX}{talk.name}", talk.entries()) for talk in conversations(file, recognised(file))]
    with open_db(db) as store:
        return [(name, *append_new(store, name, entries)) for name, entries in stored]


def show(thread: str = "", db: Path | None = None) -> list[str]:
    """A line for each thread, or for each entry of the one thread whose id begins with `thread`."""
    from quire.assemble.user_message import entry_text
    from quire.cli.output import open_db

    with open_db(db, create=False) as store:
        threads = [info for info in store.threads() if info.name.startswith(PREFIX + thread)]
        if not thread or len(threads) != 1:
            return [f"{info.name}: {info.seq} entries" for info in threads] or [
                "no thread of llm's; `llm quire record`"
            ]
        lines = [f"{entry.seq:>5} {entry.kind:<8} {entry_text(entry)}" for entry in store.read(threads[0].name)]
        return [line if len(line) < 400 else f"{line[:400]}…" for line in lines]


def _with_llm_errors(function: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
    """Call a function; show Quire's errors as llm shows its own."""
    try:
        return function(*arguments)
    except QuireError as error:
        raise click.ClickException(f"{error} {error.hint}".strip()) from error
