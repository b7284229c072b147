"""Each cause is planted into real-shaped conversations at different places, and named; where none is, none is named."""

import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import shared_data
from quire import providers
from quire.audit import SentCall, audit, read_calls
from quire.errors import QuireError
from quire.providers.simulate import Simulator
from quire.values import Usage
from toolbox import invoke, run

MODEL = "claude-opus-5-5"
# Each cause at twenty places; a few of them in the usual run.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
Body = dict[str, Any]
WORDS = "harbour ledger copper window thistle orbit lantern marble saddle anchor velvet cinder meadow cobalt".split()


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def healthy(seed: int, turns: int = 9) -> list[tuple[int, Body]]:
    """Requests of a coding agent's shape, each extending the one before, marked, a minute apart."""
    rng = random.Random(seed)
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
    tools = [{"name": name, "description": words(rng, 40), "input_schema": schema} for name in ("read", "edit", "grep")]
    system = [{"type": "text", "text": f"You help with a project. {words(rng, 900)}"}]
    messages: list[Body] = []
    out = []
    for turn in range(turns):
        messages.append({"role": "user", "content": [{"type": "text", "text": f"Task {turn}: {words(rng, 60)}"}]})
        use = {
            "type": "tool_use",
            "id": f"toolu_{seed}_{turn}",
            "name": "read",
            "input": {"path": f"src/{turn}.py", "limit": 9},
        }
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": words(rng, 250)}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        body = {
            "model": MODEL,
            "max_tokens": 500,
            "system": system,
            "tools": tools,
            "messages": json.loads(json.dumps(messages)),
        }
        out.append((1_794_000_000_000 + turn * 60_000, body))
        messages.append({"role": "assistant", "content": [{"type": "text", "text": words(rng, 30)}]})
    return out


@functools.cache
def recorded_work() -> list[Body]:
    """A real coding session's messages as Anthropic has them."""
    (session,) = map(json.loads, (shared_data("traces") / "pi_large_session.jsonl").read_text().splitlines())
    made: list[Body] = providers.export("anthropic", providers.import_("openai-chat", session))
    out: list[Body] = []
    for message in made:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if out and out[-1]["role"] == message["role"]:
            out[-1]["content"] = [*out[-1]["content"], *blocks]
        else:
            out.append({"role": message["role"], "content": blocks})
    return out


def real(seed: int) -> list[tuple[int, Body]]:
    """Nine requests of a real session, from a place in it: each goes on with the four messages that came next."""
    messages, head = recorded_work(), healthy(seed, 1)[0][1]
    users = [at for at, each in enumerate(messages) if each["role"] == "user" and each["content"][0]["type"] == "text"]
    # Where enough is said that losing it is a loss.
    users = [at for at in users if len(messages) > at + 40 and len(json.dumps(messages[at : at + 20])) > 12_000]
    start = users[seed * 7 % len(users)]
    out = []
    for turn in range(9):
        body = {**head, "messages": json.loads(json.dumps(messages[start : start + 3 + 4 * turn]))}
        out.append((1_794_000_000_000 + turn * 60_000, body))
    return out


