"""Every error Quire raises, split by who must act.

QuireError
├── CallError        the caller passed something that cannot be right      (exit code 2)
│   └── NotFound     the thread, entry, item or record named does not exist (exit code 1)
├── DataError        what was given to read is malformed                   (exit code 1)
│   ├── FormatError  a text or file does not parse; says where
│   ├── DamageError  stored data fails verification; names the first bad entry
│   └── RuleError    a request breaks its provider's rules
├── ConflictError    someone else wrote first; says what is there now      (exit code 1, retryable)
├── BudgetError      what may not be cut does not fit                      (exit code 1)
├── MissingPart      an optional part is not installed; names the extra    (exit code 2)
├── VersionError     a file was written by a newer Quire                   (exit code 1)
└── ProviderError    the model's side failed                               (exit code 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class QuireError(Exception):
    """Base of all; `hint` is the next step for whoever must act."""

    hint = ""
    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class CallError(QuireError):
    exit_code = 2


class NotFound(CallError):
    exit_code = 1


class DataError(QuireError):
    pass


class FormatError(DataError):
    """Malformed input; `line` and `column` count from 1, 0 where unknown."""

    def __init__(self, message: str, *, line: int = 0, column: int = 0, hint: str = "") -> None:
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(where + message, hint=hint)
        self.line = line
        self.column = column


class DamageError(DataError):
    """Verification failed; `seq` is the first bad entry of `thread`."""

    hint = "Nothing was changed. Restore the file from a backup, or export the entries before this one."

    def __init__(self, message: str, *, thread: str = "", seq: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.thread = thread
        self.seq = seq


class RuleError(DataError):
    pass


class ConflictError(QuireError):
    retryable = True
    hint = "Read the new entries, then append again with the new expected_seq."


class BudgetError(QuireError):
    hint = "Raise the budget, unpin something, or attach less; pinned parts are never cut."


class MissingPart(QuireError, ImportError):
    exit_code = 2


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Turn an ImportError into a MissingPart that says `what` is missing and which extra installs it."""
    try:
        yield
    except ImportError as error:
        raise MissingPart(what, hint=f"pip install 'quire[{extra}]'") from error


class VersionError(QuireError):
    hint = "Upgrade Quire to open this file."


class ProviderError(QuireError):
    """The provider refused or failed; `status` is its HTTP status, 0 when there was none.

    `retry_after_s` is how long it asked to wait, None when it did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        retryable: bool = False,
        hint: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s


# The name that was probably meant, for hints; a name that is far off is not suggested.

# Two letters exchanged in a short name (lgo, log) still pass; nope and openai do not.
_NEAR = 0.66


def nearest(name: str, names: Iterable[str]) -> str:
    """The most similar of these names, or "" if none is similar."""
    return next(iter(get_close_matches(name, list(names), 1, _NEAR)), "")
