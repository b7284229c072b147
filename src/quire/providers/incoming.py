"""What comes from a provider, as plain JSON, and what a broken stream leaves behind."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from itertools import chain, count
from math import isfinite
from types import NoneType
from typing import Any

import msgspec

from quire.errors import FormatError, ProviderError
from quire.log.shapes import MAX_DEPTH
from quire.providers.usage import usage
from quire.values import Entry, Json, JsonObject, Reply, Usage, respond, sha256_hex, whole_characters, with_leaves

# No reply of any model comes near these; a stream that does is not one.
LIMIT_BYTES = 64 * 1024 * 1024
LIMIT_BLOCKS = 10_000


_SCALARS = (str, int, float, bool, NoneType)


def plain(value: Any) -> Json:
    """JSON of an SDK's object or dictionary; bytes become base64, as they are on the wire."""
    if type(value) in _SCALARS:
        return value  # most values: nothing more need be looked at
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True, by_alias=True, warnings=False)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    return value


def object_in(value: Any, subject: str) -> JsonObject:
    """A JSON object that came from outside, or an error that says what came instead."""
    try:
        value = plain(value)
    except RecursionError as error:
        raise FormatError(
            f"{subject} is nested too deeply to be read", hint="No provider sends such a thing; check the base URL."
        ) from error
    if not isinstance(value, dict):
        hint = "Hand over what the SDK's call gave, awaited (of a raw response, its parse()), or its decoded JSON."
        raise FormatError(f"{subject} is {type(value).__name__}, not an object", hint=hint)
    return value


def sub(holder: JsonObject, field: str) -> JsonObject:
    """An object inside another; absent and null are an empty one."""
    inner: JsonObject = _inside(holder, field, dict, "an object")
    return inner


def required_object(holder: JsonObject, field: str) -> JsonObject:
    """An object that has to stand inside another."""
    if holder.get(field) is None:
        raise FormatError(f"{field} is missing", hint="stream.partial() holds what came before.")
    return sub(holder, field)


def optional_list(holder: JsonObject, field: str) -> list[Json]:
    """A list inside an object; absent and null are an empty one."""
    items: list[Json] = _inside(holder, field, list, "a list")
    return items


def text_in(holder: JsonObject, field: str) -> str:
    """A text inside an object, mostly an event of a stream; absent and null are an empty one."""
    text: str = _inside(holder, field, str, "text", "stream.partial() holds what came before.")
    return text


def _inside(holder: JsonObject, field: str, kind: type, form: str, hint: str = "Hand over the decoded JSON.") -> Any:
    value = holder.get(field)
    if value is not None and not isinstance(value, kind):
        raise FormatError(f"{field} is {type(value).__name__}, not {form}", hint=hint)
    return kind() if value is None else value


def objects(holder: JsonObject, field: str) -> list[JsonObject]:
    """A list of objects inside an object."""
    values = optional_list(holder, field)
    if wrong := [value for value in values if not isinstance(value, dict)]:
        raise FormatError(f"{field} holds {type(wrong[0]).__name__}, not objects", hint="Hand over the decoded JSON.")
    return values


def bytes_of(text: Json) -> bytes:
    """What base64 text stands for, in either of its alphabets."""
    try:
        return base64.b64decode(str(text).translate(str.maketrans("-_", "+/")), validate=True)
    except ValueError as error:
        raise FormatError(f"not base64: {str(text)[:40]!r}", hint="Give bytes, or their base64.") from error


def without_nulls(block: JsonObject) -> JsonObject:
    """A block as it can be sent back: an SDK's absent fields are no part of it."""
    return {key: value for key, value in block.items() if value is not None}


def number_in(event: JsonObject, field: str) -> int:
    """A block's place in a streamed reply."""
    value = event.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LIMIT_BLOCKS:
        raise FormatError(f"stream event with {field} {value!r}", hint="stream.partial() holds what came before.")
    return value


class Partial(msgspec.Struct, frozen=True):
    """What a stream has given so far: finished entries, and the pieces that were cut.

    `unfinished` holds {"kind": "respond"|"think"|"call", "text": …} (and "name" of a call); none of it can
    go back to the provider as it is.
    """

    entries: tuple[Entry, ...]
    unfinished: tuple[JsonObject, ...] = ()
    usage: Usage = Usage()
    stop: str = ""
    id: str = ""
    model: str = ""
    # Events of kinds that are not known here; they were passed over.
    unknown: int = 0


