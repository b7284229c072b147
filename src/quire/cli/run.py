"""`quire run`: carry out one turn, streamed to the terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from quire.cli.attachments import attach_option, attached_items, linked_items, note_items, note_option, question
from quire.cli.output import Place, PlainScreen, counted, db_option, echo, json_option, print_json, print_table
from quire.cli.runner import (
    Connection,
    Equipment,
    chosen,
    equipped,
    last_model,
    model_options,
    reach,
    remembered,
    runner_options,
    under_policy,
)
from quire.cli.store import open_db
from quire.errors import CallError
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.send.cycle import Decision, Interrupted, Outcome
    from quire.thread import Thread


def report(outcome: Outcome, target: str, as_json: bool, sources: str = "") -> None:
    """How a turn ended: the sources of its answer and one line of numbers, or all of it for machines."""
    if as_json:
        print_json(outcome_json(outcome, target))
        return
    if sources:
        echo(f"\n{sources}")
    echo(status(outcome, target), err=True, dim=True)


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
        "usage": outcome.usage.as_json(),
        "usd": outcome.usd,
        "entries": [entry.seq for entry in outcome.entries],
    }


@click.command()
@click.argument("thread")
@click.argument("text", required=False)
@attach_option
@note_option
@model_options
@runner_options
@db_option
@json_option
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
    from quire.send.note_search import sources, sources_text
    from quire.send.turn import newest_turn

    words, choice, screen = _words(text), chosen(how), PlainScreen(as_json)
    with equipped(choice) as kit:
        attached = note_items(note, kit.vault)
        attached += [item for name in attach for item in attached_items(name, kit.vault)]
        attached += linked_items(words, kit.vault, screen.note)
        reached = reach(model, base_url, explicit_cache, last_model(db, thread))
        with open_db(db) as store, store.turn_lock(thread):
            log = _opened(store, thread, reached, kit, screen)
            _mention_interrupted(store, thread)
            log.user(words, **question(attached, choice.meta(), log))
            try:
                runner = kit.runner(log, reached)
                outcome = run_sync(log, reached.target, reached.transport, runner, on_event=screen.event)
            finally:
                screen.end()
            listed = sources_text(sources(newest_turn(store, thread)))
    report(outcome, reached.target, as_json, listed)


def _opened(store: Store, name: str, reached: Connection, kit: Equipment, screen: PlainScreen) -> Thread:
    from quire.telemetry import watched
    from quire.thread import Thread

    thread = under_policy(watched(Thread(store, name), os.environ), reached, kit.choice)
    thread.on_warning = lambda what: screen.note(f"({getattr(what, 'note', what)})")
    return thread


def _words(text: str | None) -> str:
    words = text if text is not None else sys.stdin.read()
    if not words.strip():
        raise CallError("there is nothing to say", hint="Give TEXT, or pipe it in.")
    return words


def _mention_interrupted(store: Store, thread: str) -> None:
    """A new turn leaves an open one behind; whoever did not mean that should know."""
    from quire.send.turn import standing

    if any(each.name == thread for each in store.threads()) and standing(store, thread).next in ("ask", "run"):
        echo("the turn before was not finished; `quire resume` would have gone on with it", err=True, dim=True)


# `quire resume`: go on with a turn that was interrupted.


@click.command()
@click.argument("thread")
@model_options
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
    from quire.send.note_search import sources, sources_text
    from quire.send.turn import newest_turn, standing

    with open_db(db, create=False) as store:
        found = look(store, thread)
        if only_list or found.next in ("done", "nothing"):
            _show(found, thread, as_json)
            return
        reached = reach(model or found.target, base_url, explicit_cache)
        choice = chosen(how, remembered(standing(store, thread).user))
        screen = PlainScreen(as_json)
        with equipped(choice) as kit, store.turn_lock(thread):
            outcome = _resumed(_opened(store, thread, reached, kit, screen), reached, kit, screen, rerun)
            listed = sources_text(sources(newest_turn(store, thread)))
    report(outcome, reached.target, as_json, listed)


def _resumed(thread: Thread, reached: Connection, kit: Equipment, screen: PlainScreen, rerun: bool) -> Outcome:
    """Go on with the newest turn, once the calls that may have run already are named."""
    from quire.send.cycle import interrupted, look, resume_sync

    runner = kit.runner(thread, reached)
    _name(look(thread.store, thread.name, runner), rerun)
    decide = again if rerun else interrupted
    try:
        return resume_sync(
            thread, reached.transport, runner, target=reached.target, decide=decide, on_event=screen.event
        )
    finally:
        screen.end()


def again(call: Entry) -> Decision:
    """Whoever says --rerun knows that it does no harm."""
    return "run"


def _name(found: Interrupted, rerun: bool) -> None:
    for call in found.doubtful:
        what = "it is run again" if rerun else "it is answered as interrupted (--rerun runs it again)"
        echo(f"{call.name} ({call.call_id}) may or may not have run: {what}", err=True)


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
    messages = {
        "done": f"the newest turn of {thread} is answered",
        "nothing": f"{thread} has no user entry to answer",
        "ask": f"the model is to be asked{' to go on' * found.stopped} ({found.target or 'none was asked yet'})",
        "run": "calls are to be run",
    }
    echo(messages[found.next])
    if doubtful or waiting:
        print_table(["call", "tool", "state"], [(c.call_id, c.name, s) for c, s in [*doubtful, *waiting]])
