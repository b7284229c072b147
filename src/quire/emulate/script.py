"""What the emulator answers: scripted replies, one for each request, and faults on demand."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from quire.errors import CallError
from quire.providers.models import ModelInfo, model_info
from quire.providers.simulate import Predicted
from quire.tokens import counter
from quire.values import Call, Json, JsonObject, Text, Think, sha256_hex

Spoken: TypeAlias = Text | Think | Call


class Refuse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An HTTP error: Refuse(429, retry_after_s=2); OpenAI's errors also have a code and the wrong parameter's name."""

    status: int = 500
    message: str = ""
    retry_after_s: float | None = None
    code: str | None = None
    param: str | None = None


class Cut(msgspec.Struct, frozen=True):
    """A reply whose connection breaks after `after_bytes` of the body, even in the middle of an event."""

    reply: SpokenReply
    after_bytes: int


class Slow(msgspec.Struct, frozen=True):
    """A reply that begins only after `delay_s`."""

    reply: SpokenReply
    delay_s: float


SpokenReply: TypeAlias = "str | Sequence[Spoken | str] | JsonObject"
Reply: TypeAlias = "SpokenReply | Refuse | Cut | Slow"
Replies: TypeAlias = "Iterable[Reply] | Callable[[JsonObject], Reply]"


class ScriptedAnswer(msgspec.Struct, frozen=True):
    """A scripted reply in its parts, with how it is delivered."""

    parts: tuple[Spoken, ...] = ()
    refusal: Refuse | None = None
    cut_after: int | None = None
    delay_s: float = 0.0


class Script:
    """Replies in order, or a function of the request; without any, every request gets a numbered answer."""

    def __init__(self, replies: Replies | None = None) -> None:
        self._function = replies if callable(replies) else None
        self._waiting = deque(() if replies is None or callable(replies) else replies)
        for reply in self._waiting:
            answer(reply)  # raises for a mistake in the script now, not when a request comes
        self._endless = replies is None
        self._count = len(self._waiting)
        self._answered = 0

    def push(self, reply: Reply) -> None:
        """Answer the next request with this, before anything else."""
        self._waiting.appendleft(reply)

    def next(self, body: JsonObject) -> ScriptedAnswer:
        """The answer to a request."""
        self._answered += 1
        if self._waiting:
            return answer(self._waiting.popleft())
        if self._function is not None:
            try:
                return answer(self._function(body))
            except Exception as error:  # any fault of the script is shown to the client that sent the request
                return ScriptedAnswer(refusal=Refuse(400, f"the script raised {type(error).__name__}: {error}"))
        if self._endless:
            return ScriptedAnswer((Text(f"This is reply {self._answered} of the emulator."),))
        return ScriptedAnswer(refusal=Refuse(400, f"the script has no reply left: {self._count} were given"))


def answer(reply: Reply) -> ScriptedAnswer:
    """Take a scripted reply apart."""
    match reply:
        case Refuse():
            return ScriptedAnswer(refusal=reply)
        case Cut(reply=inner, after_bytes=count):
            return ScriptedAnswer(_parts(inner), cut_after=count)
        case Slow(reply=inner, delay_s=delay):
            return ScriptedAnswer(_parts(inner), delay_s=delay)
        case Mapping() if "status" in reply:
            return ScriptedAnswer(refusal=_refusal(dict(reply)))
    return ScriptedAnswer(_parts(reply))


def _refusal(reply: JsonObject) -> Refuse:
    try:
        return msgspec.convert(reply, Refuse)
    except msgspec.ValidationError as error:
        hint = 'A fault is {"status": 429, "message": "…", "retry_after_s": 1}.'
        raise CallError(f"a scripted fault is wrong: {error}", hint=hint) from error


class _ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call as a script writes it."""

    name: str
    args: Json = {}
    id: str = ""


class _ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reply as a script writes it."""

    thinking: str = ""
    text: str = ""
    calls: list[_ScriptedCall] = []


