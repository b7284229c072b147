"""OpenAI Agents SDK: a run's items (`result.to_input_list()`, a session's items) are the Responses API's items."""

from __future__ import annotations

from functools import partial

from quire.providers.wires import Format
from quire.providers.wires.openai_responses.read import export_messages, import_messages
from quire.providers.wires.openai_responses.write import FORMAT

WIRE = Format(
    name="openai-agents",
    imports=partial(import_messages, format="openai-agents"),
    exports=partial(export_messages, format="openai-agents"),
    like=FORMAT,
)
