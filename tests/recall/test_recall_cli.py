from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quire import values
from quire.cli.main import quire
from quire.engine import open_store
from quire.errors import MissingPart
from quire.recall import embed


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def missing() -> None:
        raise MissingPart("the embedding model is not installed")

    monkeypatch.setattr(embed, "minilm", missing)
    file = tmp_path / "q.db"
    with open_store(file) as store:
        store.append(
            "demo",
            [values.user("My API key?"), values.respond("It starts with sk-or-v1-."), values.user("Hi")],
        )
        store.append("other", [values.user("A key for the door")])
    return file


def run(*args: str | Path) -> Result:
    done = CliRunner(env={"COLUMNS": "160"}).invoke(quire, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_recall_prints_a_table_and_says_when_it_searched_by_words_alone(db: Path) -> None:
    done = run("recall", "api key", "--db", db, "--explain", "--k", "2", "--thread", "demo")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0].split() == [
        "thread",
        "seq",
        "kind",
        "score",
        "words",
        "meaning",
        "speaker",
        "manner",
        "time",
        "text",
    ]
    assert lines[1].endswith("My API key?")
    assert len(lines) == 3
    assert "by words alone (no embedding model is installed)" in done.stderr


def test_recall_prints_json_with_the_entries_and_their_reasons(db: Path) -> None:
    out = json.loads(run("recall", "key", "--db", db, "--json", "--neighbours", "1").stdout)
    assert out["by"] == "words"
    assert {hit["thread"] for hit in out["hits"]} == {"demo", "other"}
    first = next(hit for hit in out["hits"] if hit["thread"] == "demo")
    assert first["entry"]["body"]["text"] == "My API key?"
    assert [entry["seq"] for entry in first["neighbours"]] == [1, 2]
    assert sum(first["parts"].values()) == pytest.approx(first["score"], abs=1e-4)


def test_index_reports_what_it_made(db: Path) -> None:
    assert json.loads(run("index", "--db", db, "--json").stdout) == {
        "meaning": False,
        "worded": 0,
        "embedded": 0,
        "words": 0,
    }
    done = run("index", "--db", db, "--rebuild")
    assert done.stdout == "words of 4 entries, meaning of 0 entries and 0 words\n"
    assert "no embedding model" in done.stderr
