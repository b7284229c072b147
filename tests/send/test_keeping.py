"""Gemini's explicit caches carried out by a transport: the real client, the strict server, time that is given."""

import asyncio
import copy
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from send_parts import new_thread

from quire import Policy, Request, Usage, values
from quire.errors import CallError, ProviderError
from quire.providers.explain import CacheEvent
from quire.providers.gemini_cache import CacheCall, CacheKeeper, CacheStep, lasting
from quire.providers.prefix import lines_of, prefix_bytes
from quire.providers.simulate.blocks import Shares
from quire.providers.simulate.engine_caches import StepCache
from quire.providers.usage import usage
from quire.send.connect import CachedTransport, Retry
from quire.send.cycle import run
from quire.testing import Emulator, Refuse, emulator
from quire.values import JsonObject
from toolbox import Clock, close, free_port, model_info, transport_for

TARGET = "gemini:gemini-2.5-pro"
MINUTE = 60_000


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000_000)


@pytest.fixture
def plain(clock: Clock) -> Iterator[Emulator]:
    with emulator("gemini", clock=clock) as one:
        yield one


@pytest.fixture
def server(plain: Emulator, misses: None) -> Emulator:
    return plain


@pytest.fixture
def misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The implicit cache promises nothing: here it never reads, so that an explicit one pays."""
    monkeypatch.setattr(StepCache, "look", lambda *_: Shares())


def keeping(url: str, clock: Clock, via: Any = "sdk", caches_url: str = "") -> CachedTransport:
    """What transport_for makes, with a clock of the test's; the caches may be elsewhere."""
    made = transport_for(TARGET, url, "key", retry=Retry(attempts=1), via=via, explicit_cache=True)
    caches: Any = made.inner.inner  # type: ignore[attr-defined]
    if caches_url:
        caches = transport_for(TARGET, caches_url, "key", via=via).inner
    return CachedTransport(made.inner, caches, clock)


@asynccontextmanager
async def opened(*how: Any) -> AsyncIterator[CachedTransport]:
    transport = keeping(*how)
    caches: Any = transport._caches
    try:
        yield transport
    finally:
        await close(transport)
        await close(caches)


def words(role: str, text: str) -> JsonObject:
    return {"role": role, "parts": [{"text": text}]}


class Talk:
    """A conversation that grows by a question and an answer each minute."""

    def __init__(self, clock: Clock, name: str = "rule", how: str = "send", size: int = 3000, asks: int = 0) -> None:
        self.clock, self.how, self.asks, self.model = clock, how, asks, "gemini-2.5-pro"
        self.body: JsonObject = {
            "systemInstruction": {"parts": [{"text": f"{name} " * size}]},
            "tools": [{"functionDeclarations": [{"name": "f", "description": "d"}]}],
            "contents": [],
        }
        self.name, self.turns = name, 0

    def request(self) -> Request:
        return Request("gemini", self.model, self.body, lines_of(self.body, "gemini"))

    async def several(self, transport: CachedTransport, count: int) -> list[Usage]:
        return [await self.turn(transport) for _ in range(count)]

    async def turn(self, transport: CachedTransport, minutes: float = 1) -> Usage:
        self.clock.now_ms += int(minutes * MINUTE)
        self.turns += 1
        asked = words("user", f"{self.name} question {self.turns}" + " ask" * self.asks)
        self.body = {**self.body, "contents": [*self.body["contents"], asked]}
        reply = await self.answer(transport)
        said = words("model", f"{self.name} answer {self.turns}")
        self.body = {**self.body, "contents": [*self.body["contents"], said]}
        return usage("gemini", reply)

    async def answer(self, transport: CachedTransport) -> JsonObject:
        request = self.request()
        before = copy.deepcopy(request)
        if self.how == "send":
            reply = await transport.send(request)
        else:
            reply = [event async for event in transport.stream(request)][-1]
        assert request == before
        return reply


def calls(server: Emulator) -> list[tuple[str, int]]:
    """The calls for caches that came, and how they went."""
    return [(one.method, one.status) for one in server.requests if "/cachedContents" in one.path]


