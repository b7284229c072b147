"""Sessions and logs of other programs become threads: recognised, whole, once."""

import base64
import contextlib
import gzip
import json
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from conftest import shared_data
from quire import QuireError, Thread, providers, values
from quire.archive.sessions import STORES, conversations, files_under, recognised, source_file
from quire.errors import CallError, FormatError
from quire.log.entries import joining
from quire.testing import MemoryStore, assert_valid
from quire.values import Entry, JsonObject
from toolbox import assert_in_proportion, fewer, invoke, json_of, places, put, run

TARGETS = ("anthropic:claude-opus-4-6", "openai:gpt-5.6", "openai-chat:gpt-5.4", "gemini:gemini-3.1-pro-preview", "bedrock:anthropic.claude-opus-4-6-v1")  # fmt: skip
# Folder of a real client -> what its sessions are, and what each says: users, thoughts, answers, calls, results.
REAL = {
    "aider": ("aider", [(3, 0, 3, 0, 0)]),
    "claude-code": ("claude-code", [(2, 0, 2, 2, 2)]),
    "codex/rollout*": ("codex", [(4, 7, 7, 6, 6)]),
    "gemini-cli": ("gemini-cli", [(4, 24, 8, 6, 6)]),
    "llm": ("llm", [(3, 8, 8, 6, 6)]),
    "mini-swe-agent": ("mini-swe-agent", [(1, 2, 4, 5, 5), (1, 0, 4, 5, 5), (1, 2, 4, 5, 5), (1, 2, 4, 5, 5)]),
    "openai-agents/session.db": ("openai-agents", [(3, 8, 8, 6, 6)]),
    "opencode": ("opencode", [(3, 8, 8, 6, 6)]),
    "pi": ("pi", [(4, 10, 10, 8, 8), (4, 10, 10, 8, 8)]),
    "pydantic-ai": ("pydantic-ai", [(3, 8, 8, 6, 6), (3, 0, 8, 6, 6), (3, 8, 8, 6, 6), (3, 8, 8, 6, 6)]),
    "langchain": ("langchain", [(3, 8, 8, 6, 6), (3, 0, 8, 6, 6), (3, 8, 8, 6, 6), (3, 8, 8, 6, 6)]),
    "strands/sessions": ("strands", [(2, 3, 3, 2, 2), (3, 8, 8, 6, 6)]),
}


@pytest.mark.parametrize("folder", REAL)
def test_sessions_of_real_clients_are_recognised_read_whole_and_go_on_with_any_model(folder: str) -> None:
    wanted, counts = REAL[folder]
    root = shared_data("sessions")
    files = [file for start in sorted(root.glob(folder)) for file in files_under(start)]
    found = []
    for file in map(source_file, files):
        store = recognised(file)
        assert store.name == wanted
        for one in conversations(file, store):
            entries = one.entries()
            kinds = Counter(entry.kind for entry in entries)
            found.append(tuple(kinds[kind] for kind in ("user", "think", "respond", "call", "result")))
            waiting: set[str] = set()
            for entry in entries:
                assert not waiting or entry.kind in ("call", "result"), "nothing stands between a call and its result"
                waiting ^= {entry.body["call_id"]} if entry.kind in ("call", "result") else set()
            back = providers.export(one.format, entries)
            field = next((name for name in ("messages", "input", "contents") if name in one.value), None)
            assert (back[field] if isinstance(back, dict) else back) == (one.value[field] if field else one.value)
            for target in TARGETS:
                thread = Thread(MemoryStore(), "t")
                thread.append(*entries)
                thread.user("And?")
                assert thread.request(target, check=True)
    assert found == counts


def test_codex_items_are_what_was_sent() -> None:
    (file,) = shared_data("sessions/codex").glob("rollout*")
    items = json.loads((file.parent / "items.json").read_text())["input"]
    (made,) = conversations(source_file(file), recognised(source_file(file)))
    assert made.value["input"] == [{k: v for k, v in one.items() if not k.startswith("internal_")} for one in items]
    assert made.value["instructions"].startswith("You are a coding agent")


def line(kind: str, content: Any, uuid: str, parent: str = "", **more: Any) -> JsonObject:
    message = {"role": kind, "content": content, **more.pop("message", {})}
    return {"type": kind, "sessionId": "s", "uuid": uuid, "parentUuid": parent or None, "message": message, **more}


def text(said: str) -> list[JsonObject]:
    return [{"type": "text", "text": said}]


CALLS = [{"type": "tool_use", "id": f"t{n}", "name": "read", "input": {}} for n in (1, 2)]
RESULTS = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": str(n)} for n in (1, 2)]
CLAUDE = [
    {"type": "summary", "summary": "x", "leafUuid": "y"},
    line("user", "Go", "1"),
    line("assistant", text("I read."), "2", "1", message={"id": "m1", "model": "claude-opus-4-6"}),
    line("assistant", [CALLS[0]], "3", "2", message={"id": "m1"}),
    line("assistant", [CALLS[1]], "4", "3", message={"id": "m1"}),
    line("user", [RESULTS[0]], "5", "3"),
    line("user", [RESULTS[1]], "6", "4"),
    line("assistant", text("Wrong."), "7", "6", message={"id": "m2"}),
    line("user", "Never mind", "8", "7"),
    line("user", "Elsewhere", "s1", isSidechain=True),
    line("user", "Again", "9", "6"),
    line("assistant", text("Right."), "10", "9", message={"id": "m3"}),
]


def write(path: str, values: list[JsonObject]) -> Path:
    Path(path).write_text("\n".join(map(json.dumps, values)))
    return Path(path)


def keep(path: str, written: str | bytes) -> Path:
    Path(path).write_bytes(written if isinstance(written, bytes) else written.encode())
    return Path(path)


def imported(*words: object) -> list[JsonObject]:
    """The entries that `quire import` makes of a file."""
    return [json.loads(entry) for entry in run("import", *words).splitlines()]


def assert_goes_on(entries: str) -> None:
    """With any model, printed entries make a request that its provider takes."""
    Path("entries.jsonl").write_text(entries)
    for target in TARGETS:
        assert_valid(json.loads(run("render", "entries.jsonl", "-m", target, "--json")), target)


def test_a_claude_code_session_is_its_replies_whole_without_what_was_left_behind(home: Path) -> None:
    write("c.jsonl", CLAUDE)
    said = imported("c.jsonl", "--line", "1")
    assert [one.get("text") or one.get("call_id") for one in said] == ["Go", "I read.", "t1", "t2", "t1", "t2", "Again", "Right."]  # fmt: skip
    assert "Elsewhere" in run("import", "c.jsonl", "--line", "2")
    told = invoke("import", "c.jsonl", "--into", "c").stderr
    assert told == "read as claude-code: 2 conversations; it holds no system prompt, no tools\n"


def test_a_reply_whose_first_tool_was_done_before_its_end_is_one(home: Path) -> None:
    hook = attached("hook_additional_context", content="W")
    write("c.jsonl", [line("user", "Go", "1"), CLAUDE[3], CLAUDE[5], hook, CLAUDE[4], CLAUDE[6], CLAUDE[7]])
    kinds = [entry["kind"] for entry in imported("c.jsonl")]
    assert kinds == ["user", "call", "call", "result", "result", "user", "respond"]


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("command", [False, True])
def test_what_is_attached_while_tools_are_at_work_stands_behind_what_they_gave(
    home: Path, place: int, command: bool
) -> None:
    rows = [*CLAUDE[3:7], line("assistant", text("Right."), "10", "6", message={"id": "m3"})]
    ran = {"type": "system", "subtype": "local_command", "sessionId": "s", "content": "W"}
    beside = ran if command else attached("hook_additional_context", content="W")
    write("c.jsonl", [*rows[:place], beside, *rows[place:]])
    kinds = [entry["kind"] for entry in imported("c.jsonl")]
    assert kinds == ["call", "call", "result", "result", "user", "respond"]


def test_what_is_attached_stands_in_front_of_the_words_it_came_with(home: Path) -> None:
    files = [attached("file", filename=name, content={"file": {"content": name}}) for name in "abc"]
    asked = [line("user", "/skill", "1"), line("user", "Do it", "2", "1", isMeta=True), files[0], files[1]]
    write("c.jsonl", [*asked, line("user", "[interrupted]", "3"), line("user", "Go", "4", "3"), files[2]])
    told = [entry["text"].split(":")[0].split()[-1] for entry in imported("c.jsonl")]
    assert told == ["a", "b", "/skill", "it", "[interrupted]", "c", "Go"]


def test_side_chains_that_have_no_agent_are_told_apart_by_where_they_begin(home: Path) -> None:
    asked = [line("user", f"Ask {n}", f"{n}", isSidechain=True) for n in (1, 2)]
    answered = [line("assistant", text(f"Done {n}"), f"{n}-a", f"{n}", isSidechain=True) for n in (1, 2)]
    write("c.jsonl", [line("user", "Go", "0"), *asked, *answered])
    said = [[entry["text"] for entry in imported("c.jsonl", "--line", n)] for n in (1, 2, 3)]
    assert said == [["Go"], ["Ask 1", "Done 1"], ["Ask 2", "Done 2"]]


def test_what_agents_of_claude_code_say_is_apart_where_the_lines_were_printed(home: Path) -> None:
    said = [("assistant", "Go", None), ("user", "Ask", "t1"), ("assistant", "Done", "t1"), ("assistant", "End", None)]
    rows = [{"type": role, "session_id": "s", "parent_tool_use_id": call, "message": {"role": role, "content": text(word)}} for role, word, call in said]  # fmt: skip
    rows += [{**rows[3], "is_api_error_message": True}, {"type": "result", "session_id": "s", "result": "End"}]
    write("c.jsonl", [{"type": "system", "subtype": "init", "session_id": "s"}, *rows])
    told = [[entry["text"] for entry in imported("c.jsonl", "--line", n)] for n in "12"]
    assert told == [["Go", "End"], ["Ask", "Done"]]


@pytest.mark.parametrize("cut", range(4, len(CLAUDE)))
def test_a_longer_version_of_a_session_adds_what_is_new(home: Path, cut: int) -> None:
    values = [one for one in CLAUDE if one.get("uuid") not in ("s1", "7", "8")]
    write("c.jsonl", values[:cut])
    run("import", "c.jsonl", "--into", "t")
    write("c.jsonl", values)
    run("import", "c.jsonl", "--into", "t")
    assert run("import", "c.jsonl", "--into", "t") == "t: nothing new\n"
    run("import", "c.jsonl", "--into", "whole")
    assert run("export", "t", "--to", "openai-chat") == run("export", "whole", "--to", "openai-chat")


# One conversation of two requests, as each log writes it down.
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
FIRST = {"role": "assistant", "content": "", "tool_calls": [CALL]}
MORE = [*ASKED, FIRST, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
LAST = {"role": "assistant", "content": "Two."}
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
BODIES = [{"model": "gpt-5.4", "messages": one, "tools": [{"type": "function", "function": TOOL}]} for one in (ASKED, MORE)]  # fmt: skip
REPLIES = [{"model": "gpt-5.4", "choices": [{"index": 0, "message": one, "finish_reason": "stop"}]} for one in (FIRST, LAST)]  # fmt: skip
STREAM = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Two."}}]}\n\ndata: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n'
PAIRS = list(zip(BODIES, REPLIES, strict=True))


def otel(messages: list[JsonObject]) -> list[JsonObject]:
    parts: list[JsonObject] = []
    for one in messages:
        said = [{"type": "text", "content": one["content"]}] if one["content"] and one["role"] != "tool" else []
        said += [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}] if "tool_calls" in one else []
        said += [{"type": "tool_call_response", "id": "c1", "response": "2"}] if one["role"] == "tool" else []
        parts.append({"role": one["role"], "parts": said})
    return parts


def span(body: JsonObject, reply: JsonObject) -> JsonObject:
    facts = {
        "gen_ai.request.model": "gpt-5.4",
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": json.dumps(otel(body["messages"][1:])),
        "gen_ai.output.messages": json.dumps(otel([reply["choices"][0]["message"]])),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", "function": TOOL}]),
    }
    return {"traceId": "t", "attributes": [{"key": key, "value": {"stringValue": one}} for key, one in facts.items()]}


