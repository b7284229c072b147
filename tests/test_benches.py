"""`make bench` runs every benchmark there is, and each takes the options they share."""

import re

from conftest import ROOT

BENCHES = {path.stem: path.read_text() for path in (ROOT / "bench").glob("*.py")}
RUN = {name for name, text in BENCHES.items() if "\ndef main() -> None:" in text}


def test_make_bench_runs_every_benchmark() -> None:
    listed = re.search(r'^every="(.*)"$', (ROOT / "scripts" / "bench.sh").read_text(), re.M)
    assert listed is not None
    assert set(listed[1].split()) == RUN


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
