"""`quire proxy`: an application's requests passed on and explained; known clients started behind it (`quire wrap`),
what was changed in their files put back to the byte (`quire unwrap`), and how all that stands (`quire doctor`).
"""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import (
    FILE_PATH,
    NumberRange,
    count_of,
    echo,
    json_option,
    option,
    print_json,
    print_table,
    with_options,
)
from quire.errors import CallError, FormatError
from quire.log import OWNER_ALONE
from quire.log.store import DEFAULT_TENANT, tenant_file
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.server.mend import Mender
    from quire.server.proxy import Passing
    from quire.server.service import Redactor
    from quire.server.watch import CacheWatcher


# The rules of mending; their module is imported when one is used.
RULE_NAMES = ("key-order", "tool-order", "volatile", "retrieved", "late-tools", "late-effort", "marks")

# What a proxy can be told, by `quire proxy` and by `quire serve --to` alike; `passing_for` takes what came of it.
passing_options = with_options(
    option("--log", "Write the requests to this file, for `quire audit`.", FILE_PATH),
    option(
        "--key-from", "Send the key in this environment variable in place of the application's.", metavar="VARIABLE"
    ),
    option("--mend", "Repair what costs cache reads and changes no meaning (docs/mending.md).", bool),
    option("--rule rules", "Only this rule; may be repeated.", list(RULE_NAMES), multiple=True),
    option("--without", "Not this rule; may be repeated.", list(RULE_NAMES), multiple=True),
    option("--dry-run", "Show what mending would change, but send requests unchanged.", bool),
    option(
        "--holdout",
        "Leave this share of conversations unmended, to measure what mending saves.",
        NumberRange(0, 0.9),
        0.0,
    ),
    option("--mend-subscriptions", "Mend and fit what a subscription's token (OAuth) pays for, too.", bool),
    option("--ask-provider", "Ask the provider what it could not reuse (Anthropic, OpenAI), and compare.", bool),
    option(
        "--budget",
        "Fit histories that outgrow so many tokens; the model can recall what was cut.",
        click.IntRange(1_000),
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
    provider: str = "",
) -> Passing:
    """The proxy of one tenant as the options have it, which prints each request that passes."""
    from quire.server.proxy import CacheWatcher, Passing, ProxyOptions
    from quire.server.service import Redactor

    needing = {"--rule": rules, "--without": without, "--dry-run": dry_run, "--holdout": holdout}
    needing["--mend-subscriptions"] = mend_subscriptions and budget is None
    if not mend and any(needing.values()):
        raise click.UsageError(f"{next(name for name, value in needing.items() if value)} goes with --mend.")
    if dry_run and budget is not None:
        raise click.UsageError("--dry-run shows what --mend would change, and sends what came: leave --budget out.")
    if log is not None:
        log = tenant_file(log, tenant)
        log.touch(OWNER_ALONE)
        with log.open("a"):  # what cannot be written is said before anything passes
            pass
    options = ProxyOptions(
        to=to,
        provider=provider,
        key=_key(key_from),
        mender=_mender([name for name in rules or RULE_NAMES if name not in without], holdout, log) if mend else None,
        dry_run=dry_run,
        force=mend_subscriptions,
        ask_provider=ask_provider,
        budget=budget or 0,
    )
    redact = (redactor or Redactor()).text
    # What was mended must be sent in the same words by a proxy that learns them from this log.
    kept = str if mend else redact
    return Passing(options, CacheWatcher(lambda watched: echo(redact(watched.line())), log, redact=kept))


def _mender(rules: Collection[str], holdout: float, log: Path | None) -> Mender:
    """What mends requests; it goes on where an earlier proxy with this log ended."""
    from quire.server.mend import Mender

    mender = Mender(rules, holdout)
    if log is not None:
        mender.replay(log)
    return mender


def port_option(default: int = 8765, help: str = "Where to listen; 0: any free port.") -> Callable[[Any], Any]:
    """The option that says where something is served."""
    return option("--port", help, click.IntRange(0, 65535), default)


@click.command()
@option("--to", "The base URL that requests go on to: https://api.anthropic.com", required=True)
@port_option()
@passing_options
def proxy(to: str, port: int, **how: Any) -> None:
    """Watch an application's requests: change its base URL, and nothing else.

    Bodies, keys and streams pass unchanged. Each request prints a line with what came from the cache. If less came
    than could, the lines also say why, what it cost and what to change. --mend changes requests on the way. If
    Quire fails, the request still passes.

    \b
    Examples:
      quire proxy --to https://api.anthropic.com --log requests.jsonl
      ANTHROPIC_BASE_URL=http://127.0.0.1:8765 my-agent
      quire proxy --to https://api.openai.com --mend --dry-run
      quire proxy --to https://api.anthropic.com --mend --without retrieved --holdout 0.1
    """
    from quire.server.proxy import Proxy

    passing = passing_for(checked_base_url(to, port), **how)
    # What is under way at the end is read to its end before all of it is told.
    with Proxy(passing.options, passing.watcher, port) as running, contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # how a service is stopped
        serve_promptly()
        echo(f"watching {passing.options.shown_to} on {running.url} (Ctrl-C stops)", err=True)
        running.wait()
    show_total(passing.watcher)


def serve_promptly() -> None:
    """Have whoever waits for a first byte not wait for what is read beside it: work in other threads, old objects."""
    if sys.platform != "win32":
        import resource  # at the limit of open files nobody would be answered

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()


def checked_base_url(to: str, port: int = 0) -> str:
    """A base URL as it was given, if it is one and leads elsewhere than to this `port`."""
    from quire.send.transport import is_base_url, without_password

    to = to.strip()
    if is_base_url(to) and not ((url := urllib.parse.urlsplit(to)).query or url.fragment):
        if port and url.port == port and is_loopback(url.hostname or ""):
            raise CallError(f"{to} is where this proxy listens itself", hint="--to names the provider's address.")
        return to
    raise CallError(f"{without_password(to)!r} is no base URL", hint="Write --to https://api.anthropic.com")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine to itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _key(variable: str | None) -> str:
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise CallError(f"the environment has no {variable}", hint=f"Set it: export {variable}=…")
    if not key.isascii() or not key.isprintable():
        raise CallError(f"what {variable} holds cannot be sent as a key", hint="A key is one line of ASCII characters.")
    return key


def show_total(watcher: CacheWatcher) -> None:
    """What all that passed came to."""
    total = watcher.grouping.total
    is_priced = total.requests > total.unpriced
    money, lost_money = (f"${total.usd:,.2f}", f" (${total.lost_usd:,.2f})") if is_priced else ("price not known", "")
    if is_priced and total.unpriced:
        money += f" ({count_of(total.unpriced, 'request')} without a known price)"
    spent = f", {total.input:,} tokens in, {money}" if total.requests else ""
    lost = f"{total.lost:,} tokens{lost_money} could have been read and were not"
    echo(f"stopped after {count_of(total.requests, 'request')}{spent}; {lost}", err=True)
    status = watcher.as_json()
    for row in status["savings"]["simulated"]:
        read = f"{abs(row['tokens']):,} tokens {'more' if row['tokens'] >= 0 else 'fewer'} were read"
        read += f" (${abs(row['usd']):,.4f} {'saved' if row['usd'] >= 0 else 'lost'})"
        echo(f"{row['rules']}: {count_of(row['requests'], 'request')}, {read} than unmended, by simulation", err=True)
    if trial := status["savings"]["measured"]:
        low, high = (f"{100 * bound:.0f}" for bound in trial["interval"])
        groups = f"{trial['conversations']} conversations against {trial['held_out']} held out"
        echo(
            f"measured: {100 * trial['saving']:.0f} % saved a token, 95 % between {low} and {high} ({groups})", err=True
        )
    check = status["provider_agreement"]
    if check["asked"]:
        asked, agreed = (count_of(check[name], "time") for name in ("asked", "agreed"))
        echo(f"the provider was asked {asked} and said the same {agreed}", err=True)
    if watcher.failures:
        echo(f"{count_of(len(watcher.failures), 'failure')} of watching, last: {watcher.failures[-1]}", err=True)


def state_file(name: str) -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("quire")) / name


