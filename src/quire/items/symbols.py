"""Finds a symbol in a file's syntax tree by its bare or dotted name; the definition comes with its decorators."""

from __future__ import annotations

import ast
import bisect
import difflib
import importlib
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from quire.errors import CallError, FormatError, MissingPart, NotFound
from quire.items.sources import from_file, from_region, limit_text, read_source, region_of, source_id
from quire.values import Item

PYTHON = frozenset({".py", ".pyi", ".pyw"})
_SEPARATOR = re.compile(r"\.|::|#")


class Definition(msgspec.Struct, frozen=True):
    """A definition's scopes and name, and its lines; `whole` is false for a mere declaration (a prototype)."""

    path: tuple[str, ...]
    start: int
    end: int
    whole: bool = True

    @property
    def name(self) -> str:
        return ".".join(self.path)


def from_symbol(path: str | Path, symbol: str, *, name: str = "", truncate: bool = False) -> Item:
    """The definition of `symbol` in a file: "parse", "Window.add", "Outer.Inner.method", "Type::method"."""
    text, label = read_source(path), name or str(path)
    definition = resolve(symbol, definitions(text, Path(path).suffix.lower(), label), label)
    more = {"symbol": definition.name}
    return region_of(text, label, definition.start, definition.end, more=more, truncate=truncate)


def read_again(earlier: Item, path: str | Path) -> Item | None:
    """The current version of an item that is a file, lines or a symbol; None for any other item."""
    meta = earlier.metadata or {}
    name, cut = str(meta.get("filename") or ""), bool(meta.get("truncated"))
    if meta.get("source") == "note":
        return msgspec.structs.replace(from_file(path, truncate=True), type=earlier.type, metadata=meta)
    if not source_id(earlier) or meta.get("source"):
        return None
    if meta.get("symbol"):
        return from_symbol(path, meta["symbol"], name=name, truncate=cut)
    if earlier.type == "code":
        return from_region(path, meta["start_line"], meta["end_line"], name=name, truncate=cut)
    # quiet: the first reading warned already that the text is cut.
    return limit_text(read_source(path), earlier.type, {"filename": name}, name, cut, quiet=True)


def definitions(text: str, suffix: str, name: str) -> list[Definition]:
    """Every definition in a file, in its order."""
    return python_definitions(text, name) if suffix in PYTHON else grammar_definitions(text, suffix, name)


def resolve(symbol: str, candidates: Iterable[Definition], name: str) -> Definition:
    """The definition with this path, else the only one whose path ends with it."""
    merged = _merge_overloads(candidates)
    path = tuple(part for part in _SEPARATOR.split(symbol) if part and part != "<locals>")
    exact = [definition for definition in merged if definition.path == path]
    ending = exact or [definition for definition in merged if path and definition.path[-len(path) :] == path]
    paths = list(dict.fromkeys(definition.name for definition in ending))
    if not paths:
        names = list(dict.fromkeys(definition.name for definition in merged))
        near = difflib.get_close_matches(symbol, names, 3) or names[:5]
        hint = f"There is {', '.join(near)}." if near else "The file defines nothing."
        raise NotFound(f"no symbol {symbol!r} in {name}", hint=hint)
    if len(paths) > 1:
        raise CallError(f"{symbol!r} is ambiguous in {name}", hint=f"Use one of {', '.join(paths)}.")
    # Of several definitions of one name the last counts; a prototype only if there is nothing else.
    return max(ending, key=lambda definition: (definition.whole, definition.start))


def _merge_overloads(candidates: Iterable[Definition]) -> list[Definition]:
    """Merge consecutive definitions of one name: overloads, a property and its setter."""
    out: list[Definition] = []
    latest: dict[tuple[str, ...], int] = {}
    for definition in candidates:
        scope = definition.path[:-1]
        before = latest.get(scope)
        if before is not None and out[before].path == definition.path:
            last, whole = out[before], out[before].whole or definition.whole
            out[before] = Definition(definition.path, last.start, max(last.end, definition.end), whole)
        else:
            latest[scope] = len(out)
            out.append(definition)
    return out


# The definitions of a Python file, by its syntax tree.

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_definitions(text: str, name: str) -> list[Definition]:
    """Functions and classes at any depth, and names assigned in modules and classes, in the file's order."""
    try:
        # For the parser a lone \\r ends a line, for us it does not; and a byte order mark is no code.
        tree = ast.parse(text.removeprefix("\ufeff").replace("\r\n", " \n").replace("\r", " "))
    except SyntaxError as error:
        raise FormatError(
            f"{name} is not valid Python: {error.msg}",
            line=error.lineno or 0,
            column=error.offset or 0,
            hint="Take a region of the file instead.",
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"{name} cannot be parsed: {error}", hint="Take a region of the file instead.") from error
    return list(_of(tree.body, (), in_function=False))


