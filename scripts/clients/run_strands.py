"""strands: one agent, streamed, its session kept in files."""

from strands import Agent, tool
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager

from turns import PROMPTS, arguments, read_note


def connect(wire: str, name: str, url: str) -> Model:
    match wire:
        case "anthropic":
            from strands.models.anthropic import AnthropicModel

            return AnthropicModel(client_args={"base_url": url, "api_key": "key"}, model_id=name, max_tokens=4096)
        case "gemini":
            from strands.models.gemini import GeminiModel

            return GeminiModel(client_args={"api_key": "key", "http_options": {"base_url": url}}, model_id=name)
        case "openai":
            from strands.models.openai_responses import OpenAIResponsesModel as OpenAIModel
        case _:
            from strands.models.openai import OpenAIModel
    return OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "key"}, model_id=name)


session = FileSessionManager("notes", storage_dir="sessions")
agent = Agent(connect(*arguments()), tools=[tool(read_note)], system_prompt="Be brief.", session_manager=session)
for prompt in PROMPTS:
    agent(prompt)
