"""What runs between applications and models, and what its modules share: routes as data, and a memory that forgets.

A route says what comes in, what goes out, who answers: the application and its OpenAPI page (`app`) are made of them. A
module contributes routes by a tuple of `route(…)`; its functions take one `RouteCall` and what was asked for, and give a value.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec

from quire import errors
from quire.errors import QuireError
from quire.log.connection import ReadOnly
from quire.log.store import Store
from quire.values import Entry, Json, JsonObject

if TYPE_CHECKING:
    from quire.server.service import Service, Tenant

_logger = logging.getLogger("quire")
EVENTS = "text/event-stream"


class Problem(msgspec.Struct, omit_defaults=True):
    """An error (RFC 9457): `hint` is the next step, `state` how things stand where that is why."""

    title: str
    status: int
    detail: str = ""
    hint: str = ""
    state: Json = None
    type: str = "about:blank"


class HttpRefusal(QuireError):
    """An answer other than the one asked for, with its HTTP status."""

    def __init__(
        self, status: int, message: str, *, hint: str = "", state: Json = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.state, self.headers = status, state, dict(headers or {})


# Who has to act decides the status: the caller (4xx), the operator (500, 501, 503), the provider (502). What the
# types of a route forbid is 422; what they allow and the library refuses, as things stand, is 409.
_STATUS: tuple[tuple[type[QuireError], int, str], ...] = (
    (ReadOnly, 503, "nothing can be written"),
    (errors.NotFound, 404, "not found"),
    (errors.ConflictError, 409, "conflict"),
    (errors.RuleError, 409, "the request would be refused"),
    (errors.BudgetError, 409, "it does not fit"),
    (errors.DamageError, 500, "stored data is damaged"),
    (errors.DataError, 409, "malformed"),
    (errors.CallError, 409, "refused"),
    (errors.MissingPart, 501, "a part is not installed"),
    (errors.VersionError, 500, "the database is newer than this Quire"),
    (errors.ProviderError, 502, "the model's side failed"),
    (QuireError, 503, "not possible now"),
)
_TITLES = {
    400: "not JSON",
    401: "no valid key",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    413: "too large",
    415: "not JSON",
    422: "malformed",
    429: "too many requests",
    503: "not possible now",
}


def problem_of(error: Exception) -> Problem:
    """What is said of an error; of one that nobody foresaw, nothing that could hold a secret."""
    if isinstance(error, RecursionError):
        error = HttpRefusal(400, "the JSON is nested too deeply")
    if isinstance(error, HttpRefusal):
        title = _TITLES.get(error.status, "refused")
        has_cause = isinstance(error.__cause__, QuireError)
        type_ = f"urn:quire:{type(error.__cause__).__name__}" if has_cause else "about:blank"
        return Problem(title, error.status, str(error), error.hint, error.state, type_)
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            return Problem(title, status, str(error), error.hint, type=f"urn:quire:{type(error).__name__}")
    _logger.error("a request failed", exc_info=error)
    return Problem("internal error", 500, "", "The server's log says more.")


class RouteCall(msgspec.Struct):
    """One request to a route: who asks, and what was given, already of the types that the handler names."""

    service: Service
    tenant: Tenant
    path: Mapping[str, Any]
    arguments: Mapping[str, Any]
    headers: Mapping[str, str]
    # With an Idempotency-Key: what an earlier attempt noted, and where this one notes the same.
    began: Json = None
    remember: Callable[[JsonObject], None] | None = None

    def begin(self, how: JsonObject) -> None:
        """Note what is about to be done, so that another attempt with the same key can tell whether it was."""
        if self.remember is not None:
            self.began = how
            self.remember(how)

    @property
    def store(self) -> Store:
        """The store of whoever asks; nothing of anybody else's is in it."""
        return self.tenant.store

    @property
    def name(self) -> str:
        """The thread that the path names."""
        return str(self.path["name"])


