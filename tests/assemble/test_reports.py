"""What providers report of their counts corrects the budget of their own model, and never ends a thread."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Policy, values
from quire.assemble import Assembly
from quire.assemble.rebase_decision import effective
from quire.entry import chain
from quire.thread import Thread, open_store
from quire.thread_state import policy_for
from quire.values import Entry, Reply, Usage
from toolbox import closed_later

A, B = "openai-chat:a", "openai-chat:b"
IMAGE = {"media_type": "image/png", "data": "iVBORw0KGgo="}


def sent(model: str, total: int) -> Entry:
    body = {"kind": "sent", "provider": "openai-chat", "model": model, "request_sha256": "", "segments": []}
    return Entry("sent", {**body, "usage": {"input_total": total}})


def reported(factor: float, turns: int = 12) -> list[Entry]:
    """A thread whose model counts `factor` times as many tokens as we do."""
    assembly, log = Assembly(Policy(budget=100_000, model=A)), list[Entry]()
    for number in range(turns):
        for made in (values.user(f"q{number} " + "word " * 100), None, values.respond("answer " * 300)):
            entry = made or sent("a", int(assembly.ahead().epoch.total_tokens() * factor))
            log += chain([entry], log[-1].id if log else "", len(log))
            assembly.feed(log[-1])
    return log


@pytest.mark.parametrize("factor", [0.3, 0.5, 2, 5, 20])
def test_one_models_reports_say_nothing_about_another(factor: float) -> None:
    log = reported(factor)
    log += chain([values.user("now for another model")], log[-1].id, len(log))
    other = Assembly(Policy(budget=8000, model=B)).extend(log)
    assert effective(other).limit == effective(Assembly(Policy(budget=8000, model=B))).limit
    assert 0 < other.request().tokens <= 8000


@pytest.mark.moves_prefix(reason="every turn comes near the budget")
def test_images_are_part_of_the_budget_and_leave_it_at_a_rebase() -> None:
    thread = Thread(
        closed_later(open_store(":memory:")), "t", Policy(budget=20_000), clock=itertools.count(0, 1000).__next__
    )
    for turn in range(10):
        thread.append(values.user(f"what do these show? {turn}", images=[IMAGE] * 4))
        request = thread.request("openai-chat:gpt-x")
        built = thread.build("openai-chat:gpt-x")
        images = sum(isinstance(part, values.Image) for message in built.prompt.messages for part in message.parts)
        assert images >= 4
        assert built.tokens >= 1500 * images
        assert 1500 * images + 400 <= 20_000
        thread.record(Reply((values.respond("Things. " * 5),), Usage(input_total=built.tokens, output=9)), request)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 200_000)), min_size=1, max_size=8))
def test_whatever_was_reported_a_small_request_can_be_sent(points: list[tuple[int, int]]) -> None:
    log = [values.system("word " * 400), values.user("q")]
    for number, (words, total) in enumerate(points):
        log += [sent("a", total), values.respond("word " * words), values.user(f"q{number}")]
    assembly = Assembly(Policy(budget=8000, model=A)).extend(chain(log))
    assert assembly.request().tokens <= 2 * 8000


@pytest.mark.parametrize(("target", "tokens"), [("openai-chat:gpt-5", 1500), ("deepseek:deepseek-chat", 8)])
def test_an_image_counts_for_what_the_model_is_shown(target: str, tokens: int) -> None:
    plain, shown = (
        Assembly(policy_for(target)).extend(chain([values.user("what is this?", images=images)]))
        for images in ([], [IMAGE] * 3)
    )
    assert shown.request().tokens - plain.request().tokens == 3 * tokens
