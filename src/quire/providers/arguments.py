"""A call's arguments: the string a model wrote, the value it means, and an object where one is demanded."""

from __future__ import annotations

import json

from quire.values import Json, JsonObject


def parsed_arguments(text: str) -> tuple[Json, JsonObject]:
    """A call's arguments and what `wire` must keep: the string itself, unless it can be written again."""
    if not text:
        return {}, {}
    try:
        args = json.loads(text, parse_constant=_refuse)
        written = compact(args)
        written.encode()  # an escaped lone surrogate parses, but no log can hold it
    except (ValueError, RecursionError):
        return text, {"arguments": text}
    return args, {} if written == text else {"arguments": text}


def compact(value: Json) -> str:
    """JSON as models write arguments: no spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def object_text(args: Json, text: str) -> str:
    """Arguments as the text of a JSON object, for servers that parse them."""
    if not isinstance(args, dict):
        return compact(object_of(args))
    return text or compact(args)


def object_of(args: Json) -> JsonObject:
    """Arguments as an object: what the model wrote instead of one stands under `arguments`."""
    return args if isinstance(args, dict) else {"arguments": args}


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")
