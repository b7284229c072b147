"""--attach PATH: notes, files and images as they join a turn."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import click

from quire.errors import CallError
from quire.items import from_file
from quire.values import JsonObject, item_json

attach_option = click.option(
    "--attach",
    "attach",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A file that joins this turn: text, a markdown note, or an image (again for more).",
)
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_NOTES = (".md", ".markdown")
_MAX_IMAGE = 5 * 1024 * 1024


def attachments(paths: Sequence[str]) -> tuple[list[JsonObject], list[JsonObject]]:
    """The items and the images of a list of paths."""
    items = [_item(path) for path in paths if Path(path).suffix.lower() not in _IMAGES]
    images = [_image(path) for path in paths if Path(path).suffix.lower() in _IMAGES]
    return items, images


def _item(path: str) -> JsonObject:
    made = item_json(from_file(path, truncate=True))
    if Path(path).suffix.lower() in _NOTES:
        made["metadata"] = {"source": "note", "path": path, "title": Path(path).stem}
    return {**made, "id": path}


def _image(path: str) -> JsonObject:
    data = Path(path).read_bytes()
    if len(data) > _MAX_IMAGE:
        raise CallError(
            f"{path} has {len(data):,} bytes; the limit is {_MAX_IMAGE:,}", hint="Make it smaller."
        )
    return {"media_type": _IMAGES[Path(path).suffix.lower()], "data": base64.b64encode(data).decode()}
