"""The slash commands of a chat: each a function of the session and what stands behind its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from quire.assemble.layers import layer_tokens
from quire.assemble.user_message import block
from quire.cli.assemble import LAYERS
from quire.cli.connection import attachments
from quire.cli.output import counted, shortened
from quire.errors import CallError, NotFound, nearest
from quire.items import from_region, from_symbol, item
from quire.notes.vault import Vault
from quire.send.connect import has_explicit_cache
from quire.tokens import counter
from quire.values import Item, JsonObject, item_json

if TYPE_CHECKING:
    from quire.cli.chat_session import AnsweredRequest, Session


# What a person means by a name: a file, some of its lines, a symbol; a note, a tag or a folder of the vault.

Kind = Literal["file", "note", "tags", "folders"]
_LINES = re.compile(r"(.+):(\d+)-(\d+)\Z")


class Attached(msgspec.Struct, frozen=True):
    """An item or an image, and by what name it was asked for."""

    item: JsonObject | None
    name: str
    kind: Kind = "file"
    image: JsonObject | None = None


def attached_items(name: str, vault: Vault | None) -> list[Attached]:
    """The items that a name means; a note of the vault goes before a file of the same name."""
    if re.match(r"https?://", name):
        raise CallError(f"{name} is not fetched here", hint="Save the page's text to a file and attach that.")
    if vault is not None and (found := _from_vault(name, vault)):
        return found
    return [_from_files(name)]


def _from_vault(name: str, vault: Vault) -> list[Attached]:
    if name.startswith("#"):
        return [Attached(item_json(item), name, "tags") for item in vault.tagged(name)]
    if name.endswith("/"):
        return [Attached(item_json(item), name.rstrip("/"), "folders") for item in vault.within(name)]
    try:
        return [Attached(item_json(item), name, "note") for item in vault.attach(name)]
    except CallError as error:
        # A file may be meant; a name in brackets is always a note's.
        if name.startswith("[[") or not (isinstance(error, NotFound) or Path(name).is_file()):
            raise
        return []


def _from_files(name: str) -> Attached:
    path = Path(name).expanduser()
    if path.is_file():
        items, images = attachments([name if path == Path(name) else str(path)])
        return Attached(items[0] if items else None, name, image=images[0] if images else None)
    if match := _LINES.match(name):
        file, start, end = match[1], int(match[2]), int(match[3])
        region = from_region(Path(file).expanduser(), start, end, name=file)
        return Attached(_known(region, f"{file}#L{start}-L{end}"), name)
    file, colons, symbol = name.partition("::")
    if colons:
        return Attached(_known(from_symbol(Path(file).expanduser(), symbol, name=file), name), name)
    raise NotFound(f"there is no file {name!r}", hint=_near(path))


def _near(path: Path) -> str:
    try:
        names = sorted(one.name for one in path.parent.iterdir() if one.is_file())
    except OSError:
        return "Check the path."
    near = get_close_matches(path.name, names, 3, 0.5)
    return f"Did you mean {' or '.join(near)}?" if near else "Check the path."


def _known(item: Item, id: str) -> JsonObject:
    """An item under a name of its own, so that it is recognised when it is attached again."""
    return {**item_json(item), "id": id}


Command: TypeAlias = "Callable[[Session, str], None]"


def run_command(session: Session, line: str) -> bool:
    """Carry a command out; False for the one that leaves."""
    name, _, rest = line.partition(" ")
    if name in ("/quit", "/exit", "/q"):
        return False
    if name not in COMMANDS:
        near = nearest(name.removeprefix("/"), [known.removeprefix("/") for known in COMMANDS])
        raise CallError(
            f"there is no command {name}", hint=f"Did you mean /{near}?" if near else "/help lists them."
        )
    COMMANDS[name][0](session, rest.strip())
    return True


def _help(session: Session, rest: str) -> None:
    session.screen.table(
        ["command", "what it does"],
        [[f"{name} {about[1]}".strip(), about[2]] for name, about in COMMANDS.items()],
    )


def _attach(session: Session, rest: str) -> None:
    if not rest:
        raise CallError(
            "/attach needs a name", hint="A file, file:10-20, file::symbol, [[note]], #tag or folder/."
        )
    for one in session.attach(_names(session, rest)):
        session.screen.note(f"attached for the next turn: {_name(one)} ({_tokens(one):,} tokens)")


def _names(session: Session, rest: str) -> list[str]:
    """One name with spaces, or several; quotes keep a name together."""
    if Path(rest).expanduser().is_file() or rest.startswith("[["):
        return [rest]
    try:
        return shlex.split(rest.replace("#", "\\#"))
    except ValueError:
        return [rest]


def _name(one: Attached) -> str:
    """What an attachment is known as."""
    return block(one.item).id if one.item is not None else f"{one.name} (image)"


def _tokens(one: Attached) -> int:
    return counter().count(one.item["content"]) if one.item is not None else 0


def _context(session: Session, rest: str) -> None:
    rows: list[list[object]] = [["next turn", _name(one), _tokens(one)] for one in session.waiting]
    for kept in session.thread.window.get():
        rows.append(["every turn", block(item_json(kept)).id, counter().count(kept.content)])
    if session.entries() and _has_user(session):
        built = session.thread.build(session.target)
        rows += [["library (L2)", one.id, counter().count(one.text)] for one in built.blocks]
        rows += [["said above", name, size] for name, size in _given(session).items()]
    if not rows:
        session.screen.note("nothing is attached")
        return
    session.screen.table(["where", "item", "tokens"], rows)


def _given(session: Session) -> dict[str, int]:
    """Items that came with the turns since the last cut, which the model has: their name and tokens."""
    given: dict[str, int] = {}
    for entry in session.entries():
        if entry.kind == "rebase":
            given = {}
        for one in entry.attached:
            given[block(one).id] = counter().count(one["content"])
    return given


def _has_user(session: Session) -> bool:
    return any(entry.kind == "user" for entry in session.entries())


def _layers(session: Session, rest: str) -> None:
    if not _has_user(session):
        session.screen.note("there is no request yet")
        return
    built = session.thread.build(session.target)
    sizes = layer_tokens(built)
    rows: list[list[object]] = [[name, LAYERS.get(name, ""), size] for name, size in sizes.items()]
    session.screen.table(["layer", "what it is", "tokens"], [*rows, ["all", "", sum(sizes.values())]])
    session.screen.note(
        f"epoch {built.prompt.epoch}, {counted(len(built.prompt.messages), 'message')}, "
        f"{counted(len(built.left_out), 'entry', 'entries')} left out"
    )


def _cost(session: Session, rest: str) -> None:
    from quire.cli.chat_session import money, totals

    used = totals(session.entries())
    models = list(dict.fromkeys(one.target for one in used.requests))
    rows: list[list[object]] = [
        [*_numbers(one), money(one.usd, one.reported), one.purpose or "turn", one.target]
        for one in used.requests
    ]
    columns = ["tokens in", "cached", "out", "money", "for", "model"]
    # One name for all of them needs no column, which a narrow screen has no room for.
    shown = len(columns) if len(models) > 1 else len(columns) - 1
    session.screen.table(columns[:shown], [row[:shown] for row in rows])
    by = f" by {models[0]}" if len(models) == 1 else ""
    unknown = sum(not one.reported for one in used.requests)
    without = f" without {unknown} that did not report" if unknown else ""
    session.screen.note(f"{counted(len(rows), 'request')}{by}, {money(used.usd)} in all{without}")


def _numbers(one: AnsweredRequest) -> list[object]:
    used = one.usage
    return [used.input_total, used.cache_read, used.output] if one.reported else ["-", "-", "-"]


def _compact(session: Session, rest: str) -> None:
    if rest not in ("", "built-in"):
        raise CallError(
            f"/compact takes `built-in` or nothing, not {rest!r}", hint="/pin keeps what must not go."
        )
    cut = session.compact(asking=not rest) if _has_user(session) else None
    session.screen.note(cut.told() if cut is not None else "there is nothing to cut yet")


def _pin(session: Session, rest: str) -> None:
    """A file or note joins every turn; without a name, the last answer is kept word for word through every cut."""
    if rest:
        for one in _to_pin(session, rest):
            _keep(session, one)
        return
    answers = [entry for entry in session.entries() if entry.kind == "respond" and entry.text.strip()]
    if not answers:
        raise CallError("there is no answer to pin", hint="/pin FILE keeps a file in every turn.")
    session.meta["pins"] = [*session.meta.get("pins", []), answers[-1].seq]
    session.screen.note("the last answer will be kept word for word")


def _to_pin(session: Session, rest: str) -> list[Attached]:
    """The files and notes that are named; words that name none are kept as they stand."""
    names = _names(session, rest)
    try:
        return [one for name in names for one in attached_items(name, session.kit.vault)]
    except NotFound:
        if len(names) == 1 or any(_like_a_name(name) for name in names):
            raise
        return [Attached({"content": rest, "type": "text"}, f"“{shortened(rest, 60)}”")]


def _like_a_name(word: str) -> bool:
    return word.startswith(("[[", "#")) or "/" in word or bool(Path(word).suffix[1:]) or Path(word).exists()


def _keep(session: Session, one: Attached) -> None:
    if one.item is None:
        raise CallError(
            f"{one.name} is an image, which cannot be kept in every turn", hint="/attach it instead."
        )
    made = item(one.item["content"], one.item.get("type", "text"), one.item.get("metadata"))
    kept = session.thread.keep(made)
    session.thread.window.pin(kept.id)
    session.store.save_window(session.thread.name, session.thread.window.to_json())
    session.screen.note(f"{one.name} joins every turn from now on ({kept.id})")


def _recall(session: Session, rest: str) -> None:
    """Earlier entries that fit; they join the next turn."""
    from quire.cli.store import embedder
    from quire.recall import place

    if not rest:
        raise CallError("/recall needs a query", hint="Say what to look for.")
    # From the first search on, new entries are learnt by meaning beside the conversation.
    session.thread.embedder = session.thread.embedder or embedder()
    # Who asks for it by name wants it beside the question, wherever else it stands.
    hits = session.thread.recall(rest, 5, exclude=()) if session.entries() else []
    placed = place(hits, 1500, query=rest)
    if not placed.text:
        session.screen.note("nothing was found")
        return
    session.meta |= placed.meta
    session.screen.note(placed.text)
    session.screen.note(f"{counted(len(placed.ids), 'entry', 'entries')} for the next turn")


def _model(session: Session, rest: str) -> None:
    if rest:
        target, _, url = rest.partition(" ")
        if target == "local":
            target, session.base_url = "local:smollm2", None
        elif url or target.partition(":")[0] != session.target.partition(":")[0]:
            # An address belongs to the server it was given for.
            session.base_url = url.strip() or None
        session.use_model(target)
    caches = session.kit.wanted.explicit_cache and not has_explicit_cache(session.target)
    session.screen.note(f"the model is {session.target}" + (", without explicit caches" if caches else ""))


def _export(session: Session, rest: str) -> None:
    from quire.archive import export_markdown, file_name

    path = Path(rest or file_name(session.thread.name)).expanduser()
    text = export_markdown(
        session.entries(),
        thread=session.thread.name,
        window=session.store.window(session.thread.name) if session.entries() else None,
    )
    if path.exists():
        raise CallError(f"{path} is there already", hint="Give another name: /export FILE.")
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        raise CallError(f"cannot write {path}: {error.strerror}", hint="Give another name.") from error
    session.screen.note(f"written to {path}")


def _undo(session: Session, rest: str) -> None:
    """Go on from before the last question, in a thread of its own; the old one keeps everything."""
    asked = [entry for entry in session.entries() if entry.kind == "user"]
    if not asked:
        raise CallError("there is nothing to undo", hint="Ask something first.")
    old = session.thread.name
    name = session.store.fork(old, asked[-1].seq - 1)
    session.go_to(name)
    session.screen.note(f"“{shortened(asked[-1].text, 60)}” is undone; this is thread {name}, {old} keeps it")


COMMANDS: dict[str, tuple[Command, str, str]] = {
    "/attach": (
        _attach,
        "NAME…",
        "put a file, file:10-20, file::symbol, [[note]], #tag or folder/ beside the next question",
    ),
    "/context": (_context, "", "what is attached, and what the model has been given"),
    "/layers": (_layers, "", "the tokens of each layer of the request"),
    "/cost": (_cost, "", "what each request used and cost"),
    "/compact": (
        _compact,
        "[built-in]",
        "cut older turns now; the model summarises them, or the built-in rule does",
    ),
    "/pin": (
        _pin,
        "[NAME…|WORDS]",
        "a file, a note or these words in every turn; alone, keep the last answer word for word",
    ),
    "/recall": (_recall, "WORDS", "find what was said earlier, and put it beside the next question"),
    "/model": (_model, "[provider:model [URL]]", "go on with another model; `local` is the embedded one"),
    "/export": (_export, "[FILE]", "write the chat as a markdown file"),
    "/undo": (_undo, "", "take the last question back, by a fork"),
    "/help": (_help, "", "this list"),
    "/quit": (_help, "", "leave; the thread stays"),
}
