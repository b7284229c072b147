"""`make bench` runs every benchmark there is, and each takes the options they share."""

import os
import re
from subprocess import run

from conftest import ROOT

BENCHES = {path.stem: path.read_text() for path in (ROOT / "bench").glob("*.py")}
RUN = {name for name, text in BENCHES.items() if "\ndef main() -> None:" in text}


def test_make_bench_runs_every_benchmark() -> None:
    listed = re.search(r'^every="(.*)"$', (ROOT / "scripts" / "bench.sh").read_text(), re.M)
    assert set(listed[1].split()) == RUN


def test_a_benchmark_has_a_plain_heading() -> None:
    done = run(
        ["bash", "scripts/bench.sh"], cwd=ROOT, env={**os.environ, "BENCH": "none"}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["", "== bench/none.py"]
    assert done.returncode == 1


def test_every_benchmark_takes_data_and_json() -> None:
    shared = BENCHES["traces"]
    assert '"--data"' in shared
    assert '"--json"' in shared
    assert {name for name in RUN if "parser(__doc__" not in BENCHES[name]} == set()
    assert {name for name in RUN if not re.search(r"\.data\b", BENCHES[name])} == set()
    assert {name for name in RUN if not re.search(r"\.json\b", BENCHES[name])} == set()


def test_every_benchmark_stands_in_the_page_with_its_date() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    dated = set(re.findall(r"^##+ `bench/(\w+)\.py`.*\n\n\d{4}-\d\d-\d\d, ", page, re.M))
    assert dated == RUN
