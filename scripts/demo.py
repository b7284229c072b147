"""One screen: an agent's session through Quire beside a loop that trims, a kill, a real answer, and where to look next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

import quire
from quire.items import from_text
from quire.providers import parse_reply
from quire.providers.usage import cost
from quire.send.connect import transport_for
from quire.send.cycle import run_sync
from quire.send.local import LocalServer, weights
from quire.send.turn import Runner
from quire.testing import emulator
from quire.thread import Thread, open_store
from quire.values import Usage

MODEL = "anthropic:claude-opus-5-5"
BUDGET = 16_000
PARTS = ("keys", "sounds", "pedals", "songs", "lessons", "scores", "screens", "exports")
TOPICS = tuple(f"{part} {side}" for side in ("sizes", "latency", "colours", "tests", "costs") for part in PARTS)
SYSTEM = "You plan software. You search before you answer."
SPEC = "Build a piano app.\n" + "The keys light up as they are played.\n" * 120
out = Console(highlight=False, emoji=False, soft_wrap=True)


def search(topic: str) -> str:
    """Search the archive for a topic."""
    lines = "".join(f"  line {n} on {topic}, as it was noted\n" for n in range(110))
    return f"What the archive has on {topic}:\n{lines}"


def model(body: dict[str, Any]) -> Any:
    """What the stand-in's model does: it searches when a question comes, and answers when it has the result."""
    if '"tool_result"' in json.dumps(body["messages"][-1]):
        return "One paragraph on it, from what was found. " * 6
    said = json.dumps(body["messages"][-1])
    return {"calls": [{"name": "search", "args": {"topic": next(topic for topic in TOPICS if topic in said)}}]}


def send(url: str, body: dict[str, Any]) -> Any:
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
    return httpx.post(f"{url}/v1/messages", json=body, headers=headers, timeout=30).raise_for_status().json()


def with_quire(db: Path, url: str) -> list[tuple[int, Usage]]:
    """Ten questions with a tool call each; of each request its epoch, and what the provider reported."""
    sent = []
    with quire.open(db, "piano", quire.Policy(budget=BUDGET, reply=500)) as thread:
        thread.append(quire.system(SYSTEM))
        thread.tools(search)
        for topic in TOPICS:
            thread.user(f"What does the spec need about {topic}?", attach=[from_text(SPEC, "spec.md")])
            reply = None
            while reply is None or thread.results(reply, [search]):
                request = thread.request(MODEL, max_tokens=500)
                reply = send(url, request.body)
                thread.record(reply)
                sent.append((request.epoch, parse_reply(MODEL, reply).usage))
    return sent


def with_trimming(url: str) -> list[Usage]:
    """The same session by a loop that drops its oldest turns whenever the budget is reached, with cache marks."""
    tool = {"name": "search", "description": "Search the archive for a topic.", "input_schema": SCHEMA}
    turns: list[list[dict[str, Any]]] = []
    used = []
    for topic in TOPICS:
        asked = (
            f"{SPEC}\n\nWhat does the spec need about {topic}?"
            if not turns
            else f"What does the spec need about {topic}?"
        )
        turns.append([{"role": "user", "content": asked}])
        while turns[-1][-1]["role"] == "user":
            while quire.count(json.dumps(turns), MODEL).tokens > BUDGET - 500 and len(turns) > 1:
                turns.pop(1 if len(turns) > 2 else 0)  # the oldest behind the spec
            messages = [message for turn in turns for message in turn]
            last = messages[-1]["content"]
            blocks = [{"type": "text", "text": last}] if isinstance(last, str) else last
            marked = {"role": "user", "content": [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]}
            reply = send(
                url,
                {
                    "model": MODEL.split(":")[1],
                    "max_tokens": 500,
                    "system": SYSTEM,
                    "tools": [tool],
                    "messages": [*messages[:-1], marked],
                },
            )
            used.append(parse_reply(MODEL, reply).usage)
            turns[-1].append({"role": "assistant", "content": reply["content"]})
            calls = [block for block in reply["content"] if block["type"] == "tool_use"]
            if calls:
                results = [
                    {"type": "tool_result", "tool_use_id": call["id"], "content": search(**call["input"])}
                    for call in calls
                ]
                turns[-1].append({"role": "user", "content": results})
    return used


SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


def dollars(used: list[Usage]) -> float:
    return sum(cost(each, MODEL).amount_usd or 0.0 for each in used)


