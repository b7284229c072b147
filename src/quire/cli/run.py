"""`quire run` and `quire resume`, and what `quire chat` shares with them: from --model to what carries a turn out,
with keys and addresses from the environment, the local model otherwise; its tools and runner.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from quire.cli.attachments import attached_items, linked_items, note_items, question, question_options
from quire.cli.output import (
    NumberRange,
    Place,
    PlainScreen,
    answer,
    count_of,
    db_json_options,
    default_db,
    echo,
    may_be_there,
    open_db,
    option,
    print_json,
    print_table,
    progress,
    read_text,
    with_options,
)
from quire.cli.record import NO_MODEL, embedder, embedding_progress
from quire.errors import CallError, NotFound
from quire.items import from_file
from quire.log.store import Store, has_thread
from quire.providers.models import is_embedded, named_target, split_target
from quire.records import Records
from quire.values import Entry, JsonObject, item_json

if TYPE_CHECKING:
    from quire.notes import NoteIndex
    from quire.notes.vault import Vault
    from quire.records.store import Progress
    from quire.send.cycle import Decision, InterruptedTurn, Outcome
    from quire.send.tools import Tool, Toolbox
    from quire.send.transport import Transport
    from quire.send.turn import Runner
    from quire.thread import Thread


# Which runner carries a turn out, from options: one factory for `quire run`, `quire chat` and `quire resume`.
#
# The choice is kept with the user's entry, so that a turn is resumed as it was begun.

# What each runner can make use of, besides a system prompt and a project; the notes of chat can be attached.
_TOOLS = frozenset({"root", "vault", "mcp"})
_USES: dict[str, frozenset[str]] = {
    "chat": frozenset({"vault"}),
    "qa": frozenset({"vault"}),
    "planned": _TOOLS,
    "agent": _TOOLS | {"text_tools"},
    "records": _TOOLS | {"consumer"},
    "project": _TOOLS,
}
_SPECIAL = _TOOLS | {"text_tools", "consumer"}
RUNNERS = tuple(_USES)
_FOLDER = click.Path(exists=True, file_okay=False)
_FILE = click.Path(exists=True, dir_okay=False)
# The options that choose a model and the way to it, a runner and the thread's policy.
turn_options = with_options(
    option("--model -m", "provider:model (default: $QUIRE_MODEL, else the thread's last one, else the local model)."),
    option("--base-url", "Another address of the same API (default: $QUIRE_BASE_URL, else the SDK's own variable)."),
    option("--explicit-cache", "Keep a Gemini cache while it pays (costs by the hour; deleted at the end).", bool),
    option("--runner", "How turns are carried out (default: by the other options).", RUNNERS),
    option("--system", "The system prompt; without --project, a project's prompt."),
    option("--memory", "A file about the user for the model; it is read every turn.", _FILE),
    option("--root", "planned, agent, records: the folder its file tools may read.", _FOLDER),
    option("--vault", "A folder of markdown notes to answer from and to attach.", _FOLDER),
    option("--project", "A file with the project's prompt.", _FILE),
    option("--file files", "A file of the project; may be repeated.", _FILE, multiple=True),
    option("--mcp", "planned, agent, records: the command or URL of an MCP server; may be repeated.", multiple=True),
    option("--consumer", "records: the consumer whose context.config.v1 record is used (default: chat)."),
    option("--text-tools", "agent: describe tools in words, for models without native tools.", bool),
    option("--budget", "Tokens one request may hold, from now on.", click.IntRange(1)),
    option("--promote", "When items move into the library, from now on.", ["at-rebase", "each-turn"]),
    option("--items", "How items are written, from now on.", ["xml", "markdown"]),
    option(
        "--summary",
        "Who sums up what a rebase cuts (default: in chat and agent the model, except the local one).",
        ["model", "built-in"],
    ),
    option("--floor", "Share that stays verbatim, from now on.", NumberRange(0, 1, min_open=True)),
)


class Connection(NamedTuple):
    """A model and the way to it; `options` are what its requests need besides."""

    target: str
    transport: Transport
    options: dict[str, Any]
    is_local: bool = False
    # The tokens that the server says it takes; 0 where it does not say.
    window: int = 0


def reach(model: str | None, base_url: str | None = None, explicit_cache: bool = False, last: str = "") -> Connection:
    """The model that was named, else the one of the environment, else the thread's last, else the local one."""
    from quire.send.connect import check_explicit_cache, transport_for
    from quire.send.transport import address_for, key_for

    target = model or os.environ.get("QUIRE_MODEL") or last or "local:smollm2"
    named_target(target)
    if base_url == "":
        raise CallError("--base-url is empty", hint="Name an address, or leave it out for the provider's own.")
    if explicit_cache:
        check_explicit_cache(target)
    url = base_url or os.environ.get("QUIRE_BASE_URL") or address_for(target, os.environ)
    options: JsonObject = {}
    if is_local := not url and is_embedded(target):
        from quire.send.local import OPTIONS, local_target

        (target, url), options = local_target(say=_say), dict(OPTIONS)
    key = key_for(target, os.environ)
    transport = transport_for(target, url, key, proxies=not url, explicit_cache=explicit_cache, say=_say)
    return Connection(target, transport, options, is_local, _server_window(target, url))


