"""The front matter of a chat file: four flat fields out; in, those of older chats as well."""

from __future__ import annotations

import json
import re

from quire.archive.times import iso
from quire.values import Json

_PLAIN = re.compile(r"[A-Za-z](?:[A-Za-z0-9_./:@+-]*[A-Za-z0-9_./@+-])?(?: [A-Za-z0-9_./@+]+)*\Z", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
# YAML breaks lines at these, or refuses them.
_BREAKS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?: (.*))?\Z", re.ASCII)


def render_front(created: str, model: str, topic: str, tags: tuple[str, ...]) -> str:
    """The block between the lines of dashes, both included."""
    listed = "".join(f"\n  - {_scalar(tag)}" for tag in tags) if tags else " []"
    lines = [f"created: {_scalar(created)}", f"model: {_scalar(model)}", f"topic: {_scalar(topic)}"]
    return "\n".join(["---", *lines, f"tags:{listed}", "---"])


def _scalar(text: str) -> str:
    """A YAML string: bare where nothing can be misread, else in double quotes."""
    bare = _PLAIN.match(text) and text.lower() not in _WORDS
    if bare or _TIME.match(text):
        return text
    return _BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def split_front(text: str) -> tuple[dict[str, Json], str]:
    """The fields of the front matter, and what stands behind it; none where there is no front matter."""
    if not text.startswith("---\n"):
        return {}, text
    end = text.find("\n---", 3)
    while end >= 0 and text[end + 4 : end + 5] not in ("", "\n"):
        end = text.find("\n---", end + 1)
    if end < 0:
        return {}, text
    return _fields(text[4 : max(4, end)].split("\n")), text[end + 5 :]


def _fields(lines: list[str]) -> dict[str, Json]:
    """Flat YAML: key: value, key: [a, b], and key: with a list below; anything else is passed over."""
    out: dict[str, Json] = {}
    key = ""
    for line in lines:
        if match := _KEY.match(line):
            key, value = match[1], (match[2] or "").strip()
            out[key] = _listed(value) if value.startswith("[") else _read(value)
        elif line.lstrip().startswith("- ") and key:
            before = out[key] if isinstance(out[key], list) else []
            out[key] = [*before, _read(line.lstrip()[2:].strip())]
    return out


def _read(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value[1:-1]
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return value


def _listed(value: str) -> list[str]:
    inner = value.removeprefix("[").removesuffix("]").strip()
    return [_read(part.strip()) for part in inner.split(",")] if inner else []


def created_of(fields: dict[str, Json]) -> str:
    """When a chat began: `created`, or `epoch` in milliseconds as older chats have it."""
    if isinstance(fields.get("created"), str):
        return str(fields["created"])
    epoch = str(fields.get("epoch", ""))
    return iso(int(epoch)) if epoch.isdecimal() and len(epoch) <= 14 else ""
