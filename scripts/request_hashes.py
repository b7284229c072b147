"""One hash over the requests made from recorded conversations, to see whether a change moved a byte.

python scripts/request_hashes.py            # the total
python scripts/request_hashes.py --verbose  # and a line for each file, target, budget and way to promote

Every request is hashed as it would be sent (in the body's own order, cache marks and headers included), with its
prefix, the hashes of its lines and layers, and the envelope; the threads as `quire log export` and `quire format`
print them. Only public names are used, so that one version of this file can be run before and after a change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import quire
from quire.assemble import Promote
from quire.errors import BudgetError
from quire.providers import import_

ROOT = Path(__file__).resolve().parent.parent
TARGETS = [
    "anthropic:claude-opus-5-5",
    "openai:gpt-6-sol",
    "openai-chat:gpt-5",
    "azure:gpt-5",
    "gemini:gemini-3.8-flash",
    "bedrock:anthropic.claude-opus-4-8",
    "deepseek:deepseek-chat",
    "xai:grok-4",
    "groq:llama-3.3-70b",
    "mistral:mistral-large-latest",
    "openrouter:anthropic/claude-sonnet-5",
    "vllm:mistral-7b",
    "sglang:qwen3",
    "llamacpp:gemma-3",
    "llamacpp-anthropic:gemma-3",
    "ollama:llama3.1",
    "xai-responses:grok-4",
]
FEW = TARGETS[:2]
BUDGETS = (4_000, 16_000, 64_000)
CONVERSATIONS = 2  # of each file
SPOKEN = ("think", "call", "respond")
START = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="holds traces/")
    parser.add_argument("--verbose", action="store_true", help="also a hash for each file, target and budget")
    asked = parser.parse_args()
    files = sorted((asked.data / "traces").glob("*.jsonl"))
    if not files:
        raise SystemExit(f"no traces at {asked.data / 'traces'}: say where they are with --data")
    total, count = hashlib.sha256(), 0
    for name, talks, (target, budget, promote) in cases(files):
        digest, policy = hashlib.sha256(), quire.Policy(budget=budget, promote=promote)
        made = sum(play(digest, ":memory:", talk, target, policy) for talk in talks)
        if target == FEW[0] and budget == 4_000 and promote == "at-rebase":
            with tempfile.TemporaryDirectory() as folder:
                play(digest, f"{folder}/log.db", talks[0], target, policy)
                written(digest, f"{folder}/log.db")
        line = f"{digest.hexdigest()}  {name} {target} {budget} {promote} ({made} requests)"
        total.update(line.encode())
        count += made
        if asked.verbose:
            print(line, flush=True)
    print(f"{total.hexdigest()}  {count} requests")


def cases(files: list[Path]) -> Iterable[tuple[str, list[list[quire.Entry]], tuple[str, int, Promote]]]:
    """Each file's conversations, and the made-up one's, with every target, budget and way to promote."""
    for path in files:
        with path.open(encoding="utf-8") as lines:
            read = [json.loads(line) for line in islice(lines, CONVERSATIONS)]
        talks = [list(import_("openai-chat", entry)) for entry in read]
        large = sum(map(len, talks)) > 800
        for target in FEW if large else TARGETS:
            for budget in BUDGETS[1:] if large else BUDGETS if target in FEW else BUDGETS[:2]:
                yield path.stem, talks, (target, budget, "at-rebase")
        if not large:
            for target in FEW:
                yield path.stem, talks, (target, BUDGETS[0], "each-turn")
    for target in TARGETS:
        for budget in (1_500, *BUDGETS[:2]):
            for promote in ("at-rebase", "each-turn"):
                yield "made-up", [made_up()], (target, budget, promote)


def play(digest: Any, database: str, talk: list[quire.Entry], target: str, policy: Any) -> int:
    """Append a conversation as it happened, with a request before each run of what the model said."""
    now = START
    thread = quire.Thread(quire.open_store(database), "talk", policy, clock=lambda: now)
    thread.on_warning = lambda what: None
    if talk[0].kind == "system":
        thread.keep("def kept():\n    return 1\n", metadata={"filename": "kept.py"})
    made = 0
    for spoken, run in groupby(talk, lambda entry: entry.kind in SPOKEN):
        entries = tuple(run)
        if not spoken:
            for entry in entries:
                if entry.kind == "user" and not entry.wire:
                    more: dict[str, Any] = {"meta": entry.meta} if entry.meta else {}
                    thread.user(entry.text, entry.attached, **more)
                else:
                    thread.append(entry)
            continue
        now += 400_000 if made % 20 == 19 else 7_000  # now and then a pause in which caches go cold
        try:
            request = thread.request(target, max_tokens=500)
        except BudgetError:
            digest.update(b"refused")
            thread.append(*entries)
            continue
        made += 1
        for part in (request.body, request.headers, request.lines.sha256, request.lines.segments, dict(request.layers)):
            digest.update(json.dumps(part).encode())
        digest.update(request.prefix + json.dumps([list(request.left_out), request.stable]).encode())
        if made % 8 == 1:
            digest.update(thread.envelope(target).sha256.encode())
        used = quire.Usage(input_total=len(request.prefix) // 4, output=20) if made % 2 else quire.Usage()
        thread.record(quire.Reply(entries, used, stop="end", id=f"r{made}"), request)
    thread.store.close()
    return made


def written(digest: Any, database: str) -> None:
    """The thread's log, and what it says in each text format, as the command prints them."""
    exported = command("log", "export", "talk", "--db", database)
    entries = [json.loads(line) for line in exported.splitlines()]
    said = [entry for entry in entries if entry["kind"] in ("user", "respond") and entry.get("text")]
    results = [
        str(entry.get("content") or entry.get("outcome") or "") for entry in entries if entry["kind"] == "result"
    ]
    roles = {"user": "user", "respond": "assistant"}
    window = {"items": [{"content": text} for text in results], "max_items": 1_000, "request": said[-1]["text"]}
    clean = {
        "tools": [tool for entry in entries if entry["kind"] == "tools" for tool in entry["tools"]],
        "conversation": [{"role": roles[entry["kind"]], "content": entry["text"]} for entry in said],
        "tool_results": [{"tool": "a-tool", "output": {"result": text}} for text in results],
        "request": said[-1]["text"],
    }
    digest.update(exported)
    for name in ("markdown", "xml", "json"):
        digest.update(command("format", name, given=json.dumps(window).encode()))
    digest.update(command("format", "clean", given=json.dumps(clean).encode()))
    digest.update(command("format", "replay", "--window", "all", given=exported))


