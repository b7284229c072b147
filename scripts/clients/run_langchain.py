"""langchain: an agent streamed a turn, the messages handed on."""

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel

from turns import PROMPTS, arguments, read_note


def connect(wire: str, name: str, url: str) -> BaseChatModel:
    match wire:
        case "anthropic":
            from langchain_anthropic import ChatAnthropic

            thinking = {"type": "enabled", "budget_tokens": 1024}
            return ChatAnthropic(model=name, base_url=url, api_key="key", max_tokens=4096, thinking=thinking)
        case "gemini":
            from langchain_google_genai import ChatGoogleGenerativeAI

            return ChatGoogleGenerativeAI(model=name, base_url=url, api_key="key", include_thoughts=True)
    from langchain_openai import ChatOpenAI

    base = f"{url}/v1"
    if wire == "openai-chat":
        return ChatOpenAI(model=name, base_url=base, api_key="key", stream_usage=True)
    reasoning = {"effort": "low", "summary": "auto"}
    return ChatOpenAI(model=name, base_url=base, api_key="key", use_responses_api=True, reasoning=reasoning)


agent = create_agent(connect(*arguments()), tools=[read_note], system_prompt="Be brief.")
messages = []
for prompt in PROMPTS:
    messages.append({"role": "user", "content": prompt})
    for kind, state in agent.stream({"messages": messages}, stream_mode=["messages", "values"]):
        if kind == "values":
            messages = state["messages"]
    print(messages[-1].text)
