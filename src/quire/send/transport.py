"""How a request reaches a model: one protocol, over the official SDKs or plain HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from quire.providers.explicit import Served
from quire.values import JsonObject, Request


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
