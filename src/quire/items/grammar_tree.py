"""The definitions of a file in other languages, by the tree-sitter grammars that are installed.

One reading for all grammars: a definition is a node of a defining type with a name; scopes are definitions
around it. What differs between languages is in the tables.
"""

from __future__ import annotations

import bisect
import importlib
import re
from collections.abc import Iterator
from typing import Any

from quire.errors import CallError, MissingPart
from quire.items.symbols import Definition

# suffix -> (module, function). Those down to C come with the extra `symbols`; the others where installed.
_GRAMMARS: dict[str, tuple[str, str]] = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), ("tree_sitter_javascript", "language")),
    **dict.fromkeys((".ts", ".mts", ".cts"), ("tree_sitter_typescript", "language_typescript")),
    ".tsx": ("tree_sitter_typescript", "language_tsx"),
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
_ENDINGS = (
    "_item",
    "_definition",
    "_declaration",
    "_spec",
    "_specifier",
    "_declarator",
    "_signature",
    "_alias",
)
_DEFINING = frozenset({"declaration", "preproc_def", "preproc_function_def", "internal_module", "module", "class", "method",
                       "singleton_method"})  # fmt: skip
_NOT = frozenset({"property_signature", "package_declaration", "using_declaration", "import_declaration",
                  "abstract_declarator", "init_declarator"})  # fmt: skip
# Bound to a value: a symbol everywhere but in a function, and there only where the value is itself a function.
_VARIABLES = frozenset({"variable_declarator", "declaration", "var_spec", "const_spec", "let_declaration",
                        "variable_declaration", "local_variable_declaration"})  # fmt: skip
_CALLABLE = ("function", "class", "lambda")
# What stands around a definition and belongs to it when both begin together or it holds nothing else.
_AROUND = frozenset({"export_statement", "lexical_declaration", "variable_declaration", "type_declaration",
                     "const_declaration", "var_declaration", "field_declaration", "expression_statement",
                     "template_declaration", "type_definition", "declaration"})  # fmt: skip
_BEFORE = frozenset({"attribute_item", "decorator", "attribute_list"})
# Between the parts of a qualified name, or before a private one.
_MARKS = re.compile(r"[.:#]+")
_COMMENTS = frozenset({"comment", "line_comment", "block_comment"})


def definitions(text: str, suffix: str, name: str) -> list[Definition]:
    """Every definition in the file's order."""
    data = text.encode()
    tree = _parser(suffix, name).parse(data)
    breaks = [found.start() for found in re.finditer(b"\n", data)]
    return [_lines(path, span, breaks, whole) for path, span, whole in _walk(tree.root_node)]


def _lines(path: tuple[str, ...], span: tuple[int, int], breaks: list[int], whole: bool) -> Definition:
    """Bytes to lines by our own count: reading a node's points frees memory still in use in tree-sitter 0.26.0."""
    first, last = (bisect.bisect_left(breaks, byte) + 1 for byte in (span[0], max(span[0], span[1] - 1)))
    return Definition(path, first, last, whole)


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
    return Parser(Language(getattr(grammar, function)()))


def _walk(root: Any) -> Iterator[tuple[tuple[str, ...], tuple[int, int], bool]]:
    """Depth first with a stack of our own: generated code nests deeper than Python's."""
    stack: list[tuple[Any, tuple[str, ...], bool]] = [(root, (), False)]
    while stack:
        node, scope, in_function = stack.pop()
        path = _path(node, scope, in_function)
        if path is not None:
            if node.type != "impl_item":
                yield path, _span(node), node.type != "declaration"
            scope, in_function = path, in_function or _is_function(node)
        stack.extend((child, scope, in_function) for child in reversed(node.named_children))


def _path(node: Any, scope: tuple[str, ...], in_function: bool) -> tuple[str, ...] | None:
    """The path of a definition (or of an impl block, which only opens a scope), None for any other node."""
    if node.type == "impl_item":
        return (*scope, _base(node.child_by_field_name("type")))
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


def _name(node: Any) -> tuple[str, ...]:
    """A definition's own name; C hides it in its declarators, C++ may qualify it."""
    found = node.child_by_field_name("name")
    if found is None and node.type in ("function_definition", "type_definition", "declaration"):
        found = node.child_by_field_name("declarator")
        while found is not None and found.child_count and found.type != "qualified_identifier":
            found = found.child_by_field_name("declarator") or (found.named_children or [None])[0]
    if found is None or (node.type.endswith("_specifier") and node.child_by_field_name("body") is None):
        return ()
    text = found.text.decode()
    return tuple(part for part in _MARKS.split(text) if part)


def _base(node: Any) -> str:
    """The type that a receiver or an impl block is about: (t *T[K]) -> T."""
    stack = [node]
    while stack:
        found = stack.pop()
        if found.type.endswith("type_identifier"):
            return str(found.text.decode())
        stack.extend(reversed(found.named_children))
    return str(node.text.decode())


def _binds_a_function(node: Any) -> bool:
    value = node.child_by_field_name("value")
    return value is not None and any(word in value.type for word in _CALLABLE)


def _is_function(node: Any) -> bool:
    return "function" in node.type or "method" in node.type or _binds_a_function(node)


def _span(node: Any) -> tuple[int, int]:
    """The bytes of a definition with what belongs to it: an export around it, decorators before it."""
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
    # `const f = …` is all of its declaration; a member of a group `type ( A …; B … )` is not.
    return around.named_child_count == 1 or b"\n" not in around.text[: node.start_byte - around.start_byte]
