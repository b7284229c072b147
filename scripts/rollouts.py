"""Agents' runs that others published, as traces: what is grounding on threads that nothing was fitted to?

Reads files of rollouts (one a line, in OpenAI's Responses form: `responses_create_params` holds the input, `response`
the output), such as those in the source distribution of nemo-gym (Apache 2.0), and prints the runs of some length that
act often as traces for the other benchmarks. `--odd` takes every second line: the shares of the summary and the
likelihoods of words were chosen with the others at hand.

    pip download --no-deps --no-binary :all: nemo-gym==0.7.0 && tar xzf nemo_gym-0.7.0.tar.gz
    scripts/rollouts.py --least 16000 nemo_gym-0.7.0/*/*/data/example_rollouts.jsonl \
        nemo_gym-0.7.0/*/swe_agents/data/example_opecode.jsonl > rollouts.jsonl
    bench/grounding.py --data rollouts.jsonl --budget 16000 --peers "cut to half" "LangChain trim, exact"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.errors import QuireError
from quire.providers import export, import_
from quire.tokens import counter

ACTIONS = 8


def messages(line: str) -> list[dict[str, Any]]:
    """The run as Chat messages; none where it is no run, or of another form."""
    try:
        rollout = json.loads(line)
        given, made = rollout["responses_create_params"]["input"], rollout["response"]["output"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        found: list[dict[str, Any]] = export("openai-chat", import_("openai-responses", [*items, *made]))
    except (KeyError, TypeError, ValueError, QuireError):
        return []
    return found


def tokens(message: dict[str, Any]) -> int:
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return sum(counter().count(text) for text in (message.get("content"), *calls) if isinstance(text, str))


def runs(path: Path, least: int, odd: bool) -> Iterator[dict[str, Any]]:
    """The runs of a file with so many tokens and a few actions."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            made = messages(line) if number % 2 or not odd else []
            if sum(map(tokens, made)) >= least and sum(bool(one.get("tool_calls")) for one in made) >= ACTIONS:
                yield {"source": path.parent.parent.name, "id": f"{path.parent.parent.name}-{number}", "messages": made}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options.add_argument("--least", type=int, default=0, help="leave out runs of fewer tokens")
    options.add_argument("--odd", action="store_true", help="every second line alone")
    arguments = options.parse_args()
    for path in sorted(arguments.files):
        for run in runs(path, arguments.least, arguments.odd):
            print(json.dumps(run))


if __name__ == "__main__":
    main()
