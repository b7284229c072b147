"""Threads as chat files (markdown that people read and edit), and sessions and logs of other programs as threads.

This module writes a thread as a chat file and loads one: recorded turns come from the file's comment, new ones from
its text. It also keeps a folder of chat files up to date.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from quire import values
from quire.archive.chat_file import AttachedNames, Chat, ChatMessage, iso, older_contexts, parse, render, whole_second
from quire.assemble.telling import truncate
from quire.errors import CallError, FormatError, QuireError
from quire.items import identity, item, read_again
from quire.log.entries import check
from quire.log.store import Store
from quire.values import Entry, Item, Json, JsonObject, chain, item_json, sha256_hex

__all__ = [
    "AttachedNames", "Chat", "ChatMessage", "Fork", "Loaded", "Notes", "Saved", "attached_texts", "autosave",
    "edited_file", "export_markdown", "file_name", "load", "parse", "project", "read_back", "render",
    "set_aside",
]  # fmt: skip


# Writing a thread as a chat file.

VERSION = 1
TAG = "quire-chat"


def project(entries: Sequence[Entry], topic: str = "", tags: Sequence[str] = (TAG,)) -> Chat:
    """The chat of a thread, without the comment: the user's messages and the model's answers."""
    messages = tuple(message for message, _ in _messages_with_entries(entries))
    times = [message.at for message in messages if message.at is not None]
    models = [f"{entry.body['provider']}:{entry.body['model']}" for entry in entries if entry.kind == "sent"]
    question = next((message.text for message in messages if message.role == "user"), "")
    return Chat(
        created=iso(times[0]) if times else "",
        model=models[-1] if models else "",
        topic=topic or truncate(" ".join(question.split()), 80),
        tags=tuple(tags),
        messages=messages,
    )


def export_markdown(
    entries: Iterable[Entry], *, thread: str = "", window: Json = None, refer: bool = False, notes: Notes | None = None
) -> str:
    """A thread as a chat file; loading it gives the same thread again.

    With `refer=True` its comment leaves out the content of attached notes and files that can still be read unchanged
    (from `notes`, or by their filename), and repeats no content.
    """
    listed = list(entries)
    write = References(notes).write if refer else lambda value: value
    comment: JsonObject = {"version": VERSION, "thread": thread, "entries": [write(entry.body) for entry in listed]}
    if window is not None:
        comment["window"] = write(window)
    return render(msgspec.structs.replace(project(listed), comment=comment))


def _messages_with_entries(entries: Iterable[Entry]) -> list[tuple[ChatMessage, Entry]]:
    """(message, its entry) for each user entry and each answer with text; an interrupted answer that was repeated is left out."""
    from quire.send.turn import without_cut

    out: list[tuple[ChatMessage, Entry]] = []
    waiting: list[JsonObject] = []
    untimed = 0
    for entry in without_cut(entries):
        at = whole_second(entry.at)
        if entry.kind == "attach":
            waiting += entry.attached
        elif entry.kind == "user":
            context = _context(entry, [*waiting, *entry.attached])
            out.append((ChatMessage("user", entry.text, context, at), entry))
            waiting, untimed = [], len(out)
        elif entry.kind == "respond" and entry.text.strip():
            out.append((ChatMessage("ai", entry.text, AttachedNames(), at), entry))
        elif entry.kind == "sent" and "usage" in entry.body:
            # An answer's entry has no time: it gets that of the `sent` entry at the end of its reply.
            for place, (message, source) in enumerate(out[untimed:], untimed):
                if message.at is None:
                    out[place] = msgspec.structs.replace(message, at=at), source
            untimed = len(out)
    return out


def _context(entry: Entry, items: Iterable[JsonObject]) -> AttachedNames:
    notes: dict[str, None] = {}
    urls: dict[str, None] = {}
    for attached in items:
        meta = attached.get("metadata") or {}
        if meta.get("source") == "url":
            urls[str(meta.get("url") or attached.get("id", ""))] = None
        elif name := meta.get("path") or meta.get("filename"):
            notes[str(name)] = None
    # Tags and folders that the user attached; their notes are among the items.
    named = entry.meta.get("context")
    listed = [named.get(kind) if isinstance(named, dict) else None for kind in ("tags", "folders")]
    tags, folders = (tuple(map(str, names)) if isinstance(names, list) else () for names in listed)
    return AttachedNames(tuple(notes), tuple(urls), tags, folders)


class Notes(Protocol):
    """Reads the notes that a chat names; a vault is one."""

    def attach(self, name: str) -> list[Item]:
        """The items of a note, by full path or unique name; raises NotFound or CallError."""


# Attachments by reference: the file holds only the hash of a content that can be read elsewhere, or earlier in the file.


class References:
    """Replaces the content of items by null where it need not be copied (`write`), and restores it (`read`)."""

    def __init__(self, notes: Notes | None, contents: Mapping[str, str] | None = None) -> None:
        self._notes = notes
        # Texts by their sha256: those from earlier in the file, and those that the caller has.
        self._contents = dict(contents or {})

    def write(self, body: JsonObject) -> JsonObject:
        """An entry or a window as the comment stores it."""
        return _with_items(body, lambda item: [self._without_content(item)])

    def _without_content(self, item: JsonObject) -> JsonObject:
        sha256, content = item.get("sha256"), item["content"]
        if not sha256 or sha256_hex(content) != sha256:
            return item
        now = self._contents.get(sha256) or self._current_content(item)
        self._contents[sha256] = content
        return {**item, "content": None} if now == content else item

    def read(self, body: JsonObject, warnings: list[str]) -> JsonObject:
        """An entry or a window with its contents; items that can no longer be read are left out with a warning."""
        return _with_items(body, lambda item: self._with_content(item, warnings))

    def _with_content(self, item: JsonObject, warnings: list[str]) -> list[JsonObject]:
        content, sha256 = item.get("content"), str(item.get("sha256"))
        if content is not None:
            self._contents[sha256] = content
            return [item]
        meta = item.get("metadata") or {}
        name = meta.get("filename") or meta.get("path") or item.get("id")
        now = self._contents.get(sha256) or self._current_content(item)
        if now is not None and sha256_hex(now) == sha256:
            self._contents[sha256] = now
            return [{**item, "content": now}]
        # A changed note is taken with its present text; any other file must hold the attached text.
        if now is None or meta.get("source") != "note" or self._notes is None:
            warnings.append(f"{name} was skipped: it cannot be read as it was attached")
            return []
        warnings.append(f"{name} has changed since it was attached; it is read as it is now")
        return [{**item, "content": now, "sha256": sha256_hex(now)}]

    def _current_content(self, item: JsonObject) -> str | None:
        """An item's present content, from the vault's note or the file of its name; None where there is none."""
        meta = item.get("metadata") or {}
        name = meta.get("filename") or meta.get("path")
        try:
            if self._notes is not None and meta.get("source") == "note":
                items = self._notes.attach(str(name))
                return next((item.content for item in items if (item.metadata or {}).get("source") == "note"), None)
            named = msgspec.convert({"id": "", **item, "content": ""}, Item)
            now = read_again(named, str(name)) if name else None
        except (QuireError, msgspec.ValidationError, KeyError):
            return None
        return now.content if now is not None else None


def attached_texts(entries: Iterable[Entry]) -> dict[str, str]:
    """The contents of attached items by their sha256."""
    items = [item for entry in entries for item in entry.attached]
    return {item["sha256"]: item["content"] for item in items if item.get("sha256")}


def _with_items(body: JsonObject, rewrite: Callable[[JsonObject], list[JsonObject]]) -> JsonObject:
    """An entry or a window with each item replaced by what `rewrite` returns."""
    for name in ("attach", "items"):
        if isinstance(body.get(name), list):
            items = [new for old in body[name] for new in rewrite(old)]
            ids = {item.get("id") for item in items}
            pins = {"pinned": [id for id in body["pinned"] if id in ids]} if "pinned" in body else {}
            return {**body, name: items, **pins}
    items = rewrite(body["item"]) if isinstance(body.get("item"), dict) else []
    return {**body, "item": items[0]} if items else body


class Fork(msgspec.Struct, frozen=True):
    """An edited file from its first edit on: entries that follow the first `behind` entries of the original."""

    behind: int
    entries: tuple[Entry, ...]


class Loaded(msgspec.Struct, frozen=True):
    """The entries of a chat file, and warnings; the first `known` entries come from the comment.

    Where recorded turns were edited in the text, `entries` are the originals and `fork` has the edited ones.
    """

    entries: tuple[Entry, ...]
    chat: Chat
    warnings: tuple[str, ...] = ()
    thread: str = ""
    window: Json = None
    known: int = 0
    fork: Fork | None = None


def load(text: str, notes: Notes | None = None, contents: Mapping[str, str] | None = None) -> Loaded:
    """The entries of a chat file; a missing attachment is a warning, no error.

    `contents` are texts of attachments by their sha256, for those that the file does not contain.
    """
    chat = parse(text)
    warnings: list[str] = []
    references = References(notes, contents)
    old = _old_entries(chat, references, warnings)
    # From the comment itself, which also names attachments that can no longer be read.
    before = [message for message, _ in _messages_with_entries(_comment_entries(chat))] if old else []
    _compare(before, chat.messages, warnings)
    fresh = NewTurns(notes, warnings, chat.messages, older_contexts(text))
    fork = _fork(old, before, chat.messages, fresh)
    new = [entry for n in range(len(before), len(chat.messages)) for entry in fresh.entries(chat.messages[n], n)]
    fields = chat.comment if old and chat.comment else {}
    name, window = fields.get("thread"), fields.get("window")
    window = references.read(window, warnings) if isinstance(window, dict) else window
    return Loaded(
        entries=(*(fresh.system() if not old else ()), *old, *new),
        chat=chat,
        warnings=tuple(dict.fromkeys(warnings)),
        thread=name if isinstance(name, str) else "",
        window=window,
        known=len(old),
        fork=fork,
    )


def _fork(
    old: Sequence[Entry], before: Sequence[ChatMessage], edited: Sequence[ChatMessage], fresh: NewTurns
) -> Fork | None:
    """The messages from the first edited one on; None where none was edited.

    Questions with unchanged context keep their attachments; tool calls after the edit are left out.
    """
    from quire.send.turn import is_opening

    original = [(message.role, message.text, message.context) for message in before]
    now = [(message.role, message.text, message.context) for message in edited]
    same = next((n for n, row in enumerate(original) if now[n : n + 1] != [row]), len(before))
    if same == len(before):
        return None
    spoken = [entry for _, entry in _messages_with_entries(old)]
    cut = next(n for n, entry in enumerate(old) if entry is spoken[same])
    # An edited answer also replaces the request and the thinking before it.
    while before[same].role == "ai" and cut and (old[cut - 1].kind == "think" or is_opening(old[cut - 1])):
        cut -= 1
    entries: list[Entry] = []
    for n, message in enumerate(edited[same:], same):
        is_question = n < len(before) and before[n].role == message.role == "user"
        if is_question and before[n].context == message.context:
            # The edited text with the recorded attachments.
            body = {name: value for name, value in spoken[n].body.items() if name != "wire"}
            entries.append(Entry("user", {**body, "text": message.text}))
        else:
            entries += fresh.entries(message, n)
    # The first entry notes which message of the file was edited.
    marked = [
        Entry(first.kind, {**first.body, "meta": {**first.meta, "edited": {"message": same + 1}}})
        for first in entries[:1]
    ]
    return Fork(cut, (*marked, *entries[1:]))


def read_back(store: Store, thread: str, loaded: Loaded) -> str:
    """Store what was written into a chat file by hand; return the thread that holds it now, "" where nothing is new.

    Added turns are appended to the thread; edited turns become a fork.
    """
    fork = loaded.fork or Fork(loaded.known, loaded.entries[loaded.known :])
    shared = [entry.id for entry in chain(loaded.entries[: fork.behind])]
    if [entry.id for entry in store.read(thread, limit=fork.behind)] != shared or not (loaded.fork or fork.entries):
        return ""
    bodies = [entry.body for entry in fork.entries]
    for info in store.threads():
        if (info.parent, info.forked_at) == (thread, fork.behind):
            begun = store.read(info.name, after=fork.behind, limit=len(bodies))
            if [entry.body for entry in begun] == bodies:
                return ""  # it was read back before
    name = thread if fork.behind == store.info(thread).seq else store.fork(thread, fork.behind)
    if fork.entries:
        store.append(name, fork.entries)
    return name


def _old_entries(chat: Chat, references: References, warnings: list[str]) -> list[Entry]:
    """The entries of the comment; none where it is missing or cannot be read (then the text is loaded)."""
    comment = chat.comment
    if comment is None:
        return []
    if isinstance(comment.get("version"), int) and comment["version"] > VERSION:
        raise FormatError(
            f"the chat file's comment has version {comment['version']}, this Quire reads {VERSION}",
            hint="Upgrade Quire, or remove the comment to load the text alone.",
        )
    entries: list[Entry] = []
    try:
        for body in _bodies(comment):
            read = references.read(body, warnings) if isinstance(body, dict) else body
            # An attachment that was skipped leaves no entry.
            if not (isinstance(read, dict) and (read.get("item") or {}).get("content", "") is None):
                entries.append(check(read))
    except FormatError as error:
        warnings.append(f"the comment cannot be read ({error}); the text is loaded instead")
        return []
    return entries


def _comment_entries(chat: Chat) -> list[Entry]:
    """The entries as the comment stores them, without the contents that it leaves out."""
    return [Entry(body["kind"], body) for body in _bodies(chat.comment or {})]


def _bodies(comment: JsonObject) -> Sequence[Json]:
    entries = comment.get("entries")
    if not isinstance(entries, list):
        raise FormatError("it holds no list of entries")
    return entries


def _compare(old: Sequence[ChatMessage], new: Sequence[ChatMessage], warnings: list[str]) -> None:
    """Warn where recorded turns (which come from the comment) are different in the text."""
    changed = [n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if (a.role, a.text) != (b.role, b.text)]
    if changed:
        listed = ", ".join(map(str, changed[:5])) + (", …" if len(changed) > 5 else "")
        warnings.append(f"message {listed} was edited in the file; the original in the comment is used")
    if (removed := len(old) - len(new)) > 0:
        subject = f"{removed} messages were" if removed > 1 else "1 message was"
        warnings.append(f"{subject} removed from the file; the comment still has {'them' if removed > 1 else 'it'}")


class NewTurns:
    """Makes the entries of new turns; attachments are read now, or taken from the comments of an older program."""

    def __init__(
        self,
        notes: Notes | None,
        warnings: list[str],
        messages: Sequence[ChatMessage],
        contexts: Sequence[tuple[int, Json]] = (),
    ) -> None:
        self._notes, self._warnings, self._contexts = notes, warnings, contexts
        named = {name for message in messages for name in (*message.context.notes, *message.context.urls)}
        self._stored: dict[str, Item] = {}
        # Items that no message names, by the last question before their comment.
        self._unnamed: dict[int, list[Item]] = {}
        for behind, value in contexts:
            questions = [n for n, message in enumerate(messages[:behind]) if message.role == "user"]
            for attached in items_in(value):
                self._stored[identity(item_json(attached))] = attached
                if questions and identity(item_json(attached)) not in named:
                    self._unnamed.setdefault(questions[-1], []).append(attached)

    def system(self) -> Iterator[Entry]:
        """The system prompt from an older program's comment."""
        texts = [text for _, value in self._contexts for text in system_texts(value)]
        yield from (values.system(text) for text in texts[-1:])

    def entries(self, message: ChatMessage, number: int) -> Iterator[Entry]:
        """The entry of the message with this number, from 0."""
        at = {} if message.at is None else {"at": message.at}
        if message.role == "ai":
            yield values.respond(message.text, **at)
            return
        items = [*self._items(message.context), *self._unnamed.get(number, ())]
        context = {"tags": message.context.tags, "folders": message.context.folders}
        named = {kind: list(names) for kind, names in context.items() if names}
        yield values.user(message.text, items, **at, **({"meta": {"context": named}} if named else {}))

    def _items(self, context: AttachedNames) -> Iterator[Item]:
        """The attachments of a new turn; one that cannot be read is skipped with a warning."""
        for url in context.urls:
            if url in self._stored:
                yield self._stored[url]
            else:
                self._warnings.append(f"{url} was not fetched: attach its text again")
        names = {"attach": context.notes, "tagged": context.tags, "within": context.folders}
        for read, listed in names.items():
            for name in listed:
                if name in self._stored:
                    yield self._stored[name]
                elif self._notes is None:
                    self._warnings.append(f"{name} was not attached: no vault was given")
                else:
                    try:
                        yield from getattr(self._notes, read)(name)
                    except QuireError as error:
                        self._warnings.append(f"{name} was skipped: {error}")


