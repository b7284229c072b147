"""The invariants of a request, over random threads and budgets."""

import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from thread_strategies import any_thread, logs, policies

from quire import Assembly, Entry, Policy, Request, render, requests, values
from quire.assemble.fit import enclose, rebuild
from quire.assemble.hindsight import ask
from quire.errors import BudgetError
from quire.items import identity
from quire.observe import chat_messages
from quire.values import Call, Envelope, JsonObject, LeftOut, Result, Text
from toolbox import Built, Refused, at_least, chain, counter, fewer, sha256_hex

pytestmark = pytest.mark.moves_prefix(reason="small budgets make rebases; the epochs are compared one by one")


@given(logs, policies())
@at_least(500)
def test_every_request_is_the_same_again_extends_the_one_before_is_whole_and_explained(
    entries: list[Entry], policy: Policy
) -> None:
    """The same bytes each time, every entry shown or left out with a reason; calls have their results, the budget holds,
    and an envelope puts it together again."""
    made = list(requests(entries, policy))
    again = list(_explained_requests(entries, policy))
    assert msgspec.json.encode(made, enc_hook=list) == msgspec.json.encode(again, enc_hook=list)
    decided = not any(entry.kind == "sent" for entry in entries)
    before = None
    for one in made:
        if isinstance(one, Refused):
            before = None  # nothing was sent, so nothing is extended
            continue
        request = render(one.prompt, "openai-chat:")
        if before is not None:
            _extends(before, (one, request), policy)
        _paired(one)
        _rebuilt(one, request.body["messages"])
        if decided:  # what a log says was sent is sent again as it was
            _within(one, request.body["messages"], policy)
        before = one, request


def _extends(before: tuple[Built, Request], now: tuple[Built, Request], policy: Policy) -> None:
    """Within an epoch each request extends the one before; between two a rebase says why it does not."""
    one = now[0]
    if before[0].epoch == one.epoch:
        old, new = before[0].prompt, one.prompt
        assert (old.system, old.tools) == (new.system, new.tools)
        assert new.messages[: len(old.messages)] == old.messages
        # Chat has no place for tools that come late; who has one says so.
        if not policy.late_tools:
            assert now[1].prefix.startswith(before[1].prefix)
    else:
        assert one.rebase["reason"]


def _paired(one: Built) -> None:
    """Every call has its result directly behind its group."""
    waiting: list[str] = []
    for message in one.prompt.messages:
        if message.role == "tool":
            assert [part.call_id for part in message.parts if isinstance(part, Result)] == waiting
            waiting = []
        else:
            assert not waiting
            waiting = [part.call_id for part in message.parts if isinstance(part, Call)]
    assert not waiting


def _rebuilt(one: Built, messages: list[JsonObject]) -> None:
    """The envelope holds the request, whole."""
    whole = enclose(one, chat_messages(one))
    again, tools = rebuild(msgspec.json.decode(msgspec.json.encode(whole), type=Envelope))
    assert again == messages
    assert tools == list(one.prompt.tools)


