"""Names and ids in the letters a provider takes, and back again."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from quire.entry import sha256_hex, whole_characters
from quire.providers.models import ModelInfo, data
from quire.values import Json, JsonObject, read_early


class Spelling(msgspec.Struct, frozen=True):
    """Which strings a provider takes as a name or an id."""

    allowed: str = "A-Za-z0-9_-"
    longest: int = 64
    # What the first character may be, where that is fewer.
    first: str = ""
    # Exactly `longest` characters (Mistral's ids): anything else is replaced by a digest.
    exact: bool = False

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - a wire format's spellings live as long as the process
    def spell(self, text: str) -> str:
        """The text itself where it fits, else a readable replacement that depends on nothing else."""
        if len(text) <= self.longest and re.fullmatch(self._pattern(), text):
            return text
        digest = sha256_hex(text)
        if self.exact:
            return digest[: self.longest]
        readable = re.sub(f"[^{self.allowed}]", "_", text)[: self.longest - 10]
        start = "" if not self.first or re.match(f"[{self.first}]", readable) else "_"
        return f"{start}{readable}_{digest[:8]}"

    def _pattern(self) -> str:
        if self.exact:
            return f"[{self.allowed}]{{{self.longest}}}"
        return f"[{self.first or self.allowed}][{self.allowed}]*"

    def candidates(self, text: str) -> Iterator[str]:
        """Ever more spellings of an id that may be taken: call_1, call_1-2, call_1-3, …"""
        yield self.spell(text)
        count = 2
        while True:
            yield self.spell(f"{text}-{count}")
            count += 1


# A call's arguments: the string a model wrote, the value it means, and an object where one is demanded.


def parsed_arguments(text: str) -> tuple[Json, JsonObject]:
    """A call's arguments and what `wire` must keep: the string itself, unless it can be written again."""
    if not text:
        return {}, {}
    try:
        args = json.loads(whole_characters(text), parse_constant=_refuse)
        args = {} if args is None else args  # null: the call has no arguments
        written = compact(args)
        written.encode()  # an escaped lone surrogate parses, but no log can hold it
    except (ValueError, RecursionError):
        return text, {"arguments": text}
    return args, {} if written == text else {"arguments": text}


def compact(value: Json) -> str:
    """JSON as models write arguments: no spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def object_text(args: Json, text: str) -> str:
    """Arguments as the text of a JSON object, for servers that parse them."""
    if not isinstance(args, dict):
        return compact(object_of(args))
    return text or compact(args)


def object_of(args: Json) -> JsonObject:
    """Arguments as an object: what the model wrote instead of one stands under `arguments`."""
    return args if isinstance(args, dict) else {"arguments": args}


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


# What differs between the servers that speak OpenAI's formats: a row of data each, plus the model's features.


@read_early
class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of data/dialects.json, where the fields are explained."""

    note: Literal["developer", "system", "text"] = "system"
    thinking: Literal["", "reasoning_content", "reasoning"] = ""
    max_tokens: str = "max_tokens"
    ids: Spelling = Spelling()
    names: Spelling = Spelling()
    json_arguments: bool = True
    encrypted: bool = False
    key_in: Literal["body", "extra", "header"] = "extra"


@functools.cache
def _rows() -> dict[str, Dialect]:
    return msgspec.convert(data("dialects")["dialects"], dict[str, Dialect])


_USUAL = Dialect()


def dialect_of(info: ModelInfo) -> Dialect:
    """How the provider of this model speaks Chat Completions."""
    row = _rows().get(info.provider, _USUAL)
    if info.features.template and _MISTRALS.search(info.model.lower()):
        # The template that comes with the model refuses other ids, whoever serves it.
        return msgspec.structs.replace(row, ids=_rows()["mistral"].ids)
    return row


_MISTRALS = re.compile("mistral|mixtral|ministral|codestral|devstral|magistral|pixtral")


def in_parts(info: ModelInfo) -> bool:
    """Whether content is a list of parts even for text alone, so that a cache mark moves no byte."""
    return info.cache.max_breakpoints > 0


def alternates(info: ModelInfo) -> bool:
    """Whether a chat template may insist on user and assistant taking turns."""
    return info.features.template or not info.features.user_after_tool
