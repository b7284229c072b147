"""`quire resume`: go on with a turn that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli.choice import Choice, chosen, make_runner, remembered, runner_options
from quire.cli.common import db_option, json_option, print_json, print_table
from quire.cli.reach import Reached, explicit_option, model_option, reach, url_option
from quire.cli.store import open_db
from quire.cli.turn import Shown, report
from quire.engine import Thread
from quire.send.claim import claimed
from quire.send.cycle import Decision, Outcome, interrupted
from quire.send.resume import Interrupted, look, resume_sync
from quire.send.standing import standing
from quire.values import Entry


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
        with claimed(store, thread):
            reached = reach(model or found.target, base_url, explicit_cache)
            before = remembered(standing(store, thread).user)
            choice = chosen({**how, "files": tuple(how["files"])}, before)
            outcome = _gone_on(Thread(store, thread), reached, choice, rerun, quiet=as_json)
    report(outcome, reached.target, as_json)


def _gone_on(log: Thread, reached: Reached, choice: Choice, rerun: bool, quiet: bool) -> Outcome:
    """Carry the rest of the turn out, shown as it goes; what is in doubt is named first."""
    runner, shown = make_runner(choice, log, reached), Shown(quiet)
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
