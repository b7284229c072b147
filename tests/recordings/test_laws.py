"""Laws over exchanges recorded with real provider APIs: what a provider took, sent and charged is how it is.

Nothing here looks at a single recording: another set of recordings has to hold as well. An exchange that breaks a
law stands in that law's table with the reason, or the test fails; one that stands there without need fails too.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from documented import documented
from exchanges import CONVERSATION, Exchange, exchanges, spelled, variants, whole_reply

import quire
from quire.providers import import_, parse_reply, request_options, stream
from quire.providers.rules import Finding
from quire.providers.usage import cost
from quire.testing import MemoryStore
from toolbox import Store

every_wire = pytest.mark.parametrize("wire", CONVERSATION)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with MemoryStore() as opened:
        yield opened
    _RENDERED.clear()


# "recording n" -> why this exchange is beyond the law.
ACCEPTED_BUT_FOUND: dict[str, str] = {}
REFUSED_FOR_WHAT_IS_NOT_IN_THE_BODY = {
    "test_groq/test_tool_use_failed_error 0": "the model wrote a call that its tool's schema does not allow",
    "test_multimodal_tool_returns/test_multimodal_tool_return_matrix[direct-url-image-google_vertex] 2": (
        "the site of the URL forbids robots"
    ),
}
CHANGED_ON_THE_WAY: dict[str, str] = {}
STREAMED_OTHERWISE: dict[str, str] = {}
COUNTED_OTHERWISE = {"test_openai/test_invalid_response 0": "the server is no provider: it answers with the request"}
CHARGED_OTHERWISE = COUNTED_OTHERWISE
DISOWNED = COUNTED_OTHERWISE


def hold(law: Callable[[Exchange], Any], given: Iterator[Exchange] | list[Exchange], beyond: dict[str, str]) -> None:
    """Every exchange keeps the law: `law` gives what is wrong with one, or nothing."""
    broken: dict[str, Any] = {}
    needless: list[str] = []
    count = 0
    for exchange in given:
        count += 1
        try:
            wrong = law(exchange)
        except quire.QuireError as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong and exchange.name not in beyond:
            broken[exchange.name] = wrong
        elif not wrong and exchange.name in beyond:
            needless.append(exchange.name)
    assert not needless, f"these keep the law by now: {needless}"
    lines = "\n".join(f"  {name} ({wrong})" for name, wrong in broken.items())
    assert not broken, f"{count - len(broken)} of {count} hold\n{lines}"


def accepted(wire: str) -> list[Exchange]:
    return [one for one in exchanges(wire) if one.accepted]


def refused(wire: str) -> list[Exchange]:
    """What a provider refused for its content: no key, no right and no room at that moment are none."""
    return [one for one in exchanges(wire) if 400 <= one.status < 500 and one.status not in (401, 403, 429)]


@every_wire
def test_what_a_provider_accepted_lints_clean(wire: str) -> None:
    hold(lambda one: errors(one, one.provider), accepted(wire), ACCEPTED_BUT_FOUND)


@every_wire
def test_what_a_provider_accepted_lints_clean_when_nobody_says_whose_it_is(wire: str) -> None:
    # Anthropic's format through Bedrock names its model in the address alone.
    direct = [one for one in accepted(wire) if one.provider != "bedrock-anthropic"]
    hold(lambda one: errors(one, None), direct, ACCEPTED_BUT_FOUND)


@every_wire
def test_what_a_provider_refused_is_found_and_named(wire: str) -> None:
    hold(unnamed, refused(wire), REFUSED_FOR_WHAT_IS_NOT_IN_THE_BODY)


def findings(exchange: Exchange, provider: str | None) -> list[Finding]:
    return quire.validate(exchange.body, provider, exchange.model)


def errors(exchange: Exchange, provider: str | None) -> list[str]:
    """What would be refused; good advice is a warning."""
    found = [one for one in findings(exchange, provider) if one.severity == "error"]
    return [f"{one.row} {one.path}: {one.message}" for one in found]


def unnamed(exchange: Exchange) -> str:
    """The provider's own reason, where no finding speaks of what it speaks of."""
    said = exchange.reply or {}
    reason = str((said.get("error") or said).get("message"))
    quoted = re.findall(r"['`\[]([^'`\]]+)['`\]]", reason)
    technical = [word.strip(".:") for word in re.findall(r"[\w.:-]+", reason)]
    technical = [word for word in technical if re.search(r"[\d_.:-]|[a-z][A-Z]", word)]
    terms = {word.lower() for word in (*quoted, *technical)}
    for one in findings(exchange, exchange.provider):
        text = f"{one.path} {one.message} {one.fix}".lower()
        if not terms or any(term in text for term in terms):
            return ""
    return reason


@every_wire
def test_import_and_render_change_nothing_but_spelling_and_the_second_time_nothing(wire: str, store: Store) -> None:
    hold(lambda one: changed(store, one) or added(store, one), accepted(wire), CHANGED_ON_THE_WAY)


