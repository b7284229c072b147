"""A strict local stand-in for a provider: its rules, its cache, its usage fields, scripted replies, faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import msgspec

from quire.emulate import anthropic, gemini, openai
from quire.emulate.script import (
    Cut,
    EmulatedExchange,
    EmulatedReply,
    EmulatedRequest,
    IssuedReply,
    Refuse,
    Replies,
    Reply,
    ReplyForm,
    Script,
    ScriptedAnswer,
    Slow,
    StoredResponse,
    issue_parts,
)
from quire.errors import CallError, FormatError, needs_extra
from quire.log import now_ms
from quire.providers.models import ModelInfo, exists, format_name, known_models, model_info, provider_facts, resolve
from quire.providers.rules import Finding, ServerMemory, errors, issue, malformed, validate
from quire.providers.simulate import Simulator
from quire.providers.simulate.engine_caches import is_cache
from quire.values import Json, JsonObject, Think, as_objects, value_at

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _HttpToolsProtocol

    _UvicornServer = uvicorn.Server
else:
    # uvicorn is optional, so at run time these two bases are filled in where a class is made: `class X(EndsAtOnce, uvicorn.Server)`.
    _UvicornServer = _HttpToolsProtocol = object

__all__ = ["BackgroundServer", "Cut", "Emulator", "EndsAtOnce", "Refuse", "Replies", "Reply", "Slow"]


# Running a server: on 127.0.0.1, on its own port, in its own OS thread.

# Limits of a request's head (its first line and headers): its size, the seconds it may take to arrive, and how many
# connections may be sending one at the same time.
_HEAD_BYTES, _HEAD_S, _MOST_HEADS = 1024 * 1024, 30.0, 1024


class EndsAtOnce(_UvicornServer):
    """A uvicorn server that stops at once: uvicorn itself polls ten times a second, and sleeps before it stops."""

    _loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """Stop serving; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has stopped already and its loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    async def main_loop(self) -> None:
        self._wake, self._loop = asyncio.Event(), asyncio.get_running_loop()
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % 864_000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        notified = set[object]()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while not self.force_exit:
                    for connection in state.connections - notified:
                        connection.shutdown()
                    notified |= state.connections
                    await asyncio.sleep(0.002)  # a connection accepted just now may still appear
                    if not state.connections and not state.tasks:
                        break
        for task in state.tasks:
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        if not self.force_exit:
            await self.lifespan.shutdown()


