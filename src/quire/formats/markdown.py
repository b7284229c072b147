"""`markdown`: a window's items as fenced blocks under a heading, and the request behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from quire.errors import CallError, FormatError
from quire.formats import exact, excerpt, fault, json_, well_formed
from quire.log.shapes import INTEGER, NULL, STRING, Fields, ListShape, check_shape, either, one_of, short
from quire.values import ITEM_TYPES, Item, ItemType, Json, JsonObject

Profile = Literal["quire", "agent-q"]
Wrap = Literal["none", "tags"]
WRAPS: tuple[str, ...] = get_args(Wrap)

HEADING = "## Context\n\n"
REQUEST = "\n\n## Request\n\n"

_TAG = re.compile(r"[A-Za-z0-9_+#.-]*\Z")
MAX_LINE = 2**63 - 1


class MarkdownItem(msgspec.Struct, frozen=True):
    """One item as shown; lines are shown as a pair behind a filename."""

    type: ItemType
    content: str
    filename: str | None = None
    start_line: int | None = None
    end_line: int | None = None
    tag: str = ""

    def __post_init__(self) -> None:
        if not _TAG.match(self.tag):
            raise FormatError(
                f"{self.tag!r} cannot be the tag of a code fence",
                hint="A language has letters, digits and _ + # . - alone.",
            )
        lines = (self.start_line, self.end_line)
        if lines != (None, None) and (self.filename is None or None in lines):
            raise CallError(
                f"lines {lines[0]}-{lines[1]} cannot be shown without a filename and each other",
                hint="Use markdown.project(...), which leaves such lines out.",
            )
        for line in lines:
            if line is not None and not 0 <= line <= MAX_LINE:
                raise FormatError(f"{line} is no line number", hint="Lines are integers of at least 0.")


class Markdown(msgspec.Struct, frozen=True):
    """A context with the request behind it (None: the context alone).

    `system` is written first in tags of its own, so it needs wrap="tags".
    """

    items: tuple[MarkdownItem, ...] = ()
    request: str | None = None
    wrap: Wrap = "none"
    system: str | None = None

    def __post_init__(self) -> None:
        if self.system is not None and self.wrap != "tags":
            raise CallError("a system prompt needs tags around it", hint="Add wrap='tags' (--wrap tags).")
        if self.wrap == "tags" and self.request is not None and not self.items and self.system is None:
            raise CallError(
                "a request without items stands alone and has no tags",
                hint="Use markdown.project(...), or wrap='none'.",
            )


# Rendering: a fence is longer than any in its content, so that no content can end it.

OPEN, CLOSE = "<context-from-manager>\n", "</context-from-manager>"
USER_OPEN, USER_CLOSE = "<user>\n", "\n</user>"
SYSTEM_OPEN, SYSTEM_CLOSE = "<system>\n", "\n</system>\n\n"
# A request without items that looks like a context gets a backslash in front.
ALONE = re.compile(rf"\\*(?:{HEADING.rstrip()}|{SYSTEM_OPEN}|{OPEN}{HEADING.rstrip()}\n)")
# A line of the system prompt that looks like its closing tag gets a backslash in front.
_ENDS_SYSTEM = re.compile(r"(?m)^(?=\\*</system>)")

_RUN = re.compile("`+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]|\\(?=x[0-9A-Fa-f]{2})")
_LINES_COLON = re.compile(r":(?=[0-9]+-[0-9]+\Z)")


def render(value: Markdown, profile: Profile = "quire") -> str:
    """The text; with profile agent-q every fence is ```lisp and nothing is escaped."""
    blocks = [block_text(block, profile) for block in value.items]
    if value.wrap == "tags":
        system = None if value.system is None else _ENDS_SYSTEM.sub(r"\\", value.system)
        front = "" if system is None else SYSTEM_OPEN + system + SYSTEM_CLOSE
        context = OPEN + (HEADING + "\n".join(blocks) if blocks else HEADING[:-1]) + CLOSE
        behind = "" if value.request is None else f"\n\n{USER_OPEN}{value.request}{USER_CLOSE}"
        return well_formed(front + context + behind)
    context = HEADING + "".join(f"{block}\n" for block in blocks)
    if value.request is None:
        return well_formed(context)
    if blocks:
        return well_formed(context + REQUEST + value.request)
    guarded = profile == "quire" and ALONE.match(value.request)
    return well_formed("\\" + value.request if guarded else value.request)


def block_text(block: MarkdownItem, profile: Profile = "quire") -> str:
    """One item: heading, fence, content, fence, each with a newline."""
    escaped = profile == "quire"
    heading = "### " + block.type.title() + _render_annotation(block, escaped)
    longest = max(map(len, _RUN.findall(block.content)), default=0) if escaped else 0
    fence, tag = "`" * max(3, longest + 1), block.tag if escaped else "lisp"
    return f"{heading}\n{fence}{tag}\n{block.content}\n{fence}\n"


