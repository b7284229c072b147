"""`quire window`: the items that join every turn of a thread; `/window`, `/pin` and `/unpin` of a chat do the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from quire.cli.attachments import Attachment, attached_items
from quire.cli.output import Place, db_json_options, echo, print_json, print_table, read_text
from quire.cli.store import open_db
from quire.errors import CallError, NotFound
from quire.values import ITEM_TYPES, Item

if TYPE_CHECKING:
    from quire.items import Window
    from quire.notes.vault import Vault
    from quire.thread import Thread

ACTIONS = ("show", "add", "remove", "pin", "unpin", "clear")


def keep(thread: Thread, attached: Attachment, vault: Vault | None = None) -> Item:
    """Put what was named into the window; a file or note of a vault is read again when it changes."""
    from quire.items import item

    if attached.item is None:
        raise CallError(f"{attached.name} is an image, which cannot be kept in every turn", hint="/attach it instead.")
    meta = attached.item.get("metadata") or {}
    of_vault = vault is not None and attached.kind != "file" and "path" in meta
    file = vault.root.path / meta["path"] if vault is not None and of_vault else None
    return thread.keep(item(attached.item["content"], attached.item.get("type", "text"), meta or None), file=file)


def named(window: Window, name: str) -> Item:
    """The item that is meant by its ctx-N or by what it is known by."""
    from quire.items import kept_id

    items = [item for item in window if name in (item.id, kept_id(item))]
    if not items:
        holds = ", ".join(f"{item.id} {kept_id(item)}" if kept_id(item) != item.id else item.id for item in window)
        raise NotFound(f"the window holds no {name!r}", hint=f"It holds {holds}." if holds else "It is empty.")
    return items[-1]


def add(thread: Thread, names: Sequence[str], vault: Vault | None, texts: Sequence[Item] = ()) -> list[Item]:
    """Keep what is named, and texts that come as they are."""
    attachments = [attached for name in names for attached in attached_items(name, vault)]
    return [*(keep(thread, attached, vault) for attached in attachments), *(thread.keep(text) for text in texts)]


def change(window: Window, action: str, names: Sequence[str]) -> list[Item]:
    """Remove, pin or unpin what is named, or clear the window; what it was done to."""
    items = window.get() if action == "clear" else [named(window, name) for name in names]
    do = {"pin": window.pin, "unpin": window.unpin}.get(action, window.remove)
    for item in items:
        do(item.id)
    return items


def action_lines(action: str, items: Sequence[Item]) -> list[str]:
    """What was done, a line for each item."""
    from quire.tokens import counter

    did = {"add": "kept", "pin": "pinned", "unpin": "unpinned"}.get(action, "removed")
    return [f"{did} {_called(item)} ({counter().count(item.content):,} tokens)" for item in items]


def _called(item: Item) -> str:
    from quire.items import kept_id

    name = kept_id(item)
    return item.id if name == item.id else f"{item.id} {name}"


COLUMNS = ("id", "item", "type", "tokens", "pinned")


def rows(window: Window, types: Sequence[str] = (), limit: int | None = None) -> list[list[object]]:
    """A line for each item, oldest first."""
    from quire.items import kept_id
    from quire.tokens import counter

    pinned = set(window.pinned)
    return [
        [item.id, kept_id(item), item.type, counter().count(item.content), "pinned" if item.id in pinned else ""]
        for item in window.get(types, limit)
    ]


def capacity(window: Window) -> str:
    """How full it is: "3 of 50 items, 1,200 of 8,000 tokens"."""
    tokens = f"{window.tokens:,}" + (f" of {window.max_tokens:,}" if window.max_tokens is not None else "")
    per_item = f", {window.max_item_tokens:,} an item" if window.max_item_tokens is not None else ""
    return f"{len(window)} of {window.max_items} items, {tokens} tokens{per_item}"


def _texts(error: str | None, repl: str | None, language: str) -> list[Item]:
    """What comes as text: an error with its traceback, a stretch of a REPL's history."""
    from quire.items import item

    contents = {"error": error, "repl-history": repl}
    meta = {"language": language} if language else None
    return [
        item(read_text(file).rstrip("\n"), type, meta if type == "repl-history" else None)
        for type, file in contents.items()
        if file is not None
    ]


