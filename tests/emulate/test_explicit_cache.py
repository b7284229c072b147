"""Gemini's explicit cache over a thread's life, against the strict server: made, used, prolonged, replaced, dropped."""

from typing import Any

import pytest
from calling import call

from quire import Usage
from quire.providers.gemini_cache import CacheCall, CacheKeeper, CacheStep, lasting
from quire.providers.usage import usage
from quire.testing import Emulator, assert_valid
from quire.values import JsonObject
from toolbox import Clock, model_info

INFO = model_info("gemini:gemini-2.5-pro")
PATH = "/v1beta/models/gemini-2.5-pro:generateContent"
MINUTE = 60_000


def said(role: str, text: str) -> JsonObject:
    return {"role": role, "parts": [{"text": text}]}


class Thread:
    """A growing conversation that follows the keeper; without a cache, nothing is read implicitly."""

    def __init__(self, server: Emulator, clock: Clock) -> None:
        self.server, self.clock, self.keeper = server, clock, CacheKeeper(INFO)
        self.body: JsonObject = {
            "systemInstruction": {"parts": [{"text": "rule " * 3000}]},
            "tools": [{"functionDeclarations": [{"name": "f", "description": "d"}]}],
            "contents": [],
        }
        self.actions: list[str] = []

    def turn(self, words: int = 400) -> tuple[Usage, int]:
        """One question and its answer: what was used, and what the whole request would have held."""
        self.clock.now_ms += MINUTE
        self.body["contents"] = [*self.body["contents"], said("user", "ask " * words)]
        for errand in self.keeper.due(self.body, self.clock()):
            answer = call(self.server, f"/v1beta/{errand.path}", errand.body, errand.method)
            assert answer.status == 200, answer.json
            self.keeper.done(errand, answer.json, self.clock())
        self.actions.append(self.keeper.plan.action)
        sent = self.keeper.behind(self.body)
        assert_valid(sent, "gemini", INFO.model)
        answer = call(self.server, PATH, sent)
        assert answer.status == 200, answer.json
        used = usage("gemini", answer.json)
        if "cachedContent" not in sent:
            used = Usage(used.input_total, 0, output=used.output)
        self.keeper.answered(used)
        whole = call(self.server, PATH.replace("generateContent", "countTokens"), self.body).json["totalTokens"]
        self.body["contents"] = [*self.body["contents"], said("model", "answer " * 50)]
        return used, whole


@pytest.mark.proves("gemini", "cache marks")
def test_a_cache_is_made_used_prolonged_replaced_and_dropped_over_a_threads_life() -> None:
    clock = Clock(1_000_000_000)
    with Emulator("gemini", clock=clock) as server:
        thread = Thread(server, clock)
        for _ in range(40):
            used, whole = thread.turn()
            assert used.input_total == whole
            if thread.keeper.cache:
                assert used.cache_read == thread.keeper.cache.tokens
        assert {"create", "reuse", "replace"} <= set(thread.actions)
        clock.now_ms += 40 * MINUTE
        thread.turn()
        assert thread.keeper.plan.action in ("none", "create", "extend")
        thread.body["systemInstruction"] = {"parts": [{"text": "another " * 3000}]}
        thread.turn()
        assert thread.keeper.plan.action in ("drop", "replace", "none")


def test_a_short_lived_cache_is_prolonged_before_it_ends() -> None:
    clock = Clock(1_000_000_000)
    with Emulator("gemini", clock=clock) as server:
        thread = Thread(server, clock)
        for _ in range(60):
            thread.turn(words=5)
    assert "extend" in thread.actions
    assert "none" not in thread.actions[thread.actions.index("create") :]


def test_a_failed_call_and_a_lost_cache_cost_nothing_but_the_cache() -> None:
    keeper = CacheKeeper(INFO)
    body: JsonObject = {"systemInstruction": {"parts": [{"text": "rule " * 9000}]}, "contents": []}
    errands: list[CacheCall] = []
    for number in range(30):
        body = {**body, "contents": [*body["contents"], said("user", "x"), said("model", "y")][:-1]}
        errands = keeper.due(body, number * MINUTE)
        if errands:
            break
        keeper.answered(Usage(9000))
    assert [errand.method for errand in errands] == ["POST"]
    keeper.done(errands[0], None, MINUTE)
    assert keeper.behind(body) is body
    keeper.done(errands[0], {"name": "cachedContents/a"}, MINUTE)
    assert keeper.behind(body)["cachedContent"] == "cachedContents/a"
    keeper.forget()
    assert keeper.behind(body) is body


def test_a_model_without_explicit_caches_gets_none() -> None:
    keeper = CacheKeeper(model_info("gemini:gemini-4-argon"))
    body: JsonObject = {"systemInstruction": {"parts": [{"text": "rule " * 9000}]}, "contents": [said("user", "x")]}
    for number in range(20):
        assert keeper.due(body, number * MINUTE) == []
        keeper.answered(Usage(9000))
    assert keeper.plan == CacheStep("none", "nothing was asked yet")


CALL: Any = {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
BACK: Any = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}


def test_what_lasts_ends_before_the_users_latest_words_and_parts_no_call_from_its_response() -> None:
    asked = [said("user", "a"), CALL, BACK, said("model", "b"), said("user", "c"), CALL, BACK]
    assert lasting({"contents": asked}) == {"contents": asked[:4]}
    assert lasting({"contents": asked[:3], "tools": [1]}) == {"tools": [1]}


def test_a_name_is_never_given_twice() -> None:
    body = {"model": "models/gemini-2.5-pro", "contents": [said("user", "rule " * 5000)]}
    with Emulator("gemini") as server:
        names = []
        for _ in range(3):
            names.append(call(server, "/v1beta/cachedContents", body).json["name"])
            call(server, f"/v1beta/{names[0]}", method="DELETE")
    assert len(set(names)) == 3
