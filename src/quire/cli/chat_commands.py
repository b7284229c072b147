"""The slash commands of a chat: each a function of the session and what stands behind its name."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from quire.cli.assemble import LAYERS
from quire.cli.attachments import (
    WINDOW_ACTIONS,
    WINDOW_COLUMNS,
    Attachment,
    action_lines,
    attached_items,
    change_window,
    keep_attached,
    window_capacity,
    window_rows,
)
from quire.cli.output import count_of, shorten
from quire.errors import CallError, NotFound, nearest
from quire.items import kept_id
from quire.providers.models import is_embedded
from quire.providers.usage import known_cost, sent_usage
from quire.tokens import counter
from quire.values import Entry, Usage

if TYPE_CHECKING:
    from quire.assemble.rebase import Rebase
    from quire.assemble.summary import Summarise
    from quire.cli.chat import Session
    from quire.send.runners import ByModel
    from quire.send.turn import Turn
    from quire.thread import Thread


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

    def line(self) -> str:
        """One line for people."""
        sizes = f"{self.before:,} tokens before, {self.after:,} after"
        return f"{sizes}; {self.by}" if self.by else sizes


async def compact(thread: Thread, turn: Turn, say: Callable[[str], None] | None) -> PlannedRebase | None:
    """Record a rebase that frees about half of the thread; None where nothing can go.

    `say` hears that the model is being asked for the summary; without it the built-in one is made.
    """
    from quire.send.runners import ByModel

    by_model = ByModel()
    cut = planned_rebase(thread, turn.target, by_model)
    if not cut.frees:
        return None
    if say is not None and by_model.questions:
        say(f"{turn.target} summarises what leaves …")
        cut = await _by_model(thread, turn, by_model, cut)
    recorded = msgspec.structs.replace(cut.rebase, freed=cut.before - cut.after)
    thread.append(Entry("rebase", {**recorded.body(), "at": thread.clock()}))
    return cut


async def _by_model(thread: Thread, turn: Turn, by_model: ByModel, built_in: PlannedRebase) -> PlannedRebase:
    """The same cut with the model's summary, or with the built-in one and the reason for it."""
    await by_model.ask(turn)
    cut = planned_rebase(thread, turn.target, by_model)
    if cut.frees and not cut.rebase.fallbacks:
        return msgspec.structs.replace(cut, by=f"summarised by {turn.target}")
    why = (*cut.rebase.fallbacks, "summary was longer than what it stands for")[0]
    rebase = msgspec.structs.replace(built_in.rebase, fallbacks=(why, *built_in.rebase.fallbacks))
    return msgspec.structs.replace(built_in, rebase=rebase, by=f"the built-in summary stands in ({why})")


def planned_rebase(thread: Thread, target: str, summarise: Summarise) -> PlannedRebase:
    """The cut that would be made now; nothing is recorded."""
    from quire.assemble import Assembly
    from quire.assemble.fit import RUNGS
    from quire.assemble.rebase import apply
    from quire.assemble.rebase_decision import write_rebase

    policy = thread.policy_at(target)
    assembly = Assembly(policy, thread.summarise).extend(thread.store.read(thread.name)).ahead()
    before = assembly.epoch.total_tokens()
    # The rule cuts to a share of the budget: as if the budget were what stands now.
    assembly.policy = msgspec.structs.replace(policy, budget=max(1, int(before * _KEEP * 2)), reply=0)
    assembly.summarise = summarise
    rebase = write_rebase(assembly, "asked", RUNGS[0])
    after = apply(assembly.epoch, rebase, assembly.policy, assembly.carried)
    return PlannedRebase(rebase, before, after.total_tokens())


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

    @property
    def counts(self) -> tuple[object, ...]:
        """Tokens in, of these cached, and out."""
        used = self.usage
        return (used.input_total, used.cache_read, used.output) if self.reported else ("-", "-", "-")


class Totals(msgspec.Struct, frozen=True):
    """All requests of a thread together, and the newest one."""

    requests: tuple[AnsweredRequest, ...]
    last: Usage
    usd: float | None


