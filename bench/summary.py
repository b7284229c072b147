"""What survives a summary: of the facts that later turns refer back to, which share is still there.

Each thread is cut in the middle of its entries. A fact is an id, path, amount or code that the second
half names and the first half holds. The built-in summary and head-and-tail truncation get the same
tenth of the first half's tokens, or the --budget given. Beside it: of the user's requests, how many are still told
by their first words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from quire.assemble.summary import Leaving, extract
from quire.cli.output import print_table
from quire.tokens import counter
from quire.values import Entry, chain, result_text
from traces import conversations, entries, files, parser

SHARE = 0.1
# A request is told where its first so many characters are.
WORDS = 12
# Deliberately not the summariser's own pattern: anything with a digit, a slash, an underscore or an @ in it.
_WORD = re.compile(r"[\w./@#$€£-]{4,}")
_TELLING = re.compile(r"\d|/|_|@")
count = counter().count


def text_of(entry: Entry) -> str:
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        return json.dumps(entry.args, ensure_ascii=False)
    return entry.text if entry.kind in ("user", "respond", "think") else ""


def facts(entries_: Sequence[Entry]) -> set[str]:
    words = (word.strip(".-/") for entry in entries_ for word in _WORD.findall(text_of(entry)))
    return {word for word in words if len(word) >= 4 and _TELLING.search(word)}


def head_and_tail(text: str, limit: int) -> str:
    """The first and last halves of the allowance, by characters of average size."""
    characters = int(len(text) * limit / max(1, count(text)))
    return f"{text[: characters // 2]}\n…\n{text[len(text) - characters // 2 :]}"


def measure(listed: list[Entry], budget: int | None) -> dict[str, float] | None:
    """Shares for one thread, or None when nothing is referred back to."""
    middle = len(listed) // 2
    first, second = listed[:middle], listed[middle:]
    # What the model itself asks for or says later, not what tools happen to return again.
    wanted = facts([e for e in second if e.kind in ("user", "call", "respond")]) & facts(first)
    if len(wanted) < 3:
        return None
    whole = "\n".join(text_of(entry) for entry in first)
    limit = budget or max(16, int(count(whole) * SHARE))
    ours = extract(Leaving(tuple(chain(first)), "", limit))
    plain = head_and_tail(whole, limit)
    return {
        "facts": len(wanted),
        "tokens": count(whole),
        "summary_tokens": count(ours),
        "summary": sum(fact in ours for fact in wanted) / len(wanted),
        "head_and_tail": sum(fact in plain for fact in wanted) / len(wanted),
        "requests": told(first, ours),
        "requests_head_and_tail": told(first, plain),
    }


def told(entries_: Sequence[Entry], text: str) -> float:
    """The share of the user's requests whose first words stand in a text."""
    flat = " ".join(text.split())
    asked = [" ".join(entry.text.split())[:WORDS] for entry in entries_ if entry.kind == "user"]
    return sum(words in flat for words in asked) / max(1, len(asked))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=int, help="tokens of a summary (default: a tenth of what it stands for)")
    arguments = options.parse_args()
    rows: list[dict[str, Any]] = []
    for path in files(arguments.data):
        found = [
            row for conversation in conversations(path) if (row := measure(entries(conversation), arguments.budget))
        ]
        if found:
            mean = {key: sum(row[key] for row in found) / len(found) for key in found[0]}
            rows.append({"trace": path.stem, "threads": len(found), **mean})
    if arguments.json:
        print(json.dumps(rows))
        return
    print_table(
        ("trace", "threads", "facts", "summary", "head and tail", "requests told", "head and tail", "tokens"),
        [
            (
                r["trace"],
                r["threads"],
                round(r["facts"], 1),
                f"{r['summary']:.1%}",
                f"{r['head_and_tail']:.1%}",
                f"{r['requests']:.1%}",
                f"{r['requests_head_and_tail']:.1%}",
                f"{r['summary_tokens'] / r['tokens']:.1%}",
            )
            for r in rows
        ],
        title=f"facts that survive in {arguments.budget or 'a tenth of the'} tokens",
    )


if __name__ == "__main__":
    main()