@every_wire
def test_the_same_holds_of_what_else_might_have_been_sent(wire: str, store: Store) -> None:
    others = [one for exchange in accepted(wire) for one in variants(exchange)]
    step = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else len(others) // 100
    might = [one for one in others[::step] if not findings(one, one.provider)]
    hold(lambda one: changed(store, one), might, CHANGED_ON_THE_WAY)


@every_wire
def test_the_same_holds_of_what_providers_document(wire: str, store: Store) -> None:
    hold(lambda one: errors(one, one.provider) or changed(store, one) or added(store, one), documented(wire), {})


def changed(store: Store, exchange: Exchange) -> list[str]:
    request = rendered(store, exchange)
    sent = spelled(exchange.wire, copy.deepcopy(exchange.body))
    return sorted(set(differences(sent, spelled(exchange.wire, copy.deepcopy(request.body)))))


# What several laws look at is imported and rendered once: the exchange, its thread and its request.
_RENDERED: dict[int, tuple[Exchange, quire.Thread, quire.Request]] = {}


def rendered(store: Store, exchange: Exchange, body: dict[str, Any] | None = None) -> quire.Request:
    """A body, or the exchange's own, imported into a thread of its own, and rendered for the model it was for."""
    if body is None and id(exchange) in _RENDERED:
        return _RENDERED[id(exchange)][2]
    imported = quire.Thread(store, uuid4().hex)
    imported.append(*import_(exchange.wire, copy.deepcopy(body or exchange.body), exchange.model))
    request = imported.request(exchange.target, **request_options(exchange.options))
    if body is None:
        _RENDERED[id(exchange)] = exchange, imported, request
    return request


def differences(one: Any, other: Any, path: str = "$") -> Iterator[str]:
    """Where two JSON values differ, the places in lists left out so that equal causes read alike."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}):
            if name in one and name in other:
                yield from differences(one[name], other[name], f"{path}.{name}")
            else:
                yield f"{path}.{name} {'lost' if name in one else 'added'}"
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{path} {len(one)} became {len(other)}"
        for left, right in zip(one, other, strict=False):
            yield from differences(left, right, f"{path}[]")
    elif one != other:
        yield f"{path} {str(one)[:60]!r} became {str(other)[:60]!r}"


def added(store: Store, exchange: Exchange) -> list[str]:
    once = rendered(store, exchange)
    twice = rendered(store, exchange, once.body)
    lines = [[json.loads(line) for line in one.lines.rows] for one in (once, twice)]
    return sorted(set(differences(*lines)))


@every_wire
def test_a_reply_is_never_taken_for_another_models(wire: str, store: Store) -> None:
    hold(lambda one: disowned(store, one), replies(wire), DISOWNED)


def disowned(store: Store, exchange: Exchange) -> list[str]:
    """What of a recorded reply the next request leaves out as not this model's, whatever name answered."""
    request = rendered(store, exchange)
    thread = _RENDERED[id(exchange)][1]
    thread.on_warning = lambda event: None
    thread.record(reply_of(exchange), request)
    thread.user("Go on.")
    left = thread.request(exchange.target, **request_options(exchange.options)).left_out[len(request.left_out) :]
    return [one["reason"] for one in left if "means nothing to" in one["reason"]]


@every_wire
def test_a_stream_read_piece_by_piece_gives_the_whole_reply(wire: str) -> None:
    hold(streamed_otherwise, [one for one in accepted(wire) if one.events and one.answered], STREAMED_OTHERWISE)


def streamed_otherwise(exchange: Exchange) -> list[str]:
    reader = stream(exchange.target)
    gathered = [entry for event in exchange.events for entry in reader.feed(copy.deepcopy(event))]
    piecewise = reader.reply()
    whole = parse_reply(exchange.target, whole_reply(exchange.wire, copy.deepcopy(exchange.events)))
    wrong = [
        f"{field}: {getattr(piecewise, field)} is not {getattr(whole, field)}"
        for field in ("usage", "stop", "id", "model")
        if getattr(piecewise, field) != getattr(whole, field)
    ]
    wrong += differences(*(_comparable(one.entries) for one in (piecewise, whole)), "entries")
    if tuple(gathered) != piecewise.entries:
        wrong.append("feed and reply give different entries")
    return wrong


def _comparable(entries: Iterable[quire.Entry]) -> Any:
    """What entries say; OpenAI encrypts reasoning anew for each event that shows it."""
    text = json.dumps([entry.body for entry in entries])
    return json.loads(text, object_hook=lambda one: {**one, **dict.fromkeys(one.keys() & {"encrypted_content"})})


def replies(wire: str) -> list[Exchange]:
    return [one for one in accepted(wire) if one.answered and not one.counted]


