"""The bytes of replay, and the protocol from a model: any split of its text gives the same events."""

import re

import pytest
from format_texts import REPLAY, texts
from format_values import entries, replays
from hypothesis import given
from hypothesis import strategies as st

from quire import Entry, attach, call, note, respond, result, system, think, user
from quire.errors import CallError, FormatError
from quire.formats import protocol_stream, replay
from quire.formats.protocol_stream import ProtocolEvent, ProtocolStream
from quire.formats.replay import Replay, ReplayedCall, ReplayedThought, Respond, User

LAST = [user("q"), respond("a")]


def text(*thread: Entry, window: int | None = None, delimiter: str = "$") -> str:
    return replay.render(replay.project(thread, window, delimiter))


CURRENT = "=== CURRENT ===\n\n$user: q\n\n$respond: a"
ARGS = {"z": "é\u2028\n", "a": [1, 2.0, None, True]}


@pytest.mark.parametrize(
    ("thread", "window", "shown"),
    [
        # Without a user entry, or with a first message alone, there is nothing to show.
        ([system("s"), respond("a"), call("1", "t", {})], None, ""),
        ([user("q"), note("n")], None, ""),
        # What was thought in the history is not shown; in the current turn it is.
        (
            [user("one"), think("hidden"), respond("two"), user("three"), think("shown"), respond("four")],
            None,
            "=== HISTORY ===\n\n$user: one\n\n$respond: two\n\n"
            "=== CURRENT ===\n\n$user: three\n\n$think: shown\n\n$respond: four",
        ),
        # Either part is absent when it is empty.
        ([user("one"), respond("two"), user("three")], None, "=== HISTORY ===\n\n$user: one\n\n$respond: two"),
        (LAST, None, CURRENT),
        ([respond("x"), *LAST], 0, CURRENT),
        # Other kinds neither appear nor count.
        (
            [system("s"), user("one"), attach({"content": "x"}), note("n"), think("t"), respond("two"), *LAST],
            2,
            f"=== HISTORY ===\n\n$user: one\n\n$respond: two\n\n{CURRENT}",
        ),
        # The line of the count says how many are shown and how many there are.
        (
            [user("0"), think("t"), respond("1"), user("2"), respond("3"), *LAST],
            2,
            f"=== HISTORY ===\n(showing last 2 of 4 messages)\n\n$user: 2\n\n$respond: 3\n\n{CURRENT}",
        ),
        # The window grows rather than part a call from its result.
        (
            [user("0"), call("1", "t", {}), result("1", "ok"), respond("3"), *LAST],
            2,
            '=== HISTORY ===\n(showing last 3 of 4 messages)\n\n$call: {"name": "t", "args": {}}\n\n$result: ok\n\n'
            f"$respond: 3\n\n{CURRENT}",
        ),
        # A call keeps the order of its arguments, and its letters.
        (
            [user("q"), call("1", "a b", ARGS), result("1", "ok")],
            None,
            '=== CURRENT ===\n\n$user: q\n\n$call: {"name": "a b", "args": {"z": "é\u2028\\n", "a": [1, 2.0, null, true]}}'
            "\n\n$result: ok",
        ),
        # A call without a result was interrupted; a result without a call stands behind an unknown one.
        (
            [user("q"), call("1", "t", {})],
            None,
            '=== CURRENT ===\n\n$user: q\n\n$call: {"name": "t", "args": {}}\n\n'
            "$result: (interrupted: no result was recorded)",
        ),
        (
            [user("q"), result("1", "x")],
            None,
            '=== CURRENT ===\n\n$user: q\n\n$call: {"name": "unknown", "args": {}}\n\n$result: x',
        ),
    ],
)
def test_a_thread_is_shown_as(thread: list[Entry], window: int | None, shown: str) -> None:
    assert text(*thread, window=window) == shown
    assert replay.render(replay.parse(shown)) == shown


def test_the_default_window_is_15_and_the_current_turn_is_never_cut() -> None:
    thread = [*(respond(str(n)) for n in range(20)), *LAST, *(respond(str(n)) for n in range(40))]
    bodies = [entry.body for entry in thread]
    assert (replay.project(thread).left_out, len(replay.project(thread).current)) == (5, 42)
    assert replay.read({"entries": bodies}).left_out == 5
    assert replay.read({"entries": bodies, "window": None}).left_out == 0


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ({"outcome": "Read t", "content": "x\n\ny"}, "Read t\n\nx\n\ny"),
        ({"outcome": "Read t", "content": ""}, "Read t"),
        ({"outcome": "Read t"}, "Read t"),
        ({"content": "x"}, "\n\nx"),
        ({}, ""),
        ({"error": True}, "Error"),
        ({"error": True, "content": "x"}, "Error\n\nx"),
        ({"error": True, "outcome": "File not found"}, "File not found"),
        ({"error": False, "content": "x"}, "\n\nx"),
        ({"outcome": "a\n\nb\n\\\n\\\\\n", "content": "c"}, "a\n\\\nb\n\\\\\n\\\\\\\n\\\n\nc"),
        ({"outcome": "\n"}, "\n\\"),
        ({"outcome": "\\"}, "\\"),
        ({"outcome": "===", "content": "$Call: x\n\\(SHOWING last "}, "\\===\n\n\\$Call: x\n\\\\(SHOWING last "),
    ],
)
def test_results(given_: dict, shown: str) -> None:
    rendered = text(user("q"), call("1", "t", {}), result("1", **given_))
    assert rendered.partition("$result: ")[2] == shown
    outcome = given_.get("outcome", "Error" if given_.get("error") else "")
    assert replay.parse(rendered).current[1] == ReplayedCall("t", {}, outcome, given_.get("content", ""))


