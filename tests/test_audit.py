"""Each cause is planted into conversations on every wire, each time otherwise, and named; where none is, none is named."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import planted
from planted import PLANTS, WIRES, Body, conversation, played, words, wrong
from quire import QuireError, Usage
from quire.audit import SentCall, audit, read_calls
from quire.audit.first_difference import KnownUnits
from quire.providers.wires import wire_of
from toolbox import invoke, run

MODEL = "claude-opus-5-5"
# Each cause twenty times over all wires, or on each of them. QUIRE_PLANTS draws others.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
SEED = os.environ.get("QUIRE_PLANTS", "1")


@pytest.mark.parametrize("cause", PLANTS)
def test_a_planted_cause_is_named_on_every_wire_wherever_it_stands(cause: str) -> None:
    count = 20 if THOROUGH else 1
    wires = planted.ELSEWHERE.get(cause, tuple(WIRES))
    found = {(wire, real): wrong(count, SEED, wire, cause, real) for wire in wires for real in (False, True)}
    assert sum(map(len, found.values())) <= 0.05 * count * len(found), found
    if THOROUGH:
        assert {key: each for key, each in found.items() if len(each) > 0.05 * count} == {}


@pytest.mark.parametrize("wire", WIRES)
def test_where_nothing_is_planted_nothing_is_named(wire: str) -> None:
    for n in range(20 if THOROUGH else 8):
        assert planted.named(f"{SEED}-{n}", wire, real=bool(n % 2)) == []


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
    held = {"contents": first["contents"], "cachedContent": "cachedContents/a"}
    assert _cause_of("gemini", held, {**held, "cachedContent": "cachedContents/b"}) == "settings"
    assert _cause_of("gemini", {"contents": first["contents"]}, held) == "settings"
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    plain = {"messages": [{"role": "system", "content": "Work."}, {"role": "user", "content": "Hi"}]}
    formed = {**plain, "response_format": form}
    for change in ((plain, formed), (formed, plain)):
        assert _cause_of("openai", *change) == "settings"
    # A call that nothing answers, before and after: what was changed is the message behind it.
    call = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}
    result = {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "42"}}}]}
    open_ = {"contents": [said[0], call, said[1], said[3]]}
    assert _cause_of("gemini", open_, {"contents": [said[0], call, said[2], said[3]]}) == "edited"
    assert _cause_of("gemini", open_, {"contents": [said[0], call, result, *said[1:]]}) == "unpaired"


@pytest.mark.parametrize(("field", "role"), [("messages", "system"), ("input", "developer")])
def test_an_instruction_behind_the_first_message_is_part_of_the_conversation(field: str, role: str) -> None:
    said: list[Body] = [
        {"role": who, "content": text} for who, text in ((role, "Work."), ("user", "Hi"), ("user", "?"))
    ]
    late = {"role": role, "content": "Be brief."}
    rows = {"ttl": (said, [*said, late]), "edited": ([*said, late], [*said, said[1], late]), "system-changed": (said, said[1:])}  # fmt: skip
    pauses = {"ttl": 10**9}
    for cause, bodies in rows.items():
        assert _cause_of("openai", *({field: row} for row in bodies), pause_ms=pauses.get(cause, 1)) == cause


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


def healthy(seed: int, tail: bool = True) -> list[tuple[int, Body]]:
    return [(at, {**body, "tail": tail}) for at, body in conversation(str(seed), "anthropic", real=False)]


@pytest.mark.parametrize(("provider", "field"), [("anthropic", "messages"), ("openai-chat", "messages"), ("openai", "input"), ("gemini", "contents"), ("bedrock", "messages"), ("cohere", "messages")])  # fmt: skip
@pytest.mark.parametrize("odd", [None, 7, "x", [None], {"role": "user", "content": [None]}])
def test_a_message_that_no_provider_ever_took_is_audited_as_it_stands(provider: str, field: str, odd: Any) -> None:
    said = [{"role": "user", "content": text} for text in ("Hi", "And?")]
    used = Usage(9_000, cache_read=10)
    calls = [SentCall("log", provider, MODEL, {field: [*said[:1], odd, *said[1:count]]}, used, 1, "s") for count in (1, 2)]  # fmt: skip
    assert audit(calls).total.requests == 2


def test_short_messages_are_known_in_no_more_memory_than_long_ones() -> None:
    known, wire = KnownUnits(1024 * 1024), wire_of("anthropic")
    units = [known.unit(wire, {"role": "user", "content": f"{number}"}, number) for number in range(5_000)]
    assert len(known._new) + len(known._old) < 1_100
    assert known.unit(wire, {"role": "user", "content": "4999"}, 7) == units[-1].at(7)


def test_marks_that_are_missing_are_named() -> None:
    calls = played("anthropic", healthy(1, tail=False))
    for call in calls:
        call.body["system"][-1].pop("cache_control")
    bare = [
        SentCall(c.source, c.provider, c.model, c.body, Usage(c.usage.input_total), c.at_ms) for c in calls if c.usage
    ]
    found = [found.cause for each in audit(bare).conversations for found in each.verdicts]
    assert set(found) == {"marks-absent"}


def test_what_was_never_marked_neither_expired_nor_moved_nor_was_aborted() -> None:
    """Claude stores at marks alone: without one there was nothing to lose, whatever else happened in between."""
    asked = {"system": "It is 10:00. " + words(random.Random(4), 900), "messages": [{"role": "user", "content": "Hi"}]}
    assert _cause_of("anthropic", asked, asked) == "marks-absent"
    assert _cause_of("anthropic", asked, asked, pause_ms=600_000) == "marks-absent"
    assert _cause_of("anthropic", asked, {**asked, "system": asked["system"].replace("0:", "1:")}) == "marks-absent"


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
    requests = PLANTS["clock"](healthy(3), 2, random.Random(3), "anthropic")
    log = recorded(tmp_path / "log.jsonl", played("anthropic", requests))
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
    assert "It is 09:46" in first["note"]
    invoke("audit", log, "--fail-under", "90", code=1)
    invoke("audit", log, "--fail-under", "1", "--top", "0")


def test_har_files_are_read(tmp_path: Path) -> None:
    calls = played("anthropic", healthy(4))
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


def test_a_title_asked_for_with_the_users_own_words_is_no_loss() -> None:
    calls = played("anthropic", healthy(5), "s")
    asked = json.loads(json.dumps(calls[0].body))
    asked |= {"system": [{"type": "text", "text": words(random.Random(1), 900)}], "tools": []}
    asked["messages"] = asked["messages"][:1]
    title = SentCall("log:t", "anthropic", MODEL, asked, Usage(2_000), calls[0].at_ms + 1, "s")
    report = audit([calls[0], title, *calls[1:]])
    assert len(report.conversations) == 2
    assert report.total.lost == 0


def test_side_questions_and_helpers_stand_apart() -> None:
    main = played("anthropic", healthy(5), "s")
    title = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": "Give this talk a title."}]}
    side = SentCall("log:t", "anthropic", MODEL, title, Usage(2_000), main[2].at_ms, "s")
    for calls in ([*main[:3], side, *main[3:]], [side, *main]):
        report = audit(calls)
        assert {each.kind: each.spent.requests for each in report.conversations} == {"main": len(main), "side": 1}
        assert report.total.lost == 0


SUMMARIES = {
    "Claude Code": "This session is being continued from a previous conversation that ran out of context.",
    "codex": "Another language model started to solve this problem and produced a summary of its thinking process.",
    "gemini-cli": "<state_snapshot><overall_goal>Steps.</overall_goal></state_snapshot>",
    "pi": "The conversation history before this point was compacted into the following summary:\n\nSteps.",
    "opencode": "What did we do so far?",
    "goose": "The previous message contains a summary that was prepared because a context limit was reached.",
    "Copilot": "<conversation-summary>",
    "Anthropic": "",
}


@pytest.mark.parametrize("client", SUMMARIES)
def test_a_session_that_a_client_sums_up_stays_one_and_its_helper_another(client: str) -> None:
    """Nothing of what was said is in the next request, as a helper's first request has nothing of it."""

    def call(*said: Any, lost: bool = False) -> SentCall:
        messages = [{"role": "assistant" if at % 2 else "user", "content": each} for at, each in enumerate(said)]
        head = {"system": [{"type": "text", "text": "Be careful. " * 900, "cache_control": {"type": "ephemeral"}}]}
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "write")]
        given = {"model": MODEL, "tools": tools, **head, "messages": messages}
        used = Usage(9_000, cache_read=3_000 if lost else 8_900, cache_write_5m=100)
        return SentCall("log", "anthropic", MODEL, given, used, 1, "s")

    said = [word for n in range(8) for word in (f"Do step {n}.", f"Step {n} is done.")]
    talk = [call(*said[:end]) for end in range(1, 16, 2)]
    helper = call("Look for the parser and return a short summary of what it does.")
    steps = "What was done, and what is left to do. " * 20
    summary = [{"type": "text", "text": f"{SUMMARIES[client]}\n{steps}"}]
    summary = [{"type": "compaction", "content": steps}] if client == "Anthropic" else summary
    after = [call(summary, lost=True), call(summary, "Done.", "And the next?")]
    report = audit([*talk, helper, *after])
    assert sorted((each.kind, each.spent.requests) for each in report.conversations) == [("agent", 1), ("main", 10)]
    assert [each.cause for conversation in report.conversations for each in conversation.verdicts] == ["compaction"]


def test_conversations_that_share_a_word_are_told_apart() -> None:
    """Several at once with the same head, each asked to continue."""
    calls = []
    for turn, n in [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1), (2, 3), (2, 2), (2, 1)]:
        said = [f"Task {n}.", *[f"{n} did.", "continue"] * turn]
        messages = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
        given = {"model": MODEL, "system": "Be careful. " * 50, "messages": messages}
        calls.append(SentCall("log", "anthropic", MODEL, given, Usage(5_000)))
    assert [each.spent.requests for each in audit(calls).conversations] == [3, 3, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "begins with 'hello'"),
        ('{"a": 1}', "begins with the fields a, which nothing known here begins with"),
        (
            '{"messages": []}\n{"b": 2}',
            "line 2, column 1: x.jsonl holds the fields b, which is not a request: a body with its messages, alone or as `request`",
        ),
        ("[]", "begins with a list, which nothing known here begins with"),
        (" \n", "is empty"),
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