def _parts(reply: SpokenReply) -> tuple[Spoken, ...]:
    """A reply's parts: "text", [Think("…"), Call("", "f", {})], or {"thinking", "text", "calls": [{"name", "args"}]}."""
    if isinstance(reply, str):
        return (Text(reply),)
    if not isinstance(reply, Mapping | Sequence):
        raise CallError(f"a reply cannot be {type(reply).__name__}", hint=_HINT)
    if not isinstance(reply, Mapping):
        return tuple(_part(part) for part in reply)
    try:
        scripted = msgspec.convert({key: reply[key] for key in reply if reply[key] is not None}, _ScriptedReply)
    except msgspec.ValidationError as error:
        raise CallError(f"a scripted reply is wrong: {error}", hint=_HINT) from error
    thinking = [Think(scripted.thinking)] if scripted.thinking else []
    text = [Text(scripted.text)] if scripted.text else []
    return (*thinking, *text, *(Call(call.id, call.name, call.args) for call in scripted.calls))


_HINT = 'A reply is a string, or {"text": "…", "thinking": "…", "calls": [{"name": "f", "args": {}}]}.'


def _part(part: Json) -> Spoken:
    if isinstance(part, str):
        return Text(part)
    if isinstance(part, Text | Think | Call):
        return part
    raise CallError(
        f"a reply cannot hold {type(part).__name__}", hint="Use strings and values.Text, values.Think and values.Call."
    )


def issue_parts(parts: Iterable[Spoken], number: int, prefix: str) -> Iterator[Spoken]:
    """The parts as a model writes them: calls get their arguments as text, and an id of their own."""
    calls = 0
    for part in parts:
        if isinstance(part, Call):
            calls += 1
            id, text = part.call_id or f"{prefix}{number:04d}{calls:02d}", msgspec.json.encode(part.args).decode()
            part = msgspec.structs.replace(part, call_id=id, arguments=part.arguments or text)
        yield part


# One request and its answer, in no provider's form.


class EmulatedExchange(msgspec.Struct, frozen=True):
    """Everything a provider's reply is made of; `body` is the request with the stored response that it continues."""

    number: int
    at_ms: int
    target: str
    model: str
    body: JsonObject
    parts: tuple[Spoken, ...]
    predicted: Predicted
    diagnosis: JsonObject | None = None
    # The id of the response that this one continues.
    previous: str | None = None
    # Input that the server took out before the model saw it (Anthropic's drop_block).
    dropped_input: tuple[JsonObject, ...] | None = None

    @property
    def info(self) -> ModelInfo:
        return model_info(self.target)

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def thinking(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Think))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def reasoning_tokens(self) -> int:
        return counter(self.target).count(self.thinking)

    @property
    def output_tokens(self) -> int:
        """Everything the model wrote; at least one token ends even an empty reply."""
        count = counter(self.target).count
        spoken = sum(count(part.text) for part in self.parts if isinstance(part, Text))
        called = sum(count(call.name) + count(call.arguments) for call in self.calls)
        return max(1, spoken + called + self.reasoning_tokens)

    def signature(self, thought: str, index: int) -> str:
        """A signature that only this thought at this place has."""
        digest = sha256_hex(f"{self.number}\n{index}\n{thought}")
        # Base64 of hex digits has only letters and digits: it is the same in the standard and the URL alphabet.
        return base64.b64encode(b"\x12\xa8\x01" + digest.encode()).decode()


