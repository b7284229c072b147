"""One emulated provider: its rules, its cache, its memory of what it signed, and its script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from quire.emulate import anthropic, gemini, openai
from quire.emulate.script import (
    Diagnosis,
    EmulatedExchange,
    EmulatedRequest,
    Refusal,
    Refuse,
    Replies,
    ReplyForm,
    Script,
    ScriptedAnswer,
)
from quire.errors import FormatError
from quire.providers.models import ModelInfo, exists, known_models, model_info, provider_facts, resolve
from quire.providers.rules import Finding, ServerMemory, errors, issue, malformed, validate
from quire.providers.rules.grammar import objects_at
from quire.providers.simulate import Simulator
from quire.providers.simulate.engine_caches import is_cache
from quire.values import Json, JsonObject, Think

# A wire format the emulator speaks is a line here.
VOICES: dict[str, ReplyForm] = {
    "anthropic": anthropic.VOICE,
    "openai-responses": openai.RESPONSES,
    "openai-chat": openai.CHAT,
    "gemini": gemini.VOICE,
    "bedrock": anthropic.CONVERSE,
}


class EmulatedReply(msgspec.Struct, frozen=True):
    """What goes back: a JSON value, or the pieces of a stream, and how they are delivered."""

    status: int
    value: Json = None
    pieces: Iterator[bytes] | None = None
    headers: dict[str, str] = {}
    media_type: str = "application/json"
    cut_after: int | None = None
    delay_s: float = 0.0


class IssuedReply(msgspec.Struct, frozen=True):
    """One answered request, as the state file keeps it: what a restarted server has to remember."""

    number: int
    wire: str
    model: str
    body: JsonObject
    reply: JsonObject
    tokens: int


class StoredResponse(msgspec.Struct, frozen=True):
    """A response that a later request may carry on: all items up to its end, and itself."""

    items: list[JsonObject]
    reply: JsonObject


class Emulated:
    """Answers requests as a provider would; `piece` is how many characters a stream sends at a time.

    `lenient` lets in what lacks a key, a version, a known model or a known previous response; `state` is a
    file in which the server keeps what it gave out, for the next one.
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
        self.script = Script(replies)
        self.requests: list[EmulatedRequest] = []
        self._clock = clock
        self._piece = piece
        self._lenient = lenient
        self._memory = ServerMemory(complete=True, enforce=enforce_binding)
        self._simulators: dict[str, Simulator] = {}
        # Requests by the id of their reply, and their tokens: diagnostics compare with them.
        self._earlier: dict[str, JsonObject] = {}
        self._tokens: dict[str, int] = {}
        self.stored: dict[str, StoredResponse] = {}
        self._now_ms = 0
        self._number = 0
        self._state = state
        for reply in _read_state(state) if state else ():
            self._number = max(self._number, reply.number)
            self._remember(reply, {} if reply.body.get("store") is False else self.stored)

    @property
    def voice(self) -> ReplyForm:
        """How the provider speaks where no endpoint says otherwise."""
        return VOICES[self.wire]

    def receive(
        self, method: str, path: str, headers: Mapping[str, str], body: Json, wire: str, model: str = ""
    ) -> EmulatedRequest:
        """Record a request; two are never at the same moment. Its path may name the model, else its body does."""
        self._now_ms = max(self._clock(), self._now_ms + 1)
        self._number += 1
        model = model or (str(body.get("model") or "") if isinstance(body, dict) else "")
        received = EmulatedRequest(method, path, dict(headers), body, self._now_ms, self._number, wire, model)
        # A GET (the list of models, the server's window) asks the model for nothing.
        if method != "GET":
            self.requests.append(received)
        return received

    def key_refusal(self, received: EmulatedRequest) -> EmulatedReply | None:
        """The refusal of a request without key or version; a local engine asks for none."""
        if self._lenient or provider_facts(self.provider)["features"].get("template"):
            return None
        refused = VOICES[received.wire].lacks(received)
        return self.refused(received, refused) if refused else None

    def answer(
        self,
        received: EmulatedRequest,
        streamed: bool,
        connection: dict[str, StoredResponse] | None = None,
        warm: bool = False,
    ) -> EmulatedReply:
        """Check a request against the rules, then answer it from the script.

        `connection` holds what this connection alone remembers; with `warm`, the model is not asked.
        """
        body, refusal = self._with_history(received, {**self.stored, **(connection or {})})
        if refusal:
            return self.refused(received, refusal)
        name, model = self._name(received.wire), received.model or None
        findings = errors(validate(body, name, model, seen=self._memory, headers=received.headers))
        if findings:
            return self.refused(received, _refused(findings[0]))
        asks = not (warm or _prewarms(body) or (VOICES[received.wire].stores and openai.compacts(body)))
        scripted = self.script.next(body) if asks else ScriptedAnswer()
        if scripted.refusal is not None:
            return self._refusal(received, scripted.refusal)
        exchange = self._exchange(received, body, scripted)
        reply = self._issued(received, exchange, connection)
        voice = VOICES[received.wire]
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
        """/v1/responses/compact: a conversation in one item."""
        body, refusal = self._with_history(received, self.stored)
        if refusal := refusal or self._malformed(received, body):
            return self.refused(received, refusal)
        exchange = self._exchange(received, body, ScriptedAnswer())
        received.predicted, received.reply = exchange.predicted, openai.compacted(exchange)
        return self._reply(received, received.reply)

    def _with_history(
        self, received: EmulatedRequest, stored: dict[str, StoredResponse]
    ) -> tuple[Json, Refusal | None]:
        """A request with what came before it, if its model and the response that it carries on are known."""
        body, voice, model = received.body, VOICES[received.wire], received.model
        if model and not self._lenient and not exists(self.provider, model):
            return body, voice.unknown_model(model)
        id = body.get("previous_response_id") if isinstance(body, dict) else None
        if not id or not voice.stores:
            return body, None
        previous = stored.get(str(id))
        if previous is None:
            message = f"Previous response with id '{id}' not found."
            unknown = Refusal(400, message, "previous_response_not_found", "previous_response_id")
            return body, None if self._lenient else unknown
        # With the items before it, in place of the response that it names.
        bare = {name: value for name, value in body.items() if name != "previous_response_id"}
        return {**bare, "input": [*previous.items, *_items(body)]}, None

    def count(self, received: EmulatedRequest, body: Json, field: str) -> EmulatedReply:
        """The tokens of a body under the name the provider gives them; a malformed one is refused."""
        if wrong := self._malformed(received, body):
            return self.refused(received, wrong)
        return self._reply(received, {field: Simulator(self._target(received.wire, received.model)).count(body)})

    def _malformed(self, received: EmulatedRequest, body: Json) -> Refusal | None:
        """What keeps a body from being counted."""
        wrong = malformed(body, self._name(received.wire), received.model or None)
        return _refused(wrong[0]) if wrong else None

    def models(self, received: EmulatedRequest) -> EmulatedReply:
        """The provider's models."""
        return self._reply(received, self.voice.listed(self._models()))

    def model(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        """One of the provider's models."""
        model = next((info for info in self._models() if info.model == name), None)
        if model is None:
            return self.refused(received, Refusal(404, self.voice.unknown_model(name).message))
        return self._reply(received, self.voice.model(model))

    def _models(self) -> list[ModelInfo]:
        return [info for info in known_models() if info.provider == self.provider]

    def response(self, received: EmulatedRequest, id: str) -> EmulatedReply:
        """A response that was stored; deleted, where that is asked."""
        stored = self.stored.get(id)
        if stored is None:
            return self.refused(received, Refusal(404, f"Response with id '{id}' not found."))
        if received.method == "DELETE":
            del self.stored[id]
            return self._reply(received, {"id": id, "object": "response", "deleted": True})
        return self._reply(received, stored.reply)

    def simulator(self, wire: str, model: str) -> Simulator:
        """The cache of a model."""
        target = self._target(wire, model)
        if target not in self._simulators:
            self._simulators[target] = Simulator(target)
        return self._simulators[target]

    def refused(self, received: EmulatedRequest, refused: Refusal) -> EmulatedReply:
        """An error in the provider's own shape."""
        received.status, received.error = refused.status, refused.message
        return self._reply(received, VOICES[received.wire].error(refused, received.request_id))

    def _reply(self, received: EmulatedRequest, value: Json) -> EmulatedReply:
        return EmulatedReply(received.status, value, headers=VOICES[received.wire].headers(received))

    def _refusal(self, received: EmulatedRequest, refusal: Refuse) -> EmulatedReply:
        message = refusal.message or f"emulated failure ({refusal.status})"
        outcome = self.refused(received, Refusal(refusal.status, message))
        if refusal.retry_after_s is None:
            return outcome
        headers = {**outcome.headers, "retry-after": f"{refusal.retry_after_s:g}"}
        return msgspec.structs.replace(outcome, headers=headers)

    def _issued(
        self, received: EmulatedRequest, exchange: EmulatedExchange, connection: dict[str, StoredResponse] | None
    ) -> JsonObject:
        """The reply of an exchange, remembered, and written to the state."""
        wire, model, body = received.wire, received.model, exchange.body
        reply = VOICES[wire].reply(exchange)
        received.predicted, received.reply = exchange.predicted, reply
        issued = IssuedReply(exchange.number, wire, model, body, reply, exchange.predicted.total)
        # A reply that is not to be stored is remembered by its connection alone.
        passing = {} if connection is None else connection
        self._remember(issued, passing if body.get("store") is False else self.stored)
        if self._state:
            with self._state.open("ab") as file:
                file.write(msgspec.json.encode(issued) + b"\n")
        self.simulator(wire, model).answered(VOICES[wire].as_history(reply))
        return reply

    def _exchange(self, received: EmulatedRequest, body: JsonObject, scripted: ScriptedAnswer) -> EmulatedExchange:
        """Step the simulated cache with a request, and pair it with its scripted answer."""
        wire, model = received.wire, received.model
        prompt = anthropic.drop_mismatched(body, self._memory)
        began_ms = received.at_ms + int(scripted.delay_s * 1000)
        predicted = self.simulator(wire, model).step(received.at_ms, prompt.body, began_ms)
        target, voice = self._target(wire, model), VOICES[wire]
        thinks = voice.thinks(body, model_info(target))
        betas = received.headers.get("anthropic-beta", "")
        return EmulatedExchange(
            number=received.number,
            at_ms=received.at_ms,
            target=target,
            model=model,
            body=body,
            parts=tuple(part for part in scripted.parts if thinks or not isinstance(part, Think)),
            predicted=predicted,
            diagnosis=voice.diagnose(Diagnosis(body, model, self._earlier, self._tokens, predicted)),
            previous=received.body.get("previous_response_id"),
            dropped=prompt.transformations if anthropic.CONTROLS_BETA in betas else None,
        )

    def _remember(self, issued: IssuedReply, stored: dict[str, StoredResponse]) -> None:
        """What was signed, what diagnostics may be asked about later, and what may be carried on."""
        body, reply = issued.body, issued.reply
        issue(self._memory, body, self._name(issued.wire), reply)
        if id := reply.get("id"):
            self._earlier[id] = {**body, "model": issued.model}
            self._tokens[id] = issued.tokens
            if VOICES[issued.wire].stores:
                stored[id] = StoredResponse([*_items(body), *reply["output"]], reply)

    def speaks(self, wire: str) -> bool:
        """Whether the provider has an endpoint in this wire format."""
        facts = provider_facts(self.provider)
        return wire == facts["wire"] or wire in facts["formats"].values()

    def _name(self, wire: str) -> str:
        """The provider's name in this wire format: openai -> openai-chat for Chat."""
        facts = provider_facts(self.provider)
        if wire == facts["wire"]:
            return self.provider
        return next((name for name, format in facts["formats"].items() if format == wire), self.provider)

    def _target(self, wire: str, model: str) -> str:
        return f"{self._name(wire)}:{model}"


def _read_state(file: Path) -> Iterator[IssuedReply]:
    """The replies of an earlier server; an unfinished last line is dropped, as its reply was never sent."""
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
    # What asks for a compaction is no part of the conversation.
    return [item for _, item in objects_at(input, "") if item.get("type") != "compaction_trigger"]


def _refused(finding: Finding) -> Refusal:
    """A broken rule as the server says it; `param` is the place, without the root."""
    return Refusal(finding.status, finding.message, None, finding.path.removeprefix("$").lstrip(".") or None)


def _prewarms(body: JsonObject) -> bool:
    """Whether a request only fills the cache."""
    if body.get("max_tokens") == 0 and "messages" in body:
        return True
    return bool((body.get("prompt_cache_options") or {}).get("prewarm")) or is_cache(body)
