"""A set of tools that a cycle can run: every call has a result, whatever happens on the way."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from quire import values
from quire.errors import CallError, QuireError
from quire.send.tools.tool import Output, Tool, tool
from quire.values import Entry, JsonObject


class Toolbox:
    """Tools by name; functions are taken as they are: `Toolbox(read, search, my_function)`.

    `offered=False` runs calls without telling the model of the tools: for calls chosen before it speaks.
    """

    def __init__(self, *tools: Tool | Callable[..., Any], offered: bool = True) -> None:
        self._tools: dict[str, Tool] = {}
        self.offered = offered
        for given in tools:
            one = given if isinstance(given, Tool) else tool(given)
            if one.name in self._tools:
                raise CallError(f"there are two tools called {one.name!r}", hint="Give one another name.")
            self._tools[one.name] = one

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
        return [one.definition() for one in self] if self.offered else []

    def hidden(self) -> Toolbox:
        """The same tools, of which the model is not told."""
        return Toolbox(*self, offered=False)

    async def run(self, call: Entry) -> Entry:
        """The result of a call: unknown tools, wrong arguments, failures and timeouts are results too."""
        found = self._tools.get(call.name)
        output = self._unknown(call.name) if found is None else await _output(found, call)
        return values.result(
            call.call_id,
            _sound(output.outcome) or None,
            _sound(output.content) if output.content or not output.outcome else None,
            output.error or None,
            **({"meta": output.meta} if output.meta else {}),
        )

    def _unknown(self, name: str) -> Output:
        near = difflib.get_close_matches(name, self._tools, 3) or sorted(self._tools)
        there = f"; there is {', '.join(near)}" if near else ""
        return Output(outcome=f"there is no tool {name!r}{there}", error=True)


async def _output(found: Tool, call: Entry) -> Output:
    if not isinstance(call.args, dict):
        return _failure(f"the arguments of {found.name} must be an object, not {json.dumps(call.args)[:80]}")
    try:
        async with asyncio.timeout(found.timeout_s) as limit:
            returned = await found.invoke(call.args, call)
        return _limited(_as_output(returned), found)
    except msgspec.ValidationError as error:
        return _failure(f"the arguments do not fit {found.name}: {error}")
    except QuireError as error:
        return _failure(f"{error} ({error.hint})" if error.hint else str(error))
    except TimeoutError as error:
        return _failure(
            f"{found.name} did not end within {found.timeout_s:g} s" if limit.expired() else _said(error)
        )
    # A tool is foreign code and may raise anything; the model is told, without the traceback.
    except (Exception, SystemExit) as error:
        return _failure(_said(error))


def _failure(text: str) -> Output:
    return Output(outcome=text, error=True)


def _said(error: BaseException) -> str:
    """An exception in one line: its kind and its words."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__


def _as_output(returned: Any) -> Output:
    """What a tool returned as text: strings as they are, nothing as empty, everything else as compact JSON."""
    if isinstance(returned, Output):
        return returned
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


def _limited(output: Output, found: Tool) -> Output:
    if len(output.content) <= found.limit:
        return output
    return msgspec.structs.replace(output, content=found.cut(output.content, found.limit))


def _sound(text: str) -> str:
    """Text that UTF-8 can hold: half a character becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
