"""`quire log`: keep threads of entries in the database."""

from __future__ import annotations

from pathlib import Path

import click

from quire import values
from quire.cli.common import (
    confirm_deletion,
    counted,
    db_option,
    json_option,
    print_json,
    print_table,
)
from quire.cli.log_lines import append, export, import_
from quire.cli.preview import preview, short_id
from quire.cli.store import open_db
from quire.errors import DamageError
from quire.log.store import ThreadInfo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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
@db_option
@json_option
def new(name: str, db: Path | None, as_json: bool) -> None:
    """Make an empty thread called NAME.

    \b
    Examples:
      quire log new demo
    """
    with open_db(db) as store:
        store.create(name)
        info = store.info(name)
    if as_json:
        print_json(_info_json(info))
    else:
        click.echo(f"new thread {name}")


@log.command()
@click.argument("thread")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only entries behind this seq.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many.")
@click.option("--last", type=click.IntRange(min=0), help="Only the last so many.")
@db_option
@json_option
def show(
    thread: str, after: int, limit: int | None, last: int | None, db: Path | None, as_json: bool
) -> None:
    """Show the entries of THREAD, one a line.

    \b
    Examples:
      quire log show demo
      quire log show demo --last 5 --json
    """
    with open_db(db, create=False) as store:
        if last is not None:
            after = max(after, store.info(thread).seq - last)
        entries = store.read(thread, after=after, limit=limit)
    if as_json:
        print_json([{"id": entry.id, "seq": entry.seq, **entry.body} for entry in entries])
        return
    rows = [(entry.seq, entry.kind, preview(entry), short_id(entry.id)) for entry in entries]
    print_table(("seq", "kind", "content", "id"), rows)


@log.command("list")
@db_option
@json_option
def list_(db: Path | None, as_json: bool) -> None:
    """List the threads, oldest first.

    \b
    Examples:
      quire log list
      quire log list --json
    """
    with open_db(db, create=False) as store:
        infos = store.threads()
    if as_json:
        print_json([_info_json(info) for info in infos])
        return
    rows = [(info.name, info.seq, short_id(info.id), _origin(info)) for info in infos]
    print_table(("thread", "entries", "last id", "forked from"), rows)


def _info_json(info: ThreadInfo) -> values.JsonObject:
    return {
        "thread": info.name,
        "seq": info.seq,
        "id": info.id,
        "parent": info.parent or None,
        "forked_at": info.forked_at,
    }


def _origin(info: ThreadInfo) -> str:
    if not info.forked_at:
        return ""
    return f"{info.parent or '(a deleted thread)'} at {info.forked_at}"


@log.command()
@click.argument("thread")
@click.option(
    "--at",
    "at_seq",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="The last entry to share (default: all).",
)
@click.option("--name", help="The new thread's name (default: THREAD@SEQ).")
@db_option
@json_option
def fork(thread: str, at_seq: int | None, name: str | None, db: Path | None, as_json: bool) -> None:
    """Make a thread that shares history with THREAD.

    Nothing is copied: both have the same entries, with the same ids, up to the one named.

    \b
    Examples:
      quire log fork demo --at 3 --name other
    """
    with open_db(db, create=False) as store:
        made = store.fork(thread, store.info(thread).seq if at_seq is None else at_seq, name)
        info = store.info(made)
    if as_json:
        print_json(_info_json(info))
    else:
        click.echo(f"new thread {made}, sharing {info.seq} entries with {thread}")


@log.command()
@click.argument("thread", required=False)
@db_option
@json_option
def verify(thread: str | None, db: Path | None, as_json: bool) -> None:
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
        _print_damage(damage, as_json)
        raise
    if as_json:
        print_json({"ok": True, "threads": verified.threads, "entries": verified.entries})
    else:
        entries = counted(verified.entries, "entry", "entries")
        click.echo(f"{counted(verified.threads, 'thread')}, {entries}: every hash holds")


def _print_damage(damage: DamageError, as_json: bool) -> None:
    """What was looked for goes to stdout; the error behind it says the rest."""
    if as_json:
        print_json({"ok": False, "thread": damage.thread or None, "seq": damage.seq, "problem": str(damage)})
    elif damage.seq:
        thread = f"thread {damage.thread!r}" if damage.thread else "a thread that cannot be named"
        click.echo(f"first bad entry: seq {damage.seq} of {thread}")


@log.command()
@click.argument("thread")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@db_option
@json_option
def delete(thread: str, yes: bool, db: Path | None, as_json: bool) -> None:
    """Delete THREAD for ever; what a fork still uses stays.

    \b
    Examples:
      quire log delete demo --yes
    """
    with open_db(db, create=False) as store:
        info = store.info(thread)
        if not yes:
            confirm_deletion(
                f"thread {thread!r} with {counted(info.seq, 'entry', 'entries')}", name=repr(thread)
            )
        store.delete(thread)
    if as_json:
        print_json({"deleted": thread, "entries": info.seq})
    else:
        click.echo(f"deleted {thread} ({info.seq} entries)")


log.add_command(append)
log.add_command(export)
log.add_command(import_)
