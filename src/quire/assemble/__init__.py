"""From a log to a prompt that fits: selection, library and references, layers, budget, rebase. Pure."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.assemble.fit import Built, Refused, reused_tokens
    from quire.assemble.hindsight import ask, requests, unsent
    from quire.assemble.policy import DROP_ONLY, Policy
    from quire.assemble.state import Assembly, Selection

__all__ = [
    "DROP_ONLY", "Assembly", "Built", "Policy", "Refused", "Selection", "ask", "requests", "reused_tokens",
    "unsent",
]  # fmt: skip

# Where each name stands; loaded when it is first used, so that whoever only needs a policy does not wait for all.
_HOMES = {
    "fit": ("Built", "Refused", "reused_tokens"),
    "hindsight": ("ask", "requests", "unsent"),
    "policy": ("DROP_ONLY", "Policy"),
    "state": ("Assembly", "Selection"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"quire.assemble.{home}"), name)
    raise AttributeError(f"module 'quire.assemble' has no attribute {name!r}")
