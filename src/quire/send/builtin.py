"""The tools that come with Quire: read, list and grep in one folder, calculate, recall. No shell."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from quire.errors import CallError
from quire.log.store import Store
from quire.send.files import file_tools
from quire.send.tools import Output, Tool, tool

if TYPE_CHECKING:
    from quire.recall import Recall

# calculate: arithmetic by the syntax tree, with bounds on size and depth; nothing else can be named or called.

Number: TypeAlias = int | float

_MAX_LENGTH = 2_000
_MAX_BITS = 8_192

_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{
        name: getattr(math, name)
        for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
                     "sinh", "cosh", "tanh", "degrees", "radians", "hypot", "gcd", "lcm", "floor", "ceil", "trunc")
    },
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
}  # fmt: skip


@tool(idempotent=True, category="arithmetic", output=("number",), example="(3 + 4) * 12 / 5", timeout_s=5.0)
def calculate(expression: str) -> str:
    """Calculate an arithmetic expression: + - * / // % **, parentheses, sqrt, log, sin, round, min, max, factorial, pi, e.

    Args:
        expression: The expression, as (3 + 4) * 12 / 5.
    """
    return format_number(evaluate(expression))


def evaluate(expression: str) -> Number:
    """The value of an expression; everything that is not plain arithmetic is an error."""
    if len(expression) > _MAX_LENGTH:
        raise CallError(
            f"the expression has {len(expression):,} characters; at most {_MAX_LENGTH:,} are read"
        )
    try:
        tree = ast.parse(
            expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval"
        )
        return _value(tree.body)
    except SyntaxError as error:
        raise CallError(f"{expression!r} is not an expression: {error.msg}") from error
    except ZeroDivisionError as error:
        raise CallError(f"{expression!r} divides by zero") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise CallError(f"{expression!r} has no value: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise CallError("the expression is nested too deeply") from error


def format_number(value: Number) -> str:
    """A number as a person writes it: 0.1 + 0.2 -> 0.3, 6.0 -> 6."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(inner))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _called(name, [_value(one) for one in args])
    raise CallError(
        f"{ast.unparse(node)[:80]!r} is not arithmetic", hint="Numbers, + - * / // % **, and named functions."
    )


def _called(name: str, args: list[Number]) -> Number:
    if name == "factorial":
        if len(args) != 1 or not 0 <= args[0] <= 1000:
            raise CallError("factorial takes one whole number from 0 to 1000")
        return _bounded(math.factorial(int(args[0]) if float(args[0]).is_integer() else args[0]))  # type: ignore[arg-type]  # a fraction is its own error
    if name not in _FUNCTIONS:
        raise CallError(
            f"there is no function {name!r}", hint=f"There is {', '.join([*_FUNCTIONS, 'factorial'])}."
        )
    if name == "round" and len(args) == 2 and abs(args[1]) > 300:
        raise CallError(f"round takes at most 300 digits, not {args[1]}")
    return _bounded(_FUNCTIONS[name](*args))


def _power(base: Number, exponent: Number) -> Number:
    """A power whose size is known before it is made."""
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if exponent > 0 and exponent * base.bit_length() > _MAX_BITS:
            raise CallError(f"{base}**{exponent} is too large")
        if exponent < 0:
            return _bounded(float(base) ** exponent)
    value = base**exponent
    if isinstance(value, complex):
        raise CallError(f"{base}**{exponent} is not a real number")
    return _bounded(value)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise CallError("the number is too large", hint=f"At most {_MAX_BITS} bits.")
    if isinstance(value, float) and not math.isfinite(value):
        raise CallError("the result is not a finite number")
    return value


# recall: what was said or returned earlier, by a search or by the handle that stands for it.

_LIMIT = 16_000
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


def recall_tool(store: Store, thread: str, searching: Recall | None = None, limit: int = _LIMIT) -> Tool:
    """The tool `recall` for one thread, as RECALL_TOOL defines it; it finds nothing of any other thread."""
    from quire.recall import RECALL_TOOL, Recall
    from quire.recall.tool import MOST, Asking

    asking = Asking(searching or Recall(store), thread, share_tokens=limit // 4)

    def recall(query: str = "", handle: str = "", k: _Positive = 5, start: _Positive = 1) -> Output:
        if k > MOST:
            raise CallError(f"k is {k}; at most {MOST} are found at once")
        answer = asking(query, handle, k, start)
        return Output(answer.text, answer.about)

    made = tool(
        name=RECALL_TOOL["name"],
        description=RECALL_TOOL["description"],
        idempotent=True,
        category=RECALL_TOOL["category"],
        output=RECALL_TOOL["output"],
        limit=limit * 2,
    )(recall)
    return msgspec.structs.replace(made, parameters=RECALL_TOOL["parameters"])


def builtin(root: str | Path | None = None, store: Store | None = None, thread: str = "") -> list[Tool]:
    """The built-in tools; those for files where a root folder is given, recall where a thread is."""
    tools = [*(file_tools(root) if root is not None else ()), calculate]
    if store is not None and thread:
        tools.append(recall_tool(store, thread))
    return tools
