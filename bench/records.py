"""Records: what the clean format's description claims beside what is measured, how often its worked example comes
out, and what a build costs.

The store holds the conversation of that example, its tools, and hundreds of other messages: small talk and near
misses made here, and real conversations where they are at hand. Alternatives in one run: the 20 newest messages as
JSON (the description's 'before'), the 6 newest messages, the 6 messages nearest by words.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from quire.cli.output import print_table
from quire.errors import MissingPart
from quire.formats import clean
from quire.log.sqlite import SqliteStore
from quire.records import Builder, Record, Records, keep_catalog
from quire.records.record import draft, shape
from quire.tokens import count
from traces import ROOT, TRACES, parser, said

sys.path.insert(0, str(ROOT / "tests"))
from records.chatter import CONVERSATION, GOLDEN, REQUEST, chatter  # the tests' own distractors

SPOKEN = ["user.message.v1", "agent.response.v1"]
TOOLS = json.loads((GOLDEN / "tools.json").read_text())
MESSAGE_1, MESSAGE_2 = (GOLDEN / "message1.txt").read_text(), (GOLDEN / "message2.txt").read_text()
CONFIG = {
    "consumer_id": "chat",
    "sources": [
        {"schema_name": "tool.catalog.v1", "method": "latest"},
        {"schema_name": SPOKEN, "method": "vector", "nn": 5},
        {"schema_name": "tool.response.v1", "method": "recent", "limit": 3},
    ],
}
# The tokens that the format's description claims.
CLAIMED = {"system prompt": 400, "user message": 900, "total": 1300, "before (JSON, last 20)": 8000}
STORES = 20


def message(speaker: str, text: str) -> Record:
    user = speaker == "user"
    return draft(SPOKEN[0] if user else SPOKEN[1], {"content" if user else "message": text})


def filled(store: SqliteStore, talk: list[tuple[str, str]], rng: random.Random, embedder: Any = None) -> Records:
    """The example's conversation at some place among other talk, and the catalog."""
    records = Records(store, embedder)
    keep_catalog(records, TOOLS)
    at = rng.randint(0, len(talk))
    records.create_all(message(*line) for line in [*talk[:at], *CONVERSATION, *talk[at:]])
    return records


def newest(records: Records, number: int) -> list[Record]:
    return [record for record in records.list() if record.schema_name in SPOKEN][-number:]


def as_text(shown: list[Record]) -> str:
    talk = [shape(one).message for one in shown]
    return clean.render(clean.Clean(clean.project(TOOLS).tools, tuple(one for one in talk if one), (), REQUEST))


def as_json(records: Records) -> str:
    """The 20 newest messages with roles and times, and the catalog, as the description's 'before' prints them."""
    history = [
        {"role": said.role, "content": said.content, "timestamp": f"2025-10-03T02:41:{n:02}.420651Z"}
        for n, said in enumerate(shape(one).message for one in newest(records, 20))
        if said
    ]
    parts = [
        {"type": "tool_catalog", "content": clean.tool_list(clean.project(TOOLS).tools)},
        {"type": "chat_history", "messages": history},
    ]
    return f"Context:\n{json.dumps(parts, ensure_ascii=False, indent=2)}\n\nUser message: {REQUEST}"


def tokens() -> list[dict[str, Any]]:
    """The claimed table, and the same counted (o200k)."""
    with SqliteStore(":memory:") as store:
        records = filled(store, list(chatter(random.Random(0), 200)), random.Random(0))
        built, before = Builder(CONFIG).build(records, request=REQUEST), as_json(records)
    system, user = count(MESSAGE_1).tokens, count(built.text).tokens
    measured = [system, user, system + user, system + count(before).tokens]
    rows = [
        {"what": what, "claimed": said, "measured": here}
        for (what, said), here in zip(CLAIMED.items(), measured, strict=True)
    ]
    rows.append({"what": "saved", "claimed": "84%", "measured": f"{1 - measured[2] / measured[3]:.0%}"})
    return rows


def ways(embedder: Any) -> dict[str, Callable[[Records], str]]:
    def nearest(records: Records) -> str:
        hits = records.search(REQUEST, nn=6)
        return as_text(sorted((hit.record for hit in hits), key=lambda one: int(one.id[4:])))

    return {
        "the 6 newest": lambda records: as_text(newest(records, 6)),
        "the 6 nearest, no exchanges": nearest,
        f"builder, {'words and meaning' if embedder else 'words'}": lambda records: (
            Builder(CONFIG).build(records, request=REQUEST).text
        ),
    }


def exact(
    name: str, talk: Callable[[random.Random], list[tuple[str, str]]], embedder: Any, stores: int
) -> list[dict[str, Any]]:
    """In how many stores each way gives the example's second message to the byte, and how many of its six lines are there."""
    found: dict[str, list[tuple[bool, int]]] = {}
    for seed in range(stores):
        rng = random.Random(seed)
        with SqliteStore(":memory:") as store:
            records = filled(store, talk(rng), rng, embedder)
            for way, text in ways(embedder).items():
                got = text(records)
                lines = sum(f": {said}\n" in got for _, said in CONVERSATION)
                found.setdefault(way, []).append((got == MESSAGE_2, lines))
    return [
        {
            "distractors": name,
            "way": way,
            "exact": f"{sum(whole for whole, _ in all)}/{len(all)}",
            "lines of 6": round(statistics.mean(lines for _, lines in all), 1),
        }
        for way, all in found.items()
    ]


def speed(sizes: list[int]) -> list[dict[str, Any]]:
    """Milliseconds of processor time of one build by words, the median of 7."""
    rows = []
    for size in sizes:
        with SqliteStore(":memory:") as store:
            records = filled(store, list(chatter(random.Random(1), size // 2)), random.Random(1))
            times = [timed(records) for _ in range(7)]
            whole = Builder(CONFIG).build(records, request=REQUEST).text == MESSAGE_2
        rows.append(
            {"messages": size, "build, CPU ms": round(statistics.median(times), 1), "exact": "yes" if whole else "no"}
        )
    return rows


def timed(records: Records) -> float:
    started = time.process_time()
    Builder(CONFIG).build(records, request=REQUEST)
    return (time.process_time() - started) * 1000


def loaded() -> Any:
    try:
        from quire.recall.meaning import minilm

        return minilm()
    except (ImportError, MissingPart):
        return None


def main() -> None:
    options = parser(__doc__).parse_args()
    real = list(said(options.data or sorted(TRACES.glob("*.jsonl")), "user", "assistant"))

    def slice_of_real(rng: random.Random) -> list[tuple[str, str]]:
        start = rng.randrange(max(len(real) - 400, 1))
        return real[start : start + 400]

    embedder = loaded()
    found = exact("small talk and near misses (400)", lambda rng: list(chatter(rng, 200)), None, STORES)
    found += exact("the same", lambda rng: list(chatter(rng, 200)), embedder, 3)[2:] if embedder else []
    found += exact("recorded conversations (400)", slice_of_real, None, STORES) if real else []
    tables = {"tokens": tokens(), "exact": found, "speed": speed([400, 2_000, 10_000, 50_000])}
    if options.json:
        print(json.dumps(tables, indent=2))
        return
    for title, rows in tables.items():
        print_table(list(rows[0]), [list(row.values()) for row in rows], title=title)
        print()


if __name__ == "__main__":
    main()
