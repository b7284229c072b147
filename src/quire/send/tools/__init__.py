"""Tools: Python functions that a model may call, run with care; whatever goes wrong becomes a result."""

from quire.send.tools.tool import Output, Tool, tool
from quire.send.tools.toolbox import Toolbox

__all__ = ["Output", "Tool", "Toolbox", "tool"]
