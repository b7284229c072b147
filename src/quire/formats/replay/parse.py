"""A replay text back to its value: marks stand at line starts only, everything else is content."""

from __future__ import annotations

import json
import re
from functools import cache

from quire.errors import CallError
from quire.formats.replay.render import marks, render
from quire.formats.replay.value import (
    CURRENT,
    HISTORY,
    MARK_KINDS,
    Delimiter,
    Event,
    Exchange,
    Replay,
    Respond,
    Think,
    User,
    count,
)
from quire.formats.text import exact, fault, seen, well_formed
from quire.values import Json

_KINDS = "|".join(MARK_KINDS)
_FIRST = re.compile(rf"^([$§])(?:{_KINDS}): ", re.MULTILINE)
_COUNT = re.compile(r"\n\(showing last [0-9]{1,18} of ([0-9]{1,18}) messages\)")
_HINT = (
    "A replay is `=== HISTORY ===` and `=== CURRENT ===`, each with events behind $user:, $call: and so on."
)


@cache
def _tokens(delimiter: Delimiter) -> re.Pattern[str]:
    return re.compile(rf"^(?:{HISTORY}|{CURRENT}|{re.escape(delimiter)}({_KINDS}): )", re.MULTILINE)


def parse(text: str) -> Replay:
    """The value of a rendered text; the delimiter is the one its first event has."""
    if not well_formed(text):
        return Replay()
    if not text.startswith((HISTORY, CURRENT)):
        raise fault(text, 0, f"expected a heading, found {seen(text, 0)}", _HINT)
    first = _FIRST.search(text)
    delimiter: Delimiter = "§" if first and first[1] == "§" else "$"
    reader = _Reader(text, delimiter)
    try:
        value = reader.read()
    except CallError as error:  # the text shows what no value can
        raise fault(text, 0, str(error), _HINT) from error
    exact(text, render(value))
    return value


class _Reader:
    """The text's headings and marks in order, and the content behind each."""

    def __init__(self, text: str, delimiter: Delimiter) -> None:
        self.text, self.delimiter = text, delimiter
        self.found = list(_tokens(delimiter).finditer(text))
        self.unguard = marks(delimiter).unguard

    def read(self) -> Replay:
        sections: dict[str, list[Event]] = {HISTORY: [], CURRENT: []}
        total, events, at = 0, sections[HISTORY], 0
        while at < len(self.found):
            token = self.found[at]
            if token[1]:
                events.append(self._event(at))
            else:
                events, total = sections[token[0]], self._total(token, total)
            at += 2 if token[1] == "call" else 1
        left_out = total - count(sections[HISTORY]) if total else 0
        return Replay(tuple(sections[HISTORY]), tuple(sections[CURRENT]), left_out, self.delimiter)

    def _total(self, heading: re.Match[str], before: int) -> int:
        found = _COUNT.match(self.text, heading.end())
        return int(found[1]) if found else before

    def _event(self, at: int) -> Event:
        kind, body = self.found[at][1], self._body(at)
        if kind == "call":
            return self._exchange(at, body)
        if kind == "result":
            raise self._fault(at, "a result without its call")
        text = self.unguard(body)
        return User(text) if kind == "user" else Think(text) if kind == "think" else Respond(text)

    def _exchange(self, at: int, body: str) -> Exchange:
        if at + 1 == len(self.found) or self.found[at + 1][1] != "result":
            raise self._fault(at, "a call without its result")
        outcome, _, content = self._body(at + 1).partition("\n\n")
        call = self._call(at, body)
        return Exchange(
            call["name"], call["args"], self.unguard(_unguard_outcome(outcome)), self.unguard(content)
        )

    def _call(self, at: int, body: str) -> Json:
        try:
            call = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._fault(at, f"the call is not JSON ({error})") from error
        if not isinstance(call, dict) or set(call) != {"name", "args"} or not isinstance(call["name"], str):
            raise self._fault(at, "a call is an object with name and args")
        return call

    def _body(self, at: int) -> str:
        """What stands between a mark and the blank line before the next one."""
        last = at + 1 == len(self.found)
        return self.text[self.found[at].end() : None if last else self.found[at + 1].start() - 2]

    def _fault(self, at: int, problem: str) -> Exception:
        return fault(self.text, self.found[at].start(), problem, _HINT)


def _unguard_outcome(outcome: str) -> str:
    first, *rest = outcome.split("\n")
    return "\n".join([first, *(line if line.strip("\\") else line[1:] for line in rest)])
