"""Token counts: a counter per vocabulary, the budget's count, incremental ledgers, calibration."""

from quire.tokens.calibration import Calibration, Calibrations, uncalibrated
from quire.tokens.counting import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    Ledger,
    entry_tokens,
    message_tokens,
    text_tokens,
    tools_tokens,
)
from quire.tokens.vocabularies import Counter, VocabularyCounter, count, counter, vocabulary_for

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
