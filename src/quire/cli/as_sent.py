"""A thread as it was sent: each request under the policy that its own `sent` entry keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from quire.assemble import Assembly, Built, Policy, Refused, ask
from quire.engine import policy_of
from quire.errors import CallError
from quire.log.hashing import canonical
from quire.values import Entry, JsonObject

# What one policy makes of a `sent` entry's body.
Read = Callable[[JsonObject], Policy]


def is_request(entry: Entry) -> bool:
    """Whether the entry says that a request was made in the conversation, not beside it."""
    return entry.kind == "sent" and not entry.meta.get("aside")


def policies(entries: Sequence[Entry], usual: Policy, read: Read = policy_of) -> list[Policy]:
    """For each entry, the policy in force: that of the next request sent, behind the last one that of the last."""
    known: dict[bytes, Policy] = {}
    sent = [_once(entry, known, read) if is_request(entry) else None for entry in entries]
    now = next((policy for policy in reversed(sent) if policy is not None), usual)
    backwards = []
    for policy in reversed(sent):
        now = policy or now
        backwards.append(now)
    return backwards[::-1]


def _once(sent: Entry, known: dict[bytes, Policy], read: Read) -> Policy:
    """The policy of a `sent` entry; a thread names few, and many times."""
    key = canonical([sent.body["provider"], sent.body["model"], sent.meta.get("policy")])
    if key not in known:
        known[key] = _of(sent.body, read)
    return known[key]


def _of(sent: JsonObject, read: Read) -> Policy:
    try:
        return read(sent)
    except CallError:
        # A provider that is not known here, in a log from elsewhere: its requests are shown all the same.
        return msgspec.structs.replace(read({**sent, "provider": "openai-chat", "model": ""}), model="")


class Folds:
    """One assembly for each policy that a thread was sent under, all fed the same entries."""

    def __init__(self, under: Sequence[Policy]) -> None:
        self._all: list[Assembly] = []
        for policy in under:
            if not any(one.policy == policy for one in self._all):
                self._all.append(Assembly(policy))

    def under(self, policy: Policy) -> Assembly:
        return next(one for one in self._all if one.policy == policy)

    def feed(self, entry: Entry) -> None:
        for one in self._all:
            one.feed(entry)


def requests_under(
    entries: Sequence[Entry], under: Sequence[Policy]
) -> Iterator[tuple[Built | Refused, Policy]]:
    """The requests of a thread, each as the policy in force there makes it."""
    folds = Folds(under)
    for entry, policy in zip(entries, under, strict=True):
        assembly = folds.under(policy)
        if assembly.asks(entry):
            yield ask(assembly, entry), policy
        folds.feed(entry)
