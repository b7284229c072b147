"""The context builder: sources, triggers, what repeats, the budget, its record, and that nothing feeds on itself."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import count
from quire.errors import BudgetError, CallError
from quire.formats import clean
from quire.records import Builder, Record, Records, config, configured, keep_catalog, react
from quire.records.builder import Part, assemble_parts, find_repeats, fit, tokens_of
from quire.records.record import shape
from quire.testing import MemoryStore
from records.chatter import chatter, say


@pytest.fixture
def records() -> Iterator[Records]:
    with MemoryStore() as store:
        yield Records(store)


def builder(*sources: dict[str, Any], **fields: Any) -> Builder:
    formatting = {"deduplication_threshold": None, **fields.pop("formatting", {})}
    return Builder({"consumer_id": "c", "sources": list(sources), "formatting": formatting, **fields})


def lines(text: str) -> list[str]:
    return text.split("\n")


MESSAGES = {"schema_name": ["user.message.v1", "agent.response.v1"]}
DISTINCT = {"deduplication_threshold": 0.9}
ONCE = builder({**MESSAGES, "method": "all"}, formatting=DISTINCT)


def test_recent_takes_the_newest_in_the_order_they_were_said(records: Records) -> None:
    for n in range(12):
        say(records, "user", f"m{n}")
    text = builder({**MESSAGES, "method": "recent", "limit": 3}).build(records, request="?").text
    assert text == "# Relevant Conversation\nUser: m9\nUser: m10\nUser: m11\n\n# Current Request\n?"
    assert len(builder({**MESSAGES, "method": "recent"}).build(records, request="?").sources) == 10


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ({"schema_name": "status.v1", "method": "latest"}, ["A: new"]),
        ({"method": "tagged", "filters": {"tag": "x", "none_tags": ["z"]}}, ["A: new", "B: 2"]),
        ({"method": "all", "context_match": [{"path": "n", "op": "gte", "value": 2}]}, ["B: 2", "C: 3"]),
        ({"schema_name": "fact.v1", "method": "all"}, ["B: 2", "C: 3"]),
    ],
    ids=["the one that changed last", "by tags of any schema", "what matches", "none that expired"],
)
def test_a_source_takes(records: Records, source: dict[str, Any], shown: list[str]) -> None:
    first = records.create("status.v1", {"text": "old"}, title="A", tags=["x", "y"])
    records.create("status.v1", {"text": "other"}, title="Other")
    records.create("fact.v1", {"text": "2", "n": 2}, title="B", tags=["x"])
    records.create("fact.v1", {"text": "3", "n": 3}, title="C", tags=["x", "z"])
    records.create("fact.v1", {"text": "gone", "n": 4}, title="D", tags=["x"], ttl_s=1, now=0)
    records.update(first.id, 1, context={"text": "new"})
    text = builder(source).build(records, request="", now=5_000).text
    assert lines(text) == ["# Recent Tool Results", *(f"• {line}" for line in shown)]


def test_vector_takes_what_is_near_and_the_floor_keeps_the_rest_out(records: Records) -> None:
    for speaker, text in chatter(random.Random(3), 40):
        say(records, speaker, text)
    say(records, "user", "My cat Luna needs her medicine twice a day")
    near = builder({**MESSAGES, "method": "vector"}).build(records, request="Which medicine does Luna take?")
    assert lines(near.formatted_context)[1:] == ["User: My cat Luna needs her medicine twice a day"]
    open_ = builder({**MESSAGES, "method": "vector", "nn": 3, "floor": 0, "exchanges": False})
    assert len(open_.build(records, request="Does Ana need the bicycle or the invoice?").sources) == 3


def test_a_question_comes_with_its_answer_and_an_answer_with_its_question(records: Records) -> None:
    for speaker, text in [("user", "Hello"), ("assistant", "Hi"), ("user", "Which gate?"), ("assistant", "Gate zebra")]:
        say(records, speaker, text)
    say(records, "assistant", "Unrelated afterthought")
    source = {**MESSAGES, "method": "vector", "nn": 1}
    by_answer = builder(source).build(records, request="zebra")
    assert lines(by_answer.formatted_context)[1:] == ["User: Which gate?", "Assistant: Gate zebra"]
    alone = builder({**source, "exchanges": False}).build(records, request="zebra")
    assert lines(alone.formatted_context)[1:] == ["Assistant: Gate zebra"]


def test_conversation_scope_keeps_to_the_triggers_session(records: Records) -> None:
    say(records, "user", "mine", tags=["session:1"])
    say(records, "user", "other", tags=["session:2"])
    message = say(records, "user", "now", tags=["session:1"])
    source = {**MESSAGES, "method": "recent", "conversation_scope": "current"}
    assert builder(source).build(records, trigger=message).text == (
        "# Relevant Conversation\nUser: mine\n\n# Current Request\nnow"
    )


def test_records_are_shown_as_their_hints_say(records: Records) -> None:
    hints = {"transform": {"summary": {"template": "{{city}} is {{state}}"}}}
    records.create("weather.v1", {"city": "Graz", "state": "cold"}, title="Weather", llm_hints=hints)
    records.create("user.message.v1", {"content": "keep", "secret": "x"}, llm_hints={"exclude": ["secret"]})
    records.create("tool.response.v1", {"tool": "calc", "output": {"b": 1, "a": [2]}})
    records.create("tool.response.v1", {"tool": "wait", "output": None})
    records.create("tool.response.v1", {"tool": "fail", "error": "no"})
    records.create("chat.line.v1", {"role": "user", "content": "by role"})
    records.create("odd.v1", {"a": 1, "b": "x"})
    shown = builder({"method": "all"}).build(records, request="").text
    assert shown == (
        "# Relevant Conversation\nUser: keep\nUser: by role\n\n# Recent Tool Results\n• Weather: Graz is cold\n"
        '• calc: {"a":[2],"b":1}\n• wait: No output\n• fail: Error: no\n• odd.v1: {"a":1,"b":"x"}'
    )


def test_registered_tools_are_listed_and_a_catalog_keeps_its_order(records: Records) -> None:
    for name in ("b", "a"):
        records.create("tool.v1", {"name": name, "description": name.upper()})
    by_tool = builder({"schema_name": "tool.v1", "method": "all"}).build(records, request="").text
    keep_catalog(records)
    by_catalog = builder({"schema_name": "tool.catalog.v1", "method": "latest"}).build(records, request="").text
    shown = "# Available Tools\nYou have access to 2 tools:\n\n• b (general): B\n\n• a (general): A"
    assert by_tool == by_catalog == shown
    short = builder({"schema_name": "tool.v1", "method": "all"}, formatting={"detail": "short"})
    assert lines(short.build(records, request="").text)[1:] == ["You have access to 2 tools:", "• b: B", "• a: A"]


@pytest.mark.parametrize(
    ("trigger", "triggers"),
    [
        ({}, True),
        ({"schema_name": "user.message.v1"}, True),
        ({"schema_name": ["x.v1", "user.message.v1"]}, True),
        ({"schema_name": "x.v1"}, False),
        ({"any_tags": ["a", "z"]}, True),
        ({"any_tags": ["y", "z"]}, False),
        ({"all_tags": ["a", "b"]}, True),
        ({"all_tags": ["a", "z"]}, False),
        ({"none_tags": ["z"]}, True),
        ({"none_tags": ["b"]}, False),
        ({"context_match": [{"path": "$.to", "op": "eq", "value": "c"}]}, True),
        ({"context_match": {"to": "d"}}, False),
        ({"schema_name": "user.message.v1", "any_tags": ["z"]}, False),
    ],
)
def test_a_trigger_matches_by_schema_tags_and_context(trigger: dict[str, Any], triggers: bool) -> None:
    record = Record(id="rec-1", schema_name="user.message.v1", tags=("a", "b"), context={"content": "?", "to": "c"})
    assert builder(update_triggers=[trigger]).triggered_by(record) is triggers
    assert not builder().triggered_by(record)


def test_what_repeats_is_dropped_and_the_later_one_stays(records: Records) -> None:
    for text in ["The port is open now", "Something else", "the PORT is open, now!", "The port is not open now"]:
        say(records, "user", text)
    say(records, "assistant", "The port is open now")
    built = ONCE.build(records, request="?")
    assert lines(built.formatted_context)[1:] == [
        "User: Something else",
        "User: the PORT is open, now!",
        "User: The port is not open now",
        "Assistant: The port is open now",
    ]
    assert built.left_out == ({"record": "rec-1", "reason": "says the same as rec-3"},)


def test_the_trigger_is_never_dropped_and_drops_what_says_the_same(records: Records) -> None:
    say(records, "user", "Where is it?")
    say(records, "assistant", "In the box")
    built = ONCE.build(records, trigger=say(records, "user", "where is it"))
    assert built.text == "# Relevant Conversation\nAssistant: In the box\n\n# Current Request\nwhere is it"
    result = records.create("tool.response.v1", {"tool": "t", "output": "same"})
    records.create("tool.response.v1", {"tool": "t", "output": "same"})
    source = {"schema_name": "tool.response.v1", "method": "all"}
    shown = builder(source, formatting=DISTINCT).build(records, trigger=result)
    assert [one.id for one in shown.sources] == [result.id]
    assert shown.text == "# Recent Tool Results\n• t: same\n\n# Current Request\nwhere is it"


def test_equal_answers_to_different_questions_all_stay(records: Records) -> None:
    told = [("Ana paid?", "Yes."), ("Bruno paid?", "No."), ("Carla paid?", "Yes."), ("Bruno paid?", "No.")]
    for question, answer in told:
        say(records, "user", question)
        say(records, "assistant", answer)
    built = ONCE.build(records, request="Who paid?")
    assert lines(built.formatted_context)[1:] == [
        "User: Ana paid?", "Assistant: Yes.", "User: Carla paid?", "Assistant: Yes.",
        "User: Bruno paid?", "Assistant: No.",
    ]  # fmt: skip
    gone = {"rec-3": "rec-7", "rec-4": "rec-8"}
    assert built.left_out == tuple({"record": a, "reason": f"says the same as {b}"} for a, b in gone.items())


def test_a_yes_to_another_question_of_the_assistant_stays(records: Records) -> None:
    for question in ["Delete the draft?", "Delete the archive?"]:
        say(records, "assistant", question)
        say(records, "user", "Yes.")
        say(records, "assistant", "Done.")
    assert ONCE.build(records, request="What did I allow?").left_out == ()


def test_texts_that_differ_in_a_number_or_a_not_are_never_the_same() -> None:
    def near(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]

    texts = ["order 1234 is here", "order 5678 is here", "order 1234 is not here", "the order 1234 has come"]
    assert find_repeats(texts, 0.5, near) == {0: 3}
    assert find_repeats(["a", "b"], 0.5, near) == {0: 1}
    assert find_repeats(["a", "b"], 0.5, near, pinned=[0]) == {1: 0}
    assert find_repeats(["a b c", "a b d"], 0.9) == {}


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts), max_size=12),
    st.integers(70, 200),
    texts,
    st.sampled_from(["full", "short"]),
)
def test_the_rendered_text_never_exceeds_the_budget_and_what_goes_is_named(
    said: list[tuple[str, str]], budget: int, request: str, detail: clean.Detail
) -> None:
    tools = [{"name": f"tool{n}", "description": "does things " * 4, "example": "as here " * 9} for n in range(4)]
    contexts: list[tuple[str, dict[str, Any]]] = [("tool.catalog.v1", {"tools": tools})]
    for who, text in said:
        answered = ("tool.response.v1", {"tool": "t", "output": text})
        contexts.append(answered if who == "tool" else ("chat.v1", {"role": who, "content": text}))
    parts = [
        Part(f"rec-{n}", shape(Record(schema_name=name, context=context)), n / len(contexts), f"g{n // 2}", n == 1)
        for n, (name, context) in enumerate(contexts)
    ]
    if tokens_of(assemble_parts(parts[1:2], request, "full")) > budget:
        with pytest.raises(BudgetError, match="the request"):
            fit(parts, request, budget, detail)
        return
    fitted = fit(parts, request, budget, detail)
    text = clean.render(fitted.value)
    assert count(text).tokens == fitted.tokens <= budget
    assert text.endswith(request)
    assert clean.parse(text) == fitted.value
    named = {out["record"] for out in fitted.left_out if "record" in out}
    assert named.isdisjoint(fitted.shown_ids)
    assert named | set(fitted.shown_ids) == {part.id for part in parts}
    assert "rec-1" in fitted.shown_ids or len(parts) == 1
    tools_out = [out["tool"] for out in fitted.left_out if "tool" in out]
    if fitted.value.tools:
        assert [tool.name for tool in fitted.value.tools] + tools_out == [f"tool{n}" for n in range(4)]


def test_over_the_budget_the_least_relevant_goes_first(records: Records) -> None:
    for n in range(20):
        say(records, "user", f"old chatter number {n} about nothing at all")
    source = {**MESSAGES, "method": "recent", "limit": 20}
    built = builder(source, formatting={"max_tokens": 60}).build(records, request="Now?")
    shown = [int(line.split()[4]) for line in lines(built.formatted_context)[1:]]
    assert shown == list(range(20 - len(shown), 20))
    assert 2 < len(shown) < 6
    assert built.left_out[0] == {"record": "rec-1", "reason": "over the budget of 60 tokens"}


def test_tools_take_at_most_half_of_a_tight_budget(records: Records) -> None:
    keep_catalog(records, [{"name": f"t{n}", "description": "word " * 10, "example": "long " * 30} for n in range(8)])
    say(records, "user", "remember this")
    sources = ({"schema_name": "tool.catalog.v1", "method": "latest"}, {**MESSAGES, "method": "all"})
    built = builder(*sources, formatting={"max_tokens": 150}).build(records, request="?")
    assert "User: remember this" in built.text
    assert "Example:" not in built.text
    assert 0 < len(clean.parse(built.text).tools) < 8
    assert built.left_out[-1] == {"tool": "t7", "reason": "more tools than half the budget holds"}
    with pytest.raises(BudgetError, match=r"the request alone needs \d+ tokens, but max_tokens is 10"):
        builder(formatting={"max_tokens": 10}).build(records, request="word " * 50)


def test_the_output_record_is_created_once_and_then_updated(records: Records) -> None:
    one = builder({**MESSAGES, "method": "recent"}, output={"schema_name": "my.context.v1", "tags": ["t"], "ttl_s": 60})
    message = say(records, "user", "first")
    first = one.update(records, message, now=0)
    assert (first.schema_name, first.tags, first.title) == ("my.context.v1", ("t", "consumer:c"), "Context for c")
    assert first.expires_at == 60_000
    message = say(records, "user", "second")
    second = one.update(records, message, now=5_000)
    assert (second.id, second.version, second.expires_at) == (first.id, 2, 65_000)
    assert records.read(second.id).context == {
        "consumer_id": "c",
        "formatted_context": "# Relevant Conversation\nUser: first",
        "request": "second",
        "trigger": {"id": message.id, "version": 1},
    }
    assert one.update(records, say(records, "user", "third"), now=100_000).id != first.id
    lasting = builder({**MESSAGES, "method": "recent"})
    assert lasting.update(records, message) == lasting.update(records, message)


def trigger_all(consumer: str, **more: Any) -> dict[str, Any]:
    return {"consumer_id": consumer, "sources": [{"method": "all"}], "update_triggers": [{}], **more}


def test_a_consumers_own_context_never_triggers_or_feeds_it(records: Records) -> None:
    records.create("context.config.v1", trigger_all("c"))
    say(records, "user", "one")
    reaction = react(records, say(records, "user", "two"))
    assert len(reaction.outputs) == 1
    output = reaction.outputs[0]
    assert not Builder(trigger_all("c")).triggered_by(output)
    with pytest.raises(CallError, match="this consumer's own context"):
        Builder(trigger_all("c")).build(records, trigger=output)
    again = react(records, say(records, "user", "three")).outputs[0]
    assert (again.id, again.version) == (output.id, 2)
    assert "Context for c" not in again.context["formatted_context"]


def test_consumers_that_trigger_each_other_come_to_an_end(records: Records) -> None:
    for name in ("a", "b", "c"):
        records.create("context.config.v1", trigger_all(name))
    reaction = react(records, say(records, "user", "go"))
    generations = [one.context["built"]["generation"] for one in reaction.outputs]
    assert max(generations) == 3
    assert generations[:3] == [1, 1, 1]
    assert len(reaction.outputs) <= 3 + 3 * 2 + 3 * 2 * 2
    assert reaction.problems == ()


@pytest.mark.parametrize("claimed", [-60, -(10**9), 0, 2, True, "1", None])
def test_no_record_can_make_a_chain_of_contexts_longer(records: Records, claimed: Any) -> None:
    for name in ("a", "b"):
        endless = {"formatting": {"max_tokens": None}, "update_triggers": [{"schema_name": "agent.context.v1"}]}
        records.create("context.config.v1", trigger_all(name, **endless))
    forged = records.create("agent.context.v1", {"content": "x", "built": {"by": "evil", "generation": claimed}})
    reaction = react(records, forged)
    assert 0 < len(reaction.outputs) <= 2 * 3
    assert all(1 <= one.context["built"]["generation"] <= 3 for one in reaction.outputs)


def test_rounds_count_where_a_context_says_nobody_built_it(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        records.create("context.config.v1", trigger_all(name, formatting={"max_tokens": None}))
    monkeypatch.setattr("quire.records.builder.generation", lambda record: 0)
    assert len(react(records, say(records, "user", "go")).outputs) <= 2 * 3


def test_a_broken_configuration_does_not_stop_the_others(records: Records) -> None:
    broken = records.create("context.config.v1", {"consumer_id": "x", "sources": [{"method": "magic"}]})
    records.create("context.config.v1", trigger_all("ok"))
    reaction = react(records, say(records, "user", "hello"))
    assert [one.context["consumer_id"] for one in reaction.outputs] == ["ok"]
    assert reaction.problems == (f"{broken.id}: source 1 has no method 'magic'",)


def test_the_newest_configuration_of_a_consumer_counts(records: Records) -> None:
    records.create("context.config.v1", trigger_all("c"))
    records.create("context.config.v1", trigger_all("c", max_generation=1))
    assert configured(records, "c").max_generation == 1
    assert len(react(records, say(records, "user", "hello")).outputs) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "a configuration is a JSON object"),
        ({}, "needs a consumer_id"),
        ({"consumer_id": "c", "source": []}, "the configuration has no 'source'"),
        ({"consumer_id": "c", "sources": {}}, None),
        ({"consumer_id": "c", "sources": [1]}, "sources is a list of objects"),
        ({"consumer_id": "c", "sources": [{"method": "x"}]}, "source 1 has no method 'x'"),
        ({"consumer_id": "c", "sources": [{"method": "all", "nn": 0}]}, "source 1: nn is at least 1, not 0"),
        ({"consumer_id": "c", "sources": [{"method": "all", "limt": 3}]}, "source 1 has no 'limt'"),
        ({"consumer_id": "c", "sources": [{"method": "all", "limit": "x"}]}, "Expected `int"),
        ({"consumer_id": "c", "update_triggers": [{"tags": ["a"]}]}, "update trigger 1 has no 'tags'"),
        ({"consumer_id": "c", "output": {"name": "x"}}, "output has no 'name'"),
        *(({"consumer_id": "c", "max_generation": limit}, "Expected `int`") for limit in (-1, 0, 33)),
        ({"consumer_id": "c", "formatting": {"max_tokens": 0}}, "max_tokens is at least 1"),
        ({"consumer_id": "c", "formatting": {"deduplication_threshold": 2}}, "above 0 and up to 1"),
    ],
)
def test_a_configuration_that_cannot_be_right_is_refused(value: Any, message: str | None) -> None:
    if message is None:
        assert config(value).sources == ()
        return
    with pytest.raises(CallError) as error:
        config(value)
    assert message in str(error.value)
