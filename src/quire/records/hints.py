"""`llm_hints`: what a model sees of a record's context; `include`, then `exclude`, then `transform` apply.

Where hints fail, the context is returned unchanged, with the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from quire.errors import DataError, QuireError
from quire.formats import clean, fault
from quire.records import paths as expressions
from quire.records.paths import (
    MISSING,
    HintLimits,
    Meter,
    as_text,
    check_depth,
    drop,
    extract,
    keep,
    look_up,
    one_or_many,
)
from quire.values import Json, JsonObject

# Templates: `{{a.b}}`, `{{#each list}}`, `{{#if value}}`, and no code. A template reads one record's context within
# the meter's limits; text outside the tags is kept to the byte.

# No braces inside a tag, so that the search for tags is linear for any template.
_TAG = re.compile(r"\{\{\{([^{}]*)\}\}\}|\{\{([^{}]*)\}\}")
_SEGMENT = re.compile(r"\[([^\]]*)\]|([^.\[\]\s/(){}|=~\"'`#!&<>^*,;@]+)")
_SEGMENTS = re.compile(rf"(?:{_SEGMENT.pattern})(?:\.(?:{_SEGMENT.pattern})|\[[^\]]*\])*")
_LOOP_NAMES = frozenset({"@index", "@key", "@first", "@last"})


class Path(msgspec.Struct, frozen=True):
    """A path in a template: `up` scopes outwards, then from `start` (this, @root, @index, …) along `names`."""

    names: tuple[str, ...]
    start: str = ""
    up: int = 0


class TemplateBlock(msgspec.Struct):
    """`{{#each}}`, `{{#if}}` or `{{#unless}}`, with the nodes before and after its `{{else}}`."""

    word: str
    path: Path
    at: int
    body: list[Node] = []
    otherwise: list[Node] = []
    # While parsing: whether `{{else}}` was read.
    has_else: bool = False

    def add(self, node: Node) -> None:
        (self.otherwise if self.has_else else self.body).append(node)

    def __call__(self, scope: TemplateScope, meter: Meter) -> Iterator[str]:
        value = scope.find(self.path)
        if self.word != "each":
            yield from _pieces(self.body if bool(value) != (self.word == "unless") else self.otherwise, scope, meter)
            return
        if not value or not isinstance(value, list | dict):
            yield from _pieces(self.otherwise, scope, meter)
            return
        pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for index, (key, item) in enumerate(pairs):
            meter.step()
            loop = {"@index": index, "@key": key, "@first": index == 0, "@last": index == len(pairs) - 1}
            yield from _pieces(self.body, TemplateScope(item, scope.root, loop, scope), meter)


# A piece of a template (text, a value or a block), called to render it.
Node: TypeAlias = Callable[["TemplateScope", Meter], Iterable[str]]


@lru_cache(maxsize=256)
def parse(template: str, depth: int = 16) -> tuple[Node, ...]:
    """Parse a template; an error names its line and column."""
    blocks, end = [TemplateBlock("", Path(()), 0)], 0
    for tag in _TAG.finditer(template):
        _literal(template, end, tag.start(), blocks[-1])
        end = tag.end()
        expression = tag[1] if tag[1] is not None else tag[2]
        if not expression.startswith("!"):
            _tag(template, expression.strip(), tag.start(), blocks, depth)
    _literal(template, end, len(template), blocks[-1])
    if len(blocks) > 1:
        raise fault(template, blocks[-1].at, f"{{{{#{blocks[-1].word}}}}} is never closed")
    return tuple(blocks[0].body)


def _literal(template: str, start: int, stop: int, block: TemplateBlock) -> None:
    unclosed = template.find("{{", start, stop)
    if unclosed >= 0:
        raise fault(template, unclosed, "'{{' is never closed")
    if stop > start:
        block.add(lambda scope, meter: (template[start:stop],))


def _tag(template: str, expression: str, at: int, blocks: list[TemplateBlock], depth: int) -> None:
    word, _, rest = expression.partition(" ")
    if word in ("#each", "#if", "#unless"):
        if len(blocks) > depth:
            raise fault(template, at, f"blocks nested deeper than {depth}")
        blocks.append(TemplateBlock(word[1:], _path(template, rest.strip(), at), at))
    elif expression == "else" and len(blocks) > 1 and not blocks[-1].has_else:
        blocks[-1].has_else = True
    elif expression.startswith("/") and len(blocks) > 1 and expression[1:].strip() == blocks[-1].word:
        block = blocks.pop()
        blocks[-1].add(block)
    elif expression == "else" or expression[:1] in ("#", "/", "^", ">", "&", "~", "*"):
        raise fault(template, at, f"{{{{{expression}}}}} does not belong here")
    else:
        path = _path(template, expression, at)
        blocks[-1].add(lambda scope, meter: (as_text(scope.find(path)),))


def _path(template: str, text: str, at: int) -> Path:
    """Read `a.b`, `this.x`, `../a`, `@index`, `list.0` or `list.[0]`."""
    up, rest = 0, text
    while rest.startswith("../"):
        up, rest = up + 1, rest[3:]
    if rest in (".", "this", ".."):
        return Path((), "this", up + (rest == ".."))
    start = next((word for word in (*_LOOP_NAMES, "@root", "this") if rest == word or rest.startswith(word + ".")), "")
    names = _names(rest[len(start) :].removeprefix(".") if start else rest.removeprefix("./"))
    if names is None or not (names or start):
        raise fault(template, at, f"{text!r} is not a path", hint="Write a.b, this.a, ../a or @index.")
    return Path(names, start, up)


def _names(text: str) -> tuple[str, ...] | None:
    if text and not _SEGMENTS.fullmatch(text):
        return None
    return tuple(name[1] if name[1] is not None else name[2] for name in _SEGMENT.finditer(text))


class TemplateScope(msgspec.Struct, frozen=True):
    """What names mean at one place of a template: the item of the innermost loop, and the scopes around it."""

    this: Json
    root: JsonObject
    loop: JsonObject = {}
    outer: TemplateScope | None = None

    def find(self, path: Path) -> Json:
        scope: TemplateScope | None = self
        for _ in range(path.up):
            scope = scope.outer if scope else None
        if scope is None:
            return MISSING
        return look_up(scope.first(path), path.names)

    def first(self, path: Path) -> Json:
        """The value that the names start from; `context` is the whole context unless the loop's item has such a field."""
        if path.start in _LOOP_NAMES:
            return self.loop.get(path.start, MISSING)
        if path.start == "@root":
            return self.root
        hidden = self.outer is not None and isinstance(self.this, dict) and "context" in self.this
        if not path.start and path.names[0] == "context" and not hidden:
            return self.root
        return self.this


