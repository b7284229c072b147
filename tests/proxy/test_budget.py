"""Histories that outgrow a budget are fitted, and what was cut the model can look up: the application sees neither."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from behind import HEADERS, Unfinished, Upstream, proxied

from quire import tokens
from quire.audit import SentCall, audit, read_calls
from quire.errors import BudgetError
from quire.fitting import Fitter, fit
from quire.server.mend import RULES, Budget, Mender
from quire.server.proxy import CacheWatcher, Proxy, ProxyOptions, Watched
from quire.testing import Cut, Emulator, emulator
from toolbox import interrupted, running, until

pytestmark = [pytest.mark.xdist_group("sdk"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
BUDGET = 4_000
SECRET = "The harbour master's number is 4711."


_FIND = {"name": "find", "description": "Find.", "parameters": {"type": "object", "properties": {}}}
TOOLS: dict[str, dict[str, Any]] = {
    "anthropic": {"name": "find", "input_schema": {"type": "object"}},
    "openai": {"type": "function", **_FIND},
    "openai-chat": {"type": "function", "function": _FIND},
    "gemini": {"functionDeclarations": [{"name": "find", "description": "Find."}]},
}


def reply(given: dict[str, Any]) -> Any:
    """Recall once, where it is offered; then say what was found."""
    text = json.dumps(given)
    if '"recall"' not in json.dumps(given.get("tools") or []):
        return "Nothing was cut."
    if "Recent Tool Results" in text or "Relevant Conversation" in text:
        return "It is 4711." if "4711" in text.rpartition("Relevant")[2] else "Not found."
    return {"text": "One moment.", "calls": [{"name": "recall", "args": {"query": "number of the harbour master"}}]}


CALL = SentCall("", "openai-chat", "gpt-4.1")


def words(turn: int) -> list[tuple[str, str]]:
    """Long ago something was said; much came since."""
    told = [("user", f"Remember this well. {SECRET}"), ("assistant", "I will remember it.")]
    for number in range(turn):
        asked = f"Question {number}? " + "Something else entirely. " * 60
        told += [("user", asked), ("assistant", f"Answer {number}.")]
    return [*told, ("user", "What is the number of the harbour master?")]


def request(wire: str, turn: int, stream: bool) -> tuple[str, dict[str, Any]]:
    said = words(turn)
    streamed: dict[str, Any] = {"stream": True} if stream else {}
    messages = [{"role": role, "content": text} for role, text in said]
    if wire == "anthropic":
        return "/v1/messages", {"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": messages, **streamed}
    if wire == "openai-chat":
        return "/v1/chat/completions", {"model": "gpt-4.1", "messages": messages, **streamed}
    if wire == "openai":
        items = [{"type": "message", **message} for message in messages]
        return "/v1/responses", {"model": "gpt-4.1", "input": items, "store": False, **streamed}
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[role], "parts": [{"text": text}]} for role, text in said]
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/gemini-2.5-flash:{verb}", {"contents": contents}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Emulator]]:
    claude, openai, gemini = (emulator(name, reply) for name in ("anthropic", "openai", "gemini"))
    with claude, openai, gemini:
        yield {"anthropic": claude, "openai": openai, "openai-chat": openai, "gemini": gemini}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai-chat", "gemini"])
def test_what_was_cut_is_recalled_by_the_proxy_itself(wire: str, stream: bool, servers: dict[str, Emulator]) -> None:
    server = servers[wire]
    with proxied(server, budget=BUDGET) as proxy:
        path, given = request(wire, 2, stream)
        assert "Nothing was cut." in joined(proxy.post(given, path))
        assert server.requests[-1].body == given  # what fits goes on as it came
        path, given = request(wire, 40, stream)
        answer = joined(proxy.post(given, path))
    assert "It is 4711." in answer, answer
    assert "One moment." not in answer
    first, second = server.requests[-2:]
    assert all(each.status == 200 for each in (first, second))
    assert max(first.predicted.total, second.predicted.total) <= BUDGET
    assert [each.mended.rules for each in proxy.seen] == [(), ("fitted",), ("fitted", "recalled")]


def test_the_first_cut_is_where_the_engine_makes_it(servers: dict[str, Emulator]) -> None:
    """Room to look things up is left free once something is cut, and not before."""
    server, cut = servers["openai-chat"], list[tuple[bool, bool]]()
    with proxied(server, budget=BUDGET) as proxy:
        for turn in range(2, 14):
            path, given = request("openai-chat", turn, False)
            given["messages"][-1]["content"] = f"{turn} so far, and what now?"
            assert proxy.post(given, path).status_code == 200
            cut.append((server.requests[-1].body != given, fit(given, BUDGET, "openai-chat:gpt-4.1") != given))
    assert {*cut} == {(False, False), (True, True)}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai-chat", "gemini"])
def test_a_reply_that_repeats_the_requests_tools_names_the_applications_alone(
    wire: str, stream: bool, servers: dict[str, Emulator]
) -> None:
    path, given = request(wire, 40, stream)
    with proxied(servers[wire], budget=BUDGET) as proxy:
        for tools in ([], [TOOLS[wire]]):
            answer = proxy.post({**given, "tools": tools} if tools else given, path)
            assert "It is 4711." in joined(answer)
            assert '"recall"' in json.dumps(servers[wire].requests[-1].body["tools"])
            assert '"recall"' not in answer.text
            if wire == "openai":
                told = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
                replies = [event["response"] for event in told if "response" in event] or [answer.json()]
                assert all((each["tools"], each["tool_choice"]) == (tools, "auto") for each in replies)


@pytest.mark.parametrize("own_tools", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai-chat", "gemini"])
def test_a_model_that_recalls_without_end_stays_in_the_budget_and_answers(wire: str, own_tools: bool) -> None:
    def greedy(given: dict[str, Any]) -> Any:
        may_call = "none" not in json.dumps([given.get("tool_choice"), given.get("toolConfig")]).lower()
        if '"recall"' in json.dumps(given.get("tools") or []) and may_call:
            k = 20 if "Relevant Conversation" in json.dumps(given) else 3
            ways: list[dict[str, Any]] = [{"query": f"Question {number}", "k": k} for number in (1, 2)]
            return {"text": "One moment.", "calls": [{"name": "recall", "args": args} for args in ways]}
        return "Enough."

    with emulator(wire.partition("-")[0], greedy) as server, proxied(server, budget=BUDGET) as proxy:
        path, given = request(wire, 40, False)
        if own_tools:
            given["tools"] = [TOOLS[wire]]
        whole = proxy.post(given, path)
        answer, sent = joined(whole), server.requests
    assert answer == "Enough."
    assert whole.json().get("tool_choice", "auto") == "auto"
    assert 3 <= len(sent) <= 5
    assert "client" not in {each.side for each in proxy.seen}
    assert all(each.status == 200 and each.predicted.total <= BUDGET for each in sent if each.predicted)


@pytest.mark.parametrize(
    ("wire", "count"), [("anthropic", 3040), ("openai", 3650), ("openai-chat", 3650), ("gemini", 3170)]
)
def test_a_newest_part_that_leaves_no_room_to_recall_is_fitted_without_it(wire: str, count: int) -> None:
    """What is left free for what the model looks up is given up first: the budget is for the application."""
    path, given = request(wire, 40, False)
    long = json.loads(json.dumps(given).replace("What is the number of", "Which of these is it? " + "word " * count))
    with emulator(wire.partition("-")[0], reply) as server, proxied(server, budget=BUDGET) as proxy:
        for asked, answer in ((given, "It is 4711."), (long, "Nothing was cut."), (given, "It is 4711.")):
            assert joined(proxy.post(asked, path)) == answer
        assert all(each.predicted and BUDGET * 0.3 < each.predicted.total <= BUDGET for each in server.requests)
    assert [each.mended.rules for each in proxy.seen].count(("fitted",)) == 3


@pytest.mark.moves_prefix(reason="the history is cut")
@pytest.mark.parametrize("size", [2900, 3000, 3600])
def test_what_the_provider_counted_before_the_first_cut_holds_behind_it(size: int) -> None:
    """It counts more than we do: what leaves room to recall by our count alone does not fit."""
    budget, counted, messages = Budget(20_000), dict[bytes, int](), list[dict[str, str]]()
    for turn in range(11):
        said = f"{turn} " + "river stone amber window " * (size if turn == 10 else 60)
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": "Well. " * 100}]
        body = {"model": "gpt-4.1", "messages": messages[:-1]}
        try:
            fitted = budget.fit(body, "c", CALL, {}, b"%d" % turn, counted)
        except BudgetError:
            break  # which is said
        counted[b"%d" % turn] = int(1.6 * tokens.count(json.dumps(fitted.body if fitted else body), CALL.target).tokens)
    assert max(counted.values()) <= 20_000


@pytest.mark.moves_prefix(reason="the history is cut")
def test_what_is_left_free_to_recall_is_a_share_of_what_the_messages_may_take(servers: dict[str, Emulator]) -> None:
    """Where instructions and tools take most of a budget, an eighth of it would be most of what is left."""
    messages, used = [{"role": "system", "content": "Mind the tides. " * 700}], list[int]()
    with proxied(servers["openai-chat"], budget=BUDGET) as proxy:
        for turn in range(30):
            messages += [{"role": "user", "content": f"{turn}? " + "amber window " * 15}]
            proxy.post({"model": "gpt-4.1", "messages": messages}, "/v1/chat/completions")
            messages += [{"role": "assistant", "content": "Well. " * 15}]
            sent = servers["openai-chat"].requests[-1]
            used += [sent.predicted.total] if sent.predicted and "tools" in sent.body else []
    assert len(used) > 10
    assert BUDGET - BUDGET / 8 < max(used) < BUDGET - 100


def test_a_fitted_request_that_the_provider_would_refuse_is_not_sent(
    servers: dict[str, Emulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in the engine is not the application's: its own request goes on, and what was wrong is said."""
    path, given = request("openai-chat", 40, False)
    without_calls = [{"role": "tool", "tool_call_id": "x", "content": "It is 4711."}]
    monkeypatch.setattr(Fitter, "fit", lambda fitter, body: {**body, "messages": without_calls})
    with proxied(servers["openai-chat"], budget=BUDGET) as proxy:
        answer = proxy.post(given, path)
        assert "fitted into the budget, it would break B2." in proxy.watcher.failures[-1]
    assert joined(answer) == "Nothing was cut."
    assert servers["openai-chat"].requests[-1].body == given