def _render_annotation(block: MarkdownItem, escaped: bool) -> str:
    if block.filename is None:
        return ""
    name = escape_name(block.filename) if escaped else block.filename
    lines = "" if block.start_line is None else f":{block.start_line}-{block.end_line}"
    return f" (from {name}{lines})"


def escape_name(name: str) -> str:
    """Escape a name, so that it is one line and its end is not read as a line range: 'a:1-2' -> 'a\\x3a1-2'."""
    name = _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", name)
    return _LINES_COLON.sub(r"\\x3a", name)


# Parsing, block by block: everything before the request is delimited by fences.

_TYPES = {name.title(): name for name in ITEM_TYPES}
_HEAD = re.compile(rf"### ({'|'.join(map(re.escape, _TYPES))})(?: \(from ([^\n]*)\))?\n(`{{3,}})([A-Za-z0-9_+#.-]*)\n")
_LINE_RANGE = re.compile(r":([0-9]{1,19})-([0-9]{1,19})\Z")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_HINT = "parse reads what `quire format markdown` writes; profile agent-q cannot be read back."


def parse(text: str, profile: Profile = "quire") -> Markdown:
    """The value of a rendered text; a text that is not a context is a request alone."""
    if profile == "agent-q":
        raise CallError("profile agent-q escapes nothing, so its text cannot be parsed", hint="Use --profile quire.")
    value = _value(well_formed(text))
    exact(text, render(value))
    return value


def _value(text: str) -> Markdown:
    if text.startswith(SYSTEM_OPEN):
        system, closing, rest = text[len(SYSTEM_OPEN) - 1 :].partition(SYSTEM_CLOSE + OPEN)
        if not closing:
            raise fault(text, 0, f"expected {SYSTEM_CLOSE.strip()} and a context behind the system prompt", _HINT)
        instructions = re.sub(r"(?m)^\\(?=\\*</system>)", "", system[1:])
        return msgspec.structs.replace(_parse_tagged(OPEN + rest, alone=False), system=instructions)
    if text.startswith(OPEN + HEADING[:-1]):
        return _parse_tagged(text)
    if not text.startswith(HEADING.rstrip()):
        return Markdown(request=text[1:] if text.startswith("\\") and ALONE.match(text) else text)
    blocks, at = _blocks(text, len(HEADING))
    if at == len(text):
        return Markdown(blocks)
    if not text.startswith(REQUEST, at):
        raise fault(text, at, f"expected an item or '## Request', found {excerpt(text, at)}", _HINT)
    return Markdown(blocks, text[at + len(REQUEST) :])


