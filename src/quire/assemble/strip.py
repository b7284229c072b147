"""The leaves of an epoch in order, with running sums, so that a cut is found without walking the thread."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from quire.assemble.leaves import Leaf
from quire.values import Message


class Strip:
    """Leaves only join at the end; `sums` and `handled` are running totals in front of each leaf."""

    def __init__(self, leaves: Iterable[Leaf] = ()) -> None:
        self.leaves: list[Leaf] = []
        # The same leaves' messages and sizes, as a request shows them.
        self.messages: list[Message] = []
        self.sizes: list[int] = []
        self.sums: list[int] = [0]
        self.handled: list[int] = [0]
        self.turn_starts: list[int] = []
        self.group_starts: list[int] = []
        # Leaves that the handle tier would shorten.
        self.long: list[int] = []
        for one in leaves:
            self.add(one)

    def add(self, leaf: Leaf) -> None:
        index = len(self.leaves)
        if leaf.user is not None:
            self.turn_starts.append(index)
        elif leaf.message.role == "assistant":
            self.group_starts.append(index)
        if leaf.handled is not None:
            self.long.append(index)
        self.leaves.append(leaf)
        self.messages.append(leaf.message)
        self.sizes.append(leaf.tokens)
        self.sums.append(self.sums[-1] + leaf.tokens)
        self.handled.append(self.handled[-1] + leaf.handled_tokens)

    def copy(self) -> Strip:
        twin = Strip()
        twin.__dict__ = {name: places[:] for name, places in self.__dict__.items()}
        return twin

    @property
    def total(self) -> int:
        return self.sums[-1]

    def newest_user(self) -> Leaf | None:
        return self.leaves[self.turn_starts[-1]] if self.turn_starts else None

    def last_legal(self) -> int:
        """Where the part that is never cut begins: the newest group, or the user who has just spoken."""
        user = self.turn_starts[-1] if self.turn_starts else 0
        return max(user, self.group_starts[-1]) if self.group_starts else user

    def legal_at_or_before(self, index: int, everywhere: bool) -> int:
        """The deepest place at or before `index` where a kept part may begin (0: nothing goes).

        A turn's start always; a group of calls in the current turn, or in any turn when `everywhere`.
        """
        index = min(index, self.last_legal())
        turn = self._below(self.turn_starts, index)
        group = self._below(self.group_starts, index)
        current = self.turn_starts[-1] if self.turn_starts else 0
        return max(turn, group) if everywhere or group > current else turn

    def legal_at_or_after(self, index: int, everywhere: bool) -> int:
        """The first legal place at or after `index`; the never-cut part's start when there is none before it."""
        index = min(index, self.last_legal())
        turns = bisect_left(self.turn_starts, index)
        candidates = [self.turn_starts[turns]] if turns < len(self.turn_starts) else []
        current = self.turn_starts[-1] if self.turn_starts else 0
        groups = bisect_left(self.group_starts, index if everywhere else max(index, current + 1))
        if groups < len(self.group_starts):
            candidates.append(self.group_starts[groups])
        return min(candidates, default=self.last_legal())

    def deepest_keeping(self, tokens: float, everywhere: bool) -> int:
        """The deepest legal start whose tail still holds at least `tokens`."""
        index = bisect_right(self.sums, self.total - tokens) - 1
        return self.legal_at_or_before(index, everywhere) if index > 0 else 0

    def front_within(self, room: float) -> int:
        """The last legal place that leaves at most `room` tokens in front of it."""
        return self.legal_at_or_before(bisect_right(self.sums, room) - 1, everywhere=True)

    def shortened(self, start: int, end: int) -> int:
        """The tokens freed when the leaves in [start, end) become handles."""
        return self.sums[end] - self.sums[start] - (self.handled[end] - self.handled[start])

    def longest_within(self, room: float) -> int:
        """The earliest legal start whose tail, with the request of the turn it cuts into, fits into `room`."""
        start = self._tail_within(room)
        request = self.turn_of(start)
        return start if request is None else self._tail_within(room - self.leaves[request].tokens)

    def _tail_within(self, room: float) -> int:
        return self.legal_at_or_after(bisect_left(self.sums, self.total - room), everywhere=True)

    def shallowest_handled(self, end: int, room: float, everywhere: bool) -> int:
        """The earliest legal start whose leaves up to `end`, as handles, fit into `room`."""
        index = bisect_left(self.handled, self.handled[end] - room)
        return min(end, self.legal_at_or_after(index, everywhere)) if index < end else end

    def first_long(self, start: int, end: int) -> int:
        """The first leaf in [start, end) that a handle would shorten; `end` when there is none."""
        at = bisect_left(self.long, start)
        return min(self.long[at], end) if at < len(self.long) else end

    def turn_of(self, index: int) -> int | None:
        """The user leaf of the turn that a group at `index` belongs to, if it stands before it."""
        at = bisect_right(self.turn_starts, index) - 1
        return self.turn_starts[at] if at >= 0 and self.turn_starts[at] < index else None

    @staticmethod
    def _below(places: list[int], index: int) -> int:
        at = bisect_right(places, index) - 1
        return places[at] if at >= 0 else 0
