"""OpenAI's Responses API."""

from quire.providers.models import model_info
from quire.providers.rendering import Options, Rendering
from quire.providers.wires.openai_responses.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.openai_responses.write import FORMAT, WRITER
from quire.values import Prompt, Request

__all__ = ["FORMAT", "WRITER", "Stream", "export_messages", "import_messages", "parse_reply", "render"]


def render(prompt: Prompt, model: str, provider: str = FORMAT, ask: Options | None = None) -> Request:
    """The request for `client.responses.create(**request.body)`."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Options()).request(prompt)
