"""pydantic-ai: an agent with the capability, or with the sliding window of pydantic-ai-harness."""

import asyncio
from typing import Any

from pydantic_ai import Agent, Tool, UsageLimits
from pydantic_ai.capabilities import Caching
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai_harness.compaction import SlidingWindowCompaction
from replay import MODELS, SCHEMA, SYSTEM, read, report

from quire.adapters.pydantic_ai import QuireHistory

asked, replay = read()


def tool(name: str) -> Tool[Any]:
    async def run(**args: Any) -> str:
        return replay.result(name, args)

    return Tool.from_schema(run, name, f"Run {name}.", SCHEMA)


async def main() -> None:
    quire = QuireHistory(asked.budget)
    window = SlidingWindowCompaction(max_tokens=asked.budget, keep_tokens=asked.budget // 2)
    model = AnthropicModel(MODELS["anthropic"], provider=AnthropicProvider(base_url=asked.url, api_key="key"))
    capabilities = [quire] if asked.by_quire else [Caching(), window]
    agent = Agent(model, instructions=SYSTEM, tools=[tool(name) for name in replay.tools], capabilities=capabilities)
    history: list[Any] = []
    for text in replay.turns:
        result = await agent.run(text, message_history=history, usage_limits=UsageLimits(request_limit=None))
        history = result.all_messages()
    report()


asyncio.run(main())
