"""What only a server that remembers can tell: signatures bound to a prefix, items that belong together."""

import copy
from base64 import b64encode
from typing import Any

import pytest
from rule_bodies import *

from quire import validate
from quire.providers.rules import ServerMemory, issue, observe, unchecked

BOUND, ALWAYS, FREE = "claude-opus-5-5", "claude-fable-5-2", "claude-opus-5"


def reflect(text: str = "t", signature: str = "sig-1") -> Body:
    return {"type": "thinking", "thinking": text, "signature": signature}


REPLY = [reflect(), {"type": "redacted_thinking", "data": "r"}, say("I look."), use()]


def asked(**extra: Any) -> Body:
    return claude(user(), system="S", tools=[tool()], **extra)


def followed(content: list[Body] | None = None, **extra: Any) -> Body:
    body = asked(**extra)
    body["messages"] += [{"role": "assistant", "content": content or REPLY}, user(result())]
    return body


@pytest.fixture
def seen() -> ServerMemory:
    memory = ServerMemory()
    issue(memory, asked(), "anthropic", {"content": REPLY})
    return memory


def rows(
    body: Body, seen: ServerMemory, provider: str = "anthropic", model: str | None = None
) -> list[tuple[str, str]]:
    return [(one.row, one.path) for one in validate(body, provider, model, seen=seen)]


FIRST = "$.messages[1].content[0]"
DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
DROPS: Body = {"thinking": DROP, "betas": ["thinking-binding-controls-2026-08-01"]}
FORGED = [reflect(signature="forged"), *REPLY[2:]]
RETURNED: dict[str, tuple[list[Body], Body, list[tuple[str, str]]]] = {
    "a reply sent back verbatim passes": (REPLY, {}, []),
    "thinking of the latest message cannot be changed": ([reflect("other"), *REPLY[1:]], {}, [("B2.10", FIRST)]),
    "nor taken apart": (REPLY[1:], {}, [("B2.10", "$.messages[1]")]),
    "nor moved": ([REPLY[1], REPLY[0], *REPLY[2:]], {}, [("B2.10", "$.messages[1]")]),
    "all of it may be left out": (REPLY[2:], {}, []),
    "a forged signature is refused even with drop_block": (FORGED, DROPS, [("B2.12", FIRST)]),
}


@pytest.mark.proves("anthropic", "thinking kept")
@pytest.mark.parametrize("case", RETURNED)
def test_what_comes_back_of_a_reply_is_as_it_was(seen: ServerMemory, case: str) -> None:
    content, extra, broken = RETURNED[case]
    assert rows(followed(content, **extra), seen) == broken


def test_marks_effort_and_limits_are_no_part_of_the_binding(seen: ServerMemory) -> None:
    body = followed(max_tokens=500, output_config={"effort": "low"}, cache_control={"type": "ephemeral"})
    body["tools"][0]["cache_control"] = {"type": "ephemeral"}
    body["system"] = [say("S", cache_control={"type": "ephemeral"})]
    assert rows(body, seen) == []


