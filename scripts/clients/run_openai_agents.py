"""openai-agents: a streamed run a turn, the session in SQLite."""

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from turns import PROMPTS, arguments, read_note


async def main() -> None:
    wire, model, url = arguments()
    set_tracing_disabled(True)
    kind = OpenAIResponsesModel if wire == "openai" else OpenAIChatCompletionsModel
    own = kind(model, AsyncOpenAI(base_url=f"{url}/v1", api_key="key"))
    agent = Agent("reader", instructions="Be brief.", tools=[function_tool(read_note)], model=own)
    session = SQLiteSession("notes", "session.db")
    for prompt in PROMPTS:
        result = Runner.run_streamed(agent, prompt, session=session)
        async for _ in result.stream_events():
            pass
        print(result.final_output)


asyncio.run(main())
