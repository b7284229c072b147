"""What joins a question: files, some of their lines, symbols, images; notes, tags and folders of a vault."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import click
import msgspec

from quire.assemble.user_message import block
from quire.errors import CallError, NotFound, QuireError
from quire.items import from_file, from_region, from_symbol
from quire.notes.note import links, prose
from quire.notes.vault import Vault
from quire.tokens import IMAGE_TOKENS, counter
from quire.values import Item, JsonObject, item_json

Kind = Literal["file", "note", "tags", "folders"]
_LINES = re.compile(r"(.+):(\d+)-(\d+)\Z")
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_NOTES = (".md", ".markdown")
_MAX_IMAGE = 5 * 1024 * 1024

attach_option = click.option(
    "--attach",
    multiple=True,
    help="A file, file:10-20, file::symbol, image, [[note]], #tag or folder/ for the (first) question; may be repeated.",
)


class Attached(msgspec.Struct, frozen=True):
    """An item or an image, and by what name it was asked for."""

    item: JsonObject | None
    name: str
    kind: Kind = "file"
    image: JsonObject | None = None

    @property
    def label(self) -> str:
        """What it is known as."""
        return block(self.item).id if self.item is not None else f"{self.name} (image)"

    @property
    def tokens(self) -> int:
        """What it counts for; an image, what a model is shown of it."""
        return counter().count(self.item["content"]) if self.item is not None else IMAGE_TOKENS


def attached_items(name: str, vault: Vault | None) -> list[Attached]:
    """What a name means; a note of the vault goes before a file of the same name."""
    if re.match(r"https?://", name):
        raise CallError(f"{name} is not fetched here", hint="Save the page's text to a file and attach that.")
    if vault is not None and (found := _from_vault(name, vault)):
        return found
    return [_from_files(name, vault)]


def linked_items(text: str, vault: Vault | None, note: Callable[[str], None]) -> list[Attached]:
    """The notes that a question names in [[brackets]]; of one that cannot be read, `note` hears why."""
    found: list[Attached] = []
    for link in links(prose(text)) if vault is not None else ():
        try:
            found += attached_items(f"[[{link.target}]]", vault)
        except QuireError as error:
            note(f"[[{link.target}]] was not attached: {error}")
    return found


def question(attached: Iterable[Attached], meta: JsonObject) -> JsonObject:
    """What `thread.user` takes beside the words; tags and folders are named for chat files."""
    listed = list(attached)
    named = {
        kind: list(dict.fromkeys(one.name for one in listed if one.kind == kind))
        for kind in ("tags", "folders")
    }
    context = {kind: names for kind, names in named.items() if names}
    return {
        "attach": [one.item for one in listed if one.item is not None],
        "images": [one.image for one in listed if one.image is not None] or None,
        "meta": {**meta, **({"context": context} if context else {})},
    }


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


def _from_files(name: str, vault: Vault | None) -> Attached:
    path = Path(name).expanduser()
    if path.is_file():
        return _file(path, name)
    if match := _LINES.match(name):
        file, start, end = match[1], int(match[2]), int(match[3])
        region = from_region(Path(file).expanduser(), start, end, name=file)
        return Attached(_known(region, f"{file}#L{start}-L{end}"), name)
    file, colons, symbol = name.partition("::")
    if colons:
        return Attached(_known(from_symbol(Path(file).expanduser(), symbol, name=file), name), name)
    if vault is None and name.startswith("[["):
        raise CallError(f"{name} is a note of no vault", hint="Name the folder of notes with --vault.")
    raise NotFound(f"there is no file {name!r}", hint=_near(path))


def _file(path: Path, name: str) -> Attached:
    suffix = path.suffix.lower()
    # A name with ~ is known by the path it means.
    called = readable(name if path == Path(name) else str(path))
    if suffix in _IMAGES:
        return Attached(None, called, image=_image(path, suffix))
    made = item_json(from_file(path, name=called, truncate=True))
    if suffix in _NOTES:
        made["metadata"] = {"source": "note", "path": called, "title": readable(path.stem)}
    return Attached({**made, "id": called}, called)


def readable(name: str) -> str:
    """A file's name as text; bytes that are no UTF-8 are shown by their number."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _image(path: Path, suffix: str) -> JsonObject:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CallError(f"cannot read {path}: {error.strerror}", hint="Check the path.") from error
    if len(data) > _MAX_IMAGE:
        raise CallError(
            f"{path} has {len(data):,} bytes; the limit is {_MAX_IMAGE:,}", hint="Make it smaller."
        )
    return {"media_type": _IMAGES[suffix], "data": base64.b64encode(data).decode()}


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
