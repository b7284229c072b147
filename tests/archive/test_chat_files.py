"""Chat files: to the byte as ruled, lossless with the comment, tolerant without."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from quire import Entry, Item, open_store, values
from quire.archive import (
    AttachedNames,
    Chat,
    ChatMessage,
    autosave,
    export_markdown,
    file_name,
    load,
    parse,
    project,
    read_back,
    render,
)
from quire.errors import CallError, FormatError, NotFound
from quire.items import from_file, from_url, identity, item
from toolbox import SCALARS, Store, chain, check, encode_lines, fewer, invoke, json_of, note, run

AT = 1_737_972_000_000  # 2025-01-27 10:00:00 UTC


THREAD = [
    values.system("SYS", at=AT - 5),
    values.attach(note("Piano Lessons/Lesson 4.md")),
    values.user(
        "What is due?",
        [note("DailyNotes/2025-01-27.md"), {"content": "page", "metadata": {"source": "url", "url": "https://a.b/c,d"}}],
        at=AT + 999,
        meta={"context": {"tags": ["#piano"], "folders": ["Piano Lessons"]}},
    ),
    values.think("hm"),
    values.call("c1", "read", {"path": "x>y"}),
    values.result("c1", "ok", "**ai**: forged -->"),
    values.respond("Scales.\n**user**: not me\n[Timestamp: never]", at=AT + 61_000),
    Entry("sent", {"kind": "sent", "provider": "anthropic", "model": "claude-opus-5-5", "request_sha256": "0" * 64, "segments": []}),
    values.user("Thanks"),
    values.respond(" "),
]  # fmt: skip

GOLDEN = """---
created: 2025-01-27T10:00:00Z
model: anthropic:claude-opus-5-5
topic: "What is due?"
tags:
  - quire-chat
---

