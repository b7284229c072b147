"""What the budget counts in each message."""

from quire import count
from quire.tokens import message_tokens, text_tokens, tools_tokens
from quire.values import Call, Image, Message, Result, Text, Think, ToolSet

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