def _server_window(target: str, url: str | None) -> int:
    """What a server of one's own says of its window; a provider is not asked."""
    from quire.send.transport import endpoint_for, key_for, server_window

    endpoint = endpoint_for(target)
    if endpoint.needs_key or not endpoint.base_url:
        return 0
    return server_window(url or endpoint.base_url, split_target(target)[1], key_for(target, os.environ) or "")


def last_model(db: Place | None, thread: str) -> str:
    """The model that a thread was last sent to; empty where there is none."""
    from quire.send.cycle import last_target

    if not may_be_there(db or default_db()):
        return ""
    with open_db(db, create=False) as store:
        return last_target(store, thread) if has_thread(store, thread) else ""


def _say(line: str) -> None:
    echo(line, err=True, dim=True)


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A runner by name, and what it needs; `folder` is where the project's files are named from."""

    runner: str = "chat"
    system: str = ""
    memory: str = ""
    root: str = ""
    vault: str = ""
    project: str = ""
    files: tuple[str, ...] = ()
    folder: str = ""
    mcp: tuple[str, ...] = ()
    text_tools: bool = False
    consumer: str = ""
    budget: int | None = None
    promote: str = ""
    items: str = ""
    summary: str = ""
    floor: float | None = None

    def meta(self) -> JsonObject:
        """As the user's entry keeps it."""
        return {"runner": {"runner": self.runner, **msgspec.json.decode(msgspec.json.encode(self))}}


def remembered_choice(entry: Entry | None) -> Choice:
    """The choice that a user's entry was made with; meta is free, so what stands there need not be ours."""
    value = entry.meta.get("runner") if entry is not None else None
    try:
        choice = msgspec.convert(value, Choice, strict=False) if isinstance(value, dict) else Choice()
    except msgspec.ValidationError:
        return Choice()
    return choice if choice.runner in _USES else Choice()


def choose(options: dict[str, Any], before: Choice | None = None) -> Choice:
    """The options that were given, over those that the turn was begun with; one of no use is an error."""
    new = {name: value for name, value in options.items() if value}
    runner = new.get("runner") or (before.runner if before is not None else _fitting(new))
    # A resumed turn has its question in the log already: nothing can be attached to it.
    useful = _USES[runner] - ({"vault"} if before is not None and runner == "chat" else set())
    for name in sorted((_SPECIAL - useful) & set(new)):
        raise CallError(
            f"--{name.replace('_', '-')} does not go with the {runner} runner",
            hint="Leave it out, or choose " + " or ".join(other for other in _USES if name in _USES[other]) + ".",
        )
    places: dict[str, str] = {
        name: os.path.abspath(new[name]) for name in ("memory", "root", "vault", "project") if name in new
    }
    folder = {"folder": os.getcwd()} if "files" in new else {}
    unused = {name: getattr(Choice(), name) for name in _SPECIAL - _USES[runner]}
    changes: dict[str, Any] = {**unused, **new, **places, **folder, "runner": runner}
    choice = msgspec.structs.replace(before or Choice(), **changes)
    if choice.runner == "qa" and not choice.vault:
        raise CallError("the qa runner needs notes to search", hint="Give --vault FOLDER.")
    if choice.runner == "project" and not (choice.project or choice.system or choice.files):
        raise CallError("the project runner needs a project", hint="Give --project FILE, --system or --file.")
    return choice