def asked(server: Emulator) -> list[JsonObject]:
    return [one.body for one in server.requests if "enerateContent" in one.path]


def held(server: Emulator) -> int:
    """How many caches are there, and paid for."""
    went = calls(server)
    return went.count(("POST", 200)) - went.count(("DELETE", 200))


WAYS = [(via, how) for via in ("sdk", "http") for how in ("send", "stream")]


@pytest.mark.proves("gemini", "cache marks")
@pytest.mark.parametrize(("via", "how"), WAYS)
async def test_a_conversation_for_which_it_pays_gets_a_cache_and_later_requests_read_it(
    server: Emulator, clock: Clock, via: str, how: str
) -> None:
    talk = Talk(clock, how=how)
    async with opened(server.url, clock, via) as transport:
        used = await talk.several(transport, 6)
    assert calls(server) == [("POST", 200), ("DELETE", 200)]
    assert [one.cache_read > 3000 for one in used] == [False, False, True, True, True, True]
    assert [one.input_total for one in used] == sorted(one.input_total for one in used)
    behind = asked(server)[-1]
    assert behind["cachedContent"] == "cachedContents/emulated0001"
    assert not {"systemInstruction", "tools", "toolConfig"} & behind.keys()
    # The cache was made before the third question, and holds the two turns before it.
    assert behind["contents"] == talk.body["contents"][4:-1]


@pytest.mark.proves("gemini", "cache marks")
async def test_a_cache_is_replaced_as_the_conversation_grows_and_holds_no_token_twice(
    server: Emulator, clock: Clock
) -> None:
    talk, used = Talk(clock, asks=400), list[Usage]()
    async with opened(server.url, clock) as transport:
        for _ in range(40):
            used.append(await talk.turn(transport))
            cache = transport.conversations[0].keeper.cache
            assert used[-1].cache_read == (cache.tokens if cache else 0)
    assert calls(server).count(("POST", 200)) > 1
    # What a request takes grows by as much as if no cache stood in front of it.
    grown = [after.input_total - before.input_total for before, after in pairwise(used)]
    assert max(grown) - min(grown) <= 2


async def test_a_model_may_be_named_with_its_path(server: Emulator, clock: Clock) -> None:
    talk = Talk(clock)
    talk.model = "models/gemini-2.5-pro"
    async with opened(server.url, clock) as transport:
        assert (await talk.several(transport, 3))[-1].cache_read > 3000
    [made] = [one.body["model"] for one in server.requests if one.path.endswith("/cachedContents")]
    assert made == "models/gemini-2.5-pro"


async def test_nothing_is_kept_unless_it_is_asked_for(server: Emulator, clock: Clock) -> None:
    talk = Talk(clock)
    transport: Any = transport_for(TARGET, server.url, "key")
    await talk.several(transport, 6)
    await close(transport)
    assert calls(server) == []


async def test_where_the_implicit_cache_reads_everything_nothing_is_paid_for(plain: Emulator, clock: Clock) -> None:
    async with opened(plain.url, clock) as transport:
        assert (await Talk(clock).several(transport, 6))[-1].cache_read > 3000
    assert calls(plain) == []


async def test_a_short_lived_cache_is_prolonged_and_one_that_ended_is_not_used(server: Emulator, clock: Clock) -> None:
    talk = Talk(clock)
    async with opened(server.url, clock) as transport:
        await talk.several(transport, 9)
        assert ("PATCH", 200) in calls(server)
        assert "cachedContent" in asked(server)[-1]
        await talk.turn(transport, minutes=30)
        assert "cachedContent" not in asked(server)[-1]
    assert {one.status for one in server.requests} == {200}


