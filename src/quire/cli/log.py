"""`quire log`: keep threads of entries in the database; `quire recall` and `quire index`: find entries again."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from quire import values
from quire.cli.output import (
    FileName,
    Place,
    answer,
    confirm_deletion,
    count_of,
    db_json_options,
    db_option,
    default_db,
    echo,
    open_db,
    option,
    pages,
    print_json,
    print_table,
    print_text,
    progress,
    read_text,
    shorten,
)
from quire.cli.record import NO_MODEL, embedder, open_records, words_option
from quire.errors import CallError, DamageError
from quire.log import now_ms
from quire.log.entries import decode_lines, encode, encode_lines
from quire.log.store import tip_of
from quire.log.verify import salvage
from quire.records import Records
from quire.values import Entry, chain, result_text

if TYPE_CHECKING:
    from quire.log.store import ThreadInfo
    from quire.recall.meaning import IndexReport
    from quire.recall.search import Hit, ScopeName


# An entry on one line of a table.

PREVIEW = 48


def short_id(id: str) -> str:
    """Enough of an id to name an entry: 'sha256:81efe5f44226…' -> '81efe5f44226'."""
    return id.removeprefix("sha256:")[:12]


def preview(entry: Entry) -> str:
    """What an entry says, on one line: control characters as escapes, cut at the end."""
    text = _says(entry)[: PREVIEW * 4]
    line = "".join(ch if ch.isprintable() else "␤" if ch == "\n" else "·" for ch in text)
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def _says(entry: Entry) -> str:
    body = entry.body
    if entry.kind == "call":
        return f"{entry.name} {json.dumps(entry.args, ensure_ascii=False)}"
    if entry.kind == "result":
        return result_text(entry) or "(no output)"
    if entry.kind == "tools":
        return ", ".join(tool["name"] for tool in entry.tools)
    if entry.kind == "attach":
        return str(body["item"].get("id") or body["item"]["content"])
    if entry.kind == "rebase":
        return f"{body['reason']} (before {body['before_seq']}, freed {body['freed']})"
    if entry.kind == "sent":
        return f"{body['provider']}:{body['model']} {body['request_sha256'][:12]}"
    block = entry.wire.get("block")
    if entry.text or not isinstance(block, dict):
        return entry.text
    return f"[{block.get('type') or next(iter(block), '')}]"


@click.group()
def log() -> None:
    """Manage threads: every entry is stored durably, chained by hash, and never changed.

    \b
    Examples:
      quire log new demo
      quire log append demo --user "Hello"
      quire log show demo
      quire log export demo > demo.jsonl
    """


# `quire log append`, `export` and `import`: entries in and out of a thread.


class InOrder(click.Command):
    """Remembers --system, --user, --respond and --note in the order in which they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, _, order = self.make_parser(ctx).parse_args(list(args))
        texts = {name: iter(options[name]) for name in SPEAKERS if name in options}
        ctx.meta["quire.spoken"] = [(p.name, next(texts[p.name])) for p in order if p.name in texts]
        return super().parse_args(ctx, args)


SPEAKERS = {"system": values.system, "user": values.user, "respond": values.respond, "note": values.note}


def moment(value: str) -> int:
    """Unix milliseconds, or `now`."""
    if value == "now":
        return now_ms()
    try:
        return int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither Unix milliseconds nor 'now'") from error


@log.command(cls=InOrder)
@click.argument("thread")
@click.argument("file", required=False, type=FileName())
@option("--system", "A system entry.", multiple=True, metavar="TEXT")
@option("--user", "A user entry.", multiple=True, metavar="TEXT")
@option("--respond", "A respond entry: what the model said.", multiple=True, metavar="TEXT")
@option("--note", "A note: a late instruction.", multiple=True, metavar="TEXT")
@option("--at", "The time of the entries made by the options above.", moment, metavar="MS|now")
@option("--expected-seq", "Fail unless the thread ends at this seq.", click.IntRange(min=0))
@db_json_options
@click.pass_context
def append(
    ctx: click.Context,
    /,
    thread: str,
    file: str | None,
    at: int | None,
    expected_seq: int | None,
    db: Place | None,
    as_json: bool,
    **_texts: tuple[str, ...],
) -> None:
    """Append entries to THREAD, all or none.

    Entries of the options come first, in the order typed, then those of FILE (JSON Lines, - for stdin, or
    the JSON of one entry).

    \b
    Examples:
      quire log append demo --system "Be brief." --user "Hello"
      quire log append demo --respond "Hi." --expected-seq 2
      quire log append demo '{"kind": "think", "text": "Hm."}'
      quire log append demo - < more.jsonl
    """
    spoken = [SPEAKERS[kind](text, at=at) for kind, text in ctx.meta["quire.spoken"]]
    if not spoken and file is None:
        raise CallError("nothing to append", hint='Give --user "TEXT", or a file of entries, or - for stdin.')
    text = "" if file is None else file if file.startswith("{") else read_text(file)
    with open_db(db, create=False) as store:
        info = store.info(thread)
        # What the lines of a file have to continue.
        end = next(iter(deque(chain(spoken, info.id, info.seq), 1)), info)
        more = list(decode_lines(text, end.id, end.seq))
        if expected_seq is None and any(entry.id or entry.seq for entry in more):
            # Given ids were checked against the end of the thread as it was, so it must still be there.
            expected_seq = info.seq
        appended = store.append(thread, [*spoken, *more], expected_seq)
    _print_appended(thread, appended, as_json)


