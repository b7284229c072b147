"""`quire tokens`: how many tokens a file makes for a model."""

from __future__ import annotations

import click

from quire.cli.common import json_option, print_json, read_text
from quire.tokens import counter


@click.command()
@click.argument("file")
@click.option(
    "--model", "-m", default=None, help="Model name, also with provider: and vendor/ (default: o200k)."
)
@json_option
def tokens(file: str, model: str | None, as_json: bool) -> None:
    """Count the tokens of FILE (- for standard input) with the model's vocabulary.

    \b
    Examples:
      quire tokens README.md
      quire tokens - --model llama-3.3-70b < prompt.txt
      quire tokens README.md --model anthropic:claude-opus-5-5 --json
    """
    text = read_text(file)
    chosen = counter(model)
    found = chosen.count(text)
    if as_json:
        print_json(
            {
                "tokens": found,
                "exact": chosen.exact,
                "vocabulary": chosen.vocabulary,
                "factor": chosen.factor,
                "model": model,
                "bytes": len(text.encode()),
                "note": chosen.note,
            }
        )
        return
    click.echo(
        f"{found:,} tokens ({chosen.vocabulary})" if chosen.exact else f"~{found:,} tokens ({chosen.note})"
    )
