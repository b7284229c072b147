"""A chat file as a thread: old turns from the comment, new ones from the text, their notes read fresh; and kept up."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from quire import values
from quire.archive.chat_file import AttachedNames, Chat, ChatMessage, iso, parse, render, whole_second
from quire.assemble.summary import truncate
from quire.errors import CallError, FormatError, QuireError
from quire.log.entries import check
from quire.log.hashing import sha256_hex
from quire.log.store import Store
from quire.send.turn_state import without_cut
from quire.values import Entry, Item, Json, JsonObject

# From a thread to what its chat file shows, and back to entries.

VERSION = 1
TAG = "quire-chat"


def project(entries: Sequence[Entry], topic: str = "", tags: Sequence[str] = (TAG,)) -> Chat:
    """The chat of a thread, without the comment: what users wrote and the model answered."""
    messages = tuple(project_messages(entries))
    times = [message.at for message in messages if message.at is not None]
    return Chat(
        created=iso(times[0]) if times else "",
        model=_model(entries),
        topic=topic or _topic(messages),
        tags=tuple(tags),
        messages=messages,
    )


def export_markdown(
    entries: Iterable[Entry],
    *,
    thread: str = "",
    topic: str = "",
    tags: Sequence[str] = (TAG,),
    comment: bool = True,
    window: Json = None,
) -> str:
    """A thread as a chat file; with the comment, loading it gives back the same thread."""
    listed = list(entries)
    chat = project(listed, topic, tags)
    if comment:
        held: JsonObject = {"version": VERSION, "thread": thread, "entries": [one.body for one in listed]}
        held |= {"window": window} if window is not None else {}
        chat = Chat(chat.created, chat.model, chat.topic, chat.tags, chat.messages, held)
    return render(chat)


def project_messages(entries: Iterable[Entry]) -> list[ChatMessage]:
    """One message for each user entry and each answer that says something; what broke off and came again, once."""
    out: list[ChatMessage] = []
    waiting: list[JsonObject] = []
    untimed = 0
    for entry in without_cut(entries):
        at = whole_second(entry.at)
        if entry.kind == "attach":
            waiting += entry.attached
        elif entry.kind == "user":
            out.append(ChatMessage("user", entry.text, _context(entry, [*waiting, *entry.attached]), at))
            waiting, untimed = [], len(out)
        elif entry.kind == "respond" and entry.text.strip():
            out.append(ChatMessage("ai", entry.text, AttachedNames(), at))
        elif entry.kind == "sent" and "usage" in entry.body:
            # An answer has no time of its own; it was said by when its reply had ended.
            out[untimed:] = [_timed(one, at) for one in out[untimed:]]
            untimed = len(out)
    return out


def _timed(message: ChatMessage, at: int | None) -> ChatMessage:
    return message if message.at is not None else msgspec.structs.replace(message, at=at)


def _context(entry: Entry, items: Iterable[JsonObject]) -> AttachedNames:
    notes: dict[str, None] = {}
    urls: dict[str, None] = {}
    for item in items:
        meta = item.get("metadata") or {}
        if meta.get("source") == "url":
            urls[str(meta.get("url") or item.get("id", ""))] = None
        elif name := meta.get("path") or meta.get("filename"):
            notes[str(name)] = None
    return AttachedNames(tuple(notes), tuple(urls), _named(entry, "tags"), _named(entry, "folders"))


def _named(entry: Entry, kind: str) -> tuple[str, ...]:
    """Tags or folders that the user attached as such; the notes they brought are items of their own."""
    named = entry.meta.get("context")
    found = named.get(kind) if isinstance(named, dict) else None
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def _model(entries: Iterable[Entry]) -> str:
    named = [one for one in entries if one.kind == "sent"]
    return f"{named[-1].body['provider']}:{named[-1].body['model']}" if named else ""


def _topic(messages: Iterable[ChatMessage]) -> str:
    """The first words of the first question."""
    first = next((message.text for message in messages if message.role == "user"), "")
    return truncate(" ".join(first.split()), 80)


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


def _compare(old: Sequence[ChatMessage], shown: Sequence[ChatMessage], warnings: list[str]) -> None:
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


def _entries(message: ChatMessage, notes: Notes | None, warnings: list[str]) -> Iterator[Entry]:
    at = {} if message.at is None else {"at": message.at}
    if message.role == "ai":
        yield values.respond(message.text, **at)
        return
    items = list(_items(message.context, notes, warnings))
    named = {key: list(value) for key, value in _shown(message.context).items() if value}
    yield values.user(message.text, items, **at, **({"meta": {"context": named}} if named else {}))


def _shown(context: AttachedNames) -> dict[str, tuple[str, ...]]:
    return {"tags": context.tags, "folders": context.folders}


def _items(context: AttachedNames, notes: Notes | None, warnings: list[str]) -> Iterator[Item]:
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


# Chat files as one of the formats that `quire import` and `quire export` know.


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def import_messages(
    text: str, notes: Notes | None = None, warn: Callable[[str], None] = _warn
) -> list[Entry]:
    """The entries of a chat file; what could not be taken over is told."""
    loaded = load(text, notes)
    for warning in loaded.warnings:
        warn(warning)
    return list(loaded.entries)


def export_messages(entries: Iterable[Entry], thread: str = "") -> str:
    """A thread as a chat file."""
    return export_markdown(entries, thread=thread)


# Keeping a thread's chat file in a folder up to date; a file that someone edited is never written over.

_NAME_BYTES = 180
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|#^\[\]]')


class Saved(msgspec.Struct, frozen=True):
    """Where a thread was saved; `kept` is where an edited file was moved to."""

    path: Path
    changed: bool
    kept: Path | None = None


def autosave(store: Store, thread: str, folder: str | Path) -> Saved:
    """Write a thread's chat file into a folder, whole or not at all."""
    place = Path(folder)
    path = place / file_name(thread)
    text = export_markdown(store.read(thread), thread=thread, window=store.window(thread))
    try:
        place.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes().decode(errors="replace") if path.exists() else None
        if before == text:
            return Saved(path, False)
        kept = _keep(path) if before is not None and _is_edited(before) else None
        _write(path, text)
    except OSError as error:
        raise CallError(
            f"cannot save the chat in {place}: {error.strerror}", hint="Choose another folder."
        ) from error
    return Saved(path, True, kept)


def file_name(thread: str) -> str:
    """A thread's name as a file's: what no system takes becomes -, with a few digits so that none collide."""
    whole = _UNSAFE.sub("-", thread).strip(" .").encode()
    # No system takes more than 255 bytes, and names made of this one are longer.
    safe = whole[:_NAME_BYTES].decode(errors="ignore")
    return f"{safe}.md" if safe == thread else f"{safe}-{sha256_hex(thread)[:8]}.md"


def _is_edited(text: str) -> bool:
    """Whether a file says something else than the entries in its comment."""
    try:
        found = load(text)
    except QuireError:
        return True
    if found.chat.comment is None:
        return True
    again = export_markdown(found.entries, thread=found.thread, window=found.window)
    return bool(found.warnings) or again != text


def _keep(path: Path) -> Path:
    number = 1
    while (to := path.with_name(f"{path.stem} (edited {number}).md")).exists():
        number += 1
    os.replace(path, to)
    return to


def _write(path: Path, text: str) -> None:
    """The new file takes the old one's place in one step."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        waiting.write_bytes(text.encode())
        os.replace(waiting, path)
    finally:
        waiting.unlink(missing_ok=True)