def _print_appended(thread: str, appended: list[Entry], as_json: bool) -> None:
    line = "nothing new"
    if appended:
        first, last = appended[0].seq, appended[-1].seq
        span = f"seq {last}" if first == last else f"seq {first} to {last}"
        line = f"{span} ({last - first + 1} new, now {short_id(appended[-1].id)})"
    answer(as_json, [{"seq": entry.seq, "id": entry.id} for entry in appended], f"{thread}: {line}")


@log.command()
@click.argument("thread")
@option("--no-ids", "Leave out id and seq, so that any thread can import the lines.", bool)
@option("--after", "Only entries behind this seq.", click.IntRange(min=0), 0, show_default=False)
@option("--salvage from_damaged", "From a damaged file: the entries before the first bad one.", bool)
@db_option
def export(thread: str, no_ids: bool, after: int, from_damaged: bool, db: Place | None) -> None:
    """Print THREAD as JSON Lines, without loss.

    `quire log import` takes them. `quire export` writes a thread for others: as a provider's messages, or as
    markdown.

    \b
    Examples:
      quire log export demo > demo.jsonl
      quire log export demo --no-ids | quire log import copy -
    """
    if from_damaged:
        place = db or default_db()
        if isinstance(place, str):
            raise CallError("only a file can be salvaged", hint="Restore the server's database from a backup.")
        for entry in salvage(place, thread):
            if entry.seq > after:
                print_text(encode(entry, not no_ids) + "\n")
        return
    with open_db(db, create=False) as store:
        for entries in pages(store, thread, after):
            print_text(encode_lines(entries, not no_ids))


@log.command("import")
@click.argument("thread")
@click.argument("file", required=False, type=FileName())
@option("--expected-seq", "Fail unless the thread ends at this seq.", click.IntRange(min=0))
@db_json_options
def import_(thread: str, file: str | None, expected_seq: int | None, db: Place | None, as_json: bool) -> None:
    """Read JSON Lines into THREAD, all or none.

    For files of other programs, use `quire import`.

    Reads FILE, or stdin for -, into a new thread or behind an existing one. If lines have an id and a seq,
    these must continue the thread.

    \b
    Examples:
      quire log import copy demo.jsonl
      quire log export demo | quire log import copy -
    """
    if file is None and (thread == "-" or os.path.isfile(thread)):
        raise CallError(f"no thread is named to read {thread} into", hint=f"quire log import THREAD {thread}")
    text = read_text(file or "-")
    with open_db(db) as store:
        end = tip_of(store, thread)
        entries = list(decode_lines(text, end.id, end.seq))
        appended = store.append(thread, entries, end.seq if expected_seq is None else expected_seq)
    _print_appended(thread, appended, as_json)


@log.command()
@click.argument("name")
@db_json_options
def new(name: str, db: Place | None, as_json: bool) -> None:
    """Make an empty thread called NAME.

    \b
    Examples:
      quire log new demo
    """
    with open_db(db) as store:
        store.create(name)
        info = store.info(name)
    answer(as_json, _info_json(info), f"new thread {name}")


@log.command()
@click.argument("thread")
@option("--after", "Only entries behind this seq.", click.IntRange(min=0), 0, show_default=False)
@option("--limit", "How many at most.", click.IntRange(min=0))
@option("--last", "Only the last so many.", click.IntRange(min=0))
@db_json_options
def show(thread: str, after: int, limit: int | None, last: int | None, db: Place | None, as_json: bool) -> None:
    """Show the entries of THREAD, one a line.

    `quire show` prints one of them whole.

    \b
    Examples:
      quire log show demo
      quire log show demo --last 5 --json
    """
    with open_db(db, create=False) as store:
        end = store.info(thread).seq
        after = max(after, end - last) if last is not None else after
        count = min(end if limit is None else limit, max(0, end - after))
        entries = (entry for page in pages(store, thread, after, count) for entry in page)
        value = ({"id": entry.id, "seq": entry.seq, **entry.body} for entry in entries)
        rows = ((entry.seq, entry.kind, preview(entry), short_id(entry.id)) for entry in entries)
        answer(as_json, value, (("seq", "kind", "content", "id"), rows))


