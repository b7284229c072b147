"""Requests as providers take them: a thread's (`quire render`), anybody's against the rules (`quire lint`); items and entries as text,
counted and described (`quire format`, `tokens`, `schema`).
"""

from __future__ import annotations

import importlib
import json
from collections import deque
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from quire.cli.output import (
    Place,
    answer,
    called,
    console,
    counted,
    db_json_options,
    echo,
    in_line,
    is_file,
    json_option,
    load_usable,
    print_bytes,
    print_json,
    print_table,
    print_text,
    provider_and_model,
    read_text,
    read_verbatim,
    shortened,
    value_of,
    value_or_lines,
)
from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.log.entries import decode_lines
from quire.values import BOOKKEEPING, SPOKEN, Entry, Json, JsonObject, Request

if TYPE_CHECKING:
    from quire import providers
    from quire.assemble import Built, Policy, Refused
    from quire.providers.rules import Finding, Unchecked

    # A request of the thread, and when it was or would be made.
    RequestAt: TypeAlias = tuple[int | None, Built | Refused]


# `quire render`: a thread's request as a provider takes it.


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.option("--model", "-m", required=True, help="provider:model; the provider may be a wire format.")
@click.option("--provider", "-p", help="The provider, where --model names the model alone.")
@click.option("--turn", type=click.IntRange(1), help="The last request of this turn (default: of the thread).")
@click.option("--step", type=click.IntRange(1), help="This request of the turn.")
@click.option("--all", "every", is_flag=True, help="Every request, one JSON object a line.")
@click.option("--budget", type=click.IntRange(1), help="Tokens one request may hold (default: the model's window).")
@click.option("--marks/--no-marks", default=True, show_default=True, help="Place cache marks.")
@click.option("--bytes", "as_bytes", is_flag=True, help="Print the prefix bytes that a cache compares.")
@db_json_options
def render(
    source: str,
    provider: str | None,
    model: str,
    turn: int | None,
    step: int | None,
    every: bool,
    budget: int | None,
    marks: bool,
    as_bytes: bool,
    as_json: bool,
    db: Place | None,
) -> None:
    """Render a thread as a provider's request.

    The request that comes next, where the model has yet to answer; else the last one. --json prints the body
    for the official SDK's call, --bytes the prefix bytes.

    \b
    Examples:
      quire render demo --model anthropic:claude-opus-5-5
      quire render demo -m openai:gpt-6-sol --json
      quire render entries.jsonl -m vllm:qwen --all > requests.jsonl
    """
    from quire import providers

    provider, model = provider_and_model(provider, model)
    target = f"{provider}:{model}"
    requests = _requests(load_usable(source, db), provider, model, budget)
    of_turn = (row for row in requests if turn in (None, row[1].turn) and step in (None, row[1].step))
    # A thread's name routes its requests to one cache; a file has none.
    draw = providers.rendering(target, providers.Options(key="" if is_file(source) else source))
    if every:
        for at, built in of_turn:
            print_json(_line(at, built, _rendered(built, draw, marks)), None)
        return
    last = next(iter(deque(of_turn, maxlen=1)), None)
    if last is None:
        raise NotFound(_nothing(turn, step), hint="quire assemble shows the requests of a thread.")
    rendered = _rendered(last[1], draw, marks)
    if as_bytes:
        print_bytes(rendered.prefix)
    elif as_json:
        print_json(rendered.body)
    else:
        _show(rendered, last[1])


def _requests(entries: list[Entry], provider: str, model: str, budget: int | None) -> Iterator[RequestAt]:
    """The thread's requests as they were sent; with a budget of the caller's, as they would have been."""
    from quire.assemble import unsent
    from quire.thread_state import policies, policy_for, policy_of

    target = f"{provider}:{model}"
    if budget:
        log, usual = unsent(entries), policy_for(target, budget=budget, reply=0)
    else:
        log, usual = entries, policy_for(target)

    def policy_then(sent: JsonObject) -> Policy:
        return policy_of({**sent, "provider": provider, "model": model})

    return _all_requests(log, policies(log, usual, policy_then))


