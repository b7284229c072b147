"""LoCoMo conversations as threads, their questions, and evidence recall as the paper counts it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from quire import values
from quire.values import Entry

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "locomo" / "locomo_dev4.json"
KS = (5, 10, 25, 50)
CATEGORIES = {4: "single-hop", 1: "multi-hop", 2: "temporal", 3: "open-domain", 5: "adversarial"}
# The paper's Table 3, DRAGON over dialogs, all ten conversations.
DRAGON = {
    "overall": (56.7, 66.2, 76.7, 82.7),
    "single-hop": (68.0, 77.7, 87.1, 91.1),
    "multi-hop": (35.4, 46.6, 62.5, 73.0),
    "temporal": (70.4, 77.3, 83.5, 89.6),
    "open-domain": (33.1, 40.8, 52.6, 61.7),
    "adversarial": (43.9, 54.7, 66.3, 72.5),
}


class Turn(msgspec.Struct, frozen=True):
    id: str
    speaker: str
    text: str
    caption: str
    session: str
    at: int | None
    when: str


class Question(msgspec.Struct, frozen=True):
    text: str
    # Positions of the turns that hold the answer.
    evidence: frozenset[int]
    category: str


class Conversation(msgspec.Struct, frozen=True):
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]
    # Evidence that names no turn of the conversation.
    skipped: int


def load(*files: Path) -> list[Conversation]:
    """The conversations of files in LoCoMo's form: a list of them, or a single one."""
    return [_conversation(conversation) for file in files or (DATA,) for conversation in raw_conversations(file)]


def raw_conversations(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        raise SystemExit(f"LoCoMo is not here ({file.name}); pass --data FILE")
    found = json.loads(file.read_text())
    some = found if isinstance(found, list) else [found]
    if not all(isinstance(one, dict) and {"conversation", "qa"} <= one.keys() for one in some):
        raise SystemExit(f"{file.name} holds no conversations in LoCoMo's form (conversation, qa)")
    return some


def _conversation(raw: dict[str, Any]) -> Conversation:
    said = raw["conversation"]
    names = sorted((key for key in said if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:]))
    turns = tuple(_turn(one, name, said.get(f"{name}_date_time", "")) for name in names for one in said[name])
    places = {turn.id: place for place, turn in enumerate(turns)}
    questions, skipped = [], 0
    for qa in raw["qa"]:
        found = [places.get(id) for text in qa.get("evidence") or () for id in _ids(text)]
        skipped += found.count(None)
        evidence = frozenset(place for place in found if place is not None)
        if evidence:
            questions.append(Question(qa["question"], evidence, CATEGORIES.get(qa["category"], "other")))
    return Conversation(turns, tuple(questions), skipped)


def _turn(raw: dict[str, Any], session: str, when: str) -> Turn:
    caption = raw.get("blip_caption") or ""
    return Turn(raw["dia_id"], raw["speaker"], raw.get("text") or "", caption, session, _moment(when), when)


def _ids(text: str) -> list[str]:
    """Turn ids in a piece of evidence, some of which are malformed: "D8:6; D9:17", "D:11:26", "D30:05"."""
    found: list[str] = []
    for part in re.split(r"[;,\s]+", str(text)):
        match = re.fullmatch(r"D:?(\d+):0*(\d+)", part)
        found += [f"D{match[1]}:{match[2]}"] if match else [part] if part else []
    return found


def _moment(when: str) -> int | None:
    """Milliseconds of "1:56 pm on 8 May, 2023"."""
    try:
        return int(datetime.strptime(when, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def entries(conversation: Conversation) -> list[Entry]:
    """A conversation as the entries of a thread: the first speaker as user, everyone by name."""
    first = conversation.turns[0].speaker if conversation.turns else ""
    return [
        (values.user if turn.speaker == first else values.respond)(turn.text, at=turn.at, meta=_meta(turn))
        for turn in conversation.turns
    ]


def _meta(turn: Turn) -> dict[str, str]:
    meta = {"speaker": turn.speaker, "session": turn.session}
    return {**meta, "caption": turn.caption} if turn.caption else meta


# (conversation, its number, a question) -> positions of turns, best first.
Rank = Callable[[Conversation, int, Question], Sequence[int]]


def measure(conversations: Iterable[Conversation], rank: Rank) -> dict[str, list[float]]:
    """Recall@5/10/25/50 in percent, overall and per category: the mean over questions of the share found."""
    found: dict[str, list[list[float]]] = {}
    for number, conversation in enumerate(conversations):
        for question in conversation.questions:
            order = list(rank(conversation, number, question))
            shares = [len(question.evidence.intersection(order[:k])) / len(question.evidence) for k in KS]
            for name in ("overall", question.category):
                found.setdefault(name, []).append(shares)
    return {name: [100 * sum(column) / len(rows) for column in zip(*rows, strict=True)] for name, rows in found.items()}
