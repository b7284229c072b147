"""From --model to something that answers: keys and addresses from the environment, the local model otherwise."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from quire.errors import CallError
from quire.items import from_file
from quire.providers.registry import resolve, split_target
from quire.send.connect import check_explicit_cache, transport_for
from quire.send.transport import Transport, endpoint_for
from quire.values import JsonObject, item_json

model_option = click.option(
    "--model",
    help="provider:model, as in anthropic:claude-opus-5-5 (default: $QUIRE_MODEL, else the local model).",
)
url_option = click.option("--base-url", help="Another address of the same API (default: $QUIRE_BASE_URL).")

explicit_option = click.option(
    "--explicit-cache",
    is_flag=True,
    help="Keep a Gemini cache while that pays (paid by the hour; deleted at the end).",
)

# The small model may go on, or say one thing, for ever; these hold where nothing else is asked for.
LOCAL_OPTIONS: dict[str, Any] = {"max_tokens": 512, "temperature": 0, "repeat_penalty": 1.1}


class Connection(NamedTuple):
    """A model and the way to it; `options` are what its requests need besides."""

    target: str
    transport: Transport
    options: dict[str, Any]
    is_local: bool = False


def reach(model: str | None, base_url: str | None = None, explicit_cache: bool = False) -> Connection:
    """The model that was named, else the one of the environment, else the local one."""
    target = model or os.environ.get("QUIRE_MODEL") or "local:smollm2"
    _check_named(target)
    if explicit_cache:
        check_explicit_cache(target)
    url = base_url or os.environ.get("QUIRE_BASE_URL")
    if not url and is_embedded(target):
        return _local()
    transport = transport_for(target, url, _key(target), proxies=not url, explicit_cache=explicit_cache)
    return Connection(target, transport, {})


def _check_named(target: str) -> None:
    provider, model = split_target(target)
    if not model and provider != "local" and resolve(provider)[0] != "llamacpp":
        raise CallError(
            f"{target!r} names no model",
            hint=f"Write {provider}:MODEL; `quire models {provider}` lists them.",
        )


def is_embedded(target: str) -> bool:
    """Whether a target means the model that Quire starts itself."""
    provider, model = split_target(target)
    return provider == "local" or (resolve(provider)[0] == "llamacpp" and model == "smollm2")


def _local() -> Connection:
    from quire.send.local import local_target

    target, url = local_target(say=lambda line: click.echo(line, err=True))
    return Connection(target, transport_for(target, url), dict(LOCAL_OPTIONS), is_local=True)


def _key(target: str) -> str | None:
    names = endpoint_for(target).keys
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


# --attach PATH: notes, files and images as they join a turn.

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
