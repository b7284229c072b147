"""What a shell offers when Tab is pressed behind a command: threads of the database, models, providers, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from quire.cli.store import open_db


def _threads(ctx: click.Context) -> Iterable[str]:
    with open_db(ctx.params.get("db"), create=False) as store:
        return [info.name for info in store.threads()]


def _models(ctx: click.Context) -> Iterable[str]:
    from quire.providers.models import known_models

    return (f"{info.provider}:{info.model}" for info in known_models())


def _providers(ctx: click.Context) -> Iterable[str]:
    from quire.providers.models import providers

    return providers()


def _notes(ctx: click.Context) -> Iterable[str]:
    vault = ctx.params.get("vault")
    return (path.stem for path in sorted(Path(vault).rglob("*.md"))) if vault else ()


_OFFERED: dict[str, Callable[[click.Context], Iterable[str]]] = {
    "thread": _threads,
    "source": _threads,
    "model": _models,
    "target": _models,
    "provider": _providers,
    "note": _notes,
    "notes": _notes,
}


class OfferedNames(click.types.StringParamType):
    """A text for which the shell offers what there is."""

    def __init__(self, offer: Callable[[click.Context], Iterable[str]]) -> None:
        self._offer = offer

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            return [CompletionItem(each) for each in self._offer(ctx) if each.startswith(incomplete)]
        except Exception:  # a shell that completes shows no errors
            return []


def complete(command: click.Command) -> None:
    """Have a command, and those below it, offer threads, models, providers and notes where they are named."""
    for param in command.params:
        if isinstance(param.type, click.types.StringParamType) and param.name in _OFFERED:
            param.type = OfferedNames(_OFFERED[param.name])
    if isinstance(command, click.Group):
        for below in command.commands.values():
            complete(below)
