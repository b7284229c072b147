"""The main job end to end on the embedded defaults: a thread, its layers, the cache, one cut, a kill, a real answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import quire
from quire.assemble import Built, Policy, requests, reused_tokens
from quire.assemble.fit import layer_tokens
from quire.cli.assemble import LEGEND, show_request, walk
from quire.formats import clean, markdown, replay
from quire.items import Window, from_text
from quire.log.entries import encode
from quire.send.connect import transport_for
from quire.send.cycle import run_sync
from quire.send.local import LocalServer, weights
from quire.send.protocol import Runner
from quire.thread import Thread, open_store
from quire.values import Entry

out = Console(highlight=False, emoji=False, soft_wrap=True)


def title(text: str) -> None:
    out.print(f"\n[bold cyan]── {text}[/]")


def thread() -> list[Entry]:
    """Five turns about one note, with tool calls whose results are long."""
    note = "Build a piano app.\n" + "The keys light up as they are played.\n" * 12
    item = {
        "id": "spec.md",
        "type": "text",
        "content": note,
        "metadata": {"source": "note", "path": "spec.md"},
    }
    entries = [quire.system("You plan software."), quire.user("Summarize the spec.", [item])]
    entries.append(quire.respond("A piano app whose keys light up."))
    for n, topic in enumerate(("keyboard sizes", "latency", "colours", "tests"), 2):
        entries += [
            quire.user(f"What does the spec need about {topic}?", [item]),
            quire.call(f"c{n}", "search", {"q": topic}),
            quire.result(
                f"c{n}", None, f"{topic}: notes\n" + f"a line about {topic} from the archive\n" * 35
            ),
            quire.respond(f"A paragraph on {topic}."),
        ]
    return entries


def killed_and_reopened(db: Path) -> None:
    """A child appends and is killed; what it acknowledged is there and verifies."""
    title("a thread survives a kill")
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
        found = len(store.read("killed"))
        checked = store.verify("killed")
    out.print(
        f"  killed after {acknowledged} acknowledged entries; {found} are there, {checked.entries} verified"
    )
    assert found >= acknowledged


def formats(entries: list[Entry]) -> None:
    title("one window and one thread in the text formats, and back")
    window = Window()
    window.add(
        "def play(key): ...",
        "code",
        {"filename": "piano.py", "start_line": 1, "end_line": 1, "language": "python"},
    )
    text = markdown.render(markdown.project(window))
    assert markdown.render(markdown.parse(text)) == text
    out.print("  [dim]markdown[/]", text.rstrip(), sep="\n")
    told = replay.render(replay.project(entries, window=4))
    assert replay.render(replay.parse(told)) == told
    out.print("  [dim]replay (its first lines)[/]", "\n".join(told.split("\n")[:6]), sep="\n")
    tidy = clean.render(clean.project_thread(entries))
    assert clean.render(clean.parse(tidy)) == tidy
    out.print("  [dim]clean (its first lines)[/]", "\n".join(tidy.split("\n")[:4]), sep="\n")


def layers(entries: list[Entry]) -> None:
    title("five turns: layers, reuse, one rebase (budget 1,300)")
    out.print(f"  [dim]{LEGEND}[/]")
    policy = Policy(budget=1_300)
    for one in walk((built, policy) for built in requests(entries, policy)):
        assert isinstance(one.built, Built)
        show_request(out, one)


def compared(entries: list[Entry]) -> None:
    title("the same thread, promoted each turn (a read costs 0.1 of a token, a write 1.25)")
    for promote in ("at-rebase", "each-turn"):
        made = [one for one in requests(entries, Policy(promote=promote)) if isinstance(one, Built)]
        reused = sum(reused_tokens(a, b) for a, b in zip([None, *made], made, strict=False))
        total = sum(one.tokens for one in made)
        cost = 0.1 * reused + 1.25 * (total - reused)
        out.print(
            f"  {promote:10} reused {reused / total:5.1%} of {total:,} tokens; cost {cost:,.0f} tokens' worth"
        )
        assert sum(layer_tokens(made[-1]).values()) == made[-1].tokens


def answered(db: Path) -> None:
    """Real answers from the embedded model: the second question reads what the first one left in its cache."""
    title("real answers from the local model")
    target = "llamacpp:smollm2"
    with LocalServer(weights(), ctx=4096) as server, open_store(db) as store:
        talk = Thread(store, "answers", Policy(budget=3_500, reply=200))
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
            out.print(f"  [bold]{question}[/] {outcome.text.strip()}")
            out.print(
                f"  [dim]{used.input_total} prompt tokens, {used.cache_read} of them from the engine's cache[/]"
            )


def main() -> None:
    entries = thread()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "demo.db"
        with open_store(db) as store:
            kept = store.append("piano", entries)
        last = kept[-1]
        shown = encode(last).replace(last.id, f"{last.id[:19]}…")
        out.print(f"a thread of {len(kept)} entries; the last one is\n  [dim]{shown}[/]")
        killed_and_reopened(db)
        formats(entries)
        layers(entries)
        compared(entries)
        answered(db)
    out.print("\n[green]done[/]; next: [bold].venv/bin/quire chat[/], or the README's twenty lines")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
