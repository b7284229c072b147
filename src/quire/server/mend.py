"""Requests mended on their way: rules applied, the outcome checked against the provider's rules, the saving measured.

Where no rule fires, or a mended request would be refused, the application's own bytes go on.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from quire import values
from quire.assemble import Policy
from quire.assemble.messages import assistant, results
from quire.audit import SentCall, call_of, is_body
from quire.audit.first_difference import tool_name, with_long_words
from quire.errors import BudgetError, CallError, QuireError
from quire.fitting import Fitter, unmarked_body
from quire.log.sqlite import SqliteStore
from quire.providers import render
from quire.providers.models import model_info
from quire.providers.prefix import bare, write_value
from quire.providers.rules import GrowingCheck, errors
from quire.providers.rules.check import make_check
from quire.providers.simulate import Simulator
from quire.providers.usage import cost
from quire.providers.wires import Wire, wire_of
from quire.recall import RECALL_TOOL
from quire.server import Recent
from quire.server.mend_rules import (
    RULES,
    BodyDraft,
    HeadChanges,
    HeadState,
    SentMessages,
    head_texts,
    needed_betas,
    offered_tools,
    plain_digest,
)
from quire.tokens import count as count_tokens
from quire.values import Entry, Json, JsonObject, Message, Prompt, Reply, Text, Usage, as_objects

# Of more conversations, or of more bytes of their newest requests, those that went on longest ago are forgotten.
_MOST_CONVERSATIONS = 5_000
_MOST_BYTES = 256 * 1024 * 1024
_MOST_MESSAGES = 500_000
# Conversations that are known by one message, if fewer hold it.
_MOST_HOLDERS = 200
_MOST_COMPARED = 2_000
# Tokens of which it is kept what a cache holds, which takes about 60 bytes each.
_MOST_SIMULATED = 5_000_000


class Mended(msgspec.Struct, frozen=True):
    """What a request became: `body` is None where the application's own bytes go on."""

    body: JsonObject | None = None
    betas: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    # Rules that would have made the provider refuse the request.
    refused: tuple[str, ...] = ()
    held_out: bool = False
    # Why no rule was tried, where the request is of a kind that is only watched.
    only_watched: str = ""
    # The conversation, for whoever measures.
    conversation: str = ""
    # What would have changed, where nothing was to be changed.
    difference: tuple[str, ...] = ()


# Which conversation a request belongs to.


class _Conversation(msgspec.Struct, frozen=True):
    """How a conversation is known: session, provider and model, its first head, and how much its newest request says."""

    identity: tuple[str, str, str]
    head: Counter[str]
    length: int
    # How many messages there are, and how many that differ.
    count: int
    messages: int

    def common_head(self, newer: _Conversation) -> int:
        """How much of its head a newer request begins with."""
        same = dict.__eq__(self.head, newer.head)  # which most are
        return self.length if same else _length(self.head & newer.head)

    def goes_on(self, newer: _Conversation, shared: int, same_start: bool, answered: bool) -> bool:
        """Whether a newer request belongs to it; one that holds no reply yet only as the same request again."""
        if newer.identity != self.identity:
            return False
        if not answered:
            return newer.messages == shared == self.messages and dict.__eq__(newer.head, self.head)
        if 3 * self.common_head(newer) >= self.length + newer.length:
            # One message in common is a coincidence ("continue"), unless both begin with it.
            return shared > 1 or same_start or self.messages <= 2
        return shared > 1 and bool(self.head) == bool(newer.head)


