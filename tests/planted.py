"""Conversations of agents on every wire, and faults that are planted into them, each time otherwise."""

import datetime as dt
import functools
import json
import random
import uuid
from collections.abc import Callable
from itertools import count, islice, pairwise
from typing import Any

from conftest import shared_data
from quire.audit import SentCall, audit
from quire.providers.simulate import Simulator
from toolbox import model_info

Body = dict[str, Any]
Requests = list[tuple[int, Body]]
# What is said in turn: who (user, model, call, result), the text, and of a call its id, name and arguments.
Said = dict[str, Any]
MODELS = {
    "anthropic": ("anthropic:claude-opus-5-5", "anthropic:claude-sonnet-4-5"),
    "bedrock": ("bedrock:anthropic.claude-opus-5-5", "bedrock:anthropic.claude-sonnet-4-5"),
    "responses": ("openai:gpt-5.4", "openai:gpt-5.2"),
    "chat": ("openai-chat:gpt-5.4", "openai-chat:gpt-5.2"),
    "gemini": ("gemini:gemini-3.8-flash", "gemini:gemini-3.1-pro-preview"),
}
WORDS = "harbour ledger copper window thistle orbit lantern marble saddle anchor velvet cinder meadow cobalt".split()
START = 1_794_000_000_000


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def made(rng: random.Random) -> list[Said]:
    """What a coding agent's user, model and tools say."""
    out: list[Said] = []
    for turn in range(14):
        out.append({"who": "user", "text": f"Task {turn}: {words(rng, rng.randint(20, 90))}"})
        for step in range(rng.randint(1, 3)):
            id = f"toolu_{rng.getrandbits(48):x}"
            args = {"path": f"src/{turn}.py", "limit": step, "pattern": words(rng, 2)}
            out.append({"who": "call", "text": "", "id": id, "name": rng.choice(["read", "grep"]), "args": args})
            out.append({"who": "result", "text": words(rng, rng.randint(200, 900)), "id": id})
        out.append({"who": "model", "text": f"Done {turn}: {words(rng, 30)}"})
    return out


@functools.cache
def recorded() -> list[list[Said]]:
    """What was said in real conversations: a coding session, agents at work, talks with a service desk."""
    out = []
    for name in ("pi_large_session", "swe_agent", "tau2_airline", "tau_retail_gpt41mini", "tau_retail_gemini"):
        for line in (shared_data("traces") / f"{name}.jsonl").read_text().splitlines():
            said: list[Said] = []
            for message in json.loads(line)["messages"]:
                text, calls = message.get("content") or "", message.get("tool_calls") or []
                if message["role"] == "tool":
                    said.append({"who": "result", "text": text, "id": message["tool_call_id"]})
                elif message["role"] != "system" and text.strip():
                    said.append({"who": {"assistant": "model"}.get(message["role"], "user"), "text": text})
                for call in calls:
                    name, args = call["function"]["name"], json.loads(call["function"]["arguments"])
                    said.append({"who": "call", "text": "", "id": call["id"], "name": name, "args": args})
            while said and said[0]["who"] != "user":
                said.pop(0)
            out.append(said)
    return [said for said in out if len(said) > 24 and sum(len(each["text"]) for each in said[:24]) > 8_000]


def healthy(rng: random.Random, wire: str, said: list[Said], turns: int = 9) -> Requests:
    """Requests that each extend the one before, some time apart: the model is asked where a user or a tool spoke."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
    names = ["read", "edit", "grep", "run", "list", "fetch", "plan"][: rng.randint(3, 7)]
    tools = [{"name": name, "description": words(rng, 30), "schema": schema} for name in names]
    room = 4_500 if wire == "gemini" else rng.choice([900, 2_000])
    head = [f"You help with a project. {words(rng, room)}."]
    asked = [
        at + 1
        for at, each in enumerate(said)
        if each["who"] in ("user", "result") and not (said[at + 1 :] and said[at + 1]["who"] in ("user", "result"))
    ]
    ends = asked[max(0, next((n for n, end in enumerate(asked) if end > 5), 0)) :][:turns]
    body = {"model": 0, "system": head, "tools": tools}
    pauses = [rng.randint(5, 200) * 1_000 for _ in ends]
    bodies = [json.loads(json.dumps({**body, "said": said[:end]})) for end in ends]
    return [(START + sum(pauses[:n]), each) for n, each in enumerate(bodies)]


# Bodies as each wire has them.

Part = Callable[[Said], Body]


def _said(
    body: Body, text: Part, call: Part, result: Part, model: str = "assistant", field: str = "content"
) -> list[Body]:
    """What was said, in parts of a wire's own; those of one side in a row are one message."""
    out: list[Body] = []
    for each in body["said"]:
        role = model if each["who"] in ("call", "model") else "user"
        if not out or out[-1]["role"] != role:
            out.append({"role": role, field: []})
        out[-1][field].append({"call": call, "result": result}.get(each["who"], text)(each))
    return out


