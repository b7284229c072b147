"""`quire proxy`: watch an application's requests to a provider while they pass."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.output import counted, echo
from quire.errors import CallError

if TYPE_CHECKING:
    from quire.server.watch import CacheWatcher

# The rules of mending; their module is imported when one is used.
RULE_NAMES = ("key-order", "tool-order", "volatile", "retrieved", "late-tools", "late-effort", "marks")


@click.command()
@click.option("--to", required=True, help="The base URL that requests go on to: https://api.anthropic.com")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Where to listen; 0: any free port.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep what passed in this file, for `quire audit`.",
)
@click.option(
    "--key-from",
    metavar="VARIABLE",
    help="Send the key in this environment variable in place of the application's.",
)
@click.option(
    "--mend", is_flag=True, help="Repair what costs cache reads and changes no meaning (docs/mending.md)."
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    type=click.Choice(list(RULE_NAMES)),
    help="Only this rule; may be repeated.",
)
@click.option(
    "--without", multiple=True, type=click.Choice(list(RULE_NAMES)), help="Not this rule; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Show what mending would change, and send what came.")
@click.option(
    "--holdout",
    type=click.FloatRange(0, 0.9),
    default=0.0,
    show_default=True,
    help="Leave this share of conversations unmended, to measure what mending saves.",
)
@click.option(
    "--mend-subscriptions", is_flag=True, help="Mend what a subscription's token (OAuth) pays for, too."
)
@click.option(
    "--ask-provider",
    is_flag=True,
    help="Have the provider say what it could not reuse (Anthropic, OpenAI), and compare.",
)
def proxy(
    to: str,
    port: int,
    log: Path | None,
    key_from: str | None,
    mend: bool,
    rules: tuple[str, ...],
    without: tuple[str, ...],
    dry_run: bool,
    holdout: float,
    mend_subscriptions: bool,
    ask_provider: bool,
) -> None:
    """Watch an application's requests: change its base URL, and nothing else.

    Bodies, keys and streams pass unchanged. Each request is told in a line, with what came from the cache; where
    less came than could, also why, what it cost and what to change. With --mend it is changed on the way. If
    Quire fails, the request still passes.

    \b
    Examples:
      quire proxy --to https://api.anthropic.com --log requests.jsonl
      ANTHROPIC_BASE_URL=http://127.0.0.1:8765 my-agent
      quire proxy --to https://api.openai.com --mend --dry-run
      quire proxy --to https://api.anthropic.com --mend --without retrieved --holdout 0.1
    """
    from quire.server.mend import Mender
    from quire.server.proxy import CacheWatcher, Proxy, ProxyOptions

    needing = {"--rule": rules, "--without": without, "--dry-run": dry_run, "--holdout": holdout}
    needing["--mend-subscriptions"] = mend_subscriptions
    if not mend and any(needing.values()):
        raise click.UsageError(f"{next(name for name, value in needing.items() if value)} goes with --mend.")
    if log is not None:
        with log.open("a"):  # what cannot be written is said before anything passes
            pass
    mender = None
    if mend:
        mender = Mender([name for name in rules or RULE_NAMES if name not in without], holdout)
        if log is not None:
            mender.replay(log)
    options = ProxyOptions(
        to=base_url(to),
        key=_key(key_from),
        mender=mender,
        dry_run=dry_run,
        force=mend_subscriptions,
        ask_provider=ask_provider,
    )
    watcher = CacheWatcher(lambda watched: echo(watched.line()), log)
    # What is under way at the end is read to its end before all of it is told.
    with Proxy(options, watcher, port) as running, contextlib.suppress(KeyboardInterrupt):
        echo(f"watching {to} on {running.url} (Ctrl-C stops)", err=True)
        running.wait()
    show_total(watcher)


def base_url(to: str) -> str:
    """A base URL as it was given, if it is one."""
    if not to.startswith(("http://", "https://")):
        raise CallError(f"{to!r} is no base URL", hint="Write --to https://api.anthropic.com")
    return to


def _key(variable: str | None) -> str:
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise CallError(f"the environment has no {variable}", hint=f"Set it: export {variable}=…")
    return key


def show_total(watcher: CacheWatcher) -> None:
    """What all that passed came to."""
    spent = [conversation.spent for conversation in watcher.grouping.conversations]
    lost, usd = sum(each.lost for each in spent), sum(each.lost_usd for each in spent)
    requests = counted(sum(each.requests for each in spent), "request")
    echo(
        f"stopped after {requests}; {lost:,} tokens (${usd:,.2f}) could have been read and were not", err=True
    )
    seen = watcher.as_json()
    for row in seen["savings"]["simulated"]:
        read = f"{row['tokens']:,} tokens more were read (${row['usd']:,.4f})"
        echo(
            f"{row['rules']}: {counted(row['requests'], 'request')}, {read} than unmended, by simulation",
            err=True,
        )
    if found := seen["savings"]["measured"]:
        low, high = (f"{100 * each:.0f}" for each in found["interval"])
        groups = f"{found['conversations']} conversations against {found['held_out']} held out"
        echo(
            f"measured: {100 * found['saving']:.0f} % saved a token, 95 % between {low} and {high} ({groups})",
            err=True,
        )
    asked = seen["provider_agreement"]
    if asked["asked"]:
        echo(
            f"the provider was asked {asked['asked']} times and said the same {asked['agreed']} times",
            err=True,
        )
    if watcher.failures:
        echo(
            f"{counted(len(watcher.failures), 'failure')} of watching, last: {watcher.failures[-1]}", err=True
        )
