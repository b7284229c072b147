"""From a window to what markdown shows of it. What is left out here:

ids, times, hashes and all metadata but filename, lines and language; lines without a filename or
without each other; tags around a request that stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import FormatError
from quire.formats import context
from quire.formats.languages import tag
from quire.formats.markdown.value import WRAPS, Block, Markdown, Profile, Wrap
from quire.log.inputs import checked
from quire.log.shapes import INTEGER, NULL, STRING, Fields, Listed, either, one_of, short
from quire.values import ITEM_TYPES, Item, Json, JsonObject

_WRAP = {"wrap": one_of(WRAPS)}
INPUT = Fields(context.INPUT.required, {**context.INPUT.optional, **_WRAP, "default_language": STRING})
# What --parse prints: an item has its tag, and beside it what else was shown.
_NAME, _LINE = either(STRING, NULL), either(INTEGER, NULL)
SHOWN = Fields(
    {
        "items": Listed(
            Fields(
                {"type": one_of(ITEM_TYPES), "content": STRING, "tag": STRING},
                {"filename": _NAME, "start_line": _LINE, "end_line": _LINE},
            )
        )
    },
    {"request": _NAME, **_WRAP},
)


def project(
    items: Iterable[Item],
    request: str | None = None,
    *,
    wrap: Wrap = "none",
    profile: Profile = "quire",
    default_language: str = "lisp",
) -> Markdown:
    """What markdown shows of items, and of a request behind them."""
    blocks = tuple(_block(item, profile, default_language) for item in items)
    return _markdown(blocks, request, wrap)


def read(data: Json, profile: Profile = "quire") -> Markdown:
    """The value of the JSON object that `quire format markdown` takes, or of the one that `--parse` prints."""
    if _is_shown(data):
        shown = checked(SHOWN, data)
        blocks = tuple(Block(**block) for block in shown["items"])
        return _markdown(blocks, shown.get("request"), shown.get("wrap", "none"))
    fields = dict(checked(INPUT, data))
    options = {name: fields.pop(name) for name in ("wrap", "default_language") if name in fields}
    window = context.read(fields)
    return project(window.items, window.request, profile=profile, **options)


def to_json(value: Markdown) -> JsonObject:
    """A value as JSON that `read` takes back."""
    items = [{name: getattr(block, name) for name in Block.__struct_fields__} for block in value.items]
    return {"items": items, "request": value.request, "wrap": value.wrap}


def _is_shown(data: Json) -> bool:
    items = data.get("items") if isinstance(data, dict) else None
    return isinstance(items, list) and any(isinstance(item, dict) and "tag" in item for item in items)


def _markdown(blocks: tuple[Block, ...], request: str | None, wrap: Wrap) -> Markdown:
    return Markdown(blocks, request, wrap if blocks or request is None else "none")


def _block(item: Item, profile: Profile, default_language: str) -> Block:
    metadata = item.metadata or {}
    filename = _typed(metadata, "filename", str)
    start, end = _typed(metadata, "start_line", int), _typed(metadata, "end_line", int)
    _typed(metadata, "language", str)
    if filename is None or start is None or end is None:
        start = end = None
    chosen = "lisp" if profile == "agent-q" else tag(item, default_language)
    return Block(item.type, item.content, filename, start, end, chosen)


def _typed(metadata: JsonObject, name: str, type: type) -> Json:
    value = metadata.get(name)
    if value is not None and (not isinstance(value, type) or isinstance(value, bool)):
        wanted = "a string" if type is str else "an integer"
        raise FormatError(
            f"metadata.{name} must be {wanted}, not {short(value)}", hint="Leave it out, or correct it."
        )
    return value
