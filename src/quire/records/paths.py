"""Paths into a JSON value: dotted paths, JSONPath (RFC 9535) and jq, all within limits of work and output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from quire.errors import DataError, MissingPart, needs_extra
from quire.values import Json

# Dotted paths: looking up, keeping or dropping what they name.


class NoValue:
    """The result of a path that leads nowhere, as opposed to null."""

    def __bool__(self) -> bool:
        return False


MISSING: Final = NoValue()


def child(value: Json, name: str) -> Json:
    """One step: a key of an object, an index or `length` of a list, `length` of a string."""
    if isinstance(value, dict):
        return value.get(name, MISSING)
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
        return value[int(name)] if int(name) < len(value) else MISSING
    if isinstance(value, list | str) and name == "length":
        return len(value)
    return MISSING


def look_up(value: Json, names: Iterable[str]) -> Json:
    """The value at the end of the names, or MISSING: {"a": [{"b": 1}]}, a 0 b -> 1."""
    for name in names:
        value = child(value, name)
        if value is MISSING:
            break
    return value


def as_text(value: Json) -> str:
    """A value as text: strings as they are, "" for missing and null, else compact JSON."""
    if isinstance(value, str):
        return value
    if value is MISSING or value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def drop(value: Json, paths: Sequence[str]) -> Json:
    """The value without what the paths name, also in the elements of lists."""
    if isinstance(value, list):
        return [drop(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: drop(item, below(paths, key)) for key, item in value.items() if key not in paths}


def keep(value: Json, paths: Sequence[str]) -> Json:
    """Only what the paths name, in the value's own order; MISSING where they name nothing."""
    if not paths:
        return MISSING
    if isinstance(value, list):
        items = [part for part in (keep(item, paths) for item in value) if part is not MISSING]
        return items if items or not value else MISSING
    if not isinstance(value, dict):
        return MISSING
    named = {key: item if key in paths else keep(item, below(paths, key)) for key, item in value.items()}
    return {key: item for key, item in named.items() if item is not MISSING} or MISSING


def below(paths: Sequence[str], key: str) -> list[str]:
    """The rest of each path that begins with `key`: [a.b, c], a -> [b]."""
    return [path[len(key) + 1 :] for path in paths if path.startswith(key + ".")]


# Limits of the work that one record's hints may cause.


class HintLimits(msgspec.Struct, frozen=True):
    """The bounds of one `apply_hints`; all its rules together share steps and output."""

    rules: int = 64
    source_chars: int = 64_000
    depth: int = 16
    data_depth: int = 100
    steps: int = 100_000
    output_chars: int = 1_000_000
    jq_seconds: int = 2
    jq_memory: int = 512 * 1024 * 1024


class Meter:
    """Counts down what is left of the limits; raises when it is used up."""

    def __init__(self, limits: HintLimits) -> None:
        self.limits = limits
        self.steps = limits.steps
        self.chars = limits.output_chars

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise DataError(f"more than {self.limits.steps:,} steps", hint="Ask for less of the context.")

    def write(self, text: str) -> str:
        """Charge a piece of output by its length, and return it."""
        self.chars -= len(text)
        if self.chars < 0:
            raise DataError(f"more than {self.limits.output_chars:,} characters of output", hint="Show less.")
        return text

    def source(self, text: Json) -> str:
        """Check a rule's program, which must be a string of limited length, and return it."""
        if not isinstance(text, str):
            raise DataError(f"expected a string, not {type(text).__name__}")
        if len(text) > self.limits.source_chars:
            raise DataError(f"{len(text):,} characters long; at most {self.limits.source_chars:,} are allowed")
        return text


