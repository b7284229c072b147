"""What requests look like: the descriptions are read as they are written, and are those of the SDKs."""

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_bodies import CONVERSE

from quire import validate
from quire.providers.models import data
from quire.providers.rules.grammar import Grammar, kinds_of, misfits, snake
from toolbox import Place, places, put

SHAPES: dict[str, Any] = {
    "block": {"$by": "type", "$untyped": "plain", "plain": {"text": "string!"}, "linked": "@link"},
    "link": {"$closed": True, "type": "any", "url": "string!"},
    "union": {"$one": True, "a": "string", "b": "integer"},
}


@pytest.mark.parametrize(
    ("value", "wanted", "paths"),
    [
        (3, "integer", []),
        (True, "integer", ["$"]),
        (3.5, "integer|string", ["$"]),
        (-1, "integer>=0", ["$"]),
        (1.5, "number>=0<=1", ["$"]),
        ("", "string>=1", ["$"]),
        ("c", "'a'|'b'", ["$"]),
        ("a", "'a'|'b'", []),
        (["x", 3], "[string]", ["$[1]"]),
        ([], "[string]>=1", ["$"]),
        (b"\x00", "bytes", []),
        (None, "any", []),
        # An object is what its type says.
        ({"text": "x"}, "@block", []),
        ({"type": "plain"}, "@block", ["$.text"]),
        ({"type": "linked", "url": "x"}, "@block", []),
        ({"type": "linked", "url": "x", "more": 1}, "@block", ["$.more"]),
        ({"type": "other"}, "@block", ["$.type"]),
        ({"type": 3}, "@block", ["$.type"]),
        # A union holds exactly one of its members.
        ({"a": "x"}, "@union", []),
        ({"a": "x", "b": 1}, "@union", ["$"]),
        ({}, "@union", ["$"]),
        ({"c": 1}, "@union", ["$.c"]),
        ({"a": None}, "@union", ["$"]),
    ],
)
def test_a_value_is_what_its_description_says(value: Any, wanted: str, paths: list[str]) -> None:
    assert [one.path for one in misfits(value, wanted, "$", Grammar(SHAPES))] == paths


WIRES = ("anthropic", "openai-chat", "openai-responses", "gemini", "bedrock")


@pytest.mark.parametrize("wire", WIRES)
def test_every_description_can_be_read(wire: str) -> None:
    shapes = data("shapes")[wire]
    waiting = list(shapes.values())
    while waiting:
        for name, wanted in waiting.pop().items():
            if isinstance(wanted, dict):
                waiting.append(wanted)
            elif isinstance(wanted, str) and not name.startswith("$"):
                kinds = kinds_of(wanted)
                inner = [one for kind in kinds if kind.items for one in kinds_of(kind.items)]
                assert all(kind.shape in ("", *shapes) for kind in (*kinds, *inner)), (name, wanted)


@functools.cache
def converse_model() -> Any:
    session = pytest.importorskip("botocore.session")
    model = session.get_session().get_service_model("bedrock-runtime")
    return model.operation_model("ConverseStream").input_shape


def test_converse_requests_have_the_members_that_the_sdk_knows() -> None:
    shapes = data("shapes")["bedrock"]
    waiting = [("body", converse_model()), ("message", converse_model().members["messages"].member)]
    seen = set()
    while waiting:
        name, shape = waiting.pop()
        spec = shapes[name]
        seen.add(name)
        assert {one for one in spec if not one.startswith("$")} == set(shape.members), name
        assert ("$one" in spec) == shape.is_tagged_union, name
        for member, inner in shape.members.items():
            while inner.type_name == "list":
                inner = inner.member
            kinds = [kind for kind in kinds_of(spec[member]) if kind.shape or kind.items]
            named = [kind.shape or kinds_of(kind.items)[0].shape for kind in kinds]
            waiting += [(one, inner) for one in named if one and one not in seen]
    assert seen == set(shapes) - {"asked"}
    assert shapes["asked"].keys() <= shapes["content"].keys()


# What a tool's arguments and schemas hold is nobody's business.
PLACES = [place for place in places(CONVERSE) if not {"json", "input"} & set(place)]
ODD = [None, 3, -1, 0.5, True, "", "x", [], ["x"], {}, {"foo": 1}, [{}]]


@given(place=st.sampled_from(PLACES), odd=st.sampled_from(ODD))
def test_what_the_sdk_refuses_to_send_is_found(place: Place, odd: Any) -> None:
    validator = pytest.importorskip("botocore.validate").ParamValidator()
    body = put(CONVERSE, place, odd)
    if odd is not None and validator.validate(body, converse_model()).has_errors():
        assert validate(body, "bedrock"), (place, odd)


def test_the_google_sdk_may_write_fields_its_own_way() -> None:
    image = {"inline_data": {"mime_type": "image/png", "data": b"x"}}
    assert validate({"contents": [{"role": "user", "parts": [image]}]}, "gemini") == []
    del image["inline_data"]["mime_type"]
    assert [one.path for one in validate({"contents": [{"parts": [image]}]}, "gemini")] == [
        "$.contents[0].parts[0].inline_data.mimeType"
    ]
    assert snake("inlineData") == "inline_data"


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("openai-responses", {"model": "gpt-5", "input": "hi"}),
        ("openai-chat", {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}),
        ("anthropic", {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
        ("gemini", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
    ],
)
def test_a_slip_of_the_pen_is_refused_also_where_only_another_format_has_the_field(provider: str, body: Any) -> None:
    (found,) = validate({**body, "max_token": 5}, provider)
    assert (found.row, found.path, found.severity) == ("B.field", "$.max_token", "error")
