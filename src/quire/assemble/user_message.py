"""One user turn as a message: recalled text, tool block, references, new blocks, then the query."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quire.assemble import ItemForm, Promote
from quire.formats import markdown
from quire.items import identity
from quire.log.entries import encode
from quire.providers.convert import image, own_blocks, project
from quire.tokens import countable, counter
from quire.values import Entry, Item, Json, JsonObject, Message, Part, Text, canonical, result_text, sha256_hex

# An item as the text a model reads: its identity, its block, and how an update to it is written.

# Unicode White_Space and U+FEFF; str.strip() takes a slightly different set.
_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACE += "\u2028\u2029\u202f\u205f\u3000\ufeff"
_TAGS = {
    "note": ("note_context", ("title", "path")),
    "active_note": ("active_note", ("title", "path")),
    "url": ("url_content", ("url",)),
    "selection": ("selected_text", ("title", "path", "start_line", "end_line")),
    "dataview": ("dataview", ("path", "query")),
}
_UPDATE = "note_context_update"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class ItemBlock(msgspec.Struct, frozen=True):
    """One attached item, ready to be shown or referred to."""

    id: str
    sha256: str
    text: str
    # The element it stands in; empty where it stands under a heading.
    tag: str
    content: str
    promotable: bool
    type: str = "code"
    metadata: JsonObject = {}
    images: tuple[Json, ...] = ()


def normal(text: str) -> str:
    """Line ends as \\n and no white space around, as in L1 to L3."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip(_SPACE)


def printable_id(id: str) -> str:
    """An identity on one line: control characters as \\xNN."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", id)


def block(item: JsonObject, times: bool = False, form: ItemForm = "xml") -> ItemBlock:
    """The block of an item; which wrapper it gets is said by metadata.source."""
    meta = item.get("metadata") or {}
    source, id, content = meta.get("source"), identity(item), item["content"]
    tag = _TAGS[source][0] if source in _TAGS else "context_item"
    images = tuple(meta.get("images") or ()) if source == "active_note" else ()
    return ItemBlock(
        id=id,
        sha256=item.get("sha256") or sha256_hex(content),
        text=normal(_fence_item(item, meta) if form == "markdown" else _wrap_item(item, meta, times)),
        tag="" if form == "markdown" else tag,
        content=content,
        promotable=source != "selection" and not meta.get("images"),
        type=str(item.get("type", "code")),
        metadata={name: value for name, value in meta.items() if name not in ("images", "ctime", "mtime")},
        images=images,
    )


def _fence_item(item: JsonObject, meta: JsonObject) -> str:
    """An item under a heading that names its source: its file and lines, else its identity."""
    type, source, language = item.get("type", "code"), meta.get("source"), meta.get("language")
    name, start, end = identity(item), meta.get("start_line"), meta.get("end_line")
    is_tag = isinstance(language, str) and re.fullmatch(r"[A-Za-z0-9_+#.-]*", language) is not None
    metadata = {"filename": meta.get("filename"), "language": language if is_tag else None}
    fenced_item = Item(id="", type=type, content=item["content"], metadata=metadata)
    if meta.get("symbol") or not (_is_line(start) and _is_line(end)):
        start = end = None
    else:
        name = str(meta.get("filename") or meta.get("path") or name)
    kind = source.replace("_", "-") if source in _TAGS else type
    tag = markdown.tag(fenced_item, default_language="text")
    return markdown.block_text(markdown.MarkdownItem(kind, fenced_item.content, name, start, end, tag))


def _is_line(value: Json) -> bool:
    return isinstance(value, int) and 0 <= value <= markdown.MAX_LINE


def _wrap_item(item: JsonObject, meta: JsonObject, times: bool) -> str:
    source = meta.get("source")
    if source not in _TAGS:
        head = f'<context_item id="{_attribute(identity(item))}" type="{_attribute(item.get("type", "code"))}">'
        return f"{head}\n{escape_tags(item['content'], 'context_item')}\n</context_item>"
    tag, names = _TAGS[source]
    fields = _fields(item, meta)
    if times:
        names = tuple(out for name in names for out in ((name, "ctime", "mtime") if name == "path" else (name,)))
    lines = [f"<{name}>{_field(fields[name])}</{name}>" for name in names if name in fields]
    body = escape_tags(item["content"], tag, "content")
    return "\n".join([f"<{tag}>", *lines, f"<content>\n{body}\n</content>", f"</{tag}>"])


def _fields(item: JsonObject, meta: JsonObject) -> JsonObject:
    """The wrapper's fields, with a title from the path where none was given."""
    fields = {key: value for key, value in meta.items() if value is not None}
    path = fields.get("path") or fields.get("filename") or identity(item)
    fields["path"] = path
    fields.setdefault("title", str(path).rsplit("/", 1)[-1].removesuffix(".md"))
    fields.setdefault("url", identity(item))
    return fields