def compared(db: Path) -> None:
    with emulator("anthropic", lambda body, *_: model(body)) as provider:
        sent = with_quire(db, provider.url)
    with emulator("anthropic", lambda body, *_: model(body)) as provider:
        trimmed = with_trimming(provider.url)
    used = [usage for _, usage in sent]
    with open_store(db) as store:
        whole = sum(quire.count(json.dumps(entry.body), MODEL).tokens for entry in store.read("piano"))
    out.print(
        f"[bold]An agent plans a piano app[/]: {len(TOPICS)} questions, a search for each, {len(sent)} requests to a "
        f"strict stand-in of\nAnthropic's API. A request may hold {BUDGET:,} tokens; the whole session is {whole / BUDGET:.0f} times that.\n"
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "input tokens", "from the cache", "not cached", "cost"):
        table.add_column(name, justify="left" if not name else "right")
    for name, each in (("dropping the oldest turn", trimmed), ("Quire", used)):
        total, read = sum(one.input_total for one in each), sum(one.cache_read for one in each)
        table.add_row(name, f"{total:,}", f"{read / total:.0%}", f"{total - read:,}", f"${dollars(each):.2f}")
    out.print(table)
    epochs = max(epoch for epoch, _ in sent)
    saved = 1 - dollars(used) / dollars(trimmed)
    out.print(
        f"\n[green]{saved:.0%} saved.[/] Within an [bold]epoch[/] each request begins with the bytes of the one before it, "
        f"so the provider's\ncache is read; {epochs - 1} times a deep, recorded cut began a new one (a [bold]rebase[/]). "
        "Long results became [bold]handles[/],\nwhich the model can open again; the log still has every word."
    )


def killed(db: Path) -> None:
    """A child appends and is killed; what it acknowledged is there and verifies."""
    child = (
        "import sys, quire\nfrom quire.thread import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "for n in range(10_000):\n"
        "    print(store.append('killed', [quire.user(f'line {n}')])[0].seq, flush=True)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", child, str(db)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    acknowledged = 0
    for line in running.stdout:
        acknowledged = int(line)
        if acknowledged >= 25:
            running.send_signal(signal.SIGKILL)
            break
    acknowledged = max([acknowledged, *(int(line) for line in running.stdout if line.strip())])
    running.wait()
    with open_store(db) as store:
        found, checked = len(store.read("killed")), store.verify("killed")
    assert found >= acknowledged
    out.print(
        f"\n[bold]Killed[/] with SIGKILL after {acknowledged} acknowledged entries: {found} are there, "
        f"{checked.entries} verified by their hashes."
    )


def answered(db: Path) -> None:
    """Real answers from the embedded model: the second question reads what the first one left in its cache."""
    target = "llamacpp:smollm2"
    out.print("\n[bold]Real answers[/] from the small model that comes along:")
    with LocalServer(weights(), ctx=4096) as server, open_store(db) as store:
        talk = Thread(store, "answers", quire.Policy(budget=3_500, reply=200))
        talk.append(quire.system("You answer in one short sentence."))
        note = (
            "Project notes. The app is called Lumen. Its keys light up as they are played, in a colour for each "
            "finger. It runs on tablets and phones. The first release is planned for March. Ada designs the "
            "keyboard, Grace writes the sound engine, and Alan tests both. Songs are kept as MIDI files."
        )
        brief = Runner(options={"max_tokens": 24, "temperature": 0})
        for question in ("What is the app called?", "On which devices does Lumen run?"):
            talk.user(question, [from_text(note, "notes.md")])
            outcome = run_sync(talk, target, transport_for(target, f"{server.url}/v1"), brief)
            used = outcome.usage
            told = f"{used.cache_read} of {used.input_total} prompt tokens from its cache"
            out.print(f"  {question} {outcome.text.strip()}  [dim]{told}[/]")


def main() -> None:
    folder = Path("build")
    folder.mkdir(exist_ok=True)
    db = folder / "demo.db"
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "demo.db"
        compared(made)
        killed(made)
        answered(made)
        made.replace(db)
    out.print("\n[bold]Look further[/] (source .venv/bin/activate makes it `quire`):")
    for command, what in (
        (f".venv/bin/quire assemble piano --db {db}", "each request: layers, reuse, the cuts and their reasons"),
        (f".venv/bin/quire open piano --db {db}", "the same in the browser: every request, what moved, what if"),
        (f".venv/bin/quire diff piano 5 6 --db {db}", "the first byte that moved between two turns"),
        (".venv/bin/quire chat", "talk to the local model"),
        ("README.md", "twenty lines with the SDK you have"),
    ):
        out.print(f"  {command:52} [dim]{what}[/]")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
