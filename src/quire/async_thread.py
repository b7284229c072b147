"""A `Thread` for programs that run in an event loop: the same vocabulary, each word awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from quire.log import off_loop
from quire.providers.wires import events_in, feed, snapshot
from quire.thread import Thread

if TYPE_CHECKING:
    from quire.providers.gemini_cache import Served
    from quire.send.cycle import Outcome
    from quire.send.transport import Transport
    from quire.values import Entry, Request

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def _in_os_thread(
    method: Callable[Concatenate[Thread, _Given], _Made],
) -> Callable[Concatenate[AsyncThread, _Given], Coroutine[Any, Any, _Made]]:
    """A method of Thread, called in an OS thread so that the loop goes on meanwhile."""

    @wraps(method)
    async def call(self: AsyncThread, /, *args: _Given.args, **named: _Given.kwargs) -> _Made:
        return await off_loop(method, self.thread, *args, **named)

    return call


class AsyncThread:
    """`thread = AsyncThread(quire.open("threads.db", "demo"))`, then `await thread.user("Hello")`.

    It holds no state of its own: `thread.thread` is the Thread, and both may be used.
    """

    def __init__(self, thread: Thread) -> None:
        self.thread = thread

    append = _in_os_thread(Thread.append)
    user = _in_os_thread(Thread.user)  # type: ignore[arg-type]  # nobody gives self by name
    request = _in_os_thread(Thread.request)
    build = _in_os_thread(Thread.build)
    room = _in_os_thread(Thread.room)
    so_far = _in_os_thread(Thread.so_far)
    envelope = _in_os_thread(Thread.envelope)
    tools = _in_os_thread(Thread.tools)
    reported = _in_os_thread(Thread.reported)
    recall = _in_os_thread(Thread.recall)
    answer_recall = _in_os_thread(Thread.answer_recall)
    recall_result = _in_os_thread(Thread.recall_result)
    recall_unasked = _in_os_thread(Thread.recall_unasked)
    kept_items = _in_os_thread(Thread.kept_items)
    keep = _in_os_thread(Thread.keep)  # type: ignore[arg-type]  # nobody gives self by name
    learn_window = _in_os_thread(Thread.learn_window)
    use_window = _in_os_thread(Thread.use_window)
    close = _in_os_thread(Thread.close)

    async def record(
        self,
        reply: Any,
        request: Request | None = None,
        served: Served | None = None,
        *,
        on_text: Callable[[str], object] | None = None,
    ) -> list[Entry]:
        """Append a reply to the log; a stream, sync or async, is read to its end, and `on_text` gets each piece of text."""
        if hasattr(events := events_in(reply), "__aiter__"):
            reader, was_begun, is_fed = self.thread._reader(request), snapshot(events) is not None, False
            async for event in events:
                if is_fed := not was_begun:
                    feed(reader, event, on_text)
            whole = None if is_fed else snapshot(events)
            if not is_fed and hasattr(events, "get_final_response"):
                with suppress(RuntimeError):  # what OpenAI's SDK raises when no response was completed
                    whole = await events.get_final_response()
            reply = reader.reply() if whole is None else whole
        return await off_loop(self.thread.record, reply, request, served, on_text=on_text)

    async def results(self, reply: Any, run: Any) -> list[Entry]:
        """Run the calls of a recorded reply as `Thread.results` does; asynchronous tools run in this event loop."""
        return await self.thread._results(reply, run)

    async def run(self, target: str, transport: Transport, **how: Any) -> Outcome:
        """Carry out the newest turn; `runner`, `decide` and `on_event` are those of `quire.send.cycle.run`."""
        from quire.send.cycle import run

        return await run(self.thread, target, transport, **how)

    async def resume(self, transport: Transport | None = None, **how: Any) -> Outcome:
        """Continue an interrupted turn from the log."""
        from quire.send.cycle import resume

        return await resume(self.thread, transport, **how)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()
