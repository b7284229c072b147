"""`replay`: a thread in the event protocol, past and current cycle, so that a model can continue it."""

from quire.formats.replay.parse import parse
from quire.formats.replay.project import project, read, to_entries, to_json
from quire.formats.replay.render import call_json, render, render_event
from quire.formats.replay.value import Delimiter, Event, Exchange, Replay, Respond, Think, User

__all__ = [
    "Delimiter",
    "Event",
    "Exchange",
    "Replay",
    "Respond",
    "Think",
    "User",
    "call_json",
    "parse",
    "project",
    "read",
    "render",
    "render_event",
    "to_entries",
    "to_json",
]
