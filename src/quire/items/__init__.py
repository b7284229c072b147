"""Items, pieces of context with an identity, and the window that holds them.

A window is limited by number of items and by tokens, first in, first out. Adding is O(1): the next item to evict is
always the first of the unpinned ones.
"""

from __future__ import annotations

import bisect
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quire.errors import BudgetError, CallError, ConflictError, FormatError, NotFound, QuireError
from quire.items.sources import (
    checked_item,
    cut,
    from_error,
    from_file,
    from_image,
    from_region,
    from_repl,
    from_text,
    from_url,
    identity,
    item,
    kept_id,
    source_id,
)
from quire.items.symbols import from_symbol, read_again
from quire.log import now_ms
from quire.log.shapes import (
    COUNTED,
    INTEGER,
    NATURAL,
    NULL,
    OBJECT,
    SHA256,
    STRING,
    Fields,
    ListShape,
    Scalar,
    check_shape,
    either,
    matching,
    one_of,
    short,
)  # fmt: skip
from quire.log.store import Store, has_thread, saved_digest
from quire.tokens import Counter, counter
from quire.values import ITEM_TYPES, Item, Json, JsonObject, item_json

__all__ = [
    "Window", "from_error", "from_file", "from_image", "from_region", "from_repl", "from_symbol", "from_text",
    "from_url", "identity", "item", "kept_id", "read_again",
]  # fmt: skip


# The numbers N of ids ctx-N: counted from 1, never used again after an item is cleared, removed or evicted.

_NUMBERED = re.compile(r"ctx-([0-9]+)")
_DIGITS = 18
_HINT = "Leave the id out to get the next one."


class Numbers:
    """Hands out the next number, and accepts given numbers that were never used."""

    def __init__(self, next: int = 1, unused: list[tuple[int, int]] | None = None) -> None:
        self.next = next
        # Unused ranges below `next`, in order, which given ids have jumped over. 0 is never handed out, but may be given.
        self.unused = [(0, 1)] if unused is None else unused

    @staticmethod
    def after(ids: Iterable[str]) -> int:
        """One more than the highest number of these ids."""
        return max((int(id.removeprefix("ctx-")) for id in ids), default=0) + 1

    def take(self) -> str:
        """The next id."""
        self.next += 1
        return f"ctx-{self.next - 1}"

    def check(self, id: str) -> int:
        """The number of a given id; an error unless it is ctx-N and new."""
        match = _NUMBERED.fullmatch(id) if isinstance(id, str) else None
        if not match or len(match[1].lstrip("0")) > _DIGITS:
            raise CallError(f"id {short(id)} is not ctx-N", hint=_HINT)
        number = int(match[1])
        if number < self.next and self._range_of(number) is None:
            raise CallError(f"id {short(id)} was already used in this window", hint=_HINT)
        return number

    def claim(self, id: str) -> str:
        """Use a given id; later ids are numbered behind it."""
        number = self.check(id)
        if number >= self.next:
            if number > self.next:
                self.unused.append((self.next, number))
            self.next = number + 1
        elif (index := self._range_of(number)) is not None:
            start, stop = self.unused[index]
            self.unused[index : index + 1] = [r for r in ((start, number), (number + 1, stop)) if r[0] < r[1]]
        return id

    def _range_of(self, number: int) -> int | None:
        index = bisect.bisect_right(self.unused, (number, float("inf"))) - 1
        return index if index >= 0 and number < self.unused[index][1] else None


# The shapes of items and windows in JSON; the published schemas are made from them.

MAX_ITEMS = 50
MOST_ITEMS = 1000
CTX_ID = matching("ctx- and digits", "ctx-[0-9]+")
CAPACITY = Scalar(
    f"an integer from 1 to {MOST_ITEMS}",
    {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS},
    lambda v: COUNTED.fits(v) and v <= MOST_ITEMS,
)
ITEM = Fields(
    required={"content": STRING},
    optional={
        "id": CTX_ID,
        "type": one_of(ITEM_TYPES),
        "metadata": either(OBJECT, NULL),
        "timestamp": INTEGER,
        "sha256": SHA256,
    },
)
LIMIT = either(COUNTED, NULL)
WINDOW = Fields(
    required={"items": ListShape(ITEM)},
    optional={
        "max_items": CAPACITY,
        # An alias that is read, but never written.
        "maxItems": CAPACITY,
        "max_tokens": LIMIT,
        "max_item_tokens": LIMIT,
        "pinned": ListShape(CTX_ID),
        "next_id": COUNTED,
    },
)


