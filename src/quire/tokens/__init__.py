"""Token counts: a counter per vocabulary, the budget's count, incremental ledgers, calibration."""

from quire.tokens.counting import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    Ledger,
    entry_tokens,
    message_tokens,
    text_tokens,
    tools_tokens,
)
from quire.tokens.vocabularies import (
    Calibration,
    Calibrations,
    Counter,
    VocabularyCounter,
    count,
    counter,
    uncalibrated,
    vocabulary_for,
)

__all__ = [
    "IMAGE_TOKENS",
    "MESSAGE_TOKENS",
    "Calibration",
    "Calibrations",
    "Counter",
    "Ledger",
    "VocabularyCounter",
    "count",
    "counter",
    "entry_tokens",
    "message_tokens",
    "text_tokens",
    "tools_tokens",
    "uncalibrated",
    "vocabulary_for",
]
