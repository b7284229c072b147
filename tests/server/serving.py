"""What tests of the service share: one that runs, and a reader of its events."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from quire import Entry
from quire.send.events import Event
from quire.server.app import Running
from quire.server.service import Service
from toolbox import EventReader

PLACES = ("a file", "postgres")


def new_place(kind: str, request: pytest.FixtureRequest) -> str:
    """Where a service may keep its threads: a file, or a database of its own on the server that all tests share."""
    if kind == "a file":
        return str(request.getfixturevalue("tmp_path_factory").mktemp("service") / "q.db")
    import psycopg

    url, name = urlsplit(request.getfixturevalue("pg_url")), f"q{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url.geturl(), autocommit=True) as conn:
        conn.execute(f"create database {name}")
    return url._replace(path=f"/{name}").geturl()


@contextmanager
def served(db: str | Path, proxies: Any = None, **how: Any) -> Iterator[httpx.Client]:
    """A service in a thread of its own."""
    service = Service(db, **how)
    with Running(service, proxies=proxies) as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/readyz").status_code == 200
        yield client


def user(text: str) -> dict[str, Any]:
    return {"kind": "user", "text": text}


class SseReader(EventReader):
    """Takes events as they come over HTTP, whole ones alone."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.outcome: Any = None
        self._rest = b""

    @property
    def seq(self) -> int:
        """The newest entry that was told."""
        return int(self.last.partition(":")[0] or 0)

    def connected(self) -> dict[str, str]:
        """Begin a connection: what was left of the one before is worth nothing."""
        self._rest = b""
        return {"last-event-id": self.last} if self.last else {}

    def feed(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        for block in whole:
            lines = [line.partition(": ") for line in block.decode().split("\n") if not line.startswith(":")]
            fields = {name: value for name, _, value in lines}
            if fields.get("event") == "outcome":
                self.outcome = json.loads(fields["data"])
            elif "data" in fields:
                told = json.loads(fields["data"])
                entry = Entry(told["kind"], told["entry"], told["entry"]["seq"]) if "entry" in told else None
                self.ids.append(fields["id"])
                self.take(Event(self.ids[-1], told["kind"], told.get("text", ""), entry, told.get("part", 0)))
