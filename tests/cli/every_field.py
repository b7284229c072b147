"""A thread with every field that something reads, to be changed field by field."""

from typing import Any

from toolbox import Place, places, put


def _meta(source: str, **more: Any) -> dict[str, Any]:
    return {"source": source, **more}


def _chat(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"format": "openai-chat", "message": message, **more}


NOTE = {
    "id": "n.md",
    "type": "text",
    "content": "NOTE",
    "metadata": _meta("active_note", path="n.md", title="N", images=[{"url": "https://x/y.png"}]),
    "timestamp": 1,
}
SELECTION = {"id": "p", "content": "P", "metadata": _meta("selection", path="p", start_line=1, end_line=2)}
PAGE = {"content": "C", "metadata": _meta("url", url="https://x", pin=True)}
TOOL = {"name": "t", "description": "d", "parameters": {"type": "object"}, "output": ["o"], "example": "e"}
MODEL = {"provider": "anthropic", "model": "claude-opus-5-5"}
SENT = {"kind": "sent", **MODEL, "request_sha256": "", "segments": [""]}
ASKED = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}

THREAD: list[dict[str, Any]] = [
    {"kind": "system", "text": "SYS", "wire": _chat({"role": "system", "content": "SYS"})},
    {
        "kind": "tools",
        "tools": [TOOL],
        "meta": {"replace": True},
        "wire": {"format": "anthropic", "own": {"t": {"type": "web_search", "name": "t"}}, "tools": [TOOL]},
    },
    {"kind": "attach", "item": NOTE, "meta": {"pin": "NOTE"}},
    {
        "kind": "user",
        "text": "q1",
        "at": 1000,
        "attach": [SELECTION, PAGE],
        "images": [{"media_type": "image/png", "data": "AAAA", "caption": "c"}, "https://x/z.png"],
        "meta": {
            "pins": [1],
            "recalled": "r",
            "recalled_ids": ["sha256:0"],
            "composer": "c",
            "context": {"tags": ["#t"], "folders": ["f"]},
            "speaker": "Ada",
            "session": "s",
            "caption": "c",
        },
    },
    {
        "kind": "call",
        "call_id": "k",
        "name": "find",
        "args": {"q": "x"},
        "meta": {"placement": "context", "shown": ["q"], "sources": [{"path": "p"}]},
    },
    {"kind": "result", "call_id": "k", "outcome": "ok", "content": "found", "error": False},
    {**SENT, "at": 2000, "meta": {"policy": {"budget": 5000, "reply": 0, "promote": "each-turn"}}},
    {
        "kind": "think",
        "text": "hm",
        "wire": {
            "format": "anthropic",
            "model": "claude-opus-5-5",
            "block": {"type": "thinking", "thinking": "hm", "signature": "s"},
        },
    },
    {
        "kind": "call",
        "call_id": "c",
        "name": "t",
        "args": {"a": 1},
        "wire": _chat({"role": "assistant", "content": "", "tool_calls": [ASKED]}, block={"arguments": "{}"}),
    },
    {
        **SENT,
        "at": 3000,
        "usage": {"input_total": 100, "cache_read": 50, "output": 5},
        "cost": 0.1,
        "stop": "end",
        "wire": {"id": "m1"},
    },
    {
        "kind": "result",
        "call_id": "c",
        "content": "result " * 30,
        "wire": _chat({"role": "tool", "tool_call_id": "c", "content": "x"}),
    },
    {"kind": "respond", "text": "a1", "wire": {"format": "openai-chat", "more": True}},
    {"kind": "note", "text": "be brief", "wire": {"effort": "high"}, "meta": {"pin": True}},
    {
        "kind": "rebase",
        "reason": "budget",
        "before_seq": 4,
        "freed": 10,
        "summary": "so far",
        "library": [],
        "edits": [
            {"entry": 11, "action": "handle", "replacement": "[handle]", "freed": 5},
            {"entry": 8, "action": "drop"},
        ],
        "meta": {"opening": 1, "pinned": ["words"], "fallbacks": []},
    },
    {"kind": "user", "text": "q2", "at": 9000},
    {"kind": "respond", "text": "a2"},
    {"kind": "user", "text": "q3"},
]

# One of each kind of JSON, and what is read as markup, a place or a number.
ODD: list[Any] = [None, True, 0, -1, 5, 1.5, 10**30, "", "x", "[/bold]", [], [5], [[1]], [{}], ["x"], {}]
ODD += [{"a": 1}, [None]]


PLACES = [path for path in places(THREAD) if len(path) > 1 and path[-1] != "kind"]


def changed(path: Place, value: Any) -> list[dict[str, Any]]:
    """The thread with another value at one place."""
    thread: list[dict[str, Any]] = put(THREAD, path, value)
    return thread
