"""A provider's rules, before it applies them: `validate(body, provider, model)` gives what it would refuse.

Total: any JSON value gives findings, never an exception. What cannot be told from one request alone is said
by `unchecked`; a server that remembers what it issued passes that memory as `seen`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from quire.errors import CallError, RuleError
from quire.providers.rules.accepts import accepts
from quire.providers.rules.check import Check, Finding, ServerMemory, Unchecked, errors, found, make_check
from quire.providers.rules.detect import detect
from quire.providers.rules.grammar import obj, shape
from quire.providers.wires import wire_of
from quire.values import Json, JsonObject, Request

__all__ = [
    "Finding",
    "ServerMemory",
    "Unchecked",
    "detect",
    "errors",
    "issue",
    "malformed",
    "observe",
    "require",
    "unchecked",
    "validate",
]


def issue(seen: ServerMemory, body: JsonObject, provider: str, reply: Json) -> None:
    """Record what `reply` (the provider's JSON) gave out in answer to `body`."""
    wire_of(provider).rules.issued(seen, body, obj(reply))


def observe(seen: ServerMemory, body: JsonObject, provider: str) -> None:
    """Record what a request carries, as given out where it stands; for logs of requests without their replies."""
    wire_of(provider).rules.observed(seen, body)


def validate(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What a provider would refuse in a request, and what it would better not hold, in the order of the rules.

    `request` is a body, or a rendered Request, which brings its provider, model and headers along.
    """
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return [shape("$", "the request is no JSON object", "Send an object.")]
    check = _check(request, provider, model, seen, headers)
    encoded, unfit = _encode(body)
    if encoded is None:
        return unfit
    return list(
        dict.fromkeys([*unfit, *wire_of(check.info.wire).rules.check(check, encoded), *accepts(check)])
    )


def require(request: Request) -> None:
    """Raise what a provider would refuse: the rule, the place and how to mend it."""
    if found := errors(validate(request)):
        first = found[0]
        raise RuleError(
            f"the request breaks rule {first.row} of {request.provider} at {first.path}: {first.message}",
            hint=first.fix,
        )


def malformed(request: Json, provider: str, model: str | None = None) -> list[Finding]:
    """What keeps a body from being a request at all: fields of the wrong type, or missing ones."""
    if not isinstance(request, dict):
        return validate(request, provider)
    check = _check(request, provider, model, None, None)
    encoded, unfit = _encode(request)
    return [*unfit, *(() if encoded is None else errors(wire_of(check.info.wire).rules.shape(check)))]


def unchecked(
    request: Request | Json,
    provider: str | None = None,
    model: str | None = None,
    *,
    seen: ServerMemory | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Unchecked]:
    """The rows that this request touches and that cannot be told from what was given, with what is missing."""
    body = request.body if isinstance(request, Request) else request
    if not isinstance(body, dict):
        return []
    check = _check(request, provider, model, seen, headers)
    notes = list(wire_of(check.info.wire).rules.unchecked(check))
    if check.model_named:
        return notes
    return [Unchecked("model", "no model is named: rules about single models were not checked"), *notes]


def _check(
    request: Request | Json,
    provider: str | None,
    model: str | None,
    seen: ServerMemory | None,
    headers: Mapping[str, str] | None,
) -> Check:
    """What is to be checked; who it is for is told by the caller, the Request, or the body's shape."""
    if isinstance(request, Request):
        given = request.headers if headers is None else headers
        return make_check(request.body, provider or request.provider, model or request.model, seen, given)
    whose = provider or detect(request)
    if whose is None:
        raise CallError("cannot tell whose request this is", hint="Name the provider.")
    return make_check(request, whose, model, seen, headers)


def _encode(body: Json) -> tuple[bytes | None, list[Finding]]:
    """The body as it goes over the wire; None when it cannot be walked at all."""
    try:
        return msgspec.json.encode(body), []
    except RecursionError:
        return None, [found("B.json", "$", problem="nested too deeply")]
    except (TypeError, ValueError, OverflowError) as error:
        problem = found("B.json", "$", problem=f"not JSON text: {error}")
    try:
        # Integers of any size are JSON, though the fast encoder takes 64 bits only.
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode(), []
    except (TypeError, ValueError):
        return b"", [problem]
