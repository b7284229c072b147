"""Opening other programs' files, and the values that their readers return: conversations, and requests with their usage.

A file may be JSON lines, one JSON value, a database, text, or a folder. Lines are read one by one, so that a log may be
larger than memory.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import msgspec

from quire import providers
from quire.assemble.rebase import Edit, Rebase
from quire.errors import CallError, FormatError, QuireError
from quire.log.connection import has_log
from quire.log.entries import check
from quire.log.shapes import short
from quire.providers.incoming import Partial, iso_ms
from quire.providers.models import data, resolve
from quire.providers.usage import usage
from quire.providers.wires import detect, speaker, wire_of
from quire.values import COUNTS, INSTRUCTIONS, Entry, Json, JsonObject, Usage, whole_characters, with_leaves

_logger = logging.getLogger("quire")
# How many of the first lines are looked at to recognise a file.
_HEAD = 20


class LinesOf(msgspec.Struct, frozen=True):
    """Some lines of a file: their range in bytes, and the number of the first."""

    start: int
    end: int
    first: int


class SourceFile(msgspec.Struct, frozen=True):
    """An opened path. Of JSON lines only the first are in memory, as `head`."""

    path: Path
    value: Json = None
    tables: frozenset[str] = frozenset()
    text: str = ""
    head: tuple[tuple[int, Json], ...] = ()
    is_lines: bool = False
    # The byte at which the entries of a HAR file begin.
    entries_at: int | None = None
    # Data from standard input in place of a file's; the lines to read instead of all of them.
    given: bytes | None = None
    part: LinesOf | None = None

    @property
    def name(self) -> str:
        return self.path.stem

    def first_objects(self) -> list[JsonObject]:
        """The first objects among the lines, or the elements of the list, or the single object."""
        listed = [line for _, line in self.head] if self.is_lines else self.value
        return [row for row in (listed[:_HEAD] if isinstance(listed, list) else [listed]) if isinstance(row, dict)]

    def objects(self) -> Iterator[JsonObject]:
        """All lines, or the elements of the list, or the single object, one by one; each must be an object."""
        for number, row in self.numbered_lines():
            if not isinstance(row, dict):
                raise misfit(self, number, row, "an object")
            yield row

    def numbered_lines(self) -> Iterator[tuple[int, Json]]:
        """The lines, or the elements of the list, with their numbers from 1; any other value is number 1."""
        if not self.is_lines:
            yield from enumerate(self.value if isinstance(self.value, list) else [self.value], 1)
            return
        with _readable(self.path), self.open() as data:
            lines: Iterable[bytes] = data
            if part := self.part:
                data.seek(part.start)
                lines = iter(lambda: data.readline() if data.tell() < part.end else b"", b"")
            yield from _values(self.path, enumerate(_whole(self.path, lines), part.first if part else 1))

    def har_entries(self) -> Iterator[JsonObject]:
        """The entries of a HAR file, one by one."""
        if self.entries_at is None:
            raise FormatError(f"{self.path.name} has no log.entries", hint="Is it a HAR file?")
        with _readable(self.path), self.open() as data:
            data.seek(self.entries_at)
            for _, entry in _values(self.path, ((1, element) for element in _elements(self.path, data))):
                yield entry

    def open(self) -> IO[bytes]:
        """The file's bytes, decompressed."""
        data: IO[bytes] = self.path.open("rb") if self.given is None else io.BytesIO(self.given)
        head = data.read(4)
        if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
            data.close()
            is_gzip = head.startswith(b"\x1f")
            return _PackedFile(self.path) if is_gzip else _unpack_zstandard(self.path)  # type: ignore[return-value]  # no IO to typeshed
        data.seek(0)
        return data

    def parts(self, size: int) -> Iterator[LinesOf]:
        """Stretches of whole lines of about `size` bytes each."""
        with _readable(self.path), self.open() as data:
            start, first = 0, 1
            while block := data.read(size):
                block += data.readline()
                yield LinesOf(start, start + len(block), first)
                start, first = start + len(block), first + block.count(b"\n")

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(_database(self.path)) as conn:
            return conn.execute(query, values).fetchall()


