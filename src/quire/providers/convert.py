"""Entries as messages for exporting a thread: all of them, in their order, whatever the budget."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from quire import values
from quire.errors import FormatError
from quire.providers.incoming import without_nulls
from quire.providers.models import model_info
from quire.providers.prefix import without_marks
from quire.providers.provider_tools import Native
from quire.providers.rendering import NO_TEXT, Draft, texts
from quire.providers.rules.grammar import fits, grammar_of
from quire.providers.wires import FORMATS, Wire, format_of, wire_of
from quire.tokens import is_image, is_text, media_in
from quire.values import SPOKEN, Call, Entry, Image, Json, JsonObject, Message, Part, Result, Role, Text, Think, ToolSet

# Images as entries keep them: {"media_type", "data"} or {"url"}; data URLs are taken apart.


def image(value: Json) -> Image:
    """An image part from what a user entry lists: an object, or a URL."""
    if isinstance(value, str):
        return from_url(value)
    if value.get("data"):
        return Image(media_type=str(value.get("media_type") or "image/png"), data=str(value["data"]))
    return from_url(str(value.get("url") or ""), str(value.get("media_type") or ""))


def from_url(url: str, media_type: str = "") -> Image:
    """data:image/png;base64,AAAA -> its type and data; any other URL as it is."""
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return Image(url=url, media_type=media_type)
    return Image(media_type=head[len("data:") : -len(";base64")] or media_type or "image/png", data=data)


def to_url(image: Image) -> str:
    return image.url or f"data:{image.media_type};base64,{image.data}"


# What every provider that takes images can read.
COMMON = ("image/png", "image/jpeg", "image/gif", "image/webp")


def is_web(url: str) -> bool:
    """Whether a provider could fetch it."""
    return url.startswith(("https://", "http://"))


def image_json(image: Image) -> JsonObject:
    """The object a user entry keeps."""
    if image.url:
        return {"url": image.url, **({"media_type": image.media_type} if image.media_type else {})}
    return {"media_type": image.media_type, "data": image.data}


_ROLES: dict[str, Role] = {
    "user": "user",
    "think": "assistant",
    "respond": "assistant",
    "call": "assistant",
    "result": "tool",
    "system": "note",
    "note": "note",
    "tools": "tools",
}


def project(entries: Iterable[Entry], called: dict[str, str] | None = None) -> list[Message]:
    """Each entry's part, gathered into messages as the model's began and ended; `called`: tools of calls elsewhere, by id."""
    out: list[Message] = []
    names = ChainMap[str, str]({}, called or {})
    for entry in entries:
        if entry.kind not in _ROLES:
            continue
        if entry.kind == "call":
            names[entry.call_id] = entry.name
        parts = parts_of(entry, names)
        if out and _continues(entry, out[-1]):
            out[-1] = Message(out[-1].role, (*out[-1].parts, *parts), (*out[-1].seqs, entry.seq))
        else:
            out.append(Message(_ROLES[entry.kind], parts, (entry.seq,)))
    return out


def _continues(entry: Entry, last: Message) -> bool:
    """Whether an entry is part of the message before it: spoken in one go, or a result of the same group."""
    # An imported entry says itself whether it begins a message (`wire.more` is absent).
    begins = entry.kind in SPOKEN and "format" in entry.wire and not entry.wire.get("more")
    return not begins and _ROLES[entry.kind] == last.role and last.role in ("assistant", "tool")


def parts_of(entry: Entry, names: Mapping[str, str]) -> tuple[Part, ...]:
    """What an entry says; `names` tells which tool a result is from."""
    match entry.kind:
        case "user":
            texts = [str(item.get("content", "")) for item in entry.attached] + [entry.text]
            images = [image(picture) for picture in entry.body.get("images") or ()]
            return (Text("\n\n".join(text for text in texts if text), entry.wire), *images)
        case "think":
            return (Think(entry.text, entry.wire),)
        case "call":
            raw = str(entry.wire.get("arguments", ""))
            return (Call(entry.call_id, entry.name, entry.args, entry.wire, raw),)
        case "result":
            failed = bool(entry.body.get("error"))
            return (Result(entry.call_id, names.get(entry.call_id, ""), values.result_text(entry), failed, entry.wire),)
        case "tools":
            return (ToolSet(tuple(entry.tools), entry.wire),)
    return (Text(entry.text, entry.wire),)


# A provider's own blocks: sent back verbatim to the model that wrote them, and to no other.


def origin(message: Message) -> JsonObject:
    """Where a message came from: the `wire` of its first part that has one."""
    return next((part.wire for part in message.parts if not isinstance(part, Image)), {})


def begins_imported(message: Message, format: str) -> bool:
    """Whether a message of the model was imported in this format, with nothing before it."""
    return origin(message).get("format") == format and "message" in origin(message)


def own_block(part: Text | Think | Call | Result, draft: Draft) -> JsonObject | None:
    """The block as this provider and model wrote it, if there is one."""
    native = draft.native
    # A framework's message names the provider that wrote the block (`wire.from`).
    wire = values.as_object(part.wire.get("from")) or part.wire
    block = _block_in(wire, native)
    ours = draft.is_from(wire) or (isinstance(part, Result) and _goes_to_any(block or {}, wire, draft))
    if block is None or not ours or _is_strange(block, native):
        return None
    # Marks of an earlier request are no part of it: each request is marked anew.
    return without_marks(block)


def _goes_to_any(result: JsonObject, wire: JsonObject, draft: Draft) -> bool:
    """Whether a result goes to any model of its format that is known to see: it is images, and text with them."""
    sees = draft.native.result_images == "inside" and "image" in (draft.info.features.media or ())
    others = [inner for inner in _inside(result) if not is_text(inner)]
    return sees and wire.get("format") in draft.native.formats and bool(others) and all(map(is_image, others))


def block_from(part: Think, draft: Draft, format: str) -> JsonObject:
    """A thought as another host of the same model wrote it; where it is bound to its prefix, that one is not here."""
    unbound = draft.info.features.thinking_bound == "no"
    return values.as_object(part.wire.get("block")) if unbound and draft.is_from(part.wire, format) else {}


def _block_in(wire: JsonObject, native: Native) -> JsonObject | None:
    """The block an entry came as; where every message is one item, or one result, the message kept on import is it."""
    message = values.as_object(wire.get("message"))
    block = wire.get("block") or (message if native.items or message.get("role") == "tool" else None)
    return block if block and isinstance(block, dict) else None


def _is_strange(block: JsonObject, native: Native) -> bool:
    """Whether a block does not fit its provider's own description, so that the provider would refuse it."""
    return bool(native.block) and not fits(block, native.block, grammar_of(native.formats[0]))