def marked(body: Body) -> Body:
    """The body with marks at the end of the system prompt and of the newest message."""
    copied: Body = json.loads(json.dumps(body))
    copied["system"][-1]["cache_control"] = {"type": "ephemeral"}
    if copied.pop("tail", True):
        copied["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return copied


def played(requests: list[tuple[int, Body]], session: str = "") -> list[SentCall]:
    """The requests with the usage that the provider's cache would report for them."""
    simulators: dict[str, Simulator] = {}
    calls = []
    for place, (at, body) in enumerate(requests):
        # The simulation compares JSON, a provider the text that it is written as.
        text = [{**tool, "description": json.dumps(tool)} for tool in body["tools"]]
        simulator = simulators.setdefault(body["model"], Simulator(f"anthropic:{body['model']}"))
        found = simulator.step(at, {**body, "tools": text})
        usage = Usage(found.total, found.read, found.write_5m, found.write_1h, output=20)
        calls.append(SentCall(f"log:{place}", "anthropic", body["model"], body, usage, at, session))
    return calls


# What is planted from the request `at` on: each changes the bodies of a healthy conversation.


def each_body(change: Callable[[Body, int, random.Random], None], at_least: int = 0) -> Callable[..., Any]:
    def plant(requests: list[tuple[int, Body]], at: int, rng: random.Random) -> list[tuple[int, Body]]:
        for place, (_, body) in enumerate(requests):
            if place >= max(at, at_least):
                change(body, place, rng)
        return requests

    return plant


def clock(body: Body, place: int, rng: random.Random) -> None:
    form = "The time is 2026-11-15 {:02}:{:02}:{:02}."
    body["system"] = [
        {"type": "text", "text": form.format(place + 1, place * 7 % 60, place * 13 % 60)},
        *body["system"],
    ]


def random_id(body: Body, place: int, rng: random.Random) -> None:
    id = f"{rng.getrandbits(128):032x}"
    body["system"] = [{"type": "text", "text": f"Session {id}. {body['system'][0]['text']}"}]


def reordered(body: Body, place: int, rng: random.Random) -> None:
    body["tools"] = body["tools"][place % 3 :] + body["tools"][: place % 3]


def toggled(body: Body, place: int, rng: random.Random) -> None:
    body["tools"] = body["tools"][: 2 + place % 2]


def key_order(body: Body, place: int, rng: random.Random) -> None:
    turn = dict(body["tools"][0])
    body["tools"] = [turn if place % 2 else dict(reversed(turn.items())), *body["tools"][1:]]


def trimmed(body: Body, place: int, rng: random.Random) -> None:
    body["messages"] = body["messages"][4 * max(1, place - 2) :]


def retrieved(body: Body, place: int, rng: random.Random) -> None:
    context = {"role": "user", "content": [{"type": "text", "text": f"Context: {words(rng, 120)}"}]}
    body["messages"] = [context, *body["messages"]]


def growing(body: Body, place: int, rng: random.Random) -> None:
    more = " ".join(f"Fact {n}: {WORDS[n]}." for n in range(place))
    body["system"] = [{"type": "text", "text": body["system"][0]["text"] + more}]


def edited(body: Body, place: int, rng: random.Random) -> None:
    body["messages"][5 if len(body["messages"]) > 8 else -1]["content"] = [{"type": "text", "text": words(rng, 40)}]


def expire(requests: list[tuple[int, Body]], at: int, rng: random.Random) -> list[tuple[int, Body]]:
    return [(time + (1_000_000 if place >= at else 0), body) for place, (time, body) in enumerate(requests)]


def switch_model(requests: list[tuple[int, Body]], at: int, rng: random.Random) -> list[tuple[int, Body]]:
    for place, (_, body) in enumerate(requests):
        body["model"] = MODEL if place < at else "claude-sonnet-4-5"
    return requests


def compact(requests: list[tuple[int, Body]], at: int, rng: random.Random) -> list[tuple[int, Body]]:
    summary = {"role": "user", "content": [{"type": "text", "text": f"So far: {words(rng, 80)}"}]}
    at = max(at, 5)
    gone = len(requests[at][1]["messages"]) - 11
    for _, body in requests[at:]:
        body["messages"] = [summary, *body["messages"][gone:]]
    return requests


def unpaired(requests: list[tuple[int, Body]], at: int, rng: random.Random) -> list[tuple[int, Body]]:
    """A call that the user interrupted: sent without its result, which is put in later."""
    late = {"role": "user", "content": [{"type": "text", "text": "Stop, do something else."}]}
    at = min(at, 4)
    answers = [n for n, each in enumerate(requests[at][1]["messages"]) if each["content"][0]["type"] == "tool_result"]
    place = answers[-1]
    for _, body in requests[at:-1]:
        body["messages"][place] = late
    requests[-1][1]["messages"].insert(place + 1, late)
    return requests


def thinking(body: Body, place: int, rng: random.Random) -> None:
    body["thinking"] = {"type": "adaptive"} if place % 2 else {"type": "disabled"}


def minimum(requests: list[tuple[int, Body]], at: int, rng: random.Random) -> list[tuple[int, Body]]:
    """Requests to a model that caches nothing below 4,096 tokens."""
    short, system = requests[:3], [{"type": "text", "text": words(rng, 600)}]
    for _, body in short:
        body |= {"model": "claude-opus-4-6", "system": system}
        for block in (block for message in body["messages"] for block in message["content"]):
            block |= {key: block[key][:200] for key in ("text", "content") if isinstance(block.get(key), str)}
    return short


def id_in_a_tool(body: Body, place: int, rng: random.Random) -> None:
    first = body["tools"][0]
    told = f"{first['description']} (run {rng.getrandbits(64):016x})"
    body["tools"] = [{**first, "description": told}, *body["tools"][1:]]


def fetched(body: Body, place: int, rng: random.Random) -> None:
    """What was retrieved stands in the system prompt."""
    body["system"] = [*body["system"], {"type": "text", "text": f"Relevant documents:\n{words(rng, 150)}"}]


def marks_left(body: Body, place: int, rng: random.Random) -> None:
    """The mark of the newest message is forgotten."""
    body["tail"] = False


PLANTS: dict[str, Callable[..., Any]] = {
    "clock": each_body(clock),
    "random-id": each_body(random_id),
    "tools-reordered": each_body(reordered),
    "tools-changed": each_body(toggled),
    "key-order": each_body(key_order),
    "trimmed": each_body(trimmed, 3),
    "retrieval": each_body(retrieved),
    "growing-system": each_body(growing),
    "edited": each_body(edited, 3),
    "ttl": expire,
    "model": switch_model,
    "compaction": compact,
    "unpaired": unpaired,
    "settings": each_body(thinking),
    "minimum": minimum,
    "marks-moved": each_body(marks_left),
    "random-id in a tool": each_body(id_in_a_tool),
    "retrieval in the system prompt": each_body(fetched),
}


def causes_of(requests: list[tuple[int, Body]]) -> list[str]:
    report = audit(played([(at, marked(body)) for at, body in requests]))
    return [found.cause for conversation in report.conversations for found in conversation.verdicts]


def named_right(cause: str, requests: list[tuple[int, Body]], seed: int) -> bool:
    named = causes_of(PLANTS[cause](requests, 2 + seed % 6, random.Random(seed)))
    cause = cause.split(" ")[0]
    # Where it is planted first, something comes that was not there: that is a change of its own.
    return cause in named and set(named[1:]) <= {cause}


@pytest.mark.parametrize("cause", PLANTS)
def test_a_planted_cause_is_named_wherever_it_stands(cause: str) -> None:
    seeds = range(20) if THOROUGH else range(0, 20, 3)
    right = sum(named_right(cause, healthy(seed), seed) for seed in seeds)
    assert right >= 0.95 * len(seeds)


@pytest.mark.parametrize("cause", PLANTS)
def test_a_cause_planted_into_a_real_session_is_named(cause: str) -> None:
    seeds = range(20) if THOROUGH else range(0, 20, 7)
    right = [seed for seed in seeds if named_right(cause, real(seed), seed)]
    assert len(right) >= 0.95 * len(seeds), sorted({*seeds} - {*right})


HEADS = {
    "clock": ("Time now is 02.32.23 PM UTC", "Time now is 02.34.16 PM UTC"),
    "clock, a date": ("Es ist der 15.11.2026.", "Es ist der 16.11.2026."),
    "random-id": ("nonce=t67eUxWoD1", "nonce=QULkgtCTpJ"),
    "random-id in a folder": ("Folder: /tmp/agent-x7k2m9qa/work", "Folder: /tmp/agent-p3v8t1zc/work"),
    "growing-system": ("Facts:\n- One.\nBe kind.", "Facts:\n- One.\n- Two.\nBe kind."),
    "retrieval": (f"Memories:\n{'one day of rain ' * 20}", f"Memories:\n{'the sun came out ' * 25}"),
    "system-changed": ("Answer in one sentence.", "Answer at length."),
}


@pytest.mark.parametrize("cause", HEADS)
@pytest.mark.parametrize("rest", ["", words(random.Random(4), 900)], ids=["last", "first"])
def test_what_moves_in_a_head_is_told_by_its_words_at_either_end_of_it(cause: str, rest: str) -> None:
    said = [{"role": "user", "content": text} for text in ("Hi", "And?", "Then?")]
    bodies = [{"instructions": f"Work. {text}{rest}", "input": said} for text in HEADS[cause]]
    assert _cause_of("openai", *bodies) == cause.split(",")[0].split(" ")[0]


def test_what_moves_in_tools_that_stand_in_one_and_calls_that_stay_open_are_told() -> None:
    tools = [{"name": name, "description": words(random.Random(1), 9)} for name in ("read", "edit", "grep")]
    said = [{"role": "user", "parts": [{"text": text}]} for text in ("Hi", "Stop.", "Go on.", "And then?")]
    asked = {"contents": said}
    rows = (tools, tools[::-1], tools[:2])
    first, turned, fewer = ({**asked, "tools": [{"functionDeclarations": row}]} for row in rows)
    assert _cause_of("gemini", first, turned) == "tools-reordered"
    assert _cause_of("gemini", first, fewer) == "tools-changed"
    # A call that nothing answers, before and after: what was changed is the message behind it.
    call = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}
    result = {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "42"}}}]}
    open_ = {"contents": [said[0], call, said[1], said[3]]}
    assert _cause_of("gemini", open_, {"contents": [said[0], call, said[2], said[3]]}) == "edited"
    assert _cause_of("gemini", open_, {"contents": [said[0], call, result, *said[1:]]}) == "unpaired"


