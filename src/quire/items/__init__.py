"""Items: pieces of context with an identity, where they come from, and the window that holds them."""

from quire.items.sources import (
    from_error,
    from_file,
    from_image,
    from_region,
    from_repl,
    from_text,
    from_url,
    identity,
    item,
    kept_id,
)
from quire.items.symbols import from_symbol, read_again
from quire.items.window import Window

__all__ = [
    "Window", "from_error", "from_file", "from_image", "from_region", "from_repl", "from_symbol", "from_text",
    "from_url", "identity", "item", "kept_id", "read_again",
]  # fmt: skip
