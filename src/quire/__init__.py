"""Quire: a context engine. One append-only log in; byte-stable, provider-valid, cache-optimal requests out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError
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

if TYPE_CHECKING:
    from quire.assemble import Assembly, Policy, requests
    from quire.async_thread import AsyncThread
    from quire.items import Window
    from quire.providers import render
    from quire.providers.rules import validate
    from quire.thread import Thread, open_store
    from quire.tokens import count

__version__ = "0.1.0"

# Names that load their module when first used, so that `import quire` stays quick.
_LAZY = {
    "Assembly": "quire.assemble",
    "AsyncThread": "quire.async_thread",
    "Policy": "quire.assemble",
    "requests": "quire.assemble",
    "Thread": "quire.thread",
    "open_store": "quire.thread",
    "Window": "quire.items",
    "render": "quire.providers",
    "validate": "quire.providers.rules",
    "count": "quire.tokens",
}

__all__ = [
    "Assembly",
    "AsyncThread",
    "Entry",
    "Item",
    "Policy",
    "QuireError",
    "Reply",
    "Request",
    "Thread",
    "Usage",
    "Window",
    "__version__",
    "attach",
    "call",
    "count",
    "note",
    "open",
    "open_store",
    "render",
    "requests",
    "respond",
    "result",
    "system",
    "think",
    "tools",
    "user",
    "validate",
]


def open(path: str | Path, thread: str, policy: Policy | None = None) -> Thread:
    """A thread of the database at `path`, both made when they are not there yet; `with` closes it."""
    from quire.thread import Thread, open_store

    opened = Thread(open_store(path), thread, policy)
    opened.owns_store = True
    return opened


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
