"""Hints: the vectors of the conformance page, the order of steps, and that an error changes nothing."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.records import apply_hints
from quire.records.paths import HintLimits
from toolbox import SCALARS, json_of

TOOLS = {"tools": [{"name": "openrouter"}, {"name": "file-storage"}]}


def transform(rule: object, context: object = TOOLS, **hints: object) -> object:
    shown, error = apply_hints(context, {"transform": {"x": rule}, **hints})
    assert error is None
    return shown["x"]


def error_of(hints: object, context: object = TOOLS) -> str:
    before = copy.deepcopy(context)
    shown, error = apply_hints(context, hints)
    assert shown is context
    assert context == before
    assert error is not None
    return error


def test_the_vectors_of_the_conformance_page() -> None:
    user = {"name": "TestUser", "count": 5}
    template = "User: {{context.name}} (count: {{context.count}})"
    assert transform({"type": "template", "template": template}, user) == "User: TestUser (count: 5)"
    assert transform({"type": "extract", "value": "$.tools[*].name"}) == ["openrouter", "file-storage"]
    nested = {"name": "n", "internal_id": "1", "metadata": {"public": "yes", "internal_id": "2"}}
    shown = apply_hints(nested, {"exclude": ["internal_id", "metadata.internal_id"]})
    assert shown == ({"name": "n", "metadata": {"public": "yes"}}, None)


@pytest.mark.parametrize("hints", [None, {}, {"mode": "merge"}, {"transform": {}}, {"exclude": []}, {"exclude": None}])
def test_hints_that_ask_for_nothing_change_nothing(hints: object) -> None:
    assert apply_hints(TOOLS, hints) == (TOOLS, None)


@pytest.mark.parametrize(
    ("include", "shown"),
    [
        (["a"], {"a": 1}),
        (["b.c", "a"], {"a": 1, "b": {"c": 2}}),
        (["b"], {"b": {"c": 2, "d": 3}}),
        (["l.x"], {"l": [{"x": 1}, {"x": 2}]}),
        (["b.nope", "nope", "a.b"], {}),
        (["p.q"], {"p.q": 9}),
        ([], {}),
    ],
)
def test_include_keeps_what_is_named_in_the_order_of_the_context(include: list[str], shown: object) -> None:
    context = {"a": 1, "b": {"c": 2, "d": 3}, "l": [{"x": 1, "y": 1}, {"x": 2}], "p.q": 9}
    result = apply_hints(context, {"include": include})
    assert result == (shown, None)
    assert list(result[0]) == [key for key in context if key in result[0]]


def test_exclude_keeps_parents_and_looks_through_lists() -> None:
    context = {"a": {"b": {"c": 1}}, "l": [{"x": 1, "y": 1}, "s"], "p.q": 9}
    shown, error = apply_hints(context, {"exclude": ["a.b.c", "l.x", "p.q", "nope.x"]})
    assert (shown, error) == ({"a": {"b": {}}, "l": [{"y": 1}, "s"]}, None)


def test_include_comes_before_exclude_and_exclude_before_transform() -> None:
    context = {"a": 1, "b": 2, "c": 3}
    transform = {"seen": {"template": "[{{a}}{{b}}{{c}}]"}}
    hints = {"include": ["a", "b"], "exclude": ["b"], "transform": transform, "mode": "merge"}
    assert apply_hints(context, hints) == ({"a": 1, "seen": "[1]"}, None)
    assert apply_hints(context, {**hints, "mode": "replace"}) == ({"seen": "[1]"}, None)
    del hints["mode"]
    assert apply_hints(context, hints) == ({"seen": "[1]"}, None)


def test_merge_is_shallow_and_rules_do_not_see_each_other() -> None:
    hints = {"mode": "merge", "transform": {"a": {"literal": {"new": 1}}, "b": {"template": "{{a.old}}"}}}
    assert apply_hints({"a": {"old": "o", "more": 1}}, hints) == ({"a": {"new": 1}, "b": "o"}, None)


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        ({"template": "{{tools.length}}"}, "2"),
        ({"value": "$.tools[*].name"}, ["openrouter", "file-storage"]),
        ({"value": "$.tools[0].name"}, "openrouter"),
        ({"value": "$.nope"}, None),
        ({"value": "$.nope", "many": True}, []),
        ({"value": "$.tools[0].name", "many": True}, ["openrouter"]),
        ({"value": "tools[1].name"}, "file-storage"),
        ({"value": "$"}, TOOLS),
        ({"value": "$.tools[?@.name == 'openrouter']"}, {"name": "openrouter"}),
        ({"format": "{tools.length} of {context.tools.0.name}{nope}"}, "2 of openrouter"),
        ({"format": '{"a": {b c} {} {{nope}}'}, '{"a": {b c} {} {}'),
        ({"literal": {"any": [1, None]}}, {"any": [1, None]}),
        ({"literal": None}, None),
        ({"literal": "{{tools}} {tools}"}, "{{tools}} {tools}"),
        ({"type": "literal", "value": 3}, 3),
        ({"type": "extract", "path": "$.tools[0].name"}, "openrouter"),
        ({"tools": "$.tools"}, "You have access to 2 tools:\n\n• openrouter (general): \n\n• file-storage (general): "),
    ],
)
def test_a_rule_without_a_type_takes_it_from_its_key(rule: object, shown: object) -> None:
    assert transform(rule) == shown


def test_format_does_not_look_at_what_a_value_brings() -> None:
    context = {"a": "{b}{{b}}", "b": "{a}"}
    assert transform({"format": "{a}|{b}"}, context) == "{b}{{b}}|{a}"


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ([], "llm_hints is an object, not '[]'"),
        ({"excludes": ["a"]}, "llm_hints has no 'excludes'"),
        ({"exclude": "a"}, "llm_hints.exclude is a list of paths, not 'a'"),
        ({"include": [1]}, "llm_hints.include is a list of paths, not '[1]'"),
        ({"mode": "append"}, "llm_hints.mode is replace or merge, not 'append'"),
        ({"transform": [1]}, "llm_hints.transform is an object of rules, not '[1]'"),
        ({"transform": {"x": "{{a}}"}}, "transform.x: a rule is an object, not '{{a}}'"),
        ({"transform": {"x": {}}}, "transform.x: the type of a rule with no keys is not clear"),
        ({"transform": {"x": {"template": "", "value": ""}}}, "the type of a rule with template, value is not clear"),
        ({"transform": {"x": {"type": "python", "python": "1"}}}, "transform.x: no rule type 'python'"),
        ({"transform": {"x": {"type": "template"}}}, "transform.x: template: needs 'template'"),
        ({"transform": {"x": {"template": 5}}}, "transform.x: template: expected a string, not int"),
        ({"transform": {"x": {"template": "{{"}}}, "transform.x: template: line 1, column 1: '{{' is never closed"),
        ({"transform": {"x": {"value": "$.tools["}}}, "transform.x: extract: JSONPath '$.tools['"),
        ({"transform": {"x": {"value": ""}}}, "transform.x: extract: JSONPath ''"),
        ({"transform": {"x": {"value": "$.tools[?match(@.name, '(a+)+')]"}}}, "transform.x: extract: JSONPath"),
        ({"transform": {"x": {"value": "$[?@ =~ /a/]"}}}, "transform.x: extract: JSONPath"),
        ({"transform": {"x": {"tools": "$.tools[0]"}}}, "transform.x: tools: no list of tools"),
        ({"transform": {str(n): {"literal": n} for n in range(65)}}, "65 rules; at most 64"),
    ],
)
def test_an_error_leaves_the_context_and_is_reported_beside_it(hints: object, message: str) -> None:
    assert message in error_of(hints)


def test_one_bad_rule_undoes_include_exclude_and_the_good_rules() -> None:
    hints = {"exclude": ["tools"], "transform": {"good": {"literal": 1}, "bad": {"template": "{{#if a}}"}}}
    assert error_of(hints).startswith("transform.bad: ")


def test_a_path_that_multiplies_stops_at_the_limit_of_steps() -> None:
    context: object = {"l": []}
    for _ in range(8):
        context = {"l": [context, context]}
    for path in ("$" + "..*" * 6, "$..[?@..*]..[?@..*]", "$..[?count(@..*) > 3]..[?count(@..*) > 3]"):
        message = error_of({"transform": {"x": {"value": path}}}, context)
        assert "more than 100,000 steps" in message


def test_a_path_nested_too_deeply_is_an_error() -> None:
    path = "$[?" + "(" * 5000 + "@" + ")" * 5000 + "]"
    assert "recursion" in error_of({"transform": {"x": {"value": path}}})


def test_data_nested_too_deeply_is_an_error() -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    context = {"deep": deep}
    shown, error = apply_hints(context, {"transform": {"x": {"template": "{{deep}}"}}})
    assert shown is context
    assert error == "nested deeper than 100 levels (Flatten the value.)"


def test_all_rules_share_one_limit() -> None:
    context = {"l": list(range(1000))}
    rules = {str(n): {"template": "{{#each l}}{{this}}{{/each}}"} for n in range(60)}
    assert "more than 100,000 steps" in error_of({"transform": rules}, context)
    assert apply_hints(context, {"transform": rules}, HintLimits(steps=1_000_000))[1] is None


json_values = json_of(SCALARS | st.floats(allow_nan=False) | st.text(max_size=8))
pieces = st.sampled_from(
    ["$", ".", "..", "*", "[", "]", "?", "@", "a", "'a'", "0", ":", "(", ")", "==", "&&", "count", ","]
)
programs = st.one_of(st.text(max_size=20), st.lists(pieces, max_size=10).map("".join), json_values)
rules = st.dictionaries(
    st.sampled_from(["type", "template", "value", "format", "literal", "many"]),
    st.one_of(programs, st.sampled_from(["template", "extract", "format", "literal"])),
    max_size=3,
)
hostile_hints = st.one_of(
    json_values,
    st.dictionaries(
        st.sampled_from(["include", "exclude", "transform", "mode"]),
        st.one_of(
            json_values,
            st.lists(st.text(max_size=4), max_size=3),
            st.dictionaries(st.text(max_size=3), rules, max_size=3),
            st.sampled_from(["merge", "replace"]),
        ),
        max_size=4,
    ),
)


@given(json_values, hostile_hints)
def test_any_hints_on_any_context_give_a_view_or_an_error(context: object, hints: object) -> None:
    before = copy.deepcopy(context)
    shown, error = apply_hints(context, hints)
    assert context == before
    if error is not None:
        assert shown is context
