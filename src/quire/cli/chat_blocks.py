"""Markdown that is still being written: which of its blocks are finished."""

from __future__ import annotations

import re

_NOTE = re.compile(r"^( {0,3})\[\^", re.M)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def finished_blocks(text: str) -> tuple[str, str]:
    """Text up to the last blank line outside a code fence, and the rest: "a\\n\\nb" -> ("a\\n\\n", "b")."""
    fence, end, at = "", 0, 0
    for line in text.split("\n")[:-1]:
        at += len(line) + 1
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        if not fence and not line.strip():
            end = at
    return text[:end], text[end:]


def with_notes(text: str) -> str:
    """Markdown whose footnotes are shown: "[^1]: [[tea]]" is text, not a definition to be swallowed."""
    return _NOTE.sub(r"\1\\[^", text)


def tail(text: str, limit: int) -> str:
    """The last `limit` characters from a word's beginning on; code stays code, in its fence."""
    if len(text) <= limit:
        return text
    if _FENCE.match(text):
        begin, _, code = text.partition("\n")
        return "\n".join([begin, code[-limit:].partition("\n")[2] or code[-limit:]])
    start = text.find(" ", len(text) - limit)
    return "… " + text[start + 1 if start >= 0 else len(text) - limit :]
