"""What a recorded conversation would have cost and kept under other policies: simulated, not measured.

Each policy is run over the recorded entries, with one request for each reply of the model. Tokens are counted locally,
reuse is the longest common prefix of whole messages while the cache lives, and replies are those that were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from quire.assemble import Assembly, Built, Policy, ask, requests, reused_tokens, unsent
from quire.assemble.hindsight import number_entries
from quire.assemble.summary import Leaving, extract
from quire.assemble.telling import RUN, leaves, telling
from quire.providers.models import ModelInfo, model_info
from quire.providers.usage import cost
from quire.tokens import message_tokens
from quire.values import Call, Entry, Image, Message, Result, Text, ToolSet, Usage

change = msgspec.structs.replace
# Reports progress: (name of the work, how much is done, of how much).
Tell = Callable[[str, int, int], object]


def untold(work: str, done: int, of: int) -> None:
    """Report no progress."""


class PolicyOutcome(msgspec.Struct, frozen=True):
    """One policy over one conversation; everything in it is simulated."""

    policy: str
    requests: int
    tokens: int
    # The tokens read from the cache; the cost of all tokens, in plain input tokens and in USD (None: price unknown).
    read: int
    cost: float
    usd: float | None
    # The average share of the conversation in a request.
    kept: float
    # Calls with distinctive arguments (ids, paths, dates) from the history, and those whose request held all of these.
    actions: int
    grounded: int
    # The numbers (from 0) of requests that broke the cached prefix; how many requests exceeded the budget.
    cuts: tuple[int, ...] = ()
    over: int = 0

    @property
    def reuse(self) -> float:
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def grounding(self) -> float:
        """The share of `actions` that are `grounded`; 1 where there are no actions."""
        return self.grounded / self.actions if self.actions else 1.0


def together(outcomes: Iterable[PolicyOutcome]) -> list[PolicyOutcome]:
    """The outcomes of several conversations, summed by policy; only policies that all of them have."""
    by_policy: dict[str, list[PolicyOutcome]] = {}
    for outcome in outcomes:
        by_policy.setdefault(outcome.policy, []).append(outcome)
    most = max(map(len, by_policy.values()), default=0)
    return [_sum(name, rows) for name, rows in by_policy.items() if len(rows) == most]


def _sum(name: str, rows: Sequence[PolicyOutcome]) -> PolicyOutcome:
    names = ("requests", "tokens", "read", "cost", "actions", "grounded", "over")
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in names}
    priced = [row.usd for row in rows if row.usd is not None]
    usd = sum(priced) if len(priced) == len(rows) else None
    share = sum(row.kept * row.requests for row in rows) / max(1, sums["requests"])
    cuts = tuple(range(sum(len(row.cuts) for row in rows)))
    return PolicyOutcome(policy=name, usd=usd, kept=share, cuts=cuts, **sums)


class RequestSeries(Sequence[Built]):
    """The requests of one thread, in order; a request that a later one extends is stored as the beginning of that."""

    def __init__(self) -> None:
        # (request without messages, how many it has, index in `_longest` of the request that they begin)
        self._rows: list[tuple[Built, int, int]] = []
        self._longest: list[Built] = []
        self.tokens: list[int] = []
        # For each request that extends the one before it, how many messages that one had; else 0.
        self.same: list[int] = []

    def add(self, built: Built) -> None:
        before = self._longest[-1] if self._longest else None
        if before is not None and _extends(before, built):
            self.same.append(len(before.sizes))
            self._longest[-1] = built
        else:
            self.same.append(0)
            self._longest.append(built)
        self._rows.append((with_messages(built, (), ()), len(built.sizes), len(self._longest) - 1))
        self.tokens.append(built.tokens)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, n: Any) -> Any:
        built, count, place = self._rows[n]
        longest = self._longest[place]
        return with_messages(built, longest.prompt.messages[:count], longest.sizes[:count])


def _extends(before: Built, now: Built) -> bool:
    count = len(before.sizes)
    return now.sizes[:count] == before.sizes and now.prompt.messages[:count] == before.prompt.messages


class RecordedThread(msgspec.Struct, frozen=True):
    """A recorded conversation: its entries, and of each request the full history, the time, and the words it needs."""

    entries: dict[int, Entry]
    full: RequestSeries
    times: tuple[int | None, ...]
    needed: tuple[tuple[str, ...], ...]
    texts: MessageTexts


class SimulatedRequest(msgspec.Struct, frozen=True):
    """A policy's request (None where it cannot make one); with `aside`, one for a summary of `output` tokens."""

    built: Built | None
    aside: bool = False
    output: int = 0


