"""From a log to a prompt that fits: selection, library and references, layers, budget, rebase. Pure."""

from quire.assemble.fit import Built, Refused, reused_tokens
from quire.assemble.hindsight import ask, requests, unsent
from quire.assemble.policy import DROP_ONLY, Policy
from quire.assemble.state import Assembly, Selection, fit

__all__ = [
    "DROP_ONLY",
    "Assembly",
    "Built",
    "Policy",
    "Refused",
    "Selection",
    "ask",
    "fit",
    "requests",
    "reused_tokens",
    "unsent",
]
