"""Strands: a conversation manager that fits each request and leaves the agent's messages whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.adapters import Fitters, HasFitter, takes_marks, target_of
from quire.errors import needs_extra
from quire.providers.incoming import bytes_of, plain
from quire.values import Json, JsonObject

with needs_extra("Strands is not installed", "strands"):
    from strands.agent.conversation_manager import ConversationManager
    from strands.hooks import AgentInitializedEvent, HookRegistry
    from strands.middleware import InvokeModelContext, InvokeModelStage

_MARK: JsonObject = {"cachePoint": {"type": "default"}}


class QuireConversationManager(HasFitter, ConversationManager):
    """Fits what each model call sends, in the middle of a tool loop too; `agent.messages` keeps everything.

        Agent(model, conversation_manager=QuireConversationManager(budget=100_000))

    System prompt and tools are counted, and cache points are set where the provider needs them. `target`
    ("provider:model") is by default the agent's model; for the other options see `quire.Policy`.
    """

    def __init__(self, budget: int = 0, *, target: str = "", **policy: Any) -> None:
        super().__init__()
        self._fitters = Fitters(budget, target, "bedrock", policy)

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        super().register_hooks(registry, **kwargs)
        registry.add_callback(AgentInitializedEvent, self._add_middleware)

    def _add_middleware(self, event: AgentInitializedEvent) -> None:
        event.agent.add_middleware(InvokeModelStage.Input, self._fit)

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Do nothing: each request is fitted when it is sent."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        """Raise the model's error: it refused a request within the budget, so there is nothing to remove."""
        if e is not None:
            raise e

    async def _fit(self, context: InvokeModelContext) -> InvokeModelContext:
        model, prompt = context.model, context.system_prompt
        named = str((model.get_config() or {}).get("model_id") or "")
        target = self._fitters.target or target_of(type(model).__module__.rpartition(".")[2], named)
        system = [{"text": prompt}] if isinstance(prompt, str) else list(prompt or ())
        tools = [{"toolSpec": spec} for spec in context.tool_specs]
        messages = [{name: message[name] for name in ("role", "content")} for message in plain(context.messages)]
        body = {"messages": messages, "system": system, "toolConfig": {"tools": tools}}
        body = {name: value for name, value in body.items() if value and value != {"tools": []}}
        whole, marks = self._fitters.fit(body, str(id(context.agent)), target)
        fitted = [_with_bytes(message) for message in whole["messages"]]
        if not takes_marks(target):
            return context.replace(messages=fitted)
        if system and _MARK not in system:
            system = [*system, _MARK]
        return context.replace(messages=_mark(fitted, marks), system_prompt=system or prompt)


def _mark(messages: Sequence[JsonObject], marks: Sequence[int]) -> list[JsonObject]:
    return [
        {**message, "content": [*message["content"], _MARK]} if index in marks else message
        for index, message in enumerate(messages)
    ]


def _with_bytes(value: Json) -> Any:
    """A JSON value whose base64 fields `bytes` are bytes, as Strands sends them."""
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if isinstance(value, dict):
        return {
            name: bytes_of(item) if name == "bytes" and isinstance(item, str) else _with_bytes(item)
            for name, item in value.items()
        }
    return value
