"""Threads as chat files, markdown that people read and edit; and sessions and logs of other programs as threads."""

from quire.archive.chat_file import AttachedNames, Chat, ChatMessage, parse, render
from quire.archive.load import Loaded, Notes, Saved, autosave, export_markdown, file_name, load, project

__all__ = [
    "AttachedNames",
    "Chat",
    "ChatMessage",
    "Loaded",
    "Notes",
    "Saved",
    "autosave",
    "export_markdown",
    "file_name",
    "load",
    "parse",
    "project",
    "render",
]