def command(*words: str, given: bytes = b"") -> bytes:
    """What `quire` prints, run from this tree's sources, wherever its main function is."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["quire"].split(":")
    code = f"from {module} import {function}; {function}()"
    path = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code, *words], input=given, capture_output=True, env=path)
    if done.returncode:
        raise SystemExit(f"quire {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout


def made_up() -> list[quire.Entry]:
    """What the recordings lack: tools, items, notes, effort, pins, thinking, calls in parallel and without result."""
    tool = {"name": "read", "description": "Read a file", "parameters": {"type": "object", "properties": {}}}
    spec = quire.Item(id="spec.md", type="text", content="The keys light up.\n" * 40, metadata={"path": "spec.md"})
    pinned = quire.Item(id="law.md", type="text", content="Never delete a file.\n", metadata={"pin": True})
    talk = [quire.system("You plan software."), quire.tools([tool]), quire.attach(pinned)]
    for n in range(1, 15):
        meta = {"pin": True} if n == 2 else {"pin": "question 5"} if n == 5 else {"pins": [4]} if n == 9 else None
        talk.append(quire.user(f"On question 5 and {n}: what of it? é\u2028🎹", [spec] if n % 3 else [], meta=meta))
        talk += [quire.think(f"Thought {n}."), quire.call(f"c{n}", "read", {"path": f"{n}.txt"})]
        talk.append(quire.call(f"d{n % 4}", "read", {"path": "b.txt", "n": n}))
        talk.append(quire.result(f"c{n}", None, f"result {n}\n" + "a line of a long result\n" * (12 * n)))
        if n != 6:
            talk.append(quire.result(f"d{n % 4}", None, "no such file", error=True))
        if n in (4, 11):
            talk.append(quire.note(f"From now on answer in {n} words."))
        if n == 7:
            talk += [quire.tools([tool, {**tool, "name": "late"}]), quire.note("", wire={"effort": "low"})]
        talk.append(quire.respond(f"Answer {n}, in a sentence."))
    return talk


if __name__ == "__main__":
    main()
