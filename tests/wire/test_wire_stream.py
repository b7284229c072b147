"""Replies and streams become entries; whatever breaks, what was received is kept."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_replies import REPLIES, calling, fed, response_events

from quire import Entry, render, user
from quire.errors import FormatError, ProviderError
from quire.providers import export, parse_reply, stream
from quire.providers.convert import project
from quire.providers.incoming import LIMIT_BLOCKS, ReplyReader, plain
from quire.providers.models import resolve
from quire.send.events import Growing
from quire.values import Message, Prompt, Text
from toolbox import SCALARS, check, fewer, json_of

every_provider = pytest.mark.parametrize("target", REPLIES)


@pytest.mark.proves("anthropic openai gemini bedrock", "parse")
@pytest.mark.proves("anthropic openai gemini bedrock", "streaming")
@every_provider
@given(data=st.data())
@fewer(8)
def test_a_stream_gives_the_reply_it_brings(target: str, data: st.DataObject) -> None:
    reply, events = data.draw(REPLIES[target])
    reader = stream(target)
    gathered = [entry for event in events for entry in reader.feed(event)]
    assert reader.reply() == parse_reply(target, reply)
    assert tuple(gathered) == reader.reply().entries
    assert [check(entry.body) for entry in gathered]
    assert reader.partial().unknown == 0


@given(data=st.data())
@fewer(4)
def test_items_of_a_response_stand_by_their_index_however_their_events_arrive(data: st.DataObject) -> None:
    """Events of one item keep their order; those of different items may come in any."""
    reply, events = data.draw(REPLIES["openai:gpt-6-sol"])
    placed = [event for event in events if "output_index" in event]
    order = data.draw(st.permutations([event["output_index"] for event in placed]))
    queues = {index: [event for event in placed if event["output_index"] == index] for index in set(order)}
    shuffled = iter([queues[index].pop(0) for index in order])
    reader = stream("openai:gpt-6-sol")
    gathered = [
        entry for event in events for entry in reader.feed(next(shuffled) if "output_index" in event else event)
    ]
    assert reader.reply() == parse_reply("openai:gpt-6-sol", reply)
    assert tuple(gathered) == reader.reply().entries


@every_provider
@given(data=st.data())
@fewer(8)
def test_the_text_shown_while_a_reply_streams_is_the_text_of_its_entries(target: str, data: st.DataObject) -> None:
    """Put in the order of their blocks, live pieces begin each entry's text and never say anything else."""
    _, events = data.draw(REPLIES[target])
    reader, growing, shown = stream(target), Growing(), dict[int, str]()
    tip = 0
    for event in events:
        finished = reader.feed(event)
        for told in growing.add(reader.live(), tip):
            shown[tip + 1 + told.part] = shown.get(tip + 1 + told.part, "") + told.text
        growing.finish([Entry(entry.kind, entry.body, tip + 1 + n) for n, entry in enumerate(finished)])
        tip += len(finished)
    assert reader.live() == []
    for seq, entry in enumerate(reader.reply().entries, 1):
        if entry.kind in ("respond", "think"):
            assert entry.text.startswith(shown.get(seq, ""))


@pytest.mark.proves("anthropic openai gemini bedrock", "cut streams")
@every_provider
@given(data=st.data())
@fewer(8)
def test_a_cut_stream_keeps_what_was_finished_and_shows_the_rest(target: str, data: st.DataObject) -> None:
    reply, events = data.draw(REPLIES[target])
    cut = data.draw(st.integers(0, len(events)))
    reader = fed(target, events[:cut])
    kept = reader.partial()
    assert kept.entries == parse_reply(target, reply).entries[: len(kept.entries)]
    if not kept.stop:
        with pytest.raises(ProviderError) as caught:
            reader.reply()
        assert caught.value.retryable


