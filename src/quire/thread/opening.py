"""Where a thread begins: the store with its indexes, and the policy that fits a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from quire.assemble import Policy
from quire.log.sqlite import SqliteStore
from quire.providers.models import ModelInfo, model_info


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


def _of_model(target: str, info: ModelInfo) -> dict[str, Any]:
    return {
        "model": target,
        "read": info.r,
        "write": info.w,
        "ttl_s": info.ttl_s[0] if info.ttl_s else None,
        "late_tools": bool(info.features.late_tools),
        "thinking": info.wire != "openai-chat" or info.features.reasoning_content != "never",
    }
