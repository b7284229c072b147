"""LiteLLM, in a program or as its proxy: a callback that fits requests and records calls in threads."""

from __future__ import annotations

import asyncio
import atexit
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from quire.adapters import Fitters, HasFitter, marked_content, record, takes_marks, target_of
from quire.errors import needs_extra
from quire.log.store import Store
from quire.providers.incoming import plain
from quire.server import Recent
from quire.thread import Thread
from quire.values import JsonObject

with needs_extra("LiteLLM is not installed", "litellm"):
    from litellm import get_llm_provider
    from litellm.integrations.custom_logger import CustomLogger
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

_CHAT = ("completion", "acompletion", "text_completion", "anthropic_messages")


class QuireLogger(HasFitter, CustomLogger):
    """Fits the messages of each call; with a store, it also records the whole messages, the reply and the usage.

        litellm.callbacks = [QuireLogger(quire.open_store("calls.db"), budget=100_000)]

    A call's thread is named by its metadata, {"thread": "chat"}, else `thread`; `fit=False` only records. Fitting needs
    the asynchronous calls or the proxy, with `messages` given by name; `litellm.completion` is only recorded.
    """

    def __init__(
        self,
        store: Store | None = None,
        budget: int = 0,
        *,
        thread: str = "litellm",
        target: str = "",
        fit: bool = True,
        **policy: Any,
    ) -> None:
        super().__init__()
        self._store, self._thread, self._fits = store, thread, fit
        self._fitters = Fitters(budget, target, "openai-chat", policy)
        # The unfitted messages of running calls, by call id: these are recorded. Only the newest are kept, because
        # LiteLLM never reports the end of a stream that nobody reads to its end.
        self._originals: Recent[str, list[JsonObject]] = Recent(1_000)
        # Calls are recorded one after the other, in the order in which LiteLLM reports them.
        self._writer = ThreadPoolExecutor(1, "quire-litellm")
        # LiteLLM reports its last calls at exit, when the store may be closed already: flush them before that.
        atexit.register(getattr(GLOBAL_LOGGING_WORKER, "_flush_on_exit", lambda: None))

    async def async_pre_call_deployment_hook(self, kwargs: JsonObject, call_type: Any) -> JsonObject:
        """Fit a call once its deployment is chosen: before that, its model may be an alias."""
        return self._fit(kwargs, call_type)

    def _fit(self, data: JsonObject, call_type: Any) -> JsonObject:
        call, named = str(data.get("litellm_call_id")), getattr(call_type, "value", call_type)
        if named not in _CHAT or not data.get("messages") or call in self._originals:
            return data
        messages = self._originals[call] = plain(list(data["messages"]))
        if not self._fits:
            return data
        body = {"messages": messages, "tools": data.get("tools") or []}
        target = self._fitters.target or _target(str(data.get("model") or ""))
        whole, marks = self._fitters.fit(body, _name(data) or str(messages[:2]), target)
        fitted = whole["messages"]
        if takes_marks(target):
            fitted = [_mark(message, index in marks) for index, message in enumerate(fitted)]
        return {**data, "messages": fitted}

    async def async_log_success_event(
        self, kwargs: JsonObject, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        try:
            written = asyncio.get_running_loop().run_in_executor(self._writer, self._record, kwargs, response_obj)
        except RuntimeError:  # at exit, when no thread can be started, LiteLLM reports its last calls
            self._record(kwargs, response_obj)
        else:
            await written

    def log_success_event(self, kwargs: JsonObject, response_obj: Any, start_time: Any, end_time: Any) -> None:
        # Asynchronous calls are reported to both hooks: the other one records them.
        if not kwargs.get("litellm_params", {}).get("acompletion"):
            self._writer.submit(self._record, kwargs, response_obj).result()

    async def async_log_failure_event(
        self, kwargs: JsonObject, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        self._originals.pop(str(kwargs.get("litellm_call_id")), None)

    def _record(self, kwargs: JsonObject, reply: Any) -> None:
        messages = self._originals.pop(str(kwargs.get("litellm_call_id")), None) or plain(kwargs.get("messages"))
        if self._store is None or not isinstance(messages, list):
            return
        thread = Thread(self._store, _name(kwargs.get("litellm_params") or {}) or self._thread)
        tools = (kwargs.get("optional_params") or {}).get("tools") or kwargs.get("tools")
        defined = {"tools": tools} if tools and "function" in tools[0] else {}
        target = target_of(str(kwargs.get("custom_llm_provider") or ""), str(kwargs.get("model") or ""))
        record(thread, target, {"messages": messages, **defined}, plain(reply))


def _target(model: str) -> str:
    name, provider, *_ = get_llm_provider(model)
    return target_of(provider, name)


def _name(data: JsonObject) -> str:
    """The thread that a call's metadata names."""
    return str((data.get("metadata") or {}).get("thread") or "")


def _mark(message: JsonObject, is_marked: bool) -> JsonObject:
    """A message with its cache mark; the system prompt always has one, what the model wrote never."""
    if message["role"] == "assistant" or not message.get("content"):
        return message
    return {**message, "content": marked_content(message["content"], is_marked or message["role"] == "system")}
