"""OpenAI Agents: a session on a thread, and a `call_model_input_filter` that fits requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from quire.adapters import Fitters, HasFitter, ThreadMessages, target_of
from quire.errors import needs_extra
from quire.thread import Thread
from quire.values import JsonObject

with needs_extra("openai-agents is not installed", "openai-agents"):
    from agents import FunctionTool, SessionSettings, TResponseInputItem
    from agents.models import get_default_model
    from agents.run_config import CallModelData, ModelInputData


class QuireInputFilter(HasFitter):
    """Sends the model items within the budget; the run's own items and its session stay whole.

        Runner.run(agent, question, run_config=RunConfig(call_model_input_filter=QuireInputFilter(100_000)))

    Instructions and function tools are counted. `target` ("provider:model") is by default the agent's model at
    OpenAI; for the other options see `quire.Policy`.
    """

    def __init__(self, budget: int = 0, *, target: str = "", **policy: Any) -> None:
        self._fitters = Fitters(budget, target, "openai-responses", policy)

    def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        prompt, agent = data.model_data, data.agent
        offered = [tool for tool in agent.tools if isinstance(tool, FunctionTool)]
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.params_json_schema,
            }
            for tool in offered
        ]
        head = {"instructions": prompt.instructions} if prompt.instructions else {}
        body = {"input": prompt.input, "tools": tools, **head}
        named = agent.model if agent.model is not None else get_default_model()
        model = named if isinstance(named, str) else getattr(named, "model", "")
        target = self._fitters.target or target_of("openai", str(model))
        fitted = self._fitters.fit(body, json.dumps(prompt.input[:1], default=str), target)
        return ModelInputData(fitted.body["input"], prompt.instructions)


class QuireSession:
    """A session whose items are a thread's entries: `Runner.run(agent, question, session=QuireSession(thread))`.

    `pop_item` and `clear_session` continue in a fork; the old thread keeps its items.
    """

    def __init__(self, thread: Thread, session_settings: SessionSettings | None = None) -> None:
        self.session_id, self.session_settings = thread.name, session_settings
        self._log = ThreadMessages(thread, "openai-agents")

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items, oldest first; the newest `limit` of them."""
        items = await asyncio.to_thread(self._log.read)
        most = limit if limit is not None or self.session_settings is None else self.session_settings.limit
        return cast(list[TResponseInputItem], items if most is None else items[-most:] if most else [])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items."""
        await asyncio.to_thread(self._log.add, cast(list[JsonObject], items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it."""
        return cast(TResponseInputItem | None, await asyncio.to_thread(self._log.pop))

    async def clear_session(self) -> None:
        """Remove all items."""
        await asyncio.to_thread(self._log.clear)
