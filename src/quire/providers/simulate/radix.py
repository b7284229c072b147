"""A radix tree over token ids: SGLang's cache, and the store of every engine that reuses any common prefix.

Each edge holds a run of ids and when it was last used; a leaf that has gone unused longest is evicted first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from quire.providers.models import ModelInfo
from quire.providers.simulate.seen import Cause, Seen, Shares


class Node:
    """A run of ids behind its parent's, and what may follow it."""

    __slots__ = ("children", "ids", "parent", "stored_ms", "used_ms")

    def __init__(self, ids: array[int], stored_ms: int, used_ms: int, parent: Node | None) -> None:
        self.ids = ids
        self.stored_ms = stored_ms
        self.used_ms = used_ms
        self.parent = parent
        self.children: dict[int, Node] = {}


class Way(NamedTuple):
    """Where a prompt leads in the tree: the nodes it passes, and how many of its ids lie up to each one's end."""

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

    def up_to(self, same: int) -> Way:
        """The part that a prompt goes as well whose first `same` ids are these."""
        whole = bisect_right(self.ends, same)
        whole -= whole == len(self.nodes) and self.stops_short
        return Way(self.ids, self.nodes[:whole], self.ends[:whole])


class RadixTree:
    """All prompts of one cache, shared prefixes once."""

    def __init__(self) -> None:
        self.root = Node(array("i"), 0, 0, None)
        self.size = 0
        # The latest way: a thread's next prompt goes most of it again.
        self._latest = Way(array("i"), [], [])

    def match(self, ids: array[int], alive: Callable[[Node], bool] | None = None) -> int:
        """How many leading ids are stored and alive."""
        way = self._way(ids)
        if alive is None:
            return way.done
        dead = next((place for place, node in enumerate(way.nodes) if not alive(node)), len(way.nodes))
        return way.ends[dead - 1] if dead else 0

    def insert(self, ids: array[int], at_ms: int) -> None:
        """Store a prompt; everything on its way counts as used now."""
        way = self._way(ids)
        if way.stops_short:
            way.nodes[-1] = self._split(way.nodes[-1], way.last)
        if way.done < len(ids):
            parent = way.nodes[-1] if way.nodes else self.root
            parent.children[ids[way.done]] = leaf = Node(ids[way.done :], at_ms, at_ms, parent)
            self.size += len(leaf.ids)
            way.nodes.append(leaf)
            way.ends.append(len(ids))
        for node in way.nodes:
            node.used_ms = at_ms

    def _way(self, ids: array[int]) -> Way:
        """Follow a prompt from where it parts with the latest one."""
        if ids is self._latest.ids:
            return self._latest
        _, nodes, ends = self._latest.up_to(shared(self._latest.ids, ids))
        done, node = ends[-1] if ends else 0, nodes[-1] if nodes else self.root
        while done < len(ids) and (child := node.children.get(ids[done])) is not None:
            same = shared(child.ids, ids[done : done + len(child.ids)])
            done += same
            nodes.append(child)
            ends.append(done)
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

    def evict(self, most: int) -> None:
        """Drop whole leaves, longest unused first, until at most `most` ids are stored."""
        while self.size > most:
            leaf = min(self._leaves(), key=lambda node: node.used_ms)
            assert leaf.parent is not None
            del leaf.parent.children[leaf.ids[0]]
            self.size -= len(leaf.ids)
            self._latest = Way(array("i"), [], [])

    def _leaves(self) -> Iterator[Node]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if not node.children and node.parent is not None:
                yield node


def shared(one: array[int], other: array[int]) -> int:
    """How many leading ids agree, by halving: comparing slices is fast, comparing ids one by one is not."""
    # A thread's next prompt begins with the one before: then memory is compared once.
    if other.tobytes().startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


class RadixCache:
    """SGLang: the longest common prefix in whole pages; the last token is always computed."""

    by_ids = True
    keeps_answers = True

    def __init__(self, info: ModelInfo, page: int | None = None, capacity_tokens: int | None = None) -> None:
        self._page = page or info.cache.step
        self._capacity = capacity_tokens
        self._trees: dict[str, RadixTree] = {}
        self._salt = ""

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        self._salt = f"{seen.setting('cache_salt') or ''}\0{seen.setting('extra_key') or ''}"
        tree = self._trees.setdefault(self._salt, RadixTree())
        found = min(tree.match(seen.ids), len(seen.ids) - 1)
        cause: Cause = "first" if not tree.size else ""
        self._store(seen.ids, at_ms)
        return Shares(max(0, found // self._page * self._page), cause=cause)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Kept behind its prompt."""
        self._store(prompt + held, at_ms)

    def _store(self, ids: array[int], at_ms: int) -> None:
        tree = self._trees[self._salt]
        whole = len(ids) // self._page * self._page
        tree.insert(ids if whole == len(ids) else ids[:whole], at_ms)
        if self._capacity is not None:
            tree.evict(self._capacity)