def _of(body: list[ast.stmt], scope: tuple[str, ...], in_function: bool) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            path = (*scope, node.name)
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield Definition(path, start, node.end_lineno or start)
            yield from _of(node.body, path, in_function=isinstance(node, _Function))
            continue
        if not in_function:
            for name in _bound_names(node):
                yield Definition((*scope, name), node.lineno, node.end_lineno or node.lineno)
        for inner in _blocks(node):
            yield from _of(inner, scope, in_function)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    """The names a statement binds: NAME = …, NAME: T = …, (A, B) = …, type NAME = …."""
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign) or type(node).__name__ == "TypeAlias":
        targets = [node.target if isinstance(node, ast.AnnAssign) else node.name]  # type: ignore[attr-defined]  # TypeAlias is new in 3.12
    else:
        return
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(part, ast.Name):
                yield part.id


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement (if, try, with, for, match), which open no scope."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for part in getattr(node, field, None) or ():
            if isinstance(part, ast.ExceptHandler | ast.match_case):
                yield part.body
            elif isinstance(part, ast.stmt):
                yield [part]


# Definitions in files of other languages, by the tree-sitter grammars that are installed.
#
# All grammars are read alike: a definition is a node of a defining type with a name, and its scope are the definitions
# around it. Differences between languages are in these tables.

# suffix -> (module, function). The extra `symbols` installs those down to C; the others can be installed separately.
_GRAMMARS: dict[str, tuple[str, str]] = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), ("tree_sitter_javascript", "language")),
    **dict.fromkeys((".ts", ".mts", ".cts"), ("tree_sitter_typescript", "language_typescript")),
    ".tsx": ("tree_sitter_typescript", "language_tsx"),
    **dict.fromkeys((".lisp", ".lsp", ".cl", ".asd", ".el"), ("tree_sitter_commonlisp", "language")),
    ".go": ("tree_sitter_go", "language"),
    ".rs": ("tree_sitter_rust", "language"),
    ".java": ("tree_sitter_java", "language"),
    **dict.fromkeys((".c", ".h"), ("tree_sitter_c", "language")),
    **dict.fromkeys((".cpp", ".cc", ".cxx", ".hpp", ".hh", ".hxx"), ("tree_sitter_cpp", "language")),
    ".cs": ("tree_sitter_c_sharp", "language"),
    ".rb": ("tree_sitter_ruby", "language"),
    ".php": ("tree_sitter_php", "language_php"),
    **dict.fromkeys((".sh", ".bash"), ("tree_sitter_bash", "language")),
    ".lua": ("tree_sitter_lua", "language"),
}
_ENDINGS = ("_item", "_definition", "_declaration", "_spec", "_specifier", "_declarator", "_signature", "_alias")
_DEFINING = frozenset({"declaration", "preproc_def", "preproc_function_def", "internal_module", "module", "class", "method",
                       "singleton_method"})  # fmt: skip
_NOT = frozenset({"property_signature", "package_declaration", "using_declaration", "import_declaration",
                  "abstract_declarator", "init_declarator"})  # fmt: skip
# Variables are symbols, but inside a function only where their value is itself a function.
_VARIABLES = frozenset({"variable_declarator", "declaration", "var_spec", "const_spec", "let_declaration",
                        "variable_declaration", "local_variable_declaration"})  # fmt: skip
_CALLABLE = ("function", "class", "lambda")
# Nodes around a definition that belong to it where they hold nothing else or begin on the same line.
_AROUND = frozenset({"export_statement", "lexical_declaration", "variable_declaration", "type_declaration",
                     "const_declaration", "var_declaration", "field_declaration", "expression_statement",
                     "template_declaration", "type_definition", "declaration"})  # fmt: skip
_BEFORE = frozenset({"attribute_item", "decorator", "attribute_list"})
# Separators in a qualified name, and the prefix of a private one.
_MARKS = re.compile(r"[.:#]+")
_COMMENTS = frozenset({"comment", "line_comment", "block_comment"})
# The operators of Lisp forms that define the name behind them: defun, cl-defmacro, define-mode.
_LISP_DEFINES = re.compile(r"(?:\w+-)?def(?!ault)", re.I)
# Character literals of Emacs Lisp such as ?( or ?\", which the grammar would take for brackets and strings: replaced by
# as many other bytes.
_ELISP_CHARACTER = re.compile(rb"\?\\?[()\[\]\";]")


def grammar_definitions(text: str, suffix: str, name: str) -> list[Definition]:
    """Every definition in the file's order."""
    data = text.encode()
    if suffix == ".el":
        data = _ELISP_CHARACTER.sub(lambda match: b"?" + b"x" * (len(match[0]) - 1), data)
    tree = _parser(suffix, name).parse(data)
    breaks = [match.start() for match in re.finditer(b"\n", data)]
    out = []
    for path, (start, end), whole in _walk(tree.root_node):
        # Lines are counted here: reading a node's points frees memory that is still in use in tree-sitter 0.26.0.
        first, last = (bisect.bisect_left(breaks, byte) + 1 for byte in (start, max(start, end - 1)))
        out.append(Definition(path, first, last, whole))
    return out


