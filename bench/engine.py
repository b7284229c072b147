"""Prompt tokens that a real engine processes over twelve turns, for Quire and for four common layouts.

The engine is llama.cpp, one slot, one thread, no memory of older prompts; it reports what it read from its
cache and what it had to compute. Every layout holds the same two kinds of conversation: notes that come as
the talk goes on, and notes kept attached throughout; the model's own answers go on record. SmolLM2 answers
one of the first kind; a model with random weights and the same tokenizer counts more and longer ones. Each
request is also predicted by the simulator. With --data, questions and notes are made of what users said and
tools gave in those traces.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from quire import providers, values
from quire.assemble import Policy
from quire.cli.output import print_table
from quire.log.sqlite import SqliteStore
from quire.providers.simulate import Simulator
from quire.send.connect import transport_for
from quire.send.local import LocalServer, weights
from quire.send.runners import SUMMARISER
from quire.send.transport import close
from quire.send.weights import faster
from quire.thread import Thread
from quire.values import JsonObject, Request
from traces import WORDS, files, parser, texts

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tiny_model import tiny_model

TARGET, TURNS, CTX, BUDGET = "llamacpp:local", 12, 36_000, 30_000
SYSTEM = "You help with a harbor town's records. Answer from the notes, in one short sentence, and say so when they do not tell."


class Texts(msgspec.Struct, frozen=True):
    """What questions and notes are made of: a list of words, or recorded texts where there are any."""

    asked: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    def question(self, dice: random.Random, number: int) -> str:
        if self.asked:
            return f"Question {number + 1}: {dice.choice(self.asked)[:400]}"
        return f"Question {number + 1}: what do the notes say of the {dice.choice(WORDS)} and the {dice.choice(WORDS)}?"

    def note(self, dice: random.Random, words: int) -> str:
        if self.given:  # as long as the made ones: a word of theirs is about one token, or four characters
            return dice.choice(self.given)[: words * 4]
        return " ".join(dice.choice(WORDS) for _ in range(words))


class Turn(msgspec.Struct, frozen=True):
    """What the user brings: words, and notes by path."""

    text: str
    notes: tuple[str, ...]


class Talk(msgspec.Struct, frozen=True):
    """A conversation before anyone has answered: twelve turns and the notes they attach."""

    turns: tuple[Turn, ...]
    notes: dict[str, str]


MADE = Texts()


class Measured(msgspec.Struct, frozen=True):
    """One request: its tokens, what was read, what was predicted, and how long the first token took."""

    tokens: int
    read: int
    predicted: int
    first_token_s: float

    @property
    def processed(self) -> int:
        return self.tokens - self.read


def coming(seed: int, words: int, of: Texts = MADE) -> Talk:
    """A new note on two turns of five, an earlier one again on every other turn."""
    dice, notes, turns = random.Random(seed), dict[str, str](), []
    for number in range(TURNS):
        attached = []
        if number == 0 or dice.random() < 0.4:
            attached.append(_add_note(dice, notes, words, of))
        earlier = [path for path in notes if path not in attached]
        if earlier and dice.random() < 0.5:
            attached.append(dice.choice(earlier))
        turns.append(Turn(of.question(dice, number), tuple(attached)))
    return Talk(tuple(turns), notes)


def kept(seed: int, words: int, of: Texts = MADE) -> Talk:
    """Three notes attached from the first turn on, a fourth from the sixth: all stay attached."""
    dice, notes, turns = random.Random(seed), dict[str, str](), []
    for number in range(TURNS):
        for _ in range({0: 3, 5: 1}.get(number, 0)):
            _add_note(dice, notes, words, of)
        turns.append(Turn(of.question(dice, number), tuple(notes)))
    return Talk(tuple(turns), notes)


def _add_note(dice: random.Random, notes: dict[str, str], words: int, of: Texts) -> str:
    """One more note, of about so many words."""
    path = f"town/{dice.choice(WORDS)}-{len(notes) + 1}.md"
    length = dice.randint(words * 3 // 4, words * 5 // 4)
    notes[path] = of.note(dice, length)
    return path


# Layouts: from the turns so far and the answers to them, to the messages of the next request.
Layout = Callable[[Talk, list[str], int], list[JsonObject]]


def pasted(said: Talk, turn: Turn) -> str:
    """A turn's notes in full above its words, as programs do that keep no account of what was given."""
    return "\n\n".join([*(f"[{path}]\n{said.notes[path]}" for path in turn.notes), turn.text])


def exchange(said: Talk, answers: list[str], number: int) -> list[JsonObject]:
    """The conversation up to turn `number`, notes inside the messages they came with."""
    out: list[JsonObject] = []
    for place in range(number + 1):
        out.append({"role": "user", "content": pasted(said, said.turns[place])})
        if place < number:
            out.append({"role": "assistant", "content": answers[place]})
    return out


