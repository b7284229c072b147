"""A running chat: its thread, its model, what waits for the next turn, and what it has used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from pathlib import Path

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from quire.archive import autosave
from quire.assemble import Assembly
from quire.assemble.fit import RUNGS
from quire.assemble.rebase import Rebase, apply
from quire.assemble.rebase_decision import written
from quire.assemble.summary import Summarise
from quire.cli.chat_commands import Attached, attached_items
from quire.cli.chat_screen import PlainScreen, Screen
from quire.cli.connection import Connection, is_embedded, reach
from quire.cli.output import read_text, shortened
from quire.errors import CallError, QuireError
from quire.log.sqlite import SqliteStore
from quire.notes.index import NoteIndex
from quire.notes.note import links, prose
from quire.notes.vault import Vault
from quire.providers.usage import cost
from quire.send.builtin import builtin
from quire.send.connect import has_explicit_cache
from quire.send.cycle import Decision, Outcome, last_target, look, run
from quire.send.mcp import McpServer
from quire.send.note_search import local_search_tool, sources, sources_text
from quire.send.protocol import Runner, Turn
from quire.send.runners import agent, chat, planned, project, qa, question_of
from quire.send.summarise import ByModel
from quire.send.tools import Tool, Toolbox
from quire.send.transport import close
from quire.send.turn_state import standing
from quire.thread import Thread, policy_for
from quire.values import Entry, JsonObject, Usage

# A cut on request: older turns leave now, although the budget does not ask for it; the model summarises them.

# What stays verbatim is at most this part of what stands now.
_KEEP = 0.5


class PlannedRebase(msgspec.Struct, frozen=True):
    """A rebase, the tokens of a request before and after it, and by whom what left is summarised."""

    rebase: Rebase
    before: int
    after: int
    by: str = ""

    @property
    def frees(self) -> bool:
        return bool(self.rebase.edits) and self.after < self.before

    def told(self) -> str:
        """One line for people."""
        sizes = f"{self.before:,} tokens before, {self.after:,} after"
        return f"{sizes}; {self.by}" if self.by else sizes


async def compact(thread: Thread, turn: Turn, say: Callable[[str], None] | None) -> PlannedRebase | None:
    """Record a rebase that frees about half of the thread; None where nothing can go.

    `say` hears that the model is being asked for the summary; without it the built-in one is made.
    """
    by_model = ByModel(thread.summarise)
    cut = planned_rebase(thread, turn.target, by_model)
    if not cut.frees:
        return None
    if say is not None and by_model.wanted is not None:
        say(f"{turn.target} summarises what leaves …")
        cut = await _by_model(thread, turn, by_model, cut)
    recorded = msgspec.structs.replace(cut.rebase, freed=cut.before - cut.after)
    thread.append(Entry("rebase", {**recorded.body(), "at": thread.clock()}))
    return cut


async def _by_model(thread: Thread, turn: Turn, by_model: ByModel, built_in: PlannedRebase) -> PlannedRebase:
    """The same cut with the model's summary, or with the built-in one and the reason for it."""
    assert by_model.wanted is not None  # the caller asked
    why = await by_model.ask(turn, by_model.wanted)
    cut = planned_rebase(thread, turn.target, by_model)
    if not why and cut.frees:
        return msgspec.structs.replace(cut, by=f"summarised by {turn.target}")
    return _instead(built_in, why or "summary was longer than what it stands for")


def planned_rebase(thread: Thread, target: str, summarise: Summarise) -> PlannedRebase:
    """The cut that would be made now; nothing is recorded."""
    policy = policy_for(target, thread.policy)
    assembly = Assembly(policy, thread.summarise).extend(thread.store.read(thread.name)).ahead()
    before = assembly.epoch.total_tokens()
    # The rule cuts to a share of the budget: as if the budget were what stands now.
    assembly.policy = msgspec.structs.replace(policy, budget=max(1, int(before * _KEEP * 2)), reply=0)
    assembly.summarise = summarise
    rebase = written(assembly, "asked", RUNGS[0])
    after = apply(assembly.epoch, rebase, assembly.policy, assembly.carried)
    return PlannedRebase(rebase, before, after.total_tokens())


