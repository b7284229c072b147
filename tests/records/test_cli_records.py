"""`quire record` and `quire build` from the shell: what they print, and how they fail."""

import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CallError, ConflictError, DataError, FormatError, NotFound
from records.chatter import CONVERSATION, GOLDEN, REQUEST
from toolbox import invoke

pytestmark = pytest.mark.usefixtures("home")


def printed(*arguments: str, **how: Any) -> Any:
    return json.loads(invoke(*arguments, **how).stdout)


def create(**fields: Any) -> Any:
    return printed("record", "create", "-", "--json", stdin=json.dumps(fields))


def test_a_record_goes_from_options_to_json_and_back() -> None:
    made = invoke(
        "record", "create", "--schema", "note.v1", "--title", "Plan", "--tag", "a", "--tag", "b",
        "--context", '{"text": "x", "secret": 1}', "--hints", '{"exclude": ["secret"]}', "--owner", "me",
    )  # fmt: skip
    assert made.stdout == "rec-1 version 1\n"
    shown = printed("record", "get", "rec-1")
    assert shown["context"] == {"text": "x"}
    assert "llm_hints" not in shown
    full = printed("record", "get", "rec-1", "--full")
    assert full["context"] == {"text": "x", "secret": 1}
    assert (full["llm_hints"], full["owner"], full["tags"]) == ({"exclude": ["secret"]}, "me", ["a", "b"])


def test_files_give_one_record_a_list_json_lines_or_a_context(tmp_path: Path) -> None:
    record = {"schema_name": "note.v1", "context": {"n": 1}}
    (tmp_path / "one.json").write_text(json.dumps(record, indent=2))
    (tmp_path / "list.json").write_text(json.dumps([record, record]))
    (tmp_path / "lines.jsonl").write_text(f"{json.dumps(record)}\n\n{json.dumps(record)}\n")
    assert invoke("record", "create", "one.json", "--title", "T").stdout == "rec-1 version 1\n"
    assert printed("record", "get", "rec-1")["title"] == "T"
    assert [one["id"] for one in printed("record", "create", "list.json", "--json")] == ["rec-2", "rec-3"]
    assert [one["id"] for one in printed("record", "create", "lines.jsonl", "--json")] == ["rec-4", "rec-5"]
    (tmp_path / "bad.jsonl").write_text(f'{json.dumps(record)}\n{{"schema_name": 1}}\n')
    with pytest.raises(FormatError, match=r"^bad\.jsonl: a record needs a schema_name"):
        invoke("record", "create", "bad.jsonl")
    assert len(printed("record", "list", "--json")) == 5
    invoke("record", "create", "--schema", "s", "--context", "@one.json")
    assert printed("record", "get", "rec-6")["context"] == record


def test_updates_conflict_by_version_and_history_keeps_all() -> None:
    create(schema_name="s", context={"n": 1}, tags=["x"])
    assert invoke("record", "update", "rec-1", "--version", "1", "--context", '{"n": 2}').stdout == "rec-1 version 2\n"
    with pytest.raises(ConflictError, match="rec-1 is at version 2"):
        invoke("record", "update", "rec-1", "--version", "1", "--title", "late")
    with pytest.raises(CallError, match="schema of a record never changes"):
        invoke("record", "update", "rec-1", "-", "--version", "2", stdin='{"schema_name": "t"}')
    assert [one["context"] for one in printed("record", "history", "rec-1", "--json")] == [{"n": 1}, {"n": 2}]
    assert printed("record", "get", "rec-1", "--version", "1")["context"] == {"n": 1}
    more = ("--hints", '{"exclude": ["n"]}', "--owner", "me", "--ttl", "1000")
    assert printed("record", "update", "rec-1", "--version", "2", *more, "--json")["version"] == 3
    assert printed("record", "get", "rec-1")["context"] == {}
    found = printed("record", "get", "rec-1", "--full")
    assert (found["owner"], found["expires_at"] is not None) == ("me", True)
    assert "rec-1" in invoke("record", "history", "rec-1").stdout


