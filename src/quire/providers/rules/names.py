"""Tool names, in definitions and in calls (row 17), and Anthropic's demand that they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from quire.providers.rules.finding import Finding, found, limit
from quire.values import Json


def names(given: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """Row 17 over (path, name); what is no string has the wrong shape and is not looked at here."""
    pattern = limit("tool_name")
    for path, name in given:
        if isinstance(name, str) and not re.fullmatch(pattern, name):
            yield found("B2.17", path, name=name, pattern=pattern, most=limit("tool_name_length"))


def unique(given: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """The second tool of one name."""
    known: set[str] = set()
    for path, name in given:
        if isinstance(name, str) and name in known:
            yield found("B.tool-unique", path, name=name)
        if isinstance(name, str):
            known.add(name)
