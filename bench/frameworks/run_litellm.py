"""LiteLLM: calls in a loop with the callback, or with its own `trim_messages`."""

import asyncio
import json
from typing import Any

import litellm
from litellm.utils import trim_messages
from replay import MODELS, SCHEMA, SYSTEM, read, report

import quire
from quire.adapters import ThreadMessages
from quire.adapters.litellm import QuireLogger
from quire.testing import MemoryStore

asked, replay = read()
model = f"anthropic/{MODELS['anthropic']}"
functions = [{"name": name, "description": f"Run {name}.", "parameters": SCHEMA} for name in replay.tools]
how: dict[str, Any] = {
    "tools": [{"type": "function", "function": function} for function in functions],
    "api_base": asked.url,
    "api_key": "key",
    "max_tokens": 4096,
    "num_retries": 0,
}
store = MemoryStore()
litellm.logging_callback_manager._reset_all_callbacks()  # it keeps one logger of a kind, the first
if asked.by_quire:
    logger = QuireLogger(store, asked.budget, thread="replay")
    litellm.callbacks = [logger]
    # By an alias, as its proxy does: what a caller names is no model's name.
    router = litellm.Router([{"model_name": "helper", "litellm_params": {"model": model}}], num_retries=0)
else:
    points = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
    how["cache_control_injection_points"] = points


async def ask(messages: list[Any]) -> Any:
    """One call; what its own trimming makes of a conversation may be refused, then everything is sent."""
    if asked.by_quire:
        data = {"model": "helper", "messages": messages, **how}
        # The proxy asks its callbacks before a deployment is chosen.
        data = await logger.async_pre_call_hook({}, {}, data, "acompletion") or data
        return await router.acompletion(**data)
    try:
        return await litellm.acompletion(model, trim_messages(list(messages), "gpt-4o", max_tokens=asked.budget), **how)
    except litellm.BadRequestError:
        return await litellm.acompletion(model=model, messages=messages, **how)


async def main() -> None:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for turn, text in enumerate(replay.turns, 1):
        if asked.by_quire and turn == len(replay.turns):
            logger._writer.shutdown()  # as at the end of a program: what is told of then is recorded, too
        messages.append({"role": "user", "content": text})
        while True:
            reply = (await ask(messages)).choices[0].message
            said = {"role": "assistant", "content": reply.content or ""}
            calls = [call.model_dump() for call in reply.tool_calls or ()]
            messages.append({**said, "tool_calls": calls} if calls else said)
            if not calls:
                break
            for call in calls:
                args = json.loads(call["function"]["arguments"])
                told = replay.result(call["function"]["name"], args)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    said = [message["role"] for message in messages]
    for _ in range(200 if asked.by_quire else 0):  # callbacks are told in the background
        if logged() == said:
            return
        await asyncio.sleep(0.05)
    assert not asked.by_quire, f"{len(said)} messages were said, and {len(logged())} stand in the log"


def logged() -> list[str]:
    """The roles of what the log holds, as messages."""
    held = ThreadMessages(quire.Thread(store, "replay"), "openai-chat").read() if store.threads() else []
    return [one["role"] for one in held]


asyncio.run(main())
report()
