"""`quire log`: keep threads of entries in the database."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING

import click

from quire import values
from quire.cli.output import (
    Place,
    answer,
    confirm_deletion,
    counted,
    db_json_options,
    db_option,
    default_db,
    echo,
    preview,
    print_json,
    print_text,
    read_text,
    short_id,
)
from quire.cli.store import open_db
from quire.errors import CallError, DamageError, NotFound
from quire.values import Entry

if TYPE_CHECKING:
    from quire.log.store import ThreadInfo

# `quire log append`, `export` and `import`: entries in and out of a thread.

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
@click.option("--at", type=moment, metavar="MS|now", help="The time of the entries made by the options above.")
@click.option("--expected-seq", type=click.IntRange(min=0), help="Fail unless the thread ends at this seq.")
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

    First those of the options, in the order typed, then those of FILE (JSON Lines, - for stdin; an entry's
    own JSON may stand there instead).

    \b
    Examples:
      quire log append demo --system "Be brief." --user "Hello"
      quire log append demo --respond "Hi." --expected-seq 2
      quire log append demo '{"kind": "think", "text": "Hm."}'
      quire log append demo - < more.jsonl
    """
    from quire.entry import chain
    from quire.log.entries import decode_lines

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


@click.command()
@click.argument("thread")
@click.option("--no-ids", is_flag=True, help="Leave id and seq out, so that the lines can go anywhere.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only entries behind this seq.")
@click.option(
    "--salvage", "from_damaged", is_flag=True, help="From a damaged file: what stands before the first bad entry."
)
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
    from quire.log.entries import encode, encode_lines
    from quire.log.verify import salvage

    if from_damaged:
        place = db or default_db()
        if isinstance(place, str):
            raise CallError("only a file can be salvaged", hint="Restore the server's database from a backup.")
        for entry in salvage(place, thread):
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
@db_json_options
def import_(thread: str, file: str | None, expected_seq: int | None, db: Place | None, as_json: bool) -> None:
    """Read JSON Lines into THREAD, all or none.

    `quire import` reads what other programs wrote.

    From FILE, or stdin for -; into a new thread or behind an existing one. Where lines carry id and seq,
    these must continue the thread.

    \b
    Examples:
      quire log import copy demo.jsonl
      quire log export demo | quire log import copy -
    """
    from quire.log.entries import decode_lines

    if file is None and (thread == "-" or os.path.isfile(thread)):
        raise CallError(f"no thread is named to read {thread} into", hint=f"quire log import THREAD {thread}")
    text = read_text(file or "-")
    with open_db(db) as store:
        try:
            info = store.info(thread)
            parent, seq = info.id, info.seq
        except NotFound:
            parent, seq = "", 0
        entries = list(decode_lines(text, parent, seq))
        appended = store.append(thread, entries, seq if expected_seq is None else expected_seq)
    _print_appended(thread, appended, as_json)


@click.group()
def log() -> None:
    """Keep threads: every entry is stored durably, chained by hash, and never changed.

    \b
    Examples:
      quire log new demo
      quire log append demo --user "Hello"
      quire log show demo
      quire log export demo > demo.jsonl
    """


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
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only entries behind this seq.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many.")
@click.option("--last", type=click.IntRange(min=0), help="Only the last so many.")
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
        if last is not None:
            after = max(after, store.info(thread).seq - last)
        entries = store.read(thread, after=after, limit=limit)
    value = [{"id": entry.id, "seq": entry.seq, **entry.body} for entry in entries]
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
@click.option(
    "--at", "at_seq", type=click.IntRange(min=0), metavar="SEQ", help="The last entry to share (default: all)."
)
@click.option("--name", help="The new thread's name (default: THREAD@SEQ).")
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

    Of THREAD, or of the whole file; exit code 1 when something does not hold. Nothing is ever repaired.

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
    entries = counted(verified.entries, "entry", "entries")
    records = f", {counted(verified.records, 'record')}" if verified.records else ""
    answer(as_json, value, f"{counted(verified.threads, 'thread')}, {entries}{records}: every hash holds")


@log.command()
@click.argument("thread")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
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
            confirm_deletion(f"thread {thread!r} with {counted(info.seq, 'entry', 'entries')}", name=repr(thread))
        store.delete(thread)
    answer(as_json, {"deleted": thread, "entries": info.seq}, f"deleted {thread} ({info.seq} entries)")


log.add_command(append)
log.add_command(export)
log.add_command(import_)
