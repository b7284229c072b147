"""A turn on the terminal: the answer as it comes on stdout, calls and numbers on stderr."""

from __future__ import annotations

import sys

import click
import msgspec

from quire.cli.common import counted, print_json
from quire.cli.line import line_of
from quire.send.cycle import Outcome
from quire.send.events import Event
from quire.values import Entry, JsonObject


class Shown:
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
