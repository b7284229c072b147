"""Which transport a target is reached with: the official SDK where there is one, plain HTTP otherwise."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Literal

from quire.errors import CallError, ProviderError
from quire.providers.facts import resolve, split_target
from quire.providers.models import model_info
from quire.send.endpoints import ENDPOINTS, Endpoint
from quire.send.http import Http
from quire.send.keeping import Keeping
from quire.send.retrying import Retry, Retrying

Via = Literal["", "sdk", "http"]
# provider -> the package of its SDK; the module of quire.send.sdk that speaks through it.
_SDKS = {
    "openai": ("openai", "openai"),
    "azure": ("openai", "openai"),
    "anthropic": ("anthropic", "anthropic"),
    "gemini": ("google.genai", "gemini"),
    "bedrock": ("boto3", "bedrock"),
}


def transport_for(
    target: str,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    retry: Retry | None = None,
    via: Via = "",
    proxies: bool = False,
    explicit_cache: bool = False,
) -> Retrying | Keeping:
    """A transport for "provider:model"; `via` insists on the SDK or on plain HTTP, `proxies` uses the environment's.

    `explicit_cache` makes Gemini caches where they pay; their storage is paid for by the hour.
    """
    name, _ = split_target(target)
    provider, wire = resolve(name)
    endpoint = ENDPOINTS[provider]
    url = base_url or endpoint.base_url
    _check(name, wire, url, endpoint, base_url, api_key)
    if explicit_cache:
        check_explicit_cache(target)
    inner: Any  # one of the transports; those that speak to Gemini are its caches too
    if _by_sdk(provider, wire, via):
        module = importlib.import_module(f"quire.send.sdk.{_SDKS[provider][1]}")
        inner = module.connect(wire, url, api_key or "", timeout_s)
    else:
        inner = Http(url, api_key or "", timeout_s, proxies)
    again = Retrying(inner, retry)
    return Keeping(again, inner) if explicit_cache else again


def has_explicit_cache(target: str) -> bool:
    """Whether a model's provider keeps caches that are made by a call and paid for by the hour."""
    return resolve(split_target(target)[0])[1] == "gemini" and model_info(target).features.explicit_cache


def check_explicit_cache(target: str) -> None:
    """An error for a model without explicit caches."""
    if not has_explicit_cache(target):
        raise CallError(
            f"{target} has no explicit caches",
            hint="Leave --explicit-cache (explicit_cache=True) out: models of Gemini have them.",
        )


def _check(
    name: str, wire: str, url: str, endpoint: Endpoint, base_url: str | None, api_key: str | None
) -> None:
    # A server that was named may be one's own and ask for no key; the provider's own always asks.
    if endpoint.needs_key and not api_key and not base_url:
        keys = " or ".join(endpoint.keys)
        raise ProviderError(
            f"no API key for {name}", hint=f"Set {keys}, or give --base-url for a server of your own."
        )
    if not url and wire != "bedrock":
        raise CallError(f"{name} has no fixed address", hint="Give base_url (--base-url).")


def _by_sdk(provider: str, wire: str, via: Via) -> bool:
    if provider not in _SDKS or via == "http":
        if via == "sdk":
            raise CallError(
                f"there is no SDK transport for {provider}", hint="Leave `via` out: plain HTTP works."
            )
        return False
    own = {"openai": ("openai-chat", "openai-responses"), "azure": ("openai-chat", "openai-responses")}
    if wire not in own.get(provider, (provider,)):
        return False
    if via == "sdk" or wire == "bedrock":
        return True
    package = _SDKS[provider][0]
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # google.genai without google
        return False
