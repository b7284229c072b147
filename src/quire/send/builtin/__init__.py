"""The tools that come with Quire: read, list and grep in one folder, calculate, recall. No shell."""

from __future__ import annotations

from pathlib import Path

from quire.send.builtin.arithmetic import calculate
from quire.send.builtin.files import file_tools
from quire.send.tools import Tool

__all__ = ["builtin", "calculate", "file_tools"]


def builtin(root: str | Path | None = None) -> list[Tool]:
    """The built-in tools; those for files only where a root folder is given."""
    return [*(file_tools(root) if root is not None else ()), calculate]
