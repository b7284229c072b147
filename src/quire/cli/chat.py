"""`quire chat`: a conversation in the terminal, or one turn a line from a pipe."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import platformdirs

from quire.cli.chat_commands import COMMANDS, run_command
from quire.cli.chat_screen import PlainScreen, RichScreen, Screen
from quire.cli.chat_session import Equipment, Session, equipped
from quire.cli.connection import explicit_option
from quire.cli.main import report
from quire.cli.output import db_option
from quire.errors import MissingPart, QuireError
from quire.send.runners import NAMES

if TYPE_CHECKING:
    from quire.cli.chat_session import Session


# Where a chat's lines come from: a prompt with history and completion, or a pipe.


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


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command()
@click.argument("thread", default="chat")
@click.option(
    "--model", help="provider:model (default: $QUIRE_MODEL, the thread's last one, else the local model)."
)
@click.option("--base-url", help="The address of a server of your own.")
@explicit_option
@click.option(
    "--attach", multiple=True, help="A file, file:10-20 or note for the first turn; may be repeated."
)
@click.option(
    "--runner", type=click.Choice(NAMES), help="How turns are carried out (default: by what is given)."
)
@click.option("--root", type=_FOLDER, help="Let the model read, list and grep in this folder.")
@click.option("--vault", type=_FOLDER, help="A folder of markdown notes to answer from and to attach.")
@click.option("--project", type=_FILE, help="A file with the project's prompt; --file adds its files.")
@click.option("--file", "files", type=_FILE, multiple=True, help="A file of the project; may be repeated.")
@click.option(
    "--mcp", multiple=True, help="The command of an MCP server whose tools to use; may be repeated."
)
@click.option("--system", default="", help="The system prompt.")
@click.option("--text-tools", is_flag=True, help="Tell of tools in words, for models that take none.")
@click.option(
    "--save", type=click.Path(path_type=Path, file_okay=False), help="Keep a chat file in this folder."
)
@db_option
def chat(
    thread: str,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    attach: tuple[str, ...],
    runner: str | None,
    root: Path | None,
    vault: Path | None,
    project: Path | None,
    files: tuple[Path, ...],
    mcp: tuple[str, ...],
    system: str,
    text_tools: bool,
    save: Path | None,
    db: Path | None,
) -> None:
    """Talk to a model in the terminal; everything is kept in THREAD, and starting again goes on there.

    Without --model the embedded local model answers. /help lists the commands. Ctrl-C stops an answer and
    keeps what came. With input from a pipe, each line is one turn and answers go to standard output.

    \b
    Examples:
      quire chat
      quire chat plans --model anthropic:claude-opus-5-5 --attach spec.md
      quire chat notes --vault ~/Notes
      echo "What is in src?" | quire chat code --root .
    """
    wanted = Equipment(runner, root, vault, project, files, mcp, system, text_tools, explicit_cache)
    screen: Screen = RichScreen() if sys.stdin.isatty() and sys.stdout.isatty() else PlainScreen()
    with _opened(thread, model, base_url, wanted, save, db, screen) as session:
        session.attach(attach)
        session.resume()
        failed = _talk(session)
    if failed:
        sys.exit(1)


@contextlib.contextmanager
def _opened(
    thread: str,
    model: str | None,
    base_url: str | None,
    wanted: Equipment,
    save: Path | None,
    db: Path | None,
    screen: Screen,
) -> Iterator[Session]:
    from quire.cli.output import default_db
    from quire.thread import open_store

    place = db or default_db()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open_store(place) as store, equipped(wanted, screen) as kit:
        session = Session(store, thread, model, base_url, kit, save, screen)
        try:
            yield session
        finally:
            session.close()


def _talk(session: Session) -> bool:
    """Turn after turn until there is no more input; whether any failed where nobody could mend it."""
    failed = False
    lines = ask_lines(session) if isinstance(session.screen, RichScreen) else piped_lines()
    for line in lines:
        try:
            if line.startswith("/"):
                if not run_command(session, line):
                    break
            else:
                session.turn(line)
        except KeyboardInterrupt:
            session.screen.note("stopped; what came is kept")
            if isinstance(session.screen, PlainScreen):
                raise
        except QuireError as error:
            failed = isinstance(session.screen, PlainScreen)
            report(error)
    return failed
