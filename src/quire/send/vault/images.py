"""The images embedded in the active note, as a model takes them."""

from __future__ import annotations

import base64
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.send.vault.markup import links, prose, split_front_matter
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.send.vault.vault import Vault

TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
# What every provider takes in one request.
_MAX_BYTES = 5_000_000
_MOST = 20


def embedded_images(vault: Vault, path: str, text: str) -> list[JsonObject]:
    """The images of ![[…]] and ![](…), each once; one that is missing or too large is left to its link."""
    words = prose(split_front_matter(text)[1])
    names = dict.fromkeys(
        link.target for link in links(words) if link.embed and _suffix(link.target) in TYPES
    )
    found: list[JsonObject] = []
    for name in list(names)[:_MOST]:
        data = _read(vault, path, name)
        if data is not None:
            found.append({"media_type": TYPES[_suffix(name)], "data": base64.b64encode(data).decode()})
    return found


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _read(vault: Vault, note: str, name: str) -> bytes | None:
    """An image beside the note, by its path from the vault's top, or anywhere by its name."""
    beside = f"{note.rpartition('/')[0]}/{name}".lstrip("/")
    for place in dict.fromkeys((beside, name.lstrip("/"))):
        try:
            return vault.root.read_bytes(place, _MAX_BYTES)
        except QuireError:
            continue
    base = name.rpartition("/")[2]
    anywhere = [real for real in vault.root.walk() if real.name == base]
    try:
        return (
            vault.root.read_bytes(vault.root.shown(anywhere[0]), _MAX_BYTES) if len(anywhere) == 1 else None
        )
    except QuireError:
        return None
