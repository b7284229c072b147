"""A vault: notes by name, what they say about themselves, and as items of context."""

import base64
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import values
from quire.assemble.user_message import block
from quire.errors import CallError, NotFound
from quire.items import identity
from quire.items.sources import Root
from quire.notes import chunks
from quire.notes.note import Link, blocks, links, prose, read_front_matter, split_front_matter, tags
from quire.notes.vault import Vault
from toolbox import PNG, sha256_hex

LESSON = """---
tags: [piano, "music/theory"]
rating: 4
due: 2025-02-01
teacher:
  name: Ada
---
# Lesson 4
See [[api-docs#Endpoints|the docs]] and [[Gone]]. ![[keys.png]] #practice/scales
`[[not a link]]` and 50% #1 #42 a#b

```dataview
LIST rating FROM #piano SORT file.name
```
"""


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    notes = {
        "Piano Lessons/Lesson 4.md": LESSON,
        "Piano Lessons/api-docs.md": "# API\n- [ ] write it\n- [x] read it\n",
        "Work/spec.md": "---\ntags: project\nrating: 2\n---\nSpec [[Lesson 4]]\n",
        "Home/spec.md": "Home #project/home\n",
        "Über.md": "umlaut",
        ".obsidian/hidden.md": "#project",
        "notes.txt": "not a note",
    }
    root = tmp_path / "vault"
    for path, text in notes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "assets").mkdir()
    (root / "assets" / "keys.png").write_bytes(PNG)
    return Vault(root)


def test_a_note_is_found_by_path_then_by_unique_name(vault: Vault) -> None:
    for name in ("Piano Lessons/Lesson 4.md", "Piano Lessons/Lesson 4", "Lesson 4.md", "Lesson 4", "[[Lesson 4|x]]",
                 "[[Lesson 4#h]]", "moved/elsewhere/Lesson 4.md", "lesson 4", "/Piano Lessons/Lesson 4.md"):  # fmt: skip
        assert vault.resolve(name) == "Piano Lessons/Lesson 4.md"
    assert vault.resolve("Work/spec") == "Work/spec.md"
    assert vault.resolve("über") == "Über.md"
    assert vault.resolve("U\u0308ber") == "Über.md"


def test_a_name_that_means_no_one_note_lists_the_candidates(vault: Vault) -> None:
    with pytest.raises(CallError, match=r"'spec' could be Home/spec.md, Work/spec.md"):
        vault.resolve("spec")
    for name in ("nothing", "../secret", "/etc/passwd", "hidden", "notes.txt", "assets/keys.png", "", "[[]]"):
        with pytest.raises((NotFound, CallError)):
            vault.resolve(name)


def test_what_a_note_says_about_itself_is_known(vault: Vault) -> None:
    note = vault.known()["Piano Lessons/Lesson 4.md"]
    assert note.tags == ("piano", "music/theory", "practice/scales")
    fields = {"tags": ["piano", "music/theory"], "rating": 4, "due": "2025-02-01", "teacher": {"name": "Ada"}}
    assert note.fields == fields
    assert note.links == (Link("api-docs", "Endpoints", "the docs"), Link("Gone"), Link("keys.png", embed=True))
    assert vault.linked("Lesson 4") == (["Piano Lessons/api-docs.md"], ["Gone", "keys.png"])
    assert sorted(vault.known()) == ["Home/spec.md", "Piano Lessons/Lesson 4.md", "Piano Lessons/api-docs.md", "Work/spec.md", "Über.md"]  # fmt: skip


