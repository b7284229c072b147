"""The first difference between two requests, and its cause by where it stands and what changed there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, takewhile

import msgspec

from quire.archive.stored_conversations import SentCall
from quire.providers.prefix import Unit, as_block, bare, same_start, write_value
from quire.providers.wires import Wire, wire_of
from quire.values import Json, JsonObject, canonical

# (unit before, unit now, characters into its text); a unit that was added where its section was empty is both units.
Moved = tuple[Unit, Unit | None, int]


def units_of(call: SentCall, body: JsonObject | None = None) -> tuple[Unit, ...]:
    """The tools, the system prompt and the messages of a call's body (or of `body`); none where there is no body."""
    body = call.body if body is None else body
    if not body:
        return ()
    wire = wire_of(call.provider, body)
    body = _in_blocks(body, wire.layout.field)
    units = list(map(partial(_KNOWN.unit, wire), wire.layout.messages(body), count()))
    first = next((at for at, unit in enumerate(units) if unit.section == "messages"), len(units))
    # An instruction behind the first message is part of the conversation, not of the system prompt.
    return (*wire.layout.head(body), *units[:first], *(unit.at(unit.path[-1], "messages") for unit in units[first:]))


class KnownUnits:
    """A cache of the units of messages, because each request of a conversation repeats nearly all of the one before.

    Holds `most_bytes` of the newest messages, and up to as much of those used before them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._new, self._old = dict[bytes, Unit](), dict[bytes, Unit]()

    def unit(self, wire: Wire, message: Json, place: int) -> Unit:
        data = write_value(message)
        key = hashlib.blake2b(data, digest_size=16).digest() + wire.name.encode()
        unit = self._new.get(key)
        if unit is None:
            unit = self._old.get(key) or wire.layout.message(message, place)
            if self._bytes > self._most_bytes:
                self._new, self._old, self._bytes = {}, self._new, 0
            self._new[key], self._bytes = unit, self._bytes + len(data) + 2_000  # a unit's objects beside its data
        return unit.at(place)


_KNOWN = KnownUnits(64 * 1024 * 1024)


def _in_blocks(body: JsonObject, field: str) -> JsonObject:
    """A body with every text in a block: providers take a plain text and a list of one text block for the same."""
    rows = body.get(field)
    if isinstance(rows, str):
        rows = [{"role": "user", "content": rows}]
    if not isinstance(rows, list):
        return body
    system = {"system": [{"type": "text", "text": body["system"]}]} if isinstance(body.get("system"), str) else {}
    return {**body, **system, field: [_message_in_blocks(row, field) for row in rows]}


def _message_in_blocks(value: Json, field: str) -> Json:
    message = as_block(value)  # logs may also hold messages that no provider accepts
    if not isinstance(message.get("content"), str):
        return message
    kind = "output_text" if message.get("role") == "assistant" else "input_text"
    return {**message, "content": [{"type": kind if field == "input" else "text", "text": message["content"]}]}


def first_moved(old: Sequence[Unit], new: Sequence[Unit]) -> Moved | None:
    """The first unit that the later request does not repeat, and the place in it; None where it only adds units."""
    for section in ("tools", "system", "messages"):
        was = [unit for unit in old if unit.section == section]
        now = [unit for unit in new if unit.section == section]
        for place, unit in enumerate(was):
            other = now[place] if place < len(now) else None
            if other is None or bytes_of(unit) != bytes_of(other):
                return unit, other, same_start(_text(unit), _text(other) if other else "")
        if section != "messages" and len(now) > len(was):
            return (was[-1] if was else now[0]), now[len(was)], 0
    return None


def units_before(old: Sequence[Unit], place: Moved) -> Iterator[Unit]:
    """The units before the first difference: before an added system prompt the tools, before added tools none."""
    was, now, _ = place
    if was is not now:
        return takewhile(lambda unit: unit is not was, old)
    return (unit for unit in old if unit.section == "tools" != was.section)


def bytes_of(unit: Unit) -> bytes:
    """A unit as it was sent, with its keys in their order but without cache marks."""
    return b"\n".join(map(write_value, unit.compared_lines))


def _text(unit: Unit) -> str:
    return "\n".join(texts_of(list(unit.compared_lines)))


def texts_of(value: Json) -> list[str]:
    """Every text in a value, in its order; types and roles are left out."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return [text for inner in value for text in texts_of(inner)]
    fields = [value[key] for key in value if key not in ("type", "role")] if isinstance(value, dict) else []
    return [text for field in fields for text in texts_of(field)]


