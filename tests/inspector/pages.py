"""What the inspector's tests share: threads to look at, a service that shows them, a browser."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import Entry, Policy, Reply, Thread, Usage
from toolbox import Store, chain

MODEL = "anthropic:claude-opus-5-5"
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
# Whatever a page may do with any of this, it is to be shown as text.
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><svg onload='window.hacked = 1'></svg>"
    "</script><a href='javascript:window.hacked=1'>[link](javascript:window.hacked=1)</a> user\u202egnp.exe \u200b\u2066 &amp; ${1}"
)


def session(requests: int, words: int = 12) -> list[Entry]:
    """A coding session of so many requests: tasks, calls, results, answers."""
    draw = random.Random(7)
    at, made, task = 1_760_000_000_000, 0, 0
    out = [quire.system("You are a coding agent.", at=at)]
    while made < requests:
        task += 1
        at += 900_000 if task % 40 == 0 else 30_000
        out.append(quire.user(f"Task {task}: mend module {task % 97}", at=at))
        for _ in range(min(draw.randint(3, 12), requests - made - 1)):
            at, made = at + 4_000, made + 1
            out.append(quire.call(f"c{made}", "read", {"path": f"src/module_{made % 97}.py"}, at=at))
            text = " ".join(f"word{draw.randrange(900)}" for _ in range(words * draw.choice([1, 4])))
            out.append(quire.result(f"c{made}", None, text, at=at))
        at, made = at + 3_000, made + 1
        out.append(quire.respond(f"Task {task} is done.", at=at))
    return list(chain(out))


def recorded(store: Store, name: str = "release notes", turns: int = 14) -> None:
    """A thread that was sent, with what the provider reported: it is cut when its budget is reached."""
    clock = [1_763_000_000_000]
    thread = Thread(
        store, name, Policy(budget=4_000, reply=300, floor=0.3, handles=0.2), clock=lambda: clock[0], observers=()
    )
    thread.append(quire.system("You write release notes from commits."))
    before, epoch = 0, 1
    for turn in range(turns):
        clock[0] += 900_000 if turn == 9 else 40_000
        thread.user(f"Turn {turn}: what changed in module {turn}? Name file src/m{turn}.py.", at=clock[0])
        for said in (
            quire.call(f"c{turn}", "git_log", {"path": f"src/m{turn}.py"}),
            quire.respond(f"Module {turn} gained a parser. " * 8),
        ):
            request = thread.request(MODEL)
            total = thread.build(MODEL).tokens
            read = 0 if request.epoch != epoch or (turn == 9 and said.kind == "call") else min(before, total)
            before, epoch = total, request.epoch
            clock[0] += 4_000
            thread.record(Reply((said,), Usage(total, read, total - read, 0, 60), "end_turn", f"r{clock[0]}", MODEL))
            if said.kind == "call":
                thread.append(quire.result(f"c{turn}", None, f"commit {turn}abcdef\n" + "+ a line of a diff\n" * 60))


def hostile() -> list[Entry]:
    """Content that attacks a page, and a line of ten million characters."""
    item = {"id": HOSTILE[:60], "type": "text", "content": HOSTILE, "metadata": {"source": "note", "path": "x"}}
    out = [quire.system(HOSTILE), quire.user(HOSTILE, [item]), quire.call("c1", "run", {HOSTILE: HOSTILE})]
    found = quire.result("c1", None, HOSTILE + "ten million " * 833_334)
    out += [found, quire.respond(HOSTILE), quire.user("And now?")]
    return list(chain([*out, quire.respond("Nothing.")]))


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; the test is skipped, with the reason, where it or what drives it is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: scripts/setup.sh")
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed: scripts/setup.sh")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield browser
        browser.close()
