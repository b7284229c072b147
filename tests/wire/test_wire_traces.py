"""Recorded conversations, assembled and rendered request by request for every wire format."""

import pytest

from conftest import TRACES, traces
from quire.assemble import Policy, Refused, requests
from quire.entry import chain
from quire.providers import import_, render, rendering, split_target
from quire.providers.rules import errors, validate

TARGETS = (
    "openai-chat:gpt-4.1-mini openai:gpt-6-sol anthropic:claude-opus-5-5 gemini:gemini-3.8-flash "
    "bedrock:us.anthropic.claude-opus-5-5-v1:0 mistral:mistral-large-latest"
).split()


@pytest.mark.parametrize("name", TRACES[:5])
@pytest.mark.moves_prefix(reason="a budget that bites makes epochs")
def test_every_request_of_a_recorded_conversation_is_legal_and_extends_the_one_before(name: str) -> None:
    for trace in traces(name)[:2]:
        entries = chain(import_("openai-chat", trace))
        made = [one for one in requests(entries, Policy(budget=16_000)) if not isinstance(one, Refused)]
        for target in TARGETS:
            provider, model = split_target(target)
            steps = rendering(target)
            epoch, before = 0, b""
            for place, built in enumerate(made):
                request = steps.request(built.prompt)
                assert built.epoch != epoch or request.prefix.startswith(before), (target, built.turn)
                epoch, before = built.epoch, request.prefix
                if place % 20 == 0:
                    assert errors(validate(request.body, provider, model)) == [], (target, built.turn)
                    assert render(built.prompt, target) == request
