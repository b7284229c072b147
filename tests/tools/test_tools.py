"""Functions become tools: schemas from types and docstrings, and every call has a result."""

from __future__ import annotations  # tools are described from annotations that are strings, too

import asyncio
import enum
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import run

from quire import Entry, values
from quire.errors import CallError, NotFound
from quire.items.sources import at_hits, at_lines, at_sections, head
from quire.send.tools import Output, Tool, Toolbox, tool
from quire.values import JsonObject
from toolbox import check


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    lat: float
    lon: float


@dataclass
class Tree:
    value: int
    children: list[Tree]


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_types_and_docstring_become_a_schema() -> None:
    @tool(idempotent=True, category="travel", output=["price"], example="find('Rome')")
    def find(city: str, nights: Annotated[int, msgspec.Meta(ge=1)] = 2, stars: list[int] | None = None) -> str:
        """Find a hotel.

        Prices are in euros.

        Args:
            city: Where to sleep; a name
                in English.
            nights (int): How long.
        """
        return city

    assert find.definition() == {
        "name": "find",
        "description": "Find a hotel.\n\nPrices are in euros.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where to sleep; a name in English."},
                "nights": {"type": "integer", "minimum": 1, "default": 2, "description": "How long."},
                "stars": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}], "default": None},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        "category": "travel",
        "output": ["price"],
        "example": "find('Rome')",
        "idempotent": True,
    }  # fmt: skip
    assert find("Rome") == "Rome"
    check({"kind": "tools", "tools": [find.definition()]})


@pytest.mark.parametrize(
    "text",
    [
        "Do it.\n\n:param x: The one.\n:param int y: The other.\n:returns: it",
        "Do it.\n\nParameters\n----------\nx : int\n    The one.\ny : int\n    The other.\n\nReturns\n-------\nint",
        "Do it.\n\nArgs:\n    x: The one.\n    y: The other.\n\nReturns:\n    z: it",
    ],
    ids=["rest", "numpy", "google"],
)
def test_docstrings_of_three_styles_are_read(text: str) -> None:
    def do(x: int, y: int) -> int:
        return x + y

    do.__doc__ = text
    made = tool(do)
    texts = {name: one["description"] for name, one in made.parameters["properties"].items()}
    assert (made.description, texts) == ("Do it.", {"x": "The one.", "y": "The other."})


def test_nested_types_are_written_out_and_only_recursion_is_named() -> None:
    @tool
    def paint(colour: Colour, at: Place, how: Literal["thick", "thin"], tree: Tree) -> str:
        """Paint."""
        return f"{colour} {at['lat']} {how} {tree.children[0].value}"

    properties = paint.parameters["properties"]
    assert properties["colour"] == {"enum": ["blue", "red"]}
    assert properties["at"]["required"] == ["lat", "lon"]
    assert list(paint.parameters["$defs"]) == ["Tree"]
    jsonschema.Draft202012Validator.check_schema(paint.parameters)
    tree = {"value": 1, "children": [{"value": 7, "children": []}]}
    args = {"colour": "red", "at": {"lat": 1, "lon": 2}, "how": "thin", "tree": tree}
    assert run(paint, args) == {"content": "Colour.RED 1.0 thin 7"}
    told = "the arguments do not fit paint: Invalid enum value 'fat' - at `$.how`"
    assert run(paint, {**args, "how": "fat"}) == {"outcome": told, "error": True}


def test_a_function_that_cannot_be_described_is_refused_with_a_reason() -> None:
    def untyped(x): ...  # type: ignore[no-untyped-def]

    def starred(*xs: int) -> None:
        """Takes many."""

    def silent(x: int) -> None: ...

    def odd(x: threading.Lock) -> None:
        """Takes a lock."""

    refused = {untyped: "no type", starred: "no schema", silent: "no description", odd: "JSON cannot"}
    for function, says in refused.items():
        with pytest.raises(CallError, match=says):
            tool(function)
    with pytest.raises(CallError, match="shows y"):
        tool(shown=["y"])(starred_free)
    with pytest.raises(CallError, match="cannot be a tool's name"):
        tool(name="two words")(starred_free)
    with pytest.raises(CallError, match="two tools"):
        Toolbox(starred_free, starred_free)


