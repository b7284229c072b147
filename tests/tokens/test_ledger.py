"""What the budget counts in each message, and that counting a grown thread costs the new text only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Entry, Item, count, values
from quire.errors import CallError
from quire.tokens import Ledger, counter, entry_tokens, message_tokens, text_tokens, tools_tokens
from quire.values import Call, Image, Message, Result, Text, Think, ToolSet


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


TOOL = {"parameters": {"type": "object"}, "name": "read", "description": "Read a file"}


def n(text: str) -> int:
    return count(text).tokens


def test_a_message_is_its_text_and_four() -> None:
    assert message_tokens(Message("user", (Text("Hello, world"),))) == n("Hello, world") + 4
    assert text_tokens("You are terse.") == n("You are terse.") + 4
    assert message_tokens(Message("user", ())) == 4


def test_calls_count_their_name_and_their_arguments_as_the_model_wrote_them() -> None:
    compact = Call("c1", "read", {"path": "a b", "line": 3})
    written = Call("c2", "read", {"path": "a b", "line": 3}, arguments='{"path":  "a b",\n "line": 3}')
    assert message_tokens(Message("assistant", (Think("hm"), Text("Reading."), compact, written))) == (
        n("hm") + n("Reading.") + n("read") + n('{"path":"a b","line":3}') + n("read") + n(written.arguments) + 4
    )


def test_each_result_of_a_group_is_a_message_of_its_own() -> None:
    group = Message("tool", (Result("c1", "read", "one"), Result("c2", "read", "two words")))
    assert message_tokens(group) == n("one") + n("two words") + 8


def test_tools_count_as_canonical_json() -> None:
    text = '[{"description":"Read a file","name":"read","parameters":{"type":"object"}}]'
    assert tools_tokens([TOOL]) == n(text)
    assert tools_tokens([]) == 0
    assert message_tokens(Message("tools", (ToolSet((TOOL,)),))) == n(text) + 4


def test_arguments_are_not_escaped_to_ascii() -> None:
    assert message_tokens(Message("assistant", (Call("c", "say", {"text": "größe"}),))) == (
        n("say") + n('{"text":"größe"}') + 4
    )


def test_an_image_costs_what_the_caller_says() -> None:
    message = Message("user", (Text("Look"), Image("image/png", "aGk=")))
    assert message_tokens(message) == n("Look") + 4
    assert message_tokens(message, image_tokens=1600) == n("Look") + 4 + 1600
