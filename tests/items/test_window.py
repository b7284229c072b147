"""The window: against the simplest thing that could be right, and what its errors, limits and JSON say."""

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire import Item, Window, count
from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.items import item
from quire.values import ITEM_TYPES
from toolbox import fewer


def ids(items: list[Item] | Window) -> list[str]:
    return [one.id for one in items]


def filled(times: int, max_items: int = 50) -> Window:
    window = Window(max_items)
    for number in range(1, times + 1):
        window.add(f"item {number}")
    return window


def test_a_string_becomes_an_item_with_its_hash_and_an_item_stays_what_it_is() -> None:
    sha256 = hashlib.sha256(b"(+ 1 2)").hexdigest()
    added = Window(clock=lambda: 1700).add("(+ 1 2)", "repl-history", {"language": "lisp"})
    about = {"id": "ctx-1", "type": "repl-history", "content": "(+ 1 2)", "metadata": {"language": "lisp"}}
    assert added == Item(**about, timestamp=1700, sha256=sha256)
    added = Window().add("")
    assert (added.type, added.content, added.metadata) == ("code", "", None)
    added = Window().add(item("x", "error", {"a": 1}, timestamp=5), "text", {"b": 2})
    assert (added.type, added.metadata, added.id, added.timestamp) == ("error", {"a": 1}, "ctx-1", 5)


BAD_IDS = ["ctx-", "ctx-1\n", "ctx-１", "CTX-1", "a.md", "ctx--1", "ctx-1x", "ctx-" + "9" * 5000]


@pytest.mark.parametrize(
    ("content", "more", "problem"),
    [
        *((content, {}, "must be a string") for content in (None, 3, b"bytes", ["x"], {"content": "x"})),
        *((Item(id=id, content="x"), {}, "is not ctx-N") for id in BAD_IDS),
        (Item(id="", content="x", sha256="0" * 64), {}, "does not match the content"),
        ("x", {"type": "poem"}, "unknown item type 'poem'"),
        ("x", {"timestamp": 1.5}, "timestamp must be an integer"),
        ("x", {"metadata": {"a": float("nan")}}, "metadata"),
        ("x", {"metadata": ["a"]}, "metadata"),
        ("\ud800", {}, "lone surrogate"),
    ],
)
def test_what_cannot_be_added_is_an_error_and_takes_no_number(content: Any, more: Any, problem: str) -> None:
    window = Window()
    with pytest.raises((CallError, FormatError), match=problem):
        window.add(content, **more)
    assert window.add("x").id == "ctx-1"


# Capacity


@pytest.mark.parametrize("max_items", [0, -1, 1001, 2.0, "3", None, True])
def test_a_capacity_outside_1_to_1000_is_an_error(max_items: object) -> None:
    with pytest.raises(CallError, match="from 1 to 1000"):
        Window(max_items)  # type: ignore[arg-type]
    window = filled(2)
    with pytest.raises(CallError, match="from 1 to 1000"):
        window.max_items = max_items  # type: ignore[assignment]
    assert (window.max_items, len(window)) == (50, 2)


def test_an_item_too_large_is_an_error_and_changes_nothing() -> None:
    window = Window(max_tokens=20)
    window.add("a b c")
    before = window.to_json()
    with pytest.raises(BudgetError, match="there is room for 20"):
        window.add("word " * 100)
    window.max_item_tokens = 5
    with pytest.raises(BudgetError, match="there is room for 5") as caught:
        window.add("word " * 10)
    assert "truncate=True" in caught.value.hint
    assert {**window.to_json(), "max_item_tokens": None} == {**before, "max_item_tokens": None}


