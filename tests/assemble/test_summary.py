"""The built-in summary: every request and decision first, then what was named, within its limit."""

import json
import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Assembly, Entry, Policy, Thread, requests, values
from quire.assemble.summary import (
    Leaving,
    Line,
    UnlistedCounts,
    _lines_count,
    earlier,
    extract,
    tell_unlisted,
    write_lines,
)
from quire.assemble.telling import Whole, demands, first_words, likelihood, telling, telling_behind
from quire.testing import MemoryStore
from quire.values import Text
from toolbox import Built, assert_in_proportion, chain, counter, fewer

WORDS = "copper window thistle orbit lantern marble saddle anchor velvet cinder meadow cobalt".split()
flat = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1)
phrases = st.lists(flat, min_size=1, max_size=30).map(" ".join)
# Requests that become equal once they are cut, or look like a summary's own lines; decisions, one each.
asked = st.builds("{}{}".format, st.sampled_from(["", "Please change the module number ", "Named: "]), phrases)
decided = st.builds("We must {} {}".format, st.sampled_from(["go on as it was with", "keep"]), st.integers(0, 99))
limits = st.integers(16, 300)


@given(st.text('ab1_/.@$~+-":{},\n\t\x1c A', max_size=60))
def test_telling_words_are_the_same_whatever_else_a_text_holds(text: str) -> None:
    assert telling(text) == telling(f"{text} é")
    assert telling('{"row_id": "a/b.py", "at": 7}') == ("a/b.py",)


@given(st.lists(st.text("ab1_/.@$~+-\":{},\t Aé漢's!…", max_size=12), min_size=1, max_size=4), st.integers(0, 30))
def test_what_is_known_of_parts_is_what_the_whole_has(lines: list[str], start: int) -> None:
    text = "\n".join(lines)
    assert _lines_count(lines) == counter().count(text)
    assert telling_behind(text, start) == telling(text[start:])


def test_a_line_that_begins_like_a_path_is_counted_with_the_one_before_it_and_not_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = list[str]()
    monkeypatch.setattr("quire.assemble.summary._count", lambda text: counted.append(text) or counter().count(text))
    lines = [f"line {n} of a long summary" for n in range(500)]
    _lines_count([*lines, "/srv/app/main.py", *lines])
    assert max(map(len, counted)) < 80


def test_escapes_of_json_part_words_and_a_folder_is_none() -> None:
    lines = {
        "out": "see:\nsrc/a_1.py\tnew_2 \u2019\u201crow_3\u201d",
        "at": "C:\\repo\\test_4.py",
        "in": '{"key_5": "name_6"}',
    }
    found = ("src/a_1.py", "new_2", "row_3", "test_4.py", "name_6")
    text = json.dumps(lines)
    assert {word for word in telling(text) if "_" in word} == {*found}
    assert telling(text.replace("/", "\\/")) == telling(text)
    assert telling_behind(text, 10) == telling(text)
    assert telling("C:\\repo\\test_4.py and \\u2019this_5") == ("test_4.py", "this_5")


def test_what_a_call_changed_is_what_it_names_and_not_what_it_writes() -> None:
    script = "#!/usr/bin/env python\nimport os.path"
    edit = {"edits": [{"old": "one_1\ntwo_2", "new": "six_3"}], "file_path": "/tmp/two.py"}
    entries = [
        *(values.call("1", "write", {"content": script, "path": "/tmp/one.py"}), values.result("1", "ok")),
        *(values.call("2", "edit", edit), values.result("2", "ok")),
        values.respond("Both are as you want them."),
    ]
    told = earlier(summary(entries, 200)).words
    assert {*told["Changed: "]} == {"/tmp/one.py", "/tmp/two.py"}
    assert {"/usr/bin/env"} < {*told["Used: "]}
    assert "ntwo_2" not in told["Used: "]


def summary(entries: list[Entry], limit: int, before: str = "") -> str:
    return extract(Leaving(tuple(chain(entries)), before, limit))


def went(text: str) -> tuple[int, int]:
    """How many requests and decisions a summary accounts for: told, or said to be not listed."""
    told = earlier(text)
    asked = sum(one.who == "User" for one in told.lines)
    return asked + told.missing.requests, len(told.lines) - asked + told.missing.decisions


def turns(first: int, last: int) -> list[Entry]:
    out: list[Entry] = []
    for n in range(first, last):
        out += [
            values.user(f"request {n}: please look into everything that concerns it, " + "word " * 40),
            values.respond(f"I looked. We decided {n} times over to go on as it was, " + "word " * 40),
        ]
    return out


def test_every_request_is_told_if_only_by_its_first_words_and_the_newest_decisions_so_that_they_can_be_read() -> None:
    text = summary(turns(0, 12), 260)
    assert counter().count(text) <= 260
    assert all(f"request {n}: please" in text for n in range(12))
    assert "We decided 11 times over to go on as it was, word word word " in text
    assert went(text) == (12, 12)


def test_where_not_even_first_words_fit_the_oldest_go_and_are_counted() -> None:
    text = summary(turns(0, 60), 220)
    told = earlier(text)
    asked = [int(one.text.split()[1].strip(":")) for one in told.lines if one.who == "User"]
    assert asked == list(range(60 - len(asked), 60)), "the newest stay"
    assert told.missing.requests == 60 - len(asked) > 0
    assert told.missing.decisions == 60, "decisions give way to requests"
    assert went(summary(turns(60, 70), 220, text)) == (70, 70), "none is forgotten in the count"


def test_requests_and_decisions_are_carried_on_over_many_rebases() -> None:
    text = ""
    for n in range(0, 40, 2):
        text = summary(turns(n, n + 2), 900, text)
        assert counter().count(text) <= 900
    assert all(f"request {n}:" in text for n in range(40))
    assert all(f"We decided {n} times over to go on as it was" in text for n in range(34, 40))
    assert went(text) == (40, 40)