class _Conversations:
    """Tells requests apart by the conversation they belong to: its session, its head, the messages that both hold."""

    def __init__(self) -> None:
        # Which conversations hold a message, by its hash; those that came longest ago are forgotten.
        self._holders: Recent[bytes, list[int]] = Recent(_MOST_MESSAGES)
        self._heads: Recent[int, _Conversation] = Recent(_MOST_CONVERSATIONS)
        self._count = 0

    def find(self, call: SentCall, wire: Wire, messages: list[bytes]) -> int:
        """The number of the conversation that a request goes on with, else of a new one; `messages` are hashes."""
        head = _head_parts(call, wire)
        newer = _Conversation(
            (call.session, call.provider, call.model), head, _length(head), len(messages), len(set(messages))
        )
        key = self._going_on(newer, messages, answered=any(map(_is_reply, call.body[wire.layout.field])))
        if key is None:
            key = self._count = self._count + 1
        # Its first head stays: clocks of agents that work at the same time say the same.
        first = self._heads.get(key, newer)
        self._heads[key] = msgspec.structs.replace(first, count=newer.count, messages=newer.messages)
        for digest in messages:
            holders = self._holders.get(digest, [])
            self._holders[digest] = holders if key in holders else [*holders[1 - _MOST_HOLDERS :], key]
        return key

    def _going_on(self, newer: _Conversation, messages: list[bytes], answered: bool) -> int | None:
        digests = set(messages)
        votes = Counter(key for digest in digests for key in self._holders_of(digest, newer))
        candidates = {key: self._heads[key] for key in votes if key in self._heads}
        same_start = set(self._holders.get(messages[0], ()))
        if len(same_start) >= _MOST_HOLDERS:
            # Of the many that begin with it, only one whose every message is here goes on: with something new, or the same head.
            common = sum(len(self._holders.get(digest, ())) >= _MOST_HOLDERS for digest in digests)
            candidates = {
                key: old
                for key, old in candidates.items()
                if votes[key] + common >= old.messages and (newer.count > old.count or old.head == newer.head)
            }
            same_start = set(candidates)

        def score(key: int) -> int:
            # Messages of a conversation that this request lacks count against it.
            return 2 * votes[key] - candidates[key].messages

        def goes_on(key: int) -> bool:
            return candidates[key].goes_on(newer, votes[key], key in same_start, answered)

        def nearness(key: int) -> int:
            return candidates[key].common_head(newer)

        ranked = sorted(candidates, key=score, reverse=True)
        best = next(filter(goes_on, ranked), None)
        if best is None:
            return None
        # Heads are long, and mostly the first is the one: others are looked at where they are as good, or where this request
        # says nothing new there, or not all that was said. Then it may be another agent's that has said the same so far.
        extends = newer.count > candidates[best].count and votes[best] == candidates[best].messages
        others = (
            key
            for key in ranked
            if score(key) == score(best) or not (extends or votes[key] < min(votes[best], candidates[key].messages))
        )
        return max(filter(goes_on, others), key=lambda key: (nearness(key), score(key), key))

    def _holders_of(self, digest: bytes, newer: _Conversation) -> list[int]:
        """The conversations that hold a message; what so many say tells only those that also begin alike."""
        holders = self._holders.get(digest, [])
        if len(holders) < _MOST_HOLDERS:
            return holders
        return [key for key in holders if key in self._heads and dict.__eq__(self._heads[key].head, newer.head)]


def _head_parts(call: SentCall, wire: Wire) -> Counter[str]:
    """What stands in front of the messages: names of tools and the sentences of the system prompt."""
    tools = (f"tool {tool_name(tool)}" for tool in as_objects(call.body.get("tools")))
    sentences = (part.strip() for _, text in head_texts(call.body, wire) for part in re.split(r"[.\n]", text))
    return Counter([*tools, *filter(None, sentences)])


def _length(parts: Counter[str]) -> int:
    return sum(len(part) * times for part, times in parts.items())


def _is_reply(message: Json) -> bool:
    """Whether a message is the model's; items of OpenAI's that name no role are calls, results and reasoning."""
    return isinstance(message, dict) and message.get("role", "assistant") in ("assistant", "model")


# Mending: rules tried on a request in the light of the one before it, and put back where the provider would refuse it.