def view(context: Json) -> JsonObject:
    """The names in a template: the context's fields, and the whole context as `context`."""
    return {**(context if isinstance(context, dict) else {}), "context": context}


def render(template: str, context: Json, meter: Meter) -> str:
    """The template filled from the context: 'Hi {{name}}', {"name": "Ada"} -> 'Hi Ada'."""
    nodes = parse(meter.source(template), meter.limits.depth)
    return "".join(meter.write(piece) for piece in _pieces(nodes, TemplateScope(context, view(context)), meter))


def _pieces(nodes: Iterable[Node], scope: TemplateScope, meter: Meter) -> Iterator[str]:
    for node in nodes:
        meter.step()
        yield from node(scope, meter)


# The types of transform rules: template, format, literal, tools (the text of a list of tools), extract and jq.

_FIELD = re.compile(r"\{([^\s{}\"':,]+)\}")


def fill(pattern: str, context: Json, meter: Meter) -> str:
    """Replace each `{a.b}` by its value; fields inside a value are not replaced."""
    fields = view(context)

    def value(field: re.Match[str]) -> str:
        meter.step()
        return meter.write(as_text(look_up(fields, field[1].split("."))))

    return _FIELD.sub(value, meter.source(pattern))


def tools(path: str, context: Json, meter: Meter) -> str:
    """The text of the list of tools at a path, as in the clean format."""
    listed = one_or_many(extract(path, context, meter))
    if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
        raise DataError(f"no list of tools at {path!r}")
    try:
        return meter.write(clean.tool_list(clean.project(tools=listed).tools))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"a tool at {path!r} is not {{name, description, …}}: {error}") from error


# type -> (the key of its program, the function that runs it)
_VALUES: Final[dict[str, tuple[str, Callable[[Json, Json, Meter], Json]]]] = {
    "template": ("template", render),
    "format": ("format", fill),
    "literal": ("literal", lambda value, context, meter: value),
    "tools": ("tools", tools),
}
# The same for types that find any number of values; a single value is no list unless the rule says `"many": true`.
_HITS: Final[dict[str, tuple[str, Callable[[Json, Json, Meter], list[Json]]]]] = {
    "extract": ("value", extract),
    "jq": ("query", expressions.run),
}
TYPES: Final = {name: key for name, (key, _) in (_VALUES | _HITS).items()}
_BY_KEY: Final = {key: name for name, key in TYPES.items()}


