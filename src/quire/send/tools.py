"""Tools: Python functions that a model may call; any failure of one becomes its result.

A function's signature gives both the JSON schema for the model and the type that checks its arguments.
"""

from __future__ import annotations

import asyncio
import contextvars
import difflib
import inspect
import json
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import msgspec

from quire import values
from quire.errors import CallError, QuireError
from quire.items.sources import Cutter, at_lines
from quire.log.shapes import short
from quire.values import Entry, Json, JsonObject, canonical, whole_characters

# Reading docstrings (Google, NumPy and reST styles) for the descriptions of a function and its parameters.

_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes)(:?)\s*$")
_GOOGLE = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"(\*{0,2}\w+)\s*(?::\s*.*)?$")
_REST = re.compile(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description before any section, and the text of each documented parameter."""
    lines = (inspect.getdoc(function) or "").split("\n")
    fields = (":param", ":return", ":raise", ":rtype", ":type")
    sections = (at for at, line in enumerate(lines) if _heads(lines, at) or line.startswith(fields))
    named = [match for line in lines if (match := _REST.match(line.strip()))]
    texts = {match[1]: match[2].strip() for match in named} | _sections(lines)
    return "\n".join(lines[: next(sections, None)]).strip(), texts


def _heads(lines: list[str], at: int) -> bool:
    """Whether a section begins here: `Args:`, or a NumPy title with a line of dashes under it."""
    match = _SECTION.match(lines[at])
    underlined = at + 1 < len(lines) and set(lines[at + 1].strip()) == {"-"}
    return match is not None and (bool(match[1]) or underlined)


def _sections(lines: list[str]) -> dict[str, str]:
    out: dict[str, list[str]] = {}
    name, inside, numpy = "", False, False
    for at, line in enumerate(lines):
        if _heads(lines, at):
            inside = line.startswith(("Arg", "Param"))
            name, numpy = "", not line.rstrip().endswith(":")
        elif inside and line.strip() and set(line.strip()) != {"-"}:
            parameter = _parameter(line, numpy)
            if parameter:
                name, text = parameter
                out[name] = [text] if text else []
            elif name:
                out[name].append(line.strip())
    return {key: " ".join(texts) for key, texts in out.items()}


def _parameter(line: str, numpy: bool) -> tuple[str, str] | None:
    """The parameter that a line introduces; None for a deeper line, which continues the parameter before it."""
    indent = len(line) - len(line.lstrip())
    if numpy:
        match = _NUMPY.match(line) if indent == 0 else None
        return (match[1].lstrip("*"), "") if match else None
    match = _GOOGLE.match(line.strip()) if 0 < indent <= 4 else None
    return (match[1].lstrip("*"), match[2].strip()) if match else None


class Signature(msgspec.Struct, frozen=True):
    """A function's description, the schema of its parameters, and the struct that arguments convert to."""

    description: str
    parameters: JsonObject
    arguments: Any
    names: tuple[str, ...]
    # The parameter that receives the call's own entry, empty where there is none.
    call: str = ""

    def fault(self, args: Json) -> str:
        try:
            msgspec.convert(args, self.arguments)
        except msgspec.ValidationError as error:
            return str(error)
        return ""


def signature(function: Callable[..., Any]) -> Signature:
    """Read a function; a parameter annotated `Entry` gets the call's entry and is not shown to the model."""
    name = getattr(function, "__name__", "tool")
    description, texts = describe(function)
    hints = _hints(function, name)
    fields: list[Any] = []
    call = ""
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is Entry:
            call = parameter.name
            continue
        fields.append(_field(parameter, hints, texts, name))
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    names = tuple(field[0] for field in fields)
    return Signature(description, _schema(arguments, name), arguments, names, call)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise CallError(
            f"the types of tool {name!r} cannot be read: {error}", hint="Define the tool where its types can be seen."
        ) from error


def _field(parameter: inspect.Parameter, hints: dict[str, Any], texts: dict[str, str], name: str) -> tuple[Any, ...]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise CallError(
            f"tool {name!r} takes {parameter}, which no schema can describe",
            hint="Use named parameters, each with a type.",
        )
    if parameter.name not in hints:
        raise CallError(
            f"parameter {parameter.name!r} of tool {name!r} has no type",
            hint="Annotate it: models are told types, and arguments are checked against them.",
        )
    kind = hints[parameter.name]
    if text := texts.get(parameter.name):
        kind = typing.Annotated[kind, msgspec.Meta(description=text)]
    value = parameter.default
    if value is parameter.empty:
        return (parameter.name, kind)
    # A mutable default is copied for each call.
    changeable = isinstance(value, list | dict | set)
    return (parameter.name, kind, msgspec.field(default_factory=lambda: type(value)(value)) if changeable else value)


def _schema(arguments: Any, name: str) -> JsonObject:
    try:
        whole = msgspec.json.schema(arguments)
    except (TypeError, NotImplementedError) as error:
        raise CallError(
            f"tool {name!r} has a type that JSON cannot carry: {error}",
            hint="Use str, int, float, bool, lists, dictionaries, Literal, Enum, TypedDict or dataclasses.",
        ) from error
    defs: JsonObject = whole.pop("$defs", {})
    out = _inline_refs(whole, defs, ())
    recursive = {key: _inline_refs(defs[key], defs, (key,)) for key in sorted(_still_named(out))}
    plain: JsonObject = {"type": "object", "properties": out["properties"], "required": out["required"]}
    plain["additionalProperties"] = False
    return {**plain, "$defs": recursive} if recursive else plain


def _inline_refs(schema: Json, defs: JsonObject, inside: tuple[str, ...]) -> Json:
    """A schema with its $refs replaced by the definitions; only a recursive type keeps its reference."""
    if isinstance(schema, list):
        return [_inline_refs(part, defs, inside) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        key = schema["$ref"].removeprefix("#/$defs/")
        if key in inside:
            return schema
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        return {**_inline_refs(defs[key], defs, (*inside, key)), **beside}
    return {
        key: {name: _inline_refs(item, defs, inside) for name, item in value.items()}
        if key == "properties"
        else _inline_refs(value, defs, inside)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _still_named(schema: Json) -> set[str]:
    if isinstance(schema, list):
        return {name for part in schema for name in _still_named(part)}
    if not isinstance(schema, dict):
        return set()
    refs = {schema["$ref"].removeprefix("#/$defs/")} if isinstance(schema.get("$ref"), str) else set()
    return refs | {name for value in schema.values() for name in _still_named(value)}


# One tool.

# A name that all providers accept.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


class Output(msgspec.Struct, frozen=True):
    """A tool's output: the content, a line about it (`outcome`), and whether the tool failed."""

    content: str = ""
    outcome: str = ""
    error: bool = False
    meta: JsonObject = {}

    def __post_init__(self) -> None:
        given: list[Any] = [self.content, self.outcome]
        for text in given:
            if not isinstance(text, str):
                hint = "Return another value as it is: it is written as JSON."
                raise CallError(f"an output is text, not {short(text)}", hint=hint)
        canonical(self.meta)


# (arguments as the model gave them, the call's entry) -> whatever the tool returns.
Invoke: TypeAlias = Callable[[JsonObject, Entry], Awaitable[Any]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `idempotent`: it may run again after an interruption; `shown`: arguments shown with its result."""

    name: str
    description: str
    parameters: JsonObject
    invoke: Invoke
    idempotent: bool = False
    shown: tuple[str, ...] = ()
    timeout_s: float | None = 60.0
    # The most characters of an output, and the function that cuts a longer one.
    limit: int = 24_000
    cut: Cutter = at_lines
    category: str = ""
    output: tuple[str, ...] = ()
    example: str = ""
    function: Callable[..., Any] | None = None
    # Returns what is wrong with arguments, as far as that is known before the tool runs; "" where nothing is.
    fault: Callable[[Json], str] = lambda args: ""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise CallError(
                f"{self.name!r} cannot be a tool's name",
                hint="Use a letter, then letters, digits, _ and -, 64 at most.",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, for other Python code."""
        if self.function is None:
            raise CallError(f"tool {self.name!r} is not a Python function", hint="Run it through a Toolbox.")
        return self.function(*args, **kwargs)

    def definition(self) -> JsonObject:
        """The tool's definition in a `tools` entry."""
        more: JsonObject = {"category": self.category, "output": list(self.output), "example": self.example}
        more["idempotent"] = self.idempotent
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return about | {key: value for key, value in more.items() if value}


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    function: None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    idempotent: bool = False,
    shown: Sequence[str] = (),
    timeout_s: float | None = 60.0,
    limit: int = 24_000,
    cut: Cutter = at_lines,
    category: str = "",
    output: Sequence[str] = (),
    example: str = "",
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, *, name: str = "", **settings: Any) -> Any:
    """A tool from a function with types and a docstring: `@tool` or `@tool(idempotent=True, timeout_s=5)`."""
    if function is None:
        return lambda decorated: _make_tool(decorated, name, settings)
    return _make_tool(function, name, settings)


def _make_tool(function: Callable[..., Any], name: str, settings: dict[str, Any]) -> Tool:
    shape = signature(function)
    name = name or getattr(function, "__name__", "")
    description = settings.get("description") or shape.description
    if not description:
        raise CallError(f"tool {name!r} has no description", hint="Give the function a docstring.")
    unknown = set(settings.get("shown", ())) - set(shape.names)
    if unknown:
        raise CallError(
            f"tool {name!r} shows {', '.join(sorted(unknown))}, which it does not take",
            hint=f"It takes {', '.join(shape.names) or 'nothing'}.",
        )
    lists = {listed: tuple(settings.get(listed, ())) for listed in ("shown", "output")}
    fields = {**settings, **lists, "name": name, "description": description, "parameters": shape.parameters}
    return Tool(invoke=_invoke(function, shape), function=function, fault=shape.fault, **fields)


def _invoke(function: Callable[..., Any], shape: Signature) -> Invoke:
    async def invoke(args: JsonObject, call: Entry) -> Any:
        checked = msgspec.convert(args, shape.arguments)
        arguments = {name: getattr(checked, name) for name in shape.names}
        if shape.call:
            arguments[shape.call] = call
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        return await in_thread(lambda: function(**arguments))

    return invoke


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run work in a daemon thread, which cannot keep the program alive; where it returns an awaitable, await that."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.cancelled():
            setter(value)

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # also sys.exit() of a tool, which would only end its OS thread
            outcome: tuple[Any, Any] = (future.set_exception, _raisable(error))
        else:
            outcome = (future.set_result, value)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    returned = await future
    return await returned if inspect.isawaitable(returned) else returned


def _raisable(error: BaseException) -> BaseException:
    """An error that a future can hold: StopIteration is refused, and a BaseException would end the loop."""
    if isinstance(error, Exception | asyncio.CancelledError) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))


# A set of tools that a cycle can run.


class Toolbox:
    """Tools by name; plain functions become tools: `Toolbox(read, search, my_function)`.

    With `offered=False` the model is not offered the tools: they run for calls that were chosen without it.
    """

    def __init__(self, *tools: Tool | Callable[..., Any], offered: bool = True) -> None:
        self._tools: dict[str, Tool] = {}
        self.offered = offered
        for member in tools:
            new_tool = member if isinstance(member, Tool) else tool(member)
            if new_tool.name in self._tools:
                raise CallError(f"there are two tools called {new_tool.name!r}", hint="Give one another name.")
            self._tools[new_tool.name] = new_tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def definitions(self) -> Sequence[JsonObject]:
        """The definitions of the tools that are offered to the model."""
        return [tool.definition() for tool in self] if self.offered else []

    def hidden(self) -> Toolbox:
        """The same tools, not offered to the model."""
        return Toolbox(*self, offered=False)

    async def run(self, call: Entry) -> Entry:
        """Run a call; unknown tools, wrong arguments, failures and timeouts are results too."""
        tool = self.get(call.name)
        if tool is None:
            near = difflib.get_close_matches(call.name, self._tools, 3) or sorted(self._tools)
            others = f"; there is {', '.join(near)}" if near else ""
            output = _failure(f"there is no tool {call.name!r}{others}")
        else:
            output = await _output(tool, call)
        return values.result(
            call.call_id,
            whole_characters(output.outcome) or None,
            whole_characters(output.content) if output.content or not output.outcome else None,
            output.error or None,
            **({"meta": output.meta} if output.meta else {}),
        )


_TOOLS_HINT = "Give the tools in a list, [look, find], or a function of a call's name and arguments."


class OneForAll(Toolbox):
    """A toolbox in which one function of a call's name and arguments runs every call."""

    def __init__(self, function: Callable[[str, JsonObject], Any]) -> None:
        super().__init__()
        try:
            inspect.signature(function).bind("name", {})
        except TypeError as error:
            wrong = f"{short(function)} is no function of a call's name and arguments"
            raise CallError(wrong, hint=_TOOLS_HINT) from error
        except ValueError:
            pass  # a function in C without a signature
        self._function = function

    def get(self, name: str) -> Tool:
        def invoke(args: JsonObject, call: Entry) -> Awaitable[Any]:
            return in_thread(lambda: self._function(call.name, args))

        called = name if _NAME.match(name) else "any"
        return Tool(name=called, description="", parameters={}, invoke=invoke)


def toolbox_of(run: Any) -> Toolbox:
    """A toolbox from functions in a list or by name, or from one function for all names."""
    if isinstance(run, Toolbox):
        return run
    if isinstance(run, Mapping):
        named = {name: member if isinstance(member, Tool) else tool(member) for name, member in run.items()}
        return Toolbox(*[msgspec.structs.replace(member, name=name) for name, member in named.items()])
    if isinstance(run, Tool):
        return Toolbox(run)
    if isinstance(run, str) or not (callable(run) or isinstance(run, Iterable)):
        raise CallError(f"{short(run)} runs no calls", hint=_TOOLS_HINT)
    return OneForAll(run) if callable(run) else Toolbox(*run)


async def _output(tool: Tool, call: Entry) -> Output:
    if not isinstance(call.args, dict):
        return _failure(f"the arguments of {tool.name} must be an object, not {json.dumps(call.args)[:80]}")
    try:
        async with asyncio.timeout(tool.timeout_s) as limit:
            output = _as_output(await tool.invoke(call.args, call))
        if len(output.content) <= tool.limit:
            return output
        return msgspec.structs.replace(output, content=tool.cut(output.content, tool.limit))
    except msgspec.ValidationError as error:
        return _failure(f"the arguments do not fit {tool.name}: {error}")
    except QuireError as error:
        return _failure(f"{error} ({error.hint})" if error.hint else str(error))
    except TimeoutError as error:
        return _failure(
            f"{tool.name} did not end within {tool.timeout_s:g} s" if limit.expired() else _error_line(error)
        )
    except asyncio.CancelledError as error:
        if (waiting := asyncio.current_task()) is None or waiting.cancelling():
            raise
        return _failure(_error_line(error))  # not this task: something that the tool awaits was cancelled
    except (KeyboardInterrupt, GeneratorExit):
        raise
    # A tool is foreign code and may raise anything; the model gets the error without the traceback.
    except BaseException as error:
        return _failure(_error_line(error))


def _failure(text: str) -> Output:
    return Output(outcome=text, error=True)


def _error_line(error: BaseException) -> str:
    """An exception in one line: its type and message."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its __str__ is foreign code, too
        text = ""
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__


def _as_output(returned: Any) -> Output:
    """A tool's return value as output: strings and UTF-8 bytes unchanged, None as "", anything else as compact JSON."""
    if isinstance(returned, Output):
        return returned
    if isinstance(returned, bytes | bytearray):
        try:
            returned = returned.decode()
        except UnicodeDecodeError:
            return _failure(f"the tool returned {len(returned):,} bytes that are no text")
    if isinstance(returned, str):
        return Output(returned)
    if returned is None:
        return Output()
    try:
        plain = msgspec.to_builtins(returned, str_keys=True)
        return Output(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(returned).__name__
        return _failure(f"the tool returned a {kind}, which cannot be written as JSON: {error}")
