"""A local model: llama.cpp's server in a child process that ends with its parent."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from quire.errors import CallError, MissingPart, ProviderError
from quire.send.transport import page_refusal
from quire.send.weights import CTX, Say, cache_folder, chat_template, faster, find
from quire.values import Json, JsonObject, value_at

_INSTALL = "pip install 'quire[local]', then quire local install smollm2"
_START_TIMEOUT_S = 120.0
# The engine is on this machine, where no proxy of the environment leads.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def weights() -> Path:
    """The small model's weights: from `quire local install smollm2`, or from its installed package."""
    file = find("smollm2")
    if file is None:
        raise MissingPart("no local model is installed", hint=_INSTALL)
    return file


class LocalServer:
    """llama.cpp serving one model on 127.0.0.1: `with LocalServer(weights()) as server: server.url`.

    `ctx` is each slot's window in tokens; `cache_ram_mib` limits the cache of older prompts (0: none); `name` is the
    model's name at the server (default: the file's name).
    """

    def __init__(
        self,
        gguf: Path | str,
        ctx: int = CTX,
        threads: int = 1,
        port: int = 0,
        slots: int = 1,
        cache_ram_mib: int | None = None,
        name: str = "",
    ) -> None:
        self._options: JsonObject = {"gguf": str(gguf), "ctx": ctx, "threads": threads, "port": port, "slots": slots}
        self._options |= {"cache_ram_mib": cache_ram_mib, "name": name}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.url = ""

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingPart("the local engine is not installed", hint="pip install 'quire[local]'")
        if not Path(self._options["gguf"]).is_file():
            raise MissingPart(f"there is no model file {self._options['gguf']}", hint=_INSTALL)
        options = {**self._options, "port": usable_port(self._options["port"])}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._process = subprocess.Popen(
            [sys.executable, "-m", "quire.send.local", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # A new session, because Ctrl-C in a terminal reaches all its processes and must not end the engine.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        if not self.url:
            log = self.log().strip()
            self.stop()
            last = (log.split("\n") or [""])[-1][-300:]
            raise ProviderError(f"the local engine did not start: {last}", hint="Check the model file.")

    def stop(self) -> None:
        """Stop the server; safe to call twice."""
        process, self._process, self.url = self._process, None, ""
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def pid(self) -> int:
        """The child's process id; 0 when it is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def window(self) -> int:
        """The real window of a slot in tokens, which is at most what the model was trained for."""
        with _direct.open(f"{self.url}/props", timeout=_START_TIMEOUT_S) as reply:
            return int(json.load(reply)["default_generation_settings"]["n_ctx"])

    def log(self) -> str:
        """What the engine has logged so far."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def post(self, path: str, body: JsonObject) -> Json:
        """One JSON request to the server."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with _direct.open(request, timeout=_START_TIMEOUT_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                answer = error.read().decode(errors="replace")
            raise ProviderError(f"the local engine refused {path}: {answer[:400]}", status=error.code) from error
        except OSError as error:
            raise ProviderError(f"the local engine does not answer: {error}", retryable=True) from error

    def prompt_ids(self, body: JsonObject) -> list[int]:
        """The token ids of a chat request, after the engine applied its template."""
        fields: dict[str, Any] = {
            name: body[name] for name in ("messages", "tools", "tool_choice", "chat_template_kwargs") if name in body
        }
        prompt = self.post("/apply-template", fields)["prompt"]
        tokens = self.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
        return [int(token) for token in tokens]


TARGET = "llamacpp:smollm2"
# Default options: the small model may write or repeat itself without end.
OPTIONS: Final[JsonObject] = {"max_tokens": 512, "temperature": 0, "repeat_penalty": 1.1}
_running: list[LocalServer] = []


class Local(NamedTuple):
    """The local model: its name as "provider:model", and its address."""

    target: str
    base_url: str


def local_target(say: Say = print) -> Local:
    """The local model, ready to answer: at a running server, else at a new one that ends with this process."""
    if url := serving_url():
        return Local(TARGET, url)
    while _running and not _running[0].pid:
        _running.pop(0).stop()  # the server has died: start another
    if not _running:
        server = LocalServer(faster(weights(), say=say), ctx=CTX, name=TARGET.partition(":")[2])
        server.start()
        atexit.register(server.stop)
        _running.append(server)
    return Local(TARGET, _running[0].url)


def _serving_file() -> Path:
    return cache_folder() / "serving.json"


def announce(url: str) -> None:
    """Announce a server to the user's other processes, in a file."""
    file = _serving_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".part-{os.getpid()}")
    part.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    part.replace(file)


def retract() -> None:
    """Remove the announcement of this process, but not a later one of another process."""
    if _serving().get("pid") == os.getpid():
        _serving_file().unlink(missing_ok=True)


def _serving() -> JsonObject:
    try:
        return msgspec.json.decode(_serving_file().read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def serving_url() -> str:
    """The address of a running server of `quire local serve`, else ""."""
    try:
        url = str(_serving()["url"])
        with _direct.open(f"{url}/health", timeout=2) as reply:
            return url if reply.status == 200 else ""
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return ""


def usable_port(port: int) -> int:
    """The port, if it is free; any free port for 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CallError(
                f"port {port} cannot be used: {error.strerror}", hint="Use --port 0 for a free one."
            ) from error
        free: int = probe.getsockname()[1]
        return free


# The child process: runs llama.cpp's HTTP server until its parent ends.


def _child() -> None:
    """Serve with the options in argv[1] (JSON); print the address when ready."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    # The engine writes its log to stdout; only the address may go there.
    answer = os.dup(1)
    os.dup2(2, 1)
    server = _serve(options)
    os.write(answer, (server.listening_address + "\n").encode())
    threading.Event().wait()


def _serve(options: dict[str, Any]) -> Any:  # xllamacpp ships no types
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["gguf"]
    params.hostnames = ["127.0.0.1"] if isinstance(params.hostnames, list) else "127.0.0.1"
    params.port = options["port"]
    params.n_ctx = options["ctx"] * options["slots"]
    params.n_parallel = options["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.n_threads_http = 4
    params.endpoint_slots = True
    params.warmup = False
    # The name in /v1/models; the default is the file's path, which would show clients the disk.
    params.model_alias = {options["name"] or Path(options["gguf"]).stem}
    if "SmolLM2" in Path(options["gguf"]).name:
        # The temperature that it was tuned for, and a penalty for repeating itself, to which so small a model tends.
        # The penalty is for runs of tokens, not single words, so that the model can still quote the prompt.
        params.sampling.temp, params.sampling.top_p = 0.2, 0.9
        params.sampling.dry_multiplier, params.sampling.dry_allowed_length = 0.8, 4
        params.sampling.dry_penalty_last_n = 1024
    template = chat_template(Path(options["gguf"]))
    if "<|im_start|>" in template and "tool" not in template:
        # A template without tools would silently leave calls and results out of the prompt.
        params.chat_template = Path(__file__).with_name("chatml.jinja").read_text()
    if options["cache_ram_mib"] is not None:
        params.cache_ram_mib = options["cache_ram_mib"]
    return xllamacpp.Server(params)


def _die_with_parent() -> None:
    """End when standard input closes: the parent closes it to stop this process, or was killed."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _child()


# A small proxy in front of the engine: it changes requests that demand a tool call, so that the model makes one.

# The beginning of a call in the supported templates; an answer that begins so becomes a call.
CALL = "<tool_call>\n"
_OWN = ("transfer-encoding", "connection", "content-length", "keep-alive", "server", "date")


def demanding(body: JsonObject, path: str) -> JsonObject:
    """A request that demands a tool call, with the answer's beginning; else the engine lets the model talk first."""
    tool_name = _demanded_tool(body.get("tool_choice"))
    tools = body.get("tools")
    if tool_name is None or not isinstance(tools, list):
        return body
    offered = [tool for tool in tools if not tool_name or _name(tool) == tool_name]
    field = "input" if path.endswith("/responses") else "messages"
    content = body.get(field)
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if not offered or not isinstance(messages, list):
        return body
    begun: JsonObject = {"role": "assistant", "content": CALL}
    if field == "input":
        parts = [{"type": "output_text", "text": CALL, "annotations": []}]
        begun = {"type": "message", "role": "assistant", "status": "completed", "content": parts}
    choice = {"type": "any"} if path.endswith("/messages") else "required"
    return {**body, "tools": offered, "tool_choice": choice, field: [*messages, begun]}


def _demanded_tool(choice: Json) -> str | None:
    """The name of the tool that a request demands, "" for any tool, None where it demands none."""
    if choice == "required":
        return ""
    if not isinstance(choice, dict) or choice.get("type") not in ("any", "tool", "function"):
        return None
    return _name(choice)


def _name(tool: Json) -> str:
    """The tool's name in a definition or a choice of any format."""
    inner = value_at(tool, "function")
    return str(value_at(inner if isinstance(inner, dict) else tool, "name") or "")


class Front:
    """The proxy on 127.0.0.1: `with Front(engine.url, port) as front: front.url`."""

    def __init__(self, engine: str, port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"engine": urlsplit(engine).netloc})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Front:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Passes one request to the engine, and its answer back as it arrives."""

    engine = ""

    def parse_request(self) -> bool:
        """Read the head; refuse web pages of other sites: the engine itself would let them read its answers."""
        if not super().parse_request():
            return False
        if why := page_refusal({name.lower(): value for name, value in self.headers.items()}):
            self.send_error(403, why)
        return not why

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        try:
            raw = self._body()
        except ValueError:
            self.send_error(400, "The length of the body cannot be read")
            return
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(raw)
            if isinstance(body, dict):
                raw = json.dumps(demanding(body, self.path.partition("?")[0])).encode()
        self._pass_on(raw)

    do_OPTIONS = do_GET

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the engine has its own log."""

    def _pass_on(self, raw: bytes) -> None:
        sent = {name: value for name, value in self.headers.items() if name.lower() not in ("host", *_OWN)}
        engine = http.client.HTTPConnection(self.engine)
        # Where the client disconnects, closing the connection also stops the engine's work.
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
