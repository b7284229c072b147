"""Recorded conversations, assembled and rendered request by request for every wire format."""

import json

import pytest

from conftest import shared_data
from quire.assemble import Policy, Refused, requests
from quire.log.hashing import chain
from quire.providers import import_, render, rendering, split_target
from quire.providers.rules import errors, validate

TARGETS = (
    "openai-chat:gpt-4.1-mini openai:gpt-6-sol anthropic:claude-opus-5-5 gemini:gemini-3.8-flash "
    "bedrock:us.anthropic.claude-opus-5-5-v1:0 mistral:mistral-large-latest"
).split()
FILES = ["pi_large_session", "swe_agent", "tau2_airline", "tau_retail_gemini", "tau_retail_gpt41mini"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.moves_prefix(reason="a budget that bites makes epochs")
def test_every_request_of_a_recorded_conversation_is_legal_and_extends_the_one_before(name: str) -> None:
    for line in shared_data(f"traces/{name}.jsonl").read_text().split("\n")[:2]:
        if not line:
            continue
        entries = chain(import_("openai-chat", json.loads(line)))
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