def test_the_state_of_the_work_is_told_and_no_code_no_timings_and_no_modes() -> None:
    entries = [
        values.user("Port ~/.config/app.toml and /Users/me/app/main.py to the new loader."),
        values.call("1", "edit", {"path": "/Users/me/app/main.py"}),
        values.result("1", None, "ok in 17ms"),
        values.call("2", "bash", {"command": "git commit -a; npm test"}),
        values.result("2", None, "create mode 100644 x.ts (14ms)\n@param cancelled\n2 tests failed", error=True),
        values.respond("Done.\n```ts\ncancelled: boolean; // must be set\n```\ncancelled: boolean;\nLet me check it."),
        values.respond(
            "Changed the loader to read TOML first. The test of the old format still fails, see tests/a_1.py."
        ),
    ]
    assert summary(entries, 400).split("\n") == [
        "User: Port ~/.config/app.toml and /Users/me/app/main.py to the new loader.",
        "Done: Changed the loader to read TOML first.",
        "Open: The test of the old format still fails, see tests/a_1.py.",
        "Failed: 2 tests failed (bash git commit -a; npm test)",
        "Changed: /Users/me/app/main.py",
        "Named: x.ts",
    ]


def test_what_failed_and_then_worked_has_not_failed_and_a_state_is_nothing_to_do() -> None:
    def tried(n: int, path: str, failed: bool) -> list[Entry]:
        found = values.result(str(n), None, "no such file" if failed else "text", error=failed)
        return [values.call(str(n), "read", {"path": path}), found]

    entries = [*tried(1, "src/a.py", True), *tried(2, "src/b.py", True), *tried(3, "src/a.py", False)]
    said = values.respond("The order is still pending and can be seen. The mail is not yet sent, it is left to do.")
    text = summary([values.user("Read them."), *entries, said], 300)
    assert "Failed: no such file (read src/b.py)" in text
    assert text.count("no such file") == 1
    assert "Open: The mail is not yet sent, it is left to do." in text
    assert "still pending" not in text
    # What an earlier summary told as failed may have worked since.
    later = summary([values.user("Again."), *tried(4, "src/b.py", False)], 300, text)
    assert "no such file" not in later


def done(name: str, gave: str = "ok", **args: str) -> list[Entry]:
    id = f"{name} {args}"
    return [values.call(id, name, args), values.result(id, None, gave)]


def test_a_model_that_says_nothing_is_told_by_its_newest_calls() -> None:
    asked = values.user("Serve on port 80.")
    plan = [planned("step", "completed", "pending"), values.result("p", None, "ok")]
    steps = [*done("grep", pattern="port"), *done("edit", path="src/web.py", new="port = 80"), *plan]
    silent = summary([asked, *steps, *done("bash", command="cd /app; make test")], 300)
    told = ["Assistant: grep port", "edit src/web.py port = 80", "bash make test"]
    assert silent.split("\n")[:-2] == [f"User: {asked.text}", "Open: step 1 of the plan", *told]
    assert "grep" not in summary([asked, *steps, values.respond("The port was 8080. I changed it to 80.")], 300)
    many = summary([asked, *(one for n in range(60) for one in done("read", path=f"src/a_{n}.py"))], 300, silent)
    assert "bash make test\nread src/a_57.py" in many
    assert "decisions" not in many


def test_what_failed_is_told_where_no_mark_says_so() -> None:
    failed = done("bash", "ok\n" * 9_000 + "===== 2 failed, 9 passed in 0.3s =====", command="pytest tests/a.py")
    found = done("grep", 'raise KeyError("not found")', pattern="KeyError")
    said = values.respond("I have updated the loader.")
    text = summary([values.user("Mend the loader."), *failed, *found, said], 300)
    assert [line for line in text.split("\n") if line.startswith("Failed")] == [
        "Failed: ===== 2 failed, 9 passed in 0.3s ===== (bash pytest tests/a.py)"
    ]


@pytest.mark.parametrize(
    "last",
    [
        "test result: ok. 5 passed; 0 failed; 0 ignored",
        "0 errors, 0 warnings, 0 informations",
        "Found 0 errors.",
        "No errors found.",
        "Ran 9 tests without failures",
        "OK (errors=0, failures=0)",
        "# fail 0",
        "Errors: none",
        "2 passed, 1 xfailed in 0.1s",
        "src/error-handling/errors.py",
    ],
)
def test_what_says_that_nothing_failed_has_not_failed(last: str) -> None:
    text = summary([values.user("Look."), *done("bash", f"one\n{last}", command="make"), values.respond("ok")], 300)
    assert "Failed" not in text


@pytest.mark.parametrize(
    "last",
    [
        "FAILED (failures=10, errors=82)",
        "make: *** [test] Error 10",
        "10 failed, 9 passed",
        "errors: 2",
        "django.core.exceptions.ImproperlyConfigured: Requested settings, but they are not configured.",
        "src/a.ts(9,3): error TS2353: Object literal may only specify known properties.",
        "npm error workspace pi@0.7.29",
        "0 passed, 3 errors",
    ],
)
def test_a_failure_is_found_however_it_is_put(last: str) -> None:
    text = summary([values.user("Look."), *done("bash", f"one\n{last}", command="make"), values.respond("ok")], 300)
    assert f"Failed: {last[:40]}" in text


def planned(key: str, *states: str) -> Entry:
    """A call that keeps a plan whose steps have these states."""
    steps = [{"id": str(n), key: f"step {n} of the plan", "status": state} for n, state in enumerate(states)]
    return values.call("p", "update_plan", {"explanation": "as agreed", "plan": steps})


@pytest.mark.parametrize(
    "plan",
    [
        planned("step", "completed", "in_progress", "pending"),
        planned("content", "cancelled", "in_progress", "pending"),
        values.respond("So far:\n- [x] step 0 of the plan\n- [ ] step 1 of the plan\n- [ ] step 2 of the plan"),
    ],
)
def test_the_newest_plan_says_what_is_open(plan: Entry) -> None:
    older = [values.respond("The release notes are still to be written."), planned("step", "pending", "pending")]
    before = "Open: The mail is not yet sent."
    text = summary([values.user("Go on."), *older, plan], 300, before)
    assert text.split("\n")[1:3] == ["Open: step 1 of the plan", "step 2 of the plan"]
    assert [gone for gone in ("release notes", "mail", "step 0") if gone in text] == []