class Mender:
    """Mends the requests of conversations, each in the light of those before it.

    `rules` are names of RULES; of `holdout`, a share, conversations are left as they are, for comparison.
    """

    def __init__(self, rules: Collection[str] = tuple(RULES), holdout: float = 0.0) -> None:
        unknown = sorted(set(rules) - set(RULES))
        if unknown:
            raise CallError(f"there is no rule {unknown[0]!r}", hint=f"Known: {', '.join(RULES)}.")
        self._rules = [name for name in RULES if name in rules]
        self._holdout = holdout
        self._states: Recent[int, HeadState] = Recent(_MOST_CONVERSATIONS, _MOST_BYTES, lambda state: state.size)
        self._sent: Recent[int, SentMessages] = Recent(100)  # each takes about 3 KB a message
        self._conversations = _Conversations()
        self._held_out: Recent[int, bool] = Recent(_MOST_CONVERSATIONS)
        self._lock = threading.Lock()

    def mend(self, body: JsonObject, about: JsonObject) -> Mended:
        """The request as it should go on; `about` holds host, path and headers."""
        if not is_body(body):
            return Mended()
        if body.get("previous_response_id") or body.get("conversation"):
            return Mended(only_watched="the provider holds what it goes on with")
        call = call_of("", about, body, None)
        wire = wire_of(call.provider, body)
        if not isinstance(body.get(wire.layout.field), list) or not body[wire.layout.field]:
            return Mended()
        with self._lock:
            messages = list(map(plain_digest, rows := wire.layout.messages(body)))
            key = self._conversations.find(call, wire, messages)
            users = (at for at, row in enumerate(rows) if isinstance(row, dict) and row.get("role") == "user")
            name = f"{hashlib.sha256(call.session.encode() or messages[next(users, 0)]).hexdigest()} {key}"
            if self._holdout and self._is_held_out(key, call.session or name, about):
                return Mended(held_out=True, conversation=name)
            sent = self._sent[key] = self._sent.get(key) or SentMessages(model_info(call.target))
            sent.plain = dict(zip(map(id, rows), messages, strict=True))
            return msgspec.structs.replace(self._mend(call, key, about, sent), conversation=name)

    def _is_held_out(self, key: int, name: str, about: JsonObject) -> bool:
        """Whether a conversation is left as it is: drawn once, by its name; one that a log tells of stays what it was."""
        drawn = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 0x1_0000_0000 < self._holdout
        self._held_out[key] = self._held_out.get(key, bool(about.get("held_out", drawn)))
        return self._held_out[key]

    def _mend(self, call: SentCall, key: int, about: JsonObject, sent: SentMessages) -> Mended:
        before = self._states.get(key)
        draft, fired = _try_rules(self._rules, call, before, sent)
        if fired and (refused := self._refused_rules(call, draft, fired, before, about)):
            # It is not sent as mended: the next request is compared with what was sent before.
            return Mended(refused=refused)
        draft.state.size = len(write_value(call.body))
        self._states[key] = draft.state
        return Mended(draft.body, tuple(draft.betas), tuple(fired)) if fired else Mended()

    def _refused_rules(
        self, call: SentCall, draft: BodyDraft, fired: list[str], before: HeadState | None, about: JsonObject
    ) -> tuple[str, ...]:
        """The mending rules that make the provider refuse a request which it would otherwise take."""
        headers = dict(about.get("headers") or {})
        mended_errors = _broken_rules(draft.body, call, with_betas(headers, draft.betas), draft)
        own_errors = _broken_rules(call.body, call, headers) if mended_errors else mended_errors
        if mended_errors <= own_errors:
            return ()
        tried = {name: _try_rules([name], call, before, draft.sent)[0] for name in fired}
        broken = {name: _broken_rules(made.body, call, with_betas(headers, made.betas)) for name, made in tried.items()}
        return tuple([name for name in fired if not broken[name] <= own_errors] or fired)

    def replay(self, log: Path, most_bytes: int = 64 * 1024 * 1024) -> None:
        """Learn from a proxy's log what its conversations began with, so that a restarted proxy goes on with them."""
        if not log.exists():
            return
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most_bytes))
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue  # the first one, cut in the middle
                body = value.get("given") or value.get("request")
                if isinstance(body, dict):
                    self.mend(body, {"held_out": False, **value})


