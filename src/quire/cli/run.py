"""`quire run`: carry out one turn, streamed to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from quire.cli.connection import (
    Connection,
    attach_option,
    attachments,
    explicit_option,
    model_option,
    reach,
    url_option,
)
from quire.cli.output import counted, db_option, json_option, line_of, print_json, print_table
from quire.cli.store import open_db
from quire.errors import CallError
from quire.log.sqlite import SqliteStore
from quire.send import runners
from quire.send.builtin import builtin
from quire.send.cycle import Decision, Interrupted, Outcome, interrupted, look, resume_sync, run_sync
from quire.send.events import Event
from quire.send.note_search import sources, sources_text
from quire.send.protocol import Runner
from quire.send.turn_state import newest_turn, standing
from quire.thread import Thread
from quire.values import Entry, JsonObject

# Which runner carries a turn out, from options; kept with the user's entry, so that resuming finds it again.


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


def make_runner(choice: Choice, thread: Thread, reached: Connection) -> Runner:
    """The runner itself."""
    made = _made(choice, thread, reached)
    return msgspec.structs.replace(made, options={**reached.options, **made.options})


def _made(choice: Choice, thread: Thread, reached: Connection) -> Runner:
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

    from quire.notes.index import NoteIndex
    from quire.notes.vault import Vault

    index = NoteIndex(Vault(Path(choice.vault)))
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading notes", total=None)
        index.update(lambda done, total: bar.update(task, completed=done, total=total))
    return index


# A turn on the terminal: the answer as it comes on stdout, calls and numbers on stderr.


class TurnPrinter:
    """Prints events as they come; nothing on stdout but the model's words."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._in_text = False

    def __call__(self, event: Event) -> None:
        if self.quiet:
            return
        if event.kind == "respond":
            self._say(event.text)
        elif event.entry is not None:
            self._note(event.entry)

    def _say(self, text: str) -> None:
        if text:
            click.echo(text, nl=False)
            sys.stdout.flush()
            self._in_text = not text.endswith("\n")

    def _note(self, entry: Entry) -> None:
        line = line_of(entry)
        if entry.kind == "sent" and "usage" not in entry.body and self._in_text:
            line = "(the reply broke off; asked again)"
        if line:
            self.end()
            click.secho(line, err=True, dim=True)

    def end(self) -> None:
        """End the line that the model's words stand in."""
        if self._in_text:
            click.echo()
            self._in_text = False


def report(outcome: Outcome, target: str, as_json: bool, sources: str = "") -> None:
    """How a turn ended: the sources of its answer and one line of numbers, or all of it for machines."""
    if as_json:
        print_json(outcome_json(outcome, target))
        return
    if sources:
        click.echo(f"\n{sources}")
    click.secho(status(outcome, target), err=True, dim=True)


def status(outcome: Outcome, target: str) -> str:
    """What a turn used, on one line."""
    used = outcome.usage
    share = f", {used.cache_read / used.input_total:.0%} from the cache" if used.input_total else ""
    money = f", ${outcome.usd:.4f}" if outcome.usd is not None else ""
    ended = "" if outcome.stop == "answered" else f" [ended: {outcome.stop}]"
    steps = counted(outcome.steps, "request")
    return f"{target}: {steps}, {used.input_total:,} tokens in{share}, {used.output:,} out{money}{ended}"


