"""A vault that is watched: its index follows the folder while the block runs."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from quire.errors import MissingPart
from quire.send.vault.index import NoteIndex


class Watching:
    """`with Watching(index): …` takes in every change within a moment of its being made."""

    def __init__(self, index: NoteIndex, debounce_ms: int = 200) -> None:
        self.index, self.debounce_ms = index, debounce_ms
        self.seen = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watching:
        try:
            import watchfiles
        except ImportError as error:
            raise MissingPart("watching needs watchfiles", hint="pip install 'quire[vault]'") from error
        ready = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(watchfiles, ready), daemon=True)
        self._thread.start()
        ready.wait(10)
        # What changed before the watch began would otherwise go unseen.
        self.index.update()
        self.index.vault.watched = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.index.vault.watched = False
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def _follow(self, watchfiles: object, ready: threading.Event) -> None:
        """Changes come in sets; each set is one update of just these notes."""
        root: Path = self.index.vault.root.path
        changes = watchfiles.watch(  # type: ignore[attr-defined]  # imported where used
            root,
            stop_event=self._stop,
            debounce=self.debounce_ms,
            step=20,
            rust_timeout=100,
            yield_on_timeout=True,
            recursive=True,
        )
        for found in changes:
            ready.set()
            paths = {Path(path) for _, path in found}
            if paths and not self._stop.is_set():
                self._take(paths)

    def _take(self, paths: set[Path]) -> None:
        root = self.index.vault.root.path
        inside = {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}
        endings = self.index.vault.endings
        if all(name.lower().endswith(endings) for name in inside):
            self.index.update(only=inside)
        else:
            self.index.update()  # a folder moved or went: look at everything
        self.seen.set()
