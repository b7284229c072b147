"""What a chat shows while a turn runs: plain text for pipes, markdown block by block for terminals."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from quire.cli.output import SUMMING_UP, console, line_of, print_table, printable

if TYPE_CHECKING:
    from rich.markdown import Markdown

    from quire.send.events import Event

# Markdown that is still being written: which of its blocks are finished.

_NOTE = re.compile(r"^( {0,3})\[\^", re.M)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def finished_blocks(text: str) -> tuple[str, str]:
    """Text up to the last blank line outside a code fence, and the rest: "a\\n\\nb" -> ("a\\n\\n", "b")."""
    fence, end, at = "", 0, 0
    for line in text.split("\n")[:-1]:
        at += len(line) + 1
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        if not fence and not line.strip():
            end = at
    return text[:end], text[end:]


def markdown(text: str) -> Markdown:
    """Markdown whose footnotes are shown: "[^1]: [[tea]]" is text, not a definition to be swallowed."""
    from rich.markdown import Markdown

    return Markdown(_NOTE.sub(r"\1\\[^", text))


def tail(text: str, limit: int) -> str:
    """The last `limit` characters from a word's beginning on; code stays code, in its fence."""
    if len(text) <= limit:
        return text
    if _FENCE.match(text):
        begin, _, code = text.partition("\n")
        return "\n".join([begin, code[-limit:].partition("\n")[2] or code[-limit:]])
    start = text.find(" ", len(text) - limit)
    return "… " + text[start + 1 if start >= 0 else len(text) - limit :]


# What a person types while an answer is drawn: it waits for the prompt, and is not written into the answer.


def hide_typing() -> Callable[[], None]:
    """Have the terminal show nothing that is typed; call the result to have it shown again."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return lambda: None
    import termios

    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    return lambda: termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class OpenMarkdown:
    """A block that is being written: of one longer than the screen, the end."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = console.size
        text = markdown(tail(self._text, 2 * width * height))
        lines = console.render_lines(text, options.update(height=None), pad=False)
        for line in lines[-max(4, height - 4) :]:
            yield from line
            yield Segment.line()


class RichScreen:
    """Markdown in a terminal: blocks that are finished stay, the one being written is drawn anew."""

    def __init__(self, shown_on: Console | None = None) -> None:
        self.console = shown_on or console()
        self._live: Live | None = None
        self._echo: Callable[[], None] = lambda: None
        self._text = ""
        self._thinking = 0

    def event(self, event: Event) -> None:
        if event.kind == "think":
            self._thinking += len(event.text)
            self._draw(Text(f"thinking … {self._thinking:,}", "dim italic"))
        elif event.kind == "respond":
            self._write(event.text)
            if event.entry is not None:
                self._finish()
        elif event.kind == "sent" and event.entry is not None and "usage" not in event.entry.body:
            self._begin()
        elif event.kind == "summary":
            self._draw(Text(SUMMING_UP, "dim"))
        elif event.entry is not None and (line := line_of(event.entry)):
            self._finish()
            self.note(line)

    def _begin(self) -> None:
        if self._text:
            self._text = ""
            self._stop()
            self.note("(the reply broke off; asking again)")
        self._draw(Text("…", "dim"))

    def _write(self, text: str) -> None:
        self._text += printable(text)
        finished, self._text = finished_blocks(self._text)
        if finished:
            self._stop()
            self.console.print(markdown(finished))
        if self._text.strip():
            self._draw(OpenMarkdown(self._text))

    def _draw(self, content: Text | OpenMarkdown) -> None:
        if self._live is None:
            self._live = Live(console=self.console, transient=True, refresh_per_second=12, vertical_overflow="crop")
            self._echo = hide_typing()
            self._live.start()
        self._live.update(content)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._echo()

    def _finish(self) -> None:
        """What is still being drawn stays."""
        self._stop()
        if self._text.strip():
            self.console.print(markdown(self._text))
        self._text, self._thinking = "", 0

    def end(self, status: str = "") -> None:
        self._finish()  # the prompt below shows the status

    def say(self, text: str) -> None:
        self._finish()
        self.console.print(Text(printable(text.replace("#### ", ""))))

    def note(self, text: str) -> None:
        self._stop()
        self.console.print(Text(printable(text), "dim"))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self._finish()
        print_table(columns, rows)
