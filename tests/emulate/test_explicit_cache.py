"""Who keeps an explicit cache of Gemini: what lasts, what a failed call costs, and that names are never given twice."""

from typing import Any

from calling import call

from quire import Usage
from quire.providers.gemini_cache import CacheCall, CacheKeeper, CacheStep, lasting
from quire.testing import Emulator
from quire.values import JsonObject
from toolbox import model_info

INFO = model_info("gemini:gemini-2.5-pro")
MINUTE = 60_000


def said(role: str, text: str) -> JsonObject:
    return {"role": role, "parts": [{"text": text}]}


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