def test_calls_and_results_stand_pairwise() -> None:
    value = replay.project([user("q"), call("1", "a", 1), call("2", "b", 2), result("1", "A"), result("2", "B")])
    assert value.current[1:] == (ReplayedCall("a", 1, "A"), ReplayedCall("b", 2, "B"))


def test_a_reused_id_belongs_to_the_nearest_earlier_unanswered_call() -> None:
    thread = [user("q"), call("1", "a", {}), call("1", "b", {}), result("1", "B"), result("1", "A")]
    thread += [call("1", "c", {}), result("1", "C"), result("1", "orphan")]
    pairs = [(event.name, event.outcome) for event in replay.project(thread).current[1:]]
    assert pairs == [("a", "A"), ("b", "B"), ("c", "C"), ("unknown", "orphan")]


def test_a_result_that_comes_in_the_next_turn_stands_with_its_call() -> None:
    value = replay.project([user("one"), call("1", "t", {}), user("two"), result("1", "late")])
    assert value == Replay((User("one"), ReplayedCall("t", {}, "late")))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", ""),
        ("$user: x", r"\$user: x"),
        ("a\n$USER: x", "a\n\\$USER: x"),
        ("\\\\$think:", "\\\\\\$think:"),
        ("x $user: y", "x $user: y"),
        (" $user:", " $user:"),
        ("$user", "$user"),
        ("§user: x", "§user: x"),
        ("====", r"\===="),
        ("(showing last 3 of 5 messages)", r"\(showing last 3 of 5 messages)"),
        ("a\r$user: x\u2028=== y", "a\r$user: x\u2028=== y"),
        ("$uſer:", "$uſer:"),
    ],
)
def test_the_backslash_rule(said: str, shown: str) -> None:
    assert text(user("q"), respond(said)).partition("$respond: ")[2] == shown


def test_the_other_delimiter_guards_its_own_marks() -> None:
    thread = [user("$user: x\n§user: y"), respond("a")]
    rendered = text(*thread, delimiter="§")
    assert rendered == "=== CURRENT ===\n\n§user: $user: x\n\\§user: y\n\n§respond: a"
    assert replay.parse(rendered).delimiter == "§"


@given(entries, st.none() | st.integers(0, 8))
def test_every_call_has_its_result_behind_it(bodies: list[dict], window: int | None) -> None:
    rendered = replay.render(replay.read({"entries": bodies, "window": window}))
    kinds = re.findall(r"^\$(user|think|respond|call|result): ", rendered, re.MULTILINE)
    calls = [at for at, kind in enumerate(kinds) if kind == "call"]
    assert [kinds[at + 1] for at in calls] == ["result"] * len(calls) == ["result"] * kinds.count("result")


@given(entries, st.integers(0, 8))
def test_a_window_shows_a_tail_and_counts_the_rest(bodies: list[dict], window: int) -> None:
    whole = replay.read({"entries": bodies, "window": None})
    part = replay.read({"entries": bodies, "window": window})
    shown = len(replay.to_entries(part.history))
    assert part.history == whole.history[len(whole.history) - len(part.history) :]
    assert part.current == whole.current
    assert min(window, len(replay.to_entries(whole.history))) <= shown <= window + 1
    if part.history:
        assert shown + part.left_out == len(replay.to_entries(whole.history))


@pytest.mark.parametrize(
    "fields",
    [
        {"history": (ReplayedThought("x"),)},
        {"left_out": 1},
        {"history": (User("x"),), "left_out": -1},
        {"current": (User("x"),)},
        {"current": (Respond("x"), Respond("y"))},
        {"current": (User("x"), User("y"))},
        {"delimiter": "§"},
    ],
)
def test_no_value_holds_what_it_would_not_show(fields: dict) -> None:
    with pytest.raises(CallError):
        Replay(**fields)


def test_arguments_that_are_not_json_are_an_error() -> None:
    for args in ({"a": float("nan")}, {"a": b""}):
        with pytest.raises(FormatError, match="not JSON"):
            replay.render(Replay((ReplayedCall("t", args, ""),)))


spoken = texts(REPLAY, size=20)
delimiters = st.sampled_from("$§")


def fed(chunks: list[str], delimiter: str) -> list[ProtocolEvent]:
    reader = ProtocolStream(delimiter)
    return protocol_stream.merge([piece for chunk in chunks for piece in reader.feed(chunk)] + reader.finish())


@given(spoken, delimiters, st.data())
def test_any_split_gives_the_same_events_as_the_whole(text: str, delimiter: str, data: st.DataObject) -> None:
    whole = protocol_stream.read(text, delimiter)
    assert "".join(event.raw for event in whole) == text
    assert fed(list(text), delimiter) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert fed(chunks, delimiter) == whole


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


EVENTS: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {
    "$": [
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
    "§": [
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
}


@pytest.mark.parametrize(
    ("delimiter", "text", "events"), [(delimiter, *row) for delimiter, rows in EVENTS.items() for row in rows]
)
def test_a_text_is_read_as_these_events(delimiter: str, text: str, events: list[tuple[str, str]]) -> None:
    assert [(event.kind, event.text) for event in protocol_stream.read(text, delimiter)] == events


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
