"""`markdown`: a window's items as fenced blocks under one heading, and the request behind them."""

from quire.formats.markdown.parse import parse
from quire.formats.markdown.project import project, read, to_json
from quire.formats.markdown.render import block_text, render
from quire.formats.markdown.value import Block, Markdown, Profile, Wrap

__all__ = [
    "Block",
    "Markdown",
    "Profile",
    "Wrap",
    "block_text",
    "parse",
    "project",
    "read",
    "render",
    "to_json",
]