def _tools(body: Body, schema: str = "parameters", **more: Any) -> list[Body]:
    return [{**more, "name": t["name"], "description": t["description"], schema: t["schema"]} for t in body["tools"]]


def _anthropic(body: Body) -> Body:
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = _said(
        body,
        lambda said: {"type": "text", "text": said["text"]},
        lambda said: {"type": "tool_use", "id": said["id"], "name": said["name"], "input": said["args"]},
        lambda said: {"type": "tool_result", "tool_use_id": said["id"], "content": said["text"]},
    )
    if body.get("tail", True):
        messages[-1]["content"][-1] |= mark
    system = [{"type": "text", "text": text} for text in body["system"]]
    system[-1] |= mark
    return {"max_tokens": 500, "system": system, "tools": _tools(body, "input_schema"), "messages": messages}


def _bedrock(body: Body) -> Body:
    point = {"cachePoint": {"type": "default"}}
    messages = _said(
        body,
        lambda said: {"text": said["text"]},
        lambda said: {"toolUse": {"toolUseId": said["id"], "name": said["name"], "input": said["args"]}},
        lambda said: {"toolResult": {"toolUseId": said["id"], "content": [{"text": said["text"]}]}},
    )
    if body.get("tail", True):
        messages[-1]["content"].append(point)
    system = [*({"text": text} for text in body["system"]), point]
    specs = [
        {"toolSpec": {**tool, "inputSchema": {"json": tool["inputSchema"]}}} for tool in _tools(body, "inputSchema")
    ]
    return {"system": system, "toolConfig": {"tools": specs}, "messages": messages}


def _responses(body: Body) -> Body:
    def item(said: Said) -> Body:
        if said["who"] == "call":
            called = {"name": said["name"], "arguments": json.dumps(said["args"])}
            return {"type": "function_call", "call_id": said["id"], **called}
        if said["who"] == "result":
            return {"type": "function_call_output", "call_id": said["id"], "output": said["text"]}
        role, kind = ("assistant", "output_text") if said["who"] == "model" else ("user", "input_text")
        return {"role": role, "content": [{"type": kind, "text": said["text"]}]}

    head = {"instructions": "\n\n".join(body["system"]), "tools": _tools(body, type="function")}
    return {**head, "input": [item(said) for said in body["said"]]}


