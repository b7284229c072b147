"""In whatever order a log tells of requests, answers and reports: how many requests there were, and the next one."""

import pytest

from quire import Assembly, Entry, Policy, providers, requests, values
from quire.values import JsonObject
from toolbox import chain

TARGET = "anthropic:claude-opus-5-5"
_SENT = {"kind": "sent", "provider": "anthropic", "model": "claude-opus-5-5", "request_sha256": "", "segments": []}
# U user, A answer, N note, C call, R result, S sent (a stream begins), W sent with what was used
_MADE = {
    "U": lambda n: values.user(f"q{n}"),
    "A": lambda n: values.respond(f"a{n}"),
    "N": lambda n: values.note(f"n{n}"),
    "C": lambda n: values.call("c", "f", {}),
    "R": lambda n: values.result("c", "ok"),
    "S": lambda n: Entry("sent", _SENT),
    "W": lambda n: Entry("sent", {**_SENT, "usage": {"input_total": 10}}),
}


def thread(order: str) -> list[Entry]:
    return list(chain(_MADE[kind](place) for place, kind in enumerate(order)))


@pytest.mark.parametrize(
    ("order", "count"),
    [
        ("UA", 1),  # nothing but the words
        ("UWA", 1),  # recorded whole
        ("USAW", 1),  # streamed
        ("UAW", 1),  # the report behind the answer
        ("UW", 1),  # an answer without words
        ("USW", 1),
        ("US", 1),  # broken off before the first word
        ("USSAW", 1),  # and sent again
        ("USASAW", 1),  # broken off amid its words, and sent again
        ("UWACRWA", 2),  # a loop of tools
        ("USACWRSAW", 2),
        ("UWAWA", 2),  # asked again behind its own words
        ("USAWSAW", 2),
        ("UAWAW", 2),
        ("UWAW", 2),  # asked again behind its own words, without an answer
        ("UWW", 2),  # asked twice, without an answer
        ("USWSAW", 2),
        ("UAWNAW", 2),  # more told, and asked again
        ("UWNAW", 2),
        ("UWNWA", 2),
        ("USNSAW", 2),  # told while the answer was awaited: sent with it
        ("USNAW", 1),  # told while the answer was awaited: it came
        ("UWAUWA", 2),
    ],
)
def test_each_request_counts_once_in_whatever_order_the_log_tells(order: str, count: int) -> None:
    entries = thread(order)
    assert Assembly(Policy(model=TARGET)).extend(entries).requests == count
    assert len(list(requests(entries, Policy(model=TARGET)))) == count


@pytest.mark.parametrize("order", ["UAWNAW", "UWNAW", "UAWA", "UWNWA", "USNSAW", "USAWU", "UWU", "USWNSWN", "USNSWN"])
def test_nothing_that_was_not_sent_comes_between(order: str) -> None:
    """What a request said begins every later one, and a thread read anew gives the same bytes as one that lived."""
    assembly, lived, before = Assembly(Policy(model=TARGET)), providers.rendering(TARGET), b""
    for entry in thread(order + "U"):
        if assembly.asks(entry):
            before = _checked(assembly, lived, before)
        assembly.feed(entry)
    _checked(assembly, lived, before)


def _checked(assembly: Assembly, lived: providers.Rendering, before: bytes) -> bytes:
    prompt = assembly.request().prompt
    request = lived.request(prompt)
    assert request.lines == providers.render(prompt, TARGET).lines
    assert request.prefix.startswith(before)
    assert _continued(request.body) == sum(
        one.role == other.role == "assistant" for one, other in zip(prompt.messages, prompt.messages[1:], strict=False)
    ) + (prompt.messages[-1].role == "assistant")
    return request.prefix


def _continued(body: JsonObject) -> int:
    texts = [block.get("text") for message in body["messages"] for block in message["content"]]
    return texts.count("(continue)")
