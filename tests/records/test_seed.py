"""The clean format's worked example end to end: its second message, byte for byte, from a store with hundreds of distracting messages."""

import json
import random

import pytest

from quire.errors import CallError
from quire.formats import clean
from quire.records import Builder, Records, keep_catalog, react
from records.chatter import CONVERSATION, GOLDEN, REQUEST, chatter, say
from toolbox import Store

MESSAGE_2 = (GOLDEN / "message2.txt").read_text()
TOOLS = json.loads((GOLDEN / "tools.json").read_text())
CONFIG = {
    "consumer_id": "default-chat-assistant",
    "consumer_type": "agent",
    "sources": [
        {"schema_name": "user.message.v1", "method": "vector", "nn": 5},
        {"schema_name": "agent.response.v1", "method": "vector", "nn": 5},
        {"schema_name": "tool.response.v1", "method": "recent", "limit": 3},
        {"schema_name": "tool.catalog.v1", "method": "latest"},
    ],
    "update_triggers": [{"schema_name": "user.message.v1"}],
    "formatting": {"max_tokens": 4000, "deduplication_threshold": 0.95},
}


def filled(store: Store, seed: int, pairs: int = 200, tools: bool = True) -> Records:
    """Records with the seed's conversation somewhere among the chatter."""
    records, rng = Records(store), random.Random(seed)
    if tools:
        keep_catalog(records, TOOLS)
    talk = list(chatter(rng, pairs))
    at = 2 * rng.randint(0, pairs)
    for speaker, text in [*talk[:at], *CONVERSATION, *talk[at:]]:
        say(records, speaker, text)
    return records


@pytest.mark.parametrize("seed", range(3))
def test_the_request_gives_message_2_of_the_seed_built_directly_kept_or_triggered(seed: int, store: Store) -> None:
    records = filled(store, seed)
    assert len(records.list()) == 407
    records.create("context.config.v1", CONFIG)
    unsaved = Builder(CONFIG).build(records, request=REQUEST)
    message = say(records, "user", REQUEST)
    saved = Builder(CONFIG).build(records, request=REQUEST)
    triggered = Builder(CONFIG).build(records, trigger=message)
    assert unsaved.text == saved.text == triggered.text == MESSAGE_2
    (output,) = react(records, message).outputs
    shown = records.read(output.id).context
    # The consumer's own last step.
    assert clean.with_request(shown["formatted_context"], shown["request"]) == MESSAGE_2
    assert shown["formatted_context"] + "\n\n# Current Request\n" + shown["request"] == MESSAGE_2


def test_a_consumer_that_formats_by_hand_gets_the_same_bytes(store: Store) -> None:
    """The seed's fallback: search, take the catalog's tool_list, join the sections."""
    records = filled(store, 4, pairs=50)
    catalog = records.read("rec-1").context
    lines = [f"{who.capitalize()}: {text}" for who, text in CONVERSATION]
    sections = ["# Available Tools\n" + catalog["tool_list"], "\n".join(["# Relevant Conversation", *lines])]
    by_hand = "\n\n".join([*sections, "# Current Request\n" + REQUEST])
    assert by_hand == MESSAGE_2
    assert catalog["available_tools"] == [tool["name"] for tool in TOOLS]


def test_a_conversation_keeps_to_its_session(store: Store) -> None:
    """Messages of another session stand between the seed's lines in the file, not in the text."""
    records = Records(store)
    keep_catalog(records, TOOLS)
    other = chatter(random.Random(1), 100)
    for speaker, text in CONVERSATION:
        say(records, speaker, text, tags=["session:a"])
        for _ in range(6):
            say(records, *next(other), tags=["session:b"])
    message = say(records, "user", REQUEST, tags=["session:a"])
    assert Builder(CONFIG).build(records, trigger=message).text == MESSAGE_2


def test_what_was_said_after_the_request_is_not_shown_with_it(store: Store) -> None:
    records = filled(store, 2, pairs=30)
    message = say(records, "user", REQUEST)
    say(records, "assistant", "The API key is in the vault")
    say(records, "user", "Which API key do you mean?")
    assert Builder(CONFIG).build(records, trigger=message).text == MESSAGE_2


def test_sources_by_one_schema_bring_the_whole_exchange(store: Store) -> None:
    config = {**CONFIG, "sources": [CONFIG["sources"][0], CONFIG["sources"][3]]}  # type: ignore[index]
    assert Builder(config).build(filled(store, 5), request=REQUEST).text == MESSAGE_2


def test_a_search_finds_the_messages_the_seed_speaks_of(store: Store) -> None:
    records = filled(store, 7)
    found = records.search(REQUEST)
    texts = {text for _, text in CONVERSATION}
    assert len(found) == 5
    assert [hit.record.context.get("content", hit.record.context.get("message")) in texts for hit in found[:3]] == [
        True, True, True,
    ]  # fmt: skip
    head = found[0].to_json()
    assert list(head) == ["id", "schema_name", "title", "tags", "version", "score", "relevance", "parts"]
    (whole,) = records.search(REQUEST, nn=1, include_context=True)
    assert whole.to_json() == {**head, "context": found[0].record.context}
    assert [hit.record.schema_name for hit in records.search("api key", schema_name="agent.response.v1", nn=1)] == [
        "agent.response.v1"
    ]
    assert records.search("xylophone") == []
    with pytest.raises(CallError, match="nn is at least 1"):
        records.search("x", nn=0)