def check_depth(value: Json, most: int) -> None:
    """Raise for data nested deeper than `most`; without recursion, which deep data would exhaust."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > most + 1:
            raise DataError(f"nested deeper than {most} levels", hint="Flatten the value.")
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [
            child for value in inner if not isinstance(value, str) and isinstance(value, Iterable) for child in value
        ]


# JSONPath (RFC 9535) by python-jsonpath, without regular expressions. A short path can visit a document's nodes many
# times (`$..*..*..*`), so the library gets a copy of the data that charges the meter for every access.


def extract(path: Json, context: Json, meter: Meter) -> list[Json]:
    """All values that the path hits, in document order."""
    source = meter.source(path)
    Environment, Error = _library()
    data = _meter(context if isinstance(context, dict | list) else [context], meter)
    try:
        matches = Environment(meter).compile(_root(source)).finditer(data)
        return [getattr(match.obj, "original", match.obj) for match in matches]
    except Error as error:
        # str() of these errors can fail itself (for an empty path), so only the message is used.
        raise DataError(f"JSONPath {source[:80]!r}: {error.args[0]}") from error
    except RecursionError as error:
        raise DataError(f"JSONPath {source[:80]!r} is nested too deeply") from error


def one_or_many(hits: list[Json]) -> Json:
    """Null for no hit, the value itself for one, a list for several."""
    return hits if len(hits) > 1 else hits[0] if hits else None


def _root(path: str) -> str:
    """The path with its `$`, which may be left out: tools[*].name -> $.tools[*].name."""
    path = path.strip()
    if not path or path.startswith("$"):
        return path
    return f"${path}" if path[0] in ".[" else f"$.{path}"


class _Object(dict[str, Any]):
    """An object that charges the meter for iteration; `weight` is how many nodes it holds."""

    def __init__(self, original: dict[str, Json], meter: Meter) -> None:
        super().__init__((key, _meter(value, meter)) for key, value in original.items())
        self.original, self.meter = original, meter
        self.weight = 1 + sum(map(_weight, self.values()))

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # python-jsonpath only iterates
        for pair in super().items():
            self.meter.step()
            yield pair


class _Array(list[Any]):
    """The same for an array."""

    def __init__(self, original: list[Json], meter: Meter) -> None:
        super().__init__(_meter(value, meter) for value in original)
        self.original, self.meter = original, meter
        self.weight = 1 + sum(map(_weight, super().__iter__()))

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            self.meter.step()
            yield value


def _meter(value: Json, meter: Meter) -> Json:
    if isinstance(value, dict):
        return _Object(value, meter)
    return _Array(value, meter) if isinstance(value, list) else value


def _weight(value: Json) -> int:
    """What comparing a value costs: its nodes, and a step for each thousand characters."""
    weight: int = getattr(value, "weight", 1)
    return weight + len(value) // 1000 if isinstance(value, str) else weight


@cache
def _library() -> tuple[Any, type[Exception]]:
    """The class of a strict environment that charges a meter, and the library's error."""
    with needs_extra("extract needs python-jsonpath", "records"):
        from jsonpath import JSONPathEnvironment, JSONPathError

    class Environment(JSONPathEnvironment):
        def __init__(self, meter: Meter) -> None:
            super().__init__(strict=True)
            self.meter = meter

        def setup_function_extensions(self) -> None:
            super().setup_function_extensions()
            # A regular expression can take for ever on some texts.
            for name in ("match", "search"):
                self.function_extensions.pop(name, None)

        def getitem(self, obj: Any, key: Any) -> Any:
            item = super().getitem(obj, key)
            self.meter.step(1 + len(item) if isinstance(key, slice) else 1)
            return item

        def compare(self, left: object, operator: str, right: object) -> bool:
            self.meter.step(_weight(left) + _weight(right))
            return bool(super().compare(left, operator, right))

    return Environment, JSONPathError


# jq programs. jq is a full language, so each program runs in its own process with limits of time and memory, and
# without environment variables, files and clock.

# Definitions before a program also make `import` and `include` syntax errors, since these must come first.
_FENCE = (
    'def now: error("now is not available"); def input: error("input is not available"); '
    "def inputs: input; def env: {}; {} as $ENV | "
)
# Allowed for starting a process on a busy machine; the program's own work is limited by `cpu`.
_START_SECONDS = 10.0

# The limits are set before the program is compiled; with no free file descriptors nothing can be opened.
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
        # The first line is jq's message; the others quote the program with the fence before it.
        first = answer["error"].strip().split("\n")[0]
        raise DataError(first.removeprefix("jq: error: ").split(" at <top-level>")[0])
    meter.write(json.dumps(answer["results"]))
    return list(answer["results"])


def _answer(job: str, folder: str, seconds: int) -> dict[str, Json]:
    command = [sys.executable, "-I", "-c", _CHILD, folder]
    wall = seconds + _START_SECONDS
    try:
        process = subprocess.run(command, input=job, capture_output=True, text=True, timeout=wall, env={}, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"still running after {wall:g} s", hint="Bound the program's loops.") from error
    except OSError as error:
        raise DataError(f"cannot start a process: {error.strerror}") from error
    if process.returncode or not process.stdout:
        raise DataError(
            f"stopped with code {process.returncode}",
            hint=f"It may take {seconds} s and the memory of the limits, no more.",
        )
    answer: dict[str, Json] = json.loads(process.stdout)
    return answer


@cache
def _installed_in() -> str:
    """The folder that jq is installed in: the only one that the child process imports from."""
    package = find_spec("jq")
    if package is None or package.origin is None:
        raise MissingPart("a jq rule needs the jq package", hint="pip install 'quire[jq]'")
    return str(Path(package.origin).parent)
