"""jq programs, each in a process of its own: no environment, no files, no clock, and an end.

jq is a full language, so a program may run for ever or fill the memory; the process is what stops it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quire.errors import DataError, MissingPart
from quire.records.limits import Meter
from quire.values import Json

# Definitions in front of a program also make `import` and `include` a syntax error: they must come first.
_FENCE = (
    'def now: error("now is not available"); def input: error("input is not available"); '
    "def inputs: input; def env: {}; {} as $ENV | "
)
# Starting a process takes its time on a busy machine; only the program's own work is charged by `cpu`.
_START_SECONDS = 10.0

# The limits are set before the program is compiled; with no file descriptors left nothing can be opened.
_CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import jq
job = json.load(sys.stdin)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], job["cpu"]))
    resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
except ImportError:
    pass
try:
    size, results = 0, []
    for value in jq.compile(job["program"]).input_value(job["input"]):
        results.append(value)
        size += len(json.dumps(value))
        if size > job["output"]:
            raise ValueError(f"more than {job['output']:,} characters of output")
    answer = {"results": results}
except (ValueError, MemoryError, RecursionError) as error:
    answer = {"error": str(error) or type(error).__name__}
json.dump(answer, sys.stdout)
"""


def run(program: str, context: Json, meter: Meter) -> list[Json]:
    """All results of a jq program over the context."""
    folder = _installed_in()
    job = {
        "program": _FENCE + meter.source(program),
        "input": context,
        "cpu": meter.limits.jq_seconds,
        "memory": meter.limits.jq_memory,
        "output": max(meter.chars, 0),
    }
    answer = _answer(json.dumps(job), folder, meter.limits.jq_seconds)
    if "error" in answer:
        raise DataError(_first_line(answer["error"]))
    meter.write(json.dumps(answer["results"]))
    return list(answer["results"])


def _answer(job: str, folder: str, seconds: int) -> dict[str, Json]:
    command = [sys.executable, "-I", "-c", _CHILD, folder]
    wall = seconds + _START_SECONDS
    try:
        done = subprocess.run(
            command, input=job, capture_output=True, text=True, timeout=wall, env={}, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"still running after {wall:g} s", hint="Bound the program's loops.") from error
    except OSError as error:
        raise DataError(f"cannot start a process: {error.strerror}") from error
    if done.returncode or not done.stdout:
        raise DataError(
            f"stopped with code {done.returncode}",
            hint=f"It may take {seconds} s and the memory of the limits, no more.",
        )
    answer: dict[str, Json] = json.loads(done.stdout)
    return answer


def _first_line(message: str) -> str:
    """What jq says is wrong; the lines behind it quote the program with the fence in front."""
    return message.strip().split("\n")[0].removeprefix("jq: error: ").split(" at <top-level>")[0]


@cache
def _installed_in() -> str:
    """The folder that jq is imported from; the child knows no other."""
    found = find_spec("jq")
    if found is None or found.origin is None:
        raise MissingPart("a jq rule needs the jq package", hint="pip install 'quire[jq]'")
    return str(Path(found.origin).parent)
