"""The tools that come with Quire: read, list and grep in one folder, calculate, recall, records. No shell."""

from __future__ import annotations

import ast
import asyncio
import json
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from quire.errors import CallError, ConflictError, NotFound
from quire.log import now_ms
from quire.log.store import Store
from quire.records import Record, Records, Selector, react
from quire.records.builder import built_by
from quire.records.record import view
from quire.send.files import file_tools
from quire.send.tools import Output, Tool, in_thread, tool
from quire.values import Entry, JsonObject

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
    value = evaluate(expression)
    if isinstance(value, int):
        return str(value)
    # As a person writes it: 0.1 + 0.2 -> 0.3, 6.0 -> 6.
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"


def evaluate(expression: str) -> Number:
    """The value of an expression; everything that is not plain arithmetic is an error."""
    if len(expression) > _MAX_LENGTH:
        raise CallError(f"the expression has {len(expression):,} characters; at most {_MAX_LENGTH:,} are read")
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval")
        return _value(tree.body)
    except SyntaxError as error:
        raise CallError(f"{expression!r} is not an expression: {error.msg}") from error
    except ZeroDivisionError as error:
        raise CallError(f"{expression!r} divides by zero") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise CallError(f"{expression!r} has no value: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise CallError("the expression is nested too deeply") from error


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
            return _called(name, [_value(arg) for arg in args])
    raise CallError(
        f"{ast.unparse(node)[:80]!r} is not arithmetic", hint="Numbers, + - * / // % **, and named functions."
    )


def _called(name: str, args: list[Number]) -> Number:
    if name == "factorial":
        if len(args) != 1 or not 0 <= args[0] <= 1000:
            raise CallError("factorial takes one whole number from 0 to 1000")
        return _bounded(math.factorial(int(args[0]) if float(args[0]).is_integer() else args[0]))  # type: ignore[arg-type]  # a fraction is its own error
    if name not in _FUNCTIONS:
        raise CallError(f"there is no function {name!r}", hint=f"There is {', '.join([*_FUNCTIONS, 'factorial'])}.")
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
    from quire.recall import MOST, RECALL_TOOL, Recall
    from quire.recall.placement import Asking

    asking = Asking(searching or Recall(store), thread, share_tokens=limit // 4)

    def recall(query: str = "", handle: str = "", k: _Positive = 5, start: _Positive = 1) -> Output:
        if k > MOST:
            raise CallError(f"k is {k}; at most {MOST} are found at once")
        answer = asking(query, handle, k, start)
        return Output(answer.text, answer.about)

    about = {name: RECALL_TOOL[name] for name in ("name", "description", "category", "output")}
    base = tool(idempotent=True, limit=limit * 2, **about)(recall)
    return msgspec.structs.replace(base, parameters=RECALL_TOOL["parameters"])


# The tools by which a model reads and writes records; each may run again, for a call writes no record twice.

RecordAction = Literal["create", "update", "delete"]
_ENTRY = "entry:"
_DONE = {"create": "created", "update": "updated", "delete": "deleted"}


def entry_tag(entry: Entry) -> str:
    """The tag that says of which entry a record was made, by the twelve digits that name it elsewhere too."""
    return f"{_ENTRY}{entry.id.removeprefix('sha256:')[:12]}"


def record_tools(records: Records, *, clock: Callable[[], int] = now_ms) -> list[Tool]:
    """`find_records` and `change_record`; contexts of consumers that a change concerns are built anew."""
    locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def in_order(work: Callable[[], JsonObject]) -> JsonObject:
        """Calls one after the other, though they may run again: so that one finds what another wrote."""
        async with locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return dict(await in_thread(work))

    @tool(
        idempotent=True,
        category="system",
        output=("count", "records"),
        example='{"query": "API key"} finds by meaning, {"id": "rec-3"} reads one, {"tag": "work"} lists the newest.',
    )
    async def find_records(
        query: str = "", id: str = "", schema_name: str = "", tag: str = "", k: int = 5
    ) -> JsonObject:
        """Search, read or list records.

        Args:
            query: What to look for, in plain words.
            id: The one record to read.
            schema_name: Only records of this schema.
            tag: Only records with this tag.
            k: At most so many.
        """
        return await in_order(partial(_find, records, query, id, schema_name, tag, max(1, min(k, 50)), clock()))

    @tool(
        idempotent=True,
        category="system",
        output=("done", "record"),
        example='{"action": "create", "schema_name": "note.v1", "title": "Plan", "context": {"text": "Ship it"}}; '
        '{"action": "update", "id": "rec-3", "version": 1, "context": {"text": "Ship on Monday"}}',
    )
    async def change_record(
        action: RecordAction,
        call: Entry,
        id: str = "",
        version: int = 0,
        schema_name: str = "",
        title: str | None = None,
        tags: list[str] | None = None,
        context: dict[str, Any] | None = None,
    ) -> JsonObject:
        """Create, update or delete a record. An update or a deletion names the id and the version that was seen.

        Args:
            action: create, update or delete.
            id: The record to update or delete.
            version: The version of it that was seen.
            schema_name: What a new record is, such as note.v1.
            title: What it is called.
            tags: All of its tags.
            context: What it holds, a JSON object.
        """
        fields = {"title": title, "tags": tags, "context": context}
        changes = {name: value for name, value in fields.items() if value is not None}
        return await in_order(partial(_change, records, action, call, id, version, schema_name, changes, clock()))

    return [find_records, change_record]


def _find(records: Records, query: str, id: str, schema_name: str, tag: str, k: int, now: int) -> JsonObject:
    selector = Selector(schemas=(schema_name,) if schema_name else (), all_tags=(tag,) if tag else ())
    matching: Sequence[Record]
    if id:
        matching = [records.read_full(id, now=now)]
    elif query.strip():
        near = records.near(query, selector, keep=lambda record: not built_by(record), now=now)
        matching = [hit.record for hit in near if hit.share > 0][:k]
    else:
        matching = records.select(selector, newest=k, keep=lambda record: not built_by(record), now=now)
    return {"count": len(matching), "records": [_record_json(record) for record in matching]}


def _record_json(record: Record) -> JsonObject:
    """A record as the model sees it: its head, and what its hints show."""
    head = {"id": record.id, "version": record.version, "schema_name": record.schema_name}
    tags = [tag for tag in record.tags if not tag.startswith(_ENTRY)]
    return {**head, "title": record.title, "tags": tags, "context": view(record).context}


def _change(
    records: Records,
    action: RecordAction,
    call: Entry,
    id: str,
    version: int,
    schema_name: str,
    fields: JsonObject,
    now: int,
) -> JsonObject:
    if action == "create":
        record = _create(records, call, schema_name, fields, now)
    elif not (id and version):
        raise CallError(f"to {action} a record, name its id and version", hint="find_records shows both.")
    elif action == "update":
        record = _update(records, id, version, fields, now)
    else:
        try:
            records.delete(id, version, now=now)
        except NotFound:
            return {"done": f"there is no record {id} any more"}
        return {"done": f"{id} is deleted"}
    react(records, record, now=now)
    return {"done": f"{record.id} is {_DONE[action]}", "record": _record_json(record)}


def _create(records: Records, call: Entry, schema_name: str, fields: JsonObject, now: int) -> Record:
    if not schema_name:
        raise CallError("a new record needs a schema_name", hint="Such as note.v1.")
    mark = entry_tag(call)
    old = records.select(Selector(all_tags=(mark,), schemas=(schema_name,)), newest=1, now=now)
    context, tags = fields.get("context") or {}, [*(fields.get("tags") or ()), mark]
    return old[0] if old else records.create(schema_name, context, title=fields.get("title") or "", tags=tags, now=now)


def _update(records: Records, id: str, version: int, fields: JsonObject, now: int) -> Record:
    try:
        return records.update(id, version, **fields, now=now)
    except ConflictError:
        # The same call may have run before an interruption: then the record is what it asked for.
        newest = records.read_full(id, now=now)
        same = all(json.dumps(getattr(newest, name)) == json.dumps(value) for name, value in fields.items())
        if newest.version == version + 1 and same:
            return newest
        raise


def builtin(root: str | Path | None = None, store: Store | None = None, thread: str = "") -> list[Tool]:
    """The built-in tools; those for files where a root folder is given, recall where a thread is."""
    recall = [recall_tool(store, thread)] if store is not None and thread else []
    return [*(file_tools(root) if root is not None else ()), calculate, *recall]