# A policy: the requests that it sends for a recorded conversation, in order.
Sending = Callable[[RecordedThread, Policy], Iterator[SimulatedRequest]]


def what_if(
    entries: Iterable[Entry],
    policies: Mapping[str, tuple[Sending, bool]] | None = None,
    *,
    policy: Policy,
    tell: Tell = untold,
) -> list[PolicyOutcome]:
    """What each policy would have sent, read, cost and kept of a conversation; `policy` has budget, model and prices.

    `policies` maps a name to (what it sends, whether it asks for the longer cache life); the default is `POLICIES`.
    Those with the longer life are left out where the provider has only one. `tell` reports how many are done.
    """
    out, tried = [], policies or POLICIES
    tell("policies", 0, len(tried))
    thread = recorded_thread(entries, policy)
    info = model_info(policy.model) if policy.model else None
    lives = info.ttl_s if info is not None else ()
    for number, (name, (sends, long_life)) in enumerate(tried.items()):
        tell("policies", number, len(tried))
        if not long_life or len(lives) > 1:
            under = policy
            if long_life and info is not None:
                under = change(policy, ttl_s=max(lives), write=info.w_long or info.w)
            out.append(_outcome(name, sends(thread, under), thread, under, info))
    return out


def recorded_thread(entries: Iterable[Entry], policy: Policy) -> RecordedThread:
    """The conversation with its requests as they would be with all of the history."""
    everything = Assembly(change(policy, budget=10**12, reply=0, when="full", shares={}))
    listed = list(number_entries(unsent(entries)))
    full, texts = RequestSeries(), MessageTexts()
    times: list[int | None] = []
    called: list[list[str]] = []
    for entry in listed:
        if everything.asks(entry):
            built = ask(everything, entry)
            assert isinstance(built, Built)
            full.add(built)
            times.append(everything.models.now)
            called.append([])
        if entry.kind == "call" and called:
            called[-1] += leaves(entry.body.get("args"))
        everything.feed(entry)
    needed: list[tuple[str, ...]] = []
    pieces = WordPieces()
    for strings, built, same in zip(called, full, full.same, strict=True):
        for message in built.prompt.messages[same:]:
            pieces.read(texts.text(message))
        pieces.read(built.prompt.system)
        words = filter(pieces.may_hold, telling("\n".join(strings)))
        needed.append(tuple(word for word in words if texts.holds(built, word)))
    return RecordedThread({entry.seq: entry for entry in listed}, full, tuple(times), tuple(needed), texts)