def keep(name: str, value: object) -> None:
    """Write a value into Quire's own folder; a kill leaves the one before."""
    file = state_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    write_own(new, msgspec.json.encode(value))
    new.replace(file)


def write_own(file: Path, data: bytes) -> None:
    """Write a file that its owner alone may read, if it is made by that."""
    file.touch(OWNER_ALONE)
    file.write_bytes(data)


def kept_value(name: str, kind: Any) -> Any:
    """What was written there; None where nothing was."""
    file = state_file(name)
    text = text_of(file)
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except msgspec.DecodeError as error:
        raise FormatError(f"{file} cannot be read: {error}", hint="Remove it to forget what was changed.") from error


def text_of(file: Path) -> str | None:
    """What stands in a file, its line ends too; None where there is none."""
    try:
        return file.read_bytes().decode() if file.exists() else None
    except UnicodeDecodeError as error:
        raise FormatError(f"{file} is no text: {error}", hint="Mend it, or move it away.") from error


def put_back(file: Path, before: str | None) -> None:
    if before is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(before.encode())


def copy_beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.before-quire")


# Known clients, and how each is told another base URL. Nothing is written where a variable will do.


class Wiring(msgspec.Struct, frozen=True):
    """How a client is told where to go: variables, words behind its name, files with what is merged into them."""

    variables: dict[str, str] = {}
    words: tuple[str, ...] = ()
    files: dict[Path, JsonObject] = {}


