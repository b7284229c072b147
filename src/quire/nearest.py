"""The name that was probably meant, for hints; a name that is far off is not suggested."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Two letters exchanged in a short name (lgo, log) still pass; nope and openai do not.
_NEAR = 0.66


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like this one, or "" where none is like it."""
    return next(iter(get_close_matches(name, list(known), 1, _NEAR)), "")
