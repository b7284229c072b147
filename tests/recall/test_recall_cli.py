import json
from pathlib import Path

import pytest

from hashed_words import HashedWords
from quire import open_store, values
from quire.cli import log, record
from quire.errors import CallError
from quire.recall import meaning
from toolbox import invoke, run


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(meaning, "find_weights", lambda: None)
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "q.db"
    with open_store(file) as store:
        store.append(
            "demo", [values.user("My API key?"), values.respond("It starts with sk-or-v1-."), values.user("Hi")]
        )
        store.append("other", [values.user("A key for the door")])
    return file


def test_recall_prints_a_table_and_says_when_it_searched_by_words_alone(db: Path) -> None:
    done = invoke("recall", "api key", "--db", db, "--explain", "--k", "2", "--thread", "demo")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert " ".join(lines[0].split()) == "thread seq kind score words meaning speaker speech time name text"
    assert lines[1].endswith("My API key?")  # it holds all that is asked; what answers it has taken it over
    assert lines[2].endswith("It starts with sk-or-v1-.")
    assert len(lines) == 3
    assert done.stderr == (
        "searched by words alone: the embedding model is not installed (quire local install minilm)\n"
    )


def test_of_a_long_entry_what_was_asked_for_is_shown(db: Path) -> None:
    lines = [f"line {n} says nothing of note" for n in range(60)]
    with open_store(db) as store:
        store.append("long", [values.respond("\n".join([*lines[:40], "the harbour code is K-77", *lines[40:]]))])
    (row,) = run("recall", "harbour code", "--db", db, "--thread", "long", "--words").splitlines()[1:]
    assert "line 0 says nothing ... the harbour code is K-77" in row


def test_recall_prints_json_with_the_entries_and_their_reasons(db: Path) -> None:
    out = json.loads(run("recall", "key", "--db", db, "--json", "--neighbours", "1"))
    assert out["by"] == "words"
    assert {hit["thread"] for hit in out["hits"]} == {"demo", "other"}
    first = next(hit for hit in out["hits"] if hit["seq"] == 1 and hit["thread"] == "demo")
    assert first["entry"]["body"]["text"] == "My API key?"
    assert [entry["seq"] for entry in first["neighbours"]] == [1, 2]
    assert sum(first["parts"].values()) == pytest.approx(first["score"], abs=1e-4)


def test_neighbours_stand_around_their_hit_and_only_the_hit_has_a_score(db: Path) -> None:
    done = invoke("recall", "starts", "--db", db, "--thread", "demo", "--neighbours", "1", "--words", "--k", "1")
    rows = [line.split()[:4] for line in done.stdout.splitlines()[1:]]
    assert [row[:3] for row in rows] == [["demo", "1", "user"], ["demo", "2", "respond"], ["demo", "3", "user"]]
    assert [row[3] for row in rows] == ["My", "1.41", "Hi"]
    assert done.stderr == ""


def test_recall_searches_records_too(db: Path) -> None:
    run("record", "create", "--schema", "note.v1", "--context", '{"text": "The key is in the vault"}', "--db", db)
    run("record", "create", "--schema", "note.v1", "--context", '{"text": "Lunch at noon"}', "--db", db)
    done = invoke("recall", "which vault?", "--scope", "records", "--explain", "--db", db)
    heads, line = [line.split() for line in done.stdout.splitlines()]
    assert heads == ["id", "schema", "score", "words", "meaning", "speaker", "speech", "time", "name", "text"]
    assert line[:2] == ["rec-1", "note.v1"]
    out = json.loads(run("recall", "which vault?", "--scope", "records", "--json", "--db", db))
    assert (out["by"], [hit["id"] for hit in out["hits"]]) == ("words", ["rec-1"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--before", "3"], "--before needs a thread"),
        (["--scope", "thread"], "--scope thread needs a thread"),
        (["--scope", "records", "--thread", "demo"], "exclude each other"),
        (["--scope", "records", "--kinds", "user"], "about entries, not about records"),
        (["--kinds", "think"], "entries of kind 'think' are not searched"),
    ],
)
def test_wrong_options_are_told_in_the_words_of_the_command_line(db: Path, options: list[str], said: str) -> None:
    with pytest.raises(CallError) as raised:
        run("recall", "key", "--db", db, *options)
    assert said in str(raised.value)
    assert "=…" not in raised.value.hint


def test_recall_says_when_vectors_are_not_made_yet(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log, record):
        monkeypatch.setattr(module, "embedder", HashedWords)
    done = invoke("recall", "key", "--db", db, "--json")
    assert done.stderr == "4 entries not indexed by meaning yet, found by words alone: run `quire index`\n"
    assert json.loads(done.stdout)["without_meaning"] == 4
    run("record", "create", "--schema", "note.v1", "--context", '{"text": "a key"}', "--db", db)
    assert run("index", "--db", db) == "indexed the meaning of 4 entries and 1 record\n"
    assert run("index", "--db", db) == "the index was up to date\n"
    assert invoke("recall", "key", "--db", db).stderr == ""
    again = json.loads(run("index", "--rebuild", "--json", "--db", db))
    assert again == {"meaning": True, "worded": 4, "embedded": 4, "records": 1}


def test_index_reports_what_it_made(db: Path) -> None:
    nothing = {"meaning": False, "worded": 0, "embedded": 0, "records": 0}
    assert json.loads(run("index", "--db", db, "--json")) == nothing | {"worded": 4}
    assert json.loads(run("index", "--db", db, "--json")) == nothing
    done = invoke("index", "--db", db, "--rebuild")
    assert done.stdout == "indexed the words of 4 entries\n"
    assert "the embedding model is not installed" in done.stderr


def test_what_says_nothing_is_no_hit(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log, record):
        monkeypatch.setattr(module, "embedder", HashedWords)
    with open_store(db) as store:
        store.append("demo", [values.user(""), values.user(" \n")])
    run("record", "create", "--schema", "empty.v1", "--db", db)
    run("record", "create", "--schema", "user.message.v1", "--title", "key", "--context", "{}", "--db", db)
    run("index", "--db", db)
    hits = json.loads(run("recall", "nothing of all this", "--db", db, "--json", "--k", "4"))["hits"]
    assert sorted(hit["seq"] for hit in hits) == [1, 1, 2, 3]
    assert run("recall", "key", "--scope", "records", "--db", db) == "nothing was found\n"


@pytest.mark.parametrize("command", [["recall"], ["record", "search"]])
def test_both_searches_want_words_and_say_when_they_found_nothing(db: Path, command: list[str]) -> None:
    for blank in ("", " "):
        with pytest.raises(CallError, match="nothing to look for") as raised:
            run(*command, blank, "--db", db)
        assert " ".join(command) in raised.value.hint
    assert run(*command, "xylophone", "--db", db) == "nothing was found\n"


def test_recall_says_when_nothing_it_found_has_to_do_with_the_query(db: Path) -> None:
    question = "which api did the carpenter of Lisbon paint blue?"
    assert invoke("recall", question, "--words", "--db", db).stderr == "nothing relevant was found; the nearest:\n"
    assert json.loads(run("recall", question, "--words", "--db", db, "--json"))["relevant"] is False
    assert json.loads(run("recall", "api key", "--words", "--db", db, "--json"))["relevant"] is True
