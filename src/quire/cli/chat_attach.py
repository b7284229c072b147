"""What a person means by a name: a file, some of its lines, a symbol; a note, a tag or a folder of the vault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from quire.errors import CallError, NotFound
from quire.items import from_file, from_region, from_symbol
from quire.send.vault import Vault
from quire.values import Item

Kind = Literal["file", "note", "tags", "folders"]
_LINES = re.compile(r"(.+):(\d+)-(\d+)\Z")


class Attached(msgspec.Struct, frozen=True):
    """An item, and by what name it was asked for."""

    item: Item
    name: str
    kind: Kind = "file"


def attached_items(name: str, vault: Vault | None) -> list[Attached]:
    """The items that a name means; a note of the vault goes before a file of the same name."""
    if re.match(r"https?://", name):
        raise CallError(f"{name} is not fetched here", hint="Save the page's text to a file and attach that.")
    if vault is not None and (found := _from_vault(name, vault)):
        return found
    return [Attached(_from_files(name), name)]


def _from_vault(name: str, vault: Vault) -> list[Attached]:
    if name.startswith("#"):
        return [Attached(item, name, "tags") for item in vault.tagged(name)]
    if name.endswith("/"):
        return [Attached(item, name.rstrip("/"), "folders") for item in vault.within(name)]
    try:
        return [Attached(item, name, "note") for item in vault.attach(name)]
    except NotFound:
        return []
    except CallError:
        if Path(name).is_file():
            return []
        raise


def _from_files(name: str) -> Item:
    path = Path(name).expanduser()
    if path.is_file():
        return _known(from_file(path, name=name, truncate=True), name)
    if match := _LINES.match(name):
        file, start, end = match[1], int(match[2]), int(match[3])
        return _known(from_region(Path(file).expanduser(), start, end, name=file), f"{file}#L{start}-L{end}")
    file, colons, symbol = name.partition("::")
    if colons:
        return _known(from_symbol(Path(file).expanduser(), symbol, name=file), name)
    raise NotFound(f"there is no file {name!r}", hint=_near(path))


def _near(path: Path) -> str:
    try:
        names = sorted(one.name for one in path.parent.iterdir() if one.is_file())[:5]
    except OSError:
        return "Check the path."
    return f"There is {', '.join(names)}." if names else "Check the path."


def _known(item: Item, id: str) -> Item:
    """An item under a name of its own, so that it is recognised when it is attached again."""
    return msgspec.structs.replace(item, id=id)