# tree-sitter's own types are only there with the extra, so nodes are Any here.
def _parser(suffix: str, name: str) -> Any:
    if suffix not in _GRAMMARS:
        raise CallError(f"no grammar is known for {name}", hint="Take a region of the file instead.")
    module, function = _GRAMMARS[suffix]
    try:
        from tree_sitter import Language, Parser

        grammar = importlib.import_module(module)
    except ImportError as error:
        package = module.replace("_", "-")
        raise MissingPart(
            f"no grammar for {suffix} files is installed", hint=f"pip install 'quire[symbols]' {package}"
        ) from error
    with warnings.catch_warnings():
        # Some grammars give their language as a number, about which newer bindings warn.
        warnings.simplefilter("ignore", DeprecationWarning)
        return Parser(Language(getattr(grammar, function)()))


def _walk(root: Any) -> Iterator[tuple[tuple[str, ...], tuple[int, int], bool]]:
    """Walk depth first, with an explicit stack, because generated code may nest too deeply for recursion."""
    stack: list[tuple[Any, tuple[str, ...], bool]] = [(root, (), False)]
    while stack:
        node, scope, in_function = stack.pop()
        path = _path(node, scope, in_function)
        if path is not None:
            if node.type != "impl_item":
                yield path, _span(node), node.type != "declaration"
            called = "function" in node.type or "method" in node.type or _binds_a_function(node)
            scope, in_function = path, in_function or called
        stack.extend((child, scope, in_function) for child in reversed(node.named_children))


def _path(node: Any, scope: tuple[str, ...], in_function: bool) -> tuple[str, ...] | None:
    """The path of a definition (or of an impl block, which only opens a scope), None for any other node."""
    if node.type == "impl_item":
        return (*scope, _base(node.child_by_field_name("type")))
    if node.type == "list_lit":
        return _lisp_path(node)
    if not (node.type in _DEFINING or node.type.endswith(_ENDINGS)) or node.type in _NOT:
        return None
    if "parameter" in node.type:
        return None
    if in_function and node.type in _VARIABLES and not _binds_a_function(node):
        return None
    name = _name(node)
    if not name:
        return None
    receiver = node.child_by_field_name("receiver")
    return (*scope, *([_base(receiver)] if receiver is not None else ()), *name)


def _lisp_path(form: Any) -> tuple[str, ...] | None:
    """The name that a Lisp form defines: (defun foo …), (defstruct (point …) …), (defun (setf foo) …)."""
    inner = form.named_children[0] if form.named_child_count == 1 else form
    parts = (inner.named_children[0] if inner.type == "defun" else form).named_children[:2]
    if len(parts) < 2 or not _LISP_DEFINES.match(parts[0].text.decode()):
        return None
    name = parts[1]
    if name.type == "list_lit" and name.named_children and name.named_children[0].text != b"setf":
        name = name.named_children[0]
    return (str(name.text.decode()),)


def _name(node: Any) -> tuple[str, ...]:
    """The name of a definition; in C it is inside its declarators, in C++ it may be qualified."""
    name = node.child_by_field_name("name")
    if name is None and node.type in ("function_definition", "type_definition", "declaration"):
        name = node.child_by_field_name("declarator")
        while name is not None and name.child_count and name.type != "qualified_identifier":
            name = name.child_by_field_name("declarator") or (name.named_children or [None])[0]
    if name is None or (node.type.endswith("_specifier") and node.child_by_field_name("body") is None):
        return ()
    text = name.text.decode()
    return tuple(part for part in _MARKS.split(text) if part)


def _base(node: Any) -> str:
    """The type of a receiver or an impl block: (t *T[K]) -> T."""
    stack = [node]
    while stack:
        inner = stack.pop()
        if inner.type.endswith("type_identifier"):
            return str(inner.text.decode())
        stack.extend(reversed(inner.named_children))
    return str(node.text.decode())


def _binds_a_function(node: Any) -> bool:
    value = node.child_by_field_name("value")
    return value is not None and any(word in value.type for word in _CALLABLE)


def _span(node: Any) -> tuple[int, int]:
    """The byte range of a definition, with an export around it and decorators before it."""
    outer = node
    while (around := outer.parent) is not None and around.type in _AROUND and _belongs(outer, around):
        outer = around
    start, before = outer.start_byte, outer.prev_named_sibling
    while before is not None and before.type in _BEFORE | _COMMENTS:
        start = before.start_byte if before.type in _BEFORE else start
        before = before.prev_named_sibling
    return start, outer.end_byte


def _belongs(node: Any, around: Any) -> bool:
    if around.type in ("export_statement", "template_declaration"):
        return True
    # `const f = …` is its whole declaration; a member of a group `type ( A …; B … )` is not.
    return around.named_child_count == 1 or b"\n" not in around.text[: node.start_byte - around.start_byte]
