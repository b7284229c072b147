"""What a request said stays as it was said, in every wire format, whoever speaks next."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import providers, values
from quire.assemble import Assembly
from quire.entry import chain
from quire.providers.rules import GrowingCheck, errors, validate
from quire.providers.wires import wire_of
from quire.thread_state import policy_for
from quire.values import Entry, Request
from toolbox import fewer

TARGETS = (
    "openai-chat:gpt-5",
    "openai-responses:gpt-5",
    "anthropic:claude-opus-5-5",
    "anthropic:claude-opus-4-1",
    "gemini:gemini-2.5-pro",
    "bedrock:anthropic.claude-opus-5-5-v1:0",
    "llamacpp:local",
    "mistral:mistral-large-latest",
    "cohere:command-a-03-2025",
)


def told(kind: str, number: int) -> list[Entry]:
    """What one step of a thread adds."""
    match kind:
        case "user":
            return [values.user(f"q{number}")]
        case "note":
            return [values.note(f"n{number}")]
        case "respond":
            return [values.respond(f"a{number}")]
        case "empty":
            return []
        case _:
            return [values.call(f"c{number}", "f", {"n": number}), values.result(f"c{number}", "ok")]


def sent(target: str) -> Entry:
    provider, model = target.split(":", 1)
    body = {"kind": "sent", "provider": provider, "model": model, "request_sha256": "", "segments": []}
    return Entry("sent", {**body, "usage": {"input_total": 0}})


def requests(target: str, steps: list[str]) -> Iterator[tuple[Request, bool]]:
    """Each request that is really sent, and whether a rebase explains what moved."""
    assembly, keeps, checks = Assembly(policy_for(target)), providers.rendering(target), GrowingCheck()
    log = list[Entry]()

    def append(*entries: Entry) -> None:
        for entry in chain(entries, log[-1].id if log else "", len(log)):
            log.append(entry)
            assembly.feed(entry)

    append(values.tools([{"name": "f"}]), values.user("q"))
    for number, kind in enumerate(steps):
        if kind not in ("user", "note"):
            built = assembly.request()
            request = keeps.request(built.prompt)
            assert providers.render(built.prompt, target) == request
            assert errors(validate(request)) == []
            assert checks.of(request) == validate(request)
            yield request, built.rebase is not None
            append(*([Entry("rebase", built.rebase)] if built.rebase else []), sent(target))
        append(*told(kind, number))


threads = st.lists(st.sampled_from(["user", "note", "respond", "call", "empty"]), max_size=12)


@pytest.mark.parametrize("target", TARGETS)
@given(threads)
@fewer(10)
def test_a_request_extends_the_one_before_it_and_says_how_much_it_held(target: str, steps: list[str]) -> None:
    messages = wire_of(target).layout.field
    before = Request("", "", {messages: []})
    for request, rebased in requests(target, steps):
        assert rebased or request.prefix.startswith(before.prefix)
        # What nobody answered is asked once more.
        again = request.prefix == before.prefix and request.stable == before.stable
        assert again or request.stable == (0 if rebased else len(before.body[messages]))
        before = request