def _within(one: Built, messages: list[JsonObject], policy: Policy) -> None:
    count = counter().count
    size = sum(4 + _message_size(message, count) for message in messages)
    if one.prompt.tools:
        size += count(json.dumps(list(one.prompt.tools), sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    assert size <= one.tokens <= policy.limit


def _message_size(message: dict[str, object], count: object) -> int:
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [{"text": content}]
    total = sum(count(part.get("text", "")) for part in parts)  # type: ignore[operator]
    for call in message.get("tool_calls") or ():  # type: ignore[attr-defined]
        total += count(call["function"]["name"]) + count(call["function"]["arguments"])  # type: ignore[operator]
    return total


def _explained_requests(entries: list[Entry], policy: Policy) -> Iterator[Built | Refused]:
    """The same requests once more, each looked at where it is made."""
    assembly, numbered = Assembly(policy), list(chain(entries))
    for entry in numbered:
        if assembly.asks(entry):
            yield (one := ask(assembly, entry))
            asked = _try(assembly) if entry.kind == "sent" else one  # what is sent again could also be asked anew
            if isinstance(asked, Built):
                _explained(asked, numbered[: entry.seq - 1])
        assembly.feed(entry)


def _explained(one: Built, entries: list[Entry]) -> None:
    shown = {seq for message in one.prompt.messages for seq in message.seqs}
    reasons = {left.entry for left in one.left_out}
    assert len(reasons) == len(one.left_out), "one reason for each entry"
    assert not shown & reasons, "what is shown was not left out"
    silent = {"tools", "sent", "rebase", "system"}
    for entry in entries:
        if entry.kind in silent:
            continue
        folded = entry.kind == "note" and entry.text.strip() in one.prompt.l1
        if entry.kind == "attach" and _held(entry, one):
            waits = LeftOut(entry.seq, "waits for the next user entry") in one.left_out
            assert waits or entry.seq not in reasons, "what stands in the library was not left out"
        else:
            assert entry.seq in shown or entry.seq in reasons or folded, entry


def _held(entry: Entry, one: Built) -> bool:
    item = entry.body["item"]
    return (identity(item), sha256_hex(item["content"])) in {(held.id, held.sha256) for held in one.blocks}


def test_of_two_versions_attached_in_one_turn_the_older_is_explained() -> None:
    old, new = ({"id": "a.md", "type": "text", "content": text, "metadata": {}} for text in ("old", "new"))
    made = Assembly().extend(chain([values.attach(old), values.attach(new), values.user("which?")])).request()
    shown = "".join(part.text for part in made.prompt.messages[0].parts if isinstance(part, Text))
    assert "new" in shown
    assert "old" not in shown
    assert made.left_out == (LeftOut(1, "a newer version was attached in the same turn"),)


@pytest.mark.moves_prefix(reason="asked where nothing is sent: amid the model's words", everywhere=True)
@given(logs, policies())
@fewer(4)
def test_asking_changes_nothing(entries: list[Entry], policy: Policy) -> None:
    """Requests asked for at every entry leave the thread as if none had been asked."""
    asked, silent = Assembly(policy), Assembly(policy)
    for entry in chain(entries):
        for assembly in (asked, silent):
            assembly.feed(entry)
        if asked.turn:
            _try(asked)
    if asked.turn:
        assert _try(asked) == _try(silent)


def _try(assembly: Assembly) -> object:
    try:
        return assembly.request()
    except BudgetError as error:
        return str(error)


@given(any_thread, policies())
@fewer(4)
def test_a_log_with_its_rebases_recorded_replays_to_the_same_bytes(entries: list[Entry], policy: Policy) -> None:
    """What an engine sends live, recording rebases and sends, is what the recorded log assembles to."""
    live, log, sent = Assembly(policy), list[Entry](), list[bytes]()

    def record(*new: Entry) -> None:
        nonlocal log
        parent, seq = (log[-1].id, log[-1].seq) if log else ("", 0)
        for one in chain(new, parent, seq):
            live.feed(one)
            log.append(one)

    probe = Assembly(policy)
    for entry in chain(entries):
        asks = probe.asks(entry)
        probe.feed(entry)
        if asks:
            try:
                request = live.request()
            except BudgetError:
                pass
            else:
                if request.rebase is not None:
                    record(Entry("rebase", request.rebase))
                record(
                    Entry("sent", {"kind": "sent", "provider": "p", "model": "m", "request_sha256": "", "segments": []})
                )
                sent.append(render(live.request().prompt, "openai-chat:").prefix)
        record(Entry(entry.kind, entry.body))
    again = Assembly(policy)
    replayed = []
    for entry in log:
        again.feed(entry)
        if entry.kind == "sent":
            replayed.append(render(again.request().prompt, "openai-chat:").prefix)
    assert replayed == sent