def _all_requests(entries: list[Entry], under: list[Policy]) -> Iterator[RequestAt]:
    """Every request the thread made, and the one that it would make now."""
    from quire.assemble import ask
    from quire.thread_state import AssemblyPerPolicy

    folds = AssemblyPerPolicy(under)
    for entry, policy in zip(entries, under, strict=True):
        if folds.under(policy).asks(entry):
            yield entry.at, ask(folds.under(policy), entry)
        folds.feed(entry)
    conversation = [entry for entry in entries if entry.kind not in BOOKKEEPING]
    if conversation and conversation[-1].kind not in SPOKEN and (assembly := folds.under(under[-1])).turn:
        yield conversation[-1].at, ask(assembly, conversation[-1])


def _nothing(turn: int | None, step: int | None) -> str:
    if turn is None and step is None:
        return "nobody has asked the model anything yet"
    where = " ".join(f"{name} {number}" for name, number in (("turn", turn), ("step", step)) if number)
    return f"there is no request in {where}"


def _rendered(built: Built | Refused, draw: providers.Rendering, marks: bool) -> Request:
    from quire import providers
    from quire.assemble import Refused

    if isinstance(built, Refused):
        raise BudgetError(built.error, hint=built.hint)
    request = draw.request(built.prompt)
    return providers.marked(request, built.prompt) if marks else request


def _line(at: int | None, built: Built | Refused, request: Request) -> JsonObject:
    """One request as `quire lint` and `quire simulate` read it."""
    return {
        **({} if at is None else {"at": at}),
        "turn": built.turn,
        "step": built.step,
        "provider": request.provider,
        "model": request.model,
        "headers": request.headers,
        "body": request.body,
        "left_out": list(request.left_out),
    }


def _show(request: Request, built: Built | Refused) -> None:
    """The parts that a cache compares, each with its size, and what could not go along."""
    from quire import providers
    from quire.tokens import counter

    count = counter(f"{request.provider}:{request.model}").count
    lines = [part.decode() for part in providers.prefix_parts(request.body, request.provider)]
    rows = [(*_named(json.loads(line)), count(line)) for line in lines]
    title = f"{request.provider}:{request.model}, turn {built.turn}, step {built.step}"
    print_table(("part", "says", "tokens"), rows, title=title)
    for name, value in request.headers.items():
        console().print(in_line(f"header {name}: {value}"))
    for omission in request.left_out:
        source = f"tool {omission['tool']}" if "tool" in omission else f"entry {omission['entry']}"
        console().print(in_line(f"left out: {source}: {omission['reason']}"))


def _named(piece: JsonObject, width: int = 64) -> tuple[str, str]:
    """What a part is, and how it begins: ("user", "Hello")."""
    # A tool of the provider's own is called by its type, or by its only field.
    kind = piece.get("role") or piece.get("type") or next(iter(piece), "part")
    if piece.keys() & {"input_schema", "parameters", "parametersJsonSchema", "function", "toolSpec"}:
        kind = "tool"
    elif piece.keys() & {"text", "instructions"} and piece.keys() <= {"type", "text", "instructions"}:
        kind = "system"
    return str(kind), shortened(" ".join(_texts(piece)), width)


