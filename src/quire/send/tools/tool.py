"""One tool: what the model is told of it, how it is run, and how much it may say."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, overload

import msgspec

from quire.errors import CallError
from quire.send.tools.cuts import Cut, at_lines
from quire.send.tools.schema import Signature, signature
from quire.values import Entry, JsonObject

# The strictest of the providers' rules for names.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


class Output(msgspec.Struct, frozen=True):
    """What a tool says: the content, a line about it (`outcome`), and whether it failed."""

    content: str = ""
    outcome: str = ""
    error: bool = False
    meta: JsonObject = {}


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
    cut: Cut = at_lines
    category: str = ""
    output: tuple[str, ...] = ()
    example: str = ""
    function: Callable[..., Any] | None = None

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
        more = {
            "category": self.category,
            "output": list(self.output),
            "example": self.example,
            "idempotent": self.idempotent,
        }
        about: JsonObject = {"name": self.name, "description": self.description}
        about["parameters"] = self.parameters
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
    cut: Cut = at_lines,
    category: str = "",
    output: Sequence[str] = (),
    example: str = "",
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, *, name: str = "", **settings: Any) -> Any:
    """A tool from a function with types and a docstring: `@tool` or `@tool(idempotent=True, timeout_s=5)`."""
    if function is None:
        return lambda given: _made(given, name, settings)
    return _made(function, name, settings)


def _made(function: Callable[..., Any], name: str, settings: dict[str, Any]) -> Tool:
    found = signature(function)
    name = name or getattr(function, "__name__", "")
    description = settings.pop("description", "") or found.description
    if not description:
        raise CallError(f"tool {name!r} has no description", hint="Give the function a docstring.")
    unknown = set(settings.get("shown", ())) - set(found.names)
    if unknown:
        raise CallError(
            f"tool {name!r} shows {', '.join(sorted(unknown))}, which it does not take",
            hint=f"It takes {', '.join(found.names) or 'nothing'}.",
        )
    for listed in ("shown", "output"):
        settings[listed] = tuple(settings.get(listed, ()))
    return Tool(
        name=name,
        description=description,
        parameters=found.parameters,
        invoke=_invoke(function, found),
        function=function,
        **settings,
    )


def _invoke(function: Callable[..., Any], found: Signature) -> Invoke:
    async def invoke(args: JsonObject, call: Entry) -> Any:
        checked = msgspec.convert(args, found.arguments)
        given = {name: getattr(checked, name) for name in found.names}
        if found.call:
            given[found.call] = call
        if inspect.iscoroutinefunction(function):
            return await function(**given)
        returned = await in_thread(lambda: function(**given))
        return await returned if inspect.isawaitable(returned) else returned

    return invoke


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a thread of its own, which cannot keep the program alive if it never ends."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not done.cancelled():
            setter(value)

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # a tool's sys.exit() must not vanish with its thread
            outcome: tuple[Any, Any] = (done.set_exception, _raisable(error))
        else:
            outcome = (done.set_result, value)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await done


def _raisable(error: BaseException) -> BaseException:
    """What a future can carry: it refuses StopIteration, and SystemExit would end the loop."""
    if isinstance(error, StopIteration | SystemExit | KeyboardInterrupt | GeneratorExit):
        return RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))
    return error
