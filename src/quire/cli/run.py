"""`quire run`: carry out one turn, streamed to the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from quire.cli.attached import attach_option, attachments
from quire.cli.choice import Choice, check, chosen, make_runner, runner_options
from quire.cli.common import db_option, json_option
from quire.cli.reach import Reached, explicit_option, model_option, reach, url_option
from quire.cli.store import open_db
from quire.cli.turn import Shown, report
from quire.engine import Thread
from quire.errors import CallError
from quire.log.sqlite import SqliteStore
from quire.send.claim import claimed
from quire.send.cycle import Outcome, run_sync
from quire.send.runners import sources, sources_text
from quire.send.standing import newest_turn, standing


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
    with open_db(db) as store, claimed(store, thread):
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


def _answered(log: Thread, reached: Reached, choice: Choice, quiet: bool) -> Outcome:
    """Carry the turn out, shown as it goes."""
    shown = Shown(quiet)
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