def strange_kinds(entries: Iterable[Entry]) -> list[str]:
    """The kinds of imported blocks that their provider is not known to take: they are exported, but not sent."""
    kinds: list[str] = []
    for entry in entries:
        native = _native(entry.wire.get("format"))
        if (block := _block_in(entry.wire, native)) and _is_strange(block, native):
            kinds.append(kind_of(block))
    return list(dict.fromkeys(kinds))


def _native(name: Json) -> Native:
    """What is known of the blocks of a format, or of the one that it is like."""
    if not isinstance(name, str) or name not in FORMATS:
        return Native()
    format = format_of(name)
    wire = format_of(format.like) if format.like else format
    return wire.writer.native if isinstance(wire, Wire) else Native()


def kind_of(block: JsonObject) -> str:
    """What a block calls itself: its type, or its only field."""
    named = block.get("type") or next((name for name in block if name != "text"), "")
    return str(named or "text")


def leave_out(part: Text | Think, message: Message, draft: Draft) -> None:
    """Note why a thought, or a block that is no text (another provider's search), is left out of the request."""
    reason = _void_thought(part, draft) if isinstance(part, Think) else _void_block(part, draft)
    if reason:
        draft.leave_out(message, reason, part)


def _void_block(part: Text, draft: Draft) -> str:
    block = part.wire.get("block")
    if not isinstance(block, dict) or part.text.strip() or kind_of(block) in ("text", "message"):
        return ""
    origin = part.wire.get("model") or part.wire.get("format")
    return f"{kind_of(block)} of {origin} means nothing to {draft.info.provider}:{draft.info.model}"


def _void_thought(part: Think, draft: Draft) -> str:
    format = part.wire.get("format")
    origin = part.wire.get("model") or format
    same = draft.is_from(part.wire, str(format))
    named = bool(part.wire.get("model")) and same
    if draft.stale and origin and same:
        return "thinking is bound to the prefix before the rebase"
    if named and format != draft.info.wire:
        return f"thinking of {origin} is bound to the request it came from, in {format}'s form"
    if origin and not named:
        return f"thinking of {origin} means nothing to {draft.info.provider}:{draft.info.model}"
    return "thinking without a provider's signature is not sent"


