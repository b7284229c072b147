"""What is pinned stands verbatim in every request after it was first shown; what was cut is found behind its handle."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from thread_strategies import any_thread, logs, policies

from quire import Assembly, Entry, Policy, requests, values
from quire.assemble.messages import handle_of
from quire.assemble.rebase import PINNED_HEADING
from quire.assemble.user_message import block, entry_text, normal
from quire.errors import BudgetError
from quire.items import identity
from quire.recall.placement import original
from quire.testing import MemoryStore
from quire.values import JsonObject
from toolbox import Built, Refused, chain, fewer, note, sha256_hex, talk, text_of

pytestmark = pytest.mark.moves_prefix(reason="pins are about rebases")
WORDS = "KEEP-THIS-PIN"


def long(middle: str = "") -> str:
    lines = [f"line {n} of the result" for n in range(150)]
    return "\n".join([*lines[:75], middle, *lines[75:]])


def loop(calls: int, pinned: int, meta: JsonObject) -> list[Entry]:
    """One turn of calls with long results, one of them pinned; the result's seq is 2 * pinned + 3."""
    out = [values.user("do it")]
    for n in range(calls):
        more = {"meta": meta} if n == pinned else {}
        out += [values.call(f"c{n}", "read", {"n": n})]
        out += [values.result(f"c{n}", None, long(WORDS if n == pinned else f"row {n}"), **more)]
    return [*out, values.respond("done")]


def stands_from_its_first_request(entries: list[Entry], policy: Policy, words: str = WORDS) -> list[Built]:
    """No request after the first that says the words is without them; and rebases were made since."""
    made = [one for one in requests(entries, policy) if isinstance(one, Built)]
    first = next(n for n, one in enumerate(made) if words in text_of(one))
    assert [one.turn for one in made[first:] if words not in text_of(one)] == []
    assert [one for one in made[first + 1 :] if one.rebase], "a rebase had to keep them"
    return made


@pytest.mark.parametrize("pin", [True, WORDS])
@pytest.mark.parametrize("tiers", [{"handles": 0.2}, {"floor": 0.375, "handles": 0.25}])
def test_a_pinned_result_stays_where_older_ones_become_handles(pin: object, tiers: dict[str, float]) -> None:
    made = stands_from_its_first_request(loop(30, 12, {"pin": pin}), Policy(budget=10_000, **tiers))
    assert any(edit["action"] == "handle" for one in made if one.rebase for edit in one.rebase["edits"])


def test_a_pinned_result_of_the_current_turn_is_not_cut_but_named() -> None:
    entries = [values.user("q"), values.call("a", "r", {}), values.call("b", "r", {})]
    entries += [values.result("a", None, long(WORDS), meta={"pin": True}), values.result("b", None, long() * 3)]
    entries += [values.respond("x")]
    fits = [one for one in requests(entries, Policy(budget=2_000)) if isinstance(one, Built)][-1]
    assert long(WORDS) in text_of(fits), "the other one was cut for it"
    (refused,) = [one for one in requests(entries, Policy(budget=600)) if isinstance(one, Refused)]
    assert "pinned results" in refused.error
    assert "unpin" in refused.hint


def test_a_span_of_a_result_that_has_to_be_cut_stands_in_front() -> None:
    entries = [values.user("q"), values.call("a", "r", {})]
    entries += [values.result("a", None, long(WORDS), meta={"pin": WORDS}), values.respond("x")]
    last = [one for one in requests(entries, Policy(budget=500)) if isinstance(one, Built)][-1]
    assert last.rebase["meta"]["pinned"] == [WORDS]
    assert "cut here" in text_of(last)


def test_a_refusal_speaks_of_pins_only_where_there_are_any() -> None:
    with pytest.raises(BudgetError) as refused:
        Assembly(Policy(budget=200)).extend(chain([values.user("word " * 500)])).request()
    assert "pin" not in refused.value.hint