# Larger than any real value: the limit for one value of a packed file, since a small file may unpack to any size.
_MOST_BYTES = 256 * 1024 * 1024


class _PackedFile(gzip.GzipFile):
    """A gzip file in which a line or value above the limit is an error, before it fills the memory."""

    def read(self, size: int | None = -1) -> bytes:
        return _within_bound(super().read(_MOST_BYTES + 1 if size is None or size < 0 else size))

    def readline(self, size: int | None = -1) -> bytes:
        return _within_bound(super().readline(_MOST_BYTES + 1))


def _within_bound(value: bytes) -> bytes:
    _check_size(len(value))
    return value


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise OSError(f"it unpacks to a piece of more than {_MOST_BYTES:,} bytes")


def source_file(path: Path, text: str | None = None) -> SourceFile:
    """Open a file, or `text` as if it were one, and find out its kind."""
    if text is None and path.is_dir():
        return SourceFile(path)
    source = SourceFile(path, given=None if text is None else text.encode())
    with _readable(path), source.open() as data:
        head = data.read(_HAR_HEAD)
        if head.startswith(b"SQLite format 3\0"):
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            return SourceFile(path, tables=frozenset(name for (name,) in SourceFile(path).rows(query)))
        if har := _HAR.match(head):
            return msgspec.structs.replace(source, entries_at=har.end())
        if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[")):
            return msgspec.structs.replace(source, text=(head + data.read()).decode().removeprefix("\ufeff"))
        data.seek(0)
        if _is_lines(data):
            source = msgspec.structs.replace(source, is_lines=True)
            return msgspec.structs.replace(source, head=tuple(islice(source.numbered_lines(), _HEAD)))
        data.seek(0)
        ((_, value),) = _values(path, [(1, data.read())])
        return msgspec.structs.replace(source, value=value)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error, 1) from error
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path} cannot be read: {error}", hint="Check the file.") from error


def _unpack_zstandard(path: Path) -> io.BytesIO:
    """Unpack a Zstandard file (Codex packs old sessions so); Python has a module for it from 3.14 on."""
    for name in ("compression.zstd", "zstandard"):
        with contextlib.suppress(ImportError):
            library = import_module(name)
            made = library.ZstdDecompressor()
            unpacker = made.decompressobj() if name == "zstandard" else made
            unpacked = bytearray()
            try:
                with path.open("rb") as packed:
                    while not unpacker.eof and (piece := packed.read(1024)):  # few, as each may unpack to any size
                        unpacked += unpacker.decompress(piece)
                        _check_size(len(unpacked))
            except library.ZstdError as error:
                raise OSError(str(error)) from error
            if not unpacker.eof:
                raise EOFError("it ends within what was packed")
            return io.BytesIO(unpacked)
    raise FormatError(f"{path} is packed with Zstandard", hint="Unpack it with `zstd -d`, or install zstandard.")


def _not_utf8(path: Path, error: UnicodeDecodeError, first: int) -> FormatError:
    """The error for bytes that are not UTF-8; `first` is the number of their first line."""
    data, start = bytes(error.object), error.start
    if b"\0" in data:
        return FormatError(f"{path} is neither text nor a database", hint="Name a session file.")
    line, column = first + data.count(b"\n", 0, start), start - data.rfind(b"\n", 0, start)
    problem = f"{path.name} is not UTF-8 (0x{data[start]:02x})"
    return FormatError(problem, line=line, column=column, hint="Convert the file to UTF-8 first.")


def _is_lines(data: IO[bytes]) -> bool:
    """Whether the first line is a JSON value and another line follows."""
    first = next((line for line in data if line.strip()), b"")
    with contextlib.suppress(ValueError, RecursionError):
        decode_json(first)
        return any(line.strip() for line in data)
    return False


