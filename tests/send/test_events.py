"""Every streamed event has an id in the log's order; a reader that was away gets exactly what it missed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from send_parts import Noted

from quire import Entry, Thread, open_store, values
from quire.errors import CallError
from quire.providers.incoming import BlockDelta
from quire.send.events import Event, Growing, Journal, missed, read_id
from quire.testing import Cut, emulator
from quire.values import Call, Text, Think
from toolbox import TARGETS, EventReader, Runner, carry_out, sent_body

SAID = [Think("Let me think."), Text("One moment, please."), Call("c1", "append", {"line": 1})]


@pytest.mark.parametrize("provider", ["anthropic", "openai", "gemini", "deepseek"])
def test_a_reader_that_left_anywhere_reads_on_as_if_it_had_stayed(provider: str, thread: Thread) -> None:
    """Leaves behind every single event, comes back at the end: both readers hold the same texts. Ids only grow."""
    events: list[Event] = []
    target = {**TARGETS, "deepseek": "deepseek:deepseek-chat"}[provider]
    script = [Cut(SAID, 1200), SAID, "All done."] if provider != "gemini" else [SAID, "All done."]
    with emulator(provider, script, piece=5) as server:
        thread.user("Go.")
        carry_out(thread, target, server.url, Runner(tools=Noted()), on_event=events.append)
    places = [read_id(event.id) for event in events]
    assert places == sorted(places)
    assert len({event.id for event in events}) == len(events)
    stayed = EventReader()
    for event in missed(thread.store, "t"):
        stayed.take(event)
    assert stayed.texts == {entry.seq: entry.text for entry in thread.store.read("t")}
    for left in range(len(events)):
        reader = EventReader()
        for event in [*missed(thread.store, "t")[:1], *events[: left + 1]]:
            reader.take(event)
        for event in missed(thread.store, "t", reader.last):
            reader.take(event)
        assert reader.texts == stayed.texts, f"left behind {events[left].id}"


def test_a_reader_in_another_process_sees_what_is_being_written(tmp_path: Path) -> None:
    store = open_store(tmp_path / "t.db")
    *_, tip = store.append("t", [values.user("Go."), Entry("sent", sent_body())])
    growing = Growing()
    growing.add([BlockDelta(0, "think", "Hm."), BlockDelta(1, "respond", "Hello, wor")], tip.seq)
    Journal(store, "t", every_s=0).keep(growing.texts(), tip)
    other = open_store(tmp_path / "t.db")
    think, respond = Event("2:3", "think", "Hm."), Event("2:3,10", "respond", "Hello, wor", part=1)
    assert missed(other, "t", "2") == [think, respond]
    assert missed(other, "t", "2:3") == [respond]
    assert missed(other, "t", "2:3,5") == [Event("2:3,10", "respond", ", wor", part=1)]
    # A reader that was told more than has been noted yet waits for the rest.
    assert missed(other, "t", "2:3,12") == []
    kept = store.append("t", [values.think("Hm."), values.respond("Hello, world.")])
    assert missed(other, "t", "2:3,12") == [Event("3:12", "think", "", kept[0]), Event("4", "respond", ".", kept[1])]
    store.close()
    other.close()


@given(text=st.text(), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_pieces_and_the_entry_they_become_say_the_text_once(text: str, cuts: list[int]) -> None:
    growing, shown, at = Growing(), "", 0
    for cut in sorted(cuts):
        for event in growing.add([BlockDelta(0, "respond", text[at:cut])], 7):
            shown += event.text
            assert event.id == f"7:{len(shown)}"
        at = max(at, min(cut, len(text)))
    (event,) = growing.finish([Entry("respond", {"kind": "respond", "text": text}, 8, "id")])
    assert shown + event.text == text


@pytest.mark.parametrize("id", ["", "x", "1:", ":2", "1:x", "-1", "1:2,"])
def test_an_id_that_is_none_is_refused(id: str) -> None:
    with pytest.raises(CallError, match="event's id"):
        read_id(id)