def test_lists_and_searches_filter_by_tag_and_schema() -> None:
    create(schema_name="a.v1", context={"text": "red apples"}, tags=["x"], title="Fruit")
    create(schema_name="b.v1", context={"text": "green apples"}, tags=["y"])
    assert [one["id"] for one in printed("record", "list", "--tag", "y", "--json")] == ["rec-2"]
    assert [one["id"] for one in printed("record", "list", "--schema", "a.v1", "--json")] == ["rec-1"]
    hits = printed("record", "search", "apples", "--words", "--json")
    assert [one["relevance"] for one in hits] == [1.0, 0.0]
    assert invoke("record", "search", "red", "--words").stdout.split()[4:6] == ["1.00", "rec-1"], "it is the best one"
    assert [one["id"] for one in hits] == ["rec-2", "rec-1"]
    assert "context" not in hits[0]
    (hit,) = printed("record", "search", "apples", "--tag", "x", "--include-context", "--json")
    assert hit["context"] == {"text": "red apples"}
    assert printed("record", "search", "apples", "--nn", "1", "--schema", "b.v1", "--json")[0]["id"] == "rec-2"
    assert "green apples" in invoke("record", "search", "green").stdout


def test_a_ttl_expires_by_the_clock_and_purge_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.cli.record.now_ms", lambda: 1_000)
    invoke("record", "create", "--schema", "s", "--ttl", "5")
    monkeypatch.setattr("quire.cli.record.now_ms", lambda: 6_000)
    with pytest.raises(NotFound, match="has expired"):
        invoke("record", "get", "rec-1")
    assert printed("record", "list", "--json") == []
    assert invoke("record", "purge").stdout == "purged 1\n"


def test_deleting_is_for_good() -> None:
    create(schema_name="s", context={})
    assert invoke("record", "delete", "rec-1", "--version", "1", "--yes").stdout == "deleted rec-1\n"
    for command in ("get", "history", "delete"):
        with pytest.raises(NotFound):
            invoke("record", command, "rec-1")


def test_deleting_names_what_goes_and_asks_unless_it_is_of_another_version() -> None:
    create(schema_name="note.v1", title="Plan", context={})
    invoke("record", "update", "rec-1", "--version", "1", "--tag", "work")
    with pytest.raises(CallError, match="nobody answered, and nothing was deleted") as silence:
        invoke("record", "delete", "rec-1")
    assert "--yes" in silence.value.hint
    with pytest.raises(CallError, match="rec-1 was not deleted"):
        invoke("record", "delete", "rec-1", stdin="n\n")
    with pytest.raises(ConflictError):
        invoke("record", "delete", "rec-1", "--version", "1", stdin="y\n")
    assert printed("record", "get", "rec-1")["version"] == 2
    agreed = invoke("record", "delete", "rec-1", "--json", stdin="y\n")
    assert agreed.stderr.startswith("Delete record rec-1 (note.v1 'Plan') with 2 versions for ever? [y/N]: ")
    assert json.loads(agreed.stdout) == {"deleted": "rec-1"}


def test_hints_that_fail_are_reported_beside_the_context() -> None:
    create(schema_name="s", context={"a": 1}, llm_hints={"transform": {"x": {"template": "{{#if a}}"}}})
    shown = printed("record", "get", "rec-1")
    assert shown["context"] == {"a": 1}
    assert shown["error"] == "transform.x: template: line 1, column 1: {{#if}} is never closed"


CONFIG = {
    "consumer_id": "chat",
    "sources": [
        {"schema_name": "tool.catalog.v1", "method": "latest"},
        {"schema_name": ["user.message.v1", "agent.response.v1"], "method": "vector"},
    ],
    "update_triggers": [{"schema_name": "user.message.v1"}],
}


def talk() -> None:
    keys = {"user": ("user.message.v1", "content"), "assistant": ("agent.response.v1", "message")}
    lines = [{"schema_name": keys[who][0], "context": {keys[who][1]: text}} for who, text in CONVERSATION]
    invoke("record", "create", "-", stdin=json.dumps(lines))


