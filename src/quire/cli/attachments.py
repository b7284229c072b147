"""What joins a question: files, some of their lines, symbols, images; web pages; notes, tags and folders of a vault;
and what joins every turn (`quire window`; `/window`, `/pin` and `/unpin` of a chat do the same).
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

import click
import msgspec

from quire.cli.output import Place, answer, db_json_options, echo, open_db, option, print_table, read_text, with_options
from quire.errors import CallError, FormatError, NotFound, QuireError, needs_extra
from quire.items import Window, from_file, from_image, from_region, from_symbol, from_url, item, kept_id
from quire.items.sources import IMAGE_TYPES, MAX_IMAGE, document_text
from quire.tokens import IMAGE_TOKENS, counter
from quire.values import ITEM_TYPES, Item, JsonObject, item_json

if TYPE_CHECKING:
    from quire.notes.vault import Vault
    from quire.thread import Thread


_LINES = re.compile(r"(.+):(\d+)-(\d+)\Z")
_NOTES = (".md", ".markdown")

question_options = with_options(
    option(
        "--attach",
        "A file, file:10-20, file::symbol, image, URL, [[note]], #tag or folder/ for the (first) question; may be repeated.",
        multiple=True,
    ),
    option("--note", "A note of --vault to show with every question, with its images."),
)


class Attachment(msgspec.Struct, frozen=True):
    """An item or an image, and by what name it was asked for."""

    item: JsonObject | None
    name: str
    kind: Literal["file", "note", "tags", "folders"] = "file"
    image: JsonObject | None = None
    # An image that comes with its note: once is enough.
    embedded: bool = False

    @property
    def label(self) -> str:
        """What it is known as."""
        from quire.assemble.user_message import block

        return block(self.item).id if self.item is not None else f"{self.name} (image)"

    @property
    def tokens(self) -> int:
        """What it counts for; an image, what a model is shown of it."""
        return counter().count(self.item["content"]) if self.item is not None else IMAGE_TOKENS


def attached_items(name: str, vault: Vault | None) -> list[Attachment]:
    """What a name means; a note of the vault goes before a file of the same name."""
    if re.match(r"[a-z][a-z0-9+.-]+://", name, re.I):
        return [_from_web(name)]
    if vault is not None and (items := _from_vault(name, vault)):
        return items
    return [_from_files(name, vault)]


def note_items(name: str | None, vault: Vault | None) -> list[Attachment]:
    """The note that is being looked at, as it is now, its images with it."""
    if not name:
        return []
    if vault is None:
        raise _no_vault(name)
    return [Attachment(item_json(item), name, "note") for item in vault.active(name)]


def _no_vault(name: str) -> CallError:
    return CallError(f"{name} is a note of no vault", hint="Name the folder of notes with --vault.")


def linked_items(text: str, vault: Vault | None, note: Callable[[str], None]) -> list[Attachment]:
    """The notes that a question names in [[brackets]]; of one that cannot be read, `note` hears why."""
    from quire.notes.note import links, prose

    items: list[Attachment] = []
    for link in links(prose(text)) if vault is not None else ():
        try:
            items += attached_items(f"[[{link.target}]]", vault)
        except QuireError as error:
            note(f"[[{link.target}]] was not attached: {error}")
    return items


def question(attached: Iterable[Attachment], meta: JsonObject, thread: Thread) -> JsonObject:
    """What `thread.user` takes beside the words; tags and folders are named for chat files.

    The images of a note that stand in the thread already are not sent again.
    """
    listed = list(attached)
    images = _sent_images(thread) if any(part.embedded for part in listed) else set()
    listed = [part for part in listed if not (part.image and part.embedded and part.image["data"] in images)]
    named = {
        kind: list(dict.fromkeys(part.name for part in listed if part.kind == kind)) for kind in ("tags", "folders")
    }
    context = {kind: names for kind, names in named.items() if names}
    return {
        "attach": [part.item for part in listed if part.item is not None],
        "images": [part.image for part in listed if part.image is not None] or None,
        "meta": {**meta, **({"context": context} if context else {})},
    }


def _sent_images(thread: Thread) -> set[str]:
    """The images that a model was shown since the last rebase."""
    images_data: set[str] = set()
    for entry in thread.entries:
        images = entry.body.get("images") or () if entry.kind == "user" else ()
        images_data = set() if entry.kind == "rebase" else images_data
        images_data |= {image["data"] for image in images if isinstance(image, dict) and "data" in image}
    return images_data


def _from_vault(name: str, vault: Vault) -> list[Attachment]:
    if name.startswith("#"):
        return [Attachment(item_json(item), name, "tags") for item in vault.tagged(name)]
    if name.endswith("/"):
        return [Attachment(item_json(item), name.rstrip("/"), "folders") for item in vault.within(name)]
    try:
        items = [Attachment(item_json(item), name, "note") for item in vault.attach(name)]
        return items + [Attachment(None, name, image=image, embedded=True) for image in vault.images(name)]
    except CallError as error:
        if name.startswith("[[") and isinstance(error, NotFound) and (place := vault.file(name)):
            return [_file(vault.root.path / place, place)]
        # A file may be meant; a name in brackets is always a note's.
        if name.startswith("[[") or not (isinstance(error, NotFound) or os.path.isfile(name)):
            raise
        return []


def _from_files(name: str, vault: Vault | None) -> Attachment:
    """A file, lines or a symbol of one, under its own name, so that it is recognised when it is attached again."""
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path):
        return _file(path, name)
    if match := _LINES.match(name):
        file, start, end = match[1], int(match[2]), int(match[3])
        region = from_region(Path(os.path.expanduser(file)), start, end, name=file)
        return Attachment({**item_json(region), "id": f"{file}#L{start}-L{end}"}, name)
    file, colons, symbol = name.partition("::")
    if colons:
        definition = from_symbol(Path(os.path.expanduser(file)), symbol, name=file)
        return Attachment({**item_json(definition), "id": name}, name)
    if vault is None and name.startswith("[["):
        raise _no_vault(name)
    is_folder = os.path.isdir(path)
    if is_folder or (vault is None and name.startswith("#")):
        hint = "Notes of a folder or a tag come from a vault: --vault DIRECTORY --attach folder/ or '#tag'."
        raise CallError(f"{name!r} is a {'folder' if is_folder else 'tag'}, no file", hint=hint)
    raise NotFound(f"there is no file {name!r}", hint=_near(path))


def _file(path: Path, name: str) -> Attachment:
    suffix = path.suffix.lower()
    # A name with ~ is known by the path it means.
    called = readable(str(path) if name.startswith("~") else name)
    if suffix in IMAGE_TYPES:
        return Attachment(None, called, image=from_image(path))
    item = item_json(from_file(path, name=called, truncate=True))
    if suffix in _NOTES:
        item["metadata"] = {"source": "note", "path": called, "title": readable(path.stem)}
    return Attachment({**item, "id": called}, called)


def readable(name: str) -> str:
    """A file's name as text; bytes that are no UTF-8 are shown by their number."""
    return os.fsencode(name).decode(errors="backslashreplace")


