"""pydantic-ai: a streamed run a turn, the messages handed on."""

import asyncio
from collections.abc import AsyncIterable

from pydantic_ai import Agent, AgentStreamEvent, RunContext
from pydantic_ai.models import Model

from turns import PROMPTS, arguments, read_note


def connect(wire: str, name: str, url: str) -> Model:
    match wire:
        case "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return AnthropicModel(name, provider=AnthropicProvider(base_url=url, api_key="key"))
        case "gemini":
            from pydantic_ai.models.google import GoogleModel
            from pydantic_ai.providers.google import GoogleProvider

            return GoogleModel(name, provider=GoogleProvider(base_url=url, api_key="key"))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if wire == "openai" else OpenAIChatModel
    return kind(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="key"))


async def streamed(_: RunContext, events: AsyncIterable[AgentStreamEvent]) -> None:
    async for _event in events:
        pass


async def main() -> None:
    agent = Agent(connect(*arguments()), instructions="Be brief.", tools=[read_note])
    history = None
    for prompt in PROMPTS:
        # Not run_stream: it ends a turn at the first text, before the calls beside it.
        result = await agent.run(prompt, message_history=history, event_stream_handler=streamed)
        print(result.output)
        history = result.all_messages()


asyncio.run(main())
