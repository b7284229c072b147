"""The command line: a thin layer over everything else."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_usual = sys.excepthook


def _end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C while the command is still being loaded is no fault to trace; until Python 3.12 a class may wrap it."""
    if KeyboardInterrupt in (kind, type(error.__cause__)):
        sys.stderr.write("stopped\n")
    else:
        _usual(kind, error, trace)


sys.excepthook = _end_quietly
