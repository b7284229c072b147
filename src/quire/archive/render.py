"""A chat file's text: front matter, messages with a blank line between, the comment."""

from __future__ import annotations

import json

from quire.archive.front import render_front
from quire.archive.times import stamp
from quire.archive.value import COMMENT, COMMENT_END, MARKS, Chat, Context, Message
from quire.errors import CallError
from quire.formats.text import well_formed
from quire.values import JsonObject

_ESCAPES = {ord(sign): f"\\{sign}" for sign in ",|]\\"} | {ord("\n"): "\\n"}


def render(chat: Chat) -> str:
    """The file's whole text; it ends with one newline."""
    parts = [render_front(chat.created, chat.model, chat.topic, chat.tags)]
    parts += [render_message(message) for message in chat.messages]
    if chat.comment is not None:
        parts.append(render_comment(chat.comment))
    return well_formed("\n\n".join(parts) + "\n")


def render_message(message: Message) -> str:
    """`**user**: text`, then the context and the time where there are any."""
    lines = [f"**{message.role}**: {MARKS.guard(message.text)}"]
    if message.context:
        lines.append(f"[Context: {render_context(message.context)}]")
    if message.at is not None:
        if message.at % 1000:
            raise CallError(f"{message.at} ms is not a whole second", hint="A chat file shows whole seconds.")
        lines.append(f"[Timestamp: {stamp(message.at)}]")
    return "\n".join(lines)


def render_context(context: Context) -> str:
    """Notes: a.md, b.md | URLs: …; only what there is."""
    groups = {"Notes": context.notes, "URLs": context.urls, "Tags": context.tags, "Folders": context.folders}
    return " | ".join(
        f"{name}: {', '.join(one.translate(_ESCAPES) for one in names)}"
        for name, names in groups.items()
        if names
    )


def render_comment(value: JsonObject) -> str:
    """The entries on one line that no content can end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return COMMENT + text.replace(">", "\\u003e") + COMMENT_END
