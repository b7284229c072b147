"""What differs between the servers that speak OpenAI's formats: a row of data each, plus the model's features."""

from __future__ import annotations

import functools
import re
from typing import Literal

import msgspec

from quire.providers.facts import data
from quire.providers.models import ModelInfo
from quire.providers.spelling import Spelling


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


def dialect_of(info: ModelInfo) -> Dialect:
    """How the provider of this model speaks Chat Completions."""
    row = _rows().get(info.provider, Dialect())
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