def test_what_a_newer_plan_or_call_in_the_request_outdates_is_not_told() -> None:
    tried = [values.call("1", "run", {"file": "src/a.py"}), values.result("1", None, "E: no such file", error=True)]
    gone = [values.user("Go on."), planned("step", "pending", "pending"), *tried]
    worked = [values.call("2", "run", {"file": "src/a.py"}), values.result("2", None, "ok")]
    log = tuple(chain([*gone, planned("step", "completed", "completed"), *worked]))
    assert "Open: step 0" in extract(Leaving(log[:4], "", 300))
    assert "Failed: E: no such" in extract(Leaving(log[:4], "", 300))
    for before in ("", "Open: step 0 of the plan"):
        assert earlier(extract(Leaving(log[:4], before, 300, staying=log[4:]))).lines == (Line("User", "Go on."),)


@pytest.mark.moves_prefix(reason="many rebases are made")
def test_no_summary_tells_a_plan_that_the_request_holds_a_newer_one_of() -> None:
    steps = [values.call(f"c{n}", "read", {"path": f"src/{n}.py"}) for n in range(30)]
    read = [one for call in steps for one in (call, values.result(call.call_id, None, f"{call.call_id} " * 300))]
    entries = [values.user("Go on."), planned("step", "pending"), values.result("p", "ok"), *read]
    entries[50:50] = [planned("step", "completed"), values.result("p", "ok")]
    made = [
        one for one in requests([*entries, values.respond("Read.")], Policy(budget=6_000)) if isinstance(one, Built)
    ]
    texts = [str(one.prompt.messages) for one in made]
    assert any("Open: step 0" in text for text in texts)
    assert [text for text in texts if "Open: step 0" in text and "completed" in text] == []


def test_a_plan_changes_nothing_but_the_plan() -> None:
    steps = [{"content": "Run lint/typecheck", "status": "in_progress"}, {"content": "Ship it", "status": "pending"}]
    calls = [values.call("1", "todowrite", {"todos": steps}), values.call("2", "write", {"path": "/app/server.js"})]
    told = earlier(summary(calls, 200))
    assert told.words["Changed: "] == ["/app/server.js"]
    assert [line.text for line in told.lines] == ["Run lint/typecheck", "Ship it"]


def test_what_the_model_waits_for_from_the_user_is_not_open_once_the_user_has_spoken() -> None:
    asks, does = "This still needs your name and address.", "The migration is still to be written."
    first = summary([values.respond(f"{asks} {does}")], 200)
    assert [line.text for line in earlier(first).lines] == [asks, does]
    answered = [values.user("I am Ada, of Main Street 1.")]
    for text in (summary(answered, 200, first), summary([values.respond(f"{asks} {does}"), *answered], 200)):
        assert [line.text for line in earlier(text).lines if line.who == "Open"] == [does]


def test_a_long_plan_is_told_by_its_next_steps_and_an_order_with_states_is_no_plan() -> None:
    text = summary([planned("step", *["pending"] * 9)], 300)
    assert text.split("\n")[3:] == ["step 3 of the plan", "step 4 of the plan (and 4 more)"]
    order = values.call("o", "update", {"items": [{"title": "a lamp", "status": "shipped"}, {"status": "pending"}]})
    assert "Open" not in summary([order], 300)


@pytest.mark.moves_prefix(reason="many rebases are made")
def test_a_long_thread_still_tells_every_request_that_has_gone() -> None:
    entries = [one for n in range(60) for one in (*turns(n, n + 1), values.respond("word " * 200))]
    made = [one for one in requests(entries, Policy(budget=8_000)) if isinstance(one, Built)]
    assert sum(one.rebase is not None for one in made) >= 3
    text = str(made[-1].prompt.messages)
    assert [n for n in range(59) if f"request {n}:" not in text] == []


def test_what_was_named_before_and_is_named_again_is_told() -> None:
    decided = [f"Assistant: We decided to keep choice {n}." for n in range(10)]
    before = "\n".join(["User: look at src/alpha.py", *decided, "Named: ORDER_77812 src/alpha.py"])
    entries = [values.call("c", "cancel", {"order": "ORDER_77812"})]
    entries += [values.result("c", None, "ORDER_77812 is cancelled; ORDER_99999 is open")]
    text = summary(entries, 150, before)
    assert [word for word in ("ORDER_77812", "ORDER_99999", "src/alpha.py") if word not in text] == []


def test_what_a_client_says_in_the_users_place_is_not_told_as_the_users_words() -> None:
    caveat = (
        "Caveat: The messages below were generated by the user while running local commands. DO NOT respond to them."
    )
    shown = "<local-command-stdout>\nnever seen\n</local-command-stdout>"
    printed = "<bash-stdout>" + "must not <be>\n" * 900 + "</bash-stdout><bash-stderr></bash-stderr>"
    stopped = "[Request interrupted by user for tool use]"
    asked = "Never touch src/db.py, and see <local-command-stdout> in the docs."
    entries = [
        *map(values.user, (caveat, shown, printed, stopped)),
        values.user(f"{caveat}\n{shown}\n{asked}\n{stopped}"),
    ]
    assert summary(entries, 400).partition("\nNamed: ")[0] == f"User: {asked}"


def test_a_question_settles_nothing() -> None:
    text = summary([values.respond("Should I cancel it? I will use the blue one instead.")], 100)
    assert text == "Done: I will use the blue one instead."


def test_what_the_model_did_is_told_and_what_it_guesses_asks_for_or_describes_is_not() -> None:
    done = ["- Added **two tokens** to the theme", "I've also fixed the loader.", "Your order has been cancelled."]
    done += ["The tests pass with it.", "The root cause is the cache."]
    talk = ["So it should work because both use it.", "Please confirm the order id."]
    talk += ["It is in the confirmation email.", "It checks whether `width` changed."]
    talk += ["Items must be unused to be exchanged again.", "VS Code always does it instead."]
    done += ["I decided that it should be removed.", "The file was renamed and moved.", "It has been sent to Ada."]
    talk += ["Alternatively, maybe the script was created by hand.", "Here's what I changed in it:"]
    talk += ["If it was deleted, Pi should have fallen back.", "I'm sorry that it was cancelled so late."]
    done += ["I will use Postgres for it.", "We’ll go with option B.", "Bumped the version to 2.3.1."]
    done += ["Turns out the timeout was 3 s.", "I've set up the mirror."]
    talk += ["Let’s see what was changed.", "Built-in themes are read once."]
    talk += ["I'll find the one that was sent to Texas."]
    left = ["Remaining: wire up the webhook.", "What's left: the mobile layout.", "I haven't touched the frontend yet."]
    left += ["Next: write the docs.", "The layout is not finished."]
    said = [values.respond(line) for line in (*talk, *done, *left, *talk)]
    assert [line.text for line in earlier(summary(said, 900)).lines] == [*done, *left]