def _try_rules(
    rules: Sequence[str], call: SentCall, before: HeadState | None, sent: SentMessages
) -> tuple[BodyDraft, list[str]]:
    """The request after some rules, and those that changed it.

    Where they cannot say all that the application says now, its own head goes on, in the order first sent, and is the first
    from then on. What was told of the head before stands in it or is no longer so.
    """
    wire = wire_of(call.provider, call.body)
    draft = BodyDraft(call.body, wire, sent, before, rules)
    fired = [name for name in rules if before is not None and name != "marks" and RULES[name](draft)]
    if before is not None and not draft.means_the_same():
        draft = BodyDraft(call.body, wire, sent, HeadState(before.newest, tools=draft.state.tools))
        fired = [name for name in rules if name in ("tool-order", "key-order") and RULES[name](draft)]
    draft.state.newest = draft.body
    if draft.put_additions() and not fired:
        # An addition that has not changed is not reported as a rule: the rule that wrote it is.
        fired = list(change_rules(draft.changes))
    if "marks" in rules and RULES["marks"](draft):
        fired.append("marks")
    draft.betas = needed_betas(draft.messages)
    return draft, fired


def change_rules(changes: HeadChanges) -> Iterator[str]:
    """The rules whose changes to a conversation's head are still in force."""
    if changes.texts:
        yield "retrieved" if any(isinstance(path[-1], int) and len(path) == 2 for path in changes.texts) else "volatile"
    if changes.late_tools:
        yield "late-tools"
    if changes.effort:
        yield "late-effort"


def _broken_rules(
    body: JsonObject, call: SentCall, headers: Mapping[str, str], draft: BodyDraft | None = None
) -> set[str]:
    """What the provider would refuse a request for; of a draft that is sent, only what is new is looked at."""
    made = make_check(body, call.provider, call.model or None, None, headers)
    check, lines = (draft.sent.check, draft.lines) if draft is not None else (GrowingCheck(), ())
    return {finding.row for finding in errors(check.findings(made, lines))}


def with_betas(headers: Mapping[str, str], betas: Iterable[str]) -> dict[str, str]:
    """The headers, with the beta versions that a mended request needs."""
    named = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",") if beta.strip()]
    both = ",".join(dict.fromkeys([*named, *betas]))
    return {**headers, "anthropic-beta": both} if both else dict(headers)


def is_subscription(headers: Mapping[str, str]) -> bool:
    """Whether a request is paid by somebody's subscription (OAuth), whose traffic is not to be changed unasked."""
    token = headers.get("authorization", "").removeprefix("Bearer ").removeprefix("bearer ").strip()
    opens = token.startswith(("sk-ant-oat", "eyJ", "ya29."))
    return opens or "chatgpt-account-id" in headers or "oauth-" in headers.get("anthropic-beta", "")


def difference(before: Json, after: Json, path: str = "", most: int = 12) -> list[str]:
    """What became of what, a line each: `tools.0.name: 'a' -> 'b'`."""
    if write_value(before) == write_value(after):
        return []
    same_kind = type(before) is type(after)
    if same_kind and isinstance(before, dict):
        names = list(dict.fromkeys((*before, *after)))
        pairs = [(f"{path}.{name}".lstrip("."), before.get(name), after.get(name)) for name in names]
    elif same_kind and isinstance(before, list):
        pairs = [(f"{path}.{at}", was, now) for at, (was, now) in enumerate(itertools.zip_longest(before, after))]
    else:
        return [f"{path}: {_short(before)} -> {_short(after)}"]
    lines = [line for where, was, now in pairs for line in difference(was, now, where)]
    lines = lines or [f"{path or 'body'}: keys in another order"]
    return lines if len(lines) <= most else [*lines[:most], f"… and {len(lines) - most} more"]


def _short(value: Json) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    if len(text) <= 120:
        return text
    (_, front), (back, _) = with_long_words(text, 0, 80), with_long_words(text, len(text) - 36, len(text))
    return f"{text[:front]} … {text[back:]}" if front < back else text


# What mending saved: by simulation for each request, by the held-out conversations for all of them.


