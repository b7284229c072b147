"""Messages in, messages out: each form goes back as it came, and a growing list extends itself until it is cut."""

import json
from typing import Any

import pytest
from hypothesis import given as given_steps
from hypothesis import strategies as st

import quire
from quire import Entry, call, note, providers, respond, result, system, tools, user
from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.fitting import recognise, unmarked_body
from quire.values import canonical
from toolbox import Later

pytestmark = [
    pytest.mark.moves_prefix(reason="small budgets, and several folds of one conversation", everywhere=True),
    pytest.mark.xdist_group("sdk"),
]
claude, chat, responses = Later("anthropic.types"), Later("openai.types.chat"), Later("openai.types.responses")
genai, langchain = Later("google.genai.types"), Later("langchain_core.messages")
pydantic_ai = Later("pydantic_ai.messages")
BUDGET = 1_500
FIELDS = {"gemini": "contents", "openai-responses": "input"}
WIRES = ["openai-chat", "anthropic", "gemini", "openai-responses", "bedrock", "cohere"]
FORMS = [*WIRES, "langchain", "pydantic-ai"]


SHELF = {"type": "object", "properties": {"shelf": {"type": "integer"}}}
LOOK = {"name": "look", "description": "Look at a shelf.", "parameters": SHELF}


def conversation(turns: int = 30) -> list[Entry]:
    """Questions whose answers need a tool, with results that do not all fit."""
    entries = [system("You are the warehouse's clerk."), tools([LOOK])]
    for n in range(turns):
        listed = "\n".join(f"shelf {n}-{row}: part-{n:03}{row:02} × {row * 7}" for row in range(12))
        entries += [user(f"What lies on shelf {n}?"), call(f"call_{n:04}abcd", "look", {"shelf": n})]
        entries += [result(f"call_{n:04}abcd", content=listed), respond(f"On shelf {n} lie 12 kinds of parts.")]
    return entries[:-1]


def given(form: str) -> tuple[Any, str, list[Any]]:
    """The conversation in one form: the body (or the list), the field of its messages, and those."""
    out = providers.export(form, conversation())
    field = FIELDS.get(form, "messages")
    return out, field, out[field] if isinstance(out, dict) else out


def asks(message: dict[str, Any]) -> bool:
    """Whether a request is made behind this message."""
    speaker = message.get("role") or message.get("type") or message.get("kind")
    told = speaker == "request" and message["parts"][0]["part_kind"] == "system-prompt"
    return not told and speaker in ("user", "tool", "human", "function_call_output", "request")


@pytest.mark.parametrize("form", FORMS)
def test_calls_with_a_growing_list_extend_each_other_until_a_cut_and_a_fitter_gives_the_same(form: str) -> None:
    target = "cohere:command-a-03-2025" if form == "cohere" else ""
    messages = given(form)[2]
    fitter, before, epoch = quire.Fitter(BUDGET, target), [], 1
    for end in range(1, len(messages) + 1):
        if not asks(messages[end - 1]):
            continue
        fitted = fitter.fit(messages[:end])
        assert fitter.built.tokens <= BUDGET
        if fitter.built.epoch == epoch:
            assert [canonical(one) for one in fitted[: len(before)]] == [canonical(one) for one in before]
        before, epoch = fitted, fitter.built.epoch
        if end % 10 < 2:
            assert json.dumps(quire.fit(messages[:end], BUDGET, target)) == json.dumps(fitted)
    assert epoch > 2
    assert fitter.left_out
    assert len(before) < len(messages)
    assert (quire.Fitter().built.epoch, quire.Fitter().built.tokens) == (1, 0)


