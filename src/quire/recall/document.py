"""What can be searched, and what is found."""

from __future__ import annotations

import msgspec

from quire.recall.speech import Speech, speech
from quire.recall.words import content

# The speaker of what tools return.
TOOL = "tool"
# What a text means and how it is said shows in so many of its first characters; words are searched in all of it.
_BEGINNING = 20_000
# Speakers that are parts to play, not people a query would name.
_PARTS = "user assistant tool system human ai model bot agent note record"
ROLES = frozenset(_PARTS.split())


def is_name(speaker: str) -> bool:
    """Whether a speaker is a person with a name, not a role."""
    return speaker != "" and speaker.lower() not in ROLES


class Document(msgspec.Struct, frozen=True):
    """A text to be found, and what is known around it.

    `extra` holds words that belong to it without being said (a title, tags, a caption); `date` says when in
    words ("8 May 2023"). Documents of one session stand beside each other in the order they were added.
    """

    id: str
    text: str
    extra: str = ""
    speaker: str = ""
    session: str = ""
    date: str = ""

    @property
    def meaning(self) -> str:
        """The text whose meaning is compared."""
        text = f"{self.text} [{self.extra}]" if self.extra else self.text
        return text[:_BEGINNING]


class Found(msgspec.Struct, frozen=True):
    """A document's place in an answer: `score` is the sum of `parts`."""

    id: str
    score: float
    parts: dict[str, float]


class Indexed(msgspec.Struct, frozen=True):
    """A document reduced to what searching needs; can be stored and loaded without its text."""

    id: str
    words: str
    speaker: str
    session: str
    speech: Speech
    # Empty once the meaning is known from elsewhere.
    meaning: str = ""


def indexed(document: Document) -> Indexed:
    """The searched words (of a named speaker, text, extra and date, in a row) and manner of a document."""
    name = document.speaker if is_name(document.speaker) else ""
    parts = (name, document.text, document.extra, document.date)
    return Indexed(
        document.id,
        " ".join(content("\n".join(parts))),
        document.speaker,
        document.session,
        speech(document.text[:_BEGINNING]),
        document.meaning,
    )
