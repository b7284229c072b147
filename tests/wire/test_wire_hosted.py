"""Tools of a provider's own go back to it as they came, and to nobody else."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from wire_hosted import ASKED, FUNCTION, OWN, TARGETS, request_of
from wire_replies import fed, response_events

from quire import Entry, Policy, Request, Thread, open_store, providers, values
from quire.send.text_protocol import prompt_sections
from quire.testing import assert_valid
from quire.values import JsonObject
from toolbox import check, closed_later, run


def imported(format: str) -> list[Entry]:
    return [check(entry.body) for entry in providers.import_(format, request_of(format))]


def rendered(entries: list[Entry], target: str) -> Request:
    thread = Thread(closed_later(open_store(":memory:")), "t")
    thread.append(*entries)
    request = thread.request(target)
    assert_valid(request)
    return request


def tools_of(request: Request) -> list[JsonObject]:
    tools: list[JsonObject] = request.body.get("tools") or request.body.get("toolConfig", {}).get("tools", [])
    return [one for tool in tools for one in [*tool.pop("functionDeclarations", ()), *([tool] if tool else [])]]


@pytest.mark.parametrize("format", OWN)
def test_they_go_back_to_their_provider_as_they_came(format: str) -> None:
    request = rendered(imported(format), TARGETS[format])
    told = tools_of(request)
    assert [tool for tool in told if tool in OWN[format]] == sorted(OWN[format], key=told.index)
    assert len(told) == len(OWN[format]) + 1
    assert not request.left_out


@pytest.mark.parametrize(("format", "other"), list(itertools.permutations(OWN, 2)))
def test_no_other_provider_is_told_of_them_and_the_request_says_so(format: str, other: str) -> None:
    request = rendered(imported(format), TARGETS[other])
    assert len(tools_of(request)) == 1
    assert len(request.left_out) == len(OWN[format])
    for one in request.left_out:
        assert one["reason"] == f"{one['tool']} is a tool of {format}'s own, which nobody here could answer"


@pytest.mark.parametrize("format", OWN)
def test_they_are_exported_as_they_came_and_nowhere_else(format: str) -> None:
    entries = imported(format)
    exported = providers.export(format, entries)
    assert {key: value for key, value in request_of(format).items() if key != "model"} == exported
    for other in set(OWN) - {format}:
        shown = str(providers.export(other, entries))
        assert "read" in shown
        assert not any(name in shown for name in ("search", "Search", "bash", "mcp", "grounding", "code"))


def test_servers_that_share_a_format_do_not_share_its_tools() -> None:
    entries = imported("openai-chat")
    assert len(tools_of(rendered(entries, "xai:grok-4"))) == 2
    elsewhere = rendered(entries, "mistral:mistral-large-latest")
    assert [one["tool"] for one in elsewhere.left_out] == ["live_search"]


def test_a_request_of_such_tools_alone_has_none_elsewhere() -> None:
    value = {**request_of("gemini"), "tools": OWN["gemini"]}
    entries = [check(entry.body) for entry in providers.import_("gemini", value)]
    for target in (TARGETS["anthropic"], TARGETS["bedrock"], TARGETS["openai-chat"]):
        assert not tools_of(rendered(entries, target))
    assert "tools" not in str(providers.export("anthropic", entries))


def test_one_of_geminis_may_hold_a_list_or_nothing() -> None:
    (entry,) = providers.tool_entries([{"mcpServers": [{"name": "a"}], "codeExecution": None}])
    assert [tool["name"] for tool in entry.tools] == ["mcpServers"]


def test_a_custom_tool_is_a_function_where_there_are_none() -> None:
    custom = {"type": "custom", "name": "sql", "description": "A query", "format": {"type": "text"}}
    value = {**request_of("openai-responses"), "tools": [custom]}
    entries = [check(entry.body) for entry in providers.import_("openai-responses", value)]
    assert tools_of(rendered(entries, TARGETS["openai-responses"])) == [custom]
    elsewhere = rendered(entries, TARGETS["anthropic"])
    assert [tool["name"] for tool in tools_of(elsewhere)] == ["sql"]
    assert not elsewhere.left_out


@pytest.mark.parametrize(("target", "told"), [(TARGETS["openai-responses"], True), (TARGETS["anthropic"], False)])
def test_late_ones_join_where_they_were_said_or_are_left_out(target: str, told: bool) -> None:
    late = {"type": "additional_tools", "role": "developer", "tools": [OWN["openai-responses"][0]]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Nothing."}]}
    value = [{"type": "message", **ASKED}, said, late, {"type": "message", **ASKED}]
    entries = [check(entry.body) for entry in providers.import_("openai-responses", value)]
    request = rendered(entries, target)
    assert ("'type': 'web_search'" in str(request.body)) == told
    assert "'name': 'web_search'" not in str(request.body)
    assert [one["entry"] for one in request.left_out if "nobody here" in one["reason"]] == ([] if told else [3])


def test_what_needs_more_of_its_request_than_a_tool_is_left_out() -> None:
    toolset = {"type": "mcp_toolset", "mcp_server_name": "a"}
    value = {**request_of("anthropic"), "tools": [FUNCTION["anthropic"], toolset]}
    entries = [check(entry.body) for entry in providers.import_("anthropic", value)]
    request = rendered(entries, TARGETS["anthropic"])
    assert [one["tool"] for one in request.left_out] == ["mcp_toolset"]


def test_a_text_engine_is_told_of_functions_alone() -> None:
    sections = "\n".join(prompt_sections([*imported("anthropic"), values.user("And now?")], None, "$"))
    assert "• read" in sections
    assert "web_search" not in sections


def test_render_shows_them_by_their_kind(home: Path) -> None:
    with open_store(home / "quire.db") as store:
        store.append("t", imported("openai-responses"))

    def shown(target: str) -> Any:
        provider, _, model = target.partition(":")
        return run("render", "t", "-p", provider, "-m", model)

    assert "\nweb_search " in shown(TARGETS["openai-responses"])
    elsewhere = shown(TARGETS["anthropic"])
    assert "left out: tool mcp-2: mcp-2 is a tool of openai-responses's own" in elsewhere


def _function(name: str) -> JsonObject:
    return {"type": "function", "name": name, "description": "d", "parameters": {"type": "object"}, "strict": False}


CODEX: JsonObject = {
    "model": "gpt-6-sol",
    "tools": [
        _function("list"),
        {"type": "namespace", "name": "files", "description": "f", "tools": [_function("read"), _function("list")]},
        {"type": "custom", "name": "apply_patch", "description": "p", "format": {"type": "text"}},
    ],
    "input": [
        {"type": "additional_tools", "role": "developer", "tools": [
            {"type": "namespace", "name": "functions", "description": "f", "tools": [
                {"type": "custom", "name": "exec", "description": "run", "format": {"type": "text"}}]}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "exec", "namespace": "functions",
         "input": "ls", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a.txt"}]},
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "read", "namespace": "files",
         "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c2", "output": "hello"},
        {"type": "tool_search_call", "id": "tsc_1", "call_id": "c3", "execution": "client", "status": "completed",
         "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c3", "execution": "client", "status": "completed",
         "tools": [_function(f"found{n}") for n in range(40)]},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "x", "tools": [
            {"name": "q", "input_schema": {"type": "object"}}]},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "x", "name": "q", "arguments": "{}", "output": "said"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Done.", "annotations": []}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again."}]},
    ],
}  # fmt: skip


def test_namespaces_and_custom_tools_go_back_verbatim_and_elsewhere_as_functions() -> None:
    entries = providers.import_("openai-responses", CODEX)
    back = rendered(entries, TARGETS["openai-responses"])
    # The last message carries a mark.
    assert back.body["input"][:-1] == CODEX["input"][:-1]
    assert sorted(map(str, back.body["tools"])) == sorted(map(str, CODEX["tools"]))
    # A model that takes no tools behind the first message is told of them in front.
    assert "'exec'" in str(rendered(entries, "openai:gpt-5.4").body["tools"])
    for target in (TARGETS["anthropic"], TARGETS["gemini"], "openai-chat:gpt-5", TARGETS["bedrock"]):
        defined = str(tools_of(rendered(entries, target)))
        assert all(
            f"'{name}'" in defined for name in ("read", "list", "files__list", "exec", "apply_patch", "found7")
        ), target


def _told(role: str, text: str) -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _more(*names: str) -> JsonObject:
    listed = [{key: value for key, value in _function(name).items() if key != "description"} for name in names]
    return {"type": "additional_tools", "id": f"at_{names[0]}", "role": "developer", "tools": listed}


@pytest.mark.parametrize(
    "front",
    [
        [_more("b", "a"), _told("developer", "One."), _more("c"), _more("d"), _told("developer", "Two.")],
        [_told("developer", "One."), _more("b", "a")],
        [_told("developer", "One."), _told("user", "Hi."), _more("b", "a"), _told("assistant", "Yes?")],
        [_told("user", "Hi."), _more("b", "z"), _more("z", "b"), _told("assistant", "Yes?")],
    ],
)
def test_items_of_tools_go_back_to_where_they_stood(front: list[JsonObject]) -> None:
    items = [*front, _told("user", "Go.")]
    entries = providers.import_("openai-responses", {"model": "gpt-6-sol", "input": items, "tools": [_function("z")]})
    thread = Thread(closed_later(open_store(":memory:")), "t", Policy(model=TARGETS["openai-responses"]))
    thread.append(*entries)
    request = thread.request(TARGETS["openai-responses"])
    assert request.body["input"][: len(front)] == front
    assert request.body["tools"] == [_function("z")]
    thread.append(values.respond("Done."), values.user("More."))
    assert thread.request(TARGETS["openai-responses"]).prefix.startswith(request.prefix)


@pytest.mark.parametrize("turns", [4, 12])
def test_a_search_for_tools_stays_whole_or_goes_with_its_turn(turns: int) -> None:
    target = TARGETS["openai-responses"]
    thread = Thread(closed_later(open_store(":memory:")), "t", Policy(budget=7000, model=target))
    thread.append(*providers.import_("openai-responses", CODEX))
    for _ in range(turns):
        thread.append(values.user(f"More. {'word ' * 300}"), values.respond("Yes."))
    thread.append(values.user("And?"))
    request = thread.request(target, check=True)
    assert_valid(request)
    searched = [item for item in request.body["input"] if item["type"].startswith("tool_search_")]
    assert searched in ([], [item for item in CODEX["input"] if item["type"].startswith("tool_search_")])


CONTAINER: JsonObject = {"type": "container_reference", "container_id": "c"}
PRINTED: JsonObject = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


@pytest.mark.parametrize(
    "items",
    [
        [{**_more("b"), "role": "tool"}],
        [{"type": "tool_search_call", "execution": "server", "arguments": {"paths": ["x"]}},
         {"type": "tool_search_output", "execution": "server", "tools": [_function("w")]}],
        [{"type": "tool_search_call", "execution": "client", "call_id": "c1", "arguments": {}}],
        [{"type": "custom_tool_call", "call_id": "c1", "name": "cu", "namespace": "ns", "input": "abc"}],
        [{"type": "function_call", "call_id": "c1", "name": "w", "namespace": "ns", "arguments": '{"a": 1}'}],
        [{"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "a", "input_schema": {"type": "object"}}]},
         {"type": "mcp_call", "server_label": "s", "name": "a", "arguments": "{}", "output": "4"}],
        [{"type": "mcp_approval_request", "server_label": "s", "name": "a", "arguments": "{}"}],
        [{"type": "web_search_call", "action": {"type": "search", "query": "q", "sources": []}}],
        [{"type": "file_search_call", "queries": ["q"], "results": [{"file_id": "f", "score": 0.5}]}],
        [{"type": "code_interpreter_call", "code": "x", "container_id": "c", "outputs": []}],
        [{"type": "image_generation_call", "result": "aGk="}],
        [{"type": "compaction", "encrypted_content": "abc"}],
        [{"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}],
        [{"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}, "environment": CONTAINER},
         {"type": "shell_call_output", "call_id": "c1", "output": [PRINTED]}],
    ],
    ids=lambda items: "+".join(item["type"] for item in items),
)  # fmt: skip
@pytest.mark.parametrize("model", ["gpt-5", "gpt-6-sol"])
def test_items_of_a_reply_are_in_the_next_request_as_they_came(items: list[JsonObject], model: str) -> None:
    given = [{"id": f"i_{place}", "status": "completed", **item} for place, item in enumerate(items)]
    reasoned: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}
    said = {**_told("assistant", "Yes."), "id": "msg_1", "status": "completed"}
    for output in (given, [reasoned, *given], [reasoned, *given, said], [said, *given]):
        reply: JsonObject = {"id": "resp_1", "model": model, "status": "completed", "output": output}
        thread = Thread(closed_later(open_store(":memory:")), "t")
        thread.user("Go.")
        thread.record(reply, thread.request(f"openai:{model}"))
        read = fed(f"openai:{model}", response_events(reply)).reply()
        assert read == providers.parse_reply(f"openai:{model}", reply)
        calls = [entry for entry in read.entries if entry.kind == "call"]
        thread.append(*(values.result(entry.call_id, content="ok") for entry in calls), values.user("More."))
        assert thread.request(f"openai:{model}").body["input"][1 : 1 + len(output)] == output


@pytest.mark.parametrize("target", sorted(TARGETS.values()))
def test_a_result_that_a_reply_brings_along_answers_its_call(target: str) -> None:
    called: JsonObject = {"type": "function_call", "id": "i_1", "call_id": "c1", "name": "w", "arguments": '{"a": 1}'}
    brought: JsonObject = {"type": "function_call_output", "id": "i_2", "call_id": "c1", "output": "Found 42."}
    said = {**_told("assistant", "Yes."), "id": "msg_1", "status": "completed"}
    reply: JsonObject = {"id": "r1", "model": "an-agent", "status": "completed", "output": [called, brought, said]}
    thread = Thread(closed_later(open_store(":memory:")), "t")
    thread.user("Go.")
    thread.record(reply, thread.request("openai:an-agent"))
    read = fed("openai:an-agent", response_events(reply)).reply()
    assert read == providers.parse_reply("openai:an-agent", reply)
    assert [entry.kind for entry in read.entries] == ["call", "result", "respond"]
    thread.user("More.")
    request = thread.request(target)
    assert_valid(request)
    assert "Found 42." in str(request.body)
    assert "interrupted" not in str(request.body)
