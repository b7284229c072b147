"""One user turn as a message: recalled text, tool block, references, new blocks, then the query."""

from __future__ import annotations

import json
import re

import msgspec

from quire.assemble.blocks import Block, escaped
from quire.assemble.policy import Promote
from quire.assemble.references import Library, references
from quire.log.hashing import canonical
from quire.values import Entry, Image, Json, Message, Part, Text

QUERY_MARK = "---\n\n[User query]:"
TOOLS_HEADING = "# Additional context:"


class UserTurn(msgspec.Struct, frozen=True):
    """A user entry with everything that joins its message; kept so that a rebase can say it once more."""

    entry: Entry
    blocks: tuple[Block, ...]
    # Calls chosen before the model spoke (meta.placement = "context"), each with its result.
    context: tuple[tuple[Entry, Entry | None], ...]
    seqs: tuple[int, ...]


class Said(msgspec.Struct, frozen=True):
    """A user turn's message and the parts of L3 that it was made of."""

    message: Message
    references: tuple[str, ...]
    texts: tuple[str, ...]
    tools: str
    recalled: str


def say(turn: UserTurn, library: Library, number: int, promote: Promote) -> Said:
    """The message of a turn, given what the model already has; marks its items as given."""
    names, texts = library.place(turn.blocks, number, promote)
    tools = tool_block(turn.context)
    recalled = str(turn.entry.meta.get("recalled") or "")
    before = [recalled, tools, references(names, promote), *texts]
    text = user_text(before, turn.entry.text, str(turn.entry.meta.get("composer") or ""))
    return Said(_message(turn, text), tuple(names), tuple(texts), tools, recalled)


def query_alone(turn: UserTurn) -> Message:
    """The turn as each-turn promotion keeps it in history: no tool block, no context, no image of a note."""
    return _message(msgspec.structs.replace(turn, blocks=(), seqs=(turn.entry.seq,)), turn.entry.text)


def user_text(before: list[str], query: str, composer: str = "") -> str:
    """Context, the mark and the query: [A], Q -> A, ---, [User query]:, Q; a bare query stays bare."""
    context = [part for part in before if part]
    parts = [*context, QUERY_MARK, query] if context else [query]
    return "\n\n".join([*parts, composer] if composer else parts)


def _message(turn: UserTurn, text: str) -> Message:
    own = [*(turn.entry.body.get("images") or ()), *(image for one in turn.blocks for image in one.images)]
    parts: list[Part] = [Text(text, turn.entry.wire)] if text else []
    parts += [_image(image) for image in own]
    return Message("user", tuple(parts), turn.seqs)


def _image(image: Json) -> Image:
    if isinstance(image, str):
        return Image(url=image)
    return Image(image.get("media_type", ""), image.get("data", ""), image.get("url", ""))


def tool_block(context: tuple[tuple[Entry, Entry | None], ...]) -> str:
    """Outputs of the tools that ran before the model spoke, one way for all; empty ones are left out."""
    blocks = [_wrapped(call, output) for call, result in context if (output := _output(result))]
    return "\n\n".join([TOOLS_HEADING, *blocks]) if blocks else ""


def _wrapped(call: Entry, output: str) -> str:
    # A retrieval tool writes its own wrapper, with its guidance inside; it is not wrapped twice.
    if re.match(rf"<{re.escape(call.name)}[ >]", output) and output.endswith(f"</{call.name}>"):
        return output
    attributes = "".join(f' {name}="{value}"' for name, value in _shown(call))
    return f"<{call.name}{attributes}>\n{escaped(output, call.name)}\n</{call.name}>"


def _shown(call: Entry) -> list[tuple[str, str]]:
    """The scalar arguments that the tool marks as shown, escaped for an attribute."""
    marked = call.meta.get("shown") or ()
    args = call.args if isinstance(call.args, dict) else {}
    scalars = [(name, args[name]) for name in marked if isinstance(args.get(name), str | int | float | bool)]
    escape = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;"}
    return [(name, "".join(escape.get(c, c) for c in _scalar(value))) for name, value in scalars]


def _scalar(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _output(result: Entry | None) -> str:
    return "" if result is None else result_text(result)


def entry_text(entry: Entry) -> str:
    """What an entry says, whole."""
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        return call_text(entry.name, entry.args)
    if entry.kind == "attach":
        return str(entry.body["item"]["content"])
    return entry.text


def call_text(name: str, args: Json) -> str:
    return f"{name} {canonical(args).decode()}"


INTERRUPTED = "(interrupted: no result was recorded)"


def result_text(result: Entry) -> str:
    """A result's outcome and content as one text."""
    outcome, content = result.body.get("outcome"), result.body.get("content")
    if content is not None and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if outcome and content:
        return f"{outcome}\n\n{content}"
    return outcome or content or ("Error" if result.body.get("error") else "")
