"""Next-action grounding: does a request still hold what the agent's next action was made of?

For each recorded request the action that the agent really took next is known. Its arguments hold telling words (ids,
paths, dates, numbers: four or more characters with a digit, `_`, `/`, `@` or an inner dot). Of those that occurred
anywhere in the history, how many does the request still hold, and for how many actions does it hold all? Cost and
kept stand beside, so that sending more is seen. A necessary condition, not a sufficient one: a model may hold a word
and overlook it. Quire's requests are those of a live thread: `thread.request` and `thread.record`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import takewhile
from multiprocessing import get_context
from typing import Any

import msgspec

from peers import PEERS, Sizes, points, text_of
from quire import Policy
from quire.assemble import DROP_ONLY, Built, reused_tokens
from quire.cli.output import print_table
from quire.values import Call, Image, ToolSet
from traces import conversations, entries, files, live, parser

BUDGETS = {"pi_large_session": (16_000, 64_000), "swe_agent": (4_000, 8_000)}
OTHER_BUDGETS = (3_000, 4_000)
READ, WRITE = 0.1, 1.25
QUIRE = {"Quire": Policy(), "Quire, drop only": DROP_ONLY}
LEFT_OUT = ("LangChain trim, approximate",)
_WORD = re.compile(r"[\w@./~$#+-]{4,}")
_TELLING = re.compile(r"[\d_/@]|[^.]\.[^.]")
change = msgspec.structs.replace


class Grounding(msgspec.Struct):
    """What one strategy's requests held of the actions that followed them."""

    requests: int = 0
    tokens: int = 0
    reused: int = 0
    kept: float = 0.0
    said: float = 0.0
    over: int = 0
    words: int = 0
    held: int = 0
    actions: int = 0
    whole: int = 0

    def cost(self) -> float:
        return READ * self.reused + WRITE * (self.tokens - self.reused)

    def add(self, other: Grounding) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def telling(text: str) -> list[str]:
    """The ids, paths, dates and numbers of a text, each once."""
    words = dict.fromkeys(word.strip(".-+#$") for word in _WORD.findall(text))
    return [word for word in words if len(word) >= 4 and _TELLING.search(word)]


def action_words(message: dict[str, Any]) -> list[str]:
    """The telling words in the arguments of a message's calls."""
    calls = message.get("tool_calls") or ()
    return telling("\n".join(text for call in calls for text in _strings(_arguments(call))))


def _arguments(call: dict[str, Any]) -> Any:
    raw = call["function"]["arguments"] or ""
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif value is not None:
        yield str(value)


def wanted(messages: Sequence[dict[str, Any]]) -> list[list[str]]:
    """For each request, the words of its action that the history before it holds."""
    out, history, at = [], "", 0
    for place in points(list(messages)):
        history += "\n".join(map(wire_text, messages[at:place]))
        at = place
        out.append([word for word in action_words(messages[place]) if word in history])
    return out


def wire_text(message: dict[str, Any]) -> str:
    """All that a message says, the arguments of its calls unescaped."""
    calls = message.get("tool_calls") or ()
    called = [text for call in calls for text in _strings(_arguments(call))]
    return "\n".join([text_of(message), *called, ""])


def built_text(built: Built) -> str:
    """All that one of our requests says."""
    out = [built.prompt.system]
    for message in built.prompt.messages:
        for part in message.parts:
            if isinstance(part, Call):
                out += _strings(part.args)
            elif not isinstance(part, Image | ToolSet):
                out.append(part.text)
    return "\n".join(out)


class Sent(msgspec.Struct, frozen=True):
    """One request: its text, its tokens, how many were reused, and the shares of the thread that it keeps."""

    text: str
    tokens: int
    reused: int
    kept: float
    # Of what the user and the model said, calls included, how much stands word for word.
    said: float


def grounded(made: Iterable[Sent | None], words: list[list[str]], budget: int) -> Grounding:
    """Count over requests; one that could not be made holds nothing."""
    out = Grounding()
    for one, needed in zip(made, words, strict=True):
        out.requests += 1
        if one is not None:
            out.tokens += one.tokens
            out.reused += one.reused
            out.kept += one.kept
            out.said += one.said
        out.over += one is None or one.tokens > budget
        if needed:
            held = sum(one is not None and word in one.text for word in needed)
            out.words += len(needed)
            out.held += held
            out.actions += 1
            out.whole += held == len(needed)
    return out


