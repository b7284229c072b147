"""`quire assemble` and what else shows the requests of a thread: show, diff, where, report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec
from click.core import ParameterSource

from quire import assemble as engine
from quire.assemble import Policy
from quire.cli.output import (
    FILE_PATH,
    NumberRange,
    Place,
    answer,
    console,
    count_of,
    db_json_options,
    db_option,
    echo,
    in_line,
    is_file,
    load_entries,
    load_usable,
    open_db,
    open_thread,
    option,
    print_bytes,
    print_json,
    print_table,
    print_text,
    progress,
    style,
    with_options,
    write_page,
)
from quire.errors import CallError, NotFound
from quire.log.entries import encode
from quire.providers.models import named_target
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from quire.assemble import Built, Refused
    from quire.providers import Rendering
    from quire.server.figures import Whereabouts
    from quire.server.views import ThreadView

    _RequestUnder: TypeAlias = tuple[Built | Refused, Policy]

_BAR = 40
_COLOURS = {"L1": "blue", "L2": "cyan", "L3": "yellow", "L4": "green", "L5": "magenta", "tools": "white"}
# What the layers are, for people who meet them for the first time.
LAYERS = {
    "L1": "system prompt",
    "L2": "library",
    "L3": "this turn's context",
    "L4": "history",
    "L5": "the user's words",
}
LEGEND = ", ".join(f"{name} {about}" for name, about in LAYERS.items())

_DEFAULT = Policy()
_SHARE, _PRICE = NumberRange(0, 1), NumberRange(0)
# What `option` takes of each.
_POLICY: tuple[tuple[Any, ...], ...] = (
    ("--budget", "Tokens one request may hold.", click.IntRange(1), _DEFAULT.budget),
    ("--reply", "Of these, room for the reply.", click.IntRange(0), _DEFAULT.reply),
    ("--promote", "When items move into the library.", ["at-rebase", "each-turn"], _DEFAULT.promote),
    ("--items", "How items are written.", ["xml", "markdown"], _DEFAULT.items),
    ("--floor", "Share that stays verbatim.", NumberRange(0, 1, min_open=True), _DEFAULT.floor),
    ("--handles", "Share for turns whose results become handles (default: by the prices, at most 0.2).", _SHARE),
    ("--summary", "Share for the summary of what was cut.", _SHARE, _DEFAULT.summary),
    ("--opening", "Share for the thread's first entries, which are never cut.", _SHARE, _DEFAULT.opening),
    ("--ttl ttl_s", "Seconds after which an unused cache is cold; 0: never.", click.IntRange(0), _DEFAULT.ttl_s),
    ("--read", "Price of a cached token (default: the model's, else 0.1).", _PRICE),
    ("--write", "Price of a token written to the cache (default: the model's, else 1.25).", _PRICE),
    ("-m --model", "provider:model whose count and prices apply (default: the one that was asked)."),
)
_POLICY_NAMES = [names.split()[-1].removeprefix("--") for names, *_ in _POLICY]


def policy_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that make a policy, the same for every command that assembles: it takes them as `policy`."""

    @wraps(command)
    def with_policy(**given: Any) -> None:
        fields = {name: given.pop(name) for name in _POLICY_NAMES}
        model, ttl_s = fields.pop("model"), fields.pop("ttl_s") or None
        policy = msgspec.convert({**fields, "ttl_s": ttl_s}, Policy)
        if model:
            from quire.thread_state import policy_for

            named_target(model)
            policy = policy_for(model, policy)
        command(**given, policy=policy)

    decorated: Callable[..., None] = with_options(*(option(*row) for row in _POLICY))(with_policy)
    return decorated


def sent_log(entries: list[Entry], policy: Policy) -> tuple[list[Entry], list[Policy]]:
    """A thread as it was sent, with the policies of then; where the caller chose one, as it would have been."""
    from quire.thread_state import is_request, policies

    log = engine.unsent(entries) if is_chosen() and any(map(is_request, entries)) else entries
    return log, policies(log, policy)


@contextmanager
def open_requests(
    source: str, db: Place | None, policy: Policy, turns: tuple[int, int] | None
) -> Iterator[tuple[Iterator[_RequestUnder], Callable[[], Sequence[Entry]]]]:
    """The requests of a thread as they were sent, and its entries; with `turns`, from the nearest saved state."""
    from quire.thread_state import SentTurns, requests_under

    if turns is None or is_chosen() or is_file(source):
        entries, under = sent_log(load_usable(source, db), policy)
        yield _with_progress(requests_under(entries, under), turns), lambda: entries
        return
    with open_thread(source, db) as store:
        sent = SentTurns(store, source, policy)
        yield _with_progress(sent.requests(*turns), turns), sent.log


