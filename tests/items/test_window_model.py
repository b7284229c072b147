"""The window against the simplest thing that could be right: a list, searched from the front."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.errors import BudgetError
from quire.items import Window
from quire.tokens import count
from quire.values import Item
from toolbox import fewer

texts = st.integers(0, 12).map(lambda words: " ".join(["word"] * words))


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = Window(3)
        self.rows: list[tuple[str, str, int]] = []  # id, content, timestamp
        self.pins: set[str] = set()
        self.used: set[int] = set()
        self.files: dict[str, str] = {}  # the newest id of a file
        self.max_items, self.max_tokens = 3, None

    def next(self) -> int:
        return max(self.used, default=0) + 1

    def fits(self, rows: list[tuple[str, str, int]], items: int) -> bool:
        tokens = sum(count(content).tokens for _, content, _ in rows)
        return len(rows) <= items and (self.max_tokens is None or tokens <= self.max_tokens)

    def evicted(self, rows: list[tuple[str, str, int]]) -> list[tuple[str, str, int]] | None:
        """The rows once the oldest unpinned have gone, the last row staying; None where that cannot be."""
        rows = list(rows)
        while not self.fits(rows, self.max_items):
            loose = [row for row in rows[:-1] if row[0] not in self.pins]
            if not loose:
                return None
            rows.remove(loose[0])
        return rows

    @rule(texts=st.lists(texts, min_size=1, max_size=4))
    def add_several(self, texts: list[str]) -> None:
        for text in texts:
            self.add(text, 0, None)

    @rule(text=texts, time=st.integers(0, 100), given=st.none() | st.integers(0, 30))
    def add(self, text: str, time: int, given: int | None) -> None:
        if given in self.used:
            return
        number = self.next() if given is None else given
        raised = max([time, *(row[2] for row in self.rows[-1:])])
        after = self.evicted([*self.rows, (f"ctx-{number}", text, raised)])
        made = Item(id="" if given is None else f"ctx-{given}", content=text, timestamp=time)
        if after is None:
            with pytest.raises(BudgetError):
                self.window.add(made)
            return
        added = self.window.add(made)
        assert (added.id, added.content, added.timestamp) == (f"ctx-{number}", text, raised)
        self.rows = after
        self.used.add(number)

    @rule(text=texts, file=st.sampled_from(["a.py", "b.py"]))
    def put(self, text: str, file: str) -> None:
        """A file's new version takes the old one's id and pin, and stands last."""
        made = Item(id="", type="file", content=text, metadata={"filename": file})
        old = [row for row in self.rows if row[0] == self.files.get(file)]
        if old and old[0][1] == text:
            assert self.window.put(made).id == old[0][0]
            return
        id = old[0][0] if old else f"ctx-{self.next()}"
        rest = [row for row in self.rows if row not in old]
        after = self.evicted([*rest, (id, text, max([0, *(row[2] for row in rest[-1:])]))])
        if after is None:
            with pytest.raises(BudgetError):
                self.window.put(made)
            return
        assert self.window.put(made).id == id
        self.rows, self.files[file] = after, id
        self.used.add(int(id.removeprefix("ctx-")))

    @precondition(lambda self: self.rows)
    @rule(index=st.integers(0, 5))
    def pin(self, index: int) -> None:
        id = self.rows[index % len(self.rows)][0]
        self.window.pin(id)
        self.pins.add(id)

    @precondition(lambda self: self.pins)
    @rule(index=st.integers(0, 5))
    def unpin(self, index: int) -> None:
        id = sorted(self.pins)[index % len(self.pins)]
        self.window.unpin(id)
        self.pins.remove(id)

    @precondition(lambda self: len(self.rows) > 1)
    @rule(index=st.integers(0, 5))
    def remove(self, index: int) -> None:
        id = self.rows[index % len(self.rows)][0]
        self.window.remove(id)
        self.rows = [row for row in self.rows if row[0] != id]
        self.pins.discard(id)

    @precondition(lambda self: len(self.rows) > 4)
    @rule()
    def clear(self) -> None:
        self.window.clear()
        self.rows, self.pins = [], set()

    @rule(size=st.integers(1, 6))
    def resize(self, size: int) -> None:
        if len(self.pins) > size:
            with pytest.raises(BudgetError):
                self.window.max_items = size
            return
        self.window.max_items = self.max_items = size
        self.shrink()

    @rule(limit=st.none() | st.integers(1, 30))
    def limit(self, limit: int | None) -> None:
        pinned = sum(count(content).tokens for id, content, _ in self.rows if id in self.pins)
        if limit is not None and pinned > limit:
            with pytest.raises(BudgetError):
                self.window.max_tokens = limit
            return
        self.window.max_tokens = self.max_tokens = limit
        self.shrink()

    def shrink(self) -> None:
        while not self.fits(self.rows, self.max_items):
            self.rows.remove(next(row for row in self.rows if row[0] not in self.pins))

    @precondition(lambda self: len(self.rows) > 2)
    @rule()
    def save_and_load(self) -> None:
        self.window = Window.from_json(self.window.to_json())
        # Loaded, a window cannot know which lower numbers were used; it takes all of them for used.
        self.used |= set(range(self.next()))

    @invariant()
    def same(self) -> None:
        assert [(one.id, one.content, one.timestamp) for one in self.window] == self.rows
        assert len(self.window) == len(self.rows) <= self.max_items
        assert set(self.window.pinned) == self.pins
        if self.max_tokens is not None:
            assert self.window.tokens == sum(count(content).tokens for _, content, _ in self.rows) <= self.max_tokens
        times = [one.timestamp for one in self.window]
        assert times == sorted(times)


TestWindow = Model.TestCase
TestWindow.settings = settings(fewer(2), stateful_step_count=30)