@pytest.mark.parametrize(("via", "how"), WAYS)
async def test_a_request_whose_cache_is_gone_is_sent_whole_once(
    server: Emulator, clock: Clock, via: str, how: str
) -> None:
    talk = Talk(clock, how=how)
    async with opened(server.url, clock, via) as transport:
        await talk.several(transport, 4)
        other: Any = transport_for(TARGET, server.url, "key", via="http").inner
        await other.carry_out(CacheCall("DELETE", asked(server)[-1]["cachedContent"]))
        await close(other)
        await talk.turn(transport)
    refused, whole = [one for one in server.requests if "enerateContent" in one.path][-2:]
    assert (refused.status, whole.status) == (403, 200)
    sent = {**talk.body, "contents": talk.body["contents"][:-1]}
    assert prefix_bytes(whole.body, "gemini") == prefix_bytes(sent, "gemini")


@pytest.mark.parametrize("how", ["send", "stream"])
async def test_a_refusal_that_is_not_the_caches_comes_through(server: Emulator, clock: Clock, how: str) -> None:
    talk = Talk(clock, how=how)
    async with opened(server.url, clock) as transport:
        for status, attempts in ((403, 1), (None, 0), (None, 0), (None, 0), (429, 1), (403, 2)):
            before = len(asked(server))
            if status is None:
                await talk.turn(transport)
                continue
            for _ in range(attempts):
                server.next(Refuse(status))
            with pytest.raises(ProviderError) as refused:
                await talk.turn(transport)
            assert refused.value.status == status
            assert len(asked(server)) - before == attempts
            talk.body["contents"].pop()


async def test_a_server_without_caches_is_asked_once_and_every_turn_is_answered(server: Emulator, clock: Clock) -> None:
    talk = Talk(clock)
    with emulator("anthropic") as without:
        async with opened(server.url, clock, "sdk", without.url) as transport:
            await talk.several(transport, 6)
    assert calls(without) == [("POST", 404)]
    assert [one.status for one in server.requests] == [200] * 6
    assert asked(server)[-1]["contents"] == talk.body["contents"][:-1]


@pytest.mark.parametrize("via", ["sdk", "http"])
async def test_caches_out_of_reach_cost_no_turn_and_are_tried_again(server: Emulator, clock: Clock, via: str) -> None:
    talk = Talk(clock)
    async with opened(server.url, clock, via, f"http://127.0.0.1:{free_port()}") as transport:
        await talk.several(transport, 4)
        assert calls(server) == []
        transport._caches = transport.inner.inner  # type: ignore[attr-defined]
        await talk.turn(transport)
        assert calls(server) == [("POST", 200)]


async def test_closing_deletes_what_is_held_and_the_transport_can_go_on(server: Emulator, clock: Clock) -> None:
    talk, other = Talk(clock), Talk(clock, "law")
    transport = keeping(server.url, clock)
    for _ in range(4):
        await talk.turn(transport)
        await other.turn(transport)
    assert held(server) == 2
    await close(transport)
    assert held(server) == 0
    await talk.turn(transport)
    assert "cachedContent" not in asked(server)[-1]
    await close(transport)


async def test_closing_does_not_fail_where_the_server_has_gone(clock: Clock, misses: None) -> None:
    talk = Talk(clock)
    with emulator("gemini", clock=clock) as server:
        transport = keeping(server.url, clock)
        await talk.several(transport, 4)
        assert held(server) == 1
    await close(transport)


async def test_conversations_side_by_side_each_read_their_own_cache(server: Emulator, clock: Clock) -> None:
    talks = [Talk(clock, name) for name in ("rule", "law")]
    async with opened(server.url, clock) as transport:
        for _ in range(5):
            for talk in talks:
                assert (await talk.turn(transport, 0.5)).cache_read in (0, *range(3000, 3200))
        assert calls(server) == [("POST", 200)] * 2
        assert len({body["cachedContent"] for body in asked(server)[-2:]}) == 2


async def test_a_conversation_silent_longer_than_any_cache_lives_is_forgotten(server: Emulator, clock: Clock) -> None:
    async with opened(server.url, clock) as transport:
        for name in ("rule", "law"):
            await Talk(clock, name, size=10).turn(transport)
        assert len(transport.conversations) == 2
        await Talk(clock, "custom", size=10).turn(transport, minutes=60)
        assert len(transport.conversations) == 2
        await Talk(clock, "habit", size=10).turn(transport, minutes=61)
        assert len(transport.conversations) == 1


