"""OpenAI Agents: a session on a thread and the filter, or its own session and tool output trimmer."""

import asyncio
import json
from typing import Any

from agents import Agent, FunctionTool, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, set_tracing_disabled
from agents.extensions import ToolOutputTrimmer
from openai import AsyncOpenAI
from replay import MODELS, SCHEMA, SYSTEM, read, report

import quire
from quire.adapters.openai_agents import QuireInputFilter, QuireSession
from quire.testing import MemoryStore

asked, replay = read()


def tool(name: str) -> FunctionTool:
    async def run(_: Any, args: str) -> str:
        return replay.result(name, json.loads(args))

    return FunctionTool(name, f"Run {name}.", SCHEMA, run, strict_json_schema=False)


async def main() -> None:
    set_tracing_disabled(True)
    fits = QuireInputFilter(asked.budget)
    model = OpenAIResponsesModel(MODELS["openai"], AsyncOpenAI(base_url=f"{asked.url}/v1", api_key="key"))
    agent = Agent("coder", instructions=SYSTEM, tools=[tool(name) for name in replay.tools], model=model)
    session = QuireSession(quire.Thread(MemoryStore(), "t")) if asked.by_quire else SQLiteSession("t")
    config = RunConfig(call_model_input_filter=fits if asked.by_quire else ToolOutputTrimmer())
    for text in replay.turns:
        await Runner.run(agent, text, session=session, run_config=config, max_turns=500)
    report()


asyncio.run(main())