@log.command("list")
@db_json_options
def list_(db: Place | None, as_json: bool) -> None:
    """List the threads, oldest first.

    \b
    Examples:
      quire log list
      quire log list --json
    """
    with open_db(db, create=False) as store:
        infos = store.threads()
    forks = [f"{info.parent or '(a deleted thread)'} at {info.forked_at}" if info.forked_at else "" for info in infos]
    rows = [(info.name, info.seq, short_id(info.id), fork) for info, fork in zip(infos, forks, strict=True)]
    answer(as_json, [_info_json(info) for info in infos], (("thread", "entries", "last id", "forked from"), rows))


def _info_json(info: ThreadInfo) -> values.JsonObject:
    return {
        "thread": info.name,
        "seq": info.seq,
        "id": info.id,
        "parent": info.parent or None,
        "forked_at": info.forked_at,
    }


@log.command()
@click.argument("thread")
@option("--at at_seq", "The last entry to share (default: all).", click.IntRange(min=0), metavar="SEQ")
@option("--name", "The new thread's name (default: THREAD@SEQ).")
@db_json_options
def fork(thread: str, at_seq: int | None, name: str | None, db: Place | None, as_json: bool) -> None:
    """Make a thread that shares history with THREAD.

    Nothing is copied: both have the same entries, with the same ids, up to the one named.

    \b
    Examples:
      quire log fork demo --at 3 --name other
    """
    with open_db(db, create=False) as store:
        fork_name = store.fork(thread, store.info(thread).seq if at_seq is None else at_seq, name)
        info = store.info(fork_name)
    answer(as_json, _info_json(info), f"new thread {fork_name}, sharing {info.seq} entries with {thread}")


@log.command()
@click.argument("thread", required=False)
@db_json_options
def verify(thread: str | None, db: Place | None, as_json: bool) -> None:
    """Re-derive every hash, and name the first bad entry.

    Checks THREAD, or the whole file. The exit code is 1 if an entry is bad; nothing is ever repaired.

    \b
    Examples:
      quire log verify
      quire log verify demo
    """
    try:
        with open_db(db, create=False) as store:
            verified = store.verify(thread)
    except DamageError as damage:
        # What was looked for goes to stdout; the error behind it says the rest.
        if as_json:
            print_json({"ok": False, "thread": damage.thread or None, "seq": damage.seq, "problem": str(damage)})
        elif damage.seq:
            where = f"thread {damage.thread!r}" if damage.thread else "a thread that cannot be named"
            echo(f"first bad entry: seq {damage.seq} of {where}")
        raise
    also = {"records": verified.records} if thread is None else {}
    value = {"ok": True, "threads": verified.threads, "entries": verified.entries, **also}
    entries = count_of(verified.entries, "entry", "entries")
    records = f", {count_of(verified.records, 'record')}" if verified.records else ""
    answer(as_json, value, f"{count_of(verified.threads, 'thread')}, {entries}{records}: every hash holds")


@log.command()
@click.argument("thread")
@option("--yes -y", "Do not ask.", bool)
@db_json_options
def delete(thread: str, yes: bool, db: Place | None, as_json: bool) -> None:
    """Delete THREAD for ever; what a fork still uses stays.

    \b
    Examples:
      quire log delete demo --yes
    """
    with open_db(db, create=False) as store:
        info = store.info(thread)
        if not yes:
            confirm_deletion(f"thread {thread!r} with {count_of(info.seq, 'entry', 'entries')}", name=repr(thread))
        store.delete(thread)
    answer(as_json, {"deleted": thread, "entries": info.seq}, f"deleted {thread} ({info.seq} entries)")


# `quire recall`: find older entries, or records, by meaning and by words.


