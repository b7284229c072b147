"""One note: its path, front matter, tags, links and list items; and notes as the rows of Dataview queries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec

from quire.errors import FormatError, QuireError, needs_extra
from quire.notes.dataview_values import Link, Value, fields_of, midnight, read_date, type_field
from quire.values import Json, JsonObject, sha256_hex

# Parsing the text of a note: front matter, fields, list items, links, tags, code blocks.

_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})([^\n`]*)$")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_COMMENT = re.compile(r"%%.*?%%", re.S)
_WIKI = re.compile(r"(!?)\[\[([^\[\]\n]+?)\]\]")
_LINK = re.compile(r"(!?)\[[^\[\]\n]*\]\(<?([^()\s<>]+(?:\([^()\s]*\)[^()\s<>]*)?)>?(?:\s+\"[^\"]*\")?\)")
_TAG = re.compile(r"(?<![^\s(\[,;])#([^\s#,;:.!?'\"`()\[\]{}<>|*~^\\@$%&+=]+)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(?:\[(.)\]\s+)?(.*)$")
_HEADING = re.compile(r"#{1,6} +(.*?)(?: +#+)?$")
_INLINE_FIELD = re.compile(
    r"^[ \t]*(?:[-*+] +)?((?:\*\*|__|[*_~])?[^\W_][^\n\[\]():]*?)::[ \t]*(\S[^\n]*)$"
    r"|\[([^\[\]\n:]+)::[ \t]*((?:\[\[[^\[\]\n]*\]\]|[^\[\]\n])*)\]|\(([^()\n:]+)::[ \t]*([^()\n]*)\)",
    re.M,
)
_ATOM = r'"[^"]*"|!?\[\[[^\[\]]*\]\]|-?\d+(?:\.\d+)?'
# The most values that are read from a front matter.
_MOST_VALUES = 10_000


def split_front_matter(text: str) -> tuple[str, str]:
    """The YAML between the first two lines of dashes, and the rest: "---\\na: 1\\n---\\nx" -> ("a: 1", "x")."""
    if not text.startswith("---\n"):
        return "", text
    match = re.compile(r"^---[ \t]*$", re.M).search(text, 4)
    if match is None:
        return "", text
    return text[4 : match.start()].removesuffix("\n"), text[match.end() :].removeprefix("\n")


def read_front_matter(yaml_text: str) -> JsonObject:
    """The fields of a front matter as JSON; invalid YAML, or YAML that is no mapping, is an error."""
    with needs_extra("notes' front matter needs PyYAML", "vault"):
        import yaml
    try:
        value = yaml.load(yaml_text, _loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # a safe loader
        plain = _plain(value, [0]) if value is not None else {}
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"the front matter is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(plain, dict):
        raise FormatError("the front matter is not a list of fields")
    return plain


@cache
def _loader(safe: Any) -> Any:
    """A YAML loader that reads an impossible date (2025-02-30) as text, so that the other fields are not lost."""

    def timestamp(loader: Any, node: Any) -> Json:
        try:
            return loader.construct_yaml_timestamp(node)
        except ValueError:
            return node.value

    loader: Any = type("Loader", (safe,), {})
    loader.add_constructor("tag:yaml.org,2002:timestamp", timestamp)
    return loader


def _plain(value: Json, count: list[int]) -> Json:
    """YAML's values as JSON's: dates as ISO text, keys as strings; too many are an error, not a hang."""
    count[0] += 1
    if count[0] > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES:,} values")
    if isinstance(value, dict):
        return {str(key): _plain(item, count) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item, count) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float | bool):
        return value if value == value and value not in (float("inf"), float("-inf")) else str(value)
    return str(value)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a note in a language, in order."""
    return ["\n".join(lines) for name, lines in _fences(text) if name == language]


def prose(text: str) -> str:
    """A note without code and comments: where links and tags are looked for."""
    lines = [line for language, part in _fences(text) if language is None for line in part]
    return _COMMENT.sub(" ", _INLINE_CODE.sub(" ", "\n".join(lines)))


class ListItem(msgspec.Struct, frozen=True):
    """A list item: its line counted from 0, its parent's line, and its status where it is a task ("x", " ")."""

    line: int
    text: str
    status: str | None = None
    parent: int | None = None
    heading: str = ""


