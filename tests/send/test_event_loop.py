"""Many threads in one event loop: nothing waits for the disk on it, and every word of a Thread can be awaited."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import AsyncThread, Reply, Thread, Usage, open_store, values
from quire.errors import CallError
from quire.log import lock_turn
from quire.log.sqlite import SqliteStore
from quire.send.cycle import resume_sync, run, run_sync
from quire.send.runners import planned
from quire.send.tools import Toolbox
from quire.testing import emulator
from quire.values import Call, JsonObject, Text
from toolbox import Runner, close, transport_for

TARGET = "anthropic:claude-opus-5-5"
SLOW_S = 0.02


class SlowDisk(SqliteStore):
    """A store whose appends take a while, and which notes the OS threads that any of its methods is called from."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.callers: set[int] = set()
        for name, method in inspect.getmembers(SqliteStore, inspect.isfunction):
            if not name.startswith("_") and name not in ("close", "turn_lock"):
                setattr(self, name, self._noted(name, method.__get__(self)))

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **named: Any) -> Any:
            self.callers.add(threading.get_ident())
            if name == "append":
                time.sleep(SLOW_S)
            return call(*args, **named)

        return noted

    @contextmanager
    def turn_lock(self, thread: str) -> Iterator[None]:
        with super().turn_lock(thread):
            self.callers.add(threading.get_ident())
            yield
            self.callers.add(threading.get_ident())


def replies(body: JsonObject) -> list[Any]:
    if "JSON array" in str(body.get("system")):
        return [Text('[{"tool": "now", "args": {}}]')]
    done = sum(block.get("type") == "tool_result" for one in body["messages"] for block in one["content"])
    return [Text("Done.")] if done else [Text("One."), Call("c1", "now", {}), Call("c2", "now", {})]


def now() -> str:
    """What time it is."""
    return "noon"


@pytest.mark.parametrize("runner", [Runner(tools=Toolbox(now)), planned([now])], ids=["tools", "planned"])
def test_twenty_turns_at_once_never_wait_for_the_disk_on_the_loop(tmp_path: Path, runner: Runner) -> None:
    async def turn(store: SlowDisk, name: str, url: str) -> str:
        transport = transport_for(TARGET, url, "key", via="http")
        try:
            thread = AsyncThread(Thread(store, name))
            await thread.user("Hello")
            await thread.run(TARGET, transport, runner=runner)
            await thread.results(await called(thread, "now"), [now])
            return (await thread.resume(transport, runner=runner)).text
        finally:
            await close(transport)

    async def all_of_them(store: SlowDisk, url: str) -> list[str]:
        return await asyncio.gather(*(turn(store, f"t{number}", url) for number in range(20)))

    with emulator("anthropic", replies) as server, SlowDisk(tmp_path / "t.db") as store:
        store.callers.clear()
        assert asyncio.run(all_of_them(store, server.url)) == ["Done."] * 20
        assert store.callers
        assert threading.get_ident() not in store.callers


async def test_an_async_thread_speaks_as_a_thread_does(tmp_path: Path) -> None:
    async with AsyncThread(quire.open(tmp_path / "t.db", "t")) as thread:
        await thread.append(values.system("Be brief."))
        await thread.user("My dog is called Rex.")
        request = await thread.request(TARGET)
        await thread.record({"id": "m", "type": "message", "role": "assistant", "model": request.model,
                             "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn",
                             "usage": {"input_tokens": 9, "output_tokens": 2}})  # fmt: skip
        assert [hit.seq for hit in await thread.recall("dog", k=1, exclude=())] == [2]
        said = thread.thread.store.read("t")
    assert [entry.kind for entry in said] == ["system", "user", "sent", "respond"]
    words = {name for name, method in vars(Thread).items() if callable(method) and not name.startswith("_")}
    words -= {"sent_entry", "policy_at"}  # which touch no disk
    words -= {"reads_its_log"}  # for whoever keeps threads open, in an OS thread of its own
    assert words <= set(vars(AsyncThread))
    assert all(inspect.iscoroutinefunction(getattr(AsyncThread, name)) for name in words)


