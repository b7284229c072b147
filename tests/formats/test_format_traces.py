"""Real conversations, with reused ids, unanswered calls and carriage returns, in every thread format."""

import json

import pytest

from conftest import shared_data
from quire import providers
from quire.formats import clean, protocol_stream, replay

FILES = [
    "pi_large_session",
    "swe_agent",
    "tau2_airline",
    "tau_retail_gemini",
    "tau_retail_gpt41mini",
    "tau_retail_o4mini",
]


@pytest.mark.parametrize("name", FILES)
def test_real_threads_come_back(name: str) -> None:
    for line in shared_data(f"traces/{name}.jsonl").read_text().split("\n"):
        if not line:
            continue
        entries = list(providers.import_("openai-chat", json.loads(line)["messages"]))
        for value in (replay.project(entries), replay.project(entries, None, "§")):
            text = replay.render(value)
            assert replay.parse(text) == value
            assert replay.read(replay.to_json(value)) == value
            assert "".join(event.raw for event in protocol_stream.read(text)) == text
        talk = clean.project_thread(entries)
        assert clean.parse(clean.render(talk)) == talk
