"""Forks writers that append until they are killed; everything is imported once, so a writer starts in milliseconds.

Reads `PATH TASK SEED` lines; answers `pid N`, then whatever the writer acknowledges, then `dead STATUS`.
"""

import os
import random
import sys
from itertools import count

from quire import values
from quire.log.sqlite import SqliteStore


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one write, so that lines of two processes cannot mix


def append(store: SqliteStore, rng: random.Random) -> None:
    """Batches of one to four entries, each acknowledged by its last seq."""
    for batch in count():
        size = rng.randint(1, 4)
        meta = [{"writer": os.getpid(), "batch": batch, "part": part, "of": size} for part in range(size)]
        made = store.append("t", [values.user("x" * rng.randint(0, 3000), meta=one) for one in meta])
        say(f"ack {made[-1].seq}")


def churn(store: SqliteStore, rng: random.Random) -> None:
    """Make, fork and delete threads."""
    for turn in count():
        name = f"{os.getpid()}-{turn}"
        store.append(name, [values.user("u" * 500)] * rng.randint(1, 5))
        fork = store.fork(name, rng.randint(0, store.info(name).seq))
        store.append(fork, [values.note("n")])
        store.delete(rng.choice([name, fork]))
        say(f"ack {turn}")


TASKS = {"append": append, "churn": churn}


def write(path: str, task: str, seed: str) -> None:
    with SqliteStore(path) as store:
        TASKS[task](store, random.Random(seed))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            write(*line.split())
            os._exit(0)
        say(f"pid {pid}")
        say(f"dead {os.waitpid(pid, 0)[1]}")


if __name__ == "__main__":
    main()
