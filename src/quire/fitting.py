"""Messages in, messages out: the engine for those who keep their history themselves.

    messages = quire.fit(messages, budget=100_000, target="anthropic:claude-opus-5-5")

Nothing is stored. What is cut follows from the messages alone, so that calls with a growing list extend each other
until the budget forces a cut. A `Fitter` does the same for one conversation and reads only what is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from quire import providers
from quire.assemble import Assembly, Built, Policy
from quire.entry import result_text
from quire.errors import FormatError, NotFound
from quire.log.hashing import chain
from quire.providers.prefix import written
from quire.providers.wires import FORMATS, Wire, format_of, wire_of
from quire.thread_state import policy_for
from quire.values import Entry, Json, JsonObject, LeftOut

# A list of messages, or a request's whole body.
Given = TypeVar("Given", bound="Sequence[Any] | Mapping[str, Any]")


def fit(given: Given, budget: int = 0, target: str = "", **policy: Any) -> Given:
    """The messages, or the request body, inside the budget and in the form they came in.

    The form is seen from the messages: OpenAI Chat or Responses, Anthropic, Gemini, Bedrock, Cohere, LangChain's
    objects. `target` ("provider:model") says whose tokens, window and prices count; without a budget its window does.
    A body's system prompt and tools are counted. What else there is to choose is named by `Policy`: `floor=0.3`.
    """
    return Fitter(budget, target, **policy).fit(given)


class Fitter:
    """Fits one growing conversation again and again, reading only what is new: the same as `fit`, and quicker.

    `built` tells what was decided last: `built.epoch`, `built.tokens`, `built.rebase`; `left_out` what went, and why.
    """

    def __init__(self, budget: int = 0, target: str = "", **policy: Any) -> None:
        self._target = target
        self._choices = {**policy, **({"budget": budget} if budget else {})}
        self._entries: list[Entry] = []
        # As they were read: a message that the caller changes in place is another one.
        self._read: list[bytes] = []
        self._assembly: Assembly | None = None
        self.built: Built | None = None

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What the newest call left out: the number of the entry, and why."""
        return self.built.left_out if self.built is not None else ()

    def fit(self, given: Given) -> Given:
        """The messages inside the budget; a list that does not extend the one before begins anew."""
        value = _as_json(given)
        form = recognise(value, self._target)
        named = value.get("model") if isinstance(value, dict) else ""
        target = self._target or f"{_wire(form).name}:{named or ''}"
        assembly = self._follow(providers.import_(form, value), target)
        self.built = assembly.request()
        if self.built.epoch == 1:
            return given  # nothing is cut: as it came, to the byte
        return cast(Given, _in_form(self.built, form, target, given))

    def original(self, handle: str) -> str:
        """The whole text behind a handle that a cut message names."""
        for entry in self._entries:
            if len(handle) >= 6 and entry.id.removeprefix("sha256:").startswith(handle):
                return result_text(entry) if entry.kind == "result" else entry.text
        raise NotFound(f"no message has the handle {handle!r}", hint="Give it as the cut message names it.")

    def _follow(self, entries: list[Entry], target: str) -> Assembly:
        """The conversation with what is new fed to it; where it is another than before, all of it."""
        known, before = len(self._entries), self._read
        self._read = [written(entry.body) for entry in entries]
        if self._assembly is None or self._read[:known] != before:
            own = Policy(**self._choices) if "budget" in self._choices else None
            self._assembly = Assembly(policy_for(target, own, **({} if own else self._choices)))
            self._entries, known = [], 0
        last = self._entries[-1] if self._entries else Entry("note", {})
        for entry in chain(entries[known:], last.id, last.seq):
            self._assembly.feed(entry)
            self._entries.append(entry)
        return self._assembly


# Which form a conversation is in, and how it goes back into it.

_BY_FIELD = {"contents": "gemini", "input": "openai-responses"}
_BEDROCK_FIELDS = frozenset({"modelId", "toolConfig", "inferenceConfig"})
_LANGCHAIN = frozenset({"human", "ai", "HumanMessage", "AIMessage", "SystemMessage", "ToolMessage"})
_BY_BLOCK = {
    **dict.fromkeys(
        ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"), "anthropic"
    ),
    **dict.fromkeys(("image_url", "input_audio", "file", "refusal"), "openai-chat"),
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), "openai-responses"),
}


def recognise(value: Json, target: str = "") -> str:
    """The format of a list of messages or of a request's body; what could be several is the target's."""
    usual = wire_of(target).name if target else "openai-chat"
    if isinstance(value, dict):
        for field, form in _BY_FIELD.items():
            if field in value:
                return form
        if not _BEDROCK_FIELDS.isdisjoint(value):
            return "bedrock"
        if isinstance(value.get("system"), str):
            return "anthropic"
        value = value.get("messages")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise FormatError(
            "no list of messages",
            hint="Give a list of messages, or a request's body: " + ", ".join(FORMATS) + ".",
        )
    found = next(filter(None, map(_form_of, value)), usual)
    return usual if found == "openai-chat" and usual == "cohere" else found


def _form_of(message: JsonObject) -> str:
    """The only form that a message can be in; empty where it could be in several."""
    kind = (
        message.get("type") or (message.get("id") or [""])[-1] if message.get("lc") else message.get("type")
    )
    if "parts" in message:
        return "gemini"
    if kind in _LANGCHAIN or "data" in message:
        return "langchain"
    if kind:
        return "openai-responses"
    if "tool_calls" in message or message.get("role") in ("tool", "system", "developer"):
        return "openai-chat"
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and "type" not in block:
            return "bedrock"
        form = _BY_BLOCK.get(str(block.get("type"))) if isinstance(block, dict) else None
        if form:
            return form
    return ""


def _wire(form: str) -> Wire:
    """The wire format that a form is written in before it is put into its own words."""
    found = format_of(form)
    return found if isinstance(found, Wire) else wire_of(found.like or "openai-chat")


def _as_json(given: Any) -> Json:
    """Messages as JSON; LangChain's objects as it writes them down itself."""
    if isinstance(given, Mapping):
        return dict(given)
    listed = list(given)
    if listed and type(listed[0]).__module__.startswith("langchain"):
        from langchain_core.messages import messages_to_dict

        return messages_to_dict(listed)
    return listed


def _in_form(built: Built, form: str, target: str, given: Any) -> Any:
    """What is left of a conversation, as it came: a list, a body, LangChain's objects."""
    wire = _wire(form)
    same_wire = wire_of(target).name == wire.name
    body = providers.rendering(target if same_wire else f"{wire.name}:").request(built.prompt).body
    messages = body[wire.layout.field]
    if form == "langchain":
        messages = providers.export(form, providers.import_(wire.name, messages))
        if not isinstance(given[0], Mapping):
            from langchain_core.messages import messages_from_dict

            messages = messages_from_dict(messages)
    return {**given, wire.layout.field: messages} if isinstance(given, Mapping) else messages