def test_what_cannot_be_fitted_is_mended_all_the_same(servers: dict[str, Emulator]) -> None:
    path, given = request("anthropic", 3, False)
    given["system"] = "Mind the tides. " * 2_000
    with proxied(servers["anthropic"], budget=BUDGET, mender=Mender(("marks",))) as proxy:
        answer = proxy.post(given, path)
        assert "BudgetError" in proxy.watcher.failures[-1]
    assert joined(answer) == "Nothing was cut."
    assert '"cache_control"' in json.dumps(servers["anthropic"].requests[-1].body)


@pytest.mark.moves_prefix(reason="the history is cut")
def test_branches_that_are_asked_for_at_once_hold_nothing_of_each_other() -> None:
    def branch(name: str) -> None:
        _, given = request("openai-chat", 40, False)
        for step in range(4):
            for role in ("user", "assistant"):
                given["messages"].append({"role": role, "content": f"{step}: " + f"branch-{name} " * 100})
            given["messages"].append({"role": "user", "content": f"Go on with branch-{name}."})
            assert proxy.post(given, "/v1/chat/completions", **{"x-session-id": "one"}).status_code == 200

    names = "abcdef"
    with (
        emulator("openai", lambda given: "Well.") as server,
        proxied(server, budget=BUDGET) as proxy,
        ThreadPoolExecutor(len(names)) as threads,
    ):
        list(threads.map(branch, names))
        sent = server.requests
    assert [{name for name in names if f"branch-{name}" in json.dumps(each.body)} for each in sent] == [
        {each.body["messages"][-1]["content"][-2]} for each in sent
    ]
    assert all(each.predicted and each.predicted.total <= BUDGET for each in sent)


