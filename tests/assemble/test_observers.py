"""Observers are told what a thread sends and receives; none of it changes what is sent."""

from collections.abc import Iterable
from pathlib import Path

import pytest

import quire
from quire import Policy, Reply, Thread, Usage, values
from quire.assemble.state import fit
from quire.entry import chain
from quire.observe import Observer, Received, Sending, ShortEpochs
from quire.providers.simulate import Simulator
from quire.testing import MemoryStore
from quire.thread import open_store
from toolbox import closed_later

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
    assert [[entry.kind for entry in one.since] for one in sendings] == [
        ["system", "user"],
        ["sent", "respond", "user"],
        ["sent", "respond", "user"],
    ]


@pytest.mark.parametrize(("share", "warned"), [(0.4, True), (0.02, False)])
def test_epochs_that_the_budget_ends_early_are_told_with_the_budget_that_would_help(share: float, warned: bool) -> None:
    def told_at(budget: int) -> list[ShortEpochs]:
        told: list[object] = []
        thread = Thread(MemoryStore(), "t", Policy(budget=budget, ttl_s=None))
        thread.on_warning = told.append
        thread.append(values.user("Read them all."))
        for n in range(20):
            request = thread.request("openai-chat:gpt-5")
            call = values.call(f"c{n}", "read", {"path": str(n)})
            thread.record(Reply((call,), Usage()), request)
            thread.append(values.result(f"c{n}", None, f"river stone {n}\n" * int(share * 24_000 / 5)))
        return [what for what in told if isinstance(what, ShortEpochs)]

    told = told_at(24_000)
    assert len(told) == warned
    for what in told:
        assert max(what.lengths) < 4
        assert f"budget={what.budget:,}" in str(what)
        assert told_at(what.budget) == []


def test_the_debug_log_has_each_requests_hashes_and_cached_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
