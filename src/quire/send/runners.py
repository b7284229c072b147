"""The runners: chat, qa, planned, agent, project and records, each a value that the cycle carries out.

Also two side requests: the planner, which chooses tools to run first, and the model's own summary for a rebase.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import msgspec

from quire import providers, values
from quire.assemble.fit import system_text
from quire.assemble.messages import leaf
from quire.assemble.summary import Leaving, extract
from quire.assemble.telling import truncate
from quire.assemble.user_message import block, escape_tags, printable_id
from quire.errors import BudgetError, ProviderError, QuireError
from quire.items import from_file
from quire.log import off_loop
from quire.notes import NoteIndex
from quire.send.note_search import local_search_tool
from quire.send.record_runner import records as records
from quire.send.text_protocol import TextTools, tool_text
from quire.send.tools import Tool, Toolbox
from quire.send.transport import endpoint_for
from quire.send.turn import (
    CHAT,
    MESSAGES,
    RECALL_SHARE,
    Limits,
    Runner,
    Turn,
    TurnThread,
    ask_aside,
    attached_items,
    newest_first,
    newest_turn,
)
from quire.tokens import counter, message_tokens, text_tokens, tools_tokens
from quire.values import Entry, Item, Json, JsonObject, Message, Prompt, Request, Text, Usage, item_json

# The planner: a side request for a JSON array of the calls to run before the model answers.

PLANNER = """You choose the tools that are needed to answer a user's message. You do not answer it.
Reply with a JSON array and nothing else. Each element is {"tool": NAME, "args": {…}}, with the arguments that
the tool's schema asks for. Reply with [] when no tool is needed."""


class PlannedCalls(msgspec.Struct, frozen=True):
    """The valid calls of a plan, and the problems of the others."""

    calls: tuple[tuple[str, JsonObject], ...] = ()
    problems: tuple[str, ...] = ()


async def plan(turn: Turn, tools: Toolbox, most: int) -> list[Entry]:
    """The calls to run before the model answers; an unusable plan is sent back once with its problems."""
    if not len(tools):
        return []
    items = await off_loop(attached_items, turn.thread.store, turn.thread.name, turn.user)
    texts = [question(turn.user.text, items, tools)]
    draft = PlannedCalls()
    for _ in range(2):
        request = planner_request(texts, turn.target, tools, most)
        reply = await ask_aside(turn, request, "plan")
        text = "".join(entry.text for entry in reply.entries if entry.kind == "respond")
        draft = read_plan(text, tools, most)
        if not draft.problems:
            break
        texts += [text or "[]", f"This cannot be used: {'; '.join(draft.problems)}. Reply with the JSON array alone."]
    return [call_entry(turn.user, n, name, args, tools) for n, (name, args) in enumerate(draft.calls, 1)]


def call_entry(user: Entry, number: int, name: str, args: JsonObject, tools: Toolbox) -> Entry:
    """A call that runs before the model answers: its result is shown in the user's message."""
    tool = tools.get(name)
    meta: JsonObject = {"placement": "context"}
    if tool is not None and tool.shown:
        meta["shown"] = list(tool.shown)
    if tool is not None and tool.idempotent:
        meta["idempotent"] = True
    return values.call(f"plan-{user.seq}-{number}", name, args, meta=meta)


def question(text: str, items: Sequence[JsonObject], tools: Toolbox) -> str:
    """The planner's question: the tools with their schemas, the names of attached items, and the user's message."""
    catalog = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False
        )
        for tool in tools
    ]
    parts = ["# Tools\n" + "\n".join(catalog)]
    lines = []
    for item in items:
        kind = (item.get("metadata") or {}).get("source") or item.get("type", "code")
        lines.append(f"- {printable_id(block(item).id)} ({kind}, {counter().count(item['content']):,} tokens)")
    parts += ["# Attached context\n" + "\n".join(lines)] if lines else []
    return "\n\n".join([*parts, f"# User message\n{text}"])


