"""JSONPath over one context: RFC 9535 by python-jsonpath, without regular expressions, metered.

A short path can visit a document's nodes many times over (`$..*..*..*`), so the library is given a copy of
the data whose every look is charged to the meter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quire.errors import DataError, MissingPart
from quire.records.paths import Meter
from quire.values import Json


def extract(path: Json, context: Json, meter: Meter) -> list[Json]:
    """All values that the path hits, in document order."""
    source = meter.source(path)
    Environment, Error = _library()
    data = _metered(context if isinstance(context, dict | list) else [context], meter)
    try:
        found = Environment(meter).compile(_rooted(source)).finditer(data)
        return [getattr(match.obj, "original", match.obj) for match in found]
    except Error as error:
        # str() of these errors can itself fail (a bad place in an empty path), so only the message is used.
        raise DataError(f"JSONPath {source[:80]!r}: {error.args[0]}") from error
    except RecursionError as error:
        raise DataError(f"JSONPath {source[:80]!r} is nested too deeply") from error


def one_or_many(hits: list[Json]) -> Json:
    """No hit is null, one the bare value, more an array."""
    return hits if len(hits) > 1 else hits[0] if hits else None


def _rooted(path: str) -> str:
    """A path may leave out its `$`: tools[*].name -> $.tools[*].name."""
    path = path.strip()
    if not path or path.startswith("$"):
        return path
    return f"${path}" if path[0] in ".[" else f"$.{path}"


class _Object(dict[str, Any]):
    """An object that charges for being walked; `weight` is how many nodes it holds."""

    def __init__(self, original: dict[str, Json], meter: Meter) -> None:
        super().__init__((key, _metered(value, meter)) for key, value in original.items())
        self.original, self.meter = original, meter
        self.weight = 1 + sum(map(_weight, self.values()))

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # python-jsonpath only iterates
        for pair in super().items():
            self.meter.step()
            yield pair


class _Array(list[Any]):
    """The same for an array."""

    def __init__(self, original: list[Json], meter: Meter) -> None:
        super().__init__(_metered(value, meter) for value in original)
        self.original, self.meter = original, meter
        self.weight = 1 + sum(map(_weight, super().__iter__()))

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            self.meter.step()
            yield value


def _metered(value: Json, meter: Meter) -> Json:
    if isinstance(value, dict):
        return _Object(value, meter)
    return _Array(value, meter) if isinstance(value, list) else value


def _weight(value: Json) -> int:
    """What comparing a value costs: its nodes, and a step for each thousand characters."""
    weight: int = getattr(value, "weight", 1)
    return weight + len(value) // 1000 if isinstance(value, str) else weight


@cache
def _library() -> tuple[Any, type[Exception]]:
    """The strict environment for one meter, and the library's error."""
    try:
        from jsonpath import JSONPathEnvironment, JSONPathError
    except ImportError as error:
        raise MissingPart("extract needs python-jsonpath", hint="pip install 'quire[records]'") from error

    class Environment(JSONPathEnvironment):
        def __init__(self, meter: Meter) -> None:
            super().__init__(strict=True)
            self.meter = meter

        def setup_function_extensions(self) -> None:
            super().setup_function_extensions()
            # A pattern can take for ever on the wrong text.
            for name in ("match", "search"):
                self.function_extensions.pop(name, None)

        def getitem(self, obj: Any, key: Any) -> Any:
            found = super().getitem(obj, key)
            self.meter.step(1 + len(found) if isinstance(key, slice) else 1)
            return found

        def compare(self, left: object, operator: str, right: object) -> bool:
            self.meter.step(_weight(left) + _weight(right))
            return bool(super().compare(left, operator, right))

    return Environment, JSONPathError


# jq programs, each in a process of its own: no environment, no files, no clock, and an end.
#
# jq is a full language, so a program may run for ever or fill the memory; the process is what stops it.

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