@every_provider
@given(data=st.data())
@fewer(8)
def test_a_reply_goes_back_as_it_came(target: str, data: st.DataObject) -> None:
    """What a provider said stands in the next request to it, block for block."""
    reply, _ = data.draw(REPLIES[target])
    prompt = Prompt("", "", (), (Message("user", (Text("hi"),)), *project(parse_reply(target, reply).entries)))
    sent = plain(render(prompt, target).body)
    match resolve(target.partition(":")[0])[1]:
        case "openai-responses":
            said, back = reply["output"], [item for item in sent["input"][1:] if "output" not in item]
            while said and said[-1]["type"] == "reasoning":
                said = said[:-1]  # nothing follows it that it could belong to
        case "openai-chat":
            # OpenAI's own API takes no thinking back, and white space alone says nothing.
            message = {**reply["choices"][0]["message"]}
            message.pop("reasoning_content", None)
            message["content"] = message["content"] if (message["content"] or "").strip() else None
            said = [message] if message["content"] or message.get("tool_calls") else []
            back = [one for one in sent["messages"] if one["role"] == "assistant"]
        case "anthropic":
            said, back = _worth_sending(reply["content"]), _spoken(sent["messages"], "content")
        case "gemini":
            said, back = reply["candidates"][0]["content"]["parts"], _spoken(sent["contents"], "parts")
            said = [] if all(part.get("thought") for part in said) else _worth_sending(said)
        case _:
            said, back = (_worth_sending(reply["output"]["message"]["content"]), _spoken(sent["messages"], "content"))
    assert back == plain(said)


