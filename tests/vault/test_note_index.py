"""The index of a vault: what changed is read again, everything else is not; passages become one block."""

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Entry, values
from quire.errors import CallError, DamageError
from quire.items.sources import Root
from quire.notes import NoteIndex, Passage, Watching
from quire.notes.vault import Vault
from quire.send.note_search import (
    FoundNote,
    TimeRange,
    documents,
    local_search,
    local_search_tool,
    sources,
    sources_text,
    spoken_time,
    time_range,
)
from quire.send.tools import Toolbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    for name, text in {
        "tea.md": "# Brewing\nGreen tea needs water of 80 degrees.\n\n# Black\nBlack tea takes boiling water.",
        "piano.md": "---\ntags: [music]\n---\nPractise scales every morning.",
        "2025-01-20.md": "Met Ada about the harvest.",
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def index(root: Path, tmp_path: Path) -> Iterator[NoteIndex]:
    with NoteIndex(Vault(root), tmp_path / "index.db") as made:
        made.update()
        yield made


def test_notes_are_found_by_their_words_titles_and_tags(index: NoteIndex) -> None:
    found = index.search("how hot should green tea be", 1)[0]
    assert (found.path, found.line, found.heading) == ("tea.md", 1, "Brewing")
    assert found.text == "# Brewing\nGreen tea needs water of 80 degrees."
    assert index.search("music", 1)[0].path == "piano.md"
    assert index.search("piano", 1)[0].path == "piano.md"
    assert index.search("zebra", 3) == []


def test_an_index_opened_again_reads_only_what_changed(
    root: Path, tmp_path: Path, index: NoteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = Root.read_bytes
    monkeypatch.setattr(Root, "read_bytes", lambda self, path, limit: (read.append(path), whole(self, path, limit))[1])
    (root / "new.md").write_text("A quokka smiles.")
    (root / "piano.md").unlink()
    seen: list[tuple[int, int]] = []
    with NoteIndex(Vault(root), tmp_path / "index.db") as again:
        updated = again.update(lambda done, total: seen.append((done, total)))
        assert (updated.notes, updated.changed, updated.removed) == (3, 1, 1)
        assert read == ["new.md"]
        assert seen[-1] == (3, 3)
        assert [one.path for one in again.search("quokka", 3)] == ["new.md"]
        assert again.search("scales", 3) == []
        (root / "new.md").write_text("A wombat digs.")
        again.update()
        assert again.search("quokka", 3) == []
        assert again.search("wombat", 1)[0].path == "new.md"


def test_what_the_vault_learned_by_itself_is_indexed_too(root: Path, tmp_path: Path) -> None:
    vault = Vault(root)
    assert len(vault.known()) == 3
    with NoteIndex(vault, tmp_path / "late.db") as index:
        assert index.update().changed == 3
        (root / "tea.md").write_text("Now about okapis.")
        (root / "piano.md").unlink()
        vault.known()
        updated = index.update()
        assert (updated.changed, updated.removed) == (1, 1)
        assert index.search("okapis", 1)[0].path == "tea.md"
        assert [one.path for one in index.search("scales okapis", 5)] == ["tea.md"]


def test_a_stopped_update_goes_on_where_it_was(root: Path, tmp_path: Path) -> None:
    for number in range(20):
        (root / f"n{number}.md").write_text(f"note {number}")

    def stop(done: int, total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with NoteIndex(Vault(root), tmp_path / "i.db") as first, pytest.raises(KeyboardInterrupt):
        first.update(stop)
    with NoteIndex(Vault(root), tmp_path / "i.db") as second:
        assert second.update().changed == 13
        assert len(second.search("note", 50)) == 20


def test_a_file_that_is_no_index_says_what_to_do(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_text("this is no database, not at all, really not")
    with pytest.raises(DamageError, match="cannot be read"):
        NoteIndex(Vault(root), tmp_path / "bad.db")


def test_a_watched_vault_follows_its_folder(index: NoteIndex, root: Path) -> None:
    pytest.importorskip("watchfiles")
    with Watching(index, debounce_ms=50) as watching:
        (root / "fresh.md").write_text("An okapi hides.")
        assert watching.updated.wait(600)
        assert index.search("okapi", 1)[0].path == "fresh.md"
        watching.updated.clear()
        (root / "fresh.md").unlink()
        assert watching.updated.wait(600)
        assert index.search("okapi", 1) == []
    assert not index.vault.watched


class Letters:
    """An embedder whose meaning is which letters a text has."""

    name = "letters"
    dimensions = 26

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, texts: Sequence[str]) -> Any:
        self.encoded += len(texts)
        counts = np.array([[text.lower().count(chr(97 + n)) + 0.01 for n in range(26)] for text in texts])
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def test_meaning_is_stored_and_made_only_for_what_is_new(root: Path, tmp_path: Path) -> None:
    first = Letters()
    with NoteIndex(Vault(root), tmp_path / "m.db", first) as index:
        index.update()
        seen: list[tuple[int, int]] = []
        assert index.embed(lambda done, total: seen.append((done, total))) == 4
        assert seen == [(4, 4)]
        assert index.search("scales", 1)[0].path == "piano.md"
    (root / "new.md").write_text("zzz")
    second = Letters()
    with NoteIndex(Vault(root), tmp_path / "m.db", second) as again:
        again.update()
        assert again.embed() == 1
        assert second.encoded == 1
        # No word of it is in any note: it is found by its meaning alone.
        assert again.search("zzzzz", 1)[0].path == "new.md"
    other = Letters()
    other.name = "others"
    with NoteIndex(Vault(root), tmp_path / "m.db", other) as theirs:
        assert theirs.embed() == 5


def passage(path: str, line: int, text: str) -> Passage:
    return Passage(path, line, "", text, 1.0)


def test_the_block_is_as_ruled() -> None:
    found = documents([passage("b/tea.md", 9, "second"), passage("a.md", 1, "A & B"), passage("b/tea.md", 1, "first")])
    head, _, guidance = local_search(found, 'last "week"').partition("\n\n<guidance>\n")
    assert head == (
        '<localSearch timeRange="last &quot;week&quot;">\n'
        "Answer the question based only on the following context:\n\n"
        "<document>\n<id>1</id>\n<title>tea</title>\n<path>b/tea.md</path>\n<content>\nfirst\n\nsecond\n</content>\n</document>\n\n"
        "<document>\n<id>2</id>\n<title>a</title>\n<path>a.md</path>\n<content>\nA & B\n</content>\n</document>"
    )
    assert guidance.endswith("- [[tea]] (b/tea.md)\n- [[a]] (a.md)\n</guidance>\n</localSearch>")
    assert "[^1]" in guidance
    none = local_search([])
    assert none.startswith("<localSearch>\nAnswer the question based only on the following context:\n\nNo relevant documents found.\n\n<guidance>\n")  # fmt: skip
    assert none.endswith("\n</guidance>\n</localSearch>")


def test_the_catalog_lists_twenty_at_most() -> None:
    found = [FoundNote(n, f"t{n}", f"{n}.md", "x") for n in range(1, 31)]
    text = local_search(found)
    assert len(re.findall(r"^- \[\[", text, re.M)) == 20
    assert text.count("<document>") == 30


TEXTS = st.lists(st.sampled_from(["</content>", "</document>", "</localSearch>", "</guidance>", "<\\/content>", "a", "\n", "<", "&"]), max_size=6).map("".join)  # fmt: skip


@given(TEXTS, TEXTS, TEXTS)
def test_no_document_can_end_the_block(title: str, path: str, content: str) -> None:
    text = local_search([FoundNote(1, title, path, content)])
    for tag in ("content", "document", "localSearch", "guidance"):
        assert text.count(f"</{tag}>") == 1
    inner = text.split("<content>\n", 1)[1].split("\n</content>")[0]
    assert re.sub(r"<(\\*)\\/(content|document|guidance|localSearch)>", r"<\1/\2>", inner) == content


def test_documents_stay_within_their_limit_and_end_at_words() -> None:
    found = documents([passage(f"{n}.md", 1, "some words here. " * 100) for n in range(9)], limit=3000, each=1000)
    assert len(found) <= 4
    assert all(one.content.endswith(("here. ...", " ...")) for one in found)


def test_the_tool_returns_its_own_block_and_says_the_question_again(index: NoteIndex) -> None:
    box = Toolbox(local_search_tool(index, question=lambda call: "How hot?"))
    args = {"query": "green tea"}
    result = asyncio.run(box.run(values.call("c", "localSearch", args)))
    content = result.body["content"]
    assert content.startswith("<localSearch>\n")
    assert content.endswith("</localSearch>\n\n[User query]:\n\nHow hot?")
    assert result.meta["sources"][0] == {"id": 1, "title": "tea", "path": "tea.md"}
    placed = asyncio.run(box.run(values.call("c", "localSearch", args, meta={"placement": "context"})))
    assert placed.body["content"].endswith("</localSearch>")


def test_a_time_range_chooses_notes_by_the_date_in_their_name_or_their_change(index: NoteIndex) -> None:
    box = Toolbox(local_search_tool(index))

    def paths(when: str) -> list[str]:
        result = asyncio.run(box.run(values.call("c", "localSearch", {"query": "Ada tea scales", "timeRange": when})))
        return sorted(one["path"] for one in result.meta.get("sources", ()))

    assert paths("2025-01") == ["2025-01-20.md"]
    assert paths("today") == ["piano.md", "tea.md"]
    result = asyncio.run(box.run(values.call("c", "localSearch", {"query": "x", "timeRange": "soon"})))
    assert result.body["error"] is True


@pytest.mark.parametrize(
    ("said", "first", "last"),
    [("today", "2025-03-10", "2025-03-10"), ("yesterday", "2025-03-09", "2025-03-09"), ("last week", "2025-03-03", "2025-03-09"),
     ("the past week", "2025-03-03", "2025-03-10"), ("last month", "2025-02-01", "2025-02-28"), ("two weeks ago", "2025-02-24", "2025-03-02"),
     ("on Monday", "2025-03-10", "2025-03-10"), ("last Monday", "2025-03-03", "2025-03-03"), ("on Sunday", "2025-03-09", "2025-03-09"),
     ("in March", "2025-03-01", "2025-03-31"), ("in April", "2024-04-01", "2024-04-30"), ("May 2023", "2023-05-01", "2023-05-31"),
     ("on the 3rd of March", "2025-03-03", "2025-03-03"), ("March 12", "2024-03-12", "2024-03-12"), ("since Friday", "2025-03-07", "2025-03-10"),
     ("from Friday to Monday", "2025-03-07", "2025-03-10"), ("from Monday to Sunday", "2025-03-03", "2025-03-09"),
     ("between January and February", "2025-01-01", "2025-02-28"), ("before 2025", "0001-01-01", "2024-12-31"),
     ("past 3 days", "2025-03-07", "2025-03-10"), ("this month", "2025-03-01", "2025-03-10"), ("2024-02", "2024-02-01", "2024-02-29"),
     ("2024", "2024-01-01", "2024-12-31"), ("2024-12-30 to 2025-01", "2024-12-30", "2025-01-31"), ("This  Week", "2025-03-10", "2025-03-10")],
)  # fmt: skip
def test_times_are_read_as_people_say_them(said: str, first: str, last: str) -> None:
    assert time_range(said, 1_741_600_000_000) == TimeRange(date.fromisoformat(first), date.fromisoformat(last))


@given(st.text(max_size=12) | st.from_regex(r"(last|past) \d{1,9} (day|year)s|\d{4}(-\d\d)?( to \d{4}-\d\d-\d\d)?", fullmatch=True))  # fmt: skip
def test_any_other_time_is_an_error_and_nothing_worse(said: str) -> None:
    with contextlib.suppress(CallError):
        found = time_range(said, 0)
        assert isinstance(found, TimeRange)


@pytest.mark.parametrize(
    ("question", "said"),
    [("What did we decide on Monday?", "on Monday"), ("last week", "last week"), ("Notes since May, please", "since May"), ("Who may march on?", ""),
     ("Monday meetings in 2024 and later", "in 2024"), ("What was planned between Monday and  Friday?", "between Monday and Friday")],
)  # fmt: skip
def test_the_time_of_a_question_is_found_in_it(question: str, said: str) -> None:
    assert spoken_time(question, 1_741_600_000_000) == said


def test_sources_are_those_cited_else_all() -> None:
    found = [{"id": n, "title": f"t{n}", "path": f"{n}.md"} for n in (1, 2, 3)]
    turn = [values.user("old"), values.respond("[^3]"), values.user("q")]
    turn += [values.result("c", content="x", meta={"sources": found})]

    def listed(answer: str) -> list[int]:
        return [one.id for one in sources([*turn, values.respond(answer)])]

    assert listed("Yes [^2] and [1, 3](url).") == [2]
    assert listed("Yes [^3, ^1]. [^9]") == [1, 3]
    assert listed("No idea.") == [1, 2, 3]
    assert sources_text(sources([*turn, values.respond("[2]")])) == "#### Sources\n\n[^2]: [[t2]] (2.md)"
    assert sources_text(sources([Entry("user", values.user("q").body)])) == ""
