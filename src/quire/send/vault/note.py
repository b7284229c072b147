"""One note as the vault knows it: where it is, what it says about itself, what it links to."""

from __future__ import annotations

import msgspec

from quire.errors import FormatError
from quire.log.hashing import sha256_hex
from quire.send.vault.markup import Link, links, prose, read_front_matter, split_front_matter, tags
from quire.values import JsonObject


class Note(msgspec.Struct, frozen=True):
    """A note without its text; times are Unix nanoseconds, as the file system gives them."""

    path: str
    mtime_ns: int
    size: int
    sha256: str
    ctime_ns: int = 0
    tags: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    fields: JsonObject = {}
    # What could not be read of it, empty where all could.
    problem: str = ""

    @property
    def title(self) -> str:
        """The file's name without its ending."""
        return title_of(self.path)

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000


def title_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def decoded(data: bytes) -> tuple[str, str]:
    """A note's text, and where in it bytes had to be replaced that are not UTF-8 (empty where none had)."""
    flaw = ""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        line = data.count(b"\n", 0, error.start) + 1
        flaw = f"bytes that are not UTF-8 were replaced, the first in line {line}"
    return text.removeprefix("\ufeff").replace("\r\n", "\n"), flaw


def read_note(path: str, text: str, mtime_ns: int, size: int, ctime_ns: int = 0, flaw: str = "") -> Note:
    """A note from its text; a front matter that cannot be read is kept as a problem, not an error."""
    front, body = split_front_matter(text)
    fields: JsonObject = {}
    problem = flaw
    try:
        fields = read_front_matter(front) if front.strip() else {}
    except FormatError as error:
        problem = "; ".join(filter(None, (problem, str(error))))
    words = prose(body)
    return Note(
        path=path,
        mtime_ns=mtime_ns,
        size=size,
        sha256=sha256_hex(text),
        ctime_ns=ctime_ns,
        tags=tags(words, fields),
        links=tuple(links(words)),
        fields=fields,
        problem=problem,
    )


def has_tag(note: Note, tag: str) -> bool:
    """Whether a note has a tag or one below it: #a is met by #a/b."""
    wanted = tag.removeprefix("#").lower()
    return any(one == wanted or one.startswith(f"{wanted}/") for one in note.tags)


def is_within(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, at any depth."""
    wanted = folder.strip("/")
    return not wanted or wanted == "." or path.startswith(f"{wanted}/")
