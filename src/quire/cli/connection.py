"""From --model to something that answers: keys and addresses from the environment, the local model otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quire.cli.output import Place, default_db, echo, may_be_there
from quire.cli.store import open_db
from quire.errors import CallError

if TYPE_CHECKING:
    from quire.send.transport import Transport

_OPTIONS = (
    click.option(
        "--model",
        help="provider:model (default: $QUIRE_MODEL, else the thread's last one, else the local model).",
    ),
    click.option("--base-url", help="Another address of the same API (default: $QUIRE_BASE_URL)."),
    click.option(
        "--explicit-cache",
        is_flag=True,
        help="Keep a Gemini cache while that pays (paid by the hour; deleted at the end).",
    ),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a model and the way to it."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


# The small model may go on, or say one thing, for ever; these hold where nothing else is asked for.
LOCAL_OPTIONS: dict[str, Any] = {"max_tokens": 512, "temperature": 0, "repeat_penalty": 1.1}


class Connection(NamedTuple):
    """A model and the way to it; `options` are what its requests need besides."""

    target: str
    transport: Transport
    options: dict[str, Any]
    is_local: bool = False
    # The tokens that the server says it takes; 0 where it does not say.
    window: int = 0


def reach(
    model: str | None, base_url: str | None = None, explicit_cache: bool = False, last: str = ""
) -> Connection:
    """The model that was named, else the one of the environment, else the thread's last, else the local one."""
    from quire.send.connect import check_explicit_cache, transport_for

    target = model or os.environ.get("QUIRE_MODEL") or last or "local:smollm2"
    _check_named(target)
    if explicit_cache:
        check_explicit_cache(target)
    url = base_url or os.environ.get("QUIRE_BASE_URL")
    if not url and is_embedded(target):
        return _local()
    transport = transport_for(
        target, url, _key(target), proxies=not url, explicit_cache=explicit_cache, say=_say
    )
    return Connection(target, transport, {}, window=_window(target, url))


def _check_named(target: str) -> None:
    from quire.providers.models import resolve, split_target

    provider, model = split_target(target)
    if not model and provider != "local" and resolve(provider)[0] != "llamacpp":
        raise CallError(
            f"{target!r} names no model",
            hint=f"Write {provider}:MODEL; `quire models {provider}` lists them.",
        )


def is_embedded(target: str) -> bool:
    """Whether a target means the model that Quire starts itself."""
    from quire.providers.models import resolve, split_target

    provider, model = split_target(target)
    return provider == "local" or (resolve(provider)[0] == "llamacpp" and model == "smollm2")


def _local() -> Connection:
    from quire.send.connect import transport_for
    from quire.send.local import local_target

    target, url = local_target(say=_say)
    transport = transport_for(target, url)
    return Connection(target, transport, dict(LOCAL_OPTIONS), is_local=True, window=_window(target, url))


def _window(target: str, url: str | None) -> int:
    """What a server of one's own says of its window; a provider is not asked."""
    from quire.providers.models import split_target
    from quire.send.http import told_window
    from quire.send.transport import endpoint_for

    endpoint = endpoint_for(target)
    if endpoint.needs_key or not endpoint.base_url:
        return 0
    return told_window(url or endpoint.base_url, split_target(target)[1], _key(target) or "")


def last_model(db: Place | None, thread: str) -> str:
    """The model that a thread was last sent to; empty where there is none."""
    from quire.send.cycle import last_target

    if not may_be_there(db or default_db()):
        return ""
    with open_db(db, create=False) as store:
        known = any(info.name == thread for info in store.threads())
        return last_target(store, thread) if known else ""


def _say(line: str) -> None:
    echo(line, err=True, dim=True)


def _key(target: str) -> str | None:
    from quire.send.transport import endpoint_for

    names = endpoint_for(target).keys
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
