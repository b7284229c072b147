"""One request and what is answered to it, in no provider's form."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import msgspec

from quire.emulate.script import Spoken
from quire.log.hashing import sha256_hex
from quire.providers.simulate import Predicted
from quire.tokens import counter
from quire.values import Call, JsonObject, Text, Think


class Exchange(msgspec.Struct, frozen=True):
    """Everything a provider's reply is made of; `number` counts the server's requests and names its ids."""

    number: int
    at_ms: int
    target: str
    model: str
    body: JsonObject
    parts: tuple[Spoken, ...]
    predicted: Predicted
    diagnosis: JsonObject | None = None
    # Input that the server took out before the model saw it (Anthropic's drop_block).
    dropped: tuple[JsonObject, ...] | None = None

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
        called = sum(count(call.name) + count(arguments(call)) for call in self.calls)
        return max(1, spoken + called + self.reasoning_tokens)

    def call_id(self, call: Call, prefix: str) -> str:
        """The id a scripted call gave, else one that no other call of this server has."""
        if call.call_id:
            return call.call_id
        return f"{prefix}{self.number:04d}{self.calls.index(call) + 1:02d}"

    def signature(self, part: Think, index: int) -> str:
        """A signature that only this thought at this place has; the server remembers what it binds."""
        seal = sha256_hex(f"{self.number}\n{index}\n{part.text}")
        # Hex digits make base64 of letters and digits alone: the same in both of its alphabets.
        return base64.b64encode(b"\x12\xa8\x01" + seal.encode()).decode()


class Voice(msgspec.Struct, frozen=True):
    """How a wire format says it: a whole reply, the same as a stream in pieces of a size, an error."""

    reply: Callable[[Exchange], JsonObject]
    stream: Callable[[Exchange, JsonObject, int], Iterator[bytes]]
    error: Callable[[int, str], JsonObject]


def arguments(call: Call) -> str:
    """A call's arguments as the model would write them."""
    return call.arguments or msgspec.json.encode(call.args).decode()


def pieces(text: str, size: int) -> Iterator[str]:
    """A text in stream-sized pieces; an empty one still makes one piece."""
    for start in range(0, max(1, len(text)), size):
        yield text[start : start + size]