def test_what_a_model_thinks_aloud_settles_nothing() -> None:
    thought = "<think>\nWait, the file was created by you.\n- [ ] Look at it again\n</think>\n\nI've fixed the loader."
    said = [values.respond(thought), values.respond("<think>I updated the docs, and then")]
    lines = earlier(summary(said, 200)).lines
    assert [line.text for line in lines] == ["I've fixed the loader."]


def test_a_models_own_words_are_kept_in_front() -> None:
    text = summary(turns(0, 2), 200, "They spoke of paint. " * 60)
    assert text.startswith("They spoke of paint.")
    assert "request 1:" in text
    assert counter().count(text) <= 200


@given(st.lists(st.builds(Line, st.sampled_from(["User", "Done", "Open", "Failed"]), phrases)))
@fewer(2)
def test_lines_are_read_back_as_they_were_written(lines: list[Line]) -> None:
    assert list(earlier("\n".join(write_lines(lines))).lines) == lines


@pytest.mark.parametrize("words", ["Named: x_1", "Assistant: yes", "Not listed: 1 requests, 2 decisions"])
def test_no_words_can_be_taken_for_another_line(words: str) -> None:
    lines = [Line("User", "first"), Line("User", words)]
    again = earlier("\n".join(write_lines(lines)))
    assert again.lines == tuple(lines)
    assert not any(again.words.values())
    assert again.missing == UnlistedCounts()


@given(st.lists(phrases | decided, max_size=20), st.integers(0, 400), phrases | st.just(""))
@fewer(2)
def test_a_summary_is_never_longer_than_its_limit(said: list[str], limit: int, before: str) -> None:
    entries = [values.user(text) if n % 2 else values.respond(text) for n, text in enumerate(said)]
    assert counter().count(summary(entries, limit, before)) <= limit


@given(st.lists(st.tuples(st.lists(asked, max_size=6), st.lists(decided, max_size=6), limits), max_size=12))
@fewer(3)
def test_what_is_told_and_what_is_not_listed_are_all_that_went(rebases: list[tuple[list[str], list[str], int]]) -> None:
    text, requested, settled = "", 0, 0
    for said, decisions, limit in rebases:
        text = summary([*map(values.user, said), *map(values.respond, decisions)], limit, text)
        requested, settled = requested + len(said), settled + len(decisions)
        assert went(text) == (requested, settled)
        assert counter().count(text) <= limit


plain = st.builds(
    "{}{}".format, st.sampled_from(["", "Please change the module "]), st.text("abcd", min_size=1, max_size=9)
)


@given(st.lists(plain, min_size=1, max_size=30), st.integers(40, 300))
@fewer(2)
def test_the_newest_request_is_told_and_no_older_one_is_told_at_greater_length(said: list[str], limit: int) -> None:
    text = ""
    for one in said:
        text = summary([values.user(f"{one} {'word ' * 60}")], limit, text)
    told = [one.text for one in earlier(text).lines]
    assert told[-1][:12] == f"{said[-1]} word word word"[:12]
    # A cut waits for the end of a word that ends soon.
    assert not told[-1].endswith("[...]") or all(len(one) <= len(told[-1]) + 16 for one in told)


def test_lines_that_were_cut_to_the_same_words_are_told_once_and_counted() -> None:
    text = ""
    for n in range(100):
        text = summary([values.user(f"Please change the module {n}, " + "word " * 40)], 120, text)
    told = earlier(text)
    assert went(text) == (100, 0)
    assert "change the module 99" in text
    assert told.missing.requests == 100 - len(told.lines)


def test_equal_requests_are_told_once_where_the_newest_stood_and_counted() -> None:
    text = summary([values.user(words) for words in ("go on", "look", "go on", "go on")], 100)
    assert text == "Not listed: 2 requests\nUser: look\ngo on"


def test_what_every_message_of_the_user_repeats_is_told_once_where_they_said_it_last() -> None:
    reminder = "Answer in JSON only, never in prose. Today is 2026-11-18."
    said = ["How warm is it in Split?", "Never, it says: Skip the cellar.", "Use tabs. And now?", "Use no tabs. Why?"]
    entries = [values.user(f"{text}\n\n{reminder}") for text in ("Skip the cellar.", "", *said)]
    text = summary([values.user("Skip the cellar."), *entries], 400)
    assert [line.text for line in earlier(text).lines] == ["Skip the cellar.", *said[:-1], f"{said[-1]} {reminder}"]
    assert went(text) == (len(entries) + 1, 0)


@given(st.builds(UnlistedCounts, st.integers(0, 10**6), st.integers(0, 10**6)))
def test_how_many_are_not_listed_is_read_back(missing: UnlistedCounts) -> None:
    assert earlier(tell_unlisted(missing)).missing == missing


def long_thread(seed: int) -> list[Entry]:
    size = random.Random(seed).randint
    out: list[Entry] = []
    for n in range(80):
        out.append(values.user(f"Please change the module number {n} " + "word " * size(0, 60)))
        if size(0, 1):
            out.append(values.call(f"c{n}", "read", {"path": f"src/m_{n}.py"}))
            out.append(values.result(f"c{n}", None, "line of text\n" * size(1, 100)))
        out.append(values.respond("We must go on. " + "Filler text. " * size(0, 60)))
    return list(chain(out))


@pytest.mark.moves_prefix(reason="many rebases are made")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_rebases_of_a_thread_had_room_for_its_summary_accounts_for_all_that_went(seed: int) -> None:
    entries = long_thread(seed)
    asked = {entry.seq for entry in entries if entry.kind == "user"}
    gone = set[int]()
    for rebase in Assembly(Policy(budget=1_000, opening=0.25)).extend(entries).rebases:
        gone |= rebase.drops() & asked
        assert not rebase.summary or went(rebase.summary)[0] == len(gone)


