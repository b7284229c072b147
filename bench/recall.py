"""How often recall finds the turns that hold an answer: LoCoMo, evidence recall@5/10/25/50.

Every conversation is a thread of a real store, searched by `Recall`. Beside it in the same run: BM25 over
single turns, MiniLM over single turns, their fusion by reciprocal ranks, and the paper's DRAGON.

    bench/recall.py [--data FILE …] [--no-embedder] [--json]
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedded import embedder
from locomo import DRAGON, KS, Conversation, Question, Rank, entries, load, measure
from quire.cli.output import print_table
from quire.recall import Indexer, Recall
from quire.recall.languages import terms
from quire.thread import open_store
from traces import parser

NAMES = ("single-hop", "multi-hop", "temporal", "open-domain", "adversarial")


def quire(conversations: Sequence[Conversation], folder: Path, embedder: Any) -> Rank:
    """Search through the store, one thread a conversation."""
    store = open_store(folder / f"locomo-{embedder is not None}.db")
    for number, conversation in enumerate(conversations):
        store.append(f"c{number}", entries(conversation))
    Indexer(store, embedder).run()
    recall = Recall(store, embedder)

    def rank(_conversation: Conversation, number: int, question: Question) -> list[int]:
        return [hit.seq - 1 for hit in recall.search(question.text, max(KS), thread=f"c{number}")]

    return rank


def bm25(conversations: Sequence[Conversation]) -> Rank:
    """Plain BM25 over single turns (text, caption, speaker, date), same stems and stop words."""
    made = [_Bm25([f"{t.speaker} {t.text} {t.caption} {t.when}" for t in c.turns]) for c in conversations]
    return lambda _conversation, number, question: made[number].rank(question.text)


class _Bm25:
    def __init__(self, texts: list[str]) -> None:
        bags = [terms(text) for text in texts]
        self.words = {word: at for at, word in enumerate(sorted({w for bag in bags for w in bag}))}
        counts = np.zeros((len(bags), len(self.words)), np.float32)
        for row, bag in enumerate(bags):
            for word in bag:
                counts[row, self.words[word]] += 1
        holders = (counts > 0).sum(0)
        rarity = np.log1p((len(bags) - holders + 0.5) / (holders + 0.5))
        length = counts.sum(1, keepdims=True)
        self.scores = rarity * counts * 2.2 / (counts + 1.2 * (0.25 + 0.75 * length / length.mean()))

    def rank(self, query: str) -> list[int]:
        known = sorted({self.words[word] for word in terms(query) if word in self.words})
        return np.argsort(-self.scores[:, known].sum(1), kind="stable").tolist()


def nearest(conversations: Sequence[Conversation], embedder: Any) -> Rank:
    """MiniLM over single turns, the query as it is."""
    made = [embedder.encode([_said(turn) for turn in c.turns]) for c in conversations]

    def rank(_conversation: Conversation, number: int, question: Question) -> list[int]:
        return np.argsort(-(made[number] @ embedder.encode([question.text])[0]), kind="stable").tolist()

    return rank


def _said(turn: Any) -> str:
    return f"{turn.speaker}: {turn.text}" + (f" [{turn.caption}]" if turn.caption else "")


def fused(one: Rank, other: Rank) -> Rank:
    """Reciprocal ranks of two lists, added."""

    def rank(conversation: Conversation, number: int, question: Question) -> list[int]:
        score = np.zeros(len(conversation.turns))
        for list_ in (one, other):
            for place, turn in enumerate(list_(conversation, number, question)):
                score[turn] += 1 / (60 + place)
        return np.argsort(-score, kind="stable").tolist()

    return rank


def as_json(found: dict[str, list[float]]) -> dict[str, Any]:
    rows = {
        name: dict(zip(map(str, KS), (round(x, 2) for x in row), strict=True)) for name, row in found.items()
    }
    return {"overall": rows.pop("overall"), "by_category": rows}


def main() -> None:
    options = parser(__doc__, "conversations in LoCoMo's form")
    options.add_argument("--no-embedder", action="store_true", help="search by words alone")
    args = options.parse_args()
    conversations = load(*args.data or ())
    model = embedder(not args.no_embedder)
    with tempfile.TemporaryDirectory() as folder:
        ours = measure(conversations, quire(conversations, Path(folder), model))
        if args.json:
            about = {"by": "words" if model is None else "words and meaning"}
            counted = {
                "questions": sum(len(one.questions) for one in conversations),
                "evidence_skipped": sum(one.skipped for one in conversations),
            }
            print(json.dumps({**as_json(ours), **about, **counted}))
            return
        rows = {"paper: DRAGON (all ten)": DRAGON, "BM25": measure(conversations, bm25(conversations))}
        if model is not None:
            pair = bm25(conversations), nearest(conversations, model)
            rows["MiniLM"] = measure(conversations, pair[1])
            rows["BM25 + MiniLM, reciprocal ranks"] = measure(conversations, fused(*pair))
            rows["Quire by words"] = measure(conversations, quire(conversations, Path(folder), None))
        rows["Quire" if model else "Quire by words"] = ours
    for name in (name for name in ("overall", *NAMES) if name in ours):
        print_table(
            [name, *(f"R@{k}" for k in KS)],
            [[who, *(f"{x:.1f}" for x in found[name])] for who, found in rows.items() if name in found],
        )
        print()
    print(f"evidence that names no turn: {sum(one.skipped for one in conversations)} (skipped)")


if __name__ == "__main__":
    main()
