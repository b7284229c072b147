"""Clients of others: started behind the proxy (`quire wrap`), their settings changed where that answers a cause
(`quire audit --apply`); what was changed in their files is put back to the byte (`quire unwrap`, `quire audit --revert`).
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import FILE_PATH, counted, echo, json_option, print_json, print_table
from quire.cli.serve import base_url, show_total
from quire.errors import CallError, ConflictError, FormatError
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.audit import AuditReport


def _state(name: str) -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("quire")) / name


def _keep(name: str, value: object) -> None:
    """Write a value into Quire's own folder; a kill leaves the one before."""
    file = _state(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(value))
    new.replace(file)


def _kept(name: str, kind: Any) -> Any:
    """What was written there; None where nothing was."""
    file = _state(name)
    text = _text(file)
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except msgspec.DecodeError as error:
        raise FormatError(f"{file} cannot be read: {error}", hint="Remove it to forget what was changed.") from error


def _text(file: Path) -> str | None:
    """What stands in a file, its line ends too; None where there is none."""
    try:
        return file.read_bytes().decode() if file.exists() else None
    except UnicodeDecodeError as error:
        raise FormatError(f"{file} is no text: {error}", hint="Mend it, or move it away.") from error


def _put_back(file: Path, before: str | None) -> None:
    if before is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(before.encode())


def _copy_beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.before-quire")


# Known clients, and how each is told another base URL. Nothing is written where a variable will do.


class Wiring(msgspec.Struct, frozen=True):
    """How a client is told where to go: variables, words behind its name, files with what is merged into them."""

    variables: dict[str, str] = {}
    words: tuple[str, ...] = ()
    files: dict[Path, JsonObject] = {}


class ProxiedClient(msgspec.Struct, frozen=True):
    """A client: its command, the providers it may ask, and its wiring by their addresses."""

    command: str
    providers: tuple[str, ...]
    wire: Callable[[dict[str, str]], Wiring]


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
    return Wiring({variable: json.dumps(_merged(own, config))})


def _gemini(urls: dict[str, str]) -> Wiring:
    settings = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini" / "settings.json"
    variables = {"GOOGLE_GEMINI_BASE_URL": urls["gemini"]}
    chosen = settings.exists() and '"selectedType"' in settings.read_text("utf-8", "replace")
    if chosen or not os.environ.get("GEMINI_API_KEY"):
        return Wiring(variables)
    # With another base URL it asks for a gateway's login, unless it is told to use the API key.
    return Wiring(variables, files={settings: {"security": {"auth": {"selectedType": "gemini-api-key"}}}})


# Claude Code leaves its search for tools out behind another base URL unless it is told that references pass.
_CLAUDE = {"ENABLE_TOOL_SEARCH": "true"}

