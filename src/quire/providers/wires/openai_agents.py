"""OpenAI Agents SDK: a run's items (`result.to_input_list()`, a session's items) are the Responses API's items."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.providers.wires import Format, openai_responses
from quire.values import Entry, Json

FORMAT = "openai-agents"


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of items."""
    return openai_responses.import_messages(value, model, format=FORMAT)


def export_messages(entries: Iterable[Entry]) -> Json:
    """The items of a thread, imported ones as they came."""
    return openai_responses.export_messages(entries, format=FORMAT)


WIRE = Format(name=FORMAT, imports=import_messages, exports=export_messages, like=openai_responses.FORMAT)
