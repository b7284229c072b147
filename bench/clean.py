"""What `clean` saves against the same context as JSON (the JSON.stringify way), in o200k tokens.

The format's own example first, then 50 real threads. Three alternatives in one run, same content each:
JSON indented with times, as the format's description does it; compact JSON without times; clean. The last column is
that description's comparison: 20 messages as indented JSON against the 6 newest as clean text.
"""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from quire.cli.output import print_table
from quire.formats import clean
from quire.tokens import counter
from traces import ROOT, TRACES, parser

EXAMPLE = ROOT / "tests" / "golden" / "formats" / "clean-message-2.json"
THREADS = 50

count = counter().count


def as_json(data: dict[str, Any], *, indent: int | None = 2) -> str:
    """A context the way programs write it first: every part an object, every message with its time."""
    times = indent is not None
    parts: list[dict[str, Any]] = []
    if data.get("tools"):
        catalog = clean.tool_list(clean.project(data["tools"]).tools)
        parts.append({"type": "tool_catalog", "content": catalog})
    for type, name in (("chat_history", "conversation"), ("tool_results", "tool_results")):
        rows = [_row(row, at, times) for at, row in enumerate(data.get(name, []))]
        if rows:
            parts.append({"type": type, "messages": rows})
    separators = (",", ":") if indent is None else None
    shown = json.dumps(parts, ensure_ascii=False, indent=indent, separators=separators)
    return f"Context:\n{shown}\n\nUser message: {data['request']}"


def _row(row: dict[str, Any], at: int, times: bool) -> dict[str, Any]:
    stamp = f"2025-10-03T02:{at // 60 % 60:02}:{at % 60:02}.{420651 + at * 37 % 100000:06}Z"
    return {**row, "timestamp": stamp} if times else row


def thread(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A recorded conversation as clean's input: what was said, what tools gave, the last user message."""
    names = {call["id"]: call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()}
    spoken = [m for m in messages if m["role"] in ("user", "assistant") and isinstance(m.get("content"), str)]
    spoken = [{"role": m["role"], "content": m["content"]} for m in spoken if m["content"]]
    last = max((at for at, m in enumerate(spoken) if m["role"] == "user"), default=None)
    request = spoken.pop(last)["content"] if last is not None else ""
    results = [m for m in messages if m["role"] == "tool"]
    return {
        "conversation": spoken,
        "tool_results": [
            {"tool": m.get("name") or names.get(m.get("tool_call_id"), "unknown"), "output": m["content"]}
            for m in results
        ],
        "request": request,
    }


def measured(data: dict[str, Any]) -> dict[str, int]:
    """Tokens of one context in each form."""
    talk = data["conversation"]
    return {
        "json": count(as_json(data)),
        "compact": count(as_json(data, indent=None)),
        "clean": count(clean.render(clean.read(data))),
        "json_20": count(as_json({**data, "conversation": talk[-20:], "tool_results": []})),
        "clean_6": count(clean.render(clean.read({**data, "conversation": talk[-6:], "tool_results": []}))),
    }


def chosen(files: list[Path]) -> list[tuple[str, dict[str, Any]]]:
    """The first 50 threads, taken from the files in turn, so that no file crowds out the others."""
    lines = [[(file.stem, line) for line in file.read_text().split("\n") if line] for file in files]
    taken = [one for one in chain.from_iterable(zip_longest(*lines)) if one][:THREADS]
    return [(name, thread(json.loads(line)["messages"])) for name, line in taken]


def totals(cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per source: sums of tokens over its threads, and the shares saved."""
    rows: dict[str, list[dict[str, int]]] = {}
    for name, data in cases:
        rows.setdefault(name, []).append(measured(data))
    return [_total(name, found) for name, found in rows.items()]


def _total(name: str, found: list[dict[str, int]]) -> dict[str, Any]:
    sums = {key: sum(one[key] for one in found) for key in found[0]}
    return {
        "source": name,
        "threads": len(found),
        **sums,
        "saved": 1 - sums["clean"] / sums["json"],
        "saved_compact": 1 - sums["clean"] / sums["compact"],
        "saved_20_to_6": 1 - sums["clean_6"] / sums["json_20"],
    }


def main() -> None:
    options = parser(__doc__).parse_args()
    files = options.data or sorted(TRACES.glob("*.jsonl"))
    real = chosen(files)
    rows = totals([("the format's own example", json.loads(EXAMPLE.read_bytes())["input"]), *real])
    if real:
        rows.append(_total("all real threads", [measured(data) for _, data in real]))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    columns = ["source", "threads", "JSON", "compact", "clean", "saved", "saved (compact)", "20 JSON → 6 clean"]
    keys = ["source", "threads", "json", "compact", "clean"]
    shares = ["saved", "saved_compact", "saved_20_to_6"]
    print_table(columns, [[row[key] for key in keys] + [f"{row[key]:.1%}" for key in shares] for row in rows])
    if not real:
        print("no real threads: give --data FILE…")


if __name__ == "__main__":
    main()
