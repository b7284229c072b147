"""Text of others on a terminal: it may say anything, but it commands nothing."""

from __future__ import annotations

import re

# A terminal takes these as commands: colours, the cursor, its title.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """Text of others for a terminal: control characters as dots, lines as they are."""
    return _CONTROL.sub("·", text)


def in_line(text: str) -> str:
    """Text of others as a part of one line."""
    return shown(text).replace("\n", "␤").replace("\t", " ")
