"""The state of a thread, derived from its log for one model; its checkpoint; and the policy that it is built under."""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, takewhile
from operator import ne
from typing import Any

import msgspec

from quire.assemble import Assembly, Built, Policy, Refused, ask, checkpoint
from quire.assemble.checkpoint import Checkpoint, LogPosition
from quire.assemble.summary import Summarise, extract
from quire.errors import CallError, NotFound, QuireError
from quire.log.entries import usable
from quire.log.store import Store
from quire.providers.models import model_info
from quire.providers.rules import Checked
from quire.providers.wires import wire_of
from quire.tokens import IMAGE_TOKENS
from quire.values import Entry, Json, JsonObject, LazyRows, canonical, read_early, sha256_hex

# A checkpoint is written after this many new entries; after a read, which would have to wait for writers, after more.
CHECKPOINT_EVERY = 128
CHECKPOINT_EVERY_READ = 1024


class ThreadState:
    """A thread's state for one model at a time, fed from the log, whichever process writes it.

    All of it is derived: thrown away, it is rebuilt by reading the log. The store keeps a checkpoint of it, so that the
    entries before that need not be read again.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self.position = LogPosition()
        self.assembly: Assembly | None = None
        # The entries since the newest request: one of them may explain why the prefix changes.
        self._since: list[Entry] = []
        self._last_read = 0
        # Whether this object has handed out a request; until then the newest `sent` entry is the newest request.
        self._handed_out = False
        # Gives the messages of the newest request that passed the provider's rules.
        self.checked: Callable[[], Checked] = lambda: ("", {})
        # A checkpoint that was read and not used yet, and the seq at which the newest one ends.
        self._checkpoint: Checkpoint | None = None
        self._checkpoint_seq = 0
        # Whether the store may hold one: false after none was found, until one is saved.
        self._has_checkpoint = True

    def at(self, policy: Policy, summarise: Summarise) -> Assembly:
        """The thread's state under this policy; one made under another policy is thrown away and rebuilt."""
        if self.assembly is None or self.assembly.policy != policy:
            self.assembly = self._from_checkpoint(policy, summarise)
        if self.assembly is None:
            self.position.seq, self.position.times, self.position.times_before_turn = 0, [], 0
            # The store's checkpoint was of no use: one that is takes its place.
            self._checkpoint_seq = 0
            self.assembly = Assembly(policy, summarise)
        self.assembly.use_summariser(summarise)
        self.catch_up()
        return self.assembly

    def _from_checkpoint(self, policy: Policy, summarise: Summarise) -> Assembly | None:
        """The state from the store's checkpoint, or from an earlier one where programs use the thread under two policies."""
        if self._checkpoint is None and self._has_checkpoint:
            self._checkpoint = self._read_checkpoint()
        saved, self._checkpoint = self._checkpoint, None
        is_newest = saved is not None and saved.policy == policy
        if saved is not None and not is_newest:
            saved = EarlierFolds(self._store, self._name).newest(policy, self.position.seq)
        if saved is None or (saved.unrecorded and summarise is not extract):
            return None
        try:
            assembly = saved.assembly(summarise, lambda after, limit: self._store.read(self._name, after, limit))
        except (ValueError, RecursionError):
            return None  # intact bytes, written by a version with another shape
        if is_newest:
            self._continue_from(saved)
        elif saved.seq < self.position.seq:  # which is the log's, whatever the policy
            for entry in self._store.read(self._name, saved.seq, self.position.seq - saved.seq):
                assembly.feed(entry)
        return assembly

    def _read_checkpoint(self) -> Checkpoint | None:
        """The store's checkpoint, if it names an entry of this very log."""
        try:
            data = self._store.checkpoint(self._name)
        except NotFound:
            data = None
        saved = checkpoint.decode(data) if data is not None else None
        return saved if saved is not None and _holds(self._store, self._name, saved.seq, saved.entry_id) else None

    def _continue_from(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint; read only the entries before it that may explain a change of the prefix."""
        unread = self._last_read or (saved.sent_seq - 1 if saved.sent_seq else saved.seq)
        if unread < saved.seq:
            self._since += self._store.read(self._name, unread, saved.seq - unread)
        self._last_read = max(self._last_read, saved.seq)
        self.position, self._checkpoint_seq = saved.position(), saved.seq
        self.checked = lambda: saved.checked

    def keep_checkpoint(self, every: int = CHECKPOINT_EVERY) -> None:
        """Save a checkpoint once `every` entries are new; a failure is ignored, since the log has everything."""
        if self.assembly is None or self.position.seq - self._checkpoint_seq < every:
            return
        self._checkpoint_seq, self._has_checkpoint = self.position.seq, True
        now = Checkpoint(
            **msgspec.structs.asdict(self.position),
            policy=self.assembly.policy,
            unrecorded=self.assembly.unrecorded,
            checked=self.checked(),
        )
        # A summary by the caller's own function that no rebase entry holds yet could not be made again.
        has_own_summary = self.assembly.unrecorded and self.assembly.summarise is not extract
        data = None if has_own_summary else checkpoint.encode(now, self.assembly)
        if data is not None:
            with contextlib.suppress(QuireError):
                self._store.save_checkpoint(self._name, data)
                EarlierFolds(self._store, self._name).keep(now, self.assembly.turn, lambda: data)

    def catch_up(self) -> int:
        """Read the log's new entries; the seq it ends at."""
        self._begin()
        try:
            fresh = self._store.read(self._name, after=self.position.seq)
        except NotFound:
            if self.position.seq:
                raise
            fresh = []
        self.feed(fresh)
        return self.position.seq

    def _begin(self) -> None:
        """Before anything was read: look for the store's checkpoint."""
        if not self.position.seq and self.assembly is None and self._checkpoint is None:
            self._checkpoint = self._read_checkpoint()
            self._has_checkpoint = self._checkpoint is not None
            if self._checkpoint is not None:
                self._continue_from(self._checkpoint)

    def newest_request(self) -> JsonObject:
        """The body of the newest `sent` entry, which names its policy; reads only the log's end behind the checkpoint."""
        try:
            end, page = self._store.info(self._name).seq, 64
        except NotFound:
            return {}
        self._begin()
        while end > self.position.seq:
            after = max(self.position.seq, end - page)
            for entry in reversed(self._store.read(self._name, after, end - after)):
                if is_request(entry):
                    return entry.body
            end, page = after, page * 4
        seq = self.position.sent_seq
        sent = self._store.read(self._name, seq - 1, 1) if seq else []
        return sent[0].body if sent else {}

    def newest_policy(self) -> Policy:
        """The policy that the newest request was built under; the defaults if there was no request."""
        newest = self.newest_request()
        return _readable_policy(newest, policy_of) if newest else Policy()

    def is_current(self) -> bool:
        """Whether the log still holds the last entry that was read."""
        seq = self.position.seq
        return not seq or _holds(self._store, self._name, seq, self.position.entry_id)

    def handed_out(self) -> tuple[Entry, ...]:
        """Note that a request is handed out now; the entries since the request before."""
        since, self._since, self._handed_out = tuple(self._since), [], True
        return since

    def feed(self, entries: Iterable[Entry]) -> None:
        position = self.position
        for entry in entries:
            if self.assembly is not None:
                self.assembly.feed(entry)
            if entry.seq > self._last_read:
                # An entry that is read again, for another policy, explains nothing new.
                if is_request(entry) and not self._handed_out:
                    self._since = []
                self._since.append(entry)
                self._last_read = entry.seq
            if entry.kind == "user":
                position.times_before_turn = len(position.times)
            elif is_request(entry):
                position.segments, position.sent_seq = self._segments_of(entry), entry.seq
                position.times += [] if entry.at is None else [entry.at]
                position.reply_id = entry.wire.get("id") or position.reply_id
            elif entry.kind in ("system", "tools"):
                if entry.meta.get("replace"):
                    position.in_force = {key: value for key, value in position.in_force.items() if key == "system"}
                position.in_force |= _statement_hashes(entry)
            position.seq, position.entry_id = entry.seq, entry.id

    def repeats(self, entry: Entry) -> bool:
        """Whether an entry only repeats the system prompt or the tools that are in force."""
        stated = _statement_hashes(entry)
        return bool(stated) and not entry.meta.get("replace") and stated.items() <= self.position.in_force.items()

    def _segments_of(self, entry: Entry) -> list[str]:
        """All segments of a request: those it shares with the request before are named, not repeated."""
        same = entry.meta.get("same_segments")
        if not isinstance(same, dict):
            return list(entry.body["segments"])
        if same.get("seq") != self.position.sent_seq or not isinstance(same.get("count"), int):
            return []  # it continues a request that was not read here; the next `sent` entry then lists all segments
        return [*self.position.segments[: same["count"]], *entry.body["segments"]]

    def new_segments(self, segments: Sequence[str]) -> tuple[list[str], JsonObject | None]:
        """The segments that differ from the request before, and the meta field that says how many of it come first."""
        old = self.position.segments
        count = min(len(old), len(segments))
        # Nearly always all of the earlier segments are repeated, as the same string objects.
        if old[:count] != list(segments[:count]):
            count = bytes(map(ne, old, segments)).find(1)
        same: JsonObject | None = {"seq": self.position.sent_seq, "count": count} if count else None
        return list(segments[count:]), same


def _statement_hashes(entry: Entry) -> dict[str, str]:
    """The hash of a system prompt, or of each tool of a list, by name; empty for other entries."""
    if entry.kind == "system":
        return {"system": sha256_hex(canonical([entry.text, entry.meta]))}
    if entry.kind == "tools":
        return {f"tool {tool['name']}": sha256_hex(canonical(tool)) for tool in entry.tools}
    return {}


def _holds(store: Store, name: str, seq: int, entry_id: str) -> bool:
    """Whether the log holds this very entry at this seq, and therefore, ids being chained, everything before it."""
    try:
        return seq > 0 and [entry.id for entry in store.read(name, seq - 1, 1)] == [entry_id]
    except NotFound:
        return False


def is_request(entry: Entry) -> bool:
    """Whether a `sent` entry is a request of the conversation itself, not one made aside (a summary, a plan)."""
    return entry.kind == "sent" and not entry.meta.get("aside")


# The policy that fits a model, and the one that a thread was sent under.

# A model that takes no images gets the text `[image]`.
NO_IMAGE_TOKENS = 8


def policy_for(target: str, policy: Policy | None = None, **changes: Any) -> Policy:
    """A policy with the model's window, prices and cache life, except where `policy` or `changes` name their own.

    A policy names a price or cache life of its own where it differs from the default.
    """
    info = model_info(target)
    base = policy or Policy(budget=info.window or Policy().budget, reply=min(info.max_output, info.window // 8))
    of_model = {
        "model": target,
        "read": info.r,
        "write": info.w,
        "ttl_s": info.ttl_s[0] if info.ttl_s else None,
        "image_tokens": IMAGE_TOKENS if info.features.images else NO_IMAGE_TOKENS,
        "late_tools": info.features.late_tools and wire_of(info.wire).late_tools,
        "thinking": wire_of(info.wire).thinking(info),
    }
    return msgspec.structs.replace(base, **{**of_model, **_own_prices(base, target), **changes})


def _own_prices(policy: Policy, target: str) -> JsonObject:
    """The prices and the cache life that a policy names itself."""
    if policy.model not in ("", target):
        return {}  # its prices are another model's
    named = {"read": policy.read, "write": policy.write}
    prices: JsonObject = {name: price for name, price in named.items() if price is not None}
    return prices if policy.ttl_s == Policy().ttl_s else {**prices, "ttl_s": policy.ttl_s}


def changes(target: str, policy: Policy) -> JsonObject:
    """The fields in which a policy differs from the model's own, as each `sent` entry keeps them."""
    usual, chosen = map(msgspec.to_builtins, (policy_for(target), policy_for(target, policy)))
    return {name: value for name, value in chosen.items() if value != usual[name]}


def policy_of(sent: JsonObject) -> Policy:
    """The policy that a request was built under, from the body of its `sent` entry."""
    meta = sent.get("meta") or {}
    target = f"{sent.get('provider')}:{sent.get('model')}"
    return within(target, changed_policy(target, meta.get("policy")), meta.get("window"))


def within(target: str, policy: Policy, window: Json) -> Policy:
    """A policy that keeps to the window a server named, and uses all of it if the budget is the model's own.

    A tenth of the window stays free, since the server may count tokens differently.
    """
    budget = int(window * 0.9) if isinstance(window, int) and not isinstance(window, bool) else 0
    if budget < 8:
        return policy
    usual, reply = policy_for(target), policy.reply
    if budget >= policy.budget:
        if policy.budget != usual.budget:
            return policy
        if reply == usual.reply:
            reply = model_info(target).max_output
    return msgspec.structs.replace(policy, budget=budget, reply=min(reply, budget // 8))


def changed_policy(target: str, named: Json) -> Policy:
    """The model's own policy with the changes that a `sent` entry names."""
    usual = policy_for(target)
    if not (isinstance(named, dict) and named):
        return usual
    fields = {name: value for name, value in named.items() if name in usual.__struct_fields__}
    try:
        return msgspec.convert({**msgspec.to_builtins(usual), **fields}, Policy)
    except (msgspec.ValidationError, CallError):
        return usual  # `meta` is free-form: another program may have written something else there


# A thread as it was sent: each request under the policy that its own `sent` entry names.

# How the body of a `sent` entry becomes a policy.
Read = Callable[[JsonObject], Policy]


def policies(entries: Sequence[Entry], usual: Policy, read: Read = policy_of) -> list[Policy]:
    """For each entry the policy in force: that of the next request sent; behind the last request, that one's."""
    by_key: dict[bytes, Policy] = {}
    sent = [_cached_policy(entry, by_key, read) if is_request(entry) else None for entry in entries]
    newest = next((policy for policy in reversed(sent) if policy is not None), usual)
    backwards = accumulate(reversed(sent), lambda behind, policy: policy or behind, initial=newest)
    return [*backwards][:0:-1]


def _cached_policy(sent: Entry, by_key: dict[bytes, Policy], read: Read) -> Policy:
    """The policy of a `sent` entry, computed once for all that name the same model and changes."""
    key = canonical([sent.body["provider"], sent.body["model"], sent.meta.get("policy")])
    if key not in by_key:
        by_key[key] = _readable_policy(sent.body, read)
    return by_key[key]


def _readable_policy(sent: JsonObject, read: Read) -> Policy:
    try:
        return read(sent)
    except CallError:
        # A log from elsewhere names a provider that is not known here: show its requests as OpenAI Chat.
        return msgspec.structs.replace(read({**sent, "provider": "openai-chat", "model": ""}), model="")


class AssemblyPerPolicy:
    """One assembly for each policy that a thread was sent under, all fed the same entries."""

    def __init__(self, under: Sequence[Policy]) -> None:
        self._assemblies: list[Assembly] = []
        for policy in under:
            if not self.knows([policy]):
                self._assemblies.append(Assembly(policy))

    def knows(self, under: Iterable[Policy]) -> bool:
        """Whether each of these policies has its assembly."""
        return all(any(assembly.policy == policy for assembly in self._assemblies) for policy in under)

    def under(self, policy: Policy) -> Assembly:
        return next(assembly for assembly in self._assemblies if assembly.policy == policy)

    def feed(self, entry: Entry) -> None:
        for assembly in self._assemblies:
            assembly.feed(entry)


def requests_under(entries: Sequence[Entry], under: Sequence[Policy]) -> Iterator[tuple[Built | Refused, Policy]]:
    """The requests of a thread, each built under the policy in force there."""
    assemblies = AssemblyPerPolicy(under)
    for entry, policy in zip(entries, under, strict=True):
        assembly = assemblies.under(policy)
        if assembly.asks(entry):
            yield ask(assembly, entry), policy
        assemblies.feed(entry)


# To rebuild old requests quickly, the state at some earlier points of the log is saved too.

# Saved points of one policy lie at least this many entries apart; the key under which their list is saved.
FOLD_EVERY = 512
_FOLDS = "folds"


@read_early
class FoldPoint(msgspec.Struct, frozen=True, array_like=True):
    """A saved point of a thread: the seq of its last entry, the turn, the seq of the newest request, the policy's hash."""

    seq: int
    turn: int
    sent_seq: int
    policy: str


_START = FoldPoint(0, 0, 0, "")


class EarlierFolds:
    """A thread's state at earlier points: derived, so it may be thrown away, and it is verified before use."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def points(self) -> list[FoldPoint]:
        """The points whose state is saved, in the order of the log."""
        try:
            return msgspec.convert(self._store.get_state(self._name, _FOLDS) or [], list[FoldPoint])
        except msgspec.ValidationError:
            return []

    def newest(self, policy: Policy, seq: int) -> Checkpoint | None:
        """The state at the newest point under a policy, up to a seq."""
        name = _hash_of(policy)
        points = (point for point in reversed(self.points()) if point.policy == name and point.seq <= seq)
        return next(filter(None, map(self.at, points)), None)

    def keep(self, now: Checkpoint, turn: int, encode: Callable[[], bytes | None]) -> None:
        """Save the state of a point, unless it lies close to a saved one of the same policy."""
        point = FoldPoint(now.seq, turn, now.sent_seq, _hash_of(now.policy))
        points = self.points()
        same_policy = (saved.seq for saved in points if saved.policy == point.policy)
        if any(abs(point.seq - seq) < FOLD_EVERY for seq in same_policy) or (data := encode()) is None:
            return
        packed = base64.b64encode(zlib.compress(data, 1)).decode()
        self._store.set_state(self._name, f"fold at {point.seq} {point.policy}", packed)
        listed = sorted([*points, point], key=lambda saved: saved.seq)
        self._store.set_state(self._name, _FOLDS, msgspec.to_builtins(listed))

    def at(self, point: FoldPoint) -> Checkpoint | None:
        """The state at a point; None if it does not verify or belongs to another log."""
        packed = self._store.get_state(self._name, f"fold at {point.seq} {point.policy}")
        try:
            saved = checkpoint.decode(zlib.decompress(base64.b64decode(packed)))
        except (TypeError, ValueError, zlib.error):
            return None
        return saved if saved is not None and _holds(self._store, self._name, point.seq, saved.entry_id) else None


def _hash_of(policy: Policy) -> str:
    return sha256_hex(canonical(msgspec.to_builtins(policy)))[:16]


class SentTurns:
    """The requests of some turns of a stored thread, rebuilt from the nearest saved point."""

    def __init__(self, store: Store, name: str, usual: Policy) -> None:
        self._store, self._name, self._usual = store, name, usual
        self._folds = EarlierFolds(store, name)
        # The entries that were read last, and how many entries the log has before them.
        self.entries: list[Entry] = []
        self.before = 0

    def requests(self, first: int, last: int) -> Iterator[tuple[Built | Refused, Policy]]:
        """The requests of the turns `first` to `last`, and the one before them; a few earlier ones may come too."""
        points = [_START, *(point for point in self._folds.points() if point.turn < first)]
        policy_name = ""
        for point in reversed(points):
            if policy_name not in ("", point.policy) and point is not _START:
                continue
            under = self._read(point, last)
            if len(under) > 1:
                break
            policy_name = _hash_of(under[0]) if under else point.policy
            requests = self._from(point, under[0] if under else self._usual)
            if point is _START:
                yield from requests
                return
            for request in requests:
                if request[0].turn >= first:
                    break  # the request before this turn lies before this point: try an earlier point
                if isinstance(request[0], Built):
                    yield request
                    yield from requests
                    return
        self.before, self.entries = 0, [usable(entry) for entry in self._store.read(self._name)]
        requests = requests_under(self.entries, policies(self.entries, self._usual))
        yield from takewhile(lambda request: request[0].turn <= last, requests)

    def _from(self, point: FoldPoint, policy: Policy) -> Iterator[tuple[Built | Refused, Policy]]:
        """The requests behind a point, in the entries that were read; none if the saved state cannot be used."""
        if point is _START:
            return self._walk(Assembly(policy), 0)
        saved = self._folds.at(point) if point.policy == _hash_of(policy) else None
        try:
            read = partial(self._store.read, self._name)
            return self._walk(saved.assembly(extract, read), saved.sent_seq) if saved else iter(())
        except (ValueError, RecursionError):
            return iter(())  # intact bytes, written by a version with another shape

    def log(self) -> Sequence[Entry]:
        """All entries of the thread; those before the ones that were read are read when they are looked at."""
        front = partial(self._store.read, self._name, 0, self.before)
        return LazyRows(lambda: self.before + len(self.entries), lambda: (*map(usable, front()), *self.entries))

    def _read(self, point: FoldPoint, last: int) -> list[Policy]:
        """Read from a point to the end of turn `last`, and on to the next request; each policy in force up to there."""
        sent_before = self._store.read(self._name, point.sent_seq - 1, 1) if point.sent_seq else []
        newest, after, turn = [_START, *self._folds.points()][-1], point.seq, point.turn
        read, behind, size = list[Entry](), list[Entry](), 64
        while not any(map(is_request, behind)) and (page := self._store.read(self._name, after, size)):
            after, size = page[-1].seq, min(2 * size, 4096)
            for entry in map(usable, page):
                turn += entry.kind == "user"
                (behind if turn > last else read).append(entry)
            if behind and newest.sent_seq <= after < newest.seq:
                after = newest.seq  # skip: no request was sent in between
        self.before, self.entries = point.seq, read
        under = policies([*sent_before, *read, *behind], self._usual)
        in_turns = under[len(sent_before) : len(sent_before) + len(read)]
        return list({id(policy): policy for policy in in_turns}.values())

    def _walk(self, assembly: Assembly, sent_seq: int) -> Iterator[tuple[Built | Refused, Policy]]:
        """The requests among the entries that were read; saves the state every FOLD_EVERY entries."""
        policy = assembly.policy
        for entry in self.entries:
            if assembly.asks(entry):
                yield ask(assembly, entry), policy
            assembly.feed(entry)
            sent_seq = entry.seq if is_request(entry) else sent_seq
            if entry.seq % FOLD_EVERY == 0:
                now = Checkpoint(entry.seq, entry.id, sent_seq=sent_seq, policy=policy, unrecorded=assembly.unrecorded)
                with contextlib.suppress(QuireError):
                    self._folds.keep(now, assembly.turn, partial(checkpoint.encode, now, assembly))
