"""One emulated provider: its rules, its cache, its memory of what it signed, and its script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from quire.emulate import anthropic, bedrock, chat, gemini, responses
from quire.emulate.script import Answering, Refuse, Replies, ReplyForm, Script, ScriptedAnswer
from quire.providers.registry import provider_facts, resolve
from quire.providers.rules import Finding, ServerMemory, errors, issue, malformed, validate
from quire.providers.rules.check import where
from quire.providers.rules.claude_blocks import signed
from quire.providers.rules.claude_turns import anthropic_talk
from quire.providers.simulate import Block, Predicted, Simulator, blocks
from quire.providers.simulate.prefix_caches import is_cache
from quire.values import Json, JsonObject

# Why a request could not reuse another's prefix, in Anthropic's words and in OpenAI's.

# A prefix that was stored, compared with what came: where they part, by section.
_ANTHROPIC = {"tools": "tools_changed", "system": "system_changed", "messages": "messages_changed"}


def anthropic_miss(
    body: JsonObject, model: str, earlier: dict[str, JsonObject], tokens: dict[str, int], predicted: Predicted
) -> JsonObject | None:
    """The `cache_miss_reason` of a request that names the message before it; None when nothing diverged."""
    asked = body.get("diagnostics")
    previous_id = asked.get("previous_message_id") if isinstance(asked, dict) else None
    if previous_id is None:
        return None
    before = earlier.get(previous_id)
    if before is None:
        return {"type": "previous_message_not_found"}
    missed = max(0, tokens[previous_id] - predicted.read)
    if before.get("model") != model:
        return {"type": "model_changed", "cache_missed_input_tokens": missed}
    section = _parted(blocks(before, "anthropic"), blocks(body, "anthropic"))
    if section is not None:
        return {"type": _ANTHROPIC[section], "cache_missed_input_tokens": missed}
    settings = ("thinking", "tool_choice", "output_config", "speed")
    if any(before.get(name) != body.get(name) for name in settings):
        return {"type": "unavailable"}
    return None


def openai_miss(
    body: JsonObject, model: str, earlier: dict[str, JsonObject], tokens: dict[str, int], predicted: Predicted
) -> JsonObject | None:
    """The `prompt_cache_diagnostics` of a request that names the response to compare with."""
    compared = (body.get("prompt_cache_options") or {}).get("comparison_response_id")
    if compared is None:
        return None
    before = earlier.get(compared)
    if before is None:
        return {"type": "comparison_response_not_found"}
    reason = _openai_reason(before, body, model)
    if reason is None:
        return {"type": "cache_hit"}
    missed = max(0, tokens[compared] - predicted.read)
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": missed}


def _openai_reason(before: JsonObject, body: JsonObject, model: str) -> str | None:
    if before.get("model") != model:
        return "model_changed"
    changed = (
        ("prompt_cache_key_changed", "prompt_cache_key", ()),
        ("tools_changed", "tools", ()),
        ("text_format_changed", "text", ("format",)),
        ("reasoning_effort_changed", "reasoning", ("effort",)),
        ("verbosity_changed", "text", ("verbosity",)),
        ("service_tier_changed", "service_tier", ()),
    )
    for reason, field, inner in changed:
        if _field(before, field, inner) != _field(body, field, inner):
            return reason
    parted = _parted(blocks(before, "openai-responses"), blocks(body, "openai-responses"))
    return "input_changed" if parted is not None else None


def _field(body: JsonObject, name: str, inner: tuple[str, ...]) -> object:
    value = body.get(name)
    for step in inner:
        value = value.get(step) if isinstance(value, dict) else None
    return value or None


def _parted(before: list[Block], after: list[Block]) -> str | None:
    """The first section that is not the same, or (for messages) not repeated and extended."""
    for section in ("tools", "system", "messages"):
        old, new = ([one.data for one in row if one.section == section] for row in (before, after))
        if new[: len(old)] != old or (section != "messages" and len(new) > len(old)):
            return section
    return None


# Thinking blocks that no longer fit their conversation, where a request asks for them to be dropped.

CONTROLS_BETA = "thinking-binding-controls-2026-08-01"


class DroppedThinking(msgspec.Struct, frozen=True):
    """A request without the blocks that were dropped, and what the reply says of them."""

    body: JsonObject
    transformations: tuple[JsonObject, ...] = ()


def drop_mismatched(body: JsonObject, seen: ServerMemory) -> DroppedThinking:
    """Take out the thinking whose prefix changed, if the request says drop_block."""
    binding = ((body.get("thinking") or {}).get("block_binding")) or {}
    if binding.get("prefix_mismatch_behavior") != "drop_block":
        return DroppedThinking(body)
    paths = list(_mismatched(body, seen))
    taken = {tuple(path.split(".")[1::2]) for path in paths}
    messages = [
        {**message, "content": _without(message["content"], index, taken)}
        for index, message in enumerate(body["messages"])
    ]
    said = tuple(
        {"type": "thinking_dropped", "path": path, "reason": "prefix_binding_mismatch"} for path in paths
    )
    return DroppedThinking({**body, "messages": messages}, said)


def _mismatched(body: JsonObject, seen: ServerMemory) -> Iterator[str]:
    """Paths as errors write them: messages.1.content.0."""
    for one in signed(anthropic_talk(body)):
        issued = seen.signed.get(one.key)
        if issued is not None and issued.prefix != one.prefix:
            yield where(one.block.path)


def _without(content: object, message: int, taken: set[tuple[str, ...]]) -> object:
    if not isinstance(content, list):
        return content
    return [block for index, block in enumerate(content) if (str(message), str(index)) not in taken]


VOICES: dict[str, ReplyForm] = {
    "anthropic": anthropic.VOICE,
    "openai-chat": chat.VOICE,
    "openai-responses": responses.VOICE,
    "gemini": gemini.VOICE,
    "bedrock": bedrock.VOICE,
}
_DIAGNOSES: dict[str, Callable[..., JsonObject | None]] = {
    "anthropic": anthropic_miss,
    "openai-responses": openai_miss,
}


class Received(msgspec.Struct):
    """A request as it arrived, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json
    at_ms: int
    status: int = 200
    error: str = ""
    # How the cache split it; None where the request was refused.
    predicted: Predicted | None = None
    reply: Json = None


