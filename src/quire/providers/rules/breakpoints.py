"""OpenAI's cache marks and options: on which blocks, models and with which values (row 26 and A4)."""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.facts import data
from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.shape import obj, objects
from quire.values import Json, JsonObject

_MARK = "prompt_cache_breakpoint"
_OWNERS = frozenset({"openai", "azure"})


def breakpoints(check: Check) -> Iterator[Finding]:
    """Row 26 and A4."""
    marked = [(path, block) for path, block in _blocks(check) if block.get(_MARK) is not None]
    for path, block in marked:
        allowed = _allowed(check, path)
        if block.get("type") not in allowed:
            what = _what(block)
            yield found("B2.26", path, what=what, allowed=", ".join(allowed) or "an input block")
        else:
            yield from _mark_values(block[_MARK], f"{path}.{_MARK}")
    if check.info.provider in _OWNERS:
        yield from _options(check, marked)


def _blocks(check: Check) -> Iterator[tuple[str, JsonObject]]:
    """Everything that could carry a mark: the body, tools, messages or items, and their parts."""
    yield "$", check.body
    yield from objects(check.body.get("tools"), "$.tools")
    yield from objects(check.body.get("instructions"), "$.instructions")
    name = "input" if check.info.wire == "openai-responses" else "messages"
    for path, message in objects(check.body.get(name), f"$.{name}"):
        yield path, message
        for inner in ("content", "output"):
            yield from objects(message.get(inner), f"{path}.{inner}")
        yield from objects(message.get("tool_calls"), f"{path}.tool_calls")


def _allowed(check: Check, path: str) -> list[str]:
    """The block types that can be marked at this place."""
    facts = data("rules")["openai"]
    if ".content[" not in path and ".output[" not in path:
        return []
    if check.info.wire == "openai-responses":
        return list(facts["responses_blocks"])
    return list(facts["chat_assistant_blocks" if _is_assistant(check, path) else "chat_blocks"])


def _is_assistant(check: Check, path: str) -> bool:
    index = int(path.removeprefix("$.messages[").partition("]")[0])
    return obj(check.body["messages"][index]).get("role") == "assistant"


def _what(block: JsonObject) -> str:
    kind = block.get("type") or block.get("role")
    return f"'{kind}'" if isinstance(kind, str) else "this object"


def _mark_values(mark: Json, path: str) -> Iterator[Finding]:
    values = obj(mark)
    if values.get("mode") != "explicit":
        yield _value(f"{path}.mode", values.get("mode"), ["explicit"])
    ttls = data("rules")["openai"]["mark_ttl"]
    if values.get("ttl") is not None and values["ttl"] not in ttls:
        yield _value(f"{path}.ttl", values["ttl"], ttls)


def _options(check: Check, marked: list[tuple[str, JsonObject]]) -> Iterator[Finding]:
    options = check.body.get("prompt_cache_options")
    # A deployment may have any name: only of a listed model is it known that it takes no marks.
    if check.info.known and check.info.engine != "openai-breakpoints":
        yield from (found("A4.model", f"{path}.{_MARK}", name=_MARK) for path, _ in marked)
        if options is not None:
            yield found("A4.model", "$.prompt_cache_options", name="prompt_cache_options")
    facts, chosen = data("rules")["openai"], obj(options)
    for name, values in (
        ("mode", facts["modes"]),
        ("ttl", facts["ttl"].get(check.info.wire, facts["mark_ttl"])),
    ):
        if chosen.get(name) is not None and chosen[name] not in values:
            yield _value(f"$.prompt_cache_options.{name}", chosen[name], values)
    retention, kept = check.body.get("prompt_cache_retention"), check.info.features.retention
    if retention is not None and kept and retention not in kept:
        yield found("A4.retention", "$.prompt_cache_retention", value=retention, values=", ".join(kept))


def _value(path: str, value: Json, values: list[str]) -> Finding:
    return found("A4.options", path, value=value, values=", ".join(values))
