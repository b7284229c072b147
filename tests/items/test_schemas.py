"""The published schemas are valid, served to the byte, and say what the code does."""

import json
from functools import cache
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from quire import QuireError, Window, values
from quire.cli.convert import NAMES
from quire.values import item_json
from toolbox import check, invoke


@cache
def published(name: str) -> Any:
    return json.loads(invoke("schema", name).stdout_bytes)


def valid(name: str, value: object) -> bool:
    return bool(Draft202012Validator(published(name)).is_valid(value))


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid(name: str) -> None:
    Draft202012Validator.check_schema(published(name))


def test_items_and_windows_are_served_to_the_byte() -> None:
    for name in ("item", "window"):
        file = resources.files("quire.schemas").joinpath(f"{name}.json")
        assert invoke("schema", name).stdout_bytes == file.read_bytes()


def test_another_name_is_an_error_of_the_call() -> None:
    invoke("schema", "thread", code=2)


def full_window() -> Window:
    window = Window(5, max_tokens=100, max_item_tokens=20)
    for type in ("code", "text", "file"):
        window.add("x", type, {"filename": "a.py"})
    window.pin("ctx-1")
    window.remove("ctx-3")
    return window


def test_what_a_window_writes_fits_the_schemas() -> None:
    for window in (Window(), full_window()):
        assert valid("window", window.to_json())
        assert all(valid("item", item_json(one)) for one in window)


_item = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["ctx-1", "ctx-2", "a.md", "", 3]),
        "type": st.sampled_from(["code", "custom", "poem", None]),
        "content": st.sampled_from(["", "text", None, 3]),
        "metadata": st.sampled_from([None, {}, {"a": [1]}, [], "x"]),
        "timestamp": st.sampled_from([0, -1, 1.5, "now", True]),
        "sha256": st.sampled_from(["0", 5]),
        "extra": st.just(1),
    },
)
_window = st.fixed_dictionaries(
    {},
    optional={
        "items": st.lists(_item, max_size=2),
        "max_items": st.sampled_from([0, 1, 1000, 1001, "5", None, True]),
        "maxItems": st.sampled_from([3, 0]),
        "max_tokens": st.sampled_from([None, 1, 0, "1", 1000]),
        "max_item_tokens": st.sampled_from([None, 1, 0]),
        "pinned": st.sampled_from([[], ["ctx"], 3]),
        "next_id": st.sampled_from([1, 3, 0, "x"]),
        "extra": st.just(1),
    },
)


@given(_window)
def test_the_schema_accepts_what_the_window_reads(value: dict[str, Any]) -> None:
    try:
        Window.from_json(value)
    except QuireError as error:
        # These are about several fields at once, which a schema cannot say.
        if "already used" not in str(error) and "next_id" not in str(error) and "room for" not in str(error):
            assert not valid("window", value)
    else:
        assert valid("window", value)


def test_an_entry_with_an_item_fits_the_entry_schema() -> None:
    window = full_window()
    entry = values.user("Look at this.", attach=window)
    assert check(entry.body).attached == [item_json(one) for one in window]
    assert valid("entry", entry.body)
    assert not valid("entry", {**entry.body, "extra": 1})
