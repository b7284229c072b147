"""Reading a chat file: ours to the byte, older and hand-written ones as far as they can be understood."""

from __future__ import annotations

import json
import re

from quire.archive.front import created_of, split_front
from quire.archive.times import read_stamp
from quire.archive.value import COMMENT, COMMENT_END, MARKS, Chat, Context, Message
from quire.errors import FormatError
from quire.values import Json, JsonObject

_START = re.compile(r"^\*\*(user|ai)\*\*:(?: |$)", re.M)
_TIMESTAMP = re.compile(r"\[Timestamp: (.*)\]")
_CONTEXT = re.compile(r"\[Context: (.*)\]")
_OURS = re.compile(rf"^{re.escape(COMMENT)}(.*){re.escape(COMMENT_END)}$", re.M)
# The comment of older chats: it says nothing that the messages do not.
_OLDER = re.compile(r"^<!-- copilot-context:.*?-->\n*", re.M | re.S)
_ESCAPED = re.compile(r"\\(.)")


def parse(text: str) -> Chat:
    """A chat file's value; a text that holds no chat is an error."""
    text = text.removeprefix("\ufeff")
    if text.startswith("---\r\n"):
        text = text.replace("\r\n", "\n")
    fields, body = split_front(text)
    comment, body = _take_comment(_OLDER.sub("", body))
    messages = tuple(_messages(body.removesuffix("\n")))
    if not messages and comment is None and not fields:
        raise FormatError(
            "this is no chat file: no front matter, no message and no comment was found",
            hint="Messages begin with **user**: or **ai**: at the start of a line.",
        )
    return Chat(
        created=created_of(fields),
        model=_text(fields.get("model") or fields.get("modelKey")),
        topic=_text(fields.get("topic")),
        tags=_tags(fields.get("tags")),
        messages=messages,
        comment=comment,
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _tags(value: Json) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split()) if value else ()
    return tuple(value or ())


def _take_comment(body: str) -> tuple[JsonObject | None, str]:
    """The last comment that can be read, and the body without any; messages may stand behind it."""
    found: JsonObject | None = None
    for match in _OURS.finditer(body):
        try:
            value = json.loads(match[1])
        except (ValueError, RecursionError):
            continue
        found = value if isinstance(value, dict) else found
    return found, re.sub(r"\n?\n?" + _OURS.pattern, "", body, flags=re.M)


def _messages(body: str) -> list[Message]:
    starts = list(_START.finditer(body))
    out = []
    for place, match in enumerate(starts):
        last = place + 1 == len(starts)
        own = body[match.end() :] if last else body[match.end() : starts[place + 1].start()]
        out.append(_message(match[1], own if last else _without_joint(own)))
    return out


def _without_joint(text: str) -> str:
    """A message without the blank line that separates it from the next."""
    return text.removesuffix("\n\n") if text.endswith("\n\n") else text.removesuffix("\n")


def _message(role: str, text: str) -> Message:
    lines = text.split("\n")
    at, context = None, Context()
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
    return Message("user" if role == "user" else "ai", MARKS.unguard("\n".join(lines)), context, at)


def parse_context(text: str) -> Context:
    """The names behind each heading; headings that are not known are passed over."""
    groups: dict[str, tuple[str, ...]] = {}
    for part in _split(text, "|"):
        name, colon, names = part.partition(": ")
        if colon:
            groups[name.strip()] = tuple(_unescaped(one) for one in _split(names, ","))
    found = {field: groups.get(name, ()) for field, name in _HEADINGS.items()}
    return Context(**found)


_HEADINGS = {"notes": "Notes", "urls": "URLs", "tags": "Tags", "folders": "Folders"}


def _split(text: str, sign: str) -> list[str]:
    """Parts between unescaped signs; one space after each sign, and one before a bar, belong to it."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == sign:
            parts.append(text[begin:at].removesuffix(" ") if sign == "|" else text[begin:at])
            begin = at + (2 if text[at + 1 : at + 2] == " " else 1)
            at = begin
            continue
        at += 1
    return [*parts, text[begin:]]


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)