def _texts(value: Json) -> Iterator[str]:
    """The texts in a part, in the order given; its own field names and ids left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)
    elif isinstance(value, dict):
        # A call reads as its name, then its arguments.
        for key, member in sorted(value.items(), key=lambda field: field[0] != "name"):
            if key not in ("type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "toolUseId"):
                yield from _texts(member)


# `quire lint`: anybody's request against its provider's rules.


class LintReport(msgspec.Struct, frozen=True):
    """What was found in one request; `line` counts from 1 in a file of many, else it is 0."""

    line: int
    provider: str
    model: str
    findings: list[Finding]
    unchecked: list[Unchecked]


@click.command()
@click.argument("file")
@click.option("--provider", "-p", help="Provider or wire format (default: by the shape of the request).")
@click.option("--model", "-m", help="provider:model, or the model alone (default: the one the request names).")
@json_option
def lint(file: str, provider: str | None, model: str | None, as_json: bool) -> None:
    """Check requests against their provider's rules, without sending them.

    FILE holds one JSON request, or one a line (- is standard input). A line may also be
    {"body": {...}, "headers": {...}}: then beta headers are checked too; or {"request": {...}}, as
    quire simulate reads it. Requests of one file are taken as one conversation, so that changed
    thinking blocks are noticed.
    Exit code 1 when anything would be refused; warnings alone are advice.

    \b
    Examples:
      quire lint request.json
      quire lint requests.jsonl --model anthropic:claude-opus-5-5
      curl -s localhost/last | quire lint - --provider openai-chat --json
    """
    from quire.providers.rules import errors

    if provider is None and ":" in (model or ""):
        provider, model = provider_and_model(provider, model)
    reports = list(_reports(numbered(file), provider, model))
    if as_json:
        print_json(msgspec.to_builtins(reports))
    else:
        _print_findings(reports)
    if any(errors(report.findings) for report in reports):
        raise SystemExit(1)


def numbered(file: str) -> Iterator[tuple[int, Any]]:
    """One JSON value as number 0; or JSON lines, or a JSON array of requests, each with its number from 1."""
    text = read_text(file)
    whole, lines = value_or_lines(text, called(file), "request") if text.strip() else ([], None)
    if lines is not None:
        yield from lines
    elif whole == []:
        raise FormatError(f"{called(file)} holds no request", hint="Write one request a line.")
    elif isinstance(whole, list):
        yield from enumerate(whole, start=1)
    else:
        yield 0, whole


def _reports(requests: Iterator[tuple[int, Any]], provider: str | None, model: str | None) -> Iterator[LintReport]:
    from quire.providers.rules import ServerMemory, observe, unchecked, validate
    from quire.providers.wires import detect

    memory = ServerMemory(complete=False)
    for line, request in requests:
        body, headers = unwrapped(request)
        name = provider or detect(body)
        if name is None:
            place = f"number {line} of the file" if line else "this"
            raise CallError(f"cannot tell whose request {place} is", hint="Say it with --provider.")
        findings = validate(body, name, model, seen=memory, headers=headers)
        notes = unchecked(body, name, model, seen=None, headers=headers)
        yield LintReport(line, name, model or _model_of(body), findings, notes)
        if isinstance(body, dict):
            observe(memory, body, name)


def unwrapped(request: Any) -> tuple[Any, dict[str, str] | None]:
    """A recorded request is {"body", "headers"} or {"at", "request"}; anything else is the body itself."""
    if not isinstance(request, dict) or "messages" in request:
        return request, None
    body = next((request[name] for name in ("body", "request") if isinstance(request.get(name), dict)), None)
    headers = request.get("headers")
    return body or request, headers if body and isinstance(headers, dict) else None


def _model_of(body: Any) -> str:
    named = (body.get("model") or body.get("modelId")) if isinstance(body, dict) else None
    return named if isinstance(named, str) else ""


def _print_findings(reports: list[LintReport]) -> None:
    from quire.providers.rules import errors

    for report in reports:
        place = f"line {report.line}: " if report.line else ""
        for finding in report.findings:
            advised = finding.severity == "warning"
            colour = "yellow" if advised else "red"
            echo(place, (finding.row, colour), f" {finding.path}{' (warning)' * advised}")
            echo(f"  {finding.message}")
            echo("  ", ("fix:", "green"), f" {finding.fix}")
        for note in report.unchecked:
            echo(f"{place}not checked, {note.row}: {note.why}", err=True)
    findings = [finding for report in reports for finding in report.findings]
    refused = len(errors(findings))
    warned = len(findings) - refused
    names = ", ".join(dict.fromkeys(f"{report.provider} {report.model}".strip() for report in reports))
    also = f", {counted(warned, 'warning')}" * bool(warned)
    echo(f"{counted(len(reports), 'request')} ({names}): {refused or 'no'} finding{'s' * (refused != 1)}{also}")


# `quire format`: items or entries as one of the text formats, and a text back as JSON.


# The options that only one format has.
FORMATS = {
    "markdown": ("wrap", "default_language", "system"),
    "xml": (),
    "json": (),
    "clean": ("detail",),
    "replay": ("window", "delimiter"),
}


def text_format(name: str) -> Any:
    """The module of a format, loaded when it is used: read, render, parse and to_json."""
    return importlib.import_module(f"quire.formats.{name if name != 'json' else 'json_'}")


@click.command("format")
@click.argument("name", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("file", default="-")
@click.option(
    "--profile", type=click.Choice(["quire", "agent-q"]), default="quire", help="markdown: quire, or agent-q as it was."
)
@click.option("--parse", "parses", is_flag=True, help="Read the text and print its value as JSON.")
@click.option("--wrap", type=click.Choice(["none", "tags"]), help="markdown: put tags around context and request.")
@click.option("--system", metavar="TEXT", help="markdown: a system prompt in front, with --wrap tags.")
@click.option("--default-language", metavar="TAG", help="markdown: the tag of code in no known language (lisp).")
@click.option("--detail", type=click.Choice(["full", "short"]), help="clean: how much of each tool (full).")
@click.option("--window", metavar="N", help="replay: how many history events, or all (15).")
@click.option("--delimiter", type=click.Choice(["$", "§"]), help="replay: what events begin with ($).")
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
    chosen, profiles = text_format(name), (profile,) if profile != "quire" else ()
    if profiles and name != "markdown":
        raise CallError(f"{name} has no profile {profile}", hint="agent-q is a profile of markdown.")
    settings: JsonObject = {key: value for key, value in options.items() if value is not None}
    for option in settings:
        if option not in FORMATS[name]:
            flag = "--" + option.replace("_", "-")
            raise CallError(f"{flag} does not go with {name}", hint="quire format --help says which format it is for.")
    if (number := settings.get("window")) is not None:
        if number != "all" and not (number.isascii() and number.isdigit()):
            raise CallError(f"--window is {number!r}", hint="Give a number of events, or all.")
        settings["window"] = None if number == "all" else int(number)
    if parses:
        # A text may begin with a byte order mark of its own: what was rendered is read back whole.
        value = chosen.to_json(chosen.parse(read_verbatim(file), *profiles))
        print_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    else:
        text = read_text(file)
        lines = name == "replay" and _is_lines(text)
        hint = "quire format --help shows the shape; to read a text back, add --parse."
        entries = {"entries": [entry.body for entry in decode_lines(text)]} if lines else None
        data = entries or value_of(text, called(file), hint=hint)
        value = chosen.read({**data, **settings} if isinstance(data, dict) else data, *profiles)
        print_text(chosen.render(value, *profiles))


def _is_lines(text: str) -> bool:
    """Whether the text is entries as JSON Lines: its first line is an entry, or there is none."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    try:
        value = json.loads(first) if first else {"kind": ""}
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "kind" in value