def list_items(text: str) -> list[ListItem]:
    """The list items and tasks of a note; indented lines below an item belong to its text."""
    body = split_front_matter(text)[1]
    line = text.count("\n") - body.count("\n") - 1
    items: list[ListItem] = []
    above: list[tuple[int, int]] = []  # (indent, line) of the items that the next one may be below
    heading = ""
    for language, lines in _fences(body):
        for text_line in lines:
            line += 1
            indent = len(text_line.expandtabs(4)) - len(text_line.expandtabs(4).lstrip())
            if language is not None:
                continue
            if match := _ITEM.match(text_line):
                above = [item for item in above if item[0] < indent]
                items.append(ListItem(line, match[2], match[1], above[-1][1] if above else None, heading))
                above.append((indent, line))
            elif above and text_line.strip() and indent > above[-1][0]:
                items[-1] = msgspec.structs.replace(items[-1], text=f"{items[-1].text}\n{text_line.strip()}")
            else:
                above = []
                heading = match[1] if (match := _HEADING.match(text_line)) else heading
        line += 1  # the fence that ended this run
    return items


def inline_fields(text: str) -> JsonObject:
    """`Key:: value` on its own line, [key:: value] and (key:: value) within one; several values of a key are a list."""
    fields: JsonObject = {}
    for match in _INLINE_FIELD.finditer(text):
        name, value = (match[1], match[2]) if match[1] else (match[3] or match[5], match[4] or match[6])
        read = _inline_value(value.strip())
        name = name.strip(" *_~")
        if name in fields:
            read = [*(fields[name] if isinstance(fields[name], list) else [fields[name]]), read]
        fields[name] = read
    return fields


def _inline_value(text: str) -> Json:
    """A number, true or false, a list of quoted texts and links, or the text itself."""
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        return float(text) if "." in text else int(text)
    if re.fullmatch(rf"(?:{_ATOM})(?:\s*,\s*(?:{_ATOM}))+", text):
        return [_inline_value(part) for part in re.findall(_ATOM, text)]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    return {"true": True, "false": False}.get(text, text)


def aliases(fields: JsonObject) -> tuple[str, ...]:
    """The other names of a note, from its front matter."""
    values = [fields.get(key) for key in ("aliases", "alias")]
    named = [alias for value in values for alias in (value if isinstance(value, list) else [value])]
    return tuple(dict.fromkeys(str(alias).strip() for alias in named if alias not in (None, "")))