# Comments of an older program: layers of segments, or a list of entries, each with an id and a content.

_BLOCK = re.compile(r"<(\w+)>\n(?:.*\n)*?<content>\n(.*)\n</content>\n</\1>\s*", re.S)
_NOT_ITEMS = frozenset({"L1_SYSTEM", "L4_STRIP", "L5_USER"})


def items_in(value: Json) -> Iterator[Item]:
    """Every object with an id, path or URL and a content, as an item; an XML block around the content is removed."""
    if isinstance(value, list):
        for member in value:
            yield from items_in(member)
    if not isinstance(value, dict) or value.get("id") in _NOT_ITEMS:
        return
    name, content = value.get("id") or value.get("path") or value.get("url"), value.get("content")
    if not (isinstance(name, str) and name and isinstance(content, str)):
        for member in value.values():
            yield from items_in(member)
        return
    block = _BLOCK.fullmatch(content)
    is_url = re.match(r"https?://", name) is not None
    meta = {"source": "url", "url": name} if is_url else {"source": "note", "path": name}
    yield item(block[2] if block else content, "text", meta, id=name)


def system_texts(value: Json) -> Iterator[str]:
    """The texts of the layer L1_SYSTEM."""
    if isinstance(value, dict) and value.get("id") == "L1_SYSTEM":
        yield from (text for text in (value.get("text"), value.get("content")) if isinstance(text, str) and text)
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from system_texts(member)


