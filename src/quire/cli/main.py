"""The `quire` command: finds the subcommand's module, turns Quire's errors into one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.output import echo, open_db, option
from quire.errors import CallError, QuireError, nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# What --help lists under each heading: name -> (module of quire.cli, help line). Modules load when used, so that it is fast.
HEADINGS: dict[str, dict[str, tuple[str, str]]] = {
    "Threads": {
        "log": ("log", "Manage threads: new, append, show, list, fork, verify, export, import, delete."),
        "window": ("attachments", "The items that join every turn: show, add, remove, pin, clear."),
        "show": ("assemble", "Print the original of an entry or a handle."),
        "recall": ("log", "Find older entries by meaning and by words."),
        "index": ("log", "Bring the search index up to date."),
        "import": ("convert", "Read a conversation from another format into a thread."),
        "export": ("convert", "Write a thread in another format."),
    },
    "Requests": {
        "assemble": ("assemble", "Show each request's layers, tokens, reuse and what was left out."),
        "render": ("requests", "Render a thread as a provider's request."),
        "diff": ("assemble", "Find the first byte that differs between two turns' requests."),
        "where": ("assemble", "Show where a string went: the requests that held it, and what it was cut into."),
        "lint": ("requests", "Check any request against its provider's rules."),
        "format": ("convert", "Turn items or entries into one of the text formats, and back."),
        "tokens": ("convert", "Count tokens for a model."),
        "schema": ("convert", "Print the JSON schema of an item, a window or an entry."),
    },
    "Caches and money": {
        "plan": ("plan", "What a thread cost, what each policy would have cost, and the optimum."),
        "usage": ("plan", "What requests used and cost, by model: of a thread, or of all."),
        "simulate": ("plan", "Predict cache reads, writes and money for a list of requests."),
        "models": ("plan", "What is known of each model: window, vocabulary, prices, minimum."),
        "report": ("assemble", "Write a thread as one page that you can send to somebody."),
        "audit": ("audit", "What recorded requests lost of the provider's cache, why, and what it cost."),
        "lock": ("requests", "Write the prefix hashes of an application's requests to a file."),
        "check": ("requests", "Fail if those prefixes moved without a reason; for CI."),
    },
    "Applications as they are": {
        "proxy": ("proxy", "Pass an application's requests on unchanged, and explain every cache loss as it happens."),
        "wrap": ("proxy", "Start a known client (pi, codex, llm, …) behind the proxy."),
        "unwrap": ("proxy", "Restore what `quire wrap` changed in clients' files."),
        "doctor": ("proxy", "Show what of the proxy is installed, set, reachable and recorded."),
    },
    "Services": {
        "serve": ("serve", "Serve threads, requests and turns over HTTP, with the proxy and the inspector."),
        "open": ("serve", "Open the inspector in the browser; start the service if needed."),
        "mcp": ("serve", "Serve threads and records to programs that speak MCP."),
        "emulate": ("serve", "Run a strict local stand-in for a provider."),
        "local": ("serve", "Install and serve the embedded local model."),
    },
    "Turns with a model": {
        "chat": ("chat", "Talk to a model in the terminal."),
        "run": ("run", "Carry out one turn with a runner: chat, qa, planned, agent, project."),
        "resume": ("run", "Continue a cycle that was interrupted."),
    },
    "Records": {
        "record": ("record", "Create, read, search and update records."),
        "build": ("record", "Build the context of a consumer from records."),
    },
}
COMMANDS = {name: about for some in HEADINGS.values() for name, about in some.items()}

# Names that commands had before.
RENAMED = {"model": "local"}

_NO_COMMAND = re.compile(r"No such command '([^']*)'\.$")


class ReaderGone(Exception):
    """Nobody reads the output any more (`| head -1`): they have what they wanted."""


@contextmanager
def _reader_may_go() -> Iterator[None]:
    """End with 0 where the reader of a pipe has gone; click and rich would end with 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error
    except SystemExit as exit_:
        if isinstance(exit_.__context__, BrokenPipeError):
            raise ReaderGone from exit_
        raise