def _with_progress(requests: Iterator[_RequestUnder], turns: tuple[int, int] | None) -> Iterator[_RequestUnder]:
    """The requests; in a terminal a bar shows how far they are, until the first of the `turns` is reached."""
    if turns is not None:
        with progress() as tell:
            for request in requests:
                if request[0].turn >= turns[0]:
                    break
                tell("turns", request[0].turn, turns[0])
                yield request
            else:
                return
        yield request
    yield from requests


def is_chosen() -> bool:
    """Whether the caller has given a policy of their own, in one option at least."""
    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in _POLICY_NAMES)


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@option("--turn", "Only this turn's requests.", click.IntRange(1))
@policy_options
@db_json_options
def assemble(source: str, turn: int | None, as_json: bool, db: Place | None, policy: Policy) -> None:
    """Show what each request of a thread would hold.

    There is one request wherever the model spoke, made from everything before it. Requests are shown as they were
    sent, or, with --budget or another choice, as they would have been.

    \b
    Examples:
      quire assemble demo
      quire assemble entries.jsonl --budget 16000 --turn 3
      quire assemble entries.jsonl --json | jq .reused_tokens
    """
    from quire.observe import comparing

    count, before = 0, None
    out, by = console(), comparing()
    with open_requests(source, db, policy, (turn, turn) if turn else None) as (requests, log):
        for built, policy_then in takewhile(lambda request: turn is None or request[0].turn <= turn, requests):
            if turn in (None, built.turn):
                count += 1
                if as_json:
                    print_json(request_json(built, before, by), None)
                else:
                    show_request(out, built, before, policy_then.limit)
            before = built if isinstance(built, engine.Built) else before
        asked = not count and any(entry.kind == "user" for entry in log())
    if count and not as_json:
        out.print(style((LEGEND, "dim")))
    if not count and turn is not None:
        raise NotFound(f"there is no request in turn {turn}", hint="Leave --turn out to see all turns.")
    if not count and not as_json:
        shown = "the model has not spoken yet; `quire render` shows the request that comes next"
        echo(f"no request: {shown if asked else 'nobody has asked the model anything yet'}", err=True)


def request_json(built: Built | Refused, before: Built | None, by: Rendering) -> JsonObject:
    """One request for machines; `by` writes those of one thread, each message once."""
    from quire.assemble.fit import enclose, layer_tokens
    from quire.observe import chat_messages

    if isinstance(built, engine.Refused):
        return msgspec.structs.asdict(built)
    messages = chat_messages(built, by)
    sealed = enclose(built, messages)
    system = [{"role": "system", "content": built.prompt.system}] if built.prompt.system else []
    return {
        "turn": built.turn,
        "step": built.step,
        "epoch": built.epoch,
        "tokens": layer_tokens(built),
        "total_tokens": built.tokens,
        "reused_tokens": engine.reused_tokens(before, built),
        "layers": {**{layer.id[:2]: layer.sha256 for layer in sealed.layers}, "all": sealed.sha256},
        "messages": system + messages,
        "tools": list(built.prompt.tools),
        "left_out": [msgspec.to_builtins(omission) for omission in built.left_out],
        "rebase": built.rebase,
    }


def show_request(out: Console, built: Built | Refused, before: Built | None, budget: int) -> None:
    """One request for a person: a line of totals, a bar per layer, and what happened since the one before it."""
    from quire.assemble.fit import layer_tokens
    from quire.assemble.pending import left_out_since

    if isinstance(built, engine.Refused):
        out.print(style(_place(built), ("refused", "red"), f": {in_line(built.error)}"))
        return
    lines = [_totals(built, engine.reused_tokens(before, built), budget)]
    for name, size in layer_tokens(built).items():
        if size:
            bar = "█" * max(1, round(_BAR * min(1.0, size / built.limit)))
            lines.append(style("  ", (f"{name:5}", _COLOURS[name]), f" {size:>9,} ", (bar, _COLOURS[name])))
    if built.rebase is not None:
        lines.append(_rebase_line(built.rebase))
    new = left_out_since(before.left_out if before is not None else (), built.left_out)
    for reason in dict.fromkeys(omission.reason for omission in new):
        seqs = [omission.entry for omission in new if omission.reason == reason]
        lines.append(style((f"  left out: {ranges(seqs)}: {in_line(reason)}", "dim")))
    out.print(*lines, sep="\n")  # at once, since a thread may have tens of thousands of requests


