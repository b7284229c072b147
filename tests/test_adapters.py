"""Frameworks as they ship, with Quire's adapter, against the emulator: requests extend each other and fit."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quire
from conftest import FRAMEWORK_PAGES, ROOT, traces
from quire.adapters import ThreadMessages, takes_marks, target_of
from quire.testing import MemoryStore
from toolbox import closed_later

sys.path.insert(0, str(ROOT / "bench"))
from adapters import FRAMEWORKS, python_of, replayable, run

BUDGET = 8_000


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_agent_replays_a_recording_within_the_budget(name: str, sdks: dict[str, str], tmp_path: Path) -> None:
    """A stretch of the conversation that bench/adapters.py goes through whole; what the page shows runs before it."""
    if python_of(FRAMEWORKS[name]) is None:
        pytest.skip(f"{FRAMEWORKS[name].venv} is not there: make setup")
    messages = replayable(traces("pi_large_session")[0]["messages"], 80)
    seen = run(
        name, "quire", messages, BUDGET, tmp_path, PAGE=str(FRAMEWORK_PAGES[name]), ANTHROPIC_API_KEY="any", **sdks
    )
    asked = sum(one["role"] == "assistant" for one in messages)
    assert (seen.requests, seen.refused, seen.over, seen.moved) == (asked, 0, 0, 0)
    assert seen.epochs > 2
    # The provider read from its cache what the requests share.
    assert seen.read > 0.5 * seen.tokens


def test_a_models_target_is_known_by_the_frameworks_names() -> None:
    assert target_of("google_genai", "gemini-3.8-flash") == "gemini:gemini-3.8-flash"
    assert target_of("anthropic", "claude-opus-5-5") == "anthropic:claude-opus-5-5"
    assert target_of("somebody", "m") == "openai-chat:m"
    assert target_of("anthropic", "") == ""
    assert not takes_marks("")
    taking = [one for one in ("anthropic", "bedrock", "openai", "gemini") if takes_marks(f"{one}:m")]
    assert taking == ["anthropic", "bedrock"]


def test_a_memory_is_copied_and_written_down_with_what_was_chosen() -> None:
    import copy
    import pickle

    from llama_index.core.llms import ChatMessage
    from workflows.context import JsonSerializer

    from quire.adapters.llama_index import QuireMemory

    memory = QuireMemory(2_000, system="You know the warehouse.", floor=0.5)
    for n in range(40):
        memory.put(ChatMessage(role="user", content=f"What lies on shelf {n}? " + "word " * 30))
        memory.put(ChatMessage(role="assistant", content=f"{n} bolts."))
    memory.put(ChatMessage(role="user", content="And now?"))
    fitted = memory.get()
    assert len(fitted) < len(memory.get_all())
    as_json = JsonSerializer().deserialize(JsonSerializer().serialize(memory))
    again = [copy.deepcopy(memory), pickle.loads(pickle.dumps(memory)), as_json]
    assert [one.get() for one in again] == [fitted] * 3


def test_an_agent_whose_model_is_not_named_is_fitted() -> None:
    from agents import Agent
    from agents.models import get_default_model
    from agents.run_config import CallModelData, ModelInputData

    from quire.adapters.openai_agents import QuireInputFilter

    said = ModelInputData([{"role": "user", "content": "Hello"}], None)
    fits = QuireInputFilter(100_000)
    assert fits(CallModelData(said, Agent("clerk"), None)).input == said.input
    assert fits.fitter.built.tokens > 0
    assert f"openai:{get_default_model()}" in str(fits._fitters._by_conversation.keys())


def test_an_agent_without_a_message_is_for_the_model_to_judge() -> None:
    from langchain.agents.middleware.types import ModelRequest
    from langchain_core.language_models import FakeListChatModel

    from quire.adapters.langchain import QuireMiddleware, pre_model_hook

    request = ModelRequest(model=FakeListChatModel(responses=["Hi."]), messages=[])
    seen = []
    QuireMiddleware(1_000).wrap_model_call(request, lambda handed: seen.append(handed.messages))  # type: ignore[arg-type, return-value]
    assert seen == [[]]
    assert pre_model_hook("openai-chat:gpt-5", 1_000)({"messages": []}) == {"llm_input_messages": []}


def test_a_chat_history_keeps_langchains_messages_and_begins_anew_in_a_fork(tmp_path: Path) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from quire.adapters.langchain import QuireChatMessageHistory

    called = AIMessage("I look.", tool_calls=[{"id": "c1", "name": "look", "args": {"shelf": 7}}], id="run-1")
    said = [HumanMessage("What lies there?", id="h1"), called, ToolMessage("42", tool_call_id="c1", status="error")]
    thread = closed_later(quire.open(tmp_path / "t.db", "chat"))
    history = QuireChatMessageHistory(thread)
    history.add_messages(said[:2])
    history.add_messages(said[2:])
    assert QuireChatMessageHistory(thread).messages == said
    assert [one.kind for one in thread] == ["user", "respond", "call", "result"]
    history.clear()
    history.add_message(HumanMessage("Again."))
    again = QuireChatMessageHistory(closed_later(quire.open(tmp_path / "t.db", "chat")))
    assert [one.content for one in again.messages] == ["Again."]
    assert len(thread) == 4


async def test_a_session_gives_back_items_and_takes_the_newest_back() -> None:
    from agents.memory import Session

    from quire.adapters.openai_agents import QuireSession

    thread = quire.Thread(MemoryStore(), "s")
    session = QuireSession(thread)
    assert isinstance(session, Session)
    items: list[Any] = [
        {"role": "user", "content": "What lies there?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"shelf": 7}'},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.get_items(2) == items[-2:]
    assert await session.pop_item() == items[-1]
    assert await session.pop_item() == items[-2]
    await session.add_items(items[2:3])
    assert await QuireSession(thread).get_items() == items[:3]
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)
    assert len(thread) == 4


# `llm` with this plugin alone, as its page is typed; weights that come as a plugin of llm's would want their own parts.
LLM = """
import shlex, sys
from click.testing import CliRunner
import llm.plugins
import quire.adapters.llm
llm.plugins.pm.register(quire.adapters.llm, "quire")
from llm.cli import cli
for line in sys.stdin:
    done = CliRunner().invoke(cli, shlex.split(line)[1:])
    print(done.output)
    assert done.exit_code == 0, done.exception
