"""OpenAI Chat Completions, and the many servers that speak it with small differences."""

from quire.providers.openai_chat.convert import FORMAT, export_messages, import_messages
from quire.providers.openai_chat.render import Dialect, render

__all__ = ["FORMAT", "Dialect", "export_messages", "import_messages", "render"]