def _whole(path: Path, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, without an incomplete last one: its program was killed, or is still writing it."""
    for line in lines:
        if not line.endswith(b"\n"):
            try:
                decode_json(line.strip() or b"null")
            except (ValueError, RecursionError):
                _warn(str(path), "its last line is half written, and left out")
                return
        yield line


@cache
def _warn(place: str, problem: str) -> None:
    """Log a warning, once for each place (by the cache)."""
    _logger.warning("%s: %s", place, problem)


# The most bytes before the entries of a HAR file.
_HAR_HEAD = 4 * 1024 * 1024
_HAR = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*"log"\s*:\s*\{(?:(?!(?<!\\)"entries"\s*:\s*\[).)*+"entries"\s*:\s*\[', re.S
)
_BRACKET = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.S)
_BLOCK = 1024 * 1024


def _elements(path: Path, data: IO[bytes]) -> Iterator[bytes]:
    """The objects of the list that begins at the current position, one by one, for a list of any length."""
    buffer, at, depth, quoted = b"", 0, 0, False
    while True:
        if quoted:
            at = _IN_STRING.match(buffer, at).end()  # type: ignore[union-attr]  # the empty string always matches
            quoted = buffer[at : at + 1] != b'"'
            at += not quoted
        bracket = None if quoted else _BRACKET.search(buffer, at)
        if bracket is None:
            more = data.read(_BLOCK)
            if not more:
                raise FormatError(f"{path.name} ends within its entries", hint="Is the file whole?")
            at = at if quoted else len(buffer)
            buffer = _within_bound(buffer + more) if depth else more
            at = at if depth else 0
            continue
        at, sign = bracket.end(), bracket[0]
        if sign == b'"':
            quoted = True
        elif sign in b"{[":
            if not depth:
                buffer, at = buffer[at - 1 :], 1
            depth += 1
        elif not depth:
            return
        else:
            depth -= 1
            if not depth:
                yield buffer[:at]
                buffer, at = buffer[at:], 0


def _values(path: Path, lines: Any) -> Iterator[tuple[int, Json]]:
    for number, line in lines:
        if line.strip():
            try:
                yield number, decode_json(line.rstrip(b"\r\n"), path)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, error, number) from error
            except (ValueError, RecursionError) as error:
                problem = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise FormatError(
                    f"{path.name} is not JSON: {problem}",
                    line=getattr(error, "lineno", 1) + number - 1,
                    column=getattr(error, "colno", 1),
                    hint="Give JSON, or one JSON value a line; is the file whole?",
                ) from error


def decode_json(data: bytes | str, place: object = "") -> Json:
    """Decode JSON; what msgspec refuses (NaN, lone surrogates) is read by Python's slower module.

    NaN and Infinity become their names as text; lone surrogates become U+FFFD, with a warning where `place` is given.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):  # msgspec raises the latter for single strings
        text = data if isinstance(data, str) else data.removeprefix(b"\xef\xbb\xbf").decode()
        return whole_value(json.loads(text, parse_constant=str), place)


def whole_value(value: Json, place: object) -> Json:
    """A value with lone surrogates as U+FFFD, with a warning where `place` is given."""
    whole = with_leaves(value, lambda leaf: whole_characters(leaf) if isinstance(leaf, str) else leaf)
    if place and whole != value:
        _warn(str(place), "half of a character, read as U+FFFD")
    return whole


def _database(path: Path) -> sqlite3.Connection:
    """Open a database read-only, without creating files beside it; its write-ahead log is read where that is possible."""
    for how in ("mode=ro",) * has_log(path) + ("mode=ro&immutable=1",):
        conn = None
        try:
            conn = sqlite3.connect(f"file:{path.resolve()}?{how}".replace("#", "%23"), uri=True)
            conn.execute("SELECT 1 FROM sqlite_master").fetchall()
            return conn
        except sqlite3.Error as error:
            problem = error
            if conn is not None:
                conn.close()
    raise FormatError(f"{path} cannot be read: {problem}", hint="Copy it, and give the copy.")


def milliseconds(stamp: Json) -> int | None:
    """A store's time (ISO 8601, seconds or milliseconds) in milliseconds."""
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return int(stamp if stamp > 1e11 else stamp * 1000)
    return iso_ms(stamp)


