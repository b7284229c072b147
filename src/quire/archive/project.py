"""From a thread to what its chat file shows, and back to entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quire.archive.render import render
from quire.archive.times import iso, whole_second
from quire.archive.value import Chat, Context, Message
from quire.assemble.cuts import truncate
from quire.send.standing import without_cut
from quire.values import Entry, Json, JsonObject

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


def project_messages(entries: Iterable[Entry]) -> list[Message]:
    """One message for each user entry and each answer that says something; what broke off and came again, once."""
    out: list[Message] = []
    waiting: list[JsonObject] = []
    untimed = 0
    for entry in without_cut(entries):
        at = whole_second(entry.at)
        if entry.kind == "attach":
            waiting += entry.attached
        elif entry.kind == "user":
            out.append(Message("user", entry.text, _context(entry, [*waiting, *entry.attached]), at))
            waiting, untimed = [], len(out)
        elif entry.kind == "respond" and entry.text.strip():
            out.append(Message("ai", entry.text, Context(), at))
        elif entry.kind == "sent" and "usage" in entry.body:
            # An answer has no time of its own; it was said by when its reply had ended.
            out[untimed:] = [_timed(one, at) for one in out[untimed:]]
            untimed = len(out)
    return out


def _timed(message: Message, at: int | None) -> Message:
    return message if message.at is not None else msgspec.structs.replace(message, at=at)


def _context(entry: Entry, items: Iterable[JsonObject]) -> Context:
    notes: dict[str, None] = {}
    urls: dict[str, None] = {}
    for item in items:
        meta = item.get("metadata") or {}
        if meta.get("source") == "url":
            urls[str(meta.get("url") or item.get("id", ""))] = None
        elif name := meta.get("path") or meta.get("filename"):
            notes[str(name)] = None
    return Context(tuple(notes), tuple(urls), _named(entry, "tags"), _named(entry, "folders"))


def _named(entry: Entry, kind: str) -> tuple[str, ...]:
    """Tags or folders that the user attached as such; the notes they brought are items of their own."""
    named = entry.meta.get("context")
    found = named.get(kind) if isinstance(named, dict) else None
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def _model(entries: Iterable[Entry]) -> str:
    named = [one for one in entries if one.kind == "sent"]
    return f"{named[-1].body['provider']}:{named[-1].body['model']}" if named else ""


def _topic(messages: Iterable[Message]) -> str:
    """The first words of the first question."""
    first = next((message.text for message in messages if message.role == "user"), "")
    return truncate(" ".join(first.split()), 80)
