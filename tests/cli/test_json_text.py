"""JSON that no reader could take is one line with its place, in every command that reads a file of it."""

import json
from pathlib import Path

import pytest

from quire import QuireError
from quire.cli.output import value_or_lines
from quire.errors import FormatError
from toolbox import invoke, run

pytestmark = pytest.mark.usefixtures("home")
LONG = "9" * 5000
READERS = [
    ("import", "--from", "openai-chat", "FILE"),
    ("lint", "FILE", "-p", "openai-chat", "-m", "x"),
    ("simulate", "FILE", "-p", "openai-chat", "-m", "x"),
    ("record", "create", "FILE"),
    ("record", "catalog", "FILE"),
    ("record", "create", "--schema", "s", "--context", "@FILE"),
    ("emulate", "-p", "openai-chat", "--replies", "FILE"),
]
TEXTS = {
    "too long": '{"n": ' + LONG + "}",
    "nested": '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "NaN": '{"n": NaN}',
    "not JSON": '{"n": }',
}


@pytest.mark.parametrize("problem", TEXTS)
@pytest.mark.parametrize("command", READERS, ids=lambda words: " ".join(words[:2]))
def test_what_cannot_be_read_is_named(tmp_path: Path, command: tuple[str, ...], problem: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(TEXTS[problem])
    words = [word.replace("FILE", str(file)) for word in command]
    with pytest.raises(QuireError) as raised:
        run(*words)
    assert str(raised.value).startswith("line 1, column ")
    assert problem in str(raised.value)
    assert raised.value.hint


def test_an_option_that_cannot_be_read_is_named() -> None:
    with pytest.raises(QuireError, match="--context holds a number that is too long"):
        run("record", "create", "--schema", "s", "--context", '{"n":' + LONG + "}")


def test_lines_are_values_only_where_the_first_one_is() -> None:
    assert value_or_lines('{"a":\n1}', "f", "x") == ({"a": 1}, None)
    assert value_or_lines('\n{"a": 1}\n\n[2]\n', "f", "x") == (None, [(2, {"a": 1}), (4, [2])])
    for text, line in (('{"a": 1}\n{"b": }\n', 2), ('{\n"a": }\n', 2), ('{"a": 1}\n{"b": NaN}', 2)):
        with pytest.raises(FormatError) as caught:
            value_or_lines(text, "f", "x")
        assert caught.value.line == line


@pytest.mark.parametrize("tags", ["5", '{"a": 1}', "[[1]]", "null"])
def test_tags_that_are_no_list_of_strings_are_named(tmp_path: Path, tags: str) -> None:
    (tmp_path / "r.json").write_text(f'{{"schema_name": "s", "tags": {tags}}}')
    with pytest.raises(FormatError, match="tag") as raised:
        run("record", "create", tmp_path / "r.json")
    assert raised.value.hint


def test_a_rule_whose_type_is_no_name_is_reported_beside_the_context(tmp_path: Path) -> None:
    hints = '{"transform": {"x": {"type": ["template"]}}}'
    run("record", "create", "--schema", "s", "--context", '{"a": 1}', "--hints", hints)
    assert "no rule type" in invoke("record", "get", "rec-1").output


@pytest.mark.parametrize("part", ["output", "formatting", "sources", "update_triggers"])
def test_a_configuration_whose_parts_are_no_objects_is_named(tmp_path: Path, part: str) -> None:
    run("record", "create", "--schema", "s", "--context", "{}")
    (tmp_path / "c.json").write_text(json.dumps({"consumer_id": "chat", part: True}))
    with pytest.raises(QuireError, match=part) as raised:
        run("build", "chat", "--config", tmp_path / "c.json", "--words", "--request", "q")
    assert raised.value.hint
