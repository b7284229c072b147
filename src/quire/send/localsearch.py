"""Retrieval as a model reads it: documents with ids, the rule for citing them, and their catalog, in one block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from quire.assemble.blocks import escaped, shown
from quire.assemble.cuts import truncate
from quire.send.timerange import TimeRange, time_range
from quire.send.tools.tool import Output, Tool, tool
from quire.send.vault.index import NoteIndex, Passage
from quire.send.vault.note import Note
from quire.values import Entry

INSTRUCTION = "Answer the question based only on the following context:"
NONE_FOUND = "No relevant documents found."
CITING = """CITATION RULES:
1. Cite a document by its id in brackets with a caret, as [^1], directly behind the claim it supports.
2. Cite new facts, numbers and quotations only; not general knowledge, and not every sentence.
3. Use only the ids given above; numbers in brackets inside a document are part of its text.
4. If the documents do not answer the question, say so."""
_CATALOG = "Source Catalog (for reference only):"
_MOST_LISTED = 20
_TAGS = ("content", "document", "guidance", "localSearch")
_CITED_GROUP = re.compile(r"\[((?:\^?\d+)(?:\s*,\s*\^?\d+)*)\](?!\()")


class Document(msgspec.Struct, frozen=True):
    """One note as far as it was found; ids count from 1."""

    id: int
    title: str
    path: str
    content: str


class Source(msgspec.Struct, frozen=True):
    """A document that an answer rests on."""

    id: int
    title: str
    path: str


def documents(passages: Iterable[Passage], limit: int = 12_000, each: int = 4_000) -> list[Document]:
    """Passages gathered by note, best note first, within `limit` characters in all and `each` for one note."""
    by_note: dict[str, list[Passage]] = {}
    for one in passages:
        by_note.setdefault(one.path, []).append(one)
    found: list[Document] = []
    left = limit
    for path, own in by_note.items():
        if left <= 0:
            break
        ordered = sorted(own, key=lambda one: one.line)
        content = truncate("\n\n".join(one.text.strip() for one in ordered), min(each, left))
        left -= len(content)
        found.append(Document(len(found) + 1, own[0].title, path, content))
    return found


def local_search(found: Sequence[Document], time_range: str = "") -> str:
    """The whole block; documents cannot end it."""
    attribute = f' timeRange="{_attribute(time_range)}"' if time_range else ""
    body = "\n\n".join(map(_document, found)) or NONE_FOUND
    inner = f"{INSTRUCTION}\n\n{body}\n\n<guidance>\n{_guidance(found)}\n</guidance>"
    return f"<localSearch{attribute}>\n{inner}\n</localSearch>"


def _document(one: Document) -> str:
    content = escaped(one.content, *_TAGS)
    lines = [f"<id>{one.id}</id>", f"<title>{_field(one.title)}</title>", f"<path>{_field(one.path)}</path>"]
    return "\n".join(["<document>", *lines, f"<content>\n{content}\n</content>", "</document>"])


def _guidance(found: Sequence[Document]) -> str:
    listed = [f"- [[{one.title}]] ({one.path})" for one in found[:_MOST_LISTED]]
    catalog = [escaped(shown(line), *_TAGS) for line in listed]
    return "\n".join([CITING, "", _CATALOG, *catalog]) if catalog else CITING


def _field(text: str) -> str:
    return shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(text: str) -> str:
    return _field(text).replace('"', "&quot;")


def local_search_tool(
    index: NoteIndex,
    *,
    k: int = 8,
    limit: int = 12_000,
    question: Callable[[Entry], str] | None = None,
    now_ms: Callable[[], int] | None = None,
) -> Tool:
    """The tool `localSearch` over a vault; `question` gives the user's words, to be said again behind documents.

    Calls chosen before the model speaks stand above the question anyway, and do not repeat it.
    """

    @tool(
        name="localSearch",
        idempotent=True,
        shown=("timeRange",),
        category="search",
        output=("documents",),
        limit=4 * limit + 8_000,
        timeout_s=300.0,
    )
    def search(query: str, call: Entry, timeRange: str = "") -> Output:
        """Search the user's notes and get the passages that fit, with ids to cite.

        Args:
            query: What to look for, in the words that a note would use.
            timeRange: Only notes of this time, as "last week", "today", "2025-01" or "2025-01-01 to 2025-01-31".
        """
        if not index.vault.watched:
            index.update()
        within = time_range(timeRange, now_ms() if now_ms else None) if timeRange else None
        found = documents(index.search(query, k, _when(within), str(call.meta.get("earlier") or "")), limit)
        asked = question(call).strip() if question and call.meta.get("placement") != "context" else ""
        return _output(found, timeRange, asked)

    return search


def _output(found: Sequence[Document], time_range: str, asked: str) -> Output:
    """What a model reads of a search, and the documents for whoever lists sources."""
    text = local_search(found, time_range)
    told = [msgspec.to_builtins(Source(one.id, one.title, one.path)) for one in found]
    return Output(f"{text}\n\n[User query]:\n\n{asked}" if asked else text, meta={"sources": told})


def _when(within: TimeRange | None) -> Callable[[Note], bool] | None:
    if within is None:
        return None
    return lambda note: within.holds(note.title, note.mtime_ms)


def sources(entries: Sequence[Entry]) -> list[Source]:
    """What the newest answer rests on: the documents it cites, else all that were found for it."""
    turn = _newest_turn(entries)
    given = [msgspec.convert(one, Source) for entry in turn for one in entry.meta.get("sources") or ()]
    answer = "".join(entry.text for entry in turn if entry.kind == "respond")
    numbers = {int(one.lstrip("^ ")) for group in _CITED_GROUP.findall(answer) for one in group.split(",")}
    cited = [one for one in given if one.id in numbers]
    return list({(one.id, one.path): one for one in cited or given}.values())


def sources_text(found: Sequence[Source]) -> str:
    """The list behind an answer; empty where nothing was found."""
    lines = [f"[^{one.id}]: [[{one.title}]] ({one.path})" for one in found]
    return "\n".join(["#### Sources", "", *lines]) if lines else ""


def _newest_turn(entries: Sequence[Entry]) -> Sequence[Entry]:
    for place in range(len(entries) - 1, -1, -1):
        if entries[place].kind == "user":
            return entries[place:]
    return entries
