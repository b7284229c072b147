"""Amazon Bedrock's Converse API."""

from quire.providers.bedrock.blocks import FORMAT
from quire.providers.bedrock.read import export_messages, import_messages, parse_reply
from quire.providers.bedrock.sdk import sdk_kwargs
from quire.providers.bedrock.stream import Stream
from quire.providers.bedrock.write import WRITER
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
    """The request for boto3: `client.converse(**sdk_kwargs(request))`, or `**request.body` where it holds no bytes."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Ask()).request(prompt)
