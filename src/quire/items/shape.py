"""The JSON of items and windows: what may stand where. The published schemas say the same."""

from __future__ import annotations

import re

from quire.log.shapes import (
    COUNTED,
    INTEGER,
    NULL,
    OBJECT,
    SHA256,
    STRING,
    Fields,
    Listed,
    Plain,
    either,
    one_of,
)  # fmt: skip
from quire.values import ITEM_TYPES, Json

MAX_ITEMS = 50
MOST_ITEMS = 1000
_ID = re.compile(r"ctx-[0-9]+")


def is_capacity(value: Json) -> bool:
    """An integer from 1 to 1000."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ITEMS


CTX_ID = Plain(
    "ctx- and digits",
    {"type": "string", "pattern": "^ctx-[0-9]+$"},
    lambda v: isinstance(v, str) and bool(_ID.fullmatch(v)),
)
CAPACITY = Plain(
    f"an integer from 1 to {MOST_ITEMS}",
    {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS},
    is_capacity,
)
ITEM = Fields(
    required={"content": STRING},
    optional={
        "id": CTX_ID,
        "type": one_of(ITEM_TYPES),
        "metadata": either(OBJECT, NULL),
        "timestamp": INTEGER,
        "sha256": SHA256,
    },
)
LIMIT = either(COUNTED, NULL)
WINDOW = Fields(
    required={"items": Listed(ITEM)},
    optional={
        "max_items": CAPACITY,
        # The same in camel case: read, never written.
        "maxItems": CAPACITY,
        "max_tokens": LIMIT,
        "max_item_tokens": LIMIT,
        "pinned": Listed(CTX_ID),
        "next_id": COUNTED,
    },
)
