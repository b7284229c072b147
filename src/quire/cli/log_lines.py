"""`quire log append`, `export` and `import`: entries in and out of a thread."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from quire import values
from quire.cli.common import db_option, default_db, json_option, print_json, print_text, read_text
from quire.cli.preview import short_id
from quire.cli.store import open_db
from quire.errors import CallError, NotFound
from quire.log.entries import decode_lines, encode, encode_lines
from quire.log.hashing import chain
from quire.log.salvage import salvage
from quire.log.sqlite import SqliteStore
from quire.log.store import ThreadInfo
from quire.values import Entry

# Entries go out in pages, so that a long thread does not have to fit into memory twice.
PAGE = 1000


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
        return time.time_ns() // 1_000_000
    try:
        return int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither Unix milliseconds nor 'now'") from error


@click.command(cls=InOrder)
@click.argument("thread")
@click.argument("file", required=False)
@click.option("--system", multiple=True, metavar="TEXT", help="A system entry.")
@click.option("--user", multiple=True, metavar="TEXT", help="A user entry.")
@click.option("--respond", multiple=True, metavar="TEXT", help="A respond entry: what the model said.")
@click.option("--note", multiple=True, metavar="TEXT", help="A note: a late instruction.")
@click.option(
    "--at", type=moment, metavar="MS|now", help="The time of the entries made by the options above."
)
@click.option("--expected-seq", type=click.IntRange(min=0), help="Fail unless the thread ends at this seq.")
@db_option
@json_option
@click.pass_context
def append(
    ctx: click.Context,
    /,
    thread: str,
    file: str | None,
    at: int | None,
    expected_seq: int | None,
    db: Path | None,
    as_json: bool,
    **_texts: tuple[str, ...],
) -> None:
    """Append entries to THREAD, all or none.

    First those of the options, in the order typed, then those of FILE (JSON Lines, - for stdin; an entry's
    own JSON may stand there instead).

    \b
    Examples:
      quire log append demo --system "Be brief." --user "Hello"
      quire log append demo --respond "Hi." --expected-seq 2
      quire log append demo '{"kind": "think", "text": "Hm."}'
      quire log append demo - < more.jsonl
    """
    said = [SPEAKERS[kind](text, at=at) for kind, text in ctx.meta["quire.spoken"]]
    if not said and file is None:
        raise CallError("nothing to append", hint='Give --user "TEXT", or a file of entries, or - for stdin.')
    text = "" if file is None else file if file.startswith("{") else read_text(file)
    with open_db(db, create=False) as store:
        info = store.info(thread)
        expected = info.seq if expected_seq is None else expected_seq
        behind = _chained_end(said, info)
        more = list(decode_lines(text, *behind))
        # Given ids were checked against the end of the thread as it was, so it must still be there.
        must_be = expected if expected_seq is not None or any(e.id or e.seq for e in more) else None
        appended = store.append(thread, [*said, *more], must_be)
    _print_appended(thread, appended, as_json)


def _chained_end(said: list[Entry], info: ThreadInfo) -> tuple[str, int]:
    """The id and seq that the lines of a file have to continue."""
    end = [*chain(said, info.id, info.seq)]
    return (end[-1].id, end[-1].seq) if end else (info.id, info.seq)


def _print_appended(thread: str, appended: list[Entry], as_json: bool) -> None:
    if as_json:
        print_json([{"seq": entry.seq, "id": entry.id} for entry in appended])
        return
    if not appended:
        click.echo(f"{thread}: nothing new")
        return
    first, last = appended[0].seq, appended[-1].seq
    span = f"seq {last}" if first == last else f"seq {first} to {last}"
    click.echo(f"{thread}: {span} ({last - first + 1} new, now {short_id(appended[-1].id)})")


@click.command()
@click.argument("thread")
@click.option("--no-ids", is_flag=True, help="Leave id and seq out, so that the lines can go anywhere.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only entries behind this seq.")
@click.option(
    "--salvage",
    "from_damaged",
    is_flag=True,
    help="From a damaged file: what stands before the first bad entry.",
)
@db_option
def export(thread: str, no_ids: bool, after: int, from_damaged: bool, db: Path | None) -> None:
    """Print THREAD as JSON Lines, without loss.

    \b
    Examples:
      quire log export demo > demo.jsonl
      quire log export demo --no-ids | quire log import copy -
    """
    if from_damaged:
        for entry in salvage(db or default_db(), thread):
            print_text(encode(entry, not no_ids) + "\n")
        return
    with open_db(db, create=False) as store:
        while entries := store.read(thread, after=after, limit=PAGE):
            print_text(encode_lines(entries, not no_ids))
            after = entries[-1].seq


@click.command("import")
@click.argument("thread")
@click.argument("file", required=False)
@click.option("--expected-seq", type=click.IntRange(min=0), help="Fail unless the thread ends at this seq.")
@db_option
@json_option
def import_(thread: str, file: str | None, expected_seq: int | None, db: Path | None, as_json: bool) -> None:
    """Read JSON Lines into THREAD, all or none.

    From FILE, or stdin for -; into a new thread or behind an existing one. Where lines carry id and seq,
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
        parent, seq = _end(store, thread)
        entries = list(decode_lines(text, parent, seq))
        appended = store.append(thread, entries, seq if expected_seq is None else expected_seq)
    _print_appended(thread, appended, as_json)


def _end(store: SqliteStore, thread: str) -> tuple[str, int]:
    """The id and seq of a thread's last entry; of nothing when there is no such thread yet."""
    try:
        info = store.info(thread)
    except NotFound:
        return "", 0
    return info.id, info.seq