def _place(built: Built | Refused) -> Text:
    return style((f"turn {built.turn}.{built.step}", "bold"), "  ")


def _totals(built: Built, reused: int, budget: int) -> Text:
    # Where the model has said how it counts, the budget in its tokens is another number of ours.
    own_count = f" ({budget:,} as the model counts)" if built.limit != budget else ""
    share = 100 * reused / max(1, built.tokens)
    return style(
        _place(built),
        f"epoch {built.epoch}  {built.tokens:,} of {built.limit:,} tokens{own_count}",
        f"  reused {reused:,} ({share:.0f} %)  new {built.tokens - reused:,}",
    )


def _rebase_line(record: JsonObject) -> Text:
    actions = Counter(edit["action"] for edit in record["edits"])
    edits = ", ".join(f"{count} × {in_line(action)}" for action, count in actions.items()) or "no edits"
    line = f" ({in_line(record['reason'])}): freed {record['freed']:,} tokens; {edits}"
    return style("  ", ("rebase", "yellow"), line)


def ranges(numbers: list[int]) -> str:
    """[1, 2, 3, 7] -> 'entries 1–3, 7'."""
    from quire.server.figures import runs

    return f"{'entries' if len(numbers) > 1 else 'entry'} {', '.join(_span(*run) for run in runs(numbers))}"


def _span(first: int, last: int) -> str:
    return f"{first}–{last}" if last > first else f"{first}"


# `quire show`: the original of anything that a request names or leaves out.


@click.command()
@click.argument("name", metavar="ENTRY|HANDLE")
@option("--in source", "Where to look; needed for an entry given by its seq.", metavar="THREAD|FILE")
@db_json_options
def show(name: str, source: str | None, as_json: bool, db: Place | None) -> None:
    """Print the original of an entry: by id, by the handle a request shows, or by seq with --in.

    `quire log show` lists the entries of a thread instead, one a line.

    \b
    Examples:
      quire show 3fa9c1d2e4b5
      quire show 17 --in demo
      quire show 3fa9c1d2e4b5 --in entries.jsonl --json
    """
    from quire.assemble.user_message import original

    entry = _find(name, source, db)
    print_text((encode(entry) if as_json else original(entry)) + "\n")


def _find(name: str, source: str | None, db: Place | None) -> Entry:
    if source is None:
        with open_db(db, create=False) as store:
            hit = store.find(name)
        if hit is not None:
            return hit[1]
    else:
        digits = name.removeprefix("sha256:")
        seq = int(name) if name.isascii() and name.isdigit() and len(name) < 6 else None
        for entry in load_entries(source, db, seq):
            if str(entry.seq) == name or (len(digits) >= 6 and entry.id.removeprefix("sha256:").startswith(digits)):
                return entry
    raise NotFound(
        f"no entry is called {name!r}" + (f" in {source}" if source else ""),
        hint=f"Give an id, at least 6 of its hex digits, or a seq{'' if source else ' with --in THREAD|FILE'}.",
    )


# `quire diff`, `quire where`, `quire report`: two requests, a string, all of it as a page.


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.argument("first", metavar="N")
@click.argument("second", metavar="M")
@policy_options
@db_json_options
def diff(source: str, first: str, second: str, as_json: bool, db: Place | None, policy: Policy) -> None:
    """Find the first byte that differs between the requests of turns N and M.

    4 is the first request of turn 4, 4.2 its second. The earlier request is always compared with the later one.

    \b
    Examples:
      quire diff demo 1 2
      quire diff demo 4.1 4.2
      quire diff entries.jsonl 3 9 --promote each-turn
    """
    from quire.observe import moved

    names = (first, second)
    turns = [_turn(name) for name in names]
    with open_requests(source, db, policy, (min(turns), max(turns))) as (requests, entries):
        built = [(request, policy_then.model) for request, policy_then in requests if isinstance(request, engine.Built)]
        (start, earlier), (end, later) = sorted((_request_at(built, name), name) for name in names)
        difference = moved(built[start : end + 1], entries())
    answer(as_json, difference, _sentence(difference, earlier, later))