class Sizes:
    """The tokens of a window's items, all and pinned; counted once each, and not before a limit or a caller needs them."""

    def __init__(self, with_: Counter) -> None:
        self._counter = with_
        self._by_id: dict[str, int] | None = None
        self.total = 0
        self.pinned = 0

    @property
    def counting(self) -> bool:
        return self._by_id is not None

    def start(self, items: Iterable[Item], pinned: Iterable[str]) -> None:
        """Count the items that are there, and from now on those that are added; a second call does nothing."""
        if self._by_id is None:
            self._by_id = {item.id: self._counter.count(item.content) for item in items}
            self.total = sum(self._by_id.values())
            self.pinned = sum(self._by_id[id] for id in pinned)

    def count(self, content: str) -> int:
        """The tokens of a content; 0 before `start`."""
        return self._counter.count(content) if self.counting else 0

    def put(self, id: str, size: int) -> None:
        if self._by_id is not None:
            self._by_id[id] = size
            self.total += size

    def drop(self, id: str, pinned: bool) -> None:
        if self._by_id is not None:
            size = self._by_id.pop(id)
            self.total -= size
            self.pinned -= size if pinned else 0

    def pin(self, id: str, pinned: bool) -> None:
        if self._by_id is not None:
            self.pinned += self._by_id[id] if pinned else -self._by_id[id]


