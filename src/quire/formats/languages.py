"""The tag of a code fence: by what an item says of itself, else by its file's extension."""

from __future__ import annotations

from quire.values import Item

_BY_TAG: dict[str, str] = {
    "bash": "sh bash zsh bashrc",
    "c": "c h",
    "clojure": "clj cljs cljc edn",
    "cpp": "cpp cc cxx hpp hh hxx",
    "csharp": "cs",
    "css": "css",
    "csv": "csv",
    "dart": "dart",
    "diff": "diff patch",
    "elisp": "el",
    "elixir": "ex exs",
    "erlang": "erl hrl",
    "fortran": "f f90 f95",
    "fsharp": "fs fsx",
    "go": "go",
    "graphql": "graphql gql",
    "groovy": "groovy gradle",
    "haskell": "hs",
    "hcl": "hcl tf",
    "html": "html htm",
    "ini": "ini cfg conf",
    "java": "java",
    "javascript": "js mjs cjs",
    "json": "json jsonl ndjson",
    "jsx": "jsx",
    "julia": "jl",
    "kotlin": "kt kts",
    "latex": "tex",
    "less": "less",
    "lisp": "lisp lsp cl asd",
    "lua": "lua",
    "makefile": "mk",
    "markdown": "md markdown",
    "nim": "nim",
    "nix": "nix",
    "objective-c": "m",
    "ocaml": "ml mli",
    "pascal": "pas",
    "perl": "pl pm",
    "php": "php",
    "powershell": "ps1 psm1",
    "proto": "proto",
    "python": "py pyi pyw",
    "r": "r",
    "rst": "rst",
    "ruby": "rb",
    "rust": "rs",
    "scala": "scala sc",
    "scheme": "scm ss rkt",
    "scss": "scss",
    "sql": "sql",
    "svelte": "svelte",
    "swift": "swift",
    "text": "txt text log",
    "toml": "toml",
    "tsx": "tsx",
    "typescript": "ts mts cts",
    "vim": "vim",
    "vue": "vue",
    "xml": "xml xsd xsl svg",
    "yaml": "yaml yml",
    "zig": "zig",
}
_BY_EXTENSION = {extension: tag for tag, extensions in _BY_TAG.items() for extension in extensions.split()}


def by_extension(filename: str | None) -> str | None:
    """'src/agent.lisp' -> 'lisp'; None for a name without an extension that is known."""
    name = (filename or "").replace("\\", "/").rpartition("/")[2]
    stem, dot, extension = name.rpartition(".")
    return _BY_EXTENSION.get(extension.lower()) if stem and dot else None


def tag(item: Item, default_language: str = "lisp") -> str:
    """The tag of an item's fence under profile quire; an empty language is one, None is none."""
    metadata = item.metadata or {}
    language: str | None = metadata.get("language")
    known = by_extension(metadata.get("filename"))
    if item.type == "code":
        chosen = (language, known, default_language)
    elif item.type == "repl-history":
        chosen = (language, None, default_language)
    else:
        chosen = (None, known if item.type == "file" else None, "text")
    return next(tag for tag in chosen if tag is not None)
