"""`json`: a window as one JSON object with all its fields in a fixed order."""

from __future__ import annotations

import json

import msgspec

from quire.errors import FormatError
from quire.formats import well_formed
from quire.items import MAX_ITEMS, WINDOW, Window
from quire.log.shapes import NULL, STRING, Fields, check_shape, either
from quire.values import Item, Json, JsonObject, item_json

# `xml` and `json` share this value: every field of every item, the capacity, the request. The rules for ids, timestamps
# and eviction are applied by `quire.items`; a missing timestamp is 0.

INPUT = Fields(WINDOW.required, {**WINDOW.optional, "request": either(STRING, NULL)})


class Context(msgspec.Struct, frozen=True):
    """The content of a window, and a request (or None)."""

    items: tuple[Item, ...] = ()
    max_items: int = MAX_ITEMS
    max_tokens: int | None = None
    max_item_tokens: int | None = None
    pinned: tuple[str, ...] = ()
    # None where it is one more than the highest number of an item.
    next_id: int | None = None
    request: str | None = None


def project(window: Window, request: str | None = None) -> Context:
    """The value of a window; nothing is left out."""
    limits = (window.max_items, window.max_tokens, window.max_item_tokens)
    return Context(tuple(window), *limits, tuple(window.pinned), window.to_json().get("next_id"), request)


def read(data: Json) -> Context:
    """The value of the JSON object that `quire format` takes; absent ids are ctx-1, ctx-2, …"""
    fields = dict(check_shape(INPUT, data))
    request = fields.pop("request", None)
    return project(Window.from_json(fields), request)


def to_json(value: Context) -> JsonObject:
    """A value as the JSON object that `read` accepts; defaults are left out, except max_items."""
    out: JsonObject = {"items": [item_json(item) for item in value.items], "max_items": value.max_items}
    for name in ("max_tokens", "max_item_tokens", "next_id", "request"):
        if (field := getattr(value, name)) is not None:
            out[name] = field
    if value.pinned:
        out["pinned"] = list(value.pinned)
    return out


def render(value: Context) -> str:
    """The JSON object, indented by two, and a newline."""
    return well_formed(json.dumps(to_json(value), ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def parse(text: str) -> Context:
    """The value of such an object, in any layout."""
    return read(load(well_formed(text)))


class _NoNumber(ValueError):
    """NaN and the infinities, which JSON does not have."""


def _refuse_number(name: str) -> Json:
    raise _NoNumber(f"{name} is not a JSON number")


_HINT = 'A window is one object: {"items": […], "max_items": 50}.'


def load(text: str, name: str = "the text", hint: str = _HINT, line: int = 1) -> Json:
    """Parse JSON; errors call the text `name` and count lines from `line`."""
    column, cause = 1, Exception()
    try:
        return json.loads(text, parse_constant=_refuse_number)
    except json.JSONDecodeError as error:
        problem, cause = f"is not JSON: {error.msg}", error
        line, column = line + error.lineno - 1, error.colno
    except RecursionError as error:
        problem, cause = "is nested too deeply", error
    except _NoNumber as error:
        problem, cause = f"is not JSON: {error}", error
    except ValueError as error:  # Python refuses integers of thousands of digits
        problem, cause = "holds a number that is too long", error
    raise FormatError(f"{name} {problem}", line=line, column=column, hint=hint) from cause