def _spoken(messages: list[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    return [block for one in messages if one["role"] in ("assistant", "model") for block in one[field]]


def _worth_sending(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blank texts are refused, and thinking alone is no message."""
    thinking = {"thinking", "redacted_thinking"}
    filled = [block for block in blocks if set(block) - {"type", "text"} or block["text"].strip()]
    alone = all("reasoningContent" in block or block.get("type") in thinking for block in filled)
    return [] if alone else filled


def junk_of(fields: str) -> st.SearchStrategy[Any]:
    """JSON of no sense, with the names that a reader looks for."""
    return json_of(SCALARS | st.text(max_size=5), st.sampled_from(fields.split()), 8)


@every_provider
@given(
    data=st.data(),
    junk=junk_of("type delta index choices candidates content message item response contentBlockDelta text"),
)
@fewer(8)
def test_junk_in_a_stream_is_an_error_or_counted_and_nothing_is_lost(
    target: str, data: st.DataObject, junk: Any
) -> None:
    _, events = data.draw(REPLIES[target])
    reader = fed(target, events[: data.draw(st.integers(0, len(events)))])
    before = reader.partial()
    with contextlib.suppress(FormatError, ProviderError):
        reader.feed(junk)
    assert reader.partial().entries[: len(before.entries)] == before.entries


@every_provider
@given(junk=junk_of("choices message content output candidates parts error tool_calls type usage"))
@fewer(8)
def test_what_is_no_reply_is_an_error(target: str, junk: Any) -> None:
    with contextlib.suppress(FormatError, ProviderError):
        assert [check(entry.body) for entry in parse_reply(target, junk).entries]


USED = {"prompt_tokens": 1}


def chat_reply(message: dict[str, Any], stop: str = "stop") -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"message": message, "finish_reason": stop}], "usage": USED}


def chat_stream(target: str, *deltas: dict[str, Any], stop: str = "") -> ReplyReader:
    """A reader that was given these pieces of a Chat reply, and how it ended where it did."""
    ended = [{"index": 0, "delta": {}, "finish_reason": stop}] if stop else []
    choices = [*({"index": 0, "delta": delta} for delta in deltas), *ended]
    return fed(target, ({"id": "c", "model": "m", "choices": [choice], "usage": USED} for choice in choices))


@pytest.mark.parametrize(
    ("target", "reply", "ids"),
    [
        ("anthropic:m", {"content": [{"type": "tool_use", "name": "f", "input": {}}]}, ["call-1"]),
        ("openai:m", {"output": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, ["call-1"]),
        ("openai-chat:m", chat_reply({"tool_calls": [{"function": {"name": "f"}}]}), ["call-1"]),
        ("bedrock:m", {"output": {"message": {"content": [{"toolUse": {"name": "f", "input": {}}}]}}}, ["call-1"]),
        ("ollama:m", chat_reply({"tool_calls": [{"function": {"name": n}} for n in "fg"]}), ["call-1", "call-2"]),
    ],
)
def test_a_call_without_an_id_gets_one(target: str, reply: Any, ids: list[str]) -> None:
    assert [entry.call_id for entry in parse_reply(target, reply).entries] == ids


def test_a_reply_whose_message_a_filter_held_back_is_read() -> None:
    choice = {"index": 0, "finish_reason": "content_filter", "content_filter_results": {"hate": {"filtered": True}}}
    read = parse_reply("azure-chat:m", {"id": "c", "model": "m", "choices": [choice], "usage": USED})
    assert (read.stop, [entry.text for entry in read.entries], read.usage.input_total) == ("content_filter", [""], 1)
    with pytest.raises(FormatError):
        parse_reply("azure-chat:m", {"choices": [{"index": 0, "finish_reason": "stop"}]})


def test_a_chat_stream_may_end_with_done_alone() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    more = [{**call, "function": {"name": "f"}}, {"index": 1}]
    reader = chat_stream("openai-chat:m", {"content": "so far"}, {"tool_calls": [call]}, {"tool_calls": more})
    assert [entry.kind for entry in reader.feed("[DONE]")] == ["respond", "call"]
    [_, called] = reader.reply().entries
    assert (called.name, called.call_id, called.args) == ("f", "call-2", {})


def test_mistral_thinks_among_the_parts_of_its_content() -> None:
    content = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]
    whole = parse_reply("mistral:magistral", chat_reply({"content": content}))
    assert [(entry.kind, entry.text) for entry in whole.entries] == [("think", "hm"), ("respond", "a")]
    reader = chat_stream("mistral:magistral", {"content": content[:1]}, {"content": "a"}, stop="stop")
    assert reader.reply().entries == whole.entries


def test_a_streamed_custom_call_is_read() -> None:
    begin = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SEL"}}
    end = {"index": 0, "custom": {"input": "ECT"}}
    reader = chat_stream("openai-chat:m", {"tool_calls": [begin]}, {"tool_calls": [end]}, stop="tool_calls")
    entry = reader.reply().entries[0]
    assert (entry.name, entry.args, entry.wire["block"]["type"]) == ("sql", "SELECT", "custom")


@pytest.mark.parametrize(
    ("target", "event"),
    [
        ("anthropic:m", {"type": "content_block_sparkle", "index": 0}),
        ("openai:m", {"type": "response.sparkle"}),
        ("openai-chat:m", {"sparkle": 1}),
        ("gemini:m", {"sparkle": 1}),
        ("bedrock:m", {"sparkle": {}}),
        ("bedrock:m", {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"sparkle": {}}}}),
        ("cohere:m", {"type": "sparkle"}),
    ],
)
def test_unknown_events_are_passed_over_and_counted(target: str, event: Any) -> None:
    reader = stream(target)
    assert reader.feed(event) == []
    assert reader.partial().unknown == 1


def test_a_message_of_claudes_may_begin_with_blocks_and_be_whole_at_once() -> None:
    blocks = [{"type": "text", "text": "Yes."}, {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}]
    message = {"id": "m", "model": "m", "content": blocks, "stop_reason": "tool_use", "usage": {"output_tokens": 1}}
    reader = fed("anthropic:m", [{"type": "message_start", "message": message}])
    assert reader.partial().entries == parse_reply("anthropic:m", message).entries
    reader.feed({"type": "message_stop"})
    assert reader.reply() == parse_reply("anthropic:m", message)


def test_a_name_that_each_chunk_says_is_said_once() -> None:
    functions = [{"name": "n", "arguments": arguments} for arguments in ('{"a"', ": 1}")]
    deltas = [{"tool_calls": [{"index": 0, "id": "c", "function": function}]} for function in functions]
    (call,) = chat_stream("openai-chat:m", *deltas, stop="tool_calls").reply().entries
    assert (call.name, call.args) == ("n", {"a": 1})


FAILED = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}}


@pytest.mark.parametrize(
    ("target", "event", "again"),
    [
        ("anthropic:m", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, True),
        ("anthropic:m", {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, False),
        ("openai:m", {"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, True),
        ("openai:m", FAILED, True),
        ("openai-chat:m", {"error": {"message": "bad", "type": "invalid_request_error"}}, False),
        ("openai-chat:m", {"error": {"type": "overloaded_error"}}, True),
        ("openai-chat:m", {"error": {"code": 429}}, True),
        ("openai-chat:m", {"error": {"code": 503, "message": "m"}}, True),
        ("openai-chat:m", {"error": {"code": "500"}}, True),
        ("openai-chat:m", {"error": {"code": 400}}, False),
        ("gemini:m", {"error": {"code": 503, "status": "UNAVAILABLE", "message": "x"}}, True),
        ("bedrock:m", {"throttlingException": {"message": "slow"}}, True),
        ("cohere:m", {"type": "message-end", "delta": {"error": "no"}}, False),
    ],
)
def test_an_error_event_says_whether_to_try_again(target: str, event: Any, again: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        stream(target).feed(event)
    assert caught.value.retryable is again


def test_absurd_places_are_refused() -> None:
    block = {"type": "text", "text": ""}
    with pytest.raises(FormatError):
        stream("anthropic:m").feed({"type": "content_block_start", "index": LIMIT_BLOCKS, "content_block": block})


def test_half_a_call_is_shown_but_never_an_entry() -> None:
    call = {"type": "tool_use", "id": "t", "name": "write", "input": {}}
    half = {"type": "input_json_delta", "partial_json": '{"path": "a'}
    begun = {"type": "content_block_start", "index": 0, "content_block": call}
    reader = fed("anthropic:m", [begun, {"type": "content_block_delta", "index": 0, "delta": half}])
    assert reader.feed({"type": "content_block_stop", "index": 0}) == []
    assert reader.partial().unfinished == ({"kind": "call", "name": "write", "text": '{"path": "a'},)


@pytest.mark.parametrize(("stop", "kinds"), [("max_tokens", ["respond"]), ("tool_use", ["respond", "call"])])
@pytest.mark.parametrize("wire", ["anthropic", "bedrock"])
def test_a_call_whose_input_is_no_json_is_one_if_the_model_wants_it_answered(
    wire: str, stop: str, kinds: list[str]
) -> None:
    written = '{"unit": celsius}'
    begun: list[dict[str, Any]] = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    ]
    events = {
        "anthropic": [
            {"type": "message_start", "message": {"id": "m"}},
            *({"type": "content_block_start", "index": n, "content_block": block} for n, block in enumerate(begun)),
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": written}},
            *({"type": "content_block_stop", "index": n} for n in range(2)),
            {"type": "message_delta", "delta": {"stop_reason": stop}},
            {"type": "message_stop"},
        ],
        "bedrock": [
            {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "I look."}}},
            {"contentBlockStop": {"contentBlockIndex": 0}},
            {"contentBlockStart": {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "t", "name": "f"}}}},
            {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": written}}}},
            {"contentBlockStop": {"contentBlockIndex": 1}},
            {"messageStop": {"stopReason": stop}},
        ],
    }
    entries = fed(f"{wire}:m", events[wire]).reply().entries
    assert [entry.kind for entry in entries] == kinds
    assert [entry.args for entry in entries if entry.kind == "call"] == [{"arguments": written}] * (stop == "tool_use")


@every_provider
def test_a_respelled_tool_name_is_read_back(target: str) -> None:
    tool = {"name": "get weather", "description": "", "parameters": {}}
    body = render(Prompt("", "", (tool,), (Message("user", (Text("hi"),)),)), target).body
    name = "get_weather_" + str(body).partition("get_weather_")[2][:8]
    assert parse_reply(target, calling(target, name, {}), names=["get weather"]).entries[0].name == "get weather"


def test_recorded_replies_are_exported_in_their_own_format() -> None:
    thought = {"type": "thinking", "thinking": "t", "signature": "c2ln"}
    content = [thought, {"type": "text", "text": "a", "citations": [{"type": "x"}]}]
    reply = {"id": "m", "model": "claude-opus-5-5", "content": content}
    entries = [user("hi"), *parse_reply("anthropic:claude-opus-5-5", reply).entries]
    assert export("anthropic", entries)[-1] == {"role": "assistant", "content": content}


def test_sound_and_annotations_of_a_chat_reply_are_kept() -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "https://a.example"}}
    audio = {"id": "audio_1", "expires_at": 9, "data": "UklGRg==", "transcript": "Hello there"}
    deltas: list[Any] = [
        {"role": "assistant", "audio": {"id": "audio_1", "transcript": "Hello "}},
        {"audio": {"data": "UklG"}},
        {"audio": {"transcript": "there", "data": "Rg=="}, "annotations": [cited]},
        {"audio": {"expires_at": 9}},
    ]
    unfinished = chat_stream("openai-chat:m", *deltas).partial().unfinished
    assert unfinished == ({"kind": "respond", "text": "Hello there"},)
    message = {"role": "assistant", "content": None, "audio": audio, "annotations": [cited]}
    [entry] = parse_reply("openai-chat:m", chat_reply(message)).entries
    assert chat_stream("openai-chat:m", *deltas, stop="stop").reply().entries == (entry,)
    assert (entry.text, entry.wire["block"]) == ("Hello there", {"annotations": [cited], "audio": audio})


def test_a_streamed_call_of_the_old_form_is_read() -> None:
    pieces = {"name": "look", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ": 1}"}
    deltas = [{"function_call": piece} for piece in pieces]
    message = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"x": 1}'}}
    [call] = parse_reply("openai-chat:m", chat_reply(message, "function_call")).entries
    assert chat_stream("openai-chat:m", *deltas, stop="function_call").reply().entries == (call,)
    assert (call.name, call.args) == ("look", {"x": 1})


ENDINGS = {
    "anthropic:claude-opus-5-5": {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
    "openai:gpt-6-sol": {"type": "error", "code": "server_error", "message": "busy"},
    "openai-chat:gpt-6-sol": {"error": {"type": "server_error", "message": "busy"}},
    "gemini:gemini-3.8-flash": {"error": {"status": "UNAVAILABLE", "message": "busy"}},
    "bedrock:anthropic.claude-opus-5-5": {"throttlingException": {"message": "busy"}},
}


@pytest.mark.parametrize("target", ENDINGS)
@given(data=st.data())
@fewer(8)
def test_an_error_in_the_middle_loses_nothing_that_came_before(target: str, data: st.DataObject) -> None:
    drawn = {one.partition(":")[0]: strategy for one, strategy in REPLIES.items()}
    _, events = data.draw(drawn[target.partition(":")[0]])
    cut = data.draw(st.integers(0, len(events)))
    reader = stream(target)
    gathered = [entry for event in events[:cut] for entry in reader.feed(event)]
    before = reader.partial()
    with pytest.raises(ProviderError, match="busy") as caught:
        reader.feed(ENDINGS[target])
    assert caught.value.retryable
    assert reader.partial() == before
    assert list(before.entries) == gathered


def test_arguments_of_gemini_that_come_in_pieces_are_put_together() -> None:
    def chunk(**call: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"parts": [{"functionCall": call}]}}]}

    def piece(path: str, **value: Any) -> dict[str, Any]:
        return chunk(partialArgs=[{"jsonPath": path, **value}], willContinue=True)

    pieces = [
        chunk(name="light", willContinue=True),
        piece("$.brightness", numberValue=50),
        piece("$.tone", stringValue="wa", willContinue=True),
        piece("$.tone", stringValue="rm"),
        piece("$.rooms[1].on", boolValue=True),
        piece("$['at night']", nullValue="NULL_VALUE"),
    ]
    reading = stream("gemini:gemini-3-pro")
    assert [entry for event in pieces for entry in reading.feed(event)] == []
    args = {"brightness": 50, "tone": "warm", "rooms": [None, {"on": True}], "at night": None}
    (half,) = reading.partial().unfinished
    assert (half["name"], json.loads(half["text"])) == ("light", args)
    for event in (chunk(), chunk(name="dark", args={}), {"candidates": [{"finishReason": "STOP"}]}):
        reading.feed(event)
    assert [(each.name, each.args) for each in reading.reply().entries] == [("light", args), ("dark", {})]


@pytest.mark.parametrize(("number", "stop"), [(1, "STOP"), (2, "MAX_TOKENS"), (7, "7")])
def test_an_end_of_gemini_that_is_a_number_is_read_as_its_word(number: int, stop: str) -> None:
    # As Google's REST API writes it for clients that ask for enum-encoding=int.
    reply = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": number}]}
    streamed, whole = fed("gemini:gemini-2.5-flash", [reply]).reply(), parse_reply("gemini:gemini-2.5-flash", reply)
    assert (streamed.stop, whole.stop, streamed.entries) == (stop, stop, whole.entries)


def test_a_call_that_the_server_carried_out_is_no_call_of_ours() -> None:
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "xs_1", "name": "x_search", "input": "{}"}
    words = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
    for output, kinds in (([call, words], ["respond", "respond"]), ([call], ["call"])):
        response = {"status": "completed", "output": output}
        reading = fed("xai-responses:grok-4", response_events(response))
        for reply in (reading.reply(), parse_reply("xai-responses:grok-4", response)):
            assert [entry.kind for entry in reply.entries] == kinds


SIGNED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"google": 1}}
CHAT_FIELDS: list[dict[str, Any]] = [
    {"content": "x", "images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
    {"content": "x", "executed_tools": [{"index": 0}, {"index": 1}], "annotations": [{"a": 1}]},
    {"content": "x", "reasoning": "r", "reasoning_details": [{"text": "r"}, {"signature": "s"}]},
    {"tool_calls": [SIGNED]},
    {"content": "At first", "refusal": "then not"},
]


@pytest.mark.parametrize("message", CHAT_FIELDS, ids=lambda message: "+".join(message))
def test_whatever_a_streamed_chat_message_holds_is_what_the_whole_one_holds(message: dict[str, Any]) -> None:
    target = "openrouter:google/gemini-3-flash"
    deltas = [{name: value} for name, value in message.items() if not isinstance(value, list)]
    deltas += [{name: [each]} for name, value in message.items() if isinstance(value, list) for each in value]
    reply = chat_stream(target, *deltas, stop="stop").reply()
    assert reply == parse_reply(target, chat_reply(message))
    assert all(str(value).strip("[]") in str(reply) for value in message.values())


CITED = [{"title": "a", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}, {"title": "b"}]
GIVEN = [{"text": "a"}, {"json": {"b": 1}}]
# A block of Converse, what it begins with where it says so, and its pieces.
CONVERSE_BLOCKS: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"image": {"format": "png", "source": {"bytes": "aGk="}}},
        {"image": {"format": "png"}},
        [{"image": {"source": {"bytes": "aGk="}}}],
    ),
    (
        {"toolResult": {"toolUseId": "t", "status": "success", "content": GIVEN}},
        {"toolResult": {"toolUseId": "t", "status": "success"}},
        [{"toolResult": [one]} for one in GIVEN],
    ),
    (
        {"citationsContent": {"content": [{"text": "It is blue."}], "citations": CITED}},
        {},
        [{"text": "It is "}, {"text": "blue."}, *({"citation": one} for one in CITED)],
    ),
]


@pytest.mark.parametrize(("block", "start", "pieces"), CONVERSE_BLOCKS, ids=["picture", "result", "citations"])
def test_whatever_comes_in_pieces_of_converse_is_the_block_that_comes_whole(
    block: dict[str, Any], start: dict[str, Any], pieces: list[dict[str, Any]]
) -> None:
    target = "bedrock:amazon.nova-lite-v1:0"
    began = [{"contentBlockStart": {"contentBlockIndex": 0, "start": start}}] if start else []
    deltas = [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": piece}} for piece in pieces]
    ends = [{"contentBlockStop": {"contentBlockIndex": 0}}, {"messageStop": {"stopReason": "end_turn"}}]
    reading = fed(target, [*began, *deltas, *ends])
    message = {"role": "assistant", "content": [block]}
    assert reading.reply() == parse_reply(target, {"output": {"message": message}, "stopReason": "end_turn"})
    assert reading.reply().entries[0].wire["block"] == block
    assert reading.partial().unknown == 0


def test_citations_of_claude_come_one_by_one() -> None:
    cited = [{"type": "page_location", "cited_text": "x", "start_page_number": n} for n in (1, 2)]
    deltas = [{"type": "citations_delta", "citation": one} for one in cited]
    deltas.insert(1, {"type": "text_delta", "text": "It is blue."})
    content = {"type": "text", "text": "", "citations": []}
    events = [
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": content},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]
    block = {"type": "text", "text": "It is blue.", "citations": cited}
    assert fed("anthropic:m", events).partial().entries == parse_reply("anthropic:m", {"content": [block]}).entries


def test_of_several_answers_of_a_chat_stream_the_first_is_read() -> None:
    choices = [{"index": index, "delta": {"content": text}} for index, text in enumerate("ab")]
    reader = fed("openai-chat:m", [{"choices": choices}, {"choices": [{**choices[1], "finish_reason": "stop"}]}])
    assert (reader.feed("[DONE]")[0].text, reader.reply().stop) == ("a", "stop")


UNENDED: dict[str, list[dict[str, Any]]] = {
    "anthropic:claude-opus-5-5": [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "So."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
    "openai:gpt-6-sol": [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1"}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "So."},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ],
    "bedrock:anthropic.claude-opus-5-5": [
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "So."}}},
        {"messageStop": {"stopReason": "end_turn"}},
    ],
}


@pytest.mark.parametrize("target", UNENDED)
def test_a_text_that_does_not_say_that_it_ends_does_so_with_the_reply(target: str) -> None:
    reading = fed(target, UNENDED[target])
    assert [(entry.kind, entry.text) for entry in reading.reply().entries] == [("respond", "So.")]
    assert reading.partial().unfinished == ()


def test_a_text_that_the_whole_response_lists_elsewhere_is_one_entry() -> None:
    reading = stream("openai:gpt-6-sol")
    said = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "So."}]}
    for index, item in enumerate([{"type": "reasoning", "id": "rs_1"}, {**said, "content": []}]):
        reading.feed({"type": "response.output_item.added", "output_index": index, "item": item})
    reading.feed({"type": "response.output_text.delta", "output_index": 1, "delta": "So."})
    reading.feed({"type": "response.completed", "response": {"status": "completed", "output": [said]}})
    assert [(entry.kind, entry.text) for entry in reading.reply().entries] == [("respond", "So.")]


def test_an_item_that_waits_for_an_earlier_one_is_not_lost_when_the_stream_is_cut() -> None:
    reading = stream("openai:gpt-6-sol")
    for index in (0, 1):
        item = {"type": "message", "id": f"msg_{index}", "content": [{"type": "output_text", "text": f"text {index}"}]}
        at = {"output_index": index}
        reading.feed({"type": "response.output_item.added", **at, "item": {**item, "content": []}})
        reading.feed({"type": "response.output_text.delta", **at, "delta": f"text {index}"})
    reading.feed({"type": "response.output_item.done", **at, "item": item})
    assert [piece["text"] for piece in reading.partial().unfinished] == ["text 0", "text 1"]


@pytest.mark.parametrize(
    ("stop", "kinds"),
    [("tool_use", ["respond", "call"]), ("max_tokens", ["respond"]), ("model_context_window_exceeded", ["respond"])],
)
@pytest.mark.parametrize("wire", ["anthropic", "bedrock"])
def test_a_call_that_the_length_of_a_whole_reply_cut_is_none(wire: str, stop: str, kinds: list[str]) -> None:
    call = {"id": "t", "name": "remove", "input": {"path": "/ho"}}
    replies: dict[str, dict[str, Any]] = {
        "anthropic": {"content": [{"type": "text", "text": "I clean."}, {"type": "tool_use", **call}]},
        "bedrock": {"output": {"message": {"content": [{"text": "I clean."}]}}},
    }
    used = {"toolUseId": call["id"], "name": call["name"], "input": call["input"]}
    replies["bedrock"]["output"]["message"]["content"].append({"toolUse": used})
    reply = parse_reply(f"{wire}:m", {**replies[wire], "stop_reason": stop, "stopReason": stop})
    assert [entry.kind for entry in reply.entries] == kinds


@pytest.mark.parametrize(
    ("stop", "last", "kinds"),
    [
        ("STOP", [], ["call"]),
        ("STOP", [{"text": ""}], ["call"]),
        ("STOP", [{"text": "So."}], ["call", "respond"]),
        ("STOP", [{"text": "", "thoughtSignature": "c2ln"}], ["respond", "call"]),
        ("MAX_TOKENS", [], ["respond"]),
        ("MAX_TOKENS", [{"text": ""}], ["respond"]),
        ("MAX_TOKENS", [{"text": "So."}], ["call", "respond"]),
        ("MAX_TOKENS", [{"text": "", "thoughtSignature": "c2ln"}], ["respond"]),
    ],
)
def test_a_call_of_gemini_that_the_replys_length_cut_is_none(
    stop: str, last: list[dict[str, Any]], kinds: list[str]
) -> None:
    piece = {"name": "f", "partialArgs": [{"jsonPath": "$.path", "stringValue": "/ho"}], "willContinue": True}
    called = {"content": {"parts": [{"functionCall": piece}]}}
    candidates = [called, {"content": {"parts": last}, "finishReason": stop}]
    reading = fed("gemini:gemini-3.8-flash", ({"candidates": [candidate]} for candidate in candidates))
    assert [entry.kind for entry in reading.reply().entries] == kinds
    assert len(reading.partial().unfinished) == ("call" not in kinds)