class ProxiedClient(msgspec.Struct, frozen=True):
    """A client: its command, its providers, how it is pointed at their addresses, and the address that its login needs."""

    command: str
    providers: tuple[str, ...]
    wire: Callable[[dict[str, str]], Wiring]
    address: Callable[[], str] = lambda: ""


def _pi(urls: dict[str, str]) -> Wiring:
    folder = Path(os.environ.get("PI_CODING_AGENT_DIR") or Path.home() / ".pi" / "agent")
    bases = {"anthropic": urls["anthropic"], "openai": urls["openai"] + "/v1", "google": urls["gemini"] + "/v1beta"}
    providers = {name: {"baseUrl": url} for name, url in bases.items()}
    return Wiring(files={folder / "models.json": {"providers": providers}})


def _opencode(urls: dict[str, str]) -> Wiring:
    bases = {"anthropic": urls["anthropic"] + "/v1", "openai": urls["openai"] + "/v1"}
    bases["google"] = urls["gemini"] + "/v1beta"
    config = {"provider": {name: {"options": {"baseURL": url}} for name, url in bases.items()}}
    variable = "OPENCODE_CONFIG_CONTENT"
    own = _settings(os.environ.get(variable, ""), variable)
    return Wiring({variable: json.dumps(_join_settings(own, config))})


def _gemini(urls: dict[str, str]) -> Wiring:
    settings = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini" / "settings.json"
    variables = {"GOOGLE_GEMINI_BASE_URL": urls["gemini"]}
    chosen = settings.exists() and '"selectedType"' in settings.read_text("utf-8", "replace")
    if chosen or not os.environ.get("GEMINI_API_KEY"):
        return Wiring(variables)
    # With another base URL it asks for a gateway's login, unless it is told to use the API key.
    return Wiring(variables, files={settings: {"security": {"auth": {"selectedType": "gemini-api-key"}}}})


def _codex(urls: dict[str, str]) -> Wiring:
    version = "" if _codex_address() else "/v1"  # paths at ChatGPT's address have no version
    return Wiring(words=("-c", f'openai_base_url="{urls["openai"]}{version}"'))


def _codex_address() -> str:
    """The address that codex asks with a login of ChatGPT, which OpenAI's own refuses; "" with an API key."""
    file = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "auth.json"
    auth = _settings(text_of(file) or "", str(file))
    return "https://chatgpt.com/backend-api/codex" if auth.get("tokens") and not auth.get("OPENAI_API_KEY") else ""


def _by_variables(**variables: str) -> Callable[[dict[str, str]], Wiring]:
    """The wiring of a client that only reads variables: OPENAI_BASE_URL="{openai}/v1"."""
    return lambda urls: Wiring({name: value.format(**urls) for name, value in variables.items()})