def _as_json(value: Json) -> Json:
    """A value in which every text that is JSON (the arguments of a call) is decoded."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return _as_json(msgspec.json.decode(value))
        except (msgspec.DecodeError, RecursionError):
            return value
    if isinstance(value, dict):
        return {key: _as_json(inner) for key, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list | tuple) else value


# The cause of a difference.


def moved_cause(old: Sequence[Unit], new: Sequence[Unit], place: Moved) -> tuple[str, str]:
    """(cause, note) of the first difference."""
    was, now, offset = place
    if was.section == "system" and (now is None or was is now):
        return "system-changed", "it is gone" if now is None else "there was none before"
    if (
        now is not None
        and was is not now
        and canonical(_as_json(list(was.compared_lines))) == canonical(_as_json(list(now.compared_lines)))
    ):
        return "key-order", where(was)
    if was.section == "tools":
        return _tools(old, new, place)
    if summed_up(old, new):
        before, after = (sum(unit.section == "messages" for unit in row) for row in (old, new))
        return "compaction", f"{before} messages became {after}"
    if now is not None and was.section == "system":
        return _system(was, now, offset)
    return _history(old, new, place)


# What stands in front with the tools and is none: a cache of Gemini's, the form of the answer.
_SETTINGS = (("cachedContent",), ("response_format",), ("text", "format"))


def _tools(old: Sequence[Unit], new: Sequence[Unit], place: Moved) -> tuple[str, str]:
    was, now, offset = place
    if settings := [unit for unit in (was, now) if unit is not None and unit.path in _SETTINGS]:
        return "settings", where(settings[0])
    before, after = _definitions(old), _definitions(new)
    if sorted(map(canonical, before)) == sorted(map(canonical, after)):
        return "tools-reordered", ""
    changed = sorted({*map(tool_name, before)} ^ {*map(tool_name, after)})
    if not changed and now is not None and (cause := _volatile(_text(was), _text(now), offset)):
        return cause, f"{where(was)}: {_became(was, now, offset)}"
    return "tools-changed", ", ".join(changed[:5]) or "a definition"


def _definitions(units: Sequence[Unit]) -> list[Json]:
    """The definitions of all tools; Gemini wraps them in one object."""
    tools = [tool for unit in units if unit.section == "tools" for tool in unit.compared_lines]
    listed = [tool.get("functionDeclarations") if isinstance(tool, dict) else None for tool in tools]
    return [definition for tool, inner in zip(tools, listed, strict=True) for definition in (inner or [tool])]


def tool_name(tool: Json) -> str:
    """What a tool is called, in any wire format."""
    inner = tool.get("function") or tool.get("toolSpec") or tool if isinstance(tool, dict) else {}
    return str(inner.get("name") or inner.get("type") or "") if isinstance(inner, dict) else ""


TIME = re.compile(
    r"\d\d?\.\d\d(\.\d\d)? ?[AaPp]\.?[Mm]\b|\b\d\d?[./-]\d\d?[./-]\d{4}\b|\d{4}[-/.]\d\d[-/.]\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?|\d\d?:\d\d(:\d\d)?|\b1[5-9]\d{8,11}\b"
    r"|\b\d{1,2}(st|nd|rd|th)?\.? (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*|\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
    r"|(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* \d{1,2}\b"
)
ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{13,}|\b(?=\w*\d)(?=\w*[a-zA-Z])[\w-]{8,}\b|\b(?=[a-f]*\d)[0-9a-f]{6,}\b"
    r"|\b[0-9a-f]{8,}\b|\b\d{6,}\b"
)


_WORD = re.compile(r"\w{6,}")
_CAPITAL_WITHIN = re.compile(r"[a-z][A-Z]")


def _volatile(old: str, new: str, offset: int) -> str:
    """ "clock" or "random-id" where both texts have a time or an id at the offset, else "".

    An id without digits is told by a capital letter inside a word, or by the other text's id of the same length.
    """
    if all(_match_at(TIME, text, offset) for text in (old, new)):
        return "clock"
    was, now = _match_at(ID, old, offset), _match_at(ID, new, offset)
    if was and now:
        return "random-id"
    word_before, word_now = (_match_at(_WORD, text, offset) for text in (old, new))
    drawn = was or now or (_CAPITAL_WITHIN.search(word_before) and _CAPITAL_WITHIN.search(word_now))
    return "random-id" if drawn and len(was or word_before) == len(now or word_now) else ""


def _match_at(pattern: re.Pattern[str], text: str, offset: int) -> str:
    """The pattern's match around an offset, else ""."""
    near = pattern.finditer(text, max(0, offset - 60), offset + 60)
    return next((match[0] for match in near if match.start() <= offset <= match.end()), "")


