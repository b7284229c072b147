"""The lines of a request and their hashes, kept from one request to the next."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quire.providers.prefix import PrefixLines, Walk, lined
from quire.providers.wires import wire_of
from toolbox import fewer

MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.sampled_from(["a", "b", "ü\n", ""])}
    ),
    max_size=6,
)
# A thread's next request: how much of the one before it stands, whether its messages are the very same ones,
# what follows, and what stands in front.
STEPS = st.lists(st.tuples(st.integers(0, 9), st.booleans(), MESSAGES, st.integers(0, 2)), max_size=8)


@given(STEPS)
@fewer(3)
def test_lines_that_are_kept_are_those_of_a_request_by_itself(steps: list[Any]) -> None:
    walk, lining, messages = Walk(wire_of("openai-chat").layout, frozen=True), PrefixLines(), list[Any]()
    for kept, same, new, tools in steps:
        stand = messages[:kept] if same else copy.deepcopy(messages[:kept])
        messages = [*stand, *new]
        body = {"tools": [{"name": f"t{n}"} for n in range(tools)], "messages": messages}
        assert lining.of(walk.units(body)) == lined(body, "openai-chat")


def test_a_number_that_became_a_truth_is_another_line() -> None:
    walk, lining = Walk(wire_of("anthropic").layout, frozen=True), PrefixLines()
    for value in (1, True, 1.0):
        body = {"messages": [{"role": "user", "content": [{"type": "tool_use", "input": {"n": value}}]}]}
        assert lining.of(walk.units(body)) == lined(body, "anthropic")
