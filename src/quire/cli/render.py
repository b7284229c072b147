"""`quire render`: a thread's request as a provider takes it."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from quire.cli.output import (
    Place,
    console,
    db_option,
    in_line,
    json_option,
    print_bytes,
    print_json,
    print_table,
    provider_and_model,
)
from quire.cli.store import load_usable
from quire.errors import BudgetError, NotFound
from quire.values import SPOKEN, Entry, Json, JsonObject, Request

if TYPE_CHECKING:
    from quire import providers
    from quire.assemble import Assembly, Built, Policy, Refused


class RequestAt(msgspec.Struct, frozen=True):
    """A request of the thread, and when it was or would be made."""

    at: int | None
    built: Built | Refused


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.option("--model", "-m", required=True, help="provider:model; the provider may be a wire format.")
@click.option("--provider", "-p", help="The provider, where --model names the model alone.")
@click.option(
    "--turn", type=click.IntRange(1), help="The last request of this turn (default: of the thread)."
)
@click.option("--step", type=click.IntRange(1), help="This request of the turn.")
@click.option("--all", "every", is_flag=True, help="Every request, one JSON object a line.")
@click.option(
    "--budget", type=click.IntRange(1), help="Tokens one request may hold (default: the model's window)."
)
@click.option("--marks/--no-marks", default=True, show_default=True, help="Place cache marks.")
@click.option("--bytes", "as_bytes", is_flag=True, help="Print the prefix bytes that a cache compares.")
@json_option
@db_option
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
    made = _requests(load_usable(source, db), provider, model, budget)
    asked = (each for each in made if _chosen(each.built, turn, step))
    draw = providers.rendering(target, providers.Options(key=_key(source)))
    if every:
        for one in asked:
            print_json(_line(one, draw, marks), None)
        return
    last = next(iter(deque(asked, maxlen=1)), None)
    if last is None:
        raise NotFound(_nothing(turn, step), hint="quire assemble shows the requests of a thread.")
    _print(_rendered(last.built, draw, marks), last.built, as_bytes, as_json)


def _key(source: str) -> str:
    """A thread's name routes its requests to one cache; a file has none."""
    return "" if os.path.isfile(source) or source == "-" else source


def _print(request: Request, built: Built | Refused, as_bytes: bool, as_json: bool) -> None:
    if as_bytes:
        print_bytes(request.prefix)
    elif as_json:
        print_json(request.body)
    else:
        _show(request, built)


def _requests(entries: list[Entry], provider: str, model: str, budget: int | None) -> Iterator[RequestAt]:
    """The thread's requests as they were sent; with a budget of the caller's, as they would have been."""
    from quire.assemble import unsent
    from quire.thread_state import policies, policy_for, policy_of

    target = f"{provider}:{model}"
    if budget:
        kept, usual = unsent(entries), policy_for(target, budget=budget, reply=0)
    else:
        kept, usual = entries, policy_for(target)

    def there(sent: JsonObject) -> Policy:
        return policy_of({**sent, "provider": provider, "model": model})

    return _asked(kept, policies(kept, usual, there))


def _asked(entries: list[Entry], under: list[Policy]) -> Iterator[RequestAt]:
    """Every request the thread made, and the one that it would make now."""
    from quire.assemble import ask
    from quire.thread_state import AssemblyPerPolicy

    folds = AssemblyPerPolicy(under)
    for entry, policy in zip(entries, under, strict=True):
        if folds.under(policy).asks(entry):
            yield RequestAt(entry.at, ask(folds.under(policy), entry))
        folds.feed(entry)
    said = [entry for entry in entries if entry.kind not in ("sent", "rebase")]
    if said and said[-1].kind not in SPOKEN and (assembly := folds.under(under[-1])).turn:
        yield RequestAt(said[-1].at, _built(assembly))


def _built(assembly: Assembly) -> Built | Refused:
    from quire.assemble import Refused

    try:
        return assembly.request()
    except BudgetError as error:
        return Refused(assembly.turn, assembly.step + 1, str(error), error.hint)


def _chosen(built: Built | Refused, turn: int | None, step: int | None) -> bool:
    return turn in (None, built.turn) and step in (None, built.step)


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


def _line(one: RequestAt, draw: providers.Rendering, marks: bool) -> JsonObject:
    """One request as `quire lint` and `quire simulate` read it."""
    request = _rendered(one.built, draw, marks)
    at = {} if one.at is None else {"at": one.at}
    return {
        **at,
        "turn": one.built.turn,
        "step": one.built.step,
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
    for each in request.left_out:
        what = f"tool {each['tool']}" if "tool" in each else f"entry {each['entry']}"
        console().print(in_line(f"left out: {what}: {each['reason']}"))


def _named(piece: JsonObject, width: int = 64) -> tuple[str, str]:
    """What a part is, and how it begins: ("user", "Hello")."""
    # A tool of the provider's own is called by its type, or by its only field.
    kind = piece.get("role") or piece.get("type") or next(iter(piece), "part")
    if piece.keys() & {"input_schema", "parameters", "parametersJsonSchema", "function", "toolSpec"}:
        kind = "tool"
    elif piece.keys() & {"text", "instructions"} and piece.keys() <= {"type", "text", "instructions"}:
        kind = "system"
    said = " ".join(" ".join(_texts(piece)).split())
    return str(kind), said if len(said) <= width else said[: width - 1] + "…"


def _texts(value: Json) -> Iterator[str]:
    """The texts in a part, in the order given; its own field names and ids left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        # A call reads as its name, then its arguments.
        for key, one in sorted(value.items(), key=lambda field: field[0] != "name"):
            if key not in ("type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "toolUseId"):
                yield from _texts(one)
