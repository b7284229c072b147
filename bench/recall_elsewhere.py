"""What helps between two named people must do no harm elsewhere: notes of one speaker, records, user and assistant.

The same questions over other collections made of LoCoMo: the facts its authors noted for each turn, as a log of one
speaker and as records that stand alone (a fact is right when it was noted for a turn of the evidence), and the
conversations with their speakers renamed user and assistant. Beside recall: BM25 over single entries, BM25 with
each entry joined to the one before it (what recall would do if it did not notice), and MiniLM.

    bench/recall_elsewhere.py [--data FILE …] [--no-embedder] [--json]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embedded import embedder
from locomo import DATA, Conversation, load, raw_conversations
from quire.cli.output import print_table
from quire.recall import Collection, Document
from recall import _Bm25
from traces import parser

KS = (1, 5, 10)
# Documents, and for each question its text and the documents that are right.
Task = tuple[list[Document], list[tuple[str, set[int]]]]


def notes(raw: dict[str, Any], conversation: Conversation, session: bool) -> Task:
    """Facts in the order of their turns, and which of them belong to the evidence of each question."""
    places = {turn.id: place for place, turn in enumerate(conversation.turns)}
    facts = []
    for name, people in raw.get("observation", {}).items():
        for fact, source in (pair for pairs in people.values() for pair in pairs):
            found = [places[id] for id in re.findall(r"D\d+:\d+", str(source)) if id in places]
            if found:
                facts.append((min(found), fact, set(found), name))
    facts.sort(key=lambda one: one[0])
    documents = [
        Document(str(at), fact, speaker="note", session=name if session else "")
        for at, (_, fact, _, name) in enumerate(facts)
    ]
    questions = [
        (question.text, {at for at, (_, _, turns, _) in enumerate(facts) if turns & question.evidence})
        for question in conversation.questions
    ]
    return documents, [question for question in questions if question[1]]


def roles(conversation: Conversation) -> Task:
    """The turns themselves, said by user and assistant."""
    first = conversation.turns[0].speaker
    documents = [
        Document(
            str(at),
            turn.text,
            extra=turn.caption,
            speaker="user" if turn.speaker == first else "assistant",
            session=turn.session,
            date=turn.when,
        )
        for at, turn in enumerate(conversation.turns)
    ]
    return documents, [(question.text, set(question.evidence)) for question in conversation.questions]


# (documents) -> (query -> positions, best first).
Way = Callable[[list[Document]], Callable[[str], Sequence[int]]]


def measure(tasks: Sequence[Task], way: Way) -> list[float]:
    rows = []
    for documents, questions in tasks:
        rank = way(documents)
        for text, right in questions:
            order = list(rank(text))
            rows.append([len(right.intersection(order[:k])) / min(k, len(right)) for k in KS])
    return list(100 * np.mean(rows, axis=0))


def ways(embedder: Any) -> dict[str, Way]:
    def quire(with_: Any) -> Way:
        def made(documents: list[Document]) -> Callable[[str], Sequence[int]]:
            held = Collection(with_)
            held.upsert(documents)
            held.embed()
            return lambda query: [int(found.id) for found in held.search(query, max(KS))]

        return made

    def nearest(documents: list[Document]) -> Callable[[str], Sequence[int]]:
        matrix = embedder.encode([document.meaning for document in documents])
        return lambda query: np.argsort(-(matrix @ embedder.encode([query])[0]), kind="stable").tolist()

    out: dict[str, Way] = {
        "BM25": lambda documents: _Bm25([_words(document) for document in documents]).rank,
        "BM25, joined to the one before": lambda documents: _Bm25(_joined(documents)).rank,
    }
    if embedder is not None:
        out |= {"MiniLM": nearest, "Quire by words": quire(None), "Quire": quire(embedder)}
    else:
        out["Quire by words"] = quire(None)
    return out


def _words(one: Document) -> str:
    return f"{one.text} {one.extra} {one.date}"


def _joined(documents: list[Document]) -> list[str]:
    texts = [_words(document) for document in documents]
    return [
        f"{texts[at - 1]} {text}" if at and documents[at - 1].session == documents[at].session else text
        for at, text in enumerate(texts)
    ]


def main() -> None:
    options = parser(__doc__, "conversations in LoCoMo's form")
    options.add_argument("--no-embedder", action="store_true", help="search by words alone")
    args = options.parse_args()
    given = args.data or [DATA]
    raw = [conversation for file in given for conversation in raw_conversations(file)]
    pairs = list(zip(raw, load(*given), strict=True))
    tasks = {
        "notes of one speaker": [notes(raw, one, session=True) for raw, one in pairs],
        "records": [notes(raw, one, session=False) for raw, one in pairs],
        "user and assistant": [roles(one) for _, one in pairs],
    }
    found = {
        name: {way: measure(some, run) for way, run in ways(embedder(not args.no_embedder)).items()}
        for name, some in tasks.items()
    }
    if args.json:
        print(json.dumps(found))
        return
    for name, rows in found.items():
        print_table([name, *(f"R@{k}" for k in KS)], [[way, *(f"{x:.1f}" for x in row)] for way, row in rows.items()])
        print()


if __name__ == "__main__":
    main()
