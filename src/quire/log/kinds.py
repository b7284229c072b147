"""The kinds of entries and the fields each one has: the interchange format, as one table."""

from __future__ import annotations

import msgspec

from quire.log.hashing import sha256_hex
from quire.log.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNTED,
    ENTRY_ID,
    INTEGER,
    NATURAL,
    NULL,
    OBJECT,
    SHA256,
    STRING,
    Fault,
    Fields,
    Listed,
    Path,
    Plain,
    Shape,
    either,
    fit,
    json_schema,
    one_of,
)
from quire.values import ITEM_TYPES, KINDS, JsonObject, Usage

NUMBER = Plain(
    "a number", {"type": "number"}, lambda v: isinstance(v, int | float) and not isinstance(v, bool)
)


def _content_has_its_sha256(item: JsonObject, path: Path) -> None:
    if "sha256" in item and item["sha256"] != (real := sha256_hex(item["content"])):
        raise Fault(
            (*path, "sha256"),
            f"does not match the content, whose sha256 is {real}",
            hint="Leave sha256 out, or correct it.",
        )


# An item in an entry may have any identity: a note's path, a URL, path#Lstart-Lend, ctx-N.
ITEM = Fields(
    required={"content": STRING},
    optional={
        "id": STRING,
        "type": one_of(ITEM_TYPES),
        "metadata": either(OBJECT, NULL),
        "timestamp": INTEGER,
        "sha256": SHA256,
    },
    also=_content_has_its_sha256,
)

TOOL = Fields(
    required={"name": STRING, "description": STRING, "parameters": OBJECT},
    optional={"category": STRING, "output": Listed(STRING), "example": STRING, "idempotent": BOOLEAN},
)

# An edit names its entry by seq, the only order; null says, as leaving it out does, that nothing replaces it.
EDIT = Fields(
    required={"entry": INTEGER, "action": STRING},
    optional={"replacement": either(STRING, NULL), "freed": INTEGER},
)


class Read(msgspec.Struct, frozen=True):
    """An object that may hold anything; but what is read of it, under these names, has one shape."""

    names: tuple[str, ...]
    shape: Plain

    @property
    def as_shape(self) -> Plain:
        schema = {"type": "object", "properties": dict.fromkeys(self.names, self.shape.schema)}
        return msgspec.structs.replace(OBJECT, schema=schema)

    def fit(self, value: JsonObject, path: Path) -> None:
        for name in self.names:
            if name in value:
                fit(self.shape, value[name], (*path, name))


IMAGE = Read(("media_type", "data", "url"), STRING)
# No provider counts beyond 2**63, and no price could be reckoned from it.
_COUNT = Plain(
    "a number below 2**63, or null",
    {"type": ["number", "null"], "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63},
    lambda v: v is None or (NUMBER.fits(v) and abs(v) < 2**63),
)
USAGE = Read(Usage.__struct_fields__, _COUNT)


def _images_are_readable(user: JsonObject, path: Path) -> None:
    for index, image in enumerate(user.get("images", ())):
        if isinstance(image, dict):
            IMAGE.fit(image, (*path, "images", index))


def _usage_counts(sent: JsonObject, path: Path) -> None:
    USAGE.fit(sent.get("usage", {}), (*path, "usage"))


_TEXT: dict[str, Shape] = {"text": STRING}

# A hash that was only noted down: of a request, a segment, an item sent long ago. Nothing here could check it.
_NOTED = STRING

# kind -> its required fields and its optional ones.
KIND_FIELDS: dict[str, tuple[dict[str, Shape], dict[str, Shape]]] = {
    "system": (_TEXT, {}),
    "tools": ({"tools": Listed(TOOL)}, {}),
    "attach": ({"item": ITEM}, {}),
    "user": (_TEXT, {"attach": Listed(ITEM), "images": Listed(either(IMAGE.as_shape, STRING))}),
    "think": (_TEXT, {}),
    "call": ({"call_id": STRING, "name": STRING, "args": ANYTHING}, {}),
    "result": ({"call_id": STRING}, {"outcome": STRING, "content": STRING, "error": BOOLEAN}),
    "respond": (_TEXT, {}),
    "note": (_TEXT, {}),
    "rebase": (
        {
            "reason": STRING,
            "before_seq": NATURAL,
            "library": Listed(Fields(required={"id": STRING, "sha256": _NOTED})),
            "edits": Listed(EDIT),
            "freed": INTEGER,
        },
        {"summary": STRING},
    ),
    "sent": (
        {"provider": STRING, "model": STRING, "request_sha256": _NOTED, "segments": Listed(_NOTED)},
        {"usage": USAGE.as_shape, "cost": either(NUMBER, STRING, OBJECT, NULL), "stop": either(STRING, NULL)},
    ),
}

# What every kind may carry besides; id and seq are the log's own.
ON_ALL: dict[str, Shape] = {"at": INTEGER, "meta": OBJECT, "wire": OBJECT, "id": ENTRY_ID, "seq": COUNTED}

# What has to be looked at as a whole.
_ALSO = {"user": _images_are_readable, "sent": _usage_counts}

SHAPES: dict[str, Fields] = {
    kind: Fields(
        required={"kind": one_of((kind,)), **required}, optional={**optional, **ON_ALL}, also=_ALSO.get(kind)
    )
    for kind, (required, optional) in KIND_FIELDS.items()
}
assert tuple(SHAPES) == KINDS


def entry_schema() -> JsonObject:
    """The JSON schema of one entry, kind by kind."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Entry",
        "description": "One line of a thread's log. id and seq are given by the log and checked when present.",
        "oneOf": [{"title": kind, **json_schema(shape)} for kind, shape in SHAPES.items()],
    }