def _fitting(options: dict[str, Any]) -> str:
    """The runner that makes use of what is given."""
    if "consumer" in options:
        return "records"
    if "root" in options or "mcp" in options or "text_tools" in options:
        return "agent"
    if "vault" in options:
        return "qa"
    return "project" if "project" in options or "files" in options else "chat"


class Equipment(msgspec.Struct, frozen=True):
    """What a choice needs, in working order; makes the runner for whatever thread and model are current."""

    choice: Choice
    vault: Vault | None
    index: NoteIndex | None
    foreign: tuple[Tool, ...]
    embedding: Progress

    def runner(self, thread: Thread, reached: Connection) -> Runner:
        """The runner that was chosen, with the options that the model needs."""
        runner = self._project(self._base(thread, reached))
        memory = read_text(self.choice.memory).strip() if self.choice.memory else None
        options = {**reached.options, **runner.options}
        # The local model is too small to be asked unless that is wanted.
        summary = self.choice.summary or ("built-in" if reached.is_local else runner.summary)
        return msgspec.structs.replace(runner, memory=memory, options=options, summary=summary)

    def _base(self, thread: Thread, reached: Connection) -> Runner:
        from quire.send import runners
        from quire.send.record_runner import record_tools
        from quire.send.tools import Toolbox

        choice, system = self.choice, self.choice.system
        match choice.runner:
            case "qa":
                assert self.index is not None  # without notes there is no such choice
                return runners.qa(self.index, system=system)
            case "agent":
                # The local model's template takes tools, but it was not trained to call them.
                native = not (choice.text_tools or reached.is_local)
                return runners.agent(self._tools(thread), system=system, native=native)
            case "planned":
                return runners.planned(self._tools(thread), system=system)
            case "records":
                records = Records(thread.store, embedder(), self.embedding)
                tools = Toolbox(*record_tools(records), *self._tools(thread))
                return runners.records(records, tools, consumer=choice.consumer or "chat", system=system)
            case "project":
                # Without a file, the system prompt is the project's.
                system = system if choice.project else ""
                if choice.root or choice.vault or choice.mcp:
                    return runners.planned(self._tools(thread), system=system)
        return runners.chat(system)

    def _project(self, base: Runner) -> Runner:
        from quire.send import runners

        choice = self.choice
        if not (choice.runner == "project" or choice.project or choice.files):
            return base
        inline = choice.system if choice.runner == "project" else ""
        prompt = read_text(choice.project).strip() if choice.project else inline
        folder = Path(choice.folder)
        read = {name: item_json(from_file(folder / name, name=name, truncate=True)) for name in choice.files}
        return runners.project(base, prompt=prompt, files=[{**item, "id": name} for name, item in read.items()])

    def _tools(self, thread: Thread) -> Toolbox:
        from quire.send.builtin import builtin
        from quire.send.note_search import local_search_tool
        from quire.send.runners import question_of
        from quire.send.tools import Toolbox

        tools = builtin(self.choice.root or None, thread.store, thread.name)
        if self.index is not None:
            tools.append(local_search_tool(self.index, question=question_of(thread)))
        return Toolbox(*tools, *self.foreign)


@contextlib.contextmanager
def equipment_for(choice: Choice) -> Iterator[Equipment]:
    """Notes indexed and servers started, for as long as they are needed."""
    from quire.notes.vault import Vault
    from quire.send.mcp import McpServer

    with contextlib.ExitStack() as stack:
        vault = Vault(Path(choice.vault)) if choice.vault else None
        index = None
        if vault is not None and choice.runner != "chat":
            index = stack.enter_context(_index_notes(vault))
        foreign: list[Tool] = []
        for command in choice.mcp:
            server = command if command.startswith(("http://", "https://")) else shlex.split(command)
            foreign += stack.enter_context(McpServer(server)).tools
        yield Equipment(choice, vault, index, tuple(foreign), stack.enter_context(embedding_progress()))


