"""The examples that the formats' origins print in full, to the byte."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.cli.format import FORMATS, format_

GOLDEN = Path(__file__).parent.parent / "golden" / "formats"
CASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    made = json.loads((GOLDEN / f"{case}.json").read_bytes())
    golden = (GOLDEN / f"{case}.txt").read_bytes()
    run = CliRunner().invoke(format_, [made["format"], *made["options"]], input=json.dumps(made["input"]))
    assert run.stdout_bytes == golden
    if "agent-q" not in made["options"]:
        format = FORMATS[made["format"]]
        assert format.render(format.parse(golden.decode())).encode() == golden


def test_there_are_goldens() -> None:
    assert len(CASES) >= 12
