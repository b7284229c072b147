"""Token counts: a counter per vocabulary, the budget's count, incremental ledgers, calibration."""

from quire.tokens.budget import MESSAGE_TOKENS, message_tokens, text_tokens, tools_tokens
from quire.tokens.counting import Counter, count, counter

__all__ = ["MESSAGE_TOKENS", "Counter", "count", "counter", "message_tokens", "text_tokens", "tools_tokens"]
