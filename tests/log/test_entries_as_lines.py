"""Entries as JSON Lines: lossless both ways, and every fault with its line and column."""

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_strategies import FIELDS, ON_ALL, bodies, json_values
from quire import Entry
from quire.errors import FormatError
from quire.log.entries import SCHEMA, decode_lines, decode_row, encode, encode_row
from quire.values import KINDS, canonical, entry_id
from toolbox import chain, check, encode_lines, sha256_hex

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def exact(value: Any) -> str:
    """JSON text that tells apart what == does not: key order, 1 and 1.0, 0.0 and -0.0."""
    return json.dumps(value, ensure_ascii=False)


@given(st.lists(bodies, max_size=3), st.booleans())
def test_any_entries_come_back_from_their_lines_without_loss(given_bodies: list[dict[str, Any]], ids: bool) -> None:
    entries = list(chain(check(body) for body in given_bodies))
    text = encode_lines(entries, ids)
    back = list(decode_lines(text))
    assert exact([entry.body for entry in back]) == exact(given_bodies)
    assert not ids or back == entries
    assert encode_lines(back, ids) == text
    # Also for readers that break lines elsewhere.
    assert text.splitlines() == text.split("\n")[:-1]


@given(json_values, st.sampled_from(["text", "content"]))
def test_a_row_tells_what_an_entry_and_its_message_both_hold_once(value: Any, field: str) -> None:
    long = "told by the entry, and by the message that it came from; " * 3
    body = {"kind": "user", field: long, "wire": {"message": [long, value, {"in": long}], "format": "any"}}
    row = encode_row(body)
    assert row.count(long) == 1
    assert exact(decode_row(json.loads(row))) == exact(body)
    with pytest.raises(ValueError, match="named wrongly"):
        decode_row([{"kind": "user", "wire": {}}, [["content"], "text"]])


@given(bodies, st.randoms(use_true_random=False))
def test_an_id_does_not_depend_on_key_order(body: dict[str, Any], rng: random.Random) -> None:
    def shuffle(value: Any) -> Any:
        if isinstance(value, list):
            return [shuffle(member) for member in value]
        if not isinstance(value, dict):
            return value
        keys = list(value)
        rng.shuffle(keys)
        return {key: shuffle(value[key]) for key in keys}

    assert entry_id("sha256:x", shuffle(body)) == entry_id("sha256:x", body)
    plain = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert canonical(shuffle(body)) == plain.encode()


def test_an_id_is_the_hash_of_parent_newline_and_canonical_json() -> None:
    first, second = chain([check({"text": "é", "kind": "user"}), check({"kind": "note", "text": "n"})])
    assert first.id == "sha256:" + sha256_hex(b'\n{"kind":"user","text":"\xc3\xa9"}')
    assert second.id == "sha256:" + sha256_hex(first.id.encode() + b'\n{"kind":"note","text":"n"}')
    assert (first.seq, second.seq) == (1, 2)


@given(bodies)
def test_the_published_schema_accepts_every_entry(body: dict[str, Any]) -> None:
    VALIDATOR.validate(body)
    VALIDATOR.validate(json.loads(encode(next(chain([check(body)])))))


@given(bodies, st.data())
def test_schema_and_reader_refuse_the_same_changes(body: dict[str, Any], data: st.DataObject) -> None:
    """Drop, rename or retype one field: both accept or both refuse."""
    field = data.draw(st.sampled_from(sorted(body)))
    changed = dict(body)
    how = data.draw(st.sampled_from(["drop", "rename", "retype"]))
    value = changed.pop(field)
    if how == "rename":
        changed[field + "_"] = value
    elif how == "retype":
        changed[field] = data.draw(st.sampled_from([None, True, 7, "text", [], {}, [1], 0.5]))
    try:
        check(changed)
    except FormatError:
        accepted = False
    else:
        accepted = True
    assert VALIDATOR.is_valid(changed) == accepted


