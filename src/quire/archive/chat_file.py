"""Parses and renders chat files: front matter, messages with their context and time, and the comment."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from quire.errors import CallError, FormatError
from quire.formats import Marks, well_formed
from quire.values import Json, JsonObject, as_text

COMMENT = "<!-- quire: "
COMMENT_END = " -->"
# A line of a message that begins like one of these gets a backslash before it.
MARKS = Marks(["**user**:", "**ai**:", "[Context:", "[Timestamp:", "<!-- quire:", "<!-- copilot-context:"])


class AttachedNames(msgspec.Struct, frozen=True):
    """The names of what was attached to a message."""

    notes: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.notes or self.urls or self.tags or self.folders)


class ChatMessage(msgspec.Struct, frozen=True):
    """One message; `at` is Unix milliseconds of a whole second."""

    role: Literal["user", "ai"]
    text: str
    context: AttachedNames = AttachedNames()
    at: int | None = None


class Chat(msgspec.Struct, frozen=True):
    """A whole chat file; `comment` is the JSON object that holds the entries."""

    created: str = ""
    model: str = ""
    topic: str = ""
    tags: tuple[str, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    comment: JsonObject | None = None


# Times in chat files: YYYY/MM/DD HH:mm:ss in UTC, in whole seconds.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(r"(\d{4})[/-](\d{2})[/-](\d{2})[ T](\d{2}):(\d{2}):(\d{2})", re.ASCII)


def moment(at: int) -> datetime:
    """A time in milliseconds as a date; an error outside the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=at)
    except OverflowError as error:
        raise CallError(f"{at} ms is outside the years 1 to 9999", hint="Times are Unix milliseconds.") from error


def stamp(at: int) -> str:
    """1737972000000 -> 2025/01/27 10:00:00."""
    # Not strftime, which may write years before 1000 with fewer than four digits.
    return moment(at).replace(tzinfo=None).isoformat(" ", "seconds").replace("-", "/")


def iso(at: int) -> str:
    """1737972000000 -> 2025-01-27T10:00:00Z."""
    return stamp(at).replace("/", "-").replace(" ", "T") + "Z"


def read_stamp(text: str) -> int | None:
    """A stamp, in UTC, as milliseconds; None for other texts."""
    match = _STAMP.match(text.strip())
    if match is None:
        return None
    try:
        when = datetime(*map(int, match.groups()), tzinfo=UTC)  # type: ignore[misc,arg-type]  # six numbers
    except ValueError:
        return None
    return (when - _EPOCH) // timedelta(milliseconds=1)


def whole_second(at: int | None) -> int | None:
    """A time rounded down to a second, as a chat file can show it; None where there is none or it is no date."""
    if at is None:
        return None
    try:
        moment(at)
    except CallError:
        return None
    return at // 1000 * 1000


# The front matter: four flat fields; fields of older chats are read as well.

_PLAIN = re.compile(r"[A-Za-z](?:[A-Za-z0-9_./:@+-]*[A-Za-z0-9_./@+-])?(?: [A-Za-z0-9_./@+]+)*\Z", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
# Characters that YAML takes for line breaks, or refuses.
_BREAKS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_FRONT_END = re.compile(r"^---$", re.M)
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?: (.*))?\Z", re.ASCII)


def _scalar(text: str) -> str:
    """A YAML string: bare where that is unambiguous, else in double quotes."""
    bare = _PLAIN.match(text) and text.lower() not in _WORDS
    if bare or _TIME.match(text):
        return text
    return _BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def split_front(text: str) -> tuple[dict[str, Json], str]:
    """The fields of the front matter (none where there is none), and the text after it."""
    end = _FRONT_END.search(text, 4) if text.startswith("---\n") else None
    if end is None:
        return {}, text
    return _fields(text[4 : end.start()].split("\n")), text[end.end() + 1 :]


def _fields(lines: list[str]) -> dict[str, Json]:
    """Flat YAML: key: value, key: [a, b], and key: with a list below; anything else is ignored."""
    out: dict[str, Json] = {}
    key = ""
    for line in lines:
        if match := _KEY.match(line):
            key, value = match[1], (match[2] or "").strip()
            out[key] = _parse_list(value) if value.startswith("[") else _read(value)
        elif line.lstrip().startswith("- ") and key:
            before = out[key] if isinstance(out[key], list) else []
            out[key] = [*before, _read(line.lstrip()[2:].strip())]
    return out


