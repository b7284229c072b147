"""What recorded requests lost of the provider's cache, and why: read them, put them into conversations, explain each loss."""

from quire.audit.causes import Verdict, verdict
from quire.audit.conversations import Conversation, conversations
from quire.audit.read import SentCall, read_calls
from quire.audit.report import Report, audit

__all__ = ["Conversation", "Report", "SentCall", "Verdict", "audit", "conversations", "read_calls", "verdict"]