async def test_requests_at_one_moment_make_one_cache(server: Emulator, clock: Clock) -> None:
    talk = Talk(clock)
    async with opened(server.url, clock) as transport:
        await talk.turn(transport)
        await talk.turn(transport)
        assert calls(server) == []
        talk.body["contents"].append(words("user", "and now?"))
        await asyncio.gather(*(transport.send(talk.request()) for _ in range(3)))
        assert calls(server) == [("POST", 200)]


async def test_other_tool_settings_are_not_sent_behind_a_cache_of_the_first(server: Emulator, clock: Clock) -> None:
    talk = Talk(clock)
    async with opened(server.url, clock) as transport:
        await talk.several(transport, 4)
        assert "cachedContent" in asked(server)[-1]
        talk.body["toolConfig"] = {"functionCallingConfig": {"mode": "ANY"}}
        await talk.turn(transport)
        assert asked(server)[-1]["toolConfig"] == talk.body["toolConfig"]


@pytest.mark.moves_prefix(reason="the budget is small, so that there is a rebase")
async def test_a_rebase_drops_the_cache_and_makes_a_new_one_and_the_log_is_the_same_as_without(
    tmp_path: Path, clock: Clock, misses: None
) -> None:
    async def talk(name: str, server: Emulator, explicit: bool) -> list[JsonObject]:
        transport = keeping(server.url, clock) if explicit else transport_for(TARGET, server.url, "key")
        thread = new_thread(tmp_path / f"{name}.db", policy=Policy(budget=7000, reply=500, recall=0))
        thread.append(values.system("Rules. " * 1500))
        for number in range(14):
            clock.now_ms += MINUTE
            thread.user(f"Question {number}. " + "ask " * 300)
            await run(thread, TARGET, transport)
        await close(transport)
        return [_unpriced(entry.body) for entry in thread.store.read(thread.name)]

    with emulator("gemini", clock=clock) as server, emulator("gemini", clock=clock) as plain:
        kept = await talk("kept", server, explicit=True)
        assert kept == await talk("plain", plain, explicit=False)
    assert sum(entry["kind"] == "rebase" for entry in kept) >= 1
    # Each cache goes before the next is made, and the last one at the end.
    made = [method for method, status in calls(server) if method != "PATCH" and status == 200]
    assert made == ["POST", "DELETE"] * (len(made) // 2)
    assert len(made) >= 4
    assert {one.status for one in server.requests} == {200}
    assert "cachedContent" in asked(server)[-1]


async def warnings_of(
    folder: Path, clock: Clock, server: Emulator, pauses: Sequence[float], asks: int = 700, lost: int = -1, **how: Any
) -> list[list[CacheEvent]]:
    """What a thread warns of in each of its turns, so many minutes apart, with an explicit cache."""
    heard: list[list[CacheEvent]] = []
    thread = new_thread(folder / "t.db", clock=clock, **how)
    thread.on_warning = lambda event: heard[-1].append(event)  # type: ignore[arg-type]  # no layer moves
    thread.append(values.system("Rules. " * (1500 if how else 3000)))
    async with opened(server.url, clock) as transport:
        for number, minutes in enumerate(pauses):
            clock.now_ms += int(minutes * MINUTE)
            heard.append([])
            if number == lost:
                caches: Any = transport._caches
                await caches.carry_out(CacheCall("DELETE", asked(server)[-1]["cachedContent"]))
            thread.user(f"Question {number}. " + "ask " * asks)
            await run(thread, TARGET, transport)
    return heard


@pytest.fixture
def forgetful(plain: Emulator) -> Emulator:
    """A provider whose implicit cache never reads, although it might."""
    engine: Any = plain._emulated.simulator("gemini", "gemini-2.5-pro").engine
    engine._implicit.look = lambda *_: Shares()
    return plain


async def test_what_an_explicit_cache_serves_is_not_lost(tmp_path: Path, clock: Clock, forgetful: Emulator) -> None:
    heard = await warnings_of(tmp_path, clock, forgetful, (1,) * 9)
    made = ["cachedContent" in body for body in asked(forgetful)].index(True)
    # Until there is one, what the implicit cache does not read is missed.
    assert [bool(turn) for turn in heard] == [0 < n < made for n in range(9)]
    assert {event.cause for turn in heard for event in turn} == {"routing"}


async def test_nor_is_it_somebody_elses(tmp_path: Path, clock: Clock, server: Emulator) -> None:
    assert await warnings_of(tmp_path, clock, server, (1,) * 6) == [[]] * 6
    assert "cachedContent" in asked(server)[-1]


async def test_an_explicit_cache_that_has_expired_is_named(tmp_path: Path, clock: Clock, forgetful: Emulator) -> None:
    *_, before, after = await warnings_of(tmp_path, clock, forgetful, (*(1,) * 5, 30))
    assert before == []
    [event] = after
    assert (event.cause, event.reported, event.foreseen) == ("ttl", 0, False)
    assert event.predicted > 3000
    told = (
        r"cachedContents/emulated0001 had expired 1,\d+ s before: 0 tokens came from the cache, [\d,]+ were predicted"
    )
    assert re.fullmatch(told, str(event))


async def test_an_explicit_cache_the_provider_lost_is_named(tmp_path: Path, clock: Clock, forgetful: Emulator) -> None:
    *_, before, after = await warnings_of(tmp_path, clock, forgetful, (1,) * 6, lost=5)
    assert before == []
    told = [(event.cause, event.note) for event in after]
    assert told == [("routing", "the provider no longer knew cachedContents/emulated0001")]


@pytest.mark.moves_prefix(reason="the budget is small, so that there is a rebase")
async def test_a_cache_that_a_rebase_gives_up_is_no_surprise(tmp_path: Path, clock: Clock, forgetful: Emulator) -> None:
    policy = Policy(budget=7000, reply=500)
    heard = await warnings_of(tmp_path, clock, forgetful, (1,) * 14, 300, policy=policy)
    turns = [body for body in asked(forgetful) if "summarise our" not in str(body["contents"][-1])]
    behind = ["cachedContent" in body for body in turns]
    given_up = [n for n in range(1, 14) if behind[n - 1] and not behind[n]]
    assert given_up
    assert not any(heard[n] for n in range(14) if behind[n] or n in given_up)


def _unpriced(body: JsonObject) -> JsonObject:
    """An entry without its time, the reply's number, and what the reply says was read."""
    reply = ("usage", "wire") if body["kind"] == "sent" else ()
    return {key: value for key, value in body.items() if key not in ("at", *reply)}


# Who keeps a cache: what lasts, and what a failed call costs.


def test_a_failed_call_and_a_lost_cache_cost_nothing_but_the_cache() -> None:
    keeper = CacheKeeper(model_info(TARGET))
    body: JsonObject = {"systemInstruction": {"parts": [{"text": "rule " * 9000}]}, "contents": []}
    errands: list[CacheCall] = []
    for number in range(30):
        body = {**body, "contents": [*body["contents"], words("user", "x"), words("model", "y")][:-1]}
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
    body: JsonObject = {"systemInstruction": {"parts": [{"text": "rule " * 9000}]}, "contents": [words("user", "x")]}
    for number in range(20):
        assert keeper.due(body, number * MINUTE) == []
        keeper.answered(Usage(9000))
    assert keeper.plan == CacheStep("none", "nothing was asked yet")


CALL: Any = {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
BACK: Any = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}


def test_what_lasts_ends_before_the_users_latest_words_and_parts_no_call_from_its_response() -> None:
    asked = [words("user", "a"), CALL, BACK, words("model", "b"), words("user", "c"), CALL, BACK]
    assert lasting({"contents": asked}) == {"contents": asked[:4]}
    assert lasting({"contents": asked[:3], "tools": [1]}) == {"tools": [1]}


@pytest.mark.parametrize("target", ["openai:gpt-5", "gemini:gemini-4-argon"])
def test_other_models_have_no_explicit_caches(target: str) -> None:
    with pytest.raises(CallError, match=f"{target} has no explicit caches"):
        transport_for(target, api_key="key", explicit_cache=True)