class BlockDelta(msgspec.Struct, frozen=True):
    """More text of the block at `place` (blocks become entries in that order), for whoever watches a reply."""

    place: int
    kind: str
    text: str


class Spelling(msgspec.Struct, frozen=True):
    """Which strings a provider takes as a name or an id."""

    characters: str = "A-Za-z0-9_-"
    longest: int = 64
    # What the first character may be, where that is fewer.
    first: str = ""
    # Exactly `longest` characters (Mistral's ids): anything else is replaced by a digest.
    exact: bool = False

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - a wire format's spellings live as long as the process
    def spell(self, text: str) -> str:
        """The text itself where it fits, else a readable replacement that depends on nothing else."""
        if len(text) <= self.longest and re.fullmatch(self._pattern(), text):
            return text
        digest = sha256_hex(text)
        if self.exact:
            return digest[: self.longest]
        readable = re.sub(f"[^{self.characters}]", "_", text)[: self.longest - 10]
        start = "" if not self.first or re.match(f"[{self.first}]", readable) else "_"
        return f"{start}{readable}_{digest[:8]}"

    def _pattern(self) -> str:
        if self.exact:
            return f"[{self.characters}]{{{self.longest}}}"
        return f"[{self.first or self.characters}][{self.characters}]*"

    def candidates(self, text: str) -> Iterator[str]:
        """Ever more spellings of an id that may be taken: call_1, call_1-2, call_1-3, …"""
        return map(self.spell, id_variants(text))


def id_variants(id: str) -> Iterator[str]:
    """An id, and others like it where that is taken."""
    return chain([id], (f"{id}-{number}" for number in count(2)))


class StreamedBlock:
    """A block of a streamed reply that is not whole yet: how it began, and the pieces of its fields that came since."""

    def __init__(self, kind: str = "respond", start: JsonObject | None = None, name: Json = "") -> None:
        self.kind, self.start, self.name = kind, start or {}, str(name or "")
        self.pieces: defaultdict[str, list[str]] = defaultdict(list)
        # The field that whoever watches is shown.
        self.shown_field = ""

    def text(self, field: str) -> str:
        """What came of a field."""
        return "".join(self.pieces.get(field, ()))

    def unfinished(self) -> JsonObject:
        """What came of the block, as `Partial` tells it."""
        named = {"name": self.name} if self.name else {}
        return {"kind": self.kind, **named, "text": self.text(self.shown_field)}


