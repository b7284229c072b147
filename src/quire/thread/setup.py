"""Where a thread begins: the store with its indexes, and the policy that fits a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from quire.assemble import Policy
from quire.errors import CallError
from quire.log.sqlite import SqliteStore
from quire.providers.models import ModelInfo, model_info
from quire.tokens import IMAGE_TOKENS
from quire.values import JsonObject

# `[image]`, where a model takes none.
NO_IMAGE_TOKENS = 8


def open_store(path: str | Path) -> SqliteStore:
    """A store whose entries are searchable by words as soon as they are appended."""
    from quire.recall import words_hook
    from quire.records import records_hook

    return SqliteStore(path, hooks=(words_hook(), records_hook()))


def policy_for(target: str, policy: Policy | None = None, **changes: Any) -> Policy:
    """A policy with the model's own window, prices and cache life; what is given wins."""
    info = model_info(target)
    given = policy or Policy(
        budget=info.window or Policy().budget, reply=min(info.max_output, info.window // 8)
    )
    return msgspec.structs.replace(given, **{**_of_model(target, info), **changes})


def changes(target: str, policy: Policy) -> JsonObject:
    """What a policy of one's own decides other than the model's would, as the log keeps it with each request."""
    usual, own = (msgspec.to_builtins(one) for one in (policy_for(target), policy_for(target, policy)))
    return {name: value for name, value in own.items() if value != usual[name]}


def policy_of(sent: JsonObject) -> Policy:
    """The policy that a `sent` entry was built under; its model's own where it names none."""
    usual = policy_for(f"{sent.get('provider')}:{sent.get('model')}")
    named = (sent.get("meta") or {}).get("policy")
    if not isinstance(named, dict):
        return usual
    known = {name: value for name, value in named.items() if name in usual.__struct_fields__}
    try:
        return msgspec.convert({**msgspec.to_builtins(usual), **known}, Policy)
    except (msgspec.ValidationError, CallError):
        return usual  # meta is free: what stands there need not be ours


def _of_model(target: str, info: ModelInfo) -> dict[str, Any]:
    return {
        "model": target,
        "read": info.r,
        "write": info.w,
        "ttl_s": info.ttl_s[0] if info.ttl_s else None,
        "image_tokens": IMAGE_TOKENS if info.features.images else NO_IMAGE_TOKENS,
        "late_tools": bool(info.features.late_tools),
        "thinking": info.wire != "openai-chat" or info.features.reasoning_content != "never",
    }
