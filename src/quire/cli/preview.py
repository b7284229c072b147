"""An entry on one line of a table."""

from __future__ import annotations

import json

from quire.values import Entry

PREVIEW = 48


def short_id(id: str) -> str:
    """Enough of an id to name an entry: 'sha256:81efe5f44226…' -> '81efe5f44226'."""
    return id.removeprefix("sha256:")[:12]


def preview(entry: Entry) -> str:
    """What an entry says, on one line: control characters as escapes, cut at the end."""
    text = _says(entry)[: PREVIEW * 4]
    line = "".join(ch if ch.isprintable() else "␤" if ch == "\n" else "·" for ch in text)
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def _says(entry: Entry) -> str:
    body = entry.body
    if entry.kind == "call":
        return f"{entry.name} {json.dumps(entry.args, ensure_ascii=False)}"
    if entry.kind == "result":
        return "\n".join(body[key] for key in ("outcome", "content") if body.get(key)) or "(no output)"
    if entry.kind == "tools":
        return ", ".join(tool["name"] for tool in entry.tools)
    if entry.kind == "attach":
        return str(body["item"].get("id") or body["item"]["content"])
    if entry.kind == "rebase":
        return f"{body['reason']} (before {body['before_seq']}, freed {body['freed']})"
    if entry.kind == "sent":
        return f"{body['provider']}:{body['model']} {body['request_sha256'][:12]}"
    return entry.text
