"""What a clean text shows: tools, relevant conversation, tool results, the request."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from quire.errors import CallError

Role = Literal["user", "assistant"]
Detail = Literal["full", "short"]
DETAILS: tuple[str, ...] = get_args(Detail)

TOOLS = "# Available Tools"
CONVERSATION = "# Relevant Conversation"
RESULTS = "# Recent Tool Results"
REQUEST = "# Current Request"


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    category: str = "general"
    output: tuple[str, ...] = ()
    example: str = ""

    @property
    def is_short(self) -> bool:
        """Whether a name and a description say all there is."""
        return self == Tool(self.name, self.description)


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: str


class ToolResult(msgspec.Struct, frozen=True):
    tool: str
    output: str


class Clean(msgspec.Struct, frozen=True):
    """What the text shows; an empty part has no section."""

    tools: tuple[Tool, ...] = ()
    conversation: tuple[Message, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    request: str = ""
    detail: Detail = "full"

    def __post_init__(self) -> None:
        if self.detail == "short" and not (self.tools and all(tool.is_short for tool in self.tools)):
            raise CallError(
                "detail 'short' shows names and descriptions alone, but this value holds more (or no tools)",
                hint="Use clean.project(..., detail='short'), which leaves the rest out.",
            )
