"""`clean`: tools, relevant conversation, tool results and the request as plain sections, nothing twice."""

from quire.formats.clean.parse import parse
from quire.formats.clean.project import output_text, project, project_thread, read, to_json
from quire.formats.clean.render import (
    conversation_section,
    formatted_context,
    render,
    render_sections,
    results_section,
    tool_list,
    tools_section,
    with_request,
)
from quire.formats.clean.value import Clean, Detail, Message, Tool, ToolResult

__all__ = [
    "Clean",
    "Detail",
    "Message",
    "Tool",
    "ToolResult",
    "conversation_section",
    "formatted_context",
    "output_text",
    "parse",
    "project",
    "project_thread",
    "read",
    "render",
    "render_sections",
    "results_section",
    "to_json",
    "tool_list",
    "tools_section",
    "with_request",
]
