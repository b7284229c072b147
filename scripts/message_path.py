"""The modules that a user's message passes: `user()`, `request()` and `record()` of a warm thread's third turn.

python scripts/message_path.py

A hop is a call from a module of one package (a folder or a single file of src/quire) into another's.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import quire

HOME = Path(quire.__file__).resolve().parent
TARGET = "anthropic:claude-opus-5-5"


def module_of(frame: FrameType | None) -> str:
    """The quire module that a frame, or the nearest one that called it, runs; empty outside of quire."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(HOME):
            return path.relative_to(HOME).as_posix()
        frame = frame.f_back
    return ""


def package(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def turn(thread: quire.Thread, n: int) -> None:
    """One turn of a conversation: the reply is JSON as the provider gives it."""
    thread.user(f"Question {n}?")
    thread.request(TARGET, max_tokens=500)
    usage = {"input_tokens": 20, "output_tokens": 5}
    said = [{"type": "text", "text": f"Answer {n}."}]
    reply = {"id": f"msg_{n}", "type": "message", "role": "assistant", "model": TARGET.split(":")[1]}
    thread.record({**reply, "content": said, "stop_reason": "end_turn", "usage": usage})


def main() -> None:
    modules: dict[str, int] = {}
    hops: Counter[tuple[str, str]] = Counter()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(HOME):
            here, before = module_of(frame), module_of(frame.f_back)
            modules[here] = modules.get(here, 0) + 1
            if before and package(before) != package(here):
                hops[package(before), package(here)] += 1

    with tempfile.TemporaryDirectory() as folder:
        thread = quire.open(f"{folder}/log.db", "warm")
        thread.on_warning = lambda what: None
        thread.append(quire.system("Be brief."))
        turn(thread, 1)
        turn(thread, 2)
        sys.setprofile(watch)
        turn(thread, 3)
        sys.setprofile(None)
        thread.store.close()
    for name, calls in modules.items():
        print(f"{calls:5} calls  {name}")
    for (before, after), times in sorted(hops.items()):
        print(f"{times:5} hops   {before} -> {after}")
    packages = len({package(name) for name in modules})
    print(f"{len(modules)} modules in {packages} packages, {hops.total()} hops over {len(hops)} borders")


if __name__ == "__main__":
    main()
