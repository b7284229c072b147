"""What is served: `quire proxy` in front of a provider; `quire serve` and `quire open`, threads and turns over HTTP with the
proxy and the inspector on one port; `quire mcp`.
"""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import json
import os
import signal
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.output import (
    FILE_PATH,
    Place,
    answer,
    counted,
    db_option,
    default_db,
    echo,
    json_option,
    make_folder,
    open_db,
    place_name,
    with_options,
)
from quire.errors import CallError, NotFound
from quire.log import now_ms
from quire.log.store import DEFAULT_TENANT, tenant_file
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.server.proxy import Passing
    from quire.server.service import Redactor, Service, ServiceLimits
    from quire.server.watch import CacheWatcher

# The rules of mending; their module is imported when one is used.
RULE_NAMES = ("key-order", "tool-order", "volatile", "retrieved", "late-tools", "late-effort", "marks")

# What a proxy can be told, by `quire proxy` and by `quire serve --to` alike; `passing_for` takes what came of it.
passing_options = with_options(
    click.option("--log", type=FILE_PATH, help="Keep what passed in this file, for `quire audit`."),
    click.option(
        "--key-from",
        metavar="VARIABLE",
        help="Send the key in this environment variable in place of the application's.",
    ),
    click.option(
        "--mend", is_flag=True, help="Repair what costs cache reads and changes no meaning (docs/mending.md)."
    ),
    click.option(
        "--rule", "rules", multiple=True, type=click.Choice(list(RULE_NAMES)), help="Only this rule; may be repeated."
    ),
    click.option(
        "--without", multiple=True, type=click.Choice(list(RULE_NAMES)), help="Not this rule; may be repeated."
    ),
    click.option("--dry-run", is_flag=True, help="Show what mending would change, and send what came."),
    click.option(
        "--holdout",
        type=click.FloatRange(0, 0.9),
        default=0.0,
        show_default=True,
        help="Leave this share of conversations unmended, to measure what mending saves.",
    ),
    click.option("--mend-subscriptions", is_flag=True, help="Mend what a subscription's token (OAuth) pays for, too."),
    click.option(
        "--ask-provider",
        is_flag=True,
        help="Have the provider say what it could not reuse (Anthropic, OpenAI), and compare.",
    ),
    click.option(
        "--budget",
        type=click.IntRange(1_000),
        help="Fit histories that outgrow so many tokens; what was cut the model can recall.",
    ),
)


def passing_for(
    to: str,
    tenant: str = DEFAULT_TENANT,
    *,
    log: Path | None,
    key_from: str | None,
    mend: bool,
    rules: tuple[str, ...],
    without: tuple[str, ...],
    dry_run: bool,
    holdout: float,
    mend_subscriptions: bool,
    ask_provider: bool,
    budget: int | None,
    redactor: Redactor | None = None,
) -> Passing:
    """The proxy of one tenant as the options have it, which prints each request that passes."""
    from quire.server.mend import Mender
    from quire.server.proxy import CacheWatcher, Passing, ProxyOptions
    from quire.server.service import Redactor

    needing = {"--rule": rules, "--without": without, "--dry-run": dry_run, "--holdout": holdout}
    needing["--mend-subscriptions"] = mend_subscriptions
    if not mend and any(needing.values()):
        raise click.UsageError(f"{next(name for name, value in needing.items() if value)} goes with --mend.")
    if log is not None:
        log = tenant_file(log, tenant)
        with log.open("a"):  # what cannot be written is said before anything passes
            pass
    mender = None
    if mend:
        mender = Mender([name for name in rules or RULE_NAMES if name not in without], holdout)
        if log is not None:
            mender.replay(log)
    options = ProxyOptions(
        to=to,
        key=_key(key_from),
        mender=mender,
        dry_run=dry_run,
        force=mend_subscriptions,
        ask_provider=ask_provider,
        budget=budget or 0,
    )
    redact = (redactor or Redactor()).text
    # What was mended must be sent in the same words by a proxy that learns them from this log.
    kept = str if mend else redact
    return Passing(options, CacheWatcher(lambda watched: echo(redact(watched.line())), log, redact=kept))


port_option = click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="Where to listen; 0: any free port."
)


@click.command()
@click.option("--to", required=True, help="The base URL that requests go on to: https://api.anthropic.com")
@port_option
@passing_options
def proxy(to: str, port: int, **how: Any) -> None:
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
    from quire.server.proxy import Proxy

    passing = passing_for(base_url(to, port), **how)
    # What is under way at the end is read to its end before all of it is told.
    with Proxy(passing.options, passing.watcher, port) as running, contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # how a service is stopped
        serve_promptly()
        echo(f"watching {passing.options.shown_to} on {running.url} (Ctrl-C stops)", err=True)
        running.wait()
    show_total(passing.watcher)


def serve_promptly() -> None:
    """Have whoever waits for a first byte not wait for what is read beside it: work in other threads, old objects."""
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()


