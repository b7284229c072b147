"""Threads as chat files: markdown that people read and edit, with the entries in a comment at its end."""

from quire.archive.autosave import Saved, autosave, file_name
from quire.archive.load import Loaded, Notes, load
from quire.archive.parse import parse
from quire.archive.project import export_markdown, project
from quire.archive.render import render
from quire.archive.value import Chat, Context, Message

__all__ = [
    "Chat",
    "Context",
    "Loaded",
    "Message",
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
