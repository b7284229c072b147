"""Other libraries' ways to fit a conversation, each used as its documentation recommends.

A peer is a function (messages, budget) -> requests: one list of kept messages per point where the model
spoke. Messages are OpenAI Chat dictionaries; a peer returns the given ones, or changed copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from quire.tokens import counter

Wire = dict[str, Any]
Peer = Callable[[list[Wire], int], Iterator[list[Wire]]]
_count = counter().count


def size(message: Wire) -> int:
    """One tokenizer for all: text, call names and arguments, 4 a message."""
    calls = message.get("tool_calls") or ()
    called = sum(_count(c["function"]["name"]) + _count(c["function"]["arguments"] or "") for c in calls)
    return 4 + _count(text_of(message)) + called


def text_of(message: Wire) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""


def points(messages: list[Wire]) -> Iterator[int]:
    """Where a request stands: in front of each run of assistant messages that has a user before it."""
    asked = False
    for place, message in enumerate(messages):
        if message["role"] == "assistant" and asked and messages[place - 1]["role"] != "assistant":
            yield place
        asked = asked or message["role"] == "user"


class Sizes:
    """Sizes of a thread's messages, each counted once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Wire, int]] = {}

    def of(self, message: Wire) -> int:
        found = self._known.get(id(message))
        if found is None or found[0] is not message:
            found = self._known[id(message)] = (message, size(message))
        return found[1]