def text_in(content: Json) -> str:
    """The text of a content: a string, or the texts of its parts joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_in(block) for block in content)
    if isinstance(content, dict):
        return str(content.get("text") or "")
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def text_or_json(value: Json) -> str:
    """A tool's result as text: a string as it is, any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


# Recorded requests.


class SentCall(msgspec.Struct, frozen=True):
    """One recorded request with the usage of its reply; `body` is empty where the store only has the usage."""

    source: str
    provider: str
    model: str
    body: JsonObject = {}
    usage: Usage | None = None
    at_ms: int | None = None
    session: str = ""
    # The helper agent that sent it, where a client has several.
    agent: str = ""
    # Whether the client summed up its history right before it.
    compacted: bool = False
    # Whether the provider reports cache reads; where it does not, nothing counts as lost.
    tells_cache: bool = True
    # The reply's id, by which copies of it in copied sessions are recognised.
    id: str = ""
    # The name of the program that recorded it.
    store: str = ""
    # The application's own body, where Quire's proxy changed it.
    given: JsonObject = {}

    @property
    def target(self) -> str:
        return f"{self.provider}:{self.model}"


def counted_call(
    source: str, provider: str, model: str, used: Usage, at_ms: int | None, session: str, **more: Any
) -> SentCall:
    """A call without a body; a usage without input (the request was aborted) counts as unknown."""
    return SentCall(source, provider, model, {}, used if used.input_total else None, at_ms, session, **more)


@cache
def _hosts() -> dict[str, str]:
    """Providers by the host of their API."""
    rows = data("providers")["providers"].items()
    urls = {provider: facts.get("endpoint", {}).get("base_url", "") for provider, facts in rows}
    return {urlsplit(url).hostname or "": provider for provider, url in urls.items() if url.startswith("https:")}


def call_of(source: str, about: JsonObject, body: JsonObject, reply: Json) -> SentCall:
    """A call from its body and reply; `about` may have host, path, headers, provider, model, usage, time and session."""
    path = url_path(about)
    provider = str(about.get("provider") or _provider(str(about.get("host") or ""), path, body))
    named = str(body.get("model") or body.get("modelId") or about.get("model") or url_model(path))
    model = named.removeprefix("models/")
    return SentCall(
        source=source,
        provider=provider,
        model=model,
        body=body,
        usage=_reported_usage(provider, model, body, about.get("usage") or reply),
        at_ms=milliseconds(about.get("at") or about.get("ts") or about.get("timestamp") or about.get("at_ms")),
        session=_session(about, body),
        given=original if isinstance(original := about.get("given"), dict) and is_body(original) else {},
    )


# What goes there is in Chat's format, whoever's model it names: servers of Chat have any maker's.
CHAT_PATH = "/chat/completions"


def url_path(about: JsonObject) -> str:
    """The path, or the URL, that a request went to."""
    return str(about.get("path") or about.get("url") or "").partition("?")[0].rstrip("/")


def url_model(url: str) -> str:
    """The model in a request's URL (Gemini, Vertex, Bedrock and Azure), else ""."""
    for word in ("/models/", "/model/", "/tunedModels/", "/deployments/"):
        if word in url:
            return re.split(r"/|:(?:generate|stream|rawPredict)", unquote(url).split(word)[1])[0]
    return ""


def _provider(host: str, path: str, body: JsonObject) -> str:
    """The provider of a request: by the host, else by the path, else by the body."""
    if "anthropic_version" in body:  # Claude in other clouds
        return "bedrock-anthropic" if str(body["anthropic_version"]).startswith("bedrock") else "anthropic"
    by_path = "anthropic" if path.endswith("/messages") else "bedrock" if "bedrock" in host else ""
    provider = _hosts().get(host) or by_path or detect(body) or "openai-chat"
    is_other = path.endswith(CHAT_PATH) and wire_of(provider, body).name != "openai-chat"
    return "openai-chat" if is_other else provider


