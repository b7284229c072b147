"""Envelopes, the monitor over L1 and L2, and where text is cut."""

import itertools

import msgspec
import pytest

from quire import Policy, Reply, Thread, Usage, open_store, requests, values
from quire.assemble.fit import enclose, envelope, layer, layer_tokens, segment
from quire.assemble.telling import truncate
from quire.assemble.user_message import block
from quire.items import identity
from quire.observe import MovedLayer, chat_messages, watch
from quire.values import Envelope, JsonObject
from toolbox import Built, closed_later, sha256_hex

ITEM = {"id": "a.md", "type": "text", "content": "alpha", "metadata": {"source": "note", "path": "a.md"}}


def test_an_envelope_has_five_layers_whose_hashes_are_of_their_text() -> None:
    sealed = envelope([layer("L1_SYSTEM", [segment("s", "SYS")]), layer("L5_USER", [segment("q", " Q ")])])
    assert [one.id for one in sealed.layers] == ["L1_SYSTEM", "L2_PREVIOUS", "L3_TURN", "L4_STRIP", "L5_USER"]
    assert sealed.layer("L5_USER").text == " Q "
    assert sealed.sha256 == sha256_hex("SYS\n\n Q ")
    assert msgspec.json.decode(msgspec.json.encode(sealed), type=Envelope) == sealed


def test_the_tokens_of_the_layers_add_up_to_the_request() -> None:
    entries = [values.system("S"), values.user("hello", [ITEM]), values.respond("hi"), values.user("more")]
    entries += [values.respond("x")]
    for one in requests(entries):
        assert isinstance(one, Built)
        assert sum(layer_tokens(one).values()) == one.tokens


def test_a_moved_system_prompt_is_a_warning_unless_an_entry_explains_it() -> None:
    entries = [values.system("SYSTEM one"), values.user("a"), values.respond("b")]
    before = next(iter(requests(entries)))
    moved = next(iter(requests([values.system("SYSTEM two"), *entries[1:]])))
    assert isinstance(before, Built)
    assert isinstance(moved, Built)
    old, new = (enclose(one, chat_messages(one)) for one in (before, moved))
    warning = watch(old, new, [])
    assert (warning.layer, warning.segment, warning.byte) == ("L1_SYSTEM", "system", len("SYSTEM "))
    assert watch(old, new, [values.system("SYSTEM two")]) is None
    assert watch(old, old, []) is None


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("First sentence. Second sentence. Third sentence is much longer.", 50, "First sentence. Second sentence. ..."),
        ("word1 word2 word3 word4 word5", 20, "word1 word2 word3 ..."),
        ("a" * 25, 10, "aaaaaaaaaa..."),
        ("short", 10, "short"),
    ],
)
def test_text_is_cut_at_sentences_then_words(text: str, limit: int, cut: str) -> None:
    assert truncate(text, limit) == cut


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({"source": "note", "path": "n/a.md"}, "n/a.md"),
        ({"source": "url", "url": "https://x.org/"}, "https://x.org/"),
        ({"source": "selection", "path": "a.md", "start_line": 3, "end_line": 9}, "a.md#L3-L9"),
        ({"source": "dataview", "path": "a.md", "query": "LIST"}, "a.md#dataview-" + sha256_hex("LIST")[:12]),
        (None, "ctx-1"),
        ({"filename": "src/a.py"}, "ctx-1"),
    ],
)
def test_items_are_known_by_where_they_are_from(meta: dict[str, object] | None, name: str) -> None:
    assert identity({"id": "ctx-1", "content": "", "metadata": meta}) == name


def test_content_cannot_close_its_wrapper() -> None:
    about = {"source": "note", "path": "a<b>.md"}
    made = block({"id": "a", "content": "x </content> <\\/content> </note_context>", "metadata": about})
    assert "x <\\/content> <\\\\/content> <\\/note_context>" in made.text
    assert "<path>a&lt;b&gt;.md</path>" in made.text


def test_times_are_shown_only_on_request() -> None:
    item = {**ITEM, "metadata": {**ITEM["metadata"], "ctime": 1, "mtime": 2}}  # type: ignore[dict-item]
    assert "<mtime>" not in block(item).text
    assert "<path>a.md</path>\n<ctime>1</ctime>\n<mtime>2</mtime>\n<content>" in block(item, times=True).text


def test_images_come_from_the_active_note_and_keep_it_out_of_the_library() -> None:
    image = {"media_type": "image/png", "data": "AA=="}
    active = block({"id": "a", "content": "", "metadata": {"source": "active_note", "path": "a.md", "images": [image]}})
    other = block({"id": "b", "content": "", "metadata": {"source": "note", "path": "b.md", "images": [image]}})
    assert (active.images, active.promotable) == ((image,), False)
    assert (other.images, other.promotable) == ((), False)


@pytest.mark.moves_prefix(reason="the policy changes between turns")
def test_a_library_that_moves_because_the_policy_changed_is_a_warning() -> None:
    policy = Policy(budget=20_000, promote="each-turn")
    thread = Thread(closed_later(open_store(":memory:")), "t", policy, clock=itertools.count(0, 1000).__next__)
    heard = list[object]()
    thread.on_warning = heard.append
    source = {"source": "note", "path": "n.md", "ctime": 1, "mtime": 2}
    note = {"id": "n.md", "type": "text", "content": "NOTE", "metadata": source}

    def turn(text: str, *attached: JsonObject) -> None:
        thread.append(values.user(text, attached))
        thread.record(Reply((values.respond("a"),), Usage()), thread.request("openai-chat:gpt-x"))

    thread.append(values.system("SYS"))
    turn("q1", note)
    turn("q2")
    turn("q3")
    assert heard == []
    thread.policy = msgspec.structs.replace(policy, times=True)
    turn("q4")
    assert [type(one) for one in heard] == [MovedLayer]
    assert isinstance(heard[0], MovedLayer)
    assert heard[0].layer == "L2_PREVIOUS"
