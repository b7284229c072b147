"""Who said it and how: the small reasons to prefer one turn of a dialogue to another.

Most need people talking to each other; in threads of user and assistant, logs of one speaker and records
they are silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from quire.recall.arrays import Bools, Floats, Ints
from quire.recall.columns import Column
from quire.recall.document import TOOL, Indexed, is_name
from quire.recall.fusion import Weights, standard
from quire.recall.question import Asked


class Manner:
    """One row a document: its speaker and its manner of speaking."""

    def __init__(self) -> None:
        # Speakers by number, how much each said that is still there, and what follows: who can be named.
        self._numbers: dict[str, int] = {}
        self._said = Column(np.int64)
        self._people: dict[str, int] | None = None
        self._speaker, self._named = Column(np.int32), Column(np.bool_)
        self._asks, self._person = Column(np.float32), Column(np.float32)
        self._times, self._names = Column(np.float32), Column(np.float32)
        self._size = Column(np.float32)
        self._returned = Column(np.bool_)

    def add(self, documents: Sequence[Indexed]) -> list[int]:
        """Note the speakers and manners of documents; returns the speakers' numbers."""
        speakers = [self._numbers.setdefault(one.speaker, len(self._numbers)) for one in documents]
        self._said.lengthen(len(self._numbers) - self._said.size)
        self._count(np.array(speakers, np.int64), 1)
        said = [document.speech for document in documents]
        self._speaker.extend(speakers)
        self._named.extend([is_name(document.speaker) for document in documents])
        self._returned.extend([document.speaker == TOOL for document in documents])
        self._asks.extend([one.asks for one in said])
        self._person.extend([one.person for one in said])
        self._times.extend([one.times for one in said])
        self._names.extend([one.names for one in said])
        self._size.extend(np.log1p([one.length for one in said]))
        return speakers

    def forget(self, row: int) -> None:
        """A row that is gone was said by nobody."""
        self._count(self._speaker.all[row : row + 1], -1)

    def _count(self, speakers: Ints, step: int) -> None:
        before = np.count_nonzero(self._said.all)
        np.add.at(self._said.all, speakers, step)
        if np.count_nonzero(self._said.all) != before:
            self._people = None

    def returned(self, rows: Ints) -> Bools:
        """Which rows were returned by tools, not said by anyone."""
        found: Bools = self._returned.all[rows]
        return found

    def people(self) -> dict[str, int]:
        """The words that name one speaker each; one that is in two people's names says nothing about who is meant."""
        if self._people is None:
            named = [
                (word, number)
                for speaker, number in self._numbers.items()
                if is_name(speaker) and self._said.all[number]
                for word in dict.fromkeys(speaker.lower().split())
            ]
            shared = Counter(word for word, _ in named)
            self._people = {word: number for word, number in named if shared[word] == 1}
        return self._people

    def speaker(self, asked: Asked, rows: Ints, weights: Weights) -> Floats:
        """Prefer turns of the one the query is about."""
        weight = weights.speaker if asked.sure else weights.likely_speaker
        weight *= weights.several if asked.several else 1.0
        meant = self._speaker.all[rows] == asked.subject
        return np.where(meant, np.float32(weight if asked.subject >= 0 else 0), np.float32(0))

    def manner(self, rows: Ints, dialogue: Floats, weights: Weights) -> Floats:
        """Prefer turns that tell, at some length and of the speaker, to those that ask or cheer; and what tools returned."""
        share = dialogue * self._named.all[rows]
        told = weights.asks * self._asks.all[rows] + weights.length * standard(self._size.all[rows])
        whom = weights.person * (self._person.all[rows] - np.float32(0.5))
        returned = weights.returned * self._returned.all[rows]
        return np.asarray(share * (told + whom) + returned, np.float32)

    def time(self, asked: Asked, rows: Ints, weights: Weights) -> Floats:
        """Prefer turns that speak of time when the query asks for one."""
        return np.asarray(self._times.all[rows] * np.float32(weights.time if asked.when else 0), np.float32)

    def name(self, asked: Asked, rows: Ints, weights: Weights) -> Floats:
        """Prefer turns that name something when the query asks for what has a name; what tools return always does."""
        told = self._names.all[rows] * ~self._returned.all[rows]
        return np.asarray(told * np.float32(weights.name if asked.name else 0), np.float32)
