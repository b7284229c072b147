"""Counting: speed against tiktoken in one run, hostile megabytes, and calibration on a real session.

tiktoken's vocabulary files come from a peer's package; nothing is downloaded. Its panic on long runs of
spaces is no Exception, so each of its rows is guarded and a panic is shown as such.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quire.cli.output import print_json, print_table
from quire.tokens import counter, message_tokens, uncalibrated
from quire.tokens.vocabularies import RELATIVE
from quire.values import Call, Message, Part, Result, Text
from traces import ROOT, TRACES, parser

SESSION = TRACES / "pi_large_session.jsonl"
MEGABYTE = 1_000_000
ROUNDS = 3
rng = random.Random(7)


def mixed(seed: int) -> str:
    """A megabyte of this project's own prose and code, in an order of its own: unseen by any cache of texts."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.py")]
    lines = [line for file in files for line in file.read_text().split("\n")]
    return "\n".join(random.Random(seed).choices(lines, k=MEGABYTE // 30))[:MEGABYTE]


HOSTILE: dict[str, str] = {
    "spaces": " " * MEGABYTE,
    "spaces, then x": " " * MEGABYTE + "x",
    "a": "a" * MEGABYTE,
    "newlines": "\n" * MEGABYTE,
    "one CJK sign": "漢" * (MEGABYTE // 3),
    "random CJK": "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(MEGABYTE // 3)),
    "random bytes, replaced": rng.randbytes(MEGABYTE).decode("utf-8", "replace"),
    "<|endoftext|>": "<|endoftext|>" * (MEGABYTE // 13),
}


def tiktoken_encoding(name: str) -> Any | None:
    found = importlib.util.find_spec("llama_index.core")
    if found is None or found.origin is None:
        return None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(found.origin).parent / "_static" / "tiktoken_cache")
    import tiktoken

    return tiktoken.get_encoding(name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A panic prints its backtrace on the real standard error; nobody wants to read it here."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def timed(count: Callable[[str], int], text: str) -> tuple[int | None, float | None]:
    """Tokens and CPU seconds, or nothing where the library panics."""
    start = time.process_time()
    try:
        with quiet():
            found = count(text)
    except BaseException as error:
        if "panic" not in type(error).__name__.lower():
            raise
        return None, None
    return found, time.process_time() - start


def against_tiktoken(name: str) -> list[dict[str, Any]]:
    ours, encoding = counter(name).count, tiktoken_encoding(name)
    ours("warm")
    theirs = (lambda text: len(encoding.encode_ordinary(text))) if encoding else None
    rows = []
    for label, texts in {
        "mixed": [mixed(seed) for seed in range(ROUNDS)],
        **{k: [v] for k, v in HOSTILE.items()},
    }.items():
        pairs = [(timed(ours, text), timed(theirs, text) if theirs else (None, None)) for text in texts]
        our_s = min(ours_[1] for ours_, _ in pairs if ours_[1] is not None)
        their_s = min((theirs_[1] for _, theirs_ in pairs if theirs_[1] is not None), default=None)
        agree = all(ours_[0] == theirs_[0] for ours_, theirs_ in pairs if theirs_[0] is not None)
        rows.append(
            {
                "vocabulary": name,
                "input": label,
                "tokens": pairs[0][0][0],
                "quire_ms": round(our_s * 1000, 1),
                "tiktoken_ms": round(their_s * 1000, 1) if their_s is not None else None,
                "ratio": round(their_s / our_s, 1) if their_s is not None else None,
                "same_count": agree if their_s is not None else None,
            }
        )
    return rows


def every_vocabulary() -> list[dict[str, Any]]:
    rows, ordinary = [], mixed(99)
    for name in RELATIVE:
        count = counter(name).count
        count("warm")
        tokens, seconds = timed(count, ordinary)
        worst = max(((timed(count, text)[1] or 0.0), label) for label, text in HOSTILE.items())
        rows.append(
            {
                "vocabulary": name,
                "tokens_mixed": tokens,
                "mixed_ms": round((seconds or 0) * 1000, 1),
                "worst_ms": round(worst[0] * 1000, 1),
                "worst_input": worst[1],
            }
        )
    return rows


def chat_message(raw: dict[str, Any]) -> Message:
    if raw["role"] == "tool":
        return Message("tool", (Result("", "", raw["content"] or ""),))
    calls = [call["function"] for call in raw.get("tool_calls") or ()]
    said: list[Part] = [Call("", c["name"], None, arguments=c["arguments"]) for c in calls]
    return Message("assistant" if raw["role"] == "assistant" else "user", (Text(raw.get("content") or ""), *said))


def calibration(file: Path) -> list[dict[str, Any]]:
    """The error of each next prediction on sessions with reported usage, with and without calibration."""
    rows = []
    for line in file.read_text().split("\n"):
        if not line:
            continue
        session = json.loads(line)
        model = session.get("model") or "claude"
        found, estimate = uncalibrated(model), 0
        plain, corrected = [], []
        for raw in session["messages"]:
            if usage := raw.get("_usage"):
                total = usage["input"] + usage["cacheRead"] + usage["cacheWrite"]
                if total and found.reports >= 3:
                    corrected.append(abs(found.predict(estimate).tokens - total) / total)
                    plain.append(abs(uncalibrated(model).predict(estimate).tokens - total) / total)
                found = found.observe(estimate, total)
            estimate += message_tokens(chat_message(raw))
        if corrected:
            rows.append({"session": session.get("id", ""), "predictions": len(corrected), "scale": round(found.scale, 3),
                         **_quantiles("stated", plain), **_quantiles("calibrated", corrected)})  # fmt: skip
    return rows


def _quantiles(name: str, errors: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(errors, n=10) if len(errors) > 1 else errors * 9
    return {f"{name}_median": round(statistics.median(errors), 5), f"{name}_p90": round(tenths[-1], 5)}


def _percent(value: float) -> str:
    return f"{value:.2%}"


def main() -> None:
    given = parser(__doc__, "sessions with reported usage (_usage of their messages)").parse_args()
    speed = [row for name in ("o200k_base", "cl100k_base") for row in against_tiktoken(name)]
    vocabularies = every_vocabulary()
    errors = [row for file in given.data or [SESSION] if file.exists() for row in calibration(file)]
    if given.json:
        print_json({"speed": speed, "vocabularies": vocabularies, "calibration": errors})
        return
    print_table(
        ["vocabulary", "1 MB of", "tokens", "quire ms", "tiktoken ms", "times faster", "same count"],
        [[*list(row.values())[:4], row["tiktoken_ms"] or "panic", row["ratio"] or "", _same(row)] for row in speed],
        title="Against tiktoken (CPU time)",
    )
    print_table(
        ["vocabulary", "tokens of 1 MB mixed", "ms", "slowest hostile MB, ms", "which"],
        [list(row.values()) for row in vocabularies],
        title="\nEvery vocabulary",
    )
    print_table(
        ["session", "predictions", "scale found", "stated factor: median", "p90", "calibrated: median", "p90"],
        [[*list(row.values())[:3], *map(_percent, list(row.values())[3:])] for row in errors],
        title="\nError of the next prediction of total input tokens, after three reports",
    )


def _same(row: dict[str, Any]) -> str:
    return "" if row["same_count"] is None else "yes" if row["same_count"] else "NO"


if __name__ == "__main__":
    main()
