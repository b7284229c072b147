"""The request body with bytes in place of base64, as boto3's `client.converse` takes it."""

from __future__ import annotations

from typing import Any

from quire.providers.incoming import bytes_of
from quire.values import Json, Request


def sdk_kwargs(request: Request) -> dict[str, Any]:
    """The keyword arguments of `client.converse`; the same as the body where it holds no bytes."""
    messages = [
        {**message, "content": [_block(block) for block in message["content"]]}
        for message in request.body["messages"]
    ]
    return {**request.body, "messages": messages}


def _block(block: Json) -> Json:
    if "image" in block:
        source = block["image"].get("source") or {}
        if "bytes" in source:
            return {"image": {**block["image"], "source": {"bytes": bytes_of(source["bytes"])}}}
    if "redactedContent" in (block.get("reasoningContent") or {}):
        redacted = bytes_of(block["reasoningContent"]["redactedContent"])
        return {"reasoningContent": {"redactedContent": redacted}}
    if "toolResult" in block:
        content = [_block(one) for one in block["toolResult"]["content"]]
        return {"toolResult": {**block["toolResult"], "content": content}}
    return block