def starred_free(x: int = 1) -> int:
    """Fine."""
    return x


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("as it is\n", {"content": "as it is\n"}),
        (None, {"content": ""}),
        ({"b": [1, 2.5, True, None], "a": "ä"}, {"content": '{"b":[1,2.5,true,null],"a":"ä"}'}),
        (Tree(1, []), {"content": '{"value":1,"children":[]}'}),
        (Output("long", "short"), {"outcome": "short", "content": "long"}),
        ("a\ud800b", {"content": "a\ufffdb"}),
        ("hällo".encode(), {"content": "hällo"}),
        (b"\x89PNG\0", {"outcome": "the tool returned 5 bytes that are no text", "error": True}),
    ],
)
def test_what_a_tool_returns_becomes_text(value: Any, result: JsonObject) -> None:
    def give(lock: bool = False) -> Any:
        """Give something."""
        return threading.Lock() if lock else value

    assert run(give) == result
    assert run(give, {"lock": True})["error"] is True


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (NotFound("there is no moon", hint="Look at night."), "there is no moon (Look at night.)"),
        (TimeoutError("the line is dead"), "TimeoutError: the line is dead"),
        (SystemExit(3), ""),
        (StopIteration(), ""),
        (Wordless(), "Wordless"),
        (asyncio.CancelledError(), "CancelledError"),
        (BaseExceptionGroup("two", [SystemExit(1)]), ""),
        (type("Skipped", (BaseException,), {})("not today"), ""),
    ],
)
def test_errors_become_results_without_a_traceback(error: BaseException, outcome: str) -> None:
    def fail() -> str:
        """Fail."""
        raise error

    async def fail_later() -> str:
        """Fail in an event loop."""
        return fail()

    for function in (fail, fail_later):
        result = run(function)
        assert result == {"outcome": outcome or result["outcome"], "error": True}


@pytest.mark.parametrize("made", [{"content": {"a": 1}}, {"outcome": 5}, {"meta": {"share": float("nan")}}])
def test_an_output_or_a_cut_that_no_log_can_hold_is_a_failure(made: dict[str, Any]) -> None:
    def look() -> Output:
        """Look."""
        return Output(**made)

    @tool(limit=3, cut=lambda text, limit: made)  # type: ignore[arg-type, return-value]
    def cut() -> str:
        """Look at much."""
        return "more than three"

    assert run(look)["error"] is run(cut)["error"] is True


@pytest.mark.parametrize("args", [[], "text", 5, None, {"x": "1"}, {"y": 1}, {"x": 1, "z": 2}, {"x": True}])
def test_arguments_that_do_not_fit_are_a_result(args: Any) -> None:
    def take(x: int) -> int:
        """Take a number."""
        return x

    result = asyncio.run(Toolbox(take).run(values.call("c9", "take", args)))
    assert (result.body["error"], result.call_id) == (True, "c9")


def test_an_unknown_tool_is_a_result_that_names_near_ones() -> None:
    told = "there is no tool 'starred_fre'; there is starred_free"
    assert run(Toolbox(starred_free), {}, "starred_fre") == {"outcome": told, "error": True}


def test_a_tool_that_does_not_end_is_given_up() -> None:
    release = threading.Event()

    @tool(timeout_s=0.05)
    def stuck() -> str:
        """Wait for ever."""
        release.wait()
        return "late"

    @tool(timeout_s=0.05)
    async def stuck_async() -> str:
        """Wait for ever, politely."""
        await asyncio.Event().wait()
        return "late"

    try:
        for one in (stuck, stuck_async):
            assert run(one) == {"outcome": f"{one.name} did not end within 0.05 s", "error": True}
    finally:
        release.set()


