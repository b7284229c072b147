"""The template engine: what it shows, what it refuses, and that nothing hostile gets further."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import QuireError
from quire.errors import DataError, FormatError
from quire.records.hints import render
from quire.records.paths import HintLimits, Meter
from toolbox import SCALARS, assert_in_proportion, json_of

CONTEXT = {
    "name": "Ada",
    "count": 5,
    "ratio": 0.5,
    "on": True,
    "none": None,
    "html": "<b>&",
    "list": ["x", {"a": "y"}, ["z"]],
    "people": [{"name": "Bo", "tags": ["p", "q"]}, {"name": "Cy", "tags": []}],
    "map": {"k1": "v1", "k2": "v2"},
    "empty": [],
    "a b": "spaced",
}


def show(template: str, context: object = CONTEXT, limits: HintLimits | None = None) -> str:
    return render(template, context, Meter(limits or HintLimits()))


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("User: {{context.name}} (count: {{context.count}})", "User: Ada (count: 5)"),
        ("{{name}} {{ name }} {{{name}}}", "Ada Ada Ada"),
        ("{{html}}{{{html}}}", "<b>&<b>&"),
        ("[{{missing}}|{{name.no.where}}|{{none}}]", "[||]"),
        ("{{on}} {{ratio}} {{list}}", 'true 0.5 ["x",{"a":"y"},["z"]]'),
        ("{{list.length}} {{context.list.length}} {{name.length}} {{empty.length}}", "3 3 3 0"),
        ("{{list.0}}{{list.[1].a}}{{list.9}}{{[a b]}}", "xyspaced"),
        ("{{#each list}}({{@index}} {{this}}){{/each}}", '(0 x)(1 {"a":"y"})(2 ["z"])'),
        ("{{#each people}}{{name}}={{this.name}} {{/each}}", "Bo=Bo Cy=Cy "),
        ("{{#each people}}{{#each tags}}{{../name}}:{{this}} {{else}}none{{/each}}{{/each}}", "Bo:p Bo:q none"),
        ("{{#each people}}{{count}}{{context.count}}{{@root.count}}{{/each}}", "5555"),
        ("{{#each map}}{{@key}}={{this}}{{#unless @last}}, {{/unless}}{{/each}}", "k1=v1, k2=v2"),
        ("{{#each people}}{{#if @first}}first{{else}} then{{/if}}{{/each}}", "first then"),
        ("{{#if name}}yes{{else}}no{{/if}}{{#if missing}}yes{{else}}no{{/if}}", "yesno"),
        ("{{#if empty}}1{{/if}}{{#if none}}2{{/if}}{{#if on}}3{{/if}}", "3"),
        ("{{#each name}}x{{/each}}{{#each missing}}x{{else}}-{{/each}}", "-"),
        ("a {b} } { {{! a comment }}c\n  {{#if on}}\n d{{/if}}", "a {b} } { c\n  \n d"),
        ("{{{name}}", "{Ada"),
        ("", ""),
    ],
)
def test_a_template_shows(template: str, shown: str) -> None:
    assert show(template) == shown


def test_a_field_called_context_is_reached_below_context() -> None:
    assert show("{{context.context.a}}|{{context.a}}|{{a}}", {"context": {"a": 1}, "a": 2}) == "1|2|2"
    assert show("{{#each l}}{{context}}{{/each}}", {"l": [{"context": "own"}]}) == "own"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("ab\nc {{", "line 2, column 3: '{{' is never closed"),
        ("{{#each a}}", "line 1, column 1: {{#each}} is never closed"),
        ("{{#if a}}{{/each}}", "line 1, column 10: {{/each}} does not belong here"),
        ("{{else}}", "line 1, column 1: {{else}} does not belong here"),
        ("{{#if a}}{{else}}{{else}}{{/if}}", "line 1, column 18: {{else}} does not belong here"),
        ("{{> partial}}", "line 1, column 1: {{> partial}} does not belong here"),
        ("{{#with a}}{{/with}}", "line 1, column 1: {{#with a}} does not belong here"),
        ("{{upper name}}", "line 1, column 1: 'upper name' is not a path"),
        ("{{}}", "line 1, column 1: '' is not a path"),
        ("{{a..b}}", "line 1, column 1: 'a..b' is not a path"),
        ("{{#each}}{{/each}}", "line 1, column 1: '' is not a path"),
        ("{{a()}}", "line 1, column 1: 'a()' is not a path"),
    ],
)
def test_what_is_not_a_template_is_an_error_with_its_place(template: str, message: str) -> None:
    with pytest.raises(FormatError) as error:
        show(template)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "path",
    ["__class__", "this.__class__.__mro__", "name.upper", "list.append", "map.items", "list.-1", "@root.__dict__"],
)
def test_a_template_reaches_data_and_never_python(path: str) -> None:
    assert show("[{{" + path + "}}]") == "[]"


def test_nested_loops_stop_at_the_limit_of_steps() -> None:
    template = "{{#each l}}" * 8 + "x" + "{{/each}}" * 8
    inner: object = "x"
    for _ in range(8):
        inner = {"l": [inner] * 10}
    with pytest.raises(DataError, match="more than 100,000 steps"):
        show(template, inner)


def test_output_stops_at_the_limit_of_size() -> None:
    with pytest.raises(DataError, match="characters of output"):
        show("{{#each l}}{{context.big}}{{/each}}", {"l": [0] * 100, "big": "x" * 50_000})


def test_a_template_may_be_only_so_long_and_so_deep() -> None:
    with pytest.raises(DataError, match="characters long"):
        show("x" * 64_001)
    with pytest.raises(FormatError, match="nested deeper than 16"):
        show("{{#if a}}" * 17 + "{{/if}}" * 17)


@pytest.mark.parametrize("piece", ["{{", "{{{", "{{!--", "{{#if a", "}}", "{{a}}", "{{#each list}}", "[", "{{../"])
def test_reading_takes_linear_time_whatever_is_repeated(piece: str) -> None:
    def read(length: int) -> None:
        with contextlib.suppress(QuireError):
            show((piece * length)[:length])

    assert_in_proportion(read, 64_000)


names = st.sampled_from(
    ["a", "b", "list", "this", "context", "@index", "..", "../a", "@root", "0", "length", "x y", ""]
)
tags = st.one_of(
    st.builds("{{{{{}}}}}".format, names),
    st.builds("{{{{#each {}}}}}".format, names),
    st.builds("{{{{#if {}}}}}".format, names),
    st.sampled_from(["{{/each}}", "{{/if}}", "{{else}}", "{{", "}}", "{", "{{{", "\n", "\\", "{{! x }}"]),
    st.text(max_size=5),
)
json_values = json_of(SCALARS | st.text(max_size=8), st.sampled_from("a b list context length".split()), 12)


@given(st.lists(tags, max_size=12).map("".join), json_values)
def test_any_template_on_any_data_gives_text_or_an_error_of_ours(template: str, context: object) -> None:
    with contextlib.suppress(QuireError):
        assert isinstance(show(template, context), str)


@given(st.text(alphabet=st.characters(exclude_characters="{", exclude_categories=["Cs"])))
def test_text_without_tags_is_shown_to_the_byte(text: str) -> None:
    assert show(text) == text


@given(st.text(max_size=30))
def test_a_value_is_never_read_as_a_template(value: str) -> None:
    hostile = value + "{{secret}}{{#each list}}"
    assert show("[{{v}}]", {"v": hostile, "secret": "s"}) == f"[{hostile}]"