def _chat(body: Body) -> Body:
    def message(said: Said) -> Body:
        if said["who"] == "call":
            call = {"name": said["name"], "arguments": json.dumps(said["args"])}
            calls = [{"id": said["id"], "type": "function", "function": call}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        if said["who"] == "result":
            return {"role": "tool", "tool_call_id": said["id"], "content": said["text"]}
        return {"role": "user" if said["who"] == "user" else "assistant", "content": said["text"]}

    head = {"role": "system", "content": "\n\n".join(body["system"])}
    tools = [{"type": "function", "function": tool} for tool in _tools(body)]
    return {"tools": tools, "messages": [head, *map(message, body["said"])]}


def _gemini(body: Body) -> Body:
    names: dict[str, str] = {}  # of the calls so far: an id may come again

    def call(said: Said) -> Body:
        names[said["id"]] = said["name"]
        return {"functionCall": {"name": said["name"], "args": said["args"]}}

    contents = _said(
        body,
        lambda said: {"text": said["text"]},
        call,
        lambda said: {
            "functionResponse": {"name": names.get(said["id"], "read"), "response": {"output": said["text"]}}
        },
        "model",
        "parts",
    )
    system = {"parts": [{"text": text} for text in body["system"]]}
    return {"systemInstruction": system, "tools": [{"functionDeclarations": _tools(body)}], "contents": contents}


WIRES: dict[str, Callable[[Body], Body]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "responses": _responses,
    "chat": _chat,
    "gemini": _gemini,
}
EFFORTS: dict[str, Callable[[bool], Body]] = {
    "anthropic": lambda on: {"thinking": {"type": "adaptive"} if on else {"type": "disabled"}},
    "bedrock": lambda on: {"additionalModelRequestFields": {"thinking": {"type": "adaptive" if on else "disabled"}}},
    "responses": lambda on: {"reasoning": {"effort": "high" if on else "low"}},
    "chat": lambda on: {"reasoning_effort": "high" if on else "low"},
    "gemini": lambda on: {"generationConfig": {"thinkingConfig": {"thinkingBudget": 900 if on else 0}}},
}


def _texts(value: Any) -> Any:
    """A body whose JSON within is text: the simulation compares JSON, a provider the text that it is written as."""
    if isinstance(value, list):
        return [_texts(each) for each in value]
    if not isinstance(value, dict):
        return value
    as_text = ("input", "args", "input_schema", "parameters", "inputSchema")
    return {
        key: {"text": json.dumps(each)} if key in as_text and isinstance(each, dict) else _texts(each)
        for key, each in sorted(value.items())
    }


def played(wire: str, requests: Requests, session: str = "") -> list[SentCall]:
    """The requests with the usage that the provider's cache would report for them."""
    simulators: dict[str, Simulator] = {}
    calls = []
    for place, (at, plain) in enumerate(requests):
        target = plain.get("target") or MODELS[wire][plain["model"]]
        info = model_info(target)
        body = WIRES[wire](json.loads(json.dumps(plain))) | plain.get("settings", {})
        body = body if wire in ("gemini", "bedrock") else {"model": info.model, **body}
        # A setting that a provider puts in front of all has a cache of its own.
        simulator = simulators.setdefault(f"{target} {plain.get('settings')}", Simulator(target))
        usage = simulator.step(at, _texts(body)).usage
        calls.append(SentCall(f"log:{place}", info.provider, info.model, body, usage, at, session))
    return calls


# What is planted from the request `at` on.

Plant = Callable[[Requests, int, random.Random, str], Requests]


def each_body(change: Callable[[Body, int, random.Random], None]) -> Plant:
    """The change in every request from `at` on; what is drawn once for a plant is drawn from `fixed`."""

    def plant(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
        fixed = rng.getrandbits(32)
        for place, (_, body) in enumerate(requests):
            if place >= at:
                body["fixed"], body["place"] = random.Random(fixed), place
                change(body, place, rng)
                del body["fixed"], body["place"]
        return requests

    return plant


def _into_head(body: Body, text: str) -> None:
    """Put a text into the system prompt: in front, within, or behind; as a block of its own, or not."""
    spot, head = body["fixed"].randrange(5), body["system"][0]
    cut = head.index(" ", len(head) // 2)
    body["system"] = [
        [f"{text}\n{head}"],
        [text, head],
        [f"{head[:cut]}. {text} {head[cut + 1 :]}"],
        [f"{head}\n\n{text}"],
        [head, text],
    ][spot]


CLOCKS = (
    "The time is %Y-%m-%d %H:%M:%S.",
    "Current time: %Y-%m-%dT%H:%M:%SZ",
    "Today is %A, %B %d, %Y, %I:%M %p.",
    "<env>\nDate: %d.%m.%Y %H:%M\nPlatform: linux\n</env>",
    "Now: %m/%d/%Y %H:%M:%S",
    "timestamp=%s",
    "It is %H:%M on %a %b %d.",
    "Generated at %d %b %Y %H:%M:%S GMT.",
)


def clock(body: Body, place: int, rng: random.Random) -> None:
    form, step = body["fixed"].choice(CLOCKS), body["fixed"].choice([37, 613, 4_000, 90_000])
    _into_head(body, (dt.datetime(2026, 11, 15, 9, 41, 7) + dt.timedelta(seconds=step * place)).strftime(form))


IDS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: f"Session {uuid.UUID(int=rng.getrandbits(128))}.",
    lambda rng: f"Request id: {rng.getrandbits(128):032x}",
    lambda rng: f"trace={rng.getrandbits(64):016x}",
    lambda rng: f"Working folder: /tmp/run-{''.join(rng.choices('abcdefghijkmnpqrstuvwxyz0123456789', k=10))}",
    lambda rng: (
        f"nonce: {''.join(rng.choices('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789', k=12))}"
    ),
    lambda rng: f"conversation_id=conv_{rng.randrange(10**9, 10**10)}",
    lambda rng: f"Build {rng.getrandbits(28):07x} is deployed.",
)


def random_id(body: Body, place: int, rng: random.Random) -> None:
    _into_head(body, body["fixed"].choice(IDS)(rng))


def id_in_a_tool(body: Body, place: int, rng: random.Random) -> None:
    tool = body["fixed"].choice(body["tools"])
    tool["description"] += f" ({body['fixed'].choice(IDS)(rng)})"


def reordered(body: Body, place: int, rng: random.Random) -> None:
    turn = 1 + place % (len(body["tools"]) - 1)
    body["tools"] = body["tools"][turn:] + body["tools"][:turn]


def toggled(body: Body, place: int, rng: random.Random) -> None:
    if body["fixed"].random() < 0.5:
        gone = body["fixed"].randrange(len(body["tools"]))
        body["tools"] = [each for at, each in enumerate(body["tools"]) if place % 2 or at != gone]
    else:
        extra = {**body["tools"][0], "name": f"extra_{place}"}
        body["tools"].insert(body["fixed"].randrange(len(body["tools"])), extra)


def key_order(body: Body, place: int, rng: random.Random) -> None:
    def turned(value: Any) -> Any:
        return {key: turned(each) for key, each in reversed(value.items())} if isinstance(value, dict) else value

    if place % 2 and body["fixed"].random() < 0.6:
        body["tools"] = [turned(each) for each in body["tools"]]
    elif place % 2:
        body["said"] = [{**each, "args": turned(each["args"])} if "args" in each else each for each in body["said"]]
        if not any("args" in each for each in body["said"]):
            body["tools"][-1] = turned(body["tools"][-1])


def trimmed(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    """A window over the newest messages, from where the user speaks, or behind the first message."""
    most, stays = rng.randint(6, 10), rng.random() < 0.4
    windows = [body["said"][-most:] if len(body["said"]) > most else [] for _, body in requests]
    users = [[n for n, each in enumerate(said) if each["who"] == "user"] for said in windows]
    stays = stays or not all(spots for spots, said in zip(users[at:], windows[at:], strict=True) if said)
    for (_, body), said, spots in list(zip(requests, windows, users, strict=True))[at:]:
        start = next(n for n, each in enumerate(said) if each["who"] != "result") if stays and said else 0
        body["said"] = (body["said"][:1] + said[start:] if stays else said[spots[0] :]) if said else body["said"]
    return requests


def retrieved(body: Body, place: int, rng: random.Random) -> None:
    fetched = words(rng, rng.randint(80, 200))
    form = body["fixed"].randrange(4)
    if form == 0:
        body["said"].insert(0, {"who": "user", "text": f"Context: {fetched}"})
    elif form == 1:
        body["said"][0] = {"who": "user", "text": f"<documents>\n{fetched}\n</documents>\n\n{body['said'][0]['text']}"}
    elif form == 2:
        body["system"] = [*body["system"], f"Relevant documents:\n{fetched}"]
    else:
        body["system"] = [f"# Search results\n{fetched}\n\n{body['system'][0]}"]


def growing(body: Body, place: int, rng: random.Random) -> None:
    facts = " ".join(f"Fact {n}: {WORDS[n % len(WORDS)]} and {WORDS[n * 5 % len(WORDS)]}." for n in range(place + 1))
    behind, head = body["fixed"].random() < 0.5, body["system"][0]
    body["system"] = [f"{head} {facts}" if behind else f"Known so far: {facts}\n{head}"]


def edited(body: Body, place: int, rng: random.Random) -> None:
    """One old message says something else each time, another one is cleared, or the words of one are moved."""
    form, spots = body["fixed"].randrange(3), range(1, max(2, len(body["said"]) - 3))
    kinds = [
        at for at in spots if (body["said"][at]["who"] == "result") == (form == 1) and body["said"][at]["who"] != "call"
    ]
    at = kinds[body["fixed"].randrange(max(1, min(3, len(kinds))))] if kinds else 1
    other = [words(rng, 40), f"[cleared, was seen {place} times]", f"{body['said'][at]['text']} {words(rng, 3)}"]
    body["said"][at] = {**body["said"][at], "text": other[form]}


def expire(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    pause = int(min(model_info(MODELS[wire][0]).ttl_s) * rng.uniform(1.3, 4) * 1_000)
    return [(time + pause * (place >= at), body) for place, (time, body) in enumerate(requests)]


def switch_model(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    back = rng.random() < 0.5
    for place, (_, body) in enumerate(requests):
        body["model"] = int(place == at if back else place >= at)
    return requests


def compact(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    """From here on a summary stands for what was said, and the newest messages, or none, follow it."""
    at = max(at, 4)
    heading = rng.choice(["So far", "Summary of the conversation", "Compacted"])
    told = [{"who": "user", "text": f"{heading}: {words(rng, rng.randint(60, 200))}"}]
    told += [{"who": "model", "text": "Understood."}] if rng.random() < 0.4 else []
    said = requests[at][1]["said"]
    spots = [0, *(n for n in range(1, len(said)) if said[n]["who"] != "result")]
    gone = rng.choice([n for n in spots if 0.3 * len(said) < n < len(said) - 4] or spots[1:2])
    for _, body in requests[at:]:
        body["said"] = [*told, *body["said"][gone:]]
    return requests


def unpaired(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    """A call that the user interrupted: sent without its result, which is put in later."""
    late = {"who": "user", "text": "Stop, do something else."}
    spots = [n for n in range(1, len(requests) - 1) if requests[n][1]["said"][-1]["who"] == "result"]
    at = min(spots, key=lambda n: abs(n - at), default=len(requests))
    until = rng.randint(at + 1, max(at + 1, len(requests) - 1))
    for n, (_, body) in enumerate(requests[at:], at):
        place = len(requests[at][1]["said"]) - 1 if n > at else len(body["said"]) - 1
        body["said"][place : place + 1] = [late] if n < until else [body["said"][place], late]
    return requests


def settings(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    for place, (_, body) in enumerate(requests):
        body["settings"] = EFFORTS[wire](place >= at and bool((place - at) % 2 == 0))
    return requests


def minimum(requests: Requests, at: int, rng: random.Random, wire: str) -> Requests:
    """Requests to a model that caches nothing so short."""
    target = {"anthropic": "anthropic:claude-opus-4-6", "bedrock": "bedrock:anthropic.claude-opus-4-6"}.get(wire, "")
    short = requests[:3]
    for _, body in short:
        body |= {"system": [words(random.Random(1), 1_000)], "target": target}
        body["said"] = [{**each, "text": each["text"][:200]} for each in body["said"]]
    return short


def marks_left(body: Body, place: int, rng: random.Random) -> None:
    """The mark of the newest message is forgotten."""
    body["tail"] = False


# Where a cause cannot come about: marks are not everywhere, and where little is enough to be cached, less is no loss.
ELSEWHERE = {"marks-moved": ("anthropic", "bedrock"), "minimum": ("anthropic", "bedrock", "gemini")}
PLANTS: dict[str, Plant] = {
    "clock": each_body(clock),
    "random-id": each_body(random_id),
    "random-id in a tool": each_body(id_in_a_tool),
    "tools-reordered": each_body(reordered),
    "tools-changed": each_body(toggled),
    "key-order": each_body(key_order),
    "trimmed": trimmed,
    "retrieval": each_body(retrieved),
    "growing-system": each_body(growing),
    "edited": each_body(edited),
    "ttl": expire,
    "model": switch_model,
    "compaction": compact,
    "unpaired": unpaired,
    "settings": settings,
    "minimum": minimum,
    "marks-moved": each_body(marks_left),
}


def conversation(seed: str, wire: str, real: bool) -> Requests:
    rng = random.Random(f"{seed} {wire}")
    if not real:
        return healthy(rng, wire, made(rng))
    said = rng.choice(recorded())
    spots = [
        at
        for at, each in enumerate(said)
        if each["who"] == "user" and sum(len(one["text"]) for one in said[at : at + 24]) > 8_000 and len(said) - at > 24
    ]
    start = rng.choice(spots or [0])
    return healthy(rng, wire, said[start:])


def named(seed: str, wire: str, cause: str = "", real: bool = False) -> list[str] | None:
    """The causes that an audit names in a conversation, with one planted or none; None where too little was lost."""
    requests = conversation(seed, wire, real)
    if cause:
        rng = random.Random(f"{seed} {wire} {cause}")
        requests = PLANTS[cause](requests, rng.randint(1, 5), rng, wire)
    calls = played(wire, requests)
    used = [call.usage for call in calls if call.usage is not None]
    could = [(min(old.input_total, new.input_total), new.cache_read) for old, new in pairwise(used)]
    if cause and all(most - read < max(1_024, 0.05 * most) for most, read in could):
        return None
    return [found.cause for each in audit(calls).conversations for found in each.verdicts]


def wrong(plants: int, seed: str, wire: str, cause: str, real: bool) -> list[tuple[str, list[str]]]:
    """Of so many conversations with a cause planted: those in which it was not named, and what was."""
    word, out = cause.split(" ")[0], []
    drawn = ((f"{seed}-{n}", named(f"{seed}-{n}", wire, cause, real)) for n in count())
    for name, found in islice(((name, found) for name, found in drawn if found is not None), plants):
        # Where it is planted first, something comes that was not there: that is a change of its own.
        if word not in found or not set(found[1:]) <= {word}:
            out.append((name, found))
    return out