@click.command(name="recall")
@click.argument("text")
@option("--k", "How many.", click.IntRange(min=1), 5)
@option("--scope", "Where to search (default: thread with --thread, else threads).", ["thread", "threads", "records"])
@option("--thread", "Search in this thread alone (default: in all).")
@option("--before", "Only entries in front of this seq of the thread.", int)
@option("--kinds", "Comma-separated kinds of entries, such as user,respond (default: all that are searched).")
@option("--neighbours", "Entries around each hit, on each side.", click.IntRange(min=0), 0)
@option("--explain", "Show the parts of each score.", bool)
@words_option
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
    words: bool,
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
    from quire.recall import Recall

    _check_recall(text, scope, thread, before, kinds, neighbours)
    with open_records(db, create=False, words=words, searched=True) as records:
        store: Any = records.store
        searching = Recall(store, records.meaning)
        if scope == "records":
            found = records.search(text, nn=k, now=now_ms())
            rows = [([hit.record.id, hit.record.schema_name], hit, hit.preview) for hit in found]
            value = {"by": searching.by, "hits": [hit.to_json() for hit in found]}
            answer(as_json, value, partial(_print_hits, ["id", "schema"], rows, explain))
            return
        kind_list = [kind.strip() for kind in kinds.split(",")] if kinds else None
        hits = searching.search(text, k, scope, thread=thread, before=before, kinds=kind_list, neighbours=neighbours)
        lacking = searching.without_meaning(thread)
    _print_entries(text, hits, searching.by, lacking, explain, as_json)


def _print_entries(text: str, hits: Sequence[Hit], by: str, lacking: int, explain: bool, as_json: bool) -> None:
    """The hits, and how many entries could only be found by words."""
    if lacking:
        who = count_of(lacking, "entry", "entries")
        echo(f"{who} not indexed by meaning yet, found by words alone: run `quire index`", err=True)
    from quire.recall import relevant

    if hits and not relevant(hits) and not as_json:
        echo("nothing relevant was found; the nearest:", err=True)
    value = {"by": by, "without_meaning": lacking, "relevant": relevant(hits), "hits": msgspec.to_builtins(hits)}
    rows = [row for hit in hits for row in _entry_rows(hit, text)]
    answer(as_json, value, partial(_print_hits, ["thread", "seq", "kind"], rows, explain))


def _check_recall(
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


# What stands before the scores of a hit, the hit (None: a neighbour, which has none), what stands behind.
HitRow: TypeAlias = "tuple[Sequence[object], Any, str]"


def _print_hits(columns: list[str], rows: Sequence[HitRow], explain: bool) -> None:
    if not rows:
        echo("nothing was found")
        return
    parts = next(list(hit.parts) for _, hit, _ in rows if hit is not None) if explain else []
    listed = []
    for front, hit, text in rows:
        scores = [hit.score, *(hit.parts[part] for part in parts)] if hit is not None else []
        listed.append([*front, *(f"{score:.2f}" for score in scores), *[""] * (1 + len(parts) - len(scores)), text])
    print_table([*columns, "score", *parts, "text"], listed)


def _entry_rows(hit: Hit, query: str) -> list[HitRow]:
    """A hit and its neighbours, in the order of the log; of a long one what the query's words stand in."""
    from quire.recall.document import document, passage

    return [
        (
            [hit.thread, entry.seq, entry.kind],
            hit if entry.id == hit.id else None,
            shorten(passage(document(entry).text, 90, query)),
        )
        for entry in hit.neighbours or (hit.entry,)
    ]


# `quire index`: bring the search index up to date, of entries and of records.


@click.command(name="index")
@option("--rebuild", "Delete the index and make it again from the log.", bool)
@words_option
@db_json_options
def index(rebuild: bool, words: bool, as_json: bool, db: Place | None) -> None:
    """Bring the search index up to date; you can stop it at any moment and continue later.

    \b
    Examples:
      quire index
      quire index --rebuild
    """
    from quire.recall import Indexer

    model = None if words else embedder()
    with open_db(db, create=False) as store, progress() as tell:
        indexer = Indexer(store, model)
        report = indexer.rebuild(tell) if rebuild else indexer.run(tell)
        records = Records(store, model, lambda count, of: tell("records", count, of))
        record_count = records.index(rebuild=rebuild, now=now_ms()) if model else 0
    value = {"meaning": model is not None, **msgspec.to_builtins(report), "records": record_count}
    answer(as_json, value, _news(report, record_count))
    if model is None and not words and not as_json:
        echo(f"recall searches {NO_MODEL}", err=True)


def _news(report: IndexReport, records: int) -> str:
    """What was new, in a sentence; what was there already is not told."""
    worded, embedded = (count_of(number, "entry", "entries") for number in (report.worded, report.embedded))
    texts = [embedded] * bool(report.embedded) + [count_of(records, "record")] * bool(records)
    news = [f"the words of {worded}"] * bool(report.worded) + [f"the meaning of {' and '.join(texts)}"] * bool(texts)
    return f"indexed {'; '.join(news)}" if news else "the index was up to date"