ITEM_HASH = "0" * 64
SENT = '{"kind":"sent","provider":"p","model":"m","request_sha256":"","segments":[]'
REBASE = '{"kind":"rebase","reason":"r","before_seq":0,"library":[],"freed":0,"edits":'
BAD_LINES = [
    ('{"kind":"usr","text":"a"}', 9, "unknown kind 'usr'"),
    ('{"kind":7}', 9, "unknown kind 7"),
    ('{"text":"a"}', 1, "field 'kind' is missing"),
    ('{"kind":"user"}', 1, "field 'text' is missing"),
    ('{"kind":"user","text":"a","colour":1}', 27, "unknown field"),
    ('{"kind":"user", "text":3}', 24, "must be a string, not 3"),
    ('{"kind":"user","text":null}', 23, "must be a string, not null"),
    ('{"kind":"user","text":"a","at":1.5}', 32, "must be an integer"),
    ('{"kind":"user","text":"a","at":true}', 32, "must be an integer"),
    ('{"kind":"user","text":"a","meta":[]}', 34, "must be an object"),
    ('{"kind":"user","text":"a","wire":"x"}', 34, "must be an object"),
    ('{"kind":"user","text":"a","text":"b"}', 27, "key 'text' stands twice"),
    ('{"kind":"call","call_id":"c","name":"n","args":{"a":{"b":1,"b":2}}}', 60, "key 'b' stands twice"),
    ('{"kind":"call","call_id":"c","name":"n","args":[NaN]}', 49, "NaN is not a JSON number"),
    ('{"kind":"call","call_id":"c","name":"n","args":-Infinity}', 48, "-Infinity is not a JSON number"),
    ('{"kind":"call","call_id":"c","name":"n","args":1e999}', 48, "too large"),
    ('{"kind":"call","call_id":"c","name":"n","args":' + "9" * 5000 + "}", 48, "5000 digits"),
    ('{"kind":"call","call_id":"c","name":"n","args":' + "[" * 5000 + "]" * 5000 + "}", 303, "nested deeper"),
    ('{"kind":"call","call_id":"c","name":"n","args":{"\\ud800":1}}', 49, "lone surrogate (U+D800"),
    ('{"kind":"user","text":"a\\udfff"}', 23, "lone surrogate (U+DFFF at character 1)"),
    ('{"kind":"user","text":"a\ud800"}', 23, "lone surrogate"),
    ('{"kind":"user","text":"a","attach":{}}', 36, "must be a list"),
    ('{"kind":"user","text":"a","attach":[{"content":"c"},{"content":"c","type":"pdf"}]}', 75, "one of code, text"),
    ('{"kind":"user","text":"a","attach":[{"id":"x"}]}', 37, "field 'content' is missing"),
    ('{"kind":"attach","item":{"content":"c","size":1}}', 40, "unknown field"),
    ('{"kind":"attach","item":{"content":"c","sha256":"' + ITEM_HASH + '"}}', 49, "does not match the content"),
    ('{"kind":"attach","item":{"content":"c","sha256":"zz"}}', 49, "64 hexadecimal digits"),
    ('{"kind":"attach","item":{"content":1}}', 36, "must be a string"),
    ('{"kind":"tools","tools":[{"name":"t","description":"d"}]}', 26, "field 'parameters' is missing"),
    ('{"kind":"tools","tools":[{"name":"t","description":"d","parameters":{},"x":1}]}', 72, "unknown field"),
    ('{"kind":"result","call_id":"c","error":"yes"}', 40, "true or false"),
    ('{"kind":"user","text":"a","images":[{"media_type":5}]}', 51, "must be a string, not 5"),
    ('{"kind":"user","text":"a","images":["u",{"url":null}]}', 48, "must be a string, not null"),
    (SENT + ',"usage":{"input_total":"abc"}}', 100, "must be a number below 2**63, or null, not 'abc'"),
    (SENT + ',"usage":{"output":1,"cache_read":[1]}}', 110, "not a list"),
    (SENT + ',"usage":{"output":true}}', 95, "not true"),
    (SENT + ',"usage":{"output":1e300}}', 95, "not 1e+300"),
    (REBASE + '[{"entry":"sha256:00","action":"drop"}]}', 87, "must be an integer, not 'sha256:00'"),
    (REBASE + '[{"entry":1,"action":"cut","replacement":{}}]}', 118, "must be a string or null"),
    ('{"kind":"result","call_id":"c","content":{}}', 42, "must be a string"),
    ('{"kind":"user","text":"a","seq":0}', 33, "at least 1"),
    ('{"kind":"user","text":"a","id":"abc"}', 32, "sha256: and 64"),
    ("[1]", 1, "must be a JSON object, not a list"),
    ('"x"', 1, "must be a JSON object, not 'x'"),
    ("nonsense", 1, "a JSON value is missing"),
    ('{"kind":"user","text":"a"', 26, "expected ',' or '}'"),
    ('{"kind":"user","text":"a"} {}', 28, "more text behind"),
    ("{'kind':'user'}", 2, "a key in double quotes"),
    ('{"kind":"user","text":"a\tb"}', 25, "control character"),
    ('{"kind" "user"}', 9, "expected ':'"),
    ('{"kind":"user","text":01}', 24, "expected ',' or '}'"),
    ('\ufeff{"kind":"user","text":"a"}', 1, "a JSON value is missing"),
]


@pytest.mark.parametrize(("line", "column", "problem"), BAD_LINES, ids=[problem for _, _, problem in BAD_LINES])
def test_a_fault_is_named_with_its_line_and_column(line: str, column: int, problem: str) -> None:
    text = '{"kind":"user","text":"fine"}\n\n' + line + "\n"
    with pytest.raises(FormatError, match=r"^line 3, column \d+: ") as caught:
        list(decode_lines(text))
    assert (caught.value.line, caught.value.column) == (3, column)
    assert problem in str(caught.value)
    str(caught.value).encode()  # can always be printed
    caught.value.hint.encode()


@given(st.text(alphabet='{}[]",:\\ \n-01eEntrufalskid\ud800', max_size=30))
def test_arbitrary_text_gives_entries_or_a_format_error(text: str) -> None:
    entries, error = outcome(text)
    assert list(decode_lines(encode_lines(entries))) == entries
    assert error is None or (error.line >= 1 and error.column >= 1)


