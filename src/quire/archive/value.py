"""What a chat file shows: front matter, messages with their context and time, and the comment."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.formats.text import Marks
from quire.values import JsonObject

Role = Literal["user", "ai"]

COMMENT = "<!-- quire: "
COMMENT_END = " -->"
# A line of text that begins like one of these gets a backslash in front.
MARKS = Marks(["**user**:", "**ai**:", "[Context:", "[Timestamp:", "<!-- quire:", "<!-- copilot-context:"])


class Context(msgspec.Struct, frozen=True):
    """What was attached to a message, by name."""

    notes: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.notes or self.urls or self.tags or self.folders)


class Message(msgspec.Struct, frozen=True):
    """One message; `at` is Unix milliseconds of a whole second."""

    role: Role
    text: str
    context: Context = Context()
    at: int | None = None


class Chat(msgspec.Struct, frozen=True):
    """A whole chat file; `comment` is the JSON object that holds the entries."""

    created: str = ""
    model: str = ""
    topic: str = ""
    tags: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    comment: JsonObject | None = None