# Web pages: fetched as the user named them, within a size and a time, and never led from the web to this machine.

_MAX_PAGE = 10_000_000
_MAX_SECONDS = 30.0
_MAX_REDIRECTS = 5
_ENDINGS = {
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
}
_PLAIN = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|javascript|x-ndjson)")


def _from_web(name: str) -> Attachment:
    """A page as an item under its address, an image as an image."""
    from quire.send.transport import without_password

    url = without_password(name).partition("#")[0]
    kind, data, encoding = _fetch(name, url)
    if kind in IMAGE_TYPES.values():
        return Attachment(None, url, image={"media_type": kind, "data": base64.b64encode(data).decode()})
    title = ""
    if kind in _ENDINGS:
        text = document_text(data, f"{url}{'' if url.endswith(_ENDINGS[kind]) else _ENDINGS[kind]}")
    elif kind in ("text/html", "application/xhtml+xml"):
        title, text = page_text(data.decode(encoding, "replace"))
    elif _PLAIN.fullmatch(kind):
        text = data.decode(encoding, "replace")
    else:
        raise FormatError(
            f"{url} is {kind}, which has no text", hint="Pages, text, PDF, Word files and images can be attached."
        )
    if not text.strip():
        raise FormatError(
            f"{url} holds no text", hint="Pages that a program writes are empty here; save and attach them."
        )
    return Attachment(item_json(from_url(url, text, title=title, truncate=True)), url)


