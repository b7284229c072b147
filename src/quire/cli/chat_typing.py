"""What a person types while an answer is drawn: it waits for the prompt, and is not written into the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable

if sys.platform != "win32":
    import termios


def hide_typing() -> Callable[[], None]:
    """Have the terminal show nothing that is typed; call the result to have it shown again."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return lambda: None
    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    return lambda: termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
