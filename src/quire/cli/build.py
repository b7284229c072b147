"""`quire build`: the context of a consumer, from its configuration and the records."""

from __future__ import annotations

from pathlib import Path

import click

from quire.cli.common import db_option, json_option, print_json, print_text, read_json
from quire.cli.records_db import now_ms, open_records, words_option
from quire.errors import CallError
from quire.records import Builder, Built, Config, Records, config, configured
from quire.records.record import Record


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("consumer")
@click.option("--request", help="What is asked, as text.")
@click.option("--trigger", metavar="ID", help="The record that asks; default: the newest one that triggers.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="The configuration; default: its context.config.v1 record.",
)
@click.option(
    "--context-only", is_flag=True, help="Leave out the request: print the formatted_context alone."
)
@click.option("--dry-run", is_flag=True, help="Keep nothing: do not touch the consumer's context record.")
@words_option
@db_option
@json_option
def build(
    consumer: str,
    request: str | None,
    trigger: str | None,
    config_file: str | None,
    context_only: bool,
    dry_run: bool,
    words: bool,
    db: Path | None,
    as_json: bool,
) -> None:
    """Build the context of CONSUMER, keep it as its context record, and print what its model receives.

    \b
    Examples:
      quire build chat --request "What was that API key?"
      quire build chat --trigger rec-12 --json
    """
    if request is not None and trigger is not None:
        raise CallError(
            "--request and --trigger exclude each other", hint="A trigger brings its own request."
        )
    now = now_ms()
    with open_records(db, create=False, words=words) as records:
        builder = Builder(_config(records, consumer, config_file, now))
        asked_by = records.read_full(trigger, now=now) if trigger else None
        if asked_by is None and request is None:
            asked_by = _newest_trigger(records, builder, now)
        built = builder.build(records, trigger=asked_by, request=request, now=now)
        kept = None if dry_run else builder.keep(records, built, now=now)
    _print(built, kept, context_only, as_json)


def _config(records: Records, consumer: str, file: str | None, now: int) -> Config:
    if file is None:
        return configured(records, consumer, now=now)
    found = config(read_json(file))
    if found.consumer_id != consumer:
        raise CallError(f"{file} configures {found.consumer_id!r}, not {consumer!r}")
    return found


def _newest_trigger(records: Records, builder: Builder, now: int) -> Record:
    found = [one for selector in builder.config.update_triggers for one in records.select(selector, newest=1, keep=builder.triggered_by, now=now)]  # fmt: skip
    if not found:
        raise CallError("no record triggers this consumer", hint="Pass --request TEXT or --trigger ID.")
    return max(found, key=lambda one: int(one.id.partition("-")[2]))


def _print(built: Built, kept: Record | None, context_only: bool, as_json: bool) -> None:
    if as_json:
        print_json({**built.context, "text": built.text, "record": kept.id if kept else None})
    else:
        print_text(built.formatted_context if context_only else built.text)