@given(st.lists(st.text(max_size=20), min_size=1, max_size=60).map("\n".join), st.integers(1, 60))
def test_truncating_keeps_whole_lines_and_says_how_much_went(text: str, limit: int) -> None:
    added = Window(max_item_tokens=limit).add(text, truncate=True)
    assert count(added.content).tokens <= limit
    if count(text).tokens <= limit:
        assert (added.content, added.metadata) == (text, None)
        return
    went = (added.metadata or {})["truncated"]
    kept = text.encode()[: len(text.encode()) - went["bytes"]].decode()
    assert kept == "" or kept.endswith("\n")
    assert added.content.startswith(kept)
    lines = "1 more line" if went["lines"] == 1 else f"{went['lines']:,} more lines"
    assert added.content[len(kept) :] in ("", f"[... {lines} omitted ({went['bytes']:,} bytes) ...]")
    rest = text[len(kept) :]
    assert went["lines"] == len(rest.removesuffix("\n").split("\n"))


def test_truncating_keeps_as_many_lines_as_fit() -> None:
    text = "\n".join(f"line {n}" for n in range(100))
    added = Window(max_item_tokens=30).add(text, truncate=True)
    assert added.content == "line 0\nline 1\nline 2\nline 3\n[... 96 more lines omitted (761 bytes) ...]"
    assert added.metadata == {"truncated": {"lines": 96, "bytes": 761}}
    assert Window(max_item_tokens=5).add(text, truncate=True).content == "line 0\n"


# Reading


def typed() -> Window:
    window = Window()
    for type in ("code", "error", "code", "error", "code", "text"):
        window.add("x", type)
    return window


@pytest.mark.parametrize(
    ("types", "limit", "numbers"),
    [
        (None, 3, [4, 5, 6]),
        (["code"], 2, [3, 5]),
        (["file"], None, []),
        (None, 100, [1, 2, 3, 4, 5, 6]),
        (["code", "error"], None, [1, 2, 3, 4, 5]),
        ([], None, [1, 2, 3, 4, 5, 6]),
        (None, None, [1, 2, 3, 4, 5, 6]),
        (None, 0, []),
        (["error"], 0, []),
        (("text",), 1, [6]),
    ],
)
def test_get_filters_then_takes_the_last_oldest_first(
    types: list[str] | None, limit: int | None, numbers: list[int]
) -> None:
    assert ids(typed().get(types, limit)) == [f"ctx-{number}" for number in numbers]


@pytest.mark.parametrize("limit", [-1, -100, 1.5, "2", True])
def test_a_negative_or_odd_limit_is_an_error(limit: object) -> None:
    with pytest.raises(CallError, match="limit must be 0 or more"):
        typed().get(limit=limit)  # type: ignore[arg-type]


# Removing and pinning


@pytest.mark.parametrize("action", ["remove", "pin", "unpin"])
def test_an_item_that_is_not_there_is_not_found(action: str) -> None:
    with pytest.raises(NotFound, match="no item 'ctx-9'") as caught:
        getattr(filled(2), action)("ctx-9")
    assert "ctx-1, ctx-2" in caught.value.hint


def test_pinned_tokens_are_not_to_be_had() -> None:
    window = Window(max_tokens=12)
    window.pin(window.add("one two three four five six").id)
    window.add("loose")
    with pytest.raises(BudgetError, match="there is room for 6"):
        window.add("seven eight nine ten eleven twelve thirteen")
    with pytest.raises(BudgetError, match="pinned items have 6 tokens"):
        window.max_tokens = 5
    window.add("a b c d e f")
    assert ids(window) == ["ctx-1", "ctx-3"]


# JSON


def test_json_follows_the_schema_of_the_seed() -> None:
    window = Window(3, clock=lambda: 7)
    window.add("x", "text")
    sha256 = hashlib.sha256(b"x").hexdigest()
    assert window.to_json() == {
        "items": [{"id": "ctx-1", "type": "text", "content": "x", "timestamp": 7, "sha256": sha256}],
        "max_items": 3,
    }


def test_absent_ids_and_times_are_filled_in_without_a_clock() -> None:
    window = Window.from_json({"items": [{"type": "text", "content": "a"}, {"content": "b", "metadata": None}]})
    assert [(one.id, one.type, one.timestamp) for one in window] == [("ctx-1", "text", 0), ("ctx-2", "code", 0)]
    assert window.max_items == 50


