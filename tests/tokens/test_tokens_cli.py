"""`quire tokens FILE [--model M] [--json]`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.cli.format import tokens
from quire.errors import CallError, FormatError
from quire.tokens import count


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n" * 100)
    return path


def test_tokens_prints_the_count_and_the_vocabulary(file: Path) -> None:
    out = CliRunner().invoke(tokens, [str(file)], catch_exceptions=False).output
    assert out == f"{count(file.read_text()).tokens:,} tokens (o200k_base)\n"


def test_an_estimate_is_marked_and_explained(file: Path) -> None:
    out = CliRunner().invoke(tokens, [str(file), "--model", "no-such-model"], catch_exceptions=False).output
    assert out.startswith("~")
    assert "estimate" in out
    assert "no-such-model is unknown" in out


def test_json_holds_everything(file: Path) -> None:
    args = [str(file), "--model", "openai:gpt-4", "--json"]
    assert json.loads(CliRunner().invoke(tokens, args, catch_exceptions=False).output) == {
        "tokens": count(file.read_text(), "gpt-4").tokens,
        "exact": True,
        "vocabulary": "cl100k_base",
        "factor": 1.0,
        "model": "openai:gpt-4",
        "bytes": 4500,
        "note": "",
    }


def test_standard_input_is_a_dash() -> None:
    assert CliRunner().invoke(tokens, ["-"], input="Hello, world").output == "3 tokens (o200k_base)\n".replace(
        "3", str(count("Hello, world").tokens)
    )


def test_what_cannot_be_read_is_an_error_with_a_place(tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"missing\.txt"):
        CliRunner().invoke(tokens, [str(tmp_path / "missing.txt")], catch_exceptions=False)
    (tmp_path / "bad").write_bytes(b"ok\nbad \xff")
    with pytest.raises(FormatError, match="line 2, column 5"):
        CliRunner().invoke(tokens, [str(tmp_path / "bad")], catch_exceptions=False)
