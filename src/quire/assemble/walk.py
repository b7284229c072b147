"""Along a finished thread: every request that stands in it, as it was sent or as a policy would make it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from quire.assemble.assembly import Assembly
from quire.assemble.built import Built, Refused
from quire.assemble.policy import Policy
from quire.assemble.summary import Summarise, extract
from quire.errors import BudgetError
from quire.log.hashing import chain
from quire.values import Entry


def numbered(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries with ids and seqs, given where they are missing."""
    listed = list(entries)
    return iter(listed) if all(entry.id for entry in listed) else chain(listed)


def requests(
    entries: Iterable[Entry], policy: Policy | None = None, summarise: Summarise = extract
) -> Iterator[Built | Refused]:
    """One request at every point where the model spoke, each from everything before it.

    Those that the log marks as sent come as they were sent; for the others the policy decides.
    """
    assembly = Assembly(policy, summarise)
    for entry in numbered(entries):
        if assembly.asks(entry):
            yield ask(assembly, entry)
        assembly.feed(entry)


def ask(assembly: Assembly, entry: Entry) -> Built | Refused:
    """The request in front of this entry."""
    if entry.kind == "sent":
        return assembly.request_as_sent()
    try:
        built = assembly.request()
    except BudgetError as error:
        return Refused(assembly.turn, assembly.step + 1, str(error), error.hint)
    return msgspec.structs.replace(built, rebase=built.rebase or assembly.recorded)


def unsent(entries: Iterable[Entry]) -> list[Entry]:
    """The thread as if nothing had been sent or cut yet, to ask what another policy would do."""
    return [entry for entry in entries if entry.kind not in ("sent", "rebase")]