def _instead(cut: PlannedRebase, why: str) -> PlannedRebase:
    """The cut with the built-in summary, and written beside it why no model made one."""
    rebase = msgspec.structs.replace(cut.rebase, fallbacks=(why, *cut.rebase.fallbacks))
    return msgspec.structs.replace(cut, rebase=rebase, by=f"the built-in summary stands in ({why})")


# What a chat is equipped with: tools, notes, a project; and the runner that these make.


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

    def runner(self, thread: Thread, store: SqliteStore, reached: Connection) -> Runner:
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

    def _base(self, name: str, thread: Thread, store: SqliteStore, reached: Connection) -> Runner:
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


# What a thread has used so far, from its `sent` entries.


class AnsweredRequest(msgspec.Struct, frozen=True):
    """One request that was answered: to whom, what it used, what it cost (None: not known)."""

    target: str
    usage: Usage
    usd: float | None
    purpose: str = ""

    @property
    def reported(self) -> bool:
        """Whether the provider said what was used; a reply that was stopped did not come as far."""
        return bool(self.usage.input_total or self.usage.output)


class Totals(msgspec.Struct, frozen=True):
    """All requests of a thread together, and the newest one."""

    requests: tuple[AnsweredRequest, ...]
    last: Usage
    usd: float | None


def totals(entries: Iterable[Entry]) -> Totals:
    """The requests of a thread with what they used; money is known only when every price is."""
    asked = tuple(_asked(entry) for entry in entries if entry.kind == "sent" and "usage" in entry.body)
    amounts = [one.usd for one in asked if one.reported]
    usd = sum(one for one in amounts if one is not None) if None not in amounts else None
    own = [one for one in asked if not one.purpose and one.reported] or list(asked)
    return Totals(asked, own[-1].usage if own else Usage(), usd)


def _asked(entry: Entry) -> AnsweredRequest:
    target = f"{entry.body['provider']}:{entry.body['model']}"
    usage = msgspec.convert(entry.body["usage"], Usage, strict=False)
    usd = 0.0 if is_embedded(target) else cost(usage, target, entry.at).amount_usd
    return AnsweredRequest(target, usage, usd, str(entry.meta.get("aside") or ""))


def money(usd: float | None, reported: bool = True) -> str:
    """An amount for people."""
    if not reported:
        return "not reported"
    return "price not known" if usd is None else f"${usd:.4f}" if usd else "$0"