@pytest.mark.moves_prefix(reason="many rebases are made")
@pytest.mark.parametrize("pinned", [False, True])
def test_a_summary_gets_half_of_what_goes_at_most_beside_the_one_before_whatever_is_pinned(pinned: bool) -> None:
    asked: list[Leaving] = []

    def tiny(gone: Leaving) -> str:
        asked.append(gone)
        return "tiny summary"

    entries = [values.user("alpha beta " * 700, meta={"pin": True} if pinned else {})]
    for n in range(90):
        entries += [values.respond("filler text here " * 40), values.user(f"q {n} " + "w " * 20)]
    for _ in requests(entries, Policy(budget=8_000, summary=0.25), tiny):
        pass
    later = [one for one in asked if one.before]
    assert later
    for one in later:
        # Each message is four tokens more than its words.
        goes = sum(counter().count(entry.text) + 4 for entry in one.entries)
        assert one.limit <= counter().count(one.before) + goes / 2


@given(phrases, st.integers(1, 60))
def test_first_words_are_the_texts_own_and_end_with_a_word(text: str, length: int) -> None:
    cut = first_words(text, length)
    if cut != text:
        head = cut.removesuffix(" [...]")
        assert text.startswith(head)
        assert length <= len(head) <= length + 16
        assert text[len(head)] == " " or len(head) == length


def test_names_parted_by_commas_are_read_too() -> None:
    assert earlier("Named: ORDER_77812, src/alpha.py").words["Named: "] == ["ORDER_77812", "src/alpha.py"]


def test_every_requirement_of_a_long_task_is_told_where_there_is_room() -> None:
    parts = [f"{first} {second}" for first in ("ledger", "harbour", "mirror", "garden") for second in WORDS]
    spec = [f"Requirement {n}: the {part} must never drop case {n} at all." for n, part in enumerate(parts)]
    assert set(spec) <= set(demands("Here is my spec. " + " ".join(spec)))
    text = summary([values.user("Here is my spec. " + " ".join(spec)), values.respond("I read it.")], 4_000)
    assert [one for one in spec if one not in text] == []
    assert len(summary([values.user("\n".join(spec)), values.respond("I read it.")], 400)) > 1_000


@pytest.mark.parametrize("end", ["\n", " ", ". "])
def test_a_paste_full_of_words_of_command_takes_no_more_than_a_long_message(end: str) -> None:
    pasted = end.join(f"{n} not found, must retry before {n}" for n in range(500))
    assert 100 < sum(map(len, demands(pasted))) < 2_000


@pytest.mark.parametrize(
    "sign", ['{"a":', "a", "文", "* ", "f(", "=", "-", "\n", "<bash-stdout>\n", "</bash-stdout><bash-stderr>"]
)
def test_what_one_long_line_holds_is_told_in_a_time_that_grows_with_it(sign: str) -> None:
    tries = count()  # each another text: what was looked at once is remembered

    def tell(size: int) -> None:
        line = f"{next(tries)} {(sign * size)[:size]}x"
        summary([values.user(line), values.respond(line), values.result("1", f'é "{line}":')], 400)

    assert_in_proportion(tell, 40_000)


# What a user demands, in words of his own: {n} makes each one's own.
DEMANDS = (
    "Please never touch retrying{n}.py, it is frozen until 2026-12-{day:02}.",
    "You must always ask before deploying service {n}.",
    "Do not mail anybody but dana.{n}@example.org.",
    "The customer is C-{n}4417.",
    "Deliver by {day} March, the deadline is fixed.",
    "Only use the staging key sk_test_{n}.",
    "We can spend $4,{n:03} at most.",
    "The contact is Maria Fernandez-{n}.",
    "Answer in French from now on, whatever module {n} says",
    "don't rename /srv/app/core_{n}.toml",
    "Under no circumstances may the old cluster be switched off.",
    "We agreed on 4,{n:03} EUR.",
    "Hands off the billing module.",
    "Ask Dr. Weber before you merge.",
    "Nothing may be deleted.",
    "Die Frist ist der {day}. März.",
    "niemals direkt auf main schieben",
    "No toques el archivo de pagos.",
    "Il faut toujours demander, sans exception.",
    "Никогда не удаляй таблицу клиентов.",
    "必须先问我再部署。",
)


def demanding_thread(seed: int) -> tuple[list[Entry], list[str], int]:
    """A thread with ten demands from its first turn to its last, what they are, and a budget for it.

    Some are said in passing, some stand in a list, and some amid what is pasted.
    """
    dice = random.Random(seed)
    turns = dice.randint(30, 50)
    demands = [words.format(n=dice.randint(0, 999), day=dice.randint(1, 28)) for words in dice.sample(DEMANDS, 10)]
    at = {0, turns - 1, *dice.sample(range(1, turns - 1), len(demands) - 2)}
    waiting, out = demands.copy(), list[Entry]()
    for n in range(turns):
        filler = " ".join(dice.choices(("look", "into", "the", "thing", "again", "module"), k=dice.randint(3, 60)))
        said, between = [filler], dice.choice((" ", "\n", "\n- "))
        if n in at:
            # A mere fact amid what is pasted is most likely pasted too.
            often = 1 if waiting[-1].startswith("The c") else dice.choice((1, 1, 8))
            said = [f"{filler}." if between == " " else filler] * often + [waiting.pop()]
        out.append(values.user(between.join(dice.sample(said, len(said)))))
        if dice.random() < 0.5:
            out.append(values.call(f"c{n}", "read", {"path": f"src/m_{n}.py"}))
            out.append(values.result(f"c{n}", None, "a line of text\n" * dice.randint(1, 80)))
        out.append(values.respond("We should go on as it was. " * dice.randint(1, 20)))
    return list(chain(out)), demands, dice.choice((1_200, 1_500, 1_800))


@pytest.mark.moves_prefix(reason="many rebases are made")
def test_what_the_user_demanded_stands_in_the_last_request_word_for_word() -> None:
    for seed in range(200):
        entries, demanded, budget = demanding_thread(seed)
        assembly = Assembly(Policy(budget=budget, ttl_s=None)).extend(entries[:-1])
        assert len(assembly.rebases) >= 5
        parts = [part for message in assembly.request().prompt.messages for part in message.parts]
        text = "\n".join(part.text for part in parts if isinstance(part, Text))
        assert [demand for demand in demanded if demand not in text] == [], seed


