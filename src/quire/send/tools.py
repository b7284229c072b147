"""Tools: Python functions that a model may call, run with care; whatever goes wrong becomes a result.

A function's signature is the JSON schema that models are given, and the type that checks their arguments.
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

# What a docstring says of a function and of each parameter: Google, NumPy and reST styles.

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
    """The parameter that a line introduces; deeper lines go on with the one before."""
    indent = len(line) - len(line.lstrip())
    if numpy:
        match = _NUMPY.match(line) if indent == 0 else None
        return (match[1].lstrip("*"), "") if match else None
    match = _GOOGLE.match(line.strip()) if 0 < indent <= 4 else None
    return (match[1].lstrip("*"), match[2].strip()) if match else None


class Signature(msgspec.Struct, frozen=True):
    """What is known of a function: its text, its parameters, and the struct that arguments convert to."""

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
    # A default that can be changed is made anew for each call.
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
    """A schema with its $refs replaced by what they name; only a recursive type keeps its reference."""
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


# One tool: what the model is told of it, how it is run, and how much it may say.

# The strictest of the providers' rules for names.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


class Output(msgspec.Struct, frozen=True):
    """What a tool says: the content, a line about it (`outcome`), and whether it failed."""

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
    """A tool: `idempotent` ones may run again after an interruption; `shown` arguments become attributes."""

    name: str
    description: str
    parameters: JsonObject
    invoke: Invoke
    idempotent: bool = False
    shown: tuple[str, ...] = ()
    timeout_s: float | None = 60.0
    # The most characters of one output, and where it ends when there are more.
    limit: int = 24_000
    cut: Cutter = at_lines
    category: str = ""
    output: tuple[str, ...] = ()
    example: str = ""
    function: Callable[..., Any] | None = None
    # What is wrong with arguments, as far as that can be told before it runs; empty where nothing is.
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
        """The tool as a `tools` entry holds it."""
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
    """Run work in a thread that cannot keep the program alive if it never ends; what it gives to await is awaited here."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.cancelled():
            setter(value)

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # a tool's sys.exit() must not vanish with its thread
            outcome: tuple[Any, Any] = (future.set_exception, _raisable(error))
        else:
            outcome = (future.set_result, value)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    returned = await future
    return await returned if inspect.isawaitable(returned) else returned


def _raisable(error: BaseException) -> BaseException:
    """What a future can carry: it refuses StopIteration, and what is no Exception would end the loop."""
    if isinstance(error, Exception | asyncio.CancelledError) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))


# A set of tools that a cycle can run: every call has a result, whatever happens on the way.


class Toolbox:
    """Tools by name; functions are taken as they are: `Toolbox(read, search, my_function)`.

    `offered=False` runs calls without telling the model of the tools: for calls chosen before it speaks.
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
        """The tools the model is told of."""
        return [tool.definition() for tool in self] if self.offered else []

    def hidden(self) -> Toolbox:
        """The same tools, of which the model is not told."""
        return Toolbox(*self, offered=False)

    async def run(self, call: Entry) -> Entry:
        """The result of a call: unknown tools, wrong arguments, failures and timeouts are results too."""
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
    """One function of a call's name and arguments carries out whatever is called."""

    def __init__(self, function: Callable[[str, JsonObject], Any]) -> None:
        super().__init__()
        try:
            inspect.signature(function).bind("name", {})
        except TypeError as error:
            wrong = f"{short(function)} is no function of a call's name and arguments"
            raise CallError(wrong, hint=_TOOLS_HINT) from error
        except ValueError:
            pass  # one of those in C that do not say what they take
        self._function = function

    def get(self, name: str) -> Tool:
        def invoke(args: JsonObject, call: Entry) -> Awaitable[Any]:
            return in_thread(lambda: self._function(call.name, args))

        called = name if _NAME.match(name) else "any"
        return Tool(name=called, description="", parameters={}, invoke=invoke)


def toolbox_of(run: Any) -> Toolbox:
    """A toolbox of functions in a list or by name, or of one function for all names."""
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
        return _failure(_error_line(error))  # only what the tool awaits was cancelled
    except (KeyboardInterrupt, GeneratorExit):
        raise
    # A tool is foreign code and may raise anything; the model is told, without the traceback.
    except BaseException as error:
        return _failure(_error_line(error))


def _failure(text: str) -> Output:
    return Output(outcome=text, error=True)


def _error_line(error: BaseException) -> str:
    """An exception in one line: its kind and its words."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # it is foreign code, too
        text = ""
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__


def _as_output(returned: Any) -> Output:
    """What a tool returned as text: strings and what bytes spell as they are, nothing as empty, all else as compact JSON."""
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