def test_a_text_alone_and_as_the_one_block_of_a_list_are_the_same() -> None:
    """Clients mark the newest message, which needs a block, and write it as plain text once it is older."""
    system, plain = "Work.", [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]
    first = {"system": [{"type": "text", "text": system}], "messages": blocks}
    second = {"system": system, "messages": [*plain, {"role": "user", "content": "And?"}]}
    assert _cause_of("anthropic", first, second, pause_ms=600_000) == "ttl"
    asked = {"input": "Hi", "instructions": system}
    assert _cause_of("openai", asked, {**asked, "input": plain}, pause_ms=10**9) == "ttl"


def _cause_of(provider: str, *bodies: Body, pause_ms: int = 1) -> str:
    """Why the second of two requests read nothing."""
    model = {"openai": "gpt-5.4", "gemini": "gemini-3.8-flash", "anthropic": MODEL}[provider]
    sent = [(pause_ms * turn, body) for turn, body in enumerate(bodies)]
    calls = [SentCall(f"log:{at}", provider, model, body, Usage(9_000), at, "s") for at, body in sent]
    (found,) = [found for each in audit(calls).conversations for found in each.verdicts]
    return found.cause


def test_marks_that_are_missing_are_named() -> None:
    calls = played([(at, body) for at, body in healthy(1)])
    found = [found.cause for each in audit(calls).conversations for found in each.verdicts]
    assert set(found) == {"marks-absent"}


