"""The bytes a provider's cache compares: tools, system blocks and messages, without cache marks.

One canonical JSON line each, in the order the provider hashes them. Marks are taken off blocks only,
so an argument or a schema field that happens to be called `cache_control` stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain

from quire.log.hashing import sha256_hex
from quire.providers.growing import leading
from quire.providers.walk import Unit
from quire.providers.wires import wire_of
from quire.values import JsonObject, Lines


def prefix_parts(body: JsonObject, provider: str) -> list[bytes]:
    """One line for each tool, system block and message of a request body."""
    return [*chain.from_iterable(unit.lines for unit in wire_of(provider, body).layout.units(body))]


def prefix_bytes(body: JsonObject, provider: str) -> bytes:
    """All prefix lines of a request; a request extends another if these bytes begin with the other's."""
    return b"".join(prefix_parts(body, provider))


def lined(body: JsonObject, provider: str) -> Lines:
    """The lines of a single request, with their hashes."""
    return hashed(prefix_parts(body, provider))


def hashed(lines: Iterable[bytes]) -> Lines:
    """Lines with their hashes."""
    each = tuple(lines)
    return Lines(each, tuple(map(sha256_hex, each)), sha256_hex(b"".join(each)))


class PrefixLines:
    """The lines of a thread's requests: what stands as it stood is neither written nor hashed again."""

    def __init__(self) -> None:
        self._units: Sequence[Unit] = ()
        self._lines: list[bytes] = []
        self._hashes: list[str] = []
        # The hash of the first lines, those that have stood in two requests.
        self._hash, self._settled = hashlib.sha256(), 0

    def of(self, units: Sequence[Unit]) -> Lines:
        """The lines of the thread's next request."""
        same = leading(self._units, units)
        standing = len(self._lines) - sum(len(unit.lines) for unit in self._units[same:])
        self._units = units
        del self._lines[standing:], self._hashes[standing:]
        self._lines += chain.from_iterable(unit.lines for unit in units[same:])
        self._hashes += chain.from_iterable(unit.hashes for unit in units[same:])
        whole = self._settle(standing).copy()
        whole.update(b"".join(self._lines[standing:]))
        return Lines(tuple(self._lines), tuple(self._hashes), whole.hexdigest())

    def _settle(self, standing: int) -> hashlib._Hash:
        """The hash up to the first line that is new."""
        if standing < self._settled:
            self._hash, self._settled = hashlib.sha256(), 0
        self._hash.update(b"".join(self._lines[self._settled : standing]))
        self._settled = standing
        return self._hash