Handler = Callable[..., Any]
Method = Literal["GET", "POST", "PUT", "DELETE"]


class Route(msgspec.Struct, frozen=True):
    """One route: `body`, `query` and `gives` are types; the handler's docstring is its documentation.

    A handler that is no coroutine is called in another OS thread. It gives a value of the type `gives`, or a response.
    """

    method: Method
    path: str
    handler: Handler
    body: Any
    query: Any
    gives: Any
    status: int = 200
    # What the answer is, where it is not JSON.
    media: str = "application/json"
    # Whether the answer may be events instead.
    streams: bool = False
    # Whether secrets are taken out of the answer; a store's own data go as they are.
    redacted: bool = True
    errors: tuple[int, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it can be carried out once: what lasts as long as its events are read cannot."""
        return self.method != "GET" and self.media != EVENTS

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    @property
    def operation(self) -> str:
        return self.handler.__name__


def route(method: Method, path: str, handler: Handler, **more: Any) -> Route:
    """A route by its handler's signature: behind the call `body`, by its type, and the fields of the query by name.

    A handler that gives a response names what is in it as `gives`.
    """
    types = get_type_hints(handler, include_extras=True)
    del types["call"]
    gives, body = types.pop("return"), types.pop("body", None)
    query = arguments_type(handler, f"{handler.__name__}_query", types) if types else None
    return Route(method, path, handler, body, query, **{"gives": None if gives is type(None) else gives, **more})


def arguments_type(function: Callable[..., Any], name: str, types: Mapping[str, Any]) -> Any:
    """The parameters of a function that have one of these types, as a struct of that name."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    given = {name: () if value is inspect.Parameter.empty else (value,) for name, value in defaults.items()}
    fields = [(name, types[name], *default) for name, default in given.items() if name in types]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True)


_BIGGEST = 2**53 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=_BIGGEST)]
# Written out: what \S is differs between readers of JSON schemas.
Model = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z0-9_.-]+:[^\u0000-\u0020\u007f-\u00a0]+$")]
# What a turn is held by over HTTP.
TurnNumber = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,17}$")]
ThreadName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
# An entry as JSON; its schema is the log's own (`quire schema entry`).
EntryJson = Annotated[JsonObject, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/Entry"})]


def entry_json(entry: Entry) -> JsonObject:
    """An entry as JSON, with the place it has in its log."""
    return {**entry.body, "seq": entry.seq, "id": entry.id}


def whole_numbers(value: Json, deep: int = 1) -> Json:
    """An object whose own numbers are integers where they are whole: {"seq": 2.0} -> {"seq": 2}."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict) and deep >= 0:
        return {key: whole_numbers(inner, deep - 1) for key, inner in value.items()}
    return value


def read_types() -> None:
    """Have msgspec read every type that is loaded, here and now, before other OS threads work.

    It does so when it first meets one, and two OS threads that meet a type at the same moment end the process.
    """
    kinds: list[type[msgspec.Struct]] = msgspec.Struct.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("quire."):
            with suppress(TypeError, NameError):  # one that nothing is ever read as
                msgspec.json.Decoder(kind)


Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """A dictionary of the `most` keys that were set last, and of no more than `most_size` in all, where `size` tells it.

    A server that runs for long forgets the others, of which `forget` is told; the newest is kept whatever its size.
    """

    def __init__(
        self,
        most: int,
        most_size: int = 0,
        size: Callable[[Value], int] = lambda value: 0,
        forget: Callable[[Value], None] = lambda value: None,
    ) -> None:
        super().__init__()
        self._most, self._most_size, self._size, self._forget = most, most_size, size, forget
        self._total = 0

    def __setitem__(self, key: Key, value: Value) -> None:
        self._total += self._size(value) - (self._size(self[key]) if key in self else 0)
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most or (self._total > self._most_size and len(self) > 1):
            oldest = self.popitem(last=False)[1]
            self._total -= self._size(oldest)
            self._forget(oldest)
