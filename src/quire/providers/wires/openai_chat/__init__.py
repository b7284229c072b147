"""OpenAI Chat Completions, and the many servers that speak it with small differences."""

from __future__ import annotations

from quire.providers.models import model_info
from quire.providers.rendering import Options, Rendering
from quire.providers.rules.openai import CHAT_RULES
from quire.providers.usage import chat_usage
from quire.providers.wire import Wire
from quire.providers.wires.openai_chat.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.openai_chat.write import FORMAT, WRITER
from quire.values import JsonObject, Prompt, Request

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


def render(prompt: Prompt, model: str = "", provider: str = FORMAT, ask: Options | None = None) -> Request:
    """The request for `client.chat.completions.create(**request.body)`."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Options()).request(prompt)


def _other(body: JsonObject) -> str:
    """Whoever says "openai" may mean either format."""
    return "openai-responses" if "input" in body and "messages" not in body else ""


WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    read=parse_reply,
    stream=Stream,
    usage=chat_usage,
    rules=CHAT_RULES,
    other=_other,
)
