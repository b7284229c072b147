"""Every provider's request is legal, keeps its prefix and its lines, and says what it left out: random and recorded ones."""

import contextlib
import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire_prompts import TARGETS, growing

from conftest import TRACES, traces
from quire import Assembly, Entry, Policy, Request, Thread, providers, render, requests, validate, values
from quire.errors import CallError, RuleError
from quire.providers import import_, rendering, split_target
from quire.providers.prefix import PrefixLines, Walk, lines_of, prefix_bytes
from quire.providers.rules import GrowingCheck, errors
from quire.providers.wires import wire_of
from quire.testing import assert_valid
from quire.thread_state import policy_for
from quire.values import Call, JsonObject, Message, Prompt, Result, Text, ToolSet
from toolbox import Refused, chain, fewer

CLAUDE, NOVA = "anthropic:claude-opus-5-5", "bedrock:amazon.nova-pro-v1:0"

# Each example is rendered for every target, so a fifth of them covers as much as elsewhere.


@pytest.mark.proves(
    "anthropic openai azure gemini bedrock deepseek xai groq mistral openrouter vllm sglang llamacpp ollama compatible",
    "render",
)
@given(prompts=growing())
@fewer(5)
def test_a_rendered_request_breaks_no_rule(prompts: list[Prompt]) -> None:
    for target in TARGETS:
        provider, model = split_target(target)
        for prompt in prompts[-1:]:
            request = render(prompt, target)
            assert errors(validate(request.body, provider, model, headers=request.headers)) == [], target
            assert request.prefix == prefix_bytes(request.body, provider), target
            json.dumps(request.body)


@pytest.mark.proves(
    "anthropic openai azure gemini bedrock deepseek xai groq mistral openrouter vllm sglang llamacpp ollama compatible",
    "prefix kept",
)
@given(prompts=growing())
@fewer(5)
def test_a_longer_prompt_extends_the_request_unless_it_says_so(prompts: list[Prompt]) -> None:
    for target in TARGETS:
        before, known = b"", set[str]()
        for prompt in prompts:
            request = render(prompt, target)
            moved = _moves(request)
            assert request.prefix.startswith(before) or moved - known, target
            before, known = request.prefix, moved


def _moves(request: Request) -> set[str]:
    """What a request says about moving its prefix."""
    return {str(one) for one in request.left_out if "prefix" in one["reason"] and "rebase" not in one["reason"]}


def rebased(prompt: Prompt, kept: list[int]) -> Iterator[Prompt]:
    """Epochs that begin with some of the very same messages, by their bits, and a request in the midst of them."""
    for epoch, bits in enumerate(kept, prompt.epoch + 1):
        stay = tuple(message for place, message in enumerate(prompt.messages) if bits >> place & 1)
        half = len(stay) // 2
        tools = prompt.tools if epoch % 2 else ()
        yield msgspec.structs.replace(
            prompt, tools=tools, messages=stay, epoch=epoch, fold=half, ends=(half,) if half else ()
        )


CALLED = (
    Message("user", (Text("q"),), (1,)),
    Message("assistant", (Call("c", "f", {}),), (2,)),
    Message("tool", (Result("c", "f", "ok"),), (3,)),
)


@given(prompts=growing(), kept=st.lists(st.integers(0, 2**12 - 1), max_size=3))
@example(prompts=[Prompt("", "", ({"name": "f", "description": "", "parameters": {}},), CALLED)], kept=[63] * 3)
@fewer(10)
def test_rendering_step_by_step_gives_the_bytes_of_rendering_at_once(prompts: list[Prompt], kept: list[int]) -> None:
    for target in TARGETS:
        steps = rendering(target)
        for prompt in (*prompts, *(rebased(prompts[-1], kept) if prompts else ())):
            assert steps.request(prompt) == render(prompt, target), target