class MessageTexts:
    """The texts of messages, each read once; remembers where a word was found last."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[Message, str]] = {}
        self._found: dict[str, tuple[int, Message]] = {}

    def holds(self, built: Built, word: str) -> bool:
        messages, system = built.prompt.messages, built.prompt.system
        place, found = self._found.get(word, (0, None))
        if place < len(messages) and messages[place] is found:
            return True
        for place in reversed(range(len(messages))):
            if word in self.text(messages[place]):
                self._found[word] = place, messages[place]
                return True
        return word in system

    def text(self, message: Message) -> str:
        cached = self._cache.get(id(message))
        if cached is None:
            cached = self._cache[id(message)] = (message, "\n".join(_message_texts(message)))
        return cached[1]


class WordPieces:
    """A Bloom filter over texts: `may_hold` is False only for words that are in none of them.

    It holds the hashes of all pieces of four and eight characters.
    """

    def __init__(self) -> None:
        self._runs: set[str] = set()
        self._places = bytearray(_PLACES)

    def read(self, text: str) -> None:
        fresh = {*RUN.findall(text)} - self._runs
        self._runs |= fresh
        for run in fresh:
            for size in (4, 8):
                for start in range(len(run) - size + 1):
                    self._places[hash(run[start : start + size]) % _PLACES] = 1

    def may_hold(self, word: str) -> bool:
        size = 8 if len(word) >= 8 else 4
        return all(self._places[hash(word[n : n + size]) % _PLACES] for n in range(len(word) - size + 1))


_PLACES = 1 << 24


def _message_texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Call):
            yield from leaves(part.args)
        elif not isinstance(part, Image | ToolSet):
            yield part.text


# Counting.


def _outcome(
    name: str, sent: Iterable[SimulatedRequest], recorded: RecordedThread, policy: Policy, info: ModelInfo | None
) -> PolicyOutcome:
    texts, before, last = recorded.texts, None, None
    size_before = 0
    number = tokens = read = over = actions = grounded = 0
    units, share, usd = 0.0, 0.0, 0.0 if info is not None else None
    cuts: list[int] = []
    for request in sent:
        built, at = request.built, recorded.times[number]
        if built is not None:
            size, common = built.tokens, reused_tokens(before, built)
            cold = None not in (at, last, policy.ttl_s) and at - last > policy.ttl_s * 1000  # type: ignore[operator]
            reused = 0 if cold else common
            if before is not None and common < size_before and not request.aside:
                cuts.append(number)
            tokens, read, before, last, size_before = tokens + size, read + reused, built, at, size
            units += policy.prices[0] * reused + policy.prices[1] * (size - reused)
            cost_usd = _usd(size, reused, request.output, policy, info, at)
            usd = usd + cost_usd if usd is not None and cost_usd is not None else None
        if request.aside:
            continue
        over += built is None or size > policy.limit
        share += min(1.0, size / max(1, recorded.full.tokens[number])) if built is not None else 0.0
        if recorded.needed[number]:
            actions += 1
            grounded += built is not None and all(texts.holds(built, w) for w in recorded.needed[number])
        number += 1
    return PolicyOutcome(
        name, number, tokens, read, units, usd, share / max(1, number), actions, grounded, tuple(cuts), over
    )


def _usd(tokens: int, reused: int, output: int, policy: Policy, info: ModelInfo | None, at: int | None) -> float | None:
    """The cost of one request's input, and of its summary where it writes one."""
    if info is None:
        return None
    cached = tokens >= info.min_cache_tokens
    read = reused if cached else 0
    written = tokens - read if cached else 0
    long_life = policy.ttl_s is not None and policy.ttl_s > min(info.ttl_s, default=policy.ttl_s)
    used = Usage(tokens, read, 0 if long_life else written, written if long_life else 0, output)
    return cost(used, info, at).amount_usd


# The policies.


def everything(recorded: RecordedThread, policy: Policy) -> Iterator[SimulatedRequest]:
    """All of the history, always."""
    yield from map(SimulatedRequest, recorded.full)


def quire(recorded: RecordedThread, policy: Policy) -> Iterator[SimulatedRequest]:
    """Quire's own requests under the policy."""
    for built in requests(recorded.entries.values(), policy):
        yield SimulatedRequest(built if isinstance(built, Built) else None)


# Observation masking sends this many of the newest tool results.
_UNMASKED = 10


