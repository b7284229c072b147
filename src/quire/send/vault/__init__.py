"""A vault: a folder of markdown notes as a source of context: attached by name, searched, watched."""

from quire.send.vault.index import NoteIndex, Passage
from quire.send.vault.note import Note
from quire.send.vault.vault import Vault

__all__ = ["Note", "NoteIndex", "Passage", "Vault"]