def _parse_tagged(text: str, alone: bool = True) -> Markdown:
    blocks, at = _blocks(text, len(OPEN + HEADING) if text.startswith(OPEN + HEADING) else len(OPEN + HEADING) - 1)
    if not text.startswith(CLOSE, at):
        raise fault(text, at, f"expected an item or {CLOSE}, found {excerpt(text, at)}", _HINT)
    rest = text[at + len(CLOSE) :]
    if not rest:
        return Markdown(blocks, None, "tags")
    if not blocks and alone:
        raise fault(text, at + len(CLOSE), "a request without items stands alone and has no tags", _HINT)
    request = rest.removeprefix("\n\n" + USER_OPEN).removesuffix(USER_CLOSE)
    return Markdown(blocks, request, "tags", None if alone else "")


def _blocks(text: str, at: int) -> tuple[tuple[MarkdownItem, ...], int]:
    """All items from position `at` on, and the position behind them."""
    blocks = []
    while text.startswith("### ", at):
        block, at = _parse_block(text, at)
        blocks.append(block)
        at += text.startswith("\n", at)
    return tuple(blocks), at


def _parse_block(text: str, at: int) -> tuple[MarkdownItem, int]:
    head = _HEAD.match(text, at)
    if not head:
        raise fault(text, at, f"expected an item's heading and fence, found {excerpt(text, at)}", _HINT)
    type, name, fence, tag = head.groups()
    end = text.find(f"\n{fence}\n", head.end())
    if end < 0:
        raise fault(text, head.start(3), "the fence is never closed", _HINT)
    filename, start, stop = _parse_annotation(name)
    block = MarkdownItem(_TYPES[type], text[head.end() : end], filename, start, stop, tag)  # type: ignore[arg-type]  # of ITEM_TYPES
    return block, end + len(fence) + 2


def _parse_annotation(name: str | None) -> tuple[str | None, int | None, int | None]:
    lines = _LINE_RANGE.search(name) if name is not None else None
    if name is None or lines is None:
        return name if name is None else unescape_name(name), None, None
    return unescape_name(name[: lines.start()]), int(lines[1]), int(lines[2])


def unescape_name(name: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), name)


# The tag of a code fence: by the item's metadata, else by its file's extension.

# tag: extensions
_TAGS_AND_EXTENSIONS = """\
bash: sh bash zsh bashrc; c: c h; clojure: clj cljs cljc edn; cpp: cpp cc cxx hpp hh hxx; csharp: cs; css: css;
csv: csv; dart: dart; diff: diff patch; elisp: el; elixir: ex exs; erlang: erl hrl; fortran: f f90 f95; fsharp: fs fsx;
go: go; graphql: graphql gql; groovy: groovy gradle; haskell: hs; hcl: hcl tf; html: html htm; ini: ini cfg conf;
java: java; javascript: js mjs cjs; json: json jsonl ndjson; jsx: jsx; julia: jl; kotlin: kt kts; latex: tex;
less: less; lisp: lisp lsp cl asd; lua: lua; makefile: mk; markdown: md markdown; nim: nim; nix: nix; objective-c: m;
ocaml: ml mli; pascal: pas; perl: pl pm; php: php; powershell: ps1 psm1; proto: proto; python: py pyi pyw; r: r;
rst: rst; ruby: rb; rust: rs; scala: scala sc; scheme: scm ss rkt; scss: scss; sql: sql; svelte: svelte; swift: swift;
text: txt text log; toml: toml; tsx: tsx; typescript: ts mts cts; vim: vim; vue: vue; xml: xml xsd xsl svg;
yaml: yaml yml; zig: zig"""
_BY_EXTENSION = {
    extension: tag
    for tag, extensions in re.findall(r"(\S+): ([^;]+)", _TAGS_AND_EXTENSIONS)
    for extension in extensions.split()
}


def tag(item: Item, default_language: str = "lisp") -> str:
    """The tag of an item's fence in profile quire; the language "" means no tag, None means that it is not known."""
    metadata = item.metadata or {}
    language: str | None = metadata.get("language")
    # 'src/agent.lisp' -> 'lisp'; None without a known extension.
    name = (metadata.get("filename") or "").replace("\\", "/").rpartition("/")[2]
    stem, _, extension = name.rpartition(".")
    from_name = _BY_EXTENSION.get(extension.lower()) if stem else None
    if item.type == "code":
        chosen = (language, from_name, default_language)
    elif item.type == "repl-history":
        chosen = (language, None, default_language)
    else:
        chosen = (None, from_name if item.type == "file" else None, "text")
    return next(tag for tag in chosen if tag is not None)