def masking(recorded: RecordedThread, policy: Policy) -> Iterator[SimulatedRequest]:
    """Observation masking: only the newest tool results are sent, the others as a line that says so."""
    messages: list[Message] = []
    sizes: list[int] = []
    # The indices of messages with unmasked results.
    results: list[int] = []
    for built, same in zip(recorded.full, recorded.full.same, strict=True):
        if not same:
            messages, sizes, results = [], [], []
        for message, size in zip(built.prompt.messages[len(messages) :], built.sizes[len(sizes) :], strict=True):
            results += [len(messages)] if message.role == "tool" else []
            messages.append(message)
            sizes.append(size)
        for place in results[:-_UNMASKED]:
            messages[place] = _mask(messages[place])
            sizes[place] = message_tokens(messages[place])
        results = results[-_UNMASKED:]
        yield SimulatedRequest(with_messages(built, messages, sizes))


def _mask(message: Message) -> Message:
    line = "[Old output left out for brevity]"
    parts = [change(part, text=line, wire={}) if isinstance(part, Result) else part for part in message.parts]
    return change(message, parts=tuple(parts))


def summary(trigger: float = 0.9, most: int = 10**12, newest: float = 0.2, size: int = 2_000) -> Sending:
    """When `trigger` of the budget is reached (at most `most` tokens), all but the newest share becomes a summary.

    The request for the summary is counted with the tokens it writes. A model's summary is not known: Quire's
    extractive one stands for it, of `size` tokens at most.
    """

    def sends(recorded: RecordedThread, policy: Policy) -> Iterator[SimulatedRequest]:
        head: list[tuple[Message, int]] = []
        start = 0
        for built in recorded.full:
            messages = (*(message for message, _ in head), *built.prompt.messages[start:])
            sizes = (*(tokens for _, tokens in head), *built.sizes[start:])
            limit = min(most, int(trigger * policy.limit))
            if built.head_tokens + sum(sizes) > limit and len(sizes) > len(head) + 1:
                pairs = list(zip(messages, sizes, strict=True))
                keep = _tail(pairs[len(head) :], newest * policy.limit)
                cut = len(pairs) - keep
                summary = _summary_message(pairs[:cut], recorded, min(size, policy.limit // 8))
                yield SimulatedRequest(with_messages(built, messages, sizes), aside=True, output=summary[1])
                head, start = [summary], len(built.sizes) - keep
                messages, sizes = (summary[0], *messages[cut:]), (summary[1], *sizes[cut:])
            yield SimulatedRequest(with_messages(built, messages, sizes))

    return sends


def _tail(pairs: Sequence[tuple[Message, int]], room: float) -> int:
    """How many of the newest messages stay: those that fit `room`, at least one, and no result without its call."""
    keep, used = 0, 0
    for count, (message, size) in enumerate(reversed(pairs), 1):
        used += size
        if used > room and keep:
            break
        keep = count if message.role != "tool" else keep
    return keep or len(pairs)


def _summary_message(pairs: Sequence[tuple[Message, int]], recorded: RecordedThread, size: int) -> tuple[Message, int]:
    seqs = dict.fromkeys(seq for message, _ in pairs for seq in message.seqs)
    before = "".join(part.text for message, _ in pairs[:1] if not message.seqs for part in message.parts if isinstance(part, Text))  # fmt: skip
    entries = tuple(recorded.entries[seq] for seq in seqs if seq in recorded.entries)
    message = Message("user", (Text(extract(Leaving(entries, before, size))),))
    return message, message_tokens(message)


def with_messages(built: Built, messages: Iterable[Message], sizes: Iterable[int]) -> Built:
    return change(built, prompt=change(built.prompt, messages=tuple(messages)), sizes=tuple(sizes))


# name -> (what it sends, whether it asks for the longer cache life)
POLICIES: dict[str, tuple[Sending, bool]] = {
    "everything": (everything, False),
    "everything, long life": (everything, True),
    "Quire": (quire, False),
    "Quire, long life": (quire, True),
    "observation masking": (masking, False),
    "summary when full": (summary(), False),
    # Like Anthropic's compaction: at 150,000 tokens everything becomes one block.
    "provider compaction": (summary(most=150_000, newest=0.0), False),
}
