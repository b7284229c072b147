"""How a request reaches a model: one protocol, over the official SDKs or plain HTTP."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

import msgspec

from quire.errors import ProviderError
from quire.providers.gemini_cache import Served
from quire.providers.models import provider_facts, resolve
from quire.values import Json, JsonObject, Request


class Transport(Protocol):
    """Sends a rendered request; every failure is a ProviderError that says whether to try again."""

    def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The provider's own stream events, as JSON, while they arrive (an async generator)."""

    async def send(self, request: Request) -> JsonObject:
        """The provider's whole reply, as JSON."""


async def close(transport: Transport) -> None:
    """End a transport's connections, if it keeps any; the next request makes new ones."""
    aclose = getattr(transport, "aclose", None)
    if aclose is not None:
        await aclose()


def served(transport: Transport, request: Request) -> Served | None:
    """What an explicit cache did for a request that was answered, where the transport keeps such caches."""
    told = getattr(transport, "served", None)
    found: Served | None = told(request) if told is not None else None
    return found


# Where each provider is reached, and what its key is called; the environment is given, never read here.


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider's row: its address, and the environment variables its key is usually kept in, first one first."""

    base_url: str
    keys: tuple[str, ...] = ()
    # The variables that name another address, as the provider's own SDK reads them.
    addresses: tuple[str, ...] = ()
    # A server of one's own usually asks for no key; boto3 finds credentials by its own rules.
    needs_key: bool = True
    # The package of the official SDK that reaches it.
    sdk: str = ""
    # Whether a reply can be held to a JSON schema, so that even a small model writes valid calls.
    holds_to_schema: bool = False


@functools.cache
def endpoint_for(target: str) -> Endpoint:
    """The endpoint of "provider:model", or of a provider."""
    return msgspec.convert(provider_facts(resolve(target.partition(":")[0])[0])["endpoint"], Endpoint)


def key_for(target: str, environment: Mapping[str, str]) -> str | None:
    """The key of a model's provider in an environment; None where it holds none."""
    return next(filter(None, map(environment.get, endpoint_for(target).keys)), None)


def address_for(target: str, environment: Mapping[str, str]) -> str | None:
    """The address that an environment names for a model's provider, where it names one."""
    return next(filter(None, map(environment.get, endpoint_for(target).addresses)), None)


# A provider's failures in Quire's words: what happened, whether to try again, what to do next.

RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# A limit that waiting does not lift.
_FINAL = ("insufficient_quota", "billing", "credit balance", "exceeded your current quota")

_LONGEST = 300
_PAGE = re.compile(r"\s*<(!doctype|html|head|body|\?xml)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>([^<]+)", re.IGNORECASE)


def refusal(provider: str, status: int, said: Json, headers: Mapping[str, str] | None = None) -> ProviderError:
    """The error of an HTTP status; `said` is the reply's body, as JSON or text."""
    message = message_of(said) or "no message"
    final = any(word in f"{message} {said}".lower() for word in _FINAL)
    return ProviderError(
        f"{provider} answered {status}: {message}",
        status=status,
        retryable=status in RETRYABLE and not final,
        hint=_hint(status, endpoint_for(provider)),
        retry_after_s=retry_after(headers or {}),
    )


def unreachable(provider: str, base_url: str, error: BaseException) -> ProviderError:
    """The error of a connection that was not made, or broke."""
    what = str(error) or type(error).__name__
    base_url = without_password(base_url)
    return ProviderError(
        f"the connection to {provider} failed: {what}",
        retryable=True,
        hint=f"Check that {base_url} can be reached." if base_url else "Check the network.",
    )


# How servers name the window that a request was too long for.
_NUMBER = re.compile(r"\d[\d,]{2,}")
_WINDOWS = (
    re.compile(r"context (?:length|size|window)\D{0,40}([\d,]{3,})", re.IGNORECASE),
    re.compile(r"> ([\d,]{3,}) maximum"),
    re.compile(r"maximum number of tokens allowed \(?([\d,]{3,})"),
)


def named_window(error: ProviderError) -> tuple[int, int] | None:
    """The window that a refusal names, and the tokens it counted: "5000 tokens > 4096 maximum" -> (4096, 5000)."""
    found = next((match for pattern in _WINDOWS if (match := pattern.search(str(error)))), None)
    if error.status not in (400, 413) or found is None:
        return None
    window, *others = (int(each.replace(",", "")) for each in (found[1], *_NUMBER.findall(str(error))))
    return window, max([window, *(other for other in others if other < 100 * window)])


def without_password(url: str) -> str:
    """An address that can be shown: https://me:secret@host/v1 -> https://host/v1."""
    scheme, found, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}" if found else url


def timed_out(provider: str, timeout_s: float) -> ProviderError:
    return ProviderError(
        f"{provider} sent nothing for {timeout_s:g} s",
        retryable=True,
        hint="Try again, or allow more time with timeout_s.",
    )


def too_deep(provider: str) -> ProviderError:
    return ProviderError(
        f"{provider} sent JSON that is nested too deeply to be read", hint="No provider does that; check the base URL."
    )


def message_of(said: Json) -> str:
    """The sentence in an error body: {"error": {"message": …}}, {"message": …}, [{…}] or text."""
    if isinstance(said, list):
        said = said[0] if said else None
    if isinstance(said, dict):
        inner = said.get("error")
        if isinstance(inner, dict | str):
            return message_of(inner)
        said = said.get("message") or said.get("Message") or said.get("detail")
    return _one_line(str(said or ""))


def _one_line(said: str) -> str:
    """Words without line breaks, cut where long; of a web page, its title."""
    if _PAGE.match(said):
        title = _TITLE.search(said)
        said = f"a web page ({html.unescape(title[1])})" if title else "a web page"
    words = " ".join(said.split())
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How long a provider asks to wait: seconds, milliseconds or a date."""
    lower = {key.lower(): value for key, value in headers.items()}
    try:
        if "retry-after-ms" in lower:
            return max(0.0, float(lower["retry-after-ms"]) / 1000)
        return max(0.0, float(lower["retry-after"])) if "retry-after" in lower else None
    except ValueError:
        return _until(lower.get("retry-after", ""), lower.get("date", ""))


def _until(date: str, now: str) -> float | None:
    """The seconds from the reply's own date to another; a clock of ours would only add its own error."""
    try:
        since = parsedate_to_datetime(now) if now else datetime.now(UTC)
        return max(0.0, (parsedate_to_datetime(date) - since).total_seconds())
    except (ValueError, TypeError):
        return None


def _hint(status: int, endpoint: Endpoint) -> str:
    keys = " or ".join(endpoint.keys)
    if status in (401, 403):
        return f"Check the API key ({keys})." if keys else "Check the API key."
    if status == 404:
        return "Check the model's name and the base URL."
    if status in (400, 413, 422):
        return "`quire lint` shows which rule a request breaks."
    if status in RETRYABLE:
        return "It was tried several times; `quire resume` goes on later."
    if status == 402:
        return "Check the account at the provider."
    return "Check the base URL and what the provider says of this status."
