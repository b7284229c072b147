"""Symbols by the syntax tree, in Python and in the languages whose grammars are installed."""

import ast
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import quire.items as some_module
from quire import Item
from quire.errors import CallError, FormatError, MissingPart, NotFound
from quire.items import from_symbol

PYTHON = '''\
"""Docs."""
import functools

LIMIT = 3
A, B = 1, 2
size: int = 4

@functools.cache
@functools.wraps(
    print
)
def cached(x):
    # def fake(): ...
    return """
def also_fake(): ...
"""

async def fetch(url):
    async with url as u:
        return u

class Outer:
    """An outer class."""

    value = 1

    class Inner:
        def method(self): return 1

    @property
    def area(self):
        return 1

    @area.setter
    def area(self, value):
        pass

    async def method(self):
        def helper():
            hidden = 1
            return hidden
        return helper

if LIMIT:
    def chosen():
        return 1
else:
    def chosen():
        return 2

try:
    import fast
except ImportError:
    def slow(): return 3

def cached_later(): pass
def twice(): return 1
class Between: pass
def twice(): return 2
'''


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.write_text(PYTHON)
    return path


def lines(found: Item) -> tuple[int, int]:
    metadata = found.metadata or {}
    return metadata["start_line"], metadata["end_line"]


@pytest.mark.parametrize(
    ("symbol", "first", "last"),
    [
        ("cached", "@functools.cache", '"""'),
        ("fetch", "async def fetch(url):", "        return u"),
        ("Outer", "class Outer:", "        return helper"),
        ("Outer.Inner", "    class Inner:", "        def method(self): return 1"),
        ("Outer.Inner.method", "        def method(self): return 1", "        def method(self): return 1"),
        ("Inner.method", "        def method(self): return 1", "        def method(self): return 1"),
        ("Outer.method", "    async def method(self):", "        return helper"),
        ("Outer.area", "    @property", "        pass"),
        ("area", "    @property", "        pass"),
        ("Outer.method.helper", "        def helper():", "            return hidden"),
        ("Outer.method.<locals>.helper", "        def helper():", "            return hidden"),
        ("helper", "        def helper():", "            return hidden"),
        ("Outer.value", "    value = 1", "    value = 1"),
        ("LIMIT", "LIMIT = 3", "LIMIT = 3"),
        ("B", "A, B = 1, 2", "A, B = 1, 2"),
        ("size", "size: int = 4", "size: int = 4"),
        ("chosen", "    def chosen():", "        return 2"),
        ("slow", "    def slow(): return 3", "    def slow(): return 3"),
        ("twice", "def twice(): return 2", "def twice(): return 2"),
    ],
)
def test_a_python_symbol_comes_with_its_decorators(python: Path, symbol: str, first: str, last: str) -> None:
    found = from_symbol(python, symbol, name="a.py")
    content = found.content.split("\n")
    assert (content[0], content[-1]) == (first, last)
    start, end = lines(found)
    assert content == PYTHON.split("\n")[start - 1 : end]
    assert (found.metadata or {})["filename"] == "a.py"


def test_every_function_of_a_real_module_is_found_where_the_compiler_says() -> None:
    path = Path(some_module.__file__)
    source = path.read_text()
    found = 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                    content = from_symbol(path, f"{node.name}.{method.name}").content
                    assert content.strip() == ast.get_source_segment(source, method)
                    found += 1
    assert found > 10


