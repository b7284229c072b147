"""What the rules look at: one request, the model it is for, and what is known of its sender."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from quire.providers.models import ModelInfo, Wire, model_info, resolve
from quire.providers.rules.seen import Seen
from quire.values import Json, JsonObject


class Check(msgspec.Struct, frozen=True):
    """A request to be checked. `betas` is None where the HTTP headers are not known."""

    body: JsonObject
    info: ModelInfo
    betas: frozenset[str] | None = None
    version: str = ""
    seen: Seen | None = None
    # Anthropic's own format, sent through Bedrock.
    via_bedrock: bool = False

    @property
    def model_named(self) -> bool:
        """Whether a model is named at all; rules about one model need that."""
        return bool(self.info.model)


def make_check(
    body: JsonObject,
    provider: str,
    model: str | None,
    seen: Seen | None,
    headers: Mapping[str, str] | None,
) -> Check:
    """Put together what `validate` was given; the model may also be named in the body."""
    owner, wire = resolve(provider)
    name = model or _text(body.get("model")) or _text(body.get("modelId"))
    if wire == "bedrock" and _is_anthropic(body):
        provider, wire = "bedrock-anthropic", "anthropic"
    info = msgspec.structs.replace(model_info(f"{provider}:{name}"), wire=spoken(wire, body))
    sent = _headers(body, headers)
    return Check(
        body=body,
        info=info,
        betas=_betas(body, sent),
        version=(sent or {}).get("anthropic-version", ""),
        seen=seen,
        via_bedrock=wire == "anthropic" and (owner == "bedrock" or bool(_BEDROCK_ID.match(name))),
    )


def spoken(wire: Wire, body: JsonObject) -> Wire:
    """OpenAI's two formats by what the body holds: "openai" may mean either."""
    if wire == "openai-responses" and "messages" in body and "input" not in body:
        return "openai-chat"
    if wire == "openai-chat" and "input" in body and "messages" not in body:
        return "openai-responses"
    return wire


_BEDROCK_ID = re.compile(r"^([a-z-]+\.)?anthropic\.")


def _is_anthropic(body: JsonObject) -> bool:
    """Whether a body for Bedrock is in Anthropic's format: `anthropic_version`, or blocks with a `type`."""
    if "anthropic_version" in body:
        return True
    messages = body.get("messages")
    contents = (
        [one.get("content") for one in messages if isinstance(one, dict)]
        if isinstance(messages, list)
        else []
    )
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return any(isinstance(content, str) for content in contents) or any(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks
    )


def _headers(body: JsonObject, given: Mapping[str, str] | None) -> dict[str, str] | None:
    """Header names in lower case; the SDKs also take them inside the call, as `extra_headers`."""
    extra = body.get("extra_headers")
    if given is None and not isinstance(extra, dict):
        return None
    both = {**(given or {}), **(extra if isinstance(extra, dict) else {})}
    return {str(name).lower(): str(value) for name, value in both.items()}


def _betas(body: JsonObject, headers: dict[str, str] | None) -> frozenset[str] | None:
    inside = body.get("betas", body.get("anthropic_beta"))
    if headers is None and not isinstance(inside, list):
        return None
    named = (headers or {}).get("anthropic-beta", "").split(",")
    listed = inside if isinstance(inside, list) else []
    return frozenset(str(beta).strip() for beta in [*named, *listed])


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