def base_url(to: str, port: int = 0) -> str:
    """A base URL as it was given, if it is one and leads elsewhere than to this `port`."""
    to = to.strip()
    with contextlib.suppress(ValueError):  # an address or a port that is none
        url = urllib.parse.urlsplit(to)
        if port and url.port == port and _is_loopback(url.hostname or ""):
            raise CallError(f"{to} is where this proxy listens itself", hint="--to names the provider's address.")
        if url.scheme in ("http", "https") and url.hostname and not url.query and not url.fragment:
            return to
    raise CallError(f"{to!r} is no base URL", hint="Write --to https://api.anthropic.com")


def _key(variable: str | None) -> str:
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise CallError(f"the environment has no {variable}", hint=f"Set it: export {variable}=…")
    return key


def show_total(watcher: CacheWatcher) -> None:
    """What all that passed came to."""
    total = watcher.grouping.total
    lost = f"{total.lost:,} tokens (${total.lost_usd:,.2f}) could have been read and were not"
    echo(f"stopped after {counted(total.requests, 'request')}; {lost}", err=True)
    status = watcher.as_json()
    for row in status["savings"]["simulated"]:
        read = f"{abs(row['tokens']):,} tokens {'more' if row['tokens'] >= 0 else 'fewer'} were read"
        read += f" (${abs(row['usd']):,.4f} {'saved' if row['usd'] >= 0 else 'lost'})"
        echo(f"{row['rules']}: {counted(row['requests'], 'request')}, {read} than unmended, by simulation", err=True)
    if trial := status["savings"]["measured"]:
        low, high = (f"{100 * bound:.0f}" for bound in trial["interval"])
        groups = f"{trial['conversations']} conversations against {trial['held_out']} held out"
        echo(
            f"measured: {100 * trial['saving']:.0f} % saved a token, 95 % between {low} and {high} ({groups})", err=True
        )
    check = status["provider_agreement"]
    if check["asked"]:
        asked, agreed = (counted(check[name], "time") for name in ("asked", "agreed"))
        echo(f"the provider was asked {asked} and said the same {agreed}", err=True)
    if watcher.failures:
        echo(f"{counted(len(watcher.failures), 'failure')} of watching, last: {watcher.failures[-1]}", err=True)


# The service.


@click.group(invoke_without_command=True)
@port_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Which address; any but this machine's demands keys."
)
@db_option
@click.option("--to", help="Pass requests of other paths on to this base URL; takes all options of `quire proxy`.")
@click.option("--model", "-m", help="provider:model of turns that name none (default: $QUIRE_MODEL).")
@click.option("--base-url", help="Another address of that model's provider (default: $QUIRE_BASE_URL).")
@click.option(
    "--local", is_flag=True, help="Bring the local model along: for turns, and behind the proxy without --to."
)
@click.option("--demo", is_flag=True, help="Where there is no thread yet, begin with one to look at.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds that turns may go on at the end.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=500.0,
    show_default=True,
    help="Requests a second of one caller; 0: any.",
)
@click.option(
    "--max-body", type=click.IntRange(1024), default=16 * 1024 * 1024, show_default=True, help="Bytes of one body."
)
@click.option(
    "--redact", multiple=True, metavar="REGEX", help="More texts that are secrets, besides keys of known formats."
)
@click.option("--no-redact", is_flag=True, help="Keep and show secrets as they come.")
@passing_options
@click.pass_context
def serve(
    context: click.Context,
    /,
    port: int,
    host: str,
    db: Place | None,
    to: str | None,
    model: str | None,
    base_url: str | None,
    local: bool,
    demo: bool,
    grace: float,
    rate: float,
    max_body: int,
    redact: tuple[str, ...],
    no_redact: bool,
    **passing: Any,
) -> None:
    """Serve the threads of a database over HTTP; /api/openapi.json tells of every route.

    \b
    Examples:
      quire serve
      quire serve --local --demo
      quire serve --port 8080 --to https://api.anthropic.com --mend
      quire serve keys add laptop && quire serve --host 0.0.0.0
    """
    context.obj = db or default_db()
    if context.invoked_subcommand is not None:
        return
    from quire.send.local import local_target
    from quire.server.app import Running
    from quire.server.service import ServiceLimits

    model, base_url = (model or os.environ.get("QUIRE_MODEL", ""), base_url or os.environ.get("QUIRE_BASE_URL", ""))
    if local:  # the embedded model, started unless it runs already; it ends with this process
        model, base_url = local_target(say=lambda line: echo(line, err=True, dim=True))
        to = to or base_url
    limits = ServiceLimits(body_bytes=max_body, per_s=rate, grace_s=grace)
    service = _service(context.obj, host, limits, redact, no_redact, model, base_url)
    running = Running(service, host=host, port=port, proxies=_proxies(to, port, passing, service.redactor))
    if demo and not service.tenant().store.threads():
        from quire.cli.models import begin_demo

        begin_demo(service.tenant().store)
    serve_promptly()
    echo(f"serving {place_name(context.obj)} on {running.url} (Ctrl-C stops)", err=True)
    if to is not None:
        base = f"OPENAI_BASE_URL={running.url}/v1" if local else f"the base URL {running.url}"
        echo(f"give a client {base}, and see its reuse and money here and on that page", err=True, dim=True)
    running.run()
    for watcher in service.watchers.values():
        show_total(watcher)
    echo("stopped; what was acknowledged is stored", err=True)


