"""Gemini's generateContent."""

from quire.providers.gemini.parts import FORMAT
from quire.providers.gemini.read import export_messages, import_messages, parse_reply
from quire.providers.gemini.sdk import sdk_kwargs
from quire.providers.gemini.stream import Stream
from quire.providers.gemini.write import WRITER
from quire.providers.models import model_info
from quire.providers.sheet import Ask, Rendering
from quire.values import Prompt, Request

__all__ = [
    "FORMAT",
    "WRITER",
    "Stream",
    "export_messages",
    "import_messages",
    "parse_reply",
    "render",
    "sdk_kwargs",
]


def render(prompt: Prompt, model: str, provider: str = FORMAT, ask: Ask | None = None) -> Request:
    """The REST body of generateContent; `sdk_kwargs(request)` is for `client.models.generate_content`."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Ask()).request(prompt)