"""


def test_llm_records_its_conversations_and_shows_them(sdks: dict[str, str], tmp_path: Path) -> None:
    page = FRAMEWORK_PAGES["llm"].read_text()
    lines = re.findall(r"^\$ (llm .*)$", page, re.M)
    environment = {**os.environ, **sdks, "LLM_LOAD_PLUGINS": "", "LLM_USER_PATH": str(tmp_path)}
    environment |= {"QUIRE_DB": str(tmp_path / "q.db"), "PYTHONPATH": str(ROOT / "src")}
    typed = "\n".join([*lines, "llm -c 'And are 42 pieces enough for two?'", "llm quire record", "llm quire show 0"])
    done = subprocess.run(
        [sys.executable, "-c", LLM], input=typed, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 new entries, 0 held already" in done.stdout
    assert "2 new entries, 2 held already" in done.stdout
    assert re.search(r"3 user +And are 42 pieces enough for two\?\n +4 respond +There are 42\.", done.stdout)
    assert 'quire = "quire.adapters.llm"' in (ROOT / "pyproject.toml").read_text()


def test_messages_of_a_thread_with_a_system_prompt_and_tools_are_a_list() -> None:
    thread = quire.Thread(MemoryStore(), "s")
    thread.append(quire.system("Be brief."))
    thread.tools({"name": "look", "description": "", "parameters": {"type": "object"}})
    thread.user("Hello")
    for form, count in {"openai-agents": 1, "openai-chat": 2, "pydantic-ai": 2, "gemini": 1}.items():
        assert len(ThreadMessages(thread, form).read()) == count
