"""Anthropic's SDK: Messages."""

from __future__ import annotations

from quire.errors import MissingPart
from quire.send.transport import ENDPOINTS, Transport

try:
    import anthropic

    from quire.send.sdk.generated import Generated, Sdk
except ImportError as error:
    raise MissingPart("the anthropic SDK is not installed", hint="pip install 'quire[anthropic]'") from error

_MESSAGES = Sdk(
    anthropic.AsyncAnthropic,
    lambda client: client.messages.create,
    {"stream": True},
    anthropic.AnthropicError,
    anthropic.APIStatusError,
    anthropic.APITimeoutError,
    ENDPOINTS["anthropic"],
)


def connect(wire: str, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over AsyncAnthropic."""
    return Generated(_MESSAGES, base_url, api_key, timeout_s)
