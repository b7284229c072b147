"""After each reply: what was read against what was predicted, and the likely cause where they part."""

from typing import Any

import pytest
from cache_bodies import MINUTE, assistant, claude, text, user

from quire.providers.explain import CacheEvent, Watch
from quire.providers.simulate import simulate
from quire.values import LIBRARY_HEADING, JsonObject
from toolbox import many_words, model_info

OPUS = "anthropic:claude-opus-5-5"


def reply(total: int, read: int, **more: Any) -> JsonObject:
    return {"usage": {"input_tokens": total - read, "cache_read_input_tokens": read, "output_tokens": 1}, **more}


def thread(turns: int, head: str = "", system: str | None = None, mark: bool = True) -> JsonObject:
    """A request of a growing thread with its last block marked."""
    messages = []
    for turn in range(turns):
        messages.append(user(text(400, f"u{turn}-{head}" if turn == 0 else f"u{turn}-")))
        messages.append(assistant(text(100, f"a{turn}-")))
    messages.append(user(text(50, "q", "5m" if mark else None)))
    content = system if system is not None else many_words(3000, "s")
    block = text(0) | {"text": content}
    if mark:
        block["cache_control"] = {"type": "ephemeral"}
    return claude(*messages, system=[block])


def event(
    first: JsonObject, second: JsonObject, read: int, gap: int = 1000, target: str = OPUS, **more: Any
) -> CacheEvent | None:
    """What is many_words of the second request's reply, if the provider read `read` of it."""
    watch = Watch(target)
    total = watch.sent(0, first).total
    watch.replied(reply(total, 0))
    total = watch.sent(gap, second).total
    return watch.replied(reply(total, read, **more))


def predicted_read(first: JsonObject, second: JsonObject, gap: int = 1000) -> int:
    watch = Watch(OPUS)
    watch.sent(0, first)
    return watch.sent(gap, second).read


def growing() -> tuple[JsonObject, JsonObject]:
    """Two requests, the second of which extends the first."""
    first = thread(6)
    longer = [*first["messages"], assistant(text(30, "new")), user(text(30, "next", "5m"))]
    return first, {**first, "messages": longer}


def test_small_differences_are_no_event() -> None:
    first, second = growing()
    expected, total = predicted_read(first, second), Watch(OPUS).sent(0, second).total
    assert total > 20_000
    # Over a thousand tokens, but under a twentieth of the prompt; then over both.
    assert event(first, second, expected - 1001) is None
    assert event(first, second, expected - int(total * 0.051)) is not None
    short = claude(user(text(600, "a", "5m")))
    after = claude(user(text(600, "a")), assistant(text(1, "b")), user(text(1, "c", "5m")))
    # Over a twentieth of the prompt, but under a thousand tokens.
    assert event(short, after, predicted_read(short, after) - 900) is None


FIRST, SECOND = growing()
UNMARKED = thread(6, mark=False)
LONGER = {**UNMARKED, "messages": [*UNMARKED["messages"], assistant(text(9, "z")), user(text(9, "y"))]}
BARE = {**thread(7, mark=False), "system": many_words(3000, "s")}
SMALL = claude(user(text(800, "a", "5m")))
GROWN = claude(user(text(800, "a")), assistant(text(1, "b")), user(text(1, "c", "5m")))
TOTAL = Watch(OPUS).sent(0, SECOND).total
# Two requests, and how much of the second was read; the cause, and whether the simulation foresaw it.
CAUSES: dict[str, tuple[JsonObject, JsonObject, int, dict[str, Any], tuple[str, bool]]] = {
    "the same bytes, in time and marked": (FIRST, SECOND, 0, {}, ("routing", False)),
    "a pause longer than the life": (FIRST, SECOND, 0, {"gap": 6 * MINUTE}, ("ttl", True)),
    "a pause nearly as long": (FIRST, SECOND, 0, {"gap": 290_000}, ("ttl", False)),
    "no mark": (UNMARKED, LONGER, 0, {}, ("marker", True)),
    "no mark any more": (FIRST, BARE, 0, {}, ("moved", True)),
    "under the minimum": (SMALL, GROWN, 0, {"target": "anthropic:claude-haiku-4-5"}, ("minimum", True)),
    "more than predicted": (FIRST, SECOND, TOTAL, {"gap": 6 * MINUTE}, ("ttl", False)),
    "more than another left": (thread(1, system=many_words(3000, "o")), thread(6), 8000, {}, ("routing", False)),
}


