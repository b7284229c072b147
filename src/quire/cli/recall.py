"""`quire recall`: find older entries, or records, by meaning and by words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import Place, counted, db_json_options, echo, print_json, print_table, progress, shortened
from quire.cli.store import NO_MODEL, embedder, open_db, open_records
from quire.errors import CallError
from quire.log import now_ms

if TYPE_CHECKING:
    from quire.recall.meaning import IndexReport
    from quire.recall.search import Hit, Recall, ScopeName
    from quire.records import Records


@click.command(name="recall")
@click.argument("text")
@click.option("--k", type=click.IntRange(min=1), default=5, show_default=True, help="How many.")
@click.option(
    "--scope",
    type=click.Choice(["thread", "threads", "records"]),
    help="Where to search (default: thread with --thread, else threads).",
)
@click.option("--thread", help="Search in this thread alone (default: in all).")
@click.option("--before", type=int, help="Only entries in front of this seq of the thread.")
@click.option(
    "--kinds", help="Comma-separated kinds of entries, such as user,respond (default: all that are searched)."
)
@click.option(
    "--neighbours",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Entries around each hit, on each side.",
)
@click.option("--explain", is_flag=True, help="Show the parts of each score.")
@click.option("--words", "words_only", is_flag=True, help="Search by words alone, without the embedding model.")
@db_json_options
def recall(
    text: str,
    k: int,
    scope: ScopeName | None,
    thread: str | None,
    before: int | None,
    kinds: str | None,
    neighbours: int,
    explain: bool,
    words_only: bool,
    as_json: bool,
    db: Place | None,
) -> None:
    """Find older entries, or records, by meaning and by words.

    \b
    Examples:
      quire recall "which API key format" --thread demo
      quire recall "order number" --k 10 --explain
      quire recall "deploy" --scope records
    """
    _check(text, scope, thread, before, kinds, neighbours)
    with open_records(db, create=False, words=words_only, searched=True) as records:
        if scope == "records":
            record_hits = records.search(text, nn=k, now=now_ms())
            if as_json:
                print_json({"by": _recall(records).by, "hits": [hit.to_json() for hit in record_hits]})
                return
            _print_table(
                ["id", "schema"],
                record_hits,
                explain,
                lambda hit: [([hit.record.id, hit.record.schema_name], True, hit.preview)],
            )
            return
        searching = _recall(records)
        kind_list = [kind.strip() for kind in kinds.split(",")] if kinds else None
        hits = searching.search(text, k, scope, thread=thread, before=before, kinds=kind_list, neighbours=neighbours)
        lacking = searching.without_meaning(thread)
    _print_entries(hits, searching.by, lacking, explain, as_json)


def _print_entries(hits: Sequence[Hit], by: str, lacking: int, explain: bool, as_json: bool) -> None:
    """The hits, and how many entries could only be found by words."""
    if lacking:
        who = counted(lacking, "entry", "entries")
        echo(f"{who} not indexed by meaning yet, found by words alone: run `quire index`", err=True)
    from quire.recall import relevant

    if as_json:
        rows = [msgspec.to_builtins(hit) for hit in hits]
        print_json({"by": by, "without_meaning": lacking, "relevant": relevant(hits), "hits": rows})
        return
    if hits and not relevant(hits):
        echo("nothing relevant was found; the nearest:", err=True)
    _print_table(["thread", "seq", "kind"], hits, explain, _entry_rows)


def _check(
    text: str, scope: str | None, thread: str | None, before: int | None, kinds: str | None, neighbours: int
) -> None:
    """Options that contradict each other, in the words of the command line."""
    if not text.strip():
        raise CallError("there is nothing to look for", hint='Say it in words: quire recall "order number".')
    if scope == "thread" and thread is None:
        raise CallError("--scope thread needs a thread", hint="Name it: --thread NAME.")
    if scope in ("threads", "records") and thread is not None:
        raise CallError(f"--thread and --scope {scope} exclude each other", hint="Leave one of them out.")
    if scope == "records" and (before is not None or kinds or neighbours):
        hint = "Leave them out, or search entries: --scope threads."
        raise CallError("--before, --kinds and --neighbours are about entries, not about records", hint=hint)
    if before is not None and thread is None:
        raise CallError("--before needs a thread, whose seq it is", hint="Name it: --thread NAME.")


def _recall(records: Records) -> Recall:
    from quire.recall import Recall

    store: Any = records.store
    return Recall(store, records.meaning)


def _print_table(columns: list[str], hits: Sequence[Any], explain: bool, rows: Callable[[Any], list[Any]]) -> None:
    """A table of hits: columns, the scores, the text; `rows` has what stands before and behind the scores of a hit."""
    if not hits:
        echo("nothing was found")
        return
    parts = list(hits[0].parts) if explain else []
    listed = []
    for hit in hits:
        scores = [f"{hit.score:.2f}", *(f"{hit.parts[part]:.2f}" for part in parts)]
        listed += [[*front, *(scores if scored else [""] * len(scores)), text] for front, scored, text in rows(hit)]
    print_table([*columns, "score", *parts, "text"], listed)


def _entry_rows(hit: Hit) -> list[Any]:
    """A hit and its neighbours, in the order of the log; only the hit has a score."""
    from quire.recall.document import document

    entries = hit.neighbours or (hit.entry,)
    return [
        ([hit.thread, entry.seq, entry.kind], entry.id == hit.id, shortened(document(entry).text)) for entry in entries
    ]


# `quire index`: bring the search index up to date, of entries and of records.


@click.command(name="index")
@click.option("--rebuild", is_flag=True, help="Throw the index away and make it again from the log.")
@click.option("--words", "words_only", is_flag=True, help="Words alone, without the embedding model.")
@db_json_options
def index(rebuild: bool, words_only: bool, as_json: bool, db: Place | None) -> None:
    """Bring the search index up to date; can be stopped at any moment and goes on where it was.

    \b
    Examples:
      quire index
      quire index --rebuild
    """
    from quire.recall import Indexer
    from quire.records import Records

    model = None if words_only else embedder()
    with open_db(db, create=False) as store, progress() as tell:
        indexer = Indexer(store, model)
        report = indexer.rebuild(tell) if rebuild else indexer.run(tell)
        records = Records(store, model, lambda count, of: tell("records", count, of))
        record_count = records.index(rebuild=rebuild, now=now_ms()) if model else 0
    if as_json:
        print_json({"meaning": model is not None, **msgspec.to_builtins(report), "records": record_count})
        return
    echo(_news(report, record_count))
    if model is None and not words_only:
        echo(f"recall searches {NO_MODEL}", err=True)


def _news(report: IndexReport, records: int) -> str:
    """What was new, in a sentence; what was there already is not told."""
    worded, embedded = (counted(number, "entry", "entries") for number in (report.worded, report.embedded))
    texts = [embedded] * bool(report.embedded) + [counted(records, "record")] * bool(records)
    news = [f"the words of {worded}"] * bool(report.worded) + [f"the meaning of {' and '.join(texts)}"] * bool(texts)
    return f"indexed {'; '.join(news)}" if news else "the index was up to date"