def clock_on_top(said: Talk, answers: list[str], number: int) -> list[JsonObject]:
    system = f"Current time: 2026-11-15T09:{number * 3:02}:07Z\n\n{SYSTEM}"
    return [{"role": "system", "content": system}, *exchange(said, answers, number)]


def sliding(said: Talk, answers: list[str], number: int) -> list[JsonObject]:
    """The last nine messages (so that the first is the user's), cut anew every turn."""
    return [{"role": "system", "content": SYSTEM}, *exchange(said, answers, number)[-9:]]


def json_of_twenty(said: Talk, answers: list[str], number: int) -> list[JsonObject]:
    """The last twenty messages as JSON in one user message; every note is a message of its own."""
    history: list[JsonObject] = []
    for place in range(number + 1):
        turn = said.turns[place]
        history += [{"role": "user", "content": f"[{path}]\n{said.notes[path]}"} for path in turn.notes]
        if place < number:
            history.append({"role": "user", "content": turn.text})
            history.append({"role": "assistant", "content": answers[place]})
    stamped = [{**one, "timestamp": f"2026-11-15T09:{at:02}:28.420651Z"} for at, one in enumerate(history)]
    context = json.dumps([{"type": "chat_history", "messages": stamped[-20:]}], indent=2)
    text = f"Context:\n{context}\n\nUser message: {said.turns[number].text}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def all_pasted_again(said: Talk, answers: list[str], number: int) -> list[JsonObject]:
    """History as plain questions and answers; every note so far in the newest message."""
    out: list[JsonObject] = [{"role": "system", "content": SYSTEM}]
    for place in range(number):
        out += [{"role": "user", "content": said.turns[place].text}, {"role": "assistant", "content": answers[place]}]
    known = dict.fromkeys(path for turn in said.turns[: number + 1] for path in turn.notes)
    newest = pasted(said, Turn(said.turns[number].text, tuple(known)))
    return [*out, {"role": "user", "content": newest}]


NAIVE: dict[str, Layout] = {
    "timestamp on top": clock_on_top,
    "JSON of the last 20 messages": json_of_twenty,
    "window that slides every turn": sliding,
    "all context pasted again": all_pasted_again,
}
TALKS = {"notes come as the talk goes on": coming, "notes kept attached": kept}
QUIRE = {"Quire (at-rebase)": "at-rebase", "Quire (each-turn)": "each-turn"}


class Bench:
    """One server and one simulator that follows it request by request."""

    def __init__(self, server: LocalServer, reply_tokens: int, budget: int = BUDGET) -> None:
        self.server, self.budget = server, budget
        self.options = {"max_tokens": reply_tokens, "temperature": 0, "logprobs": True, "top_logprobs": 1}
        self.simulator = Simulator(TARGET, prompt_ids=server.prompt_ids, slots=1, memory_tokens=0)
        self.transport = transport_for(TARGET, server.url)

    async def ask(self, request: Request) -> tuple[Measured, Any]:
        """Send a request; what it cost, and the reply."""
        predicted = self.simulator.step(0, request.body)
        reader, ids, first, began = providers.stream(TARGET), list[int](), 0.0, time.perf_counter()
        async for event in self.transport.stream(request):
            reader.feed(event)
            choice = (event.get("choices") or [{}])[0]
            if (choice.get("delta") or {}).get("content") and not first:
                first = time.perf_counter() - began
            ids += [block["id"] for block in (choice.get("logprobs") or {}).get("content") or ()]
            if choice.get("finish_reason") == "stop":
                ids.append(0)  # the token that ends an answer is not streamed, but it was drawn
        self.simulator.answered(ids)
        reply = reader.reply()
        usage = reply.usage
        return Measured(usage.input_total, usage.cache_read, predicted.read, first), reply

    async def quire(self, said: Talk, promote: Any) -> list[Measured]:
        """The conversation as a Quire thread."""
        out = []
        with SqliteStore(":memory:") as store:
            thread = Thread(store, "t", Policy(budget=self.budget, promote=promote))
            thread.append(values.system(SYSTEM))
            for turn in said.turns:
                thread.user(turn.text, [note(path, said.notes[path]) for path in turn.notes])
                request = thread.request(TARGET, **providers.request_options(self.options))
                measured, reply = await self.ask(request)
                thread.record(reply, request)
                out.append(measured)
        return out

    async def naive(self, said: Talk, layout: Layout) -> list[Measured]:
        """The conversation in a layout of others."""
        out, answers = [], list[str]()
        for number in range(TURNS):
            body = {"model": "local", "messages": layout(said, answers, number), **self.options}
            measured, reply = await self.ask(Request("llamacpp", "local", body))
            answers.append("".join(entry.text for entry in reply.entries) or "-")
            out.append(measured)
        return out

    async def all(self, talks: list[Talk]) -> dict[str, list[list[Measured]]]:
        """Every layout on every conversation."""
        found: dict[str, list[list[Measured]]] = {}
        try:
            for name, promote in QUIRE.items():
                found[name] = [await self.quire(talk, promote) for talk in talks]
            for name, layout in NAIVE.items():
                found[name] = [await self.naive(talk, layout) for talk in talks]
        finally:
            await close(self.transport)
        return found

    async def summary(self, said: Talk) -> dict[str, Measured]:
        """A summary at the end: the cached request and one instruction, or a prompt of its own."""
        ask = {"role": "user", "content": SUMMARISER.format(words=60)}
        messages = [{"role": "system", "content": SYSTEM}, *exchange(said, ["It stands."] * TURNS, TURNS - 1)]
        try:
            await self.ask(Request("llamacpp", "local", {"model": "local", "messages": messages, **self.options}))
            told = [*messages, {"role": "assistant", "content": "It stands."}, ask]
            same, _ = await self.ask(Request("llamacpp", "local", {"model": "local", "messages": told, **self.options}))
            text = "\n\n".join(f"{m['role']}: {m['content']}" for m in messages[1:])
            own = [
                {"role": "system", "content": "You summarise conversations."},
                {"role": "user", "content": f"{text}\n\n{ask['content']}"},
            ]
            new, _ = await self.ask(Request("llamacpp", "local", {"model": "local", "messages": own, **self.options}))
        finally:
            await close(self.transport)
        return {"same request and one instruction": same, "a prompt of its own": new}