class Window:
    """Items in the order in which they were added; the oldest unpinned ones are evicted to make room."""

    def __init__(
        self,
        max_items: int = MAX_ITEMS,
        *,
        max_tokens: int | None = None,
        max_item_tokens: int | None = None,
        with_: Counter | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._max_items = _capacity(max_items)
        self._max_tokens: int | None = None
        self._max_item_tokens: int | None = None
        self._clock = clock
        # Called after every change, so that the window can be saved.
        self.on_change: Callable[[], None] = lambda: None
        self._items: OrderedDict[str, Item] = OrderedDict()
        # The unpinned ids, oldest first. (Not a dict: finding the first key after deletions at the front is not O(1).)
        self._unpinned: OrderedDict[str, None] = OrderedDict()
        self._pinned: set[str] = set()
        self._sizes = Sizes(with_ or counter())
        self._numbers = Numbers()
        self.max_tokens = max_tokens
        self.max_item_tokens = max_item_tokens

    # Adding

    def add(
        self,
        given: Item | str,
        type: str = "code",
        metadata: JsonObject | None = None,
        *,
        timestamp: int | None = None,
        truncate: bool = False,
    ) -> Item:
        """Add an item (which has its own type and metadata) or a string; the oldest items are evicted where needed."""
        new = self._as_item(given, type, metadata, timestamp)
        if new.id:
            self._numbers.check(new.id)
        new, size = self._cut_to_fit(new, truncate)
        if len(self._pinned) >= self._max_items:
            raise BudgetError(
                f"the window holds {self._max_items} items and all of them are pinned",
                hint="Unpin or remove an item, or raise max_items.",
            )
        placed = self._place(new, self._numbers.claim(new.id) if new.id else self._numbers.take(), size)
        self.on_change()
        return placed

    def put(
        self,
        given: Item | str,
        type: str = "code",
        metadata: JsonObject | None = None,
        *,
        timestamp: int | None = None,
        truncate: bool = False,
    ) -> Item:
        """Add an item, in place of an earlier version from the same source (path, lines, symbol, URL), if there is one.

        A new version keeps the id and the pin of the old one and becomes the newest item.
        """
        new = self._as_item(given, type, metadata, timestamp)
        source = source_id(new)
        old = next((item for item in self if source and source_id(item) == source), None)
        if old is None:
            return self.add(new, truncate=truncate)
        pinned = old.id in self._pinned
        new, size = self._cut_to_fit(new, truncate, self._sizes.count(old.content) if pinned else 0)
        if (old.content, old.type, old.metadata) == (new.content, new.type, new.metadata):
            return old
        self._drop(old.id)
        placed = self._place(new, old.id, size)
        if pinned:
            self._keep(old.id)
        self.on_change()
        return placed

    def _as_item(self, given: Item | str, type: str, metadata: JsonObject | None, timestamp: int | None) -> Item:
        if isinstance(given, Item):
            return checked_item(given)
        return item(given, type, metadata, timestamp=self._clock() if timestamp is None else timestamp)

    def _place(self, new: Item, id: str, size: int) -> Item:
        """Append an item; the oldest ones are evicted to make room."""
        newest = self._items[next(reversed(self._items))].timestamp if self._items else new.timestamp
        placed = msgspec.structs.replace(new, id=id, timestamp=max(new.timestamp, newest))
        self._evict(self._max_items - 1, size)
        self._items[id] = placed
        self._unpinned[id] = None
        self._sizes.put(id, size)
        return placed

    def _cut_to_fit(self, new: Item, truncate: bool, freed: int = 0) -> tuple[Item, int]:
        """The item, cut if it is too large and `truncate` allows it, and its tokens; `freed` are those of a pin it replaces."""
        beside_pins = None if self._max_tokens is None else self._max_tokens - self._sizes.pinned + freed
        limits = [limit for limit in (beside_pins, self._max_item_tokens) if limit is not None]
        size, room = self._sizes.count(new.content), min(limits, default=None)
        if room is None or size <= room:
            return new, size
        if not truncate or not room:
            raise BudgetError(
                f"the item has {size:,} tokens but there is room for {room:,}",
                hint="Pass truncate=True to cut it at a line, raise the limit, or unpin something.",
            )
        shorter = cut(new.content, lambda text: self._sizes.count(text) <= room)
        metadata = shorter.with_note(new.metadata)
        new = item(shorter.content, new.type, metadata, id=new.id, timestamp=new.timestamp)
        return new, self._sizes.count(new.content)

    def _evict(self, items: int, tokens: int = 0) -> None:
        """Evict the oldest unpinned items until at most `items` remain and `tokens` are free."""
        while len(self._items) > items or (
            self._max_tokens is not None and self._sizes.total + tokens > self._max_tokens
        ):
            self._drop(next(iter(self._unpinned)))

    def _drop(self, id: str) -> Item:
        self._sizes.drop(id, id in self._pinned)
        if id in self._pinned:
            self._pinned.remove(id)
        else:
            del self._unpinned[id]
        return self._items.pop(id)

    # Reading

    def get(self, types: Iterable[str] | None = None, limit: int | None = None) -> list[Item]:
        """Items of these types (none given: all), the last `limit` of them, oldest first."""
        if limit is not None and not NATURAL.fits(limit):
            raise CallError(f"limit must be 0 or more, not {short(limit)}", hint="Leave it out for all items.")
        chosen_types = frozenset([types] if isinstance(types, str) else types or ())
        items = [value for value in self._items.values() if not chosen_types or value.type in chosen_types]
        return items if limit is None else items[max(0, len(items) - limit) :]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.get())

    def __contains__(self, id: object) -> bool:
        return id in self._items

    def __getitem__(self, id: str) -> Item:
        if id not in self._items:
            raise NotFound(f"no item {short(id)} in this window", hint=_ids_hint(list(self._items)))
        return self._items[id]

    # Removing and pinning

    def remove(self, id: str) -> Item:
        """Remove an item, pinned or not; its id is not used again."""
        removed = self._drop(self[id].id)
        self.on_change()
        return removed

    def clear(self) -> None:
        """Remove all items, pinned or not; numbering continues."""
        for id in list(self._items):
            self._drop(id)
        self.on_change()

    def pin(self, id: str) -> None:
        """Pin an item: it is never evicted, only removed."""
        if self[id].id not in self._pinned:
            self._keep(id)
            self.on_change()

    def _keep(self, id: str) -> None:
        del self._unpinned[id]
        self._pinned.add(id)
        self._sizes.pin(id, True)

    def unpin(self, id: str) -> None:
        """Allow an item to be evicted again, in its order of age."""
        if self[id].id in self._pinned:
            self._pinned.remove(id)
            self._sizes.pin(id, False)
            self._unpinned = OrderedDict.fromkeys(id for id in self._items if id not in self._pinned)
            self.on_change()

    @property
    def pinned(self) -> list[str]:
        """The ids of pinned items, oldest first."""
        return [id for id in self._items if id in self._pinned]

    # Capacity

    @property
    def max_items(self) -> int:
        return self._max_items

    @max_items.setter
    def max_items(self, value: int) -> None:
        if len(self._pinned) > _capacity(value):
            raise BudgetError(
                f"{len(self._pinned)} items are pinned but max_items would be {value}",
                hint="Unpin or remove some first.",
            )
        self._max_items = value
        self._evict(value)
        self.on_change()

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of all content together."""
        return self._max_tokens

    @max_tokens.setter
    def max_tokens(self, value: int | None) -> None:
        if _limit("max_tokens", value) is not None:
            self._count()
        if value is not None and self._sizes.pinned > value:
            raise BudgetError(
                f"pinned items have {self._sizes.pinned:,} tokens but max_tokens would be {value:,}",
                hint="Unpin or remove some first.",
            )
        self._max_tokens = value
        self._evict(self._max_items)
        self.on_change()

    @property
    def max_item_tokens(self) -> int | None:
        """The most tokens of one item, for what is added from now on."""
        return self._max_item_tokens

    @max_item_tokens.setter
    def max_item_tokens(self, value: int | None) -> None:
        self._max_item_tokens = _limit("max_item_tokens", value)
        if value is not None:
            self._count()
        self.on_change()

    @property
    def tokens(self) -> int:
        """The tokens of all content."""
        self._count()
        return self._sizes.total

    def _count(self) -> None:
        self._sizes.start(self._items.values(), self._pinned)

    # JSON

    def to_json(self) -> JsonObject:
        """The window as JSON; defaults are left out, except max_items."""
        out: JsonObject = {"items": [item_json(item) for item in self], "max_items": self._max_items}
        for name in ("max_tokens", "max_item_tokens"):
            if (limit := getattr(self, name)) is not None:
                out[name] = limit
        if self._pinned:
            out["pinned"] = self.pinned
        if self._numbers.next != Numbers.after(self._items):
            out["next_id"] = self._numbers.next
        return out

    @classmethod
    def from_json(cls, value: JsonObject, *, with_: Counter | None = None, clock: Callable[[], int] = now_ms) -> Window:
        """A window from JSON: missing ids are numbered, missing timestamps are 0 (never the clock)."""
        fields = check_shape(WINDOW, value)
        if "maxItems" in fields and "max_items" in fields:
            raise FormatError("both max_items and maxItems are given", hint="Leave maxItems out.")
        max_items = fields.get("max_items") or fields.get("maxItems") or MAX_ITEMS
        window = cls(max_items, with_=with_, clock=clock)
        window.max_tokens = fields.get("max_tokens")
        window._load(fields["items"], fields.get("pinned", []))
        # Set last: items may be larger than a limit that was set after they were added.
        window.max_item_tokens = fields.get("max_item_tokens")
        counted, next_id = window._numbers.next, fields.get("next_id")
        if next_id is not None and next_id < counted:
            raise FormatError(f"next_id: {next_id} is not behind every item", hint=f"Use at least {counted}.")
        # It is not known which of the lower numbers were used before, so none is accepted again.
        window._numbers = Numbers(next_id or counted, unused=[])
        return window

    def _load(self, items: list[JsonObject], pinned: list[str]) -> None:
        for index, fields in enumerate(items):
            try:
                added = self.add(Item(**{"id": "", **fields}))
            except QuireError as error:
                raise FormatError(f"items[{index}]: {error}", hint=error.hint) from error
            if added.id in pinned:
                self.pin(added.id)
        for id in pinned:
            if id not in self:
                raise FormatError(f"pinned: no item {id!r}", hint=_ids_hint(list(self._items)))


# The key of the thread's state that maps items to their files.
_FILES = "window files"

_Changed = TypeVar("_Changed")
# How often a change of a window is attempted.
_CHANGES = 100


class ThreadWindow:
    """The window that a store keeps with a thread; files in it are read again at every turn."""

    def __init__(
        self,
        store: Store,
        thread: str,
        clock: Callable[[], int] = now_ms,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._store, self._thread, self._clock, self._lock = store, thread, clock, lock or nullcontext()
        self._window: Window | None = None
        self._saved: Json = None
        # During `change`, the digest of the saved window that may be replaced; None: replace whatever is saved.
        self._expected: str | None = None

    def window(self) -> Window:
        """The saved window; changes to it are saved at once."""
        saved = self._stored_window()
        if self._window is None or saved != self._saved:
            window = Window.from_json(saved, clock=self._clock) if saved else Window(clock=self._clock)
            window.on_change = partial(self._save, window)
            self._window, self._saved = window, saved
        return self._window

    def _stored_window(self) -> Json:
        return self._store.window(self._thread) if has_thread(self._store, self._thread) else None

    def _save(self, window: Window) -> None:
        with self._lock:
            self._window, self._saved = window, window.to_json()
            self._store.save_window(self._thread, self._saved, self._expected)
            if self._expected is not None:
                self._expected = saved_digest(self._saved)

    def change(self, act: Callable[[Window], _Changed]) -> _Changed:
        """Change the window; if another process has changed it meanwhile, try again on its version, so that neither is lost."""
        tries = _CHANGES
        with self._lock:
            while True:
                window, tries = self.window(), tries - 1
                self._expected = saved_digest(self._saved)
                try:
                    return act(window)
                except ConflictError:
                    self._window = None
                    # A locked file is a conflict, too, but then the window is unchanged.
                    if not tries or saved_digest(self._stored_window()) == self._expected:
                        raise
                finally:
                    self._expected = None

    def keep(self, item: Item | str, file: str | Path | None, **how: Any) -> Item:
        """Put an item into the window, and remember the file it was read from."""
        added = self.change(lambda window: window.put(item, **how))
        meta = added.metadata or {}
        path = str(file or meta.get("filename") or meta.get("path") or "")
        content = item.content if isinstance(item, Item) else item
        # Remember a path only if the file holds this text now; otherwise later turns would show something else.
        with suppress(QuireError):
            now = read_again(added, path) if path else None
            if now is not None and now.content == content:
                self._store.set_state(self._thread, _FILES, {**self._files(), added.id: str(Path(path).resolve())})
        return added

    def items(self, warn: Callable[[str], None]) -> list[JsonObject]:
        """The items to attach to a turn, each under its identity, files with their current content."""
        window, unread = self.window(), set[str]()
        if not self._saved:
            return []
        files = self._files()
        for kept in window.get():
            if kept.id in files and kept.id in window:
                try:
                    now = read_again(kept, files[kept.id])
                    if now is not None and now.content != kept.content:
                        window.put(now, truncate=True)
                except QuireError as error:
                    unread.add(kept.id)
                    warn(f"{kept_id(kept)} is left out of this turn: {error}")
        return [{**item_json(kept), "id": kept_id(kept)} for kept in window if kept.id not in unread]

    def _files(self) -> dict[str, str]:
        """The files of items by item id; a fork starts with its parent's."""
        name, files = self._thread if has_thread(self._store, self._thread) else "", None
        while name and files is None:
            files, name = self._store.get_state(name, _FILES), self._store.info(name).parent
        return files or {}


def _ids_hint(ids: list[str]) -> str:
    listed = ", ".join(ids if len(ids) <= 6 else [*ids[:3], "…", *ids[-2:]])
    return f"It holds {listed}." if ids else "It is empty."


def _capacity(value: int) -> int:
    if not CAPACITY.fits(value):
        raise CallError(f"max_items must be {CAPACITY.says}, not {short(value)}", hint="The default is 50.")
    return value


def _limit(name: str, value: int | None) -> int | None:
    if not LIMIT.fits(value):
        raise CallError(f"{name} must be 1 or more, not {short(value)}", hint="Leave it out for no limit.")
    return value
