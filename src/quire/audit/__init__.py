"""What recorded requests lost of the provider's cache, and why: read them, put them into conversations, explain each loss."""

from quire.audit.causes import Verdict
from quire.audit.conversations import Grouping, WatchedConversation
from quire.audit.read import SentCall, call_of, read_calls
from quire.audit.report import AuditReport, audit
from quire.audit.what_if import POLICIES, PolicyOutcome, what_if

__all__ = [
    "POLICIES",
    "AuditReport",
    "Grouping",
    "PolicyOutcome",
    "SentCall",
    "Verdict",
    "WatchedConversation",
    "audit",
    "call_of",
    "read_calls",
    "what_if",
]