def test_notes_become_items_with_the_ruled_identities(vault: Vault) -> None:
    note, answer = map(values.item_json, vault.attach("Lesson 4"))
    assert identity(note) == "Piano Lessons/Lesson 4.md"
    query = "LIST rating FROM #piano SORT file.name"
    assert identity(answer) == f"Piano Lessons/Lesson 4.md#dataview-{sha256_hex(query)[:12]}"
    assert answer["content"] == "- [[Lesson 4]]: 4"
    selected = values.item_json(vault.selection("api-docs", 2, 3))
    assert identity(selected) == "Piano Lessons/api-docs.md#L2-L3"
    assert block(selected).text == (
        "<selected_text>\n<title>api-docs</title>\n<path>Piano Lessons/api-docs.md</path>\n<start_line>2</start_line>\n"
        "<end_line>3</end_line>\n<content>\n- [ ] write it\n- [x] read it\n</content>\n</selected_text>"
    )
    assert block(note).text.startswith(
        "<note_context>\n<title>Lesson 4</title>\n<path>Piano Lessons/Lesson 4.md</path>\n<content>\n---\n"
    )
    assert block(answer).text == (
        f"<dataview>\n<path>Piano Lessons/Lesson 4.md</path>\n<query>{query}</query>\n"
        "<content>\n- [[Lesson 4]]: 4\n</content>\n</dataview>"
    )


def test_only_the_active_note_brings_its_images_and_is_never_promoted(vault: Vault) -> None:
    made = block(values.item_json(vault.active("Lesson 4")[0]))
    assert made.tag == "active_note"
    assert [one["media_type"] for one in made.images] == ["image/png"]
    assert base64.b64decode(made.images[0]["data"]) == PNG
    assert not made.promotable
    assert block(values.item_json(vault.attach("Lesson 4")[0])).images == ()


def test_touching_a_note_changes_its_time_and_not_its_block(vault: Vault) -> None:
    before = values.item_json(vault.attach("api-docs")[0])
    path = vault.root.path / "Piano Lessons" / "api-docs.md"
    os.utime(path, (1, 1))
    after = values.item_json(vault.attach("api-docs")[0])
    assert after["metadata"]["mtime"] == "1970-01-01T00:00:01Z"
    assert block(after) == block(before)


def test_tags_and_folders_bring_their_notes(vault: Vault) -> None:
    assert [one.id for one in vault.tagged("#project")] == ["Home/spec.md", "Work/spec.md"]
    assert [one.id for one in vault.tagged("music")] == ["Piano Lessons/Lesson 4.md"]
    assert [one.id for one in vault.within("Piano Lessons/")] == ["Piano Lessons/Lesson 4.md", "Piano Lessons/api-docs.md"]  # fmt: skip
    for missing in (lambda: vault.tagged("#none"), lambda: vault.within("None")):
        with pytest.raises(NotFound):
            missing()


def test_only_what_changed_is_read_again(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.known()
    read: list[str] = []
    whole = Root.read_bytes
    monkeypatch.setattr(Root, "read_bytes", lambda self, path, limit: (read.append(path), whole(self, path, limit))[1])
    assert list(vault.refresh()) == []
    path = vault.root.path / "Home" / "spec.md"
    os.utime(path, (5, 5))
    revision = vault.revision
    (touched,) = vault.refresh()
    assert (touched.path, vault.revision) == ("Home/spec.md", revision)
    path.write_text("new #tag")
    (vault.root.path / "Über.md").unlink()
    changed, gone = vault.refresh()
    assert (changed.note or touched.note).tags == ("tag",)
    assert (gone.path, gone.note) == ("Über.md", None)
    assert read == ["Home/spec.md", "Home/spec.md"]
    assert vault.revision == revision + 2


def test_an_unreadable_note_is_named_once_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "good.md").write_text("fine")
    (tmp_path / "latin.md").write_bytes(b"one\ncaf\xe9")
    (tmp_path / "front.md").write_text("---\na: [1\n---\ntext")
    (tmp_path / "large.md").write_bytes(b"a" * 5_000_001)
    os.mkfifo(tmp_path / "pipe.md")
    vault = Vault(tmp_path)
    vault.known()
    assert sorted(vault.known()) == ["front.md", "good.md", "latin.md"]
    said = sorted(record.getMessage() for record in caplog.records)
    wanted = ["'front.md': the front matter", "'large.md': left out", "'latin.md': bytes", "'pipe.md': left out"]
    assert [line for line, one in zip(said, wanted, strict=True) if one not in line] == []
    assert "the first in line 2" in said[2]


