"""Gemini's explicit caches, carried out: a transport that keeps one for each conversation while it pays.

The keeper decides; its calls are made here, and requests are sent behind what is kept. Whatever becomes of a cache,
a turn does not fail for it: the request then goes out whole. Callers see and record the whole request always.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec

from quire.errors import ProviderError
from quire.log.hashing import sha256_hex
from quire.providers.gemini_cache import CacheCall, CacheKeeper, Served, lasting
from quire.providers.models import model_info
from quire.providers.prefix import line, prefix_bytes
from quire.providers.usage import usage
from quire.send.transport import Transport, close
from quire.values import JsonObject, Request

# No cache is kept longer than this without being asked for: what is older can be forgotten.
_LONGEST_MS = 3_600_000
# A program that ends does not wait longer for its caches to go; they end by themselves.
_FAREWELL_S = 10.0
_GONE = (403, 404)


class CacheCalls(Protocol):
    """Where explicit caches are made, prolonged and deleted."""

    async def carry_out(self, errand: CacheCall) -> JsonObject:
        """Make one call; its reply, or a ProviderError."""


class CachedConversation:
    """A keeper, and by what the conversation it keeps for is known again."""

    def __init__(self, request: Request) -> None:
        self.model, self.keeper = request.model, CacheKeeper(model_info(request.target))
        self.tool_config: Any = request.body.get("toolConfig")
        self.prefix, self.said = b"", frozenset[str]()
        self.asked_ms = 0
        self.busy = self.refused = False
        # The latest request that was answered, and what a cache did for it.
        self.answered: tuple[Request, Served | None] | None = None

    def goes_on(self, request: Request) -> bool:
        """Whether a request extends the latest one, or says most of it again behind another beginning (a rebase)."""
        # The prefix does not hold the tool configuration, but a cache does.
        if (self.model, self.tool_config) != (request.model, request.body.get("toolConfig")):
            return False
        return request.prefix.startswith(self.prefix) or self._says_again(request)

    def _says_again(self, request: Request) -> bool:
        said = _said(request.body)[1:]
        return 2 * sum(each in self.said for each in said) >= max(1, len(said))

    def ask(self, request: Request, at_ms: int) -> list[CacheCall]:
        """Take the next request; the calls to make before it."""
        self.prefix = prefix_bytes(lasting(request.body), "gemini")
        self.said, self.asked_ms = frozenset(_said(request.body)), at_ms
        return [] if self.busy or self.refused else self.keeper.due(request.body, at_ms)


class CachedTransport:
    """A transport around another that speaks to Gemini; `caches` makes the calls, `clock` says the time in ms."""

    def __init__(self, inner: Transport, caches: CacheCalls, clock: Callable[[], int] | None = None) -> None:
        self.inner, self._caches, self._clock = inner, caches, clock or _wall_clock
        self.conversations: list[CachedConversation] = []

    async def aclose(self) -> None:
        """Delete the caches that are still held, as far as that works, and end the connections."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                for conversation in self.conversations:
                    if conversation.keeper.kept is not None:
                        await self._carry_out(
                            conversation, CacheCall("DELETE", conversation.keeper.kept.name)
                        )
        except TimeoutError:
            pass
        finally:
            await close(self.inner)

    def served(self, request: Request) -> Served | None:
        """What an explicit cache did for a request that was answered; None where there was none."""
        known = [
            conversation.answered for conversation in self.conversations if conversation.answered is not None
        ]
        return next((served for asked, served in known if asked is request), None)

    async def send(self, request: Request) -> JsonObject:
        """The whole reply."""
        at = await self._prepared(request)
        behind = _behind(at, request)
        try:
            reply = await self.inner.send(behind)
        except ProviderError as error:
            if behind is request or error.status not in _GONE:
                raise
            at.keeper.forget()
            behind = request
            reply = await self.inner.send(request)
        _answered(at, reply)
        at.answered = request, at.keeper.served(behind.body)
        return reply

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The reply's events."""
        at = await self._prepared(request)
        began = False
        for sent in (_behind(at, request), request):
            try:
                async with aclosing(self._heard(at, sent)) as events:
                    async for event in events:
                        began = True
                        yield event
                at.answered = request, at.keeper.served(sent.body)
                return
            except ProviderError as error:
                if sent is request or began or error.status not in _GONE:
                    raise
                at.keeper.forget()

    async def _heard(self, at: CachedConversation, request: Request) -> AsyncGenerator[JsonObject]:
        """A reply's events; what it used is known even where its reader leaves early."""
        latest: JsonObject = {}
        try:
            async with aclosing(cast(AsyncGenerator[JsonObject, Any], self.inner.stream(request))) as events:
                async for event in events:
                    latest = event if event.get("usageMetadata") else latest
                    yield event
        finally:
            _answered(at, latest)

    async def _prepared(self, request: Request) -> CachedConversation:
        """The conversation of a request, once the calls that are due before it were made."""
        at_ms = self._clock()
        at = self._conversation(request, at_ms)
        errands = at.ask(request, at_ms)
        if errands:
            await self._carry_out_all(at, errands)
        return at

    async def _carry_out_all(self, at: CachedConversation, errands: list[CacheCall]) -> None:
        """The calls in order; a request that comes meanwhile asks for none of its own."""
        at.busy = True
        try:
            for errand in errands:
                await self._carry_out(at, errand)
        finally:
            at.busy = False

    def _conversation(self, request: Request, at_ms: int) -> CachedConversation:
        """The one that this request continues most closely, or a new one."""
        recent = [
            conversation
            for conversation in self.conversations
            if at_ms - conversation.asked_ms <= _LONGEST_MS
        ]
        known = [each for each in recent if each.goes_on(request)]
        if not known:
            recent.append(CachedConversation(request))
        self.conversations = recent
        return max(known, key=lambda each: len(each.prefix), default=recent[-1])

    async def _carry_out(self, at: CachedConversation, errand: CacheCall) -> None:
        """One call; one that fails leaves the conversation without a cache."""
        reply: JsonObject | None = None
        try:
            reply = await self._caches.carry_out(errand)
        except ProviderError as error:
            # What this server will not keep now, it will not keep the next time either.
            at.refused = at.refused or (errand.method == "POST" and not error.retryable)
        at.keeper.done(errand, reply, self._clock())


def _behind(at: CachedConversation, request: Request) -> Request:
    body = at.keeper.behind(request.body)
    return request if body is request.body else msgspec.structs.replace(request, body=body)


def _answered(at: CachedConversation, reply: JsonObject) -> None:
    if reply.get("usageMetadata"):
        at.keeper.answered(usage("gemini", reply))


def _said(body: JsonObject) -> list[str]:
    return [sha256_hex(line(content)) for content in body.get("contents") or ()]


def _wall_clock() -> int:
    return int(time.time() * 1000)