# The options that belong to one action; with another they are an error, never passed over.
_BELONG = dict.fromkeys(("error", "repl", "language", "pinned", "vault"), "add")
_BELONG |= {"type": "show", "limit": "show"}


def _check(action: str, names: Sequence[str], options: dict[str, Any]) -> None:
    for name, its in _BELONG.items():
        if its != action and options[name] not in (None, "", ()) and options[name] is not False:
            raise CallError(f"--{name} belongs to `{its}`, not to `{action}`", hint="See quire window --help.")
    takes = action not in ("show", "clear")
    if names and not takes:
        raise CallError(f"{action} takes no name, not {names[0]!r}", hint="remove, pin and unpin take names.")
    if takes and not names and options["error"] is None and options["repl"] is None:
        more = ", --error FILE or --repl FILE" if action == "add" else ""
        raise CallError(f"there is nothing to {action}", hint=f"Give a NAME{more}.")


@click.command()
@click.argument("thread")
@click.argument("action", type=click.Choice(ACTIONS), default="show", metavar=f"[{'|'.join(ACTIONS)}]")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--error", metavar="FILE", help="add: an error with its traceback, from a file or - for stdin.")
@click.option("--repl", metavar="FILE", help="add: a REPL's history, from a file or - for stdin.")
@click.option("--language", default="", help="add: the language of --repl.")
@click.option("--pinned", is_flag=True, help="add: pin it, so that it is never evicted.")
@click.option("--vault", type=click.Path(exists=True, file_okay=False), help="add: where [[notes]] are.")
@click.option("--type", multiple=True, type=click.Choice(ITEM_TYPES), help="show: these types alone.")
@click.option("--limit", type=click.IntRange(min=0), help="show: the last so many.")
@click.option("--max-items", type=int, help="Hold at most so many items, 1 to 1000; the oldest go.")
@click.option("--max-tokens", type=int, help="Hold at most so many tokens in all; 0 for no limit.")
@click.option("--max-item-tokens", type=int, help="Take items of at most so many tokens; 0 for no limit.")
@db_json_options
def window(thread: str, action: str, names: tuple[str, ...], db: Place | None, as_json: bool, **options: Any) -> None:
    """Show or change the window of THREAD: the items that join every turn until they are removed or evicted.

    NAME is a file, file:10-20, file::symbol, [[note]], #tag or folder/ to add, and ctx-N or what the item is known
    by for the rest. Added again, or changed on disk, an item is a new version of itself. What leaves the window stays
    in what was sent, and so in front of the model until the next rebase.

    \b
    Examples:
      quire window demo add src/agent.lisp src/util.py:10-20 src/util.py::parse
      make 2>&1 | quire window demo add --error -
      quire window demo pin src/agent.lisp
      quire window demo --max-items 20
    """
    from quire.notes.vault import Vault
    from quire.thread import Thread

    if thread in ACTIONS:
        raise CallError("no thread is named", hint=f"quire window THREAD {thread} …")
    _check(action, names, options)
    with open_db(db, create=action == "add") as store:
        if action != "add":
            store.info(thread)
        on = Thread(store, thread)
        for name in ("max_items", "max_tokens", "max_item_tokens"):
            if options[name] is not None:
                setattr(on.window, name, options[name] if name == "max_items" else options[name] or None)
        changed: list[Item] = []
        if action == "add":
            vault = Vault(options["vault"]) if options["vault"] else None
            changed = add(on, names, vault, _texts(options["error"], options["repl"], options["language"]))
            change(on.window, "pin", [item.id for item in changed] if options["pinned"] else [])
        elif action != "show":
            changed = change(on.window, action, names)
        _print(on.window, action, changed, options, as_json)


def _print(window: Window, action: str, changed: list[Item], options: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(window.to_json())
        return
    for line in action_lines(action, changed):
        echo(line)
    if action == "show" and len(window):
        print_table(COLUMNS, rows(window, options["type"], options["limit"]))
    echo(capacity(window))