def append_only(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
    """Everything, always: the bound on reuse, whatever the budget."""
    for place in points(messages):
        yield messages[:place]


def slide(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
    """A window that slides every turn: the longest tail that fits, begun at a user message where there is one."""
    sizes = Sizes()
    for place in points(messages):
        head, body = _head(messages[:place])
        room = budget - sum(map(sizes.of, head))
        yield head + body[_start(body, room, sizes) :]


def cut_to_half(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
    """When the budget is reached, one cut to half of it."""
    sizes = Sizes()
    kept_from = 0
    for place in points(messages):
        head, body = _head(messages[:place])
        room = budget - sum(map(sizes.of, head))
        if sum(map(sizes.of, body[kept_from:])) > room:
            kept_from = max(kept_from, _start(body, room // 2, sizes))
        yield head + body[kept_from:]


def cut_to_half_validly(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
    """Cutting to half that shows every result once: what is new always stays, and so do the user's newest words."""
    sizes = Sizes()
    kept_from, shown = 0, 0
    asked: list[Wire] = []
    for place in points(messages):
        head, body = _head(messages[:place])
        room = budget - sum(map(sizes.of, head))
        if sum(map(sizes.of, asked + body[kept_from:])) > room:
            kept_from = max(kept_from, min(shown, _start(body, room // 2, sizes)))
            user = max(at for at, message in enumerate(body) if message["role"] == "user")
            asked = [body[user]] if user < kept_from else []
        yield head + asked + body[kept_from:]
        shown = len(body)


def _head(messages: list[Wire]) -> tuple[list[Wire], list[Wire]]:
    leading = [m for m in messages[:1] if m["role"] in ("system", "developer")]
    return leading, messages[len(leading) :]


def _start(body: list[Wire], room: int, sizes: Sizes) -> int:
    """The first message of the longest tail within `room` that begins no tool result; users preferred."""
    used, best, best_user = 0, len(body), len(body)
    for place in range(len(body) - 1, -1, -1):
        used += sizes.of(body[place])
        if used > room:
            break
        if body[place]["role"] != "tool":
            best = place
        if body[place]["role"] == "user":
            best_user = place
    return best_user if best_user < len(body) else best


def langchain_trim(exact: bool) -> Peer:
    """langchain-core `trim_messages` with strategy "last", the system message kept, starting on a human message."""
    from langchain_core.messages import convert_to_messages, trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    def run(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
        plain = [{k: v for k, v in m.items() if not k.startswith("_")} for m in messages]
        converted = convert_to_messages([{**m, "content": m.get("content") or ""} for m in plain])
        for place, message in enumerate(converted):
            message.id = str(place)
        counted = {str(place): size(message) for place, message in enumerate(messages)}

        def exactly(listed: list[Any]) -> int:
            return sum(counted[one.id] for one in listed)

        for place in points(messages):
            kept = trim_messages(
                converted[:place],
                max_tokens=budget,
                strategy="last",
                token_counter=exactly if exact else count_tokens_approximately,
                start_on="human",
                include_system=True,
                allow_partial=False,
            )
            yield [messages[int(str(one.id))] for one in kept]

    return run


def llama_index_memory() -> Peer:
    """llama-index-core `Memory` with its defaults, the system message in front; everything put, then got."""
    from llama_index.core.llms import ChatMessage
    from llama_index.core.memory import Memory

    def run(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
        head, _ = _head(messages)
        room = budget - sum(map(size, head))
        memory = Memory.from_defaults(
            session_id="bench", token_limit=room, tokenizer_fn=lambda text: [0] * _count(text)
        )
        wanted = list(points(messages))

        async def go() -> list[list[Wire]]:
            made, put = [], len(head)
            for place in wanted:
                for index in range(put, place):
                    kept = {"place": index, "tool_calls": messages[index].get("tool_calls") or []}
                    role = messages[index]["role"]
                    await memory.aput(ChatMessage(role=role, content=text_of(messages[index]), additional_kwargs=kept))
                put = place
                got = await memory.aget()
                made.append(head + [messages[one.additional_kwargs["place"]] for one in got])
            return made

        yield from asyncio.run(go())

    return run


def pydantic_ai_harness(name: str) -> Peer:
    """pydantic-ai-harness compaction: `ClearToolResults` or `SlidingWindowCompaction`, triggered at the budget."""
    from pydantic_ai_harness.compaction import ClearToolResults, SlidingWindowCompaction

    def run(messages: list[Wire], budget: int) -> Iterator[list[Wire]]:
        head, body = _head(messages)
        room = budget - sum(map(size, head))
        strategy: Any
        if name == "clear":
            strategy = ClearToolResults(max_tokens=room, tokenizer=_count)
        else:
            strategy = SlidingWindowCompaction(max_tokens=room, keep_tokens=room // 2, tokenizer=_count)
        wanted = [place - len(head) for place in points(messages)]

        async def go() -> list[list[Wire]]:
            return await _compacted(strategy, body, wanted, room, head)

        yield from asyncio.run(go())

    return run


async def _compacted(
    strategy: Any, body: list[Wire], wanted: list[int], room: int, head: list[Wire]
) -> list[list[Wire]]:
    """History grows message by message; what the strategy makes of it is the history from then on."""
    from pydantic_ai_harness.compaction._shared import estimate_token_count

    history: list[Any] = []
    origin: dict[int, Wire] = {}
    made, taken = [], 0
    for place in wanted:
        for message in body[taken:place]:
            history.append(_model_message(message))
            origin[id(history[-1])] = message
            origin[-id(history[-1])] = history[-1]  # keeps the object, so that its id stays its own
        taken = place
        if estimate_token_count(history, _count) > room:
            history = list(await strategy.compact(history, None))
        made.append(head + [origin.get(id(entry)) or _wire(entry, origin) for entry in history])
    return made


def _model_message(message: Wire) -> Any:
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    text = text_of(message)
    if message["role"] == "assistant":
        calls = message.get("tool_calls") or ()
        parts: list[Any] = [TextPart(text)] if text else []
        parts += [ToolCallPart(c["function"]["name"], c["function"]["arguments"], tool_call_id=c["id"]) for c in calls]
        return ModelResponse(parts=parts)
    if message["role"] == "tool":
        return ModelRequest(
            parts=[ToolReturnPart(message.get("name") or "tool", text, tool_call_id=message["tool_call_id"])]
        )
    part = SystemPromptPart(text) if message["role"] == "system" else UserPromptPart(text)
    return ModelRequest(parts=[part])


def _wire(one: Any, origin: dict[int, Wire]) -> Wire:
    """A message the strategy rewrote, back in Chat form; the same object gives the same dictionary."""
    made: Wire = {"role": "assistant" if one.kind == "response" else "user", "content": ""}
    for part in one.parts:
        if part.part_kind == "tool-return":
            made = {"role": "tool", "tool_call_id": part.tool_call_id, "content": str(part.content)}
        elif part.part_kind == "tool-call":
            function = {"name": part.tool_name, "arguments": part.args if isinstance(part.args, str) else "{}"}
            call = {"id": part.tool_call_id, "type": "function", "function": function}
            made["tool_calls"] = [*made.get("tool_calls", []), call]
        else:
            made["content"] = str(part.content)
    origin[id(one)] = made
    origin[-id(one)] = one
    return made


PEERS: dict[str, Callable[[], Peer]] = {
    "append-only (no limit)": lambda: append_only,
    "window that slides": lambda: slide,
    "cut to half": lambda: cut_to_half,
    "LangChain trim, exact": lambda: langchain_trim(exact=True),
    "LangChain trim, approximate": lambda: langchain_trim(exact=False),
    "LlamaIndex Memory": llama_index_memory,
    "harness ClearToolResults": lambda: pydantic_ai_harness("clear"),
    "harness SlidingWindow": lambda: pydantic_ai_harness("slide"),
}