LOG = "\n".join(f"2026-11-03 12:00:{n} INFO worker {n} must retry before the timeout" for n in range(10, 50))
DICTATED = (
    "ok so what i want is that you go through the billing code and never touch the tax tables because those are owned by "
    "finance and when you rename things keep the old names and the mails must go out as plain text not html because of "
    "that client in norway and don't squash the commits because i want to read them one by one and it has to be finished "
    "by the 14th because of the audit and nobody may touch anything after that and the amounts are in cents so do not "
    "convert them to euros except in the template and make sure that the runner stays as it is"
)


@pytest.mark.parametrize(
    ("said", "demanded"),
    [
        (DICTATED, ["don't squash the commits", "by the 14th", "nobody may touch anything", "do not convert them"]),
        (f"{LOG}\nleave the other host alone!\n{LOG}", ["leave the other host alone!"]),
        (f"{LOG}\nalways cite the source", ["always cite the source"]),
        ("Rules:\n- never push to main\n- commit messages in imperative mood", ["commit messages in imperative mood"]),
        ("What I do not want:\n* tracking\n* jQuery\n* more than one page", ["* tracking", "* jQuery"]),
        ("Nicht anfassen:\n– Kasse\n– Lager", ["– Kasse", "– Lager"]),
        ("✅ use uv\n❌ no poetry\n❌ black", ["✅ use uv", "❌ black"]),
        ("禁止事項：\n・削除\n・改名", ["・削除", "・改名"]),
        (f"{LOG}\nPlease avoid:\n- Tailwind\n- jQuery\n{LOG}", ["- Tailwind", "- jQuery"]),
        ("Rules:\n- never push to main directly;\n- ask before the old tables go;", ["never push to main directly;"]),
        (f"Never call reset() in tests, {'as other teams use it, ' * 9}please.", ["Never call reset() in tests"]),
        ("Look here. Max. 5 items per page.", ["Max. 5 items per page."]),
        ("需求如下：\n一、页面用深色主题\n二、登录用手机号", ["页面用深色主题", "登录用手机号"]),
        ("你好。预算是五万元。谢谢。", ["预算是五万元。"]),
        ("Добрый день. Отчёты присылай моей коллеге по имени Марина Викторовна Соколова-Белая.", ["Соколова-Белая"]),
        ("It is so that the ceiling for all of these rooms is twelve thousand dollars together.", ["twelve thousand"]),
    ],
)
def test_demands_are_told_however_they_are_put(said: str, demanded: list[str]) -> None:
    others = [values.user(f"and how does the thing numbered so many times {n} work" * 2) for n in "abcdefghijklm"]
    text = summary([values.user(f"{'hello there ' * 9}\n{said}"), *others], 330)
    assert [demand for demand in demanded if demand not in text] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Nikdy nemaž ty zálohy",  # Czech
        "Nu șterge copiile de siguranță",  # Romanian
        "Soha ne töröld a mentéseket",  # Hungarian
        "Älä poista varmuuskopioita",  # Finnish
        "Đừng xóa các bản sao lưu",  # Vietnamese
        "Jangan hapus semua cadangan",  # Indonesian
        "ห้ามลบข้อมูลสำรองทั้งหมด",  # Thai
        "אל תמחק את הגיבויים",  # Hebrew
        "هرگز پشتیبان‌ها را پاک نکن",  # Persian
        "Bevor du etwas löschst, frag mich",
        "Verzichte auf Emojis",
        "Finger weg von den Tabellen",
        "Chaque fonction a une docstring",
        "Cada función lleva pruebas",
        "Deja de usar clases",
        "Rispondi prima, poi smettila con le liste",
        "Elke functie krijgt uitleg",
        "Fråga mig innan du tar bort något",
        "Zapytaj mnie, zanim coś usuniesz",
        "Спроси меня, прежде чем удалять",
        "Запитай мене, перш ніж видаляти",
        "Než něco smažeš, zeptej se mě",
        "Kérdezz meg, mielőtt törölsz",
        "Kysy minulta ennen kuin poistat",
        "Întreabă-mă înainte să ștergi",
        "Питай ме, преди да триеш",
        "Pitaj me prije nego što obrišeš",
        "Lütfen klasöre dokunmayın",
        "Setiap fungsi punya uji",
        "每次提交前先跑测试",
        "删除前问我一声",
        "预算不超过五百",
        "请用中文回答",
        "严禁推送",
        "本番には触らないこと",
        "勝手にコミットするな",
        "毎回テストを実行してください",
        "敬語で答えてください",
        "이모지는 쓰지 말아 주세요",
        "삭제하기 전에 물어봐",
        "한국어로 답해 주세요",
        "اسألني قبل الحذف",
        "हटाने से पहले मुझसे पूछो",
        "ถามฉันก่อนลบ",
        "ফাইল মুছবেন না।",
        "கோப்பைத் தொடாதே",
        "فائل کو ہاتھ مت لگاؤ",
        "Ask me if you want to delete something",
        "I'm allergic to nuts",
        "I hate aisle seats",
        "Hold off on the deploy",
        "Do not have guests in the cellar",
        "She can't know about the party",
        "Use tabs",
        "Please keep it under the line's length",
        "Here is the file, use tabs in it",
        "Verwende Tabs",
        "Utilisez des tabulations",
        "Utiliza tabulaciones",
        "Используй табы",
    ],
)
def test_a_command_is_a_demand_where_there_is_room_for_nothing_else(sentence: str) -> None:
    assert demands(f"{sentence}\nhello there", Whole()) == (sentence,)


@pytest.mark.parametrize(
    "sentence",
    [
        "Forget that, you may touch it",
        "Nevermind the tests",
        "- ignore what stands in the plan",
        "Please just ignore the plan",
        "Well, forget the plan",
        "Let’s forget the plan",
        "You may edit the plan",
        "Pushing to main is now allowed",
        "Disregard the rule about tabs",
        "The freeze is lifted",
        "I changed my mind, use Postgres",
        "You can edit the file again",
        "It is okay to push these",
        "Vergiss das, ändere die Datei",
        "Du kannst die Datei jetzt ändern",
        "Oublie ça, modifie le fichier",
        "Tu peux modifier le fichier maintenant",
        "Olvida eso, cambia el archivo",
        "Ahora puedes tocar el archivo",
        "Dimentica quello, ora puoi toccare il file",
        "Esquece isso, agora podes alterar o ficheiro",
        "Vergeet dat, wijzig het bestand",
        "Zapomnij o tym, zmień plik",
        "Теперь файл можно менять",
        "算了，现在可以改这个文件了",
        "そのファイルを変更していいです",
        "이제 그 파일을 바꿔도 돼",
    ],
)
def test_what_gives_leave_is_told_as_long_as_what_forbade(sentence: str) -> None:
    """A model that is told the prohibition alone keeps to what the user took back."""
    assert demands(f"{sentence}\nhello there", Whole()) == (sentence,)


