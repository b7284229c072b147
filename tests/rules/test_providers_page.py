"""docs/providers.md and the rows in docs/rules.md are written from the tests and the data."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from quire.providers.models import data

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("providers_table", ROOT / "scripts" / "providers_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date(table: ModuleType) -> None:
    for path, text in table.pages().items():
        assert path.read_text() == text, "run: python scripts/providers_table.py"


def test_every_proof_names_a_test_that_exists(table: ModuleType) -> None:
    found = table.proofs(ROOT / "tests")
    assert {"anthropic", "openai", "gemini", "bedrock"} <= {proof.provider for proof in found}
    for proof in found:
        file, _, name = proof.test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() or f"class {name}" in (ROOT / file).read_text()


def test_marks_are_read_from_functions_parameters_and_modules(table: ModuleType, tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.proves('gemini', 'usage')]\n"
        "@pytest.mark.proves('openai', 'rules')\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.proves('xai', 'rules'))])\n"
        "def test_it(x): ...\n"
    )
    proved = [(name, "rules", "tests/test_a.py::test_it") for name in ("openai", "xai")]
    assert table.proofs(tests) == [("gemini", "usage", "tests/test_a.py"), *proved]


def test_every_row_is_documented(table: ModuleType) -> None:
    page = table.RULES.read_text()
    assert all(f"| {row} |" in page for row in data("rules")["rows"])