# Projection from a window. Left out are ids, times, hashes and all metadata but filename, lines and language; lines
# without a filename or without each other; tags around a request without items.

_WRAP = {"wrap": one_of(WRAPS)}
# PARSED is what --parse prints: items with the tags of their fences.
_NAME, _LINE = either(STRING, NULL), either(INTEGER, NULL)
INPUT = Fields(json_.INPUT.required, {**json_.INPUT.optional, **_WRAP, "default_language": STRING, "system": _NAME})
PARSED = Fields(
    {
        "items": ListShape(
            Fields(
                {"type": one_of(ITEM_TYPES), "content": STRING, "tag": STRING},
                {"filename": _NAME, "start_line": _LINE, "end_line": _LINE},
            )
        )
    },
    {"request": _NAME, "system": _NAME, **_WRAP},
)


def project(
    items: Iterable[Item],
    request: str | None = None,
    *,
    wrap: Wrap = "none",
    profile: Profile = "quire",
    default_language: str = "lisp",
    system: str | None = None,
) -> Markdown:
    """The value for items, a request behind them and a system prompt before them (with wrap="tags")."""
    blocks = tuple(_block_of(item, profile, default_language) for item in items)
    return _markdown(blocks, request, wrap, system)


def read(data: Json, profile: Profile = "quire") -> Markdown:
    """The value of the JSON object that `quire format markdown` takes, or of the one that `--parse` prints."""
    items = data.get("items") if isinstance(data, dict) else None
    if isinstance(items, list) and any(isinstance(item, dict) and "tag" in item for item in items):
        fields = check_shape(PARSED, data)
        blocks = tuple(MarkdownItem(**block) for block in fields["items"])
        return _markdown(blocks, fields.get("request"), fields.get("wrap", "none"), fields.get("system"))
    fields = dict(check_shape(INPUT, data))
    options = {name: fields.pop(name) for name in ("wrap", "default_language", "system") if name in fields}
    window = json_.read(fields)
    return project(window.items, window.request, profile=profile, **options)


def to_json(value: Markdown) -> JsonObject:
    """A value as JSON that `read` accepts."""
    items = [{name: getattr(block, name) for name in MarkdownItem.__struct_fields__} for block in value.items]
    fields = {"items": items, "request": value.request, "wrap": value.wrap}
    return fields if value.system is None else {**fields, "system": value.system}


def _markdown(blocks: tuple[MarkdownItem, ...], request: str | None, wrap: Wrap, system: str | None) -> Markdown:
    tagged = blocks or request is None or system is not None
    return Markdown(blocks, request, wrap if tagged else "none", system)


def _block_of(item: Item, profile: Profile, default_language: str) -> MarkdownItem:
    metadata = item.metadata or {}
    filename = _typed_metadata(metadata, "filename", str)
    start, end = _typed_metadata(metadata, "start_line", int), _typed_metadata(metadata, "end_line", int)
    _typed_metadata(metadata, "language", str)
    if filename is None or start is None or end is None:
        start = end = None
    chosen = "lisp" if profile == "agent-q" else tag(item, default_language)
    return MarkdownItem(item.type, item.content, filename, start, end, chosen)


def _typed_metadata(metadata: JsonObject, name: str, type: type) -> Json:
    value = metadata.get(name)
    if value is not None and (not isinstance(value, type) or isinstance(value, bool)):
        kind = "a string" if type is str else "an integer"
        raise FormatError(f"metadata.{name} must be {kind}, not {short(value)}", hint="Leave it out, or correct it.")
    return value
