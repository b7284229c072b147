"""The window's rules, one by one: ids, times, capacity, reading, removing, pinning."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.items import Window, item
from quire.tokens import count
from quire.values import ITEM_TYPES, Item


def ids(items: list[Item] | Window) -> list[str]:
    return [one.id for one in items]


def filled(times: int, max_items: int = 50) -> Window:
    window = Window(max_items)
    for number in range(1, times + 1):
        window.add(f"item {number}")
    return window


# Adding


def test_at_capacity_the_oldest_goes() -> None:
    assert ids(filled(4, max_items=3)) == ["ctx-2", "ctx-3", "ctx-4"]


def test_a_string_becomes_an_item_with_its_hash() -> None:
    added = Window(clock=lambda: 1700).add("(+ 1 2)", "repl-history", {"language": "lisp"})
    assert added == Item(
        id="ctx-1",
        type="repl-history",
        content="(+ 1 2)",
        metadata={"language": "lisp"},
        timestamp=1700,
        sha256=hashlib.sha256(b"(+ 1 2)").hexdigest(),
    )


def test_the_default_type_is_code_and_content_may_be_empty() -> None:
    added = Window().add("")
    assert (added.type, added.content, added.metadata) == ("code", "", None)


def test_adding_an_item_ignores_type_and_metadata() -> None:
    given_item = item("x", "error", {"a": 1}, timestamp=5)
    added = Window().add(given_item, "text", {"b": 2})
    assert (added.type, added.metadata, added.id, added.timestamp) == ("error", {"a": 1}, "ctx-1", 5)


@pytest.mark.parametrize("content", [None, 3, b"bytes", ["x"], {"content": "x"}])
def test_content_that_is_no_string_is_an_error(content: object) -> None:
    with pytest.raises(CallError, match="must be a string"):
        Window().add(content)  # type: ignore[arg-type]


def test_an_unknown_type_a_bad_time_and_odd_metadata_are_errors() -> None:
    window = Window()
    with pytest.raises(CallError, match="unknown item type 'poem'"):
        window.add("x", "poem")
    with pytest.raises(CallError, match="timestamp must be an integer"):
        window.add("x", timestamp=1.5)  # type: ignore[arg-type]
    with pytest.raises(CallError, match="metadata"):
        window.add("x", metadata={"a": float("nan")})
    with pytest.raises(CallError, match="metadata"):
        window.add("x", metadata=["a"])  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="lone surrogate"):
        window.add("\ud800")
    assert window.add("x").id == "ctx-1"  # nothing that failed took a number


def test_a_wrong_hash_is_an_error() -> None:
    with pytest.raises(CallError, match="does not match the content"):
        Window().add(Item(id="", content="x", sha256="0" * 64))


# Ids


def test_ids_are_never_reused() -> None:
    window = filled(3, max_items=3)
    window.add("evicts ctx-1")
    window.remove("ctx-4")
    window.clear()
    assert window.add("x").id == "ctx-5"
    for used in ("ctx-1", "ctx-4", "ctx-5", "ctx-05"):
        with pytest.raises(CallError, match="already used"):
            window.add(Item(id=used, content="x"))


def test_the_counter_moves_past_a_given_id() -> None:
    window = Window()
    assert window.add(Item(id="ctx-10", content="x")).id == "ctx-10"
    assert window.add("y").id == "ctx-11"
    assert window.add(Item(id="ctx-3", content="never used, so new")).id == "ctx-3"
    assert window.add("z").id == "ctx-12"
    with pytest.raises(CallError, match="already used"):
        window.add(Item(id="ctx-3", content="x"))


@pytest.mark.parametrize("id", ["ctx-", "ctx-1\n", "ctx-１", "CTX-1", "a.md", "ctx--1", "ctx-1x", "ctx-" + "9" * 5000])
def test_a_given_id_must_be_ctx_and_digits(id: str) -> None:
    with pytest.raises(CallError, match="is not ctx-N"):
        Window().add(Item(id=id, content="x"))


# Times


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.integers(1, 5))
def test_an_older_timestamp_is_raised_to_its_predecessors(times: list[int], capacity: int) -> None:
    window, raised = Window(capacity), []
    for time in times:
        raised.append(max([time, *raised[-1:]]))
        assert window.add("x", timestamp=time).timestamp == raised[-1]
    assert [one.timestamp for one in window] == raised[-capacity:]


# Capacity


@pytest.mark.parametrize("max_items", [0, -1, 1001, 2.0, "3", None, True])
def test_a_capacity_outside_1_to_1000_is_an_error(max_items: object) -> None:
    with pytest.raises(CallError, match="from 1 to 1000"):
        Window(max_items)  # type: ignore[arg-type]
    window = filled(2)
    with pytest.raises(CallError, match="from 1 to 1000"):
        window.max_items = max_items  # type: ignore[assignment]
    assert (window.max_items, len(window)) == (50, 2)


def test_lowering_the_capacity_evicts_at_once_and_raising_it_does_not_bring_back() -> None:
    window = filled(10)
    window.max_items = 3
    assert ids(window) == ["ctx-8", "ctx-9", "ctx-10"]
    window.max_items = 1000
    assert ids(window) == ["ctx-8", "ctx-9", "ctx-10"]


def test_the_oldest_go_until_the_rest_fits_the_token_capacity() -> None:
    text = "one two three four five"
    size = count(text).tokens
    window = Window(max_tokens=3 * size + 1)
    for _ in range(5):
        window.add(text)
    assert ids(window) == ["ctx-3", "ctx-4", "ctx-5"]
    window.add(" ".join([text] * 2))
    assert ids(window)[-1] == "ctx-6"
    assert window.tokens <= 3 * size + 1
    window.max_tokens = size * 2
    assert window.tokens <= size * 2


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


def test_remove_takes_one_item_and_clear_all_of_them() -> None:
    window = filled(3)
    assert window.remove("ctx-2").content == "item 2"
    assert ids(window) == ["ctx-1", "ctx-3"]
    window.pin("ctx-1")
    window.clear()
    assert (ids(window), window.pinned) == ([], [])


@pytest.mark.parametrize("action", ["remove", "pin", "unpin"])
def test_an_item_that_is_not_there_is_not_found(action: str) -> None:
    with pytest.raises(NotFound, match="no item 'ctx-9'") as caught:
        getattr(filled(2), action)("ctx-9")
    assert "ctx-1, ctx-2" in caught.value.hint


def test_a_pinned_item_outlives_younger_ones() -> None:
    window = filled(3, max_items=3)
    window.pin("ctx-2")
    for _ in range(4):
        window.add("x")
    assert ids(window) == ["ctx-2", "ctx-6", "ctx-7"]
    window.unpin("ctx-2")
    window.add("y")
    assert ids(window) == ["ctx-6", "ctx-7", "ctx-8"]


def test_when_only_pinned_items_remain_adding_is_an_error() -> None:
    window = filled(2, max_items=2)
    window.pin("ctx-1")
    window.pin("ctx-2")
    with pytest.raises(BudgetError, match="all of them are pinned"):
        window.add("x")
    with pytest.raises(BudgetError, match="2 items are pinned"):
        window.max_items = 1
    assert (ids(window), window.max_items) == (["ctx-1", "ctx-2"], 2)
    window.remove("ctx-1")
    assert window.add("x").id == "ctx-3"


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
    window.pin("ctx-2")
    window.remove("ctx-4")
    again = Window.from_json(window.to_json())
    assert again.to_json() == window.to_json()
    assert (again.pinned, again.max_tokens, again.max_item_tokens) == (["ctx-2"], 100, 50)
    assert again.add("y").id == "ctx-5"
    with pytest.raises(CallError, match="already used"):
        again.add(Item(id="ctx-4", content="removed before it was saved"))
    cleared = filled(3)
    cleared.clear()
    assert Window.from_json(cleared.to_json()).add("y").id == "ctx-4"


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
        (
            {"items": [{"content": "x", "id": "ctx-1"}, {"content": "y", "id": "ctx-1"}]},
            r"items\[1\]: id .* already used",
        ),
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
