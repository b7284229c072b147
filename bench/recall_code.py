"""In a coding session, is the one entry found that holds a name, or that a few of its words are remembered of?

Names (`camelCase`, `snake_case`, paths, dotted names) that stand in exactly one entry, asked for bare and in a
question; and four words of a short entry in any order, among long results: any, and such that no other entry holds all
of. Right is that entry. Beside recall in the same run: plain BM25 over single entries with the same words.

    bench/recall_code.py [--data FILE …] [--no-embedder] [--json]
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from embedded import embedder
from quire.cli.output import print_table
from quire.recall import Collection, Document
from quire.recall.document import KINDS, document
from quire.recall.languages import FUNCTION_WORDS, tokens
from quire.values import Entry
from recall import _Bm25
from traces import TRACES, conversations, entries, parser

KS = (1, 5, 10)
_NAME = re.compile(r"[A-Za-z_$][\w$]*(?:[./@:-]+[\w$]+)*")
_TELLING = re.compile(r"[a-z][A-Z]|_|\d|\w[./@-]\w")
_MOST = 400
_DRAWS = (3, 11, 12, 13)

# A question and the place of the document that is right.
Asked = tuple[str, int]


def documents(log: Sequence[Entry]) -> list[Document]:
    """The searched entries of one session; a result together with the words of its call, as recall searches it."""
    found, calls = [], dict[str, list[str]]()
    for at, entry in enumerate(log):
        made = document(entry)
        if entry.kind == "call":
            calls.setdefault(entry.call_id, []).append(made.text)
        elif entry.kind in KINDS:
            waiting = calls.get(entry.call_id, []) if entry.kind == "result" else []
            extra = f"{made.extra}\n{waiting.pop() if waiting else ''}"
            found.append(Document(str(at), made.text, extra=extra, speaker=made.speaker, session="s"))
    return found


def names(some: Sequence[Document]) -> list[Asked]:
    """Names that stand in one entry and nowhere else, not even inside another name."""
    where: dict[str, set[int]] = {}
    for at, one in enumerate(some):
        for name in set(_NAME.findall(one.text)):
            if len(name) >= 5 and _TELLING.search(name):
                where.setdefault(name, set()).add(at)
    single = sorted(name for name, places in where.items() if len(places) == 1)
    random.Random(5).shuffle(single)
    whole = [f"{one.text}\n{one.extra}" for one in some]
    alone = (name for name in single if sum(name in text for text in whole) == 1)
    return [(name, min(where[name])) for name, _ in zip(alone, range(_MOST), strict=False)]


def few_words(some: Sequence[Document]) -> list[Asked]:
    """Four words of what a user or the model said in one to a few sentences, drawn again and again."""
    found = []
    for seed in _DRAWS:
        dice = random.Random(seed)
        for at, one in enumerate(some):
            words = sorted(set(tokens(one.text)) - FUNCTION_WORDS["english"])
            if one.speaker in ("user", "assistant") and 12 <= len(one.text.split()) <= 60 and len(words) >= 6:
                found.append((" ".join(dice.sample(words, 4)), at))
    return found


def held_once(some: Sequence[Document], asked: Sequence[Asked]) -> list[Asked]:
    """Those of which no other entry holds all words."""
    bags = [set(tokens(f"{one.text} {one.extra}")) for one in some]
    return [one for one in asked if sum(bag.issuperset(one[0].split()) for bag in bags) == 1]


def measure(asked: Sequence[Asked], rank: Callable[[str], Sequence[int]]) -> list[float]:
    orders = [(list(rank(text)), right) for text, right in asked]
    return [100 * sum(right in order[:k] for order, right in orders) / len(orders) for k in KS]


def ways(some: list[Document], model: Any) -> dict[str, Callable[[str], Sequence[int]]]:
    def quire(with_: Any) -> Callable[[str], Sequence[int]]:
        held = Collection(with_)
        held.upsert(some)
        held.embed()
        return lambda query: [held.row(found.id) for found in held.search(query, max(KS))]

    made = {"BM25": _Bm25([f"{one.text} {one.extra}" for one in some]).rank, "Quire by words": quire(None)}
    return {**made, "Quire": quire(model)} if model is not None else made


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--no-embedder", action="store_true", help="search by words alone")
    args = options.parse_args()
    files = args.data or [TRACES / "pi_large_session.jsonl"]
    if not all(file.exists() for file in files):
        raise SystemExit("the traces are not here; pass --data FILE")
    some = [document for file in files for talk in conversations(file) for document in documents(entries(talk))]
    named, drawn = names(some), few_words(some)
    sets = {
        "a name": named,
        "a name in a question": [(f"where did we see {name}?", right) for name, right in named],
        "four words": drawn,
        "four words held once": held_once(some, drawn),
    }
    found = {
        way: {name: measure(asked, rank) for name, asked in sets.items() if asked}
        for way, rank in ways(some, embedder(not args.no_embedder)).items()
    }
    if args.json:
        print(
            json.dumps({"entries": len(some), "asked": {name: len(one) for name, one in sets.items()}, "found": found})
        )
        return
    print(f"{len(some)} entries; " + ", ".join(f"{name}: {len(asked)}" for name, asked in sets.items()))
    rows = [[way, *(" / ".join(f"{x:.1f}" for x in row) for row in by.values())] for way, by in found.items()]
    print_table(["R@1 / 5 / 10", *next(iter(found.values()))], rows)


if __name__ == "__main__":
    main()