def _turn(name: str) -> int:
    """The turn of a request: "4" is the first one of turn 4, "4.2" its second."""
    if not re.fullmatch(r"[1-9]\d{0,9}(\.[1-9]\d{0,9})?", name):
        raise CallError(f"{name!r} is no turn", hint="Write 4, or 4.2 for the second request of turn 4.")
    return int(name.split(".")[0])


def _request_at(requests: list[tuple[Built, str]], name: str) -> int:
    for at, (built, _) in enumerate(requests):
        if name in (str(built.turn), f"{built.turn}.{built.step}"):
            return at
    raise NotFound(f"turn {name} has no request", hint="`quire assemble` shows those that have one.")


def _sentence(difference: JsonObject, first: str, second: str) -> str:
    if first == second:
        return f"no byte differs: both are turn {first}"
    if difference["extends"]:
        cold = f", but nothing of it is cached: {in_line(difference['cause'])}" if difference["cause"] else ""
        return f"no byte differs: turn {second} extends turn {first} by {difference['added']:,} bytes{cold}"
    cause = f"; cause: {in_line(difference['cause'])}" if difference["cause"] else ""
    return f"byte {difference['byte']:,} differs, in {difference['layer']} ({in_line(difference['segment'])}){cause}"


# The optimum in hindsight is looked for in a report where it takes seconds, not minutes.
_OPTIMUM_REQUESTS = 60


def _thread(source: str, db: Place | None, policy: Policy) -> ThreadView:
    from quire.server.views import ThreadView

    entries, _ = sent_log(load_usable(source, db), policy)
    with progress() as tell:
        return ThreadView(Path(source).stem if Path(source).is_file() else source, [], policy).extend(entries, tell)


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@option("--output -o", "The file to write, - for standard output (default: THREAD.html).", FILE_PATH)
@option("--quick", "Leave out the comparison with other policies.", bool)
@policy_options
@db_option
def report(source: str, output: Path | None, quick: bool, db: Place | None, policy: Policy) -> None:
    """Write a thread as one page that you can send to somebody: every request, what was cached, cut and why.

    The file holds its data and loads nothing. Requests are shown as they were sent, or, with --budget or another
    choice, as they would have been.

    \b
    Examples:
      quire report demo -o report.html
      quire report entries.jsonl --budget 16000
    """
    from quire.server.inspector import report as written
    from quire.server.views import try_policies

    thread = _thread(source, db, policy)
    requests = len(thread.picture().columns)
    if not requests:
        raise NotFound("the thread holds no request to show", hint="It needs a user entry.")
    with progress() as tell:
        what_if = None if quick else try_policies(thread, tell=tell)
        if what_if is not None and requests <= _OPTIMUM_REQUESTS:
            what_if = msgspec.structs.replace(what_if, optimum=try_policies(thread, "optimum").optimum)
        page = written(thread, what_if, tell)
    file = output or Path(f"{thread.name.replace('/', '-')}.html")
    if to_stdout := str(file) == "-":
        print_bytes(page.encode())
    else:
        write_page(file, page)
    echo(f"{file}: {count_of(requests, 'request')}, {len(page) / 1e6:.1f} MB", err=to_stdout)


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.argument("text")
@policy_options
@db_json_options
def where(source: str, text: str, as_json: bool, db: Place | None, policy: Policy) -> None:
    """Show where TEXT went: the entries that hold it, the requests that held it, and what it was cut into.

    \b
    Examples:
      quire where demo src/parser.py
      quire where entries.jsonl ORD-1234 --budget 16000
    """
    if not text:
        raise CallError("there is nothing to look for", hint="Give a path, an id or a sentence.")
    places = _thread(source, db, policy).where(text)
    answer(as_json, msgspec.to_builtins(places), partial(_print, places))


def _print(places: Whereabouts) -> None:
    if not places.entered and not places.stretches:
        echo("it never stood in this thread")
        return
    for hit in places.entered[:10]:
        echo(f"entry {hit.seq} ({hit.kind}, turn {hit.turn}): {in_line(hit.around)}")
    if places.count > 10:
        echo(f"and {count_of(places.count - 10, 'entry', 'entries')} more")
    rows = [(_span(stretch.first, stretch.last), stretch.standing, stretch.by) for stretch in places.stretches]
    print_table(("requests", "it stood", "because of"), rows) if rows else echo("it has stood in no request yet")