def _fetch(name: str, url: str) -> tuple[str, bytes, str]:
    """The media type, the bytes and the encoding of what stands at an address."""
    with needs_extra("fetching pages needs httpx", "send"):
        import httpx
    begin, place, may_be_private = time.monotonic(), name, _is_private(urlsplit(name).hostname)
    try:
        with httpx.Client(timeout=10, headers={"user-agent": "quire"}) as client:
            for _ in range(_MAX_REDIRECTS + 1):
                _check_place(place, url, may_be_private)
                with client.stream("GET", place) as reply:
                    if not (reply.is_redirect and "location" in reply.headers):
                        return _read_page(reply, url, begin)
                    place = urljoin(place, reply.headers["location"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise CallError(
            f"{url} could not be fetched: {str(error) or type(error).__name__}",
            hint="Check the address and the network.",
        ) from error
    raise CallError(f"{url} redirects more than {_MAX_REDIRECTS} times", hint="Attach the address it should end at.")


def _check_place(place: str, url: str, may_be_private: bool) -> None:
    from quire.send.transport import without_password

    parts = urlsplit(place)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise CallError(f"{without_password(place)} is no web address", hint="Give http:// or https://.")
    if not may_be_private and _is_private(parts.hostname):
        hint = "Attach that address itself if you mean it."
        raise CallError(f"{url} leads to {parts.hostname}, which is no public address", hint=hint)


def _read_page(reply: Any, url: str, begin: float) -> tuple[str, bytes, str]:
    if reply.status_code != 200:
        raise CallError(f"{url} answered {reply.status_code} {reply.reason_phrase}", hint="Check the address.")
    kind = reply.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
    limit = MAX_IMAGE if kind in IMAGE_TYPES.values() else _MAX_PAGE
    data = bytearray()
    for part in reply.iter_bytes():
        data += part
        if len(data) > limit:
            raise CallError(f"{url} has more than {limit:,} bytes", hint="Save it and attach a part.")
        if time.monotonic() - begin > _MAX_SECONDS:
            raise CallError(f"{url} took more than {_MAX_SECONDS:.0f} seconds", hint="Save it and attach the file.")
    return kind, bytes(data), reply.charset_encoding or "utf-8"


def _is_private(host: str | None) -> bool:
    """Whether a name means this machine or one of its network; a name that means nothing does not."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host or "", None)}
    except (OSError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(str(address).partition("%")[0]).is_global for address in addresses)


class _Page(HTMLParser):
    """The text of a page as markdown: headings, items, rows and paragraphs; scripts and styles left out."""

    _SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe"})
    _BREAKS = frozenset(
        {"p", "div", "section", "article", "header", "footer", "nav", "main", "aside", "ul", "ol", "table", "tr", "dl",
         "blockquote", "pre", "br", "hr", "dt", "dd", "form", "h1", "h2", "h3", "h4", "h5", "h6", "li", "figure"}
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.title = ""
        self._silent: list[str] = []
        self._pre = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title" and not self.title
        if "head" in self._silent and (tag == "body" or tag in self._BREAKS):
            self._silent.clear()  # its end need not be written
        if tag in self._SILENT:
            self._silent.append(tag)
        self._pre += tag == "pre"
        if tag in self._BREAKS:
            lead = f"{'#' * int(tag[1])} " if re.fullmatch("h[1-6]", tag) else "- " if tag == "li" else ""
            self.parts.append(f"\n{'' if tag in ('li', 'tr', 'br') else chr(10)}{lead}")
        elif tag in ("td", "th"):
            self.parts.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"
        self._pre -= tag == "pre" and self._pre > 0
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]
        if tag in self._BREAKS and tag not in ("li", "tr", "br"):
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._silent:
            self.parts.append(data if self._pre else re.sub(r"\s+", " ", data))


def page_text(html: str) -> tuple[str, str]:
    """The title and the text of a page."""
    page = _Page()
    page.feed(html)
    page.close()
    text = re.sub(r"[ \t]*\n[ \t]*(?=\n)", "\n", "".join(page.parts))
    text = re.sub(r"(?m)^ (?=\S)", "", re.sub(r"\n{3,}", "\n\n", text))
    return " ".join(page.title.split()), text.strip()


def _near(path: Path) -> str:
    try:
        names = sorted(file.name for file in path.parent.iterdir() if file.is_file())
    except OSError:
        return "Check the path."
    near = get_close_matches(path.name, names, 3, 0.5)
    return f"Did you mean {' or '.join(near)}?" if near else "Check the path."


# `quire window`: the items that join every turn of a thread.

WINDOW_ACTIONS = ("show", "add", "remove", "pin", "unpin", "clear")


def keep_attached(thread: Thread, attached: Attachment, vault: Vault | None = None) -> Item:
    """Put what was named into the window; a file or note of a vault is read again when it changes."""
    if attached.item is None:
        raise CallError(f"{attached.name} is an image, which cannot be kept in every turn", hint="/attach it instead.")
    meta = attached.item.get("metadata") or {}
    of_vault = vault is not None and attached.kind != "file" and "path" in meta
    file = vault.root.path / meta["path"] if vault is not None and of_vault else None
    return thread.keep(item(attached.item["content"], attached.item.get("type", "text"), meta or None), file=file)


def window_item(window: Window, name: str) -> Item:
    """The item that is meant by its ctx-N or by what it is known by."""
    items = [item for item in window if name in (item.id, kept_id(item))]
    if not items:
        holds = ", ".join(map(_item_name, window))
        raise NotFound(f"the window holds no {name!r}", hint=f"It holds {holds}." if holds else "It is empty.")
    return items[-1]


def change_window(
    thread: Thread, action: str, names: Sequence[str], vault: Vault | None = None, texts: Sequence[Item] = ()
) -> list[Item]:
    """Add what is named, and texts that come as they are; or remove, pin or unpin it, or clear the window; what it was done to."""
    window = thread.window
    if action == "add":
        attachments = [attached for name in names for attached in attached_items(name, vault)]
        return [*(keep_attached(thread, part, vault) for part in attachments), *map(thread.keep, texts)]
    items = window.get() if action == "clear" else [window_item(window, name) for name in names]
    do = {"pin": window.pin, "unpin": window.unpin}.get(action, window.remove)
    for changed in items:
        do(changed.id)
    return items


def action_lines(action: str, items: Sequence[Item]) -> list[str]:
    """What was done, a line for each item."""
    did = {"add": "kept", "pin": "pinned", "unpin": "unpinned"}.get(action, "removed")
    return [f"{did} {_item_name(item)} ({counter().count(item.content):,} tokens)" for item in items]


def _item_name(item: Item) -> str:
    name = kept_id(item)
    return item.id if name == item.id else f"{item.id} {name}"


WINDOW_COLUMNS = ("id", "item", "type", "tokens", "pinned")


def window_rows(window: Window, types: Sequence[str] = (), limit: int | None = None) -> list[list[object]]:
    """A line for each item, oldest first."""
    pinned = set(window.pinned)
    return [
        [item.id, kept_id(item), item.type, counter().count(item.content), "pinned" if item.id in pinned else ""]
        for item in window.get(types, limit)
    ]


def window_capacity(window: Window) -> str:
    """How full it is: "3 of 50 items, 1,200 of 8,000 tokens"."""
    tokens = f"{window.tokens:,}" + (f" of {window.max_tokens:,}" if window.max_tokens is not None else "")
    per_item = f", {window.max_item_tokens:,} an item" if window.max_item_tokens is not None else ""
    return f"{len(window)} of {window.max_items} items, {tokens} tokens{per_item}"


def _texts(error: str | None, repl: str | None, language: str) -> list[Item]:
    """What comes as text: an error with its traceback, a stretch of a REPL's history."""
    contents = {"error": error, "repl-history": repl}
    meta = {"language": language} if language else None
    return [
        item(read_text(file).rstrip("\n"), type, meta if type == "repl-history" else None)
        for type, file in contents.items()
        if file is not None
    ]


# The options that belong to one action; with another they are an error, never passed over.
_OPTION_OF = dict.fromkeys(("error", "repl", "language", "pinned", "vault"), "add")
_OPTION_OF |= {"type": "show", "limit": "show"}


def _check_window(action: str, names: Sequence[str], options: dict[str, Any]) -> None:
    for name, its in _OPTION_OF.items():
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
@click.argument("action", type=click.Choice(WINDOW_ACTIONS), default="show", metavar=f"[{'|'.join(WINDOW_ACTIONS)}]")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("--error", "add: an error with its traceback, from a file or - for stdin.", metavar="FILE")
@option("--repl", "add: a REPL's history, from a file or - for stdin.", metavar="FILE")
@option("--language", "add: the language of --repl.", default="")
@option("--pinned", "add: pin it, so that it is never evicted.", bool)
@option("--vault", "add: where [[notes]] are.", click.Path(exists=True, file_okay=False))
@option("--type", "show: only these types.", ITEM_TYPES, multiple=True)
@option("--limit", "show: only so many, the newest.", click.IntRange(min=0))
@option("--max-items", "Hold at most so many items, 1 to 1000; the oldest are evicted.", int)
@option("--max-tokens", "Hold at most so many tokens in all; 0 for no limit.", int)
@option("--max-item-tokens", "Take items of at most so many tokens; 0 for no limit.", int)
@db_json_options
def window(thread: str, action: str, names: tuple[str, ...], db: Place | None, as_json: bool, **options: Any) -> None:
    """Show or change the window of THREAD: the items that join every turn until they are removed or evicted.

    For add, NAME is a file, file:10-20, file::symbol, [[note]], #tag or folder/; otherwise it is ctx-N or the item's
    own name. An item that is added again, or changed on disk, becomes a new version of itself. An item that leaves
    the window stays in earlier messages, so the model sees it until the next rebase.

    \b
    Examples:
      quire window demo add src/agent.lisp src/util.py:10-20 src/util.py::parse
      make 2>&1 | quire window demo add --error -
      quire window demo pin src/agent.lisp
      quire window demo --max-items 20
    """
    from quire.notes.vault import Vault
    from quire.thread import Thread

    if thread in WINDOW_ACTIONS:
        raise CallError("no thread is named", hint=f"quire window THREAD {thread} …")
    _check_window(action, names, options)
    with open_db(db, create=action == "add") as store:
        if action != "add":
            store.info(thread)
        on = Thread(store, thread)
        for name in ("max_items", "max_tokens", "max_item_tokens"):
            if options[name] is not None:
                setattr(on.window, name, options[name] if name == "max_items" else options[name] or None)
        vault = Vault(options["vault"]) if options["vault"] else None
        texts = _texts(options["error"], options["repl"], options["language"])
        changed = change_window(on, action, names, vault, texts)
        if options["pinned"]:
            change_window(on, "pin", [item.id for item in changed])
        answer(as_json, on.window.to_json(), partial(_print_window, on.window, action, changed, options))


def _print_window(window: Window, action: str, changed: list[Item], options: dict[str, Any]) -> None:
    for line in action_lines(action, changed):
        echo(line)
    if action == "show" and len(window):
        print_table(WINDOW_COLUMNS, window_rows(window, options["type"], options["limit"]))
    echo(window_capacity(window))