# What a user says: texts, images, and what else a message holds: documents, audio, files.
#
# An entry names the latter in its text; in their provider's own form they go back to the wire format they came in.


def joined_text(content: Json, read: Callable[[Json], str]) -> str:
    """A content's text: of blocks, what `read` makes of each, line by line."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(text for block in content if (text := read(block)))


class UserContent(msgspec.Struct, frozen=True, kw_only=True):
    """How one wire format holds what a user says."""

    # What a block encloses, in a word; "" where an entry holds all of it: text, images, results.
    kind: Callable[[JsonObject], str]
    # A block's image, a block of an image, and one of a text; None where there is none or it cannot be shown.
    image: Callable[[JsonObject], Image | None]
    show: Callable[[Image], JsonObject | None]
    say: Callable[[str], JsonObject]
    # The fields of a block's text, the one that names what a block encloses, and what else is text.
    texts: tuple[str, ...] = ("text",)
    title: str = ""
    other_text: Callable[[JsonObject], str | None] = lambda block: None

    def text_of(self, content: Json) -> str:
        """A content's text; what is neither text nor image is named in brackets."""
        return joined_text(content, self._block_text)

    def _block_text(self, block: Json) -> str:
        if not isinstance(block, dict):
            return str(block)
        text = next((block[field] for field in self.texts if block.get(field) is not None), self.other_text(block))
        if text is not None:
            return str(text)
        kind, title = self.kind(block), block.get(self.title)
        return f"[{kind}: {title}]" if kind and title else f"[{kind}]" if kind else ""

    def entry(self, content: Json, *, first: bool = True) -> Entry:
        """The user entry of a content; `first`: nothing of its message came before."""
        blocks = values.as_objects(content)
        images = [image_json(image) for block in blocks if (image := self.image(block))]
        return values.user(self.text_of(content), images=images or None, wire=self.origin(blocks, first=first))

    def entries(self, results: list[Entry], rest: list[JsonObject]) -> list[Entry]:
        """The results of a message, and then what the user says besides."""
        return results if results and not rest else [*results, self.entry(rest, first=not results)]

    def origin(self, content: list[JsonObject], *, first: bool) -> JsonObject | None:
        """The `wire` of an imported user entry: what it encloses, and the blocks unless its message has them."""
        kinds = [kind for block in content if (kind := self.kind(block))]
        named = {"encloses": list(dict.fromkeys(kinds))} if kinds else {}
        blocks = {"content": content} if not first and (kinds or len(content) > 1) else {}
        return {**named, **blocks} or None

    def blocks(self, draft: Draft, message: Message, blank: str = NO_TEXT) -> list[JsonObject]:
        """All blocks of a user's message; `blank` stands for one that says nothing."""
        written = [*map(self.say, texts(message)), *self.images(draft, message)]
        return self.user_blocks(draft, message, written) or [self.say(blank)]

    def images(self, draft: Draft, message: Message) -> list[JsonObject]:
        """The images of a message; one that cannot be shown is named in the text."""
        out = []
        for part in message.parts:
            if not isinstance(part, Image):
                continue
            # Bedrock fetches nothing from the web.
            written = None if draft.info.features.on_bedrock and is_web(part.url) else self.show(part)
            if written is None:
                name = part.url or part.media_type or "without data"
                draft.leave_out(message, f"image {name[:80]} cannot be taken by {draft.info.provider}")
                written = self.say(f"[image: {part.url}]" if part.url else "[image]")
            out.append(written)
        return out

    def user_blocks(self, draft: Draft, message: Message, blocks: list[JsonObject]) -> list[JsonObject]:
        """A user's blocks: as imported while the text is unchanged; else the new text, then its documents and media."""
        if (came := self.as_it_came(draft, message)) is not None:
            return came
        part = _enclosing(message)
        if part is None:
            return blocks
        if part.wire.get("format") not in draft.native.formats:
            self.left_out(draft, message)
            return blocks
        grammar = grammar_of(draft.native.formats[0])
        fitting, unfit = list[JsonObject](), list[Json]()
        for block in _content(part.wire):
            # A log may hold as a block what no provider ever sent.
            with contextlib.suppress(FormatError):
                if (kind := self.kind(block)) and fits(block, "@asked", grammar):
                    fitting.append(_bare(block))
                elif kind:
                    unfit.append(kind)
        if unfit:
            self._leave_out(draft, message, unfit, part.wire)
        return [*blocks, *fitting]

    def as_it_came(self, draft: Draft, message: Message) -> list[JsonObject] | None:
        """The blocks of an imported message whose text is unchanged; None where it is plain text.

        The model that it came from takes every block back; another model gets those that its format describes.
        """
        part = next((part for part in message.parts if isinstance(part, Text)), None)
        if part is None or part.wire.get("format") not in draft.native.formats:
            return None
        came = _content(part.wire)
        try:
            if len(came) < 2 and not any(map(self.kind, came)):
                return None
            if normal(self.text_of(came)) != normal(part.text):
                return None
        except FormatError:
            return None  # a log may hold as a block what no provider ever sent
        grammar = grammar_of(draft.native.formats[0])
        same = bool(part.wire.get("model")) and draft.is_from(part.wire)
        accepted = same or all(fits(block, "@asked", grammar) for block in came)
        return [_bare(block) for block in came] if accepted else None

    def left_out(self, draft: Draft, message: Message) -> None:
        """Note that the documents and media of a message are left out of the request."""
        if part := _enclosing(message):
            self._leave_out(draft, message, part.wire["encloses"], part.wire)

    def _leave_out(self, draft: Draft, message: Message, kinds: list[Json], wire: JsonObject) -> None:
        named = ", ".join(dict.fromkeys(map(str, kinds)))
        draft.leave_out(message, f"{named} from {wire.get('format')} cannot go along; the text names what is missing")


