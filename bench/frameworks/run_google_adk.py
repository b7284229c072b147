"""Google ADK: an agent with the plugin and sessions in threads, or with its own context filter."""

import asyncio
import os
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import BaseTool
from google.genai import types
from replay import MODELS, SCHEMA, SYSTEM, read, report

from quire.adapters.google_adk import QuirePlugin, QuireSessionService
from quire.testing import MemoryStore

asked, replay = read()
os.environ |= {"GOOGLE_API_KEY": "key", "GOOGLE_GEMINI_BASE_URL": asked.url}


class Recorded(BaseTool):
    """A tool that gives what it gave."""

    def _get_declaration(self) -> Any:
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=SCHEMA)

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        return {"output": replay.result(self.name, args)}


async def main() -> None:
    tools = [Recorded(name=name, description=f"Run {name}.") for name in replay.tools]
    agent = LlmAgent(name="coder", model=MODELS["gemini"], instruction=SYSTEM, tools=tools)
    plugin = QuirePlugin(asked.budget) if asked.by_quire else ContextFilterPlugin(num_invocations_to_keep=2)
    store = MemoryStore()
    sessions = QuireSessionService(store) if asked.by_quire else InMemorySessionService()
    runner = Runner(agent=agent, app_name="replay", session_service=sessions, plugins=[plugin])
    session = await sessions.create_session(app_name="replay", user_id="u", session_id="s")
    for text in replay.turns:
        said = types.Content(role="user", parts=[types.Part(text=text)])
        config = RunConfig(max_llm_calls=0)
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=said, run_config=config):
            pass
    if asked.by_quire:
        which = {"app_name": "replay", "user_id": "u", "session_id": "s"}
        held, again = (await sessions.get_session(**which), await QuireSessionService(store).get_session(**which))
        assert again.events == held.events, "another service reads the same events"


asyncio.run(main())
report()