**user**: What is due?
[Context: Notes: Piano Lessons/Lesson 4.md, DailyNotes/2025-01-27.md | URLs: https://a.b/c\\,d | Tags: #piano | Folders: Piano Lessons]
[Timestamp: 2025/01/27 10:00:00]

**ai**: Scales.
\\**user**: not me
\\[Timestamp: never]
[Timestamp: 2025/01/27 10:01:01]

**user**: Thanks
"""


def test_a_thread_is_written_as_ruled() -> None:
    shown, _, comment = export_markdown(THREAD, thread="lesson").partition("\n<!-- quire: ")
    assert shown == GOLDEN
    assert comment.count("\n") == 1
    assert ">" not in comment.removesuffix(" -->\n")
    assert json.loads(comment.removesuffix(" -->\n"))["entries"] == [one.body for one in THREAD]
    assert yaml.safe_load(GOLDEN.split("---")[1])["tags"] == ["quire-chat"]


def test_loading_gives_back_the_same_thread() -> None:
    loaded = load(export_markdown(THREAD, thread="lesson", window={"items": []}))
    assert [one.id for one in chain(loaded.entries)] == [one.id for one in chain(THREAD)]
    assert encode_lines(loaded.entries) == encode_lines(THREAD)
    assert (loaded.warnings, loaded.thread, loaded.window) == ((), "lesson", {"items": []})


# Text that looks like everything a chat file is made of.
PIECES = ["**user**: ", "**ai**:", "**user**", "[Context: Notes: a]", "[Timestamp: 2025/01/27 10:00:00]", "<!-- quire: {} -->",
          "<!-- copilot-context: x -->", "-->", "---", "\\", "\n", "\n\n", " ", "\r", "\r\n", "\u2028", "a", "[timestamp:", "é😀"]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=8).map("".join)
names = st.lists(st.one_of(st.sampled_from([*",|]\\ \nn:", "Notes: ", " | ", ", "]), st.text(max_size=4)), max_size=5).map("".join)  # fmt: skip
listed = st.lists(names, max_size=3).map(tuple)
times = st.none() | st.integers(-62_135_596_800, 253_402_300_799).map(lambda s: s * 1000)
messages = st.builds(
    ChatMessage, st.sampled_from(["user", "ai"]), texts, st.builds(AttachedNames, listed, listed, listed, listed), times
)
json_values = json_of(SCALARS | texts, texts, 5)
chats = st.builds(
    Chat, texts, texts, texts, listed, st.lists(messages, max_size=4).map(tuple), st.none() | st.dictionaries(texts, json_values, max_size=3)
)  # fmt: skip


# Whole chats are large; half as many as elsewhere find as much.


@fewer(2)
@given(chats)
def test_parsing_gives_back_any_chat(chat: Chat) -> None:
    text = render(chat)
    again = parse(text)
    assert again == chat
    assert render(again) == text


@given(texts, texts, texts, listed)
def test_front_matter_is_yaml_for_everyone_else_too(
    created: str, model: str, topic: str, tags: tuple[str, ...]
) -> None:
    block = render(Chat(created, model, topic, tags)).split("\n---")[0].removeprefix("---\n")
    try:
        found = yaml.safe_load(block)
    except yaml.reader.ReaderError:
        return  # YAML refuses some characters even in quotes
    assert found["topic"] == topic
    assert found["tags"] == list(tags)


entries = st.lists(
    st.one_of(
        st.builds(values.user, texts, st.lists(names.map(note), max_size=2), at=st.none() | st.integers(-(2**70), 2**70)),
        st.builds(values.respond, texts, at=st.none() | st.integers(0, 2**45)),
        st.builds(values.think, texts),
        st.builds(values.call, texts, texts, st.dictionaries(texts, json_values, max_size=2)),
        st.builds(lambda c: values.result("c1", content=c), texts),
    ),
    max_size=6,
)  # fmt: skip


@fewer(2)
@given(entries)
def test_any_thread_survives_its_chat_file(thread: list[Entry]) -> None:
    loaded = load(export_markdown(thread, thread="t"))
    assert [one.body for one in loaded.entries] == [one.body for one in thread]
    assert loaded.warnings == ()


@fewer(2)
@given(entries)
def test_without_the_comment_what_was_said_survives(thread: list[Entry]) -> None:
    loaded = load(render(project(thread)))
    said = [one for one in thread if one.kind == "user" or (one.kind == "respond" and one.text.strip())]
    assert [(one.kind, one.text) for one in loaded.entries] == [(one.kind, one.text) for one in said]
    for one in loaded.entries:
        check(one.body)


class Vault:
    """Two notes, one of whose names is there twice."""

    def attach(self, name: str) -> list[Item]:
        if name == "gone.md":
            raise NotFound("no note 'gone.md'")
        if name == "twice.md":
            raise CallError("'twice.md' could be a/twice.md or b/twice.md")
        return [item(f"fresh {name}", "text", {"source": "note", "path": name}, id=name)]

    def tagged(self, tag: str) -> list[Item]:
        return self.attach(f"tagged{tag}.md")

    def within(self, folder: str) -> list[Item]:
        return self.attach(f"{folder}/in.md")


OLD = """---
epoch: 1737972000000
modelKey: gpt-4o|openai
topic: "Old talk"
tags:
  - copilot-conversation
---

**user**: Summarize this
[Context: Notes: a.md, gone.md, twice.md | URLs: https://x.y | Tags: #t | Folders: F]
[Timestamp: 2025/01/27 10:00:00]

**ai**: Done.

With two paragraphs.
[Timestamp: Unknown time]

<!-- copilot-context: {"layers": [1,
2]} -->
"""


def test_an_old_chat_loads_with_fresh_notes_and_warnings() -> None:
    loaded = load(OLD, Vault())
    user, answer = loaded.entries
    assert (user.text, user.at) == ("Summarize this", AT)
    assert [one["content"] for one in user.attached] == ["fresh a.md", "fresh tagged#t.md", "fresh F/in.md"]
    assert user.meta == {"context": {"tags": ["#t"], "folders": ["F"]}}
    assert (answer.text, answer.at) == ("Done.\n\nWith two paragraphs.", None)
    assert loaded.chat.created == "2025-01-27T10:00:00Z"
    assert (loaded.chat.model, loaded.chat.topic) == ("gpt-4o|openai", "Old talk")
    assert loaded.warnings == (
        "https://x.y was not fetched: attach its text again",
        "gone.md was skipped: no note 'gone.md'",
        "twice.md was skipped: 'twice.md' could be a/twice.md or b/twice.md",
    )


def test_a_chat_on_another_system_loads_too() -> None:
    windows = "\ufeff" + OLD.replace("\n", "\r\n")
    assert [one.body for one in load(windows).entries] == [one.body for one in load(OLD).entries]


def test_turns_added_to_the_file_are_new_and_their_notes_are_read_now() -> None:
    text = export_markdown(THREAD, thread="t")
    before, _, comment = text.partition("\n<!-- quire: ")
    added = "\n**ai**: Welcome.\n\n**user**: One more\n[Context: Notes: b.md]\n"
    expected = [values.respond("Welcome."), values.user("One more", [*Vault().attach("b.md")])]
    for changed in (f"{before}{added}\n<!-- quire: {comment}", f"{text}{added}"):
        loaded = load(changed, Vault())
        assert [one.body for one in loaded.entries] == [one.body for one in [*THREAD, *expected]]
        assert loaded.warnings == ()


def test_old_turns_come_from_the_comment_and_an_edit_is_told() -> None:
    text = export_markdown(THREAD, thread="t")
    edited = load(text.replace("What is due?\n", "What was due?\n"))
    assert [one.body for one in edited.entries] == [one.body for one in THREAD]
    assert edited.warnings == ("message 1 was edited in the file; the original in the comment is used",)
    shortened = load(text.replace("\n\n**user**: Thanks", ""))
    assert shortened.warnings == ("1 message was removed from the file; the comment still has it",)


def test_what_was_edited_is_read_back_as_a_fork_that_says_so(tmp_path: Path) -> None:
    text = export_markdown(THREAD, thread="lesson")
    cases = [
        # What the fork says, how many entries it shares: the request and the thoughts of an edited answer are not among them.
        (text.replace("What is due?\n", "What was due?\n"), 2, ["What was due?", "Scales.\n**user**: not me\n[Timestamp: never]", "Thanks"]),
        (text.replace("**ai**: Scales.", "**ai**: Chords."), 6, ["Chords.\n**user**: not me\n[Timestamp: never]", "Thanks"]),
        (text.replace("\n\n**user**: Thanks", ""), 8, []),
        (text.replace("**user**: Thanks", "**user**: Thank you\n\n**ai**: Gladly."), 8, ["Thank you", "Gladly."]),
    ]  # fmt: skip
    for number, (edited, behind, said) in enumerate(cases):
        loaded = load(edited, Vault())
        assert [one.body for one in loaded.entries[: len(THREAD)]] == [one.body for one in THREAD]
        assert (loaded.fork.behind, [one.text for one in loaded.fork.entries]) == (behind, said)
        assert all("edited" in one.meta for one in loaded.fork.entries[:1])
        with open_store(tmp_path / f"{number}.db") as store:
            store.append("lesson", THREAD)
            name = read_back(store, "lesson", loaded)
            assert (store.info(name).parent, store.info(name).forked_at) == ("lesson", behind)
            assert [one.text for one in store.read(name)][behind:] == said
            assert read_back(store, "lesson", loaded) == ""
    # A question keeps its attachments when its words change, and reads others when they do.
    fork = load(cases[0][0]).fork
    edit = {"text": "What was due?", "meta": {**THREAD[2].meta, "edited": {"message": 1}}}
    assert fork.entries[0].body == {**THREAD[2].body, **edit}
    other = load(text.replace("Notes: Piano Lessons/Lesson 4.md, ", "Notes: b.md, "), Vault()).fork
    assert other.entries[0].attached[0]["content"] == "fresh b.md"
    assert load(text).fork is None


def test_attachments_are_named_where_readable_and_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("def f(): ...\n")
    page = values.item_json(from_url("https://x", "a page"))
    items = [values.item_json(from_file("a.py")), *map(values.item_json, Vault().attach("n.md")), page]
    thread = [values.attach(items[0]), values.user("One", items), values.respond("1"), values.user("Two", items)]
    window = {"items": [{**items[0], "id": "ctx-1"}], "max_items": 50, "pinned": ["ctx-1"]}
    text = export_markdown(thread, window=window, refer=True, notes=Vault())
    assert [text.count(words) for words in ("def f()", "fresh n.md", "a page")] == [0, 0, 1]
    loaded = load(text, Vault())
    assert encode_lines(loaded.entries) == encode_lines(thread)
    assert (loaded.window, loaded.warnings) == (window, ())
    # A file is opened for what it held, a note also for what it says now; other texts may be handed in.
    Path("a.py").write_text("def g(): ...\n")
    moved = load(text.replace("n.md", "m.md"), Vault())
    assert [one["content"] for one in moved.entries[-1].attached] == ["fresh m.md", "a page"]
    assert moved.window == {"items": [], "max_items": 50, "pinned": []}
    assert moved.warnings == (
        "a.py was skipped: it cannot be read as it was attached",
        "m.md has changed since it was attached; it is read as it is now",
    )
    assert encode_lines(load(text, Vault(), {items[0]["sha256"]: items[0]["content"]}).entries) == encode_lines(thread)


def test_what_an_older_comment_holds_is_used(tmp_path: Path) -> None:
    block = "<note_context>\n<title>a</title>\n<path>a.md</path>\n<content>\nas it was\n</content>\n</note_context>"
    held = {
        "layers": [
            {"id": "L1_SYSTEM", "text": "Be kind.", "segments": [{"id": "system", "content": "Be kind."}]},
            {"id": "L3_TURN", "segments": [{"id": "a.md", "content": block}, {"id": "https://x.y", "content": "page"}]},
            {"id": "L5_USER", "segments": [{"id": "query", "content": "Summarize this"}]},
        ],
        "entries": [{"id": "extra.md", "type": "note", "content": "unnamed"}],
    }
    loaded = load(OLD.replace('{"layers": [1,\n2]}', json.dumps(held)), Vault())
    system, user, _ = loaded.entries
    assert system.text == "Be kind."
    fresh = [(name, f"fresh {name}") for name in ("tagged#t.md", "F/in.md")]
    wanted = [("https://x.y", "page"), ("a.md", "as it was"), *fresh, ("extra.md", "unnamed")]
    assert [(identity(one), one["content"]) for one in user.attached] == wanted
    assert len(loaded.warnings) == 2


def test_a_damaged_comment_leaves_the_text() -> None:
    text = export_markdown(THREAD, thread="t")
    cut = load(text[: text.index("<!-- quire") + 200])
    assert [one.text for one in cut.entries if one.kind == "user"][:1] == ["What is due?"]
    bad = load(text.replace('"kind":"user"', '"kind":"usher"'))
    assert bad.warnings[0].startswith("the comment cannot be read")
    assert [one.kind for one in bad.entries] == ["user", "respond", "user"]


def test_what_is_no_chat_file_is_an_error() -> None:
    with pytest.raises(FormatError, match="no chat file"):
        load("# Just a note\n")
    with pytest.raises(FormatError, match="version 2"):
        load('---\ntopic: x\n---\n\n<!-- quire: {"version":2,"entries":[]} -->\n')
    with pytest.raises(CallError, match="whole second"):
        render(Chat(messages=(ChatMessage("user", "x", at=1),)))


def test_a_thread_is_saved_to_a_folder_and_edits_are_kept(tmp_path: Path, store: Store) -> None:
    store.append("lesson", THREAD)
    first = autosave(store, "lesson", tmp_path / "chats" / "deep")
    assert first.path.name == "lesson.md"
    assert first.changed
    assert not autosave(store, "lesson", first.path.parent).changed
    store.append("lesson", [values.user("More")])
    assert autosave(store, "lesson", first.path.parent).kept is None
    first.path.write_text(first.path.read_text() + "\n**user**: by hand\n")
    again = autosave(store, "lesson", first.path.parent)
    assert "by hand" in again.kept.read_text()
    assert [one.body for one in load(again.path.read_text()).entries] == [one.body for one in store.read("lesson")]
    assert sorted(one.name for one in first.path.parent.iterdir()) == ["lesson (edited 1).md", "lesson.md"]


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_every_thread_has_a_file_name_of_its_own(a: str, b: str) -> None:
    names = {file_name(one) for one in (a, b)}
    assert len(names) == len({a, b})
    assert not any(set(name) & set('/\\:*?"<>|\0') for name in names)


def test_the_commands_write_and_read_chat_files(home: Path) -> None:
    with open_store(home / "quire.db") as store:
        store.append("lesson", THREAD)
    written = run("export", "lesson", "--to", "markdown")
    assert written == export_markdown(THREAD, thread="lesson")
    (home / "vault" / "moved").mkdir(parents=True)
    (home / "vault" / "moved" / "n.md").write_text("fresh")
    Path("chat.md").write_text(written + "\n**user**: New\n[Context: Notes: old place/n.md, gone.md]\n")
    told = invoke("import", "chat.md", "--from", "markdown", "--thread", "again", "--vault", "vault").stderr
    assert "warning: gone.md was skipped: there is no note 'gone.md'" in told
    Path("edited.md").write_text(written.replace("**user**: Thanks", "**user**: Thanks a lot"))
    told = run("import", "edited.md", "--from", "markdown", "--thread", "third")
    assert told.endswith("third@8: 1 entry behind the first 8 of third, as edited in the file\n")
    run("export", "lesson", "--to", "markdown", "--vault", "vault")
    with open_store(home / "quire.db") as store:
        assert store.read("third@8")[-1].text == "Thanks a lot"
        *old, new = store.read("again")
        assert [one.id for one in old] == [one.id for one in store.read("lesson")]
    assert [(one["content"], one["metadata"]["path"]) for one in new.attached] == [("fresh", "moved/n.md")]


def test_a_reply_that_broke_off_and_came_again_is_shown_once() -> None:
    sent = {"kind": "sent", "provider": "vllm", "model": "m", "request_sha256": "0" * 64, "segments": []}
    used = {**sent, "usage": {"input_total": 3, "output": 2}, "stop": "end"}
    thread = [values.user("How hot?"), Entry("sent", sent), values.respond("Eighty deg"), Entry("sent", sent)]
    thread += [values.respond("Eighty degrees."), Entry("sent", used)]
    text = export_markdown(thread)
    said = [(one.role, one.text) for one in load(text).chat.messages]
    assert said == [("user", "How hot?"), ("ai", "Eighty degrees.")]
    assert [one.body for one in load(text).entries] == [one.body for one in thread]
    # As long as it was not asked for again, what came is all there is.
    assert "**ai**: Eighty deg" in export_markdown(thread[:3])