async def test_a_cancelled_run_is_cancelled_and_no_result() -> None:
    @tool
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    task = asyncio.create_task(Toolbox(wait).run(values.call("c", "wait", {})))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_blocking_tools_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=600)

    @tool
    def meet(who: str) -> str:
        """Wait for the other one."""
        both.wait()
        return who

    box = Toolbox(meet)
    both_said = await asyncio.gather(*(box.run(values.call(who, "meet", {"who": who})) for who in "ab"))
    assert [one.body["content"] for one in both_said] == ["a", "b"]


def test_a_tool_may_ask_for_its_call_as_an_idempotency_key() -> None:
    @tool
    def write(text: str, call: Entry) -> str:
        """Write once."""
        return f"{text} {call.id}"

    assert list(write.parameters["properties"]) == ["text"]
    entry = Entry("call", values.call("c1", "write", {"text": "x"}).body, 7, "sha256:abc")
    assert asyncio.run(Toolbox(write).run(entry)).body["content"] == "x sha256:abc"


def test_hidden_tools_run_but_are_not_told() -> None:
    assert isinstance(tool(starred_free), Tool)
    box = Toolbox(starred_free).hidden()
    assert box.definitions() == []
    assert run(box, {"x": 3}, "starred_free") == {"content": "3"}


WORDS = st.text(st.sampled_from("ab. \n\t"), max_size=300)


@given(WORDS, st.integers(1, 200))
def test_long_output_is_never_cut_in_mid_word(text: str, limit: int) -> None:
    kept = head(text, limit)
    assert text.startswith(kept)
    assert len(kept) <= max(limit, 0)
    rest = text[len(kept) :]
    if rest and any(c in text[:limit].lstrip() for c in " \n\t") and kept:
        assert rest[0].isspace() or kept[-1].isspace()


def test_the_tool_chooses_where_its_output_ends() -> None:
    text = "\n".join(f"line {n} is here" for n in range(1000))

    @tool(limit=100)
    def plain() -> str:
        """Say much."""
        return text

    @tool(limit=45, cut=at_sections)
    def sections() -> str:
        """Say much in sections."""
        return "intro\n# One\n```\n# no heading\n```\n# Two\nlong text of two\n# Three\nthe end of it all"

    shown = run(plain)["content"]
    assert shown.split("\n")[-2] == "line 5 is here"
    assert shown.split("\n")[-1].startswith("[… 89 of ")
    assert run(sections)["content"] == "intro\n# One\n```\n# no heading\n```\n\n[… 2 more sections not shown …]"


@given(st.lists(st.text(st.sampled_from("abc :"), min_size=1, max_size=30), max_size=20), st.integers(1, 200))
def test_hits_are_shown_whole_and_counted(hits: list[str], limit: int) -> None:
    lines = at_hits(hits, limit).split("\n") if hits else []
    missing = int(lines.pop().split()[1]) if lines and lines[-1].startswith("[…") else 0
    assert len(lines) + missing == len(hits)
    assert lines[1:] == hits[1 : len(lines)]
    assert not lines or hits[0].startswith(lines[0])
    assert at_lines("short", 10) == "short"


def test_a_fault_says_where_and_what() -> None:
    @tool
    def look(path: str, lines: list[Annotated[int, msgspec.Meta(ge=2)]], limit: int = 3) -> str:
        """Look."""
        return path

    assert look.fault({"path": "a", "lines": [2]}) == ""
    assert look.fault({"path": "a", "lines": [2, "x"]}) == "Expected `int`, got `str` - at `$.lines[1]`"
    assert look.fault({"path": "a", "lines": [1]}) == "Expected `int` >= 2 - at `$.lines[0]`"
    assert look.fault({"lines": []}) == "Object missing required field `path`"
    assert look.fault([1]) == "Expected `object`, got `array`"


def test_one_decorator_makes_many_tools_with_the_same_settings() -> None:
    def first(path: str) -> str:
        return path

    def second(path: str) -> str:
        return path

    decorate = tool(description="Reads.", shown=["path"])
    assert [(made.description, made.shown) for made in map(decorate, (first, second))] == [("Reads.", ("path",))] * 2
