"""LangChain: an agent with the middleware, or with `trim_messages` in its place."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_anthropic import ChatAnthropic
from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware
from langchain_core.messages import trim_messages
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import StructuredTool
from replay import MODELS, SCHEMA, SYSTEM, read, report

from quire.adapters.langchain import QuireMiddleware

asked, replay = read()


def tool(name: str) -> StructuredTool:
    def run(**args: Any) -> str:
        return replay.result(name, args)

    return StructuredTool(name=name, description=f"Run {name}.", args_schema=SCHEMA, func=run)


@wrap_model_call
def trim(request: Any, handler: Any) -> Any:
    kept = trim_messages(
        request.messages,
        max_tokens=asked.budget,
        strategy="last",
        token_counter=count_tokens_approximately,
        start_on="human",
        end_on=("human", "tool"),
    )
    return handler(request.override(messages=kept))


model = ChatAnthropic(model=MODELS["anthropic"], base_url=asked.url, api_key="key", max_tokens=4096)
quire = QuireMiddleware(asked.budget)
tools = [tool(name) for name in replay.tools]
middleware = [quire] if asked.by_quire else [AnthropicPromptCachingMiddleware(), trim]
agent = create_agent(model, tools, system_prompt=SYSTEM, middleware=middleware)
messages: list[Any] = []
for text in replay.turns:
    messages.append({"role": "user", "content": text})
    messages = agent.invoke({"messages": messages}, {"recursion_limit": 500})["messages"]
report()
