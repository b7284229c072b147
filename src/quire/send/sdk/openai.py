"""OpenAI's SDK: Chat Completions and Responses."""

from __future__ import annotations

from quire.errors import MissingPart
from quire.send.transport import ENDPOINTS, Transport

try:
    import openai

    from quire.send.sdk.generated import Generated, Sdk
except ImportError as error:
    raise MissingPart("the openai SDK is not installed", hint="pip install 'quire[openai]'") from error

_RESPONSES = Sdk(
    openai.AsyncOpenAI,
    lambda client: client.responses.create,
    {"stream": True},
    openai.OpenAIError,
    openai.APIStatusError,
    openai.APITimeoutError,
    ENDPOINTS["openai"],
)
_CHAT = _RESPONSES._replace(
    call=lambda client: client.chat.completions.create,
    streaming={"stream": True, "stream_options": {"include_usage": True}},
)


def connect(wire: str, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over AsyncOpenAI; the wire format chooses the endpoint."""
    return Generated(_CHAT if wire == "openai-chat" else _RESPONSES, base_url, api_key, timeout_s)
