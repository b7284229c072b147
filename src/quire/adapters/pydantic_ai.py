"""pydantic-ai: a capability that fits each request of a run, and a thread as a message history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.adapters import Fitters, HasFitter, ThreadMessages, target_of
from quire.errors import needs_extra
from quire.thread import Thread
from quire.values import JsonObject

with needs_extra("pydantic-ai is not installed", "pydantic-ai"):
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition


class QuireHistory(HasFitter, AbstractCapability[Any]):
    """Sends the model messages within the budget, with caching on; the run's own messages stay whole.

        Agent(model, capabilities=[QuireHistory(budget=100_000)])

    This is no history processor: the result of one replaces the run's history, so the next call would fit messages
    that were shortened already. Instructions and tools are counted. `target` ("provider:model") is by default the
    agent's model; for the other options see `quire.Policy`.
    """

    def __init__(self, budget: int = 0, *, target: str = "", **policy: Any) -> None:
        self._fitters = Fitters(budget, target, "pydantic-ai", policy)

    def get_model_settings(self) -> ModelSettings:
        return ModelSettings(cache=True)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        parameters, model = request_context.model_request_parameters, request_context.model
        instructions = "\n\n".join(part.content for part in parameters.instruction_parts or ())
        tools = [_tool(tool) for tool in (*parameters.function_tools, *parameters.output_tools)]
        body = {"messages": request_context.messages, "system": instructions, "tools": tools}
        target = self._fitters.target or target_of(model.system, model.model_name)
        fitted = self._fitters.fit(body, str(ctx.conversation_id), target)
        return replace(request_context, messages=list(fitted.body["messages"]))


class ThreadHistory:
    """A thread's messages for a run: `agent.run(…, message_history=history.messages)`, then `history.add(result)`."""

    def __init__(self, thread: Thread) -> None:
        self._log = ThreadMessages(thread, "pydantic-ai")

    @property
    def messages(self) -> list[ModelMessage]:
        """All messages; those that were added from runs are unchanged."""
        return ModelMessagesTypeAdapter.validate_python(self._log.read())

    def add(self, messages: Sequence[ModelMessage]) -> None:
        """Append messages: `history.add(result.new_messages())`."""
        self._log.add(ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


def _tool(tool: ToolDefinition) -> JsonObject:
    return {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