def test_a_link_out_of_the_vault_is_no_note(vault: Vault) -> None:
    (vault.root.path.parent / "secret.md").write_text("secret #project")
    (vault.root.path / "out.md").symlink_to(vault.root.path.parent / "secret.md")
    assert "out.md" not in vault.known()
    with pytest.raises((NotFound, CallError)):
        vault.attach("out.md")


def test_an_answer_is_kept_until_its_note_or_the_vault_changes(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.notes import vault as module

    made: list[str] = []
    evaluate = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda query, *more: (made.append(query), evaluate(query, *more))[1])
    path = "Piano Lessons/Lesson 4.md"
    for _ in range(3):
        assert vault.answer(path, "LIST FROM #piano") == "- [[Lesson 4]]"
    assert len(made) == 1
    (vault.root.path / "Home" / "spec.md").write_text("#piano")
    assert vault.answer(path, "LIST FROM #piano") == "- [[spec]]\n- [[Lesson 4]]"
    os.utime(vault.root.path / path, (9, 9))
    vault.answer(path, "LIST FROM #piano")
    assert len(made) == 3


def test_links_and_tags_in_code_and_comments_do_not_count() -> None:
    text = 'a [[x]] `[[y]]` %%[[z]] #no%% ``a ` [[w]]``\n```py\n#no [[v]]\n```\n~~~\n```\n#no\n~~~\n[l](b%20c.md#h) ![i](pic.png "t") [web](https://x.y) #yes'
    found = [(one.target, one.embed) for one in links(prose(text))]
    assert found == [("x", False), ("b c.md", False), ("pic.png", True)]
    assert tags(prose(text), {}) == ("yes",)
    assert (blocks(text, "py"), blocks(text, "")) == (["#no [[v]]"], ["```\n#no"])


def test_front_matter_that_cannot_be_read_is_a_problem_and_no_error(tmp_path: Path) -> None:
    ninefold = [f"k{n}: &k{n} [{', '.join(['*a' if n == 0 else f'*k{n - 1}'] * 9)}]" for n in range(9)]
    for name, front in zip("abc", ("x: [1", "- just\n- a list", "\n".join(["a: &a [x]", *ninefold])), strict=True):
        (tmp_path / f"{name}.md").write_text(f"---\n{front}\n---\n#tag text")
    notes = Vault(tmp_path).known()
    assert all(note.problem and note.tags == ("tag",) for note in notes.values())
    assert read_front_matter("a: 2025-02-30\nb: 2") == {"a": "2025-02-30", "b": 2}
    assert read_front_matter("a: .nan\nb: 2025-01-01\nc: {1: x}") == {"a": "nan", "b": "2025-01-01", "c": {"1": "x"}}
    assert split_front_matter("---\na: 1\n---\nx") == ("a: 1", "x")
    assert split_front_matter("---\na: 1\nx") == ("", "---\na: 1\nx")


@given(
    st.lists(
        st.sampled_from(["# H\n", "## Deep\n", "word ", "long" * 30, "\n", "\n\n", "```\n# no\n```\n", "é"]),
        max_size=60,
    ).map("".join),
    st.integers(20, 200),
)
def test_passages_hold_every_word_and_know_their_line(text: str, size: int) -> None:
    parts = chunks(text, size)
    assert "".join("".join(one.text.split()) for one in parts) == "".join(text.split())
    assert all(len(one.text) <= size for one in parts)
    lines = text.split("\n")
    for one in parts:
        assert one.text.strip().split("\n")[0] in "\n".join(lines[one.line - 1 :])
