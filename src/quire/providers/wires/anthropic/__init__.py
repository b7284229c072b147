"""Anthropic's Messages API."""

from __future__ import annotations

from quire.providers.models import model_info
from quire.providers.rendering import Options, Rendering
from quire.providers.rules.claude import RULES
from quire.providers.usage import anthropic_usage
from quire.providers.wire import Wire
from quire.providers.wires.anthropic.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.anthropic.write import FORMAT, WRITER
from quire.values import Prompt, Request

__all__ = [
    "FORMAT",
    "WIRE",
    "WRITER",
    "Stream",
    "export_messages",
    "import_messages",
    "parse_reply",
    "render",
]


def render(prompt: Prompt, model: str, provider: str = FORMAT, ask: Options | None = None) -> Request:
    """The request for `client.messages.create(**request.body, extra_headers=request.headers)`."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Options()).request(prompt)


WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    read=parse_reply,
    stream=Stream,
    usage=anthropic_usage,
    rules=RULES,
)