def har(body: JsonObject, reply: Any, packed: bool = False) -> JsonObject:
    said = reply if isinstance(reply, str) else json.dumps(reply)
    request = {"method": "POST", "url": "https://x.y/v1/chat/completions", "postData": {"text": json.dumps(body)}}
    return {"startedDateTime": "2026-01-01T00:00:00Z", "request": request, "response": {"content": {"text": base64.b64encode(said.encode()).decode(), "encoding": "base64"} if packed else {"text": said}}}  # fmt: skip


def lhar(number: int, body: JsonObject, reply: JsonObject) -> JsonObject:
    raw = {"request_body": body, "response_body": reply}
    about = {"type": "entry", "trace_id": "t", "sequence": number}
    return {**about, "gen_ai": {"request": {"model": "gpt-5.4"}}, "raw": raw}


def generation(number: int, body: JsonObject, reply: JsonObject) -> JsonObject:
    asked = {"messages": body["messages"], "tools": body["tools"]}
    return {"id": str(number), "type": "GENERATION", "traceId": "t", "startTime": f"2026-01-0{number}", "model": "gpt-5.4", "input": asked, "output": reply["choices"][0]["message"]}  # fmt: skip


def litellm(body: JsonObject, reply: JsonObject) -> JsonObject:
    return {"id": "x", "trace_id": "t", "call_type": "completion", "model": "gpt-5.4", "messages": body["messages"], "model_parameters": {"tools": body["tools"]}, "response": reply}  # fmt: skip


WRITTEN: dict[str, tuple[str, Callable[[], str]]] = {
    "requests.jsonl": ("requests", lambda: "\n".join(json.dumps({"request": b, "response": r}) for b, r in PAIRS)),
    "streams.jsonl": ("requests", lambda: "\n".join(json.dumps({"request": b, "stream": r}) for b, r in zip(BODIES, ["", STREAM], strict=True))),
    "a.har": ("har", lambda: json.dumps({"log": {"entries": [har({"q": 1}, "<html>"), *(har(b, r) for b, r in PAIRS)]}})),
    "packed.har": ("har", lambda: json.dumps({"log": {"entries": [har(b, r, True) for b, r in PAIRS]}})),
    "stream.har": ("har", lambda: json.dumps({"log": {"entries": [har(BODIES[0], REPLIES[0]), har(BODIES[1], STREAM)]}})),
    "a.lhar": ("lhar", lambda: "\n".join(map(json.dumps, [{"type": "session", "trace_id": "t"}, *(lhar(n, b, r) for n, (b, r) in enumerate(PAIRS))]))),
    "wrapped.json": ("lhar", lambda: json.dumps({"lhar": {"version": "1", "sessions": [], "entries": [lhar(n, b, r) for n, (b, r) in enumerate(PAIRS)]}})),
    "litellm.jsonl": ("litellm", lambda: "\n".join(json.dumps(litellm(b, r)) for b, r in PAIRS)),
    "langfuse.json": ("langfuse", lambda: json.dumps({"trace": {"id": "t"}, "observations": [generation(n, b, r) for n, (b, r) in enumerate(PAIRS, 1)]})),
    "langfuse.jsonl": ("langfuse", lambda: "\n".join(json.dumps(generation(n, b, r)) for n, (b, r) in enumerate(PAIRS, 1))),
    "spans.json": ("opentelemetry", lambda: json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span(b, r) for b, r in PAIRS]}]}]})),
    "swe.traj": ("swe-agent", lambda: json.dumps({"trajectory": [], "history": [{**one, "agent": "main", **({"tool_call_ids": ["c1"]} if one["role"] == "tool" else {})} for one in [*MORE, LAST]]})),
    "messages.json": ("messages", lambda: json.dumps([*MORE, LAST])),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_log_of_requests_is_one_conversation_with_its_last_reply(home: Path, name: str) -> None:
    store, made = WRITTEN[name]
    Path(name).write_text(made())
    done = invoke("import", name, "--into", "t")
    assert done.stderr.startswith(f"read as {store}: 1 conversation")
    said = json.loads(run("export", "t", "--to", "openai-chat"))
    messages = said["messages"] if isinstance(said, dict) else said
    kept = [{key: one[key] for key in ("role", "content", "tool_calls", "tool_call_id") if one.get(key)} for one in messages]  # fmt: skip
    assert kept == [{key: value for key, value in one.items() if value} for one in [*MORE, LAST]]
    assert isinstance(said, list) == ("no tools" in done.stderr)
    assert run("import", name, "--into", "t", "--from", store) == "t: nothing new\n"


@pytest.mark.parametrize(
    ("host", "model"),
    [
        ("litellm.test/v1", "claude-sonnet-4-5"),
        ("generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash"),
        ("bedrock-mantle.us-east-2.api.aws/v1", "openai.gpt-oss-20b"),
    ],
)
def test_what_went_to_an_endpoint_of_chat_is_in_chat_whoevers_model_it_names(home: Path, host: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    end: JsonObject = {"delta": {"content": "Hello"}, "finish_reason": "stop", "index": 0}
    events = [{"choices": [end]}, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}]
    entry = har(body, "".join(f"data: {json.dumps(event)}\n\n" for event in events))
    entry["request"]["url"] = f"https://{host}/chat/completions"
    keep("a.har", json.dumps({"log": {"entries": [entry]}}))
    assert [one["text"] for one in imported("a.har")] == ["Hi", "Hello"]
    assert json.loads(run("audit", "a.har", "--json"))["total"]["input"] == 7


def test_claude_on_bedrock_has_its_price_there_in_anthropics_format_too(home: Path) -> None:
    body = {"anthropic_version": "bedrock-2023-05-31", "messages": [{"role": "user", "content": "Hi"}]}
    model = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
    reply = {"content": [], "usage": {"input_tokens": 1_000_000, "output_tokens": 0}}
    write("r.jsonl", [{"path": f"/model/{model}/invoke", "request": body, "reply": reply}])
    assert json.loads(run("audit", "r.jsonl", "--json"))["total"]["usd"] == pytest.approx(1.1)


def test_side_requests_are_conversations_of_their_own(home: Path) -> None:
    title = {"model": "gpt-5.4-mini", "messages": [{"role": "user", "content": "A title, please."}]}
    write("r.jsonl", [BODIES[0], title, BODIES[1]])
    assert [one["entries"] for one in json.loads(run("import", "r.jsonl", "--into", "t", "--json"))] == [5, 1]


def test_llm_logs_before_its_messages_were_a_tree(home: Path) -> None:
    def change(*statements: str) -> None:
        with contextlib.closing(sqlite3.connect("logs.db")) as conn, conn:
            conn.executescript(";".join(statements))

    rows = [(n, "c", "gpt-5.4", "Be brief.", *said) for n, said in (("1", ("Hi", "Hello")), ("2", ("And?", "So.")))]
    tables = (
        "CREATE TABLE conversations (id); CREATE TABLE responses (id, conversation_id, model, system, prompt, response)"
    )
    keep("logs.db", database(tables, responses=rows))
    change("PRAGMA journal_mode = WAL")
    kinds = [entry["kind"] for entry in imported("logs.db")]
    assert kinds == ["system", "user", "respond", "user", "respond"]
    assert [path.name for path in home.glob("logs.db*")] == ["logs.db"], "nothing is left beside another program's file"
    added = ("datetime_utc", "input_tokens", "output_tokens", "token_details")
    used = "datetime_utc = '2025-05-01T10:00:00.5+00:00', input_tokens = 7, output_tokens = 2"
    change(*(f"ALTER TABLE responses ADD COLUMN {column}" for column in added), f"UPDATE responses SET {used}")
    (asked,) = conversations(source_file(Path("logs.db")), recognised(source_file(Path("logs.db"))))
    assert [call.usage.input_total for call in asked.calls if call.usage] == [7, 7]
    assert [entry.at for entry in asked.entries()] == [None, *[1746093600500] * 4]
    change("ALTER TABLE responses DROP COLUMN system")
    with pytest.raises(FormatError, match=r"logs.db is not as llm writes it: no such column: system"):
        run("import", "logs.db")


# What a client calls a provider -> whose price its requests have.
NAMES = {"amazon-bedrock": "bedrock", "google_genai": "gemini", "google-vertex-anthropic": "anthropic", "azure-openai-responses": "azure", "openai-codex": "openai", "mistralai": "mistral", "Groq": "groq", "anthropic.messages": "anthropic", "openai.responses": "openai", "llama.cpp": "llama.cpp", "unheard of": "openai-chat"}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_provider_is_known_by_what_its_clients_call_it(home: Path, name: str) -> None:
    said = {"type": "ai", "data": {"content": "W", "usage_metadata": {"input_tokens": 7}, "response_metadata": {"model_provider": name, "model_name": "m"}}}  # fmt: skip
    file = source_file(Path(keep("x.json", json.dumps([{"type": "human", "data": {"content": "q"}}, said]))))
    assert [call.target for call in conversations(file, recognised(file))[0].calls] == [f"{NAMES[name]}:m"]


@pytest.mark.parametrize(("api", "wanted"), [("anthropic-messages", "anthropic"), ("google-generative-ai", "gemini"), ("openai-responses", "openai-responses"), ("openai-completions", "openai-chat")])  # fmt: skip
def test_a_provider_of_a_users_own_is_known_by_its_api(home: Path, api: str, wanted: str) -> None:
    said = pi_lines({"role": "assistant", "provider": "my-gateway", "content": text("W"), "usage": {"input": 7}}, api=api)  # fmt: skip
    file = source_file(Path(keep("x.json", said)))
    assert [call.target for call in conversations(file, recognised(file))[0].calls] == [f"{wanted}:m"]


def claude_lines(count: int) -> str:
    rows = [line(("user", "assistant")[n % 2], f"{n}", str(n), str(n - 1) if n else "") for n in range(count)]
    return "\n".join(map(json.dumps, rows))


