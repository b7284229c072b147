"""A running chat: its thread, its model, what waits for the next turn, and what it has used."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextvars import copy_context
from pathlib import Path

import click

from quire.archive import autosave
from quire.cli.chat_attach import Attached, attached_items
from quire.cli.chat_compact import Cut, compact
from quire.cli.chat_equip import Kit
from quire.cli.chat_screen import Plain, Screen
from quire.cli.chat_usage import money, totals
from quire.cli.line import shortened
from quire.cli.reach import Reached, reach
from quire.engine import Thread
from quire.errors import QuireError
from quire.log.sqlite import SqliteStore
from quire.send.claim import claimed
from quire.send.connect import has_explicit_cache
from quire.send.cycle import Decision, Outcome, run
from quire.send.resume import last_target, look
from quire.send.runner import Runner, Turn
from quire.send.runners import sources, sources_text
from quire.send.standing import standing
from quire.send.transport import close
from quire.send.vault.markup import links, prose
from quire.values import Entry, JsonObject


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
        self.reached: Reached | None = None
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
        with claimed(self.store, self.thread.name):
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

    def compact(self, asking: bool = True) -> Cut | None:
        """Cut older turns now and have the model summarise them, if it is to be asked; None where nothing can go."""
        reached, runner = self._ready()
        user = next(entry for entry in reversed(self.entries()) if entry.kind == "user")
        turn = Turn(self.thread, reached.target, reached.transport, runner, user)
        with claimed(self.store, self.thread.name):
            carried = compact(self.thread, turn, self.screen.note if asking else None)
            return self._loop.run(carried, context=copy_context())

    def _ready(self) -> tuple[Reached, Runner]:
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
        if isinstance(self.screen, Plain):
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