class ReplyReader:
    """A reply that comes whole or in pieces: what every wire's reader keeps of it, and how it tells what came."""

    format = ""
    # What a whole reply is called in errors, and what a whole stream ends with.
    named = "a response"
    ending = ""

    # How tools are named here.
    spelling = Spelling()

    def __init__(self, provider: str, model: str, names: Iterable[str]) -> None:
        self.provider, self.names = provider, tuple(names)
        # A model may be asked by one name and answer by another.
        self.id, self.alias, self.model, self.stop = "", model, model, ""
        self.reported: JsonObject = {}
        self.entries: list[Entry] = []
        # The blocks that are not whole yet, by their places.
        self.open_blocks: dict[int, StreamedBlock] = {}
        # Characters received, events that no kind here describes, and new text for whoever watches.
        self._size = self.unknown = 0
        self._live: list[BlockDelta] = []

    def feed(self, event: Any) -> list[Entry]:
        """One more event; the entries it finishes."""
        return self._take(_sound_reply(event, "a stream event"))

    def _take(self, event: JsonObject) -> list[Entry]:
        raise NotImplementedError

    def live(self) -> list[BlockDelta]:
        """The text that came since this was asked last, of blocks that are no entries yet."""
        deltas, self._live = self._live, []
        return deltas

    def _show(self, place: int, kind: str, text: str) -> str:
        """Text of a block that is not whole yet: received, and shown to whoever watches if it is of any kind."""
        if kind and text:
            self._live.append(BlockDelta(place, kind, text))
        return self._receive(text)

    def _grow(self, place: int, field: str, text: str, kind: str = "") -> StreamedBlock:
        """One more piece of a block's field."""
        # A block that did not say that it begins does with its first piece.
        block = self.open_blocks.setdefault(place, StreamedBlock())
        block.pieces[field].append(self._show(place, kind, text))
        if kind:
            block.kind, block.shown_field = kind, field
        return block

    def _receive(self, text: str) -> str:
        self._size += len(text)
        if self._size > LIMIT_BYTES:
            raise FormatError(
                f"a streamed reply of more than {LIMIT_BYTES:,} characters",
                hint="stream.partial() holds what came before.",
            )
        return text

    def _add(self, entries: Iterable[Entry]) -> list[Entry]:
        entries, names = with_call_ids(entries, len(self.entries)), read_back(self.names, self.spelling)
        added = from_reply(entries, self.format, self.model, names, begun=bool(self.entries), alias=self.alias)
        self.entries += added
        return added

    def _end(self) -> list[Entry]:
        """The end of the reply, which ends a text too that has not said so; one that says nothing is an empty respond."""
        spoken = {
            place: block.text(block.shown_field) for place, block in self.open_blocks.items() if block.kind == "respond"
        }
        texts = [text for place, text in sorted(spoken.items()) if text and self.open_blocks.pop(place)]
        return self._add(map(respond, texts or ([] if self.entries or self.open_blocks else [""])))

    def whole(self, value: Any) -> Reply:
        """Entries and usage of a reply that came whole: JSON, or the SDK's object."""
        return self._read(_sound_reply(value, self.named))

    def _read(self, reply: JsonObject) -> Reply:
        raise NotImplementedError

    def _whole_reply(self, reply: JsonObject, entries: Iterable[Entry], stop: Json, id: Json) -> Reply:
        """A reply that came whole; one that says nothing is an empty respond."""
        added = self._add(entries) or self._add([respond("")])
        return Reply(tuple(added), usage(self.provider, reply), str(stop or ""), str(id or ""), self.model)

    @property
    def usage(self) -> Usage:
        return usage(self.provider, self.reported) if self.reported else Usage()

    def unfinished(self) -> Iterable[JsonObject]:
        """What came of the blocks that are no entries yet."""
        return [self.open_blocks[place].unfinished() for place in sorted(self.open_blocks)]

    def partial(self) -> Partial:
        """What has arrived of the reply, if nothing more comes."""
        entries, unfinished = tuple(self.entries), tuple(self.unfinished())
        return Partial(entries, unfinished, self.usage, self.stop, self.id, self.model, self.unknown)

    def reply(self) -> Reply:
        """The whole reply, once the stream has ended."""
        if not self.stop:
            raise cut(self.ending)
        return Reply(tuple(self.entries), self.usage, self.stop, self.id, self.model)


def _sound_reply(value: Any, subject: str) -> JsonObject:
    """A reply, or an event of one, as plain JSON; one that tells of an error is raised."""
    reply = object_in(value, subject)
    if reply.get("error"):
        raise error_in_reply(reply["error"])
    return reply


# Why a reply ended where a call at its end may be cut: what came of its input is a whole value all the same.
_LENGTH_RAN_OUT = ("max_tokens", "model_context_window_exceeded")


class BlockReader(ReplyReader):
    """Reads streams that say of each block where it begins and ends: it is an entry at its end, and not before."""

    def _entry(self, block: StreamedBlock) -> Entry:
        """The entry of a block that has ended; a JSONDecodeError where its input is cut."""
        raise NotImplementedError

    def _open_block(self, place: int, event: str) -> StreamedBlock:
        if place not in self.open_blocks:
            raise FormatError(f"{event} of block {place}, which never began", hint="stream.partial() has the rest.")
        return self.open_blocks[place]

    def _close(self, place: int) -> list[Entry]:
        try:
            entry = self._entry(self._open_block(place, "the end"))
        except json.JSONDecodeError:
            return []  # ended in the middle of its input: the reply's length ran out
        del self.open_blocks[place]
        return self._add([entry])

    def _whole_reply(self, reply: JsonObject, entries: Iterable[Entry], stop: Json, id: Json) -> Reply:
        """The reply without the call that its length ran out in, which is none in a stream either."""
        whole = list(entries)
        if stop in _LENGTH_RAN_OUT and whole and whole[-1].kind == "call":
            del whole[-1]
        return super()._whole_reply(reply, whole, stop, id)

    def _end(self) -> list[Entry]:
        """A call whose input is no JSON, though the model waits for its result, has what was written as `arguments`."""
        added: list[Entry] = []
        for place, block in sorted(self.open_blocks.items()) if self.stop == "tool_use" else ():
            if block.kind == "call":
                block.pieces["input"] = [json.dumps({"arguments": block.text("input")})]
                added += self._close(place)
        return [*added, *super()._end()]