# `quire tokens`: how many tokens a file makes for a model.


@click.command()
@click.argument("file")
@click.option("--model", "-m", default=None, help="Model name, also with provider: and vendor/ (default: o200k).")
@json_option
def tokens(file: str, model: str | None, as_json: bool) -> None:
    """Count the tokens of FILE (- for standard input) with the model's vocabulary.

    \b
    Examples:
      quire tokens README.md
      quire tokens - --model llama-3.3-70b < prompt.txt
      quire tokens README.md --model anthropic:claude-opus-5-5 --json
    """
    from quire.tokens import counter

    text = read_text(file)
    chosen = counter(model)
    count = chosen.count(text)
    value = {
        "tokens": count,
        "exact": chosen.exact,
        "vocabulary": chosen.vocabulary,
        "factor": chosen.factor,
        "model": model,
        "bytes": len(text.encode()),
        "note": chosen.note,
    }
    line = f"{count:,} tokens ({chosen.vocabulary})" if chosen.exact else f"~{count:,} tokens ({chosen.note})"
    answer(as_json, value, line)


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
    from quire.log.entries import SCHEMA

    if name == "entry":
        print_json(SCHEMA)
    else:
        print_text(resources.files("quire.schemas").joinpath(f"{name}.json").read_text(encoding="utf-8"))