def _read(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value[1:-1]
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return value


def _parse_list(value: str) -> list[str]:
    inner = value.removeprefix("[").removesuffix("]").strip()
    return [_read(part.strip()) for part in inner.split(",")] if inner else []


def created_of(fields: dict[str, Json]) -> str:
    """When a chat began: `created`, or `epoch` in milliseconds as older chats have it."""
    if isinstance(fields.get("created"), str):
        return str(fields["created"])
    epoch = str(fields.get("epoch", ""))
    return iso(int(epoch)) if epoch.isdecimal() and len(epoch) <= 14 else ""


# Reading a chat file, also older and hand-written ones.

_START = re.compile(r"^\*\*(user|ai)\*\*:(?: |$)", re.M)
_TIMESTAMP = re.compile(r"\[Timestamp: (.*)\]")
_CONTEXT = re.compile(r"\[Context: (.*)\]")
_OURS = re.compile(rf"^{re.escape(COMMENT)}(.*){re.escape(COMMENT_END)}$", re.M)
# The comment of an older program, after the message whose context it holds.
_OLDER = re.compile(r"^<!-- copilot-context:(.*?)-->\n*", re.M | re.S)
_ESCAPED = re.compile(r"\\(.)")


def parse(text: str) -> Chat:
    """Parse a chat file; a text without any chat in it is an error."""
    text = text.removeprefix("\ufeff")
    if text.startswith("---\r\n"):
        text = text.replace("\r\n", "\n")
    fields, body = split_front(text)
    tags = fields.get("tags")
    comment, body = _take_comment(_OLDER.sub("", body))
    messages = tuple(_messages(body.removesuffix("\n")))
    if not messages and comment is None and not fields:
        raise FormatError(
            "this is no chat file: no front matter, no message and no comment was found",
            hint="Messages begin with **user**: or **ai**: at the start of a line.",
        )
    return Chat(
        created=created_of(fields),
        model=as_text(fields.get("model") or fields.get("modelKey")),
        topic=as_text(fields.get("topic")),
        tags=tuple(tags.split() if isinstance(tags, str) else tags or ()),
        messages=messages,
        comment=comment,
    )


def older_contexts(text: str) -> list[tuple[int, Json]]:
    """(number of messages before it, value) of each comment of an older program; invalid JSON is ignored."""
    comments = _comments(_OLDER, text.replace("\r\n", "\n"))
    return [(len(_START.findall(match.string, 0, match.start())), value) for match, value in comments]


def _comments(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], Json]]:
    for match in pattern.finditer(text):
        with contextlib.suppress(ValueError, RecursionError):
            yield match, json.loads(match[1])


def _take_comment(body: str) -> tuple[JsonObject | None, str]:
    """The last readable comment, and the body without comments; messages may follow the comment."""
    comments = [value for _, value in _comments(_OURS, body) if isinstance(value, dict)]
    return comments[-1] if comments else None, re.sub(r"\n?\n?" + _OURS.pattern, "", body, flags=re.M)


def _messages(body: str) -> list[ChatMessage]:
    starts = list(_START.finditer(body))
    out = []
    for place, match in enumerate(starts):
        text = body[match.end() : starts[place + 1].start() if match is not starts[-1] else None]
        if match is not starts[-1]:  # a blank line separates it from the next
            text = text.removesuffix("\n\n") if text.endswith("\n\n") else text.removesuffix("\n")
        out.append(_message(match[1], text))
    return out


def _message(role: str, text: str) -> ChatMessage:
    lines = text.split("\n")
    at, context = None, AttachedNames()
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    if end and (match := _TIMESTAMP.fullmatch(lines[end - 1].rstrip())):
        at = read_stamp(match[1])
        lines = lines[: end - 1]
        end = len(lines)
    if end and (match := _CONTEXT.fullmatch(lines[end - 1])):
        context = parse_context(match[1])
        lines = lines[: end - 1]
    return ChatMessage("user" if role == "user" else "ai", MARKS.unguard("\n".join(lines)), context, at)


def parse_context(text: str) -> AttachedNames:
    """The names after each heading; unknown headings are ignored."""
    groups: dict[str, tuple[str, ...]] = {}
    for part in _split(text, "|"):
        name, colon, names = part.partition(": ")
        if colon:
            plain = (
                _ESCAPED.sub(lambda sign: "\n" if sign[1] == "n" else sign[1], text) for text in _split(names, ",")
            )
            groups[name.strip()] = tuple(plain)
    return AttachedNames(**{field: groups.get(name, ()) for field, name in _HEADINGS.items()})


_HEADINGS = {"notes": "Notes", "urls": "URLs", "tags": "Tags", "folders": "Folders"}


def _split(text: str, sign: str) -> list[str]:
    """The parts between unescaped signs; one space after each sign, and one before a bar, are dropped."""
    parts, begin = [], 0
    for match in re.finditer(r"\\.| ?\| ?" if sign == "|" else r"\\.|, ?", text, re.S):
        if not match[0].startswith("\\"):
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [*parts, text[begin:]]


# Writing a chat file.

_ESCAPES = {ord(sign): f"\\{sign}" for sign in ",|]\\"} | {ord("\n"): "\\n"}


def render(chat: Chat) -> str:
    """The file's whole text; it ends with one newline."""
    front = [f"{name}: {_scalar(getattr(chat, name))}" for name in ("created", "model", "topic")]
    tags = "".join(f"\n  - {_scalar(tag)}" for tag in chat.tags) or " []"
    parts = ["\n".join(["---", *front, f"tags:{tags}", "---"])]
    parts += [render_message(message) for message in chat.messages]
    if chat.comment is not None:
        text = json.dumps(chat.comment, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # Without ">", so that no content can end the comment.
        parts.append(COMMENT + text.replace(">", "\\u003e") + COMMENT_END)
    return well_formed("\n\n".join(parts) + "\n")


def render_message(message: ChatMessage) -> str:
    """`**user**: text`, with the context and the time where it has them."""
    lines = [f"**{message.role}**: {MARKS.guard(message.text)}"]
    if message.context:
        lines.append(f"[Context: {render_context(message.context)}]")
    if message.at is not None:
        if message.at % 1000:
            raise CallError(f"{message.at} ms is not a whole second", hint="A chat file shows whole seconds.")
        lines.append(f"[Timestamp: {stamp(message.at)}]")
    return "\n".join(lines)


def render_context(context: AttachedNames) -> str:
    """Notes: a.md, b.md | URLs: …, without empty headings."""
    groups = {heading: getattr(context, field) for field, heading in _HEADINGS.items()}
    return " | ".join(
        f"{heading}: {', '.join(name.translate(_ESCAPES) for name in names)}"
        for heading, names in groups.items()
        if names
    )
