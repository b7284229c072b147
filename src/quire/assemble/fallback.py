"""Anybody's summariser, held to its contract: what is no summary never replaces history, and the record says why."""

from __future__ import annotations

import inspect

from quire.assemble.summary import Gone, Summarise, extract
from quire.tokens import counter

# A model counts words, not tokens: a summary a little too long is not worth another rung.
_OVER = 1.25


def summed_up(gone: Gone, summarise: Summarise) -> tuple[str, list[str]]:
    """The summary of what leaves, by the summariser, else by the built-in one, else none; and what went wrong."""
    fallbacks: list[str] = []
    for one in dict.fromkeys((summarise, extract)):
        text, wrong = _asked(one, gone)
        if not wrong:
            return text, fallbacks
        fallbacks.append(wrong)
    return "", fallbacks


def _asked(summarise: Summarise, gone: Gone) -> tuple[str, str]:
    """What a summariser says, or why it cannot be used."""
    try:
        given: object = summarise(gone)
    except Exception as error:  # a summariser is anybody's code, and asks over a network
        return "", f"summary failed: {str(error) or type(error).__name__}"
    if inspect.isawaitable(given):
        if inspect.iscoroutine(given):
            given.close()
        return "", "summary failed: returned a coroutine; pass a plain function"
    if given is not None and not isinstance(given, str):
        return "", f"summary was no text but {type(given).__name__}"
    return _checked((given or "").strip(), gone.limit)


def _checked(text: str, limit: int) -> tuple[str, str]:
    if not text:
        return "", "summary was empty"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return "", f"summary was no valid text: {error.reason}"
    return ("", "summary was longer than allowed") if counter().count(text) > limit * _OVER else (text, "")
