"""A cut on request: older turns leave now, although the budget does not ask for it."""

from __future__ import annotations

import msgspec

from quire.assemble import Assembly, rebase
from quire.assemble.rebase import RUNGS
from quire.assemble.write import written
from quire.engine import Thread, policy_for
from quire.values import Entry

# What stays verbatim is at most this part of what stands now.
_KEEP = 0.5


def compact(thread: Thread, target: str) -> int:
    """Record a rebase that frees about half of the thread; returns the tokens freed, 0 where nothing can go."""
    policy = policy_for(target, thread.policy)
    assembly = Assembly(policy, thread.summarise).extend(thread.store.read(thread.name)).ahead()
    before = assembly.epoch.total_tokens()
    # The rule cuts to a share of the budget: as if the budget were what stands now.
    assembly.policy = msgspec.structs.replace(policy, budget=max(1, int(before * _KEEP * 2)), reply=0)
    record = written(assembly, "asked", RUNGS[0])
    after = rebase.apply(assembly.epoch, record, assembly.policy, assembly.carried)
    freed = before - after.total_tokens()
    if not record["edits"] or freed <= 0:
        return 0
    thread.append(Entry("rebase", {**record, "freed": freed, "at": thread.clock()}))
    return freed
