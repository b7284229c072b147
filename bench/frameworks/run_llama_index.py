"""LlamaIndex: its OpenAI client in a loop with the memory, or with its own `Memory`."""

import asyncio
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from llama_index.llms.openai import OpenAI
from replay import MODELS, SCHEMA, SYSTEM, read, report

from quire.adapters.llama_index import QuireMemory

asked, replay = read()
llm = OpenAI(MODELS["openai-chat"], api_base=f"{asked.url}/v1", api_key="key", max_retries=0)
functions = [{"name": name, "description": f"Run {name}.", "parameters": SCHEMA} for name in replay.tools]
tools = [{"type": "function", "function": function} for function in functions]


async def turn(memory: Any, text: str) -> None:
    await memory.aput(ChatMessage(role="user", content=text))
    while True:
        reply = await llm.achat([ChatMessage(role="system", content=SYSTEM), *await memory.aget()], tools=tools)
        await memory.aput(reply.message)
        calls = llm.get_tool_calls_from_response(reply, error_on_no_tool_call=False)
        if not calls:
            return
        for call in calls:
            told = replay.result(call.tool_name, call.tool_kwargs)
            answers = {"tool_call_id": call.tool_id}
            await memory.aput(ChatMessage(role="tool", content=told, additional_kwargs=answers))


async def main() -> None:
    if asked.by_quire:
        target = f"openai-chat:{MODELS['openai-chat']}"
        memory: Any = QuireMemory(asked.budget, target, system=SYSTEM, tools=tools)
    else:
        memory = Memory.from_defaults(session_id="t", token_limit=asked.budget)
    for text in replay.turns:
        await turn(memory, text)


asyncio.run(main())
report()
