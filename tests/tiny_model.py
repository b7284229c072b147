"""A model of 8 MB with random weights and a real model's tokenizer and chat template: its text is noise, its cache is real."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.send.local import weights
from quire.send.weights import MAGIC, VERSION

_ALIGNMENT = 32
_U32, _F32, _STRING, _ARRAY = 4, 6, 8, 9
# GGUF's value types: the sizes of the plain ones; strings and arrays say their own.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TENSOR_F32, _TENSOR_F16 = 0, 1
_WIDTH, _LAYERS, _HEADS, _INNER = 64, 2, 2, 128
CONTEXT_LENGTH = 32768


def tiny_model(path: Path) -> Path:
    """Write the tiny model, with the tokenizer of the small one that ships."""
    with weights().open("rb") as file:
        found = dict(_tokenizer(file))
    # An array's value begins with its elements' type and their number.
    (vocabulary,) = struct.unpack_from("<Q", found["tokenizer.ggml.tokens"], 8)
    path.write_bytes(b"".join(_file(found, int(vocabulary))))
    return path


def _tokenizer(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """The raw values of a GGUF file's tokenizer, each with its type in front."""
    (count,) = struct.unpack_from("<Q", file.read(24), 16)
    for _ in range(count):
        key = file.read(*struct.unpack("<Q", file.read(8))).decode()
        start = file.tell()
        _skip(file, *struct.unpack("<I", file.read(4)))
        length = file.tell() - start
        file.seek(start)
        value = file.read(length)
        if key.startswith("tokenizer."):
            yield key, value


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(struct.unpack("<Q", file.read(8))[0], 1)
    elif kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)


def _file(found: dict[str, bytes], vocabulary: int) -> Iterator[bytes]:
    """A whole GGUF file: header, metadata, where each tensor lies, the tensors."""
    tensors = list(_tensors(vocabulary))
    metadata = {**_settings(vocabulary), **found}
    head = [struct.pack("<4sIQQ", MAGIC, VERSION, len(tensors), len(metadata))]
    head += [_text(name) + value for name, value in metadata.items()]
    offset = 0
    for name, tensor in tensors:
        kind = _TENSOR_F16 if tensor.itemsize == 2 else _TENSOR_F32
        shape = tensor.shape[::-1]
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += tensor.nbytes + -tensor.nbytes % _ALIGNMENT
    header = b"".join(head)
    yield header + bytes(-len(header) % _ALIGNMENT)
    for _, tensor in tensors:
        yield tensor.tobytes() + bytes(-tensor.nbytes % _ALIGNMENT)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _settings(vocabulary: int) -> dict[str, bytes]:
    numbers = {
        "context_length": CONTEXT_LENGTH,
        "embedding_length": _WIDTH,
        "block_count": _LAYERS,
        "feed_forward_length": _INNER,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _HEADS,
        "rope.dimension_count": _WIDTH // _HEADS,
        "vocab_size": vocabulary,
    }
    fractions = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    return {
        "general.architecture": struct.pack("<I", _STRING) + _text("llama"),
        "general.name": struct.pack("<I", _STRING) + _text("tiny-random"),
        "general.file_type": struct.pack("<II", _U32, 1),
        **{f"llama.{name}": struct.pack("<II", _U32, value) for name, value in numbers.items()},
        **{f"llama.{name}": struct.pack("<If", _F32, value) for name, value in fractions.items()},
    }


def _tensors(vocabulary: int) -> Iterator[tuple[str, NDArray[np.generic]]]:
    # Seeded, so that the file has the same bytes wherever it is made.
    draw = np.random.default_rng(0).standard_normal
    matrix: Callable[..., NDArray[np.generic]] = lambda *shape: (draw(shape) * 0.08).astype(np.float16)  # noqa: E731
    ones = np.ones(_WIDTH, np.float32)
    yield "token_embd.weight", matrix(vocabulary, _WIDTH)
    yield "output_norm.weight", ones
    for layer in range(_LAYERS):
        yield f"blk.{layer}.attn_norm.weight", ones
        yield f"blk.{layer}.ffn_norm.weight", ones
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{name}.weight", matrix(_WIDTH, _WIDTH)
        yield f"blk.{layer}.ffn_gate.weight", matrix(_INNER, _WIDTH)
        yield f"blk.{layer}.ffn_up.weight", matrix(_INNER, _WIDTH)
        yield f"blk.{layer}.ffn_down.weight", matrix(_WIDTH, _INNER)