def _index_notes(vault: Vault) -> NoteIndex:
    """The notes, searchable by words, and by meaning where that is installed; what is missing for it is said."""
    from quire.notes import NoteIndex

    index = NoteIndex(vault, embedder=embedder())
    with progress() as tell:
        index.update(partial(tell, "indexing notes"))
    if index.embedder is None:
        echo(f"notes are searched {NO_MODEL}", err=True)
        return index
    try:
        with progress() as tell:
            index.embed(partial(tell, "reading what notes mean (Ctrl-C: later)"))
    except KeyboardInterrupt:
        echo("notes whose meaning was not read yet are found by words alone", err=True)
    return index


def watched_thread(store: Store, name: str, note: Callable[[str], None]) -> Thread:
    """A thread whose warnings `note` hears, and the telemetry that the environment asks for."""
    from quire.telemetry import watched
    from quire.thread import Thread

    thread = watched(Thread(store, name), os.environ)
    thread.on_warning = lambda warning: note(f"({getattr(warning, 'note', warning)})")
    return thread


def listed_sources(store: Store, thread: str) -> str:
    """The notes that the newest answer of a thread rests on, as they are shown below it."""
    from quire.send.note_search import sources, sources_text
    from quire.send.turn import newest_turn

    return sources_text(sources(newest_turn(store, thread)))