def apply_rule(rule: Json, context: Json, meter: Meter) -> Json:
    if not isinstance(rule, dict):
        raise DataError(f"a rule is an object, not {as_text(rule)[:40]!r}", hint='Write {"template": "…"}.')
    name = _type(rule)
    try:
        if name in _VALUES:
            return _VALUES[name][1](_program(rule, name), context, meter)
        hits = _HITS[name][1](_program(rule, name), context, meter)
        return hits if rule.get("many") is True else one_or_many(hits)
    except QuireError as error:
        raise DataError(f"{name}: {error}", hint=error.hint) from error


def _type(rule: JsonObject) -> str:
    """The rule's type: its `type`, else the type that has the rule's key."""
    if "type" in rule:
        if not isinstance(rule["type"], str) or rule["type"] not in TYPES:
            raise DataError(f"no rule type {as_text(rule['type'])[:40]!r}", hint=f"Use one of {', '.join(TYPES)}.")
        return str(rule["type"])
    types = [_BY_KEY[key] for key in rule if key in _BY_KEY]
    if len(types) != 1:
        keys = ", ".join(rule) or "no keys"
        raise DataError(f"the type of a rule with {keys[:60]} is not clear", hint="Name its type.")
    return types[0]


def _program(rule: JsonObject, name: str) -> Json:
    """The rule's program: under its type's key, else under its only other key."""
    key = TYPES[name]
    others = [other for other in rule if other not in ("type", "many")]
    if key in rule:
        return rule[key]
    if len(others) == 1:
        return rule[others[0]]
    raise DataError(f"needs {key!r}")


_KEYS = ("include", "exclude", "transform", "mode")


def apply_hints(context: Json, hints: Json, limits: HintLimits | None = None) -> tuple[Json, str | None]:
    """The context as its hints show it; or the unchanged context with an error.

    {"a": 1, "b": 2}, {"exclude": ["b"]} -> ({"a": 1}, None)
    """
    if hints is None or hints == {}:
        return context, None
    try:
        return _view(context, hints, Meter(limits or HintLimits())), None
    except QuireError as error:
        return context, f"{error} ({error.hint})" if error.hint else str(error)


def _view(context: Json, hints: Json, meter: Meter) -> Json:
    check_hints(hints, meter.limits)
    check_depth([context, hints], meter.limits.data_depth)
    value = context
    if hints.get("include") is not None:
        value = (keep(value, hints["include"]) or {}) if isinstance(value, dict) else value
    if hints.get("exclude") is not None:
        value = drop(value, hints["exclude"])
    if not hints.get("transform"):
        return value
    computed = {}
    for key, rule in hints["transform"].items():
        meter.step()
        try:
            computed[key] = apply_rule(rule, value, meter)
        except DataError as error:
            raise DataError(f"transform.{key}: {error}", hint=error.hint) from error
    return {**value, **computed} if hints.get("mode") == "merge" and isinstance(value, dict) else computed


def check_hints(hints: Json, limits: HintLimits | None = None) -> None:
    """Raise for invalid hints: a misspelt `exclude` must not show what it was to hide."""
    if not isinstance(hints, dict):
        raise DataError(f"llm_hints is an object, not {as_text(hints)[:40]!r}")
    unknown = [key for key in hints if key not in _KEYS]
    if unknown:
        raise DataError(f"llm_hints has no {unknown[0]!r}", hint=f"Use {', '.join(_KEYS)}.")
    for key in ("include", "exclude"):
        paths = hints.get(key)
        if paths is not None and not (isinstance(paths, list) and all(isinstance(path, str) for path in paths)):
            raise DataError(f"llm_hints.{key} is a list of paths, not {as_text(paths)[:40]!r}")
    if hints.get("mode") not in (None, "replace", "merge"):
        raise DataError(f"llm_hints.mode is replace or merge, not {as_text(hints['mode'])[:40]!r}")
    rules = hints.get("transform")
    if rules is not None and not isinstance(rules, dict):
        raise DataError(f"llm_hints.transform is an object of rules, not {as_text(rules)[:40]!r}")
    if rules and len(rules) > (limits or HintLimits()).rules:
        raise DataError(f"{len(rules)} rules; at most {(limits or HintLimits()).rules} are allowed")
