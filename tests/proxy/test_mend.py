"""What can be repaired without changing meaning is: each rule alone, the answer the same, the provider's rules kept."""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import httpx
import pytest
from behind import HEADERS, KEYS, RULES, Upstream, Watching, body, proxied, watching

from quire.fitting import unmarked_body
from quire.providers.prefix import prefix_bytes
from quire.providers.simulate import Simulator
from quire.server import mend
from quire.server.mend import Mender, difference, is_subscription
from quire.server.mend_rules import RULES as MENDING
from quire.server.mend_rules import changed_sections
from quire.server.proxy import CacheWatcher, Proxy, ProxyOptions, Watched
from toolbox import assert_in_proportion, interrupted, invoke, put, running, until

pytestmark = [pytest.mark.xdist_group("sdk"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Body = dict[str, Any]
Change = Callable[[Body, int], Body]
TALK = ["First.", "An answer that goes on. " * 800, "Second.", "More of it.", "Third.", "Yes.", "Fourth."]
TURNS = 4


def claude(turn: int) -> Body:
    return {**body(*TALK[: 2 * turn - 1]), "tools": [tool(name) for name in ("read", "write", "grep")]}


def tool(name: str) -> Body:
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
    return {"name": name, "description": f"To {name} files. " * 20, "input_schema": schema}


def function(name: str) -> Body:
    return {"type": "function", "name": name, "parameters": tool(name)["input_schema"], "strict": False}


def spoken(turn: int, model: str = "assistant") -> Iterable[tuple[str, str]]:
    return zip(["user", model] * 4, TALK[: 2 * turn - 1], strict=False)


def responses(turn: int) -> Body:
    kind = {"user": "input_text", "assistant": "output_text"}
    said = [{"type": "message", "role": r, "content": [{"type": kind[r], "text": t}]} for r, t in spoken(turn)]
    given: Body = {"model": "gpt-5.6", "instructions": RULES, "input": said, "tools": [function("read")]}
    return {**given, "reasoning": {"effort": "high"}}


def chat(turn: int) -> Body:
    said = [{"role": role, "content": text} for role, text in spoken(turn)]
    return {"model": "gpt-5.4", "messages": [{"role": "system", "content": RULES}, *said]}


def gemini(turn: int) -> Body:
    said = [{"role": role, "parts": [{"text": text}]} for role, text in spoken(turn, "model")]
    return {"systemInstruction": {"parts": [{"text": RULES * 2}]}, "contents": said}


def state_of(turn: int) -> str:
    return f"<env>\ncwd: /home/me/project{turn}\nToday is 2026-11-1{turn}\n</env>\n\ngit status:\n M file{turn}.py\n?? new.py\n\n"


def unmarked(given: Body, turn: int) -> Body:
    given["system"] = given["system"][0]["text"]
    given["messages"] = [{**each, "content": each["content"][0]["text"]} for each in given["messages"]]
    return given


def bare(given: Body, turn: int) -> Body:
    text = f"{given['system'][0]['text']} {given['messages'][0]['content'][0]['text']}"
    messages = [{"role": "user", "content": text}, *unmarked(given, turn)["messages"][1:]]
    return {"model": given["model"], "max_tokens": 50, "messages": messages}


def shuffled(given: Body, turn: int) -> Body:
    at = turn % len(given["tools"])
    return {**given, "tools": [*given["tools"][at:], *given["tools"][:at]]}


def rekeyed(given: Body, turn: int) -> Body:
    turned = [dict(reversed(each.items())) for each in given["tools"]]
    return {**given, "tools": turned if turn % 2 else given["tools"]}


def led_by(words: Callable[[int], str], *place: str | int) -> Change:
    """What differs from turn to turn, in front of the text at a place."""
    return lambda given, turn: put(given, place, words(turn) + reduce(getitem, place, given))


clocked = led_by(state_of, "system", 0, "text")
clocked_responses = led_by(state_of, "instructions")
in_system = led_by("<documents>\nPage {} says this.\n</documents>\n".format, "system", 0, "text")


def unmarked_and_clocked(given: Body, turn: int) -> Body:
    return unmarked(clocked(given, turn), turn)


def in_front(given: Body, turn: int) -> Body:
    said = (("user", f"Notes found for this: {turn} " * 60), ("assistant", "Good."))
    found = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]
    return {**given, "messages": [*found, *given["messages"]]}


def grown(given: Body, turn: int) -> Body:
    make = tool if "messages" in given else function
    return {**given, "tools": [*([make("fetch")] if turn > 2 else []), *given["tools"]]}


def harder(given: Body, turn: int) -> Body:
    field = "output_config" if "messages" in given else "reasoning"
    return {**given, field: {"effort": "low" if turn > 2 else "high"}}


CASES: dict[str, tuple[str, str, Callable[[int], Body], Change]] = {
    "marks": ("marks", "anthropic", claude, unmarked),
    "marks, no system": ("marks", "anthropic", claude, bare),
    "tool-order": ("tool-order", "anthropic", claude, shuffled),
    "key-order": ("key-order", "anthropic", claude, rekeyed),
    "volatile": ("volatile", "anthropic", claude, clocked),
    "volatile, Chat": ("volatile", "openai", chat, led_by(state_of, "messages", 0, "content")),
    "volatile, Responses": ("volatile", "openai", responses, clocked_responses),
    "volatile, Gemini": ("volatile", "gemini", gemini, led_by(state_of, "systemInstruction", "parts", 0, "text")),
    "retrieved": ("retrieved", "anthropic", claude, in_front),
    "retrieved, system": ("retrieved", "anthropic", claude, in_system),
    "late-tools": ("late-tools", "anthropic", claude, grown),
    "late-tools, Responses": ("late-tools", "openai", responses, grown),
    "late-effort": ("late-effort", "anthropic", claude, harder),
    "late-effort, Responses": ("late-effort", "openai", responses, harder),
}  # fmt: skip
PATHS = {"anthropic": "/v1/messages", "gemini": "/v1beta/models/gemini-3.5-flash:generateContent"}
ABOUT = {"path": "/v1/messages", "headers": {}}


def converse(url: str, provider: str, requests: list[Body]) -> list[Any]:
    """Hold a conversation; what the model said, without ids and usage."""
    out = []
    for each in requests:
        path = PATHS.get(provider) or ("/v1/responses" if "input" in each else "/v1/chat/completions")
        reply = httpx.post(f"{url}{path}", json=each, headers=KEYS)
        assert reply.status_code == 200, reply.text
        said = reply.json()
        said = said.get("content") or said.get("candidates") or said.get("output") or said["choices"]
        out.append([one.get("content") or one.get("message") or one for one in said])
    return out


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Watching]]:
    opened = {name: watching(name, replies=lambda _: "The same answer.") for name in ("anthropic", "openai", "gemini")}
    yield {name: next(each) for name, each in opened.items()}
    for each in opened.values():
        assert next(each, None) is None


