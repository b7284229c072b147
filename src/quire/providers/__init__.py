"""One prompt, every provider's request: wire formats by name, and a reply's entries back.

`render(prompt, "anthropic:claude-opus-5-5")` gives the body for the official SDK's call. Everything here is
pure: sending is for `quire.send`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from quire.errors import CallError, nearest
from quire.log.shapes import short
from quire.providers.incoming import Partial
from quire.providers.models import ModelInfo, model_info, split_target
from quire.providers.prefix import prefix_bytes, prefix_parts
from quire.providers.rendering import Options, Rendering
from quire.providers.wires import FORMATS, format_of, parse_reply, stream, wire_of
from quire.values import SPOKEN, Entry, Json, JsonObject, Prompt, Request, RequestOptions
from quire.values import tools as define_tools

if TYPE_CHECKING:
    from quire.providers.cache_marks import Marker

__all__ = [
    "FORMATS", "ModelInfo", "Options", "Partial", "Rendering", "ask", "export", "http_body", "import_",
    "marked", "marker", "model_info", "parse_reply", "prefix_bytes", "prefix_parts", "render", "rendering",
    "request_options", "sdk_kwargs", "split_target", "stream", "tool_entries",
]  # fmt: skip


def render(
    prompt: Prompt,
    target: str,
    *,
    cache: bool = False,
    key: str = "",
    max_tokens: int = 0,
    effort: str = "",
    **extra: Json,
) -> Request:
    """The request for "provider:model"; `extra` goes into the body as it is, `cache` adds cache marks.

    Without `max_tokens` a reply is as long as the model makes it, or as the provider's format needs one to be said.
    """
    request = rendering(target, ask(key, max_tokens, effort, **extra)).request(prompt)
    return marked(request, prompt) if cache else request


def ask(key: str = "", max_tokens: int = 0, effort: str = "", **extra: Json) -> Options:
    """What the caller wants of the reply; `extra` goes into the body as it is."""
    return Options(max_tokens or None, effort, key, extra)


def request_options(fields: Mapping[str, Json]) -> RequestOptions:
    """The options among the fields of a body; those that only one provider knows go under `extra`.

    {"max_tokens": 5, "logprobs": true} -> {"max_tokens": 5, "extra": {"logprobs": true}}
    """
    named = {name: value for name, value in fields.items() if name in RequestOptions.__annotations__}
    extra = {name: value for name, value in fields.items() if name not in named}
    return cast(RequestOptions, {**named, "extra": {**extra, **named.get("extra", {})}} if extra else named)


# Options that callers look for here, and where each is really set.
_SET_ELSEWHERE = {
    **dict.fromkeys(("max_output_tokens", "max_completion_tokens"), "Write max_tokens=…"),
    **dict.fromkeys(("reasoning_effort", "reasoning"), 'Write effort="high".'),
    "budget": "A thread's policy has the budget: quire.open(path, name, Policy(budget=…)).",
    "tools": "Tools are part of the thread: thread.append(quire.tools([…])).",
    "system": "The system prompt is part of the thread: thread.append(quire.system(…)).",
    "messages": "Messages are part of the thread: thread.user(…); quire.fit(messages) works without a thread.",
    **dict.fromkeys(
        ("stream", "timeout", "extra_headers", "extra_body"), "It belongs to the SDK's call, behind **request.kwargs."
    ),
}


def options_of(options: RequestOptions, key: str) -> Options:
    """The options of a thread's request; a name that is none of them is an error."""
    for name in options.keys() - RequestOptions.__annotations__.keys():
        near = nearest(name, RequestOptions.__annotations__)
        guess = f"Did you mean {near!r}? " if near else ""
        hint = f"{guess}A field of the provider's own goes under extra={{{name!r}: …}}."
        raise CallError(f"request() has no option {name!r}", hint=_SET_ELSEWHERE.get(name, hint))
    further: Json = options.get("extra") or {}
    if not isinstance(further, dict):
        raise CallError(f"extra is an object, not {short(further)}", hint='Write extra={"logit_bias": {…}}.')
    fields: JsonObject = {**options, **further}
    fields.pop("extra", None)
    return Options(fields.pop("max_tokens", None), fields.pop("effort", ""), key, fields)