def test_a_request_that_goes_on_with_what_the_provider_holds_is_said_to_be_watched_alone(
    servers: dict[str, Emulator],
) -> None:
    seen = list[Watched]()
    path, given = request("openai", 1, False)
    for options in ({"budget": BUDGET}, {"ask_provider": True}):
        with proxied(servers["openai"], **options) as proxy:
            first = proxy.post({**given, "store": True}, path).json()
            proxy.post({**given, "previous_response_id": first["id"]}, path)
        seen += proxy.seen
    assert ["not mended: the provider holds" in each.line() for each in seen] == [False, True, False, False]


def test_a_tool_of_the_applications_own_that_is_called_recall_is_its_own(servers: dict[str, Emulator]) -> None:
    path, given = request("anthropic", 40, False)
    given["tools"] = [{"name": "recall", "input_schema": {"type": "object"}}]
    with proxied(servers["anthropic"], budget=BUDGET) as proxy:
        answer = proxy.post(given, path).json()
    assert [block["name"] for block in answer["content"] if block["type"] == "tool_use"] == ["recall"]


def test_a_reply_that_breaks_off_before_it_is_handed_on_is_said_to_and_counts(servers: dict[str, Emulator]) -> None:
    """The application has seen nothing of it, so it can be told what happened, and may ask again."""
    server = servers["anthropic"]
    path, given = request("anthropic", 40, True)
    with proxied(server, budget=BUDGET) as proxy:
        server.next(Cut("word " * 50, after_bytes=900))
        answer = proxy.post(given, path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "proxy_error")
        assert f"{server.url} broke off" in answer.json()["error"]["message"]
        assert "It is 4711." in joined(proxy.post(given, path))
    assert [each.whole for each in proxy.seen] == [False, True, True]
    assert all(each.usd for each in proxy.seen)


