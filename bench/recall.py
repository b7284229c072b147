"""How often recall finds the turns that hold an answer: LoCoMo, evidence recall@5/10/25/50.

Every conversation is a thread of a real store, searched by `Recall`. Beside it in the same run: BM25 over
single turns, MiniLM over single turns, their fusion by reciprocal ranks, and the paper's DRAGON.
At the end, what the floor of relevance does to the first five: of questions whose evidence is among them, how many
are answered with nothing; of questions that have no evidence where they are asked (those of the conversation before,
with the names of its people exchanged; and all of them in a coding session), how many are answered at all.

    bench/recall.py [--data FILE …] [--no-embedder] [--floor] [--json]
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedded import embedder
from locomo import DRAGON, KS, Conversation, Question, Rank, entries, load, measure
from quire.cli.output import print_table
from quire.recall import Indexer, Recall, relevant
from quire.recall.languages import terms
from quire.thread import open_store
from traces import TRACES, parser
from traces import conversations as traced
from traces import entries as trace_entries

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


PLACED = 5


def floored(conversations: Sequence[Conversation], folder: Path, embedder: Any) -> dict[str, float]:
    """Shares in percent: true ones lost, false ones placed in the same kind of talk and in a coding session."""
    store = open_store(folder / f"floor-{embedder is not None}.db")
    for number, conversation in enumerate(conversations):
        store.append(f"c{number}", entries(conversation))
    session = TRACES / "pi_large_session.jsonl"
    if session.exists():
        store.append("code", trace_entries(next(traced(session))))
    Indexer(store, embedder).run()
    recall, placed = Recall(store, embedder), dict[str, list[bool]]()
    for number, conversation in enumerate(conversations):
        other = conversations[number - 1]
        exchanged = dict(zip(_people(other), _people(conversation), strict=False))
        for question in conversation.questions:
            hits = recall.search(question.text, PLACED, thread=f"c{number}")
            if question.evidence.intersection(hit.seq - 1 for hit in hits):
                placed.setdefault("lost", []).append(not relevant(hits))
            if session.exists():
                found = recall.search(question.text, PLACED, thread="code")
                placed.setdefault("placed in code", []).append(relevant(found))
        for question in other.questions if other is not conversation else ():
            text = "".join(exchanged.get(part, part) for part in re.split(r"(\w+)", question.text))
            found = recall.search(text, PLACED, thread=f"c{number}")
            placed.setdefault("placed in like talk", []).append(relevant(found))
    return {name: 100 * sum(some) / len(some) for name, some in placed.items()}


def _people(conversation: Conversation) -> list[str]:
    return list(dict.fromkeys(turn.speaker for turn in conversation.turns))


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
        return list(np.argsort(-self.scores[:, known].sum(1), kind="stable"))


def nearest(conversations: Sequence[Conversation], embedder: Any) -> Rank:
    """MiniLM over single turns, the query as it is."""
    made = [embedder.encode([_said(turn) for turn in c.turns]) for c in conversations]

    def rank(_conversation: Conversation, number: int, question: Question) -> list[int]:
        return list(np.argsort(-(made[number] @ embedder.encode([question.text])[0]), kind="stable"))

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
        return list(np.argsort(-score, kind="stable"))

    return rank


def as_json(found: dict[str, list[float]]) -> dict[str, Any]:
    rows = {name: dict(zip(map(str, KS), (round(x, 2) for x in row), strict=True)) for name, row in found.items()}
    return {"overall": rows.pop("overall"), "by_category": rows}


def _show_floors(floors: dict[str, dict[str, float]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(floors))
        return
    names = list(next(iter(floors.values())))
    print_table(
        ["the floor, in percent", *names],
        [[way, *(f"{found[name]:.1f}" for name in names)] for way, found in floors.items()],
    )
    print()


def main() -> None:
    options = parser(__doc__, "conversations in LoCoMo's form")
    options.add_argument("--no-embedder", action="store_true", help="search by words alone")
    options.add_argument("--floor", action="store_true", help="only what the floor of relevance does")
    args = options.parse_args()
    conversations = load(*args.data or ())
    model = embedder(not args.no_embedder)
    with tempfile.TemporaryDirectory() as folder:
        if args.floor or not args.json:
            floors = {
                "by words and meaning" if with_ else "by words": floored(conversations, Path(folder), with_)
                for with_ in dict.fromkeys((model, None))
            }
            _show_floors(floors, args.json)
        if args.floor:
            return
        ours = measure(conversations, quire(conversations, Path(folder), model))
        if args.json:
            about = {"by": "words" if model is None else "words and meaning"}
            counted = {
                "questions": sum(len(conversation.questions) for conversation in conversations),
                "evidence_skipped": sum(conversation.skipped for conversation in conversations),
            }
            print(json.dumps({**as_json(ours), **about, **counted}))
            return
        rows: dict[str, Mapping[str, Sequence[float]]] = {
            "paper: DRAGON (all ten)": DRAGON,
            "BM25": measure(conversations, bm25(conversations)),
        }
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
    print(f"evidence that names no turn: {sum(conversation.skipped for conversation in conversations)} (skipped)")


if __name__ == "__main__":
    main()