def test_both_spellings_of_the_capacity_are_read() -> None:
    assert Window.from_json({"items": [], "maxItems": 7}).max_items == 7
    with pytest.raises(FormatError, match="both max_items and maxItems"):
        Window.from_json({"items": [], "maxItems": 7, "max_items": 7})


def test_what_a_window_remembers_survives_json() -> None:
    window = Window(5, max_tokens=100, max_item_tokens=50)
    for _ in range(4):
        window.add("x")
    window.remove("ctx-4")
    again = Window.from_json(window.to_json())
    assert again.to_json() == window.to_json()
    assert (again.max_tokens, again.max_item_tokens) == (100, 50)
    with pytest.raises(CallError, match="already used"):
        again.add(Item(id="ctx-4", content="removed before it was saved"))
    window.clear()
    assert Window.from_json(window.to_json()).add("y").id == "ctx-5"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"items": [], "size": 3}, "size: unknown field"),
        ({"items": [{"content": "x", "language": "c"}]}, r"items\[0\].language: unknown field"),
        ({"items": [{"content": 3}]}, r"items\[0\].content: must be a string, not 3"),
        ({"items": [{"type": "code"}]}, r"items\[0\]: field 'content' is missing"),
        ({"items": [{"content": "x", "type": "poem"}]}, r"items\[0\].type: must be one of"),
        ({"items": [{"content": "x", "id": "a.md"}]}, r"items\[0\].id: must be ctx- and digits"),
        ({"items": [{"content": "x", "timestamp": "now"}]}, r"items\[0\].timestamp: must be an integer"),
        ({"items": [{"content": "x", "sha256": "0" * 64}]}, r"items\[0\]: sha256 .* does not match"),
        ({"items": [{"content": "x", "id": "ctx-1"}, {"content": "y", "id": "ctx-1"}]}, r"items\[1\]: id .* already"),
        ({"items": [], "max_items": 0}, "max_items: must be an integer from 1 to 1000"),
        ({"items": [{"content": "\ud800"}]}, r"items\[0\].content: holds a lone surrogate"),
        ({"items": [], "pinned": ["ctx-1"]}, "pinned: no item 'ctx-1'"),
        ({"items": [{"content": "x", "id": "ctx-5"}], "next_id": 5}, "next_id: 5 is not behind every item"),
        ([], "must be an object, not a list"),
        ({"max_items": 3}, "field 'items' is missing"),
    ],
)
def test_malformed_json_names_the_field(value: object, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        Window.from_json(value)  # type: ignore[arg-type]


def test_more_items_than_the_capacity_evict_the_oldest() -> None:
    items = [{"content": c} for c in "abcd"]
    assert ids(Window.from_json({"items": items, "max_items": 3})) == ["ctx-2", "ctx-3", "ctx-4"]


@given(st.sampled_from(ITEM_TYPES), st.text(), st.dictionaries(st.text(), st.text()) | st.none())
def test_any_item_survives_json(type: str, content: str, metadata: dict[str, str] | None) -> None:
    window = Window()
    window.add(content, type, metadata)
    assert Window.from_json(window.to_json()).get() == window.get()


texts = st.integers(0, 12).map(lambda words: " ".join(["word"] * words))


class Model(RuleBasedStateMachine):
    """A list, searched from the front."""

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
            with pytest.raises(CallError, match="already used"):
                self.window.add(Item(id=f"ctx-{given:02}", content=text))
            return
        number = self.next() if given is None else given
        raised = max([time, *(row[2] for row in self.rows[-1:])])
        after = self.evicted([*self.rows, (f"ctx-{number}", text, raised)])
        made = Item(id="" if given is None else f"ctx-{given}", content=text, timestamp=time)
        if after is None:
            with pytest.raises(BudgetError, match=r"all of them are pinned|there is room for"):
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
        assert self.window.remove(id).id == id
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
            with pytest.raises(BudgetError, match="items are pinned"):
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
