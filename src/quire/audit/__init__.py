"""What recorded requests lost of the provider's cache, and why: read them, put them into conversations, explain each loss."""

from quire.archive.stored_conversations import SentCall, call_of, is_body
from quire.audit.causes import Verdict
from quire.audit.conversations import AuditReport, Grouping, WatchedConversation, audit, file_parts, read_calls
from quire.audit.what_if import POLICIES, PolicyOutcome, what_if

__all__ = [
    "POLICIES", "AuditReport", "Grouping", "PolicyOutcome", "SentCall", "Verdict", "WatchedConversation",
    "audit", "call_of", "file_parts", "is_body", "read_calls", "what_if",
]  # fmt: skip