@pytest.mark.parametrize(
    "said", [[], [{"role": "system", "content": "Sum up."}], [{"role": "assistant", "content": "Hi."}]]
)
def test_messages_without_a_word_of_the_user_are_handed_back_where_they_fit(said: list[Any]) -> None:
    fitter = quire.Fitter(BUDGET, "openai-chat:gpt-5")
    assert fitter.fit(said) is said
    grown = [*said, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Go on."}]
    assert fitter.fit(grown) is grown
    with pytest.raises(BudgetError):
        quire.fit([*said, {"role": "system", "content": "word " * BUDGET}], BUDGET, "openai-chat:gpt-5")


@pytest.mark.parametrize("form", WIRES)
def test_a_body_keeps_its_other_fields_and_what_is_left_is_valid(form: str) -> None:
    body, field, messages = given(form)
    body = {**(body if isinstance(body, dict) else {field: body}), "temperature": 0.5}
    target = "cohere:command-a-03-2025" if form == "cohere" else ""
    fitted = quire.fit(body, BUDGET, target)
    assert {**fitted, field: 0} == {**body, field: 0}
    assert 1 < len(fitted[field]) < len(messages)
    wanted = {"model": "m", "max_tokens": 50} if form == "anthropic" else {"model": "m"}
    wanted = {} if form in ("gemini", "bedrock") else wanted
    plain = {name: value for name, value in fitted.items() if name != "temperature"}
    assert [one for one in quire.validate({**wanted, **plain}, form) if one.severity == "error"] == []


@pytest.mark.parametrize("form", FORMS)
def test_what_fits_is_given_back_as_it_came(form: str) -> None:
    body, _, messages = given(form)
    assert quire.fit(messages, 100_000) is messages
    assert quire.fit(body, 100_000) is body


def test_langchain_objects_come_back_as_langchain_objects() -> None:
    talk: list[Any] = [langchain.SystemMessage("Be brief.")]
    for n in range(40):
        called = langchain.AIMessage("", tool_calls=[{"id": f"c{n}", "name": "look", "args": {}}])
        talk += [langchain.HumanMessage(f"Look at {n}."), called]
        talk += [langchain.ToolMessage("seen " * 100, tool_call_id=f"c{n}"), langchain.AIMessage(f"Seen {n}.")]
    talk.append(langchain.HumanMessage("And now?"))
    fitted = quire.fit(talk, 2_000)
    assert (fitted[0], fitted[-1]) == (langchain.SystemMessage("Be brief."), langchain.HumanMessage("And now?"))
    assert len(fitted) < len(talk)


def test_pydantic_ai_objects_come_back_as_pydantic_ai_objects() -> None:
    talk: list[Any] = []
    for n in range(40):
        asked = [pydantic_ai.SystemPromptPart("Be brief.")] * (n == 0) + [pydantic_ai.UserPromptPart(f"Look at {n}.")]
        called = [pydantic_ai.ThinkingPart("Hm.", signature=f"s{n}")]
        called += [pydantic_ai.ToolCallPart("look", {"n": n}, tool_call_id=f"c{n}")]
        seen = [pydantic_ai.ToolReturnPart("look", {"seen": "bolts " * 100}, tool_call_id=f"c{n}")]
        talk += [pydantic_ai.ModelRequest(asked), pydantic_ai.ModelResponse(called)]
        talk += [pydantic_ai.ModelRequest(seen), pydantic_ai.ModelResponse([pydantic_ai.TextPart(f"Seen {n}.")])]
    talk.append(pydantic_ai.ModelRequest([pydantic_ai.UserPromptPart("And now?")]))
    fitter = quire.Fitter(2_000, "anthropic:claude-opus-5-5")
    fitted = fitter.fit({"messages": talk, "system": "Mind the step. " * 40, "tools": [LOOK]})["messages"]
    assert fitter.built.head_tokens > 180
    assert "Be brief." in str(fitted[0])
    assert "Mind the step" not in str(fitted)
    # What stands is what came, to the moment.
    assert fitted[-3:] == talk[-3:]
    assert len(fitted) < len(talk)
    assert fitter.fit({"messages": talk, "system": "Mind the step. " * 40, "tools": [LOOK]})["messages"] == fitted


REPLIES = {
    "anthropic": lambda n: {
        "role": "assistant",
        "content": [claude.TextBlock(type="text", text="I look."), claude.ToolUseBlock(type="tool_use", id=f"c{n}", name="look", input={})],
    },
    "openai-chat": lambda n: chat.ChatCompletionMessage.model_validate(
        {"role": "assistant", "tool_calls": [{"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
    ),
    "openai-responses": lambda n: responses.ResponseFunctionToolCall(
        type="function_call", id=f"fc_{n}", call_id=f"c{n}", name="look", arguments="{}"
    ),
    "gemini": lambda n: genai.Content(
        role="model", parts=[genai.Part(function_call=genai.FunctionCall(id=f"c{n}", name="look", args={}))]
    ),
}  # fmt: skip
RESULTS = {
    "anthropic": lambda n, text: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": text}]},
    "openai-chat": lambda n, text: {"role": "tool", "tool_call_id": f"c{n}", "content": text},
    "openai-responses": lambda n, text: {"type": "function_call_output", "call_id": f"c{n}", "output": text},
    "gemini": lambda n, text: genai.Content(
        role="user", parts=[genai.Part(function_response=genai.FunctionResponse(id=f"c{n}", name="look", response={"seen": text}))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", REPLIES)
def test_an_sdks_objects_among_the_messages_are_read_and_come_back(form: str) -> None:
    asked = {"role": "user", "content": "Look at all."}
    talk: list[Any] = [{"role": "user", "parts": [{"text": "Look at all."}]} if form == "gemini" else asked]
    for n in range(40):
        talk += [REPLIES[form](n), RESULTS[form](n, f"shelf {n} " * 60)]
    target = {"anthropic": "anthropic:claude-opus-5-5", "gemini": "gemini:gemini-2.5-pro"}.get(form, "")
    fitted = quire.fit(talk, 2_000, target)
    assert len(fitted) < len(talk)
    assert fitted[-2] is talk[-2]
    assert fitted[-1] == talk[-1]
    assert "shelf 39 shelf 39" in str(fitted[-1])


def test_marks_stand_where_requests_end() -> None:
    messages = given("openai-chat")[2]
    fitter, ended, epoch = quire.Fitter(BUDGET), {}, 0
    for end in (n + 1 for n, one in enumerate(messages) if asks(one)):
        fitted = fitter.fit(messages[:end])
        if fitter.built.epoch != epoch:
            ended, epoch = {}, fitter.built.epoch
        ended[len(fitted) - 1] = fitted[-1]
        assert fitter.marks[-1] == len(fitted) - 1
        assert all(fitted[place] == ended[place] for place in fitter.marks)


@pytest.mark.parametrize("form", ["anthropic", "bedrock", "openai-chat"])
def test_marks_that_move_move_nothing_else_and_stay_on_messages_that_stand(form: str) -> None:
    """A caller marks its newest messages: what is cut, and the names of handles, do not hang on it."""

    def unmarked(messages: Any) -> Any:
        return unmarked_body({"messages": messages}, "messages")["messages"]

    messages, point = given(form)[2], {"cachePoint": {"type": "default"}}
    marking, plain = (quire.Fitter(BUDGET, floor=0.2, handles=0.4) for _ in range(2))
    for end in (n + 1 for n, one in enumerate(messages) if asks(one)):
        marked = json.loads(json.dumps(messages[:end]))
        for message in marked[-3:]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            if form == "bedrock":
                message["content"].append(point)
            elif message["content"]:
                message["content"][-1]["cache_control"] = {"type": "ephemeral"}
        fitted = marking.fit(marked)
        bare = unmarked(fitted)
        assert canonical(bare) == canonical(unmarked(plain.fit(unmarked(marked))))
        assert fitted == bare or fitted[-1] == marked[-1]
    assert marking.built.epoch > 2
    assert fitted != bare


@pytest.mark.parametrize("form", WIRES)
def test_a_fitter_reads_only_what_is_new_and_what_it_gives_may_be_changed(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, field, messages = given(form)
    body, reading, read = body if isinstance(body, dict) else {field: body}, providers.import_, list[int]()

    def counting(form: str, value: Any, *more: Any) -> Any:
        read.append(len(value[field]))
        return reading(form, value, *more)

    monkeypatch.setattr(providers, "import_", counting)
    target = "cohere:command-a-03-2025" if form == "cohere" else ""
    fitter = quire.Fitter(BUDGET, target)
    for end in (n + 1 for n, one in enumerate(messages) if asks(one)):
        fitted = fitter.fit({**body, field: messages[:end]})
        if fitter.left_out:
            assert fitted == quire.fit({**body, field: messages[:end]}, BUDGET, target)
            read.pop()
            if fitted[field][-1] is not messages[end - 1]:
                fitted[field][-1].clear()
    # The first call reads what there is; where the reply's end and the next question come apart, that much is read anew.
    assert sum(read) < 3 * len(messages)


STEPS = st.lists(st.sampled_from(["user", "note", "system", "call", "calls", "respond"]), min_size=6, max_size=24)


def conversation_of(steps: list[str]) -> list[Entry]:
    """A conversation in which instructions come anywhere, and calls have their results behind them."""
    entries = [system("You are the warehouse's clerk."), user("What is there?")]
    for n, step in enumerate(steps):
        ids = [f"call_{n}_{m}" for m in range({"call": 1, "calls": 2}.get(step, 0))]
        entries += [call(call_id, "look", {"shelf": n}) for call_id in ids]
        entries += [result(call_id, f"part-{n:03} × {n * 7}, " * 20) for call_id in ids]
        say = {"user": user, "note": note, "system": system, "respond": respond}.get(step)
        entries += [say(f"Sentence {n} of this conversation.")] if say else []
    return entries


@pytest.mark.parametrize("form", WIRES)
@given_steps(steps=STEPS, ends=st.sets(st.integers(1, 60)))
def test_wherever_a_fitter_was_asked_before_it_gives_what_is_given_at_once(
    form: str, steps: list[str], ends: set[int]
) -> None:
    out = providers.export(form, [tools([LOOK]), *conversation_of(steps)])
    field = FIELDS.get(form, "messages")
    body = out if isinstance(out, dict) else {field: out}
    target = "cohere:command-a-03-2025" if form == "cohere" else ""
    for shape in (body, body[field]):
        fitter = quire.Fitter(400, target)
        for end in sorted(end for end in ends | {len(body[field])} if end <= len(body[field])):
            asked = {**body, field: body[field][:end]} if shape is body else shape[:end]
            try:
                at_once = quire.fit(asked, 400, target)
            except BudgetError:
                continue
            assert fitter.fit(asked) == at_once


def test_what_a_provider_counts_corrects_the_next_fit() -> None:
    messages, fitter = given("anthropic")[2], quire.Fitter(BUDGET, "anthropic:claude-opus-5-5")
    counted = []
    for end in (n + 1 for n, one in enumerate(messages) if asks(one)):
        fitter.fit(messages[:end])
        counted.append(round(1.6 * fitter.built.tokens))
        fitter.report(counted[-1])
    assert max(counted[3:]) <= BUDGET


def test_a_cut_result_names_a_handle_behind_which_the_whole_is_found() -> None:
    fitter = quire.Fitter(BUDGET, floor=0.2, handles=0.4)
    text = json.dumps(fitter.fit(given("openai-chat")[2]))
    handle = text.partition("recall with handle ")[2].split(" ")[0]
    assert fitter.original(handle).startswith("shelf ")
    with pytest.raises(NotFound, match="nothere"):
        fitter.original("nothere")


def test_a_message_changed_in_place_is_seen() -> None:
    messages = [{"role": "user", "content": "first " * 30}, {"role": "assistant", "content": "ok"}]
    messages.append({"role": "user", "content": "second"})
    fitter = quire.Fitter(10_000)
    fitter.fit(messages)
    tokens = fitter.built.tokens
    messages[0]["content"] = "short"
    fitter.fit(messages)
    assert fitter.built.tokens < tokens


@pytest.mark.parametrize("wrong", [[1, 2], "hello", {"prompt": "x"}, [{"role": "user"}, "x"], None])
def test_what_is_no_conversation_is_refused(wrong: Any) -> None:
    with pytest.raises(FormatError, match="no list of messages"):
        quire.fit(wrong, 1000)


@pytest.mark.parametrize("wrong", [{"text": "hello"}, {"content": 5}, {"blocks": [{"text": "hello"}]}])
def test_words_that_stand_elsewhere_than_in_the_content_are_not_lost_in_silence(wrong: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"messages\[0\].*content"):
        quire.fit([{"role": "user", **wrong}], 1000)


def test_what_there_is_not_to_choose_is_refused() -> None:
    with pytest.raises(CallError, match="no tools to choose"):
        quire.fit([{"role": "user", "content": "Hi"}], 1000, tools=[LOOK])


@pytest.mark.parametrize(
    ("message", "form"),
    [
        ({"role": "user", "parts": [{"text": "a"}]}, "gemini"),
        ({"role": "user", "content": [{"text": "a"}]}, "bedrock"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}, "anthropic"),
        ({"type": "message", "role": "user", "content": "a"}, "openai-responses"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "openai-chat"),
        ({"type": "human", "data": {"content": "a"}}, "langchain"),
        ({"kind": "request", "parts": []}, "pydantic-ai"),
        ({"role": "user", "content": "a"}, "anthropic"),
    ],
)
def test_the_form_is_seen_from_the_messages_and_else_is_the_targets(message: dict[str, Any], form: str) -> None:
    assert recognise([{"role": "user", "content": "hello"}, message], "anthropic:claude-opus-5-5") == form
