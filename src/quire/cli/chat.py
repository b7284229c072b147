"""`quire chat`: a conversation in the terminal, shown as markdown block by block, or one turn a line from a pipe."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import platformdirs

from quire.cli.attachments import Attachment, attached_items, linked_items, note_items, question, question_options
from quire.cli.chat_commands import COMMANDS, PlannedRebase, compact, money, run_command, totals
from quire.cli.main import report
from quire.cli.output import (
    SUMMING_UP,
    FileName,
    Place,
    PlainScreen,
    confirm,
    console,
    db_option,
    line_of,
    open_db,
    option,
    print_table,
    printable,
    shorten,
    style,
)
from quire.cli.run import (
    Connection,
    Equipment,
    choose,
    equipment_for,
    listed_sources,
    reach,
    remembered_choice,
    turn_options,
    under_policy,
    watched_thread,
)
from quire.errors import QuireError, needs_extra
from quire.log import OWNER_ALONE
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.markdown import Markdown
    from rich.text import Text

    from quire.log.store import Store
    from quire.send.cycle import Decision, Outcome
    from quire.send.events import Event
    from quire.send.turn import Runner


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
        from rich.segment import Segment

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
            self._draw(style((f"thinking … {self._thinking:,}", "dim italic")))
        elif event.kind == "respond":
            self._write(event.text)
            if event.entry is not None:
                self._finish()
        elif event.kind == "sent" and event.entry is not None and "usage" not in event.entry.body:
            if self._text:
                self._text = ""
                self._stop()
                self.note("(the reply broke off; asking again)")
            self._draw(style(("…", "dim")))
        elif event.kind == "summary":
            self._draw(style((SUMMING_UP, "dim")))
        elif event.entry is not None and (line := line_of(event.entry)):
            self._finish()
            self.note(line)

    def _write(self, text: str) -> None:
        self._text += printable(text)
        finished, self._text = finished_blocks(self._text)
        if finished:
            self._stop()
            self.console.print(markdown(finished))
        if self._text.strip():
            self._draw(OpenMarkdown(self._text))

    def _draw(self, content: Text | OpenMarkdown) -> None:
        from rich.live import Live

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
        self.console.print(style(printable(text.replace("#### ", ""))))

    def note(self, text: str) -> None:
        self._stop()
        self.console.print(style((printable(text), "dim")))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self._finish()
        print_table(columns, rows)


class Session:
    """One conversation in the terminal; the thread in the store is the only thing that lasts."""

    def __init__(
        self, store: Store, name: str, kit: Equipment, screen: PlainScreen | RichScreen, save: Path | None
    ) -> None:
        self.store, self.kit, self.screen, self.save = store, kit, screen, save
        self.thread = watched_thread(store, name, screen.note)
        self.base_url: str | None = None
        self.explicit_cache = False
        # What joins the next user entry: items, and facts for its meta.
        self.waiting: list[Attachment] = []
        # The note that is being looked at: beside every question, as it is then.
        self.note = ""
        self.meta: JsonObject = {}
        import asyncio

        self._loop = asyncio.Runner()
        self.connection: Connection | None = None

    def go_to(self, name: str) -> None:
        """Go on in another thread."""
        self.thread = watched_thread(self.store, name, self.screen.note)
        if self.connection is not None:
            self.thread.use_window(self.target, self.connection.window)

    # The model

    def use_model(self, target: str | None) -> None:
        """Talk to this model from now on; without one, to the thread's last one or the local model."""
        from quire.send.connect import has_explicit_cache
        from quire.send.cycle import last_target

        explicit = self.explicit_cache
        if self.connection is not None:
            # Asked for at the beginning, for the model of then; another one may have no such caches.
            explicit = explicit and has_explicit_cache(target or self.target)
        last = last_target(self.store, self.thread.name) if self.entries() else ""
        reached = reach(target, self.base_url, explicit, last)
        self._leave()
        self.connection = reached
        under_policy(self.thread, reached, self.kit.choice)

    @property
    def target(self) -> str:
        return self.connection.target if self.connection is not None else ""

    def _leave(self) -> None:
        from quire.send.transport import close

        if self.connection is not None:
            self._loop.run(close(self.connection.transport))
            self.connection = None

    def close(self) -> None:
        """End the connection; the thread stays."""
        self._leave()
        self._loop.close()

    # Turns

    def attach(self, names: Iterable[str]) -> list[Attachment]:
        """Put files or notes beside the next question."""
        items = [item for name in names for item in attached_items(name, self.kit.vault)]
        self.waiting += items
        return items

    def look_at(self, name: str) -> None:
        """Have a note beside every question from now on; without a name, none."""
        note_items(name, self.kit.vault)  # one that is not there is an error now
        self.note = name

    def turn(self, text: str) -> Outcome:
        """The user speaks, the model answers; notes named in [[brackets]] join the question."""
        self.waiting += note_items(self.note, self.kit.vault)
        self.waiting += linked_items(text, self.kit.vault, self.screen.note)
        meta = {**self.kit.choice.meta(), **self.meta}
        with self.store.turn_lock(self.thread.name):
            self.thread.user(text, **question(self.waiting, meta, self.thread))
            self.waiting, self.meta = [], {}
            return self._answer(self.kit)

    def resume(self) -> None:
        """Go on with a turn that was cut off when the program last ended, as it was begun."""
        from quire.send.turn import standing

        turn = standing(self.store, self.thread.name) if self.entries() else None
        if turn is None or turn.next not in ("ask", "run"):
            return
        words = shorten(turn.user.text if turn.user else "")
        self.screen.note(f"going on with the turn that was interrupted: {words}")
        before = remembered_choice(turn.user)
        own = self.kit.choice != choose({}) or before == self.kit.choice
        with contextlib.nullcontext(self.kit) if own else equipment_for(before) as kit:
            self._answer(kit)

    def compact(self, asking: bool = True) -> PlannedRebase | None:
        """Cut older turns now and have the model summarise them, if it is to be asked; None where nothing can go."""
        from quire.send.turn import Turn

        reached, runner = self._ready(self.kit)
        user = next(entry for entry in reversed(self.entries()) if entry.kind == "user")
        turn = Turn(self.thread, reached.target, reached.transport, runner, user)
        with self.store.turn_lock(self.thread.name):
            carried = compact(self.thread, turn, self.screen.note if asking else None)
            return self._loop.run(carried, context=copy_context())

    def _ready(self, kit: Equipment) -> tuple[Connection, Runner]:
        """The model, started if need be, and the runner for the current choices."""
        assert self.connection is not None  # from the beginning to the end
        if self.connection.is_local:
            self.use_model(self.target)  # it may have ended since
        return self.connection, kit.runner(self.thread, self.connection)

    def _answer(self, kit: Equipment) -> Outcome:
        from quire.send.cycle import look, run

        (target, transport, *_), runner = self._ready(kit)
        # Asked here: a question within the event loop would keep it from ending at Ctrl-C.
        decisions = {call.call_id: self._decide(call) for call in look(self.store, self.thread.name, runner).doubtful}

        def decide(call: Entry) -> Decision:
            return decisions.get(call.call_id, "interrupted")

        carried = run(self.thread, target, transport, runner, on_event=self.screen.event, decide=decide)
        try:
            outcome = self._loop.run(carried, context=copy_context())
        finally:
            self.screen.end(self.status())
            self._save()
        if outcome.stop not in ("answered", "stopped"):
            self.screen.note(f"ended by its limit in {outcome.stop}")
        if listed := listed_sources(self.store, self.thread.name):
            self.screen.say(listed)
        return outcome

    def _decide(self, call: Entry) -> Decision:
        """A call that may or may not have run before: a person is asked, a pipe is careful."""
        doubt = f"{call.name}({call.args}) may have run before the interruption. Run it again?"
        return "run" if not isinstance(self.screen, PlainScreen) and confirm(doubt) else "interrupted"

    def read_back(self) -> None:
        """Take up what was written into the saved chat file by hand: added turns as they are, edits as a fork."""
        from quire.archive import attached_texts, edited_file, load, read_back, set_aside

        path = edited_file(self.thread.name, self.save) if self.save is not None and self.entries() else None
        if path is None:
            return
        text = path.read_bytes().decode(errors="replace")
        try:
            loaded = load(text, self.kit.vault, attached_texts(self.entries()))
            name = read_back(self.store, self.thread.name, loaded)
        except QuireError as error:
            self.screen.note(f"{path} was edited and cannot be read back: {error}")
            return
        if not name:
            return
        forked = name != self.thread.name
        outcome = f"this is thread {name}, a fork of {self.thread.name}" if forked else "its turns were added"
        self.screen.note(f"the chat file had been edited; {outcome}; the file is kept as {set_aside(path).name}")
        if forked:
            self.go_to(name)
        self._save()

    def _save(self) -> None:
        from quire.archive import autosave

        if self.save is None:
            return
        try:
            saved = autosave(self.store, self.thread.name, self.save, self.kit.vault)
        except QuireError as error:
            self.screen.note(f"the chat file was not saved: {error}")
            return
        if saved.kept is not None:
            self.screen.note(f"the chat file had been edited; it is kept as {saved.kept.name}")

    # What is known of it

    def entries(self) -> list[Entry]:
        """All entries of the thread so far; none before the first turn."""
        return self.thread.entries

    def status(self, width: int | None = None) -> str:
        """One line: the model, the newest request's tokens and reuse, the money so far; names go where it is narrow."""
        used, parts = totals(self.entries()), list[str]()
        if used.last.input_total:
            share = used.last.cache_read / used.last.input_total
            parts += [f"{used.last.input_total:,} tokens", f"{share:.0%} reused"]
            parts.append(money(used.usd))
        if self.waiting:
            parts.append(f"{len(self.waiting)} attached")
        short = self.target.partition(":")[2]
        lines = [" · ".join([*names, *parts]) for names in ([self.thread.name, self.target], [short], [])]
        return next((line for line in lines if width is None or len(line) <= width), lines[-1])


