"""Frameworks with Quire's adapter beside their own trimming: cost, reuse and grounding of one recorded conversation.

Each framework's own agent goes through 200 recorded messages again: the emulator plays the model with the recorded
answers, the tools give what they gave, and the requests that arrive are looked at. Cost and reuse are what the
emulated provider charges with its cache; grounding is `bench/grounding.py`'s. Frameworks that need other versions of
the SDKs run in an environment of their own (`.venv-frameworks`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from grounding import READ, WRITE, wanted, wire_text
from peers import points, size
from quire import providers
from quire.cli.output import print_table
from quire.emulate.script import EmulatedRequest
from quire.providers import prefix_bytes
from quire.testing import emulator
from quire.values import JsonObject
from traces import ROOT, conversations, files, parser

HERE = Path(__file__).resolve().parent / "frameworks"
sys.path.insert(0, str(HERE))
from replay import replayable, taken_apart  # noqa: E402  # beside the runners, which have no other path

BUDGET, MESSAGES = 16_000, 200


class Framework(NamedTuple):
    """The wire that its runner speaks, what it has of its own, and the environment it runs in."""

    wire: str
    own: str
    venv: str = ".venv"


FRAMEWORKS = {
    "langchain": Framework("anthropic", "trim_messages, AnthropicPromptCachingMiddleware"),
    "pydantic_ai": Framework("anthropic", "harness SlidingWindowCompaction, Caching"),
    "openai_agents": Framework("openai-responses", "ToolOutputTrimmer"),
    "llama_index": Framework("openai-chat", "Memory", ".venv-frameworks"),
    "litellm": Framework("anthropic", "trim_messages, cache_control_injection_points", ".venv-frameworks"),
    "google_adk": Framework("gemini", "ContextFilterPlugin", ".venv-frameworks"),
    "strands": Framework("bedrock", "SlidingWindowConversationManager, CacheConfig", ".venv-frameworks"),
}


class Seen(msgspec.Struct):
    """What arrived of one run."""

    requests: int = 0
    tokens: int = 0
    read: int = 0
    # Requests that do not begin with the one before, that are larger than the budget, that were refused.
    breaks: int = 0
    over: int = 0
    refused: int = 0
    largest: int = 0
    actions: int = 0
    whole: int = 0
    # Quire's epochs, and the requests that do not begin with the one before them of the same epoch.
    epochs: int = 0
    moved: int = 0

    @property
    def cost(self) -> float:
        return READ * self.read + WRITE * (self.tokens - self.read)


def python_of(framework: Framework) -> Path | None:
    """The interpreter of its environment, where it was made."""
    found = ROOT / framework.venv / "bin" / "python"
    return Path(sys.executable) if framework.venv == ".venv" else found if found.exists() else None


# Frameworks load some thousand classes: looking for garbage meanwhile takes a tenth of the time. Prices are not fetched.
_RUN = "import gc, runpy, sys; gc.disable(); del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def run(name: str, who: str, messages: list[JsonObject], budget: int, folder: Path | None = None, **env: str) -> Seen:
    """One framework's agent goes through the conversation; `who` keeps to the budget: quire, or its own.

    `folder` is where it runs; with PAGE in the environment, a page's Python is run first.
    """
    framework = FRAMEWORKS[name]
    replay, answers = taken_apart(messages)
    with emulator(framework.wire.partition("-")[0], replies=answers) as server:
        paths = os.pathsep.join((str(ROOT / "src"), str(HERE)))
        done = subprocess.run(
            [str(python_of(framework)), "-c", _RUN, str(HERE / f"run_{name}.py"), server.url, str(budget), who],
            input=json.dumps(replay._asdict()),
            env={**os.environ, **_OFFLINE, "PYTHONPATH": paths, **env},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=1_200,
        )
        arrived = list(server.requests)
    if done.returncode:
        refused = next((one.error for one in arrived if one.error), "")
        raise RuntimeError(f"{name} ({who}) ended with {done.returncode}: {refused}\n{done.stderr[-3000:]}")
    epochs = json.loads(done.stdout.strip().rpartition("\n")[2])
    return seen_of(arrived, framework.wire, wanted(messages), budget, epochs)


def seen_of(arrived: list[EmulatedRequest], wire: str, words: list[list[str]], budget: int, epochs: list[int]) -> Seen:
    """Look at the requests one after the other."""
    out, before, at = Seen(epochs=len(set(epochs))), b"", 0
    for one in arrived:
        if one.predicted is None:
            out.refused += 1
            continue
        lines = prefix_bytes(one.body, wire)
        chat = chat_of(wire, one.body)
        tokens = sum(map(size, chat))
        out.requests += 1
        out.tokens += one.predicted.total
        out.read += one.predicted.read
        out.breaks += not lines.startswith(before)
        out.moved += at > 0 and epochs[at - 1 : at] == epochs[at : at + 1] != [] and not lines.startswith(before)
        out.over += tokens > budget
        out.largest = max(out.largest, tokens)
        if needed := words[at]:
            text = "\n".join(map(wire_text, chat))
            out.actions += 1
            out.whole += all(word in text for word in needed)
        before, at = lines, at + 1
    return out


def chat_of(wire: str, body: JsonObject) -> list[JsonObject]:
    """A body's messages in the form of OpenAI Chat, in which everything is counted alike."""
    told = [one for one in providers.import_(wire, body) if one.kind != "tools"]
    bare = [msgspec.structs.replace(one, body={**one.body, "wire": {}}) for one in told]
    found: Any = providers.export("openai-chat", bare)
    return found if isinstance(found, list) else found["messages"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--frameworks", nargs="*", default=list(FRAMEWORKS), choices=FRAMEWORKS)
    options.add_argument("--budget", type=int, default=BUDGET)
    options.add_argument("--messages", type=int, default=MESSAGES)
    arguments = options.parse_args()
    longest = max(
        (conversation["messages"] for path in files(arguments.data) for conversation in conversations(path)), key=len
    )
    messages = replayable(longest, arguments.messages)
    rows = []
    for name in arguments.frameworks:
        if python_of(FRAMEWORKS[name]) is None:
            print(f"{name}: {FRAMEWORKS[name].venv} is not there (make setup)", file=sys.stderr)
            continue
        for who in ("quire", "own"):
            if who == "quire" or FRAMEWORKS[name].own:
                rows.append((name, who, run(name, who, messages, arguments.budget)))
                print(f"{name}, {who}", file=sys.stderr, flush=True)
    if arguments.json:
        told = [
            {"framework": name, "by": who, **msgspec.structs.asdict(one), "cost": one.cost} for name, who, one in rows
        ]
        print(json.dumps(told))
        return
    print_table(
        (
            "framework",
            "kept in the budget by",
            "requests",
            "breaks",
            "over",
            "refused",
            "reuse",
            "cost, thousands",
            "whole actions",
        ),
        [
            (
                name,
                "Quire" if who == "quire" else FRAMEWORKS[name].own,
                one.requests,
                one.breaks,
                one.over,
                one.refused,
                f"{one.read / max(1, one.tokens):.1%}",
                f"{one.cost / 1000:,.0f}",
                f"{one.whole / max(1, one.actions):.1%}",
            )
            for name, who, one in rows
        ],
        title=f"{len(messages)} messages, {len(list(points(messages)))} requests, budget {arguments.budget:,}",
    )


if __name__ == "__main__":
    main()
