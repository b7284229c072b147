"""google-adk: one session in memory, streamed."""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai import types

from turns import PROMPTS, arguments, read_note

wire, model, url = arguments()
os.environ |= {"GOOGLE_API_KEY": "key", "GOOGLE_GEMINI_BASE_URL": url}


async def main() -> None:
    agent = LlmAgent(name="reader", model=model, instruction="Be brief.", tools=[read_note])
    runner = InMemoryRunner(agent, app_name="notes")
    session = await runner.session_service.create_session(app_name="notes", user_id="user")
    for prompt in PROMPTS:
        said = types.Content(role="user", parts=[types.Part(text=prompt)])
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=said, run_config=config):
            if event.is_final_response() and event.content:
                print("".join(part.text or "" for part in event.content.parts))


asyncio.run(main())