def test_where_nothing_is_planted_nothing_is_named() -> None:
    for seed in range(20):
        assert causes_of(healthy(seed, 5 + seed % 5)) == []
        if THOROUGH or seed % 7 == 0:
            assert causes_of(real(seed)) == []


# The files that are read, and what is told of them.


def recorded(place: Path, calls: list[SentCall], **about: Any) -> Path:
    """Calls as a log keeps them, a line each with the reply's usage."""
    lines = []
    for call in calls:
        assert call.usage is not None
        used = call.usage
        usage = {
            "input_tokens": used.input_total - used.cache_read - used.cache_write_5m,
            "cache_read_input_tokens": used.cache_read,
            "cache_creation_input_tokens": used.cache_write_5m,
            "output_tokens": used.output,
        }
        line = {"request": call.body, "reply": {"usage": usage}, "at": call.at_ms, "host": "api.anthropic.com"}
        lines.append(json.dumps({**line, **about}))
    place.write_text("\n".join(lines))
    return place


def test_the_command_names_the_cause_the_place_and_the_money(tmp_path: Path) -> None:
    planted = PLANTS["clock"](healthy(3), 2, random.Random(3))
    log = recorded(tmp_path / "log.jsonl", played([(at, marked(body)) for at, body in planted]))
    shown = run("audit", log)
    assert "9 requests in 1 conversation" in shown
    assert "clock: a date or time stands in the head. Say the time in the newest message" in shown
    report = json.loads(run("audit", log, "--json"))
    (cause, *_) = report["causes"]
    assert cause["cause"] == "clock"
    assert cause["lost_usd"] > 0
    assert report["total"]["reuse"] < 0.9
    first = report["conversations"][0]["losses"][-1]
    assert first["confidence"] == "certain"
    assert "2026-11-15" in first["note"]
    invoke("audit", log, "--fail-under", "90", code=1)
    invoke("audit", log, "--fail-under", "1", "--top", "0")


