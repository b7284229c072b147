"""The head of a GGUF file: what it says of its tokenizer and chat template, without its tensors."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from quire.errors import FormatError

MAGIC, VERSION = b"GGUF", 3
STRING, ARRAY = 8, 9
# GGUF's value types: the sizes of the plain ones; strings and arrays say their own.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def chat_template(path: Path) -> str:
    """The template a model was trained with; empty where its file has none."""
    with path.open("rb") as file:
        value = dict(tokenizer(file, path.name)).get("tokenizer.chat_template", b"")
    # A string's value begins with its type and its length.
    return value[12:].decode(errors="replace")


def tokenizer(file: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    """The raw values of a GGUF file's tokenizer, each with its type in front."""
    head = file.read(24)
    if len(head) < 24 or head[:4] != MAGIC or struct.unpack_from("<I", head, 4) != (VERSION,):
        raise FormatError(f"{name} is not a GGUF file of version {VERSION}", hint="Convert it first.")
    (count,) = struct.unpack_from("<Q", head, 16)
    for _ in range(count):
        key = file.read(*struct.unpack("<Q", file.read(8))).decode()
        start = file.tell()
        (kind,) = struct.unpack("<I", file.read(4))
        _skip(file, kind)
        length = file.tell() - start
        file.seek(start)
        value = file.read(length)
        if key.startswith("tokenizer."):
            yield key, value


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        file.seek(struct.unpack("<Q", file.read(8))[0], 1)
    elif kind == ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)