CLIENTS: dict[str, ProxiedClient] = {
    "pi": ProxiedClient("pi", ("anthropic", "openai", "gemini"), _pi),
    "opencode": ProxiedClient("opencode", ("anthropic", "openai", "gemini"), _opencode),
    "codex": ProxiedClient(
        "codex", ("openai",), lambda urls: Wiring(words=("-c", f'openai_base_url="{urls["openai"]}/v1"'))
    ),
    "gemini-cli": ProxiedClient("gemini", ("gemini",), _gemini),
    "claude": ProxiedClient(
        "claude", ("anthropic",), lambda urls: Wiring({"ANTHROPIC_BASE_URL": urls["anthropic"], **_CLAUDE})
    ),
    "llm": ProxiedClient(
        "llm",
        ("anthropic", "openai"),
        lambda urls: Wiring({"ANTHROPIC_BASE_URL": urls["anthropic"], "OPENAI_BASE_URL": urls["openai"] + "/v1"}),
    ),
    "aider": ProxiedClient(
        "aider",
        ("anthropic", "openai"),
        lambda urls: Wiring({"ANTHROPIC_API_BASE": urls["anthropic"], "OPENAI_API_BASE": urls["openai"] + "/v1"}),
    ),
}


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--to", help="Where all requests go on to; without it, to each provider's own address.")
@click.option("--log", type=FILE_PATH, help="Keep what passed in this file; without it, in Quire's own folder.")
@click.option("--mend", is_flag=True, help="Repair what costs cache reads (docs/mending.md).")
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def wrap(to: str | None, log: Path | None, mend: bool, client: str, words: tuple[str, ...]) -> None:
    """Start a known client behind the proxy, with the variables or settings it needs; ARGS are the client's own.

    What passed is kept in a log for `quire audit`, and told in a line at the end. A file that had to be changed (pi's
    models.json, gemini-cli's settings.json) is put back; if that could not happen, `quire unwrap` does it.

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
    log = log or _state("requests.jsonl")
    log.parent.mkdir(parents=True, exist_ok=True)
    watcher = CacheWatcher(log=log, redact=str if mend else Redactor().text)
    mender = Mender() if mend else None
    if mender is not None:
        mender.replay(log, 8 * 1024 * 1024)  # a client may go on with a conversation of an earlier call
    with contextlib.ExitStack() as stack:
        urls = {}
        for provider in wrapped.providers:
            # Where requests go on to: what was given, what a variable names already, else the provider.
            target = base_url(to) if to else address_for(provider, os.environ) or endpoint_for(provider).base_url
            urls[provider] = stack.enter_context(Proxy(ProxyOptions(to=target, mender=mender), watcher)).url
        wiring = wrapped.wire(urls)
        for file, value in wiring.files.items():
            stack.callback(restore, file)
            _merge(file, value)
        code = subprocess.call([command, *wiring.words, *words], env={**os.environ, **wiring.variables})
    show_total(watcher)
    echo(f"kept in {log}", err=True)
    raise click.exceptions.Exit(code)


# What was written into others' files: what stood there before is kept until it is put back.


def _merge(file: Path, value: JsonObject) -> None:
    before, files = _text(file), _wrapped_files()
    row = files.get(str(file))
    if row is not None and before == row["after"]:
        before = row["before"]  # another client runs behind a proxy, or was killed: what stood there is the user's own
    after = json.dumps(_merged(_settings(before or "", str(file)), value), indent=2) + "\n"
    _keep("wrapped.json", {**files, str(file): {"before": before, "after": after}})
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


def _merged(settings: JsonObject, value: JsonObject) -> JsonObject:
    both = [name for name in value if isinstance(settings.get(name), dict) and isinstance(value[name], dict)]
    return {**settings, **value, **{name: _merged(settings[name], value[name]) for name in both}}


def _wrapped_files() -> JsonObject:
    return _kept("wrapped.json", JsonObject) or {}


def restore(file: Path) -> bool:
    """Put back what stood in a file; one that somebody else has changed since is left, and what stood there put beside it."""
    files = _wrapped_files()
    row = files.pop(str(file), None)
    if row is None:
        return False
    if _text(file) in (row["after"], None):
        _put_back(file, row["before"])
    else:
        _copy_beside(file).write_bytes((row["before"] or "").encode())
        echo(f"{file} was changed meanwhile and is left; what stood there before is in {_copy_beside(file)}", err=True)
    _keep("wrapped.json", files)
    return True


@click.command()
def unwrap() -> None:
    """Put back the clients' files that `quire wrap` changed and could not put back itself."""
    files = [Path(name) for name in _wrapped_files()]
    for file in files:
        restore(file)
        echo(f"put back {file}")
    if not files:
        echo("nothing is changed")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Tell what is installed, which clients are found, where base URLs point, whether that answers, what was recorded."""
    import importlib.util

    from quire.send.transport import endpoint_for

    parts = ("httpx", "starlette", "uvicorn", "websockets", "zstandard", "brotli")
    missing = [name for name in parts if importlib.util.find_spec(name) is None]
    log = _state("requests.jsonl")
    variables = (name for provider in ("anthropic", "openai", "gemini") for name in endpoint_for(provider).addresses)
    set_now = {name: os.environ[name] for name in variables if os.environ.get(name)}
    facts: JsonObject = {
        "missing": missing,
        "clients": {name: shutil.which(client.command) for name, client in CLIENTS.items()},
        "set": {name: {"url": url, "reachable": not missing and _answers(url)} for name, url in set_now.items()},
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
    echo(f"{counted(facts['recorded'], 'request')} recorded in {log}")


def _answers(url: str) -> bool:
    """Whether anybody speaks HTTP there; a refusal is an answer."""
    import httpx

    try:
        httpx.get(url, timeout=3)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


# What answers a cause, as its client documents it.


class ClientSetting(msgspec.Struct, frozen=True):
    """What to set for a cause: a key in a file under the user's home."""

    client: str
    cause: str
    file: str
    key: tuple[str, ...]
    value: str | int | float | bool
    # What it does, and where its client says so.
    does: str
    documented: str


SETTINGS: tuple[ClientSetting, ...] = (
    ClientSetting(
        "claude-code",
        "ttl",
        ".claude/settings.json",
        ("promptCacheTtl",),
        "1h",
        "keeps the cache for an hour between requests; writing costs 2 instead of 1.25 times the input",
        "https://code.claude.com/docs/en/prompt-caching",
    ),
    ClientSetting(
        "codex",
        "compaction",
        ".codex/config.toml",
        ("model_auto_compact_token_limit",),
        230_000,
        "sums up later: the history stays as it was sent until 230,000 tokens",
        "https://developers.openai.com/codex/config-reference",
    ),
    ClientSetting(
        "gemini-cli",
        "compaction",
        ".gemini/settings.json",
        ("model", "compressionThreshold"),
        0.7,
        "compresses at 70 % of the window instead of 50 %",
        "https://github.com/google-gemini/gemini-cli/blob/main/docs/reference/configuration.md",
    ),
    ClientSetting(
        "opencode",
        "compaction",
        ".config/opencode/opencode.json",
        ("compaction", "prune"),
        False,
        "leaves old tool outputs as they were sent instead of clearing them turn by turn",
        "https://opencode.ai/docs/config",
    ),
)


def with_setting(text: str, setting: ClientSetting) -> str:
    """A configuration file with the setting in it; the same text where it has it already."""
    return _in_toml(text, setting) if setting.file.endswith(".toml") else _in_json(text, setting)


