"""A radix tree over token ids: SGLang's cache, and the store of every engine that reuses any common prefix.

Each edge holds a run of ids and when it was last used; a leaf that has gone unused longest is evicted first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

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


class RadixTree:
    """All prompts of one cache, shared prefixes once."""

    def __init__(self) -> None:
        self.root = Node(array("i"), 0, 0, None)
        self.size = 0

    def match(self, ids: array[int], alive: Callable[[Node], bool] = lambda node: True) -> int:
        """How many leading ids are stored and alive."""
        node, done = self.root, 0
        while done < len(ids):
            child = node.children.get(ids[done])
            if child is None or not alive(child):
                return done
            same = shared(child.ids, ids[done : done + len(child.ids)])
            done += same
            if same < len(child.ids):
                return done
            node = child
        return done

    def insert(self, ids: array[int], at_ms: int) -> None:
        """Store a prompt; everything on its way counts as used now."""
        node, done = self.root, 0
        while done < len(ids):
            child = node.children.get(ids[done])
            if child is None:
                node.children[ids[done]] = Node(ids[done:], at_ms, at_ms, node)
                self.size += len(ids) - done
                return
            same = shared(child.ids, ids[done : done + len(child.ids)])
            if same < len(child.ids):
                child = self._split(child, same)
            child.used_ms = at_ms
            node, done = child, done + same

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

    def _leaves(self) -> Iterator[Node]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if not node.children and node.parent is not None:
                yield node


def shared(one: array[int], other: array[int]) -> int:
    """How many leading ids agree, by halving: comparing slices is fast, comparing ids one by one is not."""
    if one == other:
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
        tree.insert(ids[: len(ids) // self._page * self._page], at_ms)
        if self._capacity is not None:
            tree.evict(self._capacity)