class EmulatedRequest(msgspec.Struct):
    """A request as it arrived, and what became of it; `number` counts the server's requests and names its ids."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json
    at_ms: int
    number: int = 0
    # The wire format and the model that it asks for.
    wire: str = ""
    model: str = ""
    status: int = 200
    error: str = ""
    # How many of its tokens the cache read and wrote; None where the request was refused.
    predicted: Predicted | None = None
    reply: Json = None

    @property
    def request_id(self) -> str:
        return f"req_{sha256_hex(f'request {self.number}')[:24]}"


class EmulatedReply(msgspec.Struct, frozen=True):
    """An answer before HTTP: a JSON value, or the pieces of a stream, and how they are delivered."""

    status: int
    value: Json = None
    pieces: Iterator[bytes] | None = None
    headers: dict[str, str] = {}
    media_type: str = "application/json"
    cut_after: int | None = None
    delay_s: float = 0.0


class IssuedReply(msgspec.Struct, frozen=True):
    """One answered request, as the state file keeps it for a server that is started again."""

    number: int
    wire: str
    model: str
    body: JsonObject
    reply: JsonObject
    tokens: int


class StoredResponse(msgspec.Struct, frozen=True):
    """A response that a later request may continue: the response, and all items up to its end."""

    items: list[JsonObject]
    reply: JsonObject


class EmulatedPath(msgspec.Struct, frozen=True):
    """A path for POST requests. It answers, or it only counts tokens, under the field name `count`."""

    path: str
    # Whether it answers with a stream; None where the body says so.
    streamed: bool | None = None
    count: str = ""
    # The request to be counted, taken from the body.
    inner: Callable[[JsonObject], Json] = lambda body: body


def endpoints(path: str, counting: str = "") -> tuple[EmulatedPath, ...]:
    """A path with and without /v1; `counting` is the path below it that counts input tokens."""
    bases = (path, path.removeprefix("/v1"))
    counts = (EmulatedPath(f"{base}/{counting}", count="input_tokens") for base in bases if counting)
    return (*map(EmulatedPath, bases), *counts)


class ReplyForm(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that differs by wire format: its paths, and its form of replies, streams, errors and models."""

    endpoints: tuple[EmulatedPath, ...]
    # The prefix of call ids.
    call_prefix: str
    # The path that lists the models; each model has its own path below that.
    models: str = ""
    reply: Callable[[EmulatedExchange], JsonObject]
    stream: Callable[[EmulatedExchange, JsonObject, int], Iterator[bytes]]
    media_type: str = "text/event-stream"
    error: Callable[[Refuse, str], JsonObject]
    # The headers of any answer: ids and rate limits.
    headers: Callable[[EmulatedRequest], dict[str, str]]
    # The refusal of a request that lacks its key or version.
    lacks: Callable[[EmulatedRequest], Refuse | None]
    unknown_model: Callable[[str], Refuse]
    model: Callable[[ModelInfo], JsonObject] = lambda info: {"id": info.model}
    model_list: Callable[[list[JsonObject]], JsonObject] = lambda models: {"data": models}
    # Whether the model thinks at all in answer to this body.
    thinks: Callable[[JsonObject, ModelInfo], bool] = lambda body, info: True
    # A reply in the form in which the next request repeats it, for caches that store replies too.
    as_history: Callable[[JsonObject], JsonObject] = lambda reply: {"messages": []}
    # The provider's diagnosis of a prefix that was not read, from the earlier replies by their ids.
    diagnose: Callable[[EmulatedExchange, dict[str, IssuedReply]], JsonObject | None] = lambda exchange, earlier: None
    # Whether replies are stored: later requests may read and continue them by their ids.
    stores: bool = False


def limits_left(received: EmulatedRequest) -> dict[str, tuple[int, int]]:
    """The emulator's rate limits as (limit, what is left of it); each request counts as the first of its minute."""
    tokens = received.predicted.total if received.predicted else 0
    return {"requests": (10_000, 9_999), "tokens": (2_000_000, max(0, 2_000_000 - tokens))}


def streamed_text(part: Spoken) -> str:
    """The text of a part that a stream sends piece by piece."""
    return part.arguments if isinstance(part, Call) else part.text


def pieces(text: str, size: int) -> Iterator[str]:
    """A text in stream-sized pieces; an empty one still makes one piece."""
    for start in range(0, max(1, len(text)), size):
        yield text[start : start + size]
