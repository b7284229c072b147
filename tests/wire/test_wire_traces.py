"""Recorded Chat conversations go in as entries and come out as they were."""

from __future__ import annotations

import json

import pytest

from conftest import shared_data
from quire.log.entries import check
from quire.providers import openai_chat

FILES = [
    "pi_large_session",
    "swe_agent",
    "tau2_airline",
    "tau_retail_gemini",
    "tau_retail_gpt41mini",
    "tau_retail_o4mini",
]


@pytest.mark.parametrize("name", FILES)
def test_an_imported_conversation_is_exported_verbatim(name: str) -> None:
    for line in shared_data(f"traces/{name}.jsonl").read_text().split("\n"):
        if line:
            trace = json.loads(line)
            entries = [check(entry.body) for entry in openai_chat.import_messages(trace)]
            assert openai_chat.export_messages(entries) == trace["messages"]