class BoundedHead(_HttpToolsProtocol):
    """uvicorn's HTTP protocol with a limit on request heads; malformed input ends only its own connection."""

    _head_bytes, _data = 0, b""
    # Per server: the connections whose head is incomplete, oldest first, each with the timer that ends it.
    waiting: ClassVar[dict[BoundedHead, asyncio.TimerHandle]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end_wait()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if len(self.waiting) >= _MOST_HEADS:
            oldest = next(iter(self.waiting))
            oldest.end_wait()
            oldest.transport.abort()
        self.waiting[self] = self.loop.call_later(_HEAD_S, self.transport.abort)

    def end_wait(self) -> None:
        if timer := self.waiting.pop(self, None):
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        # Some clients send an empty line after a request: white space begins no new head.
        if self._head_bytes >= 0 and self not in self.waiting and not data.isspace():
            self._await_head()
        self._head_bytes += len(data)
        self._data = data
        try:
            super().data_received(data)
        except Exception:  # whatever a client sent to cause it, only its own connection ends
            self.transport.abort()
            # Forget a WebSocket that failed during its handshake: the server would wait for it when it stops.
            self.connections -= {socket for socket in self.connections if socket.transport is self.transport}
            return
        if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {_HEAD_BYTES:,} bytes.")

    def on_headers_complete(self) -> None:
        self._head_bytes = -(2**63)  # count nothing until the next request on this connection
        self.end_wait()
        if not self._declines_upgrade():
            super().on_headers_complete()
            if self.cycle is not None and self.cycle.scope["http_version"] == "1.0":
                _send_no_chunks(self.cycle)  # in time: the task that answers has not begun yet

    def on_message_complete(self) -> None:
        if not self._declines_upgrade():
            super().on_message_complete()
        self._head_bytes = 0

    def _declines_upgrade(self) -> bool:
        return self._offers_upgrade() and not self._should_upgrade()

    def _offers_upgrade(self) -> bool:
        # CONNECT (a client with this server as its HTTPS_PROXY) asks for a tunnel, not for another protocol.
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        if not self._offers_upgrade():
            return
        # Java's client offers HTTP/2 this way. The parser reads no body after such a head: parse it again without the offer.
        from httptools import HttpParserUpgrade, HttpRequestParser

        end = cast(HttpParserUpgrade, sys.exception()).args[0]
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        super().data_received(b"\r\n".join([*lines, b"", self._data[end:]]))


def http_protocol() -> type[asyncio.Protocol]:
    """The HTTP protocol of one server, with its own set of waiting connections."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class OfOneServer(BoundedHead, HttpToolsProtocol):
        waiting: ClassVar[dict[BoundedHead, asyncio.TimerHandle]] = {}

    return OfOneServer


def _send_no_chunks(cycle: Any) -> None:
    """Answer a client of HTTP/1.0, which reads no chunks, with a plain body that ends with the connection."""
    usual_send, has_length = cycle.send, False

    async def send(message: Any) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await usual_send(message)

    cycle.send = send


# For servers that forward requests: only the provider's own headers, and WebSocket frames as large as a whole history.
PASSING_CONFIG: dict[str, Any] = {"server_header": False, "date_header": False, "ws_max_size": 256 * 1024 * 1024}


def server_config(app: Any, **more: Any) -> Any:
    """The configuration of uvicorn, with `more` on top; it logs nothing, since connections are cut on purpose."""
    import uvicorn
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    usual = {"timeout_graceful_shutdown": 1, "http": http_protocol(), "ws": WebSocketsSansIOProtocol}
    # `log_config=None`: logging is the program's; a uvicorn that sets it up again makes running servers log.
    return uvicorn.Config(app, log_level="critical", log_config=None, access_log=False, **{**usual, **more})


class BackgroundServer:
    """Serves an ASGI application on 127.0.0.1 in its own OS thread; `make` returns the application at the start.

    `config` goes to uvicorn; `extra` is the pip extra that installs what the server needs.
    """

    extra = "emulate"

    def __init__(self, make: Callable[[], Any], port: int = 0, **config: Any) -> None:
        self._make, self._port, self._config = make, port, config
        self._server: EndsAtOnce | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self.url = ""

    def start(self) -> None:
        """Start serving; the address is known when this returns."""
        app = self._make()
        with needs_extra("the server is not installed", self.extra):
            config = server_config(app, **self._config)
            import uvicorn

        class Server(EndsAtOnce, uvicorn.Server):
            pass

        self._server = Server(config)
        listener = listen(self._port)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._thread = threading.Thread(target=_run, args=(self._server, listener, self._ended), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; safe to call twice."""
        server, self._server = self._server, None
        thread, self._thread = self._thread, None
        if server is not None and thread is not None:
            server.end()
            thread.join()

    def wait(self) -> None:
        """Serve until interrupted."""
        # Not by joining the OS thread: Python takes it for ended once a join was interrupted.
        wait_until(self._ended)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def wait_until(ended: threading.Event) -> None:
    """Wait until `ended` is set, or until a signal raises an exception."""
    # In short waits: a signal that another OS thread receives does not wake this one, and only this one handles it.
    while not ended.wait(0.2):
        pass


def _run(server: EndsAtOnce, listener: socket.socket, ended: threading.Event) -> None:
    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        ended.set()


def listen(port: int, host: str = "", send_bytes: int = 0, backlog: int = 128) -> socket.socket:
    """A listening socket, on 127.0.0.1 unless `host` names another address."""
    # Name TCP: asyncio turns off the delay of small packets only then; otherwise each request takes 40 ms longer.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    try:
        listener.bind((host or "127.0.0.1", port))
    except OSError as error:
        listener.close()
        place = f"{host}:{port}" if host else f"port {port}"
        raise CallError(f"{place} cannot be used: {error.strerror}", hint="Use --port 0 for a free one.") from error
    # Clients may connect from now on; they wait until the server has started.
    listener.listen(backlog)
    return listener


# One emulated provider: its rules, its cache, its memory of what it signed, and its script.

# The wire formats that the emulator speaks; a new one is a line here.
VOICES: dict[str, ReplyForm] = {
    "anthropic": anthropic.VOICE,
    "openai-responses": openai.RESPONSES,
    "openai-chat": openai.CHAT,
    "gemini": gemini.VOICE,
    "bedrock": anthropic.CONVERSE,
}


class EmulatedProvider:
    """Answers requests as a provider would; `piece` is how many characters a stream sends at a time.

    `lenient` accepts requests that lack a key, a version, a known model or a known previous response; `state` is
    a file in which the server keeps its replies, so that the next server remembers them.
    """

    def __init__(
        self,
        provider: str,
        replies: Replies | None,
        clock: Callable[[], int],
        piece: int = 12,
        enforce_binding: bool = True,
        lenient: bool = False,
        state: Path | None = None,
    ) -> None:
        self.provider, self.wire = resolve(provider)
        if self.wire not in VOICES:
            raise CallError(f"there is no stand-in for {provider}", hint=f"There are: {', '.join(VOICES)}.")
        self.script = Script(replies)
        self.requests: list[EmulatedRequest] = []
        self._clock = clock
        self._piece = piece
        self._lenient = lenient
        self._memory = ServerMemory(complete=True, enforce=enforce_binding)
        self._simulators: dict[str, Simulator] = {}
        # Earlier replies by their ids: cache diagnostics compare with them.
        self._earlier: dict[str, IssuedReply] = {}
        self.responses: dict[str, StoredResponse] = {}
        self._now_ms = 0
        self._number = 0
        self._state = state
        for reply in _read_state(state) if state else ():
            self._number = max(self._number, reply.number)
            self._remember(reply, {} if reply.body.get("store") is False else self.responses)

    @property
    def voice(self) -> ReplyForm:
        """The reply form of the provider's usual wire; an endpoint of another wire has its own."""
        return VOICES[self.wire]

    def receive(
        self, method: str, path: str, headers: Mapping[str, str], body: Json, wire: str, model: str = ""
    ) -> EmulatedRequest:
        """Record a request, at a later millisecond than the one before; `model` is the one that its path names."""
        self._now_ms = max(self._clock(), self._now_ms + 1)
        self._number += 1
        model = model or str(value_at(body, "model") or "")
        received = EmulatedRequest(method, path, dict(headers), body, self._now_ms, self._number, wire, model)
        # A GET (the list of models, the server's window) never reaches a model.
        if method != "GET":
            self.requests.append(received)
        return received

    def key_refusal(self, received: EmulatedRequest) -> EmulatedReply | None:
        """The refusal of a request without key or version; a local engine asks for none."""
        if self._lenient or provider_facts(self.provider)["features"].get("template"):
            return None
        refused = VOICES[received.wire].lacks(received)
        return self.refuse(received, refused) if refused else None

    def answer(
        self,
        received: EmulatedRequest,
        streamed: bool,
        connection: dict[str, StoredResponse] | None = None,
        warm: bool = False,
    ) -> EmulatedReply:
        """Check a request against the rules, then answer it from the script.

        `connection` holds the unstored responses of a WebSocket; with `warm`, only the cache is filled.
        """
        body, refusal = self._with_history(received, {**self.responses, **(connection or {})})
        if refusal:
            return self.refuse(received, refusal)
        voice, name = VOICES[received.wire], format_name(self.provider, received.wire)
        findings = errors(validate(body, name, received.model or None, seen=self._memory, headers=received.headers))
        if findings:
            return self.refuse(received, _refuse_finding(findings[0]))
        asks_model = not (warm or _prewarms(body) or (voice.stores and openai.compacts(body)))
        scripted = self.script.next(body) if asks_model else ScriptedAnswer()
        if scripted.refusal is not None:
            return self.refuse(received, scripted.refusal)
        exchange = self._exchange(received, body, scripted)
        reply = self._issue(received, exchange, connection)
        return EmulatedReply(
            200,
            reply,
            voice.stream(exchange, reply, self._piece) if streamed else None,
            voice.headers(received),
            voice.media_type if streamed else "application/json",
            scripted.cut_after,
            scripted.delay_s,
        )

    def compact(self, received: EmulatedRequest) -> EmulatedReply:
        """Answer /v1/responses/compact: the conversation shortened to one item."""
        body, refusal = self._with_history(received, self.responses)
        if refusal := refusal or self._find_malformed(received, body):
            return self.refuse(received, refusal)
        exchange = self._exchange(received, body, ScriptedAnswer())
        received.predicted, received.reply = exchange.predicted, openai.compact(exchange)
        return self._reply(received, received.reply)

    def _with_history(self, received: EmulatedRequest, stored: dict[str, StoredResponse]) -> tuple[Json, Refuse | None]:
        """The body with the items of the response that it continues; or a refusal where that or the model is unknown."""
        body, voice, model = received.body, VOICES[received.wire], received.model
        if model and not self._lenient and not exists(self.provider, model):
            return body, voice.unknown_model(model)
        id = value_at(body, "previous_response_id")
        if not id or not voice.stores:
            return body, None
        previous = stored.get(str(id))
        if previous is None:
            message = f"Previous response with id '{id}' not found."
            unknown = Refuse(400, message, code="previous_response_not_found", param="previous_response_id")
            return body, None if self._lenient else unknown
        bare = {name: value for name, value in body.items() if name != "previous_response_id"}
        return {**bare, "input": [*previous.items, *_items(body)]}, None

    def count(self, received: EmulatedRequest, body: Json, field: str) -> EmulatedReply:
        """Answer with the tokens of a body, in the provider's `field`; a malformed body is refused."""
        if wrong := self._find_malformed(received, body):
            return self.refuse(received, wrong)
        return self._reply(received, {field: Simulator(self._target(received.wire, received.model)).count(body)})

    def _find_malformed(self, received: EmulatedRequest, body: Json) -> Refuse | None:
        """The refusal of a body whose form breaks the rules; only the form matters for counting."""
        wrong = malformed(body, format_name(self.provider, received.wire), received.model or None)
        return _refuse_finding(wrong[0]) if wrong else None

    def models(self, received: EmulatedRequest) -> EmulatedReply:
        """The provider's models."""
        return self._reply(received, self.voice.model_list([*map(self.voice.model, self._models())]))

    def model(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        """One of the provider's models."""
        model = next((info for info in self._models() if info.model == name), None)
        if model is None:
            return self.refuse(received, Refuse(404, self.voice.unknown_model(name).message))
        return self._reply(received, self.voice.model(model))

    def _models(self) -> list[ModelInfo]:
        return [info for info in known_models() if info.provider == self.provider]

    def response(self, received: EmulatedRequest, id: str) -> EmulatedReply:
        """Answer with a stored response, or delete it (DELETE)."""
        stored = self.responses.get(id)
        if stored is None:
            return self.refuse(received, Refuse(404, f"Response with id '{id}' not found."))
        if received.method == "DELETE":
            del self.responses[id]
            return self._reply(received, {"id": id, "object": "response", "deleted": True})
        return self._reply(received, stored.reply)

    def simulator(self, wire: str, model: str) -> Simulator:
        """The simulated cache of a model."""
        target = self._target(wire, model)
        if target not in self._simulators:
            self._simulators[target] = Simulator(target)
        return self._simulators[target]

    def refuse(self, received: EmulatedRequest, refused: Refuse) -> EmulatedReply:
        """Answer with an error in the provider's own shape."""
        message = refused.message or f"emulated failure ({refused.status})"
        received.status, received.error = refused.status, message
        error = VOICES[received.wire].error(msgspec.structs.replace(refused, message=message), received.request_id)
        wait = {} if refused.retry_after_s is None else {"retry-after": f"{refused.retry_after_s:g}"}
        return self._reply(received, error, wait)

    def _reply(self, received: EmulatedRequest, value: Json, headers: Mapping[str, str] = {}) -> EmulatedReply:
        return EmulatedReply(received.status, value, headers={**VOICES[received.wire].headers(received), **headers})

    def _issue(
        self, received: EmulatedRequest, exchange: EmulatedExchange, connection: dict[str, StoredResponse] | None
    ) -> JsonObject:
        """Make the reply of an exchange, remember it, and write it to the state file."""
        wire, model, body = received.wire, received.model, exchange.body
        reply = VOICES[wire].reply(exchange)
        received.predicted, received.reply = exchange.predicted, reply
        issued = IssuedReply(exchange.number, wire, model, body, reply, exchange.predicted.total)
        # With "store": false only the connection, if there is one, remembers the reply.
        unstored = {} if connection is None else connection
        self._remember(issued, unstored if body.get("store") is False else self.responses)
        if self._state:
            with self._state.open("ab") as file:
                file.write(msgspec.json.encode(issued) + b"\n")
        self.simulator(wire, model).answered(VOICES[wire].as_history(reply))
        return reply

    def _exchange(self, received: EmulatedRequest, body: JsonObject, scripted: ScriptedAnswer) -> EmulatedExchange:
        """Step the simulated cache with a request, and pair it with its scripted answer."""
        wire, model = received.wire, received.model
        prompt, dropped = anthropic.drop_mismatched(body, self._memory)
        began_ms = received.at_ms + int(scripted.delay_s * 1000)
        predicted = self.simulator(wire, model).step(received.at_ms, prompt, began_ms)
        target, voice = self._target(wire, model), VOICES[wire]
        thinks = voice.thinks(body, model_info(target))
        spoken = (part for part in scripted.parts if thinks or not isinstance(part, Think))
        betas = received.headers.get("anthropic-beta", "")
        exchange = EmulatedExchange(
            number=received.number,
            at_ms=received.at_ms,
            target=target,
            model=model,
            body=body,
            parts=tuple(issue_parts(spoken, received.number, voice.call_prefix)),
            predicted=predicted,
            previous=received.body.get("previous_response_id"),
            dropped_input=dropped if anthropic.CONTROLS_BETA in betas else None,
        )
        return msgspec.structs.replace(exchange, diagnosis=voice.diagnose(exchange, self._earlier))

    def _remember(self, issued: IssuedReply, stored: dict[str, StoredResponse]) -> None:
        """Keep what later requests may refer to: signatures, a reply to compare caches with, a response to continue."""
        body, reply = issued.body, issued.reply
        issue(self._memory, body, format_name(self.provider, issued.wire), reply)
        if id := reply.get("id"):
            self._earlier[id] = issued
            if VOICES[issued.wire].stores:
                stored[id] = StoredResponse([*_items(body), *reply["output"]], reply)

    def speaks(self, wire: str) -> bool:
        """Whether the provider has an endpoint in this wire format."""
        facts = provider_facts(self.provider)
        return wire == facts["wire"] or wire in facts["formats"].values()

    def _target(self, wire: str, model: str) -> str:
        return f"{format_name(self.provider, wire)}:{model}"


def _read_state(file: Path) -> Iterator[IssuedReply]:
    """The replies of an earlier server; an unfinished last line is deleted, as its reply was never sent."""
    data = file.read_bytes() if file.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        file.write_bytes(whole)
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            yield msgspec.json.decode(line, type=IssuedReply)
        except msgspec.DecodeError as error:
            hint = "Give a file that `quire emulate --state` wrote, or a new one."
            problem = f"{file.name} is no state of an emulator: {error}"
            raise FormatError(problem, line=number, column=1, hint=hint) from error


def _items(body: JsonObject) -> list[JsonObject]:
    input = body.get("input")
    if isinstance(input, str):
        return [{"role": "user", "content": input}]
    # An item that asks for a compaction is not part of the conversation.
    return [item for item in as_objects(input) if item.get("type") != "compaction_trigger"]


def _refuse_finding(finding: Finding) -> Refuse:
    """The server's error for a broken rule; `param` is the place in the body."""
    return Refuse(finding.status, finding.message, param=finding.path.removeprefix("$").lstrip(".") or None)


def _prewarms(body: JsonObject) -> bool:
    """Whether a request only fills the cache."""
    if body.get("max_tokens") == 0 and "messages" in body:
        return True
    return bool((body.get("prompt_cache_options") or {}).get("prewarm")) or is_cache(body)


class Emulator(BackgroundServer):
    """A strict stand-in for a provider: `with Emulator("anthropic", ["Hello"]) as server: server.url`.

    `chunk_bytes` cuts streams into pieces of that size; `clock` returns the time in ms, by which caches expire.
    `lenient` accepts requests without a key or version, for unknown models, and after unknown responses;
    `state` is a file in which it keeps what it signed and stored, so that the next emulator remembers it.
    """

    def __init__(
        self,
        provider: str,
        replies: Replies | None = None,
        *,
        port: int = 0,
        piece: int = 12,
        chunk_bytes: int | None = None,
        clock: Callable[[], int] | None = None,
        enforce_binding: bool = True,
        lenient: bool = False,
        state: Path | None = None,
    ) -> None:
        self._emulated = EmulatedProvider(provider, replies, clock or now_ms, piece, enforce_binding, lenient, state)
        super().__init__(lambda: _app(self._emulated, chunk_bytes), port)

    @property
    def requests(self) -> list[EmulatedRequest]:
        """Every request received so far, refused ones too; GET requests (the list of models) are left out."""
        return self._emulated.requests

    def next(self, reply: Reply) -> None:
        """Answer the next request with this, before anything else in the script."""
        self._emulated.script.push(reply)


def _app(emulated: EmulatedProvider, chunk_bytes: int | None) -> Any:
    with needs_extra("the emulator's server is not installed", "emulate"):
        from quire.emulate.app import make_app
    return make_app(emulated, chunk_bytes)