@pytest.mark.parametrize(
    "change",
    [
        {"system": "S2"},
        {"tools": [tool("g")]},
        {"messages": [user(say("something else")), *followed()["messages"][1:]]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_row_11_a_changed_prefix_is_refused(seen: ServerMemory, change: Body) -> None:
    assert rows({**followed(), **change}, seen)[0] == ("B2.11", FIRST)


def test_row_11_depends_on_the_model_the_account_and_the_request(seen: ServerMemory) -> None:
    body = {**followed(), "system": "S2"}
    assert rows(body, seen, model=FREE) == []
    assert ("B2.11", FIRST) in rows(body, seen, model=ALWAYS)
    seen.enforce = False
    assert rows(body, seen, model=BOUND) == []
    assert ("B2.11", FIRST) in rows(body, seen, model=ALWAYS)
    asks = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
    betas = ["thinking-binding-controls-2026-08-01"]
    assert ("B2.11", FIRST) in rows({**body, "thinking": asks, "betas": betas}, seen)
    assert rows({**body, **DROPS}, seen, model=ALWAYS) == []


def test_row_12_older_thinking_cannot_be_changed_either(seen: ServerMemory) -> None:
    body = followed([reflect("other"), *REPLY[1:]])
    body["messages"] += [{"role": "assistant", "content": "done"}, user()]
    assert ("B2.12", FIRST) in rows(body, seen)


def test_a_linter_tells_changes_but_not_strangers() -> None:
    log = ServerMemory(complete=False)
    assert rows(followed(), log) == []
    observe(log, followed(), "anthropic")
    assert rows(followed(), log) == []
    moved = copy.deepcopy(followed())
    moved["messages"][0] = user(say("cut"))
    assert rows(moved, log)[0] == ("B2.11", FIRST)


def test_what_cannot_be_checked_is_said() -> None:
    assert [note.row for note in unchecked(followed(), "anthropic")] == ["B2.10, B2.11, B2.12"]
    assert unchecked(claude(), "anthropic") == []
    assert [note.row for note in unchecked({"messages": [user()]}, "anthropic")] == ["model", "max_tokens"]


@pytest.mark.proves("bedrock", "thinking kept")
def test_bedrock_thinking_is_bound_like_claudes() -> None:
    memory = ServerMemory()
    said = [{"reasoningContent": {"reasoningText": {"text": "t", "signature": "s"}}}, {"text": "a"}]
    first = converse(turn("user"))
    issue(memory, first, "bedrock", {"output": {"message": {"role": "assistant", "content": said}}})
    second = converse(turn("user"), turn("assistant", *said), turn("user"))
    assert rows(second, memory, "bedrock") == []
    second["messages"][0]["content"] = [{"text": "changed"}]
    assert rows(second, memory, "bedrock") == [("B2.11", FIRST)]


@pytest.mark.proves("gemini", "thinking kept")
def test_row_31_a_thought_signature_from_elsewhere_is_refused() -> None:
    memory = ServerMemory()
    call = fc(thoughtSignature="mine")
    issue(memory, contents(ask()), "gemini", {"candidates": [{"content": {"role": "model", "parts": [call]}}]})

    def again(part: Body) -> list[tuple[str, str]]:
        return rows(
            contents(ask(), {"role": "model", "parts": [part]}, ask(fr())), memory, "gemini", "gemini-3.8-flash"
        )

    assert again(call) == []
    for open_to_all in (b"skip_thought_signature_validator", b"context_engineering_is_the_way_to_go"):
        assert again(fc(thoughtSignature=open_to_all.decode())) == []
        # An SDK that takes signatures as bytes writes them in base64.
        assert again(fc(thoughtSignature=b64encode(open_to_all).decode())) == []
    assert again(fc(thoughtSignature="theirs")) == [("B2.31", "$.contents[1].parts[0]")]
    assert again(fc("other", thoughtSignature="mine")) == [("B2.31", "$.contents[1].parts[0]")]


@pytest.mark.proves("openai", "thinking kept")
def test_rows_23_and_24_know_the_pairs_that_were_issued() -> None:
    memory = ServerMemory()
    given = [thought("rs_1"), function_call("c1", id="fc_1"), function_call("c2", id="fc_2")]
    issue(memory, items(), "openai", {"output": given})
    outputs = [output("c1"), output("c2")]
    assert rows(items(*given, *outputs), memory, "openai") == []
    alone = rows(items(*given[1:], *outputs), memory, "openai")
    assert alone == [("B2.23", "$.input[1]"), ("B2.23", "$.input[2]")]
    message = validate(items(*given[1:], *outputs), "openai", seen=memory)[0].message
    assert "'fc_1'" in message
    assert "'rs_1'" in message
    assert rows(items(given[0], given[2], output("c2")), memory, "openai") == [("B2.24", "$.input[1]")]
    # A call that never had reasoning needs none.
    issue(memory, items(), "openai", {"output": [function_call("c9", id="fc_9")]})
    assert rows(items(function_call("c9", id="fc_9"), output("c9")), memory, "openai") == []
    assert rows(items(spoken()), memory, "openai") == []


def test_row_19_a_compaction_block_goes_back_verbatim() -> None:
    memory = ServerMemory()
    block = {"type": "compaction", "content": "summary", "signature": "s", "encrypted_content": None}
    issue(memory, claude(compaction={"type": "summarize"}), "anthropic", {"content": [block]})

    def sent(**changes: Any) -> list[str]:
        first = {"role": "assistant", "content": [{**block, **changes}]}
        return [one.message.partition(":")[0] for one in validate(claude(first, user()), "anthropic", seen=memory)]

    assert sent() == []
    assert sent(cache_control={"type": "ephemeral"}) == []
    assert sent(content="shorter") == ["compaction_content_mismatch"]
    assert sent(signature="x") == ["compaction_signature_invalid"]


def test_row_19_leaves_threshold_compaction_alone() -> None:
    block = {"type": "compaction", "content": "summary"}
    edits = {"edits": [{"type": "compact_20260112"}]}
    body = claude(user(), {"role": "assistant", "content": [block, say()]}, user(), context_management=edits)
    assert validate(body, "anthropic") == []
