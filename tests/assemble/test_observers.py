"""Observers are told what a thread sends and receives; what providers report corrects the budget of their own model."""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import quire
from quire import Assembly, Entry, Policy, Reply, Thread, Usage, open_store, values
from quire.assemble.rebase_decision import effective
from quire.assemble.state import fit
from quire.cli.main import quire as cli
from quire.errors import BudgetError
from quire.observe import Observer, Received, Sending, ShortEpochs
from quire.providers.simulate import Simulator
from quire.testing import MemoryStore
from quire.thread_state import policy_for
from quire.values import JsonObject
from toolbox import chain, closed_later, counter, fewer

TARGET = "anthropic:claude-opus-5-5"


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Sending | Received] = []

    def on_request(self, sending: Sending) -> None:
        self.heard.append(sending)

    def on_reply(self, received: Received) -> None:
        self.heard.append(received)


def talk(thread: Thread, turns: int = 3, usage: Usage | None = None) -> list[quire.Request]:
    requests = []
    thread.append(values.system("Be brief."))
    for n in range(turns):
        thread.append(values.user(f"question {n}"))
        requests.append(thread.request(TARGET, max_tokens=100))
        thread.record(Reply((values.respond(f"answer {n}"),), usage or Usage()), requests[-1])
    return requests


def thread_with(path: Path, observers: Iterable[Observer] | None = None) -> Thread:
    return Thread(closed_later(open_store(path)), "t", clock=lambda: 0, observers=observers)


def test_each_request_and_reply_is_told_in_order(tmp_path: Path) -> None:
    told = Told()
    requests = talk(thread_with(tmp_path / "t.db", [told]))
    assert [type(one).__name__ for one in told.heard] == ["Sending", "Received"] * 3
    assert [one.request for one in told.heard] == [request for request in requests for _ in range(2)]
    sendings = [one for one in told.heard if isinstance(one, Sending)]
    kinds = [[entry.kind for entry in one.since] for one in sendings]
    assert kinds == [["system", "user"], *[["sent", "respond", "user"]] * 2]


@pytest.mark.parametrize(("share", "scale", "warned"), [(0.4, 0, True), (0.02, 0, False), (0.08, 3, True)])
def test_epochs_that_the_budget_ends_early_are_told_with_the_budget_that_would_help(
    share: float, scale: float, warned: bool
) -> None:
    def told_at(budget: int) -> list[ShortEpochs]:
        told: list[object] = []
        thread = Thread(MemoryStore(), "t", Policy(budget=budget, ttl_s=None))
        thread.on_warning = told.append
        thread.append(values.user("Read them all."))
        for n in range(20):
            request = thread.request("openai-chat:gpt-5")
            call = values.call(f"c{n}", "read", {"path": str(n)})
            counted = int(scale * thread.build("openai-chat:gpt-5").tokens)
            thread.record(Reply((call,), Usage(input_total=counted)), request)
            thread.append(values.result(f"c{n}", None, f"river stone {n}\n" * int(share * 24_000 / 5)))
        return [what for what in told if isinstance(what, ShortEpochs)]

    told = told_at(24_000)
    assert len(told) == warned
    for what in told:
        assert max(what.lengths) < 4
        assert what.budget > 24_000
        assert f"budget={what.budget:,}" in str(what)
        assert told_at(what.budget) == []


def test_the_debug_log_has_requests_hashes_and_cached_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "quire")
    requests = talk(thread_with(tmp_path / "t.db"), 2, Usage(input_total=5_000, cache_read=4_000, output=7))
    lines = [one.getMessage() for one in caplog.records if one.levelname == "DEBUG"]
    for request, asked, used in zip(requests, lines[::2], lines[1::2], strict=True):
        for name, sha256 in {**request.layers, "request": request.lines.sha256}.items():
            assert f"{name}={sha256[:12]}" in asked
        assert used == f"t: {TARGET}: 4,000 of 5,000 tokens cached, 0 written, 7 out"


def test_without_observers_the_bytes_are_the_same(tmp_path: Path) -> None:
    watched, bare = thread_with(tmp_path / "a.db"), thread_with(tmp_path / "b.db", ())
    assert [one.body for one in talk(watched)] == [one.body for one in talk(bare)]


def test_nothing_is_predicted_until_a_reply_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[int]()
    step = Simulator.step

    def counted(self: Simulator, *args: object, **named: object) -> object:
        steps.append(1)
        return step(self, *args, **named)  # type: ignore[arg-type]  # handed through

    monkeypatch.setattr(Simulator, "step", counted)
    thread = thread_with(tmp_path / "t.db")
    talk(thread)
    assert steps == []
    thread.append(values.user("and now?"))
    thread.record(Reply((values.respond("now"),), Usage(input_total=40)), thread.request(TARGET))
    assert len(steps) == 4, "those that waited are gone through first"


def test_a_selection_can_be_fitted_twice() -> None:
    said = [(values.user(f"question {n} " + "word " * 20), values.respond("answer " * 10)) for n in range(8)]
    entries = chain([*(entry for pair in said for entry in pair), values.user("last " + "word " * 300)])
    selection = quire.Assembly(quire.Policy(budget=600)).extend(entries).select()
    first = fit(selection)
    assert first.rebase is not None
    assert fit(selection) == first == selection.source.request()


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


def test_a_budget_of_nearly_nothing_is_refused_by_what_does_not_fit() -> None:
    state = Assembly(Policy(budget=1, reply=0, model=TARGET)).extend(chain([values.user("hi")]))
    with pytest.raises(BudgetError, match="the budget is 1: the user's message"):
        state.request()


@pytest.mark.moves_prefix(reason="budgets are small")
def test_before_any_report_ids_and_priming_are_part_of_the_budget() -> None:
    """By the rule of OpenAI's cookbook: every string of a message, three a message, three in front of the answer."""

    def counted(message: JsonObject) -> int:
        calls = [[each["id"], *each["function"].values()] for each in message.get("tool_calls") or ()]
        named = [message["role"], message.get("content") or "", message.get("tool_call_id", "")]
        return 3 + sum(counter().count(text) for text in [*named, *(text for call in calls for text in call)])

    for budget in range(400, 440, 8):
        policy = Policy(budget=budget, when="full")
        thread = Thread(closed_later(open_store(":memory:")), "t", policy, clock=lambda: 0, observers=())
        thread.append(values.user("Read them."))
        for number in range(24):
            request = thread.request(A)
            assert 3 + sum(map(counted, request.body["messages"])) <= budget
            call = values.call(f"call_{number}_3fGh81kLmN", "read", {"n": number})
            thread.record(Reply((call,), Usage()), request)
            thread.append(values.result(call.call_id, None, f"line {number} of it\n" * (1 + number % 4)))


def test_assemble_and_plan_say_in_whose_tokens_they_count(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"\n".join(msgspec.json.encode(entry.body) for entry in reported(2.0)))
    shown = CliRunner().invoke(cli, ["assemble", str(file), "--turn", "12"]).output
    assert "of 56,000 tokens (112,000 as the model counts)" in shown
    planned = CliRunner().invoke(cli, ["plan", str(file)]).output
    assert "paid, as the provider counts" in planned
    for row in planned.splitlines():
        assert not re.match(r"(drop only|never cut|promote each turn) .* 0\.\d\d ", row)


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
@fewer(2)
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
