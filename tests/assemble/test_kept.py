"""What stays, over random threads: pins in every request, originals behind every handle, bytes in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_strategies import any_thread, logs, policies

from quire.assemble import Built, Policy, requests
from quire.assemble.messages import handle_of
from quire.assemble.user_message import block, entry_text, normal
from quire.entry import chain, sha256_hex
from quire.items import identity
from quire.log.sqlite import SqliteStore
from quire.recall.placement import original
from quire.values import Entry, JsonObject
from toolbox import fewer, text_of

pytestmark = pytest.mark.moves_prefix(reason="small budgets make rebases")


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
    with SqliteStore(":memory:") as store:
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
from quire.entry import sha256_hex
from quire.values import Entry
for line in sys.stdin:
    policy, bodies = json.loads(line)
    made = list(requests([Entry(body["kind"], body) for body in bodies], msgspec.convert(policy, Policy)))
    print(sha256_hex(msgspec.json.encode(made)))
"""


@settings(max_examples=3)
@given(st.lists(st.tuples(logs, policies()), min_size=8, max_size=8))
def test_another_process_gives_the_same_bytes(cases: list[tuple[list[Entry], Policy]]) -> None:
    lines = [json.dumps([msgspec.to_builtins(policy), [one.body for one in entries]]) for entries, policy in cases]
    told = {
        subprocess.run(
            [sys.executable, "-c", HASHES],
            input="\n".join(lines),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        ).stdout
        for seed in ("1", "2")
    }
    here = [sha256_hex(msgspec.json.encode(list(requests(entries, policy)))) for entries, policy in cases]
    assert told == {"\n".join([*here, ""])}
