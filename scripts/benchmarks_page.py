"""Join docs/bench/*.md into docs/benchmarks.md, in the order below; --check only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
ORDER = (
    "reuse",
    "bound",
    "moments",
    "turns",
    "grounding",
    "adapters",
    "summary",
    "engine",
    "server",
    "audit",
    "proxy",
    "recall",
    "records",
    "clean",
    "tokens",
    "window",
)
INTRO = """# Benchmarks

Each section is printed by the script it names and reproduced by `make bench`; `--data FILE…` runs it on other traces
(`make bench DATA="FILE…"`; `LOCOMO="FILE…"` for recall's), `--json` prints it for machines. Comparisons are ratios within one run. The traces are recorded conversations that are no
part of this repository.
"""


def page() -> str:
    found = {path.stem: path.read_text(encoding="utf-8").strip() for path in (DOCS / "bench").glob("*.md")}
    names = [name for name in ORDER if name in found] + sorted(set(found) - set(ORDER))
    return "\n\n".join([INTRO.strip(), *(found[name] for name in names)]) + "\n"


def main() -> None:
    target = DOCS / "benchmarks.md"
    if "--check" in sys.argv:
        sys.exit(0 if target.read_text(encoding="utf-8") == page() else "docs/benchmarks.md is out of date")
    target.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
