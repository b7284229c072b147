"""`quire run`: carry out one turn, streamed to the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from quire.cli.attachments import attached_items, linked_items, note_items, question, question_options
from quire.cli.output import Place, PlainScreen, counted, db_json_options, echo, print_json, print_table
from quire.cli.runner import (
    Connection,
    Equipment,
    chosen,
    equipped,
    last_model,
    listed_sources,
    model_options,
    reach,
    remembered,
    runner_options,
    under_policy,
    watched_thread,
)
from quire.cli.store import open_db
from quire.errors import CallError, NotFound

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.send.cycle import Decision, Interrupted, Outcome
    from quire.thread import Thread


def report(outcome: Outcome, target: str, as_json: bool, sources: str = "") -> None:
    """How a turn ended: the sources of its answer and one line of numbers, or all of it for machines."""
    used = outcome.usage
    if as_json:
        value = {
            "model": target,
            "stop": outcome.stop,
            "text": outcome.text,
            "steps": outcome.steps,
            "usage": used.as_json(),
            "usd": outcome.usd,
            "entries": [entry.seq for entry in outcome.entries],
        }
        print_json(value)
        return
    if sources:
        echo(f"\n{sources}")
    share = f", {used.cache_read / used.input_total:.0%} from the cache" if used.input_total else ""
    money = f", ${outcome.usd:.4f}" if outcome.usd is not None else ""
    ended = "" if outcome.stop == "answered" else f" [ended: {outcome.stop}]"
    tokens = f"{used.input_total:,} tokens in{share}, {used.output:,} out"
    echo(f"{target}: {counted(outcome.steps, 'request')}, {tokens}{money}{ended}", err=True, dim=True)


@click.command()
@click.argument("thread")
@click.argument("text", required=False)
@question_options
@model_options
@runner_options
@db_json_options
def run(
    thread: str,
    text: str | None,
    attach: tuple[str, ...],
    note: str | None,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    db: Place | None,
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
    from quire.send.cycle import run_sync

    words, choice, screen = _words(text), chosen(how), PlainScreen(as_json)
    with equipped(choice) as kit:
        attached = note_items(note, kit.vault)
        attached += [item for name in attach for item in attached_items(name, kit.vault)]
        attached += linked_items(words, kit.vault, screen.note)
        reached = reach(model, base_url, explicit_cache, last_model(db, thread))
        with open_db(db) as store, store.turn_lock(thread):
            log = under_policy(watched_thread(store, thread, screen.note), reached, choice)
            _mention_interrupted(store, thread)
            log.user(words, **question(attached, choice.meta(), log))
            try:
                runner = kit.runner(log, reached)
                outcome = run_sync(log, reached.target, reached.transport, runner, on_event=screen.event)
            finally:
                screen.end()
            listed = listed_sources(store, thread)
    report(outcome, reached.target, as_json, listed)


def _words(text: str | None) -> str:
    words = text if text is not None else sys.stdin.read()
    if not words.strip():
        raise CallError("there is nothing to say", hint="Give TEXT, or pipe it in.")
    return words


def _mention_interrupted(store: Store, thread: str) -> None:
    """A new turn leaves an open one behind; whoever did not mean that should know."""
    from quire.send.turn import standing

    with contextlib.suppress(NotFound):
        if standing(store, thread).next in ("ask", "run"):
            echo("the turn before was not finished; `quire resume` would have gone on with it", err=True, dim=True)


# `quire resume`: go on with a turn that was interrupted.


@click.command()
@click.argument("thread")
@model_options
@runner_options
@click.option("--list", "only_list", is_flag=True, help="Only show what is still to be done; change nothing.")
@click.option("--rerun", is_flag=True, help="Run a call again that may have run already.")
@db_json_options
def resume(
    thread: str,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    only_list: bool,
    rerun: bool,
    db: Place | None,
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
    from quire.send.cycle import look
    from quire.send.turn import standing

    with open_db(db, create=False) as store:
        turn = look(store, thread)
        if only_list or turn.next in ("done", "nothing"):
            _show(turn, thread, as_json)
            return
        reached = reach(model or turn.target, base_url, explicit_cache)
        choice = chosen(how, remembered(standing(store, thread).user))
        screen = PlainScreen(as_json)
        with equipped(choice) as kit, store.turn_lock(thread):
            log = under_policy(watched_thread(store, thread, screen.note), reached, choice)
            outcome = _resumed(log, reached, kit, screen, rerun)
            listed = listed_sources(store, thread)
    report(outcome, reached.target, as_json, listed)


def _resumed(thread: Thread, reached: Connection, kit: Equipment, screen: PlainScreen, rerun: bool) -> Outcome:
    """Go on with the newest turn, once the calls that may have run already are named."""
    from quire.send.cycle import look, resume_sync

    runner = kit.runner(thread, reached)
    for call in look(thread.store, thread.name, runner).doubtful:
        action = "it is run again" if rerun else "it is answered as interrupted (--rerun runs it again)"
        echo(f"{call.name} ({call.call_id}) may or may not have run: {action}", err=True)
    # Whoever says --rerun knows that it does no harm.
    decision: Decision = "run" if rerun else "interrupted"
    try:
        return resume_sync(
            thread, reached.transport, runner, target=reached.target, decide=lambda _: decision, on_event=screen.event
        )
    finally:
        screen.end()


def _show(turn: Interrupted, thread: str, as_json: bool) -> None:
    calls = [(call, "may have run") for call in turn.doubtful] + [(call, "waiting") for call in turn.waiting]
    if as_json:
        rows = [
            {"call_id": call.call_id, "name": call.name, "args": call.args, "state": state} for call, state in calls
        ]
        print_json({"thread": thread, "next": turn.next, "model": turn.target, "calls": rows})
        return
    messages = {
        "done": f"the newest turn of {thread} is answered",
        "nothing": f"{thread} has no user entry to answer",
        "ask": f"the model is to be asked{' to go on' * turn.stopped} ({turn.target or 'none was asked yet'})",
        "run": "calls are to be run",
    }
    echo(messages[turn.next])
    if calls:
        print_table(["call", "tool", "state"], [(call.call_id, call.name, state) for call, state in calls])