# Words of headings above retrieved context, which is another text for each question.
_FETCHED = re.compile(
    r"(?i)\b(retriev|relevant|context|documents?|search results?|snippets?|passages?|knowledge|excerpts?|sources?|memor(y|ies))"
)


def _system(was: Unit, now: Unit, offset: int) -> tuple[str, str]:
    old, new = _text(was), _text(now)
    became = _became(was, now, offset)
    if cause := _volatile(old, new, offset):
        return cause, became
    tail, ending = min(len(old), len(new)) - offset, same_start(old[::-1], new[::-1])
    # All of the old text is still there: something was inserted or appended.
    if offset + ending >= len(old) < len(new):
        return "growing-system", f"{len(new) - len(old):,} characters were added"
    if _FETCHED.search(old, max(0, offset - 200), offset) and tail - ending > 100:
        return "retrieval", became
    return "system-changed", became


def _history(old: Sequence[Unit], new: Sequence[Unit], place: Moved) -> tuple[str, str]:
    was, now, offset = place
    before, after = ([unit for unit in row if unit.section == "messages"] for row in (old, new))
    at = before.index(was)
    if call := _mended_call(old, new, was):
        return "unpaired", f"call {call} at {where(was)}"
    shifted = _shift_of_messages(_blocks(before[at:]), _blocks(after[at:]))
    # A sliding window may begin in the middle of a message.
    if at < 3 and shifted and shifted[0] == "trimmed":
        return shifted
    if now is not None and [unit.lines for unit in after[at + 1 : len(before)]] == [
        unit.lines for unit in before[at + 1 :]
    ]:
        if cause := _volatile(_text(was), _text(now), offset):
            return cause, f"{where(was)}: {_became(was, now, offset)}"
        return ("retrieval" if at < 2 and _is_fetched(was, now, offset) else "edited"), where(was)
    if shifted:
        return shifted
    if len(after) < 0.6 * len(before):
        return "compaction", f"{len(before)} messages became {len(after)}"
    return "edited", where(was)


# How clients introduce a summary of the earlier conversation.
_SUMMED_UP = re.compile(
    r"(?i)continued from a previous (conversation|session)|<state_snapshot>|<conversation[-_]summary>"
    r"|I spoke to you previously about|\AWhat did we do so far\?"
    r"|(conversation|session|history|context)\b[^.\n]{0,60} (is|are|was|were|has been|have been) (being )?(summari[sz]|compact|compress|condens)ed"
    r"|\b(produced|contains|here is|below is|following is) (a |the )?(\w+ )?summary\b|\bsummary of (the|our|this) (\w+ )?(conversation|session|chat|history)"
)


def summed_up(old: Sequence[Unit], new: Sequence[Unit]) -> bool:
    """Whether the later request has far fewer messages, and a new one that is a summary."""
    before, after = ([unit for unit in row if unit.section == "messages"] for row in (old, new))
    if len(after) >= 0.6 * len(before):
        return False
    known = {hash for unit in before for hash in unit.hashes}
    return any(_is_summary(unit) for unit in after if not known.issuperset(unit.hashes))


def _is_summary(unit: Unit) -> bool:
    """Whether a message is a provider's compaction block, or says that it is a summary."""
    values = [unit.value, *(part.value for part in unit.parts)]
    types = {value.get("type") for value in values if isinstance(value, dict)}
    return not types.isdisjoint(("compaction", "compaction_summary")) or bool(_SUMMED_UP.search(_text(unit), 0, 2_000))


def _blocks(units: Sequence[Unit]) -> list[bytes]:
    """The content as blocks with their roles: clients may merge several messages of one role."""
    parts = ((unit.role, part.value) for unit in units for part in unit.parts if "cachePoint" not in part.value)
    return [canonical([role, bare(block)]) for role, block in parts]


