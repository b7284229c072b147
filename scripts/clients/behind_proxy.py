"""The same clients behind `quire proxy`: the same answers, and what of their requests came from the cache."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quire.server.mend import Mender
from quire.server.proxy import CacheWatcher, Proxy, ProxyOptions

PAGE = Path(__file__).parents[2] / "docs/clients.md"
CLIENTS = ("pi", "opencode", "codex", "gemini-cli", "llm", "openai-agents", "pydantic-ai", "langchain")
START, END = "<!-- table: make clients ARGS=--write -->", "<!-- end of table -->"


class Behind:
    """Opens a proxy in front of an address, and keeps what it saw."""

    def __init__(self, mend: bool) -> None:
        self._mend = mend
        self.watcher = CacheWatcher()

    @contextlib.contextmanager
    def __call__(self, url: str) -> Iterator[str]:
        options = ProxyOptions(to=url, mender=Mender() if self._mend else None)
        with Proxy(options, self.watcher) as proxy:
            yield proxy.url

    @property
    def rules(self) -> str:
        named = {name for row in self.watcher.savings.by_rules for name in row.split(" + ")}
        return ", ".join(sorted(named)) or "none"

    @property
    def causes(self) -> str:
        verdicts = [found for conversation in self.watcher.grouping.conversations for found in conversation.verdicts]
        return ", ".join(sorted({found.cause for found in verdicts})) or "none"


def compare(outcomes: Sequence[Any], converse: Callable[..., Any], write: bool) -> bool:
    """Run what ran once more, watched and mended; print the table. Whether all said the same."""
    rows, same = [], True
    for direct in outcomes:
        if direct.client.name not in CLIENTS or not direct.green:
            continue
        watch, mend = Behind(False), Behind(True)
        runs = [direct]
        for name, behind in (("watched", watch), ("mended", mend)):
            print(f"running {direct.client.name} on {direct.wire}, {name}", file=sys.stderr)
            runs.append(converse(direct.client, direct.wire, direct.version, behind))
        good = all(run.green and run.answers == direct.answers for run in runs)
        same = same and good
        failed = [*watch.watcher.failures, *mend.watcher.failures]
        problem = "; ".join(filter(None, [*(run.verdict for run in runs if not run.green), *failed]))
        rows.append(
            [
                f"{direct.client.name} {direct.version}",
                direct.wire,
                "yes" if good else f"no: {problem or 'other answers'}",
                f"{direct.tokens:,}",
                *(f"{100 * run.reuse:.0f} %" for run in runs),
                f"{mend.watcher.savings and sum(usd for _, _, usd in mend.watcher.savings.by_rules.values()):.4f}",
                mend.rules,
                watch.causes,
            ]
        )
    head = [
        "client",
        "wire",
        "same answers",
        "tokens",
        "direct",
        "watched",
        "mended",
        "saved, $",
        "rules that fired",
        "losses seen",
    ]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
    print(f"\nBehind `quire proxy`: reuse\n{table}")
    if write and rows:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}")
    return same