def outcome(text: str) -> tuple[list[Entry], FormatError | None]:
    try:
        return list(decode_lines(text)), None
    except FormatError as error:
        return [], error


@given(bodies, st.data())
def test_one_changed_character_gives_an_entry_or_a_placed_error(body: dict[str, Any], data: st.DataObject) -> None:
    line = encode(check(body))
    at = data.draw(st.integers(0, len(line) - 1))
    changed = line[:at] + data.draw(st.sampled_from('{}[]",:0a\\\x00N-. ')) + line[at + 1 :]
    _, error = outcome(changed)
    assert error is None or (error.line == 1 and 1 <= error.column <= len(changed) + 1)


def test_line_breaks_are_newlines_and_nothing_else() -> None:
    text = '{"kind":"user","text":"a\u2028b\u0085c"}\r\n \t\n{"kind":"note","text":"d"}'
    assert [entry.text for entry in decode_lines(text)] == ["a\u2028b\u0085c", "d"]


def test_an_iterable_of_lines_reads_like_the_text() -> None:
    text = '{"kind":"user","text":"a"}\n{"kind":"note","text":"d"}\n'
    assert list(decode_lines(iter(text.splitlines(keepends=True)))) == list(decode_lines(text))


@pytest.mark.parametrize(
    ("change", "place", "problem"),
    [
        (lambda lines: lines[1:], (1, 87), "seq is 2, but the entry stands at 1"),
        (lambda lines: [lines[0], lines[2]], (2, 87), "seq is 3, but the entry stands at 2"),
        (lambda lines: [lines[0], lines[1].replace("two", "tow"), lines[2]], (2, 7), "but the entry's content"),
        (lambda lines: [lines[1].replace('"seq":2', '"seq":1')], (1, 7), "but the entry's content"),
    ],
)
def test_ids_and_seqs_are_checked_when_present(change: Any, place: tuple[int, int], problem: str) -> None:
    entries = chain(check({"kind": "user", "text": text}) for text in ("one", "two", "three"))
    lines = [encode(entry) for entry in entries]
    with pytest.raises(FormatError) as caught:
        list(decode_lines("\n".join(change(lines))))
    assert problem in str(caught.value)
    assert (caught.value.line, caught.value.column) == place


def test_the_end_of_a_thread_can_be_read_behind_its_beginning() -> None:
    entries = list(chain(check({"kind": "user", "text": text}) for text in ("one", "two", "three")))
    tail = encode_lines(entries[1:])
    assert list(decode_lines(tail, parent=entries[0].id, seq=1)) == entries[1:]


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "call", "call_id": "c", "name": "n", "args": {1: 2}},
        {"kind": "call", "call_id": "c", "name": "n", "args": (1, 2)},
        {"kind": "call", "call_id": "c", "name": "n", "args": float("nan")},
        {"kind": "call", "call_id": "c", "name": "n", "args": b"x"},
        {"kind": "call", "call_id": "c", "name": "n", "args": {"a": object()}},
    ],
)
def test_what_is_not_json_is_refused_from_python_too(body: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="call field args"):
        check(body)


@given(
    st.lists(st.text(max_size=3), max_size=20),
    st.integers(0, 20),
    st.sampled_from([(1, "must be a string"), (None, "must be a string"), ("\ud800", "a lone surrogate")]),
)
def test_one_bad_member_of_a_long_list_is_found_and_named(members: list[str], place: int, bad: tuple[Any, str]) -> None:
    body = {"kind": "sent", "provider": "p", "model": "m", "request_sha256": "x", "segments": members}
    assert check(body).body == body
    place = min(place, len(members))
    with pytest.raises(FormatError, match=rf"segments\[{place}\].*{bad[1]}"):
        check({**body, "segments": [*members[:place], bad[0], *members[place:]]})


def test_every_kind_and_field_is_covered_here() -> None:
    for kind, shape in zip(KINDS, SCHEMA["oneOf"], strict=True):
        required, optional = FIELDS[kind]
        assert set(shape["properties"]) == {"kind", *required, *optional, *ON_ALL, "id", "seq"}
        assert set(shape["required"]) - {"kind"} <= set(required)


def test_id_and_seq_stand_first_and_only_when_there() -> None:
    entry = Entry("user", {"text": "a", "kind": "user"}, 1, "sha256:" + "0" * 64)
    assert encode(entry) == '{"id":"sha256:' + "0" * 64 + '","seq":1,"text":"a","kind":"user"}'
    assert encode(entry, ids=False) == '{"text":"a","kind":"user"}'


def test_a_byte_order_mark_in_front_is_not_part_of_the_first_line() -> None:
    line = '{"kind":"user","text":"a"}'
    assert list(decode_lines("\ufeff" + line + "\n" + line)) == list(decode_lines(line + "\n" + line))
    with pytest.raises(FormatError) as caught:
        list(decode_lines(line + "\n\ufeff" + line))
    assert caught.value.line == 2