def rendering(target: str, ask: Options | None = None) -> Rendering:
    """A renderer of one thread's prompts: of each it writes only what the prompt before did not hold."""
    provider = split_target(target)[0]
    return Rendering(wire_of(provider), model_info(target), ask or Options(), provider)


def marker(target: str, rendering: Rendering | None = None) -> Marker:
    """A marker of one thread's requests: of each it looks only at what the request before did not hold."""
    from quire.providers.cache_marks import Marker

    return Marker(model_info(target), rendering.walk if rendering is not None else None)


def marked(request: Request, prompt: Prompt | None = None, by: Marker | None = None, **how: Any) -> Request:
    """The request with cache marks, put there by its thread's marker; its prefix stays what it was."""
    by = by or marker(request.target)
    return by.marked(request, prompt, **how)


def import_(format: str, value: Any, model: str = "") -> list[Entry]:
    """Entries of a conversation in another format."""
    return format_of(format).imports(value, model)


# What only one provider's definition of a tool holds; a name and parameters alone are Quire's own form.
_TOOL_FORMS = {
    "toolSpec": "bedrock",
    "input_schema": "anthropic",
    "function": "openai-chat",
    "functionDeclarations": "gemini",
    "function_declarations": "gemini",
}
_DATED = re.compile(r"_\d{8}$")


def tool_entries(definitions: Iterable[JsonObject]) -> list[Entry]:
    """`tools` entries of definitions in any provider's form, or in Quire's: {"name", "description", "parameters"}."""
    by_form: dict[str, list[JsonObject]] = {}
    for tool in definitions:
        by_form.setdefault(_tool_form(tool), []).append(tool)
    out: list[Entry] = []
    for form, tools in by_form.items():
        if not form:
            usual = {"description": "", "parameters": {"type": "object", "properties": {}}}
            out.append(define_tools([{**usual, **tool} for tool in tools]))
            continue
        body: JsonObject = {wire_of(form).layout.field: [], "tools": tools}
        body = body if form != "bedrock" else {"messages": [], "toolConfig": {"tools": tools}}
        out += import_(form, body)
    return out


def _tool_form(tool: JsonObject) -> str:
    for field, form in _TOOL_FORMS.items():
        if field in tool:
            return form
    kind = tool.get("type")
    if isinstance(kind, str):
        # A provider's own tools: Anthropic's are dated, "web_search_20250305".
        return "anthropic" if _DATED.search(kind) else "openai-responses"
    if "name" in tool:
        return ""
    # Gemini's own tools are objects or lists under their names: {"googleSearch": {}}.
    if not tool or "parameters" in tool or not all(isinstance(own, dict | list | None) for own in tool.values()):
        hint = 'Write {"name": …, "description": …, "parameters": {…}}, or hand over a function.'
        raise CallError(f"a tool's definition has a name; this holds {', '.join(tool)[:60] or 'nothing'}", hint=hint)
    return "gemini"


def export(format: str, entries: Iterable[Entry]) -> Json:
    """A thread in another format; what was imported from it goes out as it came in."""
    return format_of(format).exports(_head_first(list(entries)))


def _head_first(entries: list[Entry]) -> list[Entry]:
    """A system prompt that came before the model had spoken was sent in front of everything."""
    spoke = next((n for n, entry in enumerate(entries) if entry.kind in (*SPOKEN, "sent")), len(entries))
    at = next((n for n, entry in enumerate(entries[:spoke]) if entry.kind == "system"), None)
    if at is None or not {"message", "more"}.isdisjoint(entries[at].wire):
        return entries
    return [entries[at], *entries[:at], *entries[at + 1 :]]


def http_body(request: Request) -> JsonObject:
    """The JSON to post: what the OpenAI SDK takes under `extra_body` is part of it."""
    body = {key: value for key, value in request.body.items() if key != "extra_body"}
    return {**body, **(request.body.get("extra_body") or {})}


def sdk_kwargs(request: Request) -> dict[str, Any]:
    """The keyword arguments of the official SDK's call."""
    return wire_of(request.provider).call.sdk_kwargs(request)
