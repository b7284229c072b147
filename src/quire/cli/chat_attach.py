"""What a person means by a name: a file, some of its lines, a symbol; a note, a tag or a folder of the vault."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import msgspec

from quire.cli.attached import attachments
from quire.errors import CallError, NotFound
from quire.items import from_region, from_symbol
from quire.send.vault import Vault
from quire.values import Item, JsonObject, item_json

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