def cut(missing: str) -> ProviderError:
    """The error of a stream that ended too early."""
    return ProviderError(
        f"the stream ended before {missing}",
        retryable=True,
        hint="stream.partial() holds what was received; send the request again, or ask to continue.",
    )


def not_a_reply(problem: str) -> FormatError:
    """The error of a value that should be a whole reply."""
    return FormatError(
        problem,
        hint="Is it of the model that was asked? One event of a stream goes into quire.providers.stream(model).feed.",
    )


# Providers' words for failures that are worth another try.
_PASSING = ("overload", "rate", "thrott", "timeout", "unavail", "server", "internal", "exhausted")
_PASSING_CODES = ("408", "409", "425", "429", "500", "502", "503", "504", "529")


def error_in_reply(error: Json) -> ProviderError:
    """The error that a reply or a stream is itself."""
    fields = error if isinstance(error, dict) else {"message": error}
    named = [str(fields[field]) for field in ("status", "code", "type") if fields.get(field)]
    kind = next((name for name in named if name != "error"), "error")
    return ProviderError(
        f"{kind}: {fields.get('message') or 'no message'}",
        retryable=any(name in _PASSING_CODES or word in name.lower() for name in named for word in _PASSING),
        hint="stream.partial() holds what was received before.",
    )


# Where an entry came from: its `wire` field, written on import and read again on export.
#
# The first entry of a message holds the whole message verbatim, the further ones say `more`; so a list of
# messages goes out as it came in, whatever the entries between can express.


def read_messages(
    value: Any,
    model: str = "",
    *,
    format: str,
    head: Callable[[JsonObject, str], list[Entry]],
    read: Callable[[Json, str], list[Entry]],
    model_field: str = "model",
) -> list[Entry]:
    """Entries of a list of messages, or of a request that holds one; `head` reads what stands around them."""
    out: list[Entry] = []
    if isinstance(value, dict):
        model = model or str(value.get(model_field) or "")
        out += head(value, model)
        value = value.get("messages")
    if not isinstance(value, list):
        raise FormatError("no list of messages", hint='Give a list, or {"messages": [...]}.')
    for place, message in enumerate(value):
        check_content(message, f"messages[{place}]")
        out += tag_message(read(message, f"messages[{place}]"), format, message, model)
    return out


def check_content(message: Json, where: str) -> None:
    """Refuse a message without `content`: it would be read as empty, and its text in other fields lost in silence."""
    if not isinstance(message, dict):
        return
    if message.get("role") in ("user", "system", "developer") and "content" not in message:
        raise FormatError(
            f"{where}: a {message['role']} message without content; it has {', '.join(map(str, message))}",
            hint="What it says stands in `content`: a text, or a list of parts.",
        )
    if not isinstance(content := message.get("content"), str | list | None):
        raise FormatError(f"{where}: content is {type(content).__name__}", hint="It is a text, or a list of parts.")


def paragraphs(blocks: Iterable[JsonObject], read: Callable[[list[JsonObject]], str]) -> str:
    """A system prompt of one block as it is; of several, each a paragraph of its own."""
    texts = [text for block in blocks if (text := read([block])).strip()]
    return texts[0] if len(texts) == 1 else "\n\n".join(text.strip() for text in texts)


def tag_message(entries: Iterable[Entry], format: str, message: JsonObject, model: str = "") -> list[Entry]:
    """The entries of one imported message, with the message kept on the first of them."""
    out = [
        with_wire(entry, {**_origin(format, model), **({"more": True} if place else {"message": message})})
        for place, entry in enumerate(entries)
    ]
    at = _recorded_at(message)
    return out if at is None else [msgspec.structs.replace(entry, body={**entry.body, "at": at}) for entry in out]