def test_a_rendering_that_was_interrupted_writes_nothing_twice() -> None:
    nameless = Message("tools", (ToolSet(({"description": ""},)),))
    for target in TARGETS:
        steps, prompt = rendering(target), Prompt("", "", (), CALLED)
        with contextlib.suppress(KeyError):
            steps.request(msgspec.structs.replace(prompt, messages=(*CALLED, nameless)))
        assert steps.request(prompt) == render(prompt, target), target


@pytest.mark.parametrize("schema", [{"properties": 5}, {"properties": [1]}, {"properties": {"a": 5}}, {"items": 3}])
def test_a_schema_that_is_none_goes_to_gemini_as_it_is(schema: object) -> None:
    tool = {"name": "f", "parameters": schema}
    request = render(Prompt("", "", (tool,), ()), "gemini:gemini-2.5-flash")
    (told,) = request.body["tools"][0]["functionDeclarations"]
    assert told["parametersJsonSchema"] == schema


SPOKEN_TO = (
    "openai-chat:gpt-5 openai-responses:gpt-5 anthropic:claude-opus-5-5 anthropic:claude-opus-4-1 gemini:gemini-2.5-pro "
    "bedrock:anthropic.claude-opus-5-5-v1:0 llamacpp:local mistral:mistral-large-latest cohere:command-a-03-2025"
).split()


def told(kind: str, number: int) -> list[Entry]:
    """What one step of a thread adds."""
    said = {
        "user": values.user(f"q{number}"),
        "note": values.note(f"n{number}"),
        "respond": values.respond(f"a{number}"),
    }
    called = [values.call(f"c{number}", "f", {"n": number}), values.result(f"c{number}", "ok")]
    return [said[kind]] if kind in said else [] if kind == "empty" else called


def sent(target: str) -> Entry:
    provider, model = target.split(":", 1)
    body = {"kind": "sent", "provider": provider, "model": model, "request_sha256": "", "segments": []}
    return Entry("sent", {**body, "usage": {"input_total": 0}})


def sent_requests(target: str, steps: list[str]) -> Iterator[tuple[Request, bool]]:
    """Each request that is really sent, and whether a rebase explains what moved."""
    assembly, keeps, checks = Assembly(policy_for(target)), providers.rendering(target), GrowingCheck()
    log = list[Entry]()

    def append(*entries: Entry) -> None:
        for entry in chain(entries, log[-1].id if log else "", len(log)):
            log.append(entry)
            assembly.feed(entry)

    append(values.tools([{"name": "f"}]), values.user("q"))
    for number, kind in enumerate(steps):
        if kind not in ("user", "note"):
            built = assembly.request()
            request = keeps.request(built.prompt)
            assert providers.render(built.prompt, target) == request
            assert_valid(request)
            assert checks.of(request) == validate(request)
            yield request, built.rebase is not None
            append(*([Entry("rebase", built.rebase)] if built.rebase else []), sent(target))
        append(*told(kind, number))


threads = st.lists(st.sampled_from(["user", "note", "respond", "call", "empty"]), max_size=12)


@pytest.mark.parametrize("target", SPOKEN_TO)
@given(threads)
@fewer(10)
def test_a_request_extends_the_one_before_it_and_says_how_much_it_held(target: str, steps: list[str]) -> None:
    messages = wire_of(target).layout.field
    before = Request("", "", {messages: []})
    for request, rebased in sent_requests(target, steps):
        assert rebased or request.prefix.startswith(before.prefix)
        # What nobody answered is asked once more.
        again = request.prefix == before.prefix and request.stable == before.stable
        assert again or request.stable == (0 if rebased else len(before.body[messages]))
        before = request


def test_a_number_that_became_a_truth_is_another_line() -> None:
    walk, lining = Walk(wire_of("anthropic").layout, frozen=True), PrefixLines()
    for value in (1, True, 1.0):
        body = {"messages": [{"role": "user", "content": [{"type": "tool_use", "input": {"n": value}}]}]}
        assert lining.of(walk.units(body)) == lines_of(body, "anthropic")