async def called(thread: AsyncThread, *names: str) -> Reply:
    """A reply that calls tools, recorded."""
    await thread.user("What time is it?")
    await thread.request(TARGET)
    reply = Reply(tuple(values.call(f"toolu_{at}", name, {}) for at, name in enumerate(names)), Usage(9, output=1))
    await thread.record(reply)
    return reply


async def test_asynchronous_tools_run_in_the_loop_of_whoever_awaits_their_results(tmp_path: Path) -> None:
    loops = []

    async def look() -> str:
        """Look."""
        loops.append(asyncio.get_running_loop())
        return "seen"

    async with AsyncThread(quire.open(tmp_path / "t.db", "t")) as thread:
        results = await thread.results(await called(thread, "look", "now", "nobody"), [look, now])
    assert [result.body.get("content") for result in results] == ["seen", "noon", None]
    assert loops == [asyncio.get_running_loop()]


async def test_a_call_that_has_begun_has_its_result_whoever_cancels(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def order() -> str:
        """Order."""
        begun.set()
        await go_on.wait()
        return "ordered"

    async with AsyncThread(quire.open(tmp_path / "t.db", "t")) as thread:
        running = asyncio.create_task(thread.results(await called(thread, "order", "now"), [order, now]))
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        said = [entry.body["content"] for entry in thread.thread.entries if entry.kind == "result"]
    assert said == ["ordered"]


@pytest.mark.parametrize("others", [False, True], ids=["", "with-all-tasks"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_turn_whose_lock_comes_after_the_cancel_is_given_back(times: int, others: bool) -> None:
    """Cancelled by its caller, again and again as by anyio, or with every task of its loop as by a signal."""
    go_on, steps = threading.Event(), []

    @contextmanager
    def lock() -> Iterator[None]:
        go_on.wait()
        steps.append("taken")
        yield
        steps.append("given back")

    async def hold() -> None:
        async with lock_turn(lock()):
            steps.append("held")

    holding = asyncio.create_task(hold())
    for _ in range(times):
        await asyncio.sleep(0.01)
        for task in asyncio.all_tasks() - {asyncio.current_task()} if others else {holding}:
            task.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert steps == ["taken", "given back"]


@pytest.mark.parametrize(
    "call",
    [lambda thread: run_sync(thread, TARGET, None), resume_sync, Thread.resume],
    ids=["run_sync", "resume_sync", "Thread.resume"],
)
async def test_what_would_block_the_loop_says_what_to_call(call: Callable[[Thread], Any], tmp_path: Path) -> None:
    with open_store(tmp_path / "t.db") as store:
        thread = Thread(store, "t")
        thread.user("Hello")
        with pytest.raises(CallError, match="would block the event loop") as caught:
            call(thread)
        assert "await " in caught.value.hint


def test_a_turn_that_is_cancelled_while_it_writes_writes_to_the_end(tmp_path: Path) -> None:
    async def cancelled(store: SlowDisk, url: str, after_s: float) -> None:
        transport = transport_for(TARGET, url, "key", via="http")
        turn = asyncio.create_task(run(Thread(store, "t"), TARGET, transport, Runner(tools=Toolbox(now))))
        await asyncio.sleep(after_s)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        await close(transport)

    for number in range(12):
        with emulator("anthropic", replies) as server, SlowDisk(tmp_path / f"t{number}.db") as store:
            store.append("t", [values.user("Hello")])
            asyncio.run(cancelled(store, server.url, number * SLOW_S / 1.5))
            kinds = [entry.kind for entry in store.read("t")]
            ids = [entry.call_id for entry in store.read("t") if entry.kind == "call"]
            assert len(set(ids)) == len(ids), kinds
            assert kinds.count("respond") <= 2, kinds
            assert store.verify("t").entries == len(kinds)


@pytest.fixture(autouse=True)
def no_turn_stays_held() -> Iterator[None]:
    yield
    from quire import log

    assert log._fences == {}
