"""quire import, quire export and quire render, as a user calls them."""

import json
from pathlib import Path

import pytest

from quire.errors import CallError, FormatError
from quire.providers import prefix_bytes
from toolbox import invoke, run

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in a.txt?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "hello"},
]


@pytest.fixture(autouse=True)
def chat_file(home: Path) -> None:
    (home / "chat.json").write_text(json.dumps(CHAT))


def test_what_is_imported_into_a_thread_is_exported_verbatim() -> None:
    assert run("import", "--from", "openai-chat", "chat.json", "--thread", "demo") == "demo: 4 entries\n"
    assert json.loads(run("export", "demo", "--to", "openai-chat")) == CHAT


def test_without_a_thread_the_entries_are_printed_for_any_other_command() -> None:
    entries = run("import", "--from", "openai-chat", "-", stdin=json.dumps(CHAT))
    Path("entries.jsonl").write_text(entries)
    assert json.loads(run("export", "entries.jsonl", "--to", "openai-chat")) == CHAT
    assert json.loads(run("export", "entries.jsonl", "--to", "anthropic"))["system"] == "Be brief."


def test_the_next_request_is_rendered_for_any_provider() -> None:
    run("import", "--from", "openai-chat", "chat.json", "--thread", "demo")
    body = json.loads(run("render", "demo", "-p", "openai-chat", "-m", "gpt-4.1-mini", "--json"))
    assert body == {"model": "gpt-4.1-mini", "messages": CHAT, "prompt_cache_key": "demo"}
    shown = run("render", "demo", "--provider", "anthropic", "--model", "claude-opus-5-5")
    assert "anthropic:claude-opus-5-5, turn 1, step 2" in shown
    assert "What is in a.txt?" in shown


def test_bytes_are_the_prefix_of_the_body() -> None:
    run("import", "--from", "openai-chat", "chat.json", "--thread", "demo")
    for provider, model in (("anthropic", "claude-opus-5-5"), ("gemini", "gemini-3.8-flash"), ("openai", "gpt-6-sol")):
        asked = ("render", "demo", "-p", provider, "-m", model)
        body = json.loads(run(*asked, "--json"))
        assert invoke(*asked, "--bytes").stdout_bytes == prefix_bytes(body, provider)


def test_cache_marks_are_placed_unless_one_says_no() -> None:
    run("log", "new", "demo")
    run("log", "append", "demo", "--user", "many words " * 5000)
    asked = ("render", "demo", "-p", "anthropic", "-m", "claude-opus-5-5", "--json")
    assert "cache_control" in run(*asked, "--marks")
    assert run(*asked, "--marks") == run(*asked)
    assert "cache_control" not in run(*asked, "--no-marks")


def test_an_earlier_request_can_be_chosen() -> None:
    run("import", "--from", "openai-chat", "chat.json", "--thread", "demo")
    asked = ("render", "demo", "-p", "openai-chat", "-m", "gpt-4.1-mini")
    assert json.loads(run(*asked, "--turn", "1", "--step", "1", "--json"))["messages"] == CHAT[:2]
    lines = [json.loads(line) for line in run(*asked, "--all").splitlines()]
    assert [(line["turn"], line["step"]) for line in lines] == [(1, 1), (1, 2)]
    with pytest.raises(CallError, match="turn 7"):
        run(*asked, "--turn", "7")


def test_a_file_of_many_conversations_is_taken_line_by_line() -> None:
    lines = "\n".join(json.dumps({"id": n, "messages": [{"role": "user", "content": str(n)}]}) for n in (1, 2))
    Path("traces.jsonl").write_text(lines)
    with pytest.raises(CallError, match="2 conversations"):
        run("import", "--from", "openai-chat", "traces.jsonl")
    assert '"text":"2"' in run("import", "--from", "openai-chat", "traces.jsonl", "--line", "2")
    stored = run("import", "--from", "openai-chat", "traces.jsonl", "--thread", "t", "--json")
    assert json.loads(stored) == [{"thread": "t-1", "entries": 1}, {"thread": "t-2", "entries": 1}]


def test_a_call_is_shown_by_its_name_first() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    said += [{"role": "tool", "tool_call_id": "a", "content": "sunny"}]
    Path("called.json").write_text(json.dumps(said))
    run("import", "--from", "openai-chat", "called.json", "--thread", "called")
    for provider in ("anthropic", "openai-chat", "openai", "bedrock"):
        assert "weather" in run("render", "called", "-p", provider, "-m", "m").split("Rome")[0]


def test_a_file_of_one_message_a_line_is_one_conversation() -> None:
    Path("lines.jsonl").write_text("\n".join(json.dumps(message) for message in CHAT))
    run("import", "--from", "openai-chat", "lines.jsonl", "--thread", "demo")
    assert json.loads(run("export", "demo", "--to", "openai-chat")) == CHAT


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"role": "user"}\nnot json', "3\n4"])
def test_what_cannot_be_imported_is_an_error_with_a_hint(text: str) -> None:
    with pytest.raises(FormatError):
        run("import", "--from", "openai-chat", "-", stdin=text)


def test_items_that_nobody_knows_are_kept_and_named() -> None:
    items = [{"role": "user", "content": "hi"}, {"type": "levitation_call", "id": "lc_1"}]
    Path("items.json").write_text(json.dumps(items))
    told = invoke("import", "--from", "openai-responses", "items.json", "--thread", "demo")
    assert told.stderr.startswith("not known here: levitation_call")
    assert json.loads(run("export", "demo", "--to", "openai-responses")) == items


def test_a_call_with_a_field_of_another_programs_is_sent_and_not_said_to_be_left_out() -> None:
    call = {"toolUseId": "t1", "name": "read", "input": {}, "reasoningSignature": "abc"}
    said = [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": [{"toolUse": call}]}]
    said += [{"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "ok"}]}}]}]
    said += [{"role": "assistant", "content": [{"text": "Done."}]}]
    Path("talk.json").write_text(json.dumps({"messages": said}))
    done = invoke("import", "--from", "bedrock", "talk.json", "--thread", "b")
    assert "not sent" not in done.stderr
    assert "toolUse" in run("render", "b", "--provider", "bedrock", "--model", "anthropic.claude-opus-4-8", "--json")
