"""LangChain and LangGraph: a middleware and a `pre_model_hook` that fit requests, and a chat history on a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from quire.adapters import Fitters, HasFitter, ThreadMessages, marked_content, takes_marks, target_of
from quire.errors import needs_extra
from quire.thread import Thread

with needs_extra("LangChain is not installed", "langchain"):
    from langchain.agents.middleware.types import AgentMiddleware, AgentState, ModelCallResult
    from langchain.agents.middleware.types import ModelRequest as Request
    from langchain.agents.middleware.types import ModelResponse as Response
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import (
        AIMessage,
        AnyMessage,
        BaseMessage,
        SystemMessage,
        messages_from_dict,
        messages_to_dict,
    )
    from langchain_core.utils.function_calling import convert_to_openai_tool


class QuireMiddleware(HasFitter, AgentMiddleware[AgentState[Any], Any]):
    """Sends the model messages within the budget, with cache marks where its provider needs them.

        create_agent(model, tools, middleware=[QuireMiddleware(budget=100_000)])

    The agent's state keeps every message. The system prompt and the tools are counted. `target` ("provider:model") is
    by default the agent's model; for the other options see `quire.Policy`.
    """

    def __init__(self, budget: int = 0, *, target: str = "", **policy: Any) -> None:
        super().__init__()
        self._fitters = Fitters(budget, target, "langchain", policy)

    def wrap_model_call(
        self, request: Request[Any], handler: Callable[[Request[Any]], Response[Any]]
    ) -> ModelCallResult[Any]:
        return handler(self._fit(request))

    async def awrap_model_call(
        self, request: Request[Any], handler: Callable[[Request[Any]], Awaitable[Response[Any]]]
    ) -> ModelCallResult[Any]:
        return await handler(self._fit(request))

    def _fit(self, request: Request[Any]) -> Request[Any]:
        target = self._fitters.target or _target(request.model)
        tools = [convert_to_openai_tool(tool) for tool in request.tools]
        body = {"messages": request.messages, "system": request.system_prompt or "", "tools": tools}
        fitted, marks = self._fitters.fit(body, _conversation(request.messages), target)
        if not takes_marks(target):
            return request.override(messages=fitted["messages"])
        instruction = request.system_message
        marked = cast(SystemMessage, _with_mark(instruction, True)) if instruction is not None else None
        return request.override(messages=_marked_at(fitted["messages"], marks), system_message=marked)


def pre_model_hook(
    target: str, budget: int = 0, *, system: str = "", tools: Sequence[Any] = (), **policy: Any
) -> Callable[[Mapping[str, Any]], dict[str, list[AnyMessage]]]:
    """A node before the model of a LangGraph agent: it fits the messages that are sent; the state keeps them all.

        create_react_agent(model, tools, pre_model_hook=pre_model_hook("openai:gpt-6-sol", 100_000, tools=tools))

    Give the agent's `system` prompt and `tools`: they count against the budget, and a hook cannot see them.
    """
    fitters = Fitters(budget, target, "langchain", policy)
    defined = [convert_to_openai_tool(tool) for tool in tools]

    def hook(state: Mapping[str, Any]) -> dict[str, list[AnyMessage]]:
        messages = state["messages"]
        body = {"messages": messages, "system": system, "tools": defined}
        whole, marks = fitters.fit(body, _conversation(messages), target)
        fitted = whole["messages"]
        return {"llm_input_messages": _marked_at(fitted, marks) if takes_marks(target) else list(fitted)}

    return hook


class QuireChatMessageHistory(BaseChatMessageHistory):
    """A chat's messages in a thread: `RunnableWithMessageHistory(model, lambda id: QuireChatMessageHistory(...))`.

    `clear` continues in an empty fork; the old thread keeps its messages.
    """

    def __init__(self, thread: Thread) -> None:
        super().__init__()
        self._log = ThreadMessages(thread, "langchain")

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # the base names a field and asks for this
        return messages_from_dict(self._log.read())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        self._log.add(messages_to_dict(messages))

    def clear(self) -> None:
        self._log.clear()


def _conversation(messages: Sequence[BaseMessage]) -> str:
    """The identity of a conversation: the id of its first message."""
    return str(messages[0].id) if messages else ""


def _target(model: BaseChatModel) -> str:
    """ "provider:model" of a chat model, from the names that it reports to LangChain's tracing."""
    named = model._get_ls_params()
    return target_of(str(named.get("ls_provider") or ""), str(named.get("ls_model_name") or ""))


def _marked_at(messages: Sequence[AnyMessage], marks: Sequence[int]) -> list[AnyMessage]:
    """The messages with cache marks at these indices; what the model wrote is left as it is."""
    return [
        message if isinstance(message, AIMessage) else cast(AnyMessage, _with_mark(message, index in marks))
        for index, message in enumerate(messages)
    ]


def _with_mark(message: BaseMessage, is_marked: bool) -> BaseMessage:
    return message.model_copy(update={"content": marked_content(message.content, is_marked)})
