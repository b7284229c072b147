"""The traces every benchmark reads: one conversation a line, messages in OpenAI Chat form."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.providers import openai_chat
from quire.values import Entry

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT.parent / "shared" / "data" / "traces"


def parser(what: str | None) -> argparse.ArgumentParser:
    """The options all benchmarks share."""
    made = argparse.ArgumentParser(description=what)
    made.add_argument(
        "--data", nargs="+", type=Path, metavar="FILE", help="traces to read instead of the default"
    )
    made.add_argument("--json", action="store_true", help="print JSON for machines")
    return made


def files(given: list[Path] | None) -> list[Path]:
    """The files to read; none is an exit that says where they were looked for."""
    found = given or sorted(TRACES.glob("*.jsonl"))
    missing = [path for path in found if not path.is_file()]
    if missing or not found:
        raise SystemExit(f"no traces at {missing[0] if missing else TRACES}: give some with --data FILE")
    return found


def conversations(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def entries(conversation: dict[str, Any]) -> list[Entry]:
    return openai_chat.import_messages(conversation)