@pytest.mark.parametrize("case", CASES)
def test_a_rule_gives_back_what_was_lost_and_the_answer_is_the_same(case: str, servers: dict[str, Watching]) -> None:
    rule, provider, make, change = CASES[case]
    server = servers[provider].server
    requests = [change(make(turn), turn) for turn in range(1, TURNS + 1)]

    def held(name: str, url: str) -> tuple[list[Any], list[Any]]:
        """What was answered to a conversation that is in no other test's cache, and what arrived of it."""
        start = len(server.requests)
        own = json.dumps(requests).replace("Always be careful", f"Always ({name}) be careful")
        return converse(url, provider, json.loads(own)), server.requests[start:]

    unmended, own = held(case, server.url)
    with proxied(server, mender=Mender([rule])) as proxy:
        mended, sent = held(f"{case} mended", proxy.url)
    assert mended == unmended
    assert rule in proxy.seen[-1].mended.rules + proxy.seen[-2].mended.rules
    assert not any(each.mended.refused for each in proxy.seen)
    wire = "openai-chat" if provider == "openai" and "messages" in requests[0] else provider
    lines = [prefix_bytes(each.body, wire) for each in sent]
    assert all(after.startswith(before) for before, after in pairwise(lines[1:]))
    if rule == "key-order":  # caches here compare what JSON means; those that compare its bytes see the same now
        assert len({json.dumps(each.body["tools"]) for each in sent}) == 1
        return
    reuse = [
        sum(one.predicted.read for one in each[1:]) / sum(one.predicted.total for one in each[1:])
        for each in (own, sent)
    ]
    assert reuse[1] > max(0.6, reuse[0] + 0.1), reuse  # the second turn has no history to read
    (row,) = proxy.watcher.savings.as_json()["simulated"][-1:]
    assert (row["rules"], row["tokens"] > 0, row["usd"] > 0) == (rule, True, True)


def test_a_branch_behind_another_front_is_told_all_that_the_application_offers_and_says() -> None:
    def given(turn: int, *said: str) -> Body:
        return in_front(grown(clocked({**claude(turn), **(body(*said) if said else {})}, turn), turn), turn)

    turned_back = [given(turn, *TALK[:6], "But why?", *more) for turn, more in ((5, ()), (6, ("So.", "And then?")))]
    for own, sent in zip(requests := [*map(given, range(1, 5)), *turned_back], mended(requests), strict=True):
        assert all(f'"{each["name"]}"' in json.dumps(sent) for each in own["tools"])
        assert re.findall(r"project\d", json.dumps(own))[-1] in json.dumps(sent)


def test_tools_that_come_in_another_order_with_their_keys_in_another_are_as_first_sent() -> None:
    def given(turn: int) -> Body:
        out = clocked(shuffled(claude(turn), turn), turn)
        for each in out["tools"]:
            random.Random(f"{turn} {each['name']}").shuffle(fields := list(each.items()))
            each |= {name: each.pop(name) for name, _ in fields}
        return out

    sent = mended(map(given, range(1, TURNS + 1)), ["key-order", "tool-order", "volatile"])
    assert len({json.dumps([each["tools"], each["system"]]) for each in sent}) == 1


