"""Hundreds of distracting messages: small talk, other topics, and near misses that share one word with the seed's."""

import random
from collections.abc import Iterator
from pathlib import Path

from quire.records import Record, Records

GOLDEN = Path(__file__).parent.parent / "golden" / "records"
REQUEST = "What was that API key?"
CONVERSATION = [
    ("user", "I need to set up my OpenRouter API key"),
    ("assistant", "You can set the OPENROUTER_API_KEY in the secrets configuration"),
    ("user", "Where exactly is that?"),
    ("assistant", "Use the dashboard at http://localhost:8082 or the breadcrumb-crud tool"),
    ("user", "What was that API key format again?"),
    ("assistant", "OpenRouter keys start with sk-or-v1- followed by your unique token"),
]
# (question, answer); each shares at most one telling word with the request.
NEAR = [
    ("okay", "Is there anything else?"),
    ("thanks", "You are welcome!"),
    ("sure", "Great."),
    ("there you go", "I'm not sure what you'd like me to do"),
    ("I'll change that", "Tell me when it is done."),
    ("What was that?", "I did not say anything."),
    ("What was that phone number?", "It ends in four two."),
    ("What was my password?", "I cannot see passwords."),
    ("My API returns a 500 error", "Look at the server's log first."),
    ("What is an API?", "A way for programs to talk to each other."),
    ("We hit the API rate limit again", "Wait a minute and retry."),
    ("Where are my car keys?", "Maybe in your coat."),
    ("Which keyboard shortcut opens the console?", "Control and backtick."),
    ("What was the key takeaway of that meeting?", "That we ship on Friday."),
    ("Please rotate the SSH key on the server", "Done, the old one is revoked."),
    ("Where exactly is the restaurant?", "Next to the station."),
    ("What format should the date be in?", "Year, month, day."),
    ("How do I open the dashboard?", "It is pinned in your browser."),
]
PEOPLE = ["Ana", "Ben", "Chloe", "Dev", "Edith", "Farid", "Gus", "Hana", "Ivo", "Jun"]
PLACES = ["the market", "the harbour", "Lisbon", "the library", "the north gate", "the old mill", "Graz"]
THINGS = ["the invoice", "a bicycle", "the train tickets", "the garden", "the slides", "a birthday cake", "the roof"]


def chatter(rng: random.Random, pairs: int) -> Iterator[tuple[str, str]]:
    """So many questions with their answers."""
    for _ in range(pairs):
        if rng.random() < 0.2:
            question, answer = rng.choice(NEAR)
        else:
            who, where, what = rng.choice(PEOPLE), rng.choice(PLACES), rng.choice(THINGS)
            day = rng.randint(1, 28)
            question = rng.choice([f"Did {who} bring {what} to {where}?", f"When does {who} need {what}?"])
            answer = rng.choice([f"Yes, on the {day}th.", f"{who} takes it to {where} on the {day}th."])
        yield "user", question
        yield "assistant", answer


def say(records: Records, speaker: str, text: str, **fields: object) -> Record:
    """Keep one message as the record it would be."""
    if speaker == "user":
        return records.create("user.message.v1", {"content": text}, **fields)  # type: ignore[arg-type]
    return records.create("agent.response.v1", {"message": text}, **fields)  # type: ignore[arg-type]