def _enclosing(message: Message) -> Text | None:
    texts = (part for part in message.parts if isinstance(part, Text))
    return next((part for part in texts if isinstance(part.wire.get("encloses"), list)), None)


def _content(wire: JsonObject) -> list[JsonObject]:
    """The blocks that the user's words came with, without results, cache points and blank texts."""
    message = values.as_object(wire.get("message"))
    content = wire.get("content") or message.get("content") or message.get("parts")
    return [block for block in values.as_objects(content) if not _is_void(block)]


def normal(text: str) -> str:
    """Text without what importing and assembling may change of it: line ends, and white space around it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _is_void(block: JsonObject) -> bool:
    text = block.get("text", ...)
    plain = block.keys() <= {"type", "text", "cache_control", "citations"}
    blank = plain and (text is None or (isinstance(text, str) and not text.strip()))
    other = block.keys() & {"toolResult", "cachePoint", "functionResponse"}
    return blank or block.get("type") == "tool_result" or bool(other)


def _bare(block: JsonObject) -> JsonObject:
    bare = without_nulls(without_marks(block))
    # Citations are the model's to give.
    return {key: bare[key] for key in bare if key != "citations" or bare.get("type") != "text"}


# Blocks that are sent verbatim and that their entry's text does not show: a provider's search, a document, a sound.


def holds_blocks(part: Part) -> bool:
    """Whether a part came with blocks that its text does not show."""
    match part:
        case Text() | Think():
            besides = part.wire.keys() & {"encloses", "besides"}
            return bool(besides) or ("block" in part.wire and not part.text.strip())
        case Call():
            return "besides" in part.wire
        case Result():
            return "block" in part.wire or "message" in part.wire
    return False


def own_blocks(message: Message, target: str = "") -> list[list[JsonObject]]:
    """For each part, the blocks that a model is sent beside its text; without a model, where they came from."""
    draft = draft_for(target) if target else None
    return [_part_blocks(part, message, draft) if holds_blocks(part) else [] for part in message.parts]


@lru_cache(maxsize=64)
def draft_for(target: str) -> Draft:
    """An empty draft of a request to "provider:model", which tells what that model knows."""
    return Draft(model_info(target), wire_of(target).writer.native)


def _part_blocks(part: Part, message: Message, draft: Draft | None) -> list[JsonObject]:
    assert isinstance(part, Text | Think | Call | Result)  # the caller asked
    if "besides" in part.wire:
        back = draft is None or draft.was_sent(part.wire)
        return [{name: part.wire["message"].get(name) for name in part.wire["besides"]}] if back else []
    if "encloses" in part.wire and not isinstance(part, Call):
        return _enclosed_blocks(part, message, draft)
    block = own_block(part, draft) if draft is not None else _block_in(part.wire, _native(part.wire.get("format")))
    if block is None:
        return [BEHIND, *shown] if draft is not None and (shown := images_behind(part, draft)) else []
    return [inner for inner in _inside(block) if not is_text(inner)] if isinstance(part, Result) else [block]


# What stands in front of images that were taken out of results.
BEHIND: JsonObject = {"type": "text", "text": "[Images in the results above]"}


def images_behind(part: Part, draft: Draft) -> list[JsonObject]:
    """The images of a result from elsewhere that a user's message behind the results shows, as it writes them."""
    features = draft.info.features
    sees = features.images and "image" in (features.media or ("image",))
    behind = draft.native.result_images == "behind" and features.user_after_tool and not features.template
    if not (sees and behind and isinstance(part, Result)) or own_block(part, draft) is not None:
        return []
    inside = _inside(_block_in(part.wire, _native(part.wire.get("format"))) or {})
    media = [media for inner in inside if (media := media_in(inner)) and media.data and media.type in COMMON]
    urls = (to_url(Image(media_type=found.type, data=found.data)) for found in media)
    ours = [without_marks(inner) for inner in inside if inner.get("type") == "image_url"]
    return [*ours, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def leave_out_media(message: Message, draft: Draft) -> None:
    """Note what results hold beside text, an image mostly, where the model gets their text alone."""
    for part in message.parts:
        if isinstance(part, Result) and holds_blocks(part) and own_block(part, draft) is None:
            blocks = _part_blocks(part, message, None)
            shown = len(images_behind(part, draft)) == sum(map(is_image, blocks))
            kinds = dict.fromkeys(kind_of(block) for block in blocks if not (shown and is_image(block)))
            reason = f"{', '.join(kinds)} in a result from {part.wire.get('format')} cannot go along"
            draft.leave_out(message, reason, part) if kinds else None


def _enclosed_blocks(part: Text | Think | Result, message: Message, draft: Draft | None) -> list[JsonObject]:
    """What a user's message encloses, without the images that its entry lists."""
    if draft is None:
        content = _content(part.wire)
    elif part.wire.get("format") in draft.native.formats:
        draft = draft.copy()
        wire_of(draft.info.wire).writer.write(draft, message)
        content = _inside(draft.last)
    else:
        return []
    pictures = [block for block in content if is_image(block)]
    listed = pictures[: sum(isinstance(part, Image) for part in message.parts)]
    return [block for block in content if not is_text(block) and not any(block is picture for picture in listed)]


def _inside(block: JsonObject) -> list[JsonObject]:
    """The blocks of a message, or of a tool's result."""
    inner = values.as_object(block.get("toolResult")) or values.as_object(block.get("functionResponse")) or block
    if isinstance(inner.get("output"), dict):
        return [inner["output"]]
    listed = (inner[name] for name in ("content", "parts", "output") if isinstance(inner.get(name), list))
    return values.as_objects(next(listed, None))


# Outputs whose place takes a screenshot, what a shell printed, or the tools that were found, and no words.
_WORDLESS = ("computer_call_output", "shell_call_output", "tool_search_output")


def takes_words(part: Result) -> bool:
    """Whether the model that asked for a result takes plain text in its place."""
    block = values.as_object(part.wire.get("block")) or values.as_object(part.wire.get("message"))
    return block.get("type") not in _WORDLESS


def pairs(blocks: Sequence[JsonObject | None]) -> list[tuple[int, ...]]:
    """The places of the provider's own calls, each with its result: one without the other would be refused.

    A block that is both in one stands alone; a call whose result stands elsewhere is no pair.
    """
    out: list[tuple[int, ...]] = []
    open_calls: dict[str, int] = {}
    for place, block in enumerate(blocks):
        if block is None:
            continue
        call_id, result_id = _asks(block), _answers(block)
        if call_id:
            open_calls[call_id] = place
        elif result_id:
            out += [(open_calls.pop(result_id), place)] if result_id in open_calls else []
        elif kind_of(block).endswith("_call") or kind_of(block) == "mcp_list_tools":
            out.append((place,))
    return out


def _asks(block: JsonObject) -> str:
    kind = kind_of(block)
    if kind in ("server_tool_use", "mcp_tool_use", "toolUse", "toolCall", "program"):
        return _call_id(block, kind)
    return {"executableCode": "code", "tool_search_call": "tools"}.get(kind, "")


def _answers(block: JsonObject) -> str:
    kind = kind_of(block)
    if kind in ("toolResult", "toolResponse", "program_output") or kind.endswith("_tool_result"):
        return _call_id(block, kind)
    return {"codeExecutionResult": "code", "tool_search_output": "tools"}.get(kind, "")


def _call_id(block: JsonObject, kind: str) -> str:
    """The id of a call, by which its result names it."""
    inner = values.as_object(block.get(kind)) or block
    ids = (inner.get(name) for name in ("toolUseId", "tool_use_id", "call_id", "id"))
    return str(next(filter(None, ids), ""))
