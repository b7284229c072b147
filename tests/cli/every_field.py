"""A thread with every field that something reads, to be changed field by field."""

from typing import Any

from toolbox import Place, places, put


def _meta(source: str, **more: Any) -> dict[str, Any]:
    return {"source": source, **more}


def _chat(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"format": "openai-chat", "message": message, **more}


_ABOUT = _meta("active_note", path="n.md", title="N", images=[{"url": "https://x/y.png"}])
NOTE = {"id": "n.md", "type": "text", "content": "NOTE", "metadata": _ABOUT, "timestamp": 1}
SELECTION = {"id": "p", "content": "P", "metadata": _meta("selection", path="p", start_line=1, end_line=2)}
PAGE = {"content": "C", "metadata": _meta("url", url="https://x", pin=True)}
IMAGES = [{"media_type": "image/png", "data": "AAAA", "caption": "c"}, "https://x/z.png"]
SAID = {
    "speaker": "Ada",
    "session": "s",
    "caption": "c",
    "composer": "c",
    "context": {"tags": ["#t"], "folders": ["f"]},
}
RECALLED = {"pins": [1], "recalled": "r", "recalled_ids": ["sha256:0"]}
TOOL = {"name": "t", "description": "d", "parameters": {"type": "object"}, "output": ["o"], "example": "e"}
SEARCH = {"format": "anthropic", "own": {"t": {"type": "web_search", "name": "t"}}, "tools": [TOOL]}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
ASKED = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
CALLING = _chat({"role": "assistant", "content": "", "tool_calls": [ASKED]}, block={"arguments": "{}"})
FOUND = {"placement": "context", "shown": ["q"], "sources": [{"path": "p"}]}
MODEL = {"provider": "anthropic", "model": "claude-opus-5-5"}
SENT = {"kind": "sent", **MODEL, "request_sha256": "", "segments": [""]}
USED = {"usage": {"input_total": 100, "cache_read": 50, "output": 5}, "cost": 0.1, "stop": "end", "wire": {"id": "m1"}}
CUT = {"before_seq": 4, "freed": 10, "summary": "so far", "library": []}
EDITS = [{"entry": 11, "action": "handle", "replacement": "[handle]", "freed": 5}, {"entry": 8, "action": "drop"}]

THREAD: list[dict[str, Any]] = [
    {"kind": "system", "text": "SYS", "wire": _chat({"role": "system", "content": "SYS"})},
    {"kind": "tools", "tools": [TOOL], "meta": {"replace": True}, "wire": SEARCH},
    {"kind": "attach", "item": NOTE, "meta": {"pin": "NOTE"}},
    {"kind": "user", "text": "q1", "at": 1000, "attach": [SELECTION, PAGE], "images": IMAGES, "meta": RECALLED | SAID},
    {"kind": "call", "call_id": "k", "name": "find", "args": {"q": "x"}, "meta": FOUND},
    {"kind": "result", "call_id": "k", "outcome": "ok", "content": "found", "error": False},
    {**SENT, "at": 2000, "meta": {"policy": {"budget": 5000, "reply": 0, "promote": "each-turn"}}},
    {"kind": "think", "text": "hm", "wire": {"format": "anthropic", "model": "claude-opus-5-5", "block": THOUGHT}},
    {"kind": "call", "call_id": "c", "name": "t", "args": {"a": 1}, "wire": CALLING},
    {**SENT, "at": 3000, **USED},
    {"kind": "result", "call_id": "c", "content": "result " * 30, "wire": _chat({"role": "tool", "tool_call_id": "c", "content": "x"})},
    {"kind": "respond", "text": "a1", "wire": {"format": "openai-chat", "more": True}},
    {"kind": "note", "text": "be brief", "wire": {"effort": "high"}, "meta": {"pin": True}},
    {"kind": "rebase", "reason": "budget", **CUT, "edits": EDITS, "meta": {"opening": 1, "pinned": ["words"], "fallbacks": []}},
    {"kind": "user", "text": "q2", "at": 9000},
    {"kind": "respond", "text": "a2"},
    {"kind": "user", "text": "q3"},
]  # fmt: skip

# One of each kind of JSON, and what is read as markup, a place or a number.
ODD: list[Any] = [None, True, 0, -1, 5, 1.5, 10**30, "", "x", "[/bold]", [], [5], [[1]], [{}], ["x"], {}]
ODD += [{"a": 1}, [None]]


PLACES = [path for path in places(THREAD) if len(path) > 1 and path[-1] != "kind"]


def changed(path: Place, value: Any) -> list[dict[str, Any]]:
    """The thread with another value at one place."""
    thread: list[dict[str, Any]] = put(THREAD, path, value)
    return thread