def test_har_files_and_sessions_of_clients_are_read(tmp_path: Path) -> None:
    calls = played([(at, marked(body)) for at, body in healthy(4)])
    entries = [
        {
            "startedDateTime": "2026-11-15T10:00:00Z",
            "request": {"url": "https://api.anthropic.com/v1/messages", "postData": {"text": json.dumps(call.body)}},
            "response": {"status": 200, "content": {"text": json.dumps({"usage": {"input_tokens": 5}})}},
        }
        for call in calls
    ]
    har = tmp_path / "a.har"
    har.write_text(json.dumps({"log": {"entries": entries}}))
    assert [call.provider for call in read_calls(har)] == ["anthropic"] * 9
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 40_000,
        "output_tokens": 5,
    }
    reply = {
        "type": "assistant",
        "sessionId": "s",
        "uuid": "u",
        "message": {"id": "m1", "role": "assistant", "content": [], "model": MODEL, "usage": usage},
    }
    later = {**reply, "uuid": "w", "timestamp": "2026-11-15T12:00:00Z", "message": {**reply["message"], "id": "m2"}}
    again = {**reply, "uuid": "v", "timestamp": "2026-11-15T10:00:01Z"}
    lines = [{**reply, "timestamp": "2026-11-15T10:00:00Z"}, again, later]
    store = tmp_path / "session.jsonl"
    store.write_text("\n".join(map(json.dumps, lines)))
    report = audit(read_calls(store))
    assert report.total.requests == 2  # one reply in two lines counts once
    assert [found.cause for found in report.conversations[0].verdicts] == ["ttl"]
    assert not report.conversations[0].bodies


def test_a_title_asked_for_with_the_users_own_words_is_no_loss() -> None:
    calls = played([(at, marked(body)) for at, body in healthy(5)], "s")
    asked = json.loads(json.dumps(calls[0].body))
    asked |= {"system": [{"type": "text", "text": words(random.Random(1), 900)}], "tools": []}
    asked["messages"] = asked["messages"][:1]
    title = SentCall("log:t", "anthropic", MODEL, asked, Usage(2_000), calls[0].at_ms + 1, "s")
    report = audit([calls[0], title, *calls[1:]])
    assert len(report.conversations) == 2
    assert report.total.lost == 0


def test_side_questions_and_helpers_stand_apart() -> None:
    main = played([(at, marked(body)) for at, body in healthy(5)], "s")
    title = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "Give this talk a title."}]}
    side = SentCall("log:t", "anthropic", MODEL, title, Usage(2_000), main[2].at_ms, "s")
    report = audit([*main[:3], side, *main[3:]])
    assert sorted(each.kind for each in report.conversations) == ["main", "side"]
    assert report.total.lost == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "begins with 'hello'"),
        ('{"a": 1}', "begins with the fields a, which nothing known here begins with"),
        ('{"messages": []}\n{"b": 2}', "line 2, column 1: x.jsonl holds the fields b, no request"),
        ("[]", "begins with a list, which nothing known here begins with"),
    ],
)
def test_what_is_no_record_of_requests_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    done = invoke_error("audit", tmp_path / "x.jsonl")
    assert said in str(done)
    assert done.hint


def invoke_error(*words: object) -> Any:
    with pytest.raises(QuireError) as raised:
        run(*words)
    return raised.value


def test_without_a_path_the_stores_in_the_home_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no sessions" in str(invoke_error("audit"))
    store = tmp_path / ".claude" / "projects" / "p"
    store.mkdir(parents=True)
    usage = {"input_tokens": 10, "output_tokens": 5}
    said = {"id": "m", "role": "assistant", "content": [], "model": MODEL, "usage": usage}
    reply = {"type": "assistant", "sessionId": "s", "uuid": "u", "message": said}
    (store / "s.jsonl").write_text(json.dumps(reply))
    done = invoke("audit")
    assert "1 request in 1 conversation" in done.stdout
    assert "reading Claude Code" in done.stderr
