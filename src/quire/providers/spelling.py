"""Names and ids in the letters a provider takes, and back again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from quire.log.hashing import sha256_hex


class Spelling(msgspec.Struct, frozen=True):
    """Which strings a provider takes as a name or an id."""

    allowed: str = "A-Za-z0-9_-"
    longest: int = 64
    # What the first character may be, where that is fewer.
    first: str = ""
    # Exactly `longest` characters (Mistral's ids): anything else is replaced by a digest.
    exact: bool = False

    def spell(self, text: str) -> str:
        """The text itself where it fits, else a readable replacement that depends on nothing else."""
        if len(text) <= self.longest and re.fullmatch(self._pattern(), text):
            return text
        digest = sha256_hex(text)
        if self.exact:
            return digest[: self.longest]
        readable = re.sub(f"[^{self.allowed}]", "_", text)[: self.longest - 10]
        start = "" if not self.first or re.match(f"[{self.first}]", readable) else "_"
        return f"{start}{readable}_{digest[:8]}"

    def _pattern(self) -> str:
        if self.exact:
            return f"[{self.allowed}]{{{self.longest}}}"
        return f"[{self.first or self.allowed}][{self.allowed}]*"

    def candidates(self, text: str) -> Iterator[str]:
        """Ever more spellings of an id that may be taken: call_1, call_1-2, call_1-3, …"""
        yield self.spell(text)
        count = 2
        while True:
            yield self.spell(f"{text}-{count}")
            count += 1


def read_back(names: Iterable[str], spelling: Spelling) -> dict[str, str]:
    """What each spelled name stands for, for those that had to change: {"a_b_1f2e3d4c": "a.b"}."""
    return {spelled: name for name in names if (spelled := spelling.spell(name)) != name}
