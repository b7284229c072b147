"""Threads as chat files, markdown that people read and edit; and sessions and logs of other programs as threads."""

from quire.archive.chat_file import AttachedNames, Chat, ChatMessage, parse, render
from quire.archive.load import (
    Fork,
    Loaded,
    Notes,
    Saved,
    attached_texts,
    autosave,
    edited_file,
    export_markdown,
    file_name,
    load,
    project,
    read_back,
    set_aside,
)

__all__ = [
    "AttachedNames", "Chat", "ChatMessage", "Fork", "Loaded", "Notes", "Saved", "attached_texts", "autosave",
    "edited_file", "export_markdown", "file_name", "load", "parse", "project", "read_back", "render",
    "set_aside",
]  # fmt: skip
