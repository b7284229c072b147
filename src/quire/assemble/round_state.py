"""Where a thread stands between asking and answering, as one value that every entry moves on."""

from __future__ import annotations

import msgspec

from quire.values import SPOKEN, Entry

_to = msgspec.structs.replace
# What a caller tells the model between its turns.
_TOLD = frozenset({"note", "system", "tools", "attach"})


class Round(msgspec.Struct, frozen=True):
    """One round: the user or a tool has spoken, a request is decided and sent, the model answers."""

    # The model's words go on.
    speaking: bool = False
    # The request at hand was sent: its answer, when it comes, asks for no other.
    sent: bool = False
    # The answer is being streamed and has not ended.
    streaming: bool = False
    # The log holds what was decided for the request at hand.
    decided: bool = False
    # What the answer used is known: another report behind it is of another request.
    reported: bool = False
    # More was told since the request at hand was sent: sent once more, it is another.
    told: bool = False

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
        if self.streaming:
            return begins and self.told
        return self.reported or not self.speaking

    def after(self, entry: Entry, beside: bool) -> Round:
        """An entry has come: what is not the model's ends its words, the user's and a tool's begin a round."""
        if entry.kind in ("user", "result"):
            return Round(decided=self.decided)
        if entry.kind in SPOKEN and not beside:
            return self
        # Who goes on speaking to the model has its answer: a stream that broke off is sent again at once.
        told = entry.kind in _TOLD
        ended = self.speaking and told
        # What is told behind an answer without words is for a request of its own.
        sent = self.sent and (self.streaming or not told)
        return _to(
            self,
            speaking=False,
            sent=sent,
            streaming=self.streaming and not ended,
            told=self.told or (told and sent),
        )

    def spoke(self) -> Round:
        return _to(self, speaking=True, sent=False, told=False)

    def passed(self, sent: bool = False) -> Round:
        """The request goes by; what was decided for it is used up."""
        return _to(self, sent=sent, decided=False, reported=False, told=False)

    def recorded(self) -> Round:
        return _to(self, decided=True)

    def streams(self, going_on: bool) -> Round:
        return _to(self, streaming=going_on, reported=not going_on)

    def again(self) -> Round:
        """Asked while an answer is streamed, its request would be sent again; with more told, it is another."""
        return _to(self, sent=not self.told) if self.streaming else self
