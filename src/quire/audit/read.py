"""Requests as they were sent, from wherever they were kept: logs of requests, HAR files, the stores of agent clients.

One reader for each shape. What a store does not hold is said: without the bodies only usage can be told.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from quire.errors import CallError, FormatError, NotFound
from quire.providers.models import resolve
from quire.providers.rules.detect import detect
from quire.providers.usage import usage
from quire.values import COUNTS, Json, JsonObject, Usage


class SentCall(msgspec.Struct, frozen=True):
    """One request that was sent, and what its reply reported; `body` is empty where only usage was kept."""

    source: str
    provider: str
    model: str
    body: JsonObject = {}
    usage: Usage | None = None
    at_ms: int | None = None
    session: str = ""
    # Of which agent it was, where a client tells its helpers apart.
    agent: str = ""
    # Whether the history was summed up in front of it, as the client says.
    compacted: bool = False
    # Whether the provider says what it read from its cache; where it does not, nothing is a loss.
    tells_cache: bool = True


def read_calls(path: str | Path) -> Iterator[SentCall]:
    """The requests of a file or of all files in a folder, as they come; a shape that nobody knows is an error."""
    place = Path(path)
    if place.is_dir():
        for file in sorted(place.rglob("*")):
            if file.is_file() and file.suffix in (".json", ".jsonl", ".har", ".lhar", ".db", ".gz"):
                yield from read_calls(file)
        return
    if not place.is_file():
        raise NotFound(f"no file {str(path)!r}", hint="Give files or folders of recorded requests.")
    if place.suffix == ".db":
        yield from _opencode(place)
        return
    yield from _of_lines(_values(place), str(place))


def _values(place: Path) -> Iterator[tuple[int, Json]]:
    """The JSON values of a file: one, or one a line."""
    import gzip

    opened = gzip.open if place.suffix == ".gz" else open
    with opened(place, "rt", encoding="utf-8") as lines:
        head = lines.readline()
        first = _json(head)
        if first is None:
            whole = _json(head + lines.read())
            if whole is None:
                raise FormatError(
                    f"{place} is not JSON", line=1, column=1, hint="Give JSON, JSON Lines or HAR."
                )
            yield from enumerate(whole if isinstance(whole, list) else [whole], 1)
            return
        yield from enumerate(first, 1) if isinstance(first, list) else [(1, first)]
        for number, line in enumerate(lines, 2):
            if line.strip():
                value = _json(line)
                if value is None:
                    raise FormatError(
                        f"{place} is not JSON", line=number, column=1, hint="Is the file whole?"
                    )
                yield number, value


def _json(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# Which reader a file's first value asks for.

Reader = Callable[[Iterator[tuple[int, Json]], str], Iterator[SentCall]]


def _of_lines(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    first = next(values, None)
    if first is None:
        return
    reader = next((made for fits, made in _SHAPES if isinstance(first[1], dict) and fits(first[1])), None)
    if reader is None:
        keys = ", ".join(sorted(first[1])[:6]) if isinstance(first[1], dict) else type(first[1]).__name__
        raise FormatError(
            f"{name} holds no requests that are known here ({keys})",
            line=first[0],
            column=1,
            hint="Known: requests a line, HAR, Claude Code, codex, pi and gemini-cli sessions, opencode's database.",
        )

    def again() -> Iterator[tuple[int, Json]]:
        yield first
        yield from values

    yield from reader(again(), name)


_HOSTS = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "generativelanguage.googleapis.com": "gemini",
    "openrouter.ai": "openrouter",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.x.ai": "xai",
    "api.cohere.com": "cohere",
}


def _provider(host: str, path: str, body: JsonObject) -> str:
    """Who was asked: by the host, else by the path, else by what the body itself holds."""
    if host in _HOSTS:
        return _HOSTS[host]
    if path.endswith("/messages"):
        return "anthropic"
    return "bedrock" if "bedrock" in host else detect(body) or "openai-chat"


def _requests(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    """One request a line, alone or with its reply: {"request": {…}, "reply": {…}, "at": …}."""
    for number, value in values:
        body = next((value[key] for key in ("request", "body") if isinstance(value.get(key), dict)), value)
        if not is_body(body):
            raise FormatError(
                f"{name} holds no request", line=number, column=1, hint="Give a body with its messages."
            )
        if value.get("status") in (None, 200):
            yield call_of(f"{name}:{number}", value, body, value.get("reply") or value.get("response"))


def call_of(source: str, about: JsonObject, body: JsonObject, reply: Json) -> SentCall:
    """A call by its body and reply; `about` may hold host, path, headers, usage, time and session."""
    path = str(about.get("path") or about.get("url") or "").partition("?")[0]
    provider = str(about.get("provider") or _provider(str(about.get("host") or ""), path, body))
    named = str(body.get("model") or body.get("modelId") or about.get("model") or "")
    used = about.get("usage") or (reply if isinstance(reply, dict) else None)
    return SentCall(
        source=source,
        provider=provider,
        model=named.removeprefix("models/"),
        body=body,
        usage=_used(provider, used),
        at_ms=_time(about.get("at") or about.get("ts") or about.get("timestamp") or about.get("at_ms")),
        session=_session(about, body),
    )


def is_body(value: Json) -> bool:
    """Whether a value is a request to a model."""
    if not isinstance(value, dict):
        return False
    asked = isinstance(value.get("input"), str) and "model" in value
    return asked or any(isinstance(value.get(field), list) for field in ("messages", "input", "contents"))


def _used(provider: str, raw: Json) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    # As Quire itself writes it down, or as the provider does.
    known = {name: raw[name] for name in COUNTS if isinstance(raw.get(name), int)}
    found = Usage(**known) if "input_total" in known else usage(provider, raw)
    return found if found.input_total else None


_SESSION_FIELDS = ("session_id", "session", "conversation_id", "thread_id", "recording")


def _session(about: JsonObject, body: JsonObject) -> str:
    """What names the conversation: a header, a field beside the body, the body's cache key or user id."""
    headers = {str(key).lower(): value for key, value in (about.get("headers") or {}).items()}
    given = [about.get(field) for field in _SESSION_FIELDS]
    given += [headers.get(name) for name in ("session_id", "x-session-id", "x-claude-code-session-id")]
    metadata = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    given += [body.get("prompt_cache_key"), metadata.get("session_id"), metadata.get("user_id")]
    return next((str(value) for value in given if value), "")