# Claude Code leaves its search for tools out behind another base URL unless it is told that references pass.
_claude = _by_variables(ANTHROPIC_BASE_URL="{anthropic}", ENABLE_TOOL_SEARCH="true")
_llm = _by_variables(ANTHROPIC_BASE_URL="{anthropic}", OPENAI_BASE_URL="{openai}/v1")
_aider = _by_variables(ANTHROPIC_API_BASE="{anthropic}", OPENAI_API_BASE="{openai}/v1")

CLIENTS: dict[str, ProxiedClient] = {
    "pi": ProxiedClient("pi", ("anthropic", "openai", "gemini"), _pi),
    "opencode": ProxiedClient("opencode", ("anthropic", "openai", "gemini"), _opencode),
    "codex": ProxiedClient("codex", ("openai",), _codex, _codex_address),
    "gemini-cli": ProxiedClient("gemini", ("gemini",), _gemini),
    "claude": ProxiedClient("claude", ("anthropic",), _claude),
    "llm": ProxiedClient("llm", ("anthropic", "openai"), _llm),
    "aider": ProxiedClient("aider", ("anthropic", "openai"), _aider),
}


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@option("--to", "Where to send all requests (default: each provider's own address).")
@option("--log", "Write the requests to this file (default: in Quire's own folder).", FILE_PATH)
@option("--mend", "Repair what costs cache reads (docs/mending.md).", bool)
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def wrap(to: str | None, log: Path | None, mend: bool, client: str, words: tuple[str, ...]) -> None:
    """Start a known client behind the proxy, with the variables or settings it needs; ARGS are the client's own.

    The requests go into a log for `quire audit`, and a line sums them up at the end. A changed file (pi's models.json,
    gemini-cli's settings.json) is restored; if that was not possible, `quire unwrap` does it.

    \b
    Examples:
      quire wrap codex exec "say hello"
      quire wrap --mend llm -m claude-sonnet-4-5 "hello"
    """
    from quire.send.transport import address_for, endpoint_for
    from quire.server.mend import Mender
    from quire.server.proxy import CacheWatcher, Proxy, ProxyOptions
    from quire.server.service import Redactor

    wrapped = CLIENTS[client]
    command = shutil.which(wrapped.command)
    if command is None:
        raise CallError(f"{client} is not installed", hint=f"`{wrapped.command}` must be found in PATH.")
    log = log or state_file("requests.jsonl")
    log.parent.mkdir(parents=True, exist_ok=True)
    watcher = CacheWatcher(log=log, redact=str if mend else Redactor().text)
    mender = Mender() if mend else None
    if mender is not None:
        mender.replay(log, 8 * 1024 * 1024)  # a client may go on with a conversation of an earlier call
    with contextlib.ExitStack() as stack:
        urls = {}
        for provider in wrapped.providers:
            # Where requests go on to: what was given, what a variable names already, else the provider.
            usual = address_for(provider, os.environ) or endpoint_for(provider).base_url
            target = checked_base_url(to or wrapped.address() or usual)
            urls[provider] = stack.enter_context(Proxy(ProxyOptions(to=target, mender=mender), watcher)).url
        wiring = wrapped.wire(urls)
        for file, value in wiring.files.items():
            stack.callback(restore, file)
            _merge(file, value)
        code = _run_client([command, *wiring.words, *words], {**os.environ, **wiring.variables})
    show_total(watcher)
    echo(f"kept in {log}", err=True)
    raise click.exceptions.Exit(code if code >= 0 else 128 - code)  # as a shell tells of a signal


def _run_client(command: list[str], variables: dict[str, str]) -> int:
    """Run a client to its end. Ctrl-C is the client's own affair; who ends Quire, or closes its terminal, ends the client."""
    clients, early = list[subprocess.Popen[bytes]](), list[int]()

    def pass_on(kind: int, _: object) -> None:
        for client in clients if kind != signal.SIGINT else ():
            client.send_signal(kind)
        if not clients and kind != signal.SIGINT:
            early.append(kind)  # it is just being started

    with contextlib.ExitStack() as stack:
        for kind in (kind for kind in signal.Signals if kind.name in ("SIGINT", "SIGTERM", "SIGHUP")):
            stack.callback(signal.signal, kind, signal.signal(kind, pass_on))
        clients.append(stack.enter_context(subprocess.Popen(command, env=variables)))
        for number in early:
            clients[0].send_signal(number)
        return clients[0].wait()