# Made by how much there is of it.
LONG: dict[str, Callable[[int], str]] = {
    "claude-code": claude_lines,
    "side-chains": lambda count: "\n".join(json.dumps(line("user", "Go", f"{n}", isSidechain=True)) for n in range(count)),
    "aider": lambda count: "# aider chat started at 1\n#### Go\n" + "A line of an answer that is long.\n" * (20 * count),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_session_is_read_in_a_time_that_grows_with_it(name: str) -> None:
    def read(count: int) -> None:
        file = source_file(Path("x"), LONG[name](count))
        assert conversations(file, recognised(file))

    assert_in_proportion(read, 8000)


def test_a_session_that_went_another_way_is_not_put_behind_itself(home: Path) -> None:
    values = [one for one in CLAUDE if one.get("uuid") not in ("s1", "8")]
    write("c.jsonl", values[:8])
    run("import", "c.jsonl", "--into", "t")
    before = run("log", "export", "t")
    write("c.jsonl", values)
    with pytest.raises(CallError, match=r"thread 't' and this conversation go different ways behind entry 6") as failed:
        run("import", "c.jsonl", "--into", "t")
    assert run("log", "export", "t") == before
    assert "`quire log fork t --at 6 --name NEW`" in failed.value.hint
    run("log", "fork", "t", "--at", "6", "--name", "u")
    assert run("import", "c.jsonl", "--into", "u") == "u: 2 entries, behind 6 that were there\n"
    Path("none.json").write_text("[]")
    assert run("import", "none.json", "--from", "anthropic", "--into", "t") == "t: nothing new\n"


def test_conversations_of_a_folder_go_on_in_their_own_threads(home: Path) -> None:
    Path("all").mkdir()
    talks = {name: [line("user", f"Go {name}", "1"), line("assistant", text("Gone."), "2", "1")] for name in "abc"}
    write("all/b.jsonl", talks["b"])
    assert run("import", "all", "--into", "t") == "t: 2 entries\n"
    write("all/c.jsonl", talks["c"])
    assert run("import", "all", "--into", "t") == "t: nothing new\nt-1: 2 entries\n"
    write("all/a.jsonl", talks["a"])
    write("all/c.jsonl", [*talks["c"], line("user", "On", "3", "2")])
    assert (
        run("import", "all", "--into", "t")
        == "t-2: 2 entries\nt: nothing new\nt-1: 1 entry, behind 2 that were there\n"
    )


def test_conversations_that_begin_alike_find_their_threads_again(home: Path) -> None:
    Path("all").mkdir()
    for place, name in enumerate("abc"):
        gave = [{"type": "tool_result", "tool_use_id": "t1", "content": name}]
        reply = [line("assistant", [CALLS[0]], "2", "1"), line("user", gave, "3", "2"), line("assistant", text(f"Gone {name}."), "4", "3")]  # fmt: skip
        write(f"all/{name}.jsonl", [line("user", "Go", "1"), *reply])
        write(f"all/{9 - place}.jsonl", [line("user", f"Go {place}", "1"), *reply])
    run("import", "all", "--into", "t")
    for path, name in zip(sorted(Path("all").glob("?.jsonl")), "fedcba", strict=True):
        path.rename(f"all/{name}.new.jsonl")
    assert {row.partition(": ")[2] for row in run("import", "all", "--into", "t").splitlines()} == {"nothing new"}


def test_a_last_line_that_is_half_written_is_left_out_and_said(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    write("a.jsonl", CLAUDE[:3])
    whole = run("import", "a.jsonl")
    with Path("a.jsonl").open("a") as file:
        file.write("\n" + json.dumps(CLAUDE[3])[:-9])
    assert run("import", "a.jsonl") == whole
    assert "a.jsonl: its last line is half written, and left out" in caplog.text


PNG = "iVBORw0KGgoAAAANSUhEUg=="
IMAGE = f"data:image/png;base64,{PNG}"


def pi_lines(*rows: JsonObject, api: str = "anthropic-messages") -> str:
    """A session of pi: each line behind the one before it."""
    out = [{"type": "session", "version": 3, "id": "s", "cwd": "/"}]
    for number, row in enumerate(rows):
        if row.get("role"):
            row = {"type": "message", "message": {"api": api, "model": "m", **row}}
        out.append({"id": f"i{number}", "parentId": f"i{number - 1}" if number else None, **row})
    return "\n".join(map(json.dumps, out))


def seen(api: str) -> str:
    call = {"type": "toolCall", "id": "c", "name": "read", "arguments": {}}
    shown = [{"type": "text", "text": "W1"}, {"type": "image", "mimeType": "image/png", "data": PNG}]
    result = {"role": "toolResult", "toolCallId": "c", "toolName": "read", "content": shown}
    return pi_lines({"role": "user", "content": "W2"}, {"role": "assistant", "content": [call]}, result, api=api)


def gemini_lines(*rows: JsonObject) -> str:
    return "\n".join(map(json.dumps, [{"sessionId": "s", "projectHash": "h"}, *rows]))


OPENCODE = "CREATE TABLE session (id, time_created); CREATE TABLE message (id, session_id, time_created, data); CREATE TABLE part (id, message_id, session_id, data); INSERT INTO session VALUES ('s', 1)"


def opencode_answers(*answers: tuple[str, list[JsonObject]]) -> bytes:
    """A session of opencode: a question, and the parts of each answer with who gave it."""
    said = [("user", "", [{"type": "text", "text": "Go"}]), *(("assistant", *answer) for answer in answers)]
    messages = [(f"m{n}", "s", n, json.dumps({"role": role, "providerID": name})) for n, (role, name, _) in enumerate(said)]  # fmt: skip
    rows = [(f"{n}.{place}", f"m{n}", "s", json.dumps(part)) for n, (*_, parts) in enumerate(said) for place, part in enumerate(parts)]  # fmt: skip
    return database(OPENCODE, message=messages, part=rows)


def opencode_step(meta: JsonObject, call: str) -> list[JsonObject]:
    """A thought that is signed so, and a call with what it gave."""
    state = {"status": "completed", "input": {}, "output": "ok"}
    thought = {"type": "reasoning", "text": "Hm", "metadata": meta}
    return [{"type": "step-start"}, thought, {"type": "tool", "callID": call, "tool": "f", "state": state, "metadata": meta}]  # fmt: skip


def opencode_file() -> bytes:
    state = {"status": "completed", "input": {}, "output": "W1", "attachments": [{"mime": "image/png", "url": IMAGE}]}
    parts = [
        {"type": "text", "text": "W2"},
        {"type": "file", "mime": "image/png", "url": IMAGE.replace("iVBO", "jVBO")},
        {"type": "file", "mime": "application/pdf", "url": "data:application/pdf;base64,aGk="},
        {"type": "file", "mime": "text/plain", "url": "file:///a"},
        {"type": "tool", "callID": "c", "tool": "read", "state": state},
        {"type": "tool", "callID": "d", "tool": "read", "state": {"status": "running", "input": {}}},
        {"type": "hologram"},
    ]
    return database(
        OPENCODE,
        message=[(role, "s", number, json.dumps({"role": role, "providerID": "anthropic"})) for number, role in enumerate(("user", "assistant"))],
        part=[(number, "user" if number < 4 else "assistant", "s", json.dumps(part)) for number, part in enumerate(parts)],
    )  # fmt: skip


SECOND = "CREATE TABLE session_v2 (id, time_created); CREATE TABLE session_message (id, session_id, type, seq, data); INSERT INTO session_v2 VALUES ('s', 1)"


def opencode_second(*messages: tuple[str, JsonObject]) -> bytes:
    """A session of opencode in its second form: one row a message."""
    return database(SECOND, session_message=[(f"m{n}", "s", kind, n, json.dumps({"time": {"created": n}, **data})) for n, (kind, data) in enumerate(messages)])  # fmt: skip


OPENCODE_CALL = {"type": "tool", "id": "c", "name": "f", "provider": {"metadata": {"anthropic": {}}}, "state": {"status": "completed", "input": {"a": "W4"}, "content": [{"type": "text", "text": "W5"}, {"type": "file", "mime": "image/png", "uri": IMAGE}]}}  # fmt: skip
OPENCODE_SECOND: list[tuple[str, JsonObject]] = [
    ("user", {"text": "W1", "files": [{"mime": "image/png", "uri": IMAGE.replace("iVBO", "jVBO")}]}),
    ("model-switched", {"model": {"id": "m"}}),
    ("assistant", {"model": {"id": "m", "providerID": "anthropic"}, "content": [{"type": "reasoning", "text": "W2", "providerMetadata": {"anthropic": {"signature": "A"}}}, {"type": "text", "text": "W3"}, OPENCODE_CALL]}),
    ("shell", {"command": "W6", "output": "W7"}),
    ("synthetic", {"text": "W8"}),
    ("handoff", {}),
]  # fmt: skip


def opencode_export() -> str:
    said = [("user", [{"type": "text", "text": "W1"}]), ("assistant", [{"type": "text", "text": "W2"}])]
    messages = [{"info": {"id": f"m{n}", "role": role}, "parts": parts} for n, (role, parts) in enumerate(said)]
    return json.dumps({"info": {"id": "s"}, "messages": messages})


def database(schema: str, **tables: list[tuple[Any, ...]]) -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as conn:
        conn.executescript(schema)
        for table, rows in tables.items():
            conn.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        conn.commit()
        return conn.serialize()


FRAGMENTS = "CREATE TABLE fragments (id, content); CREATE TABLE attachments (id, type, content, url);"
KEPT_APART: dict[str, list[tuple[Any, ...]]] = {"fragments": [(1, "W1"), (2, "W2")], "attachments": [("a", "image/png", base64.b64decode(PNG), None), ("b", "image/png", None, None)]}  # fmt: skip


LLM = """CREATE TABLE messages (hash, parent_hash, role); CREATE TABLE parts (id, message_hash, position, type, text, payload);
        CREATE TABLE threads (id, tip_message_hash, datetime_utc); CREATE TABLE turns (id, thread_id, model, input_tokens, output_tokens, token_details, datetime_utc);
        CREATE TABLE tools (id, name, description, input_schema); CREATE TABLE turn_tools (tool_id, turn_id);"""


def llm_thought(meta: JsonObject) -> bytes:
    """A thread of llm whose answer was thought about, and signed so."""
    rows = [("h2", "reasoning", "Hm", json.dumps({"provider_metadata": meta})), ("h2", "text", "Hello", None), ("h1", "text", "Go", None)]  # fmt: skip
    return database(LLM, threads=[("t", "h2", "2026")], messages=[("h1", None, "user"), ("h2", "h1", "assistant")], turns=[("1", "t", "o3", 1, 1, None, "2026")], parts=[(n, row[0], n, *row[1:]) for n, row in enumerate(rows)])  # fmt: skip


def llm_file() -> bytes:
    return database(
        FRAGMENTS + LLM + """CREATE TABLE part_attachments (part_id, attachment_id, "order")""",
        **KEPT_APART, threads=[("t", "h", "2026")], messages=[("h", None, "user")], parts=[(1, "h", 0, "text", None, json.dumps({"text_ref": [{"fragment": 1}, {"literal": "\n"}, {"fragment": 2}, {"literal": "\nW3"}]}))],
        part_attachments=[(1, "a", 0), (1, "b", 1)],
    )  # fmt: skip


def old_llm_file() -> bytes:
    return database(
        FRAGMENTS + """CREATE TABLE conversations (id); CREATE TABLE responses (id, conversation_id, model, system, prompt, response);
        CREATE TABLE tools (id, name, description, input_schema); CREATE TABLE tool_responses (tool_id, response_id);
        CREATE TABLE tool_calls (id, response_id, tool_call_id, name, arguments); CREATE TABLE tool_results (id, response_id, tool_call_id, name, output);
        CREATE TABLE prompt_fragments (response_id, fragment_id, "order"); CREATE TABLE system_fragments (response_id, fragment_id, "order");
        CREATE TABLE prompt_attachments (response_id, attachment_id, "order")""",
        **KEPT_APART, responses=[("1", "c", "m", "W3", "W4", ""), ("2", "c", "m", "W5", "", "W6")], tools=[(1, "f", "W7", "{}")],
        tool_responses=[(1, "1")], tool_calls=[(1, "1", "k", "f", '{"a": "W8"}')], tool_results=[(1, "2", "k", "f", "W9")],
        prompt_fragments=[("1", 1, 0)], system_fragments=[("1", 2, 0)], prompt_attachments=[("1", "a", 0), ("1", "b", 1)],
    )  # fmt: skip


def parts(*listed: JsonObject, kind: str = "request") -> JsonObject:
    return {"kind": kind, "parts": [{"part_kind": kind, **part} for kind, part in map(dict.popitem, listed)]}


PYDANTIC = [
    parts({"system-prompt": {"content": "W1"}}, {"user-prompt": {"content": ["W2", {"kind": "image-url", "url": "https://x/W3.png"}, {"kind": "binary", "data": PNG, "media_type": "image/png"}, {"kind": "document-url", "url": "u"}]}}),
    parts({"tool-call": {"tool_name": "f", "tool_call_id": "c", "args": {}}}, {"file": {"content": {"kind": "binary"}}}, {"instruction-delta": {"content": "Stale"}}, kind="response"),
    {**parts({"tool-return": {"tool_name": "f", "tool_call_id": "c", "content": [{"a": "W4"}]}}, {"retry-prompt": {"content": [{"msg": "W5"}]}}, {"system-prompt": {"content": "W6"}}), "instructions": "W7"},
]  # fmt: skip
SPAN = {"gen_ai.input.messages": json.dumps([
    {"role": "user", "parts": [{"type": "text", "content": "W1"}, {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PNG}, {"type": "uri", "modality": "audio", "uri": "u"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": {"a": "W2"}}]},
])}  # fmt: skip
TREE = {"type": "branch_summary", "summary": "W4"}
STALE = {"id": "2", "type": "gemini", "content": "Stale", "toolCalls": [{"id": "c", "name": "f", "args": {"a": "W1"}}]}
ANSWERED = {**STALE, "content": "W2", "toolCalls": [{**STALE["toolCalls"][0], "result": [{"functionResponse": {"id": "c", "name": "f", "response": {"output": "W3"}}}]}]}  # fmt: skip


CODEX_ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "W1"}]},
    {"type": "ghost_snapshot", "ghost_commit": {"id": "Stale"}},
    {"type": "agent_message", "author": "/a", "recipient": "/", "content": [{"type": "input_text", "text": "Sender: /a\nW2"}]},
]  # fmt: skip


def attached(kind: str, **fields: Any) -> JsonObject:
    beside = {name: fields.pop(name) for name in ("rendered",) if name in fields}
    return {"type": "attachment", "sessionId": "s", "attachment": {"type": kind, **fields}, **beside}


SHOWN = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
# Of versions that write down what each attachment is of, and of those that write down what the model was told.
MADE_OF = [
    line("user", "W1", "1"),
    attached("file", filename="a.py", content={"type": "text", "file": {"filePath": "a.py", "content": "W2"}}),
    attached("nested_memory", path="CLAUDE.md", content={"path": "CLAUDE.md", "content": "W3"}),
    attached("hook_additional_context", content=["W4", "W5"], hookEvent="PreToolUse"),
    attached("hook_success", content="Stale", hookEvent="PostToolUse"),
    attached("relevant_memories", memories=[{"content": "W6"}, {"content": "W7"}]),
    attached("file", filename="b.png", content={"type": "image", "file": {"base64": PNG, "type": "image/png"}}),
    attached("plan_mode", planFilePath="p"),
    attached("file", filename="c.pdf", content={"type": "pdf", "file": {"base64": "aGk=", "type": "application/pdf"}}),
    attached("hook_cancelled"),
    line("assistant", text("W8"), "2", "1"),
    attached("queued_command", prompt=[{"type": "text", "text": "W9"}, {**SHOWN, "source": {**SHOWN["source"], "data": PNG.replace("iVBO", "jVBO")}}]),
]  # fmt: skip
TOLD = [
    attached("prompt_snapshot", systemPrompt=["W1", "W2"], tools=[{"name": "f", "description": "W3", "schema": {"name": "f", "input_schema": {"type": "object", "title": "W4"}}}]),
    line("user", "W5", "1"),
    attached("date", date="Stale", rendered=[{"content": "<system-reminder>W6</system-reminder>"}]),
    attached("queued_command", prompt="W7", rendered=[{"content": "Stale"}]),
    attached("credential_org"),
    attached("prompt_snapshot", systemPrompt=["Stale"]),
    line("assistant", text("Stale"), "3", "1", isApiErrorMessage=True),
]  # fmt: skip
# A command of the program's own, what it only shows, a result that was too long, another session that goes on with this one.
COMMANDS = [
    {"type": "permission-mode", "permissionMode": "plan", "sessionId": "s"},
    line("user", "W1", "1"),
    line("user", "Stale", "v", "1", isVirtual=True),
    line("assistant", CALLS[:1], "2", "1"),
    line("user", [{**RESULTS[0], "content": "Stale"}], "3", "2"),
    {"type": "content-replacement", "sessionId": "s", "replacements": [{"kind": "tool-result", "toolUseId": "t1", "replacement": "W2"}]},
    {"type": "system", "subtype": "local_command", "sessionId": "s", "uuid": "4", "parentUuid": "3", "content": "<local-command-stdout>W3</local-command-stdout>"},
    {"type": "system", "subtype": "informational", "sessionId": "s", "uuid": "5", "parentUuid": "4", "content": "Stale"},
    {"type": "collapse", "sessionId": "s"},
    line("user", "W4", "6", "5", sessionId="another"),
]  # fmt: skip
# Store -> a file of it, the words and images that its entries hold, and what is said to be left out.
WHOLE: dict[str, tuple[Callable[[], str | bytes], list[str], str]] = {
    "claude-code": (lambda: "\n".join(map(json.dumps, MADE_OF)), [*(f"W{n}" for n in range(1, 10)), PNG, PNG.replace("iVBO", "jVBO")], "1 × attachment plan_mode, 1 × attachment file"),
    "claude-code-told": (lambda: "\n".join(map(json.dumps, TOLD)), [f"W{n}" for n in range(1, 8)], ""),
    "claude-code-commands": (lambda: "\n".join(map(json.dumps, COMMANDS)), ["W1", "W2", "W3", "W4"], "1 × line collapse"),
    "pi-anthropic": (lambda: seen("anthropic-messages"), ["W1", "W2", PNG], ""),
    "pi-chat": (lambda: seen("openai-completions"), ["W1", "W2", PNG], ""),
    "pi-gemini": (lambda: seen("google-generative-ai"), ["W1", "W2", PNG], ""),
    "pi-no-image": (lambda: seen("anthropic-messages").replace(PNG, ""), ["W1", "W2"], "1 × image/png"),
    "pi-nothing": (lambda: seen("openai-completions").replace(f', "data": "{PNG}"', ""), ["W1", "W2"], "1 × image/png"),
    "pi-told": (lambda: pi_lines({"role": "bashExecution", "command": "W1", "output": "W2", "exitCode": 3}, {"type": "custom_message", "content": "W3"}, TREE, {"role": "wizard", "content": "x"}, {"role": "user", "content": [{"type": "novel"}, {"type": "text", "text": "W5"}]}), ["Ran `W1`\\n```\\nW2\\n```\\n\\nCommand exited with code 3", "W3", "W4", "W5"], "1 × message of wizard, 1 × novel"),
    "pi-branches": (lambda: pi_lines({"role": "user", "content": "W1"}, {"role": "user", "content": "Stale"}, {"role": "user", "content": "W2", "parent": "i0"}, {"type": "novel"}).replace('"i1", "type"', '"i0", "type"'), ["W1", "W2"], "1 × line novel, 1 × message of another branch"),
    "pi-without-ids": (lambda: pi_lines(*[{"role": "user", "content": f"W{n}", "id": ""} for n in (1, 2)]).replace('"parentId"', '"p"').replace('"i', '"'), ["W1", "W2"], ""),
    "gemini-cli": (lambda: gemini_lines({"id": "1", "type": "user", "content": "W4"}, STALE, ANSWERED, {"type": "user", "content": {"text": "W5"}}, {"type": "user", "content": ["W6", {"text": "W7"}]}, {"id": "3", "type": "info", "content": "x"}, {"id": "4", "type": "novel"}), ["W1", "W2", "W3", "W4", "W5", "W6", "W7"], "1 × novel"),
    "opencode": (opencode_file, ["W1", "W2", PNG, PNG.replace("iVBO", "jVBO")], "1 × application/pdf, 1 × hologram"),
    "opencode-second": (lambda: opencode_second(*OPENCODE_SECOND), [*(f"W{n}" for n in range(1, 9)), PNG, PNG.replace("iVBO", "jVBO"), '"signature":"A"'], "1 × handoff"),
    "opencode-export": (opencode_export, ["W1", "W2"], ""),
    "opencode-messages": (lambda: json.dumps(json.loads(opencode_export())["messages"]), ["W1", "W2"], ""),
    "llm": (llm_file, ["W1\\nW2\\nW3", PNG], "1 × image/png"),
    "llm-before": (old_llm_file, ["W1\\nW4", "W2\\nW3", *(f"W{n}" for n in range(5, 10)), PNG], "1 × image/png"),
    "pydantic-ai": (lambda: json.dumps(PYDANTIC), [*(f"W{n}" for n in range(1, 8)), PNG], "1 × document-url, 1 × file"),
    "pydantic-ai-data": (lambda: json.dumps([{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ["W1", {"kind": "image-url", "url": IMAGE}]}]}]), ["W1", f'"media_type":"image/png","data":"{PNG}"'], ""),
    "opentelemetry": (lambda: json.dumps([{"attributes": SPAN}]), ["W1", "W2", PNG, "[audio]"], ""),
    "langfuse": (lambda: json.dumps([{"type": "GENERATION", "traceId": "t", "input": [{"role": "user", "content": "W1"}], "output": [{"role": "assistant", "content": "W2"}]}]), ["W1", "W2"], ""),
    "codex-lines": (lambda: "\n".join(map(json.dumps, [*rollout(response("user", "W1")), {"type": "novel", "payload": {}}, {"type": "world_state", "payload": {}}])), ["W1"], "1 × line novel"),
    "codex-items": (lambda: "\n".join(map(json.dumps, [{"type": "session_meta", "payload": {"id": "s", "history_base": {"thread_id": "t", "end_ordinal_exclusive": 2}}}, *({"type": "response_item", "payload": item} for item in CODEX_ITEMS), {"type": "inter_agent_communication_metadata", "payload": {}}])), ["W1", "W2"], "1 × history of t in front of it"),
    "pi-leaf": (lambda: pi_lines({"role": "user", "content": "W1"}, {"role": "user", "content": "Stale"}, {"type": "leaf", "targetId": "i0"}), ["W1"], "1 × message of another branch"),
    "gemini-cli-checkpoint": (lambda: gemini_lines({"id": "1", "type": "user", "content": "W4"}, ANSWERED, {"id": "3", "type": "user", "content": ANSWERED["toolCalls"][0]["result"]}, {"$set": {"messages": [{"id": "1", "type": "user", "content": [{"text": "W4"}]}, {**ANSWERED, "content": [{"text": "W2"}, {"functionCall": {"id": "c", "name": "f", "args": {"a": "W1"}}}]}, {"id": "3", "type": "user", "content": ANSWERED["toolCalls"][0]["result"]}]}}), ["W1", "W2", "W3", "W4"], ""),
    "claude-code-lines": (lambda: "\n".join(map(json.dumps, [line("user", "W1", "1"), {**line("user", "Stale", "2", "1"), "type": "novel"}])), ["W1"], "1 × line novel"),
    "codex-before": (lambda: "\n".join(map(json.dumps, [{"id": "s", "timestamp": "2025-08-18T01:16:13Z", "instructions": "W1", "git": {}}, {"record_type": "state"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "W2"}]}, {"type": "function_call", "name": "W3", "arguments": "{}", "call_id": "c"}, {"type": "function_call_output", "call_id": "c", "output": "W4"}, {"record_type": "state"}])), ["W1", "W2", "W3", "W4"], ""),
    "langchain-before": (lambda: json.dumps([{"type": "human", "data": {"content": "W1"}}, {"type": "ai", "data": {"content": "", "additional_kwargs": {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "W2", "arguments": '{"a": "W3"}'}}]}}}]), ["W1", "W2", "W3"], ""),
    "gemini-saved": (lambda: json.dumps({"history": [{"role": "user", "parts": [{"text": "W1"}]}, {"role": "model", "parts": [{"text": "W2"}]}], "authType": "x"}), ["W1", "W2"], ""),
    "swe-agent": (lambda: json.dumps({"trajectory": [], "info": {}, "history": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "W1", "thinking_blocks": [{"type": "thinking", "thinking": "W2"}]}]}), ["W1", "W2"], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_of_a_session_is_lost_unsaid(home: Path, name: str) -> None:
    make, words, left_out = WHOLE[name]
    done = invoke("import", keep("x.json", make()))
    assert [word for word in words if word not in done.stdout] == []
    assert "Stale" not in done.stdout
    said = [json.loads(one) for one in done.stdout.splitlines()]
    calls = [entry["call_id"] for entry in said if entry["kind"] == "call"]
    assert len(calls) == len(set(calls))
    assert done.stderr.rstrip().partition("left out: ")[2] == left_out
    assert_goes_on(done.stdout)


