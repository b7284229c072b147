"""The protocol from a model: any split of the text gives the same events, and nothing is lost."""

import pytest
from format_texts import REPLAY, texts
from format_values import replays
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import FormatError
from quire.formats import protocol_stream, replay
from quire.formats.protocol_stream import ProtocolEvent, ProtocolStream

spoken = texts(REPLAY, size=20)
delimiters = st.sampled_from("$§")


def said(text: str, delimiter: str = "$") -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in protocol_stream.read(text, delimiter)]


def fed(chunks: list[str], delimiter: str) -> list[ProtocolEvent]:
    reader = ProtocolStream(delimiter)
    return protocol_stream.merge([piece for chunk in chunks for piece in reader.feed(chunk)] + reader.finish())


@given(spoken, delimiters, st.data())
def test_any_split_gives_the_same_events_as_the_whole(text: str, delimiter: str, data: st.DataObject) -> None:
    whole = protocol_stream.read(text, delimiter)
    assert fed(list(text), delimiter) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert fed(chunks, delimiter) == whole


@given(spoken, delimiters)
def test_no_text_is_lost(text: str, delimiter: str) -> None:
    assert "".join(event.raw for event in protocol_stream.read(text, delimiter)) == text


@given(spoken, delimiters)
def test_what_is_waiting_stays_small(text: str, delimiter: str) -> None:
    reader = ProtocolStream(delimiter)
    shown = 0
    for at, char in enumerate(text, 1):
        shown += sum(len(piece.raw) for piece in reader.feed(char))
        assert at - shown < 18


@given(replays)
def test_rendered_events_are_read_as_they_were(value: replay.Replay) -> None:
    events = [*value.history, *value.current]
    text = "\n\n".join(replay.render_event(event) for event in events)
    kept = [(event.kind, event.text) for event in protocol_stream.read(text)]
    wanted = []
    for event in events:
        if isinstance(event, replay.ReplayedCall):
            wanted.append(("call", replay.call_json(event.name, event.args)))
            wanted.append(("result", None))
        else:
            wanted.append((type(event).__struct_config__.tag, event.text))
    assert [(kind, None if kind == "result" else said) for kind, said in kept] == wanted


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("", []),
        ("hello", [("respond", "hello")]),
        ("\n\n", [("respond", "\n\n")]),
        ("$respond: hi", [("respond", "hi")]),
        ("$respond:hi", [("respond", "hi")]),
        ("$respond:  hi", [("respond", " hi")]),
        ("$RESPOND: hi", [("respond", "hi")]),
        ("hi\n$Think: a\n\n$call: {}\n", [("respond", "hi"), ("think", "a"), ("call", "{}\n")]),
        ("\n$think: a", [("think", "a")]),
        ("$think: a\n\n\n$respond: b", [("think", "a\n"), ("respond", "b")]),
        ("$think:\n$respond:\n", [("think", ""), ("respond", "\n")]),
        ("$think: a $respond: b", [("think", "a $respond: b")]),
        ("price is $5\n$5 more", [("respond", "price is $5\n$5 more")]),
        ("$responded: x", [("respond", "$responded: x")]),
        ("$$respond: x", [("respond", "$$respond: x")]),
        ("$res", [("respond", "$res")]),
        ("a\n\\$user: b", [("respond", "a\n$user: b")]),
        ("$respond: \\$user: b\n\\\\=== c", [("respond", "$user: b\n\\=== c")]),
        ("a\n\\\\$user: b\n\\$5", [("respond", "a\n\\$user: b\n\\$5")]),
        ("a\r$user: b\u2028$user: c", [("respond", "a\r$user: b\u2028$user: c")]),
        ("$thin\u212a: x", [("respond", "$thin\u212a: x")]),
    ],
)
def test_events_with_dollar(text: str, events: list[tuple[str, str]]) -> None:
    assert said(text) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("price is §5", [("respond", "price is §5")]),
        ("a §think: b §RESPOND: c", [("respond", "a"), ("think", "b"), ("respond", "c")]),
        ("§think: §respond: x", [("think", ""), ("respond", "x")]),
        ("a§think: b", [("respond", "a§think: b")]),
        ("a\u2003§think: b", [("respond", "a"), ("think", "b")]),
        ("a\u200b§think: b", [("respond", "a\u200b§think: b")]),
        ("a\n\n§think: b\t§call: {}", [("respond", "a"), ("think", "b"), ("call", "{}")]),
        ("a  §think: b", [("respond", "a "), ("think", "b")]),
        ("a \\§think: b", [("respond", "a \\§think: b")]),
        ("a\n\\§think: b", [("respond", "a\n§think: b")]),
        ("$think: b", [("respond", "$think: b")]),
    ],
)
def test_events_with_section_signs(text: str, events: list[tuple[str, str]]) -> None:
    assert said(text, "§") == events


def test_text_is_handed_on_as_soon_as_it_is_certain() -> None:
    reader = ProtocolStream()
    assert [piece.text for piece in reader.feed("$respond: Hel")] == ["Hel"]
    assert [piece.text for piece in reader.feed("lo $resp")] == ["lo $resp"]
    assert reader.feed("\n$resp") == []
    assert [(piece.index, piece.text) for piece in reader.feed("ond: x")] == [(1, "x")]


def test_a_call_is_read_or_refused() -> None:
    (event,) = protocol_stream.read('$call: {"name": "t", "args": {"a": 1}}')
    assert protocol_stream.call_of(event) == ("t", {"a": 1})
    assert protocol_stream.call_of(protocol_stream.read('$call: {"name": "t"}')[0]) == ("t", {})
    for text in ("{", "[]", '{"name": 3}', "9" * 5000, "[" * 100_000):
        with pytest.raises(FormatError):
            protocol_stream.call_of(protocol_stream.read(f"$call: {text}")[0])
