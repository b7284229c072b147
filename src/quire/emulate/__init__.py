"""A strict local stand-in for a provider: its rules, its cache, its usage fields, scripted replies, faults."""

from quire.emulate.script import Cut, Refuse, Replies, Reply, Slow
from quire.emulate.server import Emulator

__all__ = ["Cut", "Emulator", "Refuse", "Replies", "Reply", "Slow"]
