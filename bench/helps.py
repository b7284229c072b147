"""What it takes to print help: the CPU time of `quire --help` and of each command's, in a process of its own.

bench/helps.py [--passes 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

from quire.cli.main import COMMANDS
from quire.cli.output import print_table

_QUIRE = [sys.executable, "-c", "import sys; from quire.cli.main import main; sys.exit(main())"]


def cpu_ms(*arguments: str) -> float:
    """The CPU time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*_QUIRE, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--passes", type=int, default=5, help="passes of which the least counts (5)")
    options.add_argument("--json", action="store_true", help="print JSON for machines")
    arguments = options.parse_args()
    asked = {"quire": ["--help"], **{f"quire {name}": [name, "--help"] for name in COMMANDS}}
    found = {name: min(cpu_ms(*how) for _ in range(arguments.passes)) for name, how in asked.items()}
    if arguments.json:
        print(json.dumps(found))
        return
    dearest = sorted(found, key=lambda name: -found[name])
    print_table(("help of", "ms"), [(name, f"{found[name]:.0f}") for name in dearest], title="CPU time of helps")


if __name__ == "__main__":
    main()
