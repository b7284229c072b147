"""What a thread may be called, and how an entry's id may be shortened."""

from __future__ import annotations

import re

from quire.errors import CallError

MAX_NAME = 200
_ID = re.compile(r"(?:sha256:)?([0-9a-f]{1,64})\Z")


def check_name(name: str) -> None:
    """A CallError unless a name can stand on one line of a table and be typed again."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or name != name.strip()
    ):
        raise CallError(
            f"{name!r} cannot be a thread's name",
            hint=f"Use 1 to {MAX_NAME} printable characters, no space at either end.",
        )


def id_range(prefix: str) -> tuple[str, str] | None:
    """The ids that begin so, as a range low <= id < high; None for what no id begins with: 'ab' -> 'sha256:ab' …."""
    match = _ID.match(prefix)
    if match is None:
        return None
    low = f"sha256:{match[1]}"
    return low, low + "g"  # behind every hexadecimal digit
