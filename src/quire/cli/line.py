"""What happened in a turn, an entry a line, for people who watch it."""

from __future__ import annotations

import re

from quire.values import Entry

_TITLE = re.compile(r"^<title>(.*)</title>$", re.M)


def line_of(entry: Entry) -> str:
    """A finished call, result or cut; empty for everything else."""
    match entry.kind:
        case "call":
            return f"→ {entry.name}({_arguments(entry)})"
        case "result":
            return f"← {shortened(_told(entry))}"
        case "rebase":
            return _rebase(entry.body["reason"], entry.body["freed"])
    return ""


def _rebase(reason: str, freed: int) -> str:
    if freed > 0:
        return f"(older turns were cut: {freed:,} tokens freed, {reason})"
    return f"(the prompt begins anew: {reason})"


def _arguments(call: Entry) -> str:
    args = call.args if isinstance(call.args, dict) else {"": call.args}
    return ", ".join(f"{name}={shortened(repr(value), 60)}" for name, value in args.items())


def _told(result: Entry) -> str:
    said = result.body.get("outcome") or result.body.get("content") or ""
    if str(said).startswith("<localSearch"):
        return ", ".join(dict.fromkeys(_TITLE.findall(str(said)))) or "no documents"
    failed = "failed: " if result.body.get("error") else ""
    return failed + (str(said) or "nothing")


def shortened(text: str, limit: int = 100) -> str:
    """A text on one line, cut where it is longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