def planner_request(texts: Sequence[str], target: str, tools: Toolbox, most: int) -> Request:
    """The planner's request: its instruction and question, without the conversation."""
    messages = tuple(Message("user" if n % 2 == 0 else "assistant", (Text(text),)) for n, text in enumerate(texts))
    extra: dict[str, Any] = {}
    if endpoint_for(target).holds_to_schema:
        schema = {"name": "plan", "schema": plan_schema(tools, most)}
        extra = {"response_format": {"type": "json_schema", "json_schema": schema}}
        # Even with a schema, a small model may write an endless string.
        extra |= {"max_tokens": 400, "temperature": 0}
    return providers.render(Prompt(PLANNER, "", (), messages), target, **extra)


def plan_schema(tools: Toolbox, most: int) -> JsonObject:
    """The JSON schema of a plan: an array of at most `most` calls of these tools."""
    calls = [
        {
            "type": "object",
            "properties": {"tool": {"const": tool.name}, "args": tool.parameters},
            "required": ["tool", "args"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return {"type": "array", "items": {"anyOf": calls}, "maxItems": most}


def read_plan(text: str, tools: Toolbox, most: int = 6) -> PlannedCalls:
    """The different calls in a reply, at most `most`, each checked against its tool's schema."""
    array = _array(text)
    if array is None:
        return PlannedCalls((), ("it holds no JSON array",))
    calls: list[tuple[str, JsonObject]] = []
    problems: list[str] = []
    for element in array:
        problem, call = _check_choice(element, tools)
        if problem:
            problems.append(problem)
        elif call is not None and call not in calls:
            calls.append(call)
    return PlannedCalls(tuple(calls[:most]), tuple(problems))


def _check_choice(element: Json, tools: Toolbox) -> tuple[str, tuple[str, JsonObject] | None]:
    if not isinstance(element, dict):
        return f"{json.dumps(element)[:60]} is no call", None
    name = element.get("tool") or element.get("name")
    args: Json = next((element[key] for key in ("args", "arguments", "input") if key in element), {})
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        return f"there is no tool {name!r}", None
    if wrong := tool.fault(args):
        return f"{name}: {wrong}", None
    return "", (tool.name, args)


def _array(text: str) -> list[Json] | None:
    """The first JSON array in a reply."""
    decoder = json.JSONDecoder()
    for start in islice(re.finditer(r"\[", text), 50):
        with contextlib.suppress(ValueError, RecursionError):
            array: list[Json] = decoder.raw_decode(text, start.start())[0]
            return array
    return None


# Summaries by the model itself, asked with the request that its provider has cached and one instruction behind it.
#
# `ByModel` is a function for `Thread(summarise=...)`. A cycle asks the model before a rebase; a request outside of a
# cycle has the built-in summary.

SUMMARISER = (
    "Before we go on: summarise our conversation so far, for yourself, in at most {words} words. "
    "Keep what was asked, what was decided, and every name, path, id and amount that may be needed again. "
    "Plain sentences, no heading, no tools."
)
# The most tokens of a summary: each is paid for, and ids and demands that it leaves out are added to it.
_MOST = 1_200
# Options that make a model write anything but plain text.
_SHAPING = ("response_format", "json_schema", "grammar", "tool_choice")


class ByModel:
    """Returns the model's own summary where it was asked for one, else the built-in one."""

    def __init__(self) -> None:
        # The model's summaries, or the errors that it failed with.
        self._answers: dict[tuple[str, ...], str | QuireError] = {}
        # Summaries that were needed and are not written yet. Fitting tries deeper and deeper rebases, so the last counts.
        self.questions: list[Leaving] = []
        # The usage of each summary request.
        self.usages: list[Usage] = []

    def __call__(self, leaving: Leaving) -> str:
        """The summary of what a rebase removes; raises the model's error, which the rebase then records."""
        answer = self._answers.get(_summary_key(leaving))
        if isinstance(answer, QuireError):
            raise answer
        if answer is not None:
            return answer
        self.questions.append(leaving)
        return extract(leaving)

    async def prepare(self, turn: Turn) -> None:
        """If the next request needs a rebase, ask the model for its summary first."""
        self.questions.clear()
        # `questions` may also hold earlier rebases, where `build` had to read an old thread.
        built = await off_loop(turn.thread.build, turn.target)
        if built.rebase is not None and self.questions:
            await self.ask(turn)
            # A new function object makes the thread decide again, now with the answer.
            turn.thread.summarise = self.__call__

    async def ask(self, turn: Turn) -> None:
        """Have the model write the summary that was wanted last."""
        leaving = self.questions[-1]
        self._answers[_summary_key(leaving)] = await self._answer(turn, leaving)

    async def _answer(self, turn: Turn, leaving: Leaving) -> str | QuireError:
        try:
            request = await off_loop(summary_request, turn, min(leaving.limit, _MOST))
            reply = await ask_aside(turn, request, "summary")
        except (ProviderError, BudgetError) as error:
            return error
        self.usages.append(reply.usage)
        if calls := [entry.name for entry in reply.entries if entry.kind == "call"]:
            # Text before a call only announces the call.
            return ProviderError(f"the model called {calls[0]} instead")
        return cut_to_tokens(
            "".join(entry.text for entry in reply.entries if entry.kind == "respond").strip(), leaving.limit
        )


def summary_request(turn: Turn, limit: int) -> Request:
    """The request that the provider has cached, as much of it as fits, with the instruction behind it."""
    so_far, room = turn.thread.so_far(turn.target), turn.thread.build(turn.target).limit
    ask = Message("user", (Text(SUMMARISER.format(words=max(10, limit // 2))),))
    room -= sum(map(text_tokens, so_far.systems)) + tools_tokens(so_far.tools) + message_tokens(ask)
    prompt = msgspec.structs.replace(so_far, messages=(*_front_within(so_far, room, turn.target), ask))
    options = {name: value for name, value in turn.runner.options.items() if name not in _SHAPING}
    if options.get("max_tokens"):
        # Not less than the runner's own limit, because a model may also think within it.
        options["max_tokens"] = max(limit, options["max_tokens"])
    options |= options.pop("extra", {})
    return providers.render(prompt, turn.target, cache=True, key=turn.thread.name, **options)


def _front_within(prompt: Prompt, room: int, target: str) -> Sequence[Message]:
    """The messages of the last request and its answer, as many as fit, without separating calls and results."""
    answered = [message.role for message in prompt.messages[prompt.stable : prompt.stable + 1]] == ["assistant"]
    cached = prompt.messages[: prompt.stable + answered]
    sizes = accumulate(leaf(message, 0, model=target).tokens for message in cached)
    ends = [0, *(end for end, size in enumerate(sizes, 1) if size <= room)]
    while any(message.role == "tool" for message in prompt.messages[ends[-1] : ends[-1] + 1]):
        ends.pop()
    if cached and not ends[-1]:
        raise BudgetError("nothing fits into the budget beside the question for a summary")
    return cached[: ends[-1]]


def cut_to_tokens(text: str, limit: int) -> str:
    """A text of at most so many tokens, cut at a sentence."""
    tokens = counter().count(text)
    return text if tokens <= limit else truncate(text, int(len(text) * limit / tokens))


def _summary_key(leaving: Leaving) -> tuple[str, ...]:
    return (leaving.before, *(entry.id for entry in leaving.entries))


# The runners.

AGENT_LIMITS = Limits(steps=25)


def chat(system: str = "", *, memory: str | None = None, limits: Limits | None = None, **options: Any) -> Runner:
    """The model answers from the thread alone.

    In every runner `memory` is what is known of the user: it stands before the system prompt, and a later change of it
    is appended as a note. None leaves the thread's memory as it is, "" withdraws it.
    """
    return CHAT.equip(system, memory, limits, options)


def _question_before(turn: Turn) -> str:
    """The user's previous question, to which a short question often refers."""
    recent = islice(newest_first(turn.thread.store, turn.thread.name, turn.user.seq - 1), 64)
    return next((entry.text for entry in recent if entry.kind == "user"), "")


def qa(
    index: NoteIndex,
    *,
    system: str = "",
    memory: str | None = None,
    k: int = 8,
    limit: int = 12_000,
    limits: Limits | None = None,
    **options: Any,
) -> Runner:
    """The user's notes are searched first; the documents stand above the question."""
    tools = Toolbox(local_search_tool(index, k=k, limit=limit)).hidden()

    async def prepare(turn: Turn) -> Sequence[Entry]:
        query = turn.user.text.strip()
        if not query:
            return []
        call = call_entry(turn.user, 1, "localSearch", {"query": query}, tools)
        earlier = await off_loop(_question_before, turn)
        meta = {**call.meta, **({"earlier": earlier} if earlier else {})}
        return [Entry("call", {**call.body, "meta": meta})]

    return Runner(name="qa", tools=tools, prepare=prepare).equip(system, memory, limits, options)


def planned(
    tools: Toolbox | Iterable[Tool | Callable[..., Any]],
    *,
    system: str = "",
    memory: str | None = None,
    most: int = 6,
    limits: Limits | None = None,
    **options: Any,
) -> Runner:
    """A planner chooses tools, which run before the model answers; the model itself is offered none."""
    hidden = _box(tools).hidden()

    async def prepare(turn: Turn) -> Sequence[Entry]:
        return await plan(turn, hidden, most)

    return Runner(name="planned", tools=hidden, prepare=prepare).equip(system, memory, limits, options)


def agent(
    tools: Toolbox | Iterable[Tool | Callable[..., Any]],
    *,
    system: str = "",
    memory: str | None = None,
    native: bool = True,
    limits: Limits | None = None,
    **options: Any,
) -> Runner:
    """The model calls tools until it answers; with `native=False` L1 describes the tools, and calls are text."""
    box = _box(tools)
    base = Runner(name="agent", tools=box, limits=AGENT_LIMITS).equip(system, memory, limits, options)
    if native:
        return msgspec.structs.replace(base, recall=RECALL_SHARE, summary="model")
    prompt = system_text(system, tool_text=tool_text(box.definitions())).lstrip("\n")
    return msgspec.structs.replace(base, system=prompt, tools=box.hidden(), speech=TextTools())


def project(
    runner: Runner = CHAT,
    *,
    prompt: str,
    files: Iterable[str | Path | Item | JsonObject] = (),
    memory: str | None = None,
) -> Runner:
    """Another runner with a project's prompt and files in L1."""
    context = "\n\n".join(_file_block(file) for file in files)
    native = runner.speech is MESSAGES
    system = system_text(
        runner.system if native else "",
        None,
        escape_tags(prompt, "project_system_prompt") if prompt else None,
        escape_tags(context, "project_context") if context else None,
        None if native else runner.system or None,
    )
    memory = runner.memory if memory is None else memory
    return msgspec.structs.replace(runner, name="project", system=system.lstrip("\n"), memory=memory)


def _file_block(file: str | Path | Item | JsonObject) -> str:
    if isinstance(file, Item | dict):
        return block(item_json(file)).text
    item = item_json(from_file(file, truncate=True))
    return block({**item, "id": str(file)}).text


def _box(tools: Toolbox | Iterable[Tool | Callable[..., Any]]) -> Toolbox:
    return tools if isinstance(tools, Toolbox) else Toolbox(*tools)


def question_of(thread: TurnThread) -> Callable[[Entry], str]:
    """A function that returns the user's newest question, for tools that repeat it after documents."""

    def question(call: Entry) -> str:
        turn = newest_turn(thread.store, thread.name)
        return turn[0].text if turn and turn[0].kind == "user" else ""

    return question
