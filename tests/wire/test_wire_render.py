"""Whatever the prompt, every provider's request is legal, keeps its prefix and says what it left out."""

import json

import pytest
from hypothesis import given
from wire_prompts import TARGETS, growing

from quire.providers import render, rendering, split_target
from quire.providers.prefix import prefix_bytes
from quire.providers.rules import errors, validate
from quire.values import Prompt, Request
from toolbox import fewer

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


@given(prompts=growing())
@fewer(10)
def test_rendering_step_by_step_gives_the_bytes_of_rendering_at_once(prompts: list[Prompt]) -> None:
    for target in TARGETS:
        steps = rendering(target)
        for prompt in prompts:
            assert steps.request(prompt) == render(prompt, target), target


@pytest.mark.parametrize("schema", [{"properties": 5}, {"properties": [1]}, {"properties": {"a": 5}}, {"items": 3}])
def test_a_schema_that_is_none_goes_to_gemini_as_it_is(schema: object) -> None:
    tool = {"name": "f", "parameters": schema}
    request = render(Prompt("", "", (tool,), ()), "gemini:gemini-2.5-flash")
    (told,) = request.body["tools"][0]["functionDeclarations"]
    assert told["parametersJsonSchema"] == schema