def from_reply(
    entries: Iterable[Entry],
    format: str,
    model: str,
    names: Mapping[str, str] = {},  # nobody changes it
    *,
    begun: bool = False,
    alias: str = "",
) -> list[Entry]:
    """The entries of one reply as the log keeps them; `begun`: not the first of it; `names`: tools that were respelled.

    `model` is the name that answered, `alias` the one that was asked for: a short name, a deployment.
    """
    out, origin = list[Entry](), {**_origin(format, model), **({"asked": alias} if alias not in ("", model) else {})}
    for entry in entries:
        if entry.kind == "call" and entry.name in names:
            entry = msgspec.structs.replace(entry, body={**entry.body, "name": names[entry.name]})
        out.append(with_wire(recordable(entry), {**origin, **({"more": True} if begun or out else {})}))
    return out


def recordable(entry: Entry) -> Entry:
    """A model's entry as the log can hold it; what had to change for that is named in `meta.repaired`.

    Halves of characters become U+FFFD (two that belong together, their character), null arguments {}, and numbers
    beyond JSON's and arguments nested too deeply their own text: the tool says what is wrong, the turn goes on.
    """
    body, problems = dict(entry.body), list[str]()
    if entry.kind == "call" and body.get("args") is None:
        body["args"] = {}
        problems.append("the arguments were null")
    if _depth(body.get("args")) > _DEEPEST:
        body["args"] = _text(body["args"])
        problems.append(f"the arguments were nested deeper than {_DEEPEST} levels")
    if _depth(entry.wire) > _DEEPEST:
        body["wire"] = {key: value for key, value in entry.wire.items() if _depth(value) < _DEEPEST}
        problems.append("the provider's own form was nested too deeply to be kept")
    body = with_leaves(body, lambda leaf: _sound(leaf, problems))
    if not problems:
        return entry
    meta = {**entry.meta, "repaired": list(dict.fromkeys(problems))}
    return msgspec.structs.replace(entry, body={**body, "meta": meta})


# A little less than the log's own limit, since these values stand inside an entry.
_DEEPEST = MAX_DEPTH - 6


def _depth(value: Json) -> int:
    """How deeply a value is nested, counted level by level, without recursion: {"a": [1]} -> 2."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        level = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
    return depth


def _text(value: Json) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "[nested too deeply to be written down]"


def _sound(leaf: Json, problems: list[str]) -> Json:
    """A text as UTF-8 can hold it, a number as JSON can."""
    if isinstance(leaf, float) and not isfinite(leaf):
        problems.append("numbers that JSON has not were written as text")
        return json.dumps(leaf)
    if not isinstance(leaf, str) or (whole := whole_characters(leaf)) == leaf:
        return leaf
    problems.append("half characters were put together or replaced")
    return whole


def with_call_ids(entries: Iterable[Entry], before: int = 0) -> Iterator[Entry]:
    """Entries of a reply (`before`: so many came already), whose calls must have ids for results to answer."""
    for place, entry in enumerate(entries, before + 1):
        if entry.kind != "call" or entry.call_id:
            yield entry
        else:
            yield msgspec.structs.replace(entry, body={**entry.body, "call_id": f"call-{place}"})


def _origin(format: str, model: str) -> JsonObject:
    return {"format": format, "model": model} if model else {"format": format}


def with_wire(entry: Entry, origin: JsonObject) -> Entry:
    return msgspec.structs.replace(entry, body={**entry.body, "wire": {**origin, **entry.wire}})


def _recorded_at(message: JsonObject) -> int | None:
    """Milliseconds of a recorder's `_ts` (ISO 8601 or a number), if there is one."""
    stamp = message.get("_ts")
    return int(stamp) if isinstance(stamp, int | float) and not isinstance(stamp, bool) else iso_ms(stamp)


def iso_ms(stamp: Json) -> int | None:
    """Milliseconds of a time in ISO 8601: "2026-11-15T08:00:00Z" -> 1794729600000; None for anything else."""
    try:
        return round(datetime.fromisoformat(str(stamp)).timestamp() * 1000)
    except ValueError:
        return None


def read_back(names: Iterable[str], spelling: Spelling) -> dict[str, str]:
    """What each spelled name stands for, for those that had to change: {"a_b_1f2e3d4c": "a.b"}."""
    return {spelled: name for name in names if (spelled := spelling.spell(name)) != name}
