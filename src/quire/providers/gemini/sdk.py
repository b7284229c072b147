"""The REST body as the keyword arguments of google-genai's `client.models.generate_content`."""

from __future__ import annotations

from typing import Any

from quire.providers.gemini.parts import FOREIGN
from quire.providers.incoming import bytes_of
from quire.values import JsonObject, Request


def sdk_kwargs(request: Request) -> dict[str, Any]:
    """model, contents and config; base64 becomes bytes, which the SDK encodes again."""
    body = request.body
    config: JsonObject = {
        key: value for key, value in body.items() if key not in ("contents", "generationConfig")
    }
    config |= body.get("generationConfig") or {}
    contents = [
        {**content, "parts": [_part(part) for part in content["parts"]]} for content in body["contents"]
    ]
    return {"model": request.model, "contents": contents, "config": config}


def _part(part: JsonObject) -> JsonObject:
    out = dict(part)
    if "thoughtSignature" in out:
        signature = out["thoughtSignature"]
        out["thoughtSignature"] = signature.encode() if signature == FOREIGN else bytes_of(signature)
    if "inlineData" in out:
        out["inlineData"] = {**out["inlineData"], "data": bytes_of(out["inlineData"].get("data", ""))}
    return out
