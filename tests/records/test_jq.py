"""jq rules: what they give, and that a program cannot run for ever, read anything else or fill the memory."""

import subprocess
import sys

import pytest

from quire.records import HintLimits, apply_hints, paths

pytest.importorskip("jq")

CONTEXT = {"items": [{"kind": "b", "n": 1}, {"kind": "a", "n": 2}]}
QUICK = HintLimits(jq_seconds=1)


def run(query: object, context: object = CONTEXT, **rule: object) -> object:
    shown, error = apply_hints(context, {"transform": {"x": {"type": "jq", "query": query, **rule}}}, QUICK)
    return shown["x"] if error is None else error


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (".items | map(.kind) | unique", ["a", "b"]),
        (".items[].n", [1, 2]),
        (".items[0].n", 1),
        ("empty", None),
        ("def f: .items | length; f # with a comment", 2),
        ('"\\(.items[0].kind) é"', "b é"),
    ],
)
def test_a_jq_rule_gives_null_the_value_or_an_array(query: str, shown: object) -> None:
    assert run(query) == shown


def test_many_is_always_an_array() -> None:
    assert run(".items[0].n", many=True) == [1]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("def f: f; f", "transform.x: jq: stopped with code"),
        ('"x" * 1000000000', "transform.x: jq: stopped with code"),
        ('[limit(100000; repeat("0123456789"))]', "transform.x: jq: more than 1,000,000 characters of output"),
        ('import "a" as $a {search: "/"}; 1', "transform.x: jq: syntax error, unexpected import"),
        ('include "a"; 1', "transform.x: jq: syntax error, unexpected include"),
        ("now", "transform.x: jq: now is not available"),
        ("input", "transform.x: jq: input is not available"),
        (".items.kind", "transform.x: jq: Cannot index array with string"),
        ("][", "transform.x: jq: syntax error"),
        (5, "transform.x: jq: expected a string, not int"),
    ],
)
def test_jq_that_fails_or_reaches_out_is_an_error(query: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_START_SECONDS", 600.0)  # a busy machine may take long to give a second of its time
    assert message in str(run(query))


def test_a_jq_program_that_is_given_no_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_START_SECONDS", -0.9)
    assert "still running after 0.1 s" in str(run("def f: f; f"))


def test_a_jq_program_sees_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    assert run("[$ENV, env]") == [{}, {}]


def test_without_the_package_a_jq_rule_is_an_error_that_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['jq'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'jq' else real(name, *rest)\n"
        "from quire.records import apply_hints\n"
        "print(apply_hints({'a': 1}, {'transform': {'x': {'query': '.a'}}}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "a jq rule needs the jq package (pip install 'quire[jq]')" in done.stdout
    assert done.stdout.startswith("({'a': 1}, ")