def is_body(value: Json) -> bool:
    """Whether a value is a request to a model."""
    if not isinstance(value, dict):
        return False
    is_text = isinstance(value.get("input"), str) and "model" in value
    return is_text or any(isinstance(value.get(field), list) for field in ("messages", "input", "contents"))


def _reported_usage(provider: str, model: str, body: JsonObject, raw: Json) -> Usage | None:
    """The usage in Quire's form, in the provider's form, or in the events of a stream."""
    used = Usage()
    if isinstance(raw, str | list):
        with contextlib.suppress(QuireError, ValueError):
            # Of an interrupted stream: its input tokens.
            used = streamed_reply(f"{speaker(provider, body)}:{model}", raw).usage
    elif isinstance(raw, dict):
        counts = {name: raw[name] for name in COUNTS if isinstance(raw.get(name), int)}
        used = Usage(**counts) if "input_total" in counts else usage(provider, raw)
    return used if used.input_total else None


def streamed_reply(target: str, stream: str | list[Json]) -> Partial:
    """The reply of a stream, also an interrupted one, from its text of server-sent events or a list of them."""
    reader = providers.stream(target)
    if isinstance(stream, str):
        lines = [line.removeprefix("data:").strip() for line in stream.split("\n") if line.startswith("data:")]
        stream = [msgspec.json.decode(line) for line in lines if line and line != "[DONE]"]
    for event in stream:
        reader.feed(event)
    return reader.partial()


SESSION_FIELDS = ("session_id", "session", "conversation_id", "thread_id", "recording")


def _session(about: JsonObject, body: JsonObject) -> str:
    """The name of the conversation: from a field beside the body, a header, or the body's cache key or user id."""
    headers = {str(key).lower(): value for key, value in (about.get("headers") or {}).items()}
    names = [about.get(field) for field in SESSION_FIELDS]
    names += [headers.get(name) for name in ("session_id", "x-session-id", "x-claude-code-session-id")]
    metadata = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    names += [body.get("prompt_cache_key"), metadata.get("session_id"), metadata.get("user_id")]
    return next((str(value) for value in names if value), "")


# What programs call a provider, with "-" for each "_" and ".".
_NAMES = {
    "anthropic": "google-vertex-anthropic google-anthropic-vertex anthropic-vertex vertex-anthropic",
    "azure": "azure-openai azure-openai-responses azure-cognitive-services azure-ai-openai",
    "bedrock": "amazon-bedrock aws-bedrock bedrock-converse",
    "deepseek": "deep-seek",
    "gemini": "google google-gla google-vertex google-genai google-vertexai vertexai vertex-ai google-gemini-cli google-antigravity gcp-gemini gcp-gen-ai gcp-vertex-ai",
    "mistral": "mistralai mistral-ai",
    "openai": "openai-codex",
    "xai": "x-ai",
}  # fmt: skip


def known_provider(name: str, otherwise: str = "openai-chat") -> str:
    """Quire's name of a provider that a client names; `otherwise` for an unknown one, which most often speaks Chat."""
    name = name.split("/")[0].strip().lower()
    plain = name.replace("_", "-").replace(".", "-")
    named = next((known for known, names in _NAMES.items() if plain in names.split()), name)
    for known in (named, name.partition(".")[0]):  # some name an API behind the provider: openai.responses
        with contextlib.suppress(CallError):
            resolve(known)
            return known
    return otherwise


# Conversations from stores of other programs, and the stores themselves.


class ClientSummary(msgspec.Struct, frozen=True):
    """Here a client replaced its first `behind` messages by a summary, except those `kept`.

    `summary` is its text, where that is not one of the messages.
    """

    behind: int
    kept: frozenset[int] = frozenset()
    summary: str = ""


