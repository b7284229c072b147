"""What every test may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from quire.assemble import Assembly, Built
from quire.values import Prompt

# Started in the background of a script, the suite would ignore Ctrl-C, and so would every program it interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

# `ci` gives the same cases every time, so that a red run can be repeated; the others look for new ones.
_EXAMPLES = {"ci": 500, "explore": 500, "nightly": 10_000, "quick": 60}
for _name, _examples in _EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_name == "ci",
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def shared_data(name: str = "") -> Path:
    """A path under ../shared/data; the test is skipped, with the reason, where the data is not there."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.exists():
        pytest.skip(f"real traces are not here: {path.name or 'shared/data'}")
    return path


@pytest.fixture(autouse=True)
def prefix_rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every request built in any test extends its predecessor, unless the test says why it does not."""
    made: dict[int, tuple[Assembly, Prompt]] = {}
    broken: list[str] = []
    ask = Assembly.request

    def watched(self: Assembly) -> Built:
        built = ask(self)
        before = made.get(id(self))
        if before is not None and before[0] is self and not _extends(before[1], built.prompt):
            broken.append(f"turn {built.turn}.{built.step} (epoch {built.epoch})")
        made[id(self)] = (self, built.prompt)
        return built

    monkeypatch.setattr(Assembly, "request", watched)
    yield
    marked = request.node.get_closest_marker("moves_prefix")
    if marked is None:
        assert not broken, f"these requests do not extend the one before: {broken[:3]}"
    else:
        assert marked.kwargs.get("reason"), "a test that moves the prefix says why"


def _extends(before: Prompt, now: Prompt) -> bool:
    same_head = (before.system, before.tools) == (now.system, now.tools)
    return same_head and now.messages[: len(before.messages)] == before.messages
