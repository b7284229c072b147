"""What recorded requests lost of the provider's cache, and why: read them, put them into conversations, explain each loss."""

from quire.audit.causes import Verdict
from quire.audit.conversations import Conversation, Grouping
from quire.audit.read import SentCall, call_of, read_calls
from quire.audit.report import Report, audit

__all__ = ["Conversation", "Grouping", "Report", "SentCall", "Verdict", "audit", "call_of", "read_calls"]