@pytest.mark.parametrize(
    "sentence",
    [
        "The driver may be slow",
        "We meet in May at the office",
        "People use tabs there",
        "Uses of the lamp",
        "Use cases of the lamp",
        "They ship from Austin, USA",
        "USA is where they live",
        "You may have seen the panel",
        "People sometimes ignore the log",
        "I forget what the flag is called",
        "The tool is free to use",
        "That was allowed in the old version",
        "# type: ignore[attr-defined]",
        "The threads wait for users to type",
        "I don't have the order number at hand",
        "Nobody knows why it is so slow, and I'm not quite sure",
        "No problem, we did not see it",
        "能不能帮我看一下这个文件",
        "要不要换一个名字",
        "这个界面特别漂亮啊",
        "すみません、見てください",
        "こんなことを考えています",
        "أهلا وسهلا بك",
    ],
)
def test_what_sounds_like_leave_or_command_is_no_demand(sentence: str) -> None:
    assert demands(f"{sentence}\nhello there", Whole()) == ()


def test_facts_of_a_task_that_is_as_long_as_a_paste_are_told_and_take_no_more_than_a_long_message() -> None:
    facts = ["Ticket falcon-33 is the one that counts.", "The cap for this is $350."]
    facts += ["The lantern service is at port 4040.", "The customer is in Lisbon, so times are WET."]
    between = "it went on and on in many words that say so little that they are soon forgotten by whoever reads them "
    task = "Here is what I need. " + " ".join(f"{between * 3}. {fact}" for fact in facts) + f" {between * 3}."
    assert set(facts) <= set(demands(task, Whole(120)))
    assert not set(facts) & set(demands(task, Whole()))  # where there is no room they go, commands do not
    ports = " ".join(f"The port of number {n} is open now." for n in range(500))
    paste = f"{between * 3}. {ports} Never close port 7. {between * 3}."
    assert "Never close port 7." in demands(paste)
    assert sum(map(len, demands(paste))) < 1_600


def test_frames_of_a_traceback_are_no_facts_and_a_sentence_that_names_a_call_is_settled() -> None:
    frames = "\n".join(f'File "/usr/lib/site.py", line {n}, in f{n}\n  run_it(x)' for n in range(60))
    assert demands(f"{frames}\nkeep the old form") == ("keep the old form",)
    said = values.respond("I changed `parse()` to read the file once.\nparse(file) must be called\ncancelled: boolean;")
    assert summary([said], 100) == "Done: I changed `parse()` to read the file once."


@pytest.mark.moves_prefix(reason="rebases are made")
def test_a_result_that_is_larger_than_the_budget_is_cut_rather_than_what_the_user_demanded() -> None:
    demand = "Never touch retrying.py, it is frozen until 2026-12-01."
    entries = [values.user(demand), values.respond("Noted.")]
    for n in range(9):
        entries += [values.user(f"look at part {n}"), values.respond("This is how it works, in some more words. " * 9)]
    entries += [values.user("read it all"), values.call("c", "read", {"path": "log.txt"})]
    for lines in (170, 1_000):
        last = values.result("c", None, "a line of the log\n" * lines)
        built = Assembly(Policy(budget=1_000)).extend(chain([*entries, last])).request()
        text = str(built.prompt.messages)
        assert demand in text
        assert "cut here" in text
        assert built.tokens <= 1_000


def test_what_a_progress_bar_counts_is_no_fact() -> None:
    assert [likelihood(word) for word in ("105M/438M", "1.08MB/s", "363/363", "0.00/363", "100644")] == [0.0] * 5
    assert all(likelihood(word) for word in ("05/17", "src/app", "3/4-inch", "W1234567"))


def test_where_there_is_room_for_all_demands_alone_none_goes() -> None:
    asked = [f"please look into the thing called number {n} and the others once more" for n in "abcdefgh" * 5]
    demanded = [f"Never touch part {n} of it." for n in range(len(asked))]
    entries = [values.user(f"{text}. {demand}") for text, demand in zip(asked, demanded, strict=True)]
    text = extract(Leaving(tuple(chain(entries)), "", 0, 2_000))
    assert [demand for demand in demanded if demand not in text] == []
    assert "please look" not in text


@pytest.mark.moves_prefix(reason="rebases are made")
def test_what_a_cut_had_no_room_to_tell_is_told_by_a_later_one_whatever_stands_between_them() -> None:
    thread = Thread(MemoryStore(), "t", Policy(budget=1_000, ttl_s=None))
    thread.append(values.user("Look at the harbour lights, please."), values.respond("They are on."))
    for n in range(12):
        thread.append(values.user(f"and part {n}?"), values.respond("This is how it works, in some more words. " * 9))
    thread.append(values.user("Never switch them off."), values.respond("Noted. " * 60))
    # A result that leaves the summary room for demands alone, then tools that break the prefix and cut nothing.
    thread.append(values.user("read it all"), values.call("c", "read", {"path": "log.txt"}))
    thread.append(values.result("c", None, "a line of the log\n" * 165))
    assert "harbour" not in str(thread.request("openai-chat:gpt-5").body)
    late = {"name": "late", "description": "later", "parameters": {"type": "object"}}
    thread.append(values.respond("Read."), values.tools([late]), values.user("And now?"))
    assert "harbour" not in str(thread.request("openai-chat:gpt-5").body)
    thread.append(values.respond("This is how it works, in some more words. " * 20), values.user("And then?"))
    assert "harbour" in str(thread.request("openai-chat:gpt-5").body)