# Dropped messages are replaced by at most this many blocks.
_FEW = 4


def _shift_of_messages(before: list[bytes], after: list[bytes]) -> tuple[str, str] | None:
    """The cause where the newest blocks are still sent: older ones were dropped, summed up, or others put before them."""
    same = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
    before, after = before[same:], after[same:]
    for dropped in range(len(before)):
        tail = before[dropped:]
        for added in range(min(_FEW, len(after)) + 1):
            if after[added : added + len(tail)] != tail or (added and len(tail) < min(2, len(before) - 1)):
                continue
            if not added:
                return "trimmed", f"{dropped} of {len(before)} blocks"
            if not dropped:
                return "retrieval", f"{added} blocks were put in"
            if dropped > added:
                return "compaction", f"{dropped} blocks became {added}"
    return None


def _is_fetched(was: Unit, now: Unit, offset: int) -> bool:
    """Whether a message of the user holds another long text in the same place (retrieved context)."""
    old, new = _text(was), _text(now)
    other = min(len(old), len(new)) - offset - same_start(old[offset:][::-1], new[offset:][::-1])
    return now.asks and (other > 100 or not was.asks)


def _mended_call(old: Sequence[Unit], new: Sequence[Unit], moved: Unit) -> str:
    """The call in or right before the changed message that had no result in `old` and is not open in `new`."""
    at = [unit for unit in old if unit.section == "messages"].index(moved)
    still = {id for row in _open_calls(new) for id in row}
    return next((id for row in _open_calls(old)[max(0, at - 1) : at + 1] for id in row if id not in still), "")


def _open_calls(units: Sequence[Unit]) -> list[list[str]]:
    """For each message, the ids of its calls that no message right behind it answers."""
    pairs = [list(_call_ids(unit.value)) for unit in units if unit.section == "messages"]
    out = []
    for at, row in enumerate(pairs):
        behind = takewhile(bool, pairs[at + 1 :]) if row else ()
        answered = {id for ids in behind for is_call, id in ids if not is_call}
        out.append([id for is_call, id in row if is_call and id not in answered])
    return out


def _call_ids(value: Json) -> Iterator[tuple[bool, str]]:
    """(whether it is a call, its id) of each call and result in a message, in any wire format."""
    if isinstance(value, list):
        for inner in value:
            yield from _call_ids(inner)
    if not isinstance(value, dict):
        return
    kind = value.get("type")
    if kind == "tool_use" or (kind == "function" and "function" in value):
        yield True, str(value.get("id"))
    elif kind == "function_call":
        yield True, str(value.get("call_id"))
    for field in ("toolUse", "toolResult", "functionCall", "functionResponse"):
        if isinstance(inner := value.get(field), dict):
            id = inner.get("toolUseId") if field.startswith("tool") else inner.get("id") or inner.get("name")
            yield field in ("toolUse", "functionCall"), str(id)
    answers = value.get("tool_use_id") or value.get("tool_call_id")
    if answers or kind == "function_call_output":
        yield False, str(answers or value.get("call_id"))
    for field in ("content", "tool_calls", "parts"):
        yield from _call_ids(value.get(field))


def where(unit: Unit) -> str:
    """The place of a unit in its body: messages.3, tools.0, system."""
    return ".".join(map(str, unit.path)) or "system"


# Words long enough to be an API key.
_LONG_WORD = re.compile(r"[\w-]{20,200}")


def with_long_words(text: str, start: int, end: int) -> tuple[int, int]:
    """A range widened to the ends of long words, so that a secret in it is whole and can be redacted."""
    for word in _LONG_WORD.finditer(text, max(0, start - 200), end + 200):
        if word.start() < end and word.end() > start:
            start, end = min(start, word.start()), max(end, word.end())
    return start, end


def _became(was: Unit, now: Unit, offset: int) -> str:
    """A note with excerpts of both texts: 'Monday' became 'Tuesday'."""
    excerpts = list[str]()
    for text in (_text(was), _text(now)):
        start, end = with_long_words(text, max(0, offset - 12), offset + 24)
        excerpts.append(repr(" ".join(text[start:end].split())))
    return " became ".join(excerpts)