def totals(entries: Iterable[Entry]) -> Totals:
    """The requests of a thread with what they used; money is known only when every price is."""
    requests = tuple(_answered_request(entry) for entry in entries if entry.kind == "sent" and "usage" in entry.body)
    amounts = [request.usd for request in requests if request.reported]
    usd = sum(amount for amount in amounts if amount is not None) if None not in amounts else None
    turns = [request for request in requests if not request.purpose and request.reported] or list(requests)
    return Totals(requests, turns[-1].usage if turns else Usage(), usd)


def _answered_request(entry: Entry) -> AnsweredRequest:
    target = f"{entry.body['provider']}:{entry.body['model']}"
    usage = sent_usage(entry)
    return AnsweredRequest(target, usage, known_cost(usage, target, entry.at), str(entry.meta.get("aside") or ""))


def money(usd: float | None, reported: bool = True) -> str:
    """An amount for people."""
    if not reported:
        return "not reported"
    return "price not known" if usd is None else f"${usd:.4f}" if usd else "$0"


Command: TypeAlias = "Callable[[Session, str], None]"


def run_command(session: Session, line: str) -> bool:
    """Carry a command out; False for the one that leaves."""
    name, _, rest = line.partition(" ")
    if name in ("/quit", "/exit", "/q"):
        return False
    if name not in COMMANDS:
        near = nearest(name.removeprefix("/"), [command.removeprefix("/") for command in COMMANDS])
        raise CallError(f"there is no command {name}", hint=f"Did you mean /{near}?" if near else "/help lists them.")
    COMMANDS[name][0](session, rest.strip())
    return True


def _help(session: Session, rest: str) -> None:
    session.screen.table(
        ["command", "what it does"], [[f"{name} {about[1]}".strip(), about[2]] for name, about in COMMANDS.items()]
    )


def _attach(session: Session, rest: str) -> None:
    if not rest:
        raise CallError(
            "/attach needs a name", hint="A file, file:10-20, file::symbol, URL, [[note]], #tag or folder/."
        )
    for item in session.attach(_names(session, rest)):
        session.screen.note(f"attached for the next turn: {item.label} ({item.tokens:,} tokens)")


def _names(session: Session, rest: str) -> list[str]:
    """One name with spaces, or several; quotes keep a name together."""
    if os.path.isfile(os.path.expanduser(rest)) or rest.startswith("[["):
        return [rest]
    try:
        return shlex.split(rest.replace("#", "\\#"))
    except ValueError:
        return [rest]


def _note(session: Session, rest: str) -> None:
    session.look_at("" if rest == "none" else rest or session.note)
    session.screen.note(f"{session.note} is beside every question" if session.note else "no note is looked at")


def _context(session: Session, rest: str) -> None:
    listed: list[list[object]] = [["next turn", item.label, item.tokens] for item in session.waiting]
    for window_item in session.thread.window.get():
        listed.append(["every turn", kept_id(window_item), counter().count(window_item.content)])
    if session.entries() and _has_user(session):
        built = session.thread.build(session.target)
        listed += [["library (L2)", block.id, counter().count(block.text)] for block in built.blocks]
        listed += [["said above", name, size] for name, size in _attached_tokens(session).items()]
    if not listed:
        session.screen.note("nothing is attached")
        return
    session.screen.table(["where", "item", "tokens"], listed)


def _attached_tokens(session: Session) -> dict[str, int]:
    """Items that came with the turns since the last cut, which the model has: their name and tokens."""
    from quire.assemble.user_message import block

    sizes: dict[str, int] = {}
    for entry in session.entries():
        if entry.kind == "rebase":
            sizes = {}
        for item in entry.attached:
            sizes[block(item).id] = counter().count(item["content"])
    return sizes


def _has_user(session: Session) -> bool:
    return any(entry.kind == "user" for entry in session.entries())


