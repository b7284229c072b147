"""Amazon Bedrock's Converse API."""

from __future__ import annotations

from quire.providers.models import model_info
from quire.providers.rendering import Options, Rendering
from quire.providers.rules.bedrock import RULES
from quire.providers.usage import bedrock_usage
from quire.providers.wire import Wire
from quire.providers.wires.bedrock.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.bedrock.write import FORMAT, WRITER, sdk_kwargs
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
    "sdk_kwargs",
]


def render(prompt: Prompt, model: str, provider: str = FORMAT, ask: Options | None = None) -> Request:
    """The request for boto3: `client.converse(**sdk_kwargs(request))`, or `**request.body` where it holds no bytes."""
    return Rendering(WRITER, model_info(f"{provider}:{model}"), ask or Options()).request(prompt)


def other_format(body: JsonObject) -> str:
    """Bedrock takes Anthropic's own format too: `anthropic_version`, or blocks with a `type`."""
    messages = body.get("messages")
    said = (
        [one.get("content") for one in messages if isinstance(one, dict)]
        if isinstance(messages, list)
        else []
    )
    blocks = [block for content in said if isinstance(content, list) for block in content]
    typed = any(isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks)
    told = typed or any(isinstance(content, str) for content in said)
    return "anthropic" if "anthropic_version" in body or told else ""


WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    read=parse_reply,
    stream=Stream,
    usage=bedrock_usage,
    rules=RULES,
    sdk_kwargs=sdk_kwargs,
    other=other_format,
)