@pytest.mark.parametrize(
    ("symbol", "problem", "hint"),
    [
        *((name, f"no symbol '{name}'", "") for name in ("fake", "also_fake", "hidden", "")),
        ("Outer.metod", "no symbol", "Outer.method"),
        ("method", "'method' is ambiguous", "Outer.Inner.method, Outer.method"),
    ],
)
def test_what_is_no_symbol_or_several_is_an_error_that_names_near_ones(
    python: Path, symbol: str, problem: str, hint: str
) -> None:
    with pytest.raises((NotFound, CallError), match=problem) as caught:
        from_symbol(python, symbol)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1\ndef f(:\n", r"line 2, column 7: .* is not valid Python"),
        ("x = \0", "null bytes"),
        ("(" * 100_000, "too many nested|not valid"),
    ],
)
def test_broken_python_is_an_error_with_a_place(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(FormatError, match=problem):
        from_symbol(path, "f")


def test_line_ends_and_a_byte_order_mark_do_not_move_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes("\ufeffx = 'a\rb'\r\n\r\ndef f():\r\n    return 1\r\n\x0cdef g(): pass\n".encode())
    assert lines(from_symbol(path, "f")) == (3, 4)
    assert from_symbol(path, "f").content == "def f():\r\n    return 1"
    assert lines(from_symbol(path, "g")) == (5, 5)


OTHERS = {
    "a.js": (
        """\
        import x from "y";
        export const f = () => {
          const inner = function () { return 1; };
          const value = 2;
        };
        class A extends B {
          static async m() { return 1; }
          #p() { }
        }
        export default function main() {
          return f;
        }
        """,
        {"f": (2, 5), "f.inner": (3, 3), "A.m": (7, 7), "A.#p": (8, 8), "main": (10, 12), "A": (6, 9)},
    ),
    "a.ts": (
        """\
        @Component({
          a: 1,
        })
        export class A {
          @Input()
          name = () => 1;
          get y(): number { return 1; }
          set y(v) { }
        }
        function over(a: string): void;
        function over(a: number): void;
        function over(a: any) {
        }
        export interface I { a(): void }
        type Q = 1;
        namespace N { export function h() { } }
        """,
        {"A": (1, 9), "A.name": (5, 6), "A.y": (7, 8), "over": (10, 13), "I": (14, 14), "Q": (15, 15), "N.h": (16, 16)},
    ),
    "a.tsx": ("export const App = () => <div>{1}</div>;\n", {"App": (1, 1)}),
    "a.go": (
        """\
        package p

        type T struct {
          x int
        }
        type (
          A int
          B string
        )
        func (t *T) M(a int) {
          b := 1
        }
        func (g G[K]) N() {}
        const X = 1
        func main() {}
        """,
        {"T": (3, 5), "B": (8, 8), "T.M": (10, 12), "G.N": (13, 13), "M": (10, 12), "X": (14, 14), "main": (15, 15)},
    ),
    "a.rs": (
        """\
        #[derive(Debug)]
        /// A point.
        pub struct Point;
        impl<T> Point<T> {
            #[inline]
            pub fn new() -> Self {
                Point
            }
        }
        impl Shape for Point { fn area() {} }
        mod inner { pub const C: u8 = 1; }
        """,
        {"Point": (1, 3), "Point::new": (5, 8), "Point.area": (10, 10), "inner::C": (11, 11)},
    ),
    "A.java": (
        """\
        package p;
        @Entity
        public class A {
          @Override
          public void m() {
            int local = 1;
          }
          int m(int x) { return x; }
          interface I { }
        }
        """,
        {"A": (2, 10), "A.m": (4, 8), "A#m": (4, 8), "A.I": (9, 9)},
    ),
    "a.c": (
        """\
        #include <stdio.h>
        #define MAX(a, b) a
        int *f(int a);
        struct S { int x; };
        typedef struct { int y; } T;
        static int count = 3;
        int *f(int a)
        {
          int local = 1;
          return 0;
        }
        """,
        {"MAX": (2, 2), "S": (4, 4), "T": (5, 5), "count": (6, 6), "f": (7, 11)},
    ),
    "a.lisp": (
        """\
        (defvar *count* 0 "How many (so far.")
        (defun send-to-agent (instruction)
          (let ((local instruction))
            (default local)))
        (defun (setf name) (value) value)
        (defstruct (point (:type list)) x y)
        (defmacro with-agent ((a) &body body) `(let ((,a 1)) ,@body))
        """,
        {"*count*": (1, 1), "send-to-agent": (2, 4), "(setf name)": (5, 5), "point": (6, 6), "with-agent": (7, 7)},
    ),
    "a.el": (
        """\
        ;;; a.el -*- lexical-binding: t; -*-
        (defcustom my-open ?\\( "The bracket." :type 'character)
        (defun my-close (a)
          (when (eq a ?\\))
            (message "%s" a)))
        (cl-defun my-keys (&key x) x)
        (define-minor-mode my-mode "Doc." :lighter " M")
        """,
        {"my-open": (2, 2), "my-close": (3, 5), "my-keys": (6, 6), "my-mode": (7, 7)},
    ),
}


@pytest.mark.parametrize(("file", "symbol"), [(file, symbol) for file in OTHERS for symbol in OTHERS[file][1]])
def test_other_languages_are_read_by_their_grammars(tmp_path: Path, file: str, symbol: str) -> None:
    source, expected = OTHERS[file]
    path = tmp_path / file
    path.write_text(dedent(source))
    found = from_symbol(path, symbol)
    assert lines(found) == expected[symbol]
    assert found.content == "\n".join(dedent(source).split("\n")[expected[symbol][0] - 1 : expected[symbol][1]])


@pytest.mark.parametrize(
    ("file", "symbol"), [("a.js", "value"), ("a.go", "b"), ("A.java", "local"), ("a.c", "local"), ("a.lisp", "local")]
)
def test_a_functions_own_variables_are_no_symbols(tmp_path: Path, file: str, symbol: str) -> None:
    (tmp_path / file).write_text(dedent(OTHERS[file][0]))
    with pytest.raises(NotFound):
        from_symbol(tmp_path / file, symbol)


def test_deeply_nested_source_is_walked_without_recursion(tmp_path: Path) -> None:
    path = tmp_path / "a.js"
    path.write_text("const x = " + "[" * 5000 + "]" * 5000 + ";\nfunction f() {}\n")
    assert lines(from_symbol(path, "f")) == (2, 2)


def test_a_missing_grammar_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.rb").write_text("def f; end\n")
    (tmp_path / "a.go").write_text("package p\n")
    monkeypatch.setitem(sys.modules, "tree_sitter_ruby", None)
    with pytest.raises(MissingPart, match=r"no grammar for \.rb") as caught:
        from_symbol(tmp_path / "a.rb", "f")
    assert "tree-sitter-ruby" in caught.value.hint
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    with pytest.raises(MissingPart, match=r"no grammar for \.go") as caught:
        from_symbol(tmp_path / "a.go", "f")
    assert "quire[symbols]" in caught.value.hint


def test_an_unknown_kind_of_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("x")
    with pytest.raises(CallError, match="no grammar is known"):
        from_symbol(tmp_path / "a.xyz", "x")
    with pytest.raises(NotFound, match="no file"):
        from_symbol(tmp_path / "b.xyz", "x")
