"""Appends that come to a process at the same time share a commit.

An append that finds nobody at work commits by itself. Those that come meanwhile are committed together by one OS thread
of its own. Signals interrupt only the main OS thread, which works for nobody but itself and wakes nobody: an interrupt
ends one append, and no other waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from quire.log.postgres_connection import LostConnection

# So many appends share a commit at most. Where commits are slower than this, those that shared the last one are waited
# for, a quarter of that time.
_TOGETHER: Final = 64
_SLOW_S: Final = 0.004
# So many of those that shared a commit are woken at once: more would only wait for each other.
_AT_ONCE: Final = 3
# An OS thread without work ends.
_IDLE_S: Final = 10.0

_Answer = TypeVar("_Answer")


class _ToThread(Protocol):
    thread: str


_Append = TypeVar("_Append", bound=_ToThread)


class _WaitingAppend(Generic[_Append, _Answer]):
    """An append that waits for its commit."""

    def __init__(self, append: _Append) -> None:
        self.append = append
        self.answer: _Answer | None = None
        self.error: Exception | None = None
        # Held until there is an answer or an error.
        self.ready = threading.Lock()
        self.ready.acquire()
        # The appends whose callers it wakes when it is woken itself.
        self.next: _WaitingAppend[_Append, _Answer] | None = None
        # Its caller was interrupted: unless its commit is under way already, it is not stored.
        self.is_abandoned = False
        self.is_interruptible = threading.current_thread() is threading.main_thread()


class SharedCommits(Generic[_Append, _Answer]):
    """Commits of one store; `commit` sends appends of different threads and, when resumed, yields their answers."""

    def __init__(self, commit: Callable[[Sequence[_Append]], Generator[None, None, list[_Answer]]]) -> None:
        self._commit = commit
        # Held by whoever commits.
        self._turn = threading.Lock()
        # Held where it is decided who commits by itself, and where the worker begins and ends.
        self._lock = threading.Lock()
        self._alone: _Append | None = None
        self._worker: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[_WaitingAppend[_Append, _Answer] | None] = queue.SimpleQueue()
        # How many shared the last commit, how long it was waited for.
        self._shared, self._took_s = 1, 0.0
        # Released when as many ask again, while they are waited for. Not an Event, in whose Python code an interrupt
        # could leave a lock held.
        self._as_many: threading.Lock | None = None

    def ask(self, append: _Append) -> _Answer:
        """Commit an append, by itself or with others."""
        asker: _WaitingAppend[_Append, _Answer] | None = None
        try:
            with self._lock:
                if self._alone is None and self._waiting.empty() and not self._turn.locked():
                    self._alone = append
                else:
                    asker = self._queue(append)
            if asker is None:
                with self._turn:
                    return _finish(self._commit([append]))[0]
        finally:
            # No function call in here: an interrupt could come in between.
            if self._alone is append:
                self._alone = None
        try:
            asker.ready.acquire()
        except BaseException:
            asker.is_abandoned = True
            raise
        if asker.next is not None:
            asker.next.ready.release()
        if asker.error is not None:
            raise asker.error
        assert asker.answer is not None
        return asker.answer

    def _queue(self, append: _Append) -> _WaitingAppend[_Append, _Answer]:
        asker: _WaitingAppend[_Append, _Answer] = _WaitingAppend(append)
        if self._worker is None:
            worker = threading.Thread(target=self._work, name="quire-commits", daemon=True)
            worker.start()
            self._worker = worker
        self._waiting.put(asker)
        as_many = self._as_many
        if as_many is not None and self._waiting.qsize() >= self._shared:
            self._as_many = None
            as_many.release()
        return asker

    def close(self) -> None:
        """End the worker once everything queued is committed."""
        with self._lock:
            worker = self._worker
            if worker is not None:
                self._waiting.put(None)
        if worker is not None:
            worker.join()

    def _work(self) -> None:
        while True:
            try:
                first = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                first = None
            if first is not None:
                with self._turn:
                    self._commit_all([first])
                continue
            with self._lock:
                if self._waiting.empty():
                    self._worker = None
                    return

    def _commit_all(self, waiting: list[_WaitingAppend[_Append, _Answer]]) -> None:
        """Commit as long as anybody waits.

        Where commits are quick the next is sent before the callers of the last go on, so that the server does not wait
        for those; where they are slow all come together again first.
        """
        answered: list[_WaitingAppend[_Append, _Answer]] = []
        while True:
            if self._took_s > _SLOW_S:
                _wake(answered)
                answered = []
            together, waiting = _one_a_thread(self._gather(waiting))
            if not together:
                break
            commit, began = self._answer(together), time.monotonic()
            next(commit, None)
            _wake(answered)
            _finish(commit)
            answered, self._shared, self._took_s = together, len(together), time.monotonic() - began
        _wake(answered)

    def _gather(self, waiting: list[_WaitingAppend[_Append, _Answer]]) -> list[_WaitingAppend[_Append, _Answer]]:
        """Those that wait and all that came meanwhile."""
        if self._took_s > _SLOW_S and self._waiting.qsize() < self._shared:
            as_many = threading.Lock()
            as_many.acquire()
            self._as_many = as_many
            as_many.acquire(timeout=self._took_s / 4)
            self._as_many = None
        with suppress(queue.Empty):
            while len(waiting) < _TOGETHER:
                asker = self._waiting.get_nowait()
                if asker is None:
                    self._waiting.put(None)
                    break
                waiting.append(asker)
        return waiting

    def _answer(self, together: Sequence[_WaitingAppend[_Append, _Answer]]) -> Generator[None, None, None]:
        try:
            answers = yield from self._commit([asker.append for asker in together])
            for asker, answer in zip(together, answers, strict=True):
                asker.answer = answer
        except Exception as error:
            if len(together) > 1 and not isinstance(error, LostConnection):
                for asker in together:  # one of them is at fault, and it alone is told
                    yield from self._answer([asker])
            else:
                for asker in together:
                    asker.error = error


def _one_a_thread(
    waiting: Iterable[_WaitingAppend[_Append, _Answer]],
) -> tuple[list[_WaitingAppend[_Append, _Answer]], list[_WaitingAppend[_Append, _Answer]]]:
    """The first append to each thread, and those that stand behind one of these."""
    first: dict[str, _WaitingAppend[_Append, _Answer]] = {}
    wanted = (asker for asker in waiting if not asker.is_abandoned)
    behind = [asker for asker in wanted if first.setdefault(asker.append.thread, asker) is not asker]
    return list(first.values()), behind


def _wake(answered: Iterable[_WaitingAppend[Any, Any]]) -> None:
    """There are answers: the first few are woken, each of these wakes another one."""
    others: list[_WaitingAppend[Any, Any]] = []
    for asker in answered:
        if asker.is_interruptible:
            asker.ready.release()
        else:
            others.append(asker)
    for asker, behind in zip(others, others[_AT_ONCE:], strict=False):
        asker.next = behind
    for asker in others[:_AT_ONCE]:
        asker.ready.release()


def _finish(commit: Generator[None, None, _Answer]) -> _Answer:
    """Resume a commit and return its answers."""
    try:
        while True:
            next(commit)
    except StopIteration as end:
        answer: _Answer = end.value
        return answer
