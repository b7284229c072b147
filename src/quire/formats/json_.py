"""`json`: a window as one JSON object, every field of it, in a fixed order."""

from __future__ import annotations

import json

from quire.errors import FormatError
from quire.formats.context import Context, project, read, to_json
from quire.formats.text import well_formed
from quire.values import Json

__all__ = ["Context", "load", "parse", "project", "read", "render", "to_json"]


def render(value: Context) -> str:
    """The object, indented by two, and a newline."""
    return well_formed(json.dumps(to_json(value), ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def parse(text: str) -> Context:
    """The value of that object, however its JSON is laid out."""
    return read(load(well_formed(text)))


def load(
    text: str, name: str = "the text", hint: str = 'A window is one object: {"items": […], "max_items": 50}.'
) -> Json:
    """The JSON value of a text called `name`; a fault says where it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"{name} is not JSON: {error.msg}"
        raise FormatError(message, line=error.lineno, column=error.colno, hint=hint) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, a deep nest
        raise FormatError(f"{name} is not JSON that can be read: {error}", hint=hint) from error
