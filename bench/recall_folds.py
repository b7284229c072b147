"""Are recall's weights fitted to the conversations they were chosen on? Tune on half of LoCoMo, check on the rest.

For every way to split four conversations into two pairs, both ways round: the weights are chosen anew by
coordinate search on one pair, starting from weights of 1 and ½, and measured on the other, beside the weights
that ship. Equal figures mean that the optimum is flat and the shipped weights are not a fit.

    bench/recall_folds.py [--data FILE …] [--no-embedder] [--json]
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from embedded import embedder
from locomo import KS, Conversation, Question, entries, load
from quire.cli.output import print_table
from quire.recall import Collection
from quire.recall.document import Query, ask, document, index_terms
from quire.recall.rank import WEIGHTS, standard_words
from quire.recall.words import scores
from traces import parser

NAMES = ("words", "meaning", "speaker", "asks", "person", "time", "name")
START = (1, 1, 1, -0.5, 0.5, 0.3, 0.3)
GRID = {
    "meaning": (0.6, 0.8, 1, 1.25),
    "speaker": (0.8, 1.2, 1.6, 2, 2.4),
    "asks": (-0.4, -0.8, -1.2, -1.6),
    "person": (0, 0.5, 1, 1.5, 2),
    "time": (0, 0.35, 0.7, 1),
    "name": (0, 0.5, 1, 1.5),
}

# A question and, in a row each, the reasons for every turn.
Reasons = tuple[Question, Any]


def reasons(conversation: Conversation, embedder: Any) -> list[Reasons]:
    """Everything the weights are multiplied with, taken from the collection's own parts."""
    held = Collection(embedder)
    turns = zip(entries(conversation), conversation.turns, strict=True)
    made = [(index_terms(document(entry)), turn) for entry, turn in turns]
    held.add([msgspec.structs.replace(one, id=turn.id, session=turn.session) for one, turn in made])
    held.embed()
    return [(question, _reasons(held, question.text)) for question in conversation.questions]


def _reasons(held: Collection, text: str) -> Any:
    speakers, rows = held._speakers, np.arange(len(held.ids))
    asked = ask(Query(text), speakers.people())
    neighbours = held._beside()
    words, _, ideal = scores(held._postings, asked, neighbours, held._alive.all)
    vector, none = held._vector(asked), np.zeros(0, np.int64)
    every = held._every_cosine(rows, vector, none, none.astype(np.float32), neighbours)
    return np.stack(
        [
            standard_words(words, ideal if vector is not None and asked.english else 0.0),
            held._likeness(rows, every, neighbours),
            (speakers.speakers.all == asked.subject) * (asked.subject >= 0),
            neighbours.dialogue * speakers.asks.all,
            neighbours.dialogue * (speakers._person.all - 0.5),
            speakers._times.all * asked.when,
            speakers._names.all * asked.name,
        ]
    ).astype(np.float32)


def measure(some: list[Reasons], weights: Any) -> Any:
    """Recall at each k, in percent."""
    rows = []
    for question, each in some:
        order = np.argsort(-(weights @ each), kind="stable")[: max(KS)].tolist()
        rows.append([len(question.evidence.intersection(order[:k])) / len(question.evidence) for k in KS])
    return 100 * np.mean(rows, axis=0)


def tune(some: list[Reasons]) -> Any:
    """Coordinate search over the grid for the best mean of all four figures."""
    weights = np.array(START, np.float32)
    best, changed = measure(some, weights).mean(), True
    while changed:
        changed = False
        for at, name in enumerate(NAMES):
            for value in GRID.get(name, ()):
                tried = weights.copy()
                tried[at] = value
                found = measure(some, tried).mean()
                if found > best + 1e-6:
                    weights, best, changed = tried, found, True
    return weights


def main() -> None:
    options = parser(__doc__, "conversations in LoCoMo's form")
    options.add_argument("--no-embedder", action="store_true", help="search by words alone")
    args = options.parse_args()
    model = embedder(not args.no_embedder)
    parts = [reasons(conversation, model) for conversation in load(*args.data or ())]
    shipped = np.array([getattr(WEIGHTS, name) for name in NAMES], np.float32)
    rows, sizes = [], []
    for tuned_on in combinations(range(len(parts)), len(parts) // 2):
        rest = [one for at, part in enumerate(parts) if at not in tuned_on for one in part]
        weights = tune([part for at in tuned_on for part in parts[at]])
        rows.append((tuned_on, measure(rest, weights), measure(rest, shipped)))
        sizes.append(len(rest))
    mean = [np.average([row[at] for row in rows], axis=0, weights=sizes) for at in (1, 2)]
    if args.json:
        print(json.dumps({"tuned": mean[0].round(2).tolist(), "shipped": mean[1].round(2).tolist()}))
        return
    shown = [[" ".join(map(str, on)), _line(tuned), _line(ours)] for on, tuned, ours in rows]
    heads = ["tuned on", "weights of that half, on the other: R@5/10/25/50", "shipped weights, there"]
    print_table(heads, [*shown, ["mean", _line(mean[0]), _line(mean[1])]])


def _line(row: Any) -> str:
    return " / ".join(f"{value:.1f}" for value in row)


if __name__ == "__main__":
    main()