def test_build_prints_message_2_of_the_seed_and_keeps_it() -> None:
    expected = (GOLDEN / "message2.txt").read_text()
    assert invoke("record", "catalog", str(GOLDEN / "tools.json")).stdout == "rec-1 version 1: 11 tools\n"
    talk()
    create(schema_name="context.config.v1", context=CONFIG)
    assert invoke("build", "chat", "--request", REQUEST, "--dry-run").stdout == expected
    message = invoke("record", "create", "--schema", "user.message.v1", "--context", json.dumps({"content": REQUEST}))
    assert (message.stdout, message.stderr) == ("rec-9 version 1\n", "context of chat is rec-10 version 1\n")
    assert invoke("build", "chat").stdout == expected
    assert invoke("build", "chat", "--trigger", "rec-9").stdout == expected
    kept = printed("record", "get", "rec-10")
    assert kept["version"] == 1
    assert kept["context"]["formatted_context"] + "\n\n# Current Request\n" + REQUEST == expected
    assert invoke("build", "chat", "--context-only").stdout == kept["context"]["formatted_context"]
    explained = printed("build", "chat", "--json")
    assert (explained["text"], explained["record"], explained["left_out"]) == (expected, "rec-10", [])


def test_build_takes_a_configuration_from_a_file(tmp_path: Path) -> None:
    talk()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "# Relevant Conversation" in invoke("build", "chat", "--config", "config.json", "--request", REQUEST).stdout
    with pytest.raises(CallError, match="configures 'chat', not 'other'"):
        invoke("build", "other", "--config", "config.json", "--request", REQUEST)
    with pytest.raises(NotFound, match="has the consumer_id 'chat'"):
        invoke("build", "chat", "--request", REQUEST)
    with pytest.raises(CallError, match="exclude each other"):
        invoke("build", "chat", "--request", REQUEST, "--trigger", "rec-1")
    (tmp_path / "untriggered.json").write_text(json.dumps({**CONFIG, "update_triggers": []}))
    with pytest.raises(CallError, match="no record triggers this consumer"):
        invoke("build", "chat", "--config", "untriggered.json")


def test_a_broken_configuration_is_a_warning_beside_the_new_record() -> None:
    create(schema_name="context.config.v1", context={"consumer_id": "x", "sources": [{"method": "magic"}]})
    made = invoke("record", "create", "--schema", "s")
    assert made.stdout == "rec-2 version 1\n"
    assert made.stderr == "warning: rec-1: source 1 has no method 'magic'\n"


@pytest.mark.parametrize(
    ("arguments", "error", "message", "hint"),
    [
        (["create"], CallError, "needs a schema", ""),
        (["create", "nowhere.json"], CallError, "cannot read nowhere.json", ""),
        (["create", "--schema", "s", "--context", "{"], CallError, "--context is not JSON", '{"text"'),
        (["create", "--schema", "s", "--context", "[]"], CallError, "context is an object", '{"text"'),
        (["create", "--schema", "s", "--hints", "[]"], DataError, "llm_hints is an object", ""),
        (["create", "--schema", "s", "--ttl", "-1"], CallError, "positive number of seconds", ""),
        (["get", "x"], CallError, "'x' is not the id of a record", ""),
    ],
)
def test_a_bad_call_says_what_is_wrong(arguments: list[str], error: Any, message: str, hint: str) -> None:
    create(schema_name="s", context={})
    with pytest.raises(error) as raised:
        invoke("record", *arguments)
    assert message in str(raised.value)
    assert hint in raised.value.hint


def test_records_are_listed_by_owner_and_the_last_so_many() -> None:
    for owner in ("me", "you", "me"):
        create(schema_name="s", context={}, owner=owner)
    assert [one["id"] for one in printed("record", "list", "--owner", "me", "--json")] == ["rec-1", "rec-3"]
    assert [one["id"] for one in printed("record", "list", "--limit", "2", "--json")] == ["rec-2", "rec-3"]


def test_unknown_fields_are_named() -> None:
    with pytest.raises(FormatError, match="standard input: a record has no field 'schema' to set"):
        create(schema="s")


@pytest.mark.parametrize("version", ["0", "-1", "2", "9" * 23])
def test_a_version_that_never_was_is_not_found(version: str) -> None:
    made = create(schema_name="note.v1", context={})
    with pytest.raises(NotFound, match=f"has versions 1 to 1, not {version}"):
        invoke("record", "get", made["id"], f"--version={version}")
