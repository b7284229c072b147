"""`quire proxy`: watch an application's requests to a provider while they pass."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.output import counted, echo
from quire.errors import CallError

if TYPE_CHECKING:
    from quire.server.watch import CacheWatcher


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
def proxy(to: str, port: int, log: Path | None, key_from: str | None) -> None:
    """Watch an application's requests: change its base URL, and nothing else.

    Bodies, keys and streams pass unchanged. Each request is told in a line, with what came from the cache; where
    less came than could, also why, what it cost and what to change. If watching fails, the request still passes.

    \b
    Examples:
      quire proxy --to https://api.anthropic.com --log requests.jsonl
      ANTHROPIC_BASE_URL=http://127.0.0.1:8765 my-agent
    """
    from quire.server.proxy import CacheWatcher, Proxy, ProxyOptions

    if log is not None:
        with log.open("a"):  # what cannot be written is said before anything passes
            pass
    options = ProxyOptions(to=base_url(to), key=_key(key_from))
    watcher = CacheWatcher(lambda watched: echo(watched.line()), log)
    with Proxy(options, watcher, port) as running:
        echo(f"watching {to} on {running.url} (Ctrl-C stops)", err=True)
        try:
            running.wait()
        except KeyboardInterrupt:
            watcher.close()
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
    if watcher.failures:
        echo(
            f"{counted(len(watcher.failures), 'failure')} of watching, last: {watcher.failures[-1]}", err=True
        )
