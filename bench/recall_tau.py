"""After a rebase, can the entry that the next call depends on be recalled?

Recorded agent runs, each cut in the middle as a rebase would cut it. A later call depends on the dropped half
when an identifier in its arguments (an order number, an item id, an account) stands there and nowhere in what
was kept. The query is what the user said last, and at less weight what they said before; found is the share of
identifiers that stand in one of the k entries recalled. Beside recall in the same run: BM25 and MiniLM alone over
the same entries with the same words.

    bench/recall_tau.py [--data FILE …] [--no-embedder] [--json]
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from embedded import embedder
from quire.cli.output import print_table
from quire.recall import Indexer, Query, Recall, query_for
from quire.recall.document import KINDS, document
from quire.thread import open_store
from quire.values import Entry
from recall import _Bm25
from traces import TRACES, conversations, entries, parser

KS = (1, 5, 10)
FILES = ("tau_retail_gpt41mini", "tau_retail_o4mini", "tau_retail_gemini", "tau2_airline")
_IDENTIFIER = re.compile(r"[#\w]*\d[\w-]{3,}")


class Need(msgspec.Struct, frozen=True):
    """A call behind the cut, and what it takes from before."""

    thread: str
    cut: int
    query: Query
    identifiers: frozenset[str]


def needs(thread: str, log: Sequence[Entry]) -> list[Need]:
    """The calls of the second half that depend on the first."""
    cut = len(log) // 2
    dropped = " ".join(_shown(entry) for entry in log[:cut])
    found = []
    for at, entry in enumerate(log[cut:], cut):
        if entry.kind != "call":
            continue
        kept = " ".join(_shown(entry) for entry in log[cut:at])
        wanted = {id for id in _IDENTIFIER.findall(_shown(entry)) if id in dropped and id not in kept}
        if wanted:
            found.append(Need(thread, cut, query_for(log[:at]), frozenset(wanted)))
    return found


def _shown(entry: Entry) -> str:
    return json.dumps(entry.body, ensure_ascii=False) if entry.kind != "system" else ""


# (need) -> texts of entries, best first.
Find = Callable[[Need], Iterable[str]]


def measure(wanted: Sequence[Need], find: Find) -> list[float]:
    """The share of identifiers found among the first k, in percent, as the mean over calls."""
    rows = []
    for need in wanted:
        texts = list(find(need))
        shares = [sum(any(id in text for text in texts[:k]) for id in need.identifiers) for k in KS]
        rows.append([share / len(need.identifiers) for share in shares])
    return [100 * sum(column) / len(rows) for column in zip(*rows, strict=True)]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--no-embedder", action="store_true", help="search by words alone")
    args = made.parse_args()
    files = args.data or [TRACES / f"{name}.jsonl" for name in FILES]
    if not all(file.exists() for file in files):
        raise SystemExit("the traces are not here; pass --data FILE")
    logs = {f"{file.stem}-{at}": entries(one) for file in files for at, one in enumerate(conversations(file))}
    wanted = [need for thread, log in logs.items() for need in needs(thread, log)]
    model = embedder(not args.no_embedder)
    with tempfile.TemporaryDirectory() as folder:
        rows = dict(results(logs, wanted, model, Path(folder)))
    if args.json:
        named = {name: dict(zip(map(str, KS), (round(x, 2) for x in row), strict=True)) for name, row in rows.items()}
        print(json.dumps({"calls": len(wanted), "found": named}))
        return
    print(f"{len(logs)} runs, {len(wanted)} calls that depend on what was dropped")
    print_table(["", *(f"R@{k}" for k in KS)], [[name, *(f"{x:.1f}" for x in row)] for name, row in rows.items()])


def results(
    logs: dict[str, list[Entry]], wanted: Sequence[Need], embedder: Any, folder: Path
) -> Iterable[tuple[str, list[float]]]:
    store = open_store(folder / "tau.db")
    for thread, log in logs.items():
        store.append(thread, log)
    Indexer(store, embedder).run()
    yield "BM25, last turn", measure(wanted, lambda need: _by_words(logs, need))
    if embedder is not None:
        yield "MiniLM, last turn", measure(wanted, lambda need: _by_meaning(logs, need, embedder))
    for name, with_ in (("by words", None), ("", embedder)) if embedder is not None else (("by words", None),):
        recall = Recall(store, with_)

        def find(need: Need, recall: Recall = recall, last: bool = False) -> list[str]:
            query = Query(need.query.text) if last else need.query
            hits = recall.search(query, max(KS), thread=need.thread, before=need.cut + 1)
            return [_shown(hit.entry) for hit in hits]

        yield (f"Quire {name}, last turn".replace(" ,", ","), measure(wanted, lambda need: find(need, last=True)))
        yield f"Quire {name}, last and previous".replace(" ,", ","), measure(wanted, find)


def _dropped(logs: dict[str, list[Entry]], need: Need) -> list[Entry]:
    # Calls are searched through their results.
    dropped = logs[need.thread][: need.cut]
    return [entry for entry in dropped if entry.kind in KINDS and entry.kind != "call"]


def _by_words(logs: dict[str, list[Entry]], need: Need) -> list[str]:
    dropped = _dropped(logs, need)
    order = _Bm25([document(entry).text for entry in dropped]).rank(need.query.text)
    return [_shown(dropped[at]) for at in order[: max(KS)]]


def _by_meaning(logs: dict[str, list[Entry]], need: Need, embedder: Any) -> list[str]:
    dropped = _dropped(logs, need)
    near = embedder.encode([document(entry).meaning for entry in dropped]) @ embedder.encode([need.query.text])[0]
    return [_shown(dropped[at]) for at in np.argsort(-near, kind="stable")[: max(KS)]]


if __name__ == "__main__":
    main()