def test_an_application_that_goes_away_before_a_fitted_reply_is_whole_has_paid_for_it() -> None:
    path, given = request("anthropic", 40, True)
    seen = list[Watched]()
    upstream = Unfinished()
    with Upstream(upstream) as url, Proxy(ProxyOptions(to=url, budget=BUDGET), CacheWatcher(seen.append)) as proxy:
        said = httpx.Request("POST", f"{proxy.url}{path}", json=given, headers=HEADERS)
        head = "".join(f"{name}: {value}\r\n" for name, value in said.headers.items())
        with socket.create_connection((said.url.host, said.url.port or 0)) as application:
            application.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + said.content)
            until(upstream.begun.is_set)
        until(lambda: seen)
    assert [(each.call.usage and each.call.usage.input_total, each.whole) for each in seen] == [(7, False)]


def test_gemini_takes_a_tool_that_stands_alone(servers: dict[str, Emulator]) -> None:
    path, given = request("gemini", 40, False)
    with proxied(servers["gemini"], budget=BUDGET) as proxy:
        assert "It is 4711." in joined(proxy.post({**given, "tools": TOOLS["gemini"]}, path))


@pytest.mark.parametrize(
    ("wire", "own"),
    [
        ("gemini", {"tools": [{"googleSearch": {}}]}),
        ("openai-chat", {"functions": [{"name": "find", "parameters": {}}]}),
    ],
)
def test_recall_is_not_offered_where_the_provider_takes_no_such_tool_beside_what_is_there(
    wire: str, own: dict[str, Any], servers: dict[str, Emulator]
) -> None:
    path, given = request(wire, 40, False)
    with proxied(servers[wire], budget=BUDGET) as proxy:
        assert joined(proxy.post({**given, **own}, path)) == "Nothing was cut."
    sent = servers[wire].requests[-1]
    assert sent.predicted is not None
    assert BUDGET / 4 < sent.predicted.total <= BUDGET
    assert {name: sent.body.get(name) for name in ("tools", "functions")} == {"tools": None, "functions": None, **own}