@pytest.mark.parametrize("case", CAUSES)
def test_a_reply_that_read_other_than_predicted_has_a_cause(case: str) -> None:
    first, second, read, how, cause = CAUSES[case]
    found = event(first, second, read, **how)
    assert (found.cause, found.foreseen, found.reported) == (*cause, read)


@pytest.mark.parametrize(
    ("second", "layer"),
    [
        (thread(7, system=many_words(3000, "changed")), "L1_SYSTEM"),
        (thread(7, system=many_words(3000, "s") + f"\n\n{LIBRARY_HEADING}\n\nother"), "L2_PREVIOUS"),
        (thread(7, head="edited-"), "L4_STRIP"),
        ({**thread(7), "tools": [{"name": "f", "input_schema": {"type": "object"}}]}, "tools"),
    ],
)
def test_a_moved_byte_is_the_cause_and_its_layer_is_named(second: JsonObject, layer: str) -> None:
    first = thread(6)
    if layer == "L2_PREVIOUS":
        first = thread(6, system=many_words(3000, "s") + f"\n\n{LIBRARY_HEADING}\n\nthe notes")
    if layer == "tools":
        first = {**first, "tools": [{"name": "g", "input_schema": {"type": "object"}}]}
    found = event(first, second, 0)
    assert (found.cause, found.layer) == ("moved", layer)


@pytest.mark.proves("anthropic", "cache diagnostics")
def test_the_provider_s_own_account_is_joined_with_ours() -> None:
    first, second = growing()
    told = {"type": "system_changed", "cache_missed_input_tokens": 5000}
    found = event(first, second, 0, diagnostics={"cache_miss_reason": told})
    assert found.diagnosis == told
    assert found.predicted == found.reusable == predicted_read(first, second)
    assert (found.cause, found.layer) == ("moved", "L1_SYSTEM")
    assert "our bytes did not move" in found.note
    agreeing = event(first, thread(7, system=many_words(3000, "t")), 0, diagnostics={"cache_miss_reason": told})
    assert "system.0 moved" in agreeing.note
    silent = event(first, second, 0, diagnostics={"cache_miss_reason": {"type": "unavailable"}})
    assert silent.cause == "routing"


def test_a_vocabulary_that_is_only_estimated_is_no_cause() -> None:
    first, second = growing()
    watch = Watch(OPUS)
    watch.replied(reply(watch.sent(0, first).total, 0))
    now = watch.sent(1000, second)
    # The provider counts a quarter less than we do: shares are compared, not counts.
    assert watch.replied(reply(int(now.total * 0.75), int(now.read * 0.75))) is None


def test_a_reply_that_reports_nothing_says_nothing() -> None:
    watch = Watch(OPUS)
    assert watch.replied({}) is None
    watch.sent(0, thread(3))
    assert watch.replied({"usage": {}}) is None


TITLE = claude(user(text(0) | {"text": "Name this talk."}, text(2500, "t", "5m")), system=[text(40, "titles")])


def test_a_question_on_the_side_is_no_loss_and_hides_none() -> None:
    """A title is asked for between two requests of a thread, of the same model."""
    watch = Watch(OPUS)
    first, second = growing()
    for at, body in enumerate((first, TITLE, second)):
        predicted = watch.sent(1000 * at, body)
        assert predicted.cause != "moved"
        assert watch.replied(reply(predicted.total, predicted.read)) is None
    lost = Watch(OPUS)
    for at, body in enumerate((first, TITLE, second)):
        event = lost.replied(reply(lost.sent(1000 * at, body).total, 0))
    assert event.cause == "routing", "compared with the request that it goes on with"


@pytest.mark.parametrize("target", ["openai-chat:gpt-5", "openai:gpt-5.6", "gemini:gemini-3.8-flash", "xai:grok-4"])
def test_what_was_too_short_to_be_stored_has_not_moved(target: str) -> None:
    wire = model_info(target).wire
    field = {"gemini": "contents", "openai-responses": "input"}.get(wire, "messages")

    def body(*said: str) -> JsonObject:
        parts = [{"parts": [{"text": one}]} if wire == "gemini" else {"content": one} for one in said]
        return {"model": "m", field: [{"role": "user", **part} for part in parts]}

    short, long = many_words(40, "a"), many_words(9000, "b")
    bodies = [body(short), body(short, "more"), body(short, "more", long), body(short, "more", long, "and?")]
    causes = [one.cause for one in simulate([(1000 * at, one) for at, one in enumerate(bodies)], target)]
    assert causes == ["first", "minimum", "minimum", ""]
    moved = simulate([(0, body(long)), (1000, body("at noon: " + long)), (2000, body("at one: " + long))], target)
    assert [one.cause for one in moved] == ["first", "moved", "moved"]
