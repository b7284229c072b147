"""What Quire reads of free fields is left aside where it cannot be used; all else stays as it came."""

from typing import Any

import pytest
from entry_strategies import bodies, json_values
from hypothesis import given
from hypothesis import strategies as st

from quire.log.entries import check, usable
from quire.values import Entry, attach, call, user


@given(bodies)
def test_entries_that_can_be_used_are_the_same(body: dict[str, Any]) -> None:
    entry = check(body)
    seen = usable(entry)
    assert (seen.kind, seen.seq, seen.id) == (entry.kind, entry.seq, entry.id)
    assert usable(seen) is seen


META = ["pins", "shown", "recalled", "recalled_ids", "composer", "opening", "pinned"]


@given(st.dictionaries(st.sampled_from([*META, "own"]), json_values))
def test_nobodys_own_fields_are_touched(meta: dict[str, Any]) -> None:
    seen = usable(user("q", meta=meta)).meta
    assert seen.keys() <= meta.keys()
    assert [seen.get("own"), "own" in seen] == [meta.get("own"), "own" in meta]
    assert all(isinstance(seq, int) for seq in seen.get("pins", ()))
    assert all(isinstance(name, str) for name in seen.get("shown", ()))


@pytest.mark.parametrize(
    ("meta", "seen"),
    [
        ({"pins": [1, 2]}, {"pins": [1, 2]}),
        ({"pins": 5}, {"pins": [5]}),
        ({"pins": [5, [1], "x", True]}, {"pins": [5]}),
        ({"pins": {"a": 1}, "b": 1}, {"b": 1}),
        ({"shown": "timeRange"}, {"shown": ["timeRange"]}),
        ({"shown": 5}, {}),
        ({"opening": "x", "pinned": ["words", 5]}, {"pinned": ["words"]}),
        ({"recalled": {"a": 1}, "composer": [1]}, {}),
    ],
)
def test_one_alone_is_a_list_of_one_and_the_rest_is_absent(meta: dict[str, Any], seen: dict[str, Any]) -> None:
    assert usable(call("c", "n", {}, meta=meta)).meta == seen


def test_images_are_read_of_an_active_note_alone() -> None:
    image = {"media_type": "image/png", "data": "AAAA"}
    active = {"source": "active_note", "path": "p", "images": [5, image, {"url": 5}, "https://x/y.png"]}
    seen = usable(attach({"content": "c", "metadata": active})).body["item"]
    assert seen["metadata"]["images"] == [image, "https://x/y.png"]
    counted = user("q", [{"content": "c", "metadata": {"source": "url", "images": 3}}])
    assert usable(counted) is counted
    assert usable(user("q", [{"content": "c", "metadata": {"source": ["x"]}}])).attached == [
        {"content": "c", "metadata": {}}
    ]


def test_an_edit_that_puts_nothing_in_place_of_its_entry_drops_it() -> None:
    edits = [
        {"entry": 1, "action": "cut", "replacement": None},
        {"entry": 2, "action": "handle"},
        {"entry": 3, "action": "fold", "replacement": None},
        {"entry": 4, "action": "cut", "replacement": ""},
    ]
    body = {"kind": "rebase", "reason": "r", "before_seq": 0, "library": [], "edits": edits, "freed": 0}
    assert usable(Entry("rebase", body)).body["edits"] == [
        {"entry": 1, "action": "drop"},
        {"entry": 2, "action": "drop"},
        {"entry": 3, "action": "fold"},
        {"entry": 4, "action": "cut", "replacement": ""},
    ]
