"""Counting a grown thread costs the new text only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import values
from quire.errors import CallError
from quire.tokens import Ledger, counter, entry_tokens
from quire.values import Entry, Item


class Watched:
    """The real counter, and how many characters it was made to read."""

    vocabulary = "o200k_base"
    exact = True

    def __init__(self) -> None:
        self.read = 0

    def count(self, text: str) -> int:
        self.read += len(text)
        return counter().count(text)


text = st.text(max_size=30)
entry = st.one_of(
    text.map(values.user),
    text.map(values.respond),
    text.map(values.think),
    text.map(values.note),
    text.map(values.system),
    st.builds(lambda t: values.call("c", "read", {"path": t}), text),
    st.builds(lambda t: values.result("c", "ok", t), text),
    st.builds(lambda t: values.user("look", attach=[Item(id="a.md", content=t)]), text),
    st.just(values.tools([{"name": "read", "description": "d", "parameters": {}}])),
)


@given(st.lists(entry, max_size=12), st.lists(st.integers(0, 12), max_size=3))
def test_counting_in_steps_equals_counting_at_once(thread: list[Entry], cuts: list[int]) -> None:
    whole, grown = Ledger(), Ledger()
    whole.extend(thread)
    for cut in sorted(min(cut, len(thread)) for cut in cuts):
        grown.follow(thread[:cut])
    assert grown.follow(thread) == whole.total == whole.between(0, len(thread))
    assert len(grown) == len(thread)


def test_a_grown_thread_reads_the_new_text_only() -> None:
    watched = Watched()
    ledger = Ledger(watched)
    thread = [values.user("x" * 1000), values.respond("y" * 1000)] * 50
    ledger.follow(thread)
    assert watched.read == 100_000
    for size in (10, 20, 30):
        watched.read = 0
        thread = [*thread, values.user("z" * size)]
        ledger.follow(thread)
        assert watched.read == size
    watched.read = 0
    assert ledger.follow(thread) == ledger.total
    assert watched.read == 0


def test_what_a_model_says_in_a_row_is_one_message() -> None:
    thread = [values.think("hm"), values.respond("Reading."), values.call("c", "read", {"path": "a"})]
    count = counter().count
    assert Ledger().follow(thread) == count("hm") + count("Reading.") + count("read") + count('{"path":"a"}') + 4


def test_what_was_sent_is_no_text_for_the_model() -> None:
    sent = Entry(
        "sent", {"kind": "sent", "provider": "openai", "model": "gpt-5", "request_sha256": "0", "segments": []}
    )
    assert entry_tokens(sent) == 0


def test_a_shorter_thread_is_not_the_same_thread() -> None:
    ledger = Ledger()
    ledger.extend([values.user("a"), values.user("b")])
    with pytest.raises(CallError, match="2 entries were counted but the thread has 1"):
        ledger.follow([values.user("a")])
