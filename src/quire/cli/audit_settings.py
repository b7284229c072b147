"""`quire audit --apply`, `--verify`, `--revert`: clients' settings changed, measured, and put back to the byte."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quire.audit import AuditReport, audit, read_calls
from quire.cli.output import counted, echo
from quire.errors import CallError, ConflictError, FormatError
from quire.values import JsonObject

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


def _state() -> Path:
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "quire" / "applied_settings.json"


def _applied() -> list[AppliedSetting]:
    try:
        return msgspec.json.decode(_state().read_bytes(), type=list[AppliedSetting])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise FormatError(
            f"{_state()} cannot be read: {error}", hint="Remove it to forget what was applied."
        ) from error


def _remember(applied: Sequence[AppliedSetting]) -> None:
    _state().parent.mkdir(parents=True, exist_ok=True)
    _state().write_bytes(msgspec.json.encode(list(applied)))


def apply(report: AuditReport) -> None:
    """Set what answers the causes that were found; each difference is shown."""
    causes = {(verdict.store, verdict.cause) for talk in report.conversations for verdict in talk.verdicts}
    settings = [setting for setting in SETTINGS if (setting.client, setting.cause) in causes]
    if not settings:
        echo("No setting of a client answers what was found; the fixes above are changes of requests.")
    for setting in settings:
        path = Path.home() / setting.file
        before = path.read_text("utf-8") if path.exists() else None
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
            path.with_name(f"{path.name}.before-quire").write_text(before, "utf-8")
        now = int(time.time() * 1000)
        change = AppliedSetting(setting.client, setting.cause, str(path), before, after, now)
        # Remembered first: what is written can then always be put back.
        _remember([*_applied(), change])
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
        now = path.read_text("utf-8") if path.exists() else None
        if now not in (change.after, change.before):
            raise ConflictError(
                f"{path} was changed since", hint=f"Its text before --apply is in {path.name}.before-quire."
            )
        if change.before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(change.before, "utf-8")
            path.with_name(f"{path.name}.before-quire").unlink(missing_ok=True)
        _remember(applied[:-1])
        applied.pop()
        echo(f"put back: {path}")


def verify(places: Sequence[Path]) -> None:
    """What each cause lost before its setting was applied, and since."""
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
