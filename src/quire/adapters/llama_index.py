"""LlamaIndex: a memory that keeps every message and returns those that fit the budget."""

from __future__ import annotations

import json
from typing import Any

from quire.adapters import Fitters, HasFitter
from quire.errors import needs_extra
from quire.values import JsonObject

with needs_extra("LlamaIndex is not installed", "llama-index"):
    from llama_index.core.base.llms.types import (
        ChatMessage,
        ContentBlock,
        ImageBlock,
        MessageRole,
        TextBlock,
        ToolCallBlock,
    )
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.memory import BaseMemory

# LlamaIndex's roles, and LangChain's: messages are fitted in LangChain's format.
_KINDS = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "human",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}
_ROLES = {kind: role for role, kind in reversed(_KINDS.items())}


class QuireMemory(HasFitter, BaseMemory):
    """Keeps every message; `get` returns those that fit the budget.

        memory = QuireMemory(budget=100_000, target="openai:gpt-6-sol")
        await agent.run("…", memory=memory)

    Give the agent's `system` prompt and `tools`, which count against the budget too. For the other options see
    `quire.Policy`.
    """

    chat_history: list[ChatMessage] = Field(default_factory=list)
    # Fields, because LlamaIndex saves and restores a memory by its fields.
    budget: int
    target: str
    system: str
    tools: list[JsonObject]
    policy: JsonObject
    _fitters: Fitters = PrivateAttr()

    def __init__(
        self,
        budget: int = 0,
        target: str = "",
        *,
        chat_history: list[ChatMessage] | None = None,
        system: str = "",
        tools: list[JsonObject] | None = None,
        policy: JsonObject | None = None,
        **choices: Any,
    ) -> None:
        held: JsonObject = {"chat_history": list(chat_history or ()), "system": system, "tools": list(tools or ())}
        held |= {"budget": budget, "target": target, "policy": {**(policy or {}), **choices}}
        super().__init__(**held)
        self._fitters = Fitters(budget, target, "langchain", self.policy)

    @classmethod
    def class_name(cls) -> str:
        return "QuireMemory"

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> QuireMemory:
        return cls(**kwargs)

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """The messages that fit: the same objects that were put where they are whole, else new ones."""
        if not any(message.role == MessageRole.USER for message in self.chat_history):
            return list(self.chat_history)
        written = [_message_json(message, index) for index, message in enumerate(self.chat_history)]
        body = {"messages": written, "system": self.system, "tools": self.tools}
        fitted = self._fitters.fit(body, "", "").body["messages"]
        return [self._message(message["data"]) for message in fitted]

    def get_all(self) -> list[ChatMessage]:
        return list(self.chat_history)

    def put(self, message: ChatMessage) -> None:
        self.chat_history.append(message)

    def set(self, messages: list[ChatMessage]) -> None:
        self.chat_history = list(messages)

    def reset(self) -> None:
        self.chat_history = []

    def _message(self, data: JsonObject) -> ChatMessage:
        if data.get("id") is not None:
            return self.chat_history[int(data["id"])]
        blocks: list[ContentBlock] = [TextBlock(text=data["content"])] if data["content"] else []
        for call in data.get("tool_calls") or ():
            blocks.append(ToolCallBlock(tool_call_id=call["id"], tool_name=call["name"], tool_kwargs=call["args"]))
        role = _ROLES.get(data["type"], MessageRole.ASSISTANT)
        answers = {"tool_call_id": data["tool_call_id"]} if role == MessageRole.TOOL else {}
        return ChatMessage(role=role, blocks=blocks, additional_kwargs=answers)


def _message_json(message: ChatMessage, index: int) -> JsonObject:
    """A message in LangChain's JSON; its index is its id, by which `_message` finds it again."""
    kind = _KINDS.get(message.role, "ai")
    data: JsonObject = {"type": kind, "id": str(index), "content": _content(message)}
    if kind == "ai":
        data["tool_calls"] = _calls(message)
    if kind == "tool":
        data["tool_call_id"] = str(message.additional_kwargs.get("tool_call_id") or "")
    return {"type": kind, "data": data}


def _content(message: ChatMessage) -> Any:
    images = [block for block in message.blocks if isinstance(block, ImageBlock)]
    if not images:
        return message.content or ""
    pictures = [{"type": "image_url", "image_url": {"url": str(block.url or "")}} for block in images]
    return [{"type": "text", "text": message.content or ""}, *pictures]


def _calls(message: ChatMessage) -> list[JsonObject]:
    """The calls of a message: from its blocks, else from its additional arguments (OpenAI's client)."""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if blocks:
        calls = [(block.tool_call_id, block.tool_name, block.tool_kwargs) for block in blocks]
    else:
        stored = message.additional_kwargs.get("tool_calls") or ()
        plain = [call if isinstance(call, dict) else call.model_dump() for call in stored]
        functions = [(call.get("id"), call["function"]) for call in plain]
        calls = [(id, function["name"], function["arguments"]) for id, function in functions]
    return [{"id": id or "", "name": name, "args": _arguments(args)} for id, name, args in calls]


def _arguments(args: Any) -> Any:
    try:
        return json.loads(args) if isinstance(args, str) else args
    except ValueError:
        return {"arguments": args}
