"""`quire serve` and `quire open`: threads, requests and turns over HTTP, the proxy and the inspector on one port."""

from __future__ import annotations

import ipaddress
import json
import os
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quire.cli.output import (
    Place,
    answer,
    db_option,
    default_db,
    echo,
    json_option,
    place_name,
    print_json,
    print_table,
)
from quire.cli.proxy import passing_for, passing_options, port_option, serve_promptly, show_total
from quire.cli.store import make_folder, open_db
from quire.errors import CallError, NotFound
from quire.log import now_ms
from quire.log.store import DEFAULT_TENANT
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.server.proxy import Passing
    from quire.server.service import Service, ServiceLimits


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
    running = Running(service, host=host, port=port, proxies=_proxies(to, passing))
    if demo and not service.tenant().store.threads():
        _begin_demo(service.tenant().store)
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
    from quire.server.access import Redactor
    from quire.server.service import Service

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


# What is asked in the demo, the file that the model reads for it, and its answer; the last but one comes after a long pause.
_DEMO = (
    ("Orders above 50 euros ship free. Where is that decided?", "shop/shipping.py", "In `fee()`: the limit is 50.0."),
    ("Customers see two decimals everywhere but in the mail.", "shop/mail.py", "`receipt()` lacks `:.2f`; mended."),
    ("Why is order A-1042 counted twice?", "shop/orders.py", "`add()` retries without its id; A-1042 came twice."),
    ("Add a test for that.", "tests/test_orders.py", "`test_a_retry_adds_nothing` fails before, passes now."),
    ("Do vouchers apply before or after shipping?", "shop/vouchers.py", "Before: `total()` takes the voucher first."),
    ("Then the free limit must see the full price.", "shop/cart.py", "Done: cart.py calls `fee(full)`."),
    ("Does the invoice say so too?", "shop/invoice.py", "It used the reduced price; it calls `fee(full)` now."),
    ("Back from lunch. Which order was counted twice?", "shop/ledger.py", "A-1042; the ledger has it once."),
    ("Write the changelog line.", "CHANGELOG.md", "Free shipping goes by the full price; retries add no order."),
)


_DEMO_RULES = """\
You mend the web shop of a small company.
- Name the file and the function.
- Say what you changed in one line.
- Prices are in euros.
- Never touch the ledger.
"""


def _demo_file(path: str) -> str:
    """Read a file of the shop."""
    parts = ("lines", "prices", "taxes", "labels", "dates", "notes")
    return f"# {path}\n" + "".join(
        f"def {verb}_{part}(order):\n    return [{verb}(each) for each in order.{part} if each.open]\n\n"
        for verb in ("check", "load", "save", "sort")
        for part in parts
    )


def _begin_demo(store: Store) -> None:
    """A coding session with a provider's stand-in, so that there is something to look at: reuse, a pause, a cut."""
    from quire.assemble import Policy
    from quire.emulate import Emulator
    from quire.send.connect import transport_for
    from quire.send.cycle import run_sync
    from quire.send.tools import Toolbox, tool
    from quire.send.turn import Runner
    from quire.thread import Thread
    from quire.values import system

    now = [now_ms() - 18 * 60_000]

    def clock() -> int:
        now[0] += 1_500
        return now[0]

    target, runner = "anthropic:claude-opus-5-5", Runner(tools=Toolbox(tool(name="read")(_demo_file)))
    replies = [
        reply for _, path, answer in _DEMO for reply in ({"calls": [{"name": "read", "args": {"path": path}}]}, answer)
    ]
    thread = Thread(store, "demo", Policy(budget=3_500, reply=500), clock=clock, observers=())
    thread.append(system(_DEMO_RULES))
    with Emulator("anthropic", replies, lenient=True, clock=lambda: now[0]) as provider:
        for n, (text, _, _) in enumerate(_DEMO):
            now[0] += 12 * 60_000 if n == len(_DEMO) - 2 else 20_000
            thread.user(text)
            run_sync(thread, target, transport_for(target, provider.url, "any", via="http"), runner)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _proxies(to: str | None, how: JsonObject) -> Callable[[str], Passing] | None:
    """Who passes a tenant's requests on; what is wrong with the options is said before anything is served."""
    if to is None:
        option = next((name for name, value in how.items() if value), "")
        if option:
            raise click.UsageError(f"--{option.replace('_', '-').replace('rules', 'rule')} goes with --to.")
        return None
    own_passing = passing_for(to, **how)
    return lambda tenant: own_passing if tenant == DEFAULT_TENANT else passing_for(to, tenant, **how)


@serve.group()
def keys() -> None:
    """Make, list and revoke the keys of a service."""


def _keys(context: click.Context) -> Any:
    from quire.server.access import Keys
    from quire.server.service import open_own

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
    if as_json:
        print_json([msgspec.to_builtins(key) for key in listed])
        return
    print_table(["id", "name", "tenant"], [(key.id, key.name, key.tenant) for key in listed])


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
    from quire.errors import MissingPart

    try:
        from quire.server.mcp_server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "pydantic"):
            raise
        raise MissingPart("the MCP SDK is not installed", hint="pip install 'quire[mcp]'") from error
    from quire.server.access import Redactor

    with open_db(db, create=False) as store:
        make_server(store, Redactor(off=no_redact)).run()