@pytest.mark.parametrize("how", ["field", "entry", "context"])
def test_each_turn_keeps_pinned_context_of_earlier_turns(how: str) -> None:
    chosen = note("n.md", WORDS, source="selection", start_line=1, end_line=3, pin=True)
    beside = values.call("k", "search", {}, meta={"placement": "context"})
    begun = {
        "field": [values.user("look", [chosen])],
        "entry": [values.attach(chosen), values.user("look")],
        "context": [values.user("look"), beside, values.result("k", None, WORDS, meta={"pin": True})],
    }[how]
    entries = [*begun, values.respond("ok"), *talk(3, 60, 90)[1:]]
    stands_from_its_first_request(entries, Policy(promote="each-turn"))


@pytest.mark.parametrize("promote", ["at-rebase", "each-turn"])
@pytest.mark.parametrize("times", [False, True])
def test_a_pinned_item_stays_in_the_library_once(promote: str, times: bool) -> None:
    policy = Policy(budget=3_000, unused_turns=2, promote=promote, times=times)  # type: ignore[arg-type]
    by_entry, by_item = note("n.md", WORDS), note("n.md", WORDS, pin=True)
    for begun in (values.attach(by_entry, meta={"pin": True}), values.attach(by_item)):
        made = stands_from_its_first_request([begun, *talk(30, 60, 90)[1:]], policy)
        assert text_of(made[-1]).count(WORDS) == 1
        assert WORDS in made[-1].prompt.l2


def test_a_span_of_an_attachment_outlives_its_place_in_the_library() -> None:
    entry = values.attach(note("n.md", f"much else, {WORDS}, and more"), meta={"pin": WORDS})
    made = stands_from_its_first_request([entry, *talk(30, 60, 90)[1:]], Policy(budget=3_000, unused_turns=2))
    assert "much else" not in text_of(made[-1])


def test_a_newer_version_of_a_pinned_item_takes_its_place() -> None:
    first = values.attach(note("s.md", "FIRST", source="selection", start_line=1, end_line=2, pin=True))
    second = values.attach(note("s.md", "SECOND", source="selection", start_line=1, end_line=2))
    entries = [first, *talk(20, 60, 90)[1:], second, *talk(20, 60, 90)[1:]]
    last = stands_from_its_first_request(entries, Policy(budget=3_000), "SECOND")[-1]
    assert "FIRST" not in text_of(last)


def test_an_entry_pinned_after_it_left_comes_back_at_the_next_rebase() -> None:
    words = f"{WORDS} always " + "x " * 200
    pin = [values.user("remember that", meta={"pins": [1]}), values.respond("ok")]
    entries = [values.user(words), *talk(20, 60, 90)[1:], *pin, *talk(20, 60, 90)[1:]]
    made = [one for one in requests(entries, Policy(budget=3_000)) if isinstance(one, Built)]
    at = next(n for n, one in enumerate(made) if one.query == "remember that")
    back = next(n for n, one in enumerate(made) if n >= at and one.rebase)
    assert words not in text_of(made[at - 1])
    assert all(words in text_of(one) for one in made[back:])


def test_the_same_words_pinned_twice_are_kept_once() -> None:
    twice = [values.user(WORDS, meta={"pin": True}), values.respond("a " * 50)] * 2
    last = stands_from_its_first_request([*twice, *talk(24, 60, 90)[1:]], Policy(budget=3_000))[-1]
    assert text_of(last).split("# Summary")[0].split("\n\n") == [f"\n{PINNED_HEADING}", WORDS, ""]


def test_a_pinned_instruction_that_folds_into_the_system_prompt_is_not_said_twice() -> None:
    note = values.note(f"  {WORDS}\n", meta={"pin": True})
    begun = [values.user("q"), values.respond("a"), note]
    last = stands_from_its_first_request([*begun, *talk(30, 60, 90)[1:]], Policy(budget=3_000))[-1]
    assert WORDS in last.prompt.l1
    assert text_of(last).count(WORDS) == 1


def test_pins_too_large_for_the_budget_are_refused_by_name() -> None:
    entries = [values.user("word " * 960, meta={"pin": True}), values.respond("a"), *talk(6, 60, 90)[1:]]
    made = list(requests(entries, Policy(budget=1_000)))
    refused = [one for one in made if isinstance(one, Refused)]
    assert refused
    assert all("pinned text" in one.error for one in refused)
    assert not [one for one in made if isinstance(one, Built) and one.tokens > 1_000]