def outcome_json(outcome: Outcome, target: str) -> JsonObject:
    """A turn for machines."""
    return {
        "model": target,
        "stop": outcome.stop,
        "text": outcome.text,
        "steps": outcome.steps,
        "usage": msgspec.to_builtins(outcome.usage),
        "usd": outcome.usd,
        "entries": [entry.seq for entry in outcome.entries],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("thread")
@click.argument("text", required=False)
@model_option
@url_option
@explicit_option
@attach_option
@runner_options
@db_option
@json_option
def run(
    thread: str,
    text: str | None,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    attach: tuple[str, ...],
    db: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Say TEXT in THREAD and have it answered; without TEXT it is read from standard input.

    Every step is stored before it is taken: after Ctrl-C or a crash, `quire resume THREAD` goes on.

    \b
    Examples:
      quire run demo "What is in this file?" --attach notes.md
      quire run demo "And shorter?" --model anthropic:claude-opus-5-5
      quire run work "Which functions are unused?" --runner agent --root src
      quire run notes "What did we decide on Monday?" --runner qa --vault ~/notes
    """
    words = _words(text)
    choice = check(chosen({**how, "files": tuple(how["files"])}))
    items, images = attachments(attach)
    reached = reach(model, base_url, explicit_cache)
    with open_db(db) as store, store.turn_lock(thread):
        log = Thread(store, thread)
        _mention_interrupted(store, thread)
        log.user(words, items, images=images or None, meta=choice.meta())
        outcome = _answered(log, reached, choice, quiet=as_json)
        listed = sources_text(sources(newest_turn(store, thread)))
    report(outcome, reached.target, as_json, listed)


def _words(text: str | None) -> str:
    words = text if text is not None else sys.stdin.read()
    if not words.strip():
        raise CallError("there is nothing to say", hint="Give TEXT, or pipe it in.")
    return words


def _answered(log: Thread, reached: Connection, choice: Choice, quiet: bool) -> Outcome:
    """Carry the turn out, shown as it goes."""
    shown = TurnPrinter(quiet)
    runner = make_runner(choice, log, reached)
    try:
        return run_sync(log, reached.target, reached.transport, runner, on_event=shown)
    finally:
        shown.end()


def _mention_interrupted(store: SqliteStore, thread: str) -> None:
    """A new turn leaves an open one behind; whoever did not mean that should know."""
    if any(one.name == thread for one in store.threads()) and standing(store, thread).next in ("ask", "run"):
        click.secho(
            "the turn before was not finished; `quire resume` would have gone on with it", err=True, dim=True
        )


# `quire resume`: go on with a turn that was interrupted.


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("thread")
@model_option
@url_option
@explicit_option
@runner_options
@click.option("--list", "only_list", is_flag=True, help="Only show what is still to be done; change nothing.")
@click.option("--rerun", is_flag=True, help="Run a call again that may have run already.")
@db_option
@json_option
def resume(
    thread: str,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    only_list: bool,
    rerun: bool,
    db: Path | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Continue the newest turn of THREAD from the log: finished results are used, never run again.

    A call that may or may not have run is named first. Tools marked idempotent run again; any other gets
    the result 'interrupted', unless --rerun says otherwise.

    \b
    Examples:
      quire resume demo --list
      quire resume demo
      quire resume work --rerun
    """
    with open_db(db, create=False) as store:
        found = look(store, thread)
        if only_list or found.next in ("done", "nothing"):
            _show(found, thread, as_json)
            return
        with store.turn_lock(thread):
            reached = reach(model or found.target, base_url, explicit_cache)
            before = remembered(standing(store, thread).user)
            choice = chosen({**how, "files": tuple(how["files"])}, before)
            outcome = _gone_on(Thread(store, thread), reached, choice, rerun, quiet=as_json)
    report(outcome, reached.target, as_json)


def _gone_on(log: Thread, reached: Connection, choice: Choice, rerun: bool, quiet: bool) -> Outcome:
    """Carry the rest of the turn out, shown as it goes; what is in doubt is named first."""
    runner, shown = make_runner(choice, log, reached), TurnPrinter(quiet)
    _name(look(log.store, log.name, runner), rerun)
    decide = again if rerun else interrupted
    try:
        return resume_sync(
            log, reached.transport, runner, target=reached.target, decide=decide, on_event=shown
        )
    finally:
        shown.end()


def again(call: Entry) -> Decision:
    """Whoever says --rerun knows that it does no harm."""
    return "run"


def _name(found: Interrupted, rerun: bool) -> None:
    for call in found.doubtful:
        what = "it is run again" if rerun else "it is answered as interrupted (--rerun runs it again)"
        click.echo(f"{call.name} ({call.call_id}) may or may not have run: {what}", err=True)


def _show(found: Interrupted, thread: str, as_json: bool) -> None:
    doubtful = [(call, "may have run") for call in found.doubtful]
    waiting = [(call, "waiting") for call in found.waiting]
    if as_json:
        calls = [
            {"call_id": call.call_id, "name": call.name, "args": call.args, "state": state}
            for call, state in [*doubtful, *waiting]
        ]
        print_json({"thread": thread, "next": found.next, "model": found.target, "calls": calls})
        return
    said = {
        "done": f"the newest turn of {thread} is answered",
        "nothing": f"{thread} has no user entry to answer",
        "ask": f"the model is to be asked ({found.target or 'none was asked yet'})",
        "run": "calls are to be run",
    }
    click.echo(said[found.next])
    if doubtful or waiting:
        print_table(["call", "tool", "state"], [(c.call_id, c.name, s) for c, s in [*doubtful, *waiting]])
