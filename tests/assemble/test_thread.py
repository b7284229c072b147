"""A live thread: recorded, replayed, warned, recalled; the path of engine.py from end to end."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import quire
from quire import Entry, Policy, Reply, Request, Thread, Usage, open_store, providers, requests
from quire.assemble.fit import enclose
from quire.errors import CallError
from quire.observe import chat_messages
from quire.thread_state import policy_for
from quire.values import JsonObject
from toolbox import Built, closed_later, run, sha256_hex

TARGET = "anthropic:claude-opus-5-5"


def reply(text: str, read: int = 0, total: int = 100) -> JsonObject:
    usage = {"input_tokens": total - read, "output_tokens": 5}
    usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": 0}
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "claude-opus-5-5",
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage,
    }  # fmt: skip


def talked(path: Path, policy: Policy) -> tuple[Thread, Request]:
    """Twenty-five questions and answers, recorded, and the last request of them."""
    thread = quire.open(path, "t", policy)
    thread.append(quire.system("Help."))
    for n in range(25):
        thread.user(f"question {n} " + "word " * 60)
        sent = thread.request(TARGET, max_tokens=100)
        thread.record(reply("answer " * 40, total=len(sent.prefix) // 4))
    return thread, sent


@pytest.mark.moves_prefix(reason="a small budget, to record rebases")
def test_another_process_makes_the_same_request_from_the_log(tmp_path: Path) -> None:
    policy = Policy(budget=1_500)
    thread, _ = talked(tmp_path / "t.db", policy)
    thread.user("the last one")
    mine = thread.request(TARGET, max_tokens=100)
    other = quire.open(tmp_path / "t.db", "t", policy).request(TARGET, max_tokens=100)
    assert mine.prefix == other.prefix
    assert mine.body == other.body
    kinds = [entry.kind for entry in thread.store.read("t")]
    assert "rebase" in kinds
    assert kinds.count("sent") == 25
    assert thread.store.verify("t").entries == len(kinds)


def test_a_reply_that_read_less_than_predicted_is_a_warning(tmp_path: Path) -> None:
    times = iter(range(0, 10_000_000, 1_000))
    thread = Thread(closed_later(open_store(tmp_path / "t.db")), "t", clock=lambda: next(times))
    heard: list[object] = []
    thread.on_warning = heard.append
    thread.append(quire.system("word " * 3_000))
    for question in ("one", "two"):
        thread.user(question)
        thread.request(TARGET, max_tokens=100)
        thread.record(reply("ok", read=0, total=4_000))
    assert [type(one).__name__ for one in heard] == ["CacheEvent"]


def test_a_loss_is_told_whatever_request_came_back_first_or_in_other_words(tmp_path: Path) -> None:
    times = iter(range(0, 10_000_000, 1_000))
    thread = Thread(closed_later(open_store(tmp_path / "t.db")), "t", clock=lambda: next(times))
    heard: list[object] = []
    thread.on_warning = heard.append
    thread.append(quire.system("word " * 3_000))
    thread.user("one")
    # Of two that are sent together each is stored, and what the later one stores cannot be read by the one before it.
    sent = [thread.request(TARGET, max_tokens=100, effort=effort) for effort in ("low", "high")]
    for request in reversed(sent):
        thread.record({**reply("ok", read=0, total=4_000), "id": request.body["output_config"]["effort"]}, request)
    assert heard == []
    thread.user("two")
    request = thread.request(TARGET, max_tokens=100, effort="low")
    thread.record(reply("ok", read=0, total=4_000), msgspec.structs.replace(request))
    assert [type(one).__name__ for one in heard] == ["CacheEvent"]


def test_a_request_that_failed_is_not_taken_for_stored_and_what_others_stored_is_no_warning(tmp_path: Path) -> None:
    times = iter(range(0, 10_000_000, 1_000))
    thread = Thread(closed_later(open_store(tmp_path / "t.db")), "t", clock=lambda: next(times))
    heard: list[object] = []
    thread.on_warning = heard.append
    thread.append(quire.system("word " * 3_000))
    # The first reads what another thread stored. The second failed twice: what it would have stored is not there.
    for question, read, total, attempts in (("one", 3_000, 4_000, 1), ("two " * 3_000, 4_000, 8_000, 3)):
        thread.user(question)
        sent = [thread.request(TARGET, max_tokens=100) for _ in range(attempts)]
        thread.record(reply("ok", read=read, total=total), sent[-1])
    assert heard == []


def test_the_window_joins_every_turn_and_is_saved_with_the_thread(tmp_path: Path) -> None:
    thread = quire.open(tmp_path / "t.db", "t")
    thread.keep("def f(): ...", type="code")
    assert [item["content"] for item in thread.user("what is f?").attached] == ["def f(): ..."]
    assert [item.id for item in quire.open(tmp_path / "t.db", "t").window.get()] == ["ctx-1"]


@pytest.mark.moves_prefix(reason="a small budget, so that the key leaves the prompt")
def test_what_left_the_prompt_comes_back_when_the_user_asks_for_it(tmp_path: Path) -> None:
    thread = quire.open(tmp_path / "t.db", "t", Policy(budget=700, summary=0.0))
    thread.append(quire.user("Remember: the OpenRouter api key begins with sk-or-v1."), quire.respond("Noted."))
    for n in range(12):
        thread.user(f"small talk about the weather on day {n} " + "sun " * 30)
        thread.request("openai-chat:gpt-5")
        thread.append(quire.respond("nice weather " * 10))
    asked = thread.user("What was that api key?", recall=3)
    assert "sk-or-v1" in asked.meta["recalled"]
    text = thread.request("openai-chat:gpt-5").body["messages"][-1]["content"]
    assert text.startswith("# Relevant Conversation\nUser: Remember: the OpenRouter api key")
    assert text.endswith("---\n\n[User query]:\n\nWhat was that api key?")
    assert thread.recall("api key")[0].seq == 1


@pytest.mark.moves_prefix(reason="a small budget, to record rebases")
def test_the_log_gives_back_every_request_as_it_was_sent(tmp_path: Path) -> None:
    policy = Policy(budget=1_500)
    thread, sent = talked(tmp_path / "t.db", policy)
    log = thread.store.read("t")
    made = [one for one in requests(log, policy_for(TARGET, policy)) if isinstance(one, Built)]
    again = [sha256_hex(quire.render(one.prompt, TARGET, max_tokens=100).prefix) for one in made]
    assert again == [entry.body["request_sha256"] for entry in log if entry.kind == "sent"]
    parts = providers.prefix_parts(sent.body, "anthropic")
    assert list(segments(log).values())[-1] == [sha256_hex(part) for part in parts]
    sealed = enclose(made[-1], chat_messages(made[-1]))
    assert sent.layers == {layer.id: layer.sha256 for layer in sealed.layers}
    assert sum(one.rebase is not None for one in made) == sum(entry.kind == "rebase" for entry in log) > 0


def segments(log: list[Entry]) -> dict[int, list[str]]:
    """All segment hashes of each request, by the seq of its `sent` entry, from what the log keeps of them."""
    whole: dict[int, list[str]] = {}
    for entry in log:
        if entry.kind == "sent":
            same = entry.meta.get("same_segments") or {"seq": 0, "count": 0}
            whole[entry.seq] = [*whole.get(same["seq"], [])[: same["count"]], *entry.body["segments"]]
    return whole


@pytest.mark.moves_prefix(reason="a small budget, to record rebases")
def test_the_log_keeps_of_each_request_the_hashes_of_what_is_new_also_from_process_to_process(tmp_path: Path) -> None:
    sent: list[list[str]] = []
    for n in range(30):
        # Opened anew for each turn, with a side request that nobody builds upon now and then.
        with quire.open(tmp_path / "t.db", "t", Policy(budget=1_500)) as thread:
            thread.user(f"question {n} " + "word " * 60)
            request = thread.request(TARGET, max_tokens=100)
            if n % 7 == 3:
                aside = thread.sent_entry(request)
                thread.append(Entry("sent", {**aside.body, "meta": {**aside.meta, "aside": "title"}}))
            thread.record(reply("answer " * 40), request)
            sent.append(list(request.lines.segments))
            log = thread.store.read("t")
    told = [entry for entry in log if entry.kind == "sent" and not entry.meta.get("aside")]
    assert [segments(log)[entry.seq] for entry in told] == sent
    assert sum(len(entry.body["segments"]) for entry in told) < sum(map(len, sent)) / 2


def test_a_side_request_is_not_the_one_that_the_next_is_compared_with(tmp_path: Path) -> None:
    thread = quire.open(tmp_path / "t.db", "t")
    thread.diagnose = True
    thread.user("first")
    request = thread.request(TARGET, max_tokens=100)
    thread.record(reply("ok"))
    aside = thread.sent_entry(request, Reply((), Usage(), id="title"))
    thread.append(Entry("sent", {**aside.body, "meta": {**aside.meta, "aside": "title"}}))
    with pytest.raises(CallError, match="m is recorded already"):
        thread.record(reply("ok"))
    thread.user("second")
    assert thread.request(TARGET, max_tokens=100).body["diagnostics"] == {"previous_message_id": "m"}


def test_a_thread_that_was_sent_is_seen_by_every_command(tmp_path: Path) -> None:
    thread = quire.open(tmp_path / "t.db", "t")
    thread.user("first")
    thread.append(quire.system("Be brief."))  # as a runner puts it: behind the words it answers
    for question in ("second", "third"):
        thread.request(TARGET, max_tokens=100)
        thread.record(reply("ok"))
        thread.user(question)
    on = ("t", "--db", str(tmp_path / "t.db"))
    assert run("assemble", *on).count("turn ") == 2
    assert "of 875,000 tokens" in run("assemble", *on)
    assert "of 900 tokens" in run("assemble", *on, "--budget", "900")
    assert json.loads(run("plan", *on, "--json"))["requests"] == 2
    assert "extends turn 1" in run("diff", "t", "1", "2", *on[1:])
    assert "turn 3" in run("render", *on, "-p", "anthropic", "-m", "claude-opus-5-5")
    exported = json.loads(run("export", *on, "--to", "anthropic"))
    assert exported["system"] in ("Be brief.", [{"type": "text", "text": "Be brief."}])


@pytest.mark.parametrize("id", ["m", ""])  # Bedrock's streams, for one, name no id
def test_after_a_restart_a_warm_cache_is_no_surprise(tmp_path: Path, id: str) -> None:
    heard: list[object] = []
    for read in (0, 3_500):
        thread = quire.open(tmp_path / "t.db", "t")
        thread.on_warning = heard.append
        if not read:
            thread.append(quire.system("word " * 3_000))
        thread.user("again")
        thread.request(TARGET, max_tokens=100)
        thread.record({**reply("ok", read=read, total=4_000), "id": id})
    assert heard == []


def test_an_option_that_is_none_is_an_error_that_names_the_one_meant() -> None:
    thread = quire.open(":memory:", "t")
    thread.user("hi")
    said = {
        "max_tokns": "Did you mean 'max_tokens'?",
        "budget": "A thread's policy",
        "stream": "It belongs to the SDK's",
    }
    for name, hint in {**said, "reasoning_effort": "Write effort=", "logit_bias": "A field of the provider's"}.items():
        with pytest.raises(CallError, match=f"no option '{name}'") as error:
            thread.request(TARGET, **{name: 3})  # type: ignore[arg-type]  # the very mistake
        assert error.value.hint.startswith(hint)
    for target in ("openai", "openai:"):
        with pytest.raises(CallError, match=f"'{target}' names no model"):
            thread.request(target)
    options = providers.request_options({"max_tokens": 7, "temperature": 0, "speed": "fast"})
    assert options == {"max_tokens": 7, "temperature": 0, "extra": {"speed": "fast"}}
    body = thread.request(TARGET, check=False, **options).body
    assert (body["max_tokens"], body["temperature"], body["speed"]) == (7, 0, "fast")


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: Policy(budget="16000"), "a policy's budget cannot be '16000'", "Expected `int`, got `str`."),
        (lambda: Policy(when="never"), "a policy's when cannot be 'never'", "Use 'rent' or 'full'."),
        (lambda: quire.attach("notes.md"), "an item cannot be str", "Make one: "),
    ],
)
def test_what_is_of_another_kind_is_refused_where_given(make: Callable[[], object], message: str, hint: str) -> None:
    with pytest.raises(CallError, match=message) as error:
        make()
    assert error.value.hint.startswith(hint)
