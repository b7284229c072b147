"""The tools that come with Quire: read, list and grep in one folder, calculate, recall. No shell."""

from __future__ import annotations

from pathlib import Path

from quire.log.sqlite import SqliteStore
from quire.send.builtin.arithmetic import calculate
from quire.send.builtin.files import file_tools
from quire.send.tools import Tool

__all__ = ["builtin", "calculate", "file_tools"]


def builtin(root: str | Path | None = None, store: SqliteStore | None = None, thread: str = "") -> list[Tool]:
    """The built-in tools; those for files where a root folder is given, recall where a thread is."""
    tools = [*(file_tools(root) if root is not None else ()), calculate]
    if store is not None and thread:
        from quire.send.builtin.memory import recall_tool

        tools.append(recall_tool(store, thread))
    return tools
