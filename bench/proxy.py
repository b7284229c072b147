"""What the proxy adds to the time to the first byte, watching and mending, besides the network.

    .venv/bin/python bench/proxy.py [--requests 400] [--data BODY.json…] [--json]

Client, proxy and the server behind it are processes of their own on one machine. Requests go directly and through the
proxies in turn, so that whatever else the machine does meets all alike; the direct ones at the same time are the floor.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from traces import parser

SERVER = """
import asyncio, sys, uvicorn
START = b'event: message_start\\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"usage":{"input_tokens":9,"cache_read_input_tokens":0}}}\\n\\n'
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": START, "more_body": True})
    await asyncio.sleep(0.002)
    await send({"type": "http.response.body", "body": b'event: message_stop\\ndata: {"type":"message_stop"}\\n\\n'})
import socket
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP); listener.bind(("127.0.0.1", 0)); listener.listen(64)
print(f"serving on http://127.0.0.1:{listener.getsockname()[1]} ", file=sys.stderr, flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off")).run(sockets=[listener])
"""


@contextmanager
def process(*words: str) -> Iterator[str]:
    """A program that says on which address it listens."""
    running = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    try:
        yield running.stderr.readline().partition(" on ")[2].split()[0]
    finally:
        running.terminate()
        running.wait(10)


def body(turns: int, size: int, marked: bool) -> bytes:
    """A conversation of so many turns and about so many bytes."""
    words = "What was said here is long enough to matter. " * max(1, size // turns // 45)
    messages = [{"role": "assistant" if at % 2 else "user", "content": f"{at}: {words}"} for at in range(turns | 1)]
    if marked:
        mark = {"type": "text", "text": "The end.", "cache_control": {"type": "ephemeral"}}
        messages[-1]["content"] = [mark]  # type: ignore[assignment]
    whole = {"model": "claude-sonnet-4-5", "max_tokens": 9, "stream": True, "system": "Be brief.", "messages": messages}
    return json.dumps(whole).encode()


def clocked(number: int) -> bytes:
    """The next request of a conversation whose head is 35 KB long and tells the time in one of its lines."""
    talk, turn = divmod(number, 20)
    rules = "".join(f"- Rule {at}: what is said in it is long enough.\n\n" for at in range(700))
    whole = json.loads(body(2 * turn + 1, 1_000 * turn, False))
    whole["messages"][0]["content"] = f"Talk {talk}. {whole['messages'][0]['content']}"
    return json.dumps({**whole, "system": f"{rules}It is 09:{turn:02}:00.\n{rules}"}).encode()


def first_byte_ms(way: http.client.HTTPConnection, sent: bytes) -> float:
    started = time.perf_counter()
    way.request("POST", "/v1/messages", sent, {"content-type": "application/json", "x-api-key": "k"})
    reply = way.getresponse()
    reply.read1(1)
    taken = 1000 * (time.perf_counter() - started)
    reply.read()
    return taken


def quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def main() -> None:
    made = parser(__doc__, "request bodies")
    made.add_argument("--requests", type=int, default=400, help="how many of each")
    options = made.parse_args()
    same = [(path.name, path.read_bytes()) for path in options.data or ()] or [
        ("10 KB", body(10, 10_000, True)),
        ("100 KB", body(40, 100_000, True)),
        ("400 KB", body(100, 400_000, True)),
        ("100 KB, no marks", body(40, 100_000, False)),
    ]
    bodies: list[tuple[str, Callable[[int], bytes]]] = [(name, lambda _, sent=sent: sent) for name, sent in same]  # type: ignore[misc]
    bodies += [] if options.data else [("70 KB, a clock in the head", clocked)]
    quire = ("-m", "quire", "proxy", "--port", "0", "--to")
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        direct = stack.enter_context(process("-c", SERVER))
        log = ("--log", "/dev/null") if Path("/dev/null").exists() else ()
        urls = {
            "direct": direct,
            "watched": stack.enter_context(process(*quire, direct, *log)),
            "mended": stack.enter_context(process(*quire, direct, "--mend")),
        }
        ways = {name: http.client.HTTPConnection(urlsplit(url).netloc) for name, url in urls.items()}
        for name, request in bodies:
            times: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(options.requests + 20):
                sent = request(number)
                for way, connection in ways.items():
                    taken = first_byte_ms(connection, sent)
                    time.sleep(0.04)  # nobody asks again at once; what passed is read meanwhile
                    if number >= 20:
                        times[way].append(taken)
            floor = [quantile(times["direct"], share) for share in (0.5, 0.99)]
            for way, taken_ms in times.items():
                p50, p99 = quantile(taken_ms, 0.5), quantile(taken_ms, 0.99)
                row = {"p50 ms": p50, "p99 ms": p99, "added p50": p50 - floor[0], "added p99": p99 - floor[1]}
                rows.append({"body": name, "way": way, **{key: round(value, 2) for key, value in row.items()}})
    if options.json:
        print(json.dumps(rows))
        return
    print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for each in rows:
        print("| " + " | ".join(map(str, each.values())) + " |")


if __name__ == "__main__":
    main()
