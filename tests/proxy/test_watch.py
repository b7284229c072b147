"""An application changes its base URL and nothing else: the same bytes pass, and every loss of the cache is explained."""

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from behind import HEADERS, RULES, Unfinished, Upstream, Watching, body, proxied, watching

from quire import Usage
from quire.audit import Grouping, SentCall, audit, read_calls
from quire.server.app import Running
from quire.server.mend import Mender
from quire.server.proxy import CacheWatcher, Passing, Proxy, ProxyOptions, Watched
from quire.server.service import Redactor, Service
from quire.testing import Cut, Refuse, Slow, emulator
from toolbox import interrupted, run, running, until

pytestmark = [pytest.mark.xdist_group("sdk"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def claude() -> Iterator[Watching]:
    yield from watching("anthropic")


def test_what_is_refused_or_no_request_to_a_model_is_passed_on_and_not_counted(claude: Watching) -> None:
    assert claude.post(body("Hello")).status_code == 200
    refused = claude.post({"model": "claude-opus-5-5"})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")
    assert httpx.get(f"{claude.url}/v1/models", headers=HEADERS).json()["data"]
    assert len(claude.newest(1)) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_loss_is_explained_while_it_happens(claude: Watching, streamed: bool) -> None:
    talk = ["First question.", "An answer.", "Second question.", "More.", "Third."]
    for turn, clock in ((1, "10:00"), (3, "10:00"), (5, "10:01")):
        asked = body(*talk[:turn], system=f"It is 2026-11-15 {clock}. {RULES}")
        sent = {"json": {**asked, "stream": streamed}, "headers": HEADERS}
        with httpx.stream("POST", f"{claude.url}/v1/messages", **sent) as reply:
            assert reply.read()
    first, second, third = claude.newest(3)
    assert (first.loss, second.loss, "reused" in second.line()) == (None, None, True)
    assert second.call.usage.cache_read > 1_000
    assert (third.loss.cause, third.conversation) == ("clock", first.conversation)
    assert "10:00" in third.line()
    assert "Say the time in the newest message" in third.line()
    assert third.usd is not None


def test_every_sdk_works_behind_it_and_its_usage_is_read(tmp_path: Path) -> None:
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
    genai = pytest.importorskip("google.genai")
    log = tmp_path / "log.jsonl"
    for watched in watching("anthropic", log):
        with anthropic.Anthropic(base_url=watched.url, api_key="k") as client:
            client.messages.create(**body("Hello"))
            with client.messages.stream(**body("Hello", "Hi", "Again")) as events:
                events.until_done()
        assert [one.call.provider for one in watched.newest(2)] == ["anthropic"] * 2
    for watched in watching("openai", log):
        for base in (f"{watched.url}/v1", watched.url):
            with openai.OpenAI(base_url=base, api_key="k") as client:
                client.responses.create(model="gpt-5.6", input="Hello", prompt_cache_key="s1")
                with client.responses.create(model="gpt-5.6", input="Hello", stream=True) as events:
                    list(events)
                said = [{"role": "user", "content": "Hello"}]
                how = {"stream": True, "stream_options": {"include_usage": True}}
                with client.chat.completions.create(model="gpt-5.6", messages=said, **how) as events:
                    list(events)
                client.chat.completions.create(model="gpt-5.6", messages=said)
        assert all(one.call.usage for one in watched.newest(8))
    for watched in watching("gemini", log):
        client = genai.Client(api_key="k", http_options={"base_url": watched.url})
        client.models.generate_content(model="gemini-3.8-flash", contents="Hello")
        list(client.models.generate_content_stream(model="gemini-3.8-flash", contents="Hello"))
        client.close()
        assert [one.call.model for one in watched.newest(2)] == ["gemini-3.8-flash"] * 2
        assert all(one.call.usage for one in watched.seen)
    assert audit(read_calls(log)).total.requests == 12
    assert 'k"' not in log.read_text()  # no key is kept


def test_no_piece_of_a_key_that_changes_in_the_head_is_told() -> None:
    keys = ["sk-ant-api03-" + f"{digit}bC4" * 15 for digit in "12"]
    with emulator("anthropic") as server, proxied(server, mender=Mender(), dry_run=True) as proxy:
        for turn, key in enumerate(keys):
            said = ["Hi", "Hello.", "And?"][: 1 + 2 * turn]
            proxy.post(body(*said, system=f"{RULES[:70]} {key} is the key of this session id.\n{RULES}"))
    told = Redactor().text(proxy.seen[-1].line())
    assert "became" in told
    assert "would be" in told
    assert not any(key[13:21] in told or key[-8:] in told for key in keys)


def test_a_provider_that_is_not_there_is_an_error_the_client_can_read() -> None:
    with Proxy("http://me:password@127.0.0.1:9/", CacheWatcher()) as proxy:
        reply = httpx.post(f"{proxy.url}/v1/messages", json=body("Hi"))
    assert reply.status_code == 502
    assert reply.json()["error"]["message"].startswith("http://127.0.0.1:9 could not be reached")


def test_a_provider_that_closes_without_a_word_was_reached_all_the_same() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, Proxy(f"http://127.0.0.1:{server.getsockname()[1]}", CacheWatcher()) as proxy:
        threading.Thread(target=lambda: server.accept()[0].close()).start()
        reply = httpx.post(f"{proxy.url}/v1/messages", json=body("Hi"))
    assert (reply.status_code, "gave no answer" in reply.json()["error"]["message"]) == (502, True)


def test_what_a_service_cuts_off_at_its_end_is_counted(tmp_path: Path) -> None:
    seen = list[Watched]()
    watcher = CacheWatcher(lambda watched: (time.sleep(0.1), seen.append(watched))[1])
    with Upstream(Unfinished()) as to, httpx.Client() as client:
        passing = Passing(ProxyOptions(to=to), watcher)
        with Running(Service(tmp_path / "t.db"), proxies=lambda _: passing) as running:
            asked = client.build_request("POST", f"{running.url}/v1/messages", json=body("Hi"))
            pieces = client.send(asked, stream=True).iter_raw()
            next(pieces)
            running._server.force_exit = True  # as a second Ctrl-C does
    assert [(each.call.usage and each.call.usage.input_total, each.whole) for each in seen] == [(7, False)]


def test_what_fails_in_watching_never_fails_the_application(caplog: pytest.LogCaptureFixture) -> None:
    def broken(watched: Watched) -> None:
        raise RuntimeError("nobody listens")

    with (
        emulator("anthropic", replies=lambda _: Slow("Hello", 0.05)) as server,
        Proxy(server.url, CacheWatcher(broken)) as proxy,
    ):
        assert httpx.post(f"{proxy.url}/v1/messages", json=body("Hi"), headers=HEADERS).status_code == 200
        until(lambda: "nobody listens" in caplog.text)


# Whose loss it is.


def sent(*said: str, at_s: int = 0, read: int = 0, system: str = RULES, **how: Any) -> SentCall:
    used = Usage(3_000 + 100 * len(said), read, 3_000 + 100 * len(said) - read)
    return SentCall("r", "anthropic", "claude-opus-5-5", body(*said, system=system), used, at_s * 1000, **how)


def unmarked_tail(clock: str, read: int, written: int) -> SentCall:
    """A request of which the head alone is marked, and stored."""
    call = sent(*MOVED, system=f"{RULES}{clock}")
    bare = [{**each, "content": each["content"][0]["text"]} for each in call.body["messages"]]
    return msgspec.structs.replace(call, body={**call.body, "messages": bare}, usage=Usage(5_000, read, written))


def without_body(call: SentCall) -> SentCall:
    return msgspec.structs.replace(call, body={})


def offering(call: SentCall, *tools: str) -> SentCall:
    return msgspec.structs.replace(call, body={**call.body, "tools": [{"name": name} for name in tools]})


def local(system: str, *said: str, read: int) -> SentCall:
    """A short request to a server of one's own, which caches to the token."""
    given = [{"role": "system", "content": system}, *({"role": "user", "content": each} for each in said)]
    return SentCall("r", "openai-chat", "smollm2", {"messages": given}, Usage(380 + 30 * len(said), read))


def reordered(*tools: str, given: str) -> SentCall:
    """A request to Gemini whose tools Quire put into another order than the application gave."""
    bodies = [
        {"contents": [{"role": "user", "parts": [{"text": RULES}]}], "tools": [{"functionDeclarations": row}]}
        for row in ([{"name": name} for name in names] for names in (tools, given.split()))
    ]
    return SentCall("r", "gemini", "gemini-2.5-flash", bodies[0], Usage(3_000), given=bodies[1])


def small(call: SentCall) -> SentCall:
    return msgspec.structs.replace(call, model="claude-haiku-4-5")


def headless(call: SentCall) -> SentCall:
    return msgspec.structs.replace(call, body={"messages": call.body["messages"][1:]})


LONG = "What was found in the records. " * 400
MOVED, HI = (LONG, "An answer.", "Second."), ("Hi", "Yes")


@pytest.mark.parametrize(
    ("before", "now", "side", "cause", "confidence"),
    [
        (sent("Hi"), sent("Hi", "Yes", "More", read=3_100), None, "", ""),
        (sent("Hi"), sent("Hi", "Yes", "More", system=RULES + "!"), "client", "growing-system", "certain"),
        (sent("Hi"), sent("Hi", "Yes", "More", at_s=301), "ttl", "ttl", "certain"),
        (sent("Hi"), sent("Hi", "Yes", "More", at_s=60), "provider", "provider", "likely"),
        # What came where nothing of its kind stood moves all behind it.
        (sent("Hi"), offering(sent("Hi", "Yes", "More"), "find"), "client", "tools-changed", "certain"),
        # The application's own tools came or went, in whatever order they were sent on.
        (
            reordered("read", "edit", given="edit read"),
            reordered("read", "edit", "find", given="find edit read"),
            "client",
            "tools-changed",
            "certain",
        ),
        (headless(local("", *HI, read=365)), local("Tea.", *HI, "So", read=3), "client", "system-changed", "certain"),
        # Partly read: what stands in front of the moved byte was; behind it nothing could be.
        (sent(*MOVED), sent(LONG + "?", *MOVED[1:], read=1_700), "client", "edited", "certain"),
        (
            sent(*MOVED),
            sent("In the books stands it. " * 400, *MOVED[1:], read=1_700),
            "client",
            "retrieval",
            "certain",
        ),
        # The clock's new head was read, which another conversation had written: what else could be had no mark behind it.
        (
            unmarked_tail("It is 10:40.", 0, 1_900),
            unmarked_tail("It is 10:41.", 1_900, 0),
            "client",
            "marks-moved",
            "certain",
        ),
        # Not even what the mark in front of the moved byte holds was read: the move is not to blame.
        (sent(*MOVED), sent(LONG + "?", *MOVED[1:], at_s=9), "provider", "provider", "likely"),
        (sent(*MOVED), sent(LONG + "?", *MOVED[1:], at_s=400), "ttl", "ttl", "certain"),
        # What was sent could not be put together again: its rest lies with the provider, and came before the proxy.
        (without_body(sent("Hi")), without_body(sent("Hi", "Yes", "More", at_s=9)), "unknown", "unknown", "unknown"),
        # Below what OpenAI caches, and read all the same: this server caches less, and lost it.
        (local("It is 10:40.", *HI, read=365), local("It is 10:41.", *HI, "So", read=3), "client", "clock", "certain"),
        (local("It is 10:40.", *HI, read=0), local("It is 10:41.", *HI, "So", read=0), None, "", ""),
        # What is too short to be cached could not have been read.
        (small(sent("Hi")), small(sent("Hi", "Yes", "More")), "nobody", "minimum", "certain"),
        # Who reports no figures of a cache has lost nothing.
        (sent("Hi"), sent("Hi", "Yes", "More", at_s=9, tells_cache=False), None, "", ""),
    ],
)
def test_a_loss_is_laid_at_the_right_door(
    before: SentCall, now: SentCall, side: str | None, cause: str, confidence: str
) -> None:
    grouping = Grouping()
    grouping.add(before)
    _, lost = grouping.add(now)
    found = (lost.side, lost.cause, lost.confidence) if lost is not None else (None, "", "")
    assert found == (side, cause, confidence)
    if lost is not None:
        line = Watched(now, grouping.conversations[0], lost, None, lost.side).line()
        assert ("provider (suspected)" if side == "provider" else f"· {side}") in line
        assert (grouping.total.lost > 0) == (cause != "minimum") == ("  lost " in line)


def test_a_byte_that_moved_loses_no_more_than_was_in_the_cache() -> None:
    grouping = Grouping()
    grouping.add(unmarked_tail("It is 10:40.", 0, 1_900))
    _, lost = grouping.add(unmarked_tail("It is 10:41.", 0, 1_900))
    assert lost is not None
    assert (lost.cause, lost.lost) == ("clock", 1_900)


def test_a_request_is_told_in_one_line_whatever_it_is_called() -> None:
    call = msgspec.structs.replace(sent("Hi"), session="a\nstopped", model="m\r\nstopped")
    line = Watched(call, Grouping().add(call)[0], None, None).line()
    assert line == "a stopped · anthropic:m stopped · 3,100 tokens · 0% reused · price not known"


def test_a_request_that_is_tried_again_counts_once(claude: Watching) -> None:
    asked = {**body("Hi"), "stream": True}
    claude.server.next(Cut("word " * 50, after_bytes=900))
    with pytest.raises(httpx.RemoteProtocolError):
        claude.post(asked)
    claude.server.next(Refuse(529))
    assert [claude.post(asked).status_code for _ in "ab"] == [529, 200]
    first, second = claude.newest(2)
    assert [(each.whole, each.retry) for each in (first, second)] == [(False, False), (True, True)]
    assert "tried again" in second.line()
    (row,) = claude.watcher.as_json()["conversations"]
    assert (row["requests"], row["retries"], len(row["requests_seen"])) == (1, 1, 2)
    assert row["requests_seen"][1]["usage"]["cache_read"] > 1_000
    assert json.dumps(row)


def test_conversations_of_long_ago_are_forgotten_and_what_they_came_to_is_not() -> None:
    seen = list[str]()
    watcher = CacheWatcher(lambda watched: seen.append(watched.conversation.name), most=2)
    with emulator("anthropic") as server, Proxy(server.url, watcher) as proxy:
        for spoken in ("1", "2", "3", "2 and more", "1 and more", "3 and more"):
            asked = body(*(f"{word} of {spoken[0]}" for word in spoken.split()))
            assert httpx.post(f"{proxy.url}/v1/messages", json=asked, headers=HEADERS).status_code == 200
    assert seen == [f"conversation {n}" for n in (1, 2, 3, 2, 4, 5)]
    told = watcher.as_json()
    assert [row["name"] for row in told["conversations"]] == ["conversation 5", "conversation 4"]
    assert (told["total"]["conversations"], told["total"]["requests"]) == (5, 6)
    assert len(watcher.grouping.conversations) == 2


def test_a_full_disk_is_said_and_fails_nothing() -> None:
    for watched in watching("anthropic", Path("/dev/full")):
        assert watched.post(body("Hi")).status_code == 200
        assert watched.newest(1)[0].call.usage is not None
        assert "No space left" in watched.watcher.as_json()["failures"][0]


@pytest.mark.parametrize(
    ("half", "kept"), [('{"at": 1794929097872, "request": {"mess', ""), ("A note of mine.", "A note of mine.")]
)
def test_a_line_that_was_half_written_makes_no_other_unreadable(tmp_path: Path, half: str, kept: str) -> None:
    """Its writer was killed, or the disk was full; what Quire has not written stays."""
    log = tmp_path / "log.jsonl"
    for watched in watching("anthropic", log):
        for _ in range(2):
            watched.post(body("Hi"))
        watched.newest(2)
        lines = log.read_text()
        log.write_text(lines + half)
        watched.post(body("Hi", "Yes?", "No."))
        watched.newest(3)
    last = log.read_text().removeprefix(lines + kept)
    assert len(json.loads(last)["request"]["messages"]) == 3


@pytest.mark.parametrize(
    ("model", "money"),
    [("claude-opus-5-5", r"\$0\.\d\d; 0 tokens \(\$0\.00\)"), ("claude-fable-5-2", "price not known; 0 tokens")],
)
def test_the_command_watches_until_it_is_stopped(model: str, money: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with (
        emulator("anthropic") as server,
        running(
            *("proxy", "--to", server.url, "--port", "0", "--log", str(log), "--key-from", "OWN_KEY"),
            OWN_KEY="of-the-proxy\r\n",
        ) as (url, process),
    ):
        secret = "sk-ant-api03-" + "A1b2" * 20
        asked = {**body(f"Hi {secret}"), "model": model}
        assert httpx.post(f"{url}/v1/messages", json=asked, headers=HEADERS).status_code == 200
        assert server.requests[0].headers["x-api-key"] == "of-the-proxy"
        assert server.requests[0].body == asked
        until(lambda: log.exists() and bool(log.read_text()))
        shown, said = interrupted(process)
    assert f"anthropic:{model}" in shown
    assert re.search(rf"stopped after 1 request, [\d,]+ tokens in, {money} could have been read", said), said
    assert secret not in log.read_text()
    assert "Hi [Anthropic key]" in log.read_text()
    assert "1 request in 1 conversation" in run("audit", log)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "api.anthropic.com"), "is no base URL"),
        (("--to", "http://"), "is no base URL"),
        (("--to", "http://[::1"), "is no base URL"),
        (("--to", "http://a:99999"), "is no base URL"),
        (("--to", "https://a/v1?api-version=1"), "is no base URL"),
        (("--to", "ftp://me:password@a"), "'ftp://a' is no base URL"),
        (("--to", "http://localhost:8765/v1"), "is where this proxy listens itself"),
        (("--to", "http://a", "--log", "/nowhere/x"), "nowhere"),
        (("--to", "http://a", "--key-from", "NOT_SET"), "export NOT_SET="),
        (("--to", "http://a", "--key-from", "BROKEN"), "what BROKEN holds cannot be sent as a key"),
    ],
)
def test_a_wrong_call_of_the_command_says_so(words: tuple[str, ...], said: str, warm: Path) -> None:
    env = {**os.environ, "BROKEN": "sk-secret\nsk-other"}
    done = subprocess.run([warm, "proxy", *words], capture_output=True, text=True, timeout=600, env=env)
    assert "sk-" not in done.stderr
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