REPLAYED_TO = (
    "openai-chat:gpt-4.1-mini openai:gpt-6-sol anthropic:claude-opus-5-5 gemini:gemini-3.8-flash "
    "bedrock:us.anthropic.claude-opus-5-5-v1:0 mistral:mistral-large-latest"
).split()


@pytest.mark.parametrize("name", TRACES[:5])
@pytest.mark.moves_prefix(reason="a budget that bites makes epochs")
def test_every_request_of_a_recorded_conversation_is_legal_and_extends_the_one_before(name: str) -> None:
    for trace in traces(name)[:2]:
        entries = chain(import_("openai-chat", trace))
        made = [one for one in requests(entries, Policy(budget=16_000)) if not isinstance(one, Refused)]
        for target in REPLAYED_TO:
            provider, model = split_target(target)
            steps = rendering(target)
            epoch, before = 0, b""
            for place, built in enumerate(made):
                request = steps.request(built.prompt)
                assert built.epoch != epoch or request.prefix.startswith(before), (target, built.turn)
                epoch, before = built.epoch, request.prefix
                if place % 20 == 0:
                    assert errors(validate(request.body, provider, model)) == [], (target, built.turn)
                    assert render(built.prompt, target) == request


@pytest.mark.parametrize(
    ("target", "asked", "field", "both"),
    [
        ("openai:gpt-5", {"reasoning": {"summary": "auto"}}, "reasoning", {"effort": "low", "summary": "auto"}),
        (CLAUDE, {"output_config": {"format": {}}}, "output_config", {"effort": "low", "format": {}}),
        (
            "gemini:gemini-3-pro",
            {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
            "generationConfig",
            {"maxOutputTokens": 50, "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}},
        ),
        (NOVA, {"inferenceConfig": {"topP": 0.5}}, "inferenceConfig", {"maxTokens": 50, "topP": 0.5}),
        ("vllm:m", {"extra_body": {"top_k": 3}}, "extra_body", {"cache_salt": "t", "top_k": 3}),
    ],
)
def test_a_field_that_both_write_holds_what_either_says(
    target: str, asked: JsonObject, field: str, both: JsonObject, thread: Thread
) -> None:
    thread.user("Hello")
    assert thread.request(target, max_tokens=50, effort="low", extra=asked).body[field] == both


def test_a_choice_of_tools_keeps_the_tools(thread: Thread) -> None:
    thread.tools({"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}})
    thread.user("Hello")
    config = thread.request(NOVA, extra={"toolConfig": {"toolChoice": {"any": {}}}}).body["toolConfig"]
    assert (config["toolChoice"], [tool["toolSpec"]["name"] for tool in config["tools"]]) == ({"any": {}}, ["look"])


def test_gemini_is_asked_alike_over_its_sdk_and_over_http(thread: Thread) -> None:
    thread.user("Hello")
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7}
    request = thread.request("gemini:gemini-3-pro", max_tokens=50, **asked)
    config = {"maxOutputTokens": 50, "temperature": 0.5, "topP": 0.9, "topK": 3, "seed": 7}
    assert {name: value for name, value in request.body.items() if name != "contents"} == {"generationConfig": config}
    assert request.kwargs["config"] == config


def test_no_tokens_for_a_reply_are_no_silent_default(thread: Thread) -> None:
    thread.user("Hello")
    assert thread.request(CLAUDE, max_tokens=0).body["max_tokens"] == 0  # it only fills the cache
    for target in ("openai:gpt-5", "openai-chat:gpt-5", "gemini:gemini-3-pro", NOVA, "vllm:m"):
        with pytest.raises(RuleError):
            thread.request(target, max_tokens=0)


def test_further_fields_are_an_object(thread: Thread) -> None:
    thread.user("Hello")
    with pytest.raises(CallError, match="extra is an object"):
        thread.request(CLAUDE, extra=5)  # type: ignore[arg-type]
