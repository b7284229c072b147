"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("ci", max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("nightly", max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("quick", max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def shared_data(name: str = "") -> Path:
    """A path under ../shared/data; the test is skipped, with the reason, where the data is not there."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.exists():
        pytest.skip(f"real traces are not here: {path.name or 'shared/data'}")
    return path