def reply_of(exchange: Exchange) -> dict[str, Any]:
    return copy.deepcopy(exchange.reply) or whole_reply(exchange.wire, copy.deepcopy(exchange.events))


@every_wire
def test_usage_is_what_the_provider_counted(wire: str) -> None:
    hold(counted_otherwise, replies(wire), COUNTED_OTHERWISE)


def counted_otherwise(exchange: Exchange) -> str:
    reply = reply_of(exchange)
    given = reply.get("usage") or reply.get("usageMetadata") or {}
    used = parse_reply(exchange.target, reply).usage
    told = FIGURES[exchange.wire](given)
    read = {**msgspec.to_builtins(used), "total": used.input_total + used.output}
    wrong = [f"{name} is {read[name]}, not {count}" for name, count in told.items() if read[name] != count]
    return ", ".join(wrong) if given else ""


def _figures_anthropic(given: dict[str, Any]) -> dict[str, int]:
    parts = given.get("iterations") or [given]
    fields = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return {
        "input_total": sum(part.get(field) or 0 for part in parts for field in fields),
        "cache_read": sum(part.get("cache_read_input_tokens") or 0 for part in parts),
        "output": sum(part.get("output_tokens") or 0 for part in parts),
        "reasoning": (given.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
    }


def _figures_bedrock(given: dict[str, Any]) -> dict[str, int]:
    return {
        "total": given.get("totalTokens", 0),
        "output": given.get("outputTokens", 0),
        "cache_read": given.get("cacheReadInputTokens", 0),
    }


def _figures_gemini(given: dict[str, Any]) -> dict[str, int]:
    return {
        **({"total": given["totalTokenCount"]} if "totalTokenCount" in given else {}),
        "cache_read": given.get("cachedContentTokenCount", 0),
        "reasoning": given.get("thoughtsTokenCount", 0),
    }


def _figures_openai(given: dict[str, Any]) -> dict[str, int]:
    into = given.get("prompt_tokens_details") or given.get("input_tokens_details") or {}
    out = given.get("completion_tokens_details") or given.get("output_tokens_details") or {}
    read = into.get("cached_tokens") or given.get("cached_tokens") or given.get("num_cached_tokens") or 0
    return {
        "total": given.get("total_tokens", 0),
        "output": given.get("completion_tokens", given.get("output_tokens", 0)),
        "cache_read": read,
        "reasoning": out.get("reasoning_tokens") or 0,
    }


FIGURES = {
    "anthropic": _figures_anthropic,
    "bedrock": _figures_bedrock,
    "gemini": _figures_gemini,
    "openai-chat": _figures_openai,
    "openai-responses": _figures_openai,
}


@every_wire
def test_a_cost_is_the_providers_own_or_says_what_it_leaves_out(wire: str) -> None:
    hold(charged_otherwise, replies(wire), CHARGED_OTHERWISE)


def charged_otherwise(exchange: Exchange) -> str:
    reply = reply_of(exchange)
    given = reply.get("usage") or reply.get("usageMetadata") or {}
    at = reply.get("created") or reply.get("created_at")
    money = cost(parse_reply(exchange.target, reply).usage, exchange.target, at and int(at) * 1000)
    if not money.known:
        return ""
    charged = given.get("cost")
    if charged:
        amount = money.amount_usd or 0
        return "" if abs(charged - amount) <= 0.01 * charged else f"{money} is not ${charged:.6f}"
    besides = sorted(left_out(exchange, reply, given))
    return f"{money} leaves out {', '.join(besides)}" if besides else ""


def left_out(exchange: Exchange, reply: dict[str, Any], given: dict[str, Any]) -> Iterator[str]:
    """What is charged besides text tokens of the model that was asked."""
    used = {**(given.get("server_tool_use") or {}), **(given.get("server_tool_use_details") or {})}
    yield from (name for name in ("web_search_requests",) if used.get(name))
    asked = {one.get("model") for one in given.get("iterations") or ()} - {None, exchange.model}
    yield from (f"the share of {model}" for model in asked)
    for item in reply.get("output") or () if isinstance(reply.get("output"), list) else ():
        if item["type"] in FEES:
            yield item["type"]
    for candidate in reply.get("candidates") or ():
        if candidate.get("groundingMetadata", {}).get("webSearchQueries"):
            yield "grounding"
    shown = given.get("candidatesTokensDetails") or ()
    details = [*(given.get("promptTokensDetails") or ()), *shown, *(given.get("toolUsePromptTokensDetails") or ())]
    yield from ("audio" for one in details if one.get("modality") == "AUDIO" and one.get("tokenCount"))
    yield from ("image output" for one in shown if one.get("modality") == "IMAGE" and one.get("tokenCount"))
    for field in ("prompt_tokens_details", "completion_tokens_details"):
        if (given.get(field) or {}).get("audio_tokens"):
            yield "audio"


# Items of a response that cost a fee, or another model's tokens, beside the reply's own.
FEES = {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
