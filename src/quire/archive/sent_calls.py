"""One request that was sent, as any log or store tells of it: who was asked, what was sent, what the reply used."""

from __future__ import annotations

import contextlib
from urllib.parse import unquote

import msgspec

from quire import providers
from quire.archive.source_file import milliseconds
from quire.errors import CallError, QuireError
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
    # The reply's own id: a store that copies sessions holds one reply several times.
    id: str = ""
    # The program whose store told of it.
    store: str = ""


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


def call_of(source: str, about: JsonObject, body: JsonObject, reply: Json) -> SentCall:
    """A call by its body and reply; `about` may hold host, path, headers, provider, model, usage, time and session."""
    path = str(about.get("path") or about.get("url") or "").partition("?")[0]
    provider = str(about.get("provider") or _provider(str(about.get("host") or ""), path, body))
    named = str(body.get("model") or body.get("modelId") or about.get("model") or url_model(path))
    named = named.removeprefix("models/")
    return SentCall(
        source=source,
        provider=provider,
        model=named,
        body=body,
        usage=_used(provider, named, about.get("usage") or reply),
        at_ms=milliseconds(
            about.get("at") or about.get("ts") or about.get("timestamp") or about.get("at_ms")
        ),
        session=_session(about, body),
    )


def url_model(url: str) -> str:
    """Gemini and Bedrock name the model in the address."""
    for word in ("/models/", "/model/"):
        if word in url:
            return (
                unquote(url)
                .split(word)[1]
                .partition("/")[0]
                .partition(":generate")[0]
                .partition(":stream")[0]
            )
    return ""


def _provider(host: str, path: str, body: JsonObject) -> str:
    """Who was asked: by the host, else by the path, else by what the body itself holds."""
    if host in _HOSTS:
        return _HOSTS[host]
    if path.endswith("/messages"):
        return "anthropic"
    return "bedrock" if "bedrock" in host else detect(body) or "openai-chat"


def is_body(value: Json) -> bool:
    """Whether a value is a request to a model."""
    if not isinstance(value, dict):
        return False
    asked = isinstance(value.get("input"), str) and "model" in value
    return asked or any(isinstance(value.get(field), list) for field in ("messages", "input", "contents"))


def _used(provider: str, model: str, raw: Json) -> Usage | None:
    """What was used: as Quire writes it down, as the provider does, or as the events of a stream tell."""
    if isinstance(raw, str | list):
        return _streamed(f"{provider}:{model}", raw)
    if not isinstance(raw, dict):
        return None
    known = {name: raw[name] for name in COUNTS if isinstance(raw.get(name), int)}
    found = Usage(**known) if "input_total" in known else usage(provider, raw)
    return found if found.input_total else None


def _streamed(target: str, stream: str | list[Json]) -> Usage | None:
    """The usage of a stream, one that broke off too: its beginning tells what went in."""
    with contextlib.suppress(QuireError, ValueError):
        reader = providers.stream(target)
        for event in events_of(stream):
            reader.feed(event)
        found = reader.partial().usage
        return found if found.input_total else None
    return None


def events_of(stream: str | list[Json]) -> list[Json]:
    """The events of server-sent text, or those that are listed."""
    if isinstance(stream, list):
        return stream
    lines = [line.removeprefix("data:").strip() for line in stream.split("\n") if line.startswith("data:")]
    return [msgspec.json.decode(line) for line in lines if line and line != "[DONE]"]


_SESSION_FIELDS = ("session_id", "session", "conversation_id", "thread_id", "recording")


def _session(about: JsonObject, body: JsonObject) -> str:
    """What names the conversation: a header, a field beside the body, the body's cache key or user id."""
    headers = {str(key).lower(): value for key, value in (about.get("headers") or {}).items()}
    given = [about.get(field) for field in _SESSION_FIELDS]
    given += [headers.get(name) for name in ("session_id", "x-session-id", "x-claude-code-session-id")]
    metadata = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    given += [body.get("prompt_cache_key"), metadata.get("session_id"), metadata.get("user_id")]
    return next((str(value) for value in given if value), "")


def known_provider(name: str) -> str:
    """A provider by the client's own name for it; one that nobody knows speaks Chat."""
    name = {"google": "gemini", "google-gla": "gemini", "google-vertex": "gemini"}.get(name, name)
    try:
        resolve(name.split("/")[0])
    except CallError:  # a name of somebody's own
        return "openai-chat"
    return name
