"""What a store holds, for any program that speaks MCP: tools and resources over the official SDK, read alone.

Nothing is appended, recorded or sent to a model; keys and other secrets are replaced by their kind.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import msgspec

import quire
from quire import providers
from quire.assemble.user_message import original
from quire.audit import audit, read_calls
from quire.errors import FormatError, NotFound, QuireError, needs_extra
from quire.log import now_ms
from quire.log.entries import encode
from quire.log.store import Store
from quire.records import Records
from quire.server.service import Redactor
from quire.values import Entry, JsonObject

with needs_extra("the MCP SDK is not installed", "mcp"):
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import MCPServerError, ResourceError, ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field

    from quire.recall import Recall
    from quire.recall.meaning import installed

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

INSTRUCTIONS = """Quire keeps conversations with language models as logs of entries. `recall` finds older entries by \
words and meaning, `show` gives the whole of one (also by a handle that a request names), `assemble` makes the request \
that a model would be sent next and says what was left out, `records` finds kept documents, `audit` tells what recorded \
requests lost of a provider's cache."""

Thread = Annotated[str, Field(description="The thread's name, as `threads` lists it.")]
Model = Annotated[str, Field(description="provider:model, as anthropic:claude-opus-4-6.")]


def make_server(store: Store, redactor: Redactor | None = None) -> MCPServer:
    """An MCP server over a store: `make_server(store).run()` speaks on standard input and output."""
    server = MCPServer("quire", version=quire.__version__, instructions=INSTRUCTIONS)
    reader = _Reader(store, redactor or Redactor())
    for tool in (reader.threads, reader.assemble, reader.recall, reader.show, reader.records, reader.audit):
        server.tool(annotations=ToolAnnotations(read_only_hint=True))(_with_plain_errors(ToolError, tool))
    resources = (
        ("threads", "application/json", reader.thread_list),
        ("threads/{thread}", "application/x-ndjson", reader.log),
        ("threads/{thread}/requests/{model}", "application/json", reader.request),
        ("entries/{entry}", "text/plain", reader.original),
        ("records/{record}", "application/json", reader.record),
    )
    for place, type, read in resources:
        server.resource(f"quire://{place}", mime_type=type)(_with_plain_errors(ResourceError, read))
    return server


def _with_plain_errors(kind: type[MCPServerError], method: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """The method with its errors in one line: what happened, and the next step."""

    @functools.wraps(method)
    def call(*args: _Params.args, **named: _Params.kwargs) -> _Result:
        try:
            return method(*args, **named)
        except QuireError as error:
            raise kind(f"{str(error).removesuffix('.')}. {error.hint}".strip()) from error

    return call


class _Reader:
    """The tools and resources, each a method; their docstrings are what a client is told."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self.store, self.redactor = store, redactor
        self._recall = Recall(store, installed())

    def _redact(self, value: Any) -> Any:
        return self.redactor.value(msgspec.to_builtins(value))

    def _thread(self, name: str) -> quire.Thread:
        if all(info.name != name for info in self.store.threads()):
            raise NotFound(f"there is no thread {name!r}.", hint="`threads` lists those that are there.")
        return quire.Thread(self.store, name)

    def threads(self) -> JsonObject:
        """The threads of the store: name, number of entries, and what each was forked from."""
        return {"threads": self._redact(self.store.threads())}

    def assemble(self, thread: Thread, model: Model) -> JsonObject:
        """The request that a thread would send to a model now: its body, its tokens, and what it leaves out and why."""
        built = self._thread(thread).build(model)
        request = providers.render(built.prompt, model, cache=True, key=thread)
        left_out = [{"entry": row.entry, "reason": row.reason} for row in built.left_out]
        return {
            "body": self._redact(request.body),
            "tokens": built.tokens,
            "epoch": built.epoch,
            "left_out": [*left_out, *request.left_out],
        }

    def recall(
        self,
        query: Annotated[str, Field(description="What is looked for, in words.", min_length=1)],
        thread: Annotated[str, Field(description="Only in this thread; empty: in all.")] = "",
        k: Annotated[int, Field(description="How many at most.", ge=1, le=50)] = 5,
    ) -> JsonObject:
        """Older entries that have to do with a query, the nearest first."""
        if thread:
            self._thread(thread)
        hits = self._recall.search(query, k, thread=thread or None)
        return {"hits": [{"thread": hit.thread, "relevance": hit.relevance, **self._entry(hit.entry)} for hit in hits]}

    def show(
        self,
        entry: Annotated[str, Field(description="An id, a handle, or with `thread` the entry's number.")],
        thread: Annotated[str, Field(description="The thread, where `entry` is a number.")] = "",
    ) -> JsonObject:
        """The whole of one entry: what a handle or a cut result stands for."""
        return self._entry(self._find_entry(entry, thread))

    def records(
        self,
        q: Annotated[str, Field(description="What they have to do with; empty: the newest.")] = "",
        schema_name: str = "",
        tag: str = "",
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
    ) -> JsonObject:
        """Records of a schema or with a tag; with `q` those that have to do with it, the nearest first."""
        table, tags, now = Records(self.store), tag or (), now_ms()
        if q:
            records = [hit.record for hit in table.search(q, nn=limit, tag=tags, schema_name=schema_name, now=now)]
        else:
            records = table.list(schema_name=schema_name, tag=tags, limit=limit, now=now)
        return {"records": self._redact(records)}

    def audit(
        self,
        path: Annotated[str, Field(description="A file or folder of recorded requests or sessions.", min_length=1)],
    ) -> JsonObject:
        """What recorded requests lost of the provider's cache, by cause and by conversation, and what it cost."""
        place, hint = os.path.expanduser(path), "Give the path of a request log or a session."
        if not os.path.exists(place):
            raise NotFound(f"there is no file {path[:200]!r}.", hint=hint)
        try:
            report: JsonObject = self._redact(audit(read_calls(Path(place))).as_json())
        except FormatError as error:  # which may quote any file that this process can read
            raise FormatError(f"{path!r} holds no requests that can be read here.", hint=hint) from error
        return report

    # Resources

    def thread_list(self) -> str:
        """The threads of the store."""
        return msgspec.json.encode(self.threads()).decode()

    def log(self, thread: str) -> str:
        """The entries of a thread, a line of JSON each."""
        self._thread(thread)
        return self.redactor.text("\n".join(encode(entry) for entry in self.store.read(thread)))

    def request(self, thread: str, model: str) -> str:
        """The request that a thread would send to a model now."""
        return msgspec.json.encode(self.assemble(thread, model)).decode()

    def original(self, entry: str) -> str:
        """The text of an entry, by its id or handle."""
        return self.redactor.text(original(self._find_entry(entry)))

    def record(self, record: str) -> str:
        """A record at its newest version."""
        return msgspec.json.encode(self._redact(Records(self.store).read_full(record, now=now_ms()))).decode()

    def _entry(self, entry: Entry) -> JsonObject:
        text = self.redactor.text(original(entry))
        return {"entry": entry.seq, "id": entry.id, "kind": entry.kind, "at": entry.at, "text": text}

    def _find_entry(self, entry: str, thread: str = "") -> Entry:
        if thread:
            self._thread(thread)
        if thread and entry.isascii() and entry.isdigit():
            found = self.store.read(thread, int(entry) - 1, 1) if int(entry) else []
        else:
            located = self.store.find(entry)
            found = [located[1]] if located else []
        if not found:
            raise NotFound(f"no entry is called {entry!r}.", hint="Give an id or handle, or its number and a thread.")
        return found[0]
