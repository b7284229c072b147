"""Where a chat's lines come from: a prompt with history and completion, or a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from quire.cli.chat_commands import COMMANDS
from quire.errors import MissingPart

if TYPE_CHECKING:
    from quire.cli.chat_session import Session


def piped_lines() -> Iterator[str]:
    """Lines of standard input that say something; each is one turn."""
    for line in sys.stdin:
        if text := line.rstrip("\r\n").strip():
            yield text


def ask_lines(session: Session) -> Iterator[str]:
    """What a person types, until Ctrl-D; Enter sends, Alt-Enter begins a new line."""
    prompt = _prompt(session)
    session.screen.greet(session)
    while True:
        try:
            text = prompt.prompt("› ").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text:
            yield text


def _prompt(session: Session) -> Any:
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.styles import Style
    except ImportError as error:
        raise MissingPart("the terminal chat is not installed", hint="pip install 'quire[chat]'") from error
    history = Path(platformdirs.user_state_dir("quire")) / "chat-history"
    history.parent.mkdir(parents=True, exist_ok=True)
    return PromptSession(
        history=FileHistory(str(history)),
        completer=_completer(),
        complete_while_typing=False,
        key_bindings=_keys(),
        bottom_toolbar=lambda: FormattedText(
            [("class:bottom-toolbar", f" {session.status(_columns() - 2)} ")]
        ),
        style=Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "": ""}),
    )


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer() -> Any:
    """Commands by their name, and paths behind those that take one."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document: Document, event: Any) -> Iterable[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if text.startswith("/") and not space:
                names = [one for one in COMMANDS if one.startswith(name)]
                yield from (Completion(one, -len(name)) for one in names)
            elif name in ("/attach", "/pin", "/export"):
                yield from paths.get_completions(Document(rest.rpartition(" ")[2]), event)

    return Commands()
