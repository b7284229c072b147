"""Caches that match token ids: of SGLang, vLLM, llama.cpp, DeepSeek, Gemini, and all that read whole steps of a prefix.

Most keep a radix tree: each edge holds a run of ids and when it was last used. Nothing is evicted for want of room: how
much room a provider has is not known.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import msgspec

from quire.providers.models import ModelInfo
from quire.providers.prefix import same_start
from quire.providers.simulate.blocks import Cause, Engine, EngineView, Shares
from quire.values import JsonObject


class Node(msgspec.Struct, eq=False):
    """A run of ids behind its parent's, and what may follow it."""

    ids: array[int]
    stored_ms: int
    used_ms: int
    parent: Node | None
    children: dict[int, Node] = {}
    # Since when a unit ends with it, for caches that read whole units only.
    unit_ms: int | None = None


class Way(NamedTuple):
    """The path of a prompt through the tree: the nodes it passes, and how many of its ids end with each of them."""

    ids: array[int]
    nodes: list[Node]
    ends: list[int]

    @property
    def done(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def last(self) -> int:
        """How many ids of the last node it passes."""
        return self.done - (self.ends[-2] if len(self.ends) > 1 else 0)

    @property
    def stops_short(self) -> bool:
        """Whether it leaves the last node before that one's end."""
        return bool(self.nodes) and self.last < len(self.nodes[-1].ids)


class RadixTree:
    """All prompts of one cache, shared prefixes once; `timed`: nodes tell when a prefix was stored and last used."""

    def __init__(self, timed: bool = True) -> None:
        self.timed = timed
        self.root = Node(array("i"), 0, 0, None)
        self.size = 0
        # The latest path: a prompt is looked up, and then stored.
        self._latest = Way(array("i"), [], [])

    def match(self, ids: array[int], alive: Callable[[Node], bool] | None = None) -> int:
        """How many leading ids are stored and alive."""
        way = self._way(ids)
        if alive is None:
            return way.done
        dead = next((place for place, node in enumerate(way.nodes) if not alive(node)), len(way.nodes))
        return way.ends[dead - 1] if dead else 0

    def unit(self, ids: array[int], before_ms: int) -> int:
        """How many leading ids are the longest unit that was stored before."""
        way = self._way(ids)
        whole = len(way.nodes) - way.stops_short
        passed = zip(reversed(way.nodes[:whole]), reversed(way.ends[:whole]), strict=True)
        return next((end for node, end in passed if node.unit_ms is not None and node.unit_ms < before_ms), 0)

    def insert(self, ids: array[int], at_ms: int, unit: bool = False) -> None:
        """Store a prompt; everything on its way counts as used now. `unit`: its end ends a unit."""
        way = self._way(ids)
        if way.stops_short:
            way.nodes[-1] = self._split(way.nodes[-1], way.last)
        self.size += len(ids) - way.done
        parent = way.nodes[-1] if way.nodes else self.root
        if way.nodes and not (self.timed or parent.children):
            # Extend the leaf itself, so that a thread stays one node however often it grows.
            parent.ids.extend(ids[way.done :])
            way.ends[-1] = len(ids)
        elif way.done < len(ids):
            parent.children[ids[way.done]] = leaf = Node(ids[way.done :], at_ms, at_ms, parent)
            way.nodes.append(leaf)
            way.ends.append(len(ids))
        for node in way.nodes:
            node.used_ms = at_ms
        if unit and way.nodes and way.nodes[-1].unit_ms is None:
            way.nodes[-1].unit_ms = at_ms

    def _way(self, ids: array[int]) -> Way:
        """Follow a prompt from the root."""
        if ids is self._latest.ids:
            return self._latest
        nodes, ends, length, node = list[Node](), list[int](), 0, self.root
        while length < len(ids) and (child := node.children.get(ids[length])) is not None:
            same = common_length(child.ids, ids[length : length + len(child.ids)])
            length += same
            nodes.append(child)
            ends.append(length)
            if same < len(child.ids):
                break
            node = child
        self._latest = Way(ids, nodes, ends)
        return self._latest

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; the front half stands in its parent's place for it."""
        assert node.parent is not None
        front = Node(node.ids[:at], node.stored_ms, node.used_ms, node.parent)
        node.parent.children[front.ids[0]] = front
        node.ids, node.parent = node.ids[at:], front
        front.children[node.ids[0]] = node
        return front


def common_length(ids: array[int], other: array[int]) -> int:
    """How many leading ids agree."""
    # A thread's next prompt begins with the ids before: then memory is compared once.
    return len(ids) if other.tobytes().startswith(ids) else same_start(ids, other)


class RadixCache(Engine):
    """SGLang: the longest common prefix in whole pages; at least one token is always computed."""

    by_ids = True
    keeps_answers = True
    # Requests that differ in one of these share nothing.
    salts: ClassVar[tuple[str, ...]] = ("cache_salt", "extra_key")

    def __init__(self, info: ModelInfo, page: int | None = None) -> None:
        self._page = page or info.cache.step
        self._trees: dict[tuple[str, ...], RadixTree] = {}
        self._tree = RadixTree()

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        salt = tuple(str(request.setting(name) or "") for name in self.salts)
        self._tree = self._trees.setdefault(salt, RadixTree(timed=False))
        cause: Cause = "first" if not self._tree.size else ""
        pages = self._whole_pages(request.ids)
        matched = min(self._tree.match(pages), len(request.ids) - 1)
        self._tree.insert(pages, at_ms)
        return Shares(max(0, matched // self._page * self._page), cause=cause)

    def take_answer(self, prompt: array[int], answer: array[int], at_ms: int) -> None:
        """Store the answer behind its prompt."""
        self._tree.insert(self._whole_pages(prompt + answer), at_ms)

    def _whole_pages(self, ids: array[int]) -> array[int]:
        whole = len(ids) // self._page * self._page
        return ids if whole == len(ids) else ids[:whole]


class BlockCache(RadixCache):
    """vLLM: its pages are blocks, and one that is not full is never stored."""

    salts = ("cache_salt",)

    def __init__(self, info: ModelInfo, size: int | None = None) -> None:
        super().__init__(info, size)


# DeepSeek's cache: whole stored units or nothing.
#
# Units end where a request's input ends, where its answer ends, and where two requests were found to share a
# beginning. Those that end every so many tokens of a long text are left out: the interval is not published.


class UnitCache(Engine):
    """Stored units; a request reads the longest unit that it begins with."""

    by_ids = True
    keeps_answers = True

    def __init__(self, info: ModelInfo) -> None:
        self._prompts = RadixTree()

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        ids = request.ids
        first, same = not self._prompts.size, self._prompts.match(ids)
        read = self._prompts.unit(ids, at_ms)
        # The common beginning becomes a unit now: the third request that has it can read it.
        for end in sorted({same, len(ids)} - {0}):
            self._prompts.insert(ids[:end] if end < len(ids) else ids, at_ms, unit=True)
        if first:
            return Shares(read, cause="first", note="nothing was stored before this request")
        if same > read:
            note = f"{same:,} tokens are shared with an earlier request, but no stored unit ends there"
            return Shares(read, cause="moved", note=note)
        return Shares(read)

    def take_answer(self, prompt: array[int], answer: array[int], at_ms: int) -> None:
        """The end of the answer ends a unit too."""
        self._prompts.insert(prompt + answer, at_ms, unit=True)


# llama.cpp's server: the common token prefix with a slot's last prompt, and older prompts kept in host memory.
#
# Follows the server's own scheduling (slot choice, similarity, saving, loading), so that with its tokens the
# prediction is exact. Prompts in memory are evicted oldest first.

# A prompt in memory is worth loading only if this share of it would be kept.
_LEAST_KEPT = 0.25
# A slot's prompt is saved to memory first if the new one would keep less than this share of it.
_SAVE_BELOW = 0.5


class Slot(msgspec.Struct):
    id: int
    ids: array[int]
    turn: int = -1


class SlotCache(Engine):
    """`slots` prompts in the engine, and older ones in memory up to `memory_tokens` (None: all, 0: none)."""

    by_ids = True
    keeps_answers = True

    def __init__(
        self, info: ModelInfo | None = None, slots: int = 1, memory_tokens: int | None = None, similarity: float = 0.1
    ) -> None:
        self._slots = [Slot(number, array("i")) for number in range(slots)]
        self._memory: list[array[int]] = []
        self._memory_tokens = memory_tokens
        self._similarity = similarity
        self._turn = 0
        self._serving = self._slots[0]

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        """Serve a prompt: choose its slot, bring back a better prompt from memory, reuse the common prefix."""
        ids = request.ids
        slot, same, displaced = self._choose(ids, request.setting("id_slot"))
        first = not slot.ids and not self._memory
        if self._memory_tokens != 0:
            if displaced:
                self._save(slot.ids)
                same = self._load(slot, ids, same)
            for idle in (other for other in self._slots if other is not slot):
                self._save(idle.ids)
        cached = request.setting("cache_prompt") is not False
        # At least one token is always computed: the last one, whose prediction is wanted.
        read = min(same, max(0, len(ids) - 1)) if cached else 0
        cause: Cause = "first" if first else "moved" if read < min(len(slot.ids), len(ids) - 1) else ""
        slot.ids, self._serving = ids, slot
        slot.turn = self._turn = self._turn + 1
        return Shares(read, cause=cause)

    def take_answer(self, prompt: array[int], answer: array[int], at_ms: int) -> None:
        """The slot goes on holding what it generated."""
        self._serving.ids = prompt + answer

    def _choose(self, ids: array[int], slot_number: object) -> tuple[Slot, int, bool]:
        """The slot for a prompt, how much the two share, and whether its present prompt should be put away first."""
        least = self._similarity * len(ids)
        if isinstance(slot_number, int) and slot_number >= 0:
            slot = self._slots[slot_number % len(self._slots)]
            same = common_length(slot.ids, ids)
            return slot, same, bool(slot.ids) and (same <= least or _share(slot, same) < _SAVE_BELOW)
        common = [common_length(slot.ids, ids) for slot in self._slots]
        same = max(common)
        best = self._slots[common.index(same)]
        if same > least:
            return best, same, _share(best, same) < _SAVE_BELOW
        oldest = min(reversed(self._slots), key=lambda slot: slot.turn)
        return oldest, common[oldest.id], True

    def _save(self, ids: array[int]) -> None:
        """Put a prompt into memory, unless a longer one begins with it; shorter ones it begins with go."""
        most = self._memory_tokens
        if not ids or any(common_length(prompt, ids) == len(ids) for prompt in self._memory):
            return
        if most is not None and len(ids) > most:
            return
        self._memory = [prompt for prompt in self._memory if common_length(prompt, ids) < len(prompt)]
        # Room is made before the new prompt comes in, the oldest going first.
        while most is not None and self._memory and sum(map(len, self._memory)) + len(ids) > most:
            self._memory.pop(0)
        self._memory.append(ids)

    def _load(self, slot: Slot, ids: array[int], covered: int) -> int:
        """Take the prompt from memory that both keeps more of itself and covers more of the new prompt."""
        best_share = _share(slot, covered) if slot.ids else -1.0
        best: int | None = None
        for index, candidate in enumerate(self._memory):
            same = common_length(candidate, ids)
            share = same / len(candidate)
            if share >= _LEAST_KEPT and share > best_share and same > covered:
                best_share, covered, best = share, same, index
        if best is not None:
            slot.ids = self._memory.pop(best)
        return covered


def _share(slot: Slot, same: int) -> float:
    """How much of its prompt a slot would keep for a new one that shares so much with it."""
    return same / len(slot.ids) if slot.ids else 0.0


# Automatic prefix caches that read whole steps: OpenAI up to GPT-5.5 (128 tokens), xAI, Groq, Mistral.


class StepCache(Engine):
    """The longest stored prefix, rounded down to a step; lives end when a prefix goes unused too long."""

    by_ids = True

    def __init__(self, info: ModelInfo) -> None:
        self._cache = info.cache
        self._trees: dict[str, RadixTree] = {}
        # The lengths of the prompts that were seen, to tell one that was too short from one that differs.
        self._lengths: dict[str, set[int]] = {}

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        """Requests with another key are served elsewhere, and share nothing."""
        key = str(request.setting(self._cache.key) or "") if self._cache.key else ""
        tree = self._trees.setdefault(key, RadixTree())
        life_ms = self._life_ms(request)
        stored = tree.match(request.ids)
        # A prefix stored in this same moment cannot be read yet.
        matched = tree.match(
            request.ids, lambda node: node.stored_ms < at_ms and (life_ms is None or at_ms - node.used_ms < life_ms)
        )
        read = self._round_down(matched)
        lengths = self._lengths.setdefault(key, set())
        cause, note = self._why(tree, stored, matched, len(request.ids), lengths)
        tree.insert(request.ids, at_ms)
        lengths.add(len(request.ids))
        return Shares(read, cause=cause, note=note)

    def _round_down(self, tokens: int) -> int:
        whole = tokens // self._cache.step * self._cache.step if self._cache.step else tokens
        return whole if whole >= max(1, self._cache.min_tokens) else 0

    def _life_ms(self, request: EngineView) -> int | None:
        """The idle life in force: `prompt_cache_retention` may ask for the longer one."""
        if not self._cache.ttl_s:
            return None
        longer = request.setting("prompt_cache_retention") == "24h"
        return self._cache.ttl_s[-1 if longer else 0] * 1000

    def _why(self, tree: RadixTree, stored: int, matched: int, total: int, lengths: set[int]) -> tuple[Cause, str]:
        if not tree.size:
            return "first", "nothing was stored before this request"
        if self._round_down(stored) > self._round_down(matched):
            return "ttl", f"{stored:,} tokens were stored, but unused for too long"
        if self._round_down(matched):
            return "", ""
        least = max(self._cache.min_tokens, self._cache.step)
        if total < least:
            return "minimum", f"prompts under {least:,} tokens are not cached"
        # All of an earlier prompt was found again, or none could be stored.
        if matched in lengths or max(lengths) < least:
            return "minimum", f"the requests before had less than {least:,} tokens to store"
        return "moved", "the prompt differs early from every earlier one"


# Gemini's two caches: the implicit one, any common prefix; and explicit `cachedContents`, paid for by the hour.

_HOUR_MS = 3_600_000


class ExplicitCache(msgspec.Struct):
    """One explicit cache: its prompt, and until when it is kept and paid for."""

    ids: array[int]
    paid_ms: int
    expires_ms: int


class GeminiCache(Engine):
    """A request that names a cache reads all of it; any other reads what the implicit cache happens to have."""

    by_ids = True

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._implicit = StepCache(info)
        self._explicit: dict[str, ExplicitCache] = {}

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        # Token hours of storage since the last request, over all explicit caches.
        token_hours = sum(_token_hours(stored, at_ms) for stored in self._explicit.values())
        name = _cache_name(request.body)
        if is_cache(request.body):
            shares = self._create(at_ms, request)
        elif name:
            shares = self._read(name, at_ms)
        else:
            shares = self._implicit.look(at_ms, request, began_ms)
        return msgspec.structs.replace(shares, storage_token_hours=token_hours)

    def total(self, request: EngineView) -> int:
        """What the request's cache holds, and its own."""
        stored = self._explicit.get(_cache_name(request.body))
        return len(request.ids) + (len(stored.ids) if stored else 0)

    def extend(self, name: str, at_ms: int, ttl_s: float) -> None:
        """Give an explicit cache a new life from now on; none ends it."""
        if name in self._explicit:
            self._explicit[name].expires_ms = at_ms + int(ttl_s * 1000)

    def _create(self, at_ms: int, request: EngineView) -> Shares:
        name = str(request.body.get("name") or f"cachedContents/{len(self._explicit) + 1}")
        ttl_ms = int(seconds(request.body.get("ttl"), self._info.cache.ttl_s[0]) * 1000)
        self._explicit[name] = ExplicitCache(request.ids, at_ms, at_ms + ttl_ms)
        return Shares(cause="first", note=f"{name} created")

    def _read(self, name: str, at_ms: int) -> Shares:
        stored = self._explicit.get(name)
        if stored is None:
            return Shares(cause="first", note=f"{name} was never created")
        if at_ms >= stored.expires_ms:
            return Shares(cause="ttl", note=f"{name} has expired")
        return Shares(len(stored.ids))


def _token_hours(stored: ExplicitCache, at_ms: int) -> float:
    until = min(at_ms, stored.expires_ms)
    hours = max(0, until - stored.paid_ms) / _HOUR_MS
    stored.paid_ms = max(stored.paid_ms, until)
    return hours * len(stored.ids)


def _cache_name(body: JsonObject) -> str:
    return str(body.get("cachedContent") or body.get("cached_content") or "")


def is_cache(body: JsonObject) -> bool:
    """Whether a body creates an explicit cache rather than asks for an answer."""
    return "ttl" in body or "expireTime" in body or str(body.get("name", "")).startswith("cachedContents/")


def seconds(ttl: object, default: float) -> float:
    """A duration as Google writes it: "300s" -> 300.0."""
    text = str(ttl or "").removesuffix("s")
    return float(text) if text.replace(".", "", 1).isdigit() else default
