"""A finding: which row of a provider's rules a request breaks, where, and how to mend it.

The rows' texts are data (data/rules.json); a rule names its row and what it saw.
"""

from __future__ import annotations

import re

import msgspec

from quire.providers.facts import data
from quire.values import Json


class Finding(msgspec.Struct, frozen=True):
    """`path` is a JSON path ($.messages[3].content[0]); `message` is what the provider would answer."""

    row: str
    path: str
    message: str
    fix: str
    status: int = 400


def found(row: str, path: str, **seen: Json) -> Finding:
    """A finding of a row of the table; `seen` fills in its texts. {where} is the place as providers write it."""
    facts = data("rules")["rows"][row]
    values = {"where": where(path), **_places(path), **seen}
    return Finding(
        row, path, facts["error"].format_map(values), facts["fix"].format_map(values), facts["status"]
    )


def limit(name: str) -> Json:
    """A number or pattern that the rules compare with."""
    return data("rules")["limits"][name]


def at(path: str, name: str) -> str:
    """The path of a member: $.a.b, or $.a['$ref'] where the name is no word."""
    if re.fullmatch(r"[A-Za-z_]\w*", name):
        return f"{path}.{name}"
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"{path}['{quoted}']"


def where(path: str) -> str:
    """A path as the providers' errors write it: $.messages[3].content[0] -> messages.3.content.0."""
    return (
        path.removeprefix("$").removeprefix(".").replace("[", ".").replace("]", "").replace("'", "") or "body"
    )


def _places(path: str) -> dict[str, str]:
    """The first two indexes of a path: n the message, m the block."""
    indexes = [*re.findall(r"\[(\d+)\]", path), "0", "0"]
    return {"n": indexes[0], "m": indexes[1]}
