"""Quire: a context engine. One append-only log in; byte-stable, provider-valid, cache-optimal requests out."""

from __future__ import annotations

# Nothing is imported here, not even `typing`: until `quire.cli` is reached, Ctrl-C would be a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from quire.assemble import Assembly, Policy, requests
    from quire.async_thread import AsyncThread
    from quire.errors import QuireError
    from quire.fitting import Fitter, fit
    from quire.items import Window
    from quire.providers import render
    from quire.providers.rules import validate
    from quire.thread import Thread, open_store
    from quire.tokens import count
    from quire.values import (
        Entry,
        Item,
        Reply,
        Request,
        Usage,
        attach,
        call,
        note,
        respond,
        result,
        system,
        think,
        tools,
        user,
    )

__version__ = "0.1.0"

# Where each public name stands; its module is loaded when it is first used, so that `import quire` is quick.
_HOMES = {
    "quire.assemble": ("Assembly", "Policy", "requests"),
    "quire.async_thread": ("AsyncThread",),
    "quire.errors": ("QuireError",),
    "quire.fitting": ("Fitter", "fit"),
    "quire.items": ("Window",),
    "quire.providers": ("render",),
    "quire.providers.rules": ("validate",),
    "quire.thread": ("Thread", "open_store"),
    "quire.tokens": ("count",),
    "quire.values": (
        "Entry", "Item", "Reply", "Request", "Usage",
        "attach", "call", "note", "respond", "result", "system", "think", "tools", "user",
    ),
}  # fmt: skip
_LAZY = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Assembly", "AsyncThread", "Entry", "Fitter", "Item", "Policy", "QuireError", "Reply", "Request",
    "Thread", "Usage", "Window", "__version__", "attach", "call", "connect", "count", "fit", "note", "open",
    "open_store", "render", "requests", "respond", "result", "system", "think", "tools", "user", "validate",
]  # fmt: skip


def open(path: str | Path, thread: str, policy: Policy | None = None) -> Thread:
    """A thread of the database at `path`, both made when they are not there yet; `with` closes it.

    Without a `policy` it goes on under the one it was last sent under, else its budget is the model's window.
    """
    from quire.thread import Thread, open_store

    opened = Thread(open_store(path), thread, policy)
    opened.owns_store = True
    return opened


def connect(url: str, thread: str, policy: Policy | None = None, *, key: str = "") -> Thread:
    """A thread of the service at `url` (`quire serve`): the same vocabulary as of one in a file; `with` closes it.

    `key` is the service's own, `policy` as in `open`.
    """
    from quire.server.remote_store import HttpStore
    from quire.thread import Thread

    store: Any = HttpStore(url, key)
    opened = Thread(store, thread, policy)
    opened.owns_store = True
    return opened


if not TYPE_CHECKING:  # a checker that saw it would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'quire' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
