"""A cut on request: older turns leave now, although the budget does not ask for it; the model summarises them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quire.assemble import Assembly, rebase
from quire.assemble.plan import RUNGS
from quire.assemble.summary import Summarise
from quire.assemble.write import written
from quire.engine import Thread, policy_for
from quire.send.runner import Turn
from quire.send.summarise import ByModel
from quire.values import Entry, JsonObject

# What stays verbatim is at most this part of what stands now.
_KEEP = 0.5


class Cut(msgspec.Struct, frozen=True):
    """A rebase, the tokens of a request before and after it, and by whom what left is summarised."""

    record: JsonObject
    before: int
    after: int
    by: str = ""

    @property
    def frees(self) -> bool:
        return bool(self.record["edits"]) and self.after < self.before

    def told(self) -> str:
        """One line for people."""
        sizes = f"{self.before:,} tokens before, {self.after:,} after"
        return f"{sizes}; {self.by}" if self.by else sizes


async def compact(thread: Thread, turn: Turn, say: Callable[[str], None] | None) -> Cut | None:
    """Record a rebase that frees about half of the thread; None where nothing can go.

    `say` hears that the model is being asked for the summary; without it the built-in one is made.
    """
    by_model = ByModel(thread.summarise)
    cut = planned(thread, turn.target, by_model)
    if not cut.frees:
        return None
    if say is not None and by_model.wanted is not None:
        say(f"{turn.target} summarises what leaves …")
        cut = await _by_model(thread, turn, by_model, cut)
    thread.append(Entry("rebase", {**cut.record, "freed": cut.before - cut.after, "at": thread.clock()}))
    return cut


async def _by_model(thread: Thread, turn: Turn, by_model: ByModel, built_in: Cut) -> Cut:
    """The same cut with the model's summary, or with the built-in one and the reason for it."""
    assert by_model.wanted is not None  # the caller asked
    why = await by_model.ask(turn, by_model.wanted)
    cut = planned(thread, turn.target, by_model)
    if not why and cut.frees:
        return msgspec.structs.replace(cut, by=f"summarised by {turn.target}")
    return _instead(built_in, why or "summary was longer than what it stands for")


def planned(thread: Thread, target: str, summarise: Summarise) -> Cut:
    """The cut that would be made now; nothing is recorded."""
    policy = policy_for(target, thread.policy)
    assembly = Assembly(policy, thread.summarise).extend(thread.store.read(thread.name)).ahead()
    before = assembly.epoch.total_tokens()
    # The rule cuts to a share of the budget: as if the budget were what stands now.
    assembly.policy = msgspec.structs.replace(policy, budget=max(1, int(before * _KEEP * 2)), reply=0)
    assembly.summarise = summarise
    record = written(assembly, "asked", RUNGS[0])
    after = rebase.apply(assembly.epoch, record, assembly.policy, assembly.carried)
    return Cut(record, before, after.total_tokens())


def _instead(cut: Cut, why: str) -> Cut:
    """The cut with the built-in summary, and written beside it why no model made one."""
    meta = cut.record.get("meta", {})
    record = {**cut.record, "meta": {**meta, "fallbacks": [why, *meta.get("fallbacks", [])]}}
    return msgspec.structs.replace(cut, record=record, by=f"the built-in summary stands in ({why})")
