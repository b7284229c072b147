"""`quire emulate`: a strict local stand-in for a provider, until interrupted."""

from __future__ import annotations

from typing import Any

import click

from quire.cli.common import called, read_text
from quire.cli.json_text import value_of
from quire.errors import CallError, FormatError


@click.command()
@click.option(
    "--provider", "-p", required=True, help="anthropic, openai, gemini, bedrock, or any that speaks Chat."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--replies", "replies_file", help="File with one reply a line (JSON, or plain text); - is stdin."
)
@click.option("--chunk-bytes", type=click.IntRange(1), help="Send streams in pieces of this many bytes.")
def emulate(provider: str, port: int, replies_file: str | None, chunk_bytes: int | None) -> None:
    """Run a strict local stand-in for a provider: its rules, its cache, its usage fields.

    A reply is a JSON string, an object {"text", "thinking", "calls": [{"name", "args"}]}, or a fault
    {"status": 429, "retry_after_s": 1}. Without replies every request gets a numbered answer.

    \b
    Examples:
      quire emulate --provider anthropic --port 8080
      ANTHROPIC_BASE_URL=http://127.0.0.1:8080 python my_agent.py
    """
    from quire.emulate import Emulator

    replies = _replies(read_text(replies_file), replies_file) if replies_file else None
    server = Emulator(provider, replies, port=port, chunk_bytes=chunk_bytes)
    with server:
        click.echo(f"{provider} on {server.url} (Ctrl-C stops)")
        try:
            server.wait()
        except KeyboardInterrupt:
            click.echo(_said(len(server.requests)), err=True)


def _said(count: int) -> str:
    return f"stopped after {count} request{'s' * (count != 1)}"


def _replies(text: str, file: str) -> list[Any]:
    """One reply a line: what begins like JSON is JSON, the rest is text."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [
        _reply(line, number, file) if line.lstrip().startswith(("{", '"')) else line for number, line in lines
    ]


def _reply(line: str, number: int, file: str) -> Any:
    from quire.emulate.script import answer

    reply = value_of(line, called(file), number, "Write one reply a line.")
    try:
        answer(reply)
    except CallError as error:
        raise FormatError(f"{called(file)}: {error}", line=number, column=1, hint=error.hint) from error
    return reply