def _field(value: Any) -> str:  # Any: a metadata value of the caller's
    text = _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", str(value))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(value: Any) -> str:  # Any: an id or type of the caller's
    return _field(value).replace('"', "&quot;")


def escape_tags(content: str, *tags: str) -> str:
    """Content that cannot close its wrapper: </tag> -> <\\/tag>, <\\/tag> -> <\\\\/tag>."""
    return re.sub(rf"<(\\*)/({'|'.join(map(re.escape, tags))})>", r"<\1\\/\2>", content)


def update(new: ItemBlock, old: ItemBlock) -> str:
    """Changed content under a known identity: the new block or a diff, whichever is fewer tokens."""
    count = counter().count
    if not new.tag:
        diff = _fenced_diff(old, new, lambda text: text)
        inner = diff if count(diff) < count(new.text) else new.text
        return f"### Update of {printable_id(new.id)} (replaces {old.sha256[:12]})\n{inner}"
    whole, diff = _inside_update(new.text), _fenced_diff(old, new, _inside_update)
    inner = diff if count(diff) < count(whole) else whole
    return f'<{_UPDATE} replaces="{old.sha256[:12]}">\n{inner}\n</{_UPDATE}>'


def _fenced_diff(old: ItemBlock, new: ItemBlock, escape: Callable[[str], str]) -> str:
    """A unified diff by \\n lines, named by the identity, in a fence that it cannot close."""
    name = printable_id(new.id)
    lines = difflib.unified_diff(old.content.split("\n"), new.content.split("\n"), name, name, n=2, lineterm="")
    diff = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", diff)), default=0))
    return f"{fence}diff\n{escape(diff)}\n{fence}"


def _inside_update(text: str) -> str:
    return escape_tags(text, _UPDATE)


# What the model has been given, by identity: decides between a reference, a new block and an update.

_FIND = {"each-turn": "Find them in the Context Library above.", "at-rebase": "Find them above in this conversation."}


class ShownItem(msgspec.Struct, frozen=True):
    """An item as a turn tells it, and what is known of it: type, sha256 of its content, metadata."""

    id: str
    text: str
    metadata: JsonObject


class Library:
    """The versions that stand in front of the model; ids keep the order in which they were first seen."""

    def __init__(self) -> None:
        self.has: dict[str, ItemBlock] = {}
        # The turn in which an identity was last attached, so that a rebase can let old ones go.
        self.used: dict[str, int] = {}

    def copy(self) -> Library:
        twin = Library()
        twin.has, twin.used = dict(self.has), dict(self.used)
        return twin

    def place(
        self, blocks: Iterable[ItemBlock], turn: int, promote: Promote
    ) -> tuple[list[str], list[ShownItem], list[Json]]:
        """What one turn says of its items: identities referred to, what is told in full or as an update, new images.

        Refers to an item if and only if the model already has exactly this content.
        """
        references: list[str] = []
        new: list[ShownItem] = []
        images: list[Json] = []
        for block in blocks:
            old = self.has.get(block.id)
            images += [image for image in block.images if old is None or image not in old.images]
            if old is not None and old.sha256 == block.sha256:
                references.append(printable_id(block.id))
            else:
                text = block.text if old is None else update(block, old)
                new.append(ShownItem(block.id, text, {"type": block.type, "sha256": block.sha256, **block.metadata}))
            # With promote='each-turn' this context leaves at the next turn, so it does not count as given.
            if promote == "at-rebase":
                self.has[block.id] = block
            self.used[block.id] = turn
        return references, new, images


def references(ids: list[str], promote: Promote) -> str:
    """The lines that name items the model already has."""
    if not ids:
        return ""
    return "\n".join(["Context attached:", *(f"- {id}" for id in ids), _FIND[promote]])


QUERY_MARK = "---\n\n[User query]:"
TOOLS_HEADING = "# Additional context:"