# Where a chat's lines come from: a prompt with history and completion.


def ask_lines(session: Session) -> Iterator[str]:
    """What a person types, until Ctrl-D; Enter sends, Alt-Enter begins a new line."""
    prompt = _prompt(session)
    session.screen.note(f"{session.thread.name} · {session.target}")
    session.screen.note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves")
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
    with needs_extra("the terminal chat is not installed", "chat"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.styles import Style
    history = Path(platformdirs.user_state_dir("quire")) / "chat-history"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(OWNER_ALONE)
    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    return PromptSession(
        history=FileHistory(str(history)),
        completer=_completer(),
        complete_while_typing=False,
        key_bindings=keys,
        bottom_toolbar=lambda: FormattedText(
            [("class:bottom-toolbar", f" {session.status(shutil.get_terminal_size().columns - 2)} ")]
        ),
        style=Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "": ""}),
    )


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
                names = [command for command in COMMANDS if command.startswith(name)]
                yield from (Completion(command, -len(name)) for command in names)
            elif name in ("/attach", "/pin", "/unpin", "/window", "/export"):
                yield from paths.get_completions(Document(rest.rpartition(" ")[2]), event)

    return Commands()


@click.command()
@click.argument("thread", default="chat")
@question_options
@turn_options
@option("--save", "Write a chat file to this folder.", FileName(path_type=Path, file_okay=False))
@db_option
def chat(
    thread: str,
    attach: tuple[str, ...],
    note: str | None,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    save: Path | None,
    db: Place | None,
    **how: Any,
) -> None:
    """Talk to a model in the terminal. THREAD stores everything; start again to continue.

    Without --model the embedded local model answers. /help lists the commands. Ctrl-C stops an answer and
    keeps what came. With input from a pipe, each line is one turn and answers go to standard output.

    \b
    Examples:
      quire chat
      quire chat plans --model anthropic:claude-opus-5-5 --attach spec.md
      quire chat notes --vault ~/Notes
      echo "What is in src?" | quire chat code --root .
    """
    choice = choose(how)
    screen = RichScreen() if sys.stdin.isatty() and sys.stdout.isatty() else PlainScreen()
    with equipment_for(choice) as kit, open_db(db) as store:
        session = Session(store, thread, kit, screen, save)
        session.base_url, session.explicit_cache = base_url, explicit_cache
        with contextlib.closing(session):
            session.attach(attach)
            session.look_at(note or "")
            session.read_back()
            session.use_model(model)
            session.resume()
            failed = _talk(session)
    if failed:
        sys.exit(1)


def _talk(session: Session) -> bool:
    """Turn after turn until there is no more input; whether any failed where nobody could mend it."""
    failed = False
    piped = isinstance(session.screen, PlainScreen)
    for line in filter(None, map(str.strip, sys.stdin)) if piped else ask_lines(session):
        try:
            if line.startswith("/"):
                if not run_command(session, line):
                    break
            else:
                session.turn(line)
        except KeyboardInterrupt:
            session.screen.note("stopped; what came is kept")
            if piped:
                raise
        except QuireError as error:
            failed = piped
            report(error)
    return failed
