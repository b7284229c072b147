"""`quire format`: items or entries as one of the text formats, and a text back as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import click

from quire.cli.output import echo, json_option, print_json, print_text, read_text, read_verbatim
from quire.errors import CallError
from quire.formats import clean, json_, markdown, replay, xml
from quire.formats.clean import DETAILS
from quire.formats.markdown import PROFILES, WRAPS
from quire.formats.replay import DELIMITERS
from quire.log.entries import decode_lines
from quire.tokens import counter
from quire.values import Json


class TextFormat(NamedTuple):
    """A format's four functions, and the options that only it has."""

    read: Callable[[Json], Any]
    render: Callable[[Any], str]
    parse: Callable[[str], Any]
    to_json: Callable[[Any], Json]
    options: tuple[str, ...] = ()


FORMATS = {
    "markdown": TextFormat(
        markdown.read,
        markdown.render,
        markdown.parse,
        markdown.to_json,
        ("wrap", "default_language", "system"),
    ),
    "xml": TextFormat(xml.read, xml.render, xml.parse, xml.to_json),
    "json": TextFormat(json_.read, json_.render, json_.parse, json_.to_json),
    "clean": TextFormat(clean.read, clean.render, clean.parse, clean.to_json, ("detail",)),
    "replay": TextFormat(replay.read, replay.render, replay.parse, replay.to_json, ("window", "delimiter")),
}


@click.command("format")
@click.argument("name", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("file", default="-")
@click.option(
    "--profile", type=click.Choice(PROFILES), default="quire", help="markdown: quire, or agent-q as it was."
)
@click.option("--parse", "parses", is_flag=True, help="Read the text and print its value as JSON.")
@click.option("--wrap", type=click.Choice(WRAPS), help="markdown: put tags around context and request.")
@click.option("--system", metavar="TEXT", help="markdown: a system prompt in front, with --wrap tags.")
@click.option(
    "--default-language", metavar="TAG", help="markdown: the tag of code in no known language (lisp)."
)
@click.option("--detail", type=click.Choice(DETAILS), help="clean: how much of each tool (full).")
@click.option("--window", metavar="N", help="replay: how many history events, or all (15).")
@click.option("--delimiter", type=click.Choice(DELIMITERS), help="replay: what events begin with ($).")
def format_(name: str, file: str, profile: str, parses: bool, **options: str | None) -> None:
    """Print the JSON of FILE (- for standard input) as markdown, xml, json, clean or replay, to the byte.

    markdown, xml and json take {"items": […], "max_items": 50, "request": …}; clean takes {"tools": […],
    "conversation": […], "tool_results": […], "request": …}; replay takes {"entries": […], "window": 15}
    or entries as JSON Lines. Options win over the JSON's fields. With --parse the text itself says what
    they would.

    \b
    Examples:
      echo '{"items": [{"content": "(+ 1 2)"}]}' | quire format markdown
      quire log export demo | quire format replay --window all
      quire format clean --parse context.txt
    """
    chosen = _with_profile(FORMATS[name], name, profile)
    given = {key: value for key, value in options.items() if value is not None}
    for option in given:
        if option not in chosen.options:
            flag = "--" + option.replace("_", "-")
            raise CallError(
                f"{flag} does not go with {name}", hint="quire format --help says which format it is for."
            )
    if parses:
        # A text may begin with a byte order mark of its own: what was rendered is read back whole.
        value = chosen.to_json(chosen.parse(read_verbatim(file)))
        print_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    else:
        text = read_text(file)
        data = _entries(text) if name == "replay" and _is_lines(text) else _json(text, file)
        print_text(chosen.render(chosen.read(_overridden(data, given))))


def _with_profile(format: TextFormat, name: str, profile: str) -> TextFormat:
    if profile == "quire":
        return format
    if name != "markdown":
        raise CallError(f"{name} has no profile {profile}", hint="agent-q is a profile of markdown.")
    return format._replace(
        read=lambda data: markdown.read(data, "agent-q"),
        render=lambda value: markdown.render(value, "agent-q"),
        parse=lambda text: markdown.parse(text, "agent-q"),
    )


def _overridden(data: Json, given: dict[str, str]) -> Json:
    """The JSON with the options in place of its own fields."""
    if not isinstance(data, dict):
        return data
    return {**data, **{key: _events(value) if key == "window" else value for key, value in given.items()}}


def _events(number: str) -> int | None:
    if number == "all":
        return None
    if not (number.isascii() and number.isdigit()):
        raise CallError(f"--window is {number!r}", hint="Give a number of events, or all.")
    return int(number)


def _is_lines(text: str) -> bool:
    """Whether the text is entries as JSON Lines: its first line is an entry, or there is none."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    try:
        found = json.loads(first) if first else {"kind": ""}
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "kind" in found


def _entries(text: str) -> Json:
    return {"entries": [entry.body for entry in decode_lines(text)]}


def _json(text: str, file: str) -> Json:
    hint = "quire format --help shows the shape; to read a text back, add --parse."
    return json_.load(text, "standard input" if file == "-" else file, hint)


# `quire tokens`: how many tokens a file makes for a model.


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
    echo(f"{found:,} tokens ({chosen.vocabulary})" if chosen.exact else f"~{found:,} tokens ({chosen.note})")


# `quire schema`: the published JSON schemas, to the byte.

NAMES = ("item", "window", "entry")


@click.command()
@click.argument("name", type=click.Choice(NAMES))
def schema(name: str) -> None:
    """Print the JSON schema of an item, a window or an entry.

    \b
    Examples:
      quire schema window
      quire schema entry > entry.schema.json
    """
    print_text(resources.files("quire.schemas").joinpath(f"{name}.json").read_text(encoding="utf-8"))
