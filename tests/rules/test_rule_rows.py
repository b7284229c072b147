"""Every row of the rules: a request that breaks it is caught at its place, the nearest good one passes."""

import pytest
from rule_bodies import Body
from rule_cases import BY_MEMORY, CASES, DEFAULT_MODEL, Case

from quire.providers.models import data
from quire.providers.rules import Finding, errors, validate


def check(case: Case, body: Body, model: str | None) -> list[Finding]:
    return validate(body, case.provider, model, headers=case.headers)


@pytest.mark.proves("anthropic openai gemini bedrock mistral deepseek vllm ollama", "rules")
@pytest.mark.parametrize("case", CASES, ids=[f"{case.provider}-{case.row}-{n}" for n, case in enumerate(CASES)])
def test_requests_that_break_a_row_are_caught_and_good_ones_pass(case: Case) -> None:
    model = case.model or (None if {"model", "modelId"} & case.bad.keys() else DEFAULT_MODEL.get(case.provider))
    findings = check(case, case.bad, model)
    assert (case.row, case.path) in [(one.row, one.path) for one in findings]
    assert all(one.message and one.fix and "{" not in one.row for one in findings)
    # The Bedrock row is about the model, not the body.
    good_model = "anthropic.claude-opus-5-5" if case.provider == "bedrock-anthropic" else model
    assert errors(check(case, case.good, good_model)) == []


def test_no_row_is_without_its_test() -> None:
    tested = {case.row for case in CASES} | set(BY_MEMORY)
    assert tested == set(data("rules")["rows"])


def test_a_bad_request_breaks_little_else() -> None:
    """A finding too many would send people looking in the wrong place."""
    # A compaction block without its conversation, an unanswered call and a mark on nothing break two rows each.
    for case in CASES:
        rows = {one.row for one in check(case, case.bad, case.model or DEFAULT_MODEL.get(case.provider))}
        assert len(rows) <= 2, (case.row, rows)


def test_rows_one_to_forty_are_all_in_the_table() -> None:
    rows = set(data("rules")["rows"])
    assert {f"B2.{number}" for number in range(1, 41)} | {"B2.4b"} <= rows