class Savings:
    """What each set of rules saved against the application's own requests, as the provider's cache would have read them."""

    def __init__(self) -> None:
        self.by_rules: dict[str, tuple[int, int, float]] = {}
        # By conversation: whether it was mended, its tokens and its money.
        self._arms: Recent[str, tuple[bool, int, float]] = Recent(_MOST_COMPARED)
        # By conversation: what a cache holds of its requests as the application gave them, and as they were sent.
        self._caches: Recent[str, tuple[Simulator, Simulator, int]] = Recent(500, _MOST_SIMULATED, lambda row: row[2])

    def add(self, call: SentCall, original: JsonObject, mended: Mended, at_ms: int) -> None:
        """One answered request of a conversation that is mended, or held out."""
        if call.usage is None or not mended.conversation:
            return
        try:
            paid = cost(call.usage, call.target, at_ms).amount_usd or 0.0
            _, tokens, usd = self._arms.get(mended.conversation, (True, 0, 0.0))
            self._arms[mended.conversation] = not mended.held_out, tokens + call.usage.input_total, usd + paid
            if mended.held_out:
                return
            before = self._unmended_usage(call, original, mended.conversation, at_ms)
        except QuireError:
            return  # a model that nobody knows the cache or the price of
        if mended.rules:
            key = " + ".join(mended.rules)
            times, tokens, usd = self.by_rules.get(key, (0, 0, 0.0))
            unmended = cost(before, call.target, at_ms).amount_usd or 0.0
            self.by_rules[key] = (times + 1, tokens + call.usage.cache_read - before.cache_read, usd + unmended - paid)

    def _unmended_usage(self, call: SentCall, original: JsonObject, conversation: str, at_ms: int) -> Usage:
        """What the application's own request would have used, in the tokens that were reported."""
        target = call.target
        key = f"{conversation} {target}"
        unmended, mended, _ = self._caches.get(key) or (Simulator(target), Simulator(target), 0)
        step = unmended.step(at_ms, original)
        self._caches[key] = unmended, mended, 2 * step.total
        assert call.usage is not None
        # The provider counted what was sent, which mending may have made longer.
        sent = mended.step(at_ms, call.body) if call.body and call.given else step
        scale = call.usage.input_total / max(1, sent.total)
        return msgspec.structs.replace(
            call.usage,
            input_total=round(scale * step.total),
            cache_read=round(scale * step.read),
            cache_write_5m=round(scale * step.write_5m),
            cache_write_1h=round(scale * step.write_1h),
            charged=None,
        )

    def as_json(self) -> JsonObject:
        rules = [
            {"rules": key, "requests": times, "tokens": tokens, "usd": round(usd, 6)}
            for key, (times, tokens, usd) in self.by_rules.items()
        ]
        return {"simulated": rules, "measured": self.measure()}

    def measure(self, rounds: int = 400) -> JsonObject | None:
        """The saving a token against the held-out conversations, with the interval that 95 of 100 draws lie in."""
        arms = [[row[1:] for row in self._arms.values() if row[0] is arm] for arm in (True, False)]
        if min(map(len, arms)) < 2:
            return None
        dice = random.Random(0)
        drawn = sorted(_saving([dice.choices(arm, k=len(arm)) for arm in arms]) for _ in range(rounds))
        low, high = drawn[int(0.025 * rounds)], drawn[int(0.975 * rounds) - 1]
        return {
            "conversations": len(arms[0]),
            "held_out": len(arms[1]),
            "saving": round(_saving(arms), 4),
            "interval": [round(low, 4), round(high, 4)],
        }


def _saving(arms: Sequence[Sequence[tuple[int, float]]]) -> float:
    mended, held_out = (sum(usd for _, usd in arm) / max(1, sum(tokens for tokens, _ in arm)) for arm in arms)
    return 1 - mended / held_out if held_out else 0.0


# Histories that outgrow a budget: fitted by the engine, and what was cut found again for the model.


# Of what a budget leaves for the messages an eighth, and this at most, stays free for what the model looks up.
_MOST_RECALLED = 10_000
# What one call may give; with less than the fewest left, nothing more is looked up.
_MOST_FOUND, _FEWEST_FOUND = 2_000, 60
_NO_ROOM = "There is no room to look up more before this answer: go on with what is shown."
# Tokens that a result takes around its text.
_AROUND_RESULT = 40