class LazyGroup(click.Group):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _reader_may_go():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_go():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = RENAMED.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"quire.cli.{COMMANDS[name][0]}")
        # `import` and the like are words of Python: the function is `import_`.
        command: click.Command = getattr(module, f"{name}_", None) or getattr(module, name)
        if "_QUIRE_COMPLETE" in os.environ:
            complete(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, some in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in some.items()])


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from quire import __version__

        echo(f"quire {__version__}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@option("--version", "Print the version.", bool, callback=_version, expose_value=False, is_eager=True)
def quire() -> None:
    """Assemble what a language model receives: one log in, cache-optimal requests out.

    \b
    Examples:
      quire log new demo
      quire log append demo --user "Hello" --respond "Hi."
      quire assemble demo
    """
    if level := os.environ.get("QUIRE_LOG"):
        _log_at(level)


def _log_at(level: str) -> None:
    """Show the log `quire` on standard error from this level on; debug has each request's hashes and cached tokens."""
    import logging

    class StderrLog(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)

    named = logging.getLevelNamesMapping().get(level.upper())
    if named is None:
        raise CallError(f"QUIRE_LOG is {level!r}", hint="Use debug, info, warning or error.")
    logger = logging.getLogger("quire")
    logger.handlers, logger.propagate = [StderrLog()], False
    logger.setLevel(named)


def main() -> None:
    """Run the command; an error is one line, its hint, and an exit code (1 the data, 2 the call)."""
    _open_streams()
    exit_codes = [130]
    _end_in_order(exit_codes)
    try:
        _check_words(sys.argv[1:])
        if os.environ.get("_QUIRE_COMPLETE") == "bash_source":
            complete_in_bash()
        # click hands back the code of an early exit instead of raising it.
        code = quire.main(prog_name="quire", standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except (BrokenPipeError, ReaderGone):
        _give_up_output()
        sys.exit(0)
    except click.exceptions.NoArgsIsHelpError as help_:
        help_.show()
        sys.exit(help_.exit_code)
    except click.ClickException as error:
        report(_called_wrongly(error))
        sys.exit(error.exit_code)
    except QuireError as error:
        report(error)
        sys.exit(error.exit_code)
    except UnicodeEncodeError as error:
        report(CallError(f"a name is not UTF-8: {ascii(error.object)[:80]}", hint="Rename the file."))
        sys.exit(2)
    except OSError as error:
        _give_up_output()
        about = f"{error.filename}: " if error.filename else ""
        disk = not about or error.errno in (errno.ENOSPC, errno.EIO)
        hint = "Check the disk, and where the output goes." if disk else "Check the path."
        report(QuireError(f"{about}{error.strerror or error}", hint=hint))
        sys.exit(1)
    except BaseException as error:  # an end by the user or a signal, perhaps wrapped by what was interrupted
        causes = type(error), type(error.__cause__)
        if not (exit_codes[1:] or click.Abort in causes or KeyboardInterrupt in causes):
            raise
        echo("stopped; what was acknowledged is stored", err=True)
        sys.exit(exit_codes[-1])


def _end_in_order(exit_codes: list[int]) -> None:
    """Have SIGTERM, and the end of the terminal, stop what runs and close what is open; a second one ends at once."""

    def end(number: int, _: object) -> None:
        import asyncio  # which most commands do without

        signal.signal(number, signal.SIG_DFL)
        exit_codes.append(128 + number)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            sys.exit(exit_codes[-1])
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # which wakes it

    for kind in (kind for kind in signal.Signals if kind.name in ("SIGTERM", "SIGHUP")):
        if signal.getsignal(kind) is signal.SIG_DFL:  # and not under nohup
            signal.signal(kind, end)


def report(error: QuireError) -> None:
    """Print an error on stderr: what happened, then the next step."""
    echo(("error: ", "red"), str(error), err=True)
    if error.hint:
        echo(("hint: ", "yellow"), error.hint, err=True)


def _called_wrongly(error: click.ClickException) -> QuireError:
    """An error of click as one of ours: one line, and where the help is."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    called = ctx.command_path if ctx else "quire"
    message = " ".join(error.format_message().split())
    if ctx and message.startswith(("Missing argument", "Got unexpected extra")):
        usage = " ".join(ctx.get_usage().removeprefix("Usage: ").split())
        return CallError(message, hint=f"It is `{usage}`; `{called} --help` shows how.")
    if ctx and isinstance(ctx.command, click.Group) and (match := _NO_COMMAND.match(message)):
        # click itself knows only commands that are loaded.
        near = nearest(match[1], ctx.command.list_commands(ctx))
        message += f" Did you mean {near!r}?" if near else ""
    return CallError(message, hint=f"`{called} --help` shows how.")


def _check_words(words: list[str]) -> None:
    """Refuse arguments that are no text; a file may be called so, if there is one."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            if not os.path.exists(word.partition("=")[2] or word):
                excerpt = ascii(word[max(0, error.start - 20) : error.start + 1])
                raise CallError(f"an argument is not UTF-8: {excerpt}", hint="Give it in UTF-8.") from error


def _open_streams() -> None:
    """Streams that the shell has closed are empty ones; what an encoding cannot say or read is escaped."""
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open(encoding="utf-8")
    sys.stdout = sys.stdout or nothing.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nothing.open("w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _give_up_output() -> None:
    """Point stdout at nothing, so that flushing it at the exit does not fail once more."""
    out = sys.__stdout__
    if out is not None and sys.stdout is out:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


# What a shell offers when Tab is pressed behind a command: threads of the database, models, providers, notes.


def _threads(ctx: click.Context) -> Iterable[str]:
    with open_db(ctx.params.get("db"), create=False) as store:
        return [info.name for info in store.threads()]


def _models(ctx: click.Context) -> Iterable[str]:
    from quire.providers.models import known_models

    return (f"{info.provider}:{info.model}" for info in known_models())


def _providers(ctx: click.Context) -> Iterable[str]:
    from quire.providers.models import providers

    return providers()


def _notes(ctx: click.Context) -> Iterable[str]:
    vault = ctx.params.get("vault")
    return (path.stem for path in sorted(Path(vault).rglob("*.md"))) if vault else ()


_OFFERED: dict[str, Callable[[click.Context], Iterable[str]]] = {
    "thread": _threads,
    "source": _threads,
    "model": _models,
    "provider": _providers,
    "note": _notes,
    "notes": _notes,
}


class OfferedNames(click.types.StringParamType):
    """A text for which the shell offers what there is."""

    def __init__(self, offer: Callable[[click.Context], Iterable[str]]) -> None:
        self._offer = offer

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            return [CompletionItem(name) for name in self._offer(ctx) if name.startswith(incomplete)]
        except Exception:  # a shell that completes shows no errors
            return []


# Bash breaks words at colons, so `anthropic:claude` comes in three pieces, of which it puts the last in anew.
_BASH = """\
%(complete_func)s() {
    local IFS=$' \\t\\n' line=${COMP_LINE:0:COMP_POINT} type value
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local word=${words[-1]} broken=""
    [[ $COMP_WORDBREAKS == *:* ]] && broken=${word%%"${word##*:}"}
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) printf -v value %%q "${value#"$broken"}"; COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="$line" COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


def complete_in_bash() -> None:
    """Have bash complete names that hold a colon, or a space."""
    from click.shell_completion import BashComplete, add_completion_class

    add_completion_class(type("BashWithColons", (BashComplete,), {"source_template": _BASH}))


def complete(command: click.Command) -> None:
    """Have a command, and those below it, offer threads, models, providers and notes where they are named."""
    for param in command.params:
        if isinstance(param.type, click.types.StringParamType) and param.name in _OFFERED:
            param.type = OfferedNames(_OFFERED[param.name])
    if isinstance(command, click.Group):
        for below in command.commands.values():
            complete(below)