def _service(
    place: Place, host: str, limits: ServiceLimits, redact: tuple[str, ...], no_redact: bool, model: str, base_url: str
) -> Service:
    """The service of a database; one that other machines reach has keys."""
    from quire.server.service import Redactor, Service

    make_folder(place)
    redactor = Redactor(redact, off=no_redact)
    service = Service(place, limits=limits, redactor=redactor, model=model, base_url=base_url)
    if not _is_loopback(host) and not service.needs_keys:
        service.close()
        raise CallError(
            f"listening on {host} demands keys, and there are none",
            hint="`quire serve keys add NAME` makes one; without --host only this machine is served.",
        )
    return service


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _proxies(to: str | None, port: int, how: JsonObject, redactor: Redactor) -> Callable[[str], Passing] | None:
    """Who passes a tenant's requests on; what is wrong with the options is said before anything is served."""
    if to is None:
        option = next((name for name, value in how.items() if value), "")
        if option:
            raise click.UsageError(f"--{option.replace('_', '-').replace('rules', 'rule')} goes with --to.")
        return None
    base, how = base_url(to, port), {**how, "redactor": redactor}
    own_passing = passing_for(base, **how)
    return lambda tenant: own_passing if tenant == DEFAULT_TENANT else passing_for(base, tenant, **how)


@serve.group()
def keys() -> None:
    """Make, list and revoke the keys of a service."""


def _keys(context: click.Context) -> Any:
    from quire.server.service import Keys, open_own

    place = context.find_root().obj if context.obj is None else context.obj
    make_folder(place)
    return Keys(open_own(place))


@keys.command(short_help="Make a key; it is shown once.")
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="Whose threads it opens.")
@json_option
@click.pass_context
def add(context: click.Context, name: str, tenant: str, as_json: bool) -> None:
    """Make a key called NAME; it is shown now and never again."""
    key = _keys(context).add(name, tenant, now_ms())
    answer(as_json, {"key": key, "name": name, "tenant": tenant}, key)


@keys.command("list", short_help="Which keys there are.")
@json_option
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """The keys there are, without the keys themselves."""
    import msgspec

    listed = _keys(context).list()
    rows = [(key.id, key.name, key.tenant) for key in listed]
    answer(as_json, [msgspec.to_builtins(key) for key in listed], (["id", "name", "tenant"], rows))


@keys.command(short_help="Take a key away.")
@click.argument("id")
@click.pass_context
def revoke(context: click.Context, id: str) -> None:
    """Take the key with this ID away; services that run refuse it within seconds."""
    _keys(context).revoke(id)
    echo(f"{id} is revoked")


@click.command(name="open")
@click.argument("thread", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Where it is, or shall be, served; 0: any free port.",
)
@click.option("--no-browser", is_flag=True, help="Print the address alone.")
@db_option
def open_(thread: str | None, port: int, no_browser: bool, db: Place | None) -> None:
    """Open the inspector in the browser, at THREAD; `quire serve` is started where it does not run yet.

    \b
    Examples:
      quire open
      quire open demo --port 8080
    """
    import webbrowser

    from quire.server.app import Running
    from quire.server.service import Service

    place = db or default_db()
    if thread is not None:
        with open_db(place, create=False) as store:
            store.info(thread)
    served, running = _served(port, place) if port else "", None
    if not served:
        make_folder(place)
        running = Running(Service(place), port=port)
        served = running.url
        echo(f"serving {place_name(place)} on {served} (Ctrl-C stops)", err=True)
    url = f"{served}/#/thread/{urllib.parse.quote(thread, safe='')}" if thread else f"{served}/"
    echo(url)
    if not no_browser:
        webbrowser.open(url)
    if running is not None:
        running.run()


def _served(port: int, place: Place) -> str:
    """The address of a service on this port that has the same threads; empty where there is none."""
    import urllib.request  # for one command of many, and slow to load

    url = f"http://127.0.0.1:{port}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/api/threads", timeout=10) as reply:
            threads = {(row["name"], row["id"]) for row in json.load(reply)["threads"]}
        with open_db(place, create=False) as store:
            return url if threads == {(thread.name, thread.id) for thread in store.threads()} else ""
    except (OSError, ValueError, KeyError, TypeError, NotFound):
        return ""


@click.command()
@click.option("--no-redact", is_flag=True, help="Show secrets as they are kept.")
@db_option
def mcp(no_redact: bool, db: Place | None) -> None:
    """Serve what a database holds over MCP, on standard input and output; nothing is written.

    Tools: threads, assemble, recall, show, records, audit. Resources: quire://threads and what is under it,
    quire://entries/ID, quire://records/ID.

    \b
    Examples:
      quire mcp
      quire mcp --db work.db
      claude mcp add quire -- quire mcp
    """
    from quire.server.mcp_server import make_server
    from quire.server.service import Redactor

    with open_db(db, create=False) as store:
        make_server(store, Redactor(off=no_redact)).run()
