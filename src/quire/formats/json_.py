"""`json`: a window as one JSON object, every field of it, in a fixed order."""

from __future__ import annotations

import json

from quire.errors import FormatError
from quire.formats.context import Context, project, read, to_json
from quire.formats.text import well_formed

__all__ = ["Context", "parse", "project", "read", "render", "to_json"]


def render(value: Context) -> str:
    """The object, indented by two, and a newline."""
    return well_formed(json.dumps(to_json(value), ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def parse(text: str) -> Context:
    """The value of that object, however its JSON is laid out."""
    try:
        return read(json.loads(well_formed(text)))
    except json.JSONDecodeError as error:
        hint = 'A window is one object: {"items": […], "max_items": 50}.'
        raise FormatError(
            f"not JSON: {error.msg}", line=error.lineno, column=error.colno, hint=hint
        ) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, a deep nest
        raise FormatError(f"not JSON that can be read: {error}") from error
