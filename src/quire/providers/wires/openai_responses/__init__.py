"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from quire.providers.prefix import (
    Layout,
    Section,
    Unit,
    UnitPart,
    as_block,
    definition,
    listed,
    parts_of,
    schema,
    unmarked_in,
    with_control,
)
from quire.providers.rules.openai_responses import RESPONSES_RULES
from quire.providers.usage import responses_usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.openai_responses.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.openai_responses.write import FORMAT, WRITER
from quire.values import Json, JsonObject


def _other(body: JsonObject) -> str:
    """Whoever says "openai" may mean either format."""
    return "openai-chat" if "messages" in body and "input" not in body else ""


# Where a request keeps what is cached.


def _head(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(listed(body.get("tools"))):
        unit = definition(("tools", index), as_block(tool), str(as_block(tool).get("type") or "tool"))
        # A deferred tool is not in the prompt until the conversation refers to it.
        yield replace(unit, parts=()) if as_block(tool).get("defer_loading") else unit
    if isinstance(body.get("text"), dict) and body["text"].get("format"):
        yield schema(("text", "format"), body["text"]["format"])
    if told := body.get("instructions"):
        parts = tuple(part._replace(markable=False) for part in parts_of(told, "instructions"))
        yield Unit((), "system", "system", told, parts, ({"instructions": told},))


def _items(body: JsonObject) -> Sequence[Json]:
    given = body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) and given else listed(given)


def _item(item: Json, index: int) -> Unit:
    kind = str(item.get("type", "message"))
    # Which side speaks in an item that has no role.
    role = str(
        item.get("role") or ("tool" if kind.endswith("_output") else "" if kind == "message" else "assistant")
    )
    section: Section = "messages"
    if kind == "message":
        parts = parts_of(item.get("content"), "content")
        section = "system" if role in ("system", "developer") else "messages"
    elif isinstance(item.get("output"), list):
        also = {"call_id": item.get("call_id")}
        parts = [part._replace(also=also) for part in parts_of(item["output"], "output")]
    else:
        parts = [UnitPart((), item)]
    compared = unmarked_in(unmarked_in(item, "content"), "output")
    return Unit(("input", index), section, role, item, tuple(parts), (compared,))


def _diagnosed(body: JsonObject, previous_id: str | None) -> JsonObject:
    if not previous_id:
        return body
    options = {**(body.get("prompt_cache_options") or {}), "comparison_response_id": previous_id}
    return {**body, "prompt_cache_options": options}


_CALL = ModelCall(
    sdk="openai",
    method="responses.create",
    streaming={"stream": True},
    path=lambda request, streamed: "/responses",
    version_in_url=True,
    key_prefix="Bearer ",
)

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    layout=Layout(_head, "input", _item, _items),
    read=parse_reply,
    stream=Stream,
    usage=responses_usage,
    mark=with_control,
    diagnosed=_diagnosed,
    rules=RESPONSES_RULES,
    call=_CALL,
    other=_other,
)
