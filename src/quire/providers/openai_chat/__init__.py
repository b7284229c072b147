"""OpenAI Chat Completions, and the many servers that speak it with small differences."""

from quire.providers.models import model_info
from quire.providers.openai_chat.parts import FORMAT
from quire.providers.openai_chat.read import export_messages, import_messages, parse_reply
from quire.providers.openai_chat.stream import Stream
from quire.providers.openai_chat.write import WRITER
from quire.providers.sheet import Ask, Rendering
from quire.values import Prompt, Request

__all__ = ["FORMAT", "WRITER", "Stream", "export_messages", "import_messages", "parse_reply", "render"]


def render(prompt: Prompt, model: str = "", provider: str = FORMAT, ask: Ask | None = None) -> Request:
    """The request for `client.chat.completions.create(**request.body)`."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Ask()).request(prompt)