class StoredConversation(msgspec.Struct, frozen=True):
    """A conversation: messages in a wire format, or a request with them, and what else its store recorded."""

    name: str
    format: str
    value: Json
    model: str = ""
    lacks: tuple[str, ...] = ()
    # Unix milliseconds of each message, or None.
    times: tuple[int | None, ...] = ()
    # The reply to the last request, in a log of requests.
    reply: tuple[Entry, ...] = ()
    # The requests with their usage, where the store has them.
    calls: tuple[SentCall, ...] = ()
    # Kinds of content that could not be converted to entries.
    left_out: tuple[str, ...] = ()
    # In their order.
    compactions: tuple[ClientSummary, ...] = ()

    def entries(self) -> list[Entry]:
        """The conversation as log entries, with a rebase where the client summed up."""
        entries = providers.import_(self.format, self.value, self.model)
        return [check(entry.body) for entry in [*_with_times(entries, self), *self.reply]]


def _with_times(entries: list[Entry], of: StoredConversation) -> Iterator[Entry]:
    """Entries with the times of their messages, and with rebases; in the Responses API each item is a message."""
    items = of.format in ("openai-responses", "openai-agents")
    place, waiting, standing = -1, list(of.compactions), dict[int, int]()
    for seq, entry in enumerate(entries, 1):
        in_message = "message" in entry.wire or "more" in entry.wire or entry.kind not in ("system", "tools")
        place += in_message and (items or not entry.wire.get("more"))
        while waiting and place >= waiting[0].behind:
            yield _rebase(waiting.pop(0), standing)
        at = of.times[place] if in_message and 0 <= place < len(of.times) else None
        if entry.kind not in INSTRUCTIONS | {"tools"}:
            standing[seq + len(of.compactions) - len(waiting)] = place
        yield entry if at is None else msgspec.structs.replace(entry, body={**entry.body, "at": at})
    yield from (_rebase(compaction, standing) for compaction in waiting)


def _rebase(compaction: ClientSummary, standing: dict[int, int]) -> Entry:
    """A compaction as a rebase; `standing` maps the entries that the model still saw to their messages."""
    dropped = [seq for seq, place in standing.items() if place not in compaction.kept]
    for seq in dropped:
        del standing[seq]
    behind = min(standing, default=max(dropped, default=0) + 1)
    edits = tuple(Edit(seq, "drop") for seq in dropped)
    return Entry("rebase", Rebase("the client summed up", behind, edits=edits, summary=compaction.summary).body())


class LoggedExchange(msgspec.Struct, frozen=True):
    """A request and its reply (an object, or the text of its stream); `about` has the other fields of the log."""

    body: JsonObject
    reply: Json = None
    place: str = ""
    model: str = ""
    about: JsonObject = {}

    @property
    def session(self) -> str:
        return str(self.about.get("session") or "")

    def call(self) -> SentCall | None:
        """The exchange as a call; None where the provider refused it."""
        if self.about.get("status") not in (None, 200):
            return None
        return call_of(self.place, {"model": self.model, **self.about}, self.body, self.reply)


class SessionStore(msgspec.Struct, frozen=True):
    """How a program's files are recognised and read; `lacks` names what they never hold.

    A log of requests also has `exchanges`, which reads its lines independently.
    """

    name: str
    recognises: Callable[[SourceFile], bool]
    read: Callable[[SourceFile], Iterable[StoredConversation]]
    lacks: tuple[str, ...] = ()
    exchanges: Callable[[SourceFile], Iterator[LoggedExchange]] | None = None


def holding(test: Callable[[JsonObject], bool]) -> Callable[[SourceFile], bool]:
    """A test whether one of a file's first objects passes `test`."""
    return lambda file: any(test(row) for row in file.first_objects())


def misfit(file: SourceFile, number: int, value: Json, expected: str) -> FormatError:
    """The error for a line, or an element of the list, that its store would not write."""
    is_listed = isinstance(file.value, list)
    place = {} if is_listed else {"line": number, "column": 1}
    problem = f"{describe_value(value)}{f' as number {number}' * is_listed}, which is not {expected}"
    return FormatError(f"{file.path.name} holds {problem}", hint="Check the file, or force another reader with --from.", **place)  # fmt: skip


def describe_value(value: Json) -> str:
    """A value for an error message: the names of its fields, or a short form of it."""
    return f"the fields {', '.join(list(value)[:6])}" if value and isinstance(value, dict) else short(value)