class History:
    """The tokens of a thread up to a request: all, and those that the user and the model said."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.sizes, self._messages, self._at = Sizes(), messages, 0
        self.all = self.said = 0

    def up_to(self, place: int) -> None:
        new, self._at = self._messages[self._at : place], place
        self.all += sum(map(self.sizes.of, new))
        self.said += self.said_in(new)

    def said_in(self, messages: Iterable[dict[str, Any]]) -> int:
        return sum(self.sizes.of(message) for message in messages if message["role"] in ("user", "assistant"))


def of_quire(messages: list[dict[str, Any]], policy: Policy) -> Iterator[Sent | None]:
    history, before = History(messages), None
    for place, built in zip(points(messages), live(entries({"messages": messages}), policy), strict=True):
        history.up_to(place)
        if built is None:
            yield None
            continue
        pairs = zip(built.prompt.messages, built.sizes, strict=True)
        said = sum(size for one, size in pairs if one.seqs and one.role in ("user", "assistant"))
        shares = [min(1.0, mine / max(1, all_)) for mine, all_ in ((built.tokens, history.all), (said, history.said))]
        yield Sent(built_text(built), built.tokens, reused_tokens(before, built), *shares)
        before = built


def of_peer(messages: list[dict[str, Any]], peer: Callable[..., Any], budget: int) -> Iterator[Sent]:
    history, before = History(messages), list[dict[str, Any]]()
    for place, kept in zip(points(messages), peer(messages, budget), strict=True):
        history.up_to(place)
        same = common(before, kept)
        size, reused = (sum(map(history.sizes.of, some)) for some in (kept, kept[:same]))
        shares = [
            min(1.0, mine / max(1, all_)) for mine, all_ in ((size, history.all), (history.said_in(kept), history.said))
        ]
        yield Sent("\n".join(map(wire_text, kept)), size, reused, *shares)
        before = kept


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many of the first messages are the same."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], zip(one, other, strict=False))
    )


def measured(
    named: tuple[str, list[dict[str, Any]]], budgets: tuple[int, ...], peers: Sequence[str]
) -> list[tuple[str, int, str, Grounding]]:
    """Every strategy over one conversation, in a process of its own."""
    name, messages = named
    words = wanted(messages)
    out = []
    for budget in budgets or BUDGETS.get(name, OTHER_BUDGETS):
        for who, policy in QUIRE.items():
            ours = of_quire(messages, change(policy, budget=budget, ttl_s=None, read=READ, write=WRITE))
            out.append((name, budget, who, grounded(ours, words, budget)))
        for who in peers:
            out.append((name, budget, who, grounded(of_peer(messages, PEERS[who](), budget), words, budget)))
        print(f"{name} at {budget}", file=sys.stderr, flush=True)
    return out


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=int, nargs="*", default=[], help="budgets for every thread")
    usual = [name for name in PEERS if name not in LEFT_OUT]
    options.add_argument("--peers", nargs="*", default=usual, help="which peers (default: all)")
    arguments = options.parse_args()
    threads = [
        (path.stem, conversation["messages"]) for path in files(arguments.data) for conversation in conversations(path)
    ]
    threads = [(name, messages) for name, messages in threads if any(wanted(messages))]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        work = partial(measured, budgets=tuple(arguments.budget), peers=tuple(arguments.peers))
        rows = [row for found in workers.map(work, threads) for row in found]
    totals: dict[tuple[str, int], dict[str, Grounding]] = {}
    for name, budget, who, found in rows:
        totals.setdefault((name, budget), {}).setdefault(who, Grounding()).add(found)
    if arguments.json:
        told = [
            {"trace": name, "budget": budget, "strategy": who, **msgspec.structs.asdict(one), "cost": one.cost()}
            for (name, budget), group in totals.items()
            for who, one in group.items()
        ]
        print(json.dumps(told))
        return
    for (name, budget), group in totals.items():
        show(f"\n{name} at {budget:,}: {next(iter(group.values())).actions} actions", group)


def show(title: str, group: dict[str, Grounding]) -> None:
    print_table(
        ("strategy", "whole actions", "words", "kept", "said", "tokens, thousands", "cost, thousands", "over"),
        [
            (
                who,
                f"{one.whole / max(1, one.actions):.1%}",
                f"{one.held / max(1, one.words):.1%}",
                f"{one.kept / max(1, one.requests):.0%}",
                f"{one.said / max(1, one.requests):.0%}",
                f"{one.tokens / 1000:,.0f}",
                f"{one.cost() / 1000:,.0f}",
                one.over,
            )
            for who, one in group.items()
        ],
        title=title,
    )


if __name__ == "__main__":
    main()
