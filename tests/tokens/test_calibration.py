"""Estimates are corrected from reported usage: a scale and an offset per model and thread."""

import json
import random
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import shared_data
from quire.tokens import Calibration, Calibrations, message_tokens, uncalibrated
from quire.values import Call, JsonObject, Message, Result, Text


def message(raw: JsonObject) -> Message:
    """A Chat message as a value."""
    if raw["role"] == "tool":
        return Message("tool", (Result(raw["tool_call_id"], raw.get("name", ""), raw["content"] or ""),))
    calls = [call["function"] for call in raw.get("tool_calls") or ()]
    parts = (Text(raw.get("content") or ""), *(Call("c", c["name"], None, arguments=c["arguments"]) for c in calls))
    return Message("assistant" if raw["role"] == "assistant" else "user", parts)


def session_points() -> list[tuple[int, int]]:
    """(estimate, reported total input) at each reply of the real coding session; 0 where it was aborted."""
    points, estimate = [], 0
    for raw in json.loads(shared_data("traces/pi_large_session.jsonl").read_text())["messages"]:
        if usage := raw.get("_usage"):
            points.append((estimate, usage["input"] + usage["cacheRead"] + usage["cacheWrite"]))
        estimate += message_tokens(message(raw))
    return points


def errors_after(points: list[tuple[int, int]], reports: int, start: Calibration) -> list[float]:
    """The relative error of each prediction made after so many reports, learning on the way."""
    errors, found = [], start
    for estimate, reported in points:
        if found.reports >= reports and reported:
            errors.append(abs(found.predict(estimate).tokens - reported) / reported)
        found = found.observe(estimate, reported)
    return errors


def test_on_a_real_session_the_next_prediction_is_within_three_per_cent() -> None:
    errors = errors_after(session_points(), 3, uncalibrated("claude-sonnet-4-5"))
    assert len(errors) > 400
    assert statistics.median(errors) < 0.005
    assert statistics.quantiles(errors, n=20)[-1] < 0.03


@pytest.mark.parametrize("prior", [0.7, 1.0, 1.55])
def test_wherever_a_session_is_joined_three_reports_are_enough(prior: float) -> None:
    points = [point for point in session_points() if point[1]]
    starts = range(len(points) - 4)
    first = [errors_after(points[k : k + 4], 3, Calibration(scale=prior, prior=prior))[0] for k in starts]
    assert statistics.median(first) < 0.03


@given(
    scale=st.floats(0.8, 2.0),
    offset=st.integers(0, 30_000),
    growth=st.lists(st.integers(200, 5000), min_size=8, max_size=40),
)
def test_a_true_scale_and_offset_are_found(scale: float, offset: int, growth: list[int]) -> None:
    found, estimate = Calibration(), 0
    for grown in growth:
        estimate += grown
        found = found.observe(estimate, round(scale * estimate + offset))
    # Of many steps the prior is one; the scale is one that a step showed, to rounding.
    assert found.predict(estimate + 4000).tokens == pytest.approx(scale * (estimate + 4000) + offset, rel=0.02)
    assert found.scale == pytest.approx(scale, rel=0.02)


def test_outliers_cuts_and_repeats_do_not_spoil_the_scale() -> None:
    rng, found, estimate, unseen = random.Random(7), Calibration(), 0, 2500
    for step in range(200):
        estimate += rng.randrange(50, 3000)
        if step % 20 == 19:
            unseen -= rng.randrange(0, estimate // 2)  # the other side dropped part of the thread
        if step % 50 == 49:
            estimate //= 2  # we did
        reported = max(1, round(1.3 * estimate * rng.uniform(0.98, 1.02) + unseen))
        found = found.observe(estimate, reported).observe(estimate, 0).observe(estimate, reported)
    assert found.scale == pytest.approx(1.3, rel=0.05)
    assert found.predict(estimate).tokens == pytest.approx(reported, abs=1)


def test_an_aborted_reply_teaches_nothing() -> None:
    found = Calibration().observe(100, 1500)
    assert found.observe(200, 0) == found
    assert found.observe(200, -1) == found


def test_a_prediction_is_an_estimate_and_never_negative() -> None:
    found = Calibration().observe(50_000, 100)
    assert found.predict(10).tokens == 0
    assert not found.predict(60_000).exact


def test_each_model_of_a_thread_learns_for_itself() -> None:
    both = Calibrations()
    for estimate in (1000, 3000, 6000, 9000, 14_000):
        both = both.observe("openai:gpt-5", estimate, estimate + 700)
        both = both.observe("claude-opus-5-5", estimate, round(1.5 * estimate) + 2000)
    assert both.predict("openai:gpt-5", 20_000).tokens == 20_700
    assert both.predict("claude-opus-5-5", 20_000).tokens == 32_000
    assert both.predict("claude-opus-4-1", 20_000).tokens == 24_000  # not seen here: the stated factor


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5, 10**6)), max_size=60))
def test_any_reports_leave_a_small_value_that_survives_json(points: list[tuple[int, int]]) -> None:
    found = Calibration()
    for estimate, reported in points:
        found = found.observe(estimate, reported)
    assert len(found.steps) <= 32
    assert 1 / 2.5 <= found.scale <= 2.5
    assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found
