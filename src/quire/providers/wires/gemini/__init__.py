"""Gemini's generateContent."""

from __future__ import annotations

from quire.providers.models import model_info
from quire.providers.rendering import Options, Rendering
from quire.providers.rules.gemini import RULES
from quire.providers.usage import gemini_usage
from quire.providers.wire import Wire
from quire.providers.wires.gemini.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.gemini.write import FORMAT, WRITER, sdk_kwargs
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
    "sdk_kwargs",
]


def render(prompt: Prompt, model: str, provider: str = FORMAT, ask: Options | None = None) -> Request:
    """The REST body of generateContent; `sdk_kwargs(request)` is for `client.models.generate_content`."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Options()).request(prompt)


WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    read=parse_reply,
    stream=Stream,
    usage=gemini_usage,
    rules=RULES,
    sdk_kwargs=sdk_kwargs,
)