# Keeping chat files in a folder up to date; a file that someone edited is never overwritten.

_NAME_BYTES = 180
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|#^\[\]]')


class Saved(msgspec.Struct, frozen=True):
    """The file of a saved thread; `kept` is the new path of an edited file that was in its place."""

    path: Path
    changed: bool
    kept: Path | None = None


def autosave(store: Store, thread: str, folder: str | Path, notes: Notes | None = None) -> Saved:
    """Write a thread's chat file into a folder, atomically; attachments that can be read elsewhere are not copied."""
    place = Path(folder)
    path = place / file_name(thread)
    text = export_markdown(store.read(thread), thread=thread, window=store.window(thread), refer=True, notes=notes)
    try:
        place.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes().decode(errors="replace") if path.exists() else None
        if before == text:
            return Saved(path, False)
        moved_to = set_aside(path) if before is not None and _is_edited(before) else None
        waiting = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            waiting.write_bytes(text.encode())
            os.replace(waiting, path)
        finally:
            waiting.unlink(missing_ok=True)
    except OSError as error:
        raise CallError(f"cannot save the chat in {place}: {error.strerror}", hint="Choose another folder.") from error
    return Saved(path, True, moved_to)


def edited_file(thread: str, folder: str | Path) -> Path | None:
    """A thread's chat file if someone has edited it since it was saved."""
    path = Path(folder) / file_name(thread)
    return path if path.is_file() and _is_edited(path.read_bytes().decode(errors="replace")) else None


def file_name(thread: str) -> str:
    """The file name of a thread: unsafe characters become -, and then part of a hash keeps names unique."""
    whole = _UNSAFE.sub("-", thread).strip(" .").encode()
    # File systems take at most 255 bytes; some names add more to this one.
    safe = whole[:_NAME_BYTES].decode(errors="ignore")
    return f"{safe}.md" if safe == thread else f"{safe}-{sha256_hex(thread)[:8]}.md"


def _is_edited(text: str) -> bool:
    """Whether a file differs from the text of the entries in its comment."""
    try:
        chat = parse(text)
        saved = msgspec.structs.replace(project(_comment_entries(chat), chat.topic, chat.tags), comment=chat.comment)
        return render(saved) != text
    except (QuireError, KeyError, TypeError):
        return True


def set_aside(path: Path) -> Path:
    """Rename an edited file, and return its new path."""
    number = 1
    while (to := path.with_name(f"{path.stem} (edited {number}).md")).exists():
        number += 1
    os.replace(path, to)
    return to