def _layers(session: Session, rest: str) -> None:
    from quire.assemble.fit import layer_tokens

    if not _has_user(session):
        session.screen.note("there is no request yet")
        return
    built = session.thread.build(session.target)
    sizes = layer_tokens(built)
    rows: list[list[object]] = [[name, LAYERS.get(name, ""), size] for name, size in sizes.items()]
    session.screen.table(["layer", "what it is", "tokens"], [*rows, ["all", "", sum(sizes.values())]])
    session.screen.note(
        f"epoch {built.prompt.epoch}, {count_of(len(built.prompt.messages), 'message')}, "
        f"{count_of(len(built.left_out), 'entry', 'entries')} left out"
    )


def _cost(session: Session, rest: str) -> None:
    used = totals(session.entries())
    models = list(dict.fromkeys(request.target for request in used.requests))
    rows: list[list[object]] = [
        [*request.counts, money(request.usd, request.reported), request.purpose or "turn", request.target]
        for request in used.requests
    ]
    columns = ["tokens in", "cached", "out", "money", "for", "model"]
    # One name for all of them needs no column, which a narrow screen has no room for.
    width = len(columns) if len(models) > 1 else len(columns) - 1
    session.screen.table(columns[:width], [row[:width] for row in rows])
    by = f" by {models[0]}" if len(models) == 1 else ""
    unknown = sum(not request.reported for request in used.requests)
    without = f" without {unknown} that did not report" if unknown else ""
    session.screen.note(f"{count_of(len(rows), 'request')}{by}, {money(used.usd)} in all{without}")


def _compact(session: Session, rest: str) -> None:
    if rest not in ("", "built-in"):
        raise CallError(f"/compact takes `built-in` or nothing, not {rest!r}", hint="/pin keeps what must not go.")
    cut = session.compact(asking=not rest) if _has_user(session) else None
    session.screen.note(cut.line() if cut is not None else "there is nothing to cut yet")


def _pin(session: Session, rest: str) -> None:
    """A file or note joins every turn; without a name, the last answer is kept word for word through every cut."""
    if rest:
        for attached in _to_pin(session, rest):
            item = keep_attached(session.thread, attached, session.kit.vault)
            session.thread.window.pin(item.id)
            session.screen.note(f"{attached.name} joins every turn from now on ({item.id})")
        return
    answers = [entry for entry in session.entries() if entry.kind == "respond" and entry.text.strip()]
    if not answers:
        raise CallError("there is no answer to pin", hint="/pin FILE keeps a file in every turn.")
    session.meta["pins"] = [*session.meta.get("pins", []), answers[-1].seq]
    session.screen.note("the last answer will be kept word for word")


def _to_pin(session: Session, rest: str) -> list[Attachment]:
    """The files and notes that are named; words that name none are kept as they stand."""
    names = _names(session, rest)
    try:
        return [item for name in names for item in attached_items(name, session.kit.vault)]
    except NotFound:
        if len(names) == 1 or any(_like_a_name(name) for name in names):
            raise
        return [Attachment({"content": rest, "type": "text"}, f"“{shorten(rest, 60)}”")]


def _like_a_name(word: str) -> bool:
    return word.startswith(("[[", "#")) or "/" in word or bool(Path(word).suffix[1:]) or os.path.exists(word)


def _unpin(session: Session, rest: str) -> None:
    if not rest:
        raise CallError("/unpin needs a name", hint="/window lists what is pinned.")
    _window(session, f"unpin {rest}")


def _window(session: Session, rest: str) -> None:
    """What joins every turn, or a change to it."""
    action, _, names = (rest or "show").partition(" ")
    listed, window = _names(session, names) if names else [], session.thread.window
    if action not in WINDOW_ACTIONS:
        raise CallError(f"/window has no {action!r}", hint=f"It has {', '.join(WINDOW_ACTIONS)}.")
    if (action in ("show", "clear")) == bool(listed):
        raise CallError(f"/window {action} takes {'no name' if listed else 'a name'}", hint="/help")
    for line in action_lines(action, change_window(session.thread, action, listed, session.kit.vault)):
        session.screen.note(line)
    if action == "show" and len(window):
        session.screen.table(WINDOW_COLUMNS, window_rows(window))
    session.screen.note(window_capacity(window))


