"""Running one call of a toolbox, for the tests of tools."""

import asyncio
from typing import Any

from quire import values
from quire.send.tools import Tool, Toolbox


def run(tool: Tool | Toolbox | Any, args: Any = None, name: str = "") -> dict[str, Any]:
    """The result's body of one call."""
    box = tool if isinstance(tool, Toolbox) else Toolbox(tool)
    called = name or next(iter(box)).name
    result = asyncio.run(box.run(values.call("c1", called, {} if args is None else args)))
    return {key: value for key, value in result.body.items() if key not in ("kind", "call_id")}
