"""Texts made to break each grammar: its own marks, fences, headings and escapes, in every mixture."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from toolbox import SCALARS, json_of

ANYWHERE = [
    "", " ", "  ", "    ", "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\t", "\x00", "\x0b", "\x0c", "\x1c", "\x7f", "\x85",
    "\u2028", "\u2029", "\u200f", "\u202e", "\ufeff", "\ufffe", "\uffff", "\U0001f600", "é", "\\", "\\\\", "\\n",
    "a", "x", "0", "1-2", ":", "(", ")", ",", ", ", "#", "`",
]  # fmt: skip
MARKDOWN = [
    "## Context", "## Context\n\n", "\n\n## Request\n\n", "### Code", "### Code (from a)\n```lisp\n", "```", "````",
    "\n```\n", "\n```\n\n", "~~~", "<context-from-manager>\n", "</context-from-manager>", "<user>\n", "\n</user>",
    "<context-from-manager>\n## Context\n", ":1-2", ":007-8", ":1-2)", " (from b)", "\\x3a", "\\x5c", "\\x0A", "\\x",
]  # fmt: skip
XML = ["<item>", "</item>", "</context>", "<!--", "]]>", "<![CDATA[", "&amp;", "&#13;", "&", "<", ">", '"', "'", "<?"]
CLEAN = [
    "# Available Tools\n", "# Relevant Conversation\n", "# Recent Tool Results\n", "# Current Request\n", "• ", "•",
    "User: ", "Assistant: ", "  Output: ", "  Example: ", "You have access to 2 tools:", " (general): ", "\\(", "\\n",
]  # fmt: skip
MARKS = ["user:", "respond:", "think:", "call:", "result:", "User:", "RESPOND:", "uſer:", "thinK:", "call: {}", "5"]
REPLAY = [
    "=== HISTORY ===", "=== CURRENT ===", "===", "(showing last ", "(Showing Last 3 of 9 messages)", "$", "§", " §",
    *(d + mark for d in "$§" for mark in MARKS), "\\$user:", "\\§think:", "\\===", "\n\\", "\n\\\\\n",
]  # fmt: skip


def texts(*grammars: list[str], size: int = 8) -> SearchStrategy[str]:
    """Fragments of the grammars and of everything awkward, joined; and any text at all."""
    fragments = [fragment for grammar in grammars for fragment in grammar] + ANYWHERE
    # One drawn character stands for one fragment: a string is a single, quick draw.
    codes = {0xE000 + at: fragment for at, fragment in enumerate(fragments)}
    joined = st.text("".join(map(chr, codes)), max_size=size).map(lambda text: text.translate(codes))
    return joined | st.text(max_size=4)


_finite = st.floats(allow_nan=False, allow_infinity=False)
JSON = json_of(SCALARS | _finite | texts(REPLAY, size=3), texts(XML, size=2), 6)
