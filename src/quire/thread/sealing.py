"""The layers of a thread's requests, hashed one request after the other: what stands is not hashed again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from quire import providers
from quire.assemble import Built
from quire.assemble.layers import current_place, enclose
from quire.providers.running import leading
from quire.values import Envelope


class Sealing:
    """Knows the history of the newest request, and how far its hash goes."""

    def __init__(self) -> None:
        self._rendering = providers.rendering("openai-chat:")
        self._history: tuple[bytes, ...] = ()
        # The hash up to the current user's message, and beyond it: the next turn puts that message in between.
        self._front, self._running = Hash(), Hash()

    def seal(self, built: Built) -> tuple[Envelope, dict[str, str]]:
        """The envelope without its history, and the hashes of all five layers."""
        request, system = self._rendering.request(built.prompt), bool(built.prompt.system)
        lines = request.lines.each[len(request.body.get("tools") or ()) + system :]
        place = current_place(built, request.body["messages"][system:])
        sealed = enclose(built, ())
        hashes: dict[str, str] = {one.id: one.sha256 for one in sealed.layers}
        return sealed, {**hashes, "L4_STRIP": self._strip(lines, place)}

    def _strip(self, lines: tuple[bytes, ...], place: int) -> str:
        """The hash of every message but the current user's."""
        front = max(place, 0)
        history = lines[:front] + lines[place + 1 :]
        # Lines that are kept are the very same objects.
        same = leading(self._history, history)
        if self._front.count > same:
            self._front = Hash()
        self._front.extend(history[self._front.count : front])
        if not self._front.count <= self._running.count <= same:
            self._running = self._front.copy()
        self._running.extend(history[self._running.count : same])
        whole = self._running.copy()
        whole.extend(history[whole.count :])
        self._history = history
        return whole.hexdigest()


class Hash:
    """A running hash of segments, a blank line between them."""

    def __init__(self) -> None:
        self.count, self._hash = 0, hashlib.sha256()

    def copy(self) -> Hash:
        twin = Hash()
        twin.count, twin._hash = self.count, self._hash.copy()
        return twin

    def extend(self, lines: Iterable[bytes]) -> None:
        """Take segments in, each given as a line."""
        for line in lines:
            self._hash.update((b"\n\n" if self.count else b"") + line[:-1])
            self.count += 1

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