def _time(value: Json) -> int | None:
    """Milliseconds since 1970, of a number or of an ISO date."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value if value > 1e11 else value * 1000)
    try:
        return int(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except ValueError:
        return None


def _har(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    """A browser's or a proxy's record of HTTP: each POST whose body is a request to a model."""
    for _, value in values:
        for number, entry in enumerate(value["log"].get("entries") or (), 1):
            asked = entry.get("request") or {}
            body = _json(str((asked.get("postData") or {}).get("text") or ""))
            status = (entry.get("response") or {}).get("status")
            if not is_body(body) or status not in (None, 200):
                continue
            parts = urlsplit(str(asked.get("url") or ""))
            headers = {header["name"]: header["value"] for header in asked.get("headers") or ()}
            reply = _json(str(((entry.get("response") or {}).get("content") or {}).get("text") or ""))
            about = {
                "host": parts.hostname,
                "path": parts.path,
                "headers": headers,
                "at": entry.get("startedDateTime"),
            }
            yield call_of(f"{name}#{number}", about, body, reply)


# Agent clients' own stores: usage, times and models; neither system prompt nor tools are in them.


def _claude_code(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    """Claude Code: one reply stands in several lines, its usage counts once."""
    seen: set[str] = set()
    compacted = False
    for number, value in values:
        compacted = compacted or value.get("type") == "summary" or bool(value.get("isCompactSummary"))
        message = value.get("message") if value.get("type") == "assistant" else None
        if (
            not isinstance(message, dict)
            or not isinstance(message.get("usage"), dict)
            or message.get("id") in seen
        ):
            continue
        seen.add(str(message.get("id")))
        yield SentCall(
            source=f"{name}:{number}",
            provider="anthropic",
            model=str(message.get("model") or ""),
            usage=_used("anthropic", message["usage"]),
            at_ms=_time(value.get("timestamp")),
            session=str(value.get("sessionId") or name),
            agent=str(value.get("agentId") or "side") if value.get("isSidechain") else "",
            compacted=compacted,
        )
        compacted = False


def _codex(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    """Codex: `last_token_usage` of each count; the totals beside it run on."""
    session, model, compacted = name, "", False
    total: Json = None
    for number, value in values:
        payload = value["payload"] if isinstance(value.get("payload"), dict) else {}
        session = (
            str(payload.get("session_id") or session) if value.get("type") == "session_meta" else session
        )
        model = str(payload.get("model") or model) if value.get("type") == "turn_context" else model
        compacted = compacted or value.get("type") == "compacted"
        told = payload.get("info") if payload.get("type") == "token_count" else None
        info: JsonObject = told if isinstance(told, dict) else {}
        last = info.get("last_token_usage")
        if not isinstance(last, dict):
            continue
        running = (info.get("total_token_usage") or {}).get("total_tokens")
        if running == total:
            continue  # told once more, nothing was sent
        total = running
        used = Usage(
            int(last.get("input_tokens") or 0),
            int(last.get("cached_input_tokens") or 0),
            int(last.get("cache_write_input_tokens") or 0),
            output=int(last.get("output_tokens") or 0),
            reasoning=int(last.get("reasoning_output_tokens") or 0),
        )
        at = _time(value.get("timestamp"))
        yield SentCall(f"{name}:{number}", "openai", model, {}, used, at, session, compacted=compacted)
        compacted = False


def _pi(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    session, compacted = name, False
    for number, value in values:
        session = str(value.get("id") or session) if value.get("type") == "session" else session
        compacted = compacted or value.get("type") == "compaction"
        message = value.get("message") if value.get("type") == "message" else None
        used = message.get("usage") if isinstance(message, dict) else None
        if not isinstance(used, dict) or not isinstance(message, dict):
            continue
        counts = [int(used.get(key) or 0) for key in ("input", "cacheRead", "cacheWrite", "output")]
        told = Usage(sum(counts[:3]), counts[1], counts[2], output=counts[3])
        yield SentCall(
            f"{name}:{number}",
            _known_provider(str(message.get("provider") or "")),
            str(message.get("model") or ""),
            {},
            told if told.input_total else None,
            _time(message.get("timestamp") or value.get("timestamp")),
            session,
            compacted=compacted,
        )
        compacted = False


def _gemini_cli(values: Iterator[tuple[int, Json]], name: str) -> Iterator[SentCall]:
    """gemini-cli: a later line with the same id replaces the earlier one."""
    session, newest = name, dict[str, tuple[int, JsonObject]]()
    for number, value in values:
        session = str(value.get("sessionId") or session)
        if value.get("type") == "gemini" and isinstance(value.get("tokens"), dict):
            newest[str(value.get("id"))] = (number, value)
    for number, value in newest.values():
        told = {key: int(value["tokens"].get(key) or 0) for key in ("input", "cached", "output", "thoughts")}
        used = Usage(
            told["input"],
            told["cached"],
            output=told["output"] + told["thoughts"],
            reasoning=told["thoughts"],
        )
        at = _time(value.get("timestamp"))
        yield SentCall(f"{name}:{number}", "gemini", str(value.get("model") or ""), {}, used, at, session)


def _opencode(place: Path) -> Iterator[SentCall]:
    """opencode's database: each finished step of a message is a request."""
    try:
        with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as conn:
            rows = conn.execute("SELECT id, session_id, data FROM message ORDER BY rowid").fetchall()
            parts = conn.execute("SELECT message_id, data FROM part ORDER BY rowid").fetchall()
    except sqlite3.Error as error:
        raise FormatError(
            f"{place} is no database that is known here: {error}", hint="opencode's is read."
        ) from error
    steps: dict[str, list[JsonObject]] = {}
    for message, data in parts:
        value = _json(data) or {}
        if value.get("type") == "step-finish" and isinstance(value.get("tokens"), dict):
            steps.setdefault(message, []).append(value)
    for id, session, data in rows:
        value = _json(data) or {}
        for step in steps.get(id, ()):
            cache = step["tokens"].get("cache") or {}
            read, write = int(cache.get("read") or 0), int(cache.get("write") or 0)
            used = Usage(
                int(step["tokens"].get("input") or 0) + read + write,
                read,
                write,
                output=int(step["tokens"].get("output") or 0),
                reasoning=int(step["tokens"].get("reasoning") or 0),
            )
            model = str(value.get("modelID") or "")
            at = _time((value.get("time") or {}).get("created"))
            yield SentCall(
                f"{place}:{id}",
                _known_provider(str(value.get("providerID") or "")),
                model,
                {},
                used,
                at,
                session,
            )


def _known_provider(name: str) -> str:
    """A provider by the client's own name for it; one that nobody knows speaks Chat."""
    try:
        resolve(name.split("/")[0])
    except CallError:  # a name of somebody's own
        return "openai-chat"
    return name


def _has(*names: str) -> Callable[[JsonObject], Any]:
    return lambda value: all(name in value for name in names)


# What the first value of a file must hold, and who reads such files.
_SHAPES: tuple[tuple[Callable[[JsonObject], Any], Reader], ...] = (
    (lambda value: isinstance(value.get("log"), dict), _har),
    (lambda value: value.get("type") == "session" and "version" in value, _pi),
    (_has("timestamp", "type", "payload"), _codex),
    (_has("sessionId", "projectHash"), _gemini_cli),
    (
        lambda value: "uuid" in value or "leafUuid" in value or "parentUuid" in value or "sessionId" in value,
        _claude_code,
    ),
    (lambda value: isinstance(value.get("request"), dict) or isinstance(value.get("body"), dict), _requests),
    (is_body, _requests),
)