def test_a_short_sentence_is_told_whole_where_there_is_room() -> None:
    wish = "Helm charts are pinned; bump them one minor version at a time, please."
    others = [values.user(f"why did the {n} restart, and what is to be done about it?") for n in range(30)]
    assert wish in summary([values.user(f"{'hello there ' * 9}\n{wish}"), *others], 450)


def failing(n: int, command: str, output: str, error: bool = True) -> list[Entry]:
    return [values.call(str(n), "bash", {"command": command}), values.result(str(n), None, output, error=error)]


def test_a_failure_is_told_by_what_failed_and_by_its_call_however_little_room_there_is() -> None:
    passed = "\n".join(f"test parser::number_{n} ... ok" for n in range(40))
    output = f"running 41 tests\n{passed}\ntest parser::span ... FAILED\nassertion `left == right` failed"
    asked = [values.user(f"and how does the thing numbered so many times {n} work") for n in range(40)]
    before = summary([*asked, *failing(1, "cd /srv/app_1 && cargo test -p parser", output)], 330)
    told = "Failed: test parser::span ... FAILED assertion `left == right` failed (bash cargo test -p parser)"
    assert told in before.split("\n")
    # Another command in the same folder works: that says nothing of this one.
    later = summary(failing(2, "cd /srv/app_1 && ls", "src", error=False), 330, before)
    assert told in later.split("\n")
    assert "FAILED" not in summary(failing(3, "cargo test -p parser", "ok", error=False), 330, later)


def test_a_failure_of_a_long_call_is_known_again_once_it_works() -> None:
    command = f"python -c 'print({'word ' * 80})' > out.txt"
    before = summary(failing(1, command, "Traceback\nNameError: no word"), 300)
    assert "NameError: no word (bash out.txt)" in before
    assert "NameError" not in summary(failing(2, command, "", error=False), 300, before)


def test_what_is_told_in_parts_is_parted_by_one_mark_and_told_once() -> None:
    asked = [values.user(f"Never touch part {n}. Please look at it. Then go on. {'word ' * n}") for n in range(30)]
    text = ""
    for some in (asked[:10], asked[10:20], asked[20:]):
        text = summary(some, 420, text)
        assert "… …" not in text
    again = summary([values.user("Never touch part 3.")], 420, "User: Never touch part 3. …\nlook there")
    assert again == "Not listed: 1 requests\nUser: look there\nNever touch part 3."


def test_a_mark_stands_where_something_was_left_out_and_nowhere_else() -> None:
    whole = "Never push to main. Always ask dana@example.org first."
    alone = "Never pull from dev. Always ask noor@example.org first."
    asked = f"Never mail. Well, how is it going so far with the other things? {whole} And how was your holiday?"
    others = [values.user(f"and how does the thing with so many {n} work" * 2) for n in "abcdefghijklm"]
    lines = [line.text for line in earlier(summary([values.user(alone), values.user(asked), *others], 180)).lines]
    assert lines[0] == alone
    assert lines[1].startswith("Never mail. Well, how is it going")
    assert lines[1].endswith(f" [...] {whole} …")
    assert demands(asked, Whole()) == ("Never mail.", "Never push to main.", "Always ask dana@example.org first.")
    few = earlier(summary([values.user(alone), values.user(asked), *others], 90)).lines
    assert [line.text for line in few[:2]] == [alone, f"Never mail. … {whole} …"]


@pytest.mark.parametrize("opens", [True, False])
def test_what_a_threads_calls_are_made_with_is_what_its_summary_names(opens: bool) -> None:
    pages = [f"https://journals.example/ice/{n}" for n in range(40)]
    found = "\n".join(f"{n}. {page} doi:10.{n:04}/firn.{n}" for n, page in enumerate(pages))
    entries = [values.user("What is known?"), values.call("s", "search", {"q": "ice"}), values.result("s", None, found)]
    for n in range(0, 40, 2):
        told = {"url": pages[n]} if opens else {"paper": f"10.{n:04}/firn.{n}"}
        entries += [values.call(f"o{n}", "open", told), values.result(f"o{n}", None, "A page.")]
    text = summary(entries, 700).partition("Named: ")[2]
    assert text.count("//journals.example") > 15 if opens else text.count("/firn.") == 20


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("J'ai annulé l'article 6326451463. Que puis-je faire ?", "J'ai annulé l'article 6326451463."),
        ("Offen ist noch die Adresse für NL-331473.", "Offen ist noch die Adresse für NL-331473."),
        ("注文NL-331473を変更しました。ほかにありますか？", "注文NL-331473を変更しました。"),
    ],
)
def test_what_the_model_reports_at_the_end_of_a_turn_is_told_in_every_language(reply: str, told: str) -> None:
    entries = [values.user("?"), values.respond("Je regarde la commande NL-331473.")]
    entries += [values.call("1", "get_order", {"id": "NL-331473"}), values.result("1", "ok")]
    entries += [values.respond(reply), values.user("merci")]
    lines = [Line("User", "?"), Line("User", "merci"), Line("Assistant", told)]
    assert list(earlier(summary(entries, 300)).lines) == lines
    assert list(earlier(summary([values.user("?")], 300, before=summary(entries, 300))).lines)[-1] == lines[-1]


def test_what_a_line_named_that_has_no_place_any_more_is_named_without_it() -> None:
    removed = [values.respond(f"I removed the old parts of the module, as agreed, {n} of them.") for n in range(20)]
    told = summary(removed, 120, "Done: I cancelled the order CMD-2026-435865.")
    assert "I cancelled" not in told
    assert "CMD-2026-435865" in told


def test_marks_of_pages_that_no_call_names_are_not_listed_however_much_room_there_is() -> None:
    page = "\n".join(f"- link [ref=e{n}]" for n in range(2_000, 4_000))
    entries = [values.user("Find a room."), values.call("1", "open", {"url": "/rooms/lisbon"})]
    assert summary([*entries, values.result("1", page)], 900) == "User: Find a room.\nAssistant: open /rooms/lisbon"


def test_annotations_and_ids_that_no_space_parts_from_their_sentence_are_telling_words() -> None:
    assert telling("use @SerialName, not @SerializedName") == ("@SerialName", "@SerializedName")
    assert telling("注文NL-2026-729572の商品2543507343を確認") == ("NL-2026-729572", "2543507343")
    assert telling("/文書/報告.md") == ("/文書/報告.md",)