class UserTurn(msgspec.Struct, frozen=True):
    """A user entry with everything that joins its message; kept so that a rebase can say it once more."""

    entry: Entry
    blocks: tuple[ItemBlock, ...]
    # Calls chosen before the model spoke (meta.placement = "context"), each with its result.
    context: tuple[tuple[Entry, Entry | None], ...]
    seqs: tuple[int, ...]


class UserMessage(msgspec.Struct, frozen=True):
    """A user turn's message and the parts of L3 that it was made of."""

    message: Message
    references: tuple[str, ...]
    new: tuple[ShownItem, ...]
    tools: str
    recalled: str


def say(turn: UserTurn, library: Library, number: int, promote: Promote) -> UserMessage:
    """The message of a turn, given what the model already has; marks its items as given."""
    names, new, images = library.place(turn.blocks, number, promote)
    tools = tool_block(turn.context)
    recalled = str(turn.entry.meta.get("recalled") or "")
    before = [recalled, tools, references(names, promote), *(item.text for item in new)]
    text = user_text(before, turn.entry.text, str(turn.entry.meta.get("composer") or ""))
    return UserMessage(_message(turn, text, images), tuple(names), tuple(new), tools, recalled)


def query_alone(turn: UserTurn) -> Message:
    """The turn as each-turn promotion keeps it in history: no tool block, no context, no image of a note."""
    return _message(msgspec.structs.replace(turn, blocks=(), seqs=(turn.entry.seq,)), turn.entry.text, [])


def user_text(before: list[str], query: str, composer: str = "") -> str:
    """Context, the mark and the query: [A], Q -> A, ---, [User query]:, Q; a bare query stays bare."""
    context = [part for part in before if part]
    parts = [*context, QUERY_MARK, query] if context else [query]
    return "\n\n".join([*parts, composer] if composer else parts)


def _message(turn: UserTurn, text: str, images: list[Json]) -> Message:
    # What was imported may have been sent without words, alone or in one message with results: `wire` tells.
    wire = turn.entry.wire
    parts: list[Part] = [Text(text, wire)] if text or wire.keys() & {"more", "message"} else []
    parts += map(image, [*(turn.entry.body.get("images") or ()), *images])
    return Message("user", tuple(parts), turn.seqs)


def tool_block(context: tuple[tuple[Entry, Entry | None], ...]) -> str:
    """Outputs of the tools that ran before the model spoke, one way for all; empty ones are left out."""
    blocks = [
        _tool_wrapped(call, output)
        for call, result in context
        if result is not None and (output := result_text(result))
    ]
    return "\n\n".join([TOOLS_HEADING, *blocks]) if blocks else ""


def _tool_wrapped(call: Entry, output: str) -> str:
    # A retrieval tool writes its own wrapper, with its guidance inside; it is not wrapped twice.
    if re.match(rf"<{re.escape(call.name)}[ >]", output) and output.endswith(f"</{call.name}>"):
        return output
    attributes = "".join(f' {name}="{value}"' for name, value in _shown_arguments(call))
    return f"<{call.name}{attributes}>\n{escape_tags(output, call.name)}\n</{call.name}>"


def _shown_arguments(call: Entry) -> list[tuple[str, str]]:
    """The scalar arguments that the tool marks as shown, escaped for an attribute."""
    marked = call.meta.get("shown") or ()
    args = call.args if isinstance(call.args, dict) else {}
    scalars = [(name, args[name]) for name in marked if isinstance(args.get(name), str | int | float | bool)]
    texts = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in scalars]
    escape = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": "&#10;"}
    return [(name, "".join(escape.get(c, c) for c in text)) for name, text in texts]


def entry_text(entry: Entry) -> str:
    """What an entry says, whole."""
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        return call_text(entry.name, entry.args)
    if entry.kind == "attach":
        return str(entry.body["item"]["content"])
    return entry.text


def whole_text(entry: Entry) -> str:
    """What an entry says, and what can be read of the blocks and documents that it came with."""
    blocks = [block for message in project([entry]) for row in own_blocks(message) for block in row]
    return "\n\n".join(filter(None, [entry_text(entry), *(countable(block)[0] for block in blocks)]))


def original(entry: Entry) -> str:
    """An entry's own text for a reader; what says nothing by itself, as its JSON."""
    if entry.kind in ("result", "attach"):
        return whole_text(entry)
    text = whole_text(entry) if entry.kind in ("user", "respond") else entry.text
    return text or encode(entry, ids=False)


def call_text(name: str, args: Json) -> str:
    return f"{name} {canonical(args).decode()}"