def test_of_a_long_line_only_the_sentence_that_changed_is_told_again() -> None:
    was, now = (RULES.replace("\n", " ") + f" It is 2026-11-16 09:0{n}:11. Be brief." for n in (1, 2))
    assert changed_sections(was, now) == [("volatile", "It is 2026-11-16 09:02:11.")]
    assert changed_sections("Today is 2026-11-16. Be brief.", "Today is 2026-11-17. Be brief.") == [
        ("volatile", "Today is 2026-11-17. Be brief.")
    ]


def test_a_long_head_with_a_clock_in_it_is_mended_in_a_time_that_grows_with_it() -> None:
    def mended(length: int) -> None:
        mender, rules = Mender(), "".join(f"- Rule {at}.\n\n" for at in range(length))
        for turn in range(1, 4):
            system = f"It is 10:{turn}0.\n{rules}Today is 2026-11-1{turn}.\n{rules}"
            found = mender.mend(body(*("Yes?", "No.") * turn, "Well?", system=system), ABOUT)
        assert "volatile" in found.rules

    assert_in_proportion(mended, 900)


@pytest.mark.parametrize(
    ("most", "answer", "unmended"),
    [(200, "Number {} did.", 1), (200, "Done.", 1), (8, "Number {} did.", 2), (8, "Done.", 4)],
    ids=["known by one message", "known by the folder", "more than are known by one message", "known by nothing"],
)
def test_conversations_that_say_the_same_are_told_apart(
    most: int, answer: str, unmended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents of one program, each in its folder: what one was told never reaches another."""
    monkeypatch.setattr(mend, "_MOST_HOLDERS", most)
    mender = Mender()
    for turn in (1, 2, 3, 4):
        for agent in range(10, 30)[:: 1 if turn == 1 else -1]:
            said = ["Mend the tests.", *[answer.format(agent), "continue"] * (turn - 1)]
            given = body(*said, system=f"cwd: /home/me/project{agent}\nIt is 10:{turn}0.\n{RULES}")
            made = mender.mend(given, ABOUT)
            assert made.rules == (("volatile",) if turn > unmended else ())
            assert {f"project{agent}"} == set(re.findall(r"project\d+", json.dumps(made.body or given)))


def test_of_more_bytes_than_are_kept_the_oldest_conversations_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mend, "_MOST_BYTES", 7 * len(json.dumps(body("Hi"))) // 2)  # three of them
    mender = Mender()

    def made(name: str, *said: str, at: int) -> tuple[str, ...]:
        return mender.mend(body(f"{name}?", *said, system=f"It is 10:{at}0.\n{RULES}"), ABOUT).rules

    assert [made(name, at=1) for name in "abc"] == [()] * 3
    assert made("a", "Yes.", "And?", at=2) == ("volatile",)
    assert [made(name, at=1) for name in "de"] == [()] * 2
    assert made("a", "Yes.", "And?", "Yes.", "So?", at=3) == ("volatile",)
    assert made("b", "Yes.", "And?", at=2) == ()


def mended(requests: Iterable[Body], rules: Iterable[str] = MENDING) -> list[Body]:
    """Requests of a conversation as they go on."""
    mender = Mender(list(rules))
    return [mender.mend(given, ABOUT).body or given for given in requests]


@pytest.mark.parametrize(
    "case", ["tool-order", "volatile", "retrieved", "retrieved, system", "late-tools", "late-effort"]
)
def test_an_application_that_sets_no_marks_is_mended_by_every_other_rule_too(case: str) -> None:
    rule, _, make, change = CASES[case]
    requests = [unmarked(change(make(turn), turn), turn) for turn in range(1, TURNS + 1)]
    mender = Mender()
    rules = [mender.mend(given, ABOUT).rules for given in requests]
    assert any({rule, "marks"} <= set(fired) for fired in rules[2:]), rules


def test_marks_lose_nothing_behind_messages_that_can_carry_none() -> None:
    """OpenAI stores at its own breakpoints where a text stands without a block, as long as it is left to."""
    own, marked, mender = Simulator("openai:gpt-5.6"), Simulator("openai:gpt-5.6"), Mender(["marks"])
    for turn in (1, 2, 3, 4):
        given = {**responses(turn), "previous_response_id": None}
        for message in given["input"][2::4]:
            message["content"] = message["content"][0]["text"]
        made = mender.mend(given, {"path": "/v1/responses", "headers": {}})
        assert made.rules == ("marks",)
        assert marked.step(turn, made.body or {}).read >= own.step(turn, given).read > 0 or turn == 1


def in_order(given: Body, pattern: str) -> list[str]:
    """What a model reads of something, in the order it reads it."""
    return re.findall(pattern, json.dumps([given["system"], given["messages"]]))


def on(branch: str, turn: int, rule: str = "") -> Body:
    given = claude(turn)
    given["system"][0]["text"] = f"{RULES}\n{rule}\nCurrent branch: {branch}\nIt is 10:0{turn}."
    return given


def test_what_is_told_behind_a_marked_message_is_stored_with_it() -> None:
    mender, [before, now] = Mender(["retrieved"]), [in_system(claude(turn), turn) for turn in (1, 2)]
    mender.mend(before, ABOUT)
    sent = mender.mend(now, ABOUT).body
    assert sent is not None
    *front, told = sent["messages"][-1]["content"]
    assert "Page 2 says this." in told["text"]
    assert told["cache_control"] == {"type": "ephemeral"}
    assert front == [{"type": "text", "text": TALK[2]}]


def test_what_is_again_as_it_was_first_is_told_again() -> None:
    states = ["main", "mend", "main", "main"]
    sent = mended(on(branch, turn) for turn, branch in enumerate(states, 1))
    told = [in_order(given, r"branch: (\w+)") for given in sent]
    assert told == [["main"], ["main", "mend"], ["main", "mend", "main"], ["main", "mend", "main"]]
    back = [on(branch, turn) for branch, turn in (("main", 1), ("mend", 2), ("mend", 3), ("other", 2), ("mend", 4))]
    assert in_order(mended(back)[-1], r"branch: (\w+)") == ["main", "mend", "other", "mend"]
    for turns in ((1, 2, 3), (1, 2, 2)):  # the same request, sent again, too
        fetched = [in_front(claude(turn), page) for turn, page in zip(turns, (1, 2, 1), strict=True)]
        pages = [in_order(given, r"for this: (\d)")[::60] for given in mended(fetched)]
        assert pages == [["1"], ["1", "2"], ["1", "2", "1"]]


def test_a_page_or_a_state_that_is_gone_is_told_as_gone_and_a_section_once() -> None:
    def told(was: str, now: str) -> list[str]:
        requests = [claude(turn) for turn in (1, 2)]
        for given, lines in zip(requests, (was, now), strict=True):
            given["system"][0]["text"] = f"<documents>\n{lines}\n</documents>\n\n{RULES}"
        *_, text = mended(requests, ["retrieved"])[1]["messages"][-1]["content"]
        return text["text"].split("\n")[1:-1]

    assert told("Page 1.\nPage 2.", "Page 1.") == ["No longer so:", "Page 2."]
    assert told("Page 1.\nPage 2.", "") == ["No longer so:", "Page 1.", "Page 2."]
    states = "Environment:\ncwd: /a\nuser: me\n\n", "Environment:\ncwd: /b\n\n"
    assert changed_sections(*states) == [("volatile", "cwd: /b"), ("volatile", "No longer so:\ncwd: /a\nuser: me")]
    assert told("Page 1.\nThe tea.\nPage 2.", "Page 3.\nThe tea.\nPage 4.") == ["Page 3.", "The tea.", "Page 4."]


def test_a_message_in_front_that_is_more_than_text_goes_on_as_it_is() -> None:
    def shown(turn: int, page: int, picture: str) -> Body:
        given = in_front(claude(turn), page)
        source = {"type": "base64", "media_type": "image/png", "data": picture}
        given["messages"][0]["content"].append({"type": "image", "source": source})
        return given

    for page in (1, 2):
        requests = [shown(1, 1, "QUFB"), shown(2, page, "QkJC")]
        assert mended(requests)[1]["messages"][0] == requests[1]["messages"][0]


@pytest.mark.parametrize("rules", [["volatile"], ["retrieved"], ["volatile", "retrieved"]])
def test_a_text_with_a_clock_and_retrieved_pages_is_mended_where_both_rules_are_on(rules: list[str]) -> None:
    sent = mended((in_system(clocked(claude(turn), turn), turn) for turn in (1, 2, 3)), rules)
    told = [[in_order(given, pattern) for given in sent] for pattern in (r"project(\d)", r"Page (\d)")]
    assert told == [[["1"], ["1", "2"], ["1", "2", "3"]] if len(rules) == 2 else [["1"], ["2"], ["3"]]] * 2
    assert (sent[2]["system"] == sent[0]["system"]) is (len(rules) == 2)


def test_behind_an_instruction_that_changes_nothing_old_is_told_and_mending_goes_on() -> None:
    sent = mended(on("main", turn, "Be brief." if turn < 3 else "Speak French.") for turn in (1, 2, 3, 4))
    assert [in_order(given, r"10:0\d") for given in sent] == [
        ["10:01"], ["10:01", "10:02"], ["10:03"], ["10:03", "10:04"]
    ]  # fmt: skip
    assert ["French" in json.dumps(given["system"]) for given in sent] == [False, False, True, True]


def test_what_was_told_behind_a_request_that_is_sent_again_stays_told() -> None:
    with_fetch = {"tools": [*on("main", 2)["tools"], tool("fetch")]}
    again = [{**on(branch, 2), **with_fetch} for branch in ("main", "mend")]
    *_, last, gone = mended([on("main", 1), *again, {**on("mend", 3), **with_fetch}, on("mend", 4)])
    assert in_order(last, r"branch: (\w+)") == ["main", "mend"]
    assert json.dumps(last["messages"]).count('"fetch"') == 1
    assert "fetch" not in json.dumps(gone)  # a tool that was taken away is not offered by what was told of it
    other = {"tools": [*with_fetch["tools"][:-1], {**tool("fetch"), "description": "Another."}]}
    *_, last = mended([on("main", 1), {**on("main", 2), **with_fetch}, {**on("main", 3), **other}])
    assert (last["tools"], "To fetch" in json.dumps(last)) == (other["tools"], False)


def test_in_random_lives_nothing_is_lost_or_old_or_another_agents() -> None:
    """Agents beside each other whose folder, pages, tools and effort change, who go back and who ask the same again."""
    dice = random.Random(7)

    def changed(state: Body) -> Body:
        what = dice.choice(["folder", "page", "tools", "effort", "said", "said", "said", "back", "again"])
        more = [dice.choice(["Done.", f"Did {dice.random()}."]), dice.choice(["yes", f"Ask {dice.random()}."])]
        start = 2 * dice.randrange(len(state["said"]) // 2 + 1) + 1 if what == "back" else len(state["said"])
        said = {"said": state["said"] if what == "again" else [*state["said"][:start], *more]}
        tools = {**state["tools"], dice.choice(["read", "edit", "fetch"]): dice.randrange(2)}
        values = {
            "folder": dice.randrange(4),
            "page": dice.randrange(4),
            "tools": tools,
            "effort": dice.choice("low high".split()),
        }
        return {**state, **said, **({what: values[what]} if what in values else {})}

    for _ in range(60):
        mender, wire = Mender(dice.sample(list(MENDING), dice.randrange(3, 8))), dice.choice(["marked", "plain"])
        new = {"folder": 1, "page": 1, "tools": {"read": 1}, "effort": "high"}
        states = {agent: {**new, "said": [f"Agent {agent} begins."]} for agent in range(1, dice.randrange(2, 5))}
        for agent in [*states, *dice.choices(list(states), k=14)]:
            state = states[agent]
            given = body(*state["said"], system=f"cwd: /project{agent}{state['folder']}\n{RULES}")
            given = in_front(given, int(f"{agent}{state['page']}"))
            offered = [{**tool(name), "description": f"{now}"} for name, now in state["tools"].items()]
            given |= {"tools": dice.sample(offered, len(offered)), "output_config": {"effort": state["effort"]}}
            made = mender.mend(unmarked_body(given, "messages") if wire == "plain" else given, ABOUT)
            assert not made.refused
            sent = made.body or given
            for pattern in (r"project(\d)(\d)", r"for this: (\d)(\d)"):
                found, own = (in_order(each, pattern) for each in (sent, given))
                assert (found[-1], {who for who, _ in found}) == (own[-1], {str(agent)})
            texts = in_order(sent, r'"(?:text|content)": "(Agent|Did|Ask|Done|yes)')
            assert texts == [text.split()[0].strip(".") for text in state["said"]]
            defined = in_order(
                {"system": sent["tools"], "messages": sent["messages"]}, r'"name": "(\w+)", "description": "(\d)"'
            )
            assert dict(defined) == {name: f"{now}" for name, now in state["tools"].items()}
            efforts = in_order({"system": sent["output_config"], "messages": sent["messages"]}, r'"effort": "(\w+)"')
            assert efforts[-1] == state["effort"]
            states[agent] = changed(state)


@pytest.mark.parametrize("order", [1, -1], ids=["as they come", "keys in another order"])
def test_a_branch_of_a_conversation_is_told_what_only_another_was_told(order: int) -> None:
    """Two that go on from one point, and one that goes back and says something else."""

    def asked(folder: int, *said: str) -> Body:
        given = body(*said, system=f"cwd: /home/me/{folder}\n{RULES}")
        step = order if len(said) // 2 % 2 else 1
        given["messages"] = [dict([*message.items()][::step]) for message in given["messages"]]
        return given

    start = ["Begin.", "Yes.", "Go on.", "Done."]
    requests = [asked(1, *start[:1]), asked(1, *start[:3])]
    requests += [asked(2, *start, "This way."), asked(2, *start, "That way.")]
    requests += [asked(2, *start, "This way.", "Yes.", "And?"), asked(3, *start, "That way.", "No.", "And?")]
    requests += [asked(3, *start[:2], "No, this.")]
    told = [re.findall(r"me/(\d)", json.dumps(each["messages"])) for each in mended(requests)]
    assert told == [[], [], ["2"], ["2"], ["2"], ["2", "3"], ["3"]]


def test_a_branch_is_offered_a_tool_that_only_another_was_offered() -> None:
    tools = [tool("read"), tool("edit")]
    start = ["Begin.", "Yes.", "Go on.", "Done."]
    ways = [({}, *start[:3]), (tools[1], *start, "This way."), (tools[1], *start, "That way."), ({}, *start, "Or not.")]
    ways += [(tools[1], *start, "This way.", "Yes.", "And?")]
    made = mended({**body(*said), "tools": [tools[0], *([late] if late else [])]} for late, *said in ways)
    assert [[tool["name"] for tool in each["tools"]] for each in made] == [["read"]] * 5
    told = [re.findall(r'"type": "tool_addition".*?"name": "(\w+)"', json.dumps(each["messages"])) for each in made]
    assert told == [[], ["edit"], ["edit"], [], ["edit"]]


def test_everything_volatile_is_told_once_where_the_conversation_ends(servers: dict[str, Watching]) -> None:
    requests = [clocked(claude(turn), turn) for turn in (1, 2)]
    converse_through(servers["anthropic"], requests, ["volatile"])
    first, second = servers["anthropic"].server.requests[-2:]
    assert second.body["system"] == first.body["system"]
    told = second.body["messages"][-1]["content"][-1]["text"]
    assert [word in told for word in ("project2", "2026-11-12", "file2.py")] == [True] * 3
    assert "project2" not in json.dumps(second.body["messages"][:-1])


def test_what_is_kept_of_a_conversation_saves_work_and_changes_nothing() -> None:
    """Branches, marks that come and go, and a clock: each request is what it is where all is looked at anew."""
    dice, known, anew = random.Random(3), Mender(), Mender()
    said, seen = ["Hello?"], set[tuple[str, ...]]()
    for turn in range(60):
        said = said[: 1 + 2 * dice.randrange(len(said) // 2 + 1)] if dice.random() < 0.2 else said
        given = body(*said, system=f"It is 10:{turn:02}.\n{RULES}" if dice.random() < 0.7 else RULES)
        given = given if dice.random() < 0.3 else unmarked_body(given, "messages")
        anew._sent.clear()
        mended = known.mend(json.loads(json.dumps(given)), ABOUT)
        assert json.dumps(mended.body) == json.dumps(anew.mend(given, ABOUT).body)
        seen.add(mended.rules)
        said = [*said, dice.choice(["Yes.", f"Answer {turn}."]), dice.choice(["Go on.", f"Question {turn}?"])]
    assert {("marks",), ("volatile",), ("volatile", "marks")} <= seen


def converse_through(behind: Watching, requests: list[Body], rules: list[str], **options: Any) -> list[Watched]:
    with proxied(behind.server, mender=Mender(rules), **options) as proxy:
        converse(proxy.url, "anthropic", requests)
    return proxy.seen


@pytest.mark.parametrize(
    "change",
    [
        lambda given, turn: given,
        lambda given, turn: {**given, "system": [{**given["system"][0], "text": f"Rule {turn} is new. {RULES}"}]},
        lambda given, turn: {**given, "tools": given["tools"][turn:]},
        lambda given, turn: {**given, "messages": given["messages"][2 * (turn > 3) :]},
    ],
    ids=["nothing changes", "an instruction changes", "tools go", "the history is trimmed"],
)
def test_what_is_no_rules_business_goes_on_to_the_byte(change: Change) -> None:
    raw: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raw.append((await receive())["body"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

    with Upstream(app) as url, Proxy(ProxyOptions(to=url, mender=Mender()), CacheWatcher()) as proxy:
        for turn in range(1, TURNS + 1):
            content = json.dumps(change(claude(turn), turn), indent=turn).encode()
            httpx.post(f"{proxy.url}/v1/messages", content=content, headers=HEADERS)
            assert raw[-1] == content


def test_a_mended_request_that_would_be_refused_is_not_sent_and_the_rule_is_named(
    servers: dict[str, Watching], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(draft: Any) -> bool:
        draft.body = {**draft.body, "messages": draft.body["messages"][:-1]}
        return True

    monkeypatch.setitem(MENDING, "tool-order", breaking)
    seen = converse_through(servers["anthropic"], [claude(1), claude(2)], ["key-order", "tool-order"])
    assert [each.mended.refused for each in seen] == [(), ("tool-order",)]
    assert "it would be refused: tool-order" in seen[1].line()
    assert servers["anthropic"].server.requests[-1].body == claude(2)


def test_a_loss_by_mending_is_quires(servers: dict[str, Watching], monkeypatch: pytest.MonkeyPatch) -> None:
    def moving(draft: Any) -> bool:
        (system,) = draft.body["system"]
        text = f"{len(draft.body['messages'])} {system['text']}"
        draft.body = {**draft.body, "system": [{**system, "text": text}]}
        return True

    monkeypatch.setitem(MENDING, "marks", moving)
    seen = converse_through(servers["anthropic"], [claude(turn) for turn in (1, 2, 3)], ["marks"])
    assert [each.side for each in seen] == [None, "quire", "quire"]
    assert seen[2].line().splitlines()[1].endswith("· quire")


def test_mending_that_raises_leaves_the_request_as_it_came(
    servers: dict[str, Watching], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(MENDING, "marks", lambda draft: 1 // 0)
    assert converse_through(servers["anthropic"], [unmarked(claude(1), 1)], ["marks"])[0].mended.rules == ()
    assert "a request went on as it came: ZeroDivisionError" in caplog.text


def test_a_dry_run_shows_the_difference_and_sends_what_came(servers: dict[str, Watching]) -> None:
    requests = [shuffled(claude(turn), turn) for turn in (1, 2)]
    seen = converse_through(servers["anthropic"], requests, list(MENDING), dry_run=True)
    assert [each.body for each in servers["anthropic"].server.requests[-2:]] == requests
    assert 'tools.0.name: "grep" -> "write"' in seen[1].line()
    assert difference({"a": 1, "b": [1]}, {"b": [2], "a": 1}) == ["b.0: 1 -> 2"]
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) == ["body: keys in another order"]


@pytest.mark.parametrize(
    ("headers", "theirs"),
    [
        ({"x-api-key": "sk-ant-api03-x"}, False),
        ({"authorization": "Bearer sk-proj-x"}, False),
        ({"authorization": "Bearer sk-ant-oat01-x"}, True),
        ({"authorization": "Bearer x", "anthropic-beta": "a,oauth-2025-04-20"}, True),
        ({"authorization": "Bearer eyJhbGciOi.x.y", "chatgpt-account-id": "1"}, True),
        ({"authorization": "Bearer ya29.x"}, True),
    ],
)
def test_what_a_subscription_pays_for_is_watched_and_not_mended_unless_forced(
    headers: dict[str, str], theirs: bool, servers: dict[str, Watching]
) -> None:
    assert is_subscription(headers) is theirs
    for force in (False, True) if theirs and "sk-ant" in str(headers) else ():
        with proxied(servers["anthropic"].server, mender=Mender(), force=force) as proxy:
            proxy.post(unmarked(claude(1), 1), **headers)
        assert bool(proxy.seen[0].mended.rules) is force
        assert ("not mended: a subscription pays for it" in proxy.seen[0].line()) is not force


def test_a_share_is_held_out_and_the_saving_is_measured_with_an_interval(servers: dict[str, Watching]) -> None:
    with proxied(servers["anthropic"].server, mender=Mender(holdout=0.4)) as proxy:
        for number in range(12):
            given = [unmarked(claude(turn), turn) for turn in range(1, TURNS + 1)]
            own = {"system": f"{number} {given[0]['system']}", "metadata": {"user_id": f"u{number}"}}
            converse(proxy.url, "anthropic", [{**each, **own} for each in given])
    held = {each.conversation.name for each in proxy.seen if each.mended.held_out}
    assert not any(each.mended.rules for each in proxy.seen if each.conversation.name in held)
    found = proxy.watcher.as_json()["savings"]["measured"]
    assert (found["held_out"], found["conversations"]) == (len(held), 12 - len(held))
    low, high = found["interval"]
    assert 0.2 < low <= found["saving"] <= high < 1


def test_conversations_that_begin_alike_are_drawn_apart_and_stay_what_they_were(tmp_path: Any) -> None:
    log, answers = tmp_path / "log.jsonl", range(40)
    mender = Mender(["volatile"], holdout=0.5)

    def asked(answer: int, turn: int) -> Body:
        said = ["Mend the tests.", *[f"Number {answer} did.", "continue"] * (turn - 1)]
        return body(*said, system=f"It is 10:{turn}0.\n{RULES}")

    def is_held_out(answer: int, turn: int) -> bool:
        held_out = mender.mend(asked(answer, turn), ABOUT).held_out
        with log.open("a") as file:
            file.write(json.dumps({**ABOUT, "request": asked(answer, turn), "held_out": held_out}) + "\n")
        return held_out

    first = [[is_held_out(answer, turn) for turn in (1, 2)] for answer in answers]
    assert all(arms[0] is arms[1] for arms in first)
    assert 10 < sum(arms[0] for arms in first) < 30
    mender = Mender(["volatile"], holdout=0.5)
    mender.mend(body("Something that failed, and is in no log."), ABOUT)
    mender.replay(log)
    assert [is_held_out(answer, 3) for answer in answers] == [arms[0] for arms in first]


def test_a_restarted_proxy_learns_from_its_log_what_stood_where(servers: dict[str, Watching], tmp_path: Any) -> None:
    requests = [clocked(claude(turn), turn) for turn in range(1, TURNS + 1)]
    server, log = servers["anthropic"].server, tmp_path / "log.jsonl"
    for part in (requests[:3], requests[3:]):
        mender = Mender(["volatile"])
        mender.replay(log)
        with proxied(server, log, mender=mender) as proxy:
            converse(proxy.url, "anthropic", part)
    lines = [prefix_bytes(each.body, "anthropic") for each in server.requests[-TURNS:]]
    assert lines[3].startswith(lines[2])


@pytest.mark.parametrize("command", ["proxy", "serve"])
def test_the_command_mends_and_says_what_it_saved(command: str, servers: dict[str, Watching], home: Path) -> None:
    log = home / "log.jsonl"
    words = [command, "--to", servers["anthropic"].server.url, "--port", "0", "--log", str(log), "--mend"]
    words += "--rule marks --rule volatile --without volatile --holdout 0 --ask-provider --budget 90000".split()
    with running(*words, "--key-from", "OWN_KEY", OWN_KEY="of-the-proxy") as (url, process):
        for turn in (1, 2, 3):  # a reply that has been read can be asked about
            converse(url, "anthropic", [unmarked(claude(turn), turn)])
            until(lambda turn=turn: log.read_text().count("\n") == turn)  # type: ignore[misc]
        shown, said = interrupted(process)
    assert servers["anthropic"].server.requests[-1].headers["x-api-key"] == "of-the-proxy"
    assert "mended: marks" in shown
    assert "stopped after 3 requests" in said
    assert "marks: 3 requests" in said
    assert "the provider was asked 2 times" in said
    first = json.loads(log.read_text().splitlines()[0])
    assert isinstance(first["given"]["system"], str)
    assert first["request"]["system"][0]["cache_control"]
    with running(*words[:7], "--mend", "--dry-run", "--mend-subscriptions") as (url, process):
        converse(url, "anthropic", [unmarked(claude(1), 1)])
        assert "would be: system" in interrupted(process)[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dry-run",), "--dry-run goes with --mend"),
        (("--mend", "--dry-run", "--budget", "4000"), "--dry-run shows what --mend would change"),
        (("--mend", "--rule", "spelling"), "'spelling' is not one of"),
        (("--mend", "--without", "all"), "'all' is not one of"),
        (("--mend", "--holdout", "2"), "2.0 is not in the range"),
    ],
)
def test_a_wrong_choice_of_rules_says_so(words: tuple[str, ...], said: str) -> None:
    done = invoke("proxy", "--to", "http://127.0.0.1:9", *words, code=2)
    assert said in done.output


@pytest.mark.parametrize(
    ("provider", "make", "change", "word"),
    [
        ("anthropic", claude, lambda given, turn: given, ""),
        ("anthropic", claude, clocked, "the provider says system_changed"),
        ("anthropic", claude, shuffled, "the provider says tools_changed"),
        ("anthropic", claude, in_front, "the provider says messages_changed"),
        ("anthropic", claude, unmarked_and_clocked, "the provider says system_changed"),
        ("openai", responses, lambda given, turn: given, ""),
        ("openai", responses, clocked_responses, "the provider says input_changed"),
        ("openai", responses, grown, "the provider says tools_changed"),
    ],
)
def test_the_provider_is_asked_and_says_the_same(
    provider: str, make: Callable[[int], Body], change: Change, word: str, servers: dict[str, Watching]
) -> None:
    server = servers[provider].server
    with proxied(server, ask_provider=True) as proxy:
        for turn in range(1, TURNS + 1):
            converse(proxy.url, provider, [{**change(make(turn), turn), "metadata": {"user_id": word + provider}}])
            proxy.newest(turn)
    agreement = proxy.watcher.as_json()["provider_agreement"]
    # Where no mark was set Quire names no byte that the provider's word could be compared with.
    compared = 0 if change is unmarked_and_clocked else TURNS - 1
    assert agreement == {"asked": compared, "agreed": compared}
    assert any(word in each.line() for each in proxy.seen)
    asked = server.requests[-1].body
    assert asked.get("diagnostics") or asked["prompt_cache_options"]["comparison_response_id"]
    assert {name: asked[name] for name in make(1) if name in asked} == change(make(TURNS), TURNS)


@pytest.mark.parametrize(
    ("provider", "make"),
    [
        ("openai", lambda turn: {**chat(turn), "model": "gpt-6-sol"}),
        ("anthropic", lambda turn: {**claude(turn), "diagnostics": {"previous_message_id": None}}),
        ("gemini", gemini),
    ],
    ids=["a wire that has no such question", "an application that asks itself", "a provider that is never asked"],
)
def test_where_there_is_nothing_to_ask_the_request_goes_on_to_the_byte(
    provider: str, make: Callable[[int], Body], servers: dict[str, Watching]
) -> None:
    server = servers[provider].server
    with proxied(server, ask_provider=True) as proxy:
        for turn in (1, 2, 3):
            converse(proxy.url, provider, [make(turn)])
            proxy.newest(turn)
            assert server.requests[-1].body == make(turn)


def test_what_mending_tells_two_conversations_does_not_make_them_one(servers: dict[str, Watching]) -> None:
    """Both are told of the same clock behind the same short word."""

    def requests(first: str) -> list[Body]:
        said = [first, f"About {first}.", "Go on.", f"More of {first}.", "Go on."]
        return [body(*said[: 2 * turn - 1], system=f"It is 10:0{turn}:00.\n{RULES}") for turn in (1, 2, 3)]

    seen = converse_through(servers["anthropic"], [*requests("ships"), *requests("roads")], ["volatile"])
    names = [each.conversation.name for each in seen]
    assert [each.mended.rules for each in seen[:3]] == [(), ("volatile",), ("volatile",)]
    assert names == [names[0]] * 3 + [names[3]] * 3
    assert names[0] != names[3]