def under_policy(thread: Thread, reached: Connection, choice: Choice) -> Thread:
    """The thread under the policy that was asked for, else in the server's window; the rest stays as it was."""
    from quire.thread_state import policy_for

    changes = {name: getattr(choice, name) for name in ("budget", "promote", "items", "floor") if getattr(choice, name)}
    if "budget" in changes:
        changes["reply"] = min(policy_for(reached.target).reply, changes["budget"] // 8)
        if changes["budget"] != thread.policy_changes.get("budget"):
            thread.windows.pop(reached.target, None)
    thread.policy_changes = {**thread.policy_changes, **changes}
    thread.use_window(reached.target, reached.window)
    return thread


# `quire run`: carry out one turn, streamed to the terminal.


def tell_outcome(outcome: Outcome, target: str, as_json: bool, sources: str = "") -> None:
    """How a turn ended: the sources of its answer and one line of numbers, or all of it for machines."""
    used = outcome.usage
    if as_json:
        value = {
            "model": target,
            "stop": outcome.stop,
            "text": outcome.text,
            "steps": outcome.steps,
            "usage": used.as_json(),
            "usd": outcome.usd,
            "entries": [entry.seq for entry in outcome.entries],
        }
        print_json(value)
        return
    if sources:
        echo(f"\n{sources}")
    share = f", {used.cache_read / used.input_total:.0%} from the cache" if used.input_total else ""
    money = f", ${outcome.usd:.4f}" if outcome.usd is not None else ""
    ended = "" if outcome.stop == "answered" else f" [ended: {outcome.stop}]"
    tokens = f"{used.input_total:,} tokens in{share}, {used.output:,} out"
    echo(f"{target}: {count_of(outcome.steps, 'request')}, {tokens}{money}{ended}", err=True, dim=True)


@click.command()
@click.argument("thread")
@click.argument("text", required=False)
@question_options
@turn_options
@db_json_options
def run(
    thread: str,
    text: str | None,
    attach: tuple[str, ...],
    note: str | None,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    db: Place | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Send TEXT as the user of THREAD and print the answer; without TEXT, read it from standard input.

    Every step is stored before it is taken: after Ctrl-C or a crash, `quire resume THREAD` goes on.

    \b
    Examples:
      quire run demo "What is in this file?" --attach notes.md
      quire run demo "And shorter?" --model anthropic:claude-opus-5-5
      quire run work "Which functions are unused?" --runner agent --root src
      quire run notes "What did we decide on Monday?" --runner qa --vault ~/notes
    """
    from quire.send.cycle import run_sync

    words, choice, screen = _words(text), choose(how), PlainScreen(as_json)
    with equipment_for(choice) as kit:
        attached = note_items(note, kit.vault)
        attached += [item for name in attach for item in attached_items(name, kit.vault)]
        attached += linked_items(words, kit.vault, screen.note)
        reached = reach(model, base_url, explicit_cache, last_model(db, thread))
        with open_db(db) as store, store.turn_lock(thread):
            log = under_policy(watched_thread(store, thread, screen.note), reached, choice)
            _mention_interrupted(store, thread)
            log.user(words, **question(attached, choice.meta(), log))
            try:
                runner = kit.runner(log, reached)
                outcome = run_sync(log, reached.target, reached.transport, runner, on_event=screen.event)
            finally:
                screen.end()
            listed = listed_sources(store, thread)
    tell_outcome(outcome, reached.target, as_json, listed)


def _words(text: str | None) -> str:
    words = text if text is not None else read_text("-").replace("\r\n", "\n")
    if not words.strip():
        raise CallError("there is nothing to say", hint="Give TEXT, or pipe it in.")
    return words


def _mention_interrupted(store: Store, thread: str) -> None:
    """A new turn leaves an open one behind; whoever did not mean that should know."""
    from quire.send.turn import standing

    with contextlib.suppress(NotFound):
        if standing(store, thread).next in ("ask", "run"):
            echo("the turn before was not finished; `quire resume` would have gone on with it", err=True, dim=True)


# `quire resume`: go on with a turn that was interrupted.


@click.command()
@click.argument("thread")
@turn_options
@option("--list only_list", "Only show what is still to be done; change nothing.", bool)
@option("--rerun", "Run a call in doubt again.", bool)
@db_json_options
def resume(
    thread: str,
    model: str | None,
    base_url: str | None,
    explicit_cache: bool,
    only_list: bool,
    rerun: bool,
    db: Place | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Continue the newest turn of THREAD from the log: finished results are used, never run again.

    The command first names a call that may or may not have run. A tool marked idempotent runs again; any other
    call gets the result 'interrupted', or runs again with --rerun.

    \b
    Examples:
      quire resume demo --list
      quire resume demo
      quire resume work --rerun
    """
    from quire.send.cycle import look
    from quire.send.turn import standing

    with open_db(db, create=False) as store:
        turn = look(store, thread)
        if only_list or turn.next in ("done", "nothing"):
            _show_open_turn(turn, thread, as_json)
            return
        reached = reach(model or turn.target, base_url, explicit_cache)
        choice = choose(how, remembered_choice(standing(store, thread).user))
        screen = PlainScreen(as_json)
        with equipment_for(choice) as kit, store.turn_lock(thread):
            log = under_policy(watched_thread(store, thread, screen.note), reached, choice)
            outcome = _resume(log, reached, kit, screen, rerun)
            listed = listed_sources(store, thread)
    tell_outcome(outcome, reached.target, as_json, listed)


def _resume(thread: Thread, reached: Connection, kit: Equipment, screen: PlainScreen, rerun: bool) -> Outcome:
    """Go on with the newest turn, once the calls that may have run already are named."""
    from quire.send.cycle import look, resume_sync

    runner = kit.runner(thread, reached)
    for call in look(thread.store, thread.name, runner).doubtful:
        action = "it is run again" if rerun else "it is answered as interrupted (--rerun runs it again)"
        echo(f"{call.name} ({call.call_id}) may or may not have run: {action}", err=True)
    # Whoever says --rerun knows that it does no harm.
    decision: Decision = "run" if rerun else "interrupted"
    try:
        return resume_sync(
            thread, reached.transport, runner, target=reached.target, decide=lambda _: decision, on_event=screen.event
        )
    finally:
        screen.end()


def _show_open_turn(turn: InterruptedTurn, thread: str, as_json: bool) -> None:
    calls = [(call, "may have run") for call in turn.doubtful] + [(call, "waiting") for call in turn.waiting]
    rows = [{"call_id": call.call_id, "name": call.name, "args": call.args, "state": state} for call, state in calls]
    messages = {
        "done": f"the newest turn of {thread} is answered",
        "nothing": f"{thread} has no user entry to answer",
        "ask": f"the model is to be asked{' to go on' * turn.stopped} ({turn.target or 'none was asked yet'})",
        "run": "calls are to be run",
    }
    value = {"thread": thread, "next": turn.next, "model": turn.target, "calls": rows}
    answer(as_json, value, messages[turn.next])
    if calls and not as_json:
        print_table(["call", "tool", "state"], [(call.call_id, call.name, state) for call, state in calls])