def _fences(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """Runs of lines outside fences (None) and inside them (their language)."""
    language: str | None = None
    fence = ""
    run: list[str] = []
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and not fence:
            yield None, run
            fence, language, run = mark[2], mark[3].strip().split(" ")[0].lower(), []
        elif fence and mark and mark[2].startswith(fence) and not mark[3].strip():
            yield language, run
            fence, language, run = "", None, []
        else:
            run.append(line)
    yield language, run


def links(text: str) -> list[Link]:
    """Wiki-links, embeds and markdown links of prose, in order, without links to the web."""
    from urllib.parse import unquote

    placed: list[tuple[int, Link]] = []
    for match in _WIKI.finditer(text):
        place, _, alias = match[2].partition("|")
        target, _, heading = place.partition("#")
        placed.append((match.start(), Link(target.strip(), heading.strip(), alias.strip(), bool(match[1]))))
    for match in _LINK.finditer(text):
        if not re.match(r"[a-z][a-z0-9+.-]*:|#", match[2], re.I):
            placed.append((match.start(), Link(unquote(match[2].split("#")[0]), embed=bool(match[1]))))
    return [link for _, link in sorted(placed, key=lambda pair: pair[0]) if link.target]


def tags(text: str, fields: JsonObject) -> tuple[str, ...]:
    """A note's tags without #, lower case, from its prose and its front matter, each once."""
    values = [fields.get(key) for key in ("tags", "tag")]
    listed = [re.split(r"[,\s]+", value) if isinstance(value, str) else value for value in values]
    stated = [str(name).strip() for names in listed if isinstance(names, list) for name in names if name is not None]
    inline = [match[1].rstrip("/-") for match in _TAG.finditer(text)]
    named = [tag.removeprefix("#").lower() for tag in [*stated, *inline]]
    return tuple(dict.fromkeys(tag for tag in named if tag and not tag.isdecimal()))


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
    # What of the note could not be read, else "".
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


def decode_note(data: bytes) -> tuple[str, str]:
    """A note's text, and a warning where bytes that are not UTF-8 were replaced (else "")."""
    flaw = ""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        line = data.count(b"\n", 0, error.start) + 1
        flaw = f"bytes that are not UTF-8 were replaced, the first in line {line}"
    return text.removeprefix("\ufeff").replace("\r\n", "\n"), flaw


def read_note(path: str, text: str, mtime_ns: int, size: int, ctime_ns: int = 0, flaw: str = "") -> Note:
    """A note from its text; an invalid front matter is noted in `problem` and raises no error."""
    front, body = split_front_matter(text)
    fields: JsonObject = {}
    problem = flaw
    try:
        fields = read_front_matter(front) if front.strip() else {}
    except FormatError as error:
        problem = f"{flaw}; {error}" if flaw else str(error)
    words = prose(body)
    if "::" in words:
        # Fields in a task belong to the task, not to the note.
        stated = [line for line in words.split("\n") if not ((item := _ITEM.match(line)) and item[1])]
        fields = {**inline_fields("\n".join(stated)), **fields}
    tags_and_links = tags(words, fields), tuple(links(words))
    return Note(path, mtime_ns, size, sha256_hex(text), ctime_ns, *tags_and_links, fields, problem)


def has_tag(note: Note, tag: str) -> bool:
    """Whether a note has a tag or one below it: #a matches #a/b too."""
    sought = tag.removeprefix("#").lower()
    return any(tag == sought or tag.startswith(f"{sought}/") for tag in note.tags)


def is_within(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, at any depth."""
    top = folder.strip("/")
    return not top or top == "." or path.startswith(f"{top}/")


def day_in(text: str) -> datetime | None:
    """The first date in a text, written as 2025-01-20 or 20250120."""
    match = re.search(r"(\d{4})-?(\d\d)-?(\d\d)", text)
    return read_date("-".join(match.groups())) if match else None


# Notes with the fields that Dataview gives them.

# Emoji that stand for a field of a task.
_SIGNS = {"🗓️": "due", "🗓": "due", "📅": "due", "✅": "completion", "➕": "created", "🛫": "start", "⏳": "scheduled"}
_SIGNED = re.compile(rf"({'|'.join(_SIGNS)})\s*(\d{{4}}-\d\d-\d\d)")


class Pages:
    """Notes by path, for queries; what a query needs of them is computed at its first use."""

    def __init__(
        self, notes: Sequence[Note], resolve: Callable[[str], str], text: Callable[[str], str], now: datetime
    ) -> None:
        self.notes = {note.path: note for note in notes}
        self._resolve, self.text, self.now = resolve, text, now
        self._resolved: dict[str, str] = {}
        self._pages: dict[str, dict[str, Value]] = {}
        self._incoming: dict[str, list[Link]] | None = None

    def path(self, name: str) -> str:
        """The note that a link's name means; the name itself where there is none."""
        if name not in self._resolved:
            try:
                self._resolved[name] = self._resolve(name)
            except QuireError:
                self._resolved[name] = name
        return self._resolved[name]

    def link(self, text: str, note_path: str = "") -> Link:
        """The link [[name#heading|alias]]; without a name, to the note that contains it."""
        place, _, display = text.lstrip("!")[2:-2].partition("|")
        name, _, heading = place.partition("#")
        path = self.path(name.strip()) if name.strip() else note_path
        return Link(path, heading.strip(), display.strip(), text.startswith("!"))

    def page(self, path: str) -> dict[str, Value]:
        """A note's row: its own fields, and under `file` those of its file."""
        if path not in self._pages:
            note = self.notes[path]
            fields = type_field(note.fields, lambda text: self.link(text, path))
            self._pages[path] = {**fields, "file": FileFacts(self, note)}
        return self._pages[path]

    def linked_page(self, link: Link) -> Value:
        return self.page(link.target) if link.target in self.notes else None

    def outgoing(self, note: Note) -> list[Link]:
        return list(dict.fromkeys(msgspec.structs.replace(link, target=self.path(link.target)) for link in note.links))

    def incoming(self, path: str) -> list[Link]:
        """The notes that link to a note, in the order of their paths."""
        if self._incoming is None:
            self._incoming = {}
            for other in sorted(self.notes):
                for target in dict.fromkeys(link.target for link in self.outgoing(self.notes[other])):
                    self._incoming.setdefault(target, []).append(Link(other))
        return self._incoming.get(path, [])

    def items(self, note: Note) -> list[dict[str, Value]]:
        """The list items of a note as rows, each among the `children` of its parent."""
        rows = [self._item(note, item) for item in list_items(self.text(note.path))]
        by_line = {row["line"]: row for row in rows}
        for row in rows:
            if row["parent"] is not None:
                by_line[row["parent"]]["children"].append(row)
        for row in reversed(rows):
            row["subtasks"] = row["children"]
            below = (cell["fullyCompleted"] for cell in row["children"] if cell["task"])
            row["fullyCompleted"] = row["completed"] and all(below)
        return rows

    def _item(self, note: Note, listed: ListItem) -> dict[str, Value]:
        fields = inline_fields(listed.text) | {_SIGNS[sign]: day for sign, day in _SIGNED.findall(listed.text)}
        section = Link(note.path, listed.heading)
        block = re.search(r"\^([\w-]+)$", listed.text)
        return {
            **fields_of(type_field(fields, lambda text: self.link(text, note.path))),
            "text": listed.text,
            "task": listed.status is not None,
            "status": listed.status,
            "checked": (listed.status or " ") != " ",
            "completed": listed.status in ("x", "X"),
            "line": listed.line,
            "lineCount": listed.text.count("\n") + 1,
            "parent": listed.parent,
            "path": note.path,
            "section": section,
            "header": section,
            "link": section,
            "tags": [f"#{tag}" for tag in tags(listed.text, {})],
            "outlinks": [Link(self.path(to.target), to.heading, to.alias) for to in links(listed.text)],
            "annotated": bool(fields),
            "blockId": block[1] if block else None,
            "children": [],
        }


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 1_000_000_000)


def _levels(tags: Sequence[str]) -> list[str]:
    """Tags with their parents: a/b -> #a, #a/b."""
    return list(dict.fromkeys(f"#{above}" for tag in tags for above in accumulate(tag.split("/"), "{}/{}".format)))


def _day_of(pages: Pages, note: Note) -> datetime | None:
    """The day in a note's name, else in its field `date`."""
    day = day_in(note.title) or pages.page(note.path).get("date")
    return day if isinstance(day, datetime) else None


_FILE: dict[str, Callable[[Pages, Note], Value]] = {
    "name": lambda pages, note: note.title,
    "path": lambda pages, note: note.path,
    "folder": lambda pages, note: note.folder,
    "ext": lambda pages, note: note.path.rpartition(".")[2],
    "link": lambda pages, note: Link(note.path),
    "size": lambda pages, note: note.size,
    "ctime": lambda pages, note: _moment(note.ctime_ns),
    "cday": lambda pages, note: midnight(_moment(note.ctime_ns)),
    "mtime": lambda pages, note: _moment(note.mtime_ns),
    "mday": lambda pages, note: midnight(_moment(note.mtime_ns)),
    "day": _day_of,
    "tags": lambda pages, note: _levels(note.tags),
    "etags": lambda pages, note: [f"#{tag}" for tag in note.tags],
    "aliases": lambda pages, note: list(aliases(note.fields)),
    "inlinks": lambda pages, note: pages.incoming(note.path),
    "outlinks": lambda pages, note: pages.outgoing(note),
    "lists": lambda pages, note: pages.items(note),
    "tasks": lambda pages, note: [row for row in pages.items(note) if row["task"]],
    "frontmatter": lambda pages, note: note.fields,
}


class FileFacts(Mapping[str, Value]):
    """The fields of a note's file, each computed when it is read."""

    def __init__(self, pages: Pages, note: Note) -> None:
        self._pages, self._note = pages, note

    def __getitem__(self, name: str) -> Value:
        return _FILE[name](self._pages, self._note)

    def __iter__(self) -> Iterator[str]:
        return iter(_FILE)

    def __len__(self) -> int:
        return len(_FILE)
