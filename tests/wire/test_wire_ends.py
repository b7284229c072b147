"""What a request said stays as it was said, in every wire format, whoever speaks next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import providers, values
from quire.assemble import Assembly
from quire.engine import policy_for
from quire.log.hashing import chain
from quire.providers.rules import validate
from quire.values import Entry

TARGETS = (
    "openai-chat:gpt-5",
    "openai-responses:gpt-5",
    "anthropic:claude-opus-5-5",
    "anthropic:claude-opus-4-1",
    "gemini:gemini-2.5-pro",
    "bedrock:anthropic.claude-opus-5-5-v1:0",
    "llamacpp:local",
    "mistral:mistral-large-latest",
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


def prefixes(target: str, steps: list[str]) -> Iterator[tuple[bytes, bool]]:
    """The prefix of each request that is really sent, and whether a rebase explains what moved."""
    assembly, keeps = Assembly(policy_for(target)), providers.rendering(target)
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
            assert providers.render(built.prompt, target).lines == request.lines
            assert validate(request) == []
            yield request.prefix, built.rebase is not None
            append(*([Entry("rebase", built.rebase)] if built.rebase else []), sent(target))
        append(*told(kind, number))


@pytest.mark.parametrize("target", TARGETS)
@given(st.lists(st.sampled_from(["user", "note", "respond", "call", "empty"]), max_size=12))
def test_a_request_extends_the_one_before_it_whoever_spoke_since(target: str, steps: list[str]) -> None:
    before = b""
    for prefix, rebased in prefixes(target, steps):
        assert rebased or prefix.startswith(before)
        before = prefix
