"""The command line: a thin layer over everything else."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_usual = sys.excepthook


def _end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C while the command is still being loaded is no fault to trace."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
    else:
        _usual(kind, error, trace)


sys.excepthook = _end_quietly