def response(role: str, said: str) -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": said}]}


def rollout(*rows: JsonObject) -> list[JsonObject]:
    """A rollout of Codex: items as they are, other lines by their type; the items of each question are a turn."""
    out: list[JsonObject] = [{"type": "session_meta", "payload": {"id": "s"}}]
    for number, row in enumerate(rows):
        if row.get("role") == "user":
            out.append({"type": "turn_context", "payload": {"model": "gpt-5.6", "turn_id": str(number)}})
        out.append({"type": "response_item", "payload": row} if row["type"] == "message" else row)
    return out


def compacted(message: str, *seen: JsonObject) -> JsonObject:
    return {"type": "compacted", "payload": {"message": message, **({"replacement_history": list(seen)} if seen else {})}}  # fmt: skip


def rolled_back(turns: int) -> JsonObject:
    return {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": turns}}


def asked(word: str) -> list[JsonObject]:
    """A question that Codex was asked, and the answer."""
    return [response("user", word), response("assistant", f"{word}!")]


def rewound(to: str) -> str:
    """A session of gemini-cli that goes on from an earlier line."""
    said = enumerate([("info", "x"), ("user", "Go"), ("gemini", "Gone."), ("user", "Stale"), ("gemini", "Stale.")])
    rows = [{"id": str(number), "type": kind, "content": word} for number, (kind, word) in said]
    return gemini_lines(*rows, {"$rewindTo": to}, {"id": "5", "type": "user", "content": "On"})


SILENT = [{"type": kind, "sessionId": "s", "uuid": kind, "parentUuid": behind} for kind, behind in (("system", "2"), ("progress", "system"))]  # fmt: skip
AIDER = "#### Steps\n\n> as you said\n\na.py\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE"
AIDER_CHAT = (
    f"# aider chat started at 1\n\n> Aider v0.86.2  \n\n#### Do it  \n#### now  \n\n{AIDER}\n\n> Tokens: 1 sent  \n"
)
AIDER_COMMANDS = "#### /add a.py  \n> Added a.py to the chat.  \n#### /ask How?  \n\n#### How?  \n\nSo.\n> Tokens: 1  \n#### !ls  \n\n#### /code Do it  \n\nDone."
CHAT = "---\r\ntopic: Tea\r\n---\r\n\r\n**user**: How hot?\r\n\r\n**ai**: 80 degrees.\r\n"
# A file, and what was said to its model and by it, in this order.
SPOKEN: dict[str, tuple[Callable[[], str], list[str]]] = {
    "Claude Code, rewound behind lines that say nothing": (lambda: "\n".join(map(json.dumps, [line("user", "Go", "1"), line("assistant", text("Gone."), "2", "1"), *SILENT, line("user", "Stale", "3", "progress"), line("assistant", text("Stale."), "4", "3"), line("user", "On", "5", "progress")])), ["Go", "Gone.", "On"]),
    "Claude Code, a line again and another of its id": (lambda: "\n".join(map(json.dumps, [*[line("user", "Go", "1")] * 2, line("assistant", text("Gone."), "1", "1")])), ["Go", "Gone."]),
    "Claude Code, a reply in text and in blocks": (lambda: "\n".join(json.dumps(line("assistant", said, str(n), message={"id": "m"})) for n, said in enumerate(("Plain.", text("Blocks.")))), ["Plain.", "Blocks."]),
    "aider, whose model quotes, heads and edits": (lambda: AIDER_CHAT, ["Do it\nnow", AIDER]),
    "aider on Windows": (lambda: AIDER_CHAT.replace("\n", "\r\n"), ["Do it\nnow", AIDER]),
    "aider, with commands": (lambda: f"# aider chat started at 1\n\n{AIDER_COMMANDS}", ["How?", "So.", "Do it", "Done."]),
    "a chat file on Windows, marked": (lambda: f"\ufeff{CHAT}", ["How hot?", "80 degrees."]),
    "Codex, rolled back": (lambda: "\n".join(map(json.dumps, rollout(*asked("A"), *asked("Stale"), *asked("Stale"), rolled_back(2), *asked("D"), rolled_back(0)))), ["A", "A!", "D", "D!"]),
    "Codex, rolled back further than it goes": (lambda: "\n".join(map(json.dumps, rollout(*asked("Stale"), rolled_back(7), *asked("B")))), ["B", "B!"]),
    "gemini-cli, rewound": (lambda: rewound("3"), ["Go", "Gone.", "On"]),
    "gemini-cli, rewound to its first question": (lambda: rewound("1"), ["On"]),
    "gemini-cli, rewound to its beginning": (lambda: rewound("0"), ["On"]),
    "gemini-cli, rewound to what is not there": (lambda: rewound("unknown"), ["On"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOKEN)
def test_what_a_model_was_told_and_said_stands_there_alone_and_in_its_order(home: Path, name: str) -> None:
    make, spoken = SPOKEN[name]
    assert [entry["text"] for entry in imported(keep("x.md", make()))] == spoken


TALK = [response("user", "G1"), response("assistant", "G2"), response("user", "K1"), response("assistant", "G3")]
PI_TALK: list[JsonObject] = [{"role": ("user", "assistant")[n % 2], "content": word} for n, word in enumerate(("G1", "G2", "K1", "K2"))]  # fmt: skip
GEMINI_TALK: list[JsonObject] = [{"id": str(n), "type": "user" if n % 2 else "gemini", "content": [{"text": word}]} for n, word in enumerate(("K1", "G1", "G2", "K2", "K3"), 1)]  # fmt: skip
BOUNDARY = {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "uuid": "b", "parentUuid": None}
SUMMED = line("user", "S1", "5", "b", isCompactSummary=True)
CLAUDE_TALK = [line(("user", "assistant")[n % 2], text(word), f"{n + 1}", f"{n or ''}") for n, word in enumerate(("G1", "G2", "K1", "K2"))]  # fmt: skip


def opencode_talk(*messages: tuple[JsonObject, JsonObject], revert: JsonObject | None = None, files: str = "") -> Path:
    """A session of opencode, with one part a message; in a database, or in files as it had them earlier or first."""
    rows = [(f"m{n}", {"role": ("user", "assistant")[n % 2], "providerID": "anthropic", "time": {"created": n}, **facts}, part) for n, (facts, part) in enumerate(messages)]  # fmt: skip
    if not files:
        made = database(OPENCODE.replace("time_created)", "time_created, revert)", 1).replace("('s', 1)", f"('s', 1, '{json.dumps(revert)}')"), message=[(id, "s", n, json.dumps(facts)) for n, (id, facts, _) in enumerate(rows)], part=[(f"p{id}", id, "s", json.dumps(part)) for id, _, part in rows])  # fmt: skip
        return keep("x.db", made)
    inner, owner = ("storage/session/", "s/") if files == "first" else ("storage/", "")
    values: dict[str, JsonObject | None] = {f"storage/session/{'info' if owner else 'p'}/s.json": {"id": "s", "revert": revert}}  # fmt: skip
    values |= {f"{inner}message/s/{id}.json": facts for id, facts, _ in rows}
    values |= {f"{inner}part/{owner}{id}/p{id}.json": part for id, _, part in rows}
    for name, value in values.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(json.dumps(value, indent=2))
    return Path("storage")


def test_what_a_database_of_opencode_was_made_of_is_not_read_beside_it(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path("opencode").mkdir()
    for files, name in (("", "opencode.db"), ("earlier", "storage")):
        opencode_talk(*OPENCODE_TALK, files=files).rename(f"opencode/{name}")
    assert run("import", "opencode", "--into", "t") == "t: 4 entries\n"
    assert "storage is left out: opencode.db was made of it" in caplog.text


def test_what_cannot_be_read_in_a_folder_of_opencode_is_named(home: Path) -> None:
    opencode_talk(*OPENCODE_TALK, files="earlier")
    for name in ("part/m0/pm0", "message/s/m3"):
        Path(f"storage/{name}.json").write_text('{"type": "te')
    done = invoke("import", "storage")
    assert [json.loads(one)["text"] for one in done.stdout.splitlines()] == ["G2", "K1"]
    assert done.stderr.endswith("left out: 1 × pm0.json, which cannot be read, 1 × m3.json, which cannot be read\n")


def said(word: str) -> tuple[JsonObject, JsonObject]:
    return {}, {"type": "text", "text": word}


OPENCODE_TALK = [*map(said, ("G1", "G2", "K1", "K2"))]
ASKED_SO_FAR = ({}, {"type": "compaction", "auto": True})
SUMMARY = ({"summary": True, "finish": "stop", "parentID": "m4"}, {"type": "text", "text": "S1"})
# A session that was summed up, and in which order its model saw then what; G… are the words it saw no more.
SUMMED_UP: dict[str, tuple[Callable[[], Path], list[str]]] = {
    "pi": (lambda: keep("x.jsonl", pi_lines(*PI_TALK, {"type": "compaction", "summary": "S1", "firstKeptEntryId": "i2"}, {"role": "user", "content": "L1"})), ["S1", "K1", "K2", "L1"]),
    "pi-twice": (lambda: keep("x.jsonl", pi_lines(*PI_TALK, {"type": "compaction", "summary": "G4", "firstKeptEntryId": "i2"}, {"role": "user", "content": "G5"}, {"type": "compaction", "summary": "S1", "firstKeptEntryId": ""}, {"role": "user", "content": "L1"}).replace("K1", "G6").replace("K2", "G7")), ["S1", "L1"]),
    "pi-before": (lambda: keep("x.jsonl", pi_lines(*PI_TALK, {"type": "compaction", "summary": "S1", "firstKeptEntryIndex": 3}).replace('"parentId"', '"p"').replace('"i', '"')), ["S1", "K1", "K2"]),
    "pi-retained": (lambda: keep("x.jsonl", pi_lines(*PI_TALK, {"type": "compaction", "summary": "S1", "retainedTail": PI_TALK[2:]}, {"role": "user", "content": "L1"})), ["S1", "K1", "K2", "L1"]),
    "pi-retained-anew": (lambda: keep("x.jsonl", pi_lines(*PI_TALK[:2], {"type": "compaction", "summary": "S1", "firstKeptEntryId": "i0", "retainedTail": [{"role": "user", "content": "K1"}]})), ["S1", "K1"]),
    "gemini-cli": (lambda: keep("x.jsonl", gemini_lines(*GEMINI_TALK, {"$set": {"messages": [GEMINI_TALK[0], {"id": "n1", "type": "user", "content": [{"text": "S1"}]}, {"id": "n2", "type": "gemini", "content": [{"text": "Got it."}]}, *GEMINI_TALK[3:]]}}, {"id": "6", "type": "user", "content": "L1"})), ["K1", "S1", "K2", "K3", "L1"]),
    "codex": (lambda: write("x.jsonl", rollout(*TALK, compacted("", response("user", "K1"), response("user", "S1")), response("assistant", "L1"))), ["K1", "S1", "L1"]),
    "codex-sealed": (lambda: write("x.jsonl", rollout(*TALK, compacted("", response("user", "S1"), response("user", "K1"), {"type": "compaction", "encrypted_content": "E1"}), response("assistant", "L1"))), ["S1", "K1", "L1"]),
    "codex-before": (lambda: write("x.jsonl", rollout(*TALK[1:], compacted("S1"), response("assistant", "L1"))), ["K1", "S1", "L1"]),
    "codex-rewound": (lambda: write("x.jsonl", rollout(*TALK[:2], compacted("S1"), response("user", "Stale"), compacted("Stale"), {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}, response("user", "L1"))), ["G1", "S1", "L1"]),
    "claude-code": (lambda: write("x.jsonl", [*CLAUDE_TALK, BOUNDARY, SUMMED, line("assistant", text("L1"), "6", "5")]), ["S1", "L1"]),
    "claude-code-preserved": (lambda: write("x.jsonl", [*CLAUDE_TALK, {**BOUNDARY, "compactMetadata": {"preservedSegment": {"headUuid": "3", "tailUuid": "4"}}}, SUMMED]), ["K1", "K2", "S1"]),
    "claude-code-anchored": (lambda: write("x.jsonl", [*CLAUDE_TALK, {**BOUNDARY, "compactMetadata": {"preservedSegment": {"headUuid": "3", "anchorUuid": "5", "tailUuid": "4"}}}, SUMMED, line("user", "L1", "6", "4")]), ["S1", "K1", "K2", "L1"]),
    "claude-code-listed": (lambda: write("x.jsonl", [*CLAUDE_TALK, {**BOUNDARY, "compactMetadata": {"preservedMessages": {"anchorUuid": "b", "uuids": ["3", "4"], "allUuids": ["1", "2", "3", "4"]}}}, SUMMED]), ["K1", "K2", "S1"]),
    "claude-code-before": (lambda: write("x.jsonl", [*(one for one in CLAUDE_TALK if "K" not in str(one)), {**SUMMED, "parentUuid": None}, line("assistant", text("L1"), "6", "5")]), ["S1", "L1"]),
    "claude-code-unmarked": (lambda: write("x.jsonl", [*CLAUDE_TALK[:2], line("user", "This session is being continued from a previous conversation that ran out of context. S1", "5"), line("assistant", text("L1"), "6", "5")]), ["S1", "L1"]),
    "opencode": (lambda: opencode_talk(*OPENCODE_TALK, ASKED_SO_FAR, SUMMARY, said("L1")), ["S1", "L1"]),
    "opencode-second": (lambda: keep("x.db", opencode_second(("user", {"text": "G1"}), ("assistant", {"content": [{"type": "text", "text": "G2"}]}), ("compaction", {"summary": "S1", "recent": "K1"}), ("user", {"text": "L1"}))), ["S1", "K1", "L1"]),
    "opencode-tail": (lambda: opencode_talk(*OPENCODE_TALK, ({}, {"type": "compaction", "tail_start_id": "m2"}), SUMMARY), ["K1", "K2", "S1"]),
    "opencode-failed": (lambda: opencode_talk(*OPENCODE_TALK, ASKED_SO_FAR, ({**SUMMARY[0], "error": {"name": "APIError"}}, {"type": "text", "text": "x"}), said("L1")), ["G1", "G2", "K1", "K2", "L1"]),
    "opencode-before": (lambda: opencode_talk(*OPENCODE_TALK, said("G3"), SUMMARY, said("L1"), files="earlier"), ["S1", "L1"]),
}  # fmt: skip


@pytest.mark.moves_prefix(reason="what the client summed up is a rebase")
@pytest.mark.parametrize("name", SUMMED_UP)
def test_a_session_that_was_summed_up_shows_what_its_model_saw_and_keeps_the_rest(home: Path, name: str) -> None:
    make, seen = SUMMED_UP[name]
    run("import", "--into", "t", file := make())
    log = run("log", "export", "t")
    words = sorted(set(re.findall(r"[GKSL]\d", file.read_text(errors="replace") if file.is_file() else log)))
    assert [word for word in words if word not in log] == []
    run("log", "append", "t", "--user", "And?")
    for target in TARGETS:
        request = run("render", "t", "-m", target, "--json")
        assert re.findall(r"[GKSL]\d(?!\d|[\w=+/])", json.dumps(json.loads(request))) == seen
        assert "Stale" not in request
        assert_valid(json.loads(request), target)
    assert run("import", "--into", "u", file).startswith("u: ")
    assert run("import", "--into", "u", file) == "u: nothing new\n"
    run("log", "new", "v")
    run("log", "append", "v", "--user", "Before", "--respond", "Yes.")
    run("import", "--into", "v", file)
    assert run("import", "--into", "v", file) == "v: nothing new\n"
    run("log", "append", "v", "--user", "And?")
    assert re.findall(r"[GKSL]\d\b", run("render", "v", "-m", TARGETS[0], "--json")) == seen


@pytest.mark.moves_prefix(reason="what the client summed up is a rebase")
@pytest.mark.parametrize("name", [name for name in SUMMED_UP if name.startswith(("pi", "claude-code"))])
@pytest.mark.parametrize("went_on", [False, True])
def test_a_session_imported_without_its_rebases_gains_them_behind_what_it_holds(
    home: Path, name: str, went_on: bool
) -> None:
    make, seen = SUMMED_UP[name]
    imported = run("import", file := make()).splitlines(keepends=True)
    spoken = [entry for entry in imported if json.loads(entry)["kind"] != "rebase"]
    Path("before.jsonl").write_text("".join(spoken[: -1 if went_on else None]))
    run("log", "import", "w-1", "before.jsonl")
    lines = [
        line("user", "Hello", "1", sessionId="other"),
        line("assistant", text("Yes."), "2", "1", sessionId="other"),
    ]
    other = write("other.jsonl", lines)
    lacking = len(imported) - len(spoken) + went_on
    growth = (
        f"w-1: {lacking} {'entry' if lacking == 1 else 'entries'}, behind {len(spoken) - went_on} that were there\n"
    )
    assert run("import", "--into", "w", file, other) == growth + "w-2: 2 entries\n"
    assert run("import", "--into", "w", file, other) == "w-1: nothing new\nw-2: nothing new\n"
    run("log", "append", "w-1", "--user", "And?")
    assert re.findall(r"[GKSL]\d\b", run("render", "w-1", "-m", TARGETS[0], "--json")) == seen
    assert run("import", "--into", "w-1", file) == "w-1: nothing new\n"


@pytest.mark.moves_prefix(reason="what the client summed up is a rebase")
@pytest.mark.parametrize("name", "pi pi-twice pi-before pi-retained gemini-cli codex codex-sealed claude-code claude-code-anchored opencode".split())  # fmt: skip
def test_a_session_that_is_imported_again_and_again_while_it_grows_is_as_if_it_were_imported_once(
    home: Path, name: str
) -> None:
    if name == "opencode":
        talk = [*OPENCODE_TALK, ASKED_SO_FAR, SUMMARY, said("L1")]
        sessions = [opencode_talk(*talk[:end]).read_bytes() for end in range(2, len(talk) + 1)]
    else:
        lines = SUMMED_UP[name][0]().read_bytes().splitlines(keepends=True)
        sessions = [b"".join(lines[:end]) for end in range(4, len(lines) + 1)]
    for session in sessions:
        Path("x.jsonl").write_bytes(session)
        run("import", "--into", "grown", "x.jsonl")
    run("import", "--into", "whole", "x.jsonl")
    for thread in ("grown", "whole"):
        run("log", "append", thread, "--user", "And?")
    assert run("render", "grown", "-m", TARGETS[0]) == run("render", "whole", "-m", TARGETS[0])
    assert run("import", "--into", "grown", "x.jsonl") == "grown: nothing new\n"


REVERTED: dict[str, tuple[JsonObject | None, list[str]]] = {
    "never": (None, ["G1", "G2", "K1", "K2"]),
    "to a question": ({"messageID": "m2"}, ["G1", "G2"]),
    "within an answer": ({"messageID": "m3", "partID": "pm3"}, ["G1", "G2", "K1"]),
    "to what is gone": ({"messageID": "m9"}, ["G1", "G2", "K1", "K2"]),
}  # fmt: skip


@pytest.mark.parametrize("files", ["", "earlier", "first"])
@pytest.mark.parametrize("case", REVERTED)
def test_what_opencode_rewound_is_left_behind_and_said(home: Path, case: str, files: str) -> None:
    revert, seen = REVERTED[case]
    done = invoke("import", opencode_talk(*OPENCODE_TALK, revert=revert, files=files))
    assert [json.loads(one)["text"] for one in done.stdout.splitlines()] == seen
    lost = {"to a question": "; left out: 2 × rewound message"}.get(case, "")
    assert done.stderr == f"read as opencode: 1 conversation; it holds no system prompt, no tools{lost}\n"


@pytest.mark.parametrize("name", ["claude-code", "pi-told", "gemini-cli", "codex-lines", "requests"])
def test_lines_that_stand_in_one_list_are_read_as_lines(home: Path, name: str) -> None:
    written = str(WHOLE[name][0]()) if name in WHOLE else "\n".join(map(json.dumps, BODIES))
    Path("x.jsonl").write_text(written)
    Path("y.json").write_text(f"[{written.replace(chr(10), ',')}]")
    assert run("import", "y.json") == run("import", "x.jsonl")


HALF: list[tuple[str, Callable[[], str | bytes], str]] = [
    ("c.jsonl", lambda: json.dumps(line("user", "Hi \ud83d there", "1")) + "\n", "c.jsonl"),
    ("r.jsonl", lambda: "\n" + json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi \ud83d there"}]}) + "\n", "r.jsonl"),
    ("a.db", lambda: database("CREATE TABLE agent_sessions (session_id, created_at); CREATE TABLE agent_messages (id, session_id, message_data, created_at)", agent_sessions=[("s", "1")], agent_messages=[(1, "s", json.dumps({"role": "user", "content": "Hi \ud83d there"}), "1")]), "a.db"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "place"), HALF)
def test_half_a_character_is_replaced_and_said(
    home: Path, caplog: pytest.LogCaptureFixture, name: str, make: Callable[[], str | bytes], place: str
) -> None:
    assert imported(keep(name, make()))[0]["text"] == "Hi \ufffd there"
    assert f"{place}: half of a character, read as U+FFFD" in caplog.text
    if name == "r.jsonl":
        assert invoke("audit", name).exit_code == 0
        assert json.loads(run("import", name, "--from", "openai-chat"))["text"] == "Hi \ufffd there"


SIGNED = {"anthropic": {"signature": "A"}}
SEALED = {"openai": {"itemId": "rs_1", "reasoningEncryptedContent": "O"}}
GOOGLE = {"google": {"thoughtSignature": "G"}}
# What an answer is signed with, and what of it is sent back to whom signed it.
SIGNATURES: list[tuple[Callable[[], str | bytes], str, list[str], list[str]]] = [
    (lambda: llm_thought({"openai": {"id": "rs_1", "encrypted_content": "O"}}), "openai:o3", ['"id":"rs_1"', '"encrypted_content":"O"'], []),
    (lambda: llm_thought({"anthropic": {"signature": "A"}}), "anthropic:claude-opus-4-6", ['"signature":"A"'], []),
    (lambda: opencode_answers(("openai", opencode_step(SEALED, "c"))), "openai:gpt-5.6", ['"id":"rs_1"', '"encrypted_content":"O"'], []),
    (lambda: opencode_answers(("gateway", opencode_step(SEALED, "c"))), "openai:gpt-5.6", ['"encrypted_content":"O"'], []),
    (lambda: opencode_answers(("gateway", opencode_step(SIGNED, "c")), ("gateway", [{"type": "text", "text": "W1"}])), "anthropic:claude-opus-4-6", ['"signature":"A"', "W1"], []),
    (lambda: opencode_answers(("google", opencode_step(GOOGLE, "c"))), "gemini:gemini-3.1-pro-preview", ['"thoughtSignature":"G"'], []),
    (lambda: opencode_answers(("google", [{"type": "text", "text": "W1"}, {"type": "text", "text": "", "metadata": GOOGLE}])), "gemini:gemini-3.1-pro-preview", ["W1", '{"text":"","thoughtSignature":"G"}'], []),
    (lambda: opencode_answers(("anthropic", opencode_step({"anthropic": {"redactedData": "R"}}, "c"))), "anthropic:claude-opus-4-6", ['"redacted_thinking","data":"R"'], []),
    (lambda: opencode_answers(("anthropic", opencode_step(SIGNED, "c")), ("openai", opencode_step(SEALED, "d"))), "openai:gpt-5.6", ['"O"'], ['"A"']),
    (lambda: opencode_answers(("openai", opencode_step(SEALED, "c")), ("anthropic", opencode_step(SIGNED, "d"))), "anthropic:claude-opus-4-6", ['"A"'], ['"O"', "rs_1"]),
    (lambda: pi_lines({"role": "assistant", "content": [{"type": "thinking", "thinking": "W1", "thinkingSignature": "reasoning_content"}, {"type": "text", "text": "W2"}]}, api="openai-completions"), "openai:gpt-5.6", ["W2"], ["encrypted_content\":"]),
    (lambda: pi_lines({"role": "user", "content": "Go"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "thinkingSignature": json.dumps({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "O"})}, {"type": "text", "text": "W1", "textSignature": '{"v": 1, "id": "msg_1"}'}, {"type": "text", "text": "W2", "textSignature": "msg_2"}, {"type": "toolCall", "id": "call_1|fc_1", "name": "f", "arguments": {}}]}, {"role": "toolResult", "toolCallId": "call_1|fc_1", "toolName": "f", "content": [{"type": "text", "text": "W3"}]}, api="openai-codex-responses"), "openai:gpt-5.6", ['"id":"msg_1"', '"id":"msg_2"', '"function_call_output","call_id":"call_1","output":"W3"'], ["call_1|", "nterrupted"]),
    (lambda: pi_lines({"role": "assistant", "content": [{"type": "thinking", "thinking": "[hidden]", "thinkingSignature": "R", "redacted": True}, {"type": "text", "text": "W2"}]}), "anthropic:m", ['"redacted_thinking","data":"R"'], ["[hidden]"]),
    (lambda: json.dumps([parts({"user-prompt": {"content": "q"}}), {**parts({"thinking": {"content": "", "id": "rs_1", "signature": "O"}}, {"tool-call": {"tool_name": "f", "tool_call_id": "call_1|fc_1", "args": "{}"}}, kind="response"), "provider_name": "openai"}, parts({"tool-return": {"tool_name": "f", "tool_call_id": "call_1|fc_1", "content": "W1"}})]), "openai:gpt-5.6", ['"call_id":"call_1"', '"id":"fc_1"', "W1"], ["call_1|", "nterrupted"]),
    (lambda: json.dumps([parts({"user-prompt": {"content": "q"}}), {**parts({"thinking": {"content": "W1", "id": "rs_1", "signature": "O"}}, {"thinking": {"content": "W2", "id": "rs_1"}}, {"text": {"content": "a"}}, kind="response"), "provider_name": "openai"}]), "openai:gpt-5.6", ["W1", "W2", '"encrypted_content":"O"'], ['"encrypted_content":""']),
]  # fmt: skip


@pytest.mark.parametrize(("make", "target", "sent", "not_sent"), SIGNATURES)
def test_what_an_answer_was_signed_with_goes_back_to_whom_signed_it(
    home: Path, make: Callable[[], str | bytes], target: str, sent: list[str], not_sent: list[str]
) -> None:
    entries = imported(keep("x.json", make()), "-m", target.partition(":")[2])
    write("entries.jsonl", [*entries, {"kind": "user", "text": "On"}])
    body = json.loads(run("render", "entries.jsonl", "-m", target, "--json"))
    assert_valid(body, target)
    text = json.dumps(body, separators=(",", ":"))
    assert [part for part in sent if part not in text] == []
    assert [part for part in not_sent if part in text] == []
    assert text.count("rs_1") <= 2


def test_the_steps_of_one_message_are_answers_of_their_own(home: Path) -> None:
    steps = [*opencode_step(SIGNED, "c"), *opencode_step(SIGNED, "d")]
    kinds = [entry["kind"] for entry in imported(keep("x.db", opencode_answers(("anthropic", steps))))]
    assert kinds == ["user", "think", "call", "result", "think", "call", "result"]


def test_what_strands_marks_as_bytes_is_base64(home: Path) -> None:
    Path("s/agents/agent_a/messages").mkdir(parents=True)
    Path("s/session.json").write_text("{}")
    data = {"__bytes_encoded__": True, "data": PNG}
    picture = {"image": {"format": "png", "source": {"bytes": data}}}
    call = {"toolUse": {"toolUseId": "t", "name": "f", "input": {"reason": "W1"}, "reasoningSignature": "Stale"}}
    result = {"toolResult": {"toolUseId": "t", "status": "success", "content": [{"text": "W2"}, picture]}}
    said = [("user", [{"text": "W3"}, picture]), ("assistant", [{"reasoningContent": {"redactedContent": data}}, call]), ("user", [result])]  # fmt: skip
    for number, (role, content) in enumerate(said):
        path = Path(f"s/agents/agent_a/messages/message_{number}.json")
        path.write_text(json.dumps({"message": {"role": role, "content": content}}))
    printed = run("import", "s")
    assert [word for word in ("W1", "W2", "W3", PNG) if word not in printed] == []
    assert "__bytes_encoded__" not in printed
    assert "Stale" not in printed
    assert_goes_on(printed)


@pytest.mark.moves_prefix(reason="what the client summed up is a rebase")
def test_what_strands_removed_or_took_back_its_model_sees_no_more(home: Path) -> None:
    Path("s/agents/agent_a/messages").mkdir(parents=True)
    Path("s/session.json").write_text("{}")
    state = {"__name__": "SummarizingConversationManager", "removed_message_count": 2, "summary_message": {"role": "user", "content": [{"text": "S1"}]}}  # fmt: skip
    Path("s/agents/agent_a/agent.json").write_text(json.dumps({"conversation_manager_state": state}))
    for number, word in enumerate(("G1", "G2", "Stale", "K1")):
        row = {"message": {"role": ("user", "assistant")[number % 2], "content": [{"text": word}]}}
        row |= {"redact_message": {"role": "user", "content": [{"text": "K0"}]}} if word == "Stale" else {}
        Path(f"s/agents/agent_a/messages/message_{number}.json").write_text(json.dumps(row))
    run("import", "s", "--into", "t")
    assert "Stale" not in run("log", "export", "t")
    run("log", "append", "t", "--user", "L1")
    assert re.findall(r"[GKSL]\d", run("render", "t", "-m", TARGETS[0], "--json")) == ["S1", "K0", "K1", "L1"]


@pytest.mark.parametrize("api", ["openai-completions", "openai-responses", "anthropic-messages"])
def test_what_the_user_wrote_in_parts_is_one_message_in_parts(home: Path, api: str) -> None:
    parts = [{"type": "text", "text": "W1"}, {"type": "image", "mimeType": "image/png", "data": PNG}, {"type": "text", "text": "W2"}]  # fmt: skip
    signed = {"type": "thinking", "thinking": "Hm", "thinkingSignature": json.dumps({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "O"})}  # fmt: skip
    said = pi_lines({"role": "user", "content": parts}, {"role": "assistant", "api": api, "content": [signed, {"type": "text", "text": "A"}]}, api=api)  # fmt: skip
    asked = imported(keep("x.json", said))[0]
    assert (asked["text"], len(asked["images"])) == ("W1\nW2", 1)


def test_arguments_that_broke_off_are_kept_as_they_are(home: Path) -> None:
    broken = {"tool_name": "f", "tool_call_id": "c", "args": '{"path": "a'}
    said = [parts({"user-prompt": {"content": "q"}}), parts({"tool-call": broken}, kind="response")]
    assert imported(keep("x.json", json.dumps(said)))[1]["args"] == broken["args"]


def test_branches_of_a_session_of_openai_agents_are_conversations(home: Path) -> None:
    said = [(n, "s", json.dumps({"role": role, "content": word}), "1") for n, (role, word) in enumerate([("user", "Q"), ("assistant", "A"), ("user", "B")])]  # fmt: skip
    schema = "CREATE TABLE agent_sessions (session_id, created_at); CREATE TABLE agent_messages (id, session_id, message_data, created_at); CREATE TABLE message_structure (id, session_id, message_id, branch_id, sequence_number)"
    order = [(1, "s", 0, "main", 1), (2, "s", 1, "main", 2), (3, "s", 0, "b", 1), (4, "s", 2, "b", 2)]
    keep("x.db", database(schema, agent_sessions=[("s", "1")], agent_messages=said, message_structure=order))
    told = [[entry["text"] for entry in imported("x.db", "--line", n)] for n in "12"]
    assert told == [["Q", "A"], ["Q", "B"]]


def test_a_call_that_was_still_at_work_has_no_result(home: Path) -> None:
    kinds = [(entry["kind"], entry.get("call_id")) for entry in imported(keep("x.db", opencode_file()))]
    assert ("call", "d") in kinds
    assert ("result", "d") not in kinds


def test_what_tools_gave_stays_where_gemini_cli_masks_it_later(home: Path) -> None:
    said = [{"id": "1", "type": "user", "content": "Go"}, gemini_calls("a", done="a"), {"id": "3", "type": "user", "content": [gave("a")]}]  # fmt: skip
    masked = {"functionResponse": {**gave("a")["functionResponse"], "response": {"output": "Stale"}}}
    checkpoint = {"$set": {"messages": [*said[:2], {**said[2], "content": [masked]}]}}
    Path("s.jsonl").write_text(gemini_lines(*said))
    run("import", "s.jsonl", "--into", "t")
    Path("s.jsonl").write_text(gemini_lines(*said, checkpoint, {"id": "4", "type": "gemini", "content": "Done."}))
    assert run("import", "s.jsonl", "--into", "t") == "t: 1 entry, behind 4 that were there\n"


def test_calls_that_gemini_cli_adds_to_an_earlier_line_were_made_where_they_were_added(home: Path) -> None:
    rows: list[JsonObject] = [{"id": "1", "type": "user", "content": "Go"}]
    for number, name in enumerate("abc", 1):
        calls = gemini_calls(*"abc"[:number], done="abc")
        rows += [calls, {"id": f"r{name}", "type": "user", "content": [gave(name)]}, {"id": f"g{name}", "type": "gemini", "content": f"On {name}."}]  # fmt: skip
    rewound = [{"$rewindTo": "gb"}, {"id": "5", "type": "user", "content": "Else"}, rows[7]]
    Path("s.jsonl").write_text(gemini_lines(*rows[:7], *rewound))
    told = imported("s.jsonl")
    assert [entry.get("text") or entry["call_id"] for entry in told] == ["Go", "I look.", "a", "a", "On a.", "b", "b", "Else", "c", "c"]  # fmt: skip


def gemini_calls(*calls: str, done: str) -> JsonObject:
    """A line of gemini-cli with its calls; those that are done have their result."""
    made: list[JsonObject] = [{"id": id, "name": "f", "args": {"x": id}} for id in calls]
    return {"id": "2", "type": "gemini", "content": "I look.", "toolCalls": [{**call, **({"result": [gave(call["id"])]} if call["id"] in done else {})} for call in made]}  # fmt: skip


def gave(id: str) -> JsonObject:
    return {"functionResponse": {"id": id, "name": "f", "response": {"output": f"r{id}"}}}


@pytest.mark.parametrize("calls", [gemini_calls("a", done="a"), gemini_calls("a", "b", done="a"), gemini_calls("a", "b", done="b"), gemini_calls("a", "b", "c", done="cb")])  # fmt: skip
def test_a_session_that_was_taken_while_tools_were_at_work_goes_on(home: Path, calls: JsonObject) -> None:
    names = [call["id"] for call in calls["toolCalls"]]
    names += [name for name in "ab" if name not in names]
    begun: list[JsonObject] = [{"id": "1", "type": "user", "content": "Go"}, calls]
    sent = {"id": "3", "type": "user", "content": [gave(name) for name in names]}
    done = {"id": "4", "type": "gemini", "content": "Done."}
    Path("s.jsonl").write_text(gemini_lines(*begun))
    run("import", "s.jsonl", "--into", "t")
    Path("s.jsonl").write_text(gemini_lines(*begun, gemini_calls(*names, done="abc"), sent, done))
    run("import", "s.jsonl", "--into", "t")
    assert run("import", "s.jsonl", "--into", "t") == "t: nothing new\n"
    contents = json.loads(run("export", "t", "--to", "gemini"))
    results = [part["functionResponse"] for content in contents for part in content["parts"] if "functionResponse" in part]  # fmt: skip
    assert sorted(json.dumps(result) for result in results) == [json.dumps(gave(name)["functionResponse"]) for name in sorted(names)]  # fmt: skip
    called = [part["functionCall"]["id"] for content in contents for part in content["parts"] if "functionCall" in part]
    assert sorted(called) == sorted(names)
    assert_goes_on(run("log", "export", "t") + '{"kind": "user", "text": "On"}')


def talk_of(words: str) -> list[Entry]:
    """`uX` is told, `rX` answered, `cX` called, `tXn` what the call X gave."""
    kinds = {"u": values.user, "r": values.respond, "c": lambda id: values.call(id, "f", {}), "t": lambda of: values.result(of[0], content=of)}  # fmt: skip
    return [kinds[word[0]](word[1:]) for word in words.split()]


@pytest.mark.parametrize(
    ("held", "now", "lacking", "passed_over"),
    [
        ("u1", "ua ub u1", "ua ub", 0),  # attachments are written behind the prompt
        ("u1 ua r1", "ua u1 r1 u2", "u2", 0),
        ("u1 r1 u2 ua r2", "uc u1 r1 ub ua u2 r2 u3", "u3", 2),  # commands and attachments that were not read before
        ("u1 uc r1 u2", "u1 r1 u2 r2", "r2", 0),  # a command that is not read any more
        ("u1 ca ta1 r1", "u1 ca ta1 uc r1 u2", "u2", 1),
        ("u1 ca ta1", "u1 ca ta2 r1", "r1", 1),  # what the tool gave was shortened
        ("u1 ua r1 u2 r2", "ua u1 r1", "", 0),
        ("u1 r1 u2", "u1 r1 u3 r3", None, 0),
        ("u1 r1 u2 r2", "u1 r1 ux u2 r3", None, 0),
        ("u1 r1", "u2 r1 u3", "u2 r1 u3", 0),
        ("u1 r1", "u2 u3 r1", "u2 u3 r1", 0),
        ("u1 r1 u2 r2 u1", "u1 r1 u3 r3", None, 0),  # what it begins with stands at the end of the thread too
    ],
)
def test_a_session_that_is_read_otherwise_than_before_is_neither_doubled_nor_refused(
    held: str, now: str, lacking: str | None, passed_over: int
) -> None:
    joined = joining(talk_of(held), talk_of(now))
    assert (joined.lacking, joined.passed_over) == (talk_of(lacking or ""), passed_over)
    assert bool(joined.parts_behind) == (lacking is None)


@pytest.mark.moves_prefix(reason="what the client summed up is a rebase")
def test_a_session_of_claude_code_taken_at_each_of_its_lines_holds_each_entry_once(home: Path) -> None:
    file = attached("file", filename="a", content={"file": {"content": "a"}})
    ran = {"type": "system", "subtype": "local_command", "sessionId": "s", "content": "W"}
    told = [line("user", "Go", "1"), file, *CLAUDE[3:7], ran, line("assistant", text("Right."), "10", "6")]
    rows = [*told, BOUNDARY, SUMMED, file, line("user", "On", "11"), line("assistant", text("End."), "12", "11")]
    for end in range(1, len(rows) + 1):
        write("c.jsonl", rows[:end])
        invoke("import", "c.jsonl", "--into", "t")
    write("c.jsonl", rows)
    run("import", "c.jsonl", "--into", "whole")
    grown, whole = ([json.loads(one) for one in run("log", "export", name).splitlines()] for name in ("t", "whole"))
    said = [sorted(f"{one['kind']} {one.get('text')} {one.get('call_id')}" for one in entries) for entries in (grown, whole)]  # fmt: skip
    assert said[0] == said[1]
    (rebase,) = [one for one in grown if one["kind"] == "rebase"]
    assert {edit["entry"] for edit in rebase["edits"]} == set(range(1, len(told) + 1))


def test_a_session_that_is_read_otherwise_is_kept_beside_what_was_taken_before(home: Path) -> None:
    Path("all").mkdir()
    for name in "ab":
        write(f"all/{name}.jsonl", [line("user", f"Go {name}", "1"), line("assistant", text("A"), "2", "1")])
    run("import", "all", "--into", "t")
    write("all/b.jsonl", [line("user", "Go b", "1"), line("assistant", text("A"), "2", "1"), line("user", "B", "3", "2"), line("assistant", text("C"), "4", "3")])  # fmt: skip
    run("import", "all", "--into", "t")
    write("all/b.jsonl", [line("user", "Go b", "1"), line("assistant", text("A"), "2", "1"), line("assistant", text("D"), "4", "2")])  # fmt: skip
    shown = invoke("import", "all", "--into", "t")
    assert "t-3: goes another way than t-2 behind entry 2, and is kept beside it" in shown.stderr
    assert run("import", "all", "--into", "t") == "t-1: nothing new\nt-3: nothing new\n"


def test_calls_are_put_as_a_thread_has_them_in_a_time_that_grows_with_them() -> None:
    def put(groups: int) -> None:
        pairs = [
            [(values.call(f"{n}{name}", "f", {}), values.result(f"{n}{name}", "ok")) for name in "ab"]
            for n in range(groups)
        ]
        before = [values.user("Go"), *(entry for n, (a, b) in enumerate(pairs) for entry in (*a, *b, values.respond(f"{n}")))]  # fmt: skip
        now = [values.user("Go"), *(entry for n, (a, b) in enumerate(pairs) for entry in (a[0], b[0], a[1], b[1], values.respond(f"{n}")))]  # fmt: skip
        assert joining(before, now).lacking == []

    assert_in_proportion(put, 1_600)


def test_a_folder_that_may_not_be_read_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        (Path(made) / "a.jsonl").write_text("{}")
        (Path(made) / "b").mkdir()
        (Path(made) / "b").chmod(0)
        os.mkfifo(Path(made) / "c.jsonl")  # nobody writes into it
        root = not os.geteuid()
        os.seteuid(65534) if root else None  # permissions do not bind root
        try:
            assert [path.name for path in files_under(Path(made))] == ["a.jsonl"]
        finally:
            os.seteuid(0) if root else None
        (Path(made) / "b").chmod(0o755)
    assert "b cannot be read, and is left out: Permission denied" in caplog.text


def test_a_file_of_a_folder_is_named_whatever_is_wrong_with_it(home: Path) -> None:
    Path("all").mkdir()
    write("all/a.jsonl", CLAUDE[:3])
    write("all/b.jsonl", [{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}])
    assert "left out: b.jsonl: messages[1]: unknown role 'wizard'" in invoke("import", "all", "--into", "t").stderr


def test_files_of_claude_code_without_a_message_are_its_own_and_hold_no_conversation(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"type": "summary", "summary": "Tea", "leafUuid": "1"}\n')
    (tmp_path / "b.jsonl").write_text('{"type": "file-history-snapshot", "messageId": "1", "snapshot": {}}\n')
    for file in map(source_file, files_under(tmp_path)):
        assert (recognised(file).name, list(conversations(file, recognised(file)))) == ("claude-code", [])


def test_what_codex_packed_is_read(home: Path) -> None:
    Path("all").mkdir()
    written = "\n".join(map(json.dumps, rollout(response("user", "Go")))).encode()
    packer = zstandard.ZstdCompressor().compressobj()
    Path("all/rollout-1.jsonl.zst").write_bytes(packer.compress(written) + packer.flush())
    assert json.loads(run("import", "all"))["text"] == "Go"
    for broken in (b"\x28\xb5\x2f\xfdno", Path("all/rollout-1.jsonl.zst").read_bytes()[:-3]):
        Path("x.jsonl").write_bytes(broken)
        with pytest.raises(FormatError, match=r"x.jsonl cannot be read: it ends within what was packed"):
            run("import", "x.jsonl")


def test_a_folder_brings_what_is_a_session_and_says_what_is_not(home: Path) -> None:
    Path("all").mkdir()
    write("all/a.jsonl", CLAUDE[:3])
    write("all/b.jsonl", [{"some": "thing"}])
    Path("all/c.json.gz").write_bytes(b"\x1f\x8bno")
    Path("all/d.jsonl.gz").write_bytes(gzip.compress(Path("all/a.jsonl").read_bytes()))
    done = invoke("import", "all", "--into", "t")
    assert (done.stdout, "left out: line 1, column 1: b.jsonl begins with the fields some" in done.stderr) == ("t-1: 2 entries\nt-2: 2 entries\n", True)  # fmt: skip


@pytest.mark.parametrize(
    "begins", ["", '[{"role": "user", "content": "', '{"type": "summary"}\n{"a": "', '{"log": {"entries": [{"a": "']
)
def test_a_small_packed_file_that_unpacks_to_a_large_value_is_not_read(
    home: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    monkeypatch.setattr("quire.archive.stored_conversations._MOST_BYTES", 5_000_000)
    for file, pack in (("s.jsonl.gz", gzip.compress), ("s.jsonl.zst", zstandard.compress)):
        Path(file).write_bytes(pack(begins.encode() + b"x" * 10_000_000))
        for command in (f"import {file} --into t", f"audit {file}"):
            with pytest.raises(FormatError, match="unpacks to a piece of more than 5,000,000 bytes"):
                invoke(*command.split())


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ('{"some": 1}\n{"other": 2}', [], "line 1, column 1: x.jsonl begins with the fields some, which nothing known here begins with"),
        ("no JSON at all", [], "x.jsonl begins with 'no JSON at all'"),
        ('{"type": "session_meta", "payload": {}}\n{"type": "response_item"}', [], "line 2, column 1: x.jsonl holds the fields type, which is not a line of a Codex rollout"),
        ('{"type": "session_meta", "payload": {}}\n{"type": "event_msg", "payload": {}}', ["--from", "openai-responses"], "x.jsonl begins with 'session_meta', which openai-responses does not have"),
        ('{"role": "user", "content": "a"}', ["--from", "codex"], "line 1, column 1: x.jsonl holds the fields role, content, which is not a line of a Codex rollout"),
        ('{"a": 1}\n{"b" 2}\n', [], "line 2, column 6: x.jsonl is not JSON: Expecting ':' delimiter"),
        ('{"a": 1}\n{"b":\n{"c": 3}\n', [], "line 2, column 6: x.jsonl is not JSON"),
        ('{"role": "user", "content": "a"}\n3\n', [], "line 2, column 1: x.jsonl holds 3, which is not an object"),
        ('[{"role": "user", "content": "a"}, null]', [], "x.jsonl holds null as number 2, which is not an object"),
        (json.dumps([line("user", "a", "1"), 7]), [], "x.jsonl holds 7 as number 2, which is not a line of Claude Code"),
        (json.dumps([{"messages": [{"role": "user", "content": "a"}]}, 7]), [], "x.jsonl holds 7 as number 2, which is not a request: a body with its messages, alone or as `request`"),
        (b'{"role": "user", "content": "a"}\n{"role": "user", "content": "caf\xe9"}\n', [], "line 2, column 33: x.jsonl is not UTF-8 (0xe9)"),
        (b"# aider chat started at 1\n#### caf\xe9", [], "line 2, column 9: x.jsonl is not UTF-8 (0xe9)"),
        (b"\x89PNG\0\xff", [], "x.jsonl is neither text nor a database"),
        ('{"trajectory_format": "mini-swe-agent-1.1"}', [], "x.jsonl is not as mini-swe-agent writes it: it lacks 'messages'"),
        ('{"resourceSpans": []}', [], "hold no gen_ai.input.messages"),
        ('{"lhar": {"entries": [{"type": "entry", "raw": {"request_body": null}}]}}', [], "holds no bodies"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_its_place(
    home: Path, content: str | bytes, options: list[str], problem: str
) -> None:
    keep("x.jsonl", content)
    with pytest.raises(FormatError) as failed:
        run("import", "x.jsonl", *options)
    assert problem in str(failed.value)
    assert failed.value.hint


@pytest.mark.parametrize("options", [[], ["--from", "anthropic"], ["--from", "codex"]])
def test_a_home_that_nobody_has_is_no_file(home: Path, options: list[str]) -> None:
    with pytest.raises(CallError, match="~nobody-here/x"):
        run("import", "~nobody-here/x.json", *options)


def test_entries_of_a_log_are_told_where_they_are_read(home: Path) -> None:
    write("x.jsonl", [{"kind": "user", "text": "a"}, {"kind": "respond", "text": "b"}])
    with pytest.raises(FormatError) as failed:
        run("import", "x.jsonl")
    assert failed.value.hint == "These are entries: `quire log import THREAD FILE` reads them."


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
@pytest.mark.parametrize("content", ["{}", "[]", '{"type": 1}\n{"message": []}', "text", '[{"kind": "request", "parts": [1]}]', '{"log": {"entries": [1]}}'])  # fmt: skip
def test_no_reader_breaks_on_a_file_of_another_shape(home: Path, store: Any, content: str) -> None:
    Path("x.json").write_text(content)
    with contextlib.suppress(QuireError):
        found = conversations(source_file(Path("x.json")), store)
        assert all(one.entries() is not None for one in found)


JSON = json_of(st.none() | st.text(st.sampled_from('a"\\{}[]\n,:é'), max_size=12), most=6)


@given(st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=4), st.integers(1, 7), st.booleans())
@fewer(60)
def test_the_entries_of_a_har_are_read_one_by_one(entries: list[Any], block: int, wide: bool) -> None:
    log = {"version": "1.2", "pages": [{"title": '"entries": ['}], "entries": entries, "comment": "]"}
    text = json.dumps({"log": log}, indent=1 if wide else None, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quire.archive.stored_conversations._BLOCK", block)
        assert list(source_file(Path("a.har"), text).har_entries()) == entries
        if entries:
            cut = source_file(Path("a.har"), text[: text.rindex("]", 0, text.rindex('"comment"')) - 1])
            with pytest.raises(FormatError, match="ends within its entries"):
                list(cut.har_entries())


@given(st.sampled_from([name for name in WHOLE if not isinstance(WHOLE[name][0](), bytes)]), st.integers(0), st.sampled_from([None, 5, "x", [], {}, [5], float("nan"), float("inf")]))  # fmt: skip
@fewer(150)
def test_a_value_of_a_wrong_kind_is_read_or_refused_with_a_hint(name: str, place: int, value: Any) -> None:
    written = str(WHOLE[name][0]())
    store = recognised(source_file(Path("s.jsonl"), written))
    rows = [json.loads(one) for one in written.splitlines()]
    ways = [*places(rows)]
    rows, hints = put(rows, ways[place % len(ways)], value), ["read"]
    try:
        file = source_file(Path("s.jsonl"), "\n".join(map(json.dumps, rows)))
        assert all(one.entries() is not None for one in conversations(file, store))
    except QuireError as error:
        hints = [error.hint]
        assert not re.search(r"[a-z]Error\b|' object |indices must", str(error)), "it speaks of the file, not of Python"  # noqa: PT017
    assert all(hints)


def test_replies_of_claude_that_were_stored_whole_keep_their_calls(home: Path) -> None:
    called = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.txt"}}
    reply = {"id": "m1", "type": "message", "role": "assistant", "model": "claude-opus-4-6", "content": [*text("So."), called]}  # fmt: skip
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]}
    given = [{"role": "user", "content": "What is in a.txt?"}, reply, result]
    assert [entry["kind"] for entry in imported(keep("x.json", json.dumps(given)))] == ["user", "respond", "call", "result"]  # fmt: skip