class EmulatedReply(msgspec.Struct, frozen=True):
    """What goes back: a JSON value, or the pieces of a stream, and how they are delivered."""

    status: int
    value: Json = None
    pieces: Iterator[bytes] | None = None
    headers: dict[str, str] = {}
    cut_after: int | None = None
    delay_s: float = 0.0


class Emulated:
    """Answers requests as a provider would; `piece` is how many characters a stream sends at a time."""

    def __init__(
        self,
        provider: str,
        replies: Replies | None,
        clock: Callable[[], int],
        piece: int = 12,
        enforce_binding: bool = True,
    ) -> None:
        self.provider, self.wire = resolve(provider)
        self.script = Script(replies)
        self.requests: list[Received] = []
        self._clock = clock
        self._piece = piece
        self._seen = ServerMemory(complete=True, enforce=enforce_binding)
        self._simulators: dict[str, Simulator] = {}
        # Requests by the id of their reply, and their tokens: diagnostics compare with them.
        self._earlier: dict[str, JsonObject] = {}
        self._tokens: dict[str, int] = {}
        self._now_ms = 0

    def receive(self, method: str, path: str, headers: Mapping[str, str], body: Json) -> Received:
        """Record a request; two are never at the same moment."""
        self._now_ms = max(self._clock(), self._now_ms + 1)
        received = Received(method, path, dict(headers), body, self._now_ms)
        self.requests.append(received)
        return received

    def answer(self, received: Received, wire: str, model: str, streamed: bool) -> EmulatedReply:
        """Check a request against the rules, then answer it from the script."""
        body = received.body
        model = model or (str(body.get("model") or "") if isinstance(body, dict) else "")
        found = errors(
            validate(body, self._name(wire), model or None, seen=self._seen, headers=received.headers)
        )
        if found:
            return self.refused(received, wire, found[0].status, found[0].message)
        scripted = ScriptedAnswer() if _prewarms(body) else self.script.next(body)
        if scripted.refusal is not None:
            return self._refusal(received, wire, scripted.refusal)
        return self._answered(received, wire, model, scripted, streamed)

    def malformed(self, body: Json, wire: str, model: str) -> Finding | None:
        """What keeps a body from being counted."""
        return next(iter(malformed(body, self._name(wire), model or None)), None)

    def count(self, body: JsonObject, wire: str, model: str) -> int:
        """The tokens of a request, without sending it."""
        return Simulator(self._target(wire, model)).count(body)

    def simulator(self, wire: str, model: str) -> Simulator:
        """The cache of a model."""
        target = self._target(wire, model)
        if target not in self._simulators:
            self._simulators[target] = Simulator(target)
        return self._simulators[target]

    def refused(self, received: Received, wire: str, status: int, message: str) -> EmulatedReply:
        """An error in the provider's own shape."""
        received.status, received.error = status, message
        headers = {"x-amzn-errortype": bedrock.exception(status)} if wire == "bedrock" else {}
        return EmulatedReply(status, VOICES[wire].error(status, message), headers=headers)

    def _refusal(self, received: Received, wire: str, refusal: Refuse) -> EmulatedReply:
        message = refusal.message or f"emulated failure ({refusal.status})"
        outcome = self.refused(received, wire, refusal.status, message)
        if refusal.retry_after_s is None:
            return outcome
        headers = {**outcome.headers, "retry-after": f"{refusal.retry_after_s:g}"}
        return msgspec.structs.replace(outcome, headers=headers)

    def _answered(
        self, received: Received, wire: str, model: str, scripted: ScriptedAnswer, streamed: bool
    ) -> EmulatedReply:
        exchange = self._exchange(received, wire, model, scripted)
        voice = VOICES[wire]
        reply = voice.reply(exchange)
        received.predicted, received.reply = exchange.predicted, reply
        self._remember(exchange, wire, reply)
        self.simulator(wire, model).answered(_said(wire, reply))
        pieces = voice.stream(exchange, reply, self._piece) if streamed else None
        return EmulatedReply(200, reply, pieces, cut_after=scripted.cut_after, delay_s=scripted.delay_s)

    def _exchange(self, received: Received, wire: str, model: str, scripted: ScriptedAnswer) -> Answering:
        """Put a request through the cache, and together with what is answered to it."""
        shown = (
            drop_mismatched(received.body, self._seen)
            if wire == "anthropic"
            else DroppedThinking(received.body)
        )
        began_ms = received.at_ms + int(scripted.delay_s * 1000)
        simulator = self.simulator(wire, model)
        predicted = simulator.step(received.at_ms, shown.body, began_ms)
        return Answering(
            number=len(self.requests),
            at_ms=received.at_ms,
            target=self._target(wire, model),
            model=model,
            body=received.body,
            parts=scripted.parts,
            predicted=predicted,
            diagnosis=self._diagnosed(wire, received.body, model, predicted),
            dropped=shown.transformations if CONTROLS_BETA in _betas(received) else None,
        )

    def _remember(self, exchange: Answering, wire: str, reply: JsonObject) -> None:
        """What was signed, and what diagnostics may be asked about later."""
        issue(self._seen, exchange.body, self._name(wire), reply)
        if id := reply.get("id"):
            self._earlier[id] = {**exchange.body, "model": exchange.model}
            self._tokens[id] = exchange.predicted.total

    def _diagnosed(self, wire: str, body: JsonObject, model: str, predicted: Predicted) -> JsonObject | None:
        diagnose = _DIAGNOSES.get(wire)
        return diagnose(body, model, self._earlier, self._tokens, predicted) if diagnose else None

    def speaks(self, wire: str) -> bool:
        """Whether the provider has an endpoint in this wire format."""
        facts = provider_facts(self.provider)
        return wire == facts["wire"] or wire in facts["formats"].values()

    def _name(self, wire: str) -> str:
        """The provider's name in this wire format: openai -> openai-chat for Chat."""
        facts = provider_facts(self.provider)
        if wire == facts["wire"]:
            return self.provider
        return next((name for name, own in facts["formats"].items() if own == wire), self.provider)

    def _target(self, wire: str, model: str) -> str:
        return f"{self._name(wire)}:{model}"


def _said(wire: str, reply: JsonObject) -> JsonObject:
    """A reply as the next request holds it; only caches of Chat's, Responses' and Anthropic's wire keep answers."""
    if wire == "openai-responses":
        return {"input": reply["output"]}
    message = reply["choices"][0]["message"] if wire == "openai-chat" else reply
    return {"messages": [{**message, "role": "assistant"}] if message.get("content") != [] else []}


def _prewarms(body: JsonObject) -> bool:
    """Whether a request only fills the cache."""
    if body.get("max_tokens") == 0 and "messages" in body:
        return True
    return bool((body.get("prompt_cache_options") or {}).get("prewarm")) or is_cache(body)


def _betas(received: Received) -> str:
    return received.headers.get("anthropic-beta", "")
