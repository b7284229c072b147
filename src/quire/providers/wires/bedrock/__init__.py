"""Amazon Bedrock's Converse API."""

from quire.providers.models import model_info
from quire.providers.rendering import Options, Rendering
from quire.providers.wires.bedrock.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.bedrock.write import FORMAT, WRITER, sdk_kwargs
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


def render(prompt: Prompt, model: str, provider: str = FORMAT, ask: Options | None = None) -> Request:
    """The request for boto3: `client.converse(**sdk_kwargs(request))`, or `**request.body` where it holds no bytes."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Options()).request(prompt)
