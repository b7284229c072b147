"""Public parts for users' own tests: a strict provider on 127.0.0.1, and a store in memory.

from quire.testing import emulator, Refuse

with emulator("anthropic", replies=["Hello", Refuse(429, retry_after_s=1)]) as server:
    client = anthropic.Anthropic(base_url=server.url, api_key="any")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.emulate import Cut, Emulator, Refuse, Replies, Reply, Slow
from quire.log.memory import MemoryStore

__all__ = ["Cut", "Emulator", "MemoryStore", "Refuse", "Replies", "Reply", "Slow", "emulator"]


@contextmanager
def emulator(
    provider: str,
    replies: Replies | None = None,
    *,
    piece: int = 12,
    chunk_bytes: int | None = None,
    clock: Callable[[], int] | None = None,
    enforce_binding: bool = True,
    lenient: bool = False,
    state: Path | None = None,
) -> Iterator[Emulator]:
    """A provider's strict stand-in while the block runs: `.url` to send to, `.requests` received (GETs apart)."""
    server = Emulator(
        provider,
        replies,
        piece=piece,
        chunk_bytes=chunk_bytes,
        clock=clock,
        enforce_binding=enforce_binding,
        lenient=lenient,
        state=state,
    )
    with server:
        yield server
