"""In front of a local engine: requests that demand a tool call are put so that the engine makes one; all else passes."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

from quire.values import Json, JsonObject

# How a call begins in the templates that are understood; an answer that begins so can only become a call.
CALL = "<tool_call>\n"
_OWN = ("transfer-encoding", "connection", "content-length", "keep-alive", "server", "date")


def demanding(body: JsonObject, path: str) -> JsonObject:
    """The engine lets a model talk before a call it demands, and takes no tool by name: so the answer is begun for it."""
    wanted = _wanted(body.get("tool_choice"))
    tools = body.get("tools")
    if wanted is None or not isinstance(tools, list):
        return body
    kept = [tool for tool in tools if not wanted or _name(tool) == wanted]
    field = "input" if path.endswith("/responses") else "messages"
    talk = body.get(field)
    said = [{"role": "user", "content": talk}] if isinstance(talk, str) else talk
    if not kept or not isinstance(said, list):
        return body
    begun: JsonObject = {"role": "assistant", "content": CALL}
    if field == "input":
        parts = [{"type": "output_text", "text": CALL, "annotations": []}]
        begun = {"type": "message", "role": "assistant", "status": "completed", "content": parts}
    choice = {"type": "any"} if path.endswith("/messages") else "required"
    return {**body, "tools": kept, "tool_choice": choice, field: [*said, begun]}


def _wanted(choice: Json) -> str | None:
    """The tool a request demands by name, "" for any of them, None where it demands none."""
    if choice == "required":
        return ""
    if not isinstance(choice, dict) or choice.get("type") not in ("any", "tool", "function"):
        return None
    return _name(choice)


def _name(tool: Json) -> str:
    """A tool's name, of its definition or of a choice, in any of the formats."""
    given = tool if isinstance(tool, dict) else {}
    inner = given.get("function")
    return str((inner if isinstance(inner, dict) else given).get("name") or "")


class Front:
    """Listens on 127.0.0.1 and passes on to the engine: `with Front(engine.url, port) as front: front.url`."""

    def __init__(self, engine: str, port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"engine": urlsplit(engine).netloc})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Front:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One request to the engine and its answer back, piece by piece as it comes."""

    engine = ""

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(raw)
            if isinstance(body, dict):
                raw = json.dumps(demanding(body, self.path.partition("?")[0])).encode()
        self._pass_on(raw)

    do_OPTIONS = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the engine has its own log."""

    def _pass_on(self, raw: bytes) -> None:
        sent = {name: value for name, value in self.headers.items() if name.lower() not in ("host", *_OWN)}
        engine = http.client.HTTPConnection(self.engine)
        # A client that goes away ends the engine's work, too; an engine that is gone ends the answer.
        with contextlib.closing(engine), contextlib.suppress(OSError, http.client.HTTPException):
            engine.request(self.command, self.path, raw or None, sent)
            reply = engine.getresponse()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.end_headers()
            while piece := reply.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