def _in_json(text: str, setting: ClientSetting) -> str:
    try:
        settings = json.loads(text) if text.strip() else {}
        if not isinstance(settings, dict):
            raise ValueError("no object")
    except ValueError as error:
        hint = f"Set {'.'.join(setting.key)} to {json.dumps(setting.value)} there yourself."
        raise FormatError(f"~/{setting.file} is not plain JSON: {error}", hint=hint) from error
    inner: JsonObject = settings
    for name in setting.key[:-1]:
        value = inner.setdefault(name, {})
        if not isinstance(value, dict):
            raise FormatError(f"{name} of ~/{setting.file} is no object", hint="Mend the file first.")
        inner = value
    if inner.get(setting.key[-1]) == setting.value:
        return text
    inner[setting.key[-1]] = setting.value
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _in_toml(text: str, setting: ClientSetting) -> str:
    """Keys of the root stand in front of the first table."""
    line = f"{setting.key[0]} = {json.dumps(setting.value)}"
    table = re.search(r"^\s*\[", text, re.M)
    root, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    pattern = re.compile(rf"^{re.escape(setting.key[0])}\s*=.*$", re.M)
    if pattern.search(root):
        return pattern.sub(line, root, count=1) + rest
    return f"{line}\n{root}{rest}"


# What was changed, and how it is put back.


class AppliedSetting(msgspec.Struct, frozen=True):
    """A file that was changed: as it was (None: it was not there), as it was left, and when."""

    client: str
    cause: str
    path: str
    before: str | None
    after: str
    at_ms: int


def _applied() -> list[AppliedSetting]:
    return _kept("applied_settings.json", list[AppliedSetting]) or []


def apply(report: AuditReport) -> None:
    """Set what answers the causes that were found; each difference is shown."""
    causes = {(verdict.store, verdict.cause) for talk in report.conversations for verdict in talk.verdicts}
    settings = [setting for setting in SETTINGS if (setting.client, setting.cause) in causes]
    if not settings:
        echo("No setting of a client answers what was found; the fixes above are changes of requests.")
    for setting in settings:
        path = Path.home() / setting.file
        before = _text(path)
        after = with_setting(before or "", setting)
        if after == before:
            echo(f"~/{setting.file} has {'.'.join(setting.key)} already")
            continue
        echo(f"{setting.client}, for {setting.cause}: {setting.does} ({setting.documented})")
        old, new = (text.splitlines(keepends=True) for text in (before or "", after))
        name = f"~/{setting.file}"
        echo("".join(difflib.unified_diff(old, new, fromfile=name, tofile=name)), nl=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        if before is not None:
            _copy_beside(path).write_text(before, "utf-8")
        now = int(time.time() * 1000)
        change = AppliedSetting(setting.client, setting.cause, str(path), before, after, now)
        # Stored before the file is written, so that the change can always be undone.
        _keep("applied_settings.json", [*_applied(), change])
        path.write_text(after, "utf-8")
    if settings:
        echo("`quire audit --verify` compares what is lost from now on; `quire audit --revert` puts it back.")


def _applied_before() -> list[AppliedSetting]:
    if not (applied := _applied()):
        raise CallError("no setting was applied", hint="`quire audit --apply` changes settings.")
    return applied


def revert() -> None:
    """Put every changed file back, the newest change first; one that was changed since is left alone."""
    applied = _applied_before()
    while applied:
        change = applied[-1]
        path = Path(change.path)
        if _text(path) not in (change.after, change.before):
            raise ConflictError(
                f"{path} was changed since", hint=f"Its text before --apply is in {path.name}.before-quire."
            )
        _put_back(path, change.before)
        _copy_beside(path).unlink(missing_ok=True)
        applied.pop()
        _keep("applied_settings.json", applied)
        echo(f"put back: {path}")


def verify(places: Sequence[Path]) -> None:
    """What each cause lost before its setting was applied, and since."""
    from quire.audit import audit, read_calls

    applied = _applied_before()
    calls = [call for place in places for call in read_calls(place) if call.at_ms is not None]
    for change in applied:
        of_client = [call for call in calls if call.store == change.client]
        before = audit(call for call in of_client if (call.at_ms or 0) < change.at_ms)
        since = audit(call for call in of_client if (call.at_ms or 0) >= change.at_ms)
        name = f"{change.client}, {change.cause}"
        if not since.total.requests:
            echo(f"{name}: no request since; use the client, then ask again")
            continue
        was, now = (_share(report, change.cause) for report in (before, since))
        verdict = "it helps" if now < was else "it does not help" if now else "nothing was lost before either"
        echo(
            f"{name}: {was:.2%} of the tokens lost in {counted(before.total.requests, 'request')} before, "
            f"{now:.2%} in {counted(since.total.requests, 'request')} since: {verdict}"
        )


def _share(report: AuditReport, cause: str) -> float:
    """What a cause lost, of all that went in."""
    lost = report.by_cause.get(cause)
    return lost.lost / max(1, report.total.input) if lost is not None else 0.0