def _recall(session: Session, rest: str) -> None:
    """Earlier entries that fit; they join the next turn."""
    from quire.recall import place

    if not rest:
        raise CallError("/recall needs a query", hint="Say what to look for.")
    # Who asks for it by name wants it beside the question, wherever else it stands.
    hits = session.thread.recall(rest, 5, exclude=()) if session.entries() else []
    placed = place(hits, 1500, query=rest)
    if not placed.text:
        session.screen.note("nothing was found")
        return
    session.meta |= placed.meta
    session.screen.note(placed.text)
    session.screen.note(f"{count_of(len(placed.ids), 'entry', 'entries')} for the next turn")


def _model(session: Session, rest: str) -> None:
    from quire.send.connect import has_explicit_cache

    if rest:
        target, _, url = rest.partition(" ")
        if ":" not in target and is_embedded(target):
            target, session.base_url = "local:smollm2", None
        elif url or target.partition(":")[0] != session.target.partition(":")[0]:
            # An address belongs to the server it was given for.
            session.base_url = url.strip() or None
        session.use_model(target)
    caches = session.explicit_cache and not has_explicit_cache(session.target)
    session.screen.note(f"the model is {session.target}" + (", without explicit caches" if caches else ""))


def _export(session: Session, rest: str) -> None:
    from quire.archive import export_markdown, file_name

    path = Path(os.path.expanduser(rest or file_name(session.thread.name)))
    text = export_markdown(
        session.entries(),
        thread=session.thread.name,
        window=session.store.window(session.thread.name) if session.entries() else None,
        refer=True,
        notes=session.kit.vault,
    )
    if os.path.exists(path):
        raise CallError(f"{path} is there already", hint="Give another name: /export FILE.")
    try:
        path.write_bytes(text.encode())
    except (OSError, ValueError) as error:  # a NUL is in no name
        why = getattr(error, "strerror", error)
        raise CallError(f"cannot write {path}: {why}", hint="Give another name.") from error
    session.screen.note(f"written to {path}")


def _undo(session: Session, rest: str) -> None:
    """Go on from before the last question, in a thread of its own; the old one keeps everything."""
    questions = [entry for entry in session.entries() if entry.kind == "user"]
    if not questions:
        raise CallError("there is nothing to undo", hint="Ask something first.")
    old = session.thread.name
    name = session.store.fork(old, questions[-1].seq - 1)
    session.go_to(name)
    session.screen.note(f"“{shorten(questions[-1].text, 60)}” is undone; this is thread {name}, {old} keeps it")


COMMANDS: dict[str, tuple[Command, str, str]] = {
    "/attach": (
        _attach,
        "NAME…",
        "put a file, file:10-20, file::symbol, URL, [[note]], #tag or folder/ beside the next question",
    ),
    "/note": (_note, "[NAME|none]", "a note of the vault beside every question, as it is then, with its images"),
    "/context": (_context, "", "what is attached, and what the model has been given"),
    "/layers": (_layers, "", "the tokens of each layer of the request"),
    "/cost": (_cost, "", "what each request used and cost"),
    "/compact": (_compact, "[built-in]", "cut older turns now; the model summarises them, or the built-in rule does"),
    "/pin": (
        _pin,
        "[NAME…|WORDS]",
        "a file, a note or these words in every turn; alone, keep the last answer word for word",
    ),
    "/unpin": (_unpin, "NAME…", "let a pinned item of the window be evicted again"),
    "/window": (_window, "[ACTION NAME…]", "what joins every turn; add, remove, pin, unpin, clear"),
    "/recall": (_recall, "WORDS", "find what was said earlier, and put it beside the next question"),
    "/model": (_model, "[provider:model [URL]]", "go on with another model; `local` is the embedded one"),
    "/export": (_export, "[FILE]", "write the chat as a markdown file"),
    "/undo": (_undo, "", "take the last question back, by a fork"),
    "/help": (_help, "", "this list"),
    "/quit": (_help, "", "leave; the thread stays"),
}
