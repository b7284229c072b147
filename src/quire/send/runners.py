"""The five runners, each a value for the one cycle: chat, qa, planned, agent, project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from quire.assemble.blocks import block, escaped
from quire.assemble.layers import system_text
from quire.items import from_file
from quire.send.localsearch import Source, local_search_tool, sources, sources_text
from quire.send.planner import call_entry, plan
from quire.send.runner import CHAT, Limits, Runner, Turn
from quire.send.speech import MESSAGES
from quire.send.standing import newest_turn
from quire.send.thread import Log
from quire.send.told import Told, tool_text
from quire.send.tools import Tool, Toolbox
from quire.send.vault import NoteIndex
from quire.values import Entry, Item, JsonObject, item_json

__all__ = [
    "CHAT", "NAMES", "Limits", "Runner", "Source", "agent", "chat", "planned", "project", "qa", "question_of",
    "sources", "sources_text",
]  # fmt: skip

NAMES = ("chat", "qa", "planned", "agent", "project")
AGENT_LIMITS = Limits(steps=25)


def chat(system: str = "", *, limits: Limits | None = None, **options: Any) -> Runner:
    """The model answers from the thread alone."""
    return Runner(name="chat", system=system, limits=limits or Limits(), options=options)


def qa(
    index: NoteIndex,
    *,
    system: str = "",
    k: int = 8,
    limit: int = 12_000,
    limits: Limits | None = None,
    **options: Any,
) -> Runner:
    """The user's notes are searched first; documents, rules and catalog stand above the question."""
    tools = Toolbox(local_search_tool(index, k=k, limit=limit)).hidden()

    async def prepare(turn: Turn) -> Sequence[Entry]:
        query = turn.user.text.strip()
        if not query:
            return []
        call = call_entry(turn.user, 1, "localSearch", {"query": query}, tools)
        # What the question leaves unsaid was often said one turn before.
        earlier = _asked_before(turn)
        meta = {**call.meta, **({"earlier": earlier} if earlier else {})}
        return [Entry("call", {**call.body, "meta": meta})]

    return Runner(
        name="qa", system=system, tools=tools, prepare=prepare, limits=limits or Limits(), options=options
    )


def planned(
    tools: Toolbox | Iterable[Tool | Callable[..., Any]],
    *,
    system: str = "",
    most: int = 6,
    limits: Limits | None = None,
    **options: Any,
) -> Runner:
    """Tools are chosen and run before the model answers; it is not told of them itself."""
    hidden = _box(tools).hidden()

    async def prepare(turn: Turn) -> Sequence[Entry]:
        return await plan(turn, hidden, most=most)

    return Runner(
        name="planned",
        system=system,
        tools=hidden,
        prepare=prepare,
        limits=limits or Limits(),
        options=options,
    )


def agent(
    tools: Toolbox | Iterable[Tool | Callable[..., Any]],
    *,
    system: str = "",
    native: bool = True,
    limits: Limits | None = None,
    **options: Any,
) -> Runner:
    """The model calls tools until it answers; without native tools they are told of in L1 and called in words."""
    box = _box(tools)
    if native:
        return Runner(name="agent", system=system, tools=box, limits=limits or AGENT_LIMITS, options=options)
    told = system_text(system, tool_text=tool_text(box.definitions())).lstrip("\n")
    return Runner(
        name="agent",
        system=told,
        tools=box.hidden(),
        limits=limits or AGENT_LIMITS,
        options=options,
        speech=Told(),
    )


def project(
    runner: Runner = CHAT,
    *,
    prompt: str,
    files: Iterable[str | Path | Item | JsonObject] = (),
    memory: str | None = None,
) -> Runner:
    """A project's prompt and files in L1 of any other runner; nothing else is special."""
    context = "\n\n".join(_file_block(one) for one in files)
    native = runner.speech is MESSAGES
    told = "" if native else runner.system
    system = system_text(
        runner.system if native else "",
        memory,
        escaped(prompt, "project_system_prompt"),
        escaped(context, "project_context") if context else None,
        told or None,
    )
    return msgspec.structs.replace(runner, name="project", system=system.lstrip("\n"))


def _file_block(given: str | Path | Item | JsonObject) -> str:
    if isinstance(given, Item | dict):
        return block(item_json(given)).text
    made = item_json(from_file(given, truncate=True))
    return block({**made, "id": str(given)}).text


def _asked_before(turn: Turn) -> str:
    """What the user asked in the turn before this one."""
    end = turn.user.seq - 1
    recent = turn.thread.store.read(turn.thread.name, after=max(0, end - 64), limit=min(64, end))
    return next((entry.text for entry in reversed(recent) if entry.kind == "user"), "")


def _box(tools: Toolbox | Iterable[Tool | Callable[..., Any]]) -> Toolbox:
    return tools if isinstance(tools, Toolbox) else Toolbox(*tools)


def question_of(thread: Log) -> Callable[[Entry], str]:
    """What the user asked in the newest turn of a thread, for tools that say it again behind documents."""

    def question(call: Entry) -> str:
        turn = newest_turn(thread.store, thread.name)
        return turn[0].text if turn and turn[0].kind == "user" else ""

    return question
