"""A chat file as a thread: old turns from the comment, new ones from the text, their notes read fresh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from quire import values
from quire.archive.parse import parse
from quire.archive.project import VERSION, project_messages
from quire.archive.value import Chat, Context, Message
from quire.errors import FormatError, QuireError
from quire.log.entries import check
from quire.values import Entry, Item, Json, JsonObject


class Notes(Protocol):
    """Where the notes that a chat names are read; a vault is one."""

    def attach(self, name: str) -> list[Item]:
        """The items of a note, by full path or unique name; a NotFound or CallError says what is wrong."""

    def tagged(self, tag: str) -> list[Item]:
        """The notes with a tag."""

    def within(self, folder: str) -> list[Item]:
        """The notes in a folder."""


class Loaded(msgspec.Struct, frozen=True):
    """A thread's entries, and what could not be taken over."""

    entries: tuple[Entry, ...]
    chat: Chat
    warnings: tuple[str, ...] = ()
    thread: str = ""
    window: Json = None


def load(text: str, notes: Notes | None = None) -> Loaded:
    """The entries of a chat file; nothing that is merely missing stops it, everything missing is a warning."""
    chat = parse(text)
    warnings: list[str] = []
    old = _old(chat, warnings)
    shown = project_messages(old)
    _compare(shown, chat.messages, warnings)
    new = [one for message in chat.messages[len(shown) :] for one in _entries(message, notes, warnings)]
    held = chat.comment if old and chat.comment else {}
    name = held.get("thread")
    return Loaded(
        (*old, *new), chat, tuple(warnings), name if isinstance(name, str) else "", held.get("window")
    )


def _old(chat: Chat, warnings: list[str]) -> list[Entry]:
    """The entries of the comment; one that cannot be read leaves the text to speak for itself."""
    held = chat.comment
    if held is None:
        return []
    if isinstance(held.get("version"), int) and held["version"] > VERSION:
        raise FormatError(
            f"the chat file's comment has version {held['version']}, this Quire reads {VERSION}",
            hint="Upgrade Quire, or remove the comment to load the text alone.",
        )
    try:
        return [check(body) for body in _bodies(held)]
    except FormatError as error:
        warnings.append(f"the comment cannot be read ({error}); the text is loaded instead")
        return []


def _bodies(held: JsonObject) -> Sequence[Json]:
    entries = held.get("entries")
    if not isinstance(entries, list):
        raise FormatError("it holds no list of entries")
    return entries


def _compare(old: Sequence[Message], shown: Sequence[Message], warnings: list[str]) -> None:
    """Old turns come from the comment; where the text says something else, that is told."""
    changed = [
        n for n, (a, b) in enumerate(zip(old, shown, strict=False), 1) if (a.role, a.text) != (b.role, b.text)
    ]
    if changed:
        listed = ", ".join(map(str, changed[:5])) + (", …" if len(changed) > 5 else "")
        warnings.append(f"message {listed} was edited in the file; the original in the comment is used")
    if len(shown) < len(old):
        gone = len(old) - len(shown)
        told = "1 message was removed from the file; the comment still has it"
        if gone > 1:
            told = f"{gone} messages were removed from the file; the comment still has them"
        warnings.append(told)


def _entries(message: Message, notes: Notes | None, warnings: list[str]) -> Iterator[Entry]:
    at = {} if message.at is None else {"at": message.at}
    if message.role == "ai":
        yield values.respond(message.text, **at)
        return
    items = list(_items(message.context, notes, warnings))
    named = {key: list(value) for key, value in _shown(message.context).items() if value}
    yield values.user(message.text, items, **at, **({"meta": {"context": named}} if named else {}))


def _shown(context: Context) -> dict[str, tuple[str, ...]]:
    return {"tags": context.tags, "folders": context.folders}


def _items(context: Context, notes: Notes | None, warnings: list[str]) -> Iterator[Item]:
    """The attachments of a new turn, read now; what cannot be read is skipped with a warning."""
    for url in context.urls:
        warnings.append(f"{url} was not fetched: attach its text again")
    if notes is None:
        named = [*context.notes, *context.tags, *context.folders]
        warnings.extend(f"{name} was not attached: no vault was given" for name in named)
        return
    reading = [(notes.attach, context.notes), (notes.tagged, context.tags), (notes.within, context.folders)]
    for read, names in reading:
        for name in names:
            try:
                yield from read(name)
            except QuireError as error:
                warnings.append(f"{name} was skipped: {error}")
