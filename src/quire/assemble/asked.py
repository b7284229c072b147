"""What is known of the models that a thread asked: which was last, when, and how each of them counts."""

from __future__ import annotations

import msgspec

from quire.assemble.policy import Policy
from quire.tokens import Calibration, Calibrations
from quire.values import Entry

_to = msgspec.structs.replace


class Asked(msgspec.Struct, frozen=True):
    """One value that every entry moves on; times are those of the entries."""

    # What each model reported: one that counts otherwise says nothing about the others.
    calibrations: Calibrations = Calibrations()
    model: str = ""
    # Our own count of the newest request.
    estimate: int = 0
    now: int | None = None
    last: int | None = None

    def at(self, entry: Entry) -> Asked:
        return _to(self, now=entry.at) if entry.at is not None else self

    def passed(self, estimate: int) -> Asked:
        """A request of so many of our tokens goes by."""
        return _to(self, estimate=estimate, last=self.now)

    def reported(self, sent: Entry) -> Asked:
        """What the provider counted of the newest request corrects our own count."""
        usage = sent.body.get("usage")
        total = usage.get("input_total") if isinstance(usage, dict) else None
        model, known = f"{sent.body.get('provider')}:{sent.body.get('model')}", self.calibrations
        if total and self.estimate:
            known = known.observe(model, self.estimate, total)
        return _to(self, model=model, calibrations=known)

    def calibration(self, policy: Policy) -> Calibration:
        """How the policy's model counts; where it names none, the one that was asked last."""
        if policy.model:
            return self.calibrations.of(policy.model)
        return self.calibrations.by_model.get(self.model) or Calibration()

    def is_cold(self, policy: Policy) -> bool:
        """Whether a cache that was filled holds nothing any more: after a pause, for another model."""
        if self.model and policy.model not in ("", self.model):
            return True
        if policy.ttl_s is None or self.now is None or self.last is None:
            return False
        return self.now - self.last > policy.ttl_s * 1000