# What was written into others' files: what stood there before is kept until it is put back.


def _merge(file: Path, value: JsonObject) -> None:
    before, files = text_of(file), _wrapped_files()
    row = files.get(str(file))
    if row is not None and before == row["after"]:
        before = row["before"]  # another client runs behind a proxy, or was killed: what stood there is the user's own
    after = json.dumps(_join_settings(_settings(before or "", str(file)), value), indent=2) + "\n"
    keep("wrapped.json", {**files, str(file): {"before": before, "after": after}})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(after, "utf-8")


def _settings(text: str, where: str) -> JsonObject:
    try:
        settings = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise CallError(f"{where} is not JSON", hint="Mend it, or set the client's base URL by hand.") from error
    if not isinstance(settings, dict):
        raise CallError(f"{where} is no JSON object", hint="Mend it, or set the client's base URL by hand.")
    return settings


def _join_settings(settings: JsonObject, value: JsonObject) -> JsonObject:
    both = [name for name in value if isinstance(settings.get(name), dict) and isinstance(value[name], dict)]
    return {**settings, **value, **{name: _join_settings(settings[name], value[name]) for name in both}}


def _wrapped_files() -> JsonObject:
    return kept_value("wrapped.json", JsonObject) or {}


def restore(file: Path) -> bool:
    """Put back what stood in a file; one that somebody else has changed since is left, and what stood there put beside it."""
    files = _wrapped_files()
    row = files.pop(str(file), None)
    if row is None:
        return False
    if text_of(file) in (row["after"], None):
        put_back(file, row["before"])
    else:
        write_own(copy_beside(file), (row["before"] or "").encode())
        echo(f"{file} was changed meanwhile and is left; what stood there before is in {copy_beside(file)}", err=True)
    keep("wrapped.json", files)
    return True


@click.command()
def unwrap() -> None:
    """Restore the clients' files that `quire wrap` changed and could not restore itself."""
    files = [Path(name) for name in _wrapped_files()]
    for file in files:
        restore(file)
        echo(f"put back {file}")
    if not files:
        echo("nothing is changed")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show what is installed, which clients exist, where base URLs point, whether they answer, what was recorded."""
    import importlib.util

    from quire.send.transport import endpoint_for, without_password

    parts = ("httpx", "starlette", "uvicorn", "websockets", "zstandard", "brotli")
    missing = [name for name in parts if importlib.util.find_spec(name) is None]
    log = state_file("requests.jsonl")
    variables = (name for provider in ("anthropic", "openai", "gemini") for name in endpoint_for(provider).addresses)
    set_now = {name: os.environ[name] for name in variables if os.environ.get(name)}
    facts: JsonObject = {
        "missing": missing,
        "clients": {name: shutil.which(client.command) for name, client in CLIENTS.items()},
        "set": {
            name: {"url": without_password(url).partition("?")[0], "reachable": not missing and _answers(url)}
            for name, url in set_now.items()
        },
        "changed": list(_wrapped_files()),
        "log": str(log),
        "recorded": sum(1 for _ in log.open("rb")) if log.exists() else 0,
    }
    if as_json:
        print_json(facts)
        return
    echo(
        "the proxy is installed" if not missing else f"not installed: {', '.join(missing)} (pip install 'quire[proxy]')"
    )
    print_table(["client", "found at"], [[name, place or "-"] for name, place in facts["clients"].items()])
    for name, row in facts["set"].items():
        echo(f"{name} is {row['url']}, which {'answers' if row['reachable'] else 'does not answer'}")
    for file in facts["changed"]:
        echo(f"{file} is changed; `quire unwrap` puts it back")
    echo(f"{count_of(facts['recorded'], 'request')} recorded in {log}")


def _answers(url: str) -> bool:
    """Whether anybody speaks HTTP there; a refusal is an answer."""
    import httpx

    try:
        httpx.get(url, timeout=3)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True