def test_recall_is_not_offered_beside_a_cache_of_gemini(servers: dict[str, Emulator]) -> None:
    path, given = request("gemini", 40, False)
    held = {"role": "user", "parts": [{"text": "The tides of the harbour. " * 400}]}
    with proxied(servers["gemini"], budget=BUDGET) as proxy:
        made = {"model": "models/gemini-2.5-flash", "contents": [held]}
        cache = proxy.post(made, "/v1beta/cachedContents").json()
        assert joined(proxy.post({**given, "cachedContent": cache["name"]}, path)) == "Nothing was cut."
    assert len(servers["gemini"].requests[-1].body["contents"]) < len(given["contents"])


def test_what_a_subscription_pays_for_is_fitted_where_that_is_asked_for(servers: dict[str, Emulator]) -> None:
    url = servers["anthropic"].url
    for words, line in (((), "not mended: a subscription"), (("--mend-subscriptions",), "mended: fitted")):
        with running("proxy", "--to", url, "--port", "0", "--budget", str(BUDGET), *words) as (proxy, process):
            path, given = request("anthropic", 40, False)
            headers = {**HEADERS, "authorization": "Bearer sk-ant-oat01-x"}
            answer = httpx.post(f"{proxy}{path}", json=given, headers=headers)
            assert joined(answer) == ("It is 4711." if words else "Nothing was cut.")
            assert line in interrupted(process)[0]


def joined(answer: httpx.Response) -> str:
    """All text of a reply; a stream's pieces put together."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    values = [json.loads(line) for line in lines] or [answer.json()]
    return "".join(text for value in values for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict) and not str(value.get("type", "")).endswith((".done", "completed")):
        for name, each in value.items():
            if name in ("text", "content", "delta") and isinstance(each, str):
                yield each
            elif not isinstance(each, str):
                yield from _texts(each)


@pytest.mark.parametrize("rules", [(), tuple(RULES)], ids=["fit", "mend"])
def test_a_conversation_stays_one_when_it_is_fitted_and_that_loss_is_quires(
    rules: tuple[str, ...], servers: dict[str, Emulator], tmp_path: Path
) -> None:
    """Where the application's own head moves too, and nothing but the budget is asked for, the loss is its own."""
    log, mender = tmp_path / "log.jsonl", Mender(rules) if rules else None
    with proxied(servers["anthropic"], log, budget=BUDGET, mender=mender) as proxy:
        for turn in (8, 9, 30, 31):
            path, given = request("anthropic", turn, False)
            tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("find", "open")]
            head = {"type": "text", "text": f"It is 12:{turn:02}:00.", "cache_control": {"type": "ephemeral"}}
            given |= {"system": [head], "tools": tools[:: 1 if turn % 2 else -1]}
            assert proxy.post(given, path).status_code == 200
    assert len({each.conversation.name for each in proxy.seen}) == 1
    [audited] = audit(read_calls(log)).conversations
    losses = [each.loss for each in proxy.seen if each.loss is not None]
    [fitted] = [loss for loss in losses if "recall" in loss.note]
    assert fitted.side == ("quire" if rules else "client")
    assert [each.cause for each in audited.verdicts] == [loss.cause for loss in losses]