def note(path: str, text: str) -> JsonObject:
    return {"id": path, "content": text, "metadata": {"source": "note", "path": path, "title": path}}


def rows(found: dict[str, list[list[Measured]]]) -> Iterator[dict[str, Any]]:
    """Sums over turns 2 to 12, and how many times more than each of Quire's promotions a layout processes."""
    later = {name: [one for run in runs for one in run[1:]] for name, runs in found.items()}
    ours = {name: sum(one.processed for one in later[name]) for name in QUIRE}
    waited = sum(one.first_token_s for one in later[next(iter(QUIRE))])
    for name, measured in later.items():
        processed = sum(one.processed for one in measured)
        seconds = sum(one.first_token_s for one in measured)
        yield {
            "layout": name,
            "prompt tokens": sum(one.tokens for one in measured),
            "cached": sum(one.read for one in measured),
            "processed": processed,
            **{f"× {QUIRE[quire]}": round(processed / mine, 1) for quire, mine in ours.items()},
            "first token s": round(seconds / len(measured), 2),
            "× at-rebase's wait": round(seconds / waited, 1),
            "cached as predicted": f"{sum(one.read == one.predicted for one in measured)}/{len(measured)}",
        }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--budget", type=int, default=BUDGET, help=f"tokens of Quire's requests ({BUDGET:,})")
    made.add_argument("--fast", action="store_true", help="token counts only, no run of the real model")
    made.add_argument("--threads", type=int, default=3, help="conversations of the counting run (0: none)")
    options = made.parse_args()
    of = recorded(files(options.data)) if options.data else MADE
    tables = {}
    for title, table in measured(options.threads, not options.fast, options.budget, of):
        tables[title] = table
        if not options.json:
            print_table(list(table[0]), [list(row.values()) for row in table], title=title)
            print(flush=True)
    if options.json:
        print(json.dumps(tables, indent=2))


def recorded(paths: list[Path]) -> Texts:
    """What users said and tools gave; where there is none of the one, the other stands in for it."""
    asked, given = texts(paths, "user"), texts(paths, "tool")
    return Texts(tuple(asked or given), tuple(given or asked))


def measured(threads: int, real: bool, budget: int, of: Texts) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each table with its title, as soon as it is there."""
    if threads:
        with tempfile.TemporaryDirectory() as folder:
            tiny = tiny_model(Path(folder) / "tiny.gguf")
            for name, make in TALKS.items():
                talks = [make(seed, 420, of) for seed in range(threads)]
                title = f"{name}: {threads} conversations, notes of 420 words, random weights"
                yield title, run(tiny, talks, 40, budget)
            yield "one summary of a 12-turn thread", summary(tiny, of)
    if real:
        # As long as SmolLM2's window of 8,192 tokens allows the longest of the layouts.
        title = f"{next(iter(TALKS))}: one conversation, notes of 220 words, SmolLM2-135M"
        yield title, run(faster(weights()), [coming(0, 220, of)], 24, budget)


def run(gguf: Any, talks: list[Talk], reply_tokens: int, budget: int) -> list[dict[str, Any]]:
    """One run of everything on one server."""
    with LocalServer(gguf, ctx=CTX, cache_ram_mib=0) as server:
        return list(rows(asyncio.run(Bench(server, reply_tokens, budget).all(talks))))


def summary(gguf: Any, of: Texts) -> list[dict[str, Any]]:
    with LocalServer(gguf, ctx=CTX, cache_ram_mib=0) as server:
        found = asyncio.run(Bench(server, 40).summary(coming(0, 420, of)))
    return [
        {"summary by": name, "prompt tokens": one.tokens, "cached": one.read, "processed": one.processed}
        for name, one in found.items()
    ]


if __name__ == "__main__":
    main()
