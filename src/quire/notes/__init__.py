"""A vault: a folder of markdown notes as a source of context: attached by name, searched, watched."""

from quire.notes.index import NoteIndex, Passage
from quire.notes.note import Note
from quire.notes.vault import Vault

__all__ = ["Note", "NoteIndex", "Passage", "Vault"]
