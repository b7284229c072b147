"""Where a thread stands between asking and answering, as one value that every entry moves on."""

from __future__ import annotations

from enum import Enum

import msgspec

from quire.values import SPOKEN, Entry

_to = msgspec.structs.replace
# What a caller tells the model between its turns.
_TOLD = frozenset({"note", "system", "tools", "attach"})


class Stage(Enum):
    """How far the request at hand has come."""

    ASKED = "nothing was sent for it yet"
    SENT = "it was sent, and its stream has brought nothing"
    SENT_THEN_TOLD = "the same, but more was told since: sent once more, it would be another request"
    STREAMING = "the words of its answer are coming in"
    INTERRUPTED = "its stream is open, and something else was recorded behind the words that came"
    ANSWERED = "what its answer used is known, its words follow"
    ANSWERING = "the words of an answer that was reported before they came"
    SPEAKING = "the words of an answer that no entry has reported"


S = Stage
_SENT = frozenset({S.SENT, S.SENT_THEN_TOLD, S.ANSWERED})
_STREAMING = frozenset({S.SENT, S.SENT_THEN_TOLD, S.STREAMING, S.INTERRUPTED})
_SPEAKING = frozenset({S.STREAMING, S.ANSWERING, S.SPEAKING})

# What each thing that happens makes of a stage; one that is not named stays.
_SPOKE = {
    S.ASKED: S.SPEAKING,
    S.SENT: S.STREAMING,
    S.SENT_THEN_TOLD: S.STREAMING,
    S.INTERRUPTED: S.STREAMING,
    S.ANSWERED: S.ANSWERING,
}
_ENDED = {S.ANSWERING: S.ASKED, S.SPEAKING: S.ASKED}
# Who goes on speaking to the model has its answer: a stream that broke off is sent again at once, and what is told
# behind an answer without words is for a request of its own.
_MORE_TOLD = {**_ENDED, S.SENT: S.SENT_THEN_TOLD, S.STREAMING: S.ASKED, S.ANSWERED: S.ASKED}
_SOMETHING_ELSE = {**_ENDED, S.STREAMING: S.INTERRUPTED}
_STREAM_BEGAN = {S.ASKED: S.INTERRUPTED, S.ANSWERED: S.SENT}
_REPORTED = {S.SENT: S.ANSWERED, S.SENT_THEN_TOLD: S.ANSWERED, S.INTERRUPTED: S.ASKED}
_AGAIN = {S.SENT_THEN_TOLD: S.ASKED, S.STREAMING: S.SENT, S.INTERRUPTED: S.SENT}


class Round(msgspec.Struct, frozen=True):
    """One round: the user or a tool has spoken, a request is decided and sent, the model answers."""

    stage: Stage = Stage.ASKED
    # The log holds what was decided for the request at hand.
    decided: bool = False

    @property
    def sent(self) -> bool:
        """Whether the request at hand was sent: its answer, when it comes, asks for no other."""
        return self.stage in _SENT

    @property
    def streaming(self) -> bool:
        """Whether the answer is being streamed and has not ended."""
        return self.stage in _STREAMING

    @property
    def speaking(self) -> bool:
        """Whether the model's words go on."""
        return self.stage in _SPEAKING

    def asks(self, entry: Entry, beside: bool) -> bool:
        """Whether a request stands in front of this entry: it was sent here, or the model begins to speak.

        `beside`: a call made beside the user's words, to give them context.
        """
        if entry.kind == "sent":
            return not entry.meta.get("aside") and self._sends("usage" not in entry.body)
        return entry.kind in SPOKEN and not (beside or self.sent or self.speaking)

    def _sends(self, begins: bool) -> bool:
        """Whether a `sent` entry is of a request of its own: not the end of a stream, nor the report of an answer.

        A stream that begins while one is open is the same request once more, unless more was told since.
        """
        if self.stage is S.SENT_THEN_TOLD:
            return begins
        return self.stage in (S.ASKED, S.ANSWERED, S.ANSWERING)

    def after(self, entry: Entry, beside: bool) -> Round:
        """An entry has come: what is not the model's ends its words, the user's and a tool's begin a round."""
        if entry.kind in ("user", "result"):
            return Round(decided=self.decided)
        if entry.kind in SPOKEN and not beside:
            return self
        return self._moved(_MORE_TOLD if entry.kind in _TOLD else _SOMETHING_ELSE)

    def spoke(self) -> Round:
        return self._moved(_SPOKE)

    def passed(self, sent: bool = False) -> Round:
        """The request goes by; what was decided for it is used up."""
        stage = S.SENT if sent else S.INTERRUPTED if self.streaming else S.ASKED
        return Round(stage)

    def recorded(self) -> Round:
        return _to(self, decided=True)

    def streams(self, going_on: bool) -> Round:
        """A `sent` entry opens the answer's stream, or reports what the answer used."""
        return self._moved(_STREAM_BEGAN if going_on else _REPORTED)

    def again(self) -> Round:
        """Asked while an answer is streamed, its request would be sent again; with more told, it is another."""
        return self._moved(_AGAIN)

    def _moved(self, table: dict[Stage, Stage]) -> Round:
        return _to(self, stage=table.get(self.stage, self.stage))