class Session:
    """One conversation in the terminal; the thread in the store is the only thing that lasts."""

    def __init__(
        self,
        store: SqliteStore,
        name: str,
        model: str | None,
        base_url: str | None,
        kit: Kit,
        save: Path | None,
        screen: Screen,
    ) -> None:
        self.store, self.kit, self.save, self.screen = store, kit, save, screen
        self.thread = self._opened(name)
        self.base_url = base_url
        # What joins the next user entry: items, and facts for its meta.
        self.waiting: list[Attached] = []
        self.meta: JsonObject = {}
        self._loop = asyncio.Runner()
        self.reached: Connection | None = None
        self.use_model(model or os.environ.get("QUIRE_MODEL") or self._last_model())

    def _opened(self, name: str) -> Thread:
        thread = Thread(self.store, name)
        thread.on_warning = lambda what: self.screen.note(f"({getattr(what, 'note', what)})")
        return thread

    def go_to(self, name: str) -> None:
        """Go on in another thread."""
        self.thread = self._opened(name)

    def _last_model(self) -> str:
        known = self.thread.name in {one.name for one in self.store.threads()}
        return last_target(self.store, self.thread.name) if known else ""

    # The model

    def use_model(self, target: str) -> None:
        """Talk to this model from now on; without one, to the local model."""
        explicit = self.kit.wanted.explicit_cache
        if self.reached is not None:
            # Asked for at the beginning, for the model of then; another one may have no such caches.
            explicit = explicit and has_explicit_cache(target)
        reached = reach(target or None, self.base_url, explicit)
        self._leave()
        self.reached = reached

    @property
    def target(self) -> str:
        return self.reached.target if self.reached is not None else ""

    def _leave(self) -> None:
        if self.reached is not None:
            self._loop.run(close(self.reached.transport))
            self.reached = None

    def close(self) -> None:
        """End the connection; the thread stays."""
        self._leave()
        self._loop.close()

    # Turns

    def attach(self, names: Iterable[str]) -> list[Attached]:
        """Put files or notes beside the next question."""
        found = [one for name in names for one in attached_items(name, self.kit.vault)]
        self.waiting += found
        return found

    def turn(self, text: str) -> Outcome:
        """The user speaks, the model answers; notes named in [[brackets]] join the question."""
        self._attach_linked(text)
        items = [one.item for one in self.waiting if one.item is not None]
        images = [one.image for one in self.waiting if one.image is not None]
        named = _named(self.waiting)
        meta = {**self.meta, **({"context": named} if named else {})}
        with self.store.turn_lock(self.thread.name):
            self.thread.user(text, items, images=images or None, meta=meta or None)
            self.waiting, self.meta = [], {}
            return self._answer()

    def _attach_linked(self, text: str) -> None:
        if self.kit.vault is None:
            return
        for link in links(prose(text)):
            try:
                self.attach([f"[[{link.target}]]"])
            except QuireError as error:
                self.screen.note(f"[[{link.target}]] was not attached: {error}")

    def resume(self) -> None:
        """Go on with a turn that was cut off when the program last ended."""
        if self.thread.name not in {one.name for one in self.store.threads()}:
            return
        assert self.reached is not None
        left = look(self.store, self.thread.name, self.kit.runner(self.thread, self.store, self.reached))
        if left.next in ("ask", "run"):
            asked = standing(self.store, self.thread.name).user
            self.screen.note(
                f"going on with the turn that was interrupted: {shortened(asked.text if asked else '')}"
            )
            self._answer()

    def compact(self, asking: bool = True) -> PlannedRebase | None:
        """Cut older turns now and have the model summarise them, if it is to be asked; None where nothing can go."""
        reached, runner = self._ready()
        user = next(entry for entry in reversed(self.entries()) if entry.kind == "user")
        turn = Turn(self.thread, reached.target, reached.transport, runner, user)
        with self.store.turn_lock(self.thread.name):
            carried = compact(self.thread, turn, self.screen.note if asking else None)
            return self._loop.run(carried, context=copy_context())

    def _ready(self) -> tuple[Connection, Runner]:
        """The model, awake, and the runner of the moment."""
        assert self.reached is not None  # from the beginning to the end
        if self.reached.is_local:
            self.use_model(self.target)  # it may have ended since
        return self.reached, self.kit.runner(self.thread, self.store, self.reached)

    def _answer(self) -> Outcome:
        (target, transport, *_), runner = self._ready()
        carried = run(self.thread, target, transport, runner, on_event=self.screen.event, decide=self._decide)
        try:
            outcome = self._loop.run(carried, context=copy_context())
        finally:
            self.screen.end(self.status())
            self._save()
        if outcome.stop not in ("answered", "stopped"):
            self.screen.note(f"ended by its limit in {outcome.stop}")
        if listed := sources_text(sources(self.store.read(self.thread.name))) if runner.name == "qa" else "":
            self.screen.say(listed)
        return outcome

    def _decide(self, call: Entry) -> Decision:
        """A call that may or may not have run before: a person is asked, a pipe is careful."""
        if isinstance(self.screen, PlainScreen):
            return "interrupted"
        shown = f"{call.name}({call.args}) may have run before the interruption. Run it again?"
        return "run" if click.confirm(shown, default=False) else "interrupted"

    def _save(self) -> None:
        if self.save is None:
            return
        try:
            saved = autosave(self.store, self.thread.name, self.save)
        except QuireError as error:
            self.screen.note(f"the chat file was not saved: {error}")
            return
        if saved.kept is not None:
            self.screen.note(f"the chat file had been edited; it is kept as {saved.kept.name}")

    # What is known of it

    def entries(self) -> list[Entry]:
        """All entries of the thread so far; none before the first turn."""
        known = self.thread.name in {one.name for one in self.store.threads()}
        return self.store.read(self.thread.name) if known else []

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


def _named(waiting: Iterable[Attached]) -> JsonObject:
    """Tags and folders that were attached as such, for chat files."""
    listed = list(waiting)
    found = {
        kind: list(dict.fromkeys(one.name for one in listed if one.kind == kind))
        for kind in ("tags", "folders")
    }
    return {kind: names for kind, names in found.items() if names}
