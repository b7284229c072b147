"""Where text is cut: at sentence ends, white space, sections and lines, never in mid-word where there is a choice."""

from __future__ import annotations

import re

# What ends a word that a cut would part.
_WORD = 16
_SENTENCE = re.compile(r"[.!?](?=\s)")


def truncate(text: str, limit: int) -> str:
    """Cut to `limit` characters at a sentence end that keeps half, else white space, else hard; then '...'."""
    if len(text) <= limit:
        return text
    cut = text[: limit + 1]
    ends = [match.end() for match in _SENTENCE.finditer(cut) if match.end() <= limit]
    if ends and ends[-1] >= limit / 2:
        return f"{text[: ends[-1]]} ..."
    space = max(text[:limit].rfind(" "), text[:limit].rfind("\n"), text[:limit].rfind("\t"))
    return f"{text[:space]} ..." if space > 0 else f"{text[:limit]}..."


def first_words(text: str, length: int) -> str:
    """At least the first `length` characters, to the end of a word that ends soon; then ' ...'."""
    end = text.find(" ", length)
    if end < 0 or end > length + _WORD:
        end = length if len(text) > length + _WORD else len(text)
    return f"{text[:end]} ..." if end < len(text) else text


_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def sections(text: str, limit: int, count: int) -> str:
    """The text before the first heading and the first sections, `count` in all, each cut to `limit` characters."""
    parts = _sections(text)
    shown = [truncate(part, limit) for part in parts[:count]]
    more = len(parts) - count
    if more > 0:
        shown.append(f"[... {more} more section{'s' if more > 1 else ''} omitted ...]")
    return "\n\n".join(shown)


def _sections(text: str) -> list[str]:
    """Split before each heading; a # line inside a code fence is no heading."""
    parts: list[list[str]] = [[]]
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark.group(1)
        elif not fence and _HEADING.match(line):
            parts.append([])
        parts[-1].append(line)
    return [joined for part in parts if (joined := "\n".join(part).strip())]


def lines_that_fit(text: str, characters: int) -> str:
    """The longest run of whole first lines within `characters`; of a single long line, a cut at white space."""
    if len(text) <= characters:
        return text
    cut = text[:characters]
    end = max(cut.rfind("\n"), 0) or max(cut.rfind(" "), 0) or characters
    return cut[:end]
