"""Arbitrary valid entries of every kind, as the JSON they are written in."""

import hashlib
import random
from typing import Any

from hypothesis import strategies as st

from quire.values import ITEM_TYPES, KINDS
from toolbox import json_of

texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", " ", "\n", "\r\n", "\x00", "\u2028x\u2029\x85", "\u202eabc", '"\\', "[/x]", "\ufeff", "𝒳é"]),
)
numbers = st.one_of(
    st.integers(-(2**70), 2**70), st.integers(10**299, 10**300), st.floats(allow_nan=False, allow_infinity=False)
)
json_values = json_of(st.one_of(st.none(), st.booleans(), numbers, texts), texts, 4)
objects = st.dictionaries(texts, json_values, max_size=2)


def _in_order(drawn: tuple[dict[str, Any], int]) -> dict[str, Any]:
    fields, seed = drawn
    keys = sorted(fields)
    random.Random(seed).shuffle(keys)
    return {key: fields[key] for key in keys}


def shuffled(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with all required fields and some of the optional ones, in any order."""
    fields = st.fixed_dictionaries(required, optional=optional)
    return st.tuples(fields, st.integers(0, 10**6)).map(_in_order)


def _with_hash(item: dict[str, Any]) -> dict[str, Any]:
    if "sha256" in item:
        item["sha256"] = hashlib.sha256(item["content"].encode()).hexdigest()
    return item


items = shuffled(
    {"content": texts},
    {
        "id": texts,
        "type": st.sampled_from(ITEM_TYPES),
        "metadata": st.none() | objects,
        "timestamp": st.integers(0, 2**60),
        "sha256": st.just(""),
    },
).map(_with_hash)


tools = shuffled(
    {"name": texts, "description": texts, "parameters": objects},
    {"category": texts, "output": st.lists(texts, max_size=2), "example": texts, "idempotent": st.booleans()},
)
edits = shuffled({"entry": st.integers(1, 99), "action": texts, "replacement": st.none() | texts}, {})
library = st.fixed_dictionaries({"id": texts, "sha256": texts})

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "system": ({"text": texts}, {}),
    "tools": ({"tools": st.lists(tools, max_size=2)}, {}),
    "attach": ({"item": items}, {}),
    "user": ({"text": texts}, {"attach": st.lists(items, max_size=2), "images": st.lists(objects, max_size=2)}),
    "think": ({"text": texts}, {}),
    "call": ({"call_id": texts, "name": texts, "args": json_values}, {}),
    "result": ({"call_id": texts}, {"outcome": texts, "content": texts, "error": st.booleans()}),
    "respond": ({"text": texts}, {}),
    "note": ({"text": texts}, {}),
    "rebase": (
        {
            "reason": texts,
            "before_seq": st.integers(0, 99),
            "library": st.lists(library, max_size=2),
            "edits": st.lists(edits, max_size=2),
            "freed": st.integers(0, 10**6),
        },
        {"summary": texts},
    ),
    "sent": (
        {"provider": texts, "model": texts, "request_sha256": texts, "segments": st.lists(texts, max_size=2)},
        {"usage": objects, "cost": st.floats(0, 9) | objects, "stop": texts},
    ),
}
assert set(FIELDS) == set(KINDS)
ON_ALL = {"at": st.integers(0, 2**60), "meta": objects, "wire": objects}

bodies = st.one_of(
    *(shuffled({"kind": st.just(kind), **FIELDS[kind][0]}, {**FIELDS[kind][1], **ON_ALL}) for kind in KINDS)
)