@given(any_thread, policies())
@fewer(4)
def test_what_is_pinned_stands_in_every_request_after_it_was_first_shown(entries: list[Entry], policy: Policy) -> None:
    numbered, shown = list(chain(entries)), set[int]()
    made = [one for one in requests(numbered, policy) if isinstance(one, Built)]
    for one in made:
        text = text_of(one)
        for entry, forms in _pinned(numbered, policy):
            if entry.seq in shown:
                held = any(words in text or normal(words) in one.prompt.l1 for words in forms)
                assert held, (entry, one.turn, one.step)
        shown |= {seq for message in one.prompt.messages for seq in message.seqs}


def _pinned(entries: list[Entry], policy: Policy) -> list[tuple[Entry, list[str]]]:
    """What the thread pins: entries and spans by themselves, and items that no later entry attaches again.

    An item may stand in the form in which another entry attached the same content.
    """
    out = []
    for entry in entries:
        pin = entry.meta.get("pin")
        if pin and entry.kind in ("user", "respond", "think", "result", "note"):
            whole = entry_text(entry)
            out.append((entry, [pin if isinstance(pin, str) and pin in whole else whole]))
        for item in _items(entry):
            if item["metadata"].get("pin") and not _again(item, entries, entry.seq):
                same = [one for other in entries for one in _items(other) if _is_same(one, item)]
                out.append((entry, [block(one, policy.times).text for one in same]))
    return [(entry, forms) for entry, forms in out if forms[0].strip()]


def _items(entry: Entry) -> list[JsonObject]:
    return [entry.body["item"]] if entry.kind == "attach" else list(entry.attached)


def _is_same(one: JsonObject, other: JsonObject) -> bool:
    return (identity(one), one["content"]) == (identity(other), other["content"])


def _again(item: JsonObject, entries: list[Entry], seq: int) -> bool:
    later = [one for entry in entries if entry.seq >= seq for one in _items(entry)]
    return sum(identity(one) == identity(item) for one in later) > 1


@given(logs, policies())
@fewer(2)
def test_what_is_left_out_or_cut_is_found_behind_its_handle(entries: list[Entry], policy: Policy) -> None:
    numbered = list(chain(entries))
    made = [one for one in requests(numbered, policy) if isinstance(one, Built)]
    if not made:
        return
    left = {one.entry for one in made[-1].left_out}
    edits = [edit for one in made if one.rebase for edit in one.rebase["edits"]]
    cut = {edit["entry"] for edit in edits if edit["action"] in ("handle", "cut")}
    with MemoryStore() as store:
        stored = store.append("t", [Entry(one.kind, one.body) for one in numbered])
        for seq in sorted(left | cut):
            entry = stored[seq - 1]
            assert original(store, "t", handle_of(entry.id), 1, 10**6).text == entry_text(entry).removesuffix("\n")
    for edit in edits:
        if edit["action"] == "cut":
            assert handle_of(numbered[edit["entry"] - 1].id) in edit["replacement"]


HASHES = """
import json, sys
import msgspec
from quire import Policy
from quire.assemble import requests
from quire.values import sha256_hex
from quire.values import Entry
for line in sys.stdin:
    policy, bodies = json.loads(line)
    made = list(requests([Entry(body["kind"], body) for body in bodies], msgspec.convert(policy, Policy)))
    print(sha256_hex(msgspec.json.encode(made, enc_hook=list)), flush=True)
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that give the hash of the requests of each line, each with an order of sets of its own."""
    how: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parent}
    with ExitStack() as open_:
        yield [
            open_.enter_context(
                subprocess.Popen([sys.executable, "-c", HASHES], env={**os.environ, "PYTHONHASHSEED": seed}, **how)
            )
            for seed in ("1", "2")
        ]


@settings(max_examples=24)
@given(logs, policies())
def test_another_process_gives_the_same_bytes(
    processes: list[subprocess.Popen[str]], entries: list[Entry], policy: Policy
) -> None:
    here = sha256_hex(msgspec.json.encode(list(requests(entries, policy)), enc_hook=list))
    for process in processes:
        print(json.dumps([msgspec.to_builtins(policy), [one.body for one in entries]]), file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{here}\n"
