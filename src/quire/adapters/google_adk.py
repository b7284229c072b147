"""Google ADK: a plugin that fits each model call, and sessions kept in threads."""

from __future__ import annotations

import asyncio
from typing import Any

from quire import providers, values
from quire.adapters import Fitters, HasFitter, target_of
from quire.errors import needs_extra
from quire.log.store import Store
from quire.providers.incoming import plain
from quire.values import Entry, JsonObject

with needs_extra("Google ADK is not installed", "google-adk"):
    from google.adk.events import Event
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.sessions import InMemorySessionService, Session
    from google.genai import types


class QuirePlugin(HasFitter, BasePlugin):
    """Sends the model messages within the budget; the session keeps every event.

        InMemoryRunner(agent, app_name="app", plugins=[QuirePlugin(budget=100_000)])

    Instructions and tools are counted. `target` ("provider:model") is by default the request's model at Gemini; for
    the other options see `quire.Policy`.
    """

    def __init__(self, budget: int = 0, *, target: str = "", **policy: Any) -> None:
        super().__init__("quire")
        self._fitters = Fitters(budget, target, "gemini", policy)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Fit a request before it is sent; a single agent may have this as its `before_model_callback`, too."""
        config, body = llm_request.config, {"contents": plain(llm_request.contents)}
        if instruction := config.system_instruction:
            text = {"role": "user", "parts": [{"text": instruction}]}
            body["systemInstruction"] = text if isinstance(instruction, str) else plain(instruction)
        if config.tools:
            body["tools"] = plain(config.tools)
        named = str(llm_request.model or "").rpartition("/")[2]
        target = self._fitters.target or target_of("gemini", named)
        fitted = self._fitters.fit(body, callback_context.session.id, target)
        if fitted.body is not body:
            contents = fitted.body["contents"]
            llm_request.contents = [types.Content.model_validate(content) for content in contents]


class QuireSessionService(InMemorySessionService):
    """Sessions whose events are entries in a store: another process finds them again with their state.

        Runner(agent=agent, app_name="app", session_service=QuireSessionService(quire.open_store("agent.db")))

    A session is the thread "app/user/session", which can be searched, forked and sent like any other thread.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store, self._lock, self._is_read = store, asyncio.Lock(), False

    async def create_session(
        self, *, app_name: str, user_id: str, state: Any = None, session_id: str | None = None
    ) -> Session:
        await self._read()
        session = await super().create_session(app_name=app_name, user_id=user_id, state=state, session_id=session_id)
        begun = {"app_name": app_name, "user_id": user_id, "session_id": session.id, "state": state}
        await self._append(session, values.note("", meta={"adk_session": begun}))
        return session

    async def get_session(self, **which: Any) -> Session | None:
        await self._read()
        return await super().get_session(**which)

    async def list_sessions(self, **which: Any) -> Any:
        await self._read()
        return await super().list_sessions(**which)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        await self._read()
        await super().delete_session(app_name=app_name, user_id=user_id, session_id=session_id)
        await asyncio.to_thread(self._store.delete, f"{app_name}/{user_id}/{session_id}")

    async def append_event(self, session: Session, event: Event) -> Event:
        stored = await super().append_event(session, event)
        if not event.partial:
            await self._append(session, *_entries(stored))
        return stored

    async def _append(self, session: Session, *entries: Entry) -> None:
        name = f"{session.app_name}/{session.user_id}/{session.id}"
        await asyncio.to_thread(self._store.append, name, entries)

    async def _read(self) -> None:
        """Read the store's sessions, once."""
        async with self._lock:
            if self._is_read:
                return
            for info in await asyncio.to_thread(self._store.threads):
                first = await asyncio.to_thread(self._store.read, info.name, limit=1)
                begun = first[0].meta.get("adk_session") if first else None
                if begun:
                    session = await super().create_session(**begun)
                    for entry in await asyncio.to_thread(self._store.read, info.name):
                        if event := entry.meta.get("adk_event"):
                            await super().append_event(session, Event.model_validate(event))
            self._is_read = True


def _entries(event: Event) -> list[Entry]:
    """The entries of an event; the first one keeps the event itself in its metadata."""
    whole = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    content: JsonObject | None = whole.get("content")
    entries = providers.import_("gemini", [content]) if content and content.get("parts") else []
    first, *more = entries or [values.note("")]
    return [Entry(first.kind, {**first.body, "meta": {**first.meta, "adk_event": whole}}), *more]
