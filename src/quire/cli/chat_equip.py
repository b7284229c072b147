"""What a chat is equipped with: tools, notes, a project; and the runner that these make."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from quire.cli.chat_screen import Screen
from quire.cli.common import read_text
from quire.cli.reach import Reached
from quire.engine import Thread
from quire.errors import CallError
from quire.log.sqlite import SqliteStore
from quire.send.builtin import builtin
from quire.send.localsearch import local_search_tool
from quire.send.mcp import McpServer
from quire.send.runners import Runner, agent, chat, planned, project, qa, question_of
from quire.send.tools import Tool, Toolbox
from quire.send.vault import NoteIndex, Vault


class Equipment(msgspec.Struct, frozen=True):
    """What was asked for on the command line."""

    runner: str | None = None
    root: Path | None = None
    vault: Path | None = None
    project: Path | None = None
    files: tuple[Path, ...] = ()
    mcp: tuple[str, ...] = ()
    system: str = ""
    text_tools: bool = False
    explicit_cache: bool = False


class Kit:
    """Equipment in working order; makes the runner for whatever thread and model are current."""

    def __init__(self, wanted: Equipment, index: NoteIndex | None, foreign: tuple[Tool, ...]) -> None:
        self.wanted, self.index, self.foreign = wanted, index, foreign

    @property
    def vault(self) -> Vault | None:
        return self.index.vault if self.index is not None else None

    def runner(self, thread: Thread, store: SqliteStore, reached: Reached) -> Runner:
        """The runner asked for, else the one that makes use of what is there."""
        name = self.wanted.runner or self._fitting()
        base = self._base(name, thread, store, reached)
        if self.wanted.project is None and name != "project":
            return base
        if self.wanted.project is None:
            raise CallError("the project runner needs a prompt", hint="Name its file with --project.")
        return project(base, prompt=read_text(str(self.wanted.project)).strip(), files=self.wanted.files)

    def _fitting(self) -> str:
        if self.wanted.root is not None or self.foreign:
            return "agent"
        return "qa" if self.index is not None else "chat"

    def _base(self, name: str, thread: Thread, store: SqliteStore, reached: Reached) -> Runner:
        system, options = self.wanted.system, reached.options
        if name == "qa":
            if self.index is None:
                raise CallError("the qa runner needs notes", hint="Name their folder with --vault.")
            return qa(self.index, system=system, **options)
        if name == "planned":
            return planned(self._tools(thread, store), system=system, **options)
        if name == "agent" or (name == "project" and self._fitting() == "agent"):
            # The local model's template takes tools, but it was not trained to call them.
            native = not (self.wanted.text_tools or reached.is_local)
            return agent(self._tools(thread, store), system=system, native=native, **options)
        return chat(system, **options)

    def _tools(self, thread: Thread, store: SqliteStore) -> Toolbox:
        own = builtin(self.wanted.root, store, thread.name)
        if self.index is not None:
            own.append(local_search_tool(self.index, question=question_of(thread)))
        return Toolbox(*own, *self.foreign)


@contextlib.contextmanager
def equipped(wanted: Equipment, screen: Screen) -> Iterator[Kit]:
    """Notes indexed and servers started, for as long as the chat runs."""
    with contextlib.ExitStack() as stack:
        index = None
        if wanted.vault is not None:
            index = stack.enter_context(NoteIndex(Vault(wanted.vault)))
            index_notes(index)
        foreign: list[Tool] = []
        for command in wanted.mcp:
            server = command if command.startswith(("http://", "https://")) else shlex.split(command)
            foreign += stack.enter_context(McpServer(server)).tools
        yield Kit(wanted, index, tuple(foreign))


def index_notes(index: NoteIndex) -> None:
    """Bring the index up to date, with a bar on standard error when it takes a while."""
    columns = (TextColumn("indexing notes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    from rich.console import Console

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("notes", total=None)
        index.update(lambda done, total: bar.update(task, completed=done, total=total))