class FittedRequest(msgspec.Struct, frozen=True):
    """A request inside its budget, whom it goes to, and the conversation it was cut from, as the log would hold it."""

    body: JsonObject
    target: str
    entries: tuple[Entry, ...]


class FittedConversation:
    """Fits a conversation's requests: into all of the budget until something is cut, then into less, to recall in."""

    def __init__(self, tokens: int, target: str) -> None:
        self._tokens, self._target = tokens, target
        self._alone = self.newest = Fitter(tokens, target)
        # From the first cut on.
        self._recalling: Fitter | None = None
        # The digest of the newest request as the application gave it; branches may be asked for at the same time.
        self.digest, self.lock = b"", threading.Lock()
        self.sent = SentMessages(model_info(target))

    def fit(self, body: JsonObject, offering: JsonObject) -> tuple[JsonObject, JsonObject]:
        """What was given, with the offer of recall or without, and that fitted: itself where nothing is cut."""
        if self._recalling is None:
            given, fitted = self._fit(self._alone, body)
            if fitted is body or offering is body:
                return given, fitted
            free = max(0, min((self._tokens - self._alone.built.head_tokens) // 8, _MOST_RECALLED))
            self._recalling = Fitter(self._tokens - free, self._target)
        try:
            return self._fit(self._recalling, offering)
        except BudgetError:
            # The newest part leaves no room for what the model would look up: it is offered nothing.
            return self._fit(self._alone, body)

    def _fit(self, fitter: Fitter, given: JsonObject) -> tuple[JsonObject, JsonObject]:
        fitter.calibrations = self.newest.calibrations
        self.newest = fitter
        return given, fitter.fit(given)


class Budget:
    """Fits the requests of conversations into so many tokens, and answers `recall` in their model's stead."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._conversations: Recent[str, FittedConversation] = Recent(500)
        self._lock = threading.Lock()

    def fit(
        self,
        body: JsonObject,
        conversation: str,
        call: SentCall,
        headers: Mapping[str, str],
        digest: bytes,
        counted: Mapping[bytes, int],
    ) -> FittedRequest | None:
        """The request inside the budget; None where it fits as it is.

        `counted`: how many tokens the provider found in earlier requests, by the digest of what the application gave.
        """
        target = call.target
        wire, info = wire_of(target, body), model_info(target)
        # Signed thinking would be invalid behind an exchange that the application never saw.
        offering = _with_recall(body, target, wire) if info.features.thinking_bound == "no" else body
        with self._lock:
            before = self._conversations.get(conversation) or FittedConversation(self._tokens, target)
            self._conversations[conversation] = before
        with before.lock:
            before.newest.report(counted.get(before.digest, 0))
            before.digest = b""
            given, fitted = before.fit(body, offering)
            if fitted is not given:
                draft = BodyDraft(unmarked_body(fitted, wire.layout.field), wire, before.sent)
                fitted = draft.body if RULES["marks"](draft) else fitted
                broken = _broken_rules(fitted, call, headers, draft)
                if broken and (new := broken - _broken_rules(body, call, headers)):
                    raise CallError(f"fitted into the budget, it would break {', '.join(sorted(new))}")
            before.digest = digest
            return FittedRequest(fitted, target, before.newest.entries) if fitted is not given else None

    def follow_up(
        self, fitted: FittedRequest, read: Callable[[Wire], Reply], is_last: bool = False
    ) -> FittedRequest | None:
        """The request that goes on with what a reply wanted to recall; None where it asked for nothing.

        The last one offers no recall, nor does one that leaves no room: its reply is the application's.
        """
        body, target = fitted.body, fitted.target
        wire = wire_of(target, body)
        offer = _recall_offer(target, wire)
        if not any(bare(tool) in offer for tool in body.get("tools") or ()):
            return None
        reply = read(wire)
        entries = [entry for entry in reply.entries if entry.kind != "call" or entry.name == "recall"]
        calls = [entry for entry in entries if entry.kind == "call"]
        if not calls:
            return None
        used = reply.usage.input_total + reply.usage.output or count_tokens(json.dumps(body), target).tokens
        room = (self._tokens - used) // len(calls) - _AROUND_RESULT
        if room < _FEWEST_FOUND:
            return msgspec.structs.replace(fitted, body=_without_recall(body, offer, wire))
        with SqliteStore(":memory:") as store:
            store.append("it", fitted.entries)
            found = [_find(store, call.args, min(room, _MOST_FOUND), target) for call in calls]
        answered = [(call, values.result(call.call_id, None, text)) for call, text in zip(calls, found, strict=True)]
        spoken = assistant(entries, Policy(model=target, thinking=True)), results(answered)
        field = wire.layout.field
        # A conversation has to begin with the user: this message is left out again.
        behind = wire.layout.messages(_render_messages(target, wire, *spoken))[1:]
        longer = {**body, field: [*body[field], *behind]}
        # Whether there is room to look up once more: as much said, and a little found.
        longest = max(count_tokens(text, target).tokens for text in found)
        is_last = is_last or (room - longest) * len(calls) < reply.usage.output + len(calls) * (
            _AROUND_RESULT + _FEWEST_FOUND
        )
        return msgspec.structs.replace(fitted, body=_without_recall(longer, offer, wire) if is_last else longer)


def _with_recall(body: JsonObject, target: str, wire: Wire) -> JsonObject:
    """A request that offers `recall` behind its tools; itself where the application or the provider leaves no place for it."""
    tools = body.get("tools") or []
    tools = tools if isinstance(tools, list) else [tools]  # Gemini takes one that stands alone
    names = list(map(tool_name, offered_tools(tools)))
    # OpenAI takes no tool beside `functions`, Gemini none beside a cache or its own, which have no name.
    alone = any(body.get(field) for field in ("functions", "cachedContent", "cached_content"))
    if alone or (names and not any(names)) or "recall" in names:  # or it is a tool of the application's own
        return body
    return {**body, "tools": [*tools, *_recall_offer(target, wire)]}


def _recall_offer(target: str, wire: Wire) -> list[JsonObject]:
    """The tool `recall` as a request of this format lists it."""
    return _render_messages(target, wire, tools=(RECALL_TOOL,)).get("tools") or []


def _without_recall(body: JsonObject, offer: list[JsonObject], wire: Wire) -> JsonObject:
    """A request whose model cannot recall: without the tool or, where there is no other, with none to choose."""
    tools = [tool for tool in body["tools"] if bare(tool) not in offer]
    if tools:
        return {**body, "tools": tools}
    match wire.name:
        case "anthropic":
            return {**body, "tool_choice": {"type": "none"}}
        case "gemini":
            return {**body, "toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}
    return {**body, "tool_choice": "none"}


def _render_messages(target: str, wire: Wire, *messages: Message, tools: tuple[JsonObject, ...] = ()) -> JsonObject:
    """A user's word and what is said behind it, in the words of a format."""
    provider, _, model = target.partition(":")
    speaker = provider if wire_of(provider) is wire else wire.name
    prompt = Prompt("", "", tools, (Message("user", (Text("?"),)), *messages))
    return render(prompt, f"{speaker}:{model}", cache=False).body


def _find(store: SqliteStore, args: JsonObject, room: int, target: str) -> str:
    """What a call of `recall` finds, in at most `room` tokens of the model's."""
    from quire.recall.placement import recall_tool
    from quire.recall.search import Recall

    arguments = {name: args[name] for name in ("query", "handle", "k", "start") if name in args}
    recall, share = Recall(store), room
    try:
        while share >= _FEWEST_FOUND:
            text = recall_tool(recall, "it", shown=frozenset, share_tokens=share)(**arguments)
            if count_tokens(text, target).tokens <= room:
                return text
            share //= 2  # its words are shorter than most
    except (QuireError, TypeError, ValueError) as error:
        return f"Error: {error}"
    return _NO_ROOM
